/* One direction of a layer of LSTM, GRU or RNN: all time steps in one call. Every operation is one rounding of
   intact8.arithmetic.recurrent, or exact. */

#include "recurrent.h"

enum { LSTM, GRU, RNN, RNN_RELU };

static const isize gates_of[] = {4, 3, 1, 1};

#define GROUP 24 /* samples that share one pass over the weights */

typedef struct {
    const recurrent_step *s;
    const dynamic_weight *w;
    const float *input, *scale, *bias, *tanh, *h0, *c0;
    const int64_t *lengths;
    float *y;
    volatile int *failure;
    isize kind, time, batch, size, group;
} recurrent_args;

/* Memory of a thread, in bytes from its beginning. */
typedef struct {
    isize h, c, scales, sums, q, all;
} recurrent_scratch;

static recurrent_scratch scratch_of(isize kind, isize size) {
    const isize states = GROUP * round_up(4 * size, ALIGNMENT), gates = round_up(gates_of[kind] * size, 32);
    recurrent_scratch t;
    t.h = 0, t.c = states, t.scales = 2 * states, t.sums = t.scales + round_up(4 * GROUP, ALIGNMENT);
    t.q = t.sums + GROUP * 4 * gates;
    t.all = t.q + GROUP * packed_depth(size);
    return t;
}

int check_recurrent(checker *c, const int64_t *step) {
    const recurrent_step *s = (const recurrent_step *)(const void *)step;
    const int64_t most = 1 << 28;
    if (s->kind < LSTM || s->kind > RNN_RELU || s->time < 0 || s->time > most || s->batch < 0 || s->batch > most ||
        s->size < 1 || s->size > 1 << 24)
        return refuse(c, "a layer of no such kind or size");
    const isize size = (isize)s->size, gates = gates_of[s->kind] * size, rows = (isize)(s->time * s->batch);
    const isize states = (isize)s->batch * size;
    const int64_t state_rows = s->states ? s->kind == LSTM ? 2 : 1 : 0;
    const int64_t sizes[] = {state_rows + (s->steps ? s->time : 0), s->batch, s->size};
    if (s->kind != RNN_RELU && s->tanh < 0) return refuse(c, "a layer without a table");
    if (s->kind == GRU && s->bias < 0) return refuse(c, "a GRU without a hidden bias");
    if (s->y_row < 1 || s->y_row > most || s->y_offset < 0 || s->y_offset > most || s->h0_offset < 0 ||
        s->h0_offset > (int64_t)1 << 40)
        return refuse(c, "results of no such size");
    const int64_t strides[] = {s->y_row * s->batch, s->y_row, 1};
    c->scratch = scratch_of((isize)s->kind, size).all;
    if (!(c->prepared = (void *)(uintptr_t)pack_dynamic(c, s->weight, size, gates, s->bits, (isize)s->batch))) return 0;
    return needs(c, s->input, checked_product(rows, gates), 4, "input") && needs(c, s->row_scales, rows, 4, "row_scales") &&
           needs(c, s->scale, gates, 4, "scale") && (s->bias < 0 || needs(c, s->bias, size, 4, "bias")) &&
           (s->tanh < 0 || needs(c, s->tanh, TABLE_END + 1, 4, "tanh")) &&
           (s->h0 < 0 || needs(c, s->h0, (isize)s->h0_offset + states, 4, "h0")) &&
           (s->c0 < 0 || needs(c, s->c0, (isize)s->h0_offset + states, 4, "c0")) &&
           (s->lengths < 0 || needs(c, s->lengths, (isize)s->batch, 8, "lengths")) &&
           (sizes[0] == 0 || s->batch == 0 || check_result(c, s->y, s->y_offset, sizes, strides, 3, 4));
}

/* out = table[R(v)] with the sign of R(v). Returns whether a v is NaN, which reads the table's end. */
MULTIVERSION static int look_up(const float *restrict table, const float *restrict v, float *restrict out, isize count) {
    const float end = TABLE_END;
    int32_t index[BLOCK], negative[BLOCK], bad = 0;
    for (isize j = 0; j < count; j++) {
        float w = v[j] > -end ? v[j] : -end;
        w = w < end ? w : end;
        const int32_t signed_index = float_bits(w + ROUND_MAGIC) - 0x4b400000;
        negative[j] = signed_index >> 31;
        index[j] = (signed_index ^ negative[j]) - negative[j];
        bad |= v[j] == v[j] ? 0 : 1;
    }
    const volatile int32_t *place = index; /* one load each is faster than gathers, and four results are stored at once */
    isize done = 0;
    for (; done + 4 <= count; done += 4) {
        const float four[] = {table[place[done]], table[place[done + 1]], table[place[done + 2]], table[place[done + 3]]};
        memcpy(out + done, four, sizeof four);
    }
    for (; done < count; done++) out[done] = table[place[done]];
    for (isize j = 0; j < count; j++) out[j] = bits_float(float_bits(out[j]) ^ (negative[j] & INT32_MIN));
    return bad;
}

MULTIVERSION static int sigmoids(const float *restrict table, const float *restrict v, float *restrict out, isize count) {
    const int bad = look_up(table, v, out, count);
    for (isize j = 0; j < count; j++) out[j] = out[j] * 0.5f + 0.5f;
    return bad;
}

INLINE void hidden_gates(const hidden_product *p, isize from, const float *restrict add, float *restrict out, isize count) {
    const int32_t *restrict sums = p->sums + from, *restrict offsets = p->offsets + from;
    const float *restrict scale = p->scale + from;
    for (isize j = 0; j < count; j++) out[j] = dynamic_result(sums[j], offsets[j], scale[j], p->s) + add[j];
}

/* The new states h and c of one sample; v are the input products of its gates. Returns whether NaN reached a gate. */
INLINE int lstm_cell(const recurrent_args *a, const float *v, const hidden_product *p, float *restrict h, float *restrict c) {
    const isize size = a->size;
    float gate[4][BLOCK], now[BLOCK];
    int bad = 0;
    isize from = 0;
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    if (has_avx512_vnni()) from = lstm_vectors(a->tanh, v, p, size, h, c, &bad);
#endif
    for (; from < size; from += BLOCK) {
        const isize count = min_size(size - from, BLOCK);
        for (int g = 0; g < 4; g++) {
            hidden_gates(p, g * size + from, v + g * size + from, now, count);
            bad |= g == 2 ? look_up(a->tanh, now, gate[g], count) : sigmoids(a->tanh, now, gate[g], count);
        }
        for (isize j = 0; j < count; j++) {
            const float new = gate[0][j] * (gate[2][j] * CELL_STEPS);
            c[from + j] = gate[1][j] * c[from + j] + new;
        }
        bad |= look_up(a->tanh, c + from, now, count);
        for (isize j = 0; j < count; j++) h[from + j] = gate[3][j] * (now[j] * REACH);
    }
    return bad;
}

INLINE int gru_cell(const recurrent_args *a, const float *v, const hidden_product *p, float *restrict h) {
    const isize size = a->size;
    float gate[2][BLOCK], now[BLOCK], next[BLOCK];
    int bad = 0;
    for (isize from = 0; from < size; from += BLOCK) {
        const isize count = min_size(size - from, BLOCK);
        for (int g = 0; g < 2; g++) {
            hidden_gates(p, g * size + from, v + g * size + from, now, count);
            bad |= sigmoids(a->tanh, now, gate[g], count);
        }
        hidden_gates(p, 2 * size + from, a->bias + from, now, count);
        for (isize j = 0; j < count; j++) now[j] = v[2 * size + from + j] + gate[0][j] * now[j];
        bad |= look_up(a->tanh, now, next, count);
        for (isize j = 0; j < count; j++) {
            const float n = next[j] * REACH;
            h[from + j] = n + gate[1][j] * (h[from + j] - n);
        }
    }
    return bad;
}

INLINE int rnn_cell(const recurrent_args *a, const float *v, const hidden_product *p, float *restrict h) {
    float now[BLOCK], next[BLOCK];
    int bad = 0;
    for (isize from = 0; from < a->size; from += BLOCK) {
        const isize count = min_size(a->size - from, BLOCK);
        hidden_gates(p, from, v + from, now, count);
        if (a->kind == RNN_RELU) {
            for (isize j = 0; j < count; j++) h[from + j] = now[j] < 0.0f ? 0.0f : now[j];
            continue;
        }
        bad |= look_up(a->tanh, now, next, count);
        for (isize j = 0; j < count; j++) h[from + j] = next[j] * REACH;
    }
    return bad;
}

/* Scale of a hidden state: one step, or that of its largest magnitude. */
INLINE float hidden_scale(const recurrent_args *a, const float *h) {
    if (a->kind == RNN_RELU) return scale_of_row(h, a->size);
    float most = REACH;
    for (isize j = 0; a->h0 && j < a->size; j++) {
        const float magnitude = bits_float(float_bits(h[j]) & 0x7fffffff);
        most = magnitude > most ? magnitude : most;
    }
    return most / REACH;
}

/* Fills in the first states of a sample. Returns whether they are finite. */
static int first_states(const recurrent_args *a, isize b, float *h, float *c) {
    const isize from = (isize)a->s->h0_offset + b * a->size;
    int bad = 0;
    for (isize j = 0; j < a->size; j++) {
        h[j] = a->h0 ? a->h0[from + j] * (a->kind == RNN_RELU ? 1.0f : REACH) : 0.0f;
        c[j] = a->c0 ? a->c0[from + j] * CELL_STEPS : 0.0f;
        bad |= h[j] - h[j] != 0.0f || c[j] - c[j] != 0.0f;
    }
    return !bad;
}

MULTIVERSION static void write_states(const float *restrict state, float unit, float *restrict y, isize count) {
    for (isize j = 0; j < count; j++) y[j] = state[j] * unit;
}

/* One sample in one time step; `q` and `scale` are of its state before, and become those of its new state. */
MULTIVERSION static int step_sample(const recurrent_args *a, isize t, isize b, const int32_t *sums, float *h, float *c,
                                    uint8_t *q, float *scale) {
    const isize size = a->size, gates = gates_of[a->kind] * size, first = a->s->states ? a->kind == LSTM ? 2 : 1 : 0;
    float *y = a->s->steps ? a->y + ((first + t) * a->batch + b) * a->s->y_row : NULL;
    if (a->lengths && t >= a->lengths[b]) { /* the states stay */
        if (y) memset(y, 0, (size_t)size * sizeof(float));
        return 1;
    }
    const float *v = a->input + (t * a->batch + b) * gates;
    const hidden_product p = {sums, a->w->offsets, a->scale, *scale};
    const int bad = a->kind == LSTM ? lstm_cell(a, v, &p, h, c) : a->kind == GRU ? gru_cell(a, v, &p, h) : rnn_cell(a, v, &p, h);
    const float unit = a->kind == RNN_RELU ? 1.0f : 1.0f / REACH;
    if (y) write_states(h, unit, y, size);
    *scale = hidden_scale(a, h);
    quantize_row(h, *scale, q, size);
    return !bad;
}

/* Products of all gates. Every other step begins at the end: weights that just were in the cache are still there. The input
   products `v` of the samples, which are read next, come to the cache meanwhile. */
static void hidden_products(const recurrent_args *a, const uint8_t *q, isize count, int backwards, const float *v,
                            int32_t *sums) {
    const isize columns = a->w->columns, blocks = ceil_div(columns, PRODUCT_COLUMNS);
    const isize gates = gates_of[a->kind] * a->size, line = ALIGNMENT / (isize)sizeof *v;
    for (isize i = 0; i < blocks; i++) {
        const isize from = (backwards ? blocks - 1 - i : i) * PRODUCT_COLUMNS;
        for (isize k = 0; k < count * PRODUCT_COLUMNS; k += line)
            PREFETCH(v + k / PRODUCT_COLUMNS * gates + min_size(from + k % PRODUCT_COLUMNS, gates - 1));
        multiply_block(a->w, q, count, from, sums + from, columns);
    }
}

/* All time steps of `count` samples from `from` on. */
static int run_group(const recurrent_args *a, isize from, isize count, uint8_t *scratch) {
    const recurrent_scratch k = scratch_of(a->kind, a->size);
    const isize size = a->size, apart = a->w->columns, deep = a->w->depth;
    float *h = (float *)(void *)(scratch + k.h), *c = (float *)(void *)(scratch + k.c), *scales = (float *)(void *)(scratch + k.scales);
    int32_t *sums = (int32_t *)(void *)(scratch + k.sums);
    uint8_t *q = scratch + k.q;
    int fine = 1;
    memset(q, 0, (size_t)(count * deep));
    for (isize i = 0; i < count; i++) {
        fine &= first_states(a, from + i, h + i * size, c + i * size);
        scales[i] = hidden_scale(a, h + i * size);
        quantize_row(h + i * size, scales[i], q + i * deep, size);
    }
    for (isize step = 0; step < a->time; step++) {
        const isize t = a->s->reverse ? a->time - 1 - step : step;
        hidden_products(a, q, count, (int)(step % 2), a->input + (t * a->batch + from) * gates_of[a->kind] * size, sums);
        for (isize i = 0; i < count; i++)
            fine &= step_sample(a, t, from + i, sums + i * apart, h + i * size, c + i * size, q + i * deep, scales + i);
    }
    const float unit = a->kind == RNN_RELU ? 1.0f : 1.0f / REACH;
    for (isize i = 0; a->s->states && i < count; i++) {
        float *y = a->y + (from + i) * a->s->y_row;
        write_states(h + i * size, unit, y, size);
        if (a->kind == LSTM) write_states(c + i * size, 1.0f / CELL_STEPS, y + a->batch * a->s->y_row, size);
    }
    return fine;
}

/* An index is a group of samples. */
static void recurrent_kernel(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const recurrent_args *a = (const recurrent_args *)given;
    for (isize i = lo; i < hi; i++)
        if (!run_group(a, i * a->group, min_size(a->batch - i * a->group, a->group), scratch))
            STORE_SHARED(a->failure, NOT_FINITE);
}

void run_recurrent(frame *f, const int64_t *step, void *prepared) {
    const recurrent_step *s = (const recurrent_step *)(const void *)step;
    const isize batch = (isize)s->batch, time = (isize)s->time;
    const float *row_scales = at(f, s->row_scales);
    for (isize i = 0; i < batch * time; i++)
        if (row_scales[i] != row_scales[i]) f->failure = NOT_FINITE;
    if (!batch || f->failure) return;
    const isize group = max_size(min_size(ceil_div(batch, f->threads), GROUP), 1);
    const recurrent_args a = {s, (const dynamic_weight *)prepared, at(f, s->input), at(f, s->scale), at(f, s->bias),
                              at(f, s->tanh), at(f, s->h0), at(f, s->c0), at(f, s->lengths),
                              (float *)at(f, s->y) + s->y_offset, &f->failure, (isize)s->kind, time, batch,
                              (isize)s->size, group};
    parallel(f, recurrent_kernel, &a, ceil_div(batch, group), (isize)1 << 20);
}
