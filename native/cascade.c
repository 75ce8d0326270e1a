/* Convolutions one behind the other, in bands of rows: what one writes the next one reads from the cache. */

#include "native.h"

#include <stdlib.h>

typedef struct {
    convolution_args whole;
    body run;
    uint8_t *rows; /* first to end of the results */
    Py_ssize_t first, end, next;
    Py_ssize_t other; /* -1, or the stage whose results it adds */
} stage;

static Py_ssize_t larger(Py_ssize_t a, Py_ssize_t b) { return a > b ? a : b; }

/* Result rows s->end to s->next, from rows first to end of what is before it. */
static void extend(stage *s, const uint8_t *rows, Py_ssize_t first, Py_ssize_t end, const stage *other) {
    convolution_args a = s->whole;
    if (other) a.other = other->rows + (s->end - other->first) * a.columns * a.results;
    const Py_ssize_t top = s->end * a.step_down - a.above, from = larger(top, 0);
    a.x = rows + (from - first) * a.width * a.channels;
    a.height = end - from, a.above = from - top, a.rows = s->next - s->end;
    a.y = s->rows + (s->end - s->first) * a.columns * a.results;
    a.images = 1, a.by_block = 0;
    s->run(&a, 0, a.rows);
    s->end = s->next;
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

/* One image through all of them. */
static void run_bands(const cascade_args *c, stage *stages, const uint8_t *x, const float *further) {
    const stage *last = stages + c->count - 1;
    const Py_ssize_t rows = last->whole.rows, bands = (rows + c->band - 1) / c->band;
    const Py_ssize_t share = (c->image.channels * c->image.pixels + bands - 1) / bands;
    for (Py_ssize_t k = 0; k < c->count; k++) stages[k].first = stages[k].end = 0;
    for (Py_ssize_t b = 0; b < bands; b++) {
        /* What is quantized next comes near in the meantime. */
        for (Py_ssize_t i = b * share; further && i < (b + 1) * share; i += 16) PREFETCH(further + i);
        for (Py_ssize_t k = 0; k < c->count; k++) stages[k].next = stages[k].end;
        stages[c->count - 1].next = (b + 1) * c->band;
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
            if (k)
                extend(s, s[-1].rows, s[-1].first, s[-1].end, other);
            else
                extend(s, x, 0, s->whole.height, other);
        }
    }
}

void cascade_run(const cascade_args *c) {
    volatile int no_memory = 0;
    stage *stages = (stage *)calloc((size_t)c->count, sizeof(stage));
    const int64_t *given = c->stages;
    for (Py_ssize_t k = 0; stages && k < c->count; k++, given += STAGE) {
        stage *s = stages + k;
        Py_ssize_t n[15] = {1};
        for (int i = 1; i < 15; i++) n[i] = (Py_ssize_t)given[4 + i];
        s->whole.weight = (const int8_t *)(intptr_t)given[0], s->whole.bias = (const int32_t *)(intptr_t)given[1];
        s->whole.ratio = (const float *)(intptr_t)given[2], s->whole.no_memory = &no_memory;
        s->rows = (uint8_t *)(intptr_t)given[3];
        s->run = prepare_convolution(given[4] != 0);
        describe_convolution(&s->whole, given[4] != 0, n, n + 4);
        s->other = (Py_ssize_t)given[19];
        s->whole.own = number((int32_t)given[20]), s->whole.ratio_other = number((int32_t)given[21]);
        s->whole.zero_other = (int)given[22], s->whole.zero_sum = (int)given[23];
        s->whole.low_sum = (int)given[24], s->whole.high_sum = (int)given[25];
    }
    const convolution_args *end = stages ? &stages[c->count - 1].whole : NULL;
    const Py_ssize_t size = c->image.channels * c->image.pixels;
    for (Py_ssize_t n = 0; stages && n < c->samples && !no_memory && !*c->image.f.nan; n++) {
        interleave_args image = c->image;
        if (image.f.x) {
            image.f.x += n * size;
            interleave_run(&image, 0, image.blocks);
        }
        stages[c->count - 1].rows = c->y + n * end->rows * end->columns * end->results;
        run_bands(c, stages, image.f.y, image.f.x && n + 1 < c->samples ? image.f.x + size : NULL);
    }
    if (!stages || no_memory) *c->no_memory = 1;
    free(stages);
}
