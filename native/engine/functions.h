/* Functions of one number in float64, from plain operations that compilers make vectors of: the same bits on every CPU.

   Errors, relative to the exact value: exp_wide 2^-46, tanh_wide and expm1_wide 2^-43, erfc_wide 2^-40. Rounded to float32,
   these differ from the exact value's rounding in fewer than one of 2^14 numbers, and then by one unit in the last place.
   NaN gives NaN. */

#ifndef INTACT8_FUNCTIONS_H
#define INTACT8_FUNCTIONS_H

#include "core.h"

#include <math.h>

/* e^x = 2^k e^r with |r| <= ln(2)/2 and the Taylor polynomial of degree 11; 0 below -708, infinity above 709. */
INLINE double exp_wide(double x) {
    const double bounded = x < -708.0 ? -708.0 : x > 709.0 ? 709.0 : x;
    const double shifted = bounded * 1.4426950408889634 + ROUND_MAGIC_64, k = shifted - ROUND_MAGIC_64;
    const double r = bounded - k * 0.6931471803691238 - k * 1.9082149292705877e-10;
    double sum = 1.0 / 39916800;
    sum = sum * r + 1.0 / 3628800, sum = sum * r + 1.0 / 362880, sum = sum * r + 1.0 / 40320, sum = sum * r + 1.0 / 5040;
    sum = sum * r + 1.0 / 720, sum = sum * r + 1.0 / 120, sum = sum * r + 1.0 / 24, sum = sum * r + 1.0 / 6;
    sum = sum * r + 0.5, sum = sum * r + 1.0, sum = sum * r + 1.0;
    uint64_t bits;
    memcpy(&bits, &shifted, 8);
    bits = (bits + 1023) << 52; /* the lowest bits of `shifted` are k */
    double power;
    memcpy(&power, &bits, 8);
    const double y = sum * power;
    return x < -708.0 ? 0.0 : x > 709.0 ? HUGE_VAL : y;
}

INLINE double sigmoid_wide(double x) {
    const double e = exp_wide(-fabs(x));
    return (x >= 0 ? 1.0 : e) / (1.0 + e);
}

INLINE double expm1_wide(double x) {
    const double near = x * (1 + x * (1.0 / 2 + x * (1.0 / 6 + x * (1.0 / 24 + x * (1.0 / 120 + x * (1.0 / 720))))));
    const double far = exp_wide(x) - 1.0;
    return fabs(x) < 0.03125 ? near : far;
}

INLINE double tanh_wide(double x) {
    const double a = fabs(x), e = exp_wide(-2.0 * a), square = x * x;
    const double near = x * (1 - square * (1.0 / 3 - square * (2.0 / 15 - square * (17.0 / 315 - square * (62.0 / 2835)))));
    const double far = (1.0 - e) / (1.0 + e);
    return a < 0.03125 ? near : x < 0 ? -far : far;
}

/* erfc(x) = t P(2t - 1) e^(-x²) with t = 3.5 / (3.5 + x) for x >= 0; P interpolates at 18 Chebyshev nodes. */
INLINE double erfc_wide(double x) {
    static const double p[] = {
        -1.5567985065465697e-08, 7.956635151813618e-08, 2.0032913174787995e-07, -8.410325661429153e-07, -2.044866466528135e-06,
        5.2066156072850975e-06, 2.135103140955949e-05, -1.194912801957071e-05, -0.00020414728116488498, -0.000372981659800763,
        0.0009077277889067474, 0.0075767529732080705, 0.02637677340988945, 0.06449674861429067, 0.12435886477310346,
        0.19831818476871702, 0.2679427784477657, 0.3105873112176902};
    const double a = fabs(x), t = 3.5 / (3.5 + a), u = 2.0 * t - 1.0;
    double sum = p[0];
    for (int i = 1; i < 10; i++) sum = sum * u + p[i]; /* compilers unroll up to 16 turns, and then make vectors of them */
    for (int i = 10; i < 18; i++) sum = sum * u + p[i];
    const double y = t * sum * exp_wide(-(a * a));
    return x < 0 ? 2.0 - y : y;
}

INLINE double gelu_wide(double x) { return 0.5 * x * erfc_wide(x * -0.7071067811865476); }

INLINE double gelu_tanh_wide(double x) {
    return 0.5 * x * (1.0 + tanh_wide(0.7978845608028654 * (x + 0.044715 * (x * x * x))));
}

/* Approximations of both, of which there are some for each instruction set, are no further from them than
   GELU_RELATIVE |gelu(x)| + GELU_ABSOLUTE for every float32. */
#define GELU_RELATIVE 0x1p-20f
#define GELU_ABSOLUTE 1.3e-6f

INLINE double erf_wide(double x) {
    const double square = x * x;
    double sum = 1.0 / 76204800; /* Taylor: Σ (-x²)^n / (n! (2n + 1)) */
    sum = 1.0 / 6894720 - sum * square, sum = 1.0 / 685440 - sum * square, sum = 1.0 / 75600 - sum * square;
    sum = 1.0 / 9360 - sum * square, sum = 1.0 / 1320 - sum * square, sum = 1.0 / 216 - sum * square;
    sum = 1.0 / 42 - sum * square, sum = 1.0 / 10 - sum * square, sum = 1.0 / 3 - sum * square, sum = 1.0 - sum * square;
    const double near = x * (sum * 1.1283791670955126), far = 1.0 - erfc_wide(fabs(x));
    return fabs(x) < 0.5 ? near : x < 0 ? -far : far;
}

#endif
