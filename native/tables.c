/* Tables of 256 bytes. */

#include "native.h"

static void read_run(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const table_args *a = (const table_args *)given;
    const uint8_t *restrict table = a->table;
    for (Py_ssize_t i = lo; i < hi; i++) a->y[i] = table[a->x[i]];
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <immintrin.h>

/* 64 at a time: the table is four registers, each half of it one permutation, the index's highest bit chooses. */
__attribute__((target("avx512f,avx512bw,avx512vbmi"))) static void read_run_vbmi(const void *given, Py_ssize_t lo,
                                                                                Py_ssize_t hi) {
    const table_args *a = (const table_args *)given;
    const __m512i first = _mm512_loadu_si512(a->table), second = _mm512_loadu_si512(a->table + 64);
    const __m512i third = _mm512_loadu_si512(a->table + 128), fourth = _mm512_loadu_si512(a->table + 192);
    Py_ssize_t i = lo;
    for (; i + 64 <= hi; i += 64) {
        const __m512i x = _mm512_loadu_si512(a->x + i);
        const __m512i low = _mm512_permutex2var_epi8(first, x, second);
        const __m512i high = _mm512_permutex2var_epi8(third, x, fourth);
        _mm512_storeu_si512(a->y + i, _mm512_mask_blend_epi8(_mm512_movepi8_mask(x), low, high));
    }
    read_run(given, i, hi);
}

body prepare_table(void) {
    return !plain && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bw") ? read_run_vbmi : read_run;
}
#else
body prepare_table(void) { return read_run; }
#endif
