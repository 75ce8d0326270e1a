/* What the convolutions share: vpdpbusd adds four products of 16 results exactly; everything else is the contract's,
   float32(sum) ratio, rounded half to even, plus zero, clamped. */

#ifndef INTACT8_CONVOLUTIONS_H
#define INTACT8_CONVOLUTIONS_H

#include "vectors.h"

#include <stdlib.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,prfchw")))
#define INSIDE static inline __attribute__((always_inline, target("avx512f,avx512bw,avx512vl,avx512vnni,prfchw")))

/* vpdpbusd as it is: of the intrinsic, GCC copies sums from register to register in every loop. */
INSIDE __m512i add_products(__m512i sum, __m512i x, __m512i weight) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(weight));
    return sum;
}

/* The same address, of which the compiler does not know what it read there: loops need their registers for sums. */
INSIDE const void *again(const void *p) {
    __asm__ volatile("" : "+r"(p));
    return p;
}

INSIDE ending end_of(const convolution_args *a) {
    const ending e = {_mm512_set1_epi16((short)a->zero), _mm512_set1_epi8((char)a->low), _mm512_set1_epi8((char)a->high)};
    return e;
}

INSIDE __m512i scaled(__m512i sum, const float *ratio) {
    return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_loadu_ps(again(ratio))));
}

/* `packed` of four vectors of sums. */
INSIDE __m512i finished(const __m512i *sum, const float *const *ratio, const ending *e) {
    const __m512i v[4] = {scaled(sum[0], ratio[0]), scaled(sum[1], ratio[1]), scaled(sum[2], ratio[2]),
                          scaled(sum[3], ratio[3])};
    return packed(v, e);
}

HIDDEN void depthwise_run(const void *args, Py_ssize_t lo, Py_ssize_t hi);
HIDDEN void dense_run(const void *args, Py_ssize_t lo, Py_ssize_t hi);

#endif
