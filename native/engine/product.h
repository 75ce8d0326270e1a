/* Exact int32 products of rows of bytes with packed int8 weights: what products of activations and attention share, and, on
   AVX-512 VNNI and in plain C, dynamic linear and recurrent layers. */

#ifndef INTACT8_PRODUCT_H
#define INTACT8_PRODUCT_H

#include "plan.h"

#define PRODUCT_COLUMNS 64 /* columns of a block of packed weights; the last block has a multiple of 16 */

/* sums[r * apart + c] = Σ_k x[r * stride + k] weight[k, c], modulo 2^32, for k < depth (a multiple of 4) and c < columns (a
   multiple of 16). Weights are packed: blocks of columns, words of four k, columns, bytes of a word. */
typedef void (*product_kernel)(const uint8_t *x, isize stride, isize rows, isize depth, const int8_t *weight,
                               isize columns, int32_t *sums, isize apart);

HIDDEN product_kernel product_of_isa(void);

/* Those for AVX-512 VNNI and for AMX (product_amx.c), where the compiler has them. */
HIDDEN void product_vnni(const uint8_t *x, isize stride, isize rows, isize depth, const int8_t *weight, isize columns,
                         int32_t *sums, isize apart);
HIDDEN void product_amx(const uint8_t *x, isize stride, isize rows, isize depth, const int8_t *weight, isize columns,
                        int32_t *sums, isize apart);

/* The same for packed weights of 4 bits (nibbles.h, span 64), a multiple of 32 columns, and depths up to NIBBLE_DEPTH, so that
   16 times a sum is an int32; NULL where bytes are as fast. */
HIDDEN product_kernel nibble_product_of_isa(void);
#define NIBBLE_DEPTH (1 << 16)

INLINE isize packed_depth(isize depth) { return round_up(depth, 4); }
INLINE isize packed_columns(isize columns) { return round_up(columns, 16); }

/* Whether four leading dimensions, rows, depth and columns are 1 to 2^30, and results, without the depth, can be counted. */
INLINE int is_product(const int64_t *sizes) {
    isize results = 1;
    for (int i = 0; i < 7; i++) {
        if (sizes[i] < 1 || sizes[i] > (int64_t)1 << 30) return 0;
        results = checked_product(results, i == 5 ? 1 : (isize)sizes[i]);
    }
    return results >= 0;
}

/* Packs w[k * k_stride + c * c_stride] XOR flip as `width` columns, and what is beyond `depth` and `columns` as 0. With flip
   0x80, bytes w become int8 w - 128. */
HIDDEN void pack_product(const uint8_t *w, isize depth, isize columns, isize width, isize k_stride, isize c_stride,
                         uint8_t flip, int8_t *to);

/* Packs a matrix of bytes of the zero point zero_w, from which 128 is taken, and finds what sums with rows x of the zero point
   zero_x need: with w' = w - 128 and z' = zero_w - 128, Σ (x - zero_x)(w - zero_w) = Σ x w' + offset of the column + offset
   of the row, where the first is depth zero_x z' - zero_x Σ w', and the second -z' Σ x. */
HIDDEN void pack_activations(const uint8_t *w, isize depth, isize columns, isize k_stride, isize c_stride, int zero_x,
                             int zero_w, int8_t *to, int32_t *offsets);
HIDDEN int32_t offset_of_row(const uint8_t *x, isize depth, int zero_w);

/* y = clamp(R(float32(sum + offset + offset of the row) ratio) + zero, low, high); limits are relative to zero. */
typedef struct {
    float ratio, low, high;
    int32_t zero;
} requantization;

INLINE requantization requantization_of(int64_t ratio, int64_t zero, int64_t low, int64_t high) {
    return (requantization){bits_float(ratio), (float)(low - zero), (float)(high - zero), (int32_t)zero};
}

HIDDEN void requantize_row(const int32_t *sums, const int32_t *offsets, int32_t offset, const requantization *to,
                           uint8_t *y, isize count);

/* y[r * apart + c] = Σ_k x[r * stride + k] w[k * columns + c] in float32, for a multiple of 16 columns. */
typedef void (*float_product_kernel)(const float *x, isize stride, isize rows, isize depth, const float *w, isize columns,
                                     float *y, isize apart);

HIDDEN float_product_kernel float_product_of_isa(void);

#endif
