/* The table of all kinds of steps, and the instruction sets of this CPU. */

#if !defined(_DEFAULT_SOURCE)
#define _DEFAULT_SOURCE /* for syscall() */
#endif
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

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "amx.h"

#include <cpuid.h>

static int has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

int has_avx_vnni(void) {
    unsigned a, b, c, d;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 4 & 1;
}

#if HAS_AMX_KERNELS
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA 18

/* Whether the CPU has AMX for integers, and Linux lets this process use it, which has to be asked for: the state of a thread
   is 8 KiB more then. It is refused where a signal's stack is too small for that, and in some sandboxes. */
static int has_amx(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d >> 24 & 3) != 3) return 0;
    if (!__get_cpuid_count(1, 0, &a, &b, &c, &d) || !(c >> 27 & 1)) return 0;
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low >> 17 & 3) == 3 && !syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA);
}
#else
static int has_amx(void) { return 0; }
#endif

static int supports(enum isa isa) {
    const int avx512 = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512vl");
    return isa == PLAIN || (isa == AVX512_VNNI && avx512) || (isa == AVX_VNNI && (avx512 || has_avx_vnni())) ||
           (isa == AVX2 && has_avx2()) || (isa == AMX && avx512 && has_amx());
}
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

static int supports(enum isa isa) {
    const int dot = (getauxval(AT_HWCAP) >> 20 & 1) != 0, i8mm = (getauxval(AT_HWCAP2) >> 13 & 1) != 0;
    return isa == PLAIN || isa == NEON || (isa == NEON_DOT && dot) || (isa == NEON_I8MM && dot && i8mm);
}
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>

static int has(const char *feature) {
    int found = 0;
    size_t size = sizeof found;
    return !sysctlbyname(feature, &found, &size, NULL, 0) && found;
}

static int supports(enum isa isa) {
    const int dot = has("hw.optional.arm.FEAT_DotProd");
    return isa == PLAIN || isa == NEON || (isa == NEON_DOT && dot) ||
           (isa == NEON_I8MM && dot && has("hw.optional.arm.FEAT_I8MM"));
}
#else
static int supports(enum isa isa) { return isa == PLAIN; }
#endif

static const char *const isa_names[] = {"plain", "avx2", "avx_vnni", "avx512_vnni", "amx", "neon", "neon_dot", "neon_i8mm"};

const char *isa_name(enum isa isa) { return isa_names[isa]; }

enum isa current_isa(void) {
    static int chosen = -1;
    if (chosen < 0) {
        const char *wanted = getenv("INTACT8_ISA");
        int isa = NEON_I8MM;
        while (!supports((enum isa)isa)) isa--;
        for (int i = 0; wanted && i <= NEON_I8MM; i++)
            if (!strcmp(wanted, isa_names[i]) && supports((enum isa)i)) isa = i;
        chosen = isa;
    }
    return (enum isa)chosen;
}
