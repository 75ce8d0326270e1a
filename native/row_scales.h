/* Dynamic quantization of a row of float32: the operations of intact8.arithmetic.dynamic, one IEEE rounding each. */

#ifndef INTACT8_ROW_SCALES_H
#define INTACT8_ROW_SCALES_H

#include "native.h"

#define REACH 127.0f       /* the largest quantized magnitude */
#define MIN_SCALE 0x1p-60f /* the smallest scale of a row */

/* The bits of the largest magnitude. */
INLINE int32_t row_max(const float *restrict x, Py_ssize_t width) {
    int32_t m = 0;
    for (Py_ssize_t i = 0; i < width; i++) m = max_magnitude(m, x[i]);
    return m;
}

/* max(fl(max |x| / 127), 2^-60); NaN if the row holds NaN or infinity. */
INLINE float row_scale(const float *restrict x, Py_ssize_t width) {
    const int32_t m = row_max(x, width);
    if (m >= INFINITY_BITS) return bits_float(0x7fc00000);
    const float s = bits_float(m) / REACH;
    return s < MIN_SCALE ? MIN_SCALE : s;
}

/* R(fl(x / s)) + zero as bytes. */
INLINE void row_quantize(const float *restrict x, float s, float zero, uint8_t *restrict q, Py_ssize_t width) {
    for (Py_ssize_t i = 0; i < width; i++) q[i] = (uint8_t)float_bits(x[i] / s + (ROUND_MAGIC + zero));
}

#endif
