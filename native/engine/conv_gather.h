/* Convolutions of every geometry and linear layers, on every instruction set: conv_gather.c finds the bytes under each
   window, and kernels of conv_tiles.h, one for each instruction set, multiply them by packed weights. */

#ifndef INTACT8_CONV_GATHER_H
#define INTACT8_CONV_GATHER_H

#include "conv_weights.h"
#include "sums.h"

#define TILE_CHANNELS 16 /* output channels that a tile computes together */

/* What becomes of sums: rounded and clamped; that and a residual that is added behind the rounding; everything else, one
   window at a time; or nothing. In the first two forms no result is large before the last clamp, see LARGE_RESULT. */
typedef enum { TILE_USUAL, TILE_ADDED, TILE_GENERAL, TILE_SUMS } tile_form;

/* What becomes of sums: y = clamp(R(sum * ratio) + zero, low, high), then a residual as steps.h says. The limits are relative
   to the zero points. */
typedef struct {
    tile_form form;
    float low, high, own_ratio, residual_ratio, sum_low, sum_high;
    int32_t residual_zero, zero; /* of the result: that of the sum where a residual is added behind the rounding */
    uint8_t least, most;         /* limits of the result */
    int joint;                   /* whether the residual is added before the only rounding */
} tile_finish;

/* Some windows, and 16 output channels (or fewer at the end). */
typedef struct {
    const uint8_t *const *taps; /* addresses: tap_count for each window */
    isize count, tap_count;     /* windows, and taps of each; depthwise: a multiple of four */
    isize tap_bytes;            /* dense: bytes of each tap, a multiple of four */
    isize shift;                /* bytes added to each address */
    const uint8_t *last;        /* depthwise: the bytes of a block may be read at addresses up to this one */
    const int32_t *correction;  /* added to the biases */
    const int32_t *order;       /* NULL, or how the kernel takes the weights, see tile_kernels */
    const int8_t *weight;
    const int32_t *bias;
    const float *ratio, *ratio_negative; /* ratio_negative and residual: NULL for none */
    const uint8_t *residual;
    int32_t *sums; /* NULL, or where the sums of every window go instead, `stride` apart: something else finishes them */
    uint8_t *y;
    isize stride, channels; /* bytes from one pixel of y to the next, and how many of them are computed */
    tile_finish finish;
} tile_panel;

/* Kernels of one instruction set. Weights along a window stand `together` for each of 16 output channels, one channel after
   the other; 0 says that a whole tap does so, and one weight of a depthwise convolution.

   `ordered`: sums of products are added in 16 bits where the weights prove that these cannot overflow. Dense: the weights of
   each tap come in words of four bytes, first those that are added in pairs, then those that are not, then those two of whose
   products may overflow; `order` has for each tap the number of pairs, that of the second ones, and where each word stands in
   the tap. Depthwise: its first number says whether no two products overflow. */
typedef struct {
    int together;
    int x_offset; /* what is subtracted from x; the correction undoes it */
    int ordered;
    int block;    /* channels that the depthwise kernel computes together: 16, or 32 in the order of block_lane() */
    void (*dense)(const tile_panel *p);
    void (*depthwise)(const tile_panel *p);
    void (*dense_nibbles)(const tile_panel *p); /* for weights of 4 bits; NULL where they become bytes before */
} tile_kernels;

HIDDEN extern const tile_kernels plain_tiles;
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
HIDDEN extern const tile_kernels avx2_tiles, avx512_tiles;
HIDDEN const tile_kernels *avx_vnni_tiles(void);
#elif defined(__aarch64__) && (defined(__GNUC__) || defined(__clang__))
HIDDEN extern const tile_kernels neon_tiles, neon_dot_tiles, neon_i8mm_tiles;
#endif

/* How a window's bytes are found: runs along a row, pixels one by one, or a copy of the whole window. */
typedef enum { RUNS, PIXELS, COPIES } tap_form;

/* What the check of a convolution prepares. */
typedef struct {
    const tile_kernels *kernels;
    tap_form form;
    int nibbles; /* whether packed weights have 4 bits, in spans of 32 */
    int depthwise, split_channels; /* split: threads share the output channels; otherwise the windows */
    isize groups, outputs, blocks; /* of matrices, outputs of each, and blocks of them */
    isize block;                   /* outputs of a block */
    isize taps, tap_bytes;         /* as the kernels take them */
    isize pointers;                /* addresses found for each window */
    isize panel, copied;           /* windows of a panel, and bytes of each that may be copied */
    isize blank;                   /* bytes of zero points */
    isize block_bytes, unpacked;   /* packed bytes of a block, and those of its weights of 4 bits as bytes */
    isize order_bytes;             /* of a block, in front of its weights */
    tile_form results;
    isize sum_bytes;               /* of scratch memory, where sums lie and what finishes them; 0 where kernels do */
    const void *weight, *bias, *ratio, *ratio_negative;
} gather_plan;

/* Where a depthwise block of 32 channels has channel c: vectors of eight hold four of the first 16 and four of the others. */
INLINE isize block_lane(isize c) { return c % 16 / 4 * 8 + c / 16 * 4 + c % 4; }

/* Copies fewer than 32 bytes. */
INLINE void copy_few(uint8_t *to, const uint8_t *from, isize count) {
    if (count & 16) memcpy(to, from, 16), to += 16, from += 16;
    if (count & 8) memcpy(to, from, 8), to += 8, from += 8;
    if (count & 4) memcpy(to, from, 4), to += 4, from += 4;
    if (count & 2) memcpy(to, from, 2), to += 2, from += 2;
    if (count & 1) *to = *from;
}

/* Returns the same address and hides from the compiler what was read there: loops need the registers for sums. */
INLINE const tile_panel *read_again(const tile_panel *p) {
#if defined(__GNUC__) || defined(__clang__)
    __asm__ volatile("" : "+r"(p) : : "memory");
#endif
    return p;
}

INLINE int32_t four_bytes(const uint8_t *x) {
    int32_t v;
    memcpy(&v, x, 4);
    return v;
}

/* Returns 0 with a reason. */
HIDDEN int check_gathered(checker *c, const conv_step *s, const conv_limits *limits, isize sum_bytes, gather_plan *t);

/* A matrix of constant weights (outputs, depth) for the same kernels. Returns the bytes that it has when packed, -1 where
   these are too many, and fills in the plan, whose `weight` is set by the caller. */
HIDDEN isize size_matrix(isize depth, isize outputs, int64_t bits, gather_plan *t);
HIDDEN int pack_matrix(const gather_plan *t, isize depth, const int8_t *weight, int8_t *to); /* 0 where there is no memory */
/* sums[r * apart + c] = Σ_k x[r, k] weight[from + c, k] for rows of round_up(depth, 4) bytes, and columns as many as a multiple
   of 16. */
HIDDEN void multiply_matrix(const gather_plan *t, const uint8_t *x, isize rows, isize from, isize columns, int32_t *sums,
                            isize apart);

HIDDEN void run_gathered(frame *f, const conv_step *s, const gather_plan *t, const sum_finish *finish, isize work);

#endif
