/* Rows of gelu(x) as bytes. An approximation decides nearly every byte; gelu(x) itself, in float64 and rounded once, is
   computed where the approximation lies next to the middle of two integers, or could be the largest of its row. */

#include "dynamic.h"
#include "functions.h"

#define RELATIVE 0x1p-20f /* |approximation - gelu(x)| <= RELATIVE |gelu(x)| + ABSOLUTE for every float32 */
#define ABSOLUTE 1.3e-6f
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
#include "avx512.h"

#define PARTS 16  /* of the numbers from 0 to REACHED, each with a polynomial of its own */
#define REACHED 5.6f

/* gelu(x) = max(x, 0) - |x| (1 - Φ(|x|)), whose last part is a polynomial of degree 4 in the place within one of 16 parts;
   its error is below 3e-7. */
AVX512_INLINE __m512 near_gelu_avx512(__m512 x) {
    static const float coefficients[5][PARTS] = {
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
    const __m512 place = _mm512_mul_ps(_mm512_min_ps(_mm512_abs_ps(x), _mm512_set1_ps(REACHED)), _mm512_set1_ps(PARTS / REACHED));
    const __m512i part = _mm512_min_epi32(_mm512_cvttps_epi32(place), _mm512_set1_epi32(PARTS - 1));
    const __m512 u = _mm512_sub_ps(place, _mm512_cvtepi32_ps(part));
    __m512 sum = _mm512_permutexvar_ps(part, _mm512_loadu_ps(coefficients[0]));
    for (int i = 1; i < 5; i++) sum = _mm512_fmadd_ps(sum, u, _mm512_permutexvar_ps(part, _mm512_loadu_ps(coefficients[i])));
    return _mm512_sub_ps(_mm512_max_ps(x, _mm512_setzero_ps()), sum);
}

/* quantize_gelu; 0 where quantize_gelu must decide how. */
AVX512_TARGET static float quantize_gelu_avx512(const float *x, uint8_t *q, isize count, float *g) {
    const __m512 none = _mm512_setzero_ps();
    __m512i given = _mm512_setzero_si512();
    __m512 most = none;
    for (isize i = 0; i < count; i += 16) {
        const __mmask16 inside = (__mmask16)byte_mask(min_size(count - i, 16));
        const __m512 v = _mm512_maskz_loadu_ps(inside, x + i), y = near_gelu_avx512(v);
        given = _mm512_max_epi32(given, _mm512_castps_si512(_mm512_abs_ps(v)));
        most = _mm512_max_ps(_mm512_abs_ps(y), most);
        _mm512_mask_storeu_ps(g + i, inside, y);
    }
    if (_mm512_reduce_max_epi32(given) >= 0x7f800000) return 0;
    const float near = _mm512_reduce_max_ps(most), least = near - (near * (4 * RELATIVE) + 3 * ABSOLUTE);
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
    const float inverse = 1 / s, middle = 0.5f - (REACH * (2 * RELATIVE) + 1.5f * ABSOLUTE * inverse);
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
    const float found = current_isa() == AVX512_VNNI ? quantize_gelu_avx512(x, q, count, g) : 0;
    if (found > 0) return found;
#endif
    int32_t most = 0, *tops = (int32_t *)(void *)(g + count);
    for (isize from = 0; from < count; from += BLOCK) {
        const int32_t top = tops[from / BLOCK] = near_block(x + from, g + from, min_size(count - from, BLOCK));
        most = top > most ? top : most;
    }
    const float near = bits_float(most), least = near - (near * (4 * RELATIVE) + 3 * ABSOLUTE);
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
    const float inverse = 1 / s, middle = 0.5f - (REACH * (2 * RELATIVE) + 1.5f * ABSOLUTE * inverse);
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
