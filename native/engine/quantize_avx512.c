/* Quantization without a division for nearly every number: the product with 1/divisor is rounded to the same integer as the
   quotient, unless it lies next to the middle of two integers. */

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "avx512.h"
#include "quantize.h"

/* Below 512, quotient and product, both rounded, differ by less than 3 units of 2^-15. */
#define NEAR_MIDDLE (0.5f - 1.0f / 4096)
#define LARGEST_DIVISOR 1e30f /* and the smallest one is its reciprocal */

AVX512_INLINE __m512 clamped(__m512 x, __m512 low, __m512 high) { return _mm512_min_ps(_mm512_max_ps(x, low), high); }

AVX512_INLINE __m512 rounded(__m512 x) {
    return _mm512_sub_ps(_mm512_add_ps(x, _mm512_set1_ps(ROUND_MAGIC)), _mm512_set1_ps(ROUND_MAGIC));
}

AVX512_TARGET isize quantize_vectors(const float *x, uint8_t *y, isize count, const quantize_args *a) {
    if (!(a->divisor > 1 / LARGEST_DIVISOR && a->divisor < LARGEST_DIVISOR)) return 0;
    const __m512 low = _mm512_set1_ps(a->low), high = _mm512_set1_ps(a->high), divisor = _mm512_set1_ps(a->divisor);
    const __m512 inverse = _mm512_set1_ps(1 / a->divisor), middle = _mm512_set1_ps(NEAR_MIDDLE);
    const epilogue e = make_epilogue(a->zero, 0, 255);
    isize i = 0;
    for (; i + VECTOR_BYTES <= count; i += VECTOR_BYTES) {
        __m512 v[4];
        for (int q = 0; q < 4; q++) {
            const __m512 given = _mm512_loadu_ps(x + i + 16 * q);
            const __m512 product = clamped(_mm512_mul_ps(given, inverse), low, high);
            __m512 nearest = rounded(product);
            if (_mm512_cmp_ps_mask(_mm512_abs_ps(_mm512_sub_ps(product, nearest)), middle, _CMP_GT_OQ))
                nearest = rounded(clamped(_mm512_div_ps(given, divisor), low, high));
            v[q] = _mm512_add_ps(nearest, e.magic);
        }
        _mm512_storeu_si512(y + i, from_lane_order(small_to_bytes(v, &e)));
    }
    return i;
}
#endif
