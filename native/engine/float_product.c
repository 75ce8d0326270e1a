/* Products of float32 rows, see product.h. The last bits differ between instruction sets with and without fused
   multiply-adds, as those of every float island may. */

#include "product.h"

static void float_product_plain(const float *x, isize stride, isize rows, isize depth, const float *w, isize columns,
                                float *y, isize apart) {
    for (isize r = 0; r < rows; r++)
        for (isize from = 0; from < columns; from += 16) {
            float sum[16] = {0};
            for (isize k = 0; k < depth; k++) {
                const float v = x[r * stride + k];
                const float *restrict part = w + k * columns + from;
                for (int c = 0; c < 16; c++) sum[c] += v * part[c];
            }
            memcpy(y + r * apart + from, sum, sizeof sum);
        }
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "avx512.h"

AVX512_INLINE void float_tile(const float *x, isize stride, isize depth, const float *w, isize columns, float *y,
                              isize apart, const int rows, const int vectors) {
    __m512 sum[12][4];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) sum[r][v] = _mm512_setzero_ps();
    for (isize k = 0; k < depth; k++, w += columns) {
        __m512 part[4];
        for (int v = 0; v < vectors; v++) part[v] = _mm512_loadu_ps(w + 16 * v);
        for (int r = 0; r < rows; r++) {
            const __m512 value = _mm512_set1_ps(x[r * stride + k]);
            for (int v = 0; v < vectors; v++) sum[r][v] = _mm512_fmadd_ps(value, part[v], sum[r][v]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) _mm512_storeu_ps(y + r * apart + 16 * v, sum[r][v]);
}

/* `most` rows at a time, then four, then one. */
AVX512_INLINE void float_rows(const float *x, isize stride, isize rows, isize depth, const float *w, isize columns,
                              float *y, isize apart, const int most, const int vectors) {
    for (; rows >= most; rows -= most, x += most * stride, y += most * apart)
        float_tile(x, stride, depth, w, columns, y, apart, most, vectors);
    for (; rows >= 4; rows -= 4, x += 4 * stride, y += 4 * apart)
        float_tile(x, stride, depth, w, columns, y, apart, 4, vectors);
    for (; rows > 0; rows--, x += stride, y += apart) float_tile(x, stride, depth, w, columns, y, apart, 1, vectors);
}

AVX512_TARGET static void float_product_512(const float *x, isize stride, isize rows, isize depth, const float *w,
                                            isize columns, float *y, isize apart) {
    isize from = 0;
    for (; columns - from >= 64; from += 64) float_rows(x, stride, rows, depth, w + from, columns, y + from, apart, 6, 4);
    for (; columns - from >= 32; from += 32) float_rows(x, stride, rows, depth, w + from, columns, y + from, apart, 12, 2);
    for (; from < columns; from += 16) float_rows(x, stride, rows, depth, w + from, columns, y + from, apart, 12, 1);
}

#define AVX2_ROWS 6

/* 16 columns of some rows. */
__attribute__((target("avx2,fma"), always_inline)) static inline void float_tile_256(const float *x, isize stride, isize depth,
                                                                                const float *w, isize columns, float *y,
                                                                                isize apart, const int rows) {
    __m256 sum[AVX2_ROWS][2];
    for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = _mm256_setzero_ps();
    for (isize k = 0; k < depth; k++, w += columns) {
        const __m256 part[2] = {_mm256_loadu_ps(w), _mm256_loadu_ps(w + 8)};
        for (int r = 0; r < rows; r++) {
            const __m256 value = _mm256_set1_ps(x[r * stride + k]);
            for (int v = 0; v < 2; v++) sum[r][v] = _mm256_fmadd_ps(value, part[v], sum[r][v]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 2; v++) _mm256_storeu_ps(y + r * apart + 8 * v, sum[r][v]);
}

__attribute__((target("avx2,fma"))) static void float_product_256(const float *x, isize stride, isize rows, isize depth,
                                                              const float *w, isize columns, float *y, isize apart) {
    for (isize from = 0; from < columns; from += 16) {
        isize r = 0;
        for (; r + AVX2_ROWS <= rows; r += AVX2_ROWS)
            float_tile_256(x + r * stride, stride, depth, w + from, columns, y + r * apart + from, apart, AVX2_ROWS);
        for (; r + 2 <= rows; r += 2)
            float_tile_256(x + r * stride, stride, depth, w + from, columns, y + r * apart + from, apart, 2);
        if (r < rows) float_tile_256(x + r * stride, stride, depth, w + from, columns, y + r * apart + from, apart, 1);
    }
}

float_product_kernel float_product_of_isa(void) {
    const enum isa isa = current_isa();
    return has_avx512_vnni() ? float_product_512 : isa == PLAIN ? float_product_plain : float_product_256;
}
#else
float_product_kernel float_product_of_isa(void) { return float_product_plain; }
#endif
