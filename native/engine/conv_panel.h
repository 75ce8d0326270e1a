/* Panels of dense convolutions: windows of some rows of results and a block of output channels, and how sums become results. */

#ifndef INTACT8_CONV_PANEL_H
#define INTACT8_CONV_PANEL_H

#include "conv.h"

/* The windows of some rows of results, and the block of output channels that is computed now. */
typedef struct panel {
    const uint8_t *x;
    const int32_t *offset; /* window i begins at x + offset[i]; the last offset is repeated OFFSET_PADDING times */
    isize count;
    isize kernel_h, line, bytes; /* rows of a window, bytes from one to the next, bytes of one (a multiple of four) */
    int large;                   /* whether results need not be small before the clamp */
    isize pixel;                 /* bytes from one pixel to the next */
    isize apart;                 /* bytes from one window to the next in a row of results */
    __m512i to_lanes, from_lanes; /* narrow groups: how bytes of 16 channels come to the lanes that compute them, and back */
    const int8_t *weight;
    int far; /* whether the weights of a block are too many for the L1 cache */
    const int32_t *bias;
    const float *multiplier[4], *negative[4]; /* of positive and negative accumulators */
    int fetches; /* whether results are fetched ahead of their use: a block touches 64 bytes of every pixel, which hardware
                    prefetchers do not predict */
    uint8_t *y;
    int32_t *sums;           /* of SUM_WINDOWS windows, where something else finishes them */
    const uint8_t *residual; /* of the same places as y, if it is added here */
    const conv_args *args;
    isize stride, channels; /* bytes from one pixel of y to the next, and how many of them this block fills */
    epilogue end, sum_end;   /* of results, and of their sums with the residual */
    uint8_t *amx;            /* scratch memory of amx_panel_kernel() */
    const int32_t *begin;    /* the offset of the first window for which it is */
    int copied;              /* whether another block of channels left copies of all windows there */
    void (*few)(const struct panel *p); /* what it leaves windows to that are too few for it */
} panel;

#define RESULTS_AHEAD 16 /* windows that residuals and places of results are fetched ahead of their use */

typedef void (*panel_kernel)(const panel *p);

/* The kernel for AMX of `blocks` vectors of 16 channels, which is called between begin_amx() and end_amx(); NULL where none takes
   the convolution. It wants panels of at most amx_windows() windows, and scratch memory for them. */
HIDDEN panel_kernel amx_panel_kernel(const conv_args *a, isize blocks);
HIDDEN isize amx_windows(const conv_args *a);
HIDDEN isize amx_scratch(const conv_args *a, isize windows);
HIDDEN void begin_amx(void);
HIDDEN void end_amx(void);

/* What becomes of sums: the usual case, with a residual that is added behind the rounding, everything else, and sums. */
typedef enum { USUAL, RESIDUAL, GENERAL, SUMS } finish_form;

/* Four vectors of accumulators and a residual as 64 bytes: rounded as requantize() does it, added and rounded again. */
VNNI_INLINE __m512i requantize_sum(const panel *p, const __m512i *accumulator, __m512i residual) {
    const conv_args *a = (const conv_args *)opaque_pointer(p->args);
    const __m512 magic = _mm512_set1_ps(ROUND_MAGIC), zero = _mm512_set1_ps((float)a->residual_zero);
    const __m512 low = _mm512_set1_ps((float)(a->low - a->out_zero)), high = _mm512_set1_ps((float)(a->high - a->out_zero));
    __m512 v[4];
    for (int q = 0; q < 4; q++) {
        v[q] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(accumulator[q]), load_floats(p->multiplier[q]), magic);
        v[q] = _mm512_min_ps(_mm512_max_ps(_mm512_sub_ps(v[q], magic), low), high);
        const __m512 other = _mm512_sub_ps(_mm512_cvtepi32_ps(bytes_of(residual, q)), zero);
        v[q] = _mm512_add_ps(_mm512_mul_ps(v[q], _mm512_set1_ps(a->own_ratio)),
                             _mm512_mul_ps(other, _mm512_set1_ps(a->residual_ratio)));
        v[q] = _mm512_add_ps(v[q], p->sum_end.magic);
    }
    return small_to_bytes(v, &p->sum_end);
}

/* Stores the sums of the windows from i on, their channels in order. */
VNNI_INLINE void store_sums(const panel *p, const __m512i *sum, isize i, const int blocks, const int words, const int nibbles) {
    const __m512i lanes = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15); /* see group_lane() */
    int32_t *to = p->sums + 16 * i * blocks;
    for (int q = 0; q < 4 / blocks * blocks; q++) {
        __m512i v = nibbles ? _mm512_srai_epi32(sum[q], 4) : sum[q];
        if (words == 1) v = _mm512_permutexvar_epi32(lanes, v);
        _mm512_storeu_si512(to + 16 * q, v);
    }
}

/* Stores the results of the windows from i on; `all`: there are as many as the vector holds. For the rest see microkernel(). */
VNNI_INLINE void store_results(const panel *p, __m512i *sum, isize i, const int all, const int blocks, const int whole,
                               const int words, const int nibbles, const finish_form form) {
    if (form == SUMS) {
        store_sums(p, sum, i, blocks, words, nibbles);
        return;
    }
    const int pixels = 4 / blocks;
    const isize left = p->count - i, windows = all || left > pixels ? pixels : left;
    const isize at = i * p->stride, apart = p->stride - VECTOR_BYTES / pixels;
    const isize pieces = whole ? 1 : windows;
    const __mmask64 mask = byte_mask(whole && pixels > 1 ? windows * p->stride : p->channels);
    __m512i y, residual = _mm512_setzero_si512(); /* piece k stands `apart` bytes from where it does in the vector */
    for (isize k = 0; (form == RESIDUAL || (form == GENERAL && p->residual)) && k < pieces; k++)
        residual = _mm512_mask_loadu_epi8(residual, mask << k * (VECTOR_BYTES / pixels), p->residual + at + k * apart);
    if (words && form == GENERAL) residual = _mm512_shuffle_epi8(residual, p->to_lanes);
    if (blocks == 3) sum[3] = sum[0]; /* is not stored */
    if (form == GENERAL)
        y = requantize_general(sum, p->multiplier, p->negative, residual, p->args, &p->end);
    else if (form == RESIDUAL)
        y = requantize_sum(p, sum, residual);
    else if (p->large)
        y = requantize_large(sum, p->multiplier, &p->end);
    else
        y = requantize(sum, p->multiplier, &p->end);
    y = from_lane_order(y);
    if (words) y = _mm512_shuffle_epi8(y, p->from_lanes);
    for (isize k = 0; k < pieces; k++)
        _mm512_mask_storeu_epi8(p->y + at + k * apart, mask << k * (VECTOR_BYTES / pixels), y);
}

/* Whether `count` windows from i on, at most 16, begin as far apart as those in one row of results. */
VNNI_INLINE int evenly_apart(const panel *p, isize i, const int count) {
    const __m512i place = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i even = _mm512_add_epi32(_mm512_set1_epi32(p->offset[i]),
                                          _mm512_mullo_epi32(place, _mm512_set1_epi32((int32_t)p->apart)));
    const __mmask16 all = (__mmask16)((1 << count) - 1);
    return _mm512_mask_cmpneq_epi32_mask(all, even, _mm512_maskz_loadu_epi32(all, p->offset + i)) == 0;
}

/* Has `count` places of results fetched, `bytes` from one to the next, and the residuals that are added there; they may lie
   beyond the last one. No part of its callers, which need the registers for addresses; unused where there are none. */
static __attribute__((noinline, unused)) void fetch_results(const uint8_t *y, const uint8_t *residual, isize bytes, isize count) {
    for (isize at = 0; count > 0; count--, at += bytes) {
        __builtin_prefetch(y + at, 1);
        if (residual) __builtin_prefetch(residual + at);
    }
}

#endif
