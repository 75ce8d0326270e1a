/* Depthwise convolutions. Rows of the image are read in place, or copied into a ring buffer of padded rows where vectors
   reach over an edge. */

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "conv.h"

#define TILE 4 /* vectors of 64 results that are computed together */

#define WIDE 20 /* results of a row from which it pays to add columns to results beyond its ends */
#define ROW_TILE 16 /* results of a row at a time: their interleaved columns stay in the L1 cache */

/* ---- rows -------------------------------------------------------------------------------------------------------- */

typedef struct {
    uint8_t *ring, *columns;
    int32_t *sums;        /* of ROW_TILE vectors of results, where something else finishes them */
    const uint8_t **rows; /* the rows under the window */
    isize *slot_row;      /* which row of the padded images each slot of the ring holds; -1 for none */
    isize length;
} row_buffer;

#define ROW_PADDING (2 * VECTOR_BYTES) /* bytes that rows have more than windows reach */

static isize row_length(const conv_args *a) {
    const isize reach = max_size((a->out_width - 1) * a->stride_w + a->kernel_w, a->pad_w + a->width);
    return round_up(reach * a->channels + ROW_PADDING, VECTOR_BYTES);
}

static isize columns_bytes(const conv_args *a) {
    return ((ROW_TILE - 1) * a->stride_w + a->kernel_w) * ceil_div(a->kernel_h, 4) * 4 * VECTOR_BYTES;
}

isize depthwise_scratch(const conv_args *a) {
    return a->sum_bytes + columns_bytes(a) + a->kernel_h * (row_length(a) + (isize)(sizeof(void *) + sizeof(isize)));
}

static row_buffer open_rows(const conv_args *a, uint8_t *scratch) {
    row_buffer r = {.length = row_length(a), .sums = (int32_t *)(void *)scratch, .columns = scratch + a->sum_bytes};
    r.ring = r.columns + columns_bytes(a);
    r.rows = (const uint8_t **)(void *)(r.ring + a->kernel_h * r.length);
    r.slot_row = (isize *)(r.rows + a->kernel_h);
    memset(r.ring, a->in_zero, (size_t)(a->kernel_h * r.length));
    for (isize k = 0; k < a->kernel_h; k++) r.slot_row[k] = -1;
    return r;
}

/* Copies the rows under result row `at` of all images that the ring does not hold yet. */
VNNI_INLINE void copy_rows(row_buffer *r, const conv_args *a, isize at) {
    const isize n = at / a->out_height, top = at % a->out_height * a->stride_h, bytes = a->width * a->channels;
    const isize image = (a->out_height - 1) * a->stride_h + a->kernel_h; /* rows under its windows */
    for (isize k = 0; k < a->kernel_h; k++) {
        const isize slot = (top + k) % a->kernel_h, source = top + k - a->pad_h;
        const isize id = n * image + top + k;
        uint8_t *row = r->ring + slot * r->length;
        r->rows[k] = row;
        if (r->slot_row[slot] == id) continue;
        r->slot_row[slot] = id;
        if (source < 0 || source >= a->height)
            memset(row, a->in_zero, (size_t)r->length);
        else
            memcpy(row + a->pad_w * a->channels, a->x + (n * a->height + source) * bytes, (size_t)bytes);
    }
}

/* Points to the rows under result row `at` in place; rows outside of the image are one row of zero points. */
VNNI_INLINE void point_rows(row_buffer *r, const conv_args *a, isize at) {
    const isize n = at / a->out_height, top = at % a->out_height * a->stride_h - a->pad_h;
    for (isize k = 0; k < a->kernel_h; k++) {
        const int inside = top + k >= 0 && top + k < a->height;
        r->rows[k] = inside ? a->x + (n * a->height + top + k) * a->width * a->channels : r->ring;
    }
}

/* Stores the first of 64 bytes. A store without a mask is faster where memory is the bottleneck. */
VNNI_INLINE void store_bytes(uint8_t *y, isize bytes, __m512i v) {
    if (bytes >= VECTOR_BYTES)
        _mm512_storeu_si512(y, v);
    else
        _mm512_mask_storeu_epi8(y, byte_mask(bytes), v);
}

/* ---- windows -------------------------------------------------------------------------------------------------------- */

/* Four rows of a column are interleaved byte by byte, once for all windows that see the column. Images of few channels take
   several pixels at a time where the stride allows it. Interleaving changes the order of channels, and to_bytes restores it;
   weights, multipliers and initial accumulators are packed in the changed order (intact8/engines/packed_conv.py). */

#define MAX_GROUPS 16 /* groups of four rows of a window */

typedef struct {
    const __m512i *weight; /* four vectors for each group of four rows of a column */
    const __m512i *bias;   /* four vectors */
    const float *multiplier[4], *negative[4]; /* of positive and negative accumulators */
    epilogue end;
} depthwise_block;

/* Computes `count` vectors of results from interleaved columns, `apart` columns from one to the next. */
VNNI_INLINE void microkernel(const depthwise_block *t, const __m512i *columns, isize apart, const int count,
                              const isize taps, const isize groups, __m512i sum[TILE][4]) {
    for (int i = 0; i < count; i++)
        for (int q = 0; q < 4; q++) sum[i][q] = _mm512_loadu_si512(t->bias + q);
    for (isize k = 0; k < taps; k++) {
        __m512i w[4];
        for (int q = 0; q < 4; q++) w[q] = _mm512_loadu_si512(t->weight + 4 * k + q);
        for (int i = 0; i < count; i++) {
            const __m512i *x = columns + 4 * (i * apart * groups + k);
            for (int q = 0; q < 4; q++) sum[i][q] = dot_product(sum[i][q], x[q], w[q]);
        }
    }
}

/* Stores 64 sums with their channels in order. */
VNNI_INLINE void store_sums(const __m512i *sum, int32_t *to) {
    const __m512i a = _mm512_shuffle_i32x4(sum[0], sum[1], 0x44), b = _mm512_shuffle_i32x4(sum[2], sum[3], 0x44);
    const __m512i c = _mm512_shuffle_i32x4(sum[0], sum[1], 0xee), d = _mm512_shuffle_i32x4(sum[2], sum[3], 0xee);
    _mm512_storeu_si512(to, _mm512_shuffle_i32x4(a, b, 0x88)), _mm512_storeu_si512(to + 16, _mm512_shuffle_i32x4(a, b, 0xdd));
    _mm512_storeu_si512(to + 32, _mm512_shuffle_i32x4(c, d, 0x88)), _mm512_storeu_si512(to + 48, _mm512_shuffle_i32x4(c, d, 0xdd));
}

/* What becomes of sums: the usual case, everything else (see conv_args), and sums that something else finishes. */
typedef enum { USUAL, GENERAL, SUMS } finish_form;

/* Stores the first bytes of a vector of results at y, or its sums. */
VNNI_INLINE void finish_vector(const conv_args *a, const depthwise_block *t, const __m512i *sum, int32_t *sums, uint8_t *y,
                               isize bytes, const finish_form form) {
    const __mmask64 mask = byte_mask(bytes);
    __m512i result;
    if (form == SUMS) {
        store_sums(sum, sums);
        return;
    }
    if (form == GENERAL) {
        __m512i residual = _mm512_setzero_si512();
        if (a->residual_joint) residual = _mm512_maskz_loadu_epi8(mask, a->residual + (y - a->y));
        result = requantize_general(sum, t->multiplier, t->negative, from_lane_order(residual), a, &t->end);
    } else {
        result = requantize(sum, t->multiplier, &t->end);
    }
    _mm512_mask_storeu_epi8(y, mask, result);
}

VNNI_INLINE void interleave_rows(__m512i a, __m512i b, __m512i c, __m512i d, __m512i *v) {
    const __m512i ab = _mm512_unpacklo_epi8(a, b), cd = _mm512_unpacklo_epi8(c, d);
    const __m512i AB = _mm512_unpackhi_epi8(a, b), CD = _mm512_unpackhi_epi8(c, d);
    v[0] = _mm512_unpacklo_epi16(ab, cd), v[1] = _mm512_unpackhi_epi16(ab, cd);
    v[2] = _mm512_unpacklo_epi16(AB, CD), v[3] = _mm512_unpackhi_epi16(AB, CD);
}

/* Interleaves `count` columns from `from` on; columns outside of the image hold the zero point. */
VNNI_INLINE void interleave_columns(const uint8_t *const *rows, isize from, isize width, isize pixel,
                               isize count, const isize height, __mmask64 bytes, __m512i blank, __m512i *v) {
    const isize groups = (height + 3) / 4;
    for (isize j = from; j < from + count; j++) {
        if (j < 0 || j >= width) {
            for (isize k = 0; k < 4 * groups; k++) *v++ = blank;
            continue;
        }
        for (isize g = 0; g < groups; g++, v += 4) {
            const isize at = j * pixel;
            if (height - 4 * g == 1) { /* weights of the other rows are 0 */
                const __m512i row = _mm512_maskz_loadu_epi8(bytes, rows[4 * g] + at);
                interleave_rows(row, row, row, row, v);
                continue;
            }
            const __m512i a = _mm512_maskz_loadu_epi8(bytes, rows[4 * g] + at);
            const __m512i b = _mm512_maskz_loadu_epi8(bytes, rows[4 * g + 1] + at);
            const __m512i c = _mm512_maskz_loadu_epi8(bytes, rows[4 * g + 2] + at);
            const __m512i d = _mm512_maskz_loadu_epi8(bytes, rows[4 * g + 3] + at);
            interleave_rows(a, b, c, d, v);
        }
    }
}

/* Has the sums of some pixels of a row finished. */
static void finish_row(const conv_args *a, const row_buffer *r, isize place, isize count, isize channel, isize channels) {
    const sum_block b = {r->sums, NULL, count, channels, a->block_pixels > 1 ? channels : 64, place, channel};
    a->finish->run(a->finish->args, &b, (uint8_t *)r->sums + SUM_BYTES);
}

/* Computes one row of results: up to 64 bytes of each pixel (or of each block of pixels) from `offset` on. The input rows
   begin at column -`before` and end after `width`. */
VNNI_INLINE void depthwise_row(const conv_args *a, const row_buffer *r, const depthwise_block *t, isize place,
                          isize offset, isize bytes, isize before, isize width, const isize wide,
                          const isize height, const finish_form form) {
    const isize groups = (height + 3) / 4, pixels = a->block_pixels, step = a->stride_w * pixels, line = a->channels;
    /* Columns that lie between the windows of two vectors are not interleaved. */
    const isize apart = min_size(step, wide);
    const __m512i blank = _mm512_set1_epi8((char)a->in_zero);
    const uint8_t *rows[4 * MAX_GROUPS];
    /* The weights of rows beyond the window are 0. */
    for (isize k = 0; k < 4 * groups; k++) rows[k] = r->rows[k < height ? k : 0] + offset;
    const isize apart_sums = pixels > 1 ? pixels * line : 64; /* sums of pixels of few channels lie side by side, too */
    __m512i sum[TILE][4], *columns = (__m512i *)r->columns;
    for (isize o = 0; o < a->out_width; o += ROW_TILE) {
        const isize count = min_size(a->out_width - o, ROW_TILE);
        const isize first = o * a->stride_w - before, vectors = ceil_div(count, pixels);
        for (isize k = 0; k < (apart < step ? vectors : 1); k++)
            interleave_columns(rows, first + k * step, width, line, apart < step ? wide : (vectors - 1) * step + wide, height,
                               byte_mask(bytes), blank, columns + 4 * k * wide * groups);
        uint8_t *to = a->y + (place + o) * line + offset;
        /* Prefetches the next row: a block writes 64 bytes of every pixel, which hardware prefetchers do not predict. */
        for (isize k = 0; form != SUMS && k < count; k += pixels) __builtin_prefetch(to + (a->out_width + k) * line, 1);
        isize i = 0;
        for (; (i + TILE) * pixels <= count; i += TILE) {
            microkernel(t, columns + 4 * i * apart * groups, apart, TILE, wide * groups, groups, sum);
            for (int k = 0; k < TILE; k++)
                finish_vector(a, t, sum[k], r->sums + (i + k) * apart_sums, to + (i + k) * pixels * line, bytes, form);
        }
        for (; (i + 2) * pixels <= count; i += 2) {
            microkernel(t, columns + 4 * i * apart * groups, apart, 2, wide * groups, groups, sum);
            for (int k = 0; k < 2; k++)
                finish_vector(a, t, sum[k], r->sums + (i + k) * apart_sums, to + (i + k) * pixels * line, bytes, form);
        }
        for (; i < vectors; i++) {
            const isize left = (count - i * pixels) * line;
            microkernel(t, columns + 4 * i * apart * groups, 0, 1, wide * groups, groups, sum);
            finish_vector(a, t, sum[0], r->sums + i * apart_sums, to + i * pixels * line,
                          pixels > 1 && left < bytes ? left : bytes, form);
        }
        if (form == SUMS) finish_row(a, r, place + o, count, offset, pixels > 1 ? line : bytes);
    }
}

/* Interleaves a column of three rows; weights of the fourth row are 0. */
VNNI_INLINE void interleave_three_rows(const uint8_t *const *rows, isize at, __mmask64 bytes, __m512i *v) {
    const __m512i a = _mm512_maskz_loadu_epi8(bytes, rows[0] + at), b = _mm512_maskz_loadu_epi8(bytes, rows[1] + at);
    const __m512i c = _mm512_maskz_loadu_epi8(bytes, rows[2] + at);
    interleave_rows(a, b, c, c, v);
}

/* Computes a row of results of 3 x 3 windows with a stride of one or two, with interleaved columns in registers only: each
   column is added to the results whose last, second and first column it is. */
VNNI_INLINE void depthwise_3x3(const conv_args *a, const row_buffer *r, const depthwise_block *given, isize place,
                          isize offset, isize bytes, const int step, const finish_form form) {
    const depthwise_block t = *given;
    const isize line = a->channels, columns = a->out_width, width = a->width, left = a->pad_w;
    const uint8_t *const rows[3] = {r->rows[0] + offset, r->rows[1] + offset, r->rows[2] + offset};
    const __mmask64 mask = byte_mask(bytes);
    const __m512i blank = _mm512_set1_epi8((char)a->in_zero);
    __m512i w[3][4], oldest[4], second[4], x[4];
    for (int k = 0; k < 3; k++)
        for (int q = 0; q < 4; q++) w[k][q] = _mm512_loadu_si512(t.weight + 4 * k + q);
    for (int q = 0; q < 4; q++) oldest[q] = second[q] = blank; /* accumulators of results outside of the row */
    uint8_t *to = a->y + place * line + offset;
    for (isize o = step == 1 ? -2 : -1, j = o * step + 3 - step - left; o < columns; o++) {
        for (int k = 0; k < step; k++, j++) {
            if (j < 0 || j >= width)
                for (int q = 0; q < 4; q++) x[q] = blank;
            else
                interleave_three_rows(rows, j * line, mask, x);
            if (step == 2 && k == 0) { /* only one result sees this column, as its middle one */
                for (int q = 0; q < 4; q++) oldest[q] = dot_product(oldest[q], x[q], w[1][q]);
            }
        }
        if (o >= 0) {
            for (int q = 0; q < 4; q++) oldest[q] = dot_product(oldest[q], x[q], w[2][q]);
            if (form == SUMS) {
                const isize i = o % SUM_WINDOWS;
                store_sums(oldest, r->sums + 64 * i);
                if (i == SUM_WINDOWS - 1 || o == columns - 1) finish_row(a, r, place + o - i, i + 1, offset, bytes);
            } else {
                store_bytes(to, bytes, requantize(oldest, t.multiplier, &t.end));
                __builtin_prefetch(to + columns * line, 1);
                to += line;
            }
        }
        const __m512i *bias = (const __m512i *)opaque_pointer(t.bias);
        if (step == 1)
            for (int q = 0; q < 4; q++) {
                oldest[q] = dot_product(second[q], x[q], w[1][q]);
                second[q] = dot_product(_mm512_loadu_si512(bias + q), x[q], w[0][q]);
            }
        else
            for (int q = 0; q < 4; q++) oldest[q] = dot_product(_mm512_loadu_si512(bias + q), x[q], w[0][q]);
    }
}

/* Adds column j of five rows to `count` results: the first one sees it as its column `tap`, each next one as the column
   `apart` to the left of that. */
VNNI_INLINE void add_column(const conv_args *a, const uint8_t *const *rows, isize j, __mmask64 mask, const __m512i *weight,
                            int tap, const int apart, const int count, __m512i sum[][4]) {
    __m512i x[4];
    const __m512i blank = _mm512_set1_epi8((char)a->in_zero);
    const int inside = j >= 0 && j < a->width;
    const isize at = j * a->channels;
    for (int g = 0; g < 2; g++) {
        if (!inside)
            for (int q = 0; q < 4; q++) x[q] = blank;
        else if (g == 0)
            interleave_rows(_mm512_maskz_loadu_epi8(mask, rows[0] + at), _mm512_maskz_loadu_epi8(mask, rows[1] + at),
                            _mm512_maskz_loadu_epi8(mask, rows[2] + at), _mm512_maskz_loadu_epi8(mask, rows[3] + at), x);
        else { /* weights of the other rows are 0 */
            const __m512i last = _mm512_maskz_loadu_epi8(mask, rows[4] + at);
            interleave_rows(last, last, last, last, x);
        }
        for (int k = 0; k < count; k++)
            for (int q = 0; q < 4; q++)
                sum[k][q] = dot_product_memory(sum[k][q], x[q], weight + 4 * (2 * (tap - apart * k) + g) + q);
    }
}

/* Computes a row of results of 5 x 5 windows with a stride of one or two: each column is added to all results that see it. */
VNNI_INLINE void depthwise_5x5(const conv_args *a, const row_buffer *r, const depthwise_block *given, uint8_t *y,
                               isize offset, isize bytes, const int step) {
    const depthwise_block t = *given;
    const int live = step == 1 ? 5 : 3; /* results that see a column */
    const uint8_t *rows[5];
    const __mmask64 mask = byte_mask(bytes);
    __m512i sum[5][4];
    for (int k = 0; k < 5; k++) rows[k] = r->rows[k] + offset;
    for (int k = 0; k < live; k++)
        for (int q = 0; q < 4; q++) sum[k][q] = _mm512_setzero_si512(); /* of results outside of the row */
    uint8_t *to = y + offset;
    isize j = -a->pad_w; /* the column that result `o + live - 1` sees first */
    for (isize o = 1 - live; o < a->out_width; o++) {
        const __m512i *bias = (const __m512i *)opaque_pointer(t.bias);
        for (int q = 0; q < 4; q++) sum[live - 1][q] = _mm512_loadu_si512(bias + q);
        add_column(a, rows, j++, mask, t.weight, 4, step, live, sum);
        if (o >= 0) {
            store_bytes(to, bytes, requantize(sum[0], t.multiplier, &t.end));
            __builtin_prefetch(to + a->out_width * a->channels, 1);
            to += a->channels;
        }
        for (int k = 0; k + 1 < live; k++)
            for (int q = 0; q < 4; q++) sum[k][q] = sum[k + 1][q];
        if (step == 2) add_column(a, rows, j++, mask, t.weight, 3, 2, 2, sum);
    }
}

/* Computes a row of results of 3 x 3 windows where two or four neighbouring pixels are one vector; the columns between two
   vectors are taken from both. */
VNNI_INLINE void depthwise_few_channels(const conv_args *a, const row_buffer *r, const depthwise_block *given, uint8_t *y,
                             const int pixels) {
    const depthwise_block t = *given;
    const isize line = a->channels, columns = a->out_width;
    __m512i w[3][4], x[4], next[4], sum[4];
    for (int k = 0; k < 3; k++)
        for (int q = 0; q < 4; q++) w[k][q] = _mm512_loadu_si512(t.weight + 4 * k + q);
    interleave_three_rows(r->rows, 0, byte_mask(VECTOR_BYTES), x);
    for (isize o = 0; o < columns; o += pixels) {
        interleave_three_rows(r->rows, (o + pixels) * line, byte_mask(VECTOR_BYTES), next);
        const __m512i *bias = (const __m512i *)opaque_pointer(t.bias);
        for (int q = 0; q < 4; q++) {
            sum[q] = dot_product(_mm512_loadu_si512(bias + q), x[q], w[0][q]);
            const __m512i half = _mm512_alignr_epi64(next[q], x[q], 4);
            const __m512i quarter = pixels == 4 ? _mm512_alignr_epi64(next[q], x[q], 2) : half;
            sum[q] = dot_product(sum[q], quarter, w[1][q]);
            sum[q] = dot_product(sum[q], pixels == 4 ? half : next[q], w[2][q]);
            x[q] = next[q];
        }
        const isize left = (columns - o) * line;
        store_bytes(y + o * line, left, requantize(sum, t.multiplier, &t.end));
    }
}

/* Computes sums of a row and has them finished. */
VNNI_TARGET static void depthwise_sums(const conv_args *a, const row_buffer *r, const depthwise_block *t, isize place,
                                       isize offset, isize bytes, isize before, isize width) {
    const int three = a->kernel_h == 3 && a->kernel_w == 3 && a->block_pixels == 1;
    if (three && a->stride_w == 1)
        depthwise_3x3(a, r, t, place, offset, bytes, 1, SUMS);
    else if (three && a->stride_w == 2)
        depthwise_3x3(a, r, t, place, offset, bytes, 2, SUMS);
    else
        depthwise_row(a, r, t, place, offset, bytes, before, width, a->kernel_w, a->kernel_h, SUMS);
}

VNNI_TARGET void depthwise_kernel(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const conv_args *a = (const conv_args *)given;
    const isize line = a->channels, groups = ceil_div(a->kernel_h, 4), whole = line * a->block_pixels;
    const int three = a->kernel_h == 3 && a->kernel_w == 3, padded = a->block_pixels > 1;
    const int five = a->kernel_h == 5 && a->kernel_w == 5;
    /* Vectors of several pixels may begin inside of the image and end outside, hence the copied rows. The last vector reads
       some columns more than windows see; they do not count. */
    row_buffer r = open_rows(a, scratch);
    depthwise_block t = {.end = conv_epilogue(a)};
    for (isize at = lo; at < hi; at++) {
        if (padded)
            copy_rows(&r, a, at);
        else
            point_rows(&r, a, at);
        const isize before = padded ? 0 : a->pad_w, width = padded ? PTRDIFF_MAX : a->width;
        const isize place = at * a->out_width;
        uint8_t *y = a->y + place * line;
        for (isize offset = 0, b = 0; offset < whole; offset += VECTOR_BYTES, b++) {
            const isize bytes = min_size(whole - offset, VECTOR_BYTES);
            t.weight = (const __m512i *)a->weight + b * a->kernel_w * groups * 4, t.bias = (const __m512i *)a->bias + b * 4;
            for (int q = 0; q < 4; q++) {
                const isize channel = b * VECTOR_BYTES + 16 * q;
                t.multiplier[q] = a->multiplier + channel;
                t.negative[q] = a->multiplier_negative ? a->multiplier_negative + channel : t.multiplier[q];
            }
            if (a->sum_bytes)
                depthwise_sums(a, &r, &t, place, offset, bytes, before, width);
            else if (a->general)
                depthwise_row(a, &r, &t, place, offset, bytes, before, width, a->kernel_w, a->kernel_h, GENERAL);
            else if (three && !padded && a->stride_w == 1)
                depthwise_3x3(a, &r, &t, place, offset, bytes, 1, USUAL);
            else if (three && !padded && a->stride_w == 2)
                depthwise_3x3(a, &r, &t, place, offset, bytes, 2, USUAL);
            else if (three && whole == VECTOR_BYTES && a->block_pixels == 2)
                depthwise_few_channels(a, &r, &t, y, 2);
            else if (three && whole == VECTOR_BYTES && a->block_pixels == 4)
                depthwise_few_channels(a, &r, &t, y, 4);
            else if (five && !padded && a->stride_w == 1 && a->out_width >= WIDE)
                depthwise_5x5(a, &r, &t, y, offset, bytes, 1);
            else if (five && !padded && a->stride_w == 2)
                depthwise_5x5(a, &r, &t, y, offset, bytes, 2);
            else if (five)
                depthwise_row(a, &r, &t, place, offset, bytes, before, width, 5, 5, USUAL);
            else
                depthwise_row(a, &r, &t, place, offset, bytes, before, width, a->kernel_w, a->kernel_h, USUAL);
        }
        finish_results(a, 0, at * a->out_width * line, a->out_width, line);
    }
}
#endif
