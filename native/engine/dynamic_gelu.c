/* Rows of gelu(x) as bytes. An approximation decides nearly every byte; gelu(x) itself, in float64 and rounded once, is
   computed where the approximation lies next to the middle of two integers, or could be the largest of its row. */

#include "dynamic.h"
#include "functions.h"

#define LEAST_SCALE 2e-4f /* smaller scales leave the approximation too little room */

/* x / 2 (1 + z P(z²) / Q(z²)): the quotient is close to erf(z), z = x / √2, up to |x| = 5.6. */
INLINE float near_gelu(float x) {
    const float above = x > -5.6f ? x : -5.6f, z = (above < 5.6f ? above : 5.6f) * 0.70710678f, u = z * z;
    float p = -2.72614225801306e-10f * u + 2.77068142495902e-08f;
    p = p * u - 2.10102402082508e-06f, p = p * u - 5.69250639462346e-05f, p = p * u - 7.34990630326855e-04f;
    p = p * u - 2.95459980854025e-03f, p = p * u - 1.60960333262415e-02f;
    float q = -1.45660718464996e-05f * u - 2.13374055278905e-04f;
    q = q * u - 1.68282697438203e-03f, q = q * u - 7.37332916720468e-03f, q = q * u - 1.42647390514189e-02f;
    return above * (0.5f + 0.5f * (z * p / q));
}

MULTIVERSION static void exact_row(const float *restrict x, float *restrict g, isize count) {
    for (isize i = 0; i < count; i++) g[i] = (float)gelu_wide((double)x[i]);
}

static float exact_gelu(float x) {
    float y;
    exact_row(&x, &y, 1);
    return y;
}

/* Approximations g of a block. Returns the bits of the largest |g|; those of NaN or infinity where x holds one. */
MULTIVERSION static int32_t near_block(const float *restrict x, float *restrict g, isize count) {
    int32_t given = 0, most = 0;
    for (isize i = 0; i < count; i++) {
        g[i] = near_gelu(x[i]);
        const int32_t a = float_bits(x[i]) & INT32_MAX, b = float_bits(g[i]) & INT32_MAX;
        given = a > given ? a : given;
        most = b > most ? b : most;
    }
    return given < 0x7f800000 ? most : given;
}

/* Bytes of approximations. Returns whether some are further than `middle` from their integer. */
MULTIVERSION static int near_bytes(const float *restrict g, float inverse, float middle, uint8_t *restrict q, isize count) {
    int32_t unsure = 0;
    for (isize i = 0; i < count; i++) {
        const float v = g[i] * inverse, shifted = v + ROUND_MAGIC, off = v - (shifted - ROUND_MAGIC);
        q[i] = (uint8_t)(float_bits(shifted) + 128);
        unsure |= (off < 0 ? -off : off) > middle;
    }
    return unsure;
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "activations_avx512.h"

/* quantize_gelu; 0 where quantize_gelu must decide how. */
AVX512_TARGET static float quantize_gelu_avx512(const float *x, uint8_t *q, isize count, float *g) {
    const __m512 none = _mm512_setzero_ps();
    __m512i given = _mm512_setzero_si512();
    __m512 most = none;
    for (isize i = 0; i < count; i += 16) {
        const __mmask16 inside = (__mmask16)byte_mask(min_size(count - i, 16));
        const __m512 v = _mm512_maskz_loadu_ps(inside, x + i), y = near_gelu_sixteen(v);
        given = _mm512_max_epi32(given, _mm512_castps_si512(_mm512_abs_ps(v)));
        most = _mm512_max_ps(_mm512_abs_ps(y), most);
        _mm512_mask_storeu_ps(g + i, inside, y);
    }
    if (_mm512_reduce_max_epi32(given) >= 0x7f800000) return 0;
    const float near = _mm512_reduce_max_ps(most), least = near - (near * (4 * GELU_RELATIVE) + 3 * GELU_ABSOLUTE);
    float largest = 0;
    for (isize i = 0; i < count; i += 16) {
        const __mmask16 inside = (__mmask16)byte_mask(min_size(count - i, 16));
        const __m512 y = _mm512_abs_ps(_mm512_maskz_loadu_ps(inside, g + i));
        for (unsigned some = _mm512_mask_cmp_ps_mask(inside, y, _mm512_set1_ps(least), _CMP_GE_OQ); some; some &= some - 1) {
            const float v = bits_float(float_bits(exact_gelu(x[i + __builtin_ctz(some)])) & INT32_MAX);
            largest = v > largest ? v : largest;
        }
    }
    const float s = largest / REACH;
    if (!(s >= LEAST_SCALE)) return 0;
    const float inverse = 1 / s, middle = 0.5f - (REACH * (2 * GELU_RELATIVE) + 1.5f * GELU_ABSOLUTE * inverse);
    for (isize i = 0; i < count; i += 16) {
        const __mmask16 inside = (__mmask16)byte_mask(min_size(count - i, 16));
        const __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(inside, g + i), _mm512_set1_ps(inverse));
        const __m512i steps = _mm512_cvtps_epi32(v);
        const __m512 off = _mm512_abs_ps(_mm512_sub_ps(v, _mm512_cvtepi32_ps(steps)));
        _mm_mask_storeu_epi8(q + i, inside, _mm512_cvtepi32_epi8(_mm512_add_epi32(steps, _mm512_set1_epi32(128))));
        for (unsigned some = _mm512_mask_cmp_ps_mask(inside, off, _mm512_set1_ps(middle), _CMP_GT_OQ); some; some &= some - 1) {
            const isize at = i + __builtin_ctz(some);
            q[at] = (uint8_t)float_bits(exact_gelu(x[at]) / s + (ROUND_MAGIC + 128.0f));
        }
    }
    return s;
}
#endif

float quantize_gelu(const float *x, uint8_t *q, isize count, float *g) {
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    const float found = has_avx512_vnni() ? quantize_gelu_avx512(x, q, count, g) : 0;
    if (found > 0) return found;
#endif
    int32_t most = 0, *tops = (int32_t *)(void *)(g + count);
    for (isize from = 0; from < count; from += BLOCK) {
        const int32_t top = tops[from / BLOCK] = near_block(x + from, g + from, min_size(count - from, BLOCK));
        most = top > most ? top : most;
    }
    const float near = bits_float(most), least = near - (near * (4 * GELU_RELATIVE) + 3 * GELU_ABSOLUTE);
    float largest = 0;
    for (isize from = 0; most < 0x7f800000 && from < count; from += BLOCK)
        for (isize i = from; bits_float(tops[from / BLOCK]) >= least && i < min_size(from + BLOCK, count); i++) {
            if (g[i] < least && g[i] > -least) continue;
            const float v = bits_float(float_bits(exact_gelu(x[i])) & INT32_MAX);
            largest = v > largest ? v : largest;
        }
    const float s = largest / REACH;
    if (!(s >= LEAST_SCALE)) { /* also where x holds NaN or infinity */
        exact_row(x, g, count);
        const float scale = scale_of_row(g, count);
        quantize_row(g, scale, q, count);
        return scale;
    }
    const float inverse = 1 / s, middle = 0.5f - (REACH * (2 * GELU_RELATIVE) + 1.5f * GELU_ABSOLUTE * inverse);
    for (isize from = 0; from < count; from += BLOCK) {
        const isize end = min_size(from + BLOCK, count);
        if (near_bytes(g + from, inverse, middle, q + from, end - from))
            for (isize i = from; i < end; i++) {
                const float v = g[i] * inverse, off = v - ((v + ROUND_MAGIC) - ROUND_MAGIC);
                if (off > middle || off < -middle) q[i] = (uint8_t)float_bits(exact_gelu(x[i]) / s + (ROUND_MAGIC + 128.0f));
            }
    }
    return s;
}
