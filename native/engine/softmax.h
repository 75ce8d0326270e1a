/* The softmax of integers of intact8.arithmetic.softmax, row by row. */

#ifndef INTACT8_SOFTMAX_H
#define INTACT8_SOFTMAX_H

#include "plan.h"

/* y = clamp(R(t levels / sum of t)) + zero, t = entries[largest x - x], 0 where masked. */
typedef struct {
    const int32_t *entries;
    uint8_t low_bytes[256], high_bytes[256]; /* of the entries */
    int narrow;                              /* whether all entries fit 16 bits */
    float levels, low, high;                 /* the limits are relative to the zero point */
    int32_t zero;
} integer_softmax;

/* Where a byte of the mask is not 0, a position counts nothing; without a mask it is NULL. */
typedef void (*softmax_row)(const integer_softmax *t, const uint8_t *x, const uint8_t *mask, uint8_t *y, isize count);

/* Fills in everything from 256 entries, the bits of `levels`, and a zero point and the clamp around it. */
HIDDEN integer_softmax make_softmax(const int32_t *entries, int64_t levels, int64_t zero, int64_t low, int64_t high);
HIDDEN softmax_row softmax_row_of(const integer_softmax *t); /* the fastest one of this CPU */

#define LEAST_EXPONENT -88.0f /* exponentials of less are 0 */

/* v = exp(v' + mask - the largest of them) for v' = (sums + offsets) scale, or v scale without sums, on AVX-512; v = 0 from
   `count` on, up to a multiple of 16, which sums and offsets have, too. Returns the sum, and in `used` a number of elements
   beyond which all are 0. */
HIDDEN float exponentials_avx512(const int32_t *sums, const int32_t *offsets, float scale, const float *mask, float *v,
                                 isize count, isize *used);

#endif
