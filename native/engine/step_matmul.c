/* Products of two activations. */

#include "product.h"

#define CHUNK_ROWS 24   /* rows whose sums are in the L1 cache at a time */
#define SPLIT_BATCHES 8 /* fewer matrices than this are split by rows, for threads */
#define SPLIT_ROWS 96
#define LEADING 4

typedef struct {
    const matmul_step *s;
    product_kernel product;
    const uint8_t *x, *w;
    uint8_t *y;
    isize pieces, piece_rows;
} matmul_args;

/* Memory of a thread, in bytes from its beginning. */
typedef struct {
    isize offsets, sums, rows, all;
} matmul_scratch;

static matmul_scratch scratch_of(isize depth, isize columns) {
    const isize deep = packed_depth(depth), wide = packed_columns(columns);
    matmul_scratch t;
    t.offsets = round_up(checked_product(deep, wide), ALIGNMENT);
    t.sums = t.offsets + round_up(4 * wide, ALIGNMENT);
    t.rows = t.sums + CHUNK_ROWS * PRODUCT_COLUMNS * 4;
    t.all = t.rows + CHUNK_ROWS * deep;
    return t;
}

int check_matmul(checker *c, const int64_t *step) {
    const matmul_step *s = (const matmul_step *)(const void *)step;
    const int64_t most = (int64_t)1 << 30;
    const int64_t sizes[] = {s->d0, s->d1, s->d2, s->d3, s->rows, s->depth, s->columns};
    isize all = 1;
    for (int i = 0; i < 7; i++) {
        if (sizes[i] < 1 || sizes[i] > most) return refuse(c, "a product of no such size");
        all = checked_product(all, i == 5 ? 1 : (isize)sizes[i]);
    }
    if (all < 0 || s->depth > 1 << 18 || s->columns > 1 << 24) return refuse(c, "a product of no such size");
    const int64_t x[] = {s->x0, s->x1, s->x2, s->x3, s->x_row, 1}, y[] = {s->y0, s->y1, s->y2, s->y3, s->y_row, 1};
    const int64_t w[] = {s->w0, s->w1, s->w2, s->w3, s->w_depth, s->w_column};
    const int64_t xs[] = {s->d0, s->d1, s->d2, s->d3, s->rows, s->depth};
    const int64_t ws[] = {s->d0, s->d1, s->d2, s->d3, s->depth, s->columns};
    const int64_t ys[] = {s->d0, s->d1, s->d2, s->d3, s->rows, s->columns};
    c->scratch = scratch_of((isize)s->depth, (isize)s->columns).all;
    return check_clamp(c, s->zero, s->low, s->high) && check_clamp(c, s->zero_x, 0, 255) &&
           check_clamp(c, s->zero_w, 0, 255) && check_extent(c, s->x, 0, xs, x, 6, 1, "x") &&
           check_extent(c, s->w, 0, ws, w, 6, 1, "w") && check_extent(c, s->y, 0, ys, y, 6, 1, "y");
}

/* y = clamp(R(float32(sum + offset + offset of the row) ratio) + zero, low, high) */
MULTIVERSION static void finish_row(const int32_t *restrict sums, const int32_t *restrict offsets, int32_t offset,
                                    const matmul_step *s, uint8_t *restrict y, isize count) {
    const float ratio = bits_float(s->ratio), low = (float)(s->low - s->zero), high = (float)(s->high - s->zero);
    const int32_t zero = (int32_t)s->zero;
    for (isize i = 0; i < count; i++) {
        const uint32_t sum = (uint32_t)sums[i] + (uint32_t)offsets[i] + (uint32_t)offset;
        y[i] = to_uint8((float)(int32_t)sum * ratio, low, high, zero);
    }
}

MULTIVERSION static int32_t sum_bytes(const uint8_t *restrict x, isize count) {
    uint32_t sum = 0;
    for (isize i = 0; i < count; i++) sum += x[i];
    return (int32_t)sum;
}

/* Packs one matrix w - 128, and fills in what each column adds to its sums: with w' = w - 128 and z' = zero_w - 128,
   Σ (x - zero_x)(w - zero_w) = Σ x w' - zero_x Σ w' + depth zero_x z' - z' Σ x. */
static void prepare_columns(const matmul_args *a, const uint8_t *w, int8_t *packed, int32_t *offsets) {
    const matmul_step *s = a->s;
    const isize depth = (isize)s->depth, columns = packed_columns((isize)s->columns);
    pack_product(w, depth, (isize)s->columns, (isize)s->w_depth, (isize)s->w_column, 0x80, packed);
    sum_columns(packed, packed_depth(depth), columns, offsets);
    const uint32_t zero = (uint32_t)s->zero_x, all = (uint32_t)(s->depth * s->zero_x * (s->zero_w - 128));
    for (isize c = 0; c < columns; c++) offsets[c] = (int32_t)(all - zero * (uint32_t)offsets[c]);
}

/* Multiplies `count` rows of x, at most CHUNK_ROWS. */
static void multiply_rows(const matmul_args *a, const uint8_t *x, isize stride, isize count, const int8_t *packed,
                          const int32_t *offsets, int32_t *sums, uint8_t *y) {
    const matmul_step *s = a->s;
    const isize depth = (isize)s->depth, columns = (isize)s->columns, deep = packed_depth(depth);
    const uint32_t zero = (uint32_t)(s->zero_w - 128);
    int32_t row[CHUNK_ROWS] = {0};
    if (zero)
        for (isize r = 0; r < count; r++) row[r] = (int32_t)(0u - zero * (uint32_t)sum_bytes(x + r * stride, depth));
    for (isize from = 0; from < columns; from += PRODUCT_COLUMNS) {
        const isize wide = min_size(columns - from, PRODUCT_COLUMNS);
        a->product(x, stride, count, deep, packed + from * deep, packed_columns(wide), sums, PRODUCT_COLUMNS);
        for (isize r = 0; r < count; r++)
            finish_row(sums + r * PRODUCT_COLUMNS, offsets + from, row[r], s, y + r * (isize)s->y_row + from, wide);
    }
}

/* An index is a piece of the rows of one matrix. */
static void matmul_rows(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const matmul_args *a = (const matmul_args *)given;
    const matmul_step *s = a->s;
    const isize depth = (isize)s->depth, deep = packed_depth(depth);
    const matmul_scratch t = scratch_of(depth, (isize)s->columns);
    int8_t *packed = (int8_t *)scratch;
    int32_t *offsets = (int32_t *)(void *)(scratch + t.offsets), *sums = (int32_t *)(void *)(scratch + t.sums);
    uint8_t *copies = scratch + t.rows;
    isize before = -1;
    for (isize at = lo; at < hi; at++) {
        const isize i = at / a->pieces, first = at % a->pieces * a->piece_rows;
        const isize d3 = i % s->d3, d2 = i / s->d3 % s->d2, d1 = i / (s->d3 * s->d2) % s->d1, d0 = i / (s->d3 * s->d2 * s->d1);
        const uint8_t *x = a->x + d0 * s->x0 + d1 * s->x1 + d2 * s->x2 + d3 * s->x3;
        const isize w = d0 * (isize)s->w0 + d1 * (isize)s->w1 + d2 * (isize)s->w2 + d3 * (isize)s->w3;
        uint8_t *y = a->y + d0 * s->y0 + d1 * s->y1 + d2 * s->y2 + d3 * s->y3;
        if (w != before) prepare_columns(a, a->w + w, packed, offsets);
        before = w;
        const isize last = min_size(first + a->piece_rows, (isize)s->rows);
        for (isize r = first; r < last; r += CHUNK_ROWS) {
            const isize count = min_size(last - r, CHUNK_ROWS);
            const uint8_t *rows = x + r * s->x_row;
            if (deep > depth) /* products read whole words */
                for (isize k = 0; k < count; k++) memcpy(copies + k * deep, rows + k * s->x_row, (size_t)depth);
            multiply_rows(a, deep > depth ? copies : rows, deep > depth ? deep : (isize)s->x_row, count, packed, offsets,
                          sums, y + r * s->y_row);
        }
    }
}

void run_matmul(frame *f, const int64_t *step, void *prepared) {
    const matmul_step *s = (const matmul_step *)(const void *)step;
    const isize matrices = (isize)(s->d0 * s->d1 * s->d2 * s->d3);
    const isize pieces = matrices < SPLIT_BATCHES ? ceil_div((isize)s->rows, SPLIT_ROWS) : 1;
    const matmul_args a = {s, product_of_isa(), at(f, s->x), at(f, s->w), at(f, s->y), pieces,
                           pieces > 1 ? SPLIT_ROWS : (isize)s->rows};
    (void)prepared;
    const double work = (double)matrices * (double)s->rows * (double)s->columns * (double)s->depth / 16;
    parallel(f, matmul_rows, &a, matrices * pieces, work > 1e15 ? (isize)1 << 50 : (isize)work);
}
