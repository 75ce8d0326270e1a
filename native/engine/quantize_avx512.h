/* Quantization without a division for nearly every number: the product with 1/divisor is rounded to the same integer as the
   quotient, unless it lies next to the middle of two integers. */

#ifndef INTACT8_QUANTIZE_AVX512_H
#define INTACT8_QUANTIZE_AVX512_H

#include "avx512.h"
#include "quantize.h"

/* Below 512, quotient and product, both rounded, differ by less than 3 units of 2^-15. */
#define NEAR_MIDDLE (0.5f - 1.0f / 4096)
#define LARGEST_DIVISOR 1e30f /* and the smallest one is its reciprocal */

INLINE int has_usual_divisor(const quantize_args *a) { return a->divisor > 1 / LARGEST_DIVISOR && a->divisor < LARGEST_DIVISOR; }

typedef struct {
    __m512 low, high, divisor, inverse;
} quantize_vector;

AVX512_INLINE quantize_vector make_quantize_vector(const quantize_args *a) {
    return (quantize_vector){_mm512_set1_ps(a->low), _mm512_set1_ps(a->high), _mm512_set1_ps(a->divisor),
                             _mm512_set1_ps(1 / a->divisor)};
}

AVX512_INLINE __m512 rounded(__m512 x) {
    return _mm512_sub_ps(_mm512_add_ps(x, _mm512_set1_ps(ROUND_MAGIC)), _mm512_set1_ps(ROUND_MAGIC));
}

AVX512_INLINE __m512 clamped(__m512 x, const quantize_vector *v) { return _mm512_min_ps(_mm512_max_ps(x, v->low), v->high); }

/* Finds clamp(R(x / divisor)), relative to the zero point; the low limit for NaN. Returns whether a product lies further than
   `middle` from its integer. */
AVX512_INLINE int find_steps(__m512 x, const quantize_vector *v, __m512 middle, __m512 *steps) {
    const __m512 product = clamped(_mm512_mul_ps(x, v->inverse), v);
    *steps = rounded(product);
    return _mm512_cmp_ps_mask(_mm512_abs_ps(_mm512_sub_ps(product, *steps)), middle, _CMP_GT_OQ) != 0;
}

AVX512_INLINE __m512 nearest_steps(__m512 x, const quantize_vector *v) {
    __m512 steps;
    return find_steps(x, v, _mm512_set1_ps(NEAR_MIDDLE), &steps) ? rounded(clamped(_mm512_div_ps(x, v->divisor), v)) : steps;
}

#endif
