/* Linear resizing of uint8 images (N, H, W, C): sums of products that float32 holds exactly, and one division, whose
   quotients are far enough from the middle of two integers (intact8/arithmetic/resize.py). */

#include "arguments.h"
#include "kernels.h"

/* up * x + down * x' of `count` bytes each. */
INLINE void blend(const uint8_t *restrict above, const uint8_t *restrict below, float up, float down, float *restrict v,
                  Py_ssize_t count) {
    for (Py_ssize_t c = 0; c < count; c++) v[c] = up * (float)above[c] + down * (float)below[c];
}

/* An index is a row of results. Columns of blended rows are kept in two places, by the parity of their index: the next
   column of results often needs the same ones. */
MULTIVERSION static void resize_portable(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const resize_args *a = (const resize_args *)given;
    const Py_ssize_t channels = a->channels, line = a->width * channels;
    const float total = (float)(a->row_denominator * a->column_denominator);
    float blended[2][BLOCK];
    for (Py_ssize_t at = lo; at < hi; at++) {
        const int32_t *row = a->rows + at % a->out_height * 3;
        const uint8_t *image = a->x + at / a->out_height * a->height * line;
        const float down = (float)row[2], up = (float)(a->row_denominator - row[2]);
        for (Py_ssize_t from = 0; from < channels; from += BLOCK) {
            const Py_ssize_t count = min_size(channels - from, BLOCK);
            const uint8_t *above = image + row[0] * line + from, *below = image + row[1] * line + from;
            int32_t kept[2] = {-1, -1};
            for (Py_ssize_t j = 0; j < a->out_width; j++) {
                const int32_t *column = a->columns + 3 * j;
                for (int side = 0; side < 2; side++) {
                    const int32_t k = column[side];
                    if (kept[k & 1] == k) continue;
                    blend(above + k * channels, below + k * channels, up, down, blended[k & 1], count);
                    kept[k & 1] = k;
                }
                const float after = (float)column[2], before = (float)(a->column_denominator - column[2]);
                const float *restrict left = blended[column[0] & 1], *restrict right = blended[column[1] & 1];
                uint8_t *restrict y = a->y + (at * a->out_width + j) * channels + from;
                for (Py_ssize_t c = 0; c < count; c++)
                    y[c] = (uint8_t)float_bits((before * left[c] + after * right[c]) / total + ROUND_MAGIC);
            }
        }
    }
}

/* Whether all indices are of an axis of this size, the second one that of the first or of its neighbour. */
static int are_taps(const int32_t *taps, Py_ssize_t count, Py_ssize_t size, Py_ssize_t denominator) {
    for (Py_ssize_t i = 0; i < 3 * count; i += 3)
        if (taps[i] < 0 || taps[i + 1] < taps[i] || taps[i + 1] - taps[i] > 1 || taps[i + 1] >= size || taps[i + 2] < 0 ||
            taps[i + 2] > denominator)
            return 0;
    return 1;
}

kernel resize_kernel(const resize_args *a) {
    const Py_ssize_t down = a->row_denominator, across = a->column_denominator;
    const int fits = down > 0 && across > 0 && down <= MAX_DENOMINATOR && across <= MAX_DENOMINATOR / down;
    const int taps = fits && are_taps(a->rows, a->out_height, a->height, down) &&
                     are_taps(a->columns, a->out_width, a->width, across);
    return taps ? resize_portable : NULL;
}

FUNCTION(resize) {
    arguments a;
    if (!parse_arguments(&a, "resize", args, count, 12, 4)) return NULL;
    Py_ssize_t n[8];
    for (int i = 0; i < 8; i++) n[i] = int_at(&a, i + 4);
    const Py_ssize_t width = checked_product(n[2], n[3]), out_width = checked_product(n[5], n[3]);
    const Py_ssize_t rows = checked_product(n[0], n[4]), size = checked_product(rows, out_width);
    if (!check_buffer(&a, 0, a.value[0], checked_product(checked_product(n[0], n[1]), width), 1) ||
        !check_buffer(&a, 1, a.value[1], size, 1) || !check_buffer(&a, 2, a.value[2], checked_product(n[4], 3), 4) ||
        !check_buffer(&a, 3, a.value[3], checked_product(n[5], 3), 4))
        return NULL;
    if (!size) Py_RETURN_NONE;
    const resize_args given = {a.value[0], a.value[1], a.value[2], a.value[3], n[1], n[2], n[3], n[4], n[5],
                               (int32_t)min_size(n[6], INT32_MAX), (int32_t)min_size(n[7], INT32_MAX)};
    const kernel run = resize_kernel(&given);
    if (!run) {
        PyErr_SetString(engine_error, "resize: indices or weights that do not fit");
        return NULL;
    }
    return run_unlocked(run, &given, rows, size);
}
