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

/* vpdpbusd as it is: of the intrinsic, GCC copies sums from register to register in every loop. */
INSIDE __m512i add_products(__m512i sum, __m512i x, __m512i weight) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(weight));
    return sum;
}

/* The same address, of which the compiler does not know what it read there: loops need their registers for sums. */
INSIDE const void *again(const void *p) {
    __asm__ volatile("" : "+r"(p));
    return p;
}

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

/* 64 bytes of four vectors of integers: those of one 128-bit lane side by side. TURNED makes them those of one vector. */
INSIDE __m512i packed(const __m512i *v, const ending *e) {
    const __m512i a = _mm512_adds_epi16(_mm512_packs_epi32(v[0], v[1]), e->zero);
    const __m512i b = _mm512_adds_epi16(_mm512_packs_epi32(v[2], v[3]), e->zero);
    return _mm512_min_epu8(_mm512_max_epu8(_mm512_packus_epi16(a, b), e->low), e->high);
}

#define TURNED _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)

/* The same of four vectors of sums. */
INSIDE __m512i finished(const __m512i *sum, const float *const *ratio, const ending *e) {
    __m512i v[4];
    for (int q = 0; q < 4; q++)
        v[q] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_cvtepi32_ps(sum[q]), _mm512_loadu_ps(again(ratio[q]))));
    return packed(v, e);
}

typedef struct {
    __m512 own, other;
    __m512i zero_own, zero_other;
    ending end;
} addition;

INSIDE addition addition_of(const convolution_args *a) {
    const addition s = {_mm512_set1_ps(a->own), _mm512_set1_ps(a->ratio_other), _mm512_set1_epi32(a->zero),
                        _mm512_set1_epi32(a->zero_other),
                        {_mm512_set1_epi16((short)a->zero_sum), _mm512_set1_epi8((char)a->low_sum),
                         _mm512_set1_epi8((char)a->high_sum)}};
    return s;
}

/* 16 of 64 bytes as steps from the zero point. */
#define STEPS(x, i, zero) \
    _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(x, i)), zero))
#define ADDED(i)                                                                        \
    _mm512_cvtps_epi32(_mm512_add_ps(_mm512_mul_ps(STEPS(x, i, s->zero_own), s->own), \
                                     _mm512_mul_ps(STEPS(other, i, s->zero_other), s->other)))

/* 64 sums of bytes: each product and the sum are rounded. */
INSIDE __m512i added(__m512i x, __m512i other, const addition *s) {
    const __m512i v[4] = {ADDED(0), ADDED(1), ADDED(2), ADDED(3)};
    return _mm512_permutexvar_epi32(TURNED, packed(v, &s->end));
}

INSIDE __mmask64 first(Py_ssize_t bytes) {
    return bytes < WIDTH ? ((__mmask64)1 << bytes) - 1 : ~(__mmask64)0;
}

/* The first of 64 bytes. Where stores are what takes time, those without a mask are faster. */
INSIDE void put(uint8_t *y, Py_ssize_t bytes, __m512i v) {
    if (bytes >= WIDTH)
        _mm512_storeu_si512(y, v);
    else
        _mm512_mask_storeu_epi8(y, first(bytes), v);
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
            for (int q = 0; q < 4; q++) sum[i][q] = add_products(sum[i][q], x[q], w[q]);
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

/* A column of three rows, as above; the fourth row is any. */
INSIDE void three_rows(const uint8_t *const *rows, Py_ssize_t at, __mmask64 bytes, __m512i *v) {
    const __m512i a = _mm512_maskz_loadu_epi8(bytes, rows[0] + at), b = _mm512_maskz_loadu_epi8(bytes, rows[1] + at);
    const __m512i c = _mm512_maskz_loadu_epi8(bytes, rows[2] + at);
    const __m512i ab = _mm512_unpacklo_epi8(a, b), cd = _mm512_unpacklo_epi8(c, c);
    const __m512i AB = _mm512_unpackhi_epi8(a, b), CD = _mm512_unpackhi_epi8(c, c);
    v[0] = _mm512_unpacklo_epi16(ab, cd), v[1] = _mm512_unpackhi_epi16(ab, cd);
    v[2] = _mm512_unpacklo_epi16(AB, CD), v[3] = _mm512_unpackhi_epi16(AB, CD);
}

/* depthwise_row of 3 x 3 windows and a step of one or two, without memory between: a column is added to the results it is
   the last, second and first one of. */
INSIDE void depthwise_3x3(const convolution_args *a, const image_rows *r, const depthwise_block *given, uint8_t *y,
                          Py_ssize_t offset, Py_ssize_t bytes, const int step) {
    const depthwise_block t = *given;
    const Py_ssize_t line = a->channels, columns = a->columns, width = a->width, left = a->left;
    const uint8_t *const rows[3] = {r->rows[0] + offset, r->rows[1] + offset, r->rows[2] + offset};
    const __mmask64 some = first(bytes);
    const __m512i blank = _mm512_set1_epi8((char)a->zero_x);
    __m512i w[3][4], before[4], second[4], x[4];
    for (int k = 0; k < 3; k++)
        for (int q = 0; q < 4; q++) w[k][q] = _mm512_loadu_si512(t.weight + 4 * k + q);
    for (int q = 0; q < 4; q++) before[q] = second[q] = blank; /* of results that are not there */
    uint8_t *to = y + offset;
    for (Py_ssize_t o = step == 1 ? -2 : -1, j = o * step + 3 - step - left; o < columns; o++) {
        for (int k = 0; k < step; k++, j++) {
            if (j < 0 || j >= width)
                for (int q = 0; q < 4; q++) x[q] = blank;
            else
                three_rows(rows, j * line, some, x);
            if (step == 2 && k == 0) { /* seen by one result only, in its middle */
                for (int q = 0; q < 4; q++) before[q] = add_products(before[q], x[q], w[1][q]);
            }
        }
        if (o >= 0) {
            for (int q = 0; q < 4; q++) before[q] = add_products(before[q], x[q], w[2][q]);
            put(to, bytes, finished(before, t.ratio, &t.end));
            __builtin_prefetch(to + columns * line, 1);
            to += line;
        }
        const __m512i *bias = (const __m512i *)again(t.bias);
        if (step == 1)
            for (int q = 0; q < 4; q++) {
                before[q] = add_products(second[q], x[q], w[1][q]);
                second[q] = add_products(_mm512_loadu_si512(bias + q), x[q], w[0][q]);
            }
        else
            for (int q = 0; q < 4; q++) before[q] = add_products(_mm512_loadu_si512(bias + q), x[q], w[0][q]);
    }
}

/* The same where two or four pixels side by side are one vector: columns in between are parts of two vectors. */
INSIDE void depthwise_narrow(const convolution_args *a, const image_rows *r, const depthwise_block *given, uint8_t *y,
                             const int pixels) {
    const depthwise_block t = *given;
    const Py_ssize_t line = a->channels, columns = a->columns;
    __m512i w[3][4], x[4], next[4], sum[4];
    for (int k = 0; k < 3; k++)
        for (int q = 0; q < 4; q++) w[k][q] = _mm512_loadu_si512(t.weight + 4 * k + q);
    three_rows(r->rows, 0, first(WIDTH), x);
    for (Py_ssize_t o = 0; o < columns; o += pixels) {
        three_rows(r->rows, (o + pixels) * line, first(WIDTH), next);
        const __m512i *bias = (const __m512i *)again(t.bias);
        for (int q = 0; q < 4; q++) {
            sum[q] = add_products(_mm512_loadu_si512(bias + q), x[q], w[0][q]);
            const __m512i half = _mm512_alignr_epi64(next[q], x[q], 4);
            const __m512i quarter = pixels == 4 ? _mm512_alignr_epi64(next[q], x[q], 2) : half;
            sum[q] = add_products(sum[q], quarter, w[1][q]);
            sum[q] = add_products(sum[q], pixels == 4 ? half : next[q], w[2][q]);
            x[q] = next[q];
        }
        const Py_ssize_t left = (columns - o) * line;
        put(y + o * line, left, finished(sum, t.ratio, &t.end));
    }
}

TARGET static void depthwise_run(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const convolution_args *a = (const convolution_args *)given;
    const Py_ssize_t line = a->channels, groups = (a->tall + 3) / 4, whole = line * a->pixels;
    const int three = a->tall == 3 && a->wide == 3, padded = a->pixels > 1; /* vectors of several pixels may begin inside the image and end outside */
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
            if (three && !padded && a->step_right == 1)
                depthwise_3x3(a, &r, &t, y, offset, bytes, 1);
            else if (three && !padded && a->step_right == 2)
                depthwise_3x3(a, &r, &t, y, offset, bytes, 2);
            else if (three && whole == WIDTH && a->pixels == 2)
                depthwise_narrow(a, &r, &t, y, 2);
            else if (three && whole == WIDTH && a->pixels == 4)
                depthwise_narrow(a, &r, &t, y, 4);
            else
                depthwise_row(a, &r, &t, y, offset, bytes, before, width, a->wide, groups);
        }
    }
    free(r.memory);
}

/* ---- dense ------------------------------------------------------------------------------------------------------- */

/* A row of a window is a row of bytes, whatever channels and columns they are of: four of them at a time, times the
   weights of 16 results. Four vectors of sums become 64 bytes: one pixel, or two or four where the last block of results
   is 32 or 16 wide. */

#define QUADS 4
#define ROOM (96 << 10) /* bytes of rows that all blocks of results read before the next ones are fetched */
#define MOST (16 << 10) /* windows at a time */
#define BEHIND 3

typedef struct {
    const uint8_t *x;  /* windows begin here and at[i] bytes further */
    const int32_t *at; /* and the last one again, BEHIND times */
    Py_ssize_t count;
    Py_ssize_t tall, line, bytes; /* rows of a window, from one to the next, bytes of one: four of them at a time */
    const int8_t *weight;
    const int32_t *bias;
    const float *ratio[4];
    uint8_t *y;
    Py_ssize_t results, width; /* from one y to the next, and how many of them this block gives */
    ending end;
} window_list;

/* Windows from i on, each 64 bytes of results of `each` of them: QUADS times, or once of those that are left. */
INSIDE void dense_results(const window_list *l, Py_ssize_t i, const int quads, const int each, const int flat,
                          const int whole) {
    const int blocks = 4 / each;
    const uint8_t *from[QUADS * 4];
    for (int u = 0; u < quads * each; u++) from[u] = l->x + l->at[i + u];
    __m512i sum[QUADS][4];
    const int32_t *bias = (const int32_t *)again(l->bias);
    for (int q = 0; q < 4; q++) sum[0][q] = _mm512_loadu_si512(bias + 16 * (q % blocks));
    for (int u = 1; u < quads; u++)
        for (int q = 0; q < 4; q++) sum[u][q] = sum[0][q];
    const int8_t *weight = l->weight;
    const Py_ssize_t end = flat ? l->line : l->tall * l->line, bytes = l->bytes;
    for (Py_ssize_t row = 0; row < end; row += l->line)
        for (Py_ssize_t d = row; d < row + bytes; d += 4, weight += WIDTH * blocks) {
            __m512i w[4];
            for (int b = 0; b < blocks; b++) w[b] = _mm512_loadu_si512(weight + WIDTH * b);
            for (int u = 0; u < quads; u++)
                for (int p = 0; p < each; p++) {
                    int32_t four;
                    memcpy(&four, from[u * each + p] + d, 4);
                    const __m512i x = _mm512_set1_epi32(four);
                    for (int b = 0; b < blocks; b++)
                        sum[u][p * blocks + b] = add_products(sum[u][p * blocks + b], x, w[b]);
                }
        }
    for (int u = 0; u < quads; u++) {
        const __m512i found = _mm512_permutexvar_epi32(TURNED, finished(sum[u], l->ratio, &l->end));
        const Py_ssize_t left = l->count - i, windows = quads == QUADS || left > each ? each : left;
        const Py_ssize_t at = (i + u * each) * l->results, apart = l->results - WIDTH / each;
        /* 64 bytes of memory, or else a piece for each window, `apart` from where it stands in the vector */
        const Py_ssize_t pieces = whole ? 1 : quads == QUADS ? each : windows;
        const __mmask64 piece = first(whole && each > 1 ? windows * l->results : l->width);
        for (Py_ssize_t p = 0; p < pieces; p++)
            _mm512_mask_storeu_epi8(l->y + at + p * apart, piece << p * (WIDTH / each), found);
    }
}

INSIDE void dense_windows(const window_list *given, const int each, const int flat, const int whole) {
    const window_list l = *given; /* which no result can be written to */
    Py_ssize_t i = 0;
    for (; l.count - i >= QUADS * each; i += QUADS * each) dense_results(&l, i, QUADS, each, flat, whole);
    for (; i < l.count; i += each) dense_results(&l, i, 1, each, flat, whole);
}

/* One function each, with registers of its own. */
#define DENSE(name, each, flat, whole) \
    TARGET static __attribute__((noinline)) void name(const window_list *l) { dense_windows(l, each, flat, whole); }
DENSE(flat_one, 1, 1, 1)
DENSE(one, 1, 0, 1)
DENSE(two, 2, 0, 1)
DENSE(two_of_more, 2, 0, 0)
DENSE(four, 4, 0, 1)
DENSE(four_of_more, 4, 0, 0)

/* Blocks of results of the windows. */
TARGET static void dense_blocks(const convolution_args *a, window_list *l, Py_ssize_t at, Py_ssize_t lo, Py_ssize_t hi) {
    const Py_ssize_t depth = a->tall * l->bytes;
    for (Py_ssize_t offset = lo * WIDTH; offset < hi * WIDTH; offset += WIDTH) {
        l->y = a->y + at + offset;
        l->width = a->results - offset < WIDTH ? a->results - offset : WIDTH;
        l->weight = a->weight + offset * depth, l->bias = a->bias + offset;
        const int each = l->width > 32 ? 1 : l->width > 16 ? 2 : 4;
        for (int q = 0; q < 4; q++) l->ratio[q] = a->ratio + offset + 16 * (q % (4 / each));
        const int whole = a->results == WIDTH / each;
        if (each == 1)
            (a->tall == 1 ? flat_one : one)(l);
        else if (each == 2)
            (whole ? two : two_of_more)(l);
        else
            (whole ? four : four_of_more)(l);
    }
}

/* The sums of the same results. The loops above have no registers left for them, and other lies in one piece for all blocks
   together only: 64 bytes of each pixel would come one by one from memory. */
TARGET static void add_other(const convolution_args *a, Py_ssize_t count, Py_ssize_t at, Py_ssize_t lo, Py_ssize_t hi) {
    const addition sum = addition_of(a);
    const Py_ssize_t end = hi * WIDTH < a->results ? hi * WIDTH : a->results, width = end - lo * WIDTH;
    const Py_ssize_t rows = width < a->results ? count : 1, bytes = rows > 1 ? width : count * width;
    for (Py_ssize_t i = 0; i < rows; i++) {
        uint8_t *y = a->y + at + i * a->results + lo * WIDTH;
        const uint8_t *other = a->other + (y - a->y);
        Py_ssize_t k = 0;
        for (; k + WIDTH <= bytes; k += WIDTH)
            _mm512_storeu_si512(y + k, added(_mm512_loadu_si512(y + k), _mm512_loadu_si512(other + k), &sum));
        if (k < bytes) {
            const __mmask64 some = first(bytes - k);
            const __m512i x = _mm512_maskz_loadu_epi8(some, y + k), v = _mm512_maskz_loadu_epi8(some, other + k);
            _mm512_mask_storeu_epi8(y + k, some, added(x, v, &sum));
        }
    }
}

/* Rows of the padded images under result rows lo to hi, one after the other at `to`. */
static void pad_rows(const convolution_args *a, Py_ssize_t lo, Py_ssize_t hi, Py_ssize_t line, uint8_t *to) {
    const Py_ssize_t bytes = a->width * a->channels;
    for (Py_ssize_t at = lo, end; at < hi; at = end) { /* one image */
        const Py_ssize_t n = at / a->rows, top = at % a->rows;
        end = (n + 1) * a->rows < hi ? (n + 1) * a->rows : hi;
        const Py_ssize_t last = (top + end - at - 1) * a->step_down + a->tall;
        for (Py_ssize_t k = top * a->step_down; k < last; k++, to += line) {
            const Py_ssize_t source = k - a->above;
            if (source < 0 || source >= a->height)
                memset(to, a->zero_x, (size_t)line);
            else
                memcpy(to + a->left * a->channels, a->x + (n * a->height + source) * bytes, (size_t)bytes);
        }
    }
}

/* Where the windows of result rows lo to hi begin: in rows as pad_rows leaves them, or in the images themselves. */
static void find_windows(const convolution_args *a, Py_ssize_t lo, Py_ssize_t hi, Py_ssize_t line, int padded, int32_t *at) {
    const Py_ssize_t pixel = a->step_right * a->channels;
    const Py_ssize_t image = padded ? (a->rows - 1) * a->step_down + a->tall : a->height; /* rows from one to the next */
    Py_ssize_t begin = -(lo % a->rows) * a->step_down;
    for (Py_ssize_t r = lo; r < hi; r++) {
        const Py_ssize_t n = r / a->rows - lo / a->rows, row = begin + n * image + r % a->rows * a->step_down;
        for (Py_ssize_t c = 0; c < a->columns; c++) at[c] = (int32_t)(row * line + c * pixel);
        at += a->columns;
    }
    for (Py_ssize_t i = 0; i < BEHIND; i++) at[i] = at[-1];
}

TARGET static void dense_run(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const convolution_args *a = (const convolution_args *)given;
    const Py_ssize_t all = a->images * a->rows, blocks = (a->results + WIDTH - 1) / WIDTH;
    const Py_ssize_t first_block = a->by_block ? lo : 0, last_block = a->by_block ? hi : blocks;
    if (a->by_block) lo = 0, hi = all;
    /* Windows are read where they are, unless they reach beyond the images or end amid four bytes. */
    const int beyond = a->above || a->left || (a->rows - 1) * a->step_down + a->tall > a->height;
    const int padded = beyond || a->wide * a->channels % 4;
    const Py_ssize_t reach = (a->columns - 1) * a->step_right + a->wide, own = a->left + a->width;
    const Py_ssize_t line = padded ? (reach > own ? reach : own) * a->channels + 4 : a->width * a->channels;
    Py_ssize_t step = ROOM / (line * a->step_down), most = MOST / a->columns;
    step = step < most ? step : most;
    step = step < 1 ? 1 : step > hi - lo ? hi - lo : step;
    const Py_ssize_t more = a->tall > a->step_down ? a->tall - a->step_down : 0, images = step / a->rows + 2;
    const Py_ssize_t bytes = padded ? (step * a->step_down + (images < step ? images : step) * more) * line : 0;
    const Py_ssize_t windows = step * a->columns + BEHIND;
    int32_t *at = (int32_t *)malloc((size_t)(bytes + windows * (Py_ssize_t)sizeof(int32_t)));
    if (!at) {
        *a->no_memory = 1;
        return;
    }
    uint8_t *rows = (uint8_t *)(at + windows);
    memset(rows, a->zero_x, (size_t)bytes);
    for (Py_ssize_t r = lo, end; r < hi; r = end) {
        end = r + step < hi ? r + step : hi;
        const Py_ssize_t top = (r / a->rows * a->height + r % a->rows * a->step_down) * line;
        window_list l = {.x = padded ? rows : a->x + top, .at = at, .count = (end - r) * a->columns, .tall = a->tall,
                         .line = line, .bytes = (a->wide * a->channels + 3) / 4 * 4, .results = a->results, .end = end_of(a)};
        if (padded) pad_rows(a, r, end, line, rows);
        find_windows(a, r, end, line, padded, at);
        dense_blocks(a, &l, r * a->columns * a->results, first_block, last_block);
        if (a->other) add_other(a, l.count, r * a->columns * a->results, first_block, last_block);
    }
    free(at);
}

static int has_vnni(void) { return !plain && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw"); }
body prepare_convolution(int dense) { return !has_vnni() ? NULL : dense ? dense_run : depthwise_run; }
#else
body prepare_convolution(int dense) { return (void)dense, NULL; }
#endif

void describe_convolution(convolution_args *a, int dense, const Py_ssize_t size[4], const Py_ssize_t n[11]) {
    a->images = size[0], a->height = size[1], a->width = size[2], a->channels = size[3];
    a->results = dense ? n[10] : size[3], a->pixels = dense ? 1 : n[10];
    a->tall = n[0], a->wide = n[1], a->step_down = n[2], a->step_right = n[3], a->above = n[4], a->left = n[5];
    a->rows = (a->height + 2 * a->above - a->tall) / a->step_down + 1;
    a->columns = (a->width + 2 * a->left - a->wide) / a->step_right + 1;
    a->zero_x = (int)n[6], a->zero = (int)n[7], a->low = (int)n[8], a->high = (int)n[9];
    const Py_ssize_t depth = a->tall * a->wide * (dense ? a->channels : 1), blocks = (a->results + 63) / 64;
    /* Where there are more weights than bytes of images, threads share the weights. */
    a->by_block = dense && blocks >= 4 && a->results * depth > a->images * a->height * a->width * a->channels;
    a->count = a->by_block ? blocks : a->images * a->rows;
    a->work = (a->by_block ? a->images * a->rows * 64 : a->results) * a->columns * depth;
}
