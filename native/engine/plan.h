/* A plan: a program for inputs of fixed shapes, as values (buffers of bytes) and steps that read and write them.

   A plan is given as an array of int64 words, whoever wrote it: `open_plan` checks every index, size and overflow, so that
   `run_plan` needs no checks. A hostile plan can be slow or compute nonsense, and is never unsound.

       words:  MAGIC, number of values, number of steps,
               for each value: storage, index (of a constant, an input or an output), bytes
               for each step: kind, number of its words (these two included), its fields as steps.h declares them, and then
               the indices of the values of its list */

#ifndef INTACT8_PLAN_H
#define INTACT8_PLAN_H

#include "core.h"
#include "steps.h"

#define PLAN_MAGIC 0x38746361746e69 /* "intact8" */
#define MAX_RANK 8
#define REASON 256 /* bytes of a message */
#define MAX_THREADS 256
#define MAX_BYTES ((int64_t)1 << 46) /* of a value; sums of so few of these cannot overflow */

enum storage { WORKSPACE, CONSTANT, INPUT, OUTPUT };

#define AS_FIELD(name) int64_t name;
#define AS_STRUCT(kind) \
    typedef struct { int64_t step_kind, words; FIELDS_##kind(AS_FIELD, AS_FIELD, AS_FIELD, AS_FIELD) } kind##_step;
STEP_KINDS(AS_STRUCT)
#undef AS_STRUCT
#undef AS_FIELD

typedef struct {
    int64_t storage, index, bytes;
    const void *constant; /* NULL where it is none */
    isize offset;       /* in the workspace */
    isize first, last;  /* steps that write or read it first and last */
} value;

typedef struct plan plan;

/* Why a step of a call fails: an index outside of its table, NaN or infinity in a recurrent layer. */
enum failure { OUTSIDE = 1, NOT_FINITE };

/* A call of a plan. Addresses of values are found by `at`. */
typedef struct {
    const plan *p;
    uint8_t *workspace;
    void *const *inputs, *const *outputs;
    int threads;
    volatile int failure; /* enum failure; 0 for none */
} frame;

/* What the check of a step is given, and what it finds. */
typedef struct {
    plan *p;
    isize index;      /* of the step */
    isize scratch;    /* bytes that each thread needs */
    void *prepared;   /* whatever the step needs in every call, made by `plan_memory` or shared by `shared_memory` */
    char reason[REASON];
} checker;

typedef struct {
    const char *name, *fields; /* "r:x w:y n:rows …": read, maybe (-1: none) read, written, number */
    int (*check)(checker *c, const int64_t *step); /* returns 0 with a reason */
    void (*run)(frame *f, const int64_t *step, void *prepared);
} step_kind;

/* ---- for the steps ------------------------------------------------------------------------------------------------ */

HIDDEN int refuse(checker *c, const char *format, ...);                          /* returns 0 */
HIDDEN int needs(checker *c, int64_t value, isize count, isize size, const char *what); /* whether a value is large enough */

/* Whether a clamp and the zero point in it are bytes. */
HIDDEN int check_clamp(checker *c, int64_t zero, int64_t low, int64_t high);

/* Whether a value has every element at `offset` + Σ i strides, of sizes from 1 on. */
HIDDEN int check_extent(checker *c, int64_t value, int64_t offset, const int64_t *sizes, const int64_t *strides, int64_t rank,
                        int64_t size, const char *what);

/* The same of a result: no two of its elements are the same memory, for threads write them side by side. */
HIDDEN int check_result(checker *c, int64_t value, int64_t offset, const int64_t *sizes, const int64_t *strides, int64_t rank,
                        int64_t size);
HIDDEN const int64_t *step_before(const checker *c, void **prepared);            /* and what its check prepared; NULL for the first */
HIDDEN void forget_value(checker *c, int64_t value); /* makes a value one that nobody has written or read yet */
HIDDEN const void *constant_at(const checker *c, int64_t value);                 /* the bytes of a constant; NULL for others */
HIDDEN isize value_bytes(const plan *p, int64_t value);
HIDDEN void *plan_memory(checker *c, isize bytes);                               /* zeroed, freed with the plan; NULL with a reason */

/* Memory shared between all plans of a model under a key: `bytes` zeroed bytes, and *fresh is 1 where the caller must fill
   them (once; nothing else runs then). */
HIDDEN void *shared_memory(checker *c, const void *key, isize variant, isize bytes, int *fresh);

/* Makes such memory unknown, where it could not be filled. */
HIDDEN void discard_memory(checker *c, const void *memory);

HIDDEN void *at(const frame *f, int64_t value); /* NULL for -1 */
HIDDEN const int64_t *list_of(const int64_t *step, isize *count);

/* A kernel computes the indices lo <= index < hi of what args describes; every thread brings scratch memory of its own. */
typedef void (*kernel)(const void *args, isize lo, isize hi, uint8_t *scratch);

/* Calls run for parts of 0 to count, in the threads of the call where there is enough work (roughly: bytes or 16 products). */
HIDDEN void parallel(const frame *f, kernel run, const void *args, isize count, isize work);

HIDDEN const step_kind *step_kinds(isize *count);
HIDDEN const char *const *chain_operations(isize *count); /* names, in the order of their numbers */

/* ---- for callers -------------------------------------------------------------------------------------------------- */

typedef struct model model; /* constants, and what plans packed of them */

HIDDEN model *open_model(void);
HIDDEN isize add_constant(model *m, const void *at, isize bytes); /* its index; -1 where there is no memory */
HIDDEN const void *model_constant(const model *m, int64_t index, int64_t bytes); /* NULL where it has not so many bytes */
HIDDEN model *retain_model(model *m);
HIDDEN void close_model(model *m); /* when no plan is left and it was released by its owner */

/* See `shared_memory`; NULL where there is not so much. */
HIDDEN void *model_memory(model *m, const void *key, isize variant, isize bytes, int *fresh);
HIDDEN void discard_model_memory(model *m, const void *memory);

/* Zeroed memory aligned to ALIGNMENT, at least `before` bytes behind *block, the address that is given to free(). */
HIDDEN void *aligned_memory(void **block, isize bytes, isize before);

/* Places the values in the workspace, the largest first; returns its bytes, or -1 where that is too much (placement.c). */
HIDDEN isize place_values(value *v, isize count);

HIDDEN plan *open_plan(model *m, const int64_t *words, isize count, char reason[REASON]); /* NULL with a reason */
HIDDEN void close_plan(plan *p);
HIDDEN isize workspace_bytes(const plan *p, int threads);
HIDDEN isize plan_values(const plan *p);
HIDDEN const value *plan_value(const plan *p, isize index);
HIDDEN isize interface_count(const plan *p, enum storage storage);              /* number of inputs or outputs */
HIDDEN isize interface_bytes(const plan *p, enum storage storage, isize index); /* of an input or output; 0 if not used */

/* Runs from step `from` on, until a step that the caller must compute (its index is returned), a failure (its
   number, negative), or the end
   (the number of steps). `workspace` is aligned to 64 bytes. With `seconds`, adds the time of every step to it. */
HIDDEN isize run_plan(const plan *p, isize from, uint8_t *workspace, void *const *inputs, void *const *outputs, int threads,
                      double *seconds, char reason[REASON]);

/* Instruction sets: what kernels may use. The environment variable INTACT8_ISA takes a lower one, for tests. */
enum isa { PLAIN, AVX2, AVX_VNNI, AVX512_VNNI, AMX, NEON, NEON_DOT, NEON_I8MM };
HIDDEN enum isa current_isa(void);
INLINE int has_avx512_vnni(void) { return current_isa() == AVX512_VNNI || current_isa() == AMX; }
HIDDEN const char *isa_name(enum isa isa);
HIDDEN int has_avx_vnni(void); /* whether the CPU has vpdpbusd outside of AVX-512 */

/* ---- threads (pool.c) --------------------------------------------------------------------------------------------- */

typedef void (*part_function)(void *job, int part, int thread);

/* Calls run(job, part, thread) once for every part, in the caller (thread 0) and up to threads - 1 workers. Where the pool
   is in use by another call, or cannot be started, the caller runs them all one after the other. */
HIDDEN void run_parts(part_function run, void *job, int parts, int threads);

/* Calls body(data) on every thread of a team, the caller among them: GOMP_parallel of OpenMP. */
typedef void (*team_function)(void (*body)(void *), void *data, unsigned threads, unsigned flags);

/* Calls run(job, part, 0) once for every part on the threads of the team that `use_team` was given last, or of the pool.
   Threads of OpenMP go on looking for work for milliseconds, on the processors that ours would need. */
HIDDEN void use_team(team_function given);
HIDDEN void run_parts_in_team(part_function run, void *job, int parts, int threads);

#endif
