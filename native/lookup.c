/* y = table[x] for tables of 256 bytes. */

#include "arguments.h"
#include "kernels.h"

static void lookup_portable(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const lookup_args *a = (const lookup_args *)given;
    const uint8_t *restrict table = a->table;
    for (Py_ssize_t i = lo; i < hi; i++) a->y[i] = table[a->x[i]];
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <immintrin.h>

/* 64 at a time. The table lies in four registers; one permutation reads half of it, and the highest bit of the index
   chooses the half. */
__attribute__((target("avx512f,avx512bw,avx512vbmi"))) static void lookup_vbmi(const void *given, Py_ssize_t lo,
                                                                               Py_ssize_t hi) {
    const lookup_args *a = (const lookup_args *)given;
    const __m512i first = _mm512_loadu_si512(a->table), second = _mm512_loadu_si512(a->table + 64);
    const __m512i third = _mm512_loadu_si512(a->table + 128), fourth = _mm512_loadu_si512(a->table + 192);
    Py_ssize_t i = lo;
    for (; i + 64 <= hi; i += 64) {
        const __m512i x = _mm512_loadu_si512(a->x + i);
        const __m512i low = _mm512_permutex2var_epi8(first, x, second);
        const __m512i high = _mm512_permutex2var_epi8(third, x, fourth);
        _mm512_storeu_si512(a->y + i, _mm512_mask_blend_epi8(_mm512_movepi8_mask(x), low, high));
    }
    lookup_portable(given, i, hi);
}

kernel lookup_kernel(void) {
    const int able = __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bw");
    return !force_portable && able ? lookup_vbmi : lookup_portable;
}
#else
kernel lookup_kernel(void) { return lookup_portable; }
#endif

FUNCTION(lookup) {
    arguments a;
    if (!parse_arguments(&a, "lookup", args, count, 4, 3)) return NULL;
    const Py_ssize_t size = int_at(&a, 2);
    if (!check_buffer(&a, 0, a.value[0], size, 1) || !check_buffer(&a, 1, a.value[1], size, 1) ||
        !check_buffer(&a, 2, a.value[3], 256, 1))
        return NULL;
    const lookup_args given = {a.value[0], a.value[1], a.value[3]};
    return run_unlocked(lookup_kernel(), &given, size, size);
}
