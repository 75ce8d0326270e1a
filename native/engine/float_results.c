/* Sums of convolutions that become float32, see float_results.h. Each operation is rounded once. */

#include "float_results.h"

isize float_results_scratch(const chain_plan *code) {
    return (1 + (code ? code->operands + code->instructions : 0)) * CHAIN_BLOCK * (isize)sizeof(float);
}

/* Whether a register is an operand of one float32 for every channel; `of_places`: 1 where it has one for every place as well, -1
   where it may. */
static int is_floats(const chain_plan *code, isize j, int of_places) {
    if (j < 1 || j >= code->operands) return 0;
    const chain_operand *o = &code->operand[j];
    return o->type == FLOATS && o->stride[1] == 1 && (of_places < 0 || (o->stride[0] > 0) == of_places);
}

usual_code usual_code_of(const chain_plan *code) {
    usual_code u = {.usual = 1, .known = 1}, scaled = {0};
    isize result = 0, product = -1; /* registers: of the result, and of a tensor that is scaled, and shifted */
    for (isize j = 1; code && j < code->operands; j++) u.known &= code->operand[j].type <= GRID;
    for (isize k = 0; code && k < code->instructions; k++) {
        const chain_instruction *t = &code->instruction[k];
        const enum chain_known known = known_instruction(t);
        const isize to = code->operands + k, mine = t->b == result || t->b == product ? t->b : t->a, other = t->a + t->b - mine;
        const int sum = known == ADDS && mine != other && !u.function && !u.scaled && !u.divisor;
        u.known &= known != OTHER;
        if (known == MULTIPLIES && product < 0 && is_floats(code, t->a, 1) && is_floats(code, t->b, 0)) {
            scaled.scaled = t->a, scaled.factor = t->b, product = to;
        } else if (sum && mine == product && !scaled.shift && is_floats(code, other, 0)) {
            scaled.shift = other, product = to;
        } else if (sum && mine == result && !u.operand && is_floats(code, other, -1)) {
            u.operand = other, result = to;
        } else if (sum && scaled.shift && ((mine == product && other == result) || (mine == result && other == product))) {
            u.scaled = scaled.scaled, u.factor = scaled.factor, u.shift = scaled.shift, result = to;
        } else if (known >= RELU && t->a == result && !u.function && !u.divisor) {
            u.function = known, u.low = (float)t->p, u.high = (float)t->q, result = to;
        } else if (known == DIVIDES && t->a == result && !u.divisor && is_floats(code, t->b, 0)) {
            u.divisor = t->b, result = to;
        } else {
            u.usual = 0;
        }
    }
    u.usual &= !code || !code->instructions || result == code->operands + code->instructions - 1;
    return u;
}

/* ---- any code ----------------------------------------------------------------------------------------------------------- */

MULTIVERSION static void scale_sums(const int32_t *restrict sums, const float *restrict scale, const float *restrict bias,
                                    float *restrict y, isize count) {
    if (bias)
        for (isize i = 0; i < count; i++) y[i] = (float)sums[i] * scale[i] + bias[i];
    else
        for (isize i = 0; i < count; i++) y[i] = (float)sums[i] * scale[i];
}

/* Returns the products of some rows of sums and their scales, with the biases. */
static const float *scale_rows(const int32_t *sums, const float *scale, const float *bias, const sum_block *b, isize from,
                               isize rows, float *to) {
    for (isize r = 0; r < rows; r++)
        scale_sums(sums + (from + r) * b->apart, scale + b->channel, bias ? bias + b->channel : NULL, to + r * b->channels, b->channels);
    return to;
}

/* Returns an operand's elements for `rows` rows of results from `place` on. */
static const float *operand_rows(const float_results *t, isize j, const sum_block *b, isize place, isize rows, float *to) {
    if (j == t->joined) return scale_rows(b->joined, t->joined_scale, t->joined_bias, b, place - b->place, rows, to);
    const chain_operand *o = &t->code->operand[j];
    const isize next = o->stride[1], at = b->channel * next;
    if (next && b->channels == t->channels && o->stride[0] == t->channels)
        return (const float *)load_operand(o, t->operand[j], place * t->channels, 1, rows * b->channels, to);
    for (isize r = 0; r < rows; r++) {
        float *row = to + r * b->channels;
        const void *found = load_operand(o, t->operand[j], at + (place + r) * o->stride[0], next, b->channels, row);
        if (found != row) memcpy(row, found, (size_t)b->channels * sizeof *row);
    }
    return to;
}

/* Computes some rows of results, which fit into a block. Returns where they are. */
static const float *compute_rows(const float_results *t, const sum_block *b, isize from, isize rows, float *scratch) {
    const float *at[MAX_OPERANDS + MAX_INSTRUCTIONS] = {scale_rows(b->sums, t->scale, t->bias, b, from, rows, scratch)};
    const isize channels = b->channels, operands = t->code ? t->code->operands : 1;
    for (isize j = 1; j < operands; j++) at[j] = operand_rows(t, j, b, b->place + from, rows, scratch + j * CHAIN_BLOCK);
    const isize instructions = t->code ? t->code->instructions : 0;
    for (isize k = 0; k < instructions; k++) {
        const chain_instruction *i = &t->code->instruction[k];
        float *to = scratch + (operands + k) * CHAIN_BLOCK;
        compute(i, at[i->a], at[i->b], to, rows * channels);
        at[operands + k] = to;
    }
    return at[instructions ? operands + instructions - 1 : 0];
}

static void finish_any(const float_results *t, const sum_block *b, float *scratch) {
    const isize step = max_size(CHAIN_BLOCK / b->channels, 1);
    for (isize from = 0; from < b->rows; from += step) {
        const isize rows = min_size(b->rows - from, step);
        const float *x = compute_rows(t, b, from, rows, scratch);
        for (isize r = 0; r < rows; r++, x += b->channels) {
            const isize at = (b->place + from + r) * t->channels + b->channel;
            if (t->y) memcpy(t->y + at, x, (size_t)b->channels * sizeof *x);
            if (t->q) quantize_line(x, t->q + at, b->channels, &t->grid);
        }
    }
}

/* ---- AVX-512 --------------------------------------------------------------------------------------------------------------- */

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "activations_avx512.h"
#include "functions.h"
#include "quantize_avx512.h"

AVX512_INLINE __m512 relu(__m512 v) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_NLE_UQ), v);
}

AVX512_INLINE __m512 apply(__m512 v, const usual_code *u) {
    if (u->function == RELU) return relu(v);
    if (u->function == SILU) return silu_sixteen(v);
    if (u->function == HARDSWISH) return hardswish_sixteen(v);
    if (u->function >= GELU) return sixteen_in_full(v, u->function == GELU ? gelu_in_full : gelu_tanh_in_full);
    const __m512 low = _mm512_set1_ps(u->low), high = _mm512_set1_ps(u->high);
    v = _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(v, low, _CMP_LT_OQ), low);
    return _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(v, high, _CMP_GT_OQ), high);
}

/* What does not change from row to row. */
typedef struct {
    usual_code code;
    quantize_vector grid;
    epilogue bytes;
    const float *scale, *bias, *joined_scale, *joined_bias, *factor, *shift;
    __m512 divisor[4], inverse[4], middle[4]; /* of 64 channels; approximations of functions decide steps up to the middle */
} vector_results;

/* What belongs to a row: sums, those that are joined, what is added, and what is added scaled and shifted; NULL for none. */
typedef struct {
    const int32_t *sums, *joined;
    const float *other, *scaled;
} row_inputs;

/* 16 sums as float32. */
AVX512_INLINE __m512 scale_sixteen(const int32_t *sums, const float *scale, const float *bias, __mmask16 mask) {
    const __m512 v = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_loadu_si512(sums)), _mm512_maskz_loadu_ps(mask, scale));
    return bias ? _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, bias)) : v;
}

AVX512_INLINE __m512 result_of(const vector_results *t, const int32_t *sums, isize c, __mmask16 mask) {
    return scale_sixteen(sums + c, t->scale + c, t->bias ? t->bias + c : NULL, mask);
}

AVX512_INLINE __m512 joined_of(const vector_results *t, const int32_t *sums, isize c, __mmask16 mask) {
    return scale_sixteen(sums + c, t->joined_scale + c, t->joined_bias ? t->joined_bias + c : NULL, mask);
}

AVX512_INLINE __m512 divided(__m512 v, const vector_results *t, isize k) {
    return t->code.divisor ? _mm512_div_ps(v, t->divisor[k]) : v;
}

/* The steps of an activation that nobody needs itself: mostly decided by an approximation. */
AVX512_INLINE __m512 steps_of_activation(__m512 v, const vector_results *t, isize k) {
    const enum chain_known function = t->code.function;
    const __m512 near = function == GELU ? near_gelu_sixteen(v) : function == GELU_TANH ? near_gelu_tanh(v)
                      : function == SILU ? near_silu(v) : near_hardswish(v);
    __m512 steps;
    const int open = find_steps(t->code.divisor ? _mm512_mul_ps(near, t->inverse[k]) : near, &t->grid, t->middle[k], &steps);
    const int unusual = _mm512_cmp_ps_mask(v, _mm512_set1_ps(-SILU_MOST), _CMP_LT_OQ);
    return open | unusual ? nearest_steps(divided(apply(v, &t->code), t, k), &t->grid) : steps;
}

/* Prepares divisors, and how far from their integers steps may lie that approximations decide. */
AVX512_INLINE void prepare_divisors(vector_results *v, const float *divisor, isize count, __mmask16 last) {
    const int gelu = v->code.function >= GELU;
    const float relative = gelu ? 256 * GELU_RELATIVE : 255 * 0x1p-21f, absolute = gelu ? GELU_ABSOLUTE : 0;
    for (isize k = 0; k < count; k++) {
        const __m512 one = _mm512_set1_ps(1.0f);
        v->divisor[k] = divisor ? _mm512_mask_loadu_ps(one, k == count - 1 ? last : 0xffff, divisor + 16 * k) : one;
        v->inverse[k] = _mm512_div_ps(one, v->divisor[k]);
        const __m512 size = _mm512_abs_ps(v->divisor[k]), steps = _mm512_abs_ps(_mm512_mul_ps(v->inverse[k], v->grid.inverse));
        /* A product with the inverse, rounded twice, is one more place off; none is where that is no usual number. */
        const __m512 middle = _mm512_fnmadd_ps(steps, _mm512_set1_ps(absolute), _mm512_set1_ps(NEAR_MIDDLE - relative - 256 * 0x1p-22f));
        const __mmask16 usual = _mm512_cmp_ps_mask(size, _mm512_set1_ps(1 / LARGEST_DIVISOR), _CMP_GT_OQ) &
                                _mm512_cmp_ps_mask(size, _mm512_set1_ps(LARGEST_DIVISOR), _CMP_LT_OQ);
        v->middle[k] = _mm512_mask_mov_ps(_mm512_set1_ps(-1.0f), usual, middle);
    }
}

/* A row of up to 64 channels, `count` vectors of them, the last of which has a mask. */
AVX512_INLINE void finish_row(const vector_results *t, const row_inputs *row, isize count, __mmask16 last, float *y, uint8_t *q) {
    __m512 steps[4];
    for (isize k = 0; k < count; k++) {
        const __mmask16 mask = k == count - 1 ? last : 0xffff;
        __m512 v = result_of(t, row->sums, 16 * k, mask);
        if (row->joined) v = _mm512_add_ps(v, joined_of(t, row->joined, 16 * k, mask));
        if (row->other) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, row->other + 16 * k));
        if (row->scaled) {
            const __m512 x = _mm512_maskz_loadu_ps(mask, row->scaled + 16 * k);
            const __m512 product = _mm512_mul_ps(x, _mm512_maskz_loadu_ps(mask, t->factor + 16 * k));
            v = _mm512_add_ps(v, _mm512_add_ps(product, _mm512_maskz_loadu_ps(mask, t->shift + 16 * k)));
        }
        if (!y && t->code.function >= SILU) {
            steps[k] = _mm512_add_ps(steps_of_activation(v, t, k), t->bytes.magic);
            continue;
        }
        if (t->code.function) v = apply(v, &t->code);
        v = divided(v, t, k);
        if (y) _mm512_mask_storeu_ps(y + 16 * k, mask, v);
        if (q) steps[k] = _mm512_add_ps(nearest_steps(v, &t->grid), t->bytes.magic);
    }
    if (!q) return;
    for (isize k = count; k < 4; k++) steps[k] = t->bytes.magic;
    const __mmask64 mask = (__mmask64)last << 16 * (count - 1) | byte_mask(16 * (count - 1));
    _mm512_mask_storeu_epi8(q, mask, from_lane_order(small_to_bytes(steps, &t->bytes)));
}

/* Loads what belongs to a row of results. */
AVX512_INLINE void load_row(const chain_operand *o, const void *x, isize place, isize channel, isize count, __mmask16 last, float *to) {
    const isize at = place * o->stride[0] + channel * o->stride[1];
    for (isize k = 0; k < count; k++) {
        const __mmask16 mask = k == count - 1 ? last : 0xffff;
        if (o->type == FLOATS) {
            const float *from = (const float *)x + at;
            _mm512_storeu_ps(to + 16 * k, o->stride[1] ? _mm512_maskz_loadu_ps(mask, from + 16 * k) : _mm512_set1_ps(*from));
        } else {
            const uint8_t *from = (const uint8_t *)x + at;
            const __m128i bytes = o->stride[1] ? _mm_maskz_loadu_epi8(mask, from + 16 * k) : _mm_set1_epi8((char)*from);
            const __m512i steps = _mm512_sub_epi32(_mm512_cvtepu8_epi32(bytes), _mm512_set1_epi32(o->zero));
            _mm512_storeu_ps(to + 16 * k, _mm512_mul_ps(_mm512_cvtepi32_ps(steps), _mm512_set1_ps(o->scale)));
        }
    }
}

/* Computes an instruction for `count` vectors. */
#define EACH_VECTOR(value)                                                              \
    for (isize k = 0; k < count; k++) {                                                 \
        const __m512 u = _mm512_loadu_ps(a + 16 * k), w = _mm512_loadu_ps(b + 16 * k);  \
        (void)w;                                                                        \
        _mm512_storeu_ps(to + 16 * k, value);                                           \
    }                                                                                   \
    break

AVX512_INLINE void run_instruction(const usual_code *code, const float *a, const float *b, isize count, float *to) {
    switch (code->function) {
        case ADDS: EACH_VECTOR(_mm512_add_ps(u, w));
        case SUBTRACTS: EACH_VECTOR(_mm512_sub_ps(u, w));
        case MULTIPLIES: EACH_VECTOR(_mm512_mul_ps(u, w));
        case DIVIDES: EACH_VECTOR(_mm512_div_ps(u, w));
        case RELU: EACH_VECTOR(relu(u));
        default: EACH_VECTOR(apply(u, code));
    }
}

/* Rows of up to 64 channels, by any code of known instructions. */
AVX512_TARGET static void interpret_rows(const float_results *t, const vector_results *v, const sum_block *b, isize count, __mmask16 last) {
    const chain_plan *c = t->code;
    usual_code codes[MAX_INSTRUCTIONS];
    float registers[MAX_OPERANDS + MAX_INSTRUCTIONS][64];
    const float *at[MAX_OPERANDS + MAX_INSTRUCTIONS];
    const __mmask64 mask = (__mmask64)last << 16 * (count - 1) | byte_mask(16 * (count - 1));
    const isize result = c->operands + c->instructions - 1;
    for (isize k = 0; k < c->instructions; k++) {
        const chain_instruction *i = &c->instruction[k];
        codes[k] = (usual_code){.function = known_instruction(i), .low = (float)i->p, .high = (float)i->q};
    }
    for (isize j = 0; j <= result; j++) at[j] = registers[j];
    for (isize j = 1; j < c->operands; j++) /* what is the same for all rows */
        if (!c->operand[j].stride[0]) load_row(&c->operand[j], t->operand[j], 0, b->channel, count, last, registers[j]);
    for (isize r = 0; r < b->rows; r++) {
        const isize place = b->place + r, first = place * t->channels + b->channel;
        for (isize k = 0; k < count; k++) {
            const __mmask16 some = k == count - 1 ? last : 0xffff;
            _mm512_storeu_ps(registers[0] + 16 * k, result_of(v, b->sums + r * b->apart, 16 * k, some));
            if (t->joined) _mm512_storeu_ps(registers[t->joined] + 16 * k, joined_of(v, b->joined + r * b->apart, 16 * k, some));
        }
        for (isize j = 1; j < c->operands; j++) {
            const chain_operand *o = &c->operand[j];
            if (!o->stride[0] || j == t->joined) continue;
            if (o->type == FLOATS && o->stride[1] && last == 0xffff)
                at[j] = (const float *)t->operand[j] + place * o->stride[0] + b->channel;
            else
                load_row(o, t->operand[j], place, b->channel, count, last, registers[j]);
        }
        for (isize k = 0; k < c->instructions; k++) {
            const chain_instruction *i = &c->instruction[k];
            run_instruction(&codes[k], at[i->a], at[i->b], count, registers[c->operands + k]);
        }
        __m512 steps[4];
        for (isize k = 0; k < 4; k++) {
            const __m512 value = _mm512_loadu_ps(at[result] + 16 * (k < count ? k : 0));
            if (t->y && k < count) _mm512_mask_storeu_ps(t->y + first + 16 * k, (__mmask16)(mask >> 16 * k), value);
            steps[k] = t->q && k < count ? _mm512_add_ps(nearest_steps(value, &v->grid), v->bytes.magic) : v->bytes.magic;
        }
        if (t->q) _mm512_mask_storeu_epi8(t->q + first, mask, from_lane_order(small_to_bytes(steps, &v->bytes)));
    }
}

AVX512_TARGET static void finish_vectors(const float_results *t, const sum_block *b) {
    const usual_code code = t->usual;
    vector_results v = {.code = code, .scale = t->scale + b->channel, .bias = t->bias ? t->bias + b->channel : NULL};
    v.bytes.magic = _mm512_setzero_ps();
    if (t->q) {
        v.grid = make_quantize_vector(&t->grid), v.bytes = make_epilogue(t->grid.zero, 0, 255);
    }
    if (t->joined) v.joined_scale = t->joined_scale + b->channel, v.joined_bias = t->joined_bias ? t->joined_bias + b->channel : NULL;
    const isize next = t->channels, at = b->place * next + b->channel;
    const isize other_next = code.operand ? t->code->operand[code.operand].stride[0] : 0, count = ceil_div(b->channels, 16);
    const __mmask16 last = (__mmask16)byte_mask(b->channels - 16 * (count - 1));
    if (!code.usual) {
        interpret_rows(t, &v, b, count, last);
        return;
    }
    if (code.divisor || code.function >= SILU)
        prepare_divisors(&v, code.divisor ? (const float *)t->operand[code.divisor] + b->channel : NULL, count, last);
    row_inputs row = {.sums = b->sums, .joined = code.operand && code.operand == t->joined ? b->joined : NULL};
    if (code.operand && !row.joined) row.other = (const float *)t->operand[code.operand] + b->place * other_next + b->channel;
    if (code.scaled) {
        row.scaled = (const float *)t->operand[code.scaled] + at;
        v.factor = (const float *)t->operand[code.factor] + b->channel;
        v.shift = (const float *)t->operand[code.shift] + b->channel;
    }
    float *y = t->y ? t->y + at : NULL;
    uint8_t *q = t->q ? t->q + at : NULL;
    for (isize r = 0; r < b->rows; r++) {
        if (count == 4 && last == 0xffff)
            finish_row(&v, &row, 4, 0xffff, y, q);
        else
            finish_row(&v, &row, count, last, y, q);
        row.sums += b->apart;
        if (row.joined) row.joined += b->apart;
        if (row.other) row.other += other_next;
        if (row.scaled) row.scaled += next;
        if (y) y += next;
        if (q) q += next;
    }
}

AVX512_TARGET void expect_floats(const void *args, const sum_block *b) {
    const float_results *t = (const float_results *)args;
    const isize at = b->place * t->channels + b->channel;
    if (t->y) fetch_rows(t->y + at, b->rows, t->channels * 4, b->channels * 4);
    for (isize j = 1; t->code && j < t->code->operands; j++) {
        const chain_operand *o = &t->code->operand[j];
        const isize size = o->type == FLOATS ? 4 : 1;
        if (j != t->joined && o->stride[0] == t->channels && o->type <= GRID)
            fetch_rows((const char *)t->operand[j] + at * size, b->rows, t->channels * size, b->channels * size);
    }
}

static int takes_vectors(const float_results *t) {
    return has_avx512_vnni() && t->usual.known && (!t->q || has_usual_divisor(&t->grid));
}
#else
void expect_floats(const void *args, const sum_block *b) { (void)args, (void)b; }

static int takes_vectors(const float_results *t) { return (void)t, 0; }
static void finish_vectors(const float_results *t, const sum_block *b) { (void)t, (void)b; }
#endif

void finish_floats(const void *args, const sum_block *b, uint8_t *scratch) {
    const float_results *t = (const float_results *)args;
    if (takes_vectors(t))
        finish_vectors(t, b);
    else
        finish_any(t, b, (float *)(void *)scratch);
}
