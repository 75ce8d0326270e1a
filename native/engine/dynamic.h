/* Dynamic quantization: rows of float32 as bytes q + 128 with a scale each, and packed weights for them. */

#ifndef INTACT8_DYNAMIC_H
#define INTACT8_DYNAMIC_H

#include "conv_gather.h"
#include "product.h"

#define REACH 127.0f           /* the largest quantized magnitude */
#define MIN_ROW_SCALE 0x1p-60f /* the smallest scale of a row */

/* max(fl(max |x| / 127), 2^-60); NaN if the row holds NaN or infinity. */
HIDDEN float scale_of_row(const float *restrict x, isize count);

/* q = R(fl(x / s)) + 128 */
HIDDEN void quantize_row(const float *x, float s, uint8_t *q, isize count);

/* The same of gelu(x) instead of x; `g` is memory for gelu_memory(count) floats. Returns the scale. */
HIDDEN float quantize_gelu(const float *x, uint8_t *q, isize count, float *g);
INLINE isize gelu_memory(isize count) { return count + ceil_div(count, BLOCK); }

/* Weights (columns, depth), packed for `product`, or as a matrix for the kernels of convolutions where that is NULL. */
typedef struct {
    gather_plan matrix;
    const int8_t *packed;
    const int32_t *offsets; /* -128 Σ_k weight[c, k], which sums of bytes q + 128 need */
    isize depth, columns;   /* as packed */
    int nibbles;            /* whether they have 4 bits */
    product_kernel product;
} dynamic_weight;

/* Packs constant weights of 8 or 4 bits for products with that many rows; NULL with a reason. */
HIDDEN const dynamic_weight *pack_dynamic(checker *c, int64_t value, isize depth, isize columns, int64_t bits, isize rows);

/* Sums of `rows` rows with up to PRODUCT_COLUMNS columns from `from` on, a multiple of that. */
INLINE void multiply_block(const dynamic_weight *w, const uint8_t *q, isize rows, isize from, int32_t *sums, isize apart) {
    const isize at = from * w->depth, columns = min_size(w->columns - from, PRODUCT_COLUMNS);
    if (!w->product)
        multiply_matrix(&w->matrix, q, rows, from, columns, sums, apart);
    else
        w->product(q, w->depth, rows, w->depth, w->packed + (w->nibbles ? at / 2 : at), columns, sums, apart);
}

/* fl(fl(fl(sum + offset) scale) s) */
INLINE float dynamic_result(int32_t sum, int32_t offset, float scale, float s) {
    return (float)(int32_t)((uint32_t)sum + (uint32_t)offset) * scale * s;
}

#endif
