/* Fuzzes plans of the native engine without Python: mutated plans are opened and run under sanitizers.

       plan_fuzz SEEDS FIRST COUNT THREADS

   SEEDS is a file of int64 words, written by tests/fuzz/plans.py. For each plan: the number of its constants, for each
   constant its bytes and its contents (padded to 8), then the number of words of the plan and its words. Run i is the same
   in every call. Children do the work; a child that a sanitizer ends is a fault, one that takes too long is not. */

#define _GNU_SOURCE /* posix_memalign, MAP_ANONYMOUS */

#include "plan.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHUNK 500              /* runs of one child */
#define MOST_BYTES (1 << 23)   /* of a workspace or of all inputs and outputs; larger plans are opened, not run */
#define MOST_INTERFACE 4096
#define MILLISECONDS 500       /* of CPU time that a run may take */
#define MOST_FAULTS 20

typedef struct {
    isize index, refused, ran, large, slow, faults;
} counters;

typedef struct {
    isize constants, words;
    const int64_t **constant; /* bytes, then contents */
    const int64_t *plan;
} seed;

/* A plan that is being mutated. */
typedef struct {
    int64_t *word;
    isize count, room;
} draft;

static uint64_t state;
static isize kinds;
static const step_kind *all;

/* ---- random numbers --------------------------------------------------------------------------------------------------- */

static uint64_t next_random(void) {
    state += 0x9e3779b97f4a7c15u;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static isize below(isize n) { return n < 1 ? 0 : (isize)(next_random() % (uint64_t)n); }
static int one_in(isize n) { return below(n) == 0; }

static int64_t hostile_number(int64_t old) {
    static const int64_t extremes[] = {INT64_MIN, INT64_MIN + 1, INT64_MAX, INT64_MAX - 1, -1, -2, 0, 1, 2, 3, 4, 7, 8, 16,
                                       63, 64, 65, 127, 128, 255, 256, 257, 1000, 1 << 15, 1 << 16, 1 << 20, 1 << 24, INT_MAX,
                                       INT_MIN};
    const int64_t powers = (int64_t)1 << below(63);
    switch (below(9)) {
        case 0: return extremes[below((isize)(sizeof extremes / sizeof *extremes))];
        case 1: return powers;
        case 2: return one_in(2) ? -powers : powers - 1;
        case 3: return (int64_t)((uint64_t)old + 1);
        case 4: return (int64_t)((uint64_t)old - 1);
        case 5: return (int64_t)((uint64_t)old * 2);
        case 6: return (int64_t)((uint64_t)old ^ ((uint64_t)1 << below(64)));
        case 7: return (int64_t)next_random();
        default: return below(8);
    }
}

static void fill_random(void *to, isize bytes) {
    uint8_t *b = (uint8_t *)to;
    const isize form = below(6);
    static const uint32_t floats[] = {0x7fc00000, 0x7f800000, 0xff800000, 0x7f7fffff, 0xff7fffff, 1, 0x80000000, 0x3f800000};
    for (isize i = 0; i < bytes; i += 8) {
        uint64_t v = next_random();
        if (form == 1) v = v % 4;                                                    /* small int64 */
        if (form == 2) v &= 0x0000000700000007;                                      /* small int32 */
        if (form == 3) v = (v & 0x80ffffff80ffffff) | 0x3f0000003f000000;            /* floats around 1 */
        if (form == 4) v = floats[v % 8] | (uint64_t)floats[v / 8 % 8] << 32;
        memcpy(b + i, &v, (size_t)min_size(8, bytes - i));
    }
}

/* ---- mutations -------------------------------------------------------------------------------------------------------- */

static void add_word(draft *d, int64_t word) {
    if (d->count == d->room) {
        d->room = 2 * d->room + 64;
        d->word = (int64_t *)realloc(d->word, (size_t)d->room * sizeof word);
        if (!d->word) abort();
    }
    d->word[d->count++] = word;
}

static void add_words(draft *d, const int64_t *words, isize count) {
    for (isize i = 0; i < count; i++) add_word(d, words[i]);
}

/* The first word of step k of a sound plan. */
static const int64_t *step_at(const seed *s, isize k) {
    const int64_t *step = s->plan + 3 + 3 * s->plan[1];
    for (; k > 0; k--) step += step[1];
    return step;
}

/* Whether word i of a step is the index of a value: 'r', 'm' or 'w', or 0. */
static char field_form(const int64_t *step, isize i) {
    isize at = 2;
    for (const char *f = all[step[0]].fields; *f; f++)
        if (f[1] == ':' && at++ == i) return *f == 'n' ? 0 : *f;
    return i < 2 ? 0 : 'r';
}

/* Gives every value of the workspace memory of its own, so that the sanitizer sees where it ends. With step >= 0, keeps that
   step only, and makes what it reads an input. */
static void take_apart(draft *d, const seed *s, isize only) {
    const isize values = (isize)s->plan[1];
    add_words(d, s->plan, 3 + 3 * values);
    int64_t *value = d->word + 3, outputs = 0, inputs = 0;
    for (isize i = 0; i < values; i++)
        if (value[3 * i] == OUTPUT) outputs = max_size((isize)outputs, (isize)value[3 * i + 1] + 1);
    for (isize i = 0; i < values; i++) {
        if (value[3 * i] == INPUT) inputs = max_size((isize)inputs, (isize)value[3 * i + 1] + 1);
        if (value[3 * i] == WORKSPACE && outputs < values) value[3 * i] = OUTPUT, value[3 * i + 1] = outputs++;
    }
    if (only < 0) {
        const int64_t *from = s->plan + 3 + 3 * values;
        add_words(d, from, s->words - (isize)(from - s->plan));
        return;
    }
    const int64_t *step = step_at(s, only);
    d->word[2] = 1;
    for (isize i = 2; i < step[1]; i++) {
        const char form = field_form(step, i);
        int64_t *v = form && step[i] >= 0 ? d->word + 3 + 3 * step[i] : NULL;
        if (v && form != 'w' && *v == OUTPUT) v[0] = INPUT, v[1] = inputs++;
    }
    add_words(d, step, (isize)step[1]);
}

static void mutate_word(draft *d) {
    const isize at = below(d->count);
    const int64_t old = d->word[at], to = one_in(6) ? d->word[below(d->count)] : hostile_number(old);
    if (!one_in(3)) {
        d->word[at] = to;
        return;
    }
    for (isize i = 3; i < d->count; i++) /* the same size wherever it stands */
        if (d->word[i] == old) d->word[i] = to;
}

/* Makes values large, so that sizes beyond those of the program fit. */
static void enlarge(draft *d) {
    for (isize i = 0; i < d->word[1] && 3 + 3 * i + 2 < d->count; i++)
        if (d->word[3 + 3 * i] != CONSTANT) d->word[3 + 3 * i + 2] = min_size((isize)d->word[3 + 3 * i + 2], 1 << 18) * 5 + 64;
}

/* Copies, swaps or drops words. */
static void mutate_order(draft *d) {
    const isize a = below(d->count), b = below(d->count), n = min_size(below(32), d->count - max_size(a, b));
    switch (below(4)) {
        case 0: d->count = a; break;
        case 1: memmove(d->word + a, d->word + b, (size_t)n * sizeof *d->word); break;
        case 2: add_word(d, hostile_number(0)); break;
        default: {
            const int64_t t = d->word[a];
            d->word[a] = d->word[b], d->word[b] = t;
        }
    }
}

static void mutate(draft *d) {
    if (one_in(3)) enlarge(d);
    const isize steps = 3 + 3 * (isize)d->word[1];
    for (isize i = one_in(12) ? 0 : 1 + below(one_in(4) ? 12 : 3); i > 0 && d->count; i--) {
        if (one_in(20))
            mutate_order(d);
        else if (!one_in(6) && d->count > steps + 2) { /* a field of a step */
            draft tail = {d->word + steps, d->count - steps, 0};
            if (one_in(5))
                tail.word[below(tail.count)] = below(steps / 3);
            else
                mutate_word(&tail);
        } else
            mutate_word(d);
    }
}

/* ---- runs ------------------------------------------------------------------------------------------------------------- */

/* Memory of exactly these bytes. */
static void *memory(isize bytes) {
    void *made = NULL;
    if (posix_memalign(&made, ALIGNMENT, (size_t)max_size(bytes, 1))) abort();
    return made;
}

/* Makes the arrays of a call; returns 0 where they are too large. */
static int make_arrays(const plan *p, enum storage storage, void **arrays, isize count) {
    isize total = 0;
    for (isize i = 0; i < count; i++) {
        const isize bytes = interface_bytes(p, storage, i);
        if (bytes > MOST_BYTES || (total += bytes) > MOST_BYTES) return 0;
        arrays[i] = memory(bytes);
        fill_random(arrays[i], bytes);
    }
    return 1;
}

/* Runs all steps. What the caller would compute stays as random as it is. */
static void run_whole(const plan *p, isize steps, int threads, uint8_t *workspace, void **in, void **out) {
    char reason[REASON];
    for (isize at = 0; at >= 0 && at < steps; at++)
        if ((at = run_plan(p, at, workspace, in, out, threads, NULL, reason)) < 0) return;
}

static void run_opened(const plan *p, isize steps, int threads, counters *seen) {
    static void *in[MOST_INTERFACE], *out[MOST_INTERFACE];
    const isize inputs = interface_count(p, INPUT), outputs = interface_count(p, OUTPUT), bytes = workspace_bytes(p, threads);
    if (inputs > MOST_INTERFACE || outputs > MOST_INTERFACE || bytes < 0 || bytes > MOST_BYTES) {
        seen->large++;
        return;
    }
    memset(in, 0, sizeof in), memset(out, 0, sizeof out);
    if (make_arrays(p, INPUT, in, inputs) && make_arrays(p, OUTPUT, out, outputs)) {
        uint8_t *workspace = (uint8_t *)memory(bytes);
        fill_random(workspace, bytes);
        run_whole(p, steps, threads, workspace, in, out);
        free(workspace);
        seen->ran++;
    } else
        seen->large++;
    for (isize i = 0; i < inputs; i++) free(in[i]);
    for (isize i = 0; i < outputs; i++) free(out[i]);
}

static void open_and_run(model *m, const draft *d, int threads, counters *seen) {
    char reason[REASON];
    int64_t *words = (int64_t *)memory(d->count * (isize)sizeof *words);
    memcpy(words, d->word, (size_t)d->count * sizeof *words);
    plan *p = open_plan(m, words, d->count, reason);
    free(words);
    if (p)
        run_opened(p, (isize)d->word[2], threads, seen);
    else
        seen->refused++;
    close_plan(p);
}

static model *make_model(const seed *s, void **owned) {
    model *m = open_model();
    for (isize i = 0; i < s->constants; i++) {
        const isize bytes = (isize)s->constant[i][0];
        owned[i] = memory(bytes);
        memcpy(owned[i], s->constant[i] + 1, (size_t)bytes);
        if (one_in(12)) fill_random(owned[i], bytes);
        if (bytes && one_in(12)) fill_random((uint8_t *)owned[i] + below(bytes), 1);
        if (!m || add_constant(m, owned[i], one_in(40) ? below(bytes + 1) : bytes) != i) abort();
    }
    return m;
}

static void run_case(const seed *seeds, isize count, isize index, int threads, counters *seen) {
    state = (uint64_t)index * 0xd1342543de82ef95u;
    const seed *s = &seeds[below(count)];
    void **owned = (void **)calloc((size_t)s->constants + 1, sizeof *owned);
    if (!owned) abort();
    model *m = make_model(s, owned);
    draft d = {NULL, 0, 0};
    const isize form = below(8);
    if (form == 0) /* two plans of one model share what they pack */
        add_words(&d, s->plan, s->words), open_and_run(m, &d, threads, seen);
    else
        take_apart(&d, s, form < 3 ? -1 : below((isize)s->plan[2]));
    mutate(&d);
    open_and_run(m, &d, threads, seen);
    free(d.word);
    close_model(m);
    for (isize i = 0; i < s->constants; i++) free(owned[i]);
    free(owned);
}

/* ---- children ----------------------------------------------------------------------------------------------------------- */

static void run_chunk(const seed *seeds, isize count, isize from, isize to, int threads, counters *seen) {
    const struct itimerval most = {{0, 0}, {MILLISECONDS / 1000, MILLISECONDS % 1000 * 1000}};
    for (seen->index = from; seen->index < to; seen->index++) {
        setitimer(ITIMER_PROF, &most, NULL);
        run_case(seeds, count, seen->index, threads, seen);
    }
}

static seed *read_seeds(const char *path, isize *count) {
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END)) return NULL;
    const long bytes = ftell(f);
    rewind(f);
    int64_t *word = (int64_t *)malloc((size_t)bytes + 8);
    if (!word || fread(word, 1, (size_t)bytes, f) != (size_t)bytes) return NULL;
    fclose(f);
    seed *found = NULL;
    *count = 0;
    for (const int64_t *at = word; at < word + bytes / 8;) {
        found = (seed *)realloc(found, (size_t)(*count + 1) * sizeof *found);
        if (!found) return NULL;
        seed *s = &found[(*count)++];
        s->constants = (isize)*at++;
        s->constant = (const int64_t **)calloc((size_t)s->constants + 1, sizeof *s->constant);
        if (!s->constant) return NULL;
        for (isize i = 0; i < s->constants; i++) s->constant[i] = at, at += 1 + ceil_div((isize)*at, 8);
        s->words = (isize)*at++, s->plan = at, at += s->words;
    }
    return found;
}

int main(int given, char **arg) {
    if (given != 5) return fprintf(stderr, "plan_fuzz SEEDS FIRST COUNT THREADS\n"), 2;
    isize count;
    const seed *seeds = read_seeds(arg[1], &count);
    if (!seeds) return fprintf(stderr, "no seeds in %s\n", arg[1]), 2;
    all = step_kinds(&kinds);
    const isize first = atol(arg[2]), end = first + atol(arg[3]);
    counters *seen = (counters *)mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (seen == MAP_FAILED) return 2;
    for (isize from = first; from < end && seen->faults < MOST_FAULTS; from = seen->index) {
        const pid_t child = fork();
        if (child == 0) {
            run_chunk(seeds, count, from, min_size(from + CHUNK, end), atoi(arg[4]), seen);
            _exit(0);
        }
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) < 0) return 2;
        if (!status) continue;
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGPROF)
            seen->slow++;
        else
            seen->faults++, fprintf(stderr, "FAULT in run %lld (status %d)\n", (long long)seen->index, status);
        seen->index++;
    }
    printf("{\"refused\": %lld, \"ran\": %lld, \"large\": %lld, \"slow\": %lld, \"faults\": %lld, \"next\": %lld}\n",
           (long long)seen->refused, (long long)seen->ran, (long long)seen->large, (long long)seen->slow,
           (long long)seen->faults, (long long)seen->index);
    return seen->faults > 0;
}
