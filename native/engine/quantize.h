/* Quantization of a line of floats. */

#ifndef INTACT8_QUANTIZE_H
#define INTACT8_QUANTIZE_H

#include "core.h"

typedef struct {
    const float *x;
    uint8_t *y;
    isize channels, pixels;
    float divisor, low, high; /* the clamp relative to the zero point */
    int32_t zero;
} quantize_args;

/* y = clamp(R(x / divisor) + zero, low, high) */
HIDDEN void quantize_line(const float *restrict x, uint8_t *restrict y, isize count, const quantize_args *a);

/* Quantizes whole vectors of a line on AVX-512, and returns how many numbers that were. */
HIDDEN isize quantize_vectors(const float *x, uint8_t *y, isize count, const quantize_args *a);

#endif
