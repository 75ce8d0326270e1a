/* Int32 sums of convolutions that something else than their kernel finishes. */

#ifndef INTACT8_SUMS_H
#define INTACT8_SUMS_H

#include "plan.h"

#define SUM_WINDOWS 32                                     /* windows of 64 channels whose sums are in the L1 cache at a time */
#define SUM_BYTES ((SUM_WINDOWS + 4) * 64 * sizeof(int32_t)) /* of a thread; a tile may compute windows beyond the last */

/* Sums of some windows and channels, the rows of which are `apart`. The first one belongs to a place (a pixel of the result)
   and a channel. `joined`: NULL, or those of another convolution for the same places and channels. */
typedef struct {
    const int32_t *sums, *joined;
    isize rows, channels, apart, place, channel;
} sum_block;

/* What finishes them, with scratch memory of the thread. */
typedef struct {
    void (*run)(const void *args, const sum_block *b, uint8_t *scratch);
    void (*expect)(const void *args, const sum_block *b); /* fetches what `run` will need, while sums are computed */
    const void *args;
} sum_finish;

typedef struct conv_plan conv_plan;

/* Checks a convolution, its result aside. `sum_scratch`: bytes of scratch memory of what finishes its sums; -1 where its kernel
   does. Returns what `run_convolution` needs, or NULL with a reason. */
HIDDEN conv_plan *check_convolution(checker *c, const conv_step *s, isize sum_scratch);

/* Lets `t` compute the sums of another convolution, too, which has the same places and channels and a `sum_scratch` of its own,
   so that both are finished together. Returns whether kernels can; a checked plan is otherwise unchanged. */
HIDDEN int join_convolution(checker *c, conv_plan *t, const conv_step *other, const conv_plan *other_plan);
HIDDEN void run_convolution(frame *f, const conv_step *s, const conv_plan *t, const sum_finish *finish);

#endif
