/* silu(x) = x / (1 + e^-x), hardswish(x) = x clamp(x + 3, 0, 6) / 6 and gelu(x) = x Φ(x) of 16 floats: the bits that the formulas
   of step_chain.c give; and approximations for numbers from -SILU_MOST on, whose error is below 2^-21 of silu and hardswish, and
   as functions.h says of gelu. */

#ifndef INTACT8_ACTIVATIONS_AVX512_H
#define INTACT8_ACTIVATIONS_AVX512_H

#include "avx512.h"

HIDDEN void silu_in_full(const float *x, float *y); /* 16 of them, by the formula of all instruction sets */
HIDDEN void gelu_in_full(const float *x, float *y);
HIDDEN void gelu_tanh_in_full(const float *x, float *y);

#define SILU_LEAST 1e-36f /* smaller numbers, and those below -SILU_MOST, may have results that are not normal */
#define SILU_MOST 80.0f
#define SILU_MARGIN 8192 /* units in the last place of a double: more than both formulas differ by, which is 2^-41 */

AVX512_INLINE __m512 sixteen_in_full(__m512 x, void (*function)(const float *, float *)) {
    float given[16], y[16];
    _mm512_storeu_ps(given, x);
    function(given, y);
    return _mm512_loadu_ps(y);
}

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
    return unusual | is_open(low) | is_open(high) ? sixteen_in_full(x, silu_in_full) : joined(low, high);
}

/* x / (1 + e^-g) by the same formula in float32; g has the sign of x. */
AVX512_INLINE __m512 near_gated(__m512 x, __m512 g) {
    static const float powers[16] = {
        1.0f, 1.04427373f, 1.09050775f, 1.13878858f, 1.18920708f, 1.24185777f, 1.29683959f, 1.35425556f,
        1.41421354f, 1.47682619f, 1.54221082f, 1.61049032f, 1.68179286f, 1.75625217f, 1.8340081f, 1.91520655f};
    const __m512 magic = _mm512_set1_ps(ROUND_MAGIC), one = _mm512_set1_ps(1.0f);
    const __m512 a = _mm512_max_ps(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_abs_ps(g)), _mm512_set1_ps(-80.0f));
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

#define GELU_PARTS 16 /* of the numbers from 0 to GELU_REACHED, each with a polynomial of its own */
#define GELU_REACHED 5.6f

/* gelu(x) = max(x, 0) - |x| (1 - Φ(|x|)), whose last part is a polynomial of degree 4 in the place within one of 16 parts;
   its error is below 3e-7. NaN for NaN. */
AVX512_INLINE __m512 near_gelu_sixteen(__m512 x) {
    static const float coefficients[5][GELU_PARTS] = {
        {0.00092401437f, 0.000464811455f, -0.000128387474f, -0.000496259541f, -0.000517558947f, -0.00032087916f, -0.000103321043f,
         2.46232139e-05f, 6.02711152e-05f, 4.83295807e-05f, 2.68500153e-05f, 1.16846777e-05f, 4.17010233e-06f, 1.24870326e-06f,
         3.17936298e-07f, 6.94247788e-08f},
        {8.56160696e-05f, 0.00388951157f, 0.00572563196f, 0.00510235922f, 0.00301637012f, 0.000909857627f, -0.000355285883f,
         -0.000734445988f, -0.000612769974f, -0.000363813684f, -0.000171188134f, -6.65324624e-05f, -2.18060322e-05f,
         -6.10053212e-06f, -1.46822538e-06f, -3.05619523e-07f},
        {-0.0489047132f, -0.0432423614f, -0.0289650057f, -0.0126717594f, -0.000350961549f, 0.00565133663f, 0.00652211206f,
         0.00487638544f, 0.00283261738f, 0.00135273521f, 0.000544757699f, 0.000187556099f, 5.5670549e-05f, 1.43243115e-05f,
         3.20730214e-06f, 6.26665496e-07f},
        {0.175004557f, 0.0811537877f, 0.00819562469f, -0.0330768786f, -0.0451037437f, -0.0388287418f, -0.0260790437f,
         -0.0145121431f, -0.00686297659f, -0.00279454258f, -0.000987229403f, -0.000304024434f, -8.18786648e-05f,
         -1.93276737e-05f, -4.00539193e-06f, -7.29626151e-07f},
        {-9.48310017e-08f, 0.127109036f, 0.169374347f, 0.154201925f, 0.113059364f, 0.0701036155f, 0.0375153571f, 0.0174999181f,
         0.00715436693f, 0.00257150154f, 0.000814194093f, 0.000227372409f, 5.60502485e-05f, 1.22037873e-05f, 2.34780873e-06f,
         3.99214485e-07f}};
    const __m512 place = _mm512_mul_ps(_mm512_min_ps(_mm512_abs_ps(x), _mm512_set1_ps(GELU_REACHED)), _mm512_set1_ps(GELU_PARTS / GELU_REACHED));
    const __m512i part = _mm512_min_epi32(_mm512_cvttps_epi32(place), _mm512_set1_epi32(GELU_PARTS - 1));
    const __m512 u = _mm512_sub_ps(place, _mm512_cvtepi32_ps(part));
    __m512 sum = _mm512_permutexvar_ps(part, _mm512_loadu_ps(coefficients[0]));
    for (int i = 1; i < 5; i++) sum = _mm512_fmadd_ps(sum, u, _mm512_permutexvar_ps(part, _mm512_loadu_ps(coefficients[i])));
    return _mm512_sub_ps(_mm512_max_ps(_mm512_setzero_ps(), x), sum);
}

AVX512_INLINE __m512 near_silu(__m512 x) { return near_gated(x, x); }

/* x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2, which is gated by twice what tanh is of. */
AVX512_INLINE __m512 near_gelu_tanh(__m512 x) {
    const __m512 cubic = _mm512_fmadd_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(0.0713548163f), _mm512_set1_ps(1.59576912f));
    return near_gated(x, _mm512_mul_ps(x, cubic));
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
