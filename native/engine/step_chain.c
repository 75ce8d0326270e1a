/* Chains: operations of every element of tensors, block by block, so that what lies between them stays in the cache. Registers
   hold float32 or int64; what floats are read from may be integers on a grid, and what they are written to, too. */

#include "chain.h"
#include "functions.h"
#include "quantize.h"

/* FLOAT: one float32 operation each of u and v. WIDE: computed in float64, and rounded once. WHOLE: of int64, modulo 2^64;
   x is u as a double. p and q are numbers of the instruction. NaN stays NaN unless a comparison chooses something else. */
#define OPERATIONS(FLOAT, WIDE, WHOLE)                                                                                         \
    FLOAT(add, u + v) FLOAT(sub, u - v) FLOAT(mul, u * v) FLOAT(div, u / v)                                             \
    FLOAT(maximum, u > v || u != u ? u : v) FLOAT(minimum, u < v || u != u ? u : v)                                     \
    FLOAT(prelu, u >= 0 ? u : u * v) FLOAT(fill, v != 0 ? p : u)                                                        \
    FLOAT(affine, u * p + q) FLOAT(leaky_relu, u >= 0 ? u : u * p) FLOAT(relu, u > 0 || u != u ? u : 0)                 \
    FLOAT(clamp, (u < p ? p : u) > q ? q : (u < p ? p : u))                                                             \
    FLOAT(eq, u == p) FLOAT(ne, u != p) FLOAT(lt, u < p) FLOAT(le, u <= p) FLOAT(gt, u > p) FLOAT(ge, u >= p)           \
    FLOAT(abs, fabsf(u)) FLOAT(neg, -u) FLOAT(sign, (float)((u > 0) - (u < 0))) FLOAT(square, u * u)                    \
    FLOAT(sqrt, sqrtf(u)) FLOAT(reciprocal, 1.0f / u) FLOAT(floor, floorf(u)) FLOAT(ceil, ceilf(u))                     \
    FLOAT(round, rintf(u)) FLOAT(trunc, truncf(u)) WIDE(hardshrink, fabs(x) <= p ? 0 : x) WIDE(threshold, x <= p ? q : x) \
    WIDE(exp, exp_wide(x)) WIDE(sigmoid, sigmoid_wide(x)) WIDE(tanh, tanh_wide(x)) WIDE(silu, x * sigmoid_wide(x))      \
    WIDE(gelu, gelu_wide(x))                                                                                            \
    WIDE(gelu_tanh, gelu_tanh_wide(x))                                                                                  \
    WIDE(hardswish, x * (x + 3 < 0 ? 0 : x + 3 > 6 ? 6 : x + 3) / 6)                                                    \
    WIDE(hardsigmoid, (x + 3 < 0 ? 0 : x + 3 > 6 ? 6 : x + 3) / 6)                                                      \
    WIDE(elu, x > 0 ? x : p * expm1_wide(x)) WIDE(celu, x > 0 ? x : p * expm1_wide(x / p))                              \
    WIDE(selu, 1.0507009873554804934193349852946 * (x > 0 ? x : 1.6732632423543772848170429916717 * expm1_wide(x)))     \
    WIDE(mish, x * mish_factor(exp_wide(x > 40 ? 40 : x))) WIDE(softsign, x / (1.0 + fabs(x)))                          \
    WIDE(erf, erf_wide(x)) WIDE(rsqrt, 1.0 / sqrt(x)) WIDE(expm1, expm1_wide(x))                                        \
    WIDE(softshrink, copysign(fabs(x) - p > 0 || x != x ? fabs(x) - p : 0, x))                                          \
    WIDE(softplus, x * p > q ? x : log1p_exp(x * p) / p) WIDE(logsigmoid, -log1p_exp(-x))                               \
    WIDE(tanhshrink, x - tanh(x)) WIDE(log, log(x)) WIDE(log1p, log1p(x))                                               \
    WIDE(pow, p == 0.5 ? sqrt(x) : pow(x, p)) /* numpy and torch take the root, whose value at -infinity is NaN */      \
    WIDE(sin, sin(x)) WIDE(cos, cos(x)) WIDE(tan, tan(x)) WIDE(asin, asin(x)) WIDE(acos, acos(x)) WIDE(atan, atan(x))   \
    WIDE(sinh, sinh(x)) WIDE(cosh, cosh(x)) WIDE(asinh, asinh(x)) WIDE(acosh, acosh(x)) WIDE(atanh, atanh(x))           \
    WHOLE(whole_add, wrapped(u, v, 1)) WHOLE(whole_sub, wrapped(u, v, -1)) WHOLE(whole_mul, wrapped(0, u, v))           \
    WHOLE(whole_maximum, u > v ? u : v) WHOLE(whole_minimum, u < v ? u : v) WHOLE(whole_fill, v ? p : u)                \
    WHOLE(whole_affine, wrapped(q, u, p)) WHOLE(whole_clamp, (u < p ? p : u) > q ? q : (u < p ? p : u))                 \
    WHOLE(whole_eq, x == number) WHOLE(whole_ne, x != number) WHOLE(whole_lt, x < number)                               \
    WHOLE(whole_le, x <= number) WHOLE(whole_gt, x > number) WHOLE(whole_ge, x >= number)

#define ENUM(name, formula) OPERATION_##name,
enum { OPERATIONS(ENUM, ENUM, ENUM) OPERATION_COUNT };
#define NAME(name, formula) #name,
static const char *const names[] = {OPERATIONS(NAME, NAME, NAME)};

const char *const *chain_operations(isize *count) {
    *count = OPERATION_COUNT;
    return names;
}

enum chain_known known_instruction(const chain_instruction *t) {
    switch (t->operation) {
        case OPERATION_add: return ADDS;
        case OPERATION_sub: return SUBTRACTS;
        case OPERATION_mul: return MULTIPLIES;
        case OPERATION_div: return DIVIDES;
        case OPERATION_relu: return RELU;
        case OPERATION_clamp: return CLAMP;
        case OPERATION_silu: return SILU;
        case OPERATION_hardswish: return HARDSWISH;
        case OPERATION_gelu: return GELU;
        case OPERATION_gelu_tanh: return GELU_TANH;
        default: return OTHER;
    }
}

/* tanh(ln(1 + e)) of e = exp(x). */
INLINE double mish_factor(double e) { return e * (e + 2) / (e * (e + 2) + 2); }

/* ln(1 + e^x) */
INLINE double log1p_exp(double x) { return (x > 0 ? x : 0) + log1p(exp(-fabs(x))); }

/* a + b c modulo 2^64 */
INLINE int64_t wrapped(int64_t a, int64_t b, int64_t c) { return (int64_t)((uint64_t)a + (uint64_t)b * (uint64_t)c); }

/* The integer of a double; the nearest one of those beyond int64; NaN gives the least. */
INLINE int64_t nearest_int64(double v) { return v >= 0x1p63 ? INT64_MAX : v >= -0x1p63 ? (int64_t)v : INT64_MIN; }

typedef struct {
    const chain_plan *c;
    const void *x[MAX_OPERANDS];
    void *y;
    isize type;
    quantize_args grid; /* of the result */
} chain_args;

/* ---- check ------------------------------------------------------------------------------------------------------------ */

static isize operand_size(isize type) { return type == FLOATS ? 4 : type == INT64S || type == WHOLE_INT64S ? 8 : 1; }
static isize result_size(int64_t type) { return type == FLOATS ? 4 : type == INT64S ? 8 : 1; }

/* Whether a register holds int64. */
static int is_whole(const chain_plan *t, isize r) {
    return r < t->operands ? t->operand[r].type >= WHOLE_INT64S : t->instruction[r - t->operands].operation >= OPERATION_whole_add;
}

/* Dimensions that the same operands have become one; those of one element go. */
static void merge_dimensions(chain_plan *t, const chain_step *s) {
    const int64_t *sizes = &s->d0;
    isize merged[MAX_RANK] = {0};
    for (int64_t i = 0; i < s->rank; i++) {
        isize having = 0;
        if (sizes[i] == 1) continue;
        for (isize j = 0; j < t->operands; j++) having |= (t->operand[j].mask >> i & 1) << j;
        if (t->rank && merged[t->rank - 1] == having)
            t->size[t->rank - 1] *= (isize)sizes[i];
        else
            merged[t->rank] = having, t->size[t->rank++] = (isize)sizes[i];
    }
    if (!t->rank) t->size[t->rank++] = 1;
    for (isize j = 0; j < t->operands; j++)
        for (isize i = t->rank - 1, stride = 1; i >= 0; i--)
            if (merged[i] >> j & 1) t->operand[j].stride[i] = stride, stride *= t->size[i];
    t->blocks = ceil_div(t->size[t->rank - 1], CHAIN_BLOCK);
}

static int check_operand(checker *c, const int64_t *sizes, int64_t rank, int64_t value, const int64_t *word, chain_operand *to) {
    if (word[0] < FLOATS || word[0] > WHOLE_BYTES || word[1] < 0 || word[1] >> MAX_RANK || word[2] < 0 || word[2] > 255)
        return refuse(c, "an operand of no such type");
    isize count = 1;
    for (int64_t i = 0; i < rank; i++)
        if (word[1] >> i & 1) count = checked_product(count, (isize)sizes[i]);
    *to = (chain_operand){.type = (isize)word[0], .mask = (isize)word[1], .zero = (int32_t)word[2], .scale = bits_float(word[3])};
    return value < 0 || needs(c, value, count, operand_size(to->type), "an operand");
}

static int check_instruction(checker *c, const chain_plan *t, isize index, const int64_t *word, chain_instruction *to) {
    const isize registers = t->operands + index;
    if (word[0] < 0 || word[0] >= OPERATION_COUNT || word[1] < 0 || word[1] >= registers || word[2] < 0 || word[2] >= registers)
        return refuse(c, "there is no such operation or register");
    const int whole = word[0] >= OPERATION_whole_add;
    if (is_whole(t, (isize)word[1]) != whole || is_whole(t, (isize)word[2]) != whole)
        return refuse(c, "an operation on floats and integers");
    *to = (chain_instruction){word[0], (isize)word[1], (isize)word[2], bits_double(word[3]), bits_double(word[4])};
    return 1;
}

chain_plan *check_code(checker *c, int64_t value, const int64_t *values, isize operands, int64_t instructions,
                       const int64_t *sizes, int64_t rank) {
    const char *code = (const char *)constant_at(c, value);
    if (operands < 1 || operands > MAX_OPERANDS || instructions < 0 || instructions > MAX_INSTRUCTIONS || !code)
        return refuse(c, "code of no such length, or that is not a constant"), NULL;
    chain_plan *t = (chain_plan *)plan_memory(c, sizeof *t);
    if (!t || !needs(c, value, 4 * operands + 5 * (isize)instructions, 8, "code")) return NULL;
    int64_t word[5];
    for (t->operands = 0; t->operands < operands; t->operands++, code += 32) {
        memcpy(word, code, 32);
        if (!check_operand(c, sizes, rank, values[t->operands], word, &t->operand[t->operands])) return NULL;
    }
    for (; t->instructions < instructions; t->instructions++, code += 40) {
        memcpy(word, code, 40);
        if (!check_instruction(c, t, t->instructions, word, &t->instruction[t->instructions])) return NULL;
    }
    t->whole = is_whole(t, t->operands + t->instructions - 1);
    return t;
}

int check_chain(checker *c, const int64_t *step) {
    const chain_step *s = (const chain_step *)(const void *)step;
    isize operands, count = 1;
    const int64_t *list = list_of(step, &operands), *sizes = &s->d0;
    if (s->rank < 0 || s->rank > MAX_RANK || s->type < FLOATS || s->type > BOOLS)
        return refuse(c, "a chain of no such rank or type");
    for (int64_t i = 0; i < s->rank; i++) count = checked_product(count, (isize)sizes[i]);
    if (!check_clamp(c, s->zero, s->low, s->high) || !needs(c, s->y, count, result_size(s->type), "y")) return 0;
    chain_plan *t = check_code(c, s->code, list, operands, s->instructions, sizes, s->rank);
    if (!t) return 0;
    if (t->whole && s->type < INT64S) return refuse(c, "a result of another type");
    if (count) merge_dimensions(t, s);
    c->prepared = t;
    c->scratch = (t->operands + t->instructions) * CHAIN_BLOCK * ELEMENT;
    return 1;
}

/* ---- kernels ---------------------------------------------------------------------------------------------------------- */

/* Repeats the first of n elements. */
#define REPEAT(to, n)                                    \
    for (isize i = 1; i < (n); i++) (to)[i] = (to)[0]

/* Returns n elements from `at` on as int64: where they are, or in `to`. */
MULTIVERSION static const void *load_whole(const chain_operand *o, const void *x, isize at, isize stride, isize n,
                                           int64_t *restrict to) {
    const int64_t *wide = (const int64_t *)x + (o->type == WHOLE_INT64S ? at : 0);
    const uint8_t *bytes = (const uint8_t *)x + (o->type == WHOLE_INT64S ? 0 : at);
    if (o->type == WHOLE_INT64S && stride) return wide;
    if (o->type == WHOLE_INT64S)
        to[0] = *wide;
    else
        for (isize i = 0; i < (stride ? n : 1); i++) to[i] = bytes[i];
    if (!stride) REPEAT(to, n);
    return to;
}

MULTIVERSION const void *load_operand(const chain_operand *o, const void *x, isize at, isize stride, isize n,
                                      float *restrict to) {
    const float *floats = (const float *)x + (o->type == FLOATS ? at : 0);
    const uint8_t *bytes = (const uint8_t *)x + (o->type == FLOATS ? 0 : at * operand_size(o->type));
    if (o->type == FLOATS && stride) return floats;
    const isize read = stride ? n : 1;
    if (o->type == FLOATS) {
        to[0] = *floats;
    } else if (o->type == INT64S) {
        for (isize i = 0; i < read; i++) {
            int64_t v;
            memcpy(&v, bytes + 8 * i, 8);
            to[i] = (float)v;
        }
    } else {
        const int32_t zero = o->zero;
        const float scale = o->scale;
        for (isize i = 0; i < read; i++) to[i] = (float)((int32_t)bytes[i] - zero) * scale;
    }
    if (!stride) REPEAT(to, n);
    return to;
}

#define FLOAT_CASE(name, formula)                                     \
    case OPERATION_##name:                                            \
        for (isize i = 0; i < n; i++) {                               \
            const float u = a[i], v = b[i], p = narrow_p, q = narrow_q; \
            (void)u, (void)v, (void)p, (void)q;                       \
            y[i] = (float)(formula);                                  \
        }                                                             \
        break;

#define WIDE_CASE(name, formula)          \
    case OPERATION_##name:                \
        for (isize i = 0; i < n; i++) {   \
            const double x = (double)a[i]; \
            y[i] = (float)(formula);      \
        }                                 \
        break;

#define NO_CASE(name, formula)

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "activations_avx512.h"

MULTIVERSION void silu_in_full(const float *x, float *y) {
    for (isize i = 0; i < 16; i++) y[i] = (float)((double)x[i] * sigmoid_wide((double)x[i]));
}

MULTIVERSION void gelu_in_full(const float *x, float *y) {
    for (isize i = 0; i < 16; i++) y[i] = (float)gelu_wide((double)x[i]);
}

MULTIVERSION void gelu_tanh_in_full(const float *x, float *y) {
    for (isize i = 0; i < 16; i++) y[i] = (float)gelu_tanh_wide((double)x[i]);
}

AVX512_TARGET static void silu_vectors(const float *x, float *y, isize n) {
    for (isize i = 0; i < n; i += 16) {
        const __mmask16 mask = (__mmask16)byte_mask(min_size(n - i, 16));
        _mm512_mask_storeu_ps(y + i, mask, silu_sixteen(_mm512_maskz_loadu_ps(mask, x + i)));
    }
}

static int has_silu_vectors(void) { return has_avx512_vnni(); }
#else
static void silu_vectors(const float *x, float *y, isize n) { (void)x, (void)y, (void)n; }
static int has_silu_vectors(void) { return 0; }
#endif

MULTIVERSION static void compute_floats(const chain_instruction *t, const float *a, const float *b, float *restrict y, isize n) {
    const double p = t->p, q = t->q;
    const float narrow_p = (float)p, narrow_q = (float)q;
    switch (t->operation) { OPERATIONS(FLOAT_CASE, WIDE_CASE, NO_CASE) }
}

void compute(const chain_instruction *t, const float *a, const float *b, float *restrict y, isize n) {
    if (t->operation == OPERATION_silu && has_silu_vectors())
        silu_vectors(a, y, n);
    else
        compute_floats(t, a, b, y, n);
}

#define WHOLE_CASE(name, formula)                   \
    case OPERATION_##name:                          \
        for (isize i = 0; i < n; i++) {             \
            const int64_t u = a[i], v = b[i];       \
            const double x = (double)u;             \
            (void)v, (void)x;                       \
            y[i] = formula;                         \
        }                                           \
        break;

MULTIVERSION static void compute_whole(const chain_instruction *t, const int64_t *a, const int64_t *b, int64_t *restrict y,
                                       isize n) {
    const double number = t->p;
    const int64_t p = nearest_int64(t->p), q = nearest_int64(t->q);
    switch (t->operation) { OPERATIONS(NO_CASE, NO_CASE, WHOLE_CASE) }
}

/* Stores results of float32. */
MULTIVERSION static void store(const chain_args *g, const float *restrict x, isize at, isize n) {
    if (g->type == GRID) {
        quantize_line(x, (uint8_t *)g->y + at, n, &g->grid);
    } else if (g->type == BOOLS) {
        uint8_t *restrict y = (uint8_t *)g->y + at;
        for (isize i = 0; i < n; i++) y[i] = x[i] != 0;
    } else if (g->type == INT64S) {
        int64_t *restrict y = (int64_t *)g->y + at;
        for (isize i = 0; i < n; i++) y[i] = x[i] < 0x1p63f ? nearest_int64((double)x[i]) : INT64_MIN; /* as x86 has it */
    } else if (x != (const float *)g->y + at)
        memcpy((float *)g->y + at, x, (size_t)n * sizeof *x);
}

/* Stores results of int64. */
MULTIVERSION static void store_whole(const chain_args *g, const int64_t *restrict x, isize at, isize n) {
    if (g->type == INT64S) {
        memcpy((int64_t *)g->y + at, x, (size_t)n * sizeof *x);
        return;
    }
    uint8_t *restrict y = (uint8_t *)g->y + at;
    for (isize i = 0; i < n; i++) y[i] = x[i] != 0;
}

/* An index is a block of a row: of the last dimension. */
static void chain_kernel(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const chain_args *g = (const chain_args *)given;
    const chain_plan *c = g->c;
    const isize last = c->rank - 1, columns = c->size[last];
    const void *at[MAX_OPERANDS + MAX_INSTRUCTIONS];
    const isize results = c->operands + c->instructions - 1;
    for (isize index = lo; index < hi; index++) {
        const isize row = index / c->blocks, from = index % c->blocks * CHAIN_BLOCK, n = min_size(columns - from, CHAIN_BLOCK);
        for (isize j = 0; j < c->operands; j++) {
            const chain_operand *o = &c->operand[j];
            void *to = scratch + j * CHAIN_BLOCK * ELEMENT;
            isize offset = from * o->stride[last];
            for (isize i = last - 1, left = row; i >= 0; left /= c->size[i--]) offset += left % c->size[i] * o->stride[i];
            at[j] = is_whole(c, j) ? load_whole(o, g->x[j], offset, o->stride[last], n, to)
                                   : load_operand(o, g->x[j], offset, o->stride[last], n, to);
        }
        const isize place = row * columns + from;
        for (isize k = 0, r = c->operands; k < c->instructions; k++, r++) {
            const chain_instruction *t = &c->instruction[k];
            const int ends = k == c->instructions - 1 && g->type == FLOATS;
            void *y = ends ? (void *)((float *)g->y + place) : scratch + r * CHAIN_BLOCK * ELEMENT;
            if (is_whole(c, r))
                compute_whole(t, at[t->a], at[t->b], y, n);
            else
                compute(t, at[t->a], at[t->b], y, n);
            at[r] = y;
        }
        if (is_whole(c, results))
            store_whole(g, at[results], place, n);
        else
            store(g, at[results], place, n);
    }
}

void run_chain(frame *f, const int64_t *step, void *prepared) {
    const chain_step *s = (const chain_step *)(const void *)step;
    const chain_plan *c = (const chain_plan *)prepared;
    isize count, rows = 1;
    const int64_t *list = list_of(step, &count);
    if (!c->rank) return;
    chain_args g = {.c = c, .y = at(f, s->y), .type = (isize)s->type};
    g.grid = (quantize_args){.divisor = bits_float(s->divisor), .low = (float)(s->low - s->zero),
                             .high = (float)(s->high - s->zero), .zero = (int32_t)s->zero};
    for (isize j = 0; j < count; j++) g.x[j] = at(f, list[j]);
    for (isize i = 0; i < c->rank - 1; i++) rows *= c->size[i];
    parallel(f, chain_kernel, &g, rows * c->blocks, rows * c->size[c->rank - 1] * (1 + c->instructions));
}
