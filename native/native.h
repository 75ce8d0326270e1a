/* What all parts of the extension share: portability, bits of floats, checked sizes and parallel loops. */

#ifndef INTACT8_NATIVE_H
#define INTACT8_NATIVE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(_MSC_VER)
#define INLINE static __forceinline
#define PREFETCH(p) (void)(p)
#define HIDDEN
#define restrict __restrict
#else
#define INLINE static inline __attribute__((always_inline))
#define PREFETCH(p) __builtin_prefetch(p, 0, 2)
#define HIDDEN __attribute__((visibility("hidden")))
#endif

/* Compiled once per instruction set; the loader chooses. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define MULTIVERSION __attribute__((target_clones("arch=skylake-avx512", "avx2", "default")))
#else
#define MULTIVERSION
#endif

#define BLOCK 128                /* elements of a block, which stays in the L1 cache */
#define ROUND_MAGIC 12582912.0f  /* 1.5 * 2^23: adding it rounds a small float to an integer, half to even */
#define INFINITY_BITS 0x7f800000 /* bits of infinity; the bits of every NaN are larger */

INLINE int32_t float_bits(float v) {
    int32_t b;
    memcpy(&b, &v, 4);
    return b;
}

INLINE float bits_float(int32_t b) {
    float v;
    memcpy(&v, &b, 4);
    return v;
}

INLINE Py_ssize_t min_size(Py_ssize_t a, Py_ssize_t b) { return a < b ? a : b; }
INLINE Py_ssize_t max_size(Py_ssize_t a, Py_ssize_t b) { return a > b ? a : b; }
INLINE Py_ssize_t ceil_div(Py_ssize_t n, Py_ssize_t by) { return n / by + (n % by > 0); }

/* The product of two sizes; -1 where one is negative or the product overflows. */
INLINE Py_ssize_t checked_product(Py_ssize_t a, Py_ssize_t b) {
    return a < 0 || b < 0 || (b && a > PY_SSIZE_T_MAX / b) ? -1 : a * b;
}

/* Whether the limits, which are relative to the zero point, lie in 0 to 255. */
INLINE int is_uint8_clamp(Py_ssize_t low, Py_ssize_t high, Py_ssize_t zero) {
    return zero >= 0 && zero <= 255 && low >= -zero && low <= high && high <= 255 - zero;
}

/* clamp(R(v), low, high) + zero, rounded half to even; NaN becomes low. */
INLINE uint8_t to_uint8(float v, float low, float high, int32_t zero) {
    v = v > low ? v : low;
    v = v < high ? v : high;
    return (uint8_t)(float_bits(v + ROUND_MAGIC) + zero);
}

/* max(m, |v|) as bits: magnitudes are ordered like their bits, and NaN comes after infinity. */
INLINE int32_t max_magnitude(int32_t m, float v) {
    const int32_t b = float_bits(v) & 0x7fffffff;
    return b > m ? b : m;
}

/* A kernel computes the indices lo <= index < hi of what args describes. */
typedef void (*kernel)(const void *args, Py_ssize_t lo, Py_ssize_t hi);

/* Calls run for parts of 0 to count, in as many threads as torch uses now if there is enough work (elements). */
HIDDEN void parallel_for(kernel run, const void *args, Py_ssize_t count, Py_ssize_t work);

HIDDEN extern int (*thread_number)(void); /* omp_get_thread_num; NULL where there is one thread */
HIDDEN extern int (*max_threads)(void);   /* omp_get_max_threads; NULL where there is one thread */

/* Whether kernels written for certain instruction sets are left out, as on an older CPU (for tests). */
HIDDEN extern int force_portable;

#endif
