/* What all parts of the library share: portability, bits of floats, checked sizes, rounding. Nothing here needs Python. */

#ifndef INTACT8_CORE_H
#define INTACT8_CORE_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef ptrdiff_t isize; /* a size or an index */

#if defined(_MSC_VER)
#define INLINE static __forceinline
#define restrict __restrict
#define PREFETCH(at) ((void)(at))
#define STORE_SHARED(at, to) (*(at) = (to)) /* several threads may store; a volatile int, which MSVC writes whole */
#else
#define STORE_SHARED(at, to) __atomic_store_n(at, to, __ATOMIC_RELAXED)
#define PREFETCH(at) __builtin_prefetch(at)
#define INLINE static inline __attribute__((always_inline))
#endif
#if defined(_WIN32) /* shows nothing by itself */
#define HIDDEN
#else
#define HIDDEN __attribute__((visibility("hidden")))
#endif

/* Compiled once per instruction set; the loader chooses. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#if __GNUC__ >= 12 /* the loader then asks for the features; before, for the maker of the CPU, too */
#define MULTIVERSION __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define MULTIVERSION __attribute__((target_clones("arch=skylake-avx512", "avx2", "default")))
#endif
#else
#define MULTIVERSION
#endif

#define ALIGNMENT 64             /* bytes to which every value in the workspace is aligned */
#define HUGE_PAGE ((isize)2 << 20) /* bytes of a page where the system is asked for large ones */
#define BLOCK 128                /* elements of a block, which stays in the L1 cache */
#define ROUND_MAGIC 12582912.0f  /* 1.5 * 2^23: adding it rounds a small float to an integer, half to even */
#define ROUND_MAGIC_64 6755399441055744.0 /* 1.5 * 2^52: the same for a double */

INLINE int32_t float_bits(float v) {
    int32_t b;
    memcpy(&b, &v, 4);
    return b;
}

INLINE float bits_float(int64_t bits) {
    const int32_t b = (int32_t)bits;
    float v;
    memcpy(&v, &b, 4);
    return v;
}

INLINE double bits_double(int64_t bits) {
    double v;
    memcpy(&v, &bits, 8);
    return v;
}

INLINE isize min_size(isize a, isize b) { return a < b ? a : b; }
INLINE isize max_size(isize a, isize b) { return a > b ? a : b; }
INLINE isize ceil_div(isize n, isize by) { return n / by + (n % by > 0); }
INLINE isize round_up(isize n, isize to) { return ceil_div(n, to) * to; }

/* Has `rows` rows of so many bytes fetched, `apart` bytes from one to the next; they may lie beyond what may be read. */
INLINE void fetch_rows(const void *x, isize rows, isize apart, isize bytes) {
    for (isize r = 0; r < rows; r++)
        for (isize i = 0; i < bytes; i += ALIGNMENT) PREFETCH((const char *)x + r * apart + i);
}

/* The product of two sizes; -1 where one is negative or the product overflows. */
INLINE isize checked_product(isize a, isize b) { return a < 0 || b < 0 || (b && a > PTRDIFF_MAX / b) ? -1 : a * b; }

/* The sum of two sizes; -1 where one is negative or the sum overflows. */
INLINE isize checked_sum(isize a, isize b) { return a < 0 || b < 0 || a > PTRDIFF_MAX - b ? -1 : a + b; }

/* clamp(R(v) + zero, low, high), rounded half to even; NaN becomes low. The limits are relative to the zero point. */
INLINE uint8_t to_uint8(float v, float low, float high, int32_t zero) {
    v = v > low ? v : low;
    v = v < high ? v : high;
    return (uint8_t)(float_bits(v + ROUND_MAGIC) + zero);
}

#endif
