/* Operands that broadcast against each other. A result is cut into rows of contiguous elements; of every operand it is
   known where the row lies, and whether it holds as many elements or only one. */

#ifndef INTACT8_BROADCAST_H
#define INTACT8_BROADCAST_H

#include "plan.h"

#define MAX_OPERANDS 64

typedef struct {
    isize count, rows, row; /* elements of the result, its rows, and the elements of each */
    isize operands, rank;   /* `rank` dimensions of rows */
    isize size[MAX_RANK], stride[MAX_RANK][MAX_OPERANDS]; /* of these dimensions, in elements */
    isize step[MAX_OPERANDS]; /* from one element of a row to the next: 1 or 0 */
    isize elements[MAX_OPERANDS];
} broadcast;

/* Where the rows of the operands are. */
typedef struct {
    isize index[MAX_RANK], offset[MAX_OPERANDS];
} row_position;

/* Plans the rows of a result of these sizes. Bit k of masks[j] says that operand j has one element along dimension k.
   With `whole`, a row is the last dimension and no more. Returns 0 with a reason. */
HIDDEN int make_broadcast(checker *c, broadcast *b, const int64_t *sizes, int64_t rank, const uint8_t *masks,
                          isize operands, int whole);

/* Finds the operands of a row. */
HIDDEN void seek_row(const broadcast *b, isize row, row_position *at);

/* Goes on to the next row. */
INLINE void next_row(const broadcast *b, row_position *at) {
    for (isize k = b->rank - 1; k >= 0; k--) {
        const isize back = ++at->index[k] < b->size[k] ? 0 : b->size[k];
        for (isize j = 0; j < b->operands; j++) at->offset[j] += b->stride[k][j] * (1 - back);
        if (!back) return;
        at->index[k] = 0;
    }
}

#endif
