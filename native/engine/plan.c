/* Plans: their check, their memory, and their execution. */

#include "plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MAX_VALUES (1 << 20)
#define MIN_PARALLEL_WORK (1 << 15)
#define MIN_SHARED_WORK (1 << 19) /* from which on a thread that is done takes a part from one that is late */

typedef struct memory_list {
    struct memory_list *next;
} memory_list;

struct plan {
    model *m;
    int64_t *words;
    isize values, steps;
    value *value;
    const int64_t **step;
    void **prepared;
    isize arena, scratch; /* bytes of the workspace: of all values, and of each thread */
    isize count[2], *interface[2]; /* inputs and outputs: how many, and the bytes of each */
    memory_list *owned;
};

/* ---- checks --------------------------------------------------------------------------------------------------------- */

void *plan_memory(checker *c, isize bytes) {
    void *block, *found = aligned_memory(&block, bytes, (isize)sizeof(memory_list));
    if (!found) return refuse(c, "there is no memory for %lld bytes", (long long)bytes), NULL;
    ((memory_list *)block)->next = c->p->owned, c->p->owned = (memory_list *)block;
    return found;
}

void *shared_memory(checker *c, const void *key, isize variant, isize bytes, int *fresh) {
    void *found = model_memory(c->p->m, key, variant, bytes, fresh);
    if (!found) refuse(c, "there is no memory for %lld bytes of packed weights", (long long)bytes);
    return found;
}

void discard_memory(checker *c, const void *memory) { discard_model_memory(c->p->m, memory); }

int refuse(checker *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(c->reason, REASON, format, args);
    va_end(args);
    return 0;
}

isize value_bytes(const plan *p, int64_t value) { return value < 0 ? 0 : (isize)p->value[value].bytes; }

int needs(checker *c, int64_t value, isize count, isize size, const char *what) {
    const isize bytes = checked_product(count, size);
    if (bytes >= 0 && bytes <= value_bytes(c->p, value)) return 1;
    return refuse(c, "%s has %lld bytes, and the step needs %lld elements of %lld", what,
                  (long long)value_bytes(c->p, value), (long long)count, (long long)size);
}

const void *constant_at(const checker *c, int64_t index) {
    const value *v = index < 0 ? NULL : &c->p->value[index];
    return v ? v->constant : NULL;
}

const int64_t *step_before(const checker *c, void **prepared) {
    if (!c->index) return NULL;
    *prepared = c->p->prepared[c->index - 1];
    return c->p->step[c->index - 1];
}

void forget_value(checker *c, int64_t index) { c->p->value[index].first = PTRDIFF_MAX, c->p->value[index].last = -1; }

const int64_t *list_of(const int64_t *step, isize *count) {
    isize fields = 0;
    isize kinds;
    for (const char *f = step_kinds(&kinds)[step[0]].fields; *f; f++) fields += *f == ':';
    *count = (isize)step[1] - 2 - fields;
    return step + 2 + fields;
}

static int check_value(checker *c, isize i, uint8_t *taken) {
    const plan *p = c->p;
    value *v = &p->value[i];
    forget_value(c, i);
    if (v->storage < WORKSPACE || v->storage > OUTPUT || v->bytes < 0 || v->bytes > MAX_BYTES || v->index < 0 ||
        v->index >= MAX_VALUES)
        return refuse(c, "value %lld is of no storage or size", (long long)i);
    if (v->storage == CONSTANT && !(v->constant = model_constant(p->m, v->index, v->bytes)))
        return refuse(c, "value %lld is not a constant of the program", (long long)i);
    /* Steps rely on it that what they write and what they read are different memory. */
    if (v->storage == OUTPUT && (v->index >= p->values || taken[v->index]++))
        return refuse(c, "output %lld is not one value", (long long)v->index);
    return 1;
}

static int check_values(checker *c, const int64_t *words) {
    plan *p = c->p;
    uint8_t *taken = (uint8_t *)calloc((size_t)p->values + 1, 1);
    int sound = taken || refuse(c, "there is no memory for the plan");
    for (isize i = 0; sound && i < p->values; i++) {
        p->value[i] = (value){.storage = words[3 * i], .index = words[3 * i + 1], .bytes = words[3 * i + 2]};
        sound = check_value(c, i, taken);
    }
    free(taken);
    return sound;
}

/* Notes how many inputs or outputs there are, and the bytes that the plan needs of each. */
static int note_interface(checker *c, enum storage storage) {
    plan *p = c->p;
    isize count = 0, *bytes = NULL;
    for (isize i = 0; i < p->values; i++)
        if (p->value[i].storage == (int64_t)storage) count = max_size(count, (isize)p->value[i].index + 1);
    if (!(bytes = (isize *)calloc((size_t)count + 1, sizeof *bytes))) return refuse(c, "there is no memory for the plan");
    for (isize i = 0; i < p->values; i++)
        if (p->value[i].storage == (int64_t)storage)
            bytes[p->value[i].index] = max_size(bytes[p->value[i].index], (isize)p->value[i].bytes);
    p->count[storage - INPUT] = count, p->interface[storage - INPUT] = bytes;
    return 1;
}

/* Checks one value that a step reads or writes, and notes the lifetime. */
static int check_use(checker *c, int64_t index, int written) {
    plan *p = c->p;
    if (index < 0 || index >= p->values) return refuse(c, "there is no value %lld", (long long)index);
    value *v = &p->value[index];
    if (written ? v->storage == CONSTANT || v->storage == INPUT
                : (v->storage == WORKSPACE || v->storage == OUTPUT) && v->first >= c->index)
        return refuse(c, "value %lld %s", (long long)index, written ? "cannot be written" : "is read before it is written");
    if (c->index < v->first) v->first = c->index;
    v->last = c->index;
    return 1;
}

/* Checks the indices of a step's values. What it writes must not be among what it reads. */
static int check_fields(checker *c, const int64_t *step, const step_kind *kind) {
    isize count, at = 2;
    const int64_t *list = list_of(step, &count);
    if (count < 0) return refuse(c, "the step has too few words");
    for (int pass = 0; pass < 2; pass++) { /* what is read, then what is written */
        at = 2;
        for (const char *f = kind->fields; *f; f++) {
            if (f[1] != ':') continue;
            const int64_t given = step[at++];
            if (*f == 'w' ? pass == 1 : pass == 0 && (*f == 'r' || (*f == 'm' && given != -1)))
                if (!check_use(c, given, *f == 'w')) return 0;
        }
        for (isize i = 0; pass == 0 && i < count; i++)
            if (!check_use(c, list[i], 0)) return 0;
    }
    return 1;
}

static int written_by(const int64_t *step, const step_kind *kind, int64_t index) {
    isize at = 2;
    for (const char *f = kind->fields; *f; f++)
        if (f[1] == ':' && step[at++] == index && *f == 'w') return 1;
    return 0;
}

static int check_overlap(checker *c, const int64_t *step, const step_kind *kind) {
    isize count, at = 2;
    const int64_t *list = list_of(step, &count);
    for (const char *f = kind->fields; *f; f++) {
        if (f[1] != ':') continue;
        const int64_t given = step[at++];
        if ((*f == 'r' || *f == 'm') && written_by(step, kind, given)) return refuse(c, "the step writes what it reads");
    }
    for (isize i = 0; i < count; i++)
        if (written_by(step, kind, list[i])) return refuse(c, "the step writes what it reads");
    return 1;
}

static int check_step(checker *c, const int64_t *step) {
    isize kinds;
    const step_kind *all = step_kinds(&kinds);
    if (step[0] < 0 || step[0] >= kinds) return refuse(c, "there is no kind of step %lld", (long long)step[0]);
    const step_kind *kind = &all[step[0]];
    c->scratch = 0, c->prepared = NULL;
    if (!check_fields(c, step, kind) || !check_overlap(c, step, kind) || !kind->check(c, step)) return 0;
    if (c->scratch < 0 || c->scratch > MAX_BYTES) return refuse(c, "the step needs too much memory");
    c->p->prepared[c->index] = c->prepared;
    c->p->scratch = max_size(c->p->scratch, round_up(c->scratch, ALIGNMENT));
    return 1;
}

/* ---- plans ---------------------------------------------------------------------------------------------------------- */

static int read_plan(checker *c, const int64_t *words, isize count) {
    plan *p = c->p;
    if (count < 3 || words[0] != PLAN_MAGIC) return refuse(c, "these words are not a plan");
    if (words[1] < 0 || words[1] > MAX_VALUES || words[2] < 0 || words[2] > MAX_VALUES || count < 3 + 3 * words[1])
        return refuse(c, "the plan has no such number of values or steps");
    p->values = (isize)words[1], p->steps = (isize)words[2];
    p->words = (int64_t *)malloc((size_t)count * sizeof *words);
    p->value = (value *)calloc((size_t)p->values + 1, sizeof *p->value);
    p->step = (const int64_t **)calloc((size_t)p->steps + 1, sizeof *p->step);
    p->prepared = (void **)calloc((size_t)p->steps + 1, sizeof *p->prepared);
    if (!p->words || !p->value || !p->step || !p->prepared) return refuse(c, "there is no memory for the plan");
    memcpy(p->words, words, (size_t)count * sizeof *words);
    if (!check_values(c, p->words + 3) || !note_interface(c, INPUT) || !note_interface(c, OUTPUT)) return 0;
    isize at = 3 + 3 * p->values;
    for (c->index = 0; c->index < p->steps; c->index++) {
        if (count - at < 2 || p->words[at + 1] < 2 || p->words[at + 1] > count - at)
            return refuse(c, "step %lld lies outside of the plan", (long long)c->index);
        p->step[c->index] = p->words + at;
        if (!check_step(c, p->words + at)) {
            char reason[REASON];
            memcpy(reason, c->reason, REASON);
            return refuse(c, "step %lld: %.200s", (long long)c->index, reason);
        }
        at += (isize)p->words[at + 1];
    }
    p->arena = place_values(p->value, p->values);
    return p->arena >= 0 || refuse(c, "there is not so much memory as the plan needs");
}

plan *open_plan(model *m, const int64_t *words, isize count, char reason[REASON]) {
    plan *p = (plan *)calloc(1, sizeof *p);
    checker c = {.p = p};
    if (p) p->m = retain_model(m);
    if (p && read_plan(&c, words, count)) return p;
    memcpy(reason, p ? c.reason : "there is no memory for the plan", p ? REASON : 32);
    close_plan(p);
    return NULL;
}

void close_plan(plan *p) {
    if (!p) return;
    close_model(p->m);
    for (memory_list *m = p->owned, *next; m; m = next) {
        next = m->next;
        free(m);
    }
    free(p->interface[0]), free(p->interface[1]), free(p->words), free(p->value), free((void *)p->step), free(p->prepared), free(p);
}

isize workspace_bytes(const plan *p, int threads) {
    return checked_sum(p->arena, checked_product(p->scratch, threads < 1 ? 1 : threads));
}

isize plan_values(const plan *p) { return p->values; }
const value *plan_value(const plan *p, isize index) { return index < 0 || index >= p->values ? NULL : &p->value[index]; }

isize interface_count(const plan *p, enum storage storage) { return p->count[storage - INPUT]; }

isize interface_bytes(const plan *p, enum storage storage, isize index) {
    return index < 0 || index >= p->count[storage - INPUT] ? 0 : p->interface[storage - INPUT][index];
}

/* ---- execution ------------------------------------------------------------------------------------------------------ */

void *at(const frame *f, int64_t index) {
    if (index < 0) return NULL;
    const value *v = &f->p->value[index];
    switch (v->storage) {
        case CONSTANT: return (void *)(uintptr_t)v->constant;
        case INPUT: return f->inputs[v->index];
        case OUTPUT: return f->outputs[v->index];
        default: return f->workspace + v->offset;
    }
}

typedef struct {
    kernel run;
    const void *args;
    isize count;
    int parts;
    uint8_t *scratch;
    isize scratch_bytes;
} parallel_job;

static void run_part(void *given, int part, int thread) {
    const parallel_job *job = (const parallel_job *)given;
    const isize size = job->count / job->parts, more = job->count % job->parts;
    const isize lo = size * part + min_size(part, more);
    job->run(job->args, lo, lo + size + (part < more), job->scratch + thread * job->scratch_bytes);
}

void parallel(const frame *f, kernel run, const void *args, isize count, isize work) {
    uint8_t *scratch = f->workspace + f->p->arena;
    const isize threads = min_size(f->threads, count);
    if (threads < 2 || work < MIN_PARALLEL_WORK) {
        if (count > 0) run(args, 0, count, scratch);
        return;
    }
    const int parts = (int)min_size(count, work < MIN_SHARED_WORK ? threads : 2 * threads);
    parallel_job job = {run, args, count, parts, scratch, f->p->scratch};
    run_parts(run_part, &job, parts, (int)threads);
}

static double now(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

isize run_plan(const plan *p, isize from, uint8_t *workspace, void *const *inputs, void *const *outputs, int threads,
               double *seconds, char reason[REASON]) {
    isize kinds;
    const step_kind *all = step_kinds(&kinds);
    frame f = {p, workspace, inputs, outputs, threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads, 0};
    double before = seconds ? now() : 0.0;
    for (isize i = from; i < p->steps; i++) {
        const step_kind *kind = &all[p->step[i][0]];
        if (!kind->run) return i;
        kind->run(&f, p->step[i], p->prepared[i]);
        if (f.failure) {
            const char *const why = f.failure == OUTSIDE ? "an index is outside of its table" : "a number is not finite";
            snprintf(reason, REASON, "step %lld (%s): %s", (long long)i, kind->name, why);
            return -f.failure;
        }
        if (seconds) {
            const double after = now();
            seconds[i] += after - before, before = after;
        }
    }
    return p->steps;
}
