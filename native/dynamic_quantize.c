/* Dynamic quantization: rows of float32 to bytes with a scale each, and products back to float32. */

#include "arguments.h"
#include "row_scales.h"

typedef struct {
    const float *x;
    uint8_t *q;
    float *s;
    Py_ssize_t width;
} quantize_rows_args;

MULTIVERSION static void quantize_rows_kernel(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const quantize_rows_args *a = (const quantize_rows_args *)given;
    for (Py_ssize_t r = lo; r < hi; r++) {
        const float *x = a->x + r * a->width;
        const float s = row_scale(x, a->width);
        row_quantize(x, s, 128.0f, a->q + r * a->width, a->width);
        a->s[r] = s;
    }
}

FUNCTION(quantize_rows) {
    arguments a;
    if (!parse_arguments(&a, "quantize_rows", args, count, 5, 3)) return NULL;
    const Py_ssize_t rows = int_at(&a, 3), width = int_at(&a, 4), size = checked_product(rows, width);
    if (!check_buffer(&a, 0, a.value[0], size, 4) || !check_buffer(&a, 1, a.value[1], size, 1) ||
        !check_buffer(&a, 2, a.value[2], rows, 4))
        return NULL;
    const quantize_rows_args given = {a.value[0], a.value[1], a.value[2], width};
    return run_unlocked(quantize_rows_kernel, &given, rows, size);
}

typedef struct {
    float *y;
    const float *s, *bias;
    Py_ssize_t width;
} scale_rows_args;

MULTIVERSION static void scale_rows_kernel(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const scale_rows_args *a = (const scale_rows_args *)given;
    const Py_ssize_t width = a->width;
    for (Py_ssize_t r = lo; r < hi; r++) {
        float *restrict y = a->y + r * width;
        const float *restrict bias = a->bias;
        const float s = a->s[r];
        if (bias)
            for (Py_ssize_t i = 0; i < width; i++) y[i] = y[i] * s + bias[i];
        else
            for (Py_ssize_t i = 0; i < width; i++) y[i] = y[i] * s;
    }
}

FUNCTION(scale_rows) {
    arguments a;
    if (!parse_arguments(&a, "scale_rows", args, count, 5, 3)) return NULL;
    const Py_ssize_t rows = int_at(&a, 3), width = int_at(&a, 4), size = checked_product(rows, width);
    if (!check_buffer(&a, 0, a.value[0], size, 4) || !check_buffer(&a, 1, a.value[1], rows, 4)) return NULL;
    if (a.value[2] && !check_buffer(&a, 2, a.value[2], width, 4)) return NULL;
    if (!size) Py_RETURN_NONE;
    const scale_rows_args given = {a.value[0], a.value[1], a.value[2], width};
    return run_unlocked(scale_rows_kernel, &given, rows, size);
}
