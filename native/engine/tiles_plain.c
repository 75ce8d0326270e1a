/* Kernels of convolutions in plain C, which compilers vectorize. */

#include "conv_gather.h"

#define NAME(f) plain_##f
#define VECTOR(f) plain_##f
#define TILE_TARGET
#define TILE_INLINE INLINE
#define LANES 1
#define VECTORS TILE_CHANNELS
#define BLOCK_VECTORS VECTORS
#define ROWS 1

typedef int32_t ints;
typedef float floats;

INLINE ints plain_load_ints(const int32_t *x) { return *x; }
INLINE void plain_store_ints(int32_t *to, ints x) { *to = x; }
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

INLINE void plain_store_windows(const ints *v, const tile_panel *p, uint8_t *y) {
    for (isize c = 0; c < p->channels; c++) {
        const ints result = v[c] + p->finish.zero, most = result < p->finish.most ? result : p->finish.most;
        y[c] = (uint8_t)(most > p->finish.least ? most : p->finish.least);
    }
}

INLINE void plain_store_rows(const ints *v, const int rows, const tile_panel *p, uint8_t *y) {
    for (int r = 0; r < rows; r++) plain_store_windows(v + VECTORS * r, p, y + r * p->stride);
}

/* Adds the products of one tap and the weights of four channels, which stand row by row: compilers vectorize that best. */
INLINE void add_rows(ints *sum, const uint8_t *restrict x, const int8_t *restrict weight, isize bytes) {
    const int8_t *restrict second = weight + bytes, *restrict third = second + bytes, *restrict fourth = third + bytes;
    int32_t a = 0, b = 0, c = 0, d = 0;
    for (isize i = 0; i < bytes; i++) {
        const int16_t wide = x[i];
        a += wide * (int16_t)weight[i], b += wide * (int16_t)second[i];
        c += wide * (int16_t)third[i], d += wide * (int16_t)fourth[i];
    }
    sum[0] = plain_add_ints(sum[0], a), sum[1] = plain_add_ints(sum[1], b);
    sum[2] = plain_add_ints(sum[2], c), sum[3] = plain_add_ints(sum[3], d);
}

INLINE const int8_t *plain_accumulate(ints sum[ROWS][VECTORS], const uint8_t *const *x, const int8_t *weight, isize bytes,
                                      const int rows, const int vectors, const int nibbles, const int32_t *order) {
    (void)nibbles, (void)order;
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v += 4) add_rows(sum[r] + v, x[r], weight + v * bytes, bytes);
    return weight + TILE_CHANNELS * bytes;
}

INLINE void plain_accumulate_four(ints *sum, const uint8_t *const *x, const int8_t *weight, const int fits) {
    (void)fits;
    for (int k = 0; k < 4; k++)
        for (int v = 0; v < VECTORS; v++)
            sum[v] = plain_add_ints(sum[v], (int16_t)(x[k][v] * weight[TILE_CHANNELS * k + v]));
}

#include "conv_tiles.h"

const tile_kernels plain_tiles = {0, 0, 0, 16, plain_dense, plain_depthwise, NULL};
