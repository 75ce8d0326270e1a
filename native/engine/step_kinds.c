/* The table of all kinds of steps, and the instruction sets of this CPU. */

#include "plan.h"

#include <stdlib.h>

#define DECLARE(kind)                                        \
    HIDDEN int check_##kind(checker *c, const int64_t *step); \
    HIDDEN void run_##kind(frame *f, const int64_t *step, void *prepared);
STEP_KINDS(DECLARE)

int check_call(checker *c, const int64_t *step) { return (void)c, (void)step, 1; }

#define READ_FIELD(name) "r:" #name " "
#define MAYBE_FIELD(name) "m:" #name " "
#define WRITE_FIELD(name) "w:" #name " "
#define NUMBER_FIELD(name) "n:" #name " "
#define KIND(kind) \
    {#kind, FIELDS_##kind(READ_FIELD, MAYBE_FIELD, WRITE_FIELD, NUMBER_FIELD), check_##kind, run_##kind},

/* The caller computes `call`. */
#define run_call NULL

static const step_kind kinds[] = {STEP_KINDS(KIND)};

const step_kind *step_kinds(isize *count) {
    *count = (isize)(sizeof kinds / sizeof *kinds);
    return kinds;
}

static enum isa best_isa(void) {
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return AVX512_VNNI;
    if (__builtin_cpu_supports("avx2")) return AVX2;
#elif defined(__aarch64__)
    return NEON;
#endif
    return PLAIN;
}

static const char *const isa_names[] = {"plain", "avx2", "avx_vnni", "avx512_vnni", "neon", "neon_dot", "neon_i8mm"};

const char *isa_name(enum isa isa) { return isa_names[isa]; }

enum isa current_isa(void) {
    static int chosen = -1;
    if (chosen < 0) {
        const enum isa best = best_isa();
        const char *limit = getenv("INTACT8_ISA");
        int isa = (int)best;
        for (int i = 0; limit && i <= NEON_I8MM; i++)
            if (!strcmp(limit, isa_names[i]) && (i == PLAIN || (i < isa && (i >= NEON) == (isa >= NEON)))) isa = i;
        chosen = isa;
    }
    return (enum isa)chosen;
}
