/* Kernels of convolutions in plain C, which compilers vectorize. */

#include "conv_gather.h"

#define NAME(f) plain_##f
#define VECTOR(f) plain_##f
#define TILE_TARGET
#define TILE_INLINE INLINE
#define LANES 1
#define VECTORS TILE_CHANNELS
#define ROWS 2

typedef int32_t ints;
typedef float floats;

INLINE ints plain_load_ints(const int32_t *x) { return *x; }
INLINE ints plain_set_ints(int32_t x) { return x; }
INLINE ints plain_add_ints(ints a, ints b) { return (ints)((uint32_t)a + (uint32_t)b); }
INLINE ints plain_subtract_ints(ints a, ints b) { return a - b; }
INLINE floats plain_load_floats(const float *x) { return *x; }
INLINE floats plain_set_floats(float x) { return x; }
INLINE floats plain_to_floats(ints x) { return (floats)x; }
INLINE floats plain_multiply(floats a, floats b) { return a * b; }
INLINE floats plain_add(floats a, floats b) { return a + b; }
INLINE floats plain_maximum(floats a, floats b) { return a > b ? a : b; }
INLINE floats plain_minimum(floats a, floats b) { return a < b ? a : b; }
INLINE ints plain_round_floats(floats x) { return float_bits(x + ROUND_MAGIC) - float_bits(ROUND_MAGIC); }
INLINE floats plain_where_negative(ints x, floats a, floats b) { return x < 0 ? a : b; }

INLINE void plain_widen(const uint8_t *x, ints *to) {
    for (int v = 0; v < VECTORS; v++) to[v] = x[v];
}

INLINE void plain_narrow(const ints *x, uint8_t *to) {
    for (int v = 0; v < VECTORS; v++) to[v] = (uint8_t)x[v];
}

/* Products of a uint8 and an int8 fit into 16 bits. */
INLINE void add_products(ints *sum, uint8_t x, const int8_t *weight) {
    for (int v = 0; v < VECTORS; v++) sum[v] = plain_add_ints(sum[v], (int16_t)(x * weight[v]));
}

INLINE const int8_t *plain_accumulate(ints sum[ROWS][VECTORS], const uint8_t *const *x, const int8_t *weight, isize bytes,
                                      const int rows) {
    for (isize d = 0; d < bytes; d++, weight += TILE_CHANNELS)
        for (int r = 0; r < rows; r++) add_products(sum[r], x[r][d], weight);
    return weight;
}

INLINE void plain_accumulate_four(ints *sum, const uint8_t *const *x, const int8_t *weight) {
    for (int k = 0; k < 4; k++)
        for (int v = 0; v < VECTORS; v++)
            sum[v] = plain_add_ints(sum[v], (int16_t)(x[k][v] * weight[TILE_CHANNELS * k + v]));
}

#include "conv_tiles.h"

const tile_kernels plain_tiles = {1, 0, plain_dense, plain_depthwise};
