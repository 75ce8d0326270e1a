/* The first convolutions of a network one behind the other, some rows at a time: what one writes the next reads from the
   cache. */

#include "arguments.h"
#include "kernels.h"

/* A stage is STAGE numbers: addresses of weights, initial accumulators, multipliers, and memory for rows of its results;
   whether it is dense; height, width, channels, and the numbers of its convolution; -1 or the stage whose results are its
   residual; bits of its own ratio and of the residual's; zero points of the residual and the sum, limits of the sum; then
   the bytes at the four addresses. See intact8/engines/fused_stem.py. */
#define STAGE 30

typedef struct {
    conv_args conv;
    kernel run;
    uint8_t *rows;           /* rows first to end of the results */
    Py_ssize_t capacity;     /* bytes there */
    Py_ssize_t first, end;
    Py_ssize_t next;         /* the end of the rows that are wanted now */
    Py_ssize_t residual;     /* -1, or the stage whose results this one adds */
} stage;

typedef struct {
    quantize_nhwc_args image; /* of one sample; without x its bytes are there already */
    uint8_t *y;
    Py_ssize_t y_bytes, samples, stages, band; /* band: rows of the last stage at a time */
    const int64_t *numbers;
    volatile int *out_of_memory;
} stem_args;

/* Bytes of the results of one image; -1 on overflow. */
static Py_ssize_t result_bytes(const conv_args *a) {
    return checked_product(checked_product(a->out_height, a->out_width), a->out_channels);
}

/* Computes result rows s->end to s->next from rows first to end of the stage before; returns 0 where rows or memory are
   missing. */
static int compute_rows(stage *s, const uint8_t *rows, Py_ssize_t first, Py_ssize_t end, const stage *residual) {
    conv_args a = s->conv;
    const Py_ssize_t line = a.out_width * a.out_channels;
    if ((s->next - s->first) * line > s->capacity) return 0;
    if (residual && (s->end < residual->first || s->next > residual->end)) return 0;
    if (residual) a.residual = residual->rows + (s->end - residual->first) * line;
    const Py_ssize_t top = s->end * a.stride_h - a.pad_h, from = max_size(top, 0);
    if (from < first || (end < a.height && top + (s->next - s->end - 1) * a.stride_h + a.kernel_h > end)) return 0;
    a.x = rows + (from - first) * a.width * a.channels;
    a.height = end - from, a.pad_h = from - top, a.out_height = s->next - s->end;
    a.y = s->rows + (s->end - s->first) * line;
    a.batch = 1, a.split_channels = 0;
    s->run(&a, 0, a.out_height);
    s->end = s->next;
    return 1;
}

/* Drops the rows of stage k that no later stage reads any more. */
static void drop_rows(stage *stages, Py_ssize_t k, Py_ssize_t count) {
    stage *s = stages + k;
    const conv_args *next = &s[1].conv;
    Py_ssize_t keep = max_size(s[1].end * next->stride_h - next->pad_h, 0);
    for (Py_ssize_t i = k + 1; i < count; i++)
        if (stages[i].residual == k) keep = min_size(keep, stages[i].end);
    keep = min_size(keep, s->end);
    if (keep <= s->first) return;
    const Py_ssize_t line = s->conv.out_width * s->conv.out_channels;
    memmove(s->rows, s->rows + (keep - s->first) * line, (size_t)((s->end - keep) * line));
    s->first = keep;
}

/* Runs one image through all stages; returns 0 where memory is too small. `prefetch` is the next image, or NULL. */
static int run_bands(const stem_args *c, stage *stages, const uint8_t *x, const float *prefetch) {
    stage *last = stages + c->stages - 1;
    const Py_ssize_t rows = last->conv.out_height, band = min_size(c->band, rows), bands = ceil_div(rows, band);
    const Py_ssize_t share = ceil_div(c->image.channels * c->image.pixels, bands);
    for (Py_ssize_t k = 0; k < c->stages; k++) stages[k].first = stages[k].end = 0;
    for (Py_ssize_t b = 0; b < bands; b++) {
        for (Py_ssize_t i = b * share; prefetch && i < (b + 1) * share; i += 16) PREFETCH(prefetch + i);
        for (Py_ssize_t k = 0; k < c->stages; k++) stages[k].next = stages[k].end;
        last->next = (b + 1) * band;
        for (stage *s = last; s >= stages; s--) { /* the rows of each stage that later ones need */
            const conv_args *a = &s->conv;
            s->next = min_size(s->next, a->out_height);
            if (s > stages) s[-1].next = max_size(s[-1].next, (s->next - 1) * a->stride_h - a->pad_h + a->kernel_h);
            if (s->residual >= 0) stages[s->residual].next = max_size(stages[s->residual].next, s->next);
        }
        for (Py_ssize_t k = 0; k < c->stages; k++) {
            stage *s = stages + k;
            const stage *residual = s->residual < 0 ? NULL : stages + s->residual;
            if (s < last) drop_rows(stages, k, c->stages);
            if (s->next == s->end) continue;
            if (!(k ? compute_rows(s, s[-1].rows, s[-1].first, s[-1].end, residual)
                    : compute_rows(s, x, 0, s->conv.height, residual)))
                return 0;
        }
    }
    return 1;
}

/* Fills in stage k from its numbers; returns NULL, or why there is no such stage. */
static const char *open_stage(const stem_args *c, stage *s, Py_ssize_t k, const int64_t *given) {
    Py_ssize_t n[15] = {1};
    for (int i = 1; i < 15; i++) n[i] = (Py_ssize_t)given[4 + i];
    const int dense = given[4] != 0;
    conv_args *a = &s->conv;
    a->weight = (const int8_t *)(intptr_t)given[0], a->bias = (const int32_t *)(intptr_t)given[1];
    a->multiplier = (const float *)(intptr_t)given[2], a->out_of_memory = c->out_of_memory;
    s->rows = (uint8_t *)(intptr_t)given[3], s->capacity = (Py_ssize_t)given[29];
    s->run = conv_kernel(dense);
    const char *reason = s->run ? describe_conv(a, dense, n, n + 4) : "not for this CPU";
    if (reason) return reason;
    const packed_size size = packed_size_of(a, dense);
    if (given[26] < size.weight || given[27] < 4 * size.channels || given[28] < 4 * size.channels || !a->weight ||
        !a->bias || !a->multiplier)
        return "weights that do not fit";
    if (result_bytes(a) < 0 || s->capacity < 0 || (s->capacity && !s->rows)) return "results that do not fit";
    const conv_args *before = k ? &s[-1].conv : NULL;
    if (before ? before->out_height != a->height || before->out_width != a->width || before->out_channels != a->channels
               : a->channels != c->image.channels || a->height * a->width != c->image.pixels)
        return "images that do not fit";
    s->residual = (Py_ssize_t)given[19];
    a->own_ratio = bits_float((int32_t)given[20]), a->residual_ratio = bits_float((int32_t)given[21]);
    a->residual_zero = (int)given[22], a->sum_zero = (int)given[23];
    a->sum_low = (int)given[24], a->sum_high = (int)given[25];
    if (s->residual < 0) return NULL;
    if (s->residual >= k || !dense) return "no stage to add";
    const conv_args *r = &s[s->residual - k].conv;
    const int fits = r->out_height == a->out_height && r->out_width == a->out_width && r->out_channels == a->out_channels;
    return fits ? NULL : "sums that do not fit";
}

/* Returns NULL, or why there are no such stages. */
static const char *run_stem(const stem_args *c) {
    stage *stages = (stage *)calloc((size_t)c->stages, sizeof(stage));
    const char *reason = NULL;
    for (Py_ssize_t k = 0; stages && !reason && k < c->stages; k++)
        reason = open_stage(c, stages + k, k, c->numbers + k * STAGE);
    stage *last = stages ? stages + c->stages - 1 : NULL;
    const Py_ssize_t size = c->image.channels * c->image.pixels;
    if (last && !reason && c->samples > c->y_bytes / result_bytes(&last->conv)) reason = "no room for results";
    for (Py_ssize_t n = 0; last && !reason && n < c->samples && !*c->out_of_memory && !*c->image.q.nan; n++) {
        quantize_nhwc_args image = c->image;
        if (image.q.x) {
            image.q.x += n * size;
            quantize_nhwc_kernel(&image, 0, image.blocks);
        }
        last->capacity = result_bytes(&last->conv);
        last->rows = c->y + n * last->capacity;
        if (!run_bands(c, stages, image.q.y, image.q.x && n + 1 < c->samples ? image.q.x + size : NULL))
            reason = "no room between stages";
    }
    if (!stages) *c->out_of_memory = 1;
    free(stages);
    return reason;
}

FUNCTION(fused_stem) {
    arguments a;
    if (!parse_arguments(&a, "fused_stem", args, count, 13, 4)) return NULL;
    const Py_ssize_t channels = int_at(&a, 3), pixels = int_at(&a, 4), samples = int_at(&a, 9), stages = int_at(&a, 11);
    const Py_ssize_t low = int_at(&a, 6), high = int_at(&a, 7), zero = int_at(&a, 8), band = int_at(&a, 12);
    const Py_ssize_t size = checked_product(channels, pixels);
    if (a.value[0] && !check_buffer(&a, 0, a.value[0], checked_product(samples, size), 4)) return NULL;
    if (!check_buffer(&a, 1, a.value[1], size, 1) || !check_buffer(&a, 2, a.value[2], a.bytes[2], 1) ||
        !check_buffer(&a, 3, a.value[10], checked_product(stages, STAGE), 8) || !check_clamp(&a, low, high, zero))
        return NULL;
    if (stages < 1 || band < 1 || samples < 0 || !size) {
        PyErr_SetString(engine_error, "fused_stem: no stages, no rows or no images");
        return NULL;
    }
    volatile int nan = 0, out_of_memory = 0;
    const quantize_args q = {a.value[0], a.value[1], float_at(&a, 5), (float)low, (float)high, (int32_t)zero, 1, &nan};
    const stem_args given = {{q, channels, pixels, ceil_div(pixels, BLOCK)},
                             a.value[2], a.bytes[2], samples, stages, band, a.value[10], &out_of_memory};
    const char *reason;
    Py_BEGIN_ALLOW_THREADS
    reason = run_stem(&given);
    Py_END_ALLOW_THREADS
    if (reason) {
        PyErr_Format(engine_error, "fused_stem: %s", reason);
        return NULL;
    }
    return out_of_memory ? PyErr_NoMemory() : PyBool_FromLong(nan);
}
