/* Attention: scores, softmax and context of one head after the other, so that scores stay in the cache. */

#include "product.h"
#include "softmax.h"

#include <math.h>

/* What lies between the inputs and the result. */
enum form {
    INTEGERS,  /* scores and probabilities are integers; the softmax is that of intact8.arithmetic.softmax */
    QUANTIZED, /* the same with a softmax of float32 between them */
    SCORES,    /* uint8 inputs; scores and probabilities are float32 */
    FLOATS,    /* float32 inputs */
};

#define MOST_CHUNK_ROWS 32

/* Queries whose scores are in the cache at a time: of the L1 cache, but for AMX, which takes no less time for fewer rows. */
static isize chunk_rows(void) { return current_isa() == AMX ? MOST_CHUNK_ROWS : 12; }

typedef struct {
    const attention_step *s;
    product_kernel product;
    float_product_kernel float_product;
    const uint8_t *q, *k, *v, *mask;
    uint8_t *y;
    requantization scores, context;
    isize element, y_element;
    integer_softmax t;
    softmax_row row;
    int vectors; /* whether exponentials_avx512 is there */
} attention_args;

/* Memory of a thread, in bytes from its beginning. */
typedef struct {
    isize k, k_offsets, v, v_offsets, q, sums, floats, bytes, all;
    isize deep, keys, deep_keys, width; /* padded: depth of the scores, keys as columns and as depth, columns of the context */
} attention_scratch;

static attention_scratch scratch_of(const attention_step *s) {
    attention_scratch t;
    t.deep = packed_depth((isize)s->depth), t.keys = packed_columns((isize)s->keys);
    t.deep_keys = packed_depth((isize)s->keys), t.width = packed_columns((isize)s->width);
    const isize rows = chunk_rows() * max_size(t.keys, t.width) * 4;
    isize at = 0;
#define TAKE(name, bytes) t.name = at, at += round_up(bytes, ALIGNMENT)
    TAKE(k, t.deep * t.keys * (s->form == FLOATS ? 4 : 1));
    TAKE(k_offsets, 4 * t.keys);
    TAKE(v, t.deep_keys * t.width * (s->form >= SCORES ? 4 : 1));
    TAKE(v_offsets, 4 * t.width);
    TAKE(q, chunk_rows() * t.deep);
    TAKE(sums, rows);
    TAKE(floats, rows);
    TAKE(bytes, (chunk_rows() + 1) * t.keys);
#undef TAKE
    t.all = at;
    return t;
}

int check_attention(checker *c, const int64_t *step) {
    const attention_step *s = (const attention_step *)(const void *)step;
    const int64_t most = 1 << 24;
    const int64_t sizes[] = {s->samples, s->heads, s->queries, s->keys, s->depth, s->width};
    for (int i = 0; i < 6; i++)
        if (sizes[i] < 1 || sizes[i] > most) return refuse(c, "attention of no such size");
    if (s->form < INTEGERS || s->form > FLOATS || (s->form == INTEGERS && s->table < 0))
        return refuse(c, "attention of no such form");
    if (s->depth > 1 << 17 || s->keys > 1 << 17 || s->samples * s->heads > most) return refuse(c, "attention of no such size");
    if (s->mask < 0 && (s->mask_sample || s->mask_head || s->mask_row)) return refuse(c, "strides of a mask that is not there");
    const int64_t q[] = {s->q_sample, s->q_head, s->q_row, 1}, k[] = {s->k_sample, s->k_head, s->k_row, s->k_depth};
    const int64_t v[] = {s->v_sample, s->v_head, s->v_row, 1}, m[] = {s->mask_sample, s->mask_head, s->mask_row, 1};
    const int64_t y[] = {s->y_sample, s->y_head, s->y_row, 1};
    const int64_t qs[] = {s->samples, s->heads, s->queries, s->depth}, ks[] = {s->samples, s->heads, s->keys, s->depth};
    const int64_t vs[] = {s->samples, s->heads, s->keys, s->width}, ms[] = {s->samples, s->heads, s->queries, s->keys};
    const int64_t ys[] = {s->samples, s->heads, s->queries, s->width};
    const int64_t size = s->form == FLOATS ? 4 : 1, y_size = s->form >= SCORES ? 4 : 1;
    c->scratch = scratch_of(s).all;
    return check_clamp(c, s->zero_q, 0, 255) && check_clamp(c, s->zero_k, 0, 255) && check_clamp(c, s->zero_v, 0, 255) &&
           check_clamp(c, s->score_zero, s->score_low, s->score_high) && check_clamp(c, s->zero_p, s->low_p, s->high_p) &&
           check_clamp(c, s->zero, s->low, s->high) && (s->table < 0 || needs(c, s->table, 256, 4, "table")) &&
           check_extent(c, s->q, 0, qs, q, 4, size, "q") && check_extent(c, s->k, 0, ks, k, 4, size, "k") &&
           check_extent(c, s->v, 0, vs, v, 4, size, "v") && check_result(c, s->y, 0, ys, y, 4, y_size) &&
           (s->mask < 0 || check_extent(c, s->mask, 0, ms, m, 4, s->form == INTEGERS ? 1 : 4, "mask"));
}

/* ---- softmax of floats ---------------------------------------------------------------------------------------------------- */

#define LANES 16 /* partial results, which are joined in a fixed order; the columns of packed keys are a multiple of them */

/* exp(x) for x <= 0, correct within two units in the last place; 0 below -87.7, NaN for NaN. The range is reduced by ln 2 in
   two parts, then a polynomial of degree 6 follows (expf of Cephes). */
INLINE float exp_of(float x) {
    const float v = x < LEAST_EXPONENT ? LEAST_EXPONENT : x;
    const float shifted = v * 1.44269504f + ROUND_MAGIC, n = shifted - ROUND_MAGIC;
    const float r = (v - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + (r + 1.0f);
    return p * bits_float((int32_t)((uint32_t)(float_bits(shifted) - 0x4b400000 + 127) << 23)); /* 0 for n = -127 */
}

/* The bits of a float as an integer of the same order, and back. Compilers make vectors of the largest of integers. */
INLINE int32_t ordered_bits(int32_t bits) { return bits ^ (bits >> 31 & INT32_MAX); }

INLINE int reaches(const float *v, float least) {
    int32_t some = 0;
    for (int j = 0; j < LANES; j++) some |= v[j] >= least;
    return some;
}

/* As exponentials_avx512; beyond `used` lie elements of padding or of the future, mostly. */
INLINE float exponentials(const int32_t *restrict sums, const int32_t *restrict offsets, float scale,
                          const float *restrict mask, float *restrict v, isize count, isize *used) {
    const isize wide = packed_columns(count);
    float sum[LANES] = {0}, eight[8], four[4];
    int32_t most = INT32_MIN;
    if (sums)
        for (isize i = 0; i < wide; i++) v[i] = (float)(int32_t)((uint32_t)sums[i] + (uint32_t)offsets[i]) * scale;
    else
        for (isize i = 0; i < wide; i++) v[i] *= scale;
    for (isize i = 0; mask && i < count; i++) v[i] += mask[i];
    for (isize i = count; i < wide; i++) v[i] = -INFINITY;
    for (isize i = 0; i < wide; i++) {
        const int32_t bits = ordered_bits(float_bits(v[i]));
        most = bits > most ? bits : most;
    }
    const float largest = bits_float(ordered_bits(most));
    isize end = wide;
    while (end > LANES && !reaches(v + end - LANES, largest + LEAST_EXPONENT)) end -= LANES;
    for (isize i = 0; i < end; i += LANES)
        for (int j = 0; j < LANES; j++) sum[j] += v[i + j] = exp_of(v[i + j] - largest);
    memset(v + end, 0, (size_t)(wide - end) * sizeof *v);
    *used = min_size(end, count);
    for (int j = 0; j < 8; j++) eight[j] = sum[j] + sum[j + 8];
    for (int j = 0; j < 4; j++) four[j] = eight[j] + eight[j + 4];
    return (four[0] + four[2]) + (four[1] + four[3]);
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define EXPONENTIALS(...) (a->vectors ? exponentials_avx512(__VA_ARGS__) : exponentials(__VA_ARGS__))
#else
#define EXPONENTIALS exponentials
#endif

/* Probabilities of a row of scores that are bytes: softmax((x - zero) scale + mask) / divisor, quantized. */
MULTIVERSION static void quantized_row(const attention_args *a, const uint8_t *restrict x, const float *mask,
                                       float *restrict v, uint8_t *restrict y, isize count) {
    const attention_step *s = a->s;
    const float zero = (float)s->score_zero, scale = bits_float(s->score_scale);
    const float low = (float)(s->low_p - s->zero_p), high = (float)(s->high_p - s->zero_p);
    for (isize i = 0; i < count; i++) v[i] = ((float)x[i] - zero) * scale;
    isize used;
    const float sum = EXPONENTIALS(NULL, NULL, 1.0f, mask, v, count, &used);
    const float factor = 1.0f / sum / bits_float(s->probability);
    for (isize i = 0; i < count; i++) y[i] = to_uint8(v[i] * factor, low, high, (int32_t)s->zero_p);
}

/* Exponentials of a row of scores that are sums of integers or float32, in place of v. Returns 1 over their sum, and in `used`
   the largest number of elements that a row needed. */
MULTIVERSION static float float_row(const attention_args *a, const int32_t *restrict sums, const int32_t *restrict offsets,
                                    const float *mask, float *restrict v, isize count, isize *used) {
    isize own;
    const float factor = 1.0f / EXPONENTIALS(sums, offsets, bits_float(a->s->score_scale), mask, v, count, &own);
    *used = max_size(*used, own);
    return factor;
}

MULTIVERSION static void scale_row(const float *restrict x, float factor, float *restrict y, isize count) {
    for (isize i = 0; i < count; i++) y[i] = x[i] * factor;
}

/* ---- one head --------------------------------------------------------------------------------------------------------------- */

/* A head's inputs, packed, and the memory of the thread. */
typedef struct {
    const attention_args *a;
    attention_scratch t;
    const uint8_t *q, *mask;
    uint8_t *y, *q_rows, *bytes;
    uint8_t *k, *v;
    int32_t *k_offsets, *v_offsets, *sums;
    float *floats;
    int finite; /* whether 0 times a value is 0 */
} head;

MULTIVERSION static void pack_keys_as_floats(const attention_step *s, const float *k, isize wide, float *to) {
    for (isize d = 0; d < s->depth; d++) {
        for (isize i = 0; i < s->keys; i++) to[d * wide + i] = k[i * s->k_row + d * s->k_depth];
        for (isize i = (isize)s->keys; i < wide; i++) to[d * wide + i] = 0.0f;
    }
}

/* Returns whether all values are finite. */
MULTIVERSION static int pack_values_as_floats(const attention_step *s, const void *v, isize wide, float *to) {
    int32_t most = 0;
    const float zero = (float)s->zero_v, scale = bits_float(s->value_scale);
    for (isize i = 0; i < s->keys; i++, to += wide) {
        const float *x = (const float *)v + i * s->v_row;
        const uint8_t *b = (const uint8_t *)v + i * s->v_row;
        if (s->form == FLOATS)
            for (isize c = 0; c < s->width; c++) {
                const int32_t magnitude = float_bits(x[c]) & INT32_MAX;
                to[c] = x[c];
                most = magnitude > most ? magnitude : most;
            }
        else
            for (isize c = 0; c < s->width; c++) to[c] = ((float)b[c] - zero) * scale;
        for (isize c = (isize)s->width; c < wide; c++) to[c] = 0.0f;
    }
    return most < 0x7f800000;
}

static void pack_head(head *h, const uint8_t *k, const uint8_t *v) {
    const attention_step *s = h->a->s;
    const isize depth = (isize)s->depth, keys = (isize)s->keys, width = (isize)s->width;
    if (s->form == FLOATS)
        pack_keys_as_floats(s, (const float *)(const void *)k, h->t.keys, (float *)(void *)h->k);
    else
        pack_activations(k, depth, keys, (isize)s->k_depth, (isize)s->k_row, (int)s->zero_q, (int)s->zero_k, (int8_t *)h->k,
                         h->k_offsets);
    if (s->form >= SCORES)
        h->finite = pack_values_as_floats(s, v, h->t.width, (float *)(void *)h->v);
    else
        pack_activations(v, keys, width, (isize)s->v_row, 1, (int)s->zero_p, (int)s->zero_v, (int8_t *)h->v, h->v_offsets);
}

/* Scores and probabilities as bytes of `count` rows, and their context. */
static void integer_rows(const head *h, const uint8_t *q, isize stride, isize row, isize count) {
    const attention_args *a = h->a;
    const attention_step *s = a->s;
    const isize keys = (isize)s->keys, apart = h->t.keys;
    const isize width = (isize)s->width;
    a->product(q, stride, count, h->t.deep, (const int8_t *)h->k, h->t.keys, h->sums, apart);
    for (isize r = 0; r < count; r++) {
        uint8_t *p = h->bytes + r * apart, *scores = h->bytes + chunk_rows() * apart;
        const isize mask = (row + r) * (isize)s->mask_row;
        requantize_row(h->sums + r * apart, h->k_offsets, offset_of_row(q + r * stride, (isize)s->depth, (int)s->zero_k),
                       &a->scores, scores, keys);
        if (s->form == INTEGERS)
            a->row(&a->t, scores, h->mask ? h->mask + mask : NULL, p, keys);
        else
            quantized_row(a, scores, h->mask ? (const float *)(const void *)h->mask + mask : NULL, h->floats, p, keys);
    }
    a->product(h->bytes, apart, count, h->t.deep_keys, (const int8_t *)h->v, h->t.width, h->sums, h->t.width);
    for (isize r = 0; r < count; r++)
        requantize_row(h->sums + r * h->t.width, h->v_offsets, offset_of_row(h->bytes + r * apart, keys, (int)s->zero_v),
                       &a->context, h->y + (row + r) * s->y_row, width);
}

/* The same in float32; scores of bytes are exact. */
static void float_rows(const head *h, const uint8_t *q, isize stride, isize row, isize count) {
    const attention_args *a = h->a;
    const attention_step *s = a->s;
    const isize keys = (isize)s->keys, apart = h->t.keys;
    isize used = h->finite ? 0 : keys;
    float factor[MOST_CHUNK_ROWS], *context = (float *)(void *)h->sums;
    if (s->form == SCORES)
        a->product(q, stride, count, h->t.deep, (const int8_t *)h->k, h->t.keys, h->sums, apart);
    else
        a->float_product((const float *)(const void *)q, stride, count, (isize)s->depth, (const float *)(const void *)h->k,
                         h->t.keys, h->floats, apart);
    for (isize r = 0; r < count; r++) /* what zero_k adds to a row's scores is the same for all of them, and no softmax sees it */
        factor[r] = float_row(a, s->form == SCORES ? h->sums + r * apart : NULL, h->k_offsets,
                              h->mask ? (const float *)(const void *)h->mask + (row + r) * s->mask_row : NULL,
                              h->floats + r * apart, keys, &used);
    a->float_product(h->floats, apart, count, used, (const float *)(const void *)h->v, h->t.width, context, h->t.width);
    for (isize r = 0; r < count; r++)
        scale_row(context + r * h->t.width, factor[r], (float *)(void *)h->y + (row + r) * s->y_row, (isize)s->width);
}

static void run_head(const head *h) {
    const attention_step *s = h->a->s;
    const isize depth = (isize)s->depth, deep = h->t.deep, size = h->a->element;
    const int copied = size == 1 && deep > depth; /* products of bytes read whole words */
    for (isize row = 0, count; row < s->queries; row += count) {
        count = min_size((isize)s->queries - row, chunk_rows());
        const uint8_t *q = h->q + row * s->q_row * size;
        for (isize r = 0; copied && r < count; r++) memcpy(h->q_rows + r * deep, q + r * s->q_row, (size_t)depth);
        (s->form >= SCORES ? float_rows : integer_rows)(h, copied ? h->q_rows : q, copied ? deep : (isize)s->q_row, row, count);
    }
}

/* An index is a head of a sample. */
static void attention_kernel(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const attention_args *a = (const attention_args *)given;
    const attention_step *s = a->s;
    const isize mask_size = s->form == INTEGERS ? 1 : 4;
    const attention_scratch t = scratch_of(s);
    head h = {.a = a, .t = t, .q_rows = scratch + t.q, .bytes = scratch + t.bytes, .k = scratch + t.k, .v = scratch + t.v,
              .k_offsets = (int32_t *)(void *)(scratch + t.k_offsets), .v_offsets = (int32_t *)(void *)(scratch + t.v_offsets),
              .sums = (int32_t *)(void *)(scratch + t.sums), .floats = (float *)(void *)(scratch + t.floats)};
    memset(h.bytes, 0, (size_t)(chunk_rows() * t.keys)); /* what is beyond the last key is never written */
    for (isize i = lo; i < hi; i++) {
        const isize n = i / (isize)s->heads, k = i % (isize)s->heads;
        h.q = a->q + (n * s->q_sample + k * s->q_head) * a->element;
        h.y = a->y + (n * s->y_sample + k * s->y_head) * a->y_element;
        h.mask = a->mask ? a->mask + (n * s->mask_sample + k * s->mask_head) * mask_size : NULL;
        pack_head(&h, a->k + (n * s->k_sample + k * s->k_head) * a->element, a->v + (n * s->v_sample + k * s->v_head) * a->element);
        run_head(&h);
    }
}

void run_attention(frame *f, const int64_t *step, void *prepared) {
    const attention_step *s = (const attention_step *)(const void *)step;
    attention_args a = {
        .s = s, .product = product_of_isa(), .float_product = float_product_of_isa(),
        .q = at(f, s->q), .k = at(f, s->k), .v = at(f, s->v), .mask = at(f, s->mask), .y = at(f, s->y),
        .scores = requantization_of(s->score_ratio, s->score_zero, s->score_low, s->score_high),
        .context = requantization_of(s->ratio, s->zero, s->low, s->high),
        .element = s->form == FLOATS ? 4 : 1, .y_element = s->form >= SCORES ? 4 : 1,
        .vectors = has_avx512_vnni()
    };
    (void)prepared;
    if (s->form == INTEGERS) {
        a.t = make_softmax(at(f, s->table), s->probability, s->zero_p, s->low_p, s->high_p);
        a.row = softmax_row_of(&a.t);
    }
    const double work = (double)s->samples * (double)s->heads * (double)s->queries * (double)s->keys * (double)s->depth / 8;
    parallel(f, attention_kernel, &a, (isize)(s->samples * s->heads), work > 1e15 ? (isize)1 << 50 : (isize)work);
}
