/* Convolutions as their kernels take them. */

#ifndef INTACT8_CONV_ARGS_H
#define INTACT8_CONV_ARGS_H

#include "sums.h"

/* Results before the clamp that are rounded in int16, and those that are rounded by ROUND_MAGIC. */
#define SMALL_RESULT 32000
#define LARGE_RESULT 4000000

/* A convolution of images (N, H, W, C) without dilation: y = clamp(R(accumulator * multiplier) + out_zero, low, high). It
   is depthwise, or dense (one group, or narrow ones). Weights, initial accumulators and multipliers are packed by step_conv.c. */
typedef struct conv_args {
    const uint8_t *x;
    uint8_t *y;
    const int8_t *weight;
    const int32_t *bias;
    const float *multiplier;
    isize batch, height, width, channels, out_channels;
    isize kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
    isize out_height, out_width;
    int in_zero, out_zero, low, high;
    isize block_pixels; /* depthwise: pixels of few channels that make one block of 64 */
    isize group_width;  /* 0, or dense: 4, 8 or 16 input channels of a group, and as many output channels */
    int nibbles;        /* dense: whether weights have 4 bits; biases and multipliers are those of sums times 16 */
    int split_channels; /* dense: whether an index is a block of 64 channels; otherwise it is a row of results */
    int large;   /* whether results before the clamp may be beyond SMALL_RESULT */
    int general; /* whether they may be beyond what the kernel rounds otherwise, or one of the next two pointers is given */
    const float *multiplier_negative; /* NULL, or the multipliers of negative accumulators */
    /* NULL, or as many bytes as y: with residual_joint, (residual - residual_zero) residual_ratio is added before the
       rounding; without, each result becomes
       clamp(R((y - out_zero) own_ratio + (residual - residual_zero) residual_ratio) + sum_zero, sum_low, sum_high). */
    const uint8_t *residual;
    const uint8_t *table; /* NULL, or 256 bytes: each result y becomes table[y] at last */
    float own_ratio, residual_ratio;
    int residual_joint, residual_zero, sum_zero, sum_low, sum_high;
    /* 0, or the first bytes of scratch memory, where sums lie and what finishes them: it is given their channels in order. */
    isize sum_bytes;
    const sum_finish *finish;
    const struct conv_args *joined; /* dense: NULL, or another convolution whose sums are finished with these */
} conv_args;

/* Output channels that the dense kernel computes together. */
INLINE isize dense_block(const conv_args *a) { return a->group_width ? 16 : 64; }

/* Whether the dense kernel adds the residual behind the rounding itself, while it has the results in registers. */
INLINE int adds_residual(const conv_args *a) {
    const float own = a->own_ratio, other = a->residual_ratio;
    const float largest = 255 * ((own < 0 ? -own : own) + (other < 0 ? -other : other));
    return a->residual && !a->residual_joint && !a->general && !a->group_width && largest < SMALL_RESULT;
}

/* Which of 16 lanes computes channel c of 16 in narrow groups: in groups of 4, four lanes see the words of all groups. */
INLINE isize group_lane(isize group_width, isize c) { return group_width == 4 ? 4 * (c % 4) + c / 4 : c; }

HIDDEN isize dense_scratch(const conv_args *a); /* bytes of scratch memory of a thread */
HIDDEN isize depthwise_scratch(const conv_args *a);
/* Adds the residual, unless it is `added` already, and looks up the table, in rows of results out_channels apart. */
HIDDEN void finish_results(const conv_args *a, int added, isize at, isize rows, isize bytes);
HIDDEN void dense_kernel(const void *args, isize lo, isize hi, uint8_t *scratch);
HIDDEN void depthwise_kernel(const void *args, isize lo, isize hi, uint8_t *scratch);

#endif
