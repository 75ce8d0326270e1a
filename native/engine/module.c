/* The module intact8.engines.native._library: models, plans and calls for Python. Its documentation stands in
   intact8/engines/native/_library.pyi. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "plan.h"
#include "tensor_memory.h"
#include "training.h"

#define MAX_TRAINING_WORDS 24 /* arguments of a pass of training */
#define FUNCTION(name) static PyObject *py_##name(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t count)

static PyObject *engine_error; /* intact8.errors.EngineError */

static int has_arguments(const char *name, Py_ssize_t given, Py_ssize_t wanted) {
    if (given == wanted) return 1;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, got %zd", name, wanted, given);
    return 0;
}

static void release_model(PyObject *capsule) { close_model(PyCapsule_GetPointer(capsule, "model")); }
static void release_plan(PyObject *capsule) { close_plan(PyCapsule_GetPointer(capsule, "plan")); }

FUNCTION(step_fields) {
    (void)args;
    if (!has_arguments("step_fields", count, 0)) return NULL;
    isize kinds;
    const step_kind *all = step_kinds(&kinds);
    PyObject *found = PyDict_New();
    for (isize i = 0; found && i < kinds; i++) {
        PyObject *fields = PyUnicode_FromString(all[i].fields);
        if (!fields || PyDict_SetItemString(found, all[i].name, fields)) Py_CLEAR(found);
        Py_XDECREF(fields);
    }
    return found;
}

FUNCTION(chain_operations) {
    (void)args;
    if (!has_arguments("chain_operations", count, 0)) return NULL;
    isize operations;
    const char *const *names = chain_operations(&operations);
    PyObject *found = PyList_New(0);
    for (isize i = 0; found && i < operations; i++) {
        PyObject *name = PyUnicode_FromString(names[i]);
        if (!name || PyList_Append(found, name)) Py_CLEAR(found);
        Py_XDECREF(name);
    }
    return found;
}

FUNCTION(instruction_set) {
    (void)args;
    if (!has_arguments("instruction_set", count, 0)) return NULL;
    return PyUnicode_FromString(isa_name(current_isa()));
}

FUNCTION(open_model) {
    (void)args;
    if (!has_arguments("open_model", count, 0)) return NULL;
    model *m = open_model();
    return m ? PyCapsule_New(m, "model", release_model) : PyErr_NoMemory();
}

/* add_constant(model, address, bytes) */
FUNCTION(add_constant) {
    if (!has_arguments("add_constant", count, 3)) return NULL;
    model *m = PyCapsule_GetPointer(args[0], "model");
    const void *at = m ? PyLong_AsVoidPtr(args[1]) : NULL;
    const Py_ssize_t bytes = PyLong_AsSsize_t(args[2]);
    if (PyErr_Occurred()) return NULL;
    const isize index = add_constant(m, at, bytes);
    return index < 0 ? PyErr_NoMemory() : PyLong_FromSsize_t(index);
}

/* open_plan(model, address of the words, number of the words) */
FUNCTION(open_plan) {
    if (!has_arguments("open_plan", count, 3)) return NULL;
    model *m = PyCapsule_GetPointer(args[0], "model");
    const int64_t *words = m ? PyLong_AsVoidPtr(args[1]) : NULL;
    const Py_ssize_t number = PyLong_AsSsize_t(args[2]);
    if (PyErr_Occurred()) return NULL;
    char reason[REASON];
    plan *p = open_plan(m, words, number, reason);
    if (p) return PyCapsule_New(p, "plan", release_plan);
    PyErr_SetString(engine_error, reason);
    return NULL;
}

/* workspace_bytes(plan, threads) */
FUNCTION(workspace_bytes) {
    if (!has_arguments("workspace_bytes", count, 2)) return NULL;
    const plan *p = PyCapsule_GetPointer(args[0], "plan");
    const long threads = PyLong_AsLong(args[1]);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(workspace_bytes(p, (int)threads));
}

/* value_offset(plan, value) */
FUNCTION(value_offset) {
    if (!has_arguments("value_offset", count, 2)) return NULL;
    const plan *p = PyCapsule_GetPointer(args[0], "plan");
    const value *v = p ? plan_value(p, PyLong_AsSsize_t(args[1])) : NULL;
    if (PyErr_Occurred()) return NULL;
    return PyLong_FromSsize_t(v && v->storage == WORKSPACE ? v->offset : -1);
}

/* What the capsule `__array_struct__` of an array holds: numpy's array interface. */
typedef struct {
    int two, rank;
    char kind;
    int element, flags;
    Py_intptr_t *shape, *strides;
    void *data;
} array_struct;

#define WRITEABLE 0x400

/* Reads the addresses of inputs or outputs, and checks that they are as large as the plan needs. */
static int read_interface(PyObject *const *arrays, isize number, const plan *p, enum storage storage, void **at) {
    for (isize i = 0; i < number; i++) {
        const array_struct *a = (const array_struct *)PyCapsule_GetPointer(arrays[i], NULL);
        isize bytes = a ? a->element : 0;
        for (int d = 0; a && d < a->rank; d++) bytes = checked_product(bytes, (isize)a->shape[d]);
        if (a) at[i] = a->data;
        const int fits = a && a->two == 2 && bytes >= interface_bytes(p, storage, i) && (storage == INPUT || a->flags & WRITEABLE);
        if (fits) continue;
        if (a) PyErr_Format(engine_error, "array %zd has %zd bytes, and the plan needs %zd", i, bytes, interface_bytes(p, storage, i));
        return 0;
    }
    return 1;
}

/* run(plan, from, workspace, its bytes, threads, seconds (address or 0), number of inputs, `__array_struct__` of an array, …) */
FUNCTION(run) {
    if (count < 7) return PyErr_SetString(PyExc_TypeError, "run takes seven arguments and arrays"), NULL;
    const plan *p = PyCapsule_GetPointer(args[0], "plan");
    const Py_ssize_t from = PyLong_AsSsize_t(args[1]), bytes = PyLong_AsSsize_t(args[3]);
    uint8_t *workspace = PyLong_AsVoidPtr(args[2]);
    const long threads = PyLong_AsLong(args[4]);
    double *seconds = PyLong_AsVoidPtr(args[5]);
    const Py_ssize_t inputs = PyLong_AsSsize_t(args[6]), outputs = count - 7 - inputs;
    if (PyErr_Occurred()) return NULL;
    if (inputs < 0 || outputs < 0 || from < 0 || threads < 1 || threads > MAX_THREADS ||
        bytes < workspace_bytes(p, (int)threads) || (uintptr_t)workspace % ALIGNMENT ||
        inputs < interface_count(p, INPUT) || outputs < interface_count(p, OUTPUT))
        return PyErr_SetString(engine_error, "a workspace or arrays that do not fit the plan"), NULL;
    void *few[64], **all = few;
    if (inputs + outputs > 64 && !(all = PyMem_Malloc((size_t)(inputs + outputs) * sizeof *all))) return PyErr_NoMemory();
    isize next = -1;
    char reason[REASON] = "";
    if (read_interface(args + 7, inputs, p, INPUT, all) && read_interface(args + 7 + inputs, outputs, p, OUTPUT, all + inputs)) {
        Py_BEGIN_ALLOW_THREADS
        next = run_plan(p, from, workspace, all, all + inputs, (int)threads, seconds, reason);
        Py_END_ALLOW_THREADS
        if (next < 0) PyErr_SetString(next == -OUTSIDE ? PyExc_IndexError : PyExc_FloatingPointError, reason);
    }
    if (all != few) PyMem_Free(all);
    return next < 0 ? NULL : PyLong_FromSsize_t(next);
}

/* train(name of the pass, threads, an int or a float for every word of its struct, …) */
FUNCTION(train) {
    if (count < 2 || count - 2 > MAX_TRAINING_WORDS || !PyUnicode_Check(args[0]))
        return PyErr_SetString(PyExc_TypeError, "train takes a name, threads and the words of the pass"), NULL;
    training_word words[MAX_TRAINING_WORDS];
    const long threads = PyLong_AsLong(args[1]);
    for (Py_ssize_t i = 2; i < count; i++) {
        if (PyFloat_Check(args[i])) words[i - 2].real = PyFloat_AsDouble(args[i]);
        else words[i - 2].number = PyLong_AsLongLong(args[i]);
    }
    PyObject *name = PyErr_Occurred() ? NULL : PyUnicode_AsUTF8String(args[0]);
    const char *text = name ? PyBytes_AsString(name) : NULL;
    int known = 0;
    if (text) {
        Py_BEGIN_ALLOW_THREADS
        known = run_training(text, words, count - 2, threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : (int)threads);
        Py_END_ALLOW_THREADS
        if (!known) PyErr_SetString(PyExc_TypeError, "no pass has that name and so many words");
    }
    Py_XDECREF(name);
    if (!known) return NULL;
    Py_RETURN_NONE;
}

static void drop_tensor(PyObject *capsule) { /* of a tensor that nobody took over */
    if (!PyCapsule_IsValid(capsule, "dltensor")) return;
    tensor *t = PyCapsule_GetPointer(capsule, "dltensor");
    t->release(t);
}

/* tensor(code of its type, bits of an element, its shape …) */
FUNCTION(tensor) {
    if (count < 2 || count - 2 > TENSOR_DIMENSIONS) return PyErr_SetString(PyExc_TypeError, "tensor takes a type and a shape"), NULL;
    int64_t shape[TENSOR_DIMENSIONS];
    const long code = PyLong_AsLong(args[0]), bits = PyLong_AsLong(args[1]);
    for (Py_ssize_t i = 2; i < count; i++) shape[i - 2] = PyLong_AsLongLong(args[i]);
    if (PyErr_Occurred()) return NULL;
    tensor *t = take_tensor((int)code, (int)bits, shape, (int)(count - 2));
    if (!t) return PyErr_NoMemory();
    PyObject *capsule = PyCapsule_New(&t->array, "dltensor", drop_tensor);
    if (!capsule) t->release(t);
    return capsule;
}

FUNCTION(release_tensors) {
    (void)args;
    if (!has_arguments("release_tensors", count, 0)) return NULL;
    release_tensors();
    Py_RETURN_NONE;
}

FUNCTION(use_team) {
    if (!has_arguments("use_team", count, 1)) return NULL;
    void *address = PyLong_AsVoidPtr(args[0]);
    if (!address && PyErr_Occurred()) return NULL;
    team_function given;
    memcpy(&given, &address, sizeof given); /* C has no cast from objects to functions */
    use_team(given);
    Py_RETURN_NONE;
}

#define METHOD(name) {#name, (PyCFunction)(void (*)(void))py_##name, METH_FASTCALL, "See _library.pyi."}

static PyMethodDef methods[] = {
    METHOD(step_fields), METHOD(chain_operations), METHOD(instruction_set), METHOD(open_model), METHOD(add_constant),
    METHOD(open_plan), METHOD(workspace_bytes),
    METHOD(value_offset), METHOD(run), METHOD(train), METHOD(use_team),
    METHOD(tensor), METHOD(release_tensors), {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_library", "The native engine's library.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__library(void) {
    PyObject *errors = PyImport_ImportModule("intact8.errors");
    if (!errors) return NULL;
    engine_error = PyObject_GetAttrString(errors, "EngineError");
    Py_DECREF(errors);
    PyObject *made = engine_error ? PyModule_Create(&definition) : NULL;
#ifdef Py_GIL_DISABLED /* models are filled under a lock of the runner's, and calls write to memory of their own */
    if (made) PyUnstable_Module_SetGIL(made, Py_MOD_GIL_NOT_USED);
#endif
    return made;
}
