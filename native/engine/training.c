/* Passes of quantization-aware training: what torch does in several passes over a tensor, each of these does in one.

   Every value is computed by the operations of the torch formula, in its order, so integers are the same. Sums are added
   in LANES lanes over at most RUN numbers and then as doubles, in an order that does not depend on the number of threads.
   NaN stays NaN, so that the loss shows it. */

#include "plan.h"
#include "training.h"

#include <math.h>

#define LANES 16
#define RUN 4096
#define PIECE 256      /* elements that are computed aside at once; a divisor of RUN */
#define SHORT 128      /* rows of fewer elements are brought together: many short loops are slow */
#define PARTS 4        /* parts for every thread */
#define GRAIN 32768    /* elements from which a second thread pays */

/* clamp(R(v), low, high); the clamp comes first, which is the same for limits that are integers. */
INLINE float rounded(float v, float low, float high) {
    v = v < low ? low : v;
    v = v > high ? high : v;
    return (v + ROUND_MAGIC) - ROUND_MAGIC;
}

/* The gradient of a value that passes where low < v < high, as torch's hardtanh_backward. */
INLINE float passed(float grad, float v, float low, float high) { return v <= low || v >= high ? 0.0f : grad; }

INLINE double lane_sum(const float *lanes) {
    double sum = 0;
    for (int i = 0; i < LANES; i++) sum += (double)lanes[i];
    return sum;
}

/* Each of these adds to LANES lanes: values; squares of their distances from `mean`; products. */
#define ADDER(name, parameters, added) \
    INLINE void name parameters { \
        float own[LANES]; \
        memcpy(own, lanes, sizeof own); \
        isize from = 0; \
        for (; from + LANES <= count; from += LANES) \
            for (int l = 0; l < LANES; l++) { \
                const isize i = from + l; \
                own[l] += added; \
            } \
        for (isize i = from; i < count; i++) own[0] += added; \
        memcpy(lanes, own, sizeof own); \
    }
ADDER(add_values, (const float *a, isize count, float *lanes), a[i])
ADDER(add_squares, (const float *a, float mean, isize count, float *lanes), (a[i] - mean) * (a[i] - mean))
ADDER(add_products, (const float *a, const float *b, isize count, float *lanes), a[i] * b[i])

/* ---- parts ------------------------------------------------------------------------------------------------------------ */

typedef void (*range_function)(const training_word *w, isize from, isize to);

typedef struct {
    range_function run;
    const training_word *words;
    isize count;
    int parts;
} range_job;

static void run_range(void *given, int part, int thread) {
    const range_job *j = (const range_job *)given;
    (void)thread;
    j->run(j->words, j->count * part / j->parts, j->count * (part + 1) / j->parts);
}

/* Splits `count` items of `work` elements each. */
static void over(range_function run, const training_word *w, isize count, isize work, int threads) {
    if (count * work < GRAIN) threads = 1;
    const isize parts = threads > 1 ? min_size(count, (isize)threads * PARTS) : 1;
    range_job j = {run, w, count, (int)parts};
    if (count > 0) run_parts_in_team(run_range, &j, (int)parts, threads);
}

/* ---- batch norm with statistics of the batch, and the rounding behind it ---------------------------------------------- */

typedef struct {
    const float *z, *weight, *bias, *step; /* (outer, channels, inner); (channels), where NULL is 1 and 0; (steps) */
    float *q, *mean, *invstd, *running_mean, *running_var; /* running_…: may be NULL */
    float *ends; /* (channels, 2): the smallest and the largest value before it is rounded; NULL: not wanted */
    int64_t steps, outer, channels, inner;                 /* steps: 1 or channels */
    double momentum, eps, low, high;
} normalize_words;

/* What values of a channel are multiplied by, and what is added, to normalize them in steps of the result. */
INLINE void in_steps(const float *weight, const float *bias, float step, float mean, float invstd, isize c, float *scale, float *shift) {
    *scale = invstd * ((weight ? weight[c] : 1.0f) / step);
    *shift = (bias ? bias[c] : 0.0f) / step - mean * *scale;
}

/* The sum of a block, and that of the squares of its distances from its mean. */
MULTIVERSION static void block_moments(const float *x, isize count, double *sum, double *squares) {
    *sum = *squares = 0;
    for (isize from = 0; from < count; from += RUN) {
        float lanes[LANES] = {0};
        add_values(x + from, min_size(RUN, count - from), lanes);
        *sum += lane_sum(lanes);
    }
    const float mean = (float)(*sum / (double)count);
    for (isize from = 0; from < count; from += RUN) {
        float lanes[LANES] = {0};
        add_squares(x + from, mean, min_size(RUN, count - from), lanes);
        *squares += lane_sum(lanes);
    }
    /* The mean was rounded to a float, and the distances are from that. */
    const double off = *sum / (double)count - (double)mean;
    *squares -= off * off * (double)count;
}

MULTIVERSION static void scale_round(const float *x, float *y, isize count, float scale, float shift, float low, float high) {
    for (isize i = 0; i < count; i++) y[i] = rounded(x[i] * scale + shift, low, high);
}

/* Widens least … most to hold all of these. With as many lanes as compilers keep as a loop, which they then make vectors of: what they
   unroll becomes comparisons and moves of one number each, fifteen times as slow. */
MULTIVERSION static void widen(const float *x, isize count, float *least, float *most) {
    enum { MANY = 8 * LANES };
    float low[MANY], high[MANY];
    for (int l = 0; l < MANY; l++) low[l] = *least, high[l] = *most;
    for (isize from = 0; from < count; from += MANY) {
        const int here = (int)min_size(MANY, count - from);
        for (int l = 0; l < here; l++) {
            const float v = x[from + l];
            low[l] = v < low[l] ? v : low[l];
            high[l] = v > high[l] ? v : high[l];
        }
    }
    for (int half = MANY / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++) {
            low[l] = low[l + half] < low[l] ? low[l + half] : low[l];
            high[l] = high[l + half] > high[l] ? high[l + half] : high[l];
        }
    *least = low[0], *most = high[0];
}

/* Rows of a channel that are taken at once, of `inner` elements each: together at most RUN elements where they are short. */
static isize rows_at_once(isize inner) { return inner < SHORT ? RUN / inner : 1; }

/* Rows that are `stride` apart: where they are several, brought together in `aside`. */
MULTIVERSION static const float *together(const float *x, isize rows, isize stride, isize inner, float *restrict aside) {
    if (rows == 1) return x;
    for (isize n = 0; n < rows; n++)
        for (isize i = 0; i < inner; i++) aside[n * inner + i] = x[n * stride + i];
    return aside;
}

MULTIVERSION static void apart(const float *restrict from, float *restrict to, isize rows, isize stride, isize inner) {
    for (isize n = 0; n < rows; n++)
        for (isize i = 0; i < inner; i++) to[n * stride + i] = from[n * inner + i];
}

/* Keeps the statistics of a channel; returns what its values are multiplied by, and what is added. */
static void keep_statistics(const normalize_words *w, isize c, double mean, double squares, float *scale, float *shift) {
    const double count = (double)w->outer * (double)w->inner;
    const float invstd = (float)(1 / sqrt(squares / count + w->eps));
    w->mean[c] = (float)mean, w->invstd[c] = invstd;
    if (w->running_mean) w->running_mean[c] = (float)(w->momentum * mean + (1 - w->momentum) * (double)w->running_mean[c]);
    if (w->running_var)
        w->running_var[c] = (float)(w->momentum * (squares / (count - 1)) + (1 - w->momentum) * (double)w->running_var[c]);
    in_steps(w->weight, w->bias, w->step[w->steps > 1 ? c : 0], w->mean[c], invstd, c, scale, shift);
}

static void normalize_channels(const training_word *given, isize from, isize to) {
    const normalize_words *w = (const normalize_words *)(const void *)given;
    const isize outer = (isize)w->outer, inner = (isize)w->inner, stride = (isize)w->channels * inner, most = rows_at_once(inner);
    float aside[RUN], made[RUN];
    const float *z = NULL;
    for (isize c = from; c < to; c++) {
        float scale, shift, least = INFINITY, largest = -INFINITY;
        double mean = 0, squares = 0;
        for (isize n = 0; n < outer; n += most) { /* Chan et al. 1979 */
            const isize rows = min_size(most, outer - n);
            const double before = (double)n * (double)inner, count = (double)rows * (double)inner;
            double sum, own;
            z = together(w->z + c * inner + n * stride, rows, stride, inner, aside);
            block_moments(z, rows * inner, &sum, &own);
            if (w->ends) widen(z, rows * inner, &least, &largest);
            const double distance = sum / count - mean;
            mean += distance * count / (before + count);
            squares += own + distance * distance * before * count / (before + count);
        }
        keep_statistics(w, c, mean, squares, &scale, &shift);
        if (w->ends) { /* a channel with a NaN has a mean that is one */
            const float a = least * scale + shift, b = largest * scale + shift;
            w->ends[2 * c] = a < b ? a : b, w->ends[2 * c + 1] = a < b ? b : a;
        }
        for (isize n = 0; n < outer; n += most) {
            const isize rows = min_size(most, outer - n);
            float *q = w->q + c * inner + n * stride;
            if (outer > most) z = together(w->z + c * inner + n * stride, rows, stride, inner, aside);
            scale_round(z, rows == 1 ? q : made, rows * inner, scale, shift, (float)w->low, (float)w->high);
            if (rows > 1) apart(made, q, rows, stride, inner);
        }
    }
}

static void normalize(const training_word *given, int threads) {
    const normalize_words *w = (const normalize_words *)(const void *)given;
    over(normalize_channels, given, (isize)w->channels, (isize)(w->outer * w->inner), threads);
}

typedef struct {
    const float *grad, *z, *weight, *bias, *step, *mean, *invstd;
    float *grad_z, *grad_weight, *grad_bias, *grad_step; /* grad_z may be NULL; grad_step: (channels) */
    int64_t steps, outer, channels, inner;
    double low, high;
} normalize_backward_words;

typedef struct {
    float scale, shift, low, high, mean, grad_mean, slope, factor;
} normalize_channel;

MULTIVERSION static void grad_sums(const float *grad, const float *z, isize count, const normalize_channel *c, double *sum, double *dot) {
    for (isize from = 0; from < count; from += RUN) {
        const isize to = min_size(count, from + RUN);
        float sums[LANES] = {0}, dots[LANES] = {0};
        isize i = from;
        for (; i + LANES <= to; i += LANES)
            for (int l = 0; l < LANES; l++) {
                const float g = passed(grad[i + l], z[i + l] * c->scale + c->shift, c->low, c->high);
                sums[l] += g;
                dots[l] += g * (z[i + l] - c->mean);
            }
        for (; i < to; i++) {
            const float g = passed(grad[i], z[i] * c->scale + c->shift, c->low, c->high);
            sums[0] += g;
            dots[0] += g * (z[i] - c->mean);
        }
        *sum += lane_sum(sums);
        *dot += lane_sum(dots);
    }
}

MULTIVERSION static void grad_inputs(const float *grad, const float *z, float *to, isize count, const normalize_channel *c) {
    const normalize_channel k = *c;
    for (isize i = 0; i < count; i++) {
        const float g = passed(grad[i], z[i] * k.scale + k.shift, k.low, k.high);
        to[i] = (g - k.grad_mean - (z[i] - k.mean) * k.slope) * k.factor;
    }
}

/* Keeps the gradients of a channel's γ and β, and what those of its values need. */
static void keep_gradients(const normalize_backward_words *w, isize c, double sum, double dot, normalize_channel *k) {
    const double count = (double)w->outer * (double)w->inner, invstd = (double)w->invstd[c];
    const double step = (double)w->step[w->steps > 1 ? c : 0], weight = dot * invstd / step, bias = sum / step;
    w->grad_weight[c] = (float)weight, w->grad_bias[c] = (float)bias;
    w->grad_step[c] = (float)(-(weight * (w->weight ? (double)w->weight[c] : 1) + bias * (w->bias ? (double)w->bias[c] : 0)) / step);
    k->grad_mean = (float)(sum / count), k->slope = (float)(dot * invstd * invstd / count);
}

static void normalize_backward_channels(const training_word *given, isize from, isize to) {
    const normalize_backward_words *w = (const normalize_backward_words *)(const void *)given;
    const isize outer = (isize)w->outer, inner = (isize)w->inner, stride = (isize)w->channels * inner, most = rows_at_once(inner);
    float z_aside[RUN], grad_aside[RUN], made[RUN];
    const float *z = NULL, *grad = NULL;
    for (isize c = from; c < to; c++) {
        float scale, shift;
        in_steps(w->weight, w->bias, w->step[w->steps > 1 ? c : 0], w->mean[c], w->invstd[c], c, &scale, &shift);
        normalize_channel k = {scale, shift, (float)w->low, (float)w->high, w->mean[c], 0, 0, scale};
        double sum = 0, dot = 0;
        for (isize n = 0; n < outer; n += most) {
            const isize rows = min_size(most, outer - n), at = c * inner + n * stride;
            grad = together(w->grad + at, rows, stride, inner, grad_aside);
            z = together(w->z + at, rows, stride, inner, z_aside);
            grad_sums(grad, z, rows * inner, &k, &sum, &dot);
        }
        keep_gradients(w, c, sum, dot, &k);
        for (isize n = 0; w->grad_z && n < outer; n += most) {
            const isize rows = min_size(most, outer - n), at = c * inner + n * stride;
            if (outer > most) {
                grad = together(w->grad + at, rows, stride, inner, grad_aside);
                z = together(w->z + at, rows, stride, inner, z_aside);
            }
            grad_inputs(grad, z, rows == 1 ? w->grad_z + at : made, rows * inner, &k);
            if (rows > 1) apart(made, w->grad_z + at, rows, stride, inner);
        }
    }
}

static void normalize_backward(const training_word *given, int threads) {
    const normalize_backward_words *w = (const normalize_backward_words *)(const void *)given;
    over(normalize_backward_channels, given, (isize)w->channels, (isize)(w->outer * w->inner), threads);
}

/* ---- rows of weights -------------------------------------------------------------------------------------------------- */

typedef struct {
    const float *weight, *factor; /* (rows, columns); (rows) or NULL */
    float *top;                   /* (rows, 2), or (rows, 1) for one column */
    int64_t rows, columns;
} largest_words;

/* The two largest |x·factor| of a row; NaN where one is NaN. */
MULTIVERSION static void row_largest(const float *x, float factor, isize count, float *first, float *second) {
    float a[LANES] = {0}, b[LANES] = {0}, sums[LANES] = {0};
    isize i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int l = 0; l < LANES; l++) {
            const float v = fabsf(x[i + l] * factor), less = a[l] < v ? a[l] : v;
            a[l] = a[l] < v ? v : a[l];
            b[l] = b[l] < less ? less : b[l];
            sums[l] += v;
        }
    *first = *second = 0;
    float bad = 0;
    for (isize l = 0; l < LANES + LANES + (count - i); l++) {
        const float v = l < LANES ? a[l] : l < 2 * LANES ? b[l - LANES] : fabsf(x[i + l - 2 * LANES] * factor);
        if (l >= 2 * LANES) bad += v;
        if (v > *first) *second = *first, *first = v;
        else if (v > *second) *second = v;
    }
    for (int l = 0; l < LANES; l++) bad += sums[l];
    if (bad != bad) *first = *second = bad;
}

static void largest_rows(const training_word *given, isize from, isize to) {
    const largest_words *w = (const largest_words *)(const void *)given;
    const isize columns = (isize)w->columns;
    for (isize r = from; r < to; r++) {
        float first, second;
        row_largest(w->weight + r * columns, w->factor ? w->factor[r] : 1.0f, columns, &first, &second);
        if (columns == 1) w->top[r] = first;
        else w->top[2 * r] = first, w->top[2 * r + 1] = second;
    }
}

static void two_largest(const training_word *given, int threads) {
    const largest_words *w = (const largest_words *)(const void *)given;
    over(largest_rows, given, (isize)w->rows, (isize)w->columns, threads);
}

typedef struct {
    const float *weight, *factor, *scale, *bounds; /* (rows, columns); (rows) or NULL; (rows); (rows) or NULL */
    float *q;
    int64_t rows, columns;
    double low, high; /* where there are no bounds; infinite where nothing is clipped */
} round_words;

/* clamp(R(x·factor / scale), low, high). */
INLINE float row_integer(float x, float factor, float scale, float low, float high) { return rounded(x * factor / scale, low, high); }

MULTIVERSION static void row_round(const float *x, float *q, isize count, float factor, float scale, float low, float high) {
    for (isize i = 0; i < count; i++) q[i] = row_integer(x[i], factor, scale, low, high);
}

static void round_some(const training_word *given, isize from, isize to) {
    const round_words *w = (const round_words *)(const void *)given;
    const isize columns = (isize)w->columns;
    for (isize r = from; r < to; r++) {
        const float low = w->bounds ? -w->bounds[r] : (float)w->low, high = w->bounds ? w->bounds[r] : (float)w->high;
        row_round(w->weight + r * columns, w->q + r * columns, columns, w->factor ? w->factor[r] : 1.0f, w->scale[r], low, high);
    }
}

static void round_rows(const training_word *given, int threads) {
    const round_words *w = (const round_words *)(const void *)given;
    over(round_some, given, (isize)w->rows, (isize)w->columns, threads);
}

typedef struct {
    const float *weight, *factor, *scale, *bounds, *m; /* as round_words; (rows) */
    float *product;                                    /* q·m */
    int8_t *bytes;                                     /* q */
    int64_t rows, columns;
    double low, high;
} multiply_words;

MULTIVERSION static void row_multiply(const multiply_words *w, isize row) {
    const isize columns = (isize)w->columns;
    const float factor = w->factor ? w->factor[row] : 1.0f, scale = w->scale[row], m = w->m[row];
    const float low = w->bounds ? -w->bounds[row] : (float)w->low, high = w->bounds ? w->bounds[row] : (float)w->high;
    const float *restrict x = w->weight + row * columns;
    float *restrict product = w->product + row * columns;
    int8_t *restrict bytes = w->bytes + row * columns;
    for (isize i = 0; i < columns; i++) {
        const float q = row_integer(x[i], factor, scale, low, high);
        product[i] = q * m;
        bytes[i] = (int8_t)(float_bits(q + ROUND_MAGIC));
    }
}

static void multiply_some(const training_word *given, isize from, isize to) {
    for (isize r = from; r < to; r++) row_multiply((const multiply_words *)(const void *)given, r);
}

static void multiply_rows(const training_word *given, int threads) {
    const multiply_words *w = (const multiply_words *)(const void *)given;
    over(multiply_some, given, (isize)w->rows, (isize)w->columns, threads);
}

typedef struct {
    const float *grad, *weight, *factor, *scale, *bounds, *step; /* step (rows): what the gradient is multiplied by */
    const int8_t *q;
    float *grad_weight, *dot_q, *dot_weight; /* grad_weight may be grad; dot_… are (rows) */
    int64_t rows, columns;
    double low, high; /* where there are no bounds; infinite where nothing is clipped */
} rows_backward_words;

typedef struct {
    float factor, scale, step, low, high; /* of a row; high is infinite where nothing is clipped */
} piece_words;

/* The smallest float that does not round to `high` or less: a tie is rounded to even. */
static float beyond(float high) { return fmodf(high, 2) == 0 ? nextafterf(high + 0.5f, INFINITY) : high + 0.5f; }

/* A piece of a row. What is written may be what was read, so it is computed aside. */
MULTIVERSION static void piece_backward(const piece_words *w, const float *grad, const float *x, const int8_t *q, float *to, isize count,
                                        float *q_lanes, float *x_lanes) {
    float integers[PIECE], passing[PIECE];
    const float factor = w->factor, scale = w->scale, step = w->step, low = w->low, high = w->high;
    for (isize i = 0; i < count; i++) integers[i] = (float)q[i];
    add_products(grad, integers, count, q_lanes);
    if (high < INFINITY)
        for (isize i = 0; i < count; i++) passing[i] = passed(grad[i], x[i] * factor / scale, low, high);
    else memcpy(passing, grad, (size_t)count * sizeof *passing);
    add_products(passing, x, count, x_lanes);
    for (isize i = 0; i < count; i++) passing[i] *= step;
    memcpy(to, passing, (size_t)count * sizeof *passing);
}

/* A row of `columns` from element `at` on. */
static void row_backward(const piece_words *piece, const float *grad, const float *x, const int8_t *q, float *to, isize at, isize columns,
                         double *dot_q, double *dot_weight) {
    for (isize from = at; from < at + columns; from += RUN) {
        float q_lanes[LANES] = {0}, x_lanes[LANES] = {0};
        const isize end = min_size(at + columns, from + RUN);
        for (isize i = from; i < end; i += PIECE)
            piece_backward(piece, grad + i, x + i, q + i, to + i, min_size(PIECE, end - i), q_lanes, x_lanes);
        *dot_q += lane_sum(q_lanes);
        *dot_weight += lane_sum(x_lanes);
    }
}

static void backward_some(const training_word *given, isize from, isize to) {
    const rows_backward_words *w = (const rows_backward_words *)(const void *)given;
    const isize columns = (isize)w->columns;
    for (isize r = from; r < to; r++) {
        double dot_q = 0, dot_weight = 0;
        const float high = beyond(w->bounds ? w->bounds[r] : (float)w->high), low = -beyond(w->bounds ? w->bounds[r] : -(float)w->low);
        const piece_words piece = {w->factor ? w->factor[r] : 1.0f, w->scale[r], w->step[r], low, high};
        row_backward(&piece, w->grad, w->weight, w->q, w->grad_weight, r * columns, columns, &dot_q, &dot_weight);
        w->dot_q[r] = (float)dot_q, w->dot_weight[r] = (float)dot_weight;
    }
}

static void rows_backward(const training_word *given, int threads) {
    const rows_backward_words *w = (const rows_backward_words *)(const void *)given;
    over(backward_some, given, (isize)w->rows, (isize)w->columns, threads);
}

/* ---- weights behind which a batch norm is folded -------------------------------------------------------------------------- */

typedef struct {
    const float *weight, *gamma, *variance, *shrink, *learned, *input; /* (rows, columns); (rows), NULL where not; (1) or NULL */
    float *factor, *slope, *scale, *m, *product;                       /* (rows); product: (rows, columns) */
    int8_t *bytes;                                                     /* (rows, columns) */
    int64_t rows, columns;
    double eps, largest, pairs, dead, smallest, low, high; /* pairs: 0 where two integers may be of any size */
} fold_words;

/* The larger one; NaN where one is NaN. */
INLINE float larger(float a, float b) { return a != a || a > b ? a : b; }

/* factor: γ / √(σ² + ε) / shrink, with 1 for 0; slope: its derivative with respect to γ; scale: the least that holds a row. */
static void fold_some(const training_word *given, isize from, isize to) {
    const fold_words *w = (const fold_words *)(const void *)given;
    const isize columns = (isize)w->columns;
    for (isize r = from; r < to; r++) {
        float slope = 1 / sqrtf(w->variance[r] + (float)w->eps), factor = w->gamma ? w->gamma[r] * slope : slope, first, second;
        if (w->shrink) slope /= w->shrink[r], factor /= w->shrink[r];
        if (factor == 0) factor = 1, slope = 0;
        w->factor[r] = factor, w->slope[r] = slope, w->scale[r] = 0;
        if (w->learned && !(w->pairs > 0)) continue;
        row_largest(w->weight + r * columns, factor, columns, &first, &second);
        w->scale[r] = first / (float)w->largest;
        if (w->pairs > 0) w->scale[r] = larger(w->scale[r], (columns > 1 ? first + second : first) / (float)w->pairs);
    }
}

static void multiply_folded(const training_word *given, isize from, isize to) {
    const fold_words *w = (const fold_words *)(const void *)given;
    const multiply_words rows = {w->weight, w->factor,  w->scale, NULL,   w->m, w->product,
                                 w->bytes,  w->rows, w->columns, w->low, w->high};
    for (isize r = from; r < to; r++) {
        w->m[r] = w->scale[r] / w->factor[r];
        if (w->input) w->m[r] *= w->input[0];
        row_multiply(&rows, r);
    }
}

static void fold(const training_word *given, int threads) {
    const fold_words *w = (const fold_words *)(const void *)given;
    over(fold_some, given, (isize)w->rows, (isize)w->columns, threads);
    float most = 0;
    for (isize r = 0; r < (isize)w->rows; r++) most = larger(most, w->scale[r]);
    const float least = larger((float)w->dead * most, (float)w->smallest);
    for (isize r = 0; r < (isize)w->rows; r++) {
        if (!w->learned) w->scale[r] = larger(w->scale[r], least);
        else w->scale[r] = w->pairs > 0 ? larger(w->learned[r], larger(w->scale[r], least)) : w->learned[r];
    }
    over(multiply_folded, given, (isize)w->rows, (isize)w->columns, threads);
}

typedef struct {
    const float *grad, *weight, *factor, *slope, *scale, *m; /* grad: of product; the rest as fold_words */
    const int8_t *bytes;
    float *grad_weight, *grad_gamma, *grad_scale, *grad_input; /* grad_weight may be grad; (rows), grad_input: of each row */
    int64_t rows, columns;
    double low, high;
} fold_backward_words;

static void fold_backward_some(const training_word *given, isize from, isize to) {
    const fold_backward_words *w = (const fold_backward_words *)(const void *)given;
    for (isize r = from; r < to; r++) {
        const double factor = (double)w->factor[r], scale = (double)w->scale[r], m = (double)w->m[r];
        const piece_words piece = {w->factor[r], w->scale[r], w->m[r] * w->factor[r] / w->scale[r], -beyond(-(float)w->low),
                                   beyond((float)w->high)};
        double dot_q = 0, dot_weight = 0;
        row_backward(&piece, w->grad, w->weight, w->bytes, w->grad_weight, r * (isize)w->columns, (isize)w->columns, &dot_q, &dot_weight);
        /* of m·R(w·f/s), where m = s/f times the input's scale */
        w->grad_gamma[r] = (float)((dot_weight / scale - dot_q / factor) * m * (double)w->slope[r]);
        w->grad_scale[r] = (float)((dot_q - dot_weight * factor / scale) * m / scale);
        w->grad_input[r] = (float)(dot_q * scale / factor);
    }
}

static void fold_backward(const training_word *given, int threads) {
    const fold_backward_words *w = (const fold_backward_words *)(const void *)given;
    over(fold_backward_some, given, (isize)w->rows, (isize)w->columns, threads);
}

typedef struct {
    const int8_t *bytes; /* (rows, columns) */
    const float *m;      /* (rows) */
    float *weight;       /* bytes·m */
    int64_t rows, columns;
} expand_words;

MULTIVERSION static void row_expand(const int8_t *q, float *weight, isize count, float m) {
    for (isize i = 0; i < count; i++) weight[i] = (float)q[i] * m;
}

static void expand_some(const training_word *given, isize from, isize to) {
    const expand_words *w = (const expand_words *)(const void *)given;
    const isize columns = (isize)w->columns;
    for (isize r = from; r < to; r++) row_expand(w->bytes + r * columns, w->weight + r * columns, columns, w->m[r]);
}

static void expand_rows(const training_word *given, int threads) {
    const expand_words *w = (const expand_words *)(const void *)given;
    over(expand_some, given, (isize)w->rows, (isize)w->columns, threads);
}

/* ---- the sum of two tensors on grids ---------------------------------------------------------------------------------- */

typedef struct {
    const float *a, *b;
    float *q;
    uint8_t *a_bytes, *b_bytes; /* a and b plus their zero points; NULL: not wanted */
    float *ends;                /* (blocks of RUN elements, 2): the least and the largest sum of each, NaN where one is; or NULL */
    int64_t count, a_zero, b_zero;
    double a_ratio, b_ratio, low, high;
} add_words;

INLINE void add_elements(const add_words *w, isize from, isize to, int packs) {
    const float ra = (float)w->a_ratio, rb = (float)w->b_ratio, low = (float)w->low, high = (float)w->high;
    const float az = ROUND_MAGIC + (float)w->a_zero, bz = ROUND_MAGIC + (float)w->b_zero;
    const float *restrict a = w->a, *restrict b = w->b;
    float *restrict q = w->q;
    uint8_t *restrict a_bytes = w->a_bytes, *restrict b_bytes = w->b_bytes;
    for (isize i = from; i < to; i++) {
        q[i] = rounded(a[i] * ra + b[i] * rb, low, high);
        if (packs) a_bytes[i] = (uint8_t)float_bits(a[i] + az), b_bytes[i] = (uint8_t)float_bits(b[i] + bz);
    }
}

MULTIVERSION static void add_packing(const add_words *w, isize from, isize to) { add_elements(w, from, to, 1); }

MULTIVERSION static void add_only(const add_words *w, isize from, isize to) { add_elements(w, from, to, 0); }

MULTIVERSION static void sum_ends(const add_words *w, isize from, isize to, float *ends) {
    const float ra = (float)w->a_ratio, rb = (float)w->b_ratio;
    float v[PIECE], least = INFINITY, most = -INFINITY;
    int bad = 0;
    for (isize at = from; at < to; at += PIECE) {
        const isize count = min_size(PIECE, to - at);
        const float *a = w->a + at, *b = w->b + at;
        for (isize i = 0; i < count; i++) v[i] = a[i] * ra + b[i] * rb;
        for (isize i = 0; i < count; i++) bad |= v[i] != v[i];
        widen(v, count, &least, &most);
    }
    ends[0] = bad ? NAN : least, ends[1] = bad ? NAN : most;
}

static void add_blocks(const training_word *given, isize first, isize last) {
    const add_words *w = (const add_words *)(const void *)given;
    for (isize block = first; block < last; block++) {
        const isize from = block * RUN, to = min_size((isize)w->count, from + RUN);
        (w->a_bytes ? add_packing : add_only)(w, from, to);
        if (w->ends) sum_ends(w, from, to, w->ends + 2 * block);
    }
}

static void add(const training_word *given, int threads) {
    const add_words *w = (const add_words *)(const void *)given;
    over(add_blocks, given, ceil_div((isize)w->count, RUN), RUN, threads);
}

typedef struct {
    const float *grad;
    const uint8_t *a, *b;
    float *grad_a, *grad_b;
    double *dots; /* (blocks, 2): the sums of grad·a and grad·b over blocks of RUN elements */
    int64_t count, a_zero, b_zero;
    double a_ratio, b_ratio, low, high;
} add_backward_words;

MULTIVERSION static void add_piece_backward(const add_backward_words *w, isize from, isize count, float *a_lanes, float *b_lanes) {
    float qa[PIECE], qb[PIECE], g[PIECE];
    const float ra = (float)w->a_ratio, rb = (float)w->b_ratio, low = (float)w->low, high = (float)w->high;
    const float az = (float)w->a_zero, bz = (float)w->b_zero;
    const uint8_t *a = w->a + from, *b = w->b + from;
    const float *grad = w->grad + from;
    float *grad_a = w->grad_a + from, *grad_b = w->grad_b + from;
    for (isize i = 0; i < count; i++) qa[i] = (float)a[i] - az;
    for (isize i = 0; i < count; i++) qb[i] = (float)b[i] - bz;
    for (isize i = 0; i < count; i++) g[i] = passed(grad[i], qa[i] * ra + qb[i] * rb, low, high);
    add_products(g, qa, count, a_lanes);
    add_products(g, qb, count, b_lanes);
    for (isize i = 0; i < count; i++) grad_a[i] = g[i] * ra, grad_b[i] = g[i] * rb;
}

static void add_backward_range(const training_word *given, isize first, isize last) {
    const add_backward_words *w = (const add_backward_words *)(const void *)given;
    for (isize block = first; block < last; block++) {
        const isize to = min_size((isize)w->count, (block + 1) * RUN);
        float a_lanes[LANES] = {0}, b_lanes[LANES] = {0};
        for (isize i = block * RUN; i < to; i += PIECE) add_piece_backward(w, i, min_size(PIECE, to - i), a_lanes, b_lanes);
        w->dots[2 * block] = lane_sum(a_lanes), w->dots[2 * block + 1] = lane_sum(b_lanes);
    }
}

static void add_backward(const training_word *given, int threads) {
    const add_backward_words *w = (const add_backward_words *)(const void *)given;
    over(add_backward_range, given, ceil_div((isize)w->count, RUN), RUN, threads);
}

/* ---- the largest of every window -------------------------------------------------------------------------------------- */

typedef struct {
    const float *x;  /* (planes, height, width) */
    float *y;        /* (planes, rows, columns) */
    uint8_t *places; /* of y: the first place in the window, row by row, where the largest is */
    int64_t planes, height, width, rows, columns;
    int64_t kernel_h, kernel_w, stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;
} max_pool_words;

/* The columns of windows [*from, *to) whose place at `offset` from the window's stride lies inside of the row. */
static void inside(isize offset, isize stride, isize width, isize columns, isize *from, isize *to) {
    *from = offset < 0 ? ceil_div(-offset, stride) : 0;
    *to = offset < width ? min_size(columns, (width - 1 - offset) / stride + 1) : 0;
}

/* Takes what is larger than the largest so far, as torch does: NaN is, and stays. */
INLINE void take_larger(const float *x, isize stride, isize count, float place, float *best, float *places) {
    for (isize i = 0; i < count; i++) {
        const float v = x[i * stride];
        const int larger = v > best[i] || v != v;
        best[i] = larger ? v : best[i];
        places[i] = larger ? place : places[i];
    }
}

#define POOLED 256 /* windows of a row at once */
#define PLACES 256 /* places in a window: their numbers are bytes */

MULTIVERSION static void pool_row(const max_pool_words *w, const float *x, isize row, isize first, isize count, float *best, float *places) {
    const isize stride = (isize)w->stride_w, width = (isize)w->width;
    for (isize i = 0; i < count; i++) best[i] = -INFINITY, places[i] = 0;
    for (isize ky = 0; ky < (isize)w->kernel_h; ky++) {
        const isize y = row * (isize)w->stride_h - (isize)w->padding_h + ky * (isize)w->dilation_h;
        if (y < 0 || y >= (isize)w->height) continue;
        for (isize kx = 0; kx < (isize)w->kernel_w; kx++) {
            const isize offset = first * stride - (isize)w->padding_w + kx * (isize)w->dilation_w;
            isize from, to;
            inside(offset, stride, width, count, &from, &to);
            if (to <= from) continue;
            const float *at = x + y * width + offset + from * stride, place = (float)(ky * (isize)w->kernel_w + kx);
            if (stride == 1) take_larger(at, 1, to - from, place, best + from, places + from);
            else if (stride == 2) take_larger(at, 2, to - from, place, best + from, places + from);
            else take_larger(at, stride, to - from, place, best + from, places + from);
        }
    }
}

static void pool_planes(const training_word *given, isize begin, isize end) {
    const max_pool_words *w = (const max_pool_words *)(const void *)given;
    const isize rows = (isize)w->rows, columns = (isize)w->columns;
    float best[POOLED], places[POOLED];
    for (isize at = begin; at < end; at++) { /* rows of all planes */
        const float *x = w->x + at / rows * (isize)(w->height * w->width);
        for (isize first = 0; first < columns; first += POOLED) {
            const isize count = min_size(POOLED, columns - first), to = at * columns + first;
            pool_row(w, x, at % rows, first, count, best, places);
            memcpy(w->y + to, best, (size_t)count * sizeof *best);
            for (isize i = 0; i < count; i++) w->places[to + i] = (uint8_t)places[i];
        }
    }
}

static void max_pool(const training_word *given, int threads) {
    const max_pool_words *w = (const max_pool_words *)(const void *)given;
    over(pool_planes, given, (isize)(w->planes * w->rows), (isize)(w->columns * w->kernel_h * w->kernel_w), threads);
}

typedef struct {
    const float *grad;     /* (planes, rows, columns) */
    const uint8_t *places; /* as max_pool_words */
    float *grad_x;
    int64_t planes, height, width, rows, columns;
    int64_t kernel_h, kernel_w, stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;
} max_pool_backward_words;

static void pool_backward_planes(const training_word *given, isize begin, isize end) {
    const max_pool_backward_words *w = (const max_pool_backward_words *)(const void *)given;
    const isize rows = (isize)w->rows, columns = (isize)w->columns, height = (isize)w->height, width = (isize)w->width;
    isize offsets[PLACES], down[PLACES], right[PLACES];
    for (isize k = 0; k < (isize)(w->kernel_h * w->kernel_w); k++) {
        down[k] = k / (isize)w->kernel_w * (isize)w->dilation_h - (isize)w->padding_h;
        right[k] = k % (isize)w->kernel_w * (isize)w->dilation_w - (isize)w->padding_w;
        offsets[k] = down[k] * width + right[k];
    }
    for (isize plane = begin; plane < end; plane++) {
        float *to = w->grad_x + plane * height * width;
        memset(to, 0, (size_t)(height * width) * sizeof *to);
        for (isize row = 0; row < rows; row++) {
            const isize from = (plane * rows + row) * columns, y = row * (isize)w->stride_h;
            for (isize i = 0; i < columns; i++) {
                const int k = w->places[from + i];
                const isize x = i * (isize)w->stride_w;
                if (y + down[k] >= 0 && y + down[k] < height && x + right[k] >= 0 && x + right[k] < width) /* not of -inf alone */
                    to[y * width + x + offsets[k]] += w->grad[from + i];
            }
        }
    }
}

static void max_pool_backward(const training_word *given, int threads) {
    const max_pool_backward_words *w = (const max_pool_backward_words *)(const void *)given;
    over(pool_backward_planes, given, (isize)w->planes, (isize)(w->height * w->width), threads);
}

/* ---- exact sums of a layer, as integers of its result ----------------------------------------------------------------- */

typedef struct {
    float *sums;               /* (outer, channels, inner), overwritten */
    const float *bias, *m;     /* (channels) */
    const float *below;        /* (channels): multipliers of negative sums; NULL where they are m */
    const float *residual;     /* like sums; NULL: none */
    int64_t outer, channels, inner;
    double ratio, low, high;   /* ratio: of the residual */
} requantize_words;

/* Element i has the numbers [i * each]: each is 1 where channels lie side by side, else 0. */
INLINE void requantize_row(const requantize_words *w, isize at, isize count, isize c, isize each, int adds, int bends) {
    const float *const bias = w->bias + c, *const m = w->m + c;
    const float ratio = (float)w->ratio, low = (float)w->low, high = (float)w->high;
    float *const v = w->sums + at;
    for (isize i = 0; i < count; i++) {
        const float sum = v[i] + bias[i * each];
        const float product = sum * (bends && sum < 0 ? w->below[c + i * each] : m[i * each]);
        v[i] = rounded(adds ? product + w->residual[at + i] * ratio : product, low, high);
    }
}

/* One loop for each of what there may be. */
#define REQUANTIZE(name, each, adds, bends) \
    MULTIVERSION static void name(const requantize_words *w, isize at, isize count, isize c) { \
        requantize_row(w, at, count, c, each, adds, bends); \
    }
REQUANTIZE(requantize_plane, 0, 0, 0)
REQUANTIZE(requantize_plane_leaky, 0, 0, 1)
REQUANTIZE(requantize_plane_residual, 0, 1, 0)
REQUANTIZE(requantize_channels, 1, 0, 0)
REQUANTIZE(requantize_channels_leaky, 1, 0, 1)
REQUANTIZE(requantize_channels_residual, 1, 1, 0)

static void requantize_some(const training_word *given, isize from, isize to) {
    const requantize_words *w = (const requantize_words *)(const void *)given;
    const isize channels = (isize)w->channels, inner = (isize)w->inner;
    if (inner == 1) {
        for (isize n = from; n < to; n++)
            (w->residual ? requantize_channels_residual : w->below ? requantize_channels_leaky : requantize_channels)(
                w, n * channels, channels, 0);
        return;
    }
    for (isize n = from; n < to; n++)
        (w->residual ? requantize_plane_residual : w->below ? requantize_plane_leaky : requantize_plane)(
            w, n * inner, inner, n % channels);
}

static void requantize(const training_word *given, int threads) {
    const requantize_words *w = (const requantize_words *)(const void *)given;
    if (w->inner == 1)
        over(requantize_some, given, (isize)w->outer, (isize)w->channels, threads);
    else
        over(requantize_some, given, (isize)(w->outer * w->channels), (isize)w->inner, threads);
}

/* ---- rounding --------------------------------------------------------------------------------------------------------- */

typedef struct {
    const float *v;
    float *q; /* may be v */
    int64_t count;
    double low, high;
} clamp_words;

MULTIVERSION static void clamp_range(const training_word *given, isize from, isize to) {
    const clamp_words *w = (const clamp_words *)(const void *)given;
    const float low = (float)w->low, high = (float)w->high;
    for (isize i = from; i < to; i++) w->q[i] = rounded(w->v[i], low, high);
}

static void round_clamp(const training_word *given, int threads) {
    const clamp_words *w = (const clamp_words *)(const void *)given;
    over(clamp_range, given, (isize)w->count, 1, threads);
}

/* ---- the table of passes ---------------------------------------------------------------------------------------------- */

#define PASS(name, words) {#name, name, sizeof(words) / sizeof(training_word)}

static const struct {
    const char *name;
    void (*run)(const training_word *words, int threads);
    size_t words;
} passes[] = {
    PASS(normalize, normalize_words),
    PASS(normalize_backward, normalize_backward_words),
    PASS(two_largest, largest_words),
    PASS(round_rows, round_words),
    PASS(rows_backward, rows_backward_words),
    PASS(multiply_rows, multiply_words),
    PASS(fold, fold_words),
    PASS(fold_backward, fold_backward_words),
    PASS(expand_rows, expand_words),
    PASS(add, add_words),
    PASS(add_backward, add_backward_words),
    PASS(max_pool, max_pool_words),
    PASS(max_pool_backward, max_pool_backward_words),
    PASS(requantize, requantize_words),
    PASS(round_clamp, clamp_words),
};

int run_training(const char *name, const training_word *words, isize count, int threads) {
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++)
        if (!strcmp(name, passes[i].name) && (size_t)count == passes[i].words) {
            passes[i].run(words, threads);
            return 1;
        }
    return 0;
}
