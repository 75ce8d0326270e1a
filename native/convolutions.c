/* Which convolutions there are, and what they are told. */

#include "native.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "convolutions.h"

body prepare_convolution(int dense) {
    const int able = !plain && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw");
    return !able ? NULL : dense ? dense_run : depthwise_run;
}
#else
body prepare_convolution(int dense) { return (void)dense, NULL; }
#endif

#define LARGEST_WINDOW 64 /* or stride or padding */
#define LARGEST_SIDE 65536
#define LARGEST_IMAGES ((Py_ssize_t)1 << 40) /* bytes */
#define LARGEST_LINE (INT_MAX - 64)           /* bytes of a padded row, in which windows begin at int32 places */

const char *describe_convolution(convolution_args *a, int dense, const Py_ssize_t size[4], const Py_ssize_t n[11]) {
    for (int i = 0; i < 6; i++)
        if (n[i] < (i < 4) || n[i] > LARGEST_WINDOW) return "windows of no such size";
    Py_ssize_t bytes = 1;
    for (int i = 0; i < 4; i++) {
        const Py_ssize_t most = i == 0 ? INT_MAX : i == 3 ? 1 << 24 : LARGEST_SIDE * 64;
        if (size[i] < (i > 0) || size[i] > most) return "images of no such size";
        bytes *= size[i] ? size[i] : 1;
        if (bytes > LARGEST_IMAGES) return "images of no such size";
    }
    if (times(size[2] + 2 * n[5], size[3]) > LARGEST_LINE) return "images of no such size";
    if (size[1] + 2 * n[4] < n[0] || size[2] + 2 * n[5] < n[1]) return "windows that do not fit";
    if (n[6] < 0 || n[6] > 255 || n[7] < 0 || n[7] > 255 || n[8] < 0 || n[8] > n[9] || n[9] > 255 || n[10] < 1 || n[10] > 1 << 24)
        return "numbers that are none of bytes";
    a->images = size[0], a->height = size[1], a->width = size[2], a->channels = size[3];
    a->results = dense ? n[10] : size[3], a->pixels = dense ? 1 : n[10];
    a->tall = n[0], a->wide = n[1], a->step_down = n[2], a->step_right = n[3], a->above = n[4], a->left = n[5];
    a->rows = (a->height + 2 * a->above - a->tall) / a->step_down + 1;
    a->columns = (a->width + 2 * a->left - a->wide) / a->step_right + 1;
    a->zero_x = (int)n[6], a->zero = (int)n[7], a->low = (int)n[8], a->high = (int)n[9];
    if (a->pixels > 1 && ((a->results * a->pixels + 63) / 64 != 1 || a->step_right != 1)) return "blocks that do not fit";
    const Py_ssize_t depth = a->tall * a->wide * (dense ? a->channels : 1), blocks = (a->results + 63) / 64;
    /* Where there are more weights than bytes of images, threads share the weights. */
    a->by_block = dense && blocks >= 4 && a->results * depth > a->images * a->height * a->width * a->channels;
    a->count = a->by_block ? blocks : a->images * a->rows;
    const Py_ssize_t work = times(times(a->by_block ? times(a->images * a->rows, 64) : a->results, a->columns), depth);
    a->work = work < 0 ? PY_SSIZE_T_MAX : work;
    return NULL;
}

packed_sizes sizes_of_packed(const convolution_args *a, int dense) {
    const Py_ssize_t whole = a->results * a->pixels / 64 * 64, last = a->results * a->pixels - whole;
    const Py_ssize_t results = whole + (dense && last <= 32 ? (last + 15) / 16 * 16 : (last + 63) / 64 * 64);
    const Py_ssize_t depth = dense ? a->tall * ((a->wide * a->channels + 3) / 4) : a->wide * ((a->tall + 3) / 4);
    const packed_sizes sizes = {results * depth * 4, results};
    return sizes;
}
