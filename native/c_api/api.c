/* The C API (intact8.h): the plan in a program file, checked, and its runs. */

#include "intact8.h"

#include "../engine/plan.h"
#include "file.h"

#include <stdio.h>
#include <stdlib.h>

#define MAX_ARRAYS 4096     /* inputs or outputs */
#define MAX_PLANS 4096
#define MAX_CONSTANTS (1 << 20)
#define MAX_ELEMENTS ((int64_t)1 << 40)

#if defined(_MSC_VER)
#define THREAD_LOCAL __declspec(thread)
#else
#define THREAD_LOCAL _Thread_local
#endif

/* A plan and what its calls are given and give. */
typedef struct {
    plan *steps;
    int64_t step_count;
    intact8_array *arrays; /* inputs, then outputs */
    int inputs, outputs;
} stored_plan;

struct intact8_program {
    program_file file; /* names of arrays lie in its plans */
    model *constants;
    stored_plan *plans;
    int plan_count;
    uint8_t **owned; /* memory of constants */
    isize owned_count;
};

struct intact8_runner {
    const stored_plan *plan;
    uint8_t *block, *workspace;
    int threads;
};

static THREAD_LOCAL char last_error[REASON + 64];

static int fail(const char *what, const char *why) {
    snprintf(last_error, sizeof last_error, "%s: %.*s", what, REASON, why);
    return 0;
}

const char *intact8_error(void) { return last_error; }

/* ---- the stored plan ------------------------------------------------------------------------------------------------ */

/* Numbers and bytes one after the other, as src/intact8/engines/native/stored_plan.py writes them. */
typedef struct {
    const uint8_t *at, *end;
    int short_of; /* whether more was asked for than is there */
} stream;

/* Seven bits a byte, the lowest first; the lowest bit of all is the sign. */
static int64_t take_number(stream *s) {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        if (s->at == s->end) break;
        const uint8_t byte = *s->at++;
        if (shift < 64) value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return (int64_t)(value >> 1 ^ (0 - (value & 1)));
    }
    s->short_of = 1;
    return 0;
}

/* A number of things of which each takes at least one byte. */
static isize take_count(stream *s, int64_t most) {
    const int64_t count = take_number(s);
    if (count >= 0 && count <= most && count <= s->end - s->at) return (isize)count;
    s->short_of = 1;
    return 0;
}

static const uint8_t *take_bytes(stream *s, isize *count) {
    *count = take_count(s, INT64_MAX);
    s->at += *count;
    return s->at - *count;
}

static const char *take_name(stream *s) {
    isize count;
    const uint8_t *at = take_bytes(s, &count);
    if (count && !at[count - 1]) return (const char *)at;
    s->short_of = 1;
    return "";
}

/* Identifies the kinds of steps and their fields: plans of other versions of the library mean something else. FNV-1a. */
static int64_t fingerprint(void) {
    isize kinds;
    const step_kind *all = step_kinds(&kinds);
    uint64_t hash = 0xcbf29ce484222325u;
    for (isize i = 0; i < kinds; i++) {
        const char *parts[] = {all[i].name, ":", all[i].fields, "\n"};
        for (int k = 0; k < 4; k++)
            for (const char *c = parts[k]; *c; c++) hash = (hash ^ (uint8_t)*c) * 0x100000001b3u;
    }
    return (int64_t)hash;
}

static isize item_size(const char *dtype) {
    static const struct {
        const char *name;
        isize bytes;
    } known[] = {{"float32", 4}, {"uint8", 1}, {"int8", 1}, {"bool", 1}, {"int64", 8}, {"int32", 4}, {"float64", 8}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].name, dtype)) return known[i].bytes;
    return -1;
}

static int take_array(stream *s, intact8_array *a) {
    a->name = take_name(s), a->dtype = take_name(s);
    a->rank = (int)take_count(s, 8);
    isize bytes = item_size(a->dtype);
    for (int i = 0; i < a->rank; i++) {
        a->sizes[i] = take_number(s);
        bytes = a->sizes[i] > MAX_ELEMENTS ? -1 : checked_product(bytes, (isize)a->sizes[i]);
    }
    a->bytes = bytes < 0 ? 0 : (size_t)bytes;
    return bytes >= 0;
}

/* A strided part of the arrays in a file: dimensions and strides in elements, the last dimension innermost. Elements are
   counted in bytes, or, where they have 4 bits, in halves of bytes. */
typedef struct {
    int64_t at, item, count; /* place of the first one, bytes of each or 0 for 4 bits, and how many there are */
    int64_t size[8], stride[8];
    int rank;
} view;

static int take_view(stream *s, const program_file *file, view *v) {
    v->at = take_number(s), v->item = take_number(s), v->rank = (int)take_count(s, 8), v->count = 1;
    const int64_t unit = v->item ? v->item : 1, end = v->item ? file->array_bytes : 2 * file->array_bytes;
    int64_t lowest = v->at, highest = v->at;
    if (v->at < 0 || v->at > end || v->item < 0 || v->item > 8) return 0;
    for (int i = 0; i < v->rank; i++) {
        const int64_t size = v->size[i] = take_number(s), stride = v->stride[i] = take_number(s);
        if (size < 1 || size > MAX_ELEMENTS || stride > MAX_ELEMENTS || stride < -MAX_ELEMENTS) return 0;
        if (v->count > MAX_ELEMENTS / size || (stride && size > MAX_ELEMENTS / (stride < 0 ? -stride : stride))) return 0;
        v->count *= size;
        *(stride < 0 ? &lowest : &highest) += (size - 1) * stride * unit;
    }
    return !s->short_of && lowest >= 0 && highest <= end - unit && v->count <= end / unit;
}

/* Copies such a part; those of 4 bits two to a byte, the first in its low half, the last of an odd number beside the code 8. */
static uint8_t *copy_view(const view *v, const program_file *file, isize *bytes) {
    int64_t index[8] = {0}, at = v->at;
    const int64_t unit = v->item ? v->item : 1;
    *bytes = (isize)(v->item ? v->count * v->item : (v->count + 1) / 2);
    uint8_t *made = (uint8_t *)malloc((size_t)*bytes);
    for (int64_t done = 0; made && done < v->count; done++) {
        const unsigned half = v->item ? 0 : (unsigned)file->arrays[at / 2] >> at % 2 * 4 & 15;
        if (v->item)
            memcpy(made + done * v->item, file->arrays + at, (size_t)v->item);
        else
            made[done / 2] = (uint8_t)(done % 2 ? (made[done / 2] & 15) | half << 4 : half | 8 << 4);
        for (int i = v->rank - 1; i >= 0; i--) {
            at += v->stride[i] * unit;
            if (++index[i] < v->size[i]) break;
            at -= v->size[i] * v->stride[i] * unit, index[i] = 0;
        }
    }
    return made;
}

static int take_constants(stream *s, intact8_program *p) {
    const isize count = take_count(s, MAX_CONSTANTS);
    p->owned = (uint8_t **)calloc((size_t)count + 1, sizeof *p->owned);
    for (isize i = 0; p->owned && i < count && !s->short_of; i++) {
        isize bytes = 0;
        uint8_t *made = NULL;
        if (take_number(s)) {
            view v;
            made = take_view(s, &p->file, &v) ? copy_view(&v, &p->file, &bytes) : NULL;
        } else {
            const uint8_t *from = take_bytes(s, &bytes);
            made = (uint8_t *)malloc((size_t)bytes + 1);
            if (made) memcpy(made, from, (size_t)bytes);
        }
        p->owned[p->owned_count++] = made;
        if (!made || add_constant(p->constants, made, bytes) < 0) return 0;
    }
    return p->owned && !s->short_of;
}

static int take_steps(stream *s, stored_plan *p, model *constants, char reason[REASON]) {
    const isize count = take_count(s, INT64_MAX);
    int64_t *words = (int64_t *)calloc((size_t)count + 3, sizeof *words);
    for (isize i = 0; words && i < count; i++) words[i] = take_number(s);
    if (words && !s->short_of) {
        p->steps = open_plan(constants, words, count, reason);
        p->step_count = words[2];
    }
    free(words);
    return p->steps != NULL;
}

/* Whether the arrays that a caller is told of are as large as the plan needs. */
static int interface_fits(const stored_plan *p) {
    for (int o = 0; o < 2; o++) {
        const enum storage storage = o ? OUTPUT : INPUT;
        const int count = o ? p->outputs : p->inputs;
        if (interface_count(p->steps, storage) > count) return 0;
        for (int i = 0; i < count; i++)
            if (interface_bytes(p->steps, storage, i) > (isize)p->arrays[i + (o ? p->inputs : 0)].bytes) return 0;
    }
    return 1;
}

static const char *take_plan(stream *s, stored_plan *p, model *constants, char reason[REASON]) {
    p->inputs = (int)take_count(s, MAX_ARRAYS), p->outputs = (int)take_count(s, MAX_ARRAYS);
    p->arrays = (intact8_array *)calloc((size_t)(p->inputs + p->outputs) + 1, sizeof *p->arrays);
    if (!p->arrays) return "there is no memory for it";
    for (int i = 0; i < p->inputs + p->outputs; i++)
        if (!take_array(s, &p->arrays[i])) return "its inputs or outputs are of no known type or size";
    if (!take_steps(s, p, constants, reason))
        return s->short_of ? "its plan ends too early" : *reason ? reason : "there is no memory for it";
    return interface_fits(p) ? NULL : "its inputs or outputs do not fit its plan";
}

static const char *take_plans(intact8_program *p, char reason[REASON]) {
    stream s = {p->file.plan, p->file.plan + p->file.plan_bytes, 0};
    if (take_number(&s) != fingerprint()) return "its plan is of another version of the library: save the program again";
    if (!(p->constants = open_model())) return "there is no memory for it";
    if (!take_constants(&s, p)) return s.short_of ? "its plan ends too early" : "a constant is not in it, or there is no memory";
    const int count = (int)take_count(&s, MAX_PLANS);
    if (!(p->plans = (stored_plan *)calloc((size_t)count + 1, sizeof *p->plans))) return "there is no memory for it";
    const char *why = count ? NULL : "it has no plan";
    while (!why && p->plan_count < count) why = take_plan(&s, &p->plans[p->plan_count++], p->constants, reason);
    return why;
}

/* ---- the interface -------------------------------------------------------------------------------------------------- */

intact8_program *intact8_open(const char *path) {
    intact8_program *p = (intact8_program *)calloc(1, sizeof *p);
    if (!p) return fail(path, "there is no memory for it"), NULL;
    char detail[REASON] = "";
    const char *reason = read_program_file(path, &p->file);
    if (!reason) reason = take_plans(p, detail);
    if (reason) return fail(path, reason), intact8_close(p), NULL;
    free(p->file.content);
    p->file.content = NULL;
    return p;
}

int intact8_plan_count(const intact8_program *p) { return p->plan_count; }

intact8_interface intact8_describe_plan(const intact8_program *p, int plan) {
    if (plan < 0 || plan >= p->plan_count) return (intact8_interface){0, 0, NULL, NULL};
    const stored_plan *found = &p->plans[plan];
    return (intact8_interface){found->inputs, found->outputs, found->arrays, found->arrays + found->inputs};
}

intact8_interface intact8_describe(const intact8_program *p) { return intact8_describe_plan(p, 0); }

intact8_runner *intact8_prepare_plan(const intact8_program *p, int plan, int threads) {
    const int used = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
    if (plan < 0 || plan >= p->plan_count) return fail("prepare", "the program has no such plan"), NULL;
    const isize bytes = workspace_bytes(p->plans[plan].steps, used);
    intact8_runner *r = bytes < 0 ? NULL : (intact8_runner *)calloc(1, sizeof *r);
    if (r) r->block = (uint8_t *)calloc(1, (size_t)bytes + ALIGNMENT);
    if (!r || !r->block) return fail("prepare", "there is no memory for a call"), free(r), NULL;
    r->plan = &p->plans[plan], r->threads = used;
    r->workspace = r->block + (ALIGNMENT - (uintptr_t)r->block % ALIGNMENT) % ALIGNMENT;
    return r;
}

intact8_runner *intact8_prepare(const intact8_program *p, int threads) { return intact8_prepare_plan(p, 0, threads); }

int intact8_run(intact8_runner *r, const void *const *inputs, void *const *outputs) {
    char reason[REASON] = "a step of the plan needs Python";
    void *const *given = (void *const *)(uintptr_t)inputs; /* steps do not write to inputs */
    const isize at = run_plan(r->plan->steps, 0, r->workspace, given, outputs, r->threads, NULL, reason);
    return at == r->plan->step_count || fail("run", reason);
}

void intact8_release(intact8_runner *r) {
    if (r) free(r->block);
    free(r);
}

void intact8_close(intact8_program *p) {
    if (!p) return;
    for (int i = 0; i < p->plan_count; i++) close_plan(p->plans[i].steps), free(p->plans[i].arrays);
    close_model(p->constants);
    for (isize i = 0; i < p->owned_count; i++) free(p->owned[i]);
    free(p->owned), free(p->plans);
    free_program_file(&p->file);
    free(p);
}
