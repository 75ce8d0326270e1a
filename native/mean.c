/* Means of uint8 images over their pixels: exact sums, then one product in float64, which is rounded once. */

#include "arguments.h"

#define MAX_PIXELS (1 << 24)              /* whose sum fits uint32 */
#define ROUND_MAGIC_64 6755399441055744.0 /* 1.5 * 2^52: adding it rounds a small double to an integer, half to even */

typedef struct {
    const uint8_t *x;
    uint8_t *y;
    Py_ssize_t pixels, channels;
    int64_t offset;
    double ratio, low, high;
    int32_t zero;
} mean_args;

/* An index is a block of BLOCK channels of one sample. */
MULTIVERSION static void mean_kernel(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const mean_args *a = (const mean_args *)given;
    const Py_ssize_t channels = a->channels, blocks = ceil_div(channels, BLOCK);
    uint32_t sum[BLOCK];
    for (Py_ssize_t at = lo; at < hi; at++) {
        const Py_ssize_t n = at / blocks, from = at % blocks * BLOCK, count = min_size(channels - from, BLOCK);
        for (Py_ssize_t c = 0; c < count; c++) sum[c] = 0;
        for (Py_ssize_t p = 0; p < a->pixels; p++) {
            const uint8_t *restrict x = a->x + (n * a->pixels + p) * channels + from;
            for (Py_ssize_t c = 0; c < count; c++) sum[c] += x[c];
        }
        uint8_t *y = a->y + n * channels + from;
        for (Py_ssize_t c = 0; c < count; c++) {
            double v = (double)((int64_t)sum[c] - a->offset) * a->ratio;
            v = v > a->low ? v : a->low;
            v = v < a->high ? v : a->high;
            y[c] = (uint8_t)((int32_t)((v + ROUND_MAGIC_64) - ROUND_MAGIC_64) + a->zero);
        }
    }
}

FUNCTION(mean) {
    arguments a;
    if (!parse_arguments(&a, "mean", args, count, 11, 2)) return NULL;
    const Py_ssize_t samples = int_at(&a, 2), pixels = int_at(&a, 3), channels = int_at(&a, 4), b = int_at(&a, 7);
    const Py_ssize_t low = int_at(&a, 8), high = int_at(&a, 9), zero = int_at(&a, 10);
    const Py_ssize_t results = checked_product(samples, channels), size = checked_product(results, pixels);
    if (!check_buffer(&a, 0, a.value[0], size, 1) || !check_buffer(&a, 1, a.value[1], results, 1)) return NULL;
    if (!check_clamp(&a, low, high, zero)) return NULL;
    if (pixels > MAX_PIXELS || b < 1) {
        PyErr_Format(engine_error, "mean: %zd pixels, or a denominator of %zd", pixels, b);
        return NULL;
    }
    if (!results) Py_RETURN_NONE;
    const mean_args given = {a.value[0], a.value[1], pixels, channels, (int64_t)int_at(&a, 5),
                             (double)int_at(&a, 6) / (double)b, (double)low, (double)high, (int32_t)zero};
    return run_unlocked(mean_kernel, &given, samples * ceil_div(channels, BLOCK), size);
}
