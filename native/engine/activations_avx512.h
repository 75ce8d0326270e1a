/* silu(x) = x / (1 + e^-x) and hardswish(x) = x clamp(x + 3, 0, 6) / 6 of 16 floats: the bits that the formulas of step_chain.c
   give; and approximations whose error is below 2^-21 of them. */

#ifndef INTACT8_ACTIVATIONS_AVX512_H
#define INTACT8_ACTIVATIONS_AVX512_H

#include "avx512.h"

HIDDEN void silu_in_full(const float *x, float *y); /* 16 of them, by the formula of all instruction sets */

#define SILU_LEAST 1e-36f /* smaller numbers, and those below -SILU_MOST, may have results that are not normal */
#define SILU_MOST 80.0f
#define SILU_MARGIN 8192 /* units in the last place of a double: more than both formulas differ by, which is 2^-41 */

AVX512_INLINE __m512d lower_doubles(__m512 x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x)); }

AVX512_INLINE __m512d upper_doubles(__m512 x) {
    return _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1)));
}

/* Two times eight doubles as floats. */
AVX512_INLINE __m512 joined(__m512d low, __m512d high) {
    const __m256d first = _mm256_castps_pd(_mm512_cvtpd_ps(low)), second = _mm256_castps_pd(_mm512_cvtpd_ps(high));
    return _mm512_castpd_ps(_mm512_insertf64x4(_mm512_castpd256_pd512(first), second, 1));
}

/* Eight of them as doubles. e^-|x| = 2^(k/16) e^r with |r| <= ln(2)/32 and the Taylor polynomial of degree 5. */
AVX512_INLINE __m512d silu_eight(__m512d x) {
    static const double powers[16] = {
        1.0, 0x1.0b5586cf9890fp+0, 0x1.172b83c7d517bp+0, 0x1.2387a6e756238p+0,
        0x1.306fe0a31b715p+0, 0x1.3dea64c123422p+0, 0x1.4bfdad5362a27p+0, 0x1.5ab07dd485429p+0,
        0x1.6a09e667f3bcdp+0, 0x1.7a11473eb0187p+0, 0x1.8ace5422aa0dbp+0, 0x1.9c49182a3f090p+0,
        0x1.ae89f995ad3adp+0, 0x1.c199bdd85529cp+0, 0x1.d5818dcfba487p+0, 0x1.ea4afa2a490dap+0};
    const __m512d magic = _mm512_set1_pd(ROUND_MAGIC_64), one = _mm512_set1_pd(1.0);
    const __m512d a = _mm512_max_pd(_mm512_sub_pd(_mm512_setzero_pd(), _mm512_abs_pd(x)), _mm512_set1_pd(-700.0));
    const __m512d shifted = _mm512_fmadd_pd(a, _mm512_set1_pd(16 * 1.4426950408889634), magic);
    const __m512d r = _mm512_fnmadd_pd(_mm512_sub_pd(shifted, magic), _mm512_set1_pd(0.6931471805599453 / 16), a);
    __m512d sum = _mm512_fmadd_pd(r, _mm512_set1_pd(1.0 / 120), _mm512_set1_pd(1.0 / 24));
    sum = _mm512_fmadd_pd(sum, r, _mm512_set1_pd(1.0 / 6)), sum = _mm512_fmadd_pd(sum, r, _mm512_set1_pd(0.5));
    sum = _mm512_fmadd_pd(sum, r, one), sum = _mm512_fmadd_pd(sum, r, one);
    const __m512i k = _mm512_castpd_si512(shifted); /* in its lowest bits */
    const __m512d part = _mm512_permutex2var_pd(_mm512_loadu_pd(powers), k, _mm512_loadu_pd(powers + 8));
    const __m512i whole = _mm512_and_si512(_mm512_slli_epi64(k, 48), _mm512_set1_epi64(-(1LL << 52)));
    const __m512d e = _mm512_mul_pd(sum, _mm512_castsi512_pd(_mm512_add_epi64(_mm512_castpd_si512(part), whole)));
    const __m512d numerator = _mm512_mask_mov_pd(e, _mm512_cmp_pd_mask(x, _mm512_setzero_pd(), _CMP_GE_OQ), one);
    return _mm512_div_pd(_mm512_mul_pd(x, numerator), _mm512_add_pd(one, e));
}

/* Those whose nearest float the margin leaves open. */
AVX512_INLINE __mmask8 is_open(__m512d v) {
    const __m512i rest = _mm512_and_si512(_mm512_castpd_si512(v), _mm512_set1_epi64((1LL << 29) - 1));
    const __m512i away = _mm512_abs_epi64(_mm512_sub_epi64(rest, _mm512_set1_epi64(1LL << 28)));
    return _mm512_cmple_epi64_mask(away, _mm512_set1_epi64(SILU_MARGIN));
}

AVX512_INLINE __m512 silu_sixteen(__m512 x) {
    const __m512d low = silu_eight(lower_doubles(x)), high = silu_eight(upper_doubles(x));
    const __m512i size = _mm512_sub_epi32(_mm512_castps_si512(_mm512_abs_ps(x)), _mm512_set1_epi32(1));
    const __mmask16 unusual = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-SILU_MOST), _CMP_NGE_UQ) |
                              _mm512_cmplt_epu32_mask(size, _mm512_set1_epi32(float_bits(SILU_LEAST)));
    if (unusual | is_open(low) | is_open(high)) {
        float given[16], y[16];
        _mm512_storeu_ps(given, x);
        silu_in_full(given, y);
        return _mm512_loadu_ps(y);
    }
    return joined(low, high);
}

/* The same formula in float32. */
AVX512_INLINE __m512 near_silu(__m512 x) {
    static const float powers[16] = {
        1.0f, 1.04427373f, 1.09050775f, 1.13878858f, 1.18920708f, 1.24185777f, 1.29683959f, 1.35425556f,
        1.41421354f, 1.47682619f, 1.54221082f, 1.61049032f, 1.68179286f, 1.75625217f, 1.8340081f, 1.91520655f};
    const __m512 magic = _mm512_set1_ps(ROUND_MAGIC), one = _mm512_set1_ps(1.0f);
    const __m512 a = _mm512_max_ps(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_abs_ps(x)), _mm512_set1_ps(-80.0f));
    const __m512 shifted = _mm512_fmadd_ps(a, _mm512_set1_ps(16 * 1.44269504f), magic), k = _mm512_sub_ps(shifted, magic);
    /* ln(2)/16 in two parts, the first of which has few bits */
    const __m512 r = _mm512_fnmadd_ps(
        k, _mm512_set1_ps(-1.32621526e-05f),
        _mm512_fnmadd_ps(k, _mm512_set1_ps(0.0433349609f), a));
    __m512 sum = _mm512_fmadd_ps(r, _mm512_set1_ps(1.0f / 6), _mm512_set1_ps(0.5f));
    sum = _mm512_fmadd_ps(sum, r, one), sum = _mm512_fmadd_ps(sum, r, one);
    const __m512i bits = _mm512_castps_si512(shifted);
    const __m512 part = _mm512_permutexvar_ps(bits, _mm512_loadu_ps(powers));
    const __m512i whole = _mm512_and_si512(_mm512_slli_epi32(bits, 19), _mm512_set1_epi32(-(1 << 23)));
    const __m512 e = _mm512_mul_ps(sum, _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(part), whole)));
    const __m512 numerator = _mm512_mask_mov_ps(e, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GE_OQ), one);
    return _mm512_div_ps(_mm512_mul_ps(x, numerator), _mm512_add_ps(one, e));
}

AVX512_INLINE __m512d hardswish_eight(__m512d x) {
    const __m512d t = _mm512_max_pd(_mm512_setzero_pd(), _mm512_add_pd(x, _mm512_set1_pd(3.0))), six = _mm512_set1_pd(6.0);
    return _mm512_div_pd(_mm512_mul_pd(x, _mm512_min_pd(six, t)), six);
}

AVX512_INLINE __m512 near_hardswish(__m512 x) {
    const __m512 t = _mm512_max_ps(_mm512_setzero_ps(), _mm512_add_ps(x, _mm512_set1_ps(3.0f)));
    return _mm512_mul_ps(_mm512_mul_ps(x, _mm512_min_ps(_mm512_set1_ps(6.0f), t)), _mm512_set1_ps(1.0f / 6));
}

AVX512_INLINE __m512 hardswish_sixteen(__m512 x) {
    return joined(hardswish_eight(lower_doubles(x)), hardswish_eight(upper_doubles(x)));
}

#endif
