/* Products of float32 matrices: of activations, of linear layers, and of convolutions whose windows lie side by side. */

#include "product.h"

#define CHUNK_ROWS 12   /* rows whose results are in the L1 cache at a time */
#define PIECE_ROWS 240  /* rows for which a block of columns is packed once */

typedef struct {
    const float_matmul_step *s;
    float_product_kernel product;
    const float *x, *bias, *scales;
    const uint8_t *w; /* float32, or codes */
    float *y;
    isize pieces, blocks; /* of the rows and the columns of a matrix */
} float_matmul_args;

/* Bytes of a row of codes. */
static isize code_bytes(const float_matmul_step *s) { return s->bits == 8 ? (isize)s->depth : ceil_div((isize)s->depth, 2); }
static isize groups_of(const float_matmul_step *s) { return s->group ? ceil_div((isize)s->depth, (isize)s->group) : 1; }

static int check_weight(checker *c, const float_matmul_step *s, const int64_t *sizes) {
    const int64_t strides[] = {s->w0, s->w1, s->w2, s->w3, s->w_depth, s->w_column};
    if (!s->bits) return check_extent(c, s->w, 0, sizes, strides, 6, 4, "w");
    if ((s->bits != 4 && s->bits != 8) || s->group < 0 || s->scales < 0) return refuse(c, "codes of no such number of bits");
    return needs(c, s->w, checked_product((isize)s->columns, code_bytes(s)), 1, "w") &&
           needs(c, s->scales, checked_product((isize)s->columns, groups_of(s)), 4, "scales");
}

int check_float_matmul(checker *c, const int64_t *step) {
    const float_matmul_step *s = (const float_matmul_step *)(const void *)step;
    const int64_t sizes[] = {s->d0, s->d1, s->d2, s->d3, s->rows, s->depth, s->columns};
    if (!is_product(sizes)) return refuse(c, "a product of no such size");
    const int64_t x[] = {s->x0, s->x1, s->x2, s->x3, s->x_row, 1}, y[] = {s->y0, s->y1, s->y2, s->y3, s->y_row, 1};
    const int64_t xs[] = {s->d0, s->d1, s->d2, s->d3, s->rows, s->depth};
    const int64_t ws[] = {s->d0, s->d1, s->d2, s->d3, s->depth, s->columns};
    const int64_t ys[] = {s->d0, s->d1, s->d2, s->d3, s->rows, s->columns};
    const int64_t bias[] = {s->b0, s->b1, s->b2, s->b3, 1};
    const int64_t bs[] = {s->d0, s->d1, s->d2, s->d3, s->columns};
    c->scratch = checked_product((isize)s->depth + CHUNK_ROWS, PRODUCT_COLUMNS * (isize)sizeof(float));
    return check_extent(c, s->x, 0, xs, x, 6, 4, "x") && check_weight(c, s, ws) &&
           check_result(c, s->y, 0, ys, y, 6, 4) && (s->bias < 0 || check_extent(c, s->bias, 0, bs, bias, 5, 4, "bias"));
}

/* Packs `columns` columns, filled up with zeros to `wide`: rows of k, side by side. */
MULTIVERSION static void pack_floats(const float *w, isize depth, isize columns, isize wide, isize k_stride, isize c_stride,
                                     float *restrict to) {
    for (isize k = 0; k < depth; k++, to += wide) {
        const float *row = w + k * k_stride;
        if (c_stride == 1)
            memcpy(to, row, (size_t)columns * sizeof *to);
        else
            for (isize c = 0; c < columns; c++) to[c] = row[c * c_stride];
        for (isize c = columns; c < wide; c++) to[c] = 0;
    }
}

/* The same of codes of columns from `first` on. */
static void pack_codes(const float_matmul_args *a, isize first, isize columns, isize wide, float *to) {
    const float_matmul_step *s = a->s;
    const isize depth = (isize)s->depth, bytes = code_bytes(s), groups = groups_of(s);
    for (isize c = 0; c < wide; c++) {
        const uint8_t *code = a->w + (first + c) * bytes;
        for (isize k = 0; k < depth; k++) {
            const int q = c >= columns ? 0 : s->bits == 8 ? code[k] - 128 : (code[k / 2] >> k % 2 * 4 & 15) - 8;
            to[k * wide + c] = q ? (float)q * a->scales[(first + c) * groups + (s->group ? k / (isize)s->group : 0)] : 0;
        }
    }
}

/* An index is a piece of the rows and a block of the columns of one matrix. */
static void float_matmul_kernel(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const float_matmul_args *a = (const float_matmul_args *)given;
    const float_matmul_step *s = a->s;
    const isize depth = (isize)s->depth;
    float *packed = (float *)(void *)scratch, *results = packed + depth * PRODUCT_COLUMNS;
    for (isize i = lo; i < hi; i++) {
        const isize piece = i % a->pieces, block = i / a->pieces % a->blocks;
        isize left = i / a->pieces / a->blocks, x = 0, w = 0, y = 0, b = 0;
        for (int d = 3; d >= 0; left /= (isize)(&s->d0)[d--]) {
            const isize at = left % (isize)(&s->d0)[d];
            x += at * (isize)(&s->x0)[d], y += at * (isize)(&s->y0)[d];
            if (!s->bits) w += at * (isize)(&s->w0)[d]; /* strides that are not used were not checked */
            if (a->bias) b += at * (isize)(&s->b0)[d];
        }
        const isize from = block * PRODUCT_COLUMNS, columns = min_size((isize)s->columns - from, PRODUCT_COLUMNS);
        const isize wide = packed_columns(columns), end = min_size((isize)s->rows, (piece + 1) * PIECE_ROWS);
        if (s->bits)
            pack_codes(a, from, columns, wide, packed);
        else
            pack_floats((const float *)(const void *)a->w + w + from * (isize)s->w_column, depth, columns, wide,
                        (isize)s->w_depth, (isize)s->w_column, packed);
        const float *bias = a->bias ? a->bias + b + from : NULL;
        for (isize row = piece * PIECE_ROWS; row < end; row += CHUNK_ROWS) {
            const isize count = min_size(CHUNK_ROWS, end - row);
            a->product(a->x + x + row * (isize)s->x_row, (isize)s->x_row, count, depth, packed, wide, results, wide);
            for (isize r = 0; r < count; r++) {
                float *to = a->y + y + (row + r) * (isize)s->y_row + from;
                for (isize c = 0; c < columns; c++) to[c] = results[r * wide + c] + (bias ? bias[c] : 0);
            }
        }
    }
}

void run_float_matmul(frame *f, const int64_t *step, void *prepared) {
    const float_matmul_step *s = (const float_matmul_step *)(const void *)step;
    const isize matrices = (isize)(s->d0 * s->d1 * s->d2 * s->d3);
    const float_matmul_args a = {s, float_product_of_isa(), at(f, s->x), at(f, s->bias), at(f, s->scales), at(f, s->w),
                                 at(f, s->y), ceil_div((isize)s->rows, PIECE_ROWS),
                                 ceil_div((isize)s->columns, PRODUCT_COLUMNS)};
    (void)prepared;
    const isize count = matrices * a.pieces * a.blocks;
    parallel(f, float_matmul_kernel, &a, count, count * (isize)s->depth * 4 * min_size((isize)s->rows, PIECE_ROWS));
}
