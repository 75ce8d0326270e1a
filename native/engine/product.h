/* Exact int32 products of rows of bytes with packed int8 weights: what products of activations, dynamic linear layers,
   recurrent layers and attention share. */

#ifndef INTACT8_PRODUCT_H
#define INTACT8_PRODUCT_H

#include "plan.h"

#define PRODUCT_COLUMNS 64 /* columns of a block of packed weights; the last block has a multiple of 16 */

/* sums[r * apart + c] = Σ_k x[r * stride + k] weight[k, c], modulo 2^32, for k < depth (a multiple of 4) and c < columns (a
   multiple of 16). Weights are packed: blocks of columns, words of four k, columns, bytes of a word. */
typedef void (*product_kernel)(const uint8_t *x, isize stride, isize rows, isize depth, const int8_t *weight,
                               isize columns, int32_t *sums, isize apart);

HIDDEN product_kernel product_of_isa(void);

INLINE isize packed_depth(isize depth) { return round_up(depth, 4); }
INLINE isize packed_columns(isize columns) { return round_up(columns, 16); }

/* Packs w[k * k_stride + c * c_stride] XOR flip, and what is beyond `depth` and `columns` as 0. With flip 0x80, bytes w
   become int8 w - 128. */
HIDDEN void pack_product(const uint8_t *w, isize depth, isize columns, isize k_stride, isize c_stride, uint8_t flip,
                         int8_t *to);

/* sums[c] = Σ_k weight[k, c] of packed weights. */
HIDDEN void sum_columns(const int8_t *weight, isize depth, isize columns, int32_t *sums);

#endif
