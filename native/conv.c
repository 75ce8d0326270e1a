/* Which convolutions there are, how they are described, and the function of the module. */

#include "arguments.h"
#include "kernels.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "conv.h"

kernel conv_kernel(int dense) {
    const int able = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw");
    return force_portable || !able ? NULL : dense ? dense_kernel : depthwise_kernel;
}
#else
kernel conv_kernel(int dense) { return (void)dense, NULL; }
#endif

#define MAX_WINDOW 64 /* or stride or padding */
#define MAX_SIDE 65536
#define MAX_IMAGE_BYTES ((Py_ssize_t)1 << 40)
#define MAX_LINE_BYTES (INT_MAX - 64) /* of a padded row, in which windows begin at int32 offsets */

const char *describe_conv(conv_args *a, int dense, const Py_ssize_t size[4], const Py_ssize_t n[11]) {
    for (int i = 0; i < 6; i++)
        if (n[i] < (i < 4) || n[i] > MAX_WINDOW) return "windows of no such size";
    Py_ssize_t bytes = 1;
    for (int i = 0; i < 4; i++) {
        const Py_ssize_t most = i == 0 ? INT_MAX : i == 3 ? 1 << 24 : MAX_SIDE * 64;
        if (size[i] < (i > 0) || size[i] > most) return "images of no such size";
        bytes *= size[i] ? size[i] : 1;
        if (bytes > MAX_IMAGE_BYTES) return "images of no such size";
    }
    if (checked_product(size[2] + 2 * n[5], size[3]) > MAX_LINE_BYTES) return "images of no such size";
    if (size[1] + 2 * n[4] < n[0] || size[2] + 2 * n[5] < n[1]) return "windows that do not fit";
    if (!is_uint8_clamp(0, 0, n[6]) || !is_uint8_clamp(0, 0, n[7]) || !is_uint8_clamp(n[8], n[9], 0) || n[10] < 1 ||
        n[10] > 1 << 24)
        return "numbers that do not fit a byte";
    a->batch = size[0], a->height = size[1], a->width = size[2], a->channels = size[3];
    a->out_channels = dense ? n[10] : size[3], a->block_pixels = dense ? 1 : n[10];
    a->kernel_h = n[0], a->kernel_w = n[1], a->stride_h = n[2], a->stride_w = n[3], a->pad_h = n[4], a->pad_w = n[5];
    a->out_height = (a->height + 2 * a->pad_h - a->kernel_h) / a->stride_h + 1;
    a->out_width = (a->width + 2 * a->pad_w - a->kernel_w) / a->stride_w + 1;
    a->in_zero = (int)n[6], a->out_zero = (int)n[7], a->low = (int)n[8], a->high = (int)n[9];
    if (a->block_pixels > 1 && (ceil_div(a->out_channels * a->block_pixels, 64) != 1 || a->stride_w != 1))
        return "blocks that do not fit";
    const Py_ssize_t depth = a->kernel_h * a->kernel_w * (dense ? a->channels : 1), blocks = ceil_div(a->out_channels, 64);
    /* Where there are more weights than bytes of images, threads share the weights. */
    a->split_channels = dense && blocks >= 4 && a->out_channels * depth > a->batch * a->height * a->width * a->channels;
    const Py_ssize_t rows = a->batch * a->out_height;
    a->count = a->split_channels ? blocks : rows;
    const Py_ssize_t channels = a->split_channels ? checked_product(rows, 64) : a->out_channels;
    const Py_ssize_t work = checked_product(checked_product(channels, a->out_width), depth);
    a->work = work < 0 ? PY_SSIZE_T_MAX : work;
    return NULL;
}

packed_size packed_size_of(const conv_args *a, int dense) {
    const Py_ssize_t whole = a->out_channels * a->block_pixels / 64 * 64, last = a->out_channels * a->block_pixels - whole;
    const Py_ssize_t channels = whole + (dense && last <= 32 ? ceil_div(last, 16) * 16 : ceil_div(last, 64) * 64);
    const Py_ssize_t depth = dense ? a->kernel_h * ceil_div(a->kernel_w * a->channels, 4)
                                   : a->kernel_w * ceil_div(a->kernel_h, 4);
    return (packed_size){channels * depth * 4, channels};
}

FUNCTION(convolve) {
    arguments a;
    Py_ssize_t n[15]; /* four sizes, then the numbers */
    if (!parse_arguments(&a, "convolve", args, count, 22, 5)) return NULL;
    for (int i = 0; i < 15; i++) n[i] = int_at(&a, 7 + i);
    const int dense = a.value[5] != NULL;
    const kernel run = conv_kernel(dense);
    if (!run) {
        PyErr_SetString(PyExc_RuntimeError, "convolve: not for this CPU");
        return NULL;
    }
    volatile int out_of_memory = 0;
    conv_args given = {.x = a.value[0], .weight = a.value[1], .bias = a.value[2], .multiplier = a.value[3], .y = a.value[4],
                       .out_of_memory = &out_of_memory};
    const char *reason = describe_conv(&given, dense, n, n + 4);
    if (reason) {
        PyErr_Format(engine_error, "convolve: %s", reason);
        return NULL;
    }
    const packed_size packed = packed_size_of(&given, dense);
    const Py_ssize_t results = n[0] * given.out_height * given.out_width;
    if (!check_buffer(&a, 0, a.value[0], checked_product(n[0] * n[1], n[2] * n[3]), 1) ||
        !check_buffer(&a, 1, a.value[1], packed.weight, 1) || !check_buffer(&a, 2, a.value[2], packed.channels, 4) ||
        !check_buffer(&a, 3, a.value[3], packed.channels, 4) ||
        !check_buffer(&a, 4, a.value[4], checked_product(results, given.out_channels), 1))
        return NULL;
    PyObject *none = run_unlocked(run, &given, given.count, a.value[6] ? 0 : results * given.out_channels);
    if (!out_of_memory) return none;
    Py_DECREF(none);
    return PyErr_NoMemory();
}

FUNCTION(can_convolve) {
    arguments a;
    return parse_arguments(&a, "can_convolve", args, count, 0, 0) ? PyBool_FromLong(conv_kernel(1) != NULL) : NULL;
}
