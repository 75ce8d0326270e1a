/* Passes of quantization-aware training over float32 tensors, called by intact8/train/fused.py. */

#ifndef INTACT8_TRAINING_H
#define INTACT8_TRAINING_H

#include "core.h"

/* An argument of a pass: an address, a number or a float, in the order of the pass's struct in training.c. */
typedef union {
    int64_t number;
    double real;
    void *at;
} training_word;

/* Runs the pass of that name. Returns 0 where there is none that takes so many words. */
HIDDEN int run_training(const char *name, const training_word *words, isize count, int threads);

#endif
