/* Where the values of a plan lie in its workspace. */

#include "plan.h"

#include <stdlib.h>

/* The room that a value takes. */
static isize room_of(const value *v) { return round_up((isize)v->bytes + 1, ALIGNMENT); }

static int larger(const void *a, const void *b) {
    const value *x = *(value *const *)a, *y = *(value *const *)b;
    return x->bytes != y->bytes ? (x->bytes < y->bytes ? 1 : -1) : x < y ? -1 : 1;
}

/* Places a value at the lowest place that is free while it lives, and among those that are placed, in the order of their
   places. Returns where it ends, or -1 where that is beyond what can be. */
static isize place(value *v, value **placed, isize done) {
    isize offset = 0, to = done;
    for (isize j = 0; j < done; j++) {
        const value *other = placed[j];
        if (other->last < v->first || v->last < other->first) continue;
        if (offset + room_of(v) <= other->offset) break;
        offset = max_size(offset, other->offset + room_of(other));
    }
    v->offset = offset;
    for (; to > 0 && offset < placed[to - 1]->offset; to--) placed[to] = placed[to - 1];
    placed[to] = v;
    return offset > MAX_BYTES ? -1 : checked_sum(offset, room_of(v));
}

isize place_values(value *v, isize count) {
    value **order = (value **)calloc((size_t)count + 1, 2 * sizeof *order);
    isize used = 0, bytes = 0;
    if (!order) return -1;
    value **placed = order + count;
    for (isize i = 0; i < count; i++)
        if (v[i].storage == WORKSPACE && v[i].last >= 0) order[used++] = &v[i];
    qsort((void *)order, (size_t)used, sizeof *order, larger);
    for (isize k = 0; k < used && bytes >= 0; k++) {
        const isize end = place(order[k], placed, k);
        bytes = end < 0 ? -1 : max_size(bytes, end);
    }
    free((void *)order);
    return bytes;
}
