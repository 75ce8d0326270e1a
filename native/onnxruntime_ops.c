/* Custom operators of ONNX Runtime, which run in that runtime's threads:

       Table         y = table[x] of bytes
       Multiply      products of uint8 tensors; a row of w may serve many rows of x
       Resize        linear resizing of images (N, H, W, C)
       Quantize      float32 to uint8
       QuantizeNhwc  the same with channels moved to the end: (N, C, H, W) to (N, H, W, C)
       Depthwise     depthwise convolutions of images (N, H, W, C)
       Dense         convolutions of images with one group

   Their kernels are those of kernels.h; intact8/engines/onnxruntime/custom_ops.py writes the nodes. The C interface of the
   runtime is a table of functions whose places never change ("OrtApi" of onnxruntime_c_api.h, here its version 18). The few
   functions that are needed are named here by their places, so that no header of the runtime is needed. */

#include "kernels.h"

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
#define MAX_RANK 16

/* What a thread takes at a time. */
#define ELEMENTS 32768
#define MIN_CONV_ROWS 16 /* the first row of every part costs more than the others */
#define DENSE_WORK (1 << 21) /* multiplications */
#define DEPTHWISE_WORK (1 << 18)

typedef void (*function)(void);
typedef const function *api;
typedef void *status; /* NULL for success */

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
    int64_t dims[MAX_RANK];
    int64_t count;
} tensor;

static status get_input(void *context, size_t index, tensor *t) {
    const void *value = NULL;
    void *shape = NULL;
    TRY(GET_INPUT(context, index, &value));
    TRY(TENSOR_DATA(value, &t->data));
    TRY(TYPE_AND_SHAPE(value, &shape));
    status failed = DIMENSIONS_COUNT(shape, &t->rank);
    if (!failed && t->rank > MAX_RANK) failed = CREATE_STATUS(INVALID, "more than 16 dimensions");
    if (!failed) failed = DIMENSIONS(shape, t->dims, t->rank);
    RELEASE_SHAPE(shape);
    t->count = 1;
    for (size_t i = 0; !failed && i < t->rank; i++) t->count *= t->dims[i];
    return failed;
}

static status make_output(void *context, const int64_t *dims, size_t rank, uint8_t **y) {
    void *value = NULL;
    TRY(GET_OUTPUT(context, 0, dims, rank, &value));
    return TENSOR_DATA(value, y);
}

/* Reads the last input, which is `count` constant int32 numbers. */
static status get_numbers(void *context, size_t index, int64_t count, const int32_t **numbers) {
    tensor t;
    TRY(get_input(context, index, &t));
    *numbers = (const int32_t *)t.data;
    return t.count == count ? NULL : CREATE_STATUS(INVALID, "another number of numbers");
}

typedef struct {
    kernel run;
    const void *args;
    size_t count, share;
} parallel_job;

static void run_part(void *given, size_t i) {
    const parallel_job *job = (const parallel_job *)given;
    const size_t lo = i * job->share, hi = lo + job->share < job->count ? lo + job->share : job->count;
    job->run(job->args, (Py_ssize_t)lo, (Py_ssize_t)hi);
}

/* Calls run for parts of 0 to count, `share` indices at a time. */
static status run_parallel(const void *context, kernel run, const void *args, int64_t count, int64_t share) {
    parallel_job job = {run, args, (size_t)count, (size_t)(share < 1 ? 1 : share)};
    if (job.count > job.share) return PARALLEL_FOR(context, run_part, (job.count + job.share - 1) / job.share, 0, &job);
    run(args, 0, (Py_ssize_t)count);
    return NULL;
}

/* ---- operators --------------------------------------------------------------------------------------------------- */

static status look_up(void *kernel, void *context) {
    (void)kernel;
    tensor x, table;
    lookup_args args;
    TRY(get_input(context, 0, &x));
    TRY(get_input(context, 1, &table));
    if (table.count != 256) return CREATE_STATUS(INVALID, "a table has 256 entries");
    TRY(make_output(context, x.dims, x.rank, &args.y));
    args.x = (const uint8_t *)x.data, args.table = (const uint8_t *)table.data;
    return run_parallel(context, lookup_kernel(), &args, x.count, ELEMENTS);
}

/* w has the shape of x, or one row of the last dimension for each index of the first. The numbers are the zero points of x,
   w and y, bits of the ratio, and limits. */
static status multiply(void *kernel, void *context) {
    (void)kernel;
    tensor x, w;
    const int32_t *n;
    TRY(get_input(context, 0, &x));
    TRY(get_input(context, 1, &w));
    TRY(get_numbers(context, 2, 6, &n));
    int same = x.rank == w.rank, rows = x.rank == w.rank && x.rank > 1;
    for (size_t i = 0; i < x.rank && i < w.rank; i++) {
        same &= w.dims[i] == x.dims[i];
        rows &= w.dims[i] == (i == 0 || i == x.rank - 1 ? x.dims[i] : 1);
    }
    if (!same && !rows) return CREATE_STATUS(INVALID, "shapes that do not fit");
    if (!is_uint8_clamp(n[4], n[5], n[2]) || !is_uint8_clamp(0, 0, n[0]) || !is_uint8_clamp(0, 0, n[1]))
        return CREATE_STATUS(INVALID, "numbers that do not fit a byte");
    const int64_t width = x.rank ? x.dims[x.rank - 1] : 1, count = width ? x.count / width : 0;
    multiply_args args = {(const uint8_t *)x.data, (const uint8_t *)w.data, NULL, (Py_ssize_t)width, 1, n[0], n[1], n[2],
                          bits_float(n[3]), (float)n[4], (float)n[5]};
    if (!same) args.repeat = (Py_ssize_t)(count && x.dims[0] ? count / x.dims[0] : 1);
    TRY(make_output(context, x.dims, x.rank, &args.y));
    return run_parallel(context, multiply_kernel(&args), &args, count, ELEMENTS / (width ? width : 1));
}

/* The inputs are x, three numbers for each row and each column of the results, and both denominators (resize_args). */
static status resize(void *state, void *context) {
    (void)state;
    tensor x, taps[2];
    const int32_t *n;
    TRY(get_input(context, 0, &x));
    for (size_t i = 0; i < 2; i++) {
        TRY(get_input(context, i + 1, taps + i));
        if (taps[i].rank != 2 || taps[i].dims[1] != 3) return CREATE_STATUS(INVALID, "not three numbers each");
    }
    TRY(get_numbers(context, 3, 2, &n));
    if (x.rank != 4) return CREATE_STATUS(INVALID, "not an image");
    const int64_t dims[4] = {x.dims[0], taps[0].dims[0], taps[1].dims[0], x.dims[3]};
    resize_args args = {x.data, NULL, taps[0].data, taps[1].data, (Py_ssize_t)x.dims[1], (Py_ssize_t)x.dims[2],
                        (Py_ssize_t)dims[3], (Py_ssize_t)dims[1], (Py_ssize_t)dims[2], n[0], n[1]};
    const kernel run = resize_kernel(&args);
    if (!run) return CREATE_STATUS(INVALID, "indices or weights that do not fit");
    TRY(make_output(context, dims, 4, &args.y));
    return run_parallel(context, run, &args, dims[0] * dims[1], ELEMENTS / (dims[2] * dims[3] + 1));
}

/* Reads x and the numbers: bits of the divisor, limits, zero point. */
static status get_quantize_args(void *context, tensor *x, quantize_args *args, volatile int *nan) {
    const int32_t *n;
    TRY(get_input(context, 0, x));
    TRY(get_numbers(context, 1, 4, &n));
    if (!is_uint8_clamp(n[1], n[2], n[3])) return CREATE_STATUS(INVALID, "numbers that do not fit a byte");
    const quantize_args made = {(const float *)x->data, NULL, bits_float(n[0]), (float)n[1], (float)n[2], n[3], 1, nan};
    *args = made;
    return NULL;
}

static status refuse_nan(const volatile int *nan) {
    return *nan ? CREATE_STATUS(INVALID, "x holds NaN, for which no integer exists") : NULL;
}

static status quantize(void *kernel, void *context) {
    (void)kernel;
    tensor x;
    volatile int nan = 0;
    quantize_args args;
    TRY(get_quantize_args(context, &x, &args, &nan));
    TRY(make_output(context, x.dims, x.rank, &args.y));
    TRY(run_parallel(context, quantize_kernel, &args, x.count, ELEMENTS));
    return refuse_nan(&nan);
}

static status quantize_nhwc(void *kernel, void *context) {
    (void)kernel;
    tensor x;
    volatile int nan = 0;
    quantize_nhwc_args args;
    TRY(get_quantize_args(context, &x, &args.q, &nan));
    if (x.rank != 4) return CREATE_STATUS(INVALID, "not an image");
    const int64_t dims[4] = {x.dims[0], x.dims[2], x.dims[3], x.dims[1]};
    args.channels = (Py_ssize_t)x.dims[1], args.pixels = (Py_ssize_t)(x.dims[2] * x.dims[3]);
    args.blocks = ceil_div(args.pixels, BLOCK);
    TRY(make_output(context, dims, 4, &args.q.y));
    TRY(run_parallel(context, quantize_nhwc_kernel, &args, x.dims[0] * args.blocks, ELEMENTS / (args.channels * BLOCK + 1)));
    return refuse_nan(&nan);
}

/* The inputs are x, packed weights, initial accumulators and multipliers, and the 11 numbers of packed_conv.py. */
static status convolve(void *context, int dense) {
    tensor x, packed[3];
    const int32_t *given;
    Py_ssize_t size[4], n[11];
    const kernel run = conv_kernel(dense);
    if (!run) return CREATE_STATUS(INVALID, "not for this CPU");
    TRY(get_input(context, 0, &x));
    for (size_t i = 0; i < 3; i++) TRY(get_input(context, i + 1, packed + i));
    TRY(get_numbers(context, 4, 11, &given));
    for (int i = 0; i < 11; i++) n[i] = given[i];
    if (x.rank != 4) return CREATE_STATUS(INVALID, "not an image");
    for (int i = 0; i < 4; i++) size[i] = (Py_ssize_t)x.dims[i];
    volatile int out_of_memory = 0;
    conv_args args = {.x = x.data, .weight = packed[0].data, .bias = packed[1].data, .multiplier = packed[2].data,
                      .out_of_memory = &out_of_memory};
    const char *reason = describe_conv(&args, dense, size, n);
    if (reason) return CREATE_STATUS(INVALID, reason);
    const packed_size want = packed_size_of(&args, dense);
    if (packed[0].count != want.weight || packed[1].count != want.channels || packed[2].count != want.channels)
        return CREATE_STATUS(INVALID, "weights that do not fit");
    const int64_t dims[4] = {size[0], args.out_height, args.out_width, args.out_channels};
    TRY(make_output(context, dims, 4, &args.y));
    const int64_t share = (dense ? DENSE_WORK : DEPTHWISE_WORK) / max_size(args.work, 1);
    const int64_t least = args.split_channels ? 1 : MIN_CONV_ROWS;
    TRY(run_parallel(context, run, &args, args.count, share < least ? least : share));
    return out_of_memory ? CREATE_STATUS(INVALID, "no memory for rows of an image") : NULL;
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
    /* of this file */
    const char *own_name;
    const char *own_inputs; /* a letter for each: b uint8, s int8, f float, i int32 */
} operator;

static int first[1] = {0}; /* output 0 may take the memory of input 0; its address also stands for a kernel's state */

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
    OPERATOR("Resize", "biii", resize, NULL, NULL),
    OPERATOR("Quantize", "fi", quantize, NULL, NULL),
    OPERATOR("QuantizeNhwc", "fi", quantize_nhwc, NULL, NULL),
    OPERATOR("Depthwise", "bsifi", depthwise, NULL, NULL),
    OPERATOR("Dense", "bsifi", dense, NULL, NULL),
};

/* ONNX Runtime calls this when a session registers the library. A version older than 18 gets no operators. */
EXPORTED status RegisterCustomOps(void *options, const void *base) {
    static void *domain; /* outlives all sessions */
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
