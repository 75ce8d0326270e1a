/* Arguments of the module's functions: integers, then as many sizes in bytes as there are addresses among them.

   The caller answers for dtypes and lifetimes; these checks see to it that no kernel reads or writes beyond the sizes. */

#ifndef INTACT8_ARGUMENTS_H
#define INTACT8_ARGUMENTS_H

#include "native.h"

typedef struct {
    const char *name; /* of the function */
    void *value[28];
    Py_ssize_t bytes[12];
} arguments;

HIDDEN extern PyObject *engine_error; /* intact8.errors.EngineError */

/* Reads the arguments; returns 0 with TypeError set where their number or a type is wrong. */
HIDDEN int parse_arguments(arguments *a, const char *name, PyObject *const *args, Py_ssize_t given, Py_ssize_t integers,
                           Py_ssize_t buffers);

INLINE Py_ssize_t int_at(const arguments *a, int i) { return (Py_ssize_t)a->value[i]; }
INLINE float float_at(const arguments *a, int i) { return bits_float((int32_t)(intptr_t)a->value[i]); }

/* Returns 1 if `count` elements of `size` bytes fit in buffer `which` at address `at`; 0 with EngineError set otherwise. */
HIDDEN int check_buffer(const arguments *a, int which, const void *at, Py_ssize_t count, Py_ssize_t size);

/* Returns 1 if a clamp around a zero point lies in 0 to 255; 0 with EngineError set otherwise. */
HIDDEN int check_clamp(const arguments *a, Py_ssize_t low, Py_ssize_t high, Py_ssize_t zero);

/* Elements from the first to the last one of rows that lie `stride` apart; -1 on overflow. */
HIDDEN Py_ssize_t strided_extent(Py_ssize_t rows, Py_ssize_t stride, Py_ssize_t width);

/* parallel_for without the interpreter's lock; returns None. */
HIDDEN PyObject *run_unlocked(kernel run, const void *args, Py_ssize_t count, Py_ssize_t work);

/* Declares a function of the module. Its documentation stands in intact8/engines/_native.pyi. */
#define FUNCTION(name) PyObject *py_##name(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t count)

#endif
