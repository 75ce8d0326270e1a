/* Convolutions and linear layers whose sums become float32. */

#include "float_results.h"

typedef struct {
    conv_step conv; /* the convolution as one that its kernels know; its ratio is the scale */
    conv_plan *plan;
    const chain_plan *code;
    usual_code usual;
    isize joined;  /* the operand that the step before leaves to this one; 0 for none */
    const int64_t *before; /* that step */
    int postponed; /* whether the next step computes this one's results */
} dequantized_plan;

#define COPY(name) .name = s->name,
static conv_step convolution_of(const dequantized_conv_step *s) {
    return (conv_step){CONV_GEOMETRY(COPY).x = s->x, .weight = s->weight, .bias = -1, .ratio = s->scale, .ratio_negative = -1,
                       .residual = -1, .table = -1, .y = s->y, .high = 255};
}

static isize places_of(const dequantized_conv_step *s) {
    const int64_t sizes[] = {s->batch, s->out_depth, s->out_height, s->out_width};
    isize all = 1;
    for (int i = 0; i < 4; i++) all = checked_product(all, (isize)sizes[i]);
    return all;
}

/* Checks the code and finds where its operands are; NULL with a reason. */
static const chain_plan *check_results(checker *c, const int64_t *step) {
    const dequantized_conv_step *s = (const dequantized_conv_step *)(const void *)step;
    const int64_t sizes[] = {places_of(s), s->out_channels};
    isize count;
    const int64_t *list = list_of(step, &count);
    int64_t values[MAX_OPERANDS] = {-1};
    if (count >= MAX_OPERANDS) return refuse(c, "too many operands"), NULL;
    memcpy(values + 1, list, (size_t)count * sizeof *list);
    chain_plan *t = check_code(c, s->code, values, count + 1, s->instructions, sizes, 2);
    if (!t || (t->whole && !refuse(c, "a result of another type"))) return NULL;
    for (isize j = 0; j < t->operands; j++) {
        chain_operand *o = &t->operand[j];
        if (o->type >= WHOLE_INT64S) return refuse(c, "an operand of another type"), NULL;
        o->stride[1] = o->mask >> 1 & 1;
        o->stride[0] = !(o->mask & 1) ? 0 : o->stride[1] ? (isize)s->out_channels : 1;
    }
    return t;
}

/* Lets the step compute what the step before would have, where kernels can. */
static void join_step_before(checker *c, const int64_t *step, dequantized_plan *t) {
    const dequantized_conv_step *s = (const dequantized_conv_step *)(const void *)step;
    void *prepared;
    const int64_t *before = step_before(c, &prepared), *list = list_of(step, &(isize){0});
    const dequantized_conv_step *other = (const dequantized_conv_step *)(const void *)before;
    if (s->joined_x < 0 || !t->code || !before || before[0] != step[0] || other->x != s->joined_x || other->code >= 0 ||
        !other->floats || other->bytes)
        return;
    isize joined = 0, uses = (s->x == other->y) + (s->bias == other->y);
    for (isize j = 1; j < t->code->operands; j++) {
        const chain_operand *o = &t->code->operand[j];
        if (list[j - 1] != other->y) continue;
        if (o->type == FLOATS && o->stride[0] == (isize)s->out_channels && o->stride[1]) joined = j;
        uses++;
    }
    dequantized_plan *first = (dequantized_plan *)prepared;
    const value *result = plan_value(c->p, other->y);
    if (!joined || uses > 1 || result->storage != WORKSPACE || result->first != c->index - 1 ||
        !join_convolution(c, t->plan, &first->conv, first->plan))
        return;
    forget_value(c, other->y);
    t->joined = joined, t->before = before, first->postponed = 1;
    t->usual.usual &= t->usual.operand == joined; /* others are in memory */
}

int check_dequantized_conv(checker *c, const int64_t *step) {
    const dequantized_conv_step *s = (const dequantized_conv_step *)(const void *)step;
    const isize channels = (isize)s->out_channels, count = checked_product(places_of(s), channels);
    if (!needs(c, s->y, s->floats ? count : 0, 4, "y") || !needs(c, s->q, s->bytes ? count : 0, 1, "q") ||
        (s->bias >= 0 && !needs(c, s->bias, channels, 4, "bias")) || !check_clamp(c, s->zero, s->low, s->high))
        return 0;
    dequantized_plan *t = (dequantized_plan *)plan_memory(c, sizeof *t);
    if (!t || (s->code >= 0 && !(t->code = check_results(c, step)))) return 0;
    t->conv = convolution_of(s), t->usual = usual_code_of(t->code);
    c->prepared = t;
    if (!(t->plan = check_convolution(c, &t->conv, float_results_scratch(t->code)))) return 0;
    join_step_before(c, step, t);
    return 1;
}

void run_dequantized_conv(frame *f, const int64_t *step, void *prepared) {
    const dequantized_conv_step *s = (const dequantized_conv_step *)(const void *)step;
    const dequantized_plan *t = (const dequantized_plan *)prepared;
    if (t->postponed) return;
    float_results r = {.channels = (isize)s->out_channels, .scale = at(f, s->scale), .bias = at(f, s->bias), .code = t->code,
                       .usual = t->usual, .y = s->floats ? at(f, s->y) : NULL, .q = s->bytes ? at(f, s->q) : NULL};
    r.grid = (quantize_args){.divisor = bits_float(s->divisor), .low = (float)(s->low - s->zero),
                             .high = (float)(s->high - s->zero), .zero = (int32_t)s->zero};
    isize count;
    const int64_t *list = list_of(step, &count);
    for (isize j = 0; t->code && j < count; j++) r.operand[j + 1] = at(f, list[j]);
    if (t->joined) {
        const dequantized_conv_step *other = (const dequantized_conv_step *)(const void *)t->before;
        r.joined = t->joined, r.joined_scale = at(f, other->scale), r.joined_bias = at(f, other->bias);
    }
    const sum_finish finish = {finish_floats, expect_floats, &r};
    run_convolution(f, &t->conv, t->plan, &finish);
}
