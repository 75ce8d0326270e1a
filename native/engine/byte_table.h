/* Tables of 256 bytes. */

#ifndef INTACT8_BYTE_TABLE_H
#define INTACT8_BYTE_TABLE_H

#include "plan.h"

/* y = table[x], for `count` bytes; x and y may be the same. */
HIDDEN void look_up_bytes(const uint8_t *table, const uint8_t *x, uint8_t *y, isize count);

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "avx512.h"

#define VBMI_FEATURES AVX512_FEATURES ",avx512vbmi"
#define VBMI_TARGET __attribute__((target(VBMI_FEATURES)))
#define VBMI_INLINE static inline __attribute__((always_inline, target(VBMI_FEATURES)))

typedef struct {
    __m512i part[4];
} byte_table;

INLINE int has_byte_tables(void) { return has_avx512_vnni() && __builtin_cpu_supports("avx512vbmi"); }

VBMI_INLINE byte_table load_table(const uint8_t *entries) {
    byte_table t;
    for (int i = 0; i < 4; i++) t.part[i] = _mm512_loadu_si512(entries + VECTOR_BYTES * i);
    return t;
}

/* 64 entries. One permutation reads half of a table, and the highest bit of the index chooses the half. */
VBMI_INLINE __m512i look_up(const byte_table *t, __m512i index) {
    const __m512i low = _mm512_permutex2var_epi8(t->part[0], index, t->part[1]);
    const __m512i high = _mm512_permutex2var_epi8(t->part[2], index, t->part[3]);
    return _mm512_mask_mov_epi8(low, _mm512_movepi8_mask(index), high);
}

#endif
#endif
