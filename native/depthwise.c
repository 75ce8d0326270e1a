/* Depthwise convolutions, see convolutions.h. Rows of the image are read where they lie, or copied into a ring of padded ones
   where vectors reach over an edge. */

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "convolutions.h"

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

/* The first of 64 bytes. Where stores are what takes time, those without a mask are faster. */
INSIDE void put(uint8_t *y, Py_ssize_t bytes, __m512i v) {
    if (bytes >= WIDTH)
        _mm512_storeu_si512(y, v);
    else
        _mm512_mask_storeu_epi8(y, first(bytes), v);
}

/* ---- windows -------------------------------------------------------------------------------------------------------- */

/* Four rows of a column are interleaved byte by byte, once for all windows that see the column. Images of few channels go
   several pixels at a time where the stride allows it. The order that interleaving leaves channels in is undone by the
   packing of the results; weights, ratios and first sums are kept in that order (intact8/engines/convolutions.py). */

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

INSIDE void interleave_rows(__m512i a, __m512i b, __m512i c, __m512i d, __m512i *v) {
    const __m512i ab = _mm512_unpacklo_epi8(a, b), cd = _mm512_unpacklo_epi8(c, d);
    const __m512i AB = _mm512_unpackhi_epi8(a, b), CD = _mm512_unpackhi_epi8(c, d);
    v[0] = _mm512_unpacklo_epi16(ab, cd), v[1] = _mm512_unpackhi_epi16(ab, cd);
    v[2] = _mm512_unpacklo_epi16(AB, CD), v[3] = _mm512_unpackhi_epi16(AB, CD);
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
            interleave_rows(a, b, c, d, v);
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
    interleave_rows(a, b, c, c, v);
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

TARGET void depthwise_run(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
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
#endif
