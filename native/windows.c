/* Windows of images: what a convolution sees. */

#include "native.h"

#include <stdlib.h>

/* Windows of one row side by side, each run of `run` bytes stored as `chunk` of them: what lies beyond is overwritten
   by the next run, and chunk < 2 * run. */
#define COPY_WINDOWS(chunk)                                                                                            \
    for (Py_ssize_t at = 0; at < last; at++) {                                                                         \
        const uint8_t *from = padded + at * hop;                                                                       \
        for (Py_ssize_t k = 0; k < a->tall; k++, from += line, y += run) memcpy(y, from, chunk);                       \
    }

WIDE void unfold_run(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const unfold_args *a = (const unfold_args *)given;
    const Py_ssize_t run = a->wide * a->channels, hop = a->step_right * a->channels, last = a->columns - 1;
    const Py_ssize_t start = a->left * a->channels, bytes = a->width * a->channels;
    const Py_ssize_t reach = last * a->step_right + a->wide, own = a->left + a->width;
    const Py_ssize_t line = (reach > own ? reach : own) * a->channels + LONGEST; /* read behind the last run */
    uint8_t *padded = (uint8_t *)malloc((size_t)(a->tall * line)), *y = a->y + lo * a->columns * a->tall * run;
    if (!padded) {
        *a->no_memory = 1;
        return;
    }
    memset(padded, a->zero, (size_t)(a->tall * line));
    for (Py_ssize_t r = lo; r < hi; r++) {
        const Py_ssize_t n = r / a->rows, top = r % a->rows * a->step_down - a->above;
        for (Py_ssize_t k = 0; k < a->tall; k++) {
            uint8_t *row = padded + k * line + start;
            if (top + k < 0 || top + k >= a->height)
                memset(row, a->zero, (size_t)bytes);
            else
                memcpy(row, a->x + (n * a->height + top + k) * bytes, (size_t)bytes);
        }
        if (run == 1) COPY_WINDOWS(1)
        else if (run == 2) COPY_WINDOWS(2)
        else if (run <= 4) COPY_WINDOWS(4)
        else if (run <= 8) COPY_WINDOWS(8)
        else if (run <= 16) COPY_WINDOWS(16)
        else if (run <= 32) COPY_WINDOWS(32)
        else COPY_WINDOWS(64)
        /* The last window exactly: what follows may be another thread's. */
        for (Py_ssize_t k = 0; k < a->tall; k++, y += run) memcpy(y, padded + k * line + last * hop, (size_t)run);
    }
    free(padded);
}
