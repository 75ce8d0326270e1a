/* Norms and softmax of integers: fixed sequences of IEEE operations (intact8/arithmetic/norms.py and softmax.py). */

#include "broadcast.h"
#include "softmax.h"

#include <math.h>

/* ---- norm --------------------------------------------------------------------------------------------------------------- */

#define MAX_ROW ((isize)1 << 17)

typedef struct {
    const uint8_t *x;
    const float *gain, *offset;
    uint8_t *y;
    isize places, groups, each;
    int32_t shift;
    int centered;
    double epsilon;
    float low, high;
} norm_args;

/* Σ (x - shift) and Σ (x - shift)² of up to BLOCK * BLOCK elements. */
typedef struct {
    int64_t sum, squares;
} moments;

/* What a norm subtracts, and multiplies by. */
typedef struct {
    float mean, factor;
} scaling;

int check_norm(checker *c, const int64_t *step) {
    const norm_step *s = (const norm_step *)(const void *)step;
    const isize channels = checked_product((isize)s->groups, (isize)s->each);
    const isize row = checked_product((isize)s->places, (isize)s->each);
    const isize count = checked_product(checked_product((isize)s->outer, (isize)s->places), channels);
    if (row < 1 || row > MAX_ROW || s->groups < 1) return refuse(c, "a norm over no such number of elements");
    if (s->places > 1 || s->groups > 1) {
        c->scratch = checked_product(channels, 24);
        if (c->scratch < 0) return refuse(c, "a norm of no such size");
    }
    return check_clamp(c, 0, s->low, s->high) && check_clamp(c, s->shift, 0, 255) && needs(c, s->x, count, 1, "x") &&
           needs(c, s->y, count, 1, "y") && needs(c, s->gain, channels, 4, "gain") &&
           needs(c, s->offset, channels, 4, "offset");
}

static scaling scaling_of(const norm_args *a, moments m, isize count) {
    const int64_t sum = a->centered ? m.sum : 0;
    const double n = (double)count, spread = (double)(count * m.squares - sum * sum);
    return (scaling){(float)sum / (float)count, (float)(n / sqrt(spread + a->epsilon))};
}

/* One row. The order of the operations is that of the definition. With `each`, every element has a mean and a factor. */
INLINE void normalize_line(const norm_args *a, const uint8_t *restrict x, uint8_t *restrict y, isize count, int each,
                           const float *restrict mean, const float *restrict factor) {
    const float *restrict gain = a->gain, *restrict offset = a->offset;
    const float low = a->low, high = a->high, only_mean = *mean, only_factor = *factor;
    const int32_t shift = a->shift;
    for (isize i = 0; i < count; i++) {
        const float u = (float)(x[i] - shift) - (each ? mean[i] : only_mean);
        y[i] = to_uint8(u * (each ? factor[i] : only_factor) * gain[i] + offset[i], low, high, 0);
    }
}

INLINE moments row_moments(const uint8_t *restrict x, isize count, int32_t shift) {
    moments m = {0, 0};
    for (isize from = 0; from < count; from += 4096) {
        const isize end = min_size(count, from + 4096);
        int32_t sum = 0, squares = 0;
        for (isize i = from; i < end; i++) {
            const int32_t v = x[i] - shift;
            sum += v, squares += v * v;
        }
        m.sum += sum, m.squares += squares;
    }
    return m;
}

/* Rows of their own: an index is a row. */
MULTIVERSION static void norm_rows(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const norm_args *a = (const norm_args *)given;
    const isize n = a->each;
    (void)scratch;
    for (isize r = lo; r < hi; r++) {
        const scaling s = scaling_of(a, row_moments(a->x + r * n, n, a->shift), n);
        normalize_line(a, a->x + r * n, a->y + r * n, n, 0, &s.mean, &s.factor);
    }
}

/* Adds (x - shift) and its square for up to BLOCK channels. */
INLINE void add_moments(const uint8_t *restrict x, isize count, int32_t shift, int32_t *restrict sum,
                        int32_t *restrict square) {
    for (isize c = 0; c < count; c++) {
        const int32_t v = x[c] - shift;
        sum[c] += v, square[c] += v * v;
    }
}

/* Sums of every channel over its places, in blocks whose sums fit int32. */
INLINE void channel_moments(const norm_args *a, const uint8_t *image, int64_t *restrict sums, int64_t *restrict squares) {
    const isize channels = a->groups * a->each;
    for (isize from = 0; from < channels; from += BLOCK) {
        const isize count = min_size(channels - from, BLOCK);
        for (isize c = 0; c < count; c++) sums[from + c] = squares[from + c] = 0;
        for (isize start = 0; start < a->places; start += 4096) {
            int32_t sum[BLOCK] = {0}, square[BLOCK] = {0};
            for (isize p = start; p < min_size(a->places, start + 4096); p++)
                add_moments(image + p * channels + from, count, a->shift, sum, square);
            for (isize c = 0; c < count; c++) sums[from + c] += sum[c], squares[from + c] += square[c];
        }
    }
}

/* Images: an index is one of them. */
MULTIVERSION static void norm_images(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const norm_args *a = (const norm_args *)given;
    const isize channels = a->groups * a->each;
    int64_t *sums = (int64_t *)(void *)scratch, *squares = sums + channels;
    float *mean = (float *)(void *)(squares + channels), *factor = mean + channels;
    for (isize r = lo; r < hi; r++) {
        const uint8_t *image = a->x + r * a->places * channels;
        uint8_t *result = a->y + r * a->places * channels;
        channel_moments(a, image, sums, squares);
        for (isize g = 0; g < a->groups; g++) {
            moments m = {0, 0};
            for (isize c = g * a->each; c < (g + 1) * a->each; c++) m.sum += sums[c], m.squares += squares[c];
            const scaling s = scaling_of(a, m, a->places * a->each);
            for (isize c = g * a->each; c < (g + 1) * a->each; c++) mean[c] = s.mean, factor[c] = s.factor;
        }
        for (isize p = 0; p < a->places; p++)
            normalize_line(a, image + p * channels, result + p * channels, channels, 1, mean, factor);
    }
}

void run_norm(frame *f, const int64_t *step, void *prepared) {
    const norm_step *s = (const norm_step *)(const void *)step;
    const norm_args a = {at(f, s->x), at(f, s->gain), at(f, s->offset), at(f, s->y), (isize)s->places, (isize)s->groups,
                         (isize)s->each, (int32_t)s->shift, s->centered != 0, bits_double(s->epsilon), (float)s->low,
                         (float)s->high};
    (void)prepared;
    const int rows = a.places == 1 && a.groups == 1;
    parallel(f, rows ? norm_rows : norm_images, &a, (isize)s->outer, 2 * value_bytes(f->p, s->y));
}

/* ---- softmax ------------------------------------------------------------------------------------------------------------ */

typedef struct {
    broadcast b; /* of x and the mask */
    integer_softmax t;
    softmax_row row;
    const uint8_t *x, *mask;
    uint8_t *y;
} softmax_args;

int check_softmax(checker *c, const int64_t *step) {
    const softmax_step *s = (const softmax_step *)(const void *)step;
    const int32_t *entries = (const int32_t *)constant_at(c, s->entries);
    softmax_args *a = (softmax_args *)plan_memory(c, sizeof *a);
    const uint8_t masks[2] = {0, (uint8_t)s->broadcast_mask};
    if (!a || !make_broadcast(c, &a->b, &s->d0, s->rank, masks, 2, 1)) return 0;
    if (s->rank < 1) return refuse(c, "a softmax of one number");
    if (!entries || !needs(c, s->entries, 256, 4, "entries")) return refuse(c, "a softmax without its table");
    if (!check_clamp(c, s->zero, s->low, s->high)) return 0;
    a->t = make_softmax(entries, s->levels, s->zero, s->low, s->high), a->row = softmax_row_of(&a->t);
    c->prepared = a;
    return needs(c, s->x, a->b.count, 1, "x") && needs(c, s->y, a->b.count, 1, "y") &&
           (s->mask < 0 || needs(c, s->mask, a->b.elements[1], 1, "mask"));
}

/* An index is a row. */
static void softmax_kernel(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const softmax_args *a = (const softmax_args *)given;
    const isize n = a->b.row;
    row_position at;
    (void)scratch;
    seek_row(&a->b, lo, &at);
    for (isize r = lo; r < hi; r++, next_row(&a->b, &at)) {
        const uint8_t *mask = a->mask ? a->mask + at.offset[1] : NULL;
        const int single = mask && !a->b.step[1]; /* one byte for the whole row */
        if (single && *mask)
            memset(a->y + r * n, to_uint8(0.0f, a->t.low, a->t.high, a->t.zero), (size_t)n);
        else
            a->row(&a->t, a->x + r * n, single ? NULL : mask, a->y + r * n, n);
    }
}

void run_softmax(frame *f, const int64_t *step, void *prepared) {
    const softmax_step *s = (const softmax_step *)(const void *)step;
    softmax_args a = *(const softmax_args *)prepared;
    a.x = at(f, s->x), a.mask = at(f, s->mask), a.y = at(f, s->y);
    parallel(f, softmax_kernel, &a, a.b.rows, 8 * a.b.count);
}
