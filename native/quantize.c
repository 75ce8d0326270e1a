/* float32 to uint8, also with channels moved to the end, and uint8 to float32. */

#include "arguments.h"
#include "kernels.h"

/* Quantizes `count` elements; returns the bits of the largest magnitude, or of m if that is larger. */
INLINE int32_t quantize_elements(const quantize_args *a, const float *restrict x, uint8_t *restrict y, Py_ssize_t count,
                                 const int divide, int32_t m) {
    const float low = a->low, high = a->high, divisor = a->divisor;
    const int32_t zero = a->zero;
    for (Py_ssize_t i = 0; i < count; i++) {
        m = max_magnitude(m, x[i]);
        y[i] = to_uint8(divide ? x[i] / divisor : x[i], low, high, zero);
    }
    return m;
}

MULTIVERSION void quantize_kernel(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const quantize_args *a = (const quantize_args *)given;
    const int32_t m = a->divide ? quantize_elements(a, a->x + lo, a->y + lo, hi - lo, 1, 0)
                                : quantize_elements(a, a->x + lo, a->y + lo, hi - lo, 0, 0);
    if (m > INFINITY_BITS) *a->nan = 1;
}

MULTIVERSION void quantize_nhwc_kernel(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const quantize_nhwc_args *a = (const quantize_nhwc_args *)given;
    const Py_ssize_t channels = a->channels, pixels = a->pixels;
    uint8_t rows[3][BLOCK];
    int32_t m = 0;
    for (Py_ssize_t at = lo; at < hi; at++) {
        const Py_ssize_t n = at / a->blocks, from = at % a->blocks * BLOCK, count = min_size(pixels - from, BLOCK);
        const float *x = a->q.x + n * channels * pixels + from;
        uint8_t *restrict y = a->q.y + (n * pixels + from) * channels;
        if (channels == 3) { /* three channels are stored as whole vectors */
            for (Py_ssize_t c = 0; c < 3; c++) m = quantize_elements(&a->q, x + c * pixels, rows[c], count, 1, m);
            for (Py_ssize_t i = 0; i < count; i++) {
                y[3 * i] = rows[0][i];
                y[3 * i + 1] = rows[1][i];
                y[3 * i + 2] = rows[2][i];
            }
            continue;
        }
        for (Py_ssize_t c = 0; c < channels; c++) {
            m = quantize_elements(&a->q, x + c * pixels, rows[0], count, 1, m);
            for (Py_ssize_t i = 0; i < count; i++) y[i * channels + c] = rows[0][i];
        }
    }
    if (m > INFINITY_BITS) *a->q.nan = 1;
}

/* Quantizes the buffers 0 and 1, with the divisor, the limits and the zero point from integer `first` on, then whether
   this thread works alone. Returns whether x holds NaN. */
static PyObject *run_quantize(const arguments *a, kernel run, quantize_nhwc_args *given, int first, Py_ssize_t count,
                              Py_ssize_t size) {
    if (!check_buffer(a, 0, a->value[0], size, 4) || !check_buffer(a, 1, a->value[1], size, 1)) return NULL;
    if (!check_clamp(a, int_at(a, first + 1), int_at(a, first + 2), int_at(a, first + 3))) return NULL;
    if (!size) Py_RETURN_FALSE;
    volatile int nan = 0;
    const float divisor = float_at(a, first);
    given->q = (quantize_args){a->value[0], a->value[1], divisor, (float)int_at(a, first + 1), (float)int_at(a, first + 2),
                               (int32_t)int_at(a, first + 3), divisor != 1.0f, &nan};
    Py_DECREF(run_unlocked(run, given, count, a->value[first + 4] ? 0 : size));
    return PyBool_FromLong(nan);
}

FUNCTION(quantize) {
    arguments a;
    quantize_nhwc_args given = {0};
    if (!parse_arguments(&a, "quantize", args, count, 8, 2)) return NULL;
    return run_quantize(&a, quantize_kernel, &given, 3, int_at(&a, 2), int_at(&a, 2));
}

FUNCTION(quantize_nhwc) {
    arguments a;
    if (!parse_arguments(&a, "quantize_nhwc", args, count, 10, 2)) return NULL;
    const Py_ssize_t samples = int_at(&a, 2), channels = int_at(&a, 3), pixels = int_at(&a, 4);
    quantize_nhwc_args given = {.channels = channels, .pixels = pixels, .blocks = ceil_div(pixels, BLOCK)};
    const Py_ssize_t size = checked_product(checked_product(samples, channels), pixels);
    return run_quantize(&a, quantize_nhwc_kernel, &given, 5, checked_product(samples, given.blocks), size);
}

/* y = (x - zero) * scale; rows of x lie `stride` apart, rows of y side by side. */
typedef struct {
    const uint8_t *x;
    float *y;
    Py_ssize_t width, stride;
    float scale;
    int32_t zero;
} dequantize_args;

MULTIVERSION static void dequantize_kernel(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const dequantize_args *a = (const dequantize_args *)given;
    const float scale = a->scale;
    const int32_t zero = a->zero;
    for (Py_ssize_t r = lo; r < hi; r++) {
        const uint8_t *restrict x = a->x + r * a->stride;
        float *restrict y = a->y + r * a->width;
        for (Py_ssize_t i = 0; i < a->width; i++) y[i] = (float)((int32_t)x[i] - zero) * scale;
    }
}

FUNCTION(dequantize) {
    arguments a;
    if (!parse_arguments(&a, "dequantize", args, count, 7, 2)) return NULL;
    const Py_ssize_t rows = int_at(&a, 2), width = int_at(&a, 3), stride = int_at(&a, 4), zero = int_at(&a, 6);
    const Py_ssize_t size = checked_product(rows, width);
    if (!check_buffer(&a, 0, a.value[0], strided_extent(rows, stride, width), 1)) return NULL;
    if (!check_buffer(&a, 1, a.value[1], size, 4) || !check_clamp(&a, 0, 0, zero)) return NULL;
    if (!size) Py_RETURN_NONE;
    const dequantize_args given = {a.value[0], a.value[1], width, stride, float_at(&a, 5), (int32_t)zero};
    return run_unlocked(dequantize_kernel, &given, rows, size);
}
