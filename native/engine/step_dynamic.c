/* Linear layers that quantize their inputs row by row while they run: the operations of intact8.arithmetic.dynamic, one
   IEEE rounding each. */

#include "dynamic.h"
#include "nibbles.h"
#include "quantize.h"

#include <stdlib.h>

#define CHUNK_ROWS 48          /* rows whose sums are in the L1 cache at a time */
#define BYTE_VARIANT (-1)      /* of packed weights */
#define NIBBLE_VARIANT (-3)
#define PANEL_BYTES (64 << 10) /* rows of x that all blocks of columns read before the next rows */

/* ---- rows ------------------------------------------------------------------------------------------------------------- */

MULTIVERSION float scale_of_row(const float *restrict x, isize count) {
    int32_t most = 0;
    for (isize i = 0; i < count; i++) {
        const int32_t magnitude = float_bits(x[i]) & 0x7fffffff;
        most = magnitude > most ? magnitude : most;
    }
    if (most >= 0x7f800000) return bits_float(0x7fc00000);
    const float s = bits_float(most) / REACH;
    return s < MIN_ROW_SCALE ? MIN_ROW_SCALE : s;
}

MULTIVERSION static void quantize_each(const float *restrict x, float s, uint8_t *restrict q, isize count) {
    for (isize i = 0; i < count; i++) q[i] = (uint8_t)float_bits(x[i] / s + (ROUND_MAGIC + 128.0f));
}

void quantize_row(const float *x, float s, uint8_t *q, isize count) {
    isize done = 0;
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    const quantize_args a = {.divisor = s, .low = -REACH, .high = REACH, .zero = 128};
    if (has_avx512_vnni()) done = quantize_vectors(x, q, count, &a);
#endif
    quantize_each(x + done, s, q + done, count - done);
}

typedef struct {
    const float *x;
    uint8_t *q;
    float *scales;
    isize width, deep;
    int together, gelu;
} quantize_rows_args;

int check_quantize_rows(checker *c, const int64_t *step) {
    const quantize_rows_step *s = (const quantize_rows_step *)(const void *)step;
    if (s->rows < 0 || s->width < 1 || s->width > (int64_t)1 << 40) return refuse(c, "rows of no such size");
    const isize rows = (isize)s->rows, width = (isize)s->width;
    if (s->gelu && s->together) return refuse(c, "gelu of rows that have one scale");
    c->scratch = s->gelu ? checked_product(gelu_memory(width), 4) : 0;
    return needs(c, s->x, checked_product(rows, width), 4, "x") &&
           needs(c, s->q, checked_product(rows, packed_depth(width)), 1, "q") &&
           needs(c, s->scales, s->together ? 1 : rows, 4, "scales");
}

/* An index is a row. */
static void quantize_rows_kernel(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const quantize_rows_args *a = (const quantize_rows_args *)given;
    for (isize r = lo; r < hi; r++) {
        const float *x = a->x + r * a->width;
        uint8_t *q = a->q + r * a->deep;
        if (a->gelu) {
            a->scales[r] = quantize_gelu(x, q, a->width, (float *)(void *)scratch);
        } else {
            if (!a->together) a->scales[r] = scale_of_row(x, a->width);
            quantize_row(x, a->scales[a->together ? 0 : r], q, a->width);
        }
        memset(q + a->width, 0, (size_t)(a->deep - a->width));
    }
}

void run_quantize_rows(frame *f, const int64_t *step, void *prepared) {
    const quantize_rows_step *s = (const quantize_rows_step *)(const void *)step;
    const isize rows = (isize)s->rows, width = (isize)s->width;
    const quantize_rows_args a = {at(f, s->x), at(f, s->q), at(f, s->scales), width, packed_depth(width), s->together != 0,
                                  s->gelu != 0};
    (void)prepared;
    if (a.together) a.scales[0] = scale_of_row(a.x, rows * width);
    parallel(f, quantize_rows_kernel, &a, rows, a.gelu ? rows * width * 8 : rows * width);
}

/* ---- the product -------------------------------------------------------------------------------------------------------- */

/* Packs weights for a product: blocks of columns, in 4 bits or bytes. */
static int pack_columns(const dynamic_weight *w, isize depth, isize columns, const int8_t *weight, int8_t *to) {
    const isize bytes = w->depth * w->columns;
    int8_t *panels = w->nibbles ? (int8_t *)malloc((size_t)bytes) : to;
    if (!panels) return 0;
    pack_product((const uint8_t *)weight, depth, columns, w->columns, 1, depth, 0, panels);
    if (w->nibbles) pack_nibbles(panels, bytes, 64, to);
    if (panels != to) free(panels);
    return 1;
}

static void find_offsets(const int8_t *restrict weight, isize depth, isize columns, int32_t *restrict offsets) {
    for (isize i = 0; i < columns; i++, weight += depth) {
        int64_t sum = 0;
        for (isize k = 0; k < depth; k++) sum += weight[k];
        offsets[i] = (int32_t)(uint32_t)(-128 * sum);
    }
}

static int pack_weights(checker *c, int64_t value, isize depth, isize columns, int64_t bits, const dynamic_weight *w,
                        int32_t *offsets, int8_t *to) {
    const int8_t *weight = int8_weights(c, value, depth * columns, bits);
    const int ready = weight && (w->product ? pack_columns(w, depth, columns, weight, to) : pack_matrix(&w->matrix, depth, weight, to));
    memset(offsets, 0, (size_t)w->columns * sizeof *offsets);
    if (ready) find_offsets(weight, depth, columns, offsets);
    free_weights(weight, bits);
    if (!ready) discard_memory(c, offsets);
    return ready || refuse(c, "there is no memory to pack weights");
}

const dynamic_weight *pack_dynamic(checker *c, int64_t value, isize depth, isize columns, int64_t bits, isize rows) {
    if (!check_weights(c, value, checked_product(depth, columns), bits)) return NULL;
    dynamic_weight *w = (dynamic_weight *)plan_memory(c, sizeof *w);
    if (!w) return NULL;
    const enum isa isa = current_isa();
    const int unpacked = isa == AMX && rows >= 16; /* tiles take bytes */
    const product_kernel few_bits = bits == 4 && depth <= NIBBLE_DEPTH && !unpacked ? nibble_product_of_isa() : NULL;
    *w = (dynamic_weight){.depth = packed_depth(depth), .nibbles = few_bits != NULL};
    w->columns = round_up(columns, w->nibbles ? 32 : 16);
    if (has_avx512_vnni() || isa == PLAIN) w->product = few_bits ? few_bits : product_of_isa();
    isize bytes = checked_product(w->depth, w->columns) / (w->nibbles ? 2 : 1);
    if (!w->product) bytes = size_matrix(depth, columns, bits, &w->matrix);
    const isize begin = round_up(4 * w->columns, ALIGNMENT);
    int fresh;
    uint8_t *to = (uint8_t *)shared_memory(c, constant_at(c, value), w->nibbles ? NIBBLE_VARIANT : BYTE_VARIANT,
                                           bytes < 0 ? -1 : checked_sum(bytes, begin), &fresh);
    if (!to) return NULL;
    w->offsets = (const int32_t *)(void *)to, w->packed = (const int8_t *)to + begin, w->matrix.weight = w->packed;
    return !fresh || pack_weights(c, value, depth, columns, bits, w, (int32_t *)(void *)to, (int8_t *)to + begin) ? w : NULL;
}

typedef struct {
    const dynamic_weight *w;
    const uint8_t *q;
    const float *scales, *scale, *bias;
    float *y;
    isize rows, columns, panel, blocks;
    int single;
} dynamic_linear_args;

int check_dynamic_linear(checker *c, const int64_t *step) {
    const dynamic_linear_step *s = (const dynamic_linear_step *)(const void *)step;
    const int64_t most = (int64_t)1 << 30;
    if (s->rows < 0 || s->rows > most || s->depth < 1 || s->depth > most || s->columns < 1 || s->columns > most)
        return refuse(c, "a product of no such size");
    const isize rows = (isize)s->rows, columns = (isize)s->columns;
    c->scratch = CHUNK_ROWS * PRODUCT_COLUMNS * 4;
    if (!(c->prepared = (void *)(uintptr_t)pack_dynamic(c, s->weight, (isize)s->depth, columns, s->bits, rows))) return 0;
    return needs(c, s->q, checked_product(rows, packed_depth((isize)s->depth)), 1, "q") &&
           needs(c, s->scales, s->single ? 1 : rows, 4, "scales") && needs(c, s->scale, columns, 4, "scale") &&
           (s->bias < 0 || needs(c, s->bias, columns, 4, "bias")) && needs(c, s->y, checked_product(rows, columns), 4, "y");
}

/* Results of up to PRODUCT_COLUMNS columns from `from` on, from the sums of `rows` rows. */
INLINE void scale_rows(const dynamic_linear_args *a, const int32_t *restrict sums, const float *restrict s, isize rows,
                       isize from, isize count, float *restrict y) {
    const int32_t *restrict offsets = a->w->offsets + from;
    const float *restrict scale = a->scale + from, *restrict bias = a->bias ? a->bias + from : NULL;
    const isize columns = a->columns, next = a->single ? 0 : 1;
    for (isize r = 0; r < rows; r++, sums += PRODUCT_COLUMNS, y += columns, s += next)
        for (isize i = 0; i < count; i++) {
            const float v = dynamic_result(sums[i], offsets[i], scale[i], *s);
            y[i] = bias ? v + bias[i] : v;
        }
}

/* A whole block of columns is the usual case. */
MULTIVERSION static void scale_block(const dynamic_linear_args *a, const int32_t *sums, const float *s, isize rows,
                                     isize from, isize count, float *y) {
    if (count == PRODUCT_COLUMNS)
        scale_rows(a, sums, s, rows, from, PRODUCT_COLUMNS, y);
    else
        scale_rows(a, sums, s, rows, from, count, y);
}

/* An index is a block of columns of a panel of rows. */
static void dynamic_linear_kernel(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const dynamic_linear_args *a = (const dynamic_linear_args *)given;
    const dynamic_weight *w = a->w;
    int32_t *sums = (int32_t *)(void *)scratch;
    for (isize i = lo; i < hi; i++) {
        const isize from = i % a->blocks * PRODUCT_COLUMNS, first = i / a->blocks * a->panel;
        const isize last = min_size(first + a->panel, a->rows), count = min_size(a->columns - from, PRODUCT_COLUMNS);
        for (isize r = first; r < last; r += CHUNK_ROWS) {
            const isize rows = min_size(last - r, CHUNK_ROWS);
            multiply_block(w, a->q + r * w->depth, rows, from, sums, PRODUCT_COLUMNS);
            scale_block(a, sums, a->scales + (a->single ? 0 : r), rows, from, count, a->y + r * a->columns + from);
        }
    }
}

void run_dynamic_linear(frame *f, const int64_t *step, void *prepared) {
    const dynamic_linear_step *s = (const dynamic_linear_step *)(const void *)step;
    const dynamic_weight *w = (const dynamic_weight *)prepared;
    const isize rows = (isize)s->rows, columns = (isize)s->columns;
    const isize fitting = max_size(PANEL_BYTES / w->depth / CHUNK_ROWS, 1) * CHUNK_ROWS;
    const dynamic_linear_args a = {w, at(f, s->q), at(f, s->scales), at(f, s->scale), at(f, s->bias), at(f, s->y),
                                   rows, columns, fitting, ceil_div(columns, PRODUCT_COLUMNS), s->single != 0};
    const double work = (double)rows * (double)columns * (double)w->depth / 16;
    parallel(f, dynamic_linear_kernel, &a, ceil_div(rows, fitting) * a.blocks, work > 1e15 ? (isize)1 << 50 : (isize)work);
}
