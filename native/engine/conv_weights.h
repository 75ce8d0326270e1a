/* Weights and biases of convolutions as their kernels are packed from: in one order, with what sums of them may be. */

#ifndef INTACT8_CONV_WEIGHTS_H
#define INTACT8_CONV_WEIGHTS_H

#include "plan.h"

/* Returns int8 weights (O, kernel_d, kernel_h, kernel_w, C / groups) for `free_conv_weights`; NULL with a reason. */
HIDDEN const int8_t *conv_weights(checker *c, const conv_step *s);
HIDDEN void free_conv_weights(const checker *c, const conv_step *s, const int8_t *weights);

/* What follows from the weights, biases, zero point and ratios. */
typedef struct {
    const int32_t *bias;  /* bias - zero_x Σ w */
    int64_t bound, reach; /* the largest |acc|, and the largest |acc·ratio|, rounded up */
} conv_limits;

/* Finds them, once for all plans of a model; 0 with a reason. The convolution may have no bias (-1). `window`: weights of an output. */
HIDDEN int find_limits(checker *c, const conv_step *s, isize window, conv_limits *found);

#endif
