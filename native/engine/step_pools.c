/* Steps that make one result of many elements: pools over windows, and means. */

#include "plan.h"
#include "windows.h"

#include <math.h>

#define MAX_TERMS ((isize)1 << 22)  /* bytes whose sum fits int32 */
#define MAX_DIVISOR (1 << 20)       /* along one axis, so that the product of three fits int64 */

/* ---- windows ------------------------------------------------------------------------------------------------------------ */

/* Sizes of images (N, D, H, W, C) and of results; an index of a kernel is a row of results. */
typedef struct {
    isize batch, size[3], out[3], channels;
} image_sizes;

/* Reads and checks sizes: batch, three of the image, channels, three of the result; and x and y. */
static int check_images(checker *c, image_sizes *s, const int64_t *given, int64_t x, int64_t y, isize element) {
    isize elements, results;
    for (int i = 0; i < 8; i++)
        if (given[i] < (i > 0) || given[i] > MAX_SIZE) return refuse(c, "images of no such size");
    s->batch = (isize)given[0], s->channels = (isize)given[4];
    elements = results = checked_product(s->batch, s->channels);
    for (int i = 0; i < 3; i++) {
        s->size[i] = (isize)given[1 + i], s->out[i] = (isize)given[5 + i];
        elements = checked_product(elements, s->size[i]), results = checked_product(results, s->out[i]);
    }
    return needs(c, x, elements, element, "x") && needs(c, y, results, element, "y");
}

/* Where the rows of the results of an index are. */
typedef struct {
    isize image, depth, row, at; /* sample, depth and row of the results; their first element */
} result_row;

INLINE result_row row_of(const image_sizes *s, isize index) {
    const isize rows = s->out[1], depths = s->out[0];
    return (result_row){index / (rows * depths), index / rows % depths, index % rows, index * s->out[2] * s->channels};
}

/* ---- max_pool ----------------------------------------------------------------------------------------------------------- */

typedef struct {
    image_sizes s;
    isize kernel[3], stride[3], pad[3], dilation[3], element;
    const uint8_t *x;
    uint8_t *y;
} max_pool_args;

int check_max_pool(checker *c, const int64_t *step) {
    const max_pool_step *s = (const max_pool_step *)(const void *)step;
    max_pool_args *a = (max_pool_args *)plan_memory(c, sizeof *a);
    if (!a) return 0;
    if (s->size != 1 && s->size != 4) return refuse(c, "elements of no such size");
    a->element = (isize)s->size;
    if (!check_images(c, &a->s, &s->batch, s->x, s->y, a->element)) return 0;
    for (int i = 0; i < 3; i++) {
        const int64_t kernel = (&s->kernel_d)[i], stride = (&s->stride_d)[i], pad = (&s->pad_d)[i], dilation = (&s->dilation_d)[i];
        if (kernel < 1 || kernel > MAX_SIZE || stride < 1 || stride > MAX_SIZE || pad < 0 || pad > MAX_SIZE || dilation < 1 ||
            dilation > MAX_SIZE)
            return refuse(c, "windows of no such size");
        a->kernel[i] = (isize)kernel, a->stride[i] = (isize)stride, a->pad[i] = (isize)pad, a->dilation[i] = (isize)dilation;
    }
    c->prepared = a;
    return 1;
}

/* A window: its taps along each axis, and bytes from one to the next. */
typedef struct {
    isize count[3], stride[3];
    const uint8_t *first;
} window;

/* Taps of windows along one axis, moved to the window of a result. Returns the first position. */
INLINE isize place_window(const max_pool_args *a, int axis, isize result, isize stride, window *w) {
    const isize start = result * a->stride[axis] - a->pad[axis], last = start + (a->kernel[axis] - 1) * a->dilation[axis];
    isize skip = 0;
    /* most windows lie inside of the image, which is seen without a division */
    w->count[axis] = start >= 0 && last < a->s.size[axis] ? a->kernel[axis]
                                                           : taps_inside(start, a->dilation[axis], a->kernel[axis], a->s.size[axis], &skip);
    w->stride[axis] = stride * a->dilation[axis] * a->element;
    return start + skip * a->dilation[axis];
}

#define FOR_TAPS(w, from)                                                    \
    for (isize d_ = 0; d_ < (w).count[0]; d_++)                              \
        for (isize h_ = 0; h_ < (w).count[1]; h_++)                          \
            for (isize k_ = 0; k_ < (w).count[2]; k_++)                      \
                for (const uint8_t *from = (w).first + d_ * (w).stride[0] + h_ * (w).stride[1] + k_ * (w).stride[2]; from; from = NULL)

/* Takes the largest elements of a window, one for each channel. */
typedef void (*window_maximum)(const window *w, void *y, isize channels);

MULTIVERSION static void maximum_of_bytes(const window *w, void *to, isize channels) {
    uint8_t *restrict y = (uint8_t *)to;
    memset(y, 0, (size_t)channels);
    FOR_TAPS(*w, x) for (isize c = 0; c < channels; c++) y[c] = x[c] > y[c] ? x[c] : y[c];
}

/* A NaN in a window is its result. */
MULTIVERSION static void maximum_of_floats(const window *w, void *to, isize channels) {
    float *restrict y = (float *)to;
    for (isize c = 0; c < channels; c++) y[c] = -INFINITY;
    FOR_TAPS(*w, at) {
        const float *restrict x = (const float *)(const void *)at;
        for (isize c = 0; c < channels; c++) y[c] = x[c] > y[c] || x[c] != x[c] ? x[c] : y[c];
    }
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "avx512.h"

AVX512_TARGET static void maximum_avx512(const window *w, void *to, isize channels) {
    for (isize c = 0; c < channels; c += VECTOR_BYTES) {
        const __mmask64 mask = byte_mask(channels - c);
        __m512i most = _mm512_setzero_si512();
        FOR_TAPS(*w, x) most = _mm512_max_epu8(most, _mm512_maskz_loadu_epi8(mask, x + c));
        _mm512_mask_storeu_epi8((uint8_t *)to + c, mask, most);
    }
}

static window_maximum byte_maximum(void) { return has_avx512_vnni() ? maximum_avx512 : maximum_of_bytes; }
#else
static window_maximum byte_maximum(void) { return maximum_of_bytes; }
#endif

/* Has the pixels fetched that the window below is the first to read, which may lie beyond the image. */
INLINE void fetch_next_row(const max_pool_args *a, const window *w) {
    const isize pixel = a->s.channels * a->element, columns = min_size(a->stride[2], w->count[2]);
    fetch_rows(w->first + w->count[1] * w->stride[1], min_size(a->stride[1], w->count[1]), a->s.size[2] * pixel, columns * pixel);
}

static void max_pool_kernel(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const max_pool_args *a = (const max_pool_args *)given;
    const window_maximum maximum = a->element == 4 ? maximum_of_floats : byte_maximum();
    const isize line = a->s.size[2] * a->s.channels, plane = a->s.size[1] * line;
    (void)scratch;
    for (isize i = lo; i < hi; i++) {
        const result_row r = row_of(&a->s, i);
        window w;
        const isize depth = place_window(a, 0, r.depth, plane, &w), row = place_window(a, 1, r.row, line, &w);
        const isize begin = r.image * a->s.size[0] * plane + depth * plane + row * line;
        for (isize j = 0; j < a->s.out[2]; j++) {
            const isize column = place_window(a, 2, j, a->s.channels, &w), any = w.count[0] && w.count[1] && w.count[2];
            w.first = a->x + (any ? begin + column * a->s.channels : 0) * a->element;
            fetch_next_row(a, &w);
            maximum(&w, a->y + (r.at + j * a->s.channels) * a->element, a->s.channels);
        }
    }
}

void run_max_pool(frame *f, const int64_t *step, void *prepared) {
    const max_pool_step *s = (const max_pool_step *)(const void *)step;
    max_pool_args a = *(const max_pool_args *)prepared;
    a.x = at(f, s->x), a.y = at(f, s->y);
    const isize rows = a.s.batch * a.s.out[0] * a.s.out[1];
    parallel(f, max_pool_kernel, &a, rows, value_bytes(f->p, s->y));
}

/* ---- avg_pool ----------------------------------------------------------------------------------------------------------- */

typedef struct {
    image_sizes s;
    isize count;
    const uint8_t *x;
    const int32_t *windows, *divisors;
    const float *ratios;
    uint8_t *y;
    int32_t zero_x, zero;
    float low, high;
} avg_pool_args;

/* Whether windows lie inside of the image; *longest is the size of the largest one along this axis. */
static int check_windows(const int32_t *windows, isize count, isize size, isize *longest) {
    *longest = 0;
    for (isize i = 0; i < 3 * count; i += 3) {
        if (windows[i] < 0 || windows[i + 1] < windows[i] || windows[i + 1] > size || windows[i + 2] < 0 ||
            windows[i + 2] > MAX_DIVISOR)
            return 0;
        *longest = max_size(*longest, windows[i + 1] - windows[i]);
    }
    return 1;
}

int check_avg_pool(checker *c, const int64_t *step) {
    const avg_pool_step *s = (const avg_pool_step *)(const void *)step;
    avg_pool_args *a = (avg_pool_args *)plan_memory(c, sizeof *a);
    if (!a || !check_images(c, &a->s, &s->batch, s->x, s->y, 1)) return 0;
    const int32_t *windows = (const int32_t *)constant_at(c, s->windows);
    isize all = 1;
    if (!windows || !needs(c, s->windows, 3 * (a->s.out[0] + a->s.out[1] + a->s.out[2]), 4, "windows"))
        return refuse(c, "a pool without its windows");
    for (int i = 0; i < 3; i++) {
        isize longest;
        if (!check_windows(windows, a->s.out[i], a->s.size[i], &longest)) return refuse(c, "windows outside of the image");
        windows += 3 * a->s.out[i], all = checked_product(all, longest);
    }
    if (all < 0 || all > MAX_TERMS) return refuse(c, "windows of more than %lld elements", (long long)MAX_TERMS);
    c->prepared = a, a->count = (isize)s->count;
    return check_clamp(c, s->zero, s->low, s->high) && check_clamp(c, s->zero_x, 0, 255) &&
           needs(c, s->divisors, a->count, 4, "divisors") && needs(c, s->ratios, a->count, 4, "ratios");
}

/* The ratio for a divisor, which is that of the window before it, mostly. */
INLINE float ratio_of(const avg_pool_args *a, int64_t divisor, isize *last) {
    if (*last >= a->count || a->divisors[*last] != divisor)
        for (*last = 0; *last < a->count && a->divisors[*last] != divisor;) ++*last;
    return *last < a->count ? a->ratios[*last] : 0.0f;
}

/* Sums of up to BLOCK channels over a window. */
INLINE void window_sums(const avg_pool_args *a, const uint8_t *x, const int32_t *d, const int32_t *h, const int32_t *w,
                        isize count, int32_t *restrict sum) {
    const isize channels = a->s.channels, line = a->s.size[2] * channels, plane = a->s.size[1] * line;
    for (isize c = 0; c < count; c++) sum[c] = 0;
    for (isize i = d[0]; i < d[1]; i++)
        for (isize j = h[0]; j < h[1]; j++)
            for (isize k = w[0]; k < w[1]; k++) {
                const uint8_t *restrict from = x + i * plane + j * line + k * channels;
                for (isize c = 0; c < count; c++) sum[c] += from[c];
            }
}

MULTIVERSION static void avg_pool_kernel(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const avg_pool_args *a = (const avg_pool_args *)given;
    const isize channels = a->s.channels, image = a->s.size[0] * a->s.size[1] * a->s.size[2] * channels;
    const int32_t *rows = a->windows + 3 * a->s.out[0], *columns = rows + 3 * a->s.out[1];
    int32_t sum[BLOCK];
    isize last = 0;
    (void)scratch;
    for (isize i = lo; i < hi; i++) {
        const result_row r = row_of(&a->s, i);
        const int32_t *d = a->windows + 3 * r.depth, *h = rows + 3 * r.row;
        for (isize j = 0; j < a->s.out[2]; j++) {
            const int32_t *w = columns + 3 * j, terms = (d[1] - d[0]) * (h[1] - h[0]) * (w[1] - w[0]);
            const float ratio = ratio_of(a, (int64_t)d[2] * h[2] * w[2], &last);
            const int32_t offset = terms * a->zero_x;
            for (isize from = 0; from < channels; from += BLOCK) {
                const isize count = min_size(channels - from, BLOCK);
                uint8_t *restrict y = a->y + r.at + j * channels + from;
                window_sums(a, a->x + r.image * image + from, d, h, w, count, sum);
                for (isize c = 0; c < count; c++)
                    y[c] = to_uint8((float)(sum[c] - offset) * ratio, a->low, a->high, a->zero);
            }
        }
    }
}

void run_avg_pool(frame *f, const int64_t *step, void *prepared) {
    const avg_pool_step *s = (const avg_pool_step *)(const void *)step;
    avg_pool_args a = *(const avg_pool_args *)prepared;
    a.x = at(f, s->x), a.y = at(f, s->y), a.windows = at(f, s->windows);
    a.divisors = at(f, s->divisors), a.ratios = at(f, s->ratios), a.zero_x = (int32_t)s->zero_x, a.zero = (int32_t)s->zero;
    a.low = (float)(s->low - s->zero), a.high = (float)(s->high - s->zero);
    const isize rows = a.s.batch * a.s.out[0] * a.s.out[1];
    parallel(f, avg_pool_kernel, &a, rows, value_bytes(f->p, s->x));
}

/* ---- mean --------------------------------------------------------------------------------------------------------------- */

#define SHORT_TERMS 256 /* bytes whose sum fits uint16 */

typedef struct {
    const uint8_t *x;
    uint8_t *y;
    isize terms, inner;
    int32_t offset, zero;
    float ratio, low, high;
} mean_args;

int check_mean(checker *c, const int64_t *step) {
    const mean_step *s = (const mean_step *)(const void *)step;
    const isize results = checked_product((isize)s->outer, (isize)s->inner);
    if (s->terms < 1 || s->terms > MAX_TERMS) return refuse(c, "a mean of no such number of elements");
    return check_clamp(c, s->zero, s->low, s->high) && check_clamp(c, s->zero_x, 0, 255) &&
           needs(c, s->x, checked_product(results, (isize)s->terms), 1, "x") && needs(c, s->y, results, 1, "y");
}

INLINE uint8_t mean_of(const mean_args *a, uint32_t sum) {
    return to_uint8((float)((int32_t)sum - a->offset) * a->ratio, a->low, a->high, a->zero);
}

/* Sums of rows of `width` <= BLOCK bytes, `stride` apart. */
INLINE void column_sums(const uint8_t *x, isize rows, isize width, isize stride, uint32_t *restrict sum) {
    uint16_t part[BLOCK];
    for (isize c = 0; c < width; c++) sum[c] = 0;
    for (isize from = 0; from < rows; from += SHORT_TERMS) {
        const isize end = min_size(rows, from + SHORT_TERMS);
        for (isize c = 0; c < width; c++) part[c] = 0;
        for (isize r = from; r < end; r++) {
            const uint8_t *restrict row = x + r * stride;
            for (isize c = 0; c < width; c++) part[c] = (uint16_t)(part[c] + row[c]);
        }
        for (isize c = 0; c < width; c++) sum[c] += part[c];
    }
}

/* An index is a block of BLOCK results of one outer index. Where there are fewer, rows are added several at a time. */
MULTIVERSION static void mean_kernel(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const mean_args *a = (const mean_args *)given;
    const isize inner = a->inner, blocks = ceil_div(inner, BLOCK), copies = inner < BLOCK ? min_size(BLOCK / inner, a->terms) : 1;
    uint32_t sum[BLOCK];
    (void)scratch;
    for (isize i = lo; i < hi; i++) {
        const isize from = i % blocks * BLOCK, count = min_size(inner - from, BLOCK), rows = a->terms / copies;
        const uint8_t *x = a->x + i / blocks * a->terms * inner + from;
        uint8_t *y = a->y + i / blocks * inner + from;
        column_sums(x, rows, count * copies, inner * copies, sum);
        for (isize r = 1; r < copies; r++)
            for (isize c = 0; c < count; c++) sum[c] += sum[r * count + c];
        for (isize r = rows * copies; r < a->terms; r++)
            for (isize c = 0; c < count; c++) sum[c] += x[r * inner + c];
        for (isize c = 0; c < count; c++) y[c] = mean_of(a, sum[c]);
    }
}

void run_mean(frame *f, const int64_t *step, void *prepared) {
    const mean_step *s = (const mean_step *)(const void *)step;
    const mean_args a = {at(f, s->x), at(f, s->y), (isize)s->terms, (isize)s->inner, (int32_t)(s->zero_x * s->terms),
                         (int32_t)s->zero, bits_float(s->ratio), (float)(s->low - s->zero), (float)(s->high - s->zero)};
    (void)prepared;
    if (a.inner) parallel(f, mean_kernel, &a, (isize)s->outer * ceil_div(a.inner, BLOCK), (isize)s->outer * a.inner * a.terms);
}
