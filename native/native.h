/* What the parts of the extension share. */

#ifndef INTACT8_NATIVE_H
#define INTACT8_NATIVE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <limits.h>
#include <stdint.h>
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

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("arch=skylake-avx512", "avx2", "default")))
#else
#define WIDE
#endif
#define BLOCK 128           /* elements at a time, which stay in L1 */
#define WHOLE 12582912.0f   /* 1.5 * 2^23: a small number added to it is rounded to an integer, half to even */
#define INFINITE 0x7f800000 /* bits of infinity; those of NaN are larger */

INLINE int32_t bits(float v) {
    int32_t b;
    memcpy(&b, &v, 4);
    return b;
}

INLINE float number(int32_t b) {
    float v;
    memcpy(&v, &b, 4);
    return v;
}

/* The product of sizes; -1 where one is negative or there is no such number. */
INLINE Py_ssize_t times(Py_ssize_t a, Py_ssize_t b) { return a < 0 || b < 0 || (b && a > PY_SSIZE_T_MAX / b) ? -1 : a * b; }

/* How many times BLOCK covers n. */
INLINE Py_ssize_t blocks_of(Py_ssize_t n) { return n / BLOCK + (n % BLOCK > 0); }

/* Whether limits, relative to a zero point, and that are those of bytes. */
INLINE int are_bytes(Py_ssize_t low, Py_ssize_t high, Py_ssize_t zero) {
    return zero >= 0 && zero <= 255 && low >= -zero && low <= high && high <= 255 - zero;
}

/* Work on lo <= index < hi of what args describes. */
typedef void (*body)(const void *args, Py_ssize_t lo, Py_ssize_t hi);

/* Whether everything is left to the compiler, as on a CPU without the vectors that some passes are written for. */
HIDDEN extern int plain;

/* omp_get_thread_num, NULL where there is one thread. */
HIDDEN extern int (*thread_number)(void);

/* softmax(q k^T + mask) v, one head at a time. Strides are in elements: of samples, heads and rows. */
typedef struct {
    const float *from_q, *from_k, *from_v, *from_mask;
    float *to_y;
    Py_ssize_t heads, queries, keys, width;
    Py_ssize_t q[3], k[3], v[3], mask[3], y[3];
    Py_ssize_t padded_keys, padded_width; /* multiples of the vectors' width */
    Py_ssize_t needed;                    /* scratch of a thread, in floats */
    float *scratch;
} attention;

/* What runs it on this CPU, having set padded sizes and need; NULL where there is nothing better than torch. */
HIDDEN body prepare_attention(attention *a);

/* y = table[x] of bytes. */
typedef struct {
    const uint8_t *x;
    uint8_t *y;
    const uint8_t *table;
} table_args;

HIDDEN body prepare_table(void);

/* y = clamp(R(x / divisor), low, high) + zero as bytes, half to even; without `divide` of x itself. */
typedef struct {
    const float *x;
    uint8_t *y;
    float divisor, low, high;
    int32_t zero;
    int divide;
    volatile int *nan; /* set to 1 where x holds one */
} finish_args;

HIDDEN void finish_run(const void *args, Py_ssize_t lo, Py_ssize_t hi);

/* The same of images with planes of channels (N, C, pixels), written pixel by pixel (N, pixels, C), BLOCK of them at a
   time: a multiple of `blocks`, which cover an image. */
typedef struct {
    finish_args f;
    Py_ssize_t channels, pixels, blocks;
} interleave_args;

HIDDEN void interleave_run(const void *args, Py_ssize_t lo, Py_ssize_t hi);

/* y = clamp(R((x - zero_x) (w - zero_w) ratio), low, high) + zero of rows of bytes, `repeat` of x with the same of w. */
typedef struct {
    const uint8_t *x, *w;
    uint8_t *y;
    Py_ssize_t width, repeat;
    int32_t zero_x, zero_w, zero;
    float ratio, low, high;
} multiply_args;

HIDDEN void multiply_run(const void *args, Py_ssize_t lo, Py_ssize_t hi);
HIDDEN body prepare_multiply(const multiply_args *args); /* what does that here */

/* Convolutions of images (N, height, width, C): clamp(R(sum ratio) + zero, low, high). One index is one row of results, or
   64 channels of all. Weights, sums to begin with and ratios stand in an order of their own, see
   intact8/engines/convolutions.py. */
typedef struct {
    const uint8_t *x;
    uint8_t *y;
    const int8_t *weight;
    const int32_t *bias;
    const float *ratio;
    volatile int *no_memory; /* set to 1 where there was none to work in */
    Py_ssize_t images, height, width, channels, results; /* channels of y */
    Py_ssize_t tall, wide, step_down, step_right, above, left;
    Py_ssize_t rows, columns; /* of y */
    int zero_x, zero, low, high;
    Py_ssize_t pixels; /* depthwise: of few channels, that make one block */
    int by_block;
    Py_ssize_t count, work; /* indices, and multiplications of one */
    /* dense, by rows: NULL, or as many bytes: y = clamp(R((y - zero) own + (other - zero_other) ratio_other), ...) + zero_sum */
    const uint8_t *other;
    float own, ratio_other;
    int zero_other, zero_sum, low_sum, high_sum;
} convolution_args;

/* Everything but the addresses, from (N, height, width, C) and the numbers of intact8/engines/convolutions.py. NULL, or why
   there is no such convolution. */
HIDDEN const char *describe_convolution(convolution_args *args, int dense, const Py_ssize_t size[4], const Py_ssize_t numbers[11]);

/* Elements of weights, and of sums to begin with and ratios, in the order of intact8/engines/convolutions.py. */
typedef struct {
    Py_ssize_t weight, results;
} packed_sizes;

HIDDEN packed_sizes sizes_of_packed(const convolution_args *args, int dense);
HIDDEN body prepare_convolution(int dense); /* or depthwise; NULL where this CPU has no use for it */

/* Images through convolutions one behind the other, `band` rows of the last one at a time. A stage is STAGE numbers:
   addresses of weights, sums, ratios and of memory for the rows behind it; whether dense; height, width and channels; its
   numbers; then -1 or the stage whose results are added to its own, bits of the ratio of these and of those, zero point of
   those, zero point and limits of the sum; then the bytes at the four addresses. See intact8/engines/ahead.py. */
#define STAGE 30
typedef struct {
    interleave_args image; /* of one sample; without x its bytes are there */
    uint8_t *y;
    Py_ssize_t bytes; /* of y */
    Py_ssize_t samples, count, band;
    const int64_t *stages;
    volatile int *no_memory;
} cascade_args;

/* NULL, or why there are no such stages. */
HIDDEN const char *cascade_run(const cascade_args *args);

#endif
