/* intact8 without Python: run a quantized network from C.

   A program file that was saved with `program.save("net.safetensors", plan=True)` holds, beside the network, the plan by
   which the native engine executes it for one sample. This library reads it, checks every size and offset in it, and gives
   the integers that every other engine gives.

       intact8_program *net = intact8_open("net.safetensors");
       if (!net) return fprintf(stderr, "%s\n", intact8_error()), 1;
       intact8_runner *runner = intact8_prepare(net, 1);
       const void *inputs[] = {image};
       void *outputs[] = {scores};
       if (!runner || !intact8_run(runner, inputs, outputs)) return fprintf(stderr, "%s\n", intact8_error()), 1;
       intact8_release(runner);
       intact8_close(net);

   Build: `make libintact8`, then `cc program.c -lintact8`. Needs a C library and threads, nothing else. */

#ifndef INTACT8_H
#define INTACT8_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define INTACT8_API __declspec(dllexport)
#elif defined(__GNUC__)
#define INTACT8_API __attribute__((visibility("default")))
#else
#define INTACT8_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct intact8_program intact8_program; /* a network: constants and plans, not changed by runs */
typedef struct intact8_runner intact8_runner;   /* memory of one call */

/* An input or output: an array in C order, in the dimensions of the model. */
typedef struct {
    const char *name;
    const char *dtype; /* as numpy names it: "float32", "uint8", "int64", "bool" … */
    int rank;
    int64_t sizes[8];
    size_t bytes;
} intact8_array;

typedef struct {
    int inputs, outputs;
    const intact8_array *input, *output; /* so many of each; they live as long as the program */
} intact8_interface;

/* Reads a program file; NULL where it cannot be read, is damaged (its SHA-256 is checked), or has no plan of this version
   of the library. Its constants stay in memory until intact8_close. */
INTACT8_API intact8_program *intact8_open(const char *path);

/* Returns what a call is given and gives: of the first plan, or of any. Plans have the order in which they were asked for
   when the program was saved; one that is not there has no inputs and outputs. */
INTACT8_API intact8_interface intact8_describe(const intact8_program *program);
INTACT8_API intact8_interface intact8_describe_plan(const intact8_program *program, int plan);
INTACT8_API int intact8_plan_count(const intact8_program *program);

/* Makes ready to run with up to `threads` threads: allocates all memory that runs need. NULL where there is not so much.
   Runners of one program may run at the same time in threads of the caller's; one runner runs one call at a time. Plans of
   one program share its weights. */
INTACT8_API intact8_runner *intact8_prepare(const intact8_program *program, int threads); /* the first plan */
INTACT8_API intact8_runner *intact8_prepare_plan(const intact8_program *program, int plan, int threads);

/* Runs: reads every input, writes every output, allocates nothing. Returns 1; or 0 where an integer input is an index
   outside of its table. The result does not depend on threads or on the CPU. */
INTACT8_API int intact8_run(intact8_runner *runner, const void *const *inputs, void *const *outputs);

INTACT8_API void intact8_release(intact8_runner *runner); /* NULL is allowed */
INTACT8_API void intact8_close(intact8_program *program); /* when its runners are released; NULL is allowed */

/* Returns why the last call of this thread failed, in a sentence. */
INTACT8_API const char *intact8_error(void);

#ifdef __cplusplus
}
#endif

#endif
