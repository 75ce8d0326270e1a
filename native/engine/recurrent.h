/* What the cells of recurrent layers share. */

#ifndef INTACT8_RECURRENT_H
#define INTACT8_RECURRENT_H

#include "dynamic.h"

#define TABLE_END 4096 /* the last index of the table of tanh */
#define CELL_STEPS 512.0f

/* The hidden product of the gates of one sample. */
typedef struct {
    const int32_t *sums, *offsets;
    const float *scale;
    float s;
} hidden_product;

/* The new states of whole vectors of units of an LSTM on AVX-512, see lstm_cell; returns how many units that were. */
HIDDEN isize lstm_vectors(const float *table, const float *v, const hidden_product *p, isize size, float *h, float *c, int *bad);

#endif
