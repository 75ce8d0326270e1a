/* Sums of convolutions that become float32: scaled, with a bias, then whatever the code of a chain computes of them, and
   stored as float32, as bytes, or as both. */

#ifndef INTACT8_FLOAT_RESULTS_H
#define INTACT8_FLOAT_RESULTS_H

#include "chain.h"
#include "quantize.h"
#include "sums.h"

/* What kernels for single vectors compute behind the bias: mostly a sum with another tensor, then with one that a batch norm
   scales and shifts, then one function, then a quotient by one number of each channel. */
typedef struct {
    int usual; /* whether that is all there is to compute */
    int known; /* whether all instructions are known to them, which takes longer */
    isize operand, scaled, factor, shift, divisor; /* (operand + scaled factor + shift) / divisor, of which operands; 0 for none */
    enum chain_known function;
    float low, high; /* of the clamp */
} usual_code;

typedef struct {
    isize channels;
    const float *scale, *bias; /* bias: NULL for none */
    const chain_plan *code;    /* NULL for none; its first operand is what is computed here */
    usual_code usual;
    isize joined; /* the operand that becomes of the joined sums, as the result does of its own; 0 for none */
    const float *joined_scale, *joined_bias;
    const void *operand[MAX_OPERANDS];
    float *y;   /* NULL where nobody needs it, as q */
    uint8_t *q;
    quantize_args grid; /* of q */
} float_results;

HIDDEN usual_code usual_code_of(const chain_plan *code);
HIDDEN isize float_results_scratch(const chain_plan *code);

/* A sum_finish of float_results. */
HIDDEN void finish_floats(const void *args, const sum_block *b, uint8_t *scratch);
HIDDEN void expect_floats(const void *args, const sum_block *b);

#endif
