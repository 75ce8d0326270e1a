/* Chains: instructions on elements, which steps of their own and the results of convolutions share. */

#ifndef INTACT8_CHAIN_H
#define INTACT8_CHAIN_H

#include "plan.h"

#define CHAIN_BLOCK 256 /* elements: a few blocks of them stay in the L1 cache */
#define MAX_OPERANDS 16
#define MAX_INSTRUCTIONS 32
#define ELEMENT 8 /* bytes of an element of a register */

/* Types of results, and of operands, whose int64 and bytes are read as float32 (INT64S, GRID) or as int64. */
enum { FLOATS, GRID, INT64S, BOOLS, WHOLE_INT64S = 3, WHOLE_BYTES };

typedef struct {
    isize type, mask;
    int32_t zero;
    float scale;
    isize stride[MAX_RANK]; /* in elements, 0 where it is broadcast */
} chain_operand;

typedef struct {
    int64_t operation;
    isize a, b; /* registers: operands, then results of instructions */
    double p, q;
} chain_instruction;

typedef struct {
    isize operands, instructions, rank, size[MAX_RANK], blocks;
    int whole; /* whether the result is int64 */
    chain_operand operand[MAX_OPERANDS];
    chain_instruction instruction[MAX_INSTRUCTIONS];
} chain_plan;

/* Checks the code of a chain whose operands are `values` (negative: none that is in memory) and whose result has these sizes.
   Returns it, without sizes and strides, or NULL with a reason. */
HIDDEN chain_plan *check_code(checker *c, int64_t code, const int64_t *values, isize operands, int64_t instructions,
                              const int64_t *sizes, int64_t rank);

/* Returns n elements of x from `at` on as float32: where they are, or in `to`. The stride is 1, or 0 for one element n times. */
HIDDEN const void *load_operand(const chain_operand *o, const void *x, isize at, isize stride, isize n, float *restrict to);

/* Computes an instruction of float32 for n elements. */
HIDDEN void compute(const chain_instruction *t, const float *a, const float *b, float *restrict y, isize n);

/* What kernels for single vectors know of an instruction of float32. */
enum chain_known { OTHER, ADDS, SUBTRACTS, MULTIPLIES, DIVIDES, RELU, CLAMP, SILU, HARDSWISH, GELU, GELU_TANH };
HIDDEN enum chain_known known_instruction(const chain_instruction *t);

#endif
