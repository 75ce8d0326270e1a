/* Convolutions one behind the other, in bands of rows: what one writes the next one reads from the cache. */

#include "native.h"

#include <stdlib.h>

typedef struct {
    convolution_args whole;
    body run;
    uint8_t *rows; /* first to end of the results */
    Py_ssize_t room; /* bytes there */
    Py_ssize_t first, end, next;
    Py_ssize_t other; /* -1, or the stage whose results it adds */
} stage;

/* Bytes of one image's results; -1 where there is no such number. */
static Py_ssize_t bytes_of(const convolution_args *a) { return times(times(a->rows, a->columns), a->results); }

static Py_ssize_t larger(Py_ssize_t a, Py_ssize_t b) { return a > b ? a : b; }

/* Result rows s->end to s->next, from rows first to end of what is before it; 0 where these or memory for those are not
   there. */
static int extend(stage *s, const uint8_t *rows, Py_ssize_t first, Py_ssize_t end, const stage *other) {
    convolution_args a = s->whole;
    if ((s->next - s->first) * a.columns * a.results > s->room || (other && (s->end < other->first || s->next > other->end)))
        return 0;
    if (other) a.other = other->rows + (s->end - other->first) * a.columns * a.results;
    const Py_ssize_t top = s->end * a.step_down - a.above, from = larger(top, 0);
    if (from < first || (end < a.height && top + (s->next - s->end - 1) * a.step_down + a.tall > end)) return 0;
    a.x = rows + (from - first) * a.width * a.channels;
    a.height = end - from, a.above = from - top, a.rows = s->next - s->end;
    a.y = s->rows + (s->end - s->first) * a.columns * a.results;
    a.images = 1, a.by_block = 0;
    s->run(&a, 0, a.rows);
    s->end = s->next;
    return 1;
}

/* Rows that no stage behind will see any more go. */
static void let_go(stage *stages, Py_ssize_t k, Py_ssize_t count) {
    stage *s = stages + k;
    const stage *behind = s + 1;
    Py_ssize_t keep = larger(behind->end * behind->whole.step_down - behind->whole.above, 0);
    for (Py_ssize_t i = k + 1; i < count; i++)
        if (stages[i].other == k && stages[i].end < keep) keep = stages[i].end;
    const Py_ssize_t line = s->whole.columns * s->whole.results;
    if (keep > s->end) keep = s->end;
    if (keep <= s->first) return;
    memmove(s->rows, s->rows + (keep - s->first) * line, (size_t)((s->end - keep) * line));
    s->first = keep;
}

/* One image through all of them; 0 where memory does not do. */
static int run_bands(const cascade_args *c, stage *stages, const uint8_t *x, const float *further) {
    const stage *last = stages + c->count - 1;
    const Py_ssize_t rows = last->whole.rows, band = c->band < rows ? c->band : rows, bands = (rows + band - 1) / band;
    const Py_ssize_t share = (c->image.channels * c->image.pixels + bands - 1) / bands;
    for (Py_ssize_t k = 0; k < c->count; k++) stages[k].first = stages[k].end = 0;
    for (Py_ssize_t b = 0; b < bands; b++) {
        /* What is quantized next comes near in the meantime. */
        for (Py_ssize_t i = b * share; further && i < (b + 1) * share; i += 16) PREFETCH(further + i);
        for (Py_ssize_t k = 0; k < c->count; k++) stages[k].next = stages[k].end;
        stages[c->count - 1].next = (b + 1) * band;
        for (Py_ssize_t k = c->count - 1; k >= 0; k--) { /* rows of each that those behind it need */
            stage *s = stages + k;
            const convolution_args *a = &s->whole;
            if (s->next > a->rows) s->next = a->rows;
            if (k) s[-1].next = larger(s[-1].next, (s->next - 1) * a->step_down - a->above + a->tall);
            if (s->other >= 0) stages[s->other].next = larger(stages[s->other].next, s->next);
        }
        for (Py_ssize_t k = 0; k < c->count; k++) {
            stage *s = stages + k;
            const stage *other = s->other < 0 ? NULL : stages + s->other;
            if (k + 1 < c->count) let_go(stages, k, c->count);
            if (s->next == s->end) continue;
            if (!(k ? extend(s, s[-1].rows, s[-1].first, s[-1].end, other) : extend(s, x, 0, s->whole.height, other)))
                return 0;
        }
    }
    return 1;
}

/* What stage k is, from its numbers and what is before it; NULL, or why there is no such stage. */
static const char *open_stage(const cascade_args *c, stage *s, Py_ssize_t k, const int64_t *given) {
    Py_ssize_t n[15] = {1};
    for (int i = 1; i < 15; i++) n[i] = (Py_ssize_t)given[4 + i];
    const int dense = given[4] != 0;
    s->whole.weight = (const int8_t *)(intptr_t)given[0], s->whole.bias = (const int32_t *)(intptr_t)given[1];
    s->whole.ratio = (const float *)(intptr_t)given[2];
    s->rows = (uint8_t *)(intptr_t)given[3], s->room = (Py_ssize_t)given[29];
    s->run = prepare_convolution(dense);
    const char *reason = s->run ? describe_convolution(&s->whole, dense, n, n + 4) : "not for this CPU";
    if (reason) return reason;
    const packed_sizes sizes = sizes_of_packed(&s->whole, dense);
    if (given[26] < sizes.weight || given[27] < 4 * sizes.results || given[28] < 4 * sizes.results || !s->whole.weight ||
        !s->whole.bias || !s->whole.ratio)
        return "weights that do not fit";
    if (bytes_of(&s->whole) < 0 || s->room < 0 || (s->room && !s->rows)) return "results that do not fit";
    const convolution_args *before = k ? &s[-1].whole : NULL;
    if (before ? before->rows != s->whole.height || before->columns != s->whole.width || before->results != s->whole.channels
               : s->whole.channels != c->image.channels || s->whole.height * s->whole.width != c->image.pixels)
        return "images that do not fit";
    s->other = (Py_ssize_t)given[19];
    s->whole.own = number((int32_t)given[20]), s->whole.ratio_other = number((int32_t)given[21]);
    s->whole.zero_other = (int)given[22], s->whole.zero_sum = (int)given[23];
    s->whole.low_sum = (int)given[24], s->whole.high_sum = (int)given[25];
    if (s->other < 0) return NULL;
    if (s->other >= k || !dense) return "no stage to add";
    const convolution_args *other = &s[s->other - k].whole;
    const int fits = other->rows == s->whole.rows && other->columns == s->whole.columns && other->results == s->whole.results;
    return fits ? NULL : "sums that do not fit";
}

const char *cascade_run(const cascade_args *c) {
    volatile int no_memory = 0;
    stage *stages = (stage *)calloc((size_t)c->count, sizeof(stage));
    const char *reason = NULL;
    for (Py_ssize_t k = 0; stages && !reason && k < c->count; k++) {
        reason = open_stage(c, stages + k, k, c->stages + k * STAGE);
        stages[k].whole.no_memory = &no_memory;
    }
    const convolution_args *end = stages ? &stages[c->count - 1].whole : NULL;
    const Py_ssize_t size = c->image.channels * c->image.pixels;
    if (end && !reason && c->samples > c->bytes / bytes_of(end)) reason = "no room for results";
    for (Py_ssize_t n = 0; stages && !reason && n < c->samples && !no_memory && !*c->image.f.nan; n++) {
        interleave_args image = c->image;
        if (image.f.x) {
            image.f.x += n * size;
            interleave_run(&image, 0, image.blocks);
        }
        stages[c->count - 1].room = bytes_of(end);
        stages[c->count - 1].rows = c->y + n * stages[c->count - 1].room;
        if (!run_bands(c, stages, image.f.y, image.f.x && n + 1 < c->samples ? image.f.x + size : NULL))
            reason = "no room between stages";
    }
    if (!stages || no_memory) *c->no_memory = 1;
    free(stages);
    return reason;
}
