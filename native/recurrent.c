/* One time step of LSTM, GRU and RNN layers: hidden product in, new states and their integers out. Every operation is one
   rounding of intact8.arithmetic.recurrent, or exact. */

#include "arguments.h"
#include "row_scales.h"

enum { LSTM, GRU, RNN, RNN_RELU };

static const Py_ssize_t GATES[] = {4, 3, 1, 1};

/* One direction of a layer. T, B, G and H are the numbers of steps, samples, gates and hidden features. */
typedef struct {
    Py_ssize_t kind, batch, size, time;
    const float *input;          /* (T, B, G*H): the input products of the gates */
    const float *scale;          /* (G*H) of the hidden weight where products come as int32; NULL where they are scaled */
    const float *bias;           /* (H) of GRU's gate n in the hidden product */
    const float *sigmoid, *tanh; /* the middles of tables for -end ... end; tanh counts in steps of hidden states */
    const float *cell_tanh;      /* tanh in steps of cell states */
    float end;
    float *h, *c;                /* (B, H): states in steps, overwritten */
    float *y;                    /* the output of step t and sample b is y[t * step + b * row + j] */
    Py_ssize_t step, row;
    float unit;                  /* one step of h as a real number */
    const uint8_t *inside;       /* (T, B): whether a step belongs to the sequence; NULL where every step does */
    uint8_t *q;                  /* (B, H): quantized h */
    float *s;                    /* (B): scales of h */
    float zero;                  /* added to q */
    Py_ssize_t own_scales;       /* whether h has scales of its own, since an initial state may exceed 1 */
} recurrent_layer;

/* Table entries of v, with NaN as -end: the index is inside the table whatever v is. */
INLINE void look_up(const float *restrict middle, const float *restrict v, float end, float *restrict out,
                    Py_ssize_t count) {
    for (Py_ssize_t j = 0; j < count; j++) {
        float w = v[j] > -end ? v[j] : -end;
        w = w < end ? w : end;
        out[j] = middle[float_bits(w + ROUND_MAGIC) - 0x4b400000];
    }
}

/* The hidden product of one row; both pointers are NULL in the first step without an initial state. */
typedef struct {
    const float *scaled; /* fl(fl(accumulator) * scale) */
    const int32_t *accumulator;
    const float *scale;
    float s;
} hidden_product;

/* out = fl(fl(fl(accumulator) * scale) * s) of elements from .. from + count. */
INLINE void scale_hidden(const hidden_product *p, Py_ssize_t from, float *restrict out, Py_ssize_t count) {
    const float s = p->s;
    if (p->scaled) {
        const float *restrict y = p->scaled + from;
        for (Py_ssize_t j = 0; j < count; j++) out[j] = y[j] * s;
    } else if (p->accumulator) {
        const int32_t *restrict acc = p->accumulator + from;
        const float *restrict scale = p->scale + from;
        for (Py_ssize_t j = 0; j < count; j++) out[j] = (float)acc[j] * scale[j] * s;
    } else
        for (Py_ssize_t j = 0; j < count; j++) out[j] = 0.0f;
}

INLINE void add_to(float *restrict out, const float *restrict v, Py_ssize_t count) {
    for (Py_ssize_t j = 0; j < count; j++) out[j] += v[j];
}

INLINE void quantize_state(const recurrent_layer *n, Py_ssize_t b) {
    const float *h = n->h + b * n->size;
    float s = 1.0f;
    if (n->kind == RNN_RELU)
        s = row_scale(h, n->size);
    else if (n->own_scales) {
        const int32_t m = row_max(h, n->size), least = float_bits(REACH);
        s = bits_float(m > least ? m : least) / REACH;
    }
    row_quantize(h, s, n->zero, n->q + b * n->size, n->size);
    n->s[b] = s;
}

/* Overwrites the states h and c of one row; v are the input products of its gates. */
INLINE void lstm_row(const recurrent_layer *n, const float *restrict v, const hidden_product *p, float *restrict h,
                     float *restrict c) {
    const Py_ssize_t size = n->size;
    float gate[4][BLOCK], now[BLOCK];
    for (Py_ssize_t from = 0; from < size; from += BLOCK) {
        const Py_ssize_t count = min_size(size - from, BLOCK);
        for (int g = 0; g < 4; g++) {
            scale_hidden(p, g * size + from, now, count);
            add_to(now, v + g * size + from, count);
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

INLINE void gru_row(const recurrent_layer *n, const float *restrict v, const hidden_product *p, float *restrict h) {
    const Py_ssize_t size = n->size;
    float gate[2][BLOCK], now[BLOCK];
    for (Py_ssize_t from = 0; from < size; from += BLOCK) {
        const Py_ssize_t count = min_size(size - from, BLOCK);
        for (int g = 0; g < 2; g++) {
            scale_hidden(p, g * size + from, now, count);
            add_to(now, v + g * size + from, count);
            look_up(n->sigmoid, now, n->end, gate[g], count);
        }
        scale_hidden(p, 2 * size + from, now, count);
        add_to(now, n->bias + from, count);
        for (Py_ssize_t j = 0; j < count; j++) now[j] = v[2 * size + from + j] + now[j] * gate[0][j];
        look_up(n->tanh, now, n->end, gate[0], count);
        for (Py_ssize_t j = 0; j < count; j++) {
            const float w = gate[0][j];
            h[from + j] = w + (h[from + j] - w) * gate[1][j];
        }
    }
}

INLINE void rnn_row(const recurrent_layer *n, const float *restrict v, const hidden_product *p, float *restrict h) {
    float now[BLOCK];
    for (Py_ssize_t from = 0; from < n->size; from += BLOCK) {
        const Py_ssize_t count = min_size(n->size - from, BLOCK);
        scale_hidden(p, from, now, count);
        add_to(now, v + from, count);
        if (n->kind == RNN)
            look_up(n->tanh, now, n->end, h + from, count);
        else
            for (Py_ssize_t j = 0; j < count; j++) h[from + j] = now[j] < 0.0f ? 0.0f : now[j];
    }
}

typedef struct {
    const recurrent_layer *n;
    Py_ssize_t t;
    const void *product;
} step_args;

/* An index is a sample. */
MULTIVERSION static void step_kernel(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const step_args *a = (const step_args *)given;
    const recurrent_layer *n = a->n;
    const Py_ssize_t size = n->size, width = GATES[n->kind] * size;
    for (Py_ssize_t b = lo; b < hi; b++) {
        float *h = n->h + b * size, *y = n->y + a->t * n->step + b * n->row;
        if (n->inside && !n->inside[a->t * n->batch + b]) {
            memset(y, 0, (size_t)size * sizeof(float));
            continue; /* its states and their integers stay */
        }
        const float *v = n->input + (a->t * n->batch + b) * width;
        const hidden_product p = {
            a->product && !n->scale ? (const float *)a->product + b * width : NULL,
            a->product && n->scale ? (const int32_t *)a->product + b * width : NULL,
            n->scale,
            n->s[b],
        };
        if (n->kind == LSTM)
            lstm_row(n, v, &p, h, n->c + b * size);
        else if (n->kind == GRU)
            gru_row(n, v, &p, h);
        else
            rnn_row(n, v, &p, h);
        for (Py_ssize_t j = 0; j < size; j++) y[j] = h[j] * n->unit;
        quantize_state(n, b);
    }
}

#define CAPSULE "intact8.recurrent_layer"

static void free_layer(PyObject *capsule) { PyMem_Free(PyCapsule_GetPointer(capsule, CAPSULE)); }

/* Whether all memory of a layer is there. */
static int check_layer(const arguments *a, Py_ssize_t kind, Py_ssize_t batch, Py_ssize_t size, Py_ssize_t time) {
    const Py_ssize_t gates = checked_product(GATES[kind], size), states = checked_product(batch, size);
    const Py_ssize_t steps = checked_product(time, batch), end = int_at(a, 9);
    const Py_ssize_t inputs = end < 0 || end > 1 << 20 ? -1 : checked_product(steps, gates);
    if (!check_buffer(a, 0, a->value[3], inputs, 4)) return 0;
    if (a->value[4] && !check_buffer(a, 1, a->value[4], gates, 4)) return 0;
    if ((kind == GRU || a->value[5]) && !check_buffer(a, 2, a->value[5], size, 4)) return 0;
    for (int i = 0; i < 3 && kind != RNN_RELU; i++)
        if (!check_buffer(a, 3 + i, a->value[6 + i], 2 * end + 1, 4)) return 0;
    const Py_ssize_t rows = strided_extent(batch, int_at(a, 14), size);
    const Py_ssize_t output = rows > 0 ? strided_extent(time, int_at(a, 13), rows) : rows;
    return check_buffer(a, 6, a->value[10], states, 4) && check_buffer(a, 7, a->value[11], states, 4) &&
           check_buffer(a, 8, a->value[12], output, 4) && (!a->value[15] || check_buffer(a, 9, a->value[15], steps, 1)) &&
           check_buffer(a, 10, a->value[16], states, 1) && check_buffer(a, 11, a->value[17], batch, 4);
}

FUNCTION(recurrent_layer) {
    arguments a;
    if (!parse_arguments(&a, "recurrent_layer", args, count, 21, 12)) return NULL;
    const Py_ssize_t kind = int_at(&a, 0), batch = int_at(&a, 1), size = int_at(&a, 2), time = int_at(&a, 20);
    if (kind < LSTM || kind > RNN_RELU) {
        PyErr_Format(PyExc_ValueError, "no kind %zd", kind);
        return NULL;
    }
    if (!check_layer(&a, kind, batch, size, time) || !check_clamp(&a, 0, 0, int_at(&a, 18))) return NULL;
    recurrent_layer *n = (recurrent_layer *)PyMem_Malloc(sizeof(recurrent_layer));
    if (!n) return PyErr_NoMemory();
    const Py_ssize_t end = int_at(&a, 9), middle = kind == RNN_RELU ? 0 : end;
    *n = (recurrent_layer){
        .kind = kind, .batch = batch, .size = size, .time = time,
        .input = a.value[3], .scale = a.value[4], .bias = a.value[5],
        .sigmoid = (const float *)a.value[6] + middle, .tanh = (const float *)a.value[7] + middle,
        .cell_tanh = (const float *)a.value[8] + middle, .end = (float)end,
        .h = a.value[10], .c = a.value[11], .y = a.value[12], .step = int_at(&a, 13), .row = int_at(&a, 14),
        .unit = kind == RNN_RELU ? 1.0f : 1.0f / REACH, .inside = a.value[15],
        .q = a.value[16], .s = a.value[17], .zero = (float)int_at(&a, 18), .own_scales = int_at(&a, 19),
    };
    for (Py_ssize_t b = 0; b < n->batch; b++) quantize_state(n, b);
    PyObject *capsule = PyCapsule_New(n, CAPSULE, free_layer);
    if (!capsule) PyMem_Free(n);
    return capsule;
}

FUNCTION(recurrent_step) {
    if (count < 3) {
        PyErr_SetString(PyExc_TypeError, "recurrent_step takes a layer, two integers and a size");
        return NULL;
    }
    const recurrent_layer *n = (const recurrent_layer *)PyCapsule_GetPointer(args[0], CAPSULE);
    arguments a;
    if (!n || !parse_arguments(&a, "recurrent_step", args + 1, count - 1, 2, 1)) return NULL;
    const Py_ssize_t t = int_at(&a, 0), size = n->batch * GATES[n->kind] * n->size;
    if (t < 0 || t >= n->time) {
        PyErr_Format(engine_error, "recurrent_step: there is no step %zd of %zd", t, n->time);
        return NULL;
    }
    if (a.value[1] && !check_buffer(&a, 0, a.value[1], size, 4)) return NULL;
    const step_args given = {n, t, a.value[1]};
    return run_unlocked(step_kernel, &given, n->batch, size);
}
