/* The module intact8.engines._native: its functions, what they share, and the threads of torch. */

#include "arguments.h"

#define MIN_PARALLEL_WORK (1 << 15) /* elements from which a second thread pays */

int force_portable;
PyObject *engine_error;

/* ---- threads ------------------------------------------------------------------------------------------------------ */

static void (*omp_parallel)(void (*)(void *), void *, unsigned, unsigned); /* GOMP_parallel */
static int (*thread_count)(void);
int (*thread_number)(void);
int (*max_threads)(void);

typedef struct {
    kernel run;
    const void *args;
    Py_ssize_t count;
} parallel_job;

static void run_part(void *given) {
    const parallel_job *job = (const parallel_job *)given;
    const Py_ssize_t threads = thread_count(), me = thread_number();
    job->run(job->args, job->count * me / threads, job->count * (me + 1) / threads);
}

void parallel_for(kernel run, const void *args, Py_ssize_t count, Py_ssize_t work) {
    if (!omp_parallel || count < 2 || work < MIN_PARALLEL_WORK || max_threads() < 2) {
        run(args, 0, count);
        return;
    }
    parallel_job job = {run, args, count};
    omp_parallel(run_part, &job, 0, 0);
}

static FUNCTION(use_threads) {
    arguments a;
    if (!parse_arguments(&a, "use_threads", args, count, 4, 0)) return NULL;
    memcpy(&omp_parallel, &a.value[0], sizeof(void *));
    memcpy(&thread_number, &a.value[1], sizeof(void *));
    memcpy(&thread_count, &a.value[2], sizeof(void *));
    memcpy(&max_threads, &a.value[3], sizeof(void *));
    Py_RETURN_NONE;
}

/* ---- arguments ---------------------------------------------------------------------------------------------------- */

int parse_arguments(arguments *a, const char *name, PyObject *const *args, Py_ssize_t given, Py_ssize_t integers,
                    Py_ssize_t buffers) {
    if (given != integers + buffers) {
        PyErr_Format(PyExc_TypeError, "%s takes %zd integers and %zd sizes, got %zd", name, integers, buffers, given);
        return 0;
    }
    a->name = name;
    for (Py_ssize_t i = 0; i < integers; i++) {
        a->value[i] = PyLong_AsVoidPtr(args[i]);
        if (!a->value[i] && PyErr_Occurred()) return 0;
    }
    for (Py_ssize_t i = 0; i < buffers; i++) {
        a->bytes[i] = PyLong_AsSsize_t(args[integers + i]);
        if (a->bytes[i] >= 0) continue;
        if (!PyErr_Occurred()) PyErr_Format(engine_error, "%s: a negative size", name);
        return 0;
    }
    return 1;
}

int check_buffer(const arguments *a, int which, const void *at, Py_ssize_t count, Py_ssize_t size) {
    const Py_ssize_t bytes = checked_product(count, size);
    if (bytes >= 0 && bytes <= a->bytes[which] && (at || !bytes)) return 1;
    PyErr_Format(engine_error, "%s: %zd elements of %zd bytes are not in memory %d of %zd bytes. Remedy: run with "
                 "engine='reference', and report this", a->name, count, size, which, a->bytes[which]);
    return 0;
}

int check_clamp(const arguments *a, Py_ssize_t low, Py_ssize_t high, Py_ssize_t zero) {
    if (is_uint8_clamp(low, high, zero)) return 1;
    PyErr_Format(engine_error, "%s: limits %zd to %zd around zero point %zd do not fit a byte", a->name, low, high, zero);
    return 0;
}

Py_ssize_t strided_extent(Py_ssize_t rows, Py_ssize_t stride, Py_ssize_t width) {
    const Py_ssize_t last = rows > 0 ? checked_product(rows - 1, stride) : rows;
    return last < 0 || width < 0 || last > PY_SSIZE_T_MAX - width ? -1 : rows ? last + width : 0;
}

PyObject *run_unlocked(kernel run, const void *args, Py_ssize_t count, Py_ssize_t work) {
    Py_BEGIN_ALLOW_THREADS
    parallel_for(run, args, count, work);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* ---- the module --------------------------------------------------------------------------------------------------- */

static FUNCTION(force_portable) {
    arguments a;
    if (!parse_arguments(&a, "force_portable", args, count, 1, 0)) return NULL;
    force_portable = int_at(&a, 0) != 0;
    Py_RETURN_NONE;
}

HIDDEN FUNCTION(quantize_rows);
HIDDEN FUNCTION(scale_rows);
HIDDEN FUNCTION(quantize);
HIDDEN FUNCTION(quantize_nhwc);
HIDDEN FUNCTION(dequantize);
HIDDEN FUNCTION(convolve);
HIDDEN FUNCTION(can_convolve);
HIDDEN FUNCTION(fused_stem);
HIDDEN FUNCTION(multiply);
HIDDEN FUNCTION(mean);
HIDDEN FUNCTION(resize);
HIDDEN FUNCTION(lookup);
HIDDEN FUNCTION(layer_norm);
HIDDEN FUNCTION(recurrent_layer);
HIDDEN FUNCTION(recurrent_step);
HIDDEN FUNCTION(attend);
HIDDEN FUNCTION(can_attend);

#define METHOD(name) {#name, (PyCFunction)(void (*)(void))py_##name, METH_FASTCALL, "See intact8/engines/_native.pyi."}

static PyMethodDef methods[] = {
    METHOD(use_threads), METHOD(force_portable),
    METHOD(quantize_rows), METHOD(scale_rows),
    METHOD(quantize), METHOD(quantize_nhwc), METHOD(dequantize),
    METHOD(convolve), METHOD(can_convolve), METHOD(fused_stem),
    METHOD(multiply), METHOD(mean), METHOD(resize), METHOD(lookup), METHOD(layer_norm),
    METHOD(recurrent_layer), METHOD(recurrent_step),
    METHOD(attend), METHOD(can_attend),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "Kernels that read and write memory once.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *errors = PyImport_ImportModule("intact8.errors");
    if (!errors) return NULL;
    engine_error = PyObject_GetAttrString(errors, "EngineError");
    Py_DECREF(errors);
    return engine_error ? PyModule_Create(&definition) : NULL;
}
