/* Which taps of a window lie inside of an image, along one axis. */

#ifndef INTACT8_WINDOWS_H
#define INTACT8_WINDOWS_H

#include "core.h"

#define MAX_SIZE ((int64_t)1 << 30) /* of an axis, a stride, a distance, so that no position overflows */

/* The number of taps, of `kernel` that lie `dilation` apart from position `start` on, that lie inside; *first is the first. */
INLINE isize taps_inside(isize start, isize dilation, isize kernel, isize size, isize *first) {
    *first = start < 0 ? min_size(ceil_div(-start, dilation), kernel) : 0;
    const isize end = start < size ? min_size(ceil_div(size - start, dilation), kernel) : 0;
    return max_size(end - *first, 0);
}

#endif
