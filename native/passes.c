/* Passes over rows of float32 that torch would make one by one: each element is read once and written once.

   Every operation is one IEEE float32 operation (compiled without contraction or reassociation) or exact, so the bits
   are those of intact8.arithmetic.dynamic and intact8.arithmetic.recurrent on every CPU. Addresses come as Python
   integers, and behind all other arguments the bytes that are there: whoever calls answers for dtypes and life times, and
   here it is seen to that nothing beyond is touched. */

#include "native.h"

#include <math.h>

#define REACH 127.0f            /* largest quantized magnitude, and hidden states' steps */
#define SMALLEST 0x1p-60f       /* smallest scale of a row */
#define ENOUGH (1 << 15)        /* elements from which a second thread pays */

/* ---- threads: those of torch ------------------------------------------------------------------------------------ */

static void (*parallel)(void (*)(void *), void *, unsigned, unsigned); /* GOMP_parallel */
int (*thread_number)(void);
static int (*thread_count)(void);
static int (*thread_limit)(void);

typedef struct {
    body run;
    const void *args;
    Py_ssize_t count;
} job;

static void share(void *given) {
    const job *j = (const job *)given;
    const Py_ssize_t threads = thread_count(), me = thread_number();
    j->run(j->args, j->count * me / threads, j->count * (me + 1) / threads);
}

/* run(args, lo, hi) for 0 <= lo < hi <= count, in as many threads as torch uses now. */
static void divided(body run, const void *args, Py_ssize_t count, Py_ssize_t elements) {
    if (!parallel || count < 2 || elements < ENOUGH || thread_limit() < 2) {
        run(args, 0, count);
        return;
    }
    job j = {run, args, count};
    parallel(share, &j, 0, 0);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* max(m, |v|) as bits: magnitudes are ordered like them, and NaN comes after infinity. */
INLINE int32_t farther(int32_t m, float v) {
    const int32_t b = bits(v) & 0x7fffffff;
    return b > m ? b : m;
}

INLINE int32_t row_reach(const float *restrict x, Py_ssize_t width) {
    int32_t m = 0;
    for (Py_ssize_t i = 0; i < width; i++) m = farther(m, x[i]);
    return m;
}

/* The scale of a row: max(fl(m / 127), 2^-60), NaN where it holds NaN or infinity. */
INLINE float row_scale(const float *restrict x, Py_ssize_t width) {
    const int32_t m = row_reach(x, width);
    if (m >= INFINITE) return number(0x7fc00000);
    const float s = number(m) / REACH;
    return s < SMALLEST ? SMALLEST : s;
}

/* R(fl(x / s)) + zero as bytes. */
INLINE void row_quantize(const float *restrict x, float s, float zero, uint8_t *restrict q, Py_ssize_t width) {
    for (Py_ssize_t i = 0; i < width; i++) q[i] = (uint8_t)bits(x[i] / s + (WHOLE + zero));
}

typedef struct {
    const float *x;
    uint8_t *q;
    float *s;
    Py_ssize_t width;
} quantize_args;

WIDE static void quantize_run(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const quantize_args *a = (const quantize_args *)given;
    for (Py_ssize_t r = lo; r < hi; r++) {
        const float *x = a->x + r * a->width;
        const float s = row_scale(x, a->width);
        row_quantize(x, s, 128.0f, a->q + r * a->width, a->width);
        a->s[r] = s;
    }
}

typedef struct {
    float *y;
    const float *s, *bias;
    Py_ssize_t width;
} scale_args;

WIDE static void scale_run(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const scale_args *a = (const scale_args *)given;
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

/* ---- borders ----------------------------------------------------------------------------------------------------- */

/* clamp(R(v), low, high) + zero, half to even; NaN as low. */
INLINE uint8_t finished(float v, float low, float high, int32_t zero) {
    v = v > low ? v : low;
    v = v < high ? v : high;
    return (uint8_t)(bits(v + WHOLE) + zero);
}

WIDE void finish_run(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const finish_args *a = (const finish_args *)given;
    const float *restrict x = a->x;
    uint8_t *restrict y = a->y;
    const float low = a->low, high = a->high, divisor = a->divisor;
    const int32_t zero = a->zero;
    int32_t reach = 0;
    if (a->divide)
        for (Py_ssize_t i = lo; i < hi; i++) {
            reach = farther(reach, x[i]);
            y[i] = finished(x[i] / divisor, low, high, zero);
        }
    else
        for (Py_ssize_t i = lo; i < hi; i++) {
            reach = farther(reach, x[i]);
            y[i] = finished(x[i], low, high, zero);
        }
    if (reach > INFINITE) *a->nan = 1;
}

typedef struct {
    const uint8_t *x;
    float *y;
    Py_ssize_t width, stride;
    float scale;
    int32_t zero;
} dequantize_args;

/* (x - zero) * scale; rows of x lie stride apart, those of y side by side. */
WIDE static void dequantize_run(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const dequantize_args *a = (const dequantize_args *)given;
    const float scale = a->scale;
    const int32_t zero = a->zero;
    for (Py_ssize_t r = lo; r < hi; r++) {
        const uint8_t *restrict x = a->x + r * a->stride;
        float *restrict y = a->y + r * a->width;
        for (Py_ssize_t i = 0; i < a->width; i++) y[i] = (float)((int32_t)x[i] - zero) * scale;
    }
}

WIDE void interleave_run(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const interleave_args *a = (const interleave_args *)given;
    const Py_ssize_t channels = a->channels, pixels = a->pixels;
    const float low = a->f.low, high = a->f.high, divisor = a->f.divisor;
    const int32_t zero = a->f.zero;
    uint8_t rows[3][BLOCK], *row = rows[0];
    int32_t reach = 0;
    for (Py_ssize_t at = lo; at < hi; at++) {
        const Py_ssize_t n = at / a->blocks, from = at % a->blocks * BLOCK;
        const Py_ssize_t count = pixels - from < BLOCK ? pixels - from : BLOCK;
        if (channels == 3) { /* stored as whole vectors */
            for (Py_ssize_t c = 0; c < 3; c++) {
                const float *restrict x = a->f.x + (n * 3 + c) * pixels + from;
                for (Py_ssize_t i = 0; i < count; i++) {
                    reach = farther(reach, x[i]);
                    rows[c][i] = finished(x[i] / divisor, low, high, zero);
                }
            }
            uint8_t *restrict y = a->f.y + (n * pixels + from) * 3;
            for (Py_ssize_t i = 0; i < count; i++) {
                y[3 * i] = rows[0][i];
                y[3 * i + 1] = rows[1][i];
                y[3 * i + 2] = rows[2][i];
            }
            continue;
        }
        for (Py_ssize_t c = 0; c < channels; c++) {
            const float *restrict x = a->f.x + (n * channels + c) * pixels + from;
            uint8_t *restrict y = a->f.y + (n * pixels + from) * channels + c;
            for (Py_ssize_t i = 0; i < count; i++) {
                reach = farther(reach, x[i]);
                row[i] = finished(x[i] / divisor, low, high, zero);
            }
            for (Py_ssize_t i = 0; i < count; i++) y[i * channels] = row[i];
        }
    }
    if (reach > INFINITE) *a->f.nan = 1;
}

INLINE void multiply_row(const uint8_t *restrict x, const uint8_t *restrict w, uint8_t *restrict y, Py_ssize_t count,
                         const multiply_args *a) {
    const int32_t zero_x = a->zero_x, zero_w = a->zero_w, zero = a->zero;
    const float ratio = a->ratio, low = a->low, high = a->high;
    for (Py_ssize_t i = 0; i < count; i++)
        y[i] = finished((float)((x[i] - zero_x) * (w[i] - zero_w)) * ratio, low, high, zero);
}

/* The product of differences is exact, then two roundings. */
WIDE void multiply_run(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const multiply_args *a = (const multiply_args *)given;
    const Py_ssize_t width = a->width, copies = a->repeat > 1 && width < BLOCK ? BLOCK / width : 1;
    uint8_t tile[BLOCK]; /* a narrow row of w side by side, for as many rows of x at once */
    for (Py_ssize_t r = lo; r < hi;) {
        const Py_ssize_t group = r / a->repeat, next = (group + 1) * a->repeat, end = next < hi ? next : hi;
        const uint8_t *w = a->w + group * width;
        if (copies > 1) {
            for (Py_ssize_t i = 0; i < copies; i++) memcpy(tile + i * width, w, (size_t)width);
            w = tile;
        }
        for (; r < end; r += copies) {
            const Py_ssize_t count = (end - r < copies ? end - r : copies) * width;
            multiply_row(a->x + r * width, w, a->y + r * width, count, a);
        }
        r = end;
    }
}

typedef struct {
    const uint8_t *x;
    uint8_t *y;
    Py_ssize_t pixels, channels;
    int64_t offset;
    double ratio, low, high;
    int32_t zero;
} mean_args;

#define MOST_PIXELS (1 << 24) /* whose sum is a uint32 */

/* Means over pixels (N, pixels, C): exact sums, one rounding of a product in float64. */
WIDE static void mean_run(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const mean_args *a = (const mean_args *)given;
    const Py_ssize_t channels = a->channels, blocks = blocks_of(channels);
    uint32_t sum[BLOCK];
    for (Py_ssize_t at = lo; at < hi; at++) {
        const Py_ssize_t n = at / blocks, from = at % blocks * BLOCK;
        const Py_ssize_t count = channels - from < BLOCK ? channels - from : BLOCK;
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
            y[c] = (uint8_t)((int32_t)((v + 6755399441055744.0) - 6755399441055744.0) + a->zero); /* 1.5 * 2^52 */
        }
    }
}

/* ---- layer norm of a float island -------------------------------------------------------------------------------- */

#define LANES 16 /* partial sums, added in a fixed order */

INLINE float total(const float *sum) {
    float part[LANES / 2];
    for (int i = 0; i < LANES / 2; i++) part[i] = sum[i] + sum[i + LANES / 2];
    return ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
}

typedef struct {
    const float *x, *weight, *bias;
    float *y;
    Py_ssize_t width;
    float epsilon;
} norm_args;

/* (x - mean) / sqrt(variance + epsilon) * weight + bias of rows, in two passes for the statistics. */
WIDE static void norm_run(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const norm_args *a = (const norm_args *)given;
    const Py_ssize_t width = a->width, whole = width / LANES * LANES;
    const float *restrict weight = a->weight, *restrict bias = a->bias;
    for (Py_ssize_t r = lo; r < hi; r++) {
        const float *x = a->x + r * width;
        float *y = a->y + r * width; /* may be the memory of x */
        float sum[LANES] = {0};
        for (Py_ssize_t i = 0; i < whole; i += LANES)
            for (int j = 0; j < LANES; j++) sum[j] += x[i + j];
        for (Py_ssize_t i = whole; i < width; i++) sum[i - whole] += x[i];
        const float mean = total(sum) / (float)width;
        for (int j = 0; j < LANES; j++) sum[j] = 0.0f;
        for (Py_ssize_t i = 0; i < whole; i += LANES)
            for (int j = 0; j < LANES; j++) sum[j] += (x[i + j] - mean) * (x[i + j] - mean);
        for (Py_ssize_t i = whole; i < width; i++) sum[i - whole] += (x[i] - mean) * (x[i] - mean);
        const float slope = 1.0f / sqrtf(total(sum) / (float)width + a->epsilon);
        for (Py_ssize_t i = 0; i < width; i++) y[i] = (x[i] - mean) * slope * weight[i] + bias[i];
    }
}

/* ---- recurrent layers -------------------------------------------------------------------------------------------- */

enum { LSTM, GRU, RNN, RELU };

typedef struct {
    Py_ssize_t kind, batch, size, time;
    const float *input;          /* (T, B, G*H) input parts */
    const float *scale;          /* (G*H) of the hidden weight where products come as int32, NULL where it is in them */
    const float *bias;           /* (H) of GRU's gate n in the hidden product */
    const float *sigmoid, *tanh; /* the middles of tables for -end ... end, that are given whole; tanh in steps of 1 / HIDDEN */
    const float *cell_tanh;      /* the same in steps of the cell */
    float end;
    float *h, *c;                /* (B, H) states in steps, overwritten */
    float *y;                    /* where step 0 of this direction goes: y[t * step + b * row + j] */
    Py_ssize_t step, row;
    float unit;                  /* of h in y */
    const uint8_t *inside;       /* (T, B), NULL where every step is */
    uint8_t *q;                  /* (B, H) quantized h */
    float *s;                    /* (B) its scales */
    float zero;                  /* added to q */
    Py_ssize_t own;              /* whether h has scales of its own (an initial state was given) */
} layer;

/* Table entries of v, NaN as -end: within the table whatever v is. */
INLINE void look_up(const float *restrict middle, const float *restrict v, float end, float *restrict out,
                    Py_ssize_t count) {
    for (Py_ssize_t j = 0; j < count; j++) {
        float w = v[j] > -end ? v[j] : -end;
        w = w < end ? w : end;
        out[j] = middle[bits(w + WHOLE) - 0x4b400000];
    }
}

/* The hidden product of one row: NULL in the first step without an initial state. */
typedef struct {
    const float *scaled; /* fl(fl(acc) * scale), or */
    const int32_t *sums; /* acc */
    const float *scale;
    float s;
} hidden;

/* out = fl(fl(fl(acc) * scale) * s), elements from .. from + count of a row. */
INLINE void hidden_part(const hidden *p, Py_ssize_t from, float *restrict out, Py_ssize_t count) {
    const float s = p->s;
    if (p->scaled) {
        const float *restrict y = p->scaled + from;
        for (Py_ssize_t j = 0; j < count; j++) out[j] = y[j] * s;
    } else if (p->sums) {
        const int32_t *restrict acc = p->sums + from;
        const float *restrict scale = p->scale + from;
        for (Py_ssize_t j = 0; j < count; j++) out[j] = (float)acc[j] * scale[j] * s;
    } else
        for (Py_ssize_t j = 0; j < count; j++) out[j] = 0.0f;
}

INLINE void plus(float *restrict out, const float *restrict v, Py_ssize_t count) {
    for (Py_ssize_t j = 0; j < count; j++) out[j] += v[j];
}

INLINE void state_quantize(const layer *n, Py_ssize_t b) {
    const float *h = n->h + b * n->size;
    float s = 1.0f;
    if (n->kind == RELU)
        s = row_scale(h, n->size);
    else if (n->own) {
        const int32_t m = row_reach(h, n->size), least = bits(REACH);
        s = number(m > least ? m : least) / REACH;
    }
    row_quantize(h, s, n->zero, n->q + b * n->size, n->size);
    n->s[b] = s;
}

/* The new states of one row into h and c; v are its gates' input parts. */
INLINE void row_lstm(const layer *n, const float *restrict v, const hidden *p, float *restrict h, float *restrict c) {
    const Py_ssize_t size = n->size;
    float gate[4][BLOCK], now[BLOCK];
    for (Py_ssize_t from = 0; from < size; from += BLOCK) {
        const Py_ssize_t count = size - from < BLOCK ? size - from : BLOCK;
        for (int g = 0; g < 4; g++) {
            hidden_part(p, g * size + from, now, count);
            plus(now, v + g * size + from, count);
            look_up(g == 2 ? n->cell_tanh : n->sigmoid, now, n->end, gate[g], count);
        }
        for (Py_ssize_t j = 0; j < count; j++) {
            now[j] = gate[1][j] * c[from + j] + gate[0][j] * gate[2][j];
            c[from + j] = now[j];
        }
        look_up(n->tanh, now, n->end, gate[0], count);
        for (Py_ssize_t j = 0; j < count; j++) h[from + j] = gate[3][j] * gate[0][j];
    }
}

INLINE void row_gru(const layer *n, const float *restrict v, const hidden *p, float *restrict h) {
    const Py_ssize_t size = n->size;
    float gate[2][BLOCK], now[BLOCK];
    for (Py_ssize_t from = 0; from < size; from += BLOCK) {
        const Py_ssize_t count = size - from < BLOCK ? size - from : BLOCK;
        for (int g = 0; g < 2; g++) {
            hidden_part(p, g * size + from, now, count);
            plus(now, v + g * size + from, count);
            look_up(n->sigmoid, now, n->end, gate[g], count);
        }
        hidden_part(p, 2 * size + from, now, count);
        plus(now, n->bias + from, count);
        for (Py_ssize_t j = 0; j < count; j++) now[j] = v[2 * size + from + j] + now[j] * gate[0][j];
        look_up(n->tanh, now, n->end, gate[0], count);
        for (Py_ssize_t j = 0; j < count; j++) {
            const float w = gate[0][j];
            h[from + j] = w + (h[from + j] - w) * gate[1][j];
        }
    }
}

INLINE void row_rnn(const layer *n, const float *restrict v, const hidden *p, float *restrict h) {
    float now[BLOCK];
    for (Py_ssize_t from = 0; from < n->size; from += BLOCK) {
        const Py_ssize_t count = n->size - from < BLOCK ? n->size - from : BLOCK;
        hidden_part(p, from, now, count);
        plus(now, v + from, count);
        if (n->kind == RNN)
            look_up(n->tanh, now, n->end, h + from, count);
        else
            for (Py_ssize_t j = 0; j < count; j++) h[from + j] = now[j] < 0.0f ? 0.0f : now[j];
    }
}

static const Py_ssize_t GATES[] = {4, 3, 1, 1};

typedef struct {
    const layer *n;
    Py_ssize_t t;
    const void *product;
} step_args;

WIDE static void step_run(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const step_args *a = (const step_args *)given;
    const layer *n = a->n;
    const Py_ssize_t size = n->size, width = GATES[n->kind] * size;
    for (Py_ssize_t b = lo; b < hi; b++) {
        float *h = n->h + b * size, *y = n->y + a->t * n->step + b * n->row;
        if (n->inside && !n->inside[a->t * n->batch + b]) {
            memset(y, 0, (size_t)size * sizeof(float));
            continue; /* its states and their integers stay */
        }
        const float *v = n->input + (a->t * n->batch + b) * width;
        const Py_ssize_t at = b * width;
        const hidden p = {
            a->product && !n->scale ? (const float *)a->product + at : NULL,
            a->product && n->scale ? (const int32_t *)a->product + at : NULL,
            n->scale,
            n->s[b],
        };
        if (n->kind == LSTM)
            row_lstm(n, v, &p, h, n->c + b * size);
        else if (n->kind == GRU)
            row_gru(n, v, &p, h);
        else
            row_rnn(n, v, &p, h);
        for (Py_ssize_t j = 0; j < size; j++) y[j] = h[j] * n->unit;
        state_quantize(n, b);
    }
}

/* ---- Python ------------------------------------------------------------------------------------------------------ */

#define MOST_NUMBERS 28
#define MOST_MEMORIES 12

static PyObject *refused; /* intact8.errors.EngineError */

/* What a function was called with: integers, then as many numbers of bytes as it takes addresses. */
typedef struct {
    const char *name;
    void *a[MOST_NUMBERS];
    Py_ssize_t bytes[MOST_MEMORIES];
} call;

static int take(call *c, const char *name, PyObject *const *args, Py_ssize_t given, Py_ssize_t wanted, Py_ssize_t memories) {
    if (given != wanted + memories) {
        PyErr_Format(PyExc_TypeError, "%s takes %zd integers and %zd sizes, got %zd", name, wanted, memories, given);
        return 0;
    }
    c->name = name;
    for (Py_ssize_t i = 0; i < wanted; i++) {
        c->a[i] = PyLong_AsVoidPtr(args[i]);
        if (!c->a[i] && PyErr_Occurred()) return 0;
    }
    for (Py_ssize_t i = 0; i < memories; i++) {
        c->bytes[i] = PyLong_AsSsize_t(args[wanted + i]);
        if (c->bytes[i] < 0) return PyErr_Occurred() ? 0 : (PyErr_Format(refused, "%s: a negative size", name), 0);
    }
    return 1;
}

static Py_ssize_t whole(const call *c, int i) { return (Py_ssize_t)c->a[i]; }
static float float_of(const call *c, int i) { return number((int32_t)(intptr_t)c->a[i]); }

/* Whether `count` elements of `size` bytes are in memory `which` at the address `at`. */
static int holds(const call *c, int which, const void *at, Py_ssize_t count, Py_ssize_t size) {
    const Py_ssize_t bytes = times(count, size);
    if (bytes >= 0 && bytes <= c->bytes[which] && (at || !bytes)) return 1;
    PyErr_Format(refused, "%s: %zd elements of %zd bytes are not in memory %d of %zd bytes. Remedy: run with engine='reference', "
                 "and report this", c->name, count, size, which, c->bytes[which]);
    return 0;
}

static int bytes_result(const call *c, Py_ssize_t low, Py_ssize_t high, Py_ssize_t zero) {
    if (are_bytes(low, high, zero)) return 1;
    PyErr_Format(refused, "%s: limits %zd to %zd around zero point %zd are none of bytes", c->name, low, high, zero);
    return 0;
}

static PyObject *use_threads(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t count) {
    call c;
    if (!take(&c, "use_threads", args, count, 4, 0)) return NULL;
    memcpy(&parallel, &c.a[0], sizeof(void *));
    memcpy(&thread_number, &c.a[1], sizeof(void *));
    memcpy(&thread_count, &c.a[2], sizeof(void *));
    memcpy(&thread_limit, &c.a[3], sizeof(void *));
    Py_RETURN_NONE;
}

static PyObject *quantize_rows(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t count) {
    call c;
    if (!take(&c, "quantize_rows", args, count, 5, 3)) return NULL;
    const Py_ssize_t rows = whole(&c, 3), width = whole(&c, 4), size = times(rows, width);
    if (!holds(&c, 0, c.a[0], size, 4) || !holds(&c, 1, c.a[1], size, 1) || !holds(&c, 2, c.a[2], rows, 4)) return NULL;
    quantize_args given = {(const float *)c.a[0], (uint8_t *)c.a[1], (float *)c.a[2], width};
    Py_BEGIN_ALLOW_THREADS
    divided(quantize_run, &given, rows, size);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *scale_rows(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t count) {
    call c;
    if (!take(&c, "scale_rows", args, count, 5, 3)) return NULL;
    const Py_ssize_t rows = whole(&c, 3), width = whole(&c, 4), size = times(rows, width);
    if (!holds(&c, 0, c.a[0], size, 4) || !holds(&c, 1, c.a[1], rows, 4)) return NULL;
    if (c.a[2] && !holds(&c, 2, c.a[2], width, 4)) return NULL;
    if (!size) Py_RETURN_NONE;
    scale_args given = {(float *)c.a[0], (const float *)c.a[1], (const float *)c.a[2], width};
    Py_BEGIN_ALLOW_THREADS
    divided(scale_run, &given, rows, size);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* With `alone` in this thread only. Both say whether x holds NaN. */
static PyObject *finish(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t count) {
    call c;
    if (!take(&c, "finish", args, count, 8, 2)) return NULL;
    const Py_ssize_t size = whole(&c, 2);
    if (!holds(&c, 0, c.a[0], size, 4) || !holds(&c, 1, c.a[1], size, 1)) return NULL;
    if (!bytes_result(&c, whole(&c, 4), whole(&c, 5), whole(&c, 6))) return NULL;
    volatile int nan = 0;
    finish_args given = {(const float *)c.a[0], (uint8_t *)c.a[1], float_of(&c, 3), (float)whole(&c, 4),
                         (float)whole(&c, 5), (int32_t)whole(&c, 6), float_of(&c, 3) != 1.0f, &nan};
    Py_BEGIN_ALLOW_THREADS
    divided(finish_run, &given, size, c.a[7] ? 0 : size);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(nan);
}

static PyObject *interleave(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t count) {
    call c;
    if (!take(&c, "interleave", args, count, 10, 2)) return NULL;
    const Py_ssize_t samples = whole(&c, 2), channels = whole(&c, 3), pixels = whole(&c, 4);
    const Py_ssize_t size = times(times(samples, channels), pixels);
    if (!holds(&c, 0, c.a[0], size, 4) || !holds(&c, 1, c.a[1], size, 1)) return NULL;
    if (!bytes_result(&c, whole(&c, 6), whole(&c, 7), whole(&c, 8))) return NULL;
    if (!size) Py_RETURN_FALSE;
    volatile int nan = 0;
    interleave_args given = {{(const float *)c.a[0], (uint8_t *)c.a[1], float_of(&c, 5), (float)whole(&c, 6),
                              (float)whole(&c, 7), (int32_t)whole(&c, 8), 1, &nan},
                             channels, pixels, blocks_of(pixels)};
    Py_BEGIN_ALLOW_THREADS
    divided(interleave_run, &given, samples * given.blocks, c.a[9] ? 0 : size);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(nan);
}

static PyObject *multiply(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t count) {
    call c;
    if (!take(&c, "multiply", args, count, 12, 3)) return NULL;
    const Py_ssize_t rows = whole(&c, 3), width = whole(&c, 4), repeat = whole(&c, 5), size = times(rows, width);
    const Py_ssize_t groups = repeat < 1 || rows < 0 ? -1 : rows / repeat + (rows % repeat > 0);
    if (!holds(&c, 0, c.a[0], size, 1) || !holds(&c, 1, c.a[1], times(groups, width), 1) || !holds(&c, 2, c.a[2], size, 1))
        return NULL;
    if (!bytes_result(&c, whole(&c, 10), whole(&c, 11), whole(&c, 8)) || !bytes_result(&c, 0, 0, whole(&c, 6)) ||
        !bytes_result(&c, 0, 0, whole(&c, 7)))
        return NULL;
    if (!size) Py_RETURN_NONE;
    multiply_args given = {(const uint8_t *)c.a[0], (const uint8_t *)c.a[1], (uint8_t *)c.a[2], width, repeat,
                           (int32_t)whole(&c, 6), (int32_t)whole(&c, 7), (int32_t)whole(&c, 8),
                           float_of(&c, 9), (float)whole(&c, 10), (float)whole(&c, 11)};
    Py_BEGIN_ALLOW_THREADS
    divided(prepare_multiply(&given), &given, rows, size);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *mean(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t count) {
    call c;
    if (!take(&c, "mean", args, count, 11, 2)) return NULL;
    const Py_ssize_t samples = whole(&c, 2), pixels = whole(&c, 3), channels = whole(&c, 4);
    const Py_ssize_t results = times(samples, channels), size = times(results, pixels);
    if (!holds(&c, 0, c.a[0], size, 1) || !holds(&c, 1, c.a[1], results, 1)) return NULL;
    if (!bytes_result(&c, whole(&c, 8), whole(&c, 9), whole(&c, 10))) return NULL;
    if (pixels > MOST_PIXELS || whole(&c, 7) < 1) {
        PyErr_Format(refused, "mean: %zd pixels, or a denominator of %zd", pixels, whole(&c, 7));
        return NULL;
    }
    if (!results) Py_RETURN_NONE;
    mean_args given = {(const uint8_t *)c.a[0], (uint8_t *)c.a[1], pixels, channels, (int64_t)whole(&c, 5),
                       (double)whole(&c, 6) / (double)whole(&c, 7), (double)whole(&c, 8), (double)whole(&c, 9),
                       (int32_t)whole(&c, 10)};
    Py_BEGIN_ALLOW_THREADS
    divided(mean_run, &given, samples * blocks_of(channels), size);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* Elements from the first to the last one of rows that lie `stride` apart. */
static Py_ssize_t extent(Py_ssize_t rows, Py_ssize_t stride, Py_ssize_t width) {
    const Py_ssize_t last = rows > 0 ? times(rows - 1, stride) : rows;
    return last < 0 || width < 0 || last > PY_SSIZE_T_MAX - width ? -1 : rows ? last + width : 0;
}

static PyObject *dequantize(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t count) {
    call c;
    if (!take(&c, "dequantize", args, count, 7, 2)) return NULL;
    const Py_ssize_t rows = whole(&c, 2), width = whole(&c, 3), stride = whole(&c, 4), size = times(rows, width);
    if (!holds(&c, 0, c.a[0], extent(rows, stride, width), 1) || !holds(&c, 1, c.a[1], size, 4)) return NULL;
    if (!bytes_result(&c, 0, 0, whole(&c, 6))) return NULL;
    if (!size) Py_RETURN_NONE;
    dequantize_args given = {(const uint8_t *)c.a[0], (float *)c.a[1], width, stride, float_of(&c, 5), (int32_t)whole(&c, 6)};
    Py_BEGIN_ALLOW_THREADS
    divided(dequantize_run, &given, rows, size);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *read_table(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t count) {
    call c;
    if (!take(&c, "read_table", args, count, 4, 3)) return NULL;
    const Py_ssize_t size = whole(&c, 2);
    if (!holds(&c, 0, c.a[0], size, 1) || !holds(&c, 1, c.a[1], size, 1) || !holds(&c, 2, c.a[3], 256, 1)) return NULL;
    table_args given = {(const uint8_t *)c.a[0], (uint8_t *)c.a[1], (const uint8_t *)c.a[3]};
    Py_BEGIN_ALLOW_THREADS
    divided(prepare_table(), &given, size, size);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *layer_norm(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t count) {
    call c;
    if (!take(&c, "layer_norm", args, count, 7, 4)) return NULL;
    const Py_ssize_t rows = whole(&c, 4), width = whole(&c, 5), size = times(rows, width);
    if (!holds(&c, 0, c.a[0], size, 4) || !holds(&c, 1, c.a[1], width, 4) || !holds(&c, 2, c.a[2], width, 4) ||
        !holds(&c, 3, c.a[3], size, 4))
        return NULL;
    if (!size) Py_RETURN_NONE;
    norm_args given = {(const float *)c.a[0], (const float *)c.a[1], (const float *)c.a[2], (float *)c.a[3], width,
                       float_of(&c, 6)};
    Py_BEGIN_ALLOW_THREADS
    divided(norm_run, &given, rows, size);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

#define LAYER "intact8.layer"

static void forget(PyObject *capsule) { PyMem_Free(PyCapsule_GetPointer(capsule, LAYER)); }

/* Whether all memory of a layer is there. Where a step has no row of its own, `time` is one. */
static int layer_holds(const call *c, Py_ssize_t kind, Py_ssize_t batch, Py_ssize_t size, Py_ssize_t time) {
    const Py_ssize_t gates = times(GATES[kind], size), states = times(batch, size), end = whole(c, 9);
    if (end < 0 || end > 1 << 20 || !holds(c, 0, c->a[3], times(times(time, batch), gates), 4)) return 0;
    if (c->a[4] && !holds(c, 1, c->a[4], gates, 4)) return 0;
    if ((kind == GRU || c->a[5]) && !holds(c, 2, c->a[5], size, 4)) return 0;
    for (int i = 0; i < 3 && kind != RELU; i++)
        if (!holds(c, 3 + i, c->a[6 + i], 2 * end + 1, 4)) return 0;
    const Py_ssize_t rows = extent(batch, whole(c, 14), size), all = rows > 0 ? extent(time, whole(c, 13), rows) : rows;
    return holds(c, 6, c->a[10], states, 4) && holds(c, 7, c->a[11], states, 4) && holds(c, 8, c->a[12], all, 4) &&
           (!c->a[15] || holds(c, 9, c->a[15], times(time, batch), 1)) && holds(c, 10, c->a[16], states, 1) &&
           holds(c, 11, c->a[17], batch, 4);
}

static PyObject *layer_of(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t count) {
    call c;
    if (!take(&c, "layer", args, count, 21, 12)) return NULL;
    const Py_ssize_t kind = whole(&c, 0), batch = whole(&c, 1), size = whole(&c, 2), time = whole(&c, 20);
    if (kind < LSTM || kind > RELU) {
        PyErr_Format(PyExc_ValueError, "no kind %zd", kind);
        return NULL;
    }
    if (!layer_holds(&c, kind, batch, size, time) || !bytes_result(&c, 0, 0, whole(&c, 18))) return NULL;
    layer *n = (layer *)PyMem_Malloc(sizeof(layer));
    if (!n) return PyErr_NoMemory();
    n->kind = kind;
    n->batch = batch;
    n->size = size;
    n->time = time;
    n->input = (const float *)c.a[3];
    n->scale = (const float *)c.a[4];
    n->bias = (const float *)c.a[5];
    const Py_ssize_t middle = kind == RELU ? 0 : whole(&c, 9);
    n->sigmoid = (const float *)c.a[6] + middle;
    n->tanh = (const float *)c.a[7] + middle;
    n->cell_tanh = (const float *)c.a[8] + middle;
    n->end = (float)whole(&c, 9);
    n->h = (float *)c.a[10];
    n->c = (float *)c.a[11];
    n->y = (float *)c.a[12];
    n->step = whole(&c, 13);
    n->row = whole(&c, 14);
    n->inside = (const uint8_t *)c.a[15];
    n->q = (uint8_t *)c.a[16];
    n->s = (float *)c.a[17];
    n->zero = (float)whole(&c, 18);
    n->own = whole(&c, 19);
    n->unit = kind == RELU ? 1.0f : 1.0f / REACH;
    for (Py_ssize_t b = 0; b < n->batch; b++) state_quantize(n, b);
    PyObject *capsule = PyCapsule_New(n, LAYER, forget);
    if (!capsule) PyMem_Free(n);
    return capsule;
}

static PyObject *advance(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t count) {
    if (count < 3) {
        PyErr_SetString(PyExc_TypeError, "advance takes a layer, two integers and a size");
        return NULL;
    }
    const layer *n = (const layer *)PyCapsule_GetPointer(args[0], LAYER);
    call c;
    if (!n || !take(&c, "advance", args + 1, count - 1, 2, 1)) return NULL;
    const Py_ssize_t t = whole(&c, 0), size = n->batch * GATES[n->kind] * n->size;
    if (t < 0 || t >= n->time) {
        PyErr_Format(refused, "advance: there is no step %zd of %zd", t, n->time);
        return NULL;
    }
    if (c.a[1] && !holds(&c, 0, c.a[1], size, 4)) return NULL;
    step_args given = {n, t, c.a[1]};
    Py_BEGIN_ALLOW_THREADS
    divided(step_run, &given, n->batch, size);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* Whether rows of an operand or the result of an attention are in memory `which`. */
static int attention_holds(const call *c, int which, Py_ssize_t samples, Py_ssize_t heads, Py_ssize_t rows, Py_ssize_t width,
                           const Py_ssize_t strides[3]) {
    const Py_ssize_t head = extent(rows, strides[2], width), sample = head > 0 ? extent(heads, strides[1], head) : head;
    return holds(c, which, c->a[which], sample > 0 ? extent(samples, strides[0], sample) : sample, 4);
}

#define MOST_KEYS (1 << 30) /* or numbers of one: products of two fit */

static PyObject *attend(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t count) {
    call c;
    if (!take(&c, "attend", args, count, 25, 5)) return NULL;
    attention n;
    memset(&n, 0, sizeof n);
    n.from_q = (const float *)c.a[0], n.from_k = (const float *)c.a[1], n.from_v = (const float *)c.a[2];
    n.from_mask = (const float *)c.a[3], n.to_y = (float *)c.a[4];
    const Py_ssize_t samples = whole(&c, 5), heads = n.heads = whole(&c, 6);
    const Py_ssize_t queries = n.queries = whole(&c, 7), keys = n.keys = whole(&c, 8), width = n.width = whole(&c, 9);
    for (int i = 0; i < 3; i++) {
        n.q[i] = whole(&c, 10 + i);
        n.k[i] = whole(&c, 13 + i);
        n.v[i] = whole(&c, 16 + i);
        n.mask[i] = whole(&c, 19 + i);
        n.y[i] = whole(&c, 22 + i);
    }
    if (!attention_holds(&c, 0, samples, heads, queries, width, n.q) ||
        !attention_holds(&c, 1, samples, heads, keys, width, n.k) ||
        !attention_holds(&c, 2, samples, heads, keys, width, n.v) ||
        (n.from_mask && !attention_holds(&c, 3, samples, heads, queries, keys, n.mask)) ||
        !attention_holds(&c, 4, samples, heads, queries, width, n.y))
        return NULL;
    if (keys > MOST_KEYS || width > MOST_KEYS || times(times(samples, heads), times(queries, keys)) < 0) return PyErr_NoMemory();
    const body run = prepare_attention(&n);
    if (!run) {
        PyErr_SetString(PyExc_RuntimeError, "this CPU has no vectors for attention");
        return NULL;
    }
    const Py_ssize_t room = times(times(thread_limit ? thread_limit() : 1, n.needed), (Py_ssize_t)sizeof(float));
    n.scratch = room < 0 ? NULL : (float *)PyMem_Malloc((size_t)room);
    if (!n.scratch) return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    divided(run, &n, samples * heads, samples * heads * queries * keys);
    Py_END_ALLOW_THREADS
    PyMem_Free(n.scratch);
    Py_RETURN_NONE;
}

static PyObject *can_attend(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored)) {
    attention n;
    memset(&n, 0, sizeof(n));
    return PyBool_FromLong(prepare_attention(&n) != NULL);
}

/* As in ort.c, from a program that has been checked. */
static PyObject *convolve(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t count) {
    call c;
    Py_ssize_t n[15]; /* size, numbers */
    if (!take(&c, "convolve", args, count, 22, 5)) return NULL;
    for (int i = 0; i < 15; i++) n[i] = whole(&c, 7 + i);
    const int dense = c.a[5] != NULL;
    const body run = prepare_convolution(dense);
    if (!run) {
        PyErr_SetString(PyExc_RuntimeError, "convolve: not for this CPU");
        return NULL;
    }
    volatile int no_memory = 0;
    convolution_args given;
    memset(&given, 0, sizeof given);
    given.x = (const uint8_t *)c.a[0], given.y = (uint8_t *)c.a[4], given.weight = (const int8_t *)c.a[1];
    given.bias = (const int32_t *)c.a[2], given.ratio = (const float *)c.a[3], given.no_memory = &no_memory;
    const char *reason = describe_convolution(&given, dense, n, n + 4);
    if (reason) {
        PyErr_Format(refused, "convolve: %s", reason);
        return NULL;
    }
    packed_sizes packed = sizes_of_packed(&given, dense);
    if (!holds(&c, 0, c.a[0], times(n[0] * n[1], n[2] * n[3]), 1) || !holds(&c, 1, c.a[1], packed.weight, 1) ||
        !holds(&c, 2, c.a[2], packed.results, 4) || !holds(&c, 3, c.a[3], packed.results, 4) ||
        !holds(&c, 4, c.a[4], times(n[0] * given.rows, given.columns * given.results), 1))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (c.a[6])
        run(&given, 0, given.count);
    else
        divided(run, &given, given.count, given.images * given.rows * given.columns * given.results);
    Py_END_ALLOW_THREADS
    if (no_memory) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *cascade(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t count) {
    call c;
    if (!take(&c, "cascade", args, count, 13, 4)) return NULL;
    const Py_ssize_t channels = whole(&c, 3), pixels = whole(&c, 4), samples = whole(&c, 9), stages = whole(&c, 11);
    const Py_ssize_t size = times(channels, pixels);
    if (c.a[0] && !holds(&c, 0, c.a[0], times(samples, size), 4)) return NULL;
    if (!holds(&c, 1, c.a[1], size, 1) || !holds(&c, 2, c.a[2], c.bytes[2], 1) ||
        !holds(&c, 3, c.a[10], times(stages, STAGE), 8))
        return NULL;
    if (!bytes_result(&c, whole(&c, 6), whole(&c, 7), whole(&c, 8))) return NULL;
    if (stages < 1 || whole(&c, 12) < 1 || samples < 0 || !size) {
        PyErr_SetString(refused, "cascade: no stages, no rows or no images");
        return NULL;
    }
    volatile int nan = 0, no_memory = 0;
    const cascade_args given = {
        {{(const float *)c.a[0], (uint8_t *)c.a[1], float_of(&c, 5), (float)whole(&c, 6), (float)whole(&c, 7),
          (int32_t)whole(&c, 8), 1, &nan},
         channels, pixels, blocks_of(pixels)},
        (uint8_t *)c.a[2], c.bytes[2], samples, stages, whole(&c, 12), (const int64_t *)c.a[10], &no_memory};
    const char *reason;
    Py_BEGIN_ALLOW_THREADS
    reason = cascade_run(&given);
    Py_END_ALLOW_THREADS
    if (reason) {
        PyErr_Format(refused, "cascade: %s", reason);
        return NULL;
    }
    if (no_memory) return PyErr_NoMemory();
    return PyBool_FromLong(nan);
}

int plain;

static PyObject *leave_to_compiler(PyObject *Py_UNUSED(self), PyObject *given) {
    const int wanted = PyObject_IsTrue(given);
    if (wanted < 0) return NULL;
    plain = wanted;
    Py_RETURN_NONE;
}

static PyObject *can_convolve(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored)) {
    return PyBool_FromLong(prepare_convolution(1) != NULL);
}

static PyMethodDef methods[] = {
    {"use_threads", (PyCFunction)(void (*)(void))use_threads, METH_FASTCALL,
     "Addresses of GOMP_parallel, omp_get_thread_num, omp_get_num_threads, omp_get_max_threads."},
    {"quantize_rows", (PyCFunction)(void (*)(void))quantize_rows, METH_FASTCALL, "x, q, scales, rows, width."},
    {"scale_rows", (PyCFunction)(void (*)(void))scale_rows, METH_FASTCALL, "y, scales, bias or 0, rows, width."},
    {"finish", (PyCFunction)(void (*)(void))finish, METH_FASTCALL, "x, y, size, bits of the divisor, low, high, zero, alone."},
    {"interleave", (PyCFunction)(void (*)(void))interleave, METH_FASTCALL,
     "x, y, samples, channels, pixels, bits of the divisor, low, high, zero, alone."},
    {"convolve", (PyCFunction)(void (*)(void))convolve, METH_FASTCALL,
     "x, weight, bias, ratio, y, whether dense, alone, samples, height, width, channels, the numbers of ort.c."},
    {"cascade", (PyCFunction)(void (*)(void))cascade, METH_FASTCALL,
     "x or 0, image, y, channels, pixels, bits of the divisor, low, high, zero, samples, stages, count, band."},
    {"multiply", (PyCFunction)(void (*)(void))multiply, METH_FASTCALL,
     "x, w, y, rows, width, repeat, zero_x, zero_w, zero, bits of the ratio, low, high."},
    {"mean", (PyCFunction)(void (*)(void))mean, METH_FASTCALL,
     "x, y, samples, pixels, channels, offset, a, b, low, high, zero."},
    {"dequantize", (PyCFunction)(void (*)(void))dequantize, METH_FASTCALL,
     "x, y, rows, width, stride, bits of the scale, zero."},
    {"read_table", (PyCFunction)(void (*)(void))read_table, METH_FASTCALL, "x, y, size, table."},
    {"layer_norm", (PyCFunction)(void (*)(void))layer_norm, METH_FASTCALL,
     "x, weight, bias, y, rows, width, bits of epsilon."},
    {"layer", (PyCFunction)(void (*)(void))layer_of, METH_FASTCALL,
     "kind, batch, size, input, scale, bias, sigmoid, tanh, cell_tanh, end, h, c, y, step, row, inside, q, s, zero, own, time."},
    {"advance", (PyCFunction)(void (*)(void))advance, METH_FASTCALL, "layer, step, product or 0."},
    {"attend", (PyCFunction)(void (*)(void))attend, METH_FASTCALL,
     "q, k, v, mask or 0, y, samples, heads, queries, keys, width, then three strides of q, k, v, mask and y."},
    {"can_attend", can_attend, METH_NOARGS, "Whether this CPU has the vectors that attend needs."},
    {"leave_to_compiler", leave_to_compiler, METH_O, "Whether passes do without vectors of their own, for tests."},
    {"can_convolve", can_convolve, METH_NOARGS, "Whether Dense and Depthwise run here."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "One-pass rows and recurrent steps.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *errors = PyImport_ImportModule("intact8.errors");
    if (!errors) return NULL;
    refused = PyObject_GetAttrString(errors, "EngineError");
    Py_DECREF(errors);
    return refused ? PyModule_Create(&definition) : NULL;
}
