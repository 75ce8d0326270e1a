/* Convolutions of bytes with channels last that ONNX Runtime (1.31) is slow at, for CPUs with AVX512-VNNI: depthwise
   ones, and those of images of few channels. vpdpbusd adds four taps of 16 channels exactly; everything else is the
   contract's: float32(sum) ratio, rounded half to even, plus zero, clamped.

   Rows of the image are read where they lie, or copied into a ring of padded ones where vectors reach over an edge. */

#include "native.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <immintrin.h>
#include <stdlib.h>

#define FEATURES "avx512f,avx512bw,avx512vl,avx512vnni,prfchw"
#define TARGET __attribute__((target(FEATURES)))
#define INSIDE static inline __attribute__((always_inline, target(FEATURES)))
#define WIDTH 64 /* bytes of a vector */
#define AT_ONCE 4

/* ---- rows -------------------------------------------------------------------------------------------------------- */

typedef struct {
    uint8_t *memory, *ring, *spare;
    const uint8_t **rows; /* those under the window */
    Py_ssize_t *held;     /* which row of the padded images each slot holds */
    Py_ssize_t length;
} image_rows;

/* With `behind` bytes more in a row than windows reach, and `spare` bytes for the caller, a multiple of WIDTH. */
static int open_rows(image_rows *r, const convolution_args *a, Py_ssize_t behind, Py_ssize_t spare) {
    const Py_ssize_t reach = (a->columns - 1) * a->step_right + a->wide, own = a->left + a->width;
    r->length = ((reach > own ? reach : own) * a->channels + behind + WIDTH - 1) / WIDTH * WIDTH;
    const Py_ssize_t bytes = WIDTH + spare + a->tall * r->length;
    r->memory = (uint8_t *)malloc((size_t)bytes + (size_t)a->tall * (sizeof(void *) + sizeof(Py_ssize_t)));
    if (!r->memory) {
        *a->no_memory = 1;
        return 0;
    }
    r->spare = (uint8_t *)(((uintptr_t)r->memory + WIDTH - 1) / WIDTH * WIDTH);
    r->ring = r->spare + spare;
    r->rows = (const uint8_t **)(r->ring + a->tall * r->length);
    r->held = (Py_ssize_t *)(r->rows + a->tall);
    memset(r->ring, a->zero_x, (size_t)(a->tall * r->length));
    for (Py_ssize_t k = 0; k < a->tall; k++) r->held[k] = -1;
    return 1;
}

/* Rows under result row `at` of all images; a row of the padded image stays in its slot as long as it is seen. */
INSIDE void move_rows(image_rows *r, const convolution_args *a, Py_ssize_t at) {
    const Py_ssize_t n = at / a->rows, top = at % a->rows * a->step_down, bytes = a->width * a->channels;
    for (Py_ssize_t k = 0; k < a->tall; k++) {
        const Py_ssize_t slot = (top + k) % a->tall, source = top + k - a->above;
        const Py_ssize_t id = n * (a->height + 2 * a->above) + top + k;
        uint8_t *row = r->ring + slot * r->length;
        r->rows[k] = row;
        if (r->held[slot] == id) continue;
        r->held[slot] = id;
        if (source < 0 || source >= a->height)
            memset(row, a->zero_x, (size_t)r->length);
        else
            memcpy(row + a->left * a->channels, a->x + (n * a->height + source) * bytes, (size_t)bytes);
    }
}

/* The same where they lie; those outside are one row of zero points. */
INSIDE void point_rows(image_rows *r, const convolution_args *a, Py_ssize_t at) {
    const Py_ssize_t n = at / a->rows, top = at % a->rows * a->step_down - a->above;
    for (Py_ssize_t k = 0; k < a->tall; k++) {
        const int inside = top + k >= 0 && top + k < a->height;
        r->rows[k] = inside ? a->x + (n * a->height + top + k) * a->width * a->channels : r->ring;
    }
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

typedef struct {
    __m512i zero, low, high;
} ending;

INSIDE ending end_of(const convolution_args *a) {
    const ending e = {_mm512_set1_epi16((short)a->zero), _mm512_set1_epi8((char)a->low), _mm512_set1_epi8((char)a->high)};
    return e;
}

/* 64 bytes of four vectors of sums: those of one 128-bit lane side by side. */
INSIDE __m512i finished(const __m512i *sum, const float *const *ratio, const ending *e) {
    __m512i v[4];
    for (int q = 0; q < 4; q++)
        v[q] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_cvtepi32_ps(sum[q]), _mm512_loadu_ps(ratio[q])));
    const __m512i a = _mm512_adds_epi16(_mm512_packs_epi32(v[0], v[1]), e->zero);
    const __m512i b = _mm512_adds_epi16(_mm512_packs_epi32(v[2], v[3]), e->zero);
    return _mm512_min_epu8(_mm512_max_epu8(_mm512_packus_epi16(a, b), e->low), e->high);
}

INSIDE __mmask64 first(Py_ssize_t bytes) {
    return bytes < WIDTH ? ((__mmask64)1 << bytes) - 1 : ~(__mmask64)0;
}

/* ---- depthwise --------------------------------------------------------------------------------------------------- */

/* Four rows of a column are interleaved byte by byte, once for all windows that see the column. Images of few channels go
   several pixels at a time where the stride allows it. The order that interleaving leaves channels in is undone by the
   packing of the results; weights, ratios and first sums are kept in that order (intact/engines/convolutions.py). */

#define MOST_GROUPS 16 /* of four rows of a window */
#define TILE 16        /* results of a row at a time: their interleaved columns stay in L1 */

typedef struct {
    const __m512i *weight, *bias; /* four vectors for each group of four rows of a column; four */
    const float *ratio[4];
    ending end;
} depthwise_block;

/* `count` results, `apart` columns from one to the next. */
INSIDE void depthwise_results(const depthwise_block *t, const __m512i *columns, Py_ssize_t apart, const int count,
                              const Py_ssize_t taps, const Py_ssize_t groups, __m512i *y) {
    __m512i sum[AT_ONCE][4];
    for (int i = 0; i < count; i++)
        for (int q = 0; q < 4; q++) sum[i][q] = _mm512_loadu_si512(t->bias + q);
    for (Py_ssize_t k = 0; k < taps; k++) {
        __m512i w[4];
        for (int q = 0; q < 4; q++) w[q] = _mm512_loadu_si512(t->weight + 4 * k + q);
        for (int i = 0; i < count; i++) {
            const __m512i *x = columns + 4 * (i * apart * groups + k);
            for (int q = 0; q < 4; q++) sum[i][q] = _mm512_dpbusd_epi32(sum[i][q], x[q], w[q]);
        }
    }
    for (int i = 0; i < count; i++) y[i] = finished(sum[i], t->ratio, &t->end);
}

/* Columns from `from` on, as far as they are in the image; others hold the zero point. */
INSIDE void interleave_columns(const uint8_t *const *rows, Py_ssize_t from, Py_ssize_t width, Py_ssize_t pixel,
                               Py_ssize_t count, const Py_ssize_t groups, __mmask64 bytes, __m512i blank, __m512i *v) {
    for (Py_ssize_t j = from; j < from + count; j++) {
        if (j < 0 || j >= width) {
            for (Py_ssize_t k = 0; k < 4 * groups; k++) *v++ = blank;
            continue;
        }
        for (Py_ssize_t g = 0; g < groups; g++, v += 4) {
            const Py_ssize_t at = j * pixel;
            const __m512i a = _mm512_maskz_loadu_epi8(bytes, rows[4 * g] + at);
            const __m512i b = _mm512_maskz_loadu_epi8(bytes, rows[4 * g + 1] + at);
            const __m512i c = _mm512_maskz_loadu_epi8(bytes, rows[4 * g + 2] + at);
            const __m512i d = _mm512_maskz_loadu_epi8(bytes, rows[4 * g + 3] + at);
            const __m512i ab = _mm512_unpacklo_epi8(a, b), cd = _mm512_unpacklo_epi8(c, d);
            const __m512i AB = _mm512_unpackhi_epi8(a, b), CD = _mm512_unpackhi_epi8(c, d);
            v[0] = _mm512_unpacklo_epi16(ab, cd), v[1] = _mm512_unpackhi_epi16(ab, cd);
            v[2] = _mm512_unpacklo_epi16(AB, CD), v[3] = _mm512_unpackhi_epi16(AB, CD);
        }
    }
}

/* One row of results, up to 64 bytes from `offset` on of each pixel (or of `pixels` of them). The rows begin at column
   -`before`, and end after `width`. */
INSIDE void depthwise_row(const convolution_args *a, const image_rows *r, const depthwise_block *t, uint8_t *y,
                          Py_ssize_t offset, Py_ssize_t bytes, Py_ssize_t before, Py_ssize_t width, const Py_ssize_t wide,
                          const Py_ssize_t groups) {
    const Py_ssize_t step = a->step_right, pixels = a->pixels, line = a->channels;
    const __m512i blank = _mm512_set1_epi8((char)a->zero_x);
    const uint8_t *rows[4 * MOST_GROUPS];
    for (Py_ssize_t k = 0; k < 4 * groups; k++) rows[k] = r->rows[k < a->tall ? k : 0] + offset; /* times zero */
    __m512i found[AT_ONCE], *columns = (__m512i *)r->spare;
    for (Py_ssize_t o = 0; o < a->columns; o += TILE) {
        const Py_ssize_t count = a->columns - o < TILE ? a->columns - o : TILE;
        interleave_columns(rows, o * step - before, width, line, (count - 1) * step + wide, groups, first(bytes), blank,
                           columns);
        uint8_t *to = y + o * line + offset;
        /* The row after this one: a block writes 64 bytes of every pixel, which no hardware foresees. */
        for (Py_ssize_t k = 0; k < count; k += pixels) __builtin_prefetch(to + (a->columns + k) * line, 1);
        Py_ssize_t i = 0;
        for (; i + AT_ONCE * pixels <= count; i += AT_ONCE * pixels) {
            depthwise_results(t, columns + 4 * i * step * groups, pixels * step, AT_ONCE, wide * groups, groups, found);
            for (int k = 0; k < AT_ONCE; k++)
                _mm512_mask_storeu_epi8(to + (i + k * pixels) * line, first(bytes), found[k]);
        }
        for (; i < count; i += pixels) {
            const Py_ssize_t left = (count - i) * line;
            depthwise_results(t, columns + 4 * i * step * groups, 0, 1, wide * groups, groups, found);
            _mm512_mask_storeu_epi8(to + i * line, first(pixels > 1 && left < bytes ? left : bytes), found[0]);
        }
    }
}

TARGET static void depthwise_run(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const convolution_args *a = (const convolution_args *)given;
    const Py_ssize_t line = a->channels, groups = (a->tall + 3) / 4, whole = line * a->pixels;
    const int padded = a->pixels > 1; /* vectors of several pixels may begin inside the image and end outside */
    image_rows r;
    /* pixels - 1 columns more than windows see stand in the vectors of the last result, and do not count */
    if (!open_rows(&r, a, 2 * WIDTH, ((TILE - 1) * a->step_right + a->wide) * groups * 4 * WIDTH)) return;
    depthwise_block t = {.end = end_of(a)};
    for (Py_ssize_t at = lo; at < hi; at++) {
        if (padded)
            move_rows(&r, a, at);
        else
            point_rows(&r, a, at);
        const Py_ssize_t before = padded ? 0 : a->left, width = padded ? PY_SSIZE_T_MAX : a->width;
        uint8_t *y = a->y + at * a->columns * line;
        for (Py_ssize_t offset = 0, b = 0; offset < whole; offset += WIDTH, b++) {
            const Py_ssize_t bytes = whole - offset < WIDTH ? whole - offset : WIDTH;
            t.weight = (const __m512i *)a->weight + b * a->wide * groups * 4, t.bias = (const __m512i *)a->bias + b * 4;
            for (int q = 0; q < 4; q++) t.ratio[q] = a->ratio + b * WIDTH + 16 * q;
            if (a->wide == 3 && groups == 1)
                depthwise_row(a, &r, &t, y, offset, bytes, before, width, 3, 1);
            else
                depthwise_row(a, &r, &t, y, offset, bytes, before, width, a->wide, groups);
        }
    }
    free(r.memory);
}

/* ---- few channels ------------------------------------------------------------------------------------------------ */

/* Four bytes of a row of the window at a time, whatever channels and columns they are of, times 16 results' weights. Four
   vectors of sums, in the order of memory, become 64 bytes: four, two pixels or one of 16, 32 or more results. */

#define QUADS 4

/* QUADS or one times 64 bytes of results; each of `each` pixels. */
INSIDE void stem_results(const convolution_args *a, const image_rows *r, Py_ssize_t from, const int8_t *weight,
                         const int32_t *bias, const float *const *ratio, const int quads, const int each, const ending *e,
                         __m512i *y) {
    const Py_ssize_t words = (a->wide * a->channels + 3) / 4, pixel = a->step_right * a->channels;
    const int blocks = 4 / each;
    __m512i sum[QUADS][4];
    for (int u = 0; u < quads; u++)
        for (int q = 0; q < 4; q++) sum[u][q] = _mm512_loadu_si512(bias + 16 * (q % blocks));
    for (Py_ssize_t k = 0; k < a->tall; k++) {
        const uint8_t *row = r->rows[k] + from * pixel;
        for (Py_ssize_t d = 0; d < words; d++, weight += WIDTH * blocks) {
            __m512i w[4];
            for (int b = 0; b < blocks; b++) w[b] = _mm512_loadu_si512(weight + WIDTH * b);
            for (int u = 0; u < quads; u++)
                for (int p = 0; p < each; p++) {
                    int32_t four;
                    memcpy(&four, row + (u * each + p) * pixel + 4 * d, 4);
                    const __m512i x = _mm512_set1_epi32(four);
                    for (int b = 0; b < blocks; b++)
                        sum[u][p * blocks + b] = _mm512_dpbusd_epi32(sum[u][p * blocks + b], x, w[b]);
                }
        }
    }
    const __m512i turned = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for (int u = 0; u < quads; u++) y[u] = _mm512_permutexvar_epi32(turned, finished(sum[u], ratio, e));
}

INSIDE void stem_row(const convolution_args *a, const image_rows *r, const ending *e, uint8_t *y, Py_ssize_t offset,
                     const int each) {
    const Py_ssize_t words = a->tall * ((a->wide * a->channels + 3) / 4), results = a->results;
    const Py_ssize_t bytes = each > 1 ? WIDTH : results - offset < WIDTH ? results - offset : WIDTH;
    const int8_t *weight = a->weight + offset * 4 * words;
    const int32_t *bias = a->bias + offset;
    const float *ratio[4];
    for (int q = 0; q < 4; q++) ratio[q] = a->ratio + offset + 16 * (q % (4 / each));
    __m512i found[QUADS];
    Py_ssize_t o = 0;
    for (; o + QUADS * each <= a->columns; o += QUADS * each) {
        stem_results(a, r, o, weight, bias, ratio, QUADS, each, e, found);
        for (int u = 0; u < QUADS; u++)
            _mm512_mask_storeu_epi8(y + (o + u * each) * results + offset, first(bytes), found[u]);
    }
    for (; o < a->columns; o += each) {
        const Py_ssize_t left = (a->columns - o) * results;
        stem_results(a, r, o, weight, bias, ratio, 1, each, e, found);
        _mm512_mask_storeu_epi8(y + o * results + offset, first(each > 1 && left < bytes ? left : bytes), found[0]);
    }
}

TARGET static void stem_run(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const convolution_args *a = (const convolution_args *)given;
    image_rows r;
    /* the last quad may read three pixels that are not there, and do not count */
    if (!open_rows(&r, a, 4 * a->step_right * a->channels + WIDTH, 0)) return;
    const ending e = end_of(a);
    for (Py_ssize_t at = lo; at < hi; at++) {
        move_rows(&r, a, at);
        uint8_t *y = a->y + at * a->columns * a->results;
        if (a->results == 16)
            stem_row(a, &r, &e, y, 0, 4);
        else if (a->results == 32)
            stem_row(a, &r, &e, y, 0, 2);
        else
            for (Py_ssize_t offset = 0; offset < a->results; offset += WIDTH) stem_row(a, &r, &e, y, offset, 1);
    }
    free(r.memory);
}

static int has_vnni(void) { return !plain && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw"); }
body prepare_depthwise(void) { return has_vnni() ? depthwise_run : NULL; }
body prepare_stem(void) { return has_vnni() ? stem_run : NULL; }
#else
body prepare_depthwise(void) { return NULL; }
body prepare_stem(void) { return NULL; }
#endif
