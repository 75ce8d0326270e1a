/* Kernels that have several callers: the functions of the module, ONNX Runtime's operators, the fused stem. */

#ifndef INTACT8_KERNELS_H
#define INTACT8_KERNELS_H

#include "native.h"

/* y = table[x] of bytes. */
typedef struct {
    const uint8_t *x;
    uint8_t *y;
    const uint8_t *table;
} lookup_args;

HIDDEN kernel lookup_kernel(void); /* the fastest one of this CPU */

/* y = clamp(R(x / divisor), low, high) + zero, uint8, rounded half to even; without `divide` x is not divided. */
typedef struct {
    const float *x;
    uint8_t *y;
    float divisor, low, high;
    int32_t zero;
    int divide;
    volatile int *nan; /* set to 1 if x holds NaN */
} quantize_args;

HIDDEN void quantize_kernel(const void *args, Py_ssize_t lo, Py_ssize_t hi);

/* Quantizes images (N, channels, pixels) to (N, pixels, channels). An index is a block of BLOCK pixels; `blocks` of them
   cover an image. */
typedef struct {
    quantize_args q;
    Py_ssize_t channels, pixels, blocks;
} quantize_nhwc_args;

HIDDEN void quantize_nhwc_kernel(const void *args, Py_ssize_t lo, Py_ssize_t hi);

/* y = clamp(R((x - zero_x) (w - zero_w) ratio), low, high) + zero of uint8 rows; `repeat` rows of x share a row of w. */
typedef struct {
    const uint8_t *x, *w;
    uint8_t *y;
    Py_ssize_t width, repeat;
    int32_t zero_x, zero_w, zero;
    float ratio, low, high;
} multiply_args;

HIDDEN kernel multiply_kernel(const multiply_args *args); /* the fastest one of this CPU */

/* Linear resizing of images (N, height, width, channels). `rows` and `columns` have three numbers for each row and column of
   the results: two indices, and the weight of the second one over the denominator. */
typedef struct {
    const uint8_t *x;
    uint8_t *y;
    const int32_t *rows, *columns;
    Py_ssize_t height, width, channels, out_height, out_width;
    int32_t row_denominator, column_denominator;
} resize_args;

#define MAX_DENOMINATOR 65535 /* of the product of both */

HIDDEN kernel resize_kernel(const resize_args *args); /* NULL where indices or weights do not fit */

/* A convolution of images (N, H, W, C) without dilation: y = clamp(R(accumulator * multiplier) + out_zero, low, high). It
   is depthwise, or dense (one group). Weights, initial accumulators and multipliers are packed by
   intact8/engines/packed_conv.py. */
typedef struct {
    const uint8_t *x;
    uint8_t *y;
    const int8_t *weight;
    const int32_t *bias;
    const float *multiplier;
    volatile int *out_of_memory; /* set to 1 if scratch memory could not be allocated */
    Py_ssize_t batch, height, width, channels, out_channels;
    Py_ssize_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
    Py_ssize_t out_height, out_width;
    int in_zero, out_zero, low, high;
    Py_ssize_t block_pixels; /* depthwise: pixels of few channels that make one block of 64 */
    int split_channels;      /* whether an index is a block of 64 channels; otherwise it is a row of results */
    Py_ssize_t count, work;  /* number of indices, and multiplications of one index */
    /* Dense by rows only. NULL, or as many bytes as y: each result becomes
       clamp(R((y - out_zero) own_ratio + (residual - residual_zero) residual_ratio) + sum_zero, sum_low, sum_high). */
    const uint8_t *residual;
    float own_ratio, residual_ratio;
    int residual_zero, sum_zero, sum_low, sum_high;
} conv_args;

/* Fills in everything but the addresses from (N, H, W, C) and the numbers of intact8/engines/packed_conv.py. Returns NULL,
   or why there is no such convolution. */
HIDDEN const char *describe_conv(conv_args *args, int dense, const Py_ssize_t size[4], const Py_ssize_t numbers[11]);

/* Elements of the packed weights, and of the packed initial accumulators and multipliers. */
typedef struct {
    Py_ssize_t weight, channels;
} packed_size;

HIDDEN packed_size packed_size_of(const conv_args *args, int dense);
HIDDEN kernel conv_kernel(int dense); /* dense or depthwise; NULL on a CPU without AVX512-VNNI */

#endif
