/* Convolutions one behind the other, in bands of rows: what one writes the next one reads from the cache. */

#include "native.h"

#include <stdlib.h>

typedef struct {
    convolution_args whole;
    body run;
    uint8_t *rows; /* first to end of the results */
    Py_ssize_t first, end, next;
} stage;

static Py_ssize_t larger(Py_ssize_t a, Py_ssize_t b) { return a > b ? a : b; }

/* Result rows s->end to s->next, from the rows that `before` holds. */
static void extend(stage *s, const uint8_t *rows, Py_ssize_t first, Py_ssize_t end) {
    convolution_args a = s->whole;
    const Py_ssize_t top = s->end * a.step_down - a.above, from = larger(top, 0);
    a.x = rows + (from - first) * a.width * a.channels;
    a.height = end - from, a.above = from - top, a.rows = s->next - s->end;
    a.y = s->rows + (s->end - s->first) * a.columns * a.results;
    a.images = 1, a.by_block = 0;
    s->run(&a, 0, a.rows);
    s->end = s->next;
}

/* Rows that the stage behind does not see any more go. */
static void let_go(stage *s, const stage *behind) {
    const Py_ssize_t seen = larger(behind->end * behind->whole.step_down - behind->whole.above, 0);
    const Py_ssize_t keep = seen < s->end ? seen : s->end, line = s->whole.columns * s->whole.results;
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
        for (Py_ssize_t i = b * share; further && i < (b + 1) * share; i += 16) __builtin_prefetch(further + i, 0, 2);
        Py_ssize_t next = (b + 1) * c->band < rows ? (b + 1) * c->band : rows;
        for (Py_ssize_t k = c->count - 1; k >= 0; k--) { /* rows of each that those need */
            const convolution_args *a = &stages[k].whole;
            stages[k].next = larger(next < a->rows ? next : a->rows, stages[k].end);
            next = (stages[k].next - 1) * a->step_down - a->above + a->tall;
        }
        for (Py_ssize_t k = 0; k < c->count; k++) {
            stage *s = stages + k;
            if (k + 1 < c->count) let_go(s, s + 1);
            if (s->next == s->end) continue;
            if (k)
                extend(s, stages[k - 1].rows, stages[k - 1].first, stages[k - 1].end);
            else
                extend(s, x, 0, s->whole.height);
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
