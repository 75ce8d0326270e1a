/* AVX-512: vectors of int32 results become uint8. */

#ifndef INTACT8_AVX512_H
#define INTACT8_AVX512_H

#include "core.h"

#include <immintrin.h>

#define VECTOR_BYTES 64
#define AVX512_FEATURES "avx512f,avx512bw,avx512vl"
#define AVX512_TARGET __attribute__((target(AVX512_FEATURES)))
#define AVX512_INLINE static inline __attribute__((always_inline, target(AVX512_FEATURES)))

/* The end of every uint8 result: plus zero, then the clamp. */
typedef struct {
    __m512i zero, low, high;
    __m512 magic;  /* ROUND_MAGIC + zero: a small float plus it holds the rounded integer plus zero in its low 16 bits */
    __m512i words; /* picks the low 16 bits of two vectors, in the order of _mm512_packs_epi32 */
} epilogue;

AVX512_INLINE epilogue make_epilogue(int zero, int low, int high) {
    const __m512i lanes = _mm512_setr_epi32(0x20000, 0x60004, 0x220020, 0x260024, 0xa0008, 0xe000c, 0x2a0028, 0x2e002c,
                                            0x120010, 0x160014, 0x320030, 0x360034, 0x1a0018, 0x1e001c, 0x3a0038, 0x3e003c);
    const epilogue e = {_mm512_set1_epi16((short)zero), _mm512_set1_epi8((char)low), _mm512_set1_epi8((char)high),
                        _mm512_set1_ps(ROUND_MAGIC + (float)zero), lanes};
    return e;
}

AVX512_INLINE __m512i clamp_words(__m512i a, __m512i b, const epilogue *e) {
    return _mm512_min_epu8(_mm512_max_epu8(_mm512_packus_epi16(a, b), e->low), e->high);
}

/* Four vectors of int32 as 64 bytes, which stand lane by lane: in each 128-bit lane four of each vector. */
AVX512_INLINE __m512i to_bytes(const __m512i *v, const epilogue *e) {
    return clamp_words(_mm512_adds_epi16(_mm512_packs_epi32(v[0], v[1]), e->zero),
                       _mm512_adds_epi16(_mm512_packs_epi32(v[2], v[3]), e->zero), e);
}

/* The same for vectors of floats to which e->magic was added, where the results before the clamp fit int16. */
AVX512_INLINE __m512i small_to_bytes(const __m512 *v, const epilogue *e) {
    return clamp_words(_mm512_permutex2var_epi16(_mm512_castps_si512(v[0]), e->words, _mm512_castps_si512(v[1])),
                       _mm512_permutex2var_epi16(_mm512_castps_si512(v[2]), e->words, _mm512_castps_si512(v[3])), e);
}

/* The same 64 bytes vector by vector. */
AVX512_INLINE __m512i from_lane_order(__m512i bytes) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(order, bytes);
}

/* A mask of the first bytes of a vector. */
AVX512_INLINE __mmask64 byte_mask(isize bytes) {
    return bytes < VECTOR_BYTES ? ((__mmask64)1 << bytes) - 1 : ~(__mmask64)0;
}

#endif
