/* Layer norm of float32 rows, for float islands: its last bits may differ from those of torch. */

#include "arguments.h"

#include <math.h>

#define LANES 16 /* partial sums, which are added in a fixed order */

INLINE float sum_lanes(const float *sum) {
    float part[LANES / 2];
    for (int i = 0; i < LANES / 2; i++) part[i] = sum[i] + sum[i + LANES / 2];
    return ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
}

typedef struct {
    const float *x, *weight, *bias;
    float *y; /* may be the memory of x */
    Py_ssize_t width;
    float epsilon;
} layer_norm_args;

/* (x - mean) / sqrt(variance + epsilon) * weight + bias; the mean and the variance take a pass each. */
MULTIVERSION static void layer_norm_kernel(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const layer_norm_args *a = (const layer_norm_args *)given;
    const Py_ssize_t width = a->width, whole = width / LANES * LANES;
    const float *restrict weight = a->weight, *restrict bias = a->bias;
    for (Py_ssize_t r = lo; r < hi; r++) {
        const float *x = a->x + r * width;
        float *y = a->y + r * width;
        float sum[LANES] = {0};
        for (Py_ssize_t i = 0; i < whole; i += LANES)
            for (int j = 0; j < LANES; j++) sum[j] += x[i + j];
        for (Py_ssize_t i = whole; i < width; i++) sum[i - whole] += x[i];
        const float mean = sum_lanes(sum) / (float)width;
        for (int j = 0; j < LANES; j++) sum[j] = 0.0f;
        for (Py_ssize_t i = 0; i < whole; i += LANES)
            for (int j = 0; j < LANES; j++) sum[j] += (x[i + j] - mean) * (x[i + j] - mean);
        for (Py_ssize_t i = whole; i < width; i++) sum[i - whole] += (x[i] - mean) * (x[i] - mean);
        const float slope = 1.0f / sqrtf(sum_lanes(sum) / (float)width + a->epsilon);
        for (Py_ssize_t i = 0; i < width; i++) y[i] = (x[i] - mean) * slope * weight[i] + bias[i];
    }
}

FUNCTION(layer_norm) {
    arguments a;
    if (!parse_arguments(&a, "layer_norm", args, count, 7, 4)) return NULL;
    const Py_ssize_t rows = int_at(&a, 4), width = int_at(&a, 5), size = checked_product(rows, width);
    if (!check_buffer(&a, 0, a.value[0], size, 4) || !check_buffer(&a, 1, a.value[1], width, 4) ||
        !check_buffer(&a, 2, a.value[2], width, 4) || !check_buffer(&a, 3, a.value[3], size, 4))
        return NULL;
    if (!size) Py_RETURN_NONE;
    const layer_norm_args given = {a.value[0], a.value[1], a.value[2], a.value[3], width, float_at(&a, 6)};
    return run_unlocked(layer_norm_kernel, &given, rows, size);
}
