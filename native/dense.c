/* Convolutions without groups, see convolutions.h.

   A row of a window is a row of bytes, whatever channels and columns they are of: four of them at a time, times the
   weights of 16 results. Four vectors of sums become 64 bytes: one pixel, or two or four where the last block of results
   is 32 or 16 wide. */

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "convolutions.h"

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

/* The sums of `count` bytes of results from `at` on, when all blocks are there. The loops above have no registers left for
   them, and other lies in one piece for all blocks together only: 64 bytes of each pixel would come one by one from memory. */
TARGET static void add_other(const convolution_args *a, Py_ssize_t at, Py_ssize_t count) {
    const addition sum = addition_of(a);
    uint8_t *y = a->y + at;
    const uint8_t *other = a->other + at;
    Py_ssize_t k = 0;
    for (; k + WIDTH <= count; k += WIDTH)
        _mm512_storeu_si512(y + k, added(_mm512_loadu_si512(y + k), _mm512_loadu_si512(other + k), &sum));
    if (k < count) {
        const __mmask64 some = first(count - k);
        const __m512i x = _mm512_maskz_loadu_epi8(some, y + k), v = _mm512_maskz_loadu_epi8(some, other + k);
        _mm512_mask_storeu_epi8(y + k, some, added(x, v, &sum));
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

TARGET void dense_run(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
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
        if (a->other) add_other(a, r * a->columns * a->results, l.count * a->results);
    }
    free(at);
}
#endif
