/* Float attention on the widest vectors of this CPU. */

#include "native.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")))
#define NAME(x) x##_512
#define VECTOR __m512
#define WIDTH 16
#define COLUMNS 4
#define ZERO() _mm512_setzero_ps()
#define ALL(x) _mm512_set1_ps(x)
#define LOAD(p) _mm512_loadu_ps(p)
#define STORE(p, x) _mm512_storeu_ps(p, x)
#define ADD(x, y) _mm512_add_ps(x, y)
#define SUB(x, y) _mm512_sub_ps(x, y)
#define MUL(x, y) _mm512_mul_ps(x, y)
#define MAX(x, y) _mm512_max_ps(x, y) /* the second where one is NaN */
#define FMA(x, y, z) _mm512_fmadd_ps(x, y, z)
#define POWER(x, n) _mm512_scalef_ps(x, n)
#define KEEP_FROM(x, least, y) _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, ALL(least), _CMP_NLT_UQ), y)
TARGET INLINE float largest_512(__m512 x) { return _mm512_reduce_max_ps(x); }
TARGET INLINE float total_512(__m512 x) { return _mm512_reduce_add_ps(x); }
#include "attention.h"

#undef TARGET
#undef NAME
#undef VECTOR
#undef WIDTH
#undef COLUMNS
#undef ZERO
#undef ALL
#undef LOAD
#undef STORE
#undef ADD
#undef SUB
#undef MUL
#undef MAX
#undef FMA
#undef POWER
#undef KEEP_FROM

#define TARGET __attribute__((target("avx2,fma")))
#define NAME(x) x##_256
#define VECTOR __m256
#define WIDTH 8
#define COLUMNS 2
#define ZERO() _mm256_setzero_ps()
#define ALL(x) _mm256_set1_ps(x)
#define LOAD(p) _mm256_loadu_ps(p)
#define STORE(p, x) _mm256_storeu_ps(p, x)
#define ADD(x, y) _mm256_add_ps(x, y)
#define SUB(x, y) _mm256_sub_ps(x, y)
#define MUL(x, y) _mm256_mul_ps(x, y)
#define MAX(x, y) _mm256_max_ps(x, y)
#define FMA(x, y, z) _mm256_fmadd_ps(x, y, z)
#define POWER(x, n) MUL(x, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23)))
#define KEEP_FROM(x, least, y) _mm256_and_ps(_mm256_cmp_ps(x, ALL(least), _CMP_NLT_UQ), y)
TARGET INLINE float largest_256(__m256 x) {
    float v[8], most;
    _mm256_storeu_ps(v, x);
    most = v[0];
    for (int i = 1; i < 8; i++) most = v[i] > most ? v[i] : most;
    return most;
}
TARGET INLINE float total_256(__m256 x) {
    float v[8];
    _mm256_storeu_ps(v, x);
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}
#include "attention.h"

static Py_ssize_t up(Py_ssize_t n, Py_ssize_t to) { return (n + to - 1) / to * to; }

body prepare_attention(attention *a) {
    Py_ssize_t vector = 0;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq"))
        vector = 16;
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        vector = 8;
    else
        return NULL;
    a->padded_keys = up(a->keys, vector);
    a->padded_width = up(a->width, vector);
    a->needed = up((a->width + 6) * a->padded_keys + (a->keys + 6) * a->padded_width, 16);
    return vector == 16 ? run_512 : run_256;
}
#else
body prepare_attention(attention *a) { return NULL; }
#endif
