/* What both convolution kernels share. vpdpbusd adds four products to each of 16 int32 accumulators exactly; then
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

/* Returns the same address and hides from the compiler what was read there: loops need the registers for accumulators. */
VNNI_INLINE const void *opaque_pointer(const void *p) {
    __asm__ volatile("" : "+r"(p));
    return p;
}

VNNI_INLINE epilogue conv_epilogue(const conv_args *a) { return make_epilogue(a->out_zero, a->low, a->high); }

VNNI_INLINE __m512i scale_accumulator(__m512i accumulator, const float *multiplier) {
    const __m512 scale = _mm512_loadu_ps(opaque_pointer(multiplier));
    return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_cvtepi32_ps(accumulator), scale));
}

/* Four vectors of accumulators as 64 bytes, which stand lane by lane as to_bytes leaves them. */
VNNI_INLINE __m512i requantize(const __m512i *accumulator, const float *const *multiplier, const epilogue *e) {
    const __m512i v[4] = {
        scale_accumulator(accumulator[0], multiplier[0]), scale_accumulator(accumulator[1], multiplier[1]),
        scale_accumulator(accumulator[2], multiplier[2]), scale_accumulator(accumulator[3], multiplier[3])};
    return to_bytes(v, e);
}


#endif
