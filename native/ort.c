/* Operators inside ONNX Runtime, in that runtime's threads:

       Table       y = table[x] of bytes
       Multiply    products of bytes, one row of w for many of x
       Quantize    bytes of float32
       Interleave  the same, and channels become last: (N, C, H, W) to (N, H, W, C)
       Depthwise   depthwise convolutions of images (N, H, W, C)
       Dense       other convolutions of images

   Their bodies are those of native.h; intact8/export/onnx_own.py writes the nodes. The runtime's C interface is a table
   of functions whose places never change ("OrtApi" of onnxruntime_c_api.h, here as of its version 18); the few that are
   needed are named by their places, so that no header of it is needed. */

#include "native.h"

#include <limits.h>

#if defined(_WIN32)
#define EXPORTED __declspec(dllexport)
#else
#define EXPORTED __attribute__((visibility("default")))
#endif
#define VERSION 18
#define FLOAT 1 /* ONNX_TENSOR_ELEMENT_DATA_TYPE_ */
#define UINT8 2
#define INT8 3
#define INT32 6
#define INVALID 2     /* ORT_INVALID_ARGUMENT */
#define SHARE 32768   /* elements a thread takes at a time */
#define ROWS 16       /* rows of convolutions, each thread's first of which costs more */
#define DENSE (1 << 21)     /* multiplications of convolutions */
#define DEPTHWISE (1 << 18)
#define MOST_DIMS 16

typedef void (*function)(void);
typedef const function *api;
typedef void *status; /* NULL where all went well */

static api ort;

#define CREATE_STATUS ((status(*)(int, const char *))ort[0])
#define CREATE_DOMAIN ((status(*)(const char *, void **))ort[26])
#define DOMAIN_ADD ((status(*)(void *, const void *))ort[27])
#define ADD_DOMAIN ((status(*)(void *, void *))ort[28])
#define TENSOR_DATA ((status(*)(const void *, void *))ort[51])
#define DIMENSIONS_COUNT ((status(*)(const void *, size_t *))ort[61])
#define DIMENSIONS ((status(*)(const void *, int64_t *, size_t))ort[62])
#define TYPE_AND_SHAPE ((status(*)(const void *, void **))ort[65])
#define GET_INPUT ((status(*)(const void *, size_t, const void **))ort[90])
#define GET_OUTPUT ((status(*)(void *, size_t, const int64_t *, size_t, void **))ort[91])
#define RELEASE_SHAPE ((void (*)(void *))ort[99])
#define PARALLEL_FOR ((status(*)(const void *, void (*)(void *, size_t), size_t, size_t, void *))ort[274])

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        const status failed = (call);                                                                                  \
        if (failed) return failed;                                                                                     \
    } while (0)

/* ---- tensors and threads ----------------------------------------------------------------------------------------- */

typedef struct {
    const void *data;
    size_t rank;
    int64_t dims[MOST_DIMS];
    int64_t count;
} tensor;

static status take(void *context, size_t index, tensor *t) {
    const void *value = NULL;
    void *shape = NULL;
    TRY(GET_INPUT(context, index, &value));
    TRY(TENSOR_DATA(value, &t->data));
    TRY(TYPE_AND_SHAPE(value, &shape));
    status failed = DIMENSIONS_COUNT(shape, &t->rank);
    if (!failed && t->rank > MOST_DIMS) failed = CREATE_STATUS(INVALID, "more than 16 dimensions");
    if (!failed) failed = DIMENSIONS(shape, t->dims, t->rank);
    RELEASE_SHAPE(shape);
    t->count = 1;
    for (size_t i = 0; !failed && i < t->rank; i++) t->count *= t->dims[i];
    return failed;
}

static status give(void *context, const int64_t *dims, size_t rank, uint8_t **y) {
    void *value = NULL;
    TRY(GET_OUTPUT(context, 0, dims, rank, &value));
    return TENSOR_DATA(value, y);
}

/* The last input: int32 numbers that do not change. */
static status take_numbers(void *context, size_t index, int64_t count, const int32_t **numbers) {
    tensor t;
    TRY(take(context, index, &t));
    *numbers = (const int32_t *)t.data;
    return t.count == count ? NULL : CREATE_STATUS(INVALID, "another number of numbers");
}

typedef struct {
    body run;
    const void *args;
    size_t count, share;
} work;

static void part(void *given, size_t i) {
    const work *w = (const work *)given;
    const size_t lo = i * w->share, hi = lo + w->share < w->count ? lo + w->share : w->count;
    w->run(w->args, (Py_ssize_t)lo, (Py_ssize_t)hi);
}

/* run(args, lo, hi) for 0 <= lo < hi <= count, `share` at a time. */
static status divided(const void *context, body run, const void *args, int64_t count, int64_t share) {
    work w = {run, args, (size_t)count, (size_t)(share < 1 ? 1 : share)};
    if (w.count > w.share) return PARALLEL_FOR(context, part, (w.count + w.share - 1) / w.share, 0, &w);
    run(args, 0, (Py_ssize_t)count);
    return NULL;
}

/* ---- operators --------------------------------------------------------------------------------------------------- */

static status look_up(void *kernel, void *context) {
    (void)kernel;
    tensor x, table;
    table_args args;
    TRY(take(context, 0, &x));
    TRY(take(context, 1, &table));
    if (table.count != 256) return CREATE_STATUS(INVALID, "a table has 256 entries");
    TRY(give(context, x.dims, x.rank, &args.y));
    args.x = (const uint8_t *)x.data, args.table = (const uint8_t *)table.data;
    return divided(context, prepare_table(), &args, x.count, SHARE);
}

/* w has the shape of x, or is one row of the last dimension for each index of the first. Numbers: zero points of x, w
   and y, bits of the ratio, limits. */
static status multiply(void *kernel, void *context) {
    (void)kernel;
    tensor x, w;
    const int32_t *n;
    TRY(take(context, 0, &x));
    TRY(take(context, 1, &w));
    TRY(take_numbers(context, 2, 6, &n));
    int same = x.rank == w.rank, rows = x.rank == w.rank && x.rank > 1;
    for (size_t i = 0; i < x.rank && i < w.rank; i++) {
        same &= w.dims[i] == x.dims[i];
        rows &= w.dims[i] == (i == 0 || i == x.rank - 1 ? x.dims[i] : 1);
    }
    if (!same && !rows) return CREATE_STATUS(INVALID, "shapes that do not fit");
    if (!are_bytes(n[4], n[5], n[2]) || !are_bytes(0, 0, n[0]) || !are_bytes(0, 0, n[1]))
        return CREATE_STATUS(INVALID, "numbers that are none of bytes");
    const int64_t width = x.rank ? x.dims[x.rank - 1] : 1, count = width ? x.count / width : 0;
    multiply_args args = {(const uint8_t *)x.data, (const uint8_t *)w.data, NULL, (Py_ssize_t)width, 1, n[0], n[1], n[2],
                          number(n[3]), (float)n[4], (float)n[5]};
    if (!same) args.repeat = (Py_ssize_t)(count && x.dims[0] ? count / x.dims[0] : 1);
    TRY(give(context, x.dims, x.rank, &args.y));
    return divided(context, prepare_multiply(&args), &args, count, SHARE / (width ? width : 1));
}

/* Numbers: bits of the divisor, limits, zero point. */
static status begin_quantizing(void *context, tensor *x, finish_args *args, volatile int *nan) {
    const int32_t *n;
    TRY(take(context, 0, x));
    TRY(take_numbers(context, 1, 4, &n));
    if (!are_bytes(n[1], n[2], n[3])) return CREATE_STATUS(INVALID, "numbers that are none of bytes");
    const finish_args made = {(const float *)x->data, NULL, number(n[0]), (float)n[1], (float)n[2], n[3], 1, nan};
    *args = made;
    return NULL;
}

static status not_a_number(const volatile int *nan) {
    return *nan ? CREATE_STATUS(INVALID, "x holds NaN, for which no integer exists") : NULL;
}

static status quantize(void *kernel, void *context) {
    (void)kernel;
    tensor x;
    volatile int nan = 0;
    finish_args args;
    TRY(begin_quantizing(context, &x, &args, &nan));
    TRY(give(context, x.dims, x.rank, &args.y));
    TRY(divided(context, finish_run, &args, x.count, SHARE));
    return not_a_number(&nan);
}

static status interleave(void *kernel, void *context) {
    (void)kernel;
    tensor x;
    volatile int nan = 0;
    interleave_args args;
    TRY(begin_quantizing(context, &x, &args.f, &nan));
    if (x.rank != 4) return CREATE_STATUS(INVALID, "no image");
    const int64_t dims[4] = {x.dims[0], x.dims[2], x.dims[3], x.dims[1]};
    args.channels = (Py_ssize_t)x.dims[1], args.pixels = (Py_ssize_t)(x.dims[2] * x.dims[3]);
    args.blocks = blocks_of(args.pixels);
    TRY(give(context, dims, 4, &args.f.y));
    TRY(divided(context, interleave_run, &args, x.dims[0] * args.blocks, SHARE / (args.channels * BLOCK + 1)));
    return not_a_number(&nan);
}

/* After x: weights, sums to begin with, ratios. Numbers: height and width of the window, strides, padding above and left
   (and as much below and right), zero points of x and y, limits, and the channels of y or pixels of a block. */
static status convolve(void *context, int dense) {
    tensor x, packed[3];
    const int32_t *given;
    Py_ssize_t size[4], n[11];
    const body run = prepare_convolution(dense);
    if (!run) return CREATE_STATUS(INVALID, "not for this CPU");
    TRY(take(context, 0, &x));
    for (size_t i = 0; i < 3; i++) TRY(take(context, i + 1, packed + i));
    TRY(take_numbers(context, 4, 11, &given));
    for (int i = 0; i < 11; i++) n[i] = given[i];
    if (x.rank != 4) return CREATE_STATUS(INVALID, "no image");
    for (int i = 0; i < 4; i++) size[i] = (Py_ssize_t)x.dims[i];
    volatile int no_memory = 0;
    convolution_args args;
    memset(&args, 0, sizeof args);
    args.x = (const uint8_t *)x.data, args.weight = (const int8_t *)packed[0].data;
    args.bias = (const int32_t *)packed[1].data, args.ratio = (const float *)packed[2].data, args.no_memory = &no_memory;
    const char *reason = describe_convolution(&args, dense, size, n);
    if (reason) return CREATE_STATUS(INVALID, reason);
    const packed_sizes sizes = sizes_of_packed(&args, dense);
    if (packed[0].count != sizes.weight || packed[1].count != sizes.results || packed[2].count != sizes.results)
        return CREATE_STATUS(INVALID, "weights that do not fit");
    const int64_t dims[4] = {size[0], args.rows, args.columns, args.results};
    TRY(give(context, dims, 4, &args.y));
    const int64_t share = (dense ? DENSE : DEPTHWISE) / (args.work ? args.work : 1), least = args.by_block ? 1 : ROWS;
    TRY(divided(context, run, &args, args.count, share < least ? least : share));
    return no_memory ? CREATE_STATUS(INVALID, "no memory for rows of an image") : NULL;
}

static status depthwise(void *kernel, void *context) { return (void)kernel, convolve(context, 0); }
static status dense(void *kernel, void *context) { return (void)kernel, convolve(context, 1); }

/* "OrtCustomOp" of version 18. */
typedef struct operator {
    uint32_t version;
    void *create_1;
    const char *(*name)(const struct operator *);
    const char *(*provider)(const struct operator *);
    int (*input_type)(const struct operator *, size_t);
    size_t (*inputs)(const struct operator *);
    int (*output_type)(const struct operator *, size_t);
    size_t (*outputs)(const struct operator *);
    void *compute_1;
    void (*destroy)(void *);
    int (*input_kind)(const struct operator *, size_t);
    int (*output_kind)(const struct operator *, size_t);
    int (*input_memory)(const struct operator *, size_t);
    void *variadic[4];
    status (*create)(const struct operator *, const void *, const void *, void **);
    status (*compute)(void *, void *);
    status (*infer)(const struct operator *, void *);
    int (*start)(const struct operator *);
    int (*end)(const struct operator *);
    size_t (*in_place)(int **, int **);
    void (*release_in_place)(int *, int *);
    void *alias[2];
    /* ours */
    const char *own_name;
    const char *own_inputs; /* a letter each: bytes, signed bytes, floats, integers */
} operator;

static int first[1] = {0}; /* output 0 may be written where input 0 was; and what stands for a kernel */

static const char *name(const operator *op) { return op->own_name; }
static const char *provider(const operator *op) { return (void)op, "CPUExecutionProvider"; }
static size_t inputs(const operator *op) { return strlen(op->own_inputs); }
static int input_type(const operator *op, size_t i) {
    const char letter = op->own_inputs[i];
    return letter == 'b' ? UINT8 : letter == 's' ? INT8 : letter == 'f' ? FLOAT : INT32;
}
static size_t outputs(const operator *op) { return (void)op, (size_t)1; }
static int output_type(const operator *op, size_t i) { return (void)op, (void)i, UINT8; }
static int zero(const operator *op, size_t i) { return (void)op, (void)i, 0; }
static int start(const operator *op) { return (void)op, 1; }
static int end(const operator *op) { return (void)op, INT_MAX; }
static size_t in_place(int **from, int **to) { return *from = first, *to = first, (size_t)1; }
static void release(int *from, int *to) { (void)from, (void)to; }
static void destroy(void *kernel) { (void)kernel; }

static status create(const operator *op, const void *a, const void *info, void **kernel) {
    (void)op, (void)a, (void)info;
    *kernel = first;
    return NULL;
}

#define OPERATOR(own_name, own_inputs, compute, in_place, release)                                                     \
    {VERSION, NULL,   name, provider, input_type, inputs, output_type, outputs, NULL, destroy, zero, zero,             \
     zero,    {NULL}, create, compute, NULL, start, end, in_place, release, {NULL}, own_name, own_inputs}

static const operator operators[] = {
    OPERATOR("Table", "bb", look_up, in_place, release),
    OPERATOR("Multiply", "bbi", multiply, in_place, release),
    OPERATOR("Quantize", "fi", quantize, NULL, NULL),
    OPERATOR("Interleave", "fi", interleave, NULL, NULL),
    OPERATOR("Depthwise", "bsifi", depthwise, NULL, NULL),
    OPERATOR("Dense", "bsifi", dense, NULL, NULL),
};

/* Called by ONNX Runtime when a session registers this library. A version older than 18 gets no operators. */
EXPORTED status RegisterCustomOps(void *options, const void *base) {
    static void *domain; /* must outlive all sessions */
    if (!domain) {
        ort = ((api(*const *)(uint32_t))base)[0](VERSION);
        if (!ort) return NULL;
        void *made = NULL;
        TRY(CREATE_DOMAIN("intact8", &made));
        for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) TRY(DOMAIN_ADD(made, &operators[i]));
        domain = made;
    }
    return ADD_DOMAIN(options, domain);
}
