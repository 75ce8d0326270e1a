/* Exponentials of rows of scores, for the softmax of float32 in attention. */

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "avx512.h"
#include "softmax.h"

#define LANES 16
#define LEAST_NORMAL -87.33f /* the exponential of less is below the smallest normal number */

/* exp(x) for x <= 0, correct within two units in the last place; 0 below LEAST_NORMAL, NaN for NaN. */
AVX512_INLINE __m512 exp_of(__m512 x) {
    const __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(LEAST_NORMAL), _CMP_NLT_UQ);
    const __m512 magic = _mm512_set1_ps(ROUND_MAGIC);
    const __m512 n = _mm512_sub_ps(_mm512_fmadd_ps(x, _mm512_set1_ps(1.44269504f), magic), magic);
    const __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x));
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(1.9875691500e-4f), r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    p = _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
    return _mm512_maskz_scalef_ps(normal, p, n);
}

AVX512_TARGET float exponentials_avx512(const int32_t *sums, const int32_t *offsets, float scale, const float *mask, float *v,
                                        isize count, isize *used) {
    const isize wide = round_up(count, LANES);
    const __m512 factor = _mm512_set1_ps(scale), nothing = _mm512_set1_ps(-__builtin_inff());
    __m512 most = nothing, sum = _mm512_setzero_ps();
    for (isize i = 0; i < wide; i += LANES) {
        const __mmask16 inside = (__mmask16)byte_mask(min_size(count - i, LANES));
        __m512 x = _mm512_loadu_ps(v + i);
        if (sums) x = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_loadu_si512(sums + i), _mm512_loadu_si512(offsets + i)));
        x = _mm512_mul_ps(x, factor);
        if (mask) x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(inside, mask + i));
        x = _mm512_mask_mov_ps(nothing, inside, x);
        most = _mm512_max_ps(x, most); /* NaN may be lost here and comes again below */
        _mm512_storeu_ps(v + i, x);
    }
    const float largest = _mm512_reduce_max_ps(most);
    const __m512 from = _mm512_set1_ps(largest), least = _mm512_set1_ps(largest + LEAST_EXPONENT);
    isize end = wide;
    while (end > LANES && !_mm512_cmp_ps_mask(_mm512_loadu_ps(v + end - LANES), least, _CMP_NLT_UQ)) end -= LANES;
    for (isize i = 0; i < end; i += LANES) {
        const __m512 y = exp_of(_mm512_sub_ps(_mm512_loadu_ps(v + i), from));
        sum = _mm512_add_ps(sum, y);
        _mm512_storeu_ps(v + i, y);
    }
    memset(v + end, 0, (size_t)(wide - end) * sizeof *v);
    *used = min_size(end, count);
    return _mm512_reduce_add_ps(sum);
}
#endif
