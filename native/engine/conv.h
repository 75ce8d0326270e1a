/* What the kernels for AVX-512 VNNI share. vpdpbusd adds four products to each of 16 int32 accumulators exactly; then
   float32(accumulator) * multiplier is rounded half to even, and the epilogue follows. */

#ifndef INTACT8_CONV_H
#define INTACT8_CONV_H

#include "avx512.h"
#include "conv_args.h"

#define VNNI_FEATURES AVX512_FEATURES ",avx512vnni,prfchw"
#define VNNI_TARGET __attribute__((target(VNNI_FEATURES)))
#define VNNI_INLINE static inline __attribute__((always_inline, target(VNNI_FEATURES)))

/* vpdpbusd as inline assembly: around its intrinsic, GCC copies accumulators between registers in every loop. */
VNNI_INLINE __m512i dot_product(__m512i accumulator, __m512i x, __m512i weight) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(accumulator) : "v"(x), "v"(weight));
    return accumulator;
}

/* The same with the weight in memory. */
VNNI_INLINE __m512i dot_product_memory(__m512i accumulator, __m512i x, const __m512i *weight) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(accumulator) : "v"(x), "m"(*weight));
    return accumulator;
}

/* Returns the same address and hides from the compiler what was read there: loops need the registers for accumulators. */
VNNI_INLINE const void *opaque_pointer(const void *p) {
    __asm__ volatile("" : "+r"(p));
    return p;
}

VNNI_INLINE int32_t load_int(const uint8_t *x) {
    int32_t v;
    memcpy(&v, x, 4);
    return v;
}

/* The weights of one word of `blocks` vectors of 16 channels; those of 4 bits times 16, which takes no shift back of signs. */
VNNI_INLINE void load_weights(const int8_t *weight, const int blocks, const int nibbles, __m512i *w) {
    const __m512i high = _mm512_set1_epi8((char)0xf0);
    for (int b = 0; !nibbles && b < blocks; b++) w[b] = _mm512_loadu_si512(weight + VECTOR_BYTES * b);
    for (int b = 0; nibbles && b < blocks; b += 2) {
        const __m512i both = _mm512_loadu_si512(weight + VECTOR_BYTES / 2 * b);
        w[b] = _mm512_and_si512(_mm512_slli_epi16(both, 4), high), w[b + 1] = _mm512_and_si512(both, high);
    }
}

VNNI_INLINE long long load_long(const uint8_t *x) {
    long long v;
    memcpy(&v, x, 8);
    return v;
}

VNNI_INLINE epilogue conv_epilogue(const conv_args *a) { return make_epilogue(a->out_zero, a->low, a->high); }

VNNI_INLINE __m512 load_floats(const float *x) { return _mm512_loadu_ps(opaque_pointer(x)); }

/* Bytes 16 q to 16 q + 15 as int32. */
VNNI_INLINE __m512i bytes_of(__m512i x, int q) {
    switch (q) {
        case 0: return _mm512_cvtepu8_epi32(_mm512_castsi512_si128(x));
        case 1: return _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(x, 1));
        case 2: return _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(x, 2));
        default: return _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(x, 3));
    }
}

/* Four vectors of accumulators as 64 bytes, which stand lane by lane as to_bytes leaves them. The product and the rounding
   to an integer are one operation, since results before the clamp are small: see conv_args.general. */
VNNI_INLINE __m512i requantize(const __m512i *accumulator, const float *const *multiplier, const epilogue *e) {
    __m512 v[4];
    for (int q = 0; q < 4; q++)
        v[q] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(accumulator[q]), load_floats(multiplier[q]), e->magic);
    return small_to_bytes(v, e);
}

/* The same for results up to LARGE_RESULT. */
VNNI_INLINE __m512i requantize_large(const __m512i *accumulator, const float *const *multiplier, const epilogue *e) {
    const __m512i magic = _mm512_set1_epi32(float_bits(ROUND_MAGIC));
    __m512i v[4];
    for (int q = 0; q < 4; q++) {
        const __m512 sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(accumulator[q]), load_floats(multiplier[q]), e->magic);
        v[q] = _mm512_sub_epi32(_mm512_castps_si512(sum), magic);
    }
    return clamp_words(_mm512_packs_epi32(v[0], v[1]), _mm512_packs_epi32(v[2], v[3]), e);
}

/* The same for results of any size. `negative` holds the multipliers of negative accumulators, if that is another one than
   `multiplier`; `residual` 64 bytes vector by vector, which are added before the rounding where that is asked for. */
VNNI_INLINE __m512i requantize_general(const __m512i *accumulator, const float *const *multiplier,
                                       const float *const *negative, __m512i residual, const conv_args *a, const epilogue *e) {
    __m512i v[4];
    for (int q = 0; q < 4; q++) {
        const __mmask16 below = _mm512_cmplt_epi32_mask(accumulator[q], _mm512_setzero_si512());
        const __m512 scale = _mm512_mask_loadu_ps(load_floats(multiplier[q]), below, negative[q]);
        __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(accumulator[q]), scale);
        if (a->residual_joint) {
            const __m512i steps = _mm512_sub_epi32(bytes_of(residual, q), _mm512_set1_epi32(a->residual_zero));
            product = _mm512_add_ps(product, _mm512_mul_ps(_mm512_cvtepi32_ps(steps), _mm512_set1_ps(a->residual_ratio)));
        }
        v[q] = _mm512_cvtps_epi32(product);
    }
    return to_bytes(v, e);
}

#endif
