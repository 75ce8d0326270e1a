/* Products of bytes with a gate, see native.h, on CPUs with AVX512: 64 at a time. */

#include "native.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "vectors.h"

#define FEATURES "avx512f,avx512bw,avx512vl,fma"
#define TARGET __attribute__((target(FEATURES)))
#define INSIDE static inline __attribute__((always_inline, target(FEATURES)))

/* (x - zero_x) (w - zero_w) as x f - zero_x f: integers below 2^17, so that the one rounding of fma is none. */
INSIDE __m512i steps(__m128i x, const float *factor, const float *offset, __m512 ratio) {
    const __m512 v = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(x));
    const __m512 product = _mm512_fmadd_ps(v, _mm512_loadu_ps(factor), _mm512_loadu_ps(offset));
    return _mm512_cvtps_epi32(_mm512_mul_ps(product, ratio));
}

TARGET static void multiply_vectors(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const multiply_args *a = (const multiply_args *)given;
    const Py_ssize_t width = a->width, copies = a->repeat > 1 && width < BLOCK ? BLOCK / width : 1;
    const ending end = {_mm512_set1_epi16((short)a->zero), _mm512_set1_epi8((char)((int)a->low + a->zero)),
                        _mm512_set1_epi8((char)((int)a->high + a->zero))};
    const __m512 ratio = _mm512_set1_ps(a->ratio);
    float factor[BLOCK], offset[BLOCK]; /* of a piece of a row of w; a narrow row side by side, for as many rows of x */
    memset(factor, 0, sizeof factor), memset(offset, 0, sizeof offset);
    for (Py_ssize_t r = lo; r < hi;) {
        const Py_ssize_t group = r / a->repeat, next = (group + 1) * a->repeat, last = next < hi ? next : hi;
        for (Py_ssize_t from = 0; from < width; from += BLOCK) {
            const Py_ssize_t piece = width - from < BLOCK ? width - from : BLOCK;
            const uint8_t *w = a->w + group * width + from;
            for (Py_ssize_t k = 0; k < copies; k++)
                for (Py_ssize_t i = 0; i < piece; i++) {
                    factor[k * piece + i] = (float)(w[i] - a->zero_w);
                    offset[k * piece + i] = (float)(-a->zero_x * (w[i] - a->zero_w));
                }
            for (Py_ssize_t at = r; at < last; at += copies) {
                const Py_ssize_t count = (last - at < copies ? last - at : copies) * piece;
                const uint8_t *x = a->x + at * width + from;
                uint8_t *y = a->y + at * width + from;
                for (Py_ssize_t i = 0; i < count; i += 64) {
                    const __mmask64 some = first(count - i);
                    const __m512i bytes = _mm512_maskz_loadu_epi8(some, x + i);
                    const float *f = factor + i, *o = offset + i;
                    const __m512i v[4] = {steps(_mm512_castsi512_si128(bytes), f, o, ratio),
                                          steps(_mm512_extracti32x4_epi32(bytes, 1), f + 16, o + 16, ratio),
                                          steps(_mm512_extracti32x4_epi32(bytes, 2), f + 32, o + 32, ratio),
                                          steps(_mm512_extracti32x4_epi32(bytes, 3), f + 48, o + 48, ratio)};
                    _mm512_mask_storeu_epi8(y + i, some, _mm512_permutexvar_epi32(TURNED, packed(v, &end)));
                }
            }
        }
        r = last;
    }
}

body prepare_multiply(const multiply_args *a) {
    /* Far beyond what a program has, steps would not fit int32. */
    const int fits = a->ratio < 32768.0f && a->ratio > -32768.0f;
    return !plain && fits && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") ? multiply_vectors
                                                                                           : multiply_run;
}
#else
body prepare_multiply(const multiply_args *a) { return (void)a, multiply_run; }
#endif
