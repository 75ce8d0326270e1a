/* Norms, softmax, means and sums of float32, in float64 with a fixed order of additions. */

#include "functions.h"
#include "plan.h"

#define LANES 16

/* Adds LANES sums of every LANES-th term, then these in their order. */
#define SUM_LANES(total, count, term)                                                    \
    do {                                                                                 \
        double lane[LANES] = {0};                                                        \
        isize i = 0;                                                                     \
        for (; i + LANES <= (count); i += LANES)                                         \
            for (isize l = 0; l < LANES; l++) lane[l] += term(i + l);                  \
        for (isize l = 0; i < (count); i++, l++) lane[l] += term(i);                   \
        (total) = 0;                                                                     \
        for (isize l = 0; l < LANES; l++) (total) += lane[l];                            \
    } while (0)

/* ---- norms ------------------------------------------------------------------------------------------------------------ */

typedef struct {
    const float *x, *weight, *bias;
    float *y;
    isize groups, each, places;
    double epsilon;
    int centered;
} float_norm_args;

int check_float_norm(checker *c, const int64_t *step) {
    const float_norm_step *s = (const float_norm_step *)(const void *)step;
    const isize channels = checked_product((isize)s->groups, (isize)s->each);
    const isize count = checked_product((isize)s->outer, checked_product(channels, (isize)s->places));
    if (s->groups < 1 || s->each < 1 || s->places < 1) return refuse(c, "a norm of no such size");
    return needs(c, s->x, count, 4, "x") && needs(c, s->y, count, 4, "y") &&
           (s->weight < 0 || needs(c, s->weight, channels, 4, "weight")) &&
           (s->bias < 0 || needs(c, s->bias, channels, 4, "bias"));
}

#define DIFFERENCE(i) ((double)x[i] - mean)
#define SQUARE(i) (DIFFERENCE(i) * DIFFERENCE(i))
#define ELEMENT(i) ((double)x[i])

/* An index is a row: the elements and places of a group. */
MULTIVERSION static void float_norm_kernel(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const float_norm_args *a = (const float_norm_args *)given;
    const isize each = a->each, places = a->places, n = each * places;
    (void)scratch;
    for (isize row = lo; row < hi; row++) {
        const float *restrict x = a->x + row * n;
        float *restrict y = a->y + row * n;
        double mean = 0, square;
        if (a->centered) {
            SUM_LANES(mean, n, ELEMENT);
            mean /= (double)n;
        }
        SUM_LANES(square, n, SQUARE);
        const double factor = 1.0 / sqrt(square / (double)n + a->epsilon);
        const float *weight = a->weight ? a->weight + row % a->groups * each : NULL;
        const float *bias = a->bias ? a->bias + row % a->groups * each : NULL;
        if (places == 1 && weight && bias) {
            for (isize i = 0; i < n; i++) y[i] = (float)(DIFFERENCE(i) * factor * (double)weight[i] + (double)bias[i]);
            continue;
        }
        for (isize e = 0; e < each; e++, x += places, y += places) {
            const double gain = weight ? (double)weight[e] : 1.0, offset = bias ? (double)bias[e] : 0.0;
            for (isize i = 0; i < places; i++) y[i] = (float)(DIFFERENCE(i) * factor * gain + offset);
        }
    }
}

void run_float_norm(frame *f, const int64_t *step, void *prepared) {
    const float_norm_step *s = (const float_norm_step *)(const void *)step;
    const float_norm_args a = {at(f, s->x), at(f, s->weight), at(f, s->bias), at(f, s->y), (isize)s->groups, (isize)s->each,
                               (isize)s->places, bits_double(s->epsilon), s->centered != 0};
    const isize rows = (isize)(s->outer * s->groups);
    (void)prepared;
    if (rows) parallel(f, float_norm_kernel, &a, rows, rows * a.each * a.places * 4);
}

/* ---- softmax ---------------------------------------------------------------------------------------------------------- */

typedef struct {
    const float *x;
    float *y;
    isize columns;
    int logarithm;
} float_softmax_args;

int check_float_softmax(checker *c, const int64_t *step) {
    const float_softmax_step *s = (const float_softmax_step *)(const void *)step;
    const isize count = checked_product((isize)s->rows, (isize)s->columns);
    return needs(c, s->x, count, 4, "x") && needs(c, s->y, count, 4, "y");
}

#define RESULT(i) ((double)y[i])

/* An index is a row. NaN or +inf in it make all of it NaN, since their exponential or distance is NaN. */
MULTIVERSION static void float_softmax_kernel(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const float_softmax_args *a = (const float_softmax_args *)given;
    const isize n = a->columns;
    (void)scratch;
    for (isize row = lo; row < hi; row++) {
        const float *restrict x = a->x + row * n;
        float *restrict y = a->y + row * n;
        float lane[LANES], most = x[0];
        double total;
        isize i = 0;
        for (isize l = 0; l < LANES; l++) lane[l] = x[0];
        for (; i + LANES <= n; i += LANES)
            for (isize l = 0; l < LANES; l++) lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
        for (; i < n; i++) most = x[i] > most ? x[i] : most;
        for (isize l = 0; l < LANES; l++) most = lane[l] > most ? lane[l] : most;
        for (i = 0; i < n; i++) y[i] = (float)exp_wide((double)(x[i] - most));
        SUM_LANES(total, n, RESULT);
        const float sum = (float)total, shift = (float)log(total);
        if (a->logarithm)
            for (i = 0; i < n; i++) y[i] = x[i] - most - shift;
        else
            for (i = 0; i < n; i++) y[i] = y[i] / sum;
    }
}

void run_float_softmax(frame *f, const int64_t *step, void *prepared) {
    const float_softmax_step *s = (const float_softmax_step *)(const void *)step;
    const float_softmax_args a = {at(f, s->x), at(f, s->y), (isize)s->columns, s->logarithm != 0};
    (void)prepared;
    if (s->rows && s->columns) parallel(f, float_softmax_kernel, &a, (isize)s->rows, (isize)(s->rows * s->columns) * 16);
}

/* ---- reductions ------------------------------------------------------------------------------------------------------- */

enum { MEAN, SUM, LARGEST, LEAST, PRODUCT };

typedef struct {
    const float *x;
    float *y;
    isize count, inner;
    int64_t function;
} float_reduce_args;

int check_float_reduce(checker *c, const int64_t *step) {
    const float_reduce_step *s = (const float_reduce_step *)(const void *)step;
    const isize results = checked_product((isize)s->outer, (isize)s->inner);
    if (s->function < MEAN || s->function > PRODUCT || s->count < 1) return refuse(c, "a reduction of no such function or size");
    return needs(c, s->x, checked_product(results, (isize)s->count), 4, "x") && needs(c, s->y, results, 4, "y");
}

/* Reduces up to BLOCK columns; NaN stays. */
INLINE void reduce_columns(const float_reduce_args *a, const float *restrict x, float *restrict y, isize columns) {
    double sum[BLOCK] = {0};
    float most[BLOCK];
    const int64_t function = a->function;
    memcpy(most, x, (size_t)columns * sizeof *most);
    for (isize k = 0; k < a->count; k++, x += a->inner) {
        if (function <= SUM)
            for (isize i = 0; i < columns; i++) sum[i] += (double)x[i];
        else if (function == PRODUCT)
            for (isize i = 0; i < columns; i++) sum[i] = (k ? sum[i] : 1.0) * (double)x[i];
        else if (function == LARGEST)
            for (isize i = 0; i < columns; i++) most[i] = x[i] > most[i] || x[i] != x[i] ? x[i] : most[i];
        else
            for (isize i = 0; i < columns; i++) most[i] = x[i] < most[i] || x[i] != x[i] ? x[i] : most[i];
    }
    const double divisor = function == MEAN ? (double)a->count : 1.0;
    for (isize i = 0; i < columns; i++) y[i] = function <= SUM || function == PRODUCT ? (float)(sum[i] / divisor) : most[i];
}

/* An index is a block of columns of an outer index; with one column each, a row. */
MULTIVERSION static void float_reduce_kernel(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const float_reduce_args *a = (const float_reduce_args *)given;
    const isize blocks = ceil_div(a->inner, BLOCK), n = a->count;
    (void)scratch;
    for (isize index = lo; index < hi; index++) {
        const isize outer = index / blocks, from = index % blocks * BLOCK;
        const float *restrict x = a->x + outer * n * a->inner + from;
        float *restrict y = a->y + outer * a->inner + from;
        if (a->inner == 1 && a->function <= SUM) {
            double total;
            SUM_LANES(total, n, ELEMENT);
            *y = (float)(a->function == MEAN ? total / (double)n : total);
        } else
            reduce_columns(a, x, y, min_size(a->inner - from, BLOCK));
    }
}

void run_float_reduce(frame *f, const int64_t *step, void *prepared) {
    const float_reduce_step *s = (const float_reduce_step *)(const void *)step;
    const float_reduce_args a = {at(f, s->x), at(f, s->y), (isize)s->count, (isize)s->inner, s->function};
    const isize results = (isize)(s->outer * s->inner);
    (void)prepared;
    if (results) parallel(f, float_reduce_kernel, &a, (isize)s->outer * ceil_div(a.inner, BLOCK), results * a.count);
}
