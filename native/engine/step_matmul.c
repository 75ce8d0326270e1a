/* Products of two activations. */

#include "product.h"

#define CHUNK_ROWS 48   /* rows whose sums are in the L1 cache at a time */
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
    const int64_t sizes[] = {s->d0, s->d1, s->d2, s->d3, s->rows, s->depth, s->columns};
    if (!is_product(sizes) || s->depth > 1 << 18 || s->columns > 1 << 24) return refuse(c, "a product of no such size");
    const int64_t x[] = {s->x0, s->x1, s->x2, s->x3, s->x_row, 1}, y[] = {s->y0, s->y1, s->y2, s->y3, s->y_row, 1};
    const int64_t w[] = {s->w0, s->w1, s->w2, s->w3, s->w_depth, s->w_column};
    const int64_t xs[] = {s->d0, s->d1, s->d2, s->d3, s->rows, s->depth};
    const int64_t ws[] = {s->d0, s->d1, s->d2, s->d3, s->depth, s->columns};
    const int64_t ys[] = {s->d0, s->d1, s->d2, s->d3, s->rows, s->columns};
    c->scratch = scratch_of((isize)s->depth, (isize)s->columns).all;
    return check_clamp(c, s->zero, s->low, s->high) && check_clamp(c, s->zero_x, 0, 255) &&
           check_clamp(c, s->zero_w, 0, 255) && check_extent(c, s->x, 0, xs, x, 6, 1, "x") &&
           check_extent(c, s->w, 0, ws, w, 6, 1, "w") && check_result(c, s->y, 0, ys, y, 6, 1);
}

/* Multiplies `count` rows of x, at most CHUNK_ROWS. */
static void multiply_rows(const matmul_args *a, const uint8_t *x, isize stride, isize count, const int8_t *packed,
                          const int32_t *offsets, int32_t *sums, uint8_t *y) {
    const matmul_step *s = a->s;
    const isize depth = (isize)s->depth, columns = (isize)s->columns, deep = packed_depth(depth);
    const requantization to = requantization_of(s->ratio, s->zero, s->low, s->high);
    int32_t row[CHUNK_ROWS];
    for (isize r = 0; r < count; r++) row[r] = offset_of_row(x + r * stride, depth, (int)s->zero_w);
    for (isize from = 0; from < columns; from += PRODUCT_COLUMNS) {
        const isize wide = min_size(columns - from, PRODUCT_COLUMNS);
        a->product(x, stride, count, deep, packed + from * deep, packed_columns(wide), sums, PRODUCT_COLUMNS);
        for (isize r = 0; r < count; r++)
            requantize_row(sums + r * PRODUCT_COLUMNS, offsets + from, row[r], &to, y + r * (isize)s->y_row + from, wide);
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
        if (w != before)
            pack_activations(a->w + w, depth, (isize)s->columns, (isize)s->w_depth, (isize)s->w_column, (int)s->zero_x,
                             (int)s->zero_w, packed, offsets);
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
