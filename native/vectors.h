/* Vectors of AVX512 that become bytes. */

#ifndef INTACT8_VECTORS_H
#define INTACT8_VECTORS_H

#include "native.h"

#include <immintrin.h>

#define WIDTH 64 /* bytes of a vector */
#define PACKING static inline __attribute__((always_inline, target("avx512f,avx512bw,avx512vl")))

typedef struct {
    __m512i zero, low, high;
} ending;

/* 64 bytes of four vectors of integers: those of one 128-bit lane side by side. TURNED makes them those of one vector. */
PACKING __m512i packed(const __m512i *v, const ending *e) {
    const __m512i a = _mm512_adds_epi16(_mm512_packs_epi32(v[0], v[1]), e->zero);
    const __m512i b = _mm512_adds_epi16(_mm512_packs_epi32(v[2], v[3]), e->zero);
    return _mm512_min_epu8(_mm512_max_epu8(_mm512_packus_epi16(a, b), e->low), e->high);
}

#define TURNED _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)

PACKING __mmask64 first(Py_ssize_t bytes) {
    return bytes < WIDTH ? ((__mmask64)1 << bytes) - 1 : ~(__mmask64)0;
}

#endif
