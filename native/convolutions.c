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

void describe_convolution(convolution_args *a, int dense, const Py_ssize_t size[4], const Py_ssize_t n[11]) {
    a->images = size[0], a->height = size[1], a->width = size[2], a->channels = size[3];
    a->results = dense ? n[10] : size[3], a->pixels = dense ? 1 : n[10];
    a->tall = n[0], a->wide = n[1], a->step_down = n[2], a->step_right = n[3], a->above = n[4], a->left = n[5];
    a->rows = (a->height + 2 * a->above - a->tall) / a->step_down + 1;
    a->columns = (a->width + 2 * a->left - a->wide) / a->step_right + 1;
    a->zero_x = (int)n[6], a->zero = (int)n[7], a->low = (int)n[8], a->high = (int)n[9];
    const Py_ssize_t depth = a->tall * a->wide * (dense ? a->channels : 1), blocks = (a->results + 63) / 64;
    /* Where there are more weights than bytes of images, threads share the weights. */
    a->by_block = dense && blocks >= 4 && a->results * depth > a->images * a->height * a->width * a->channels;
    a->count = a->by_block ? blocks : a->images * a->rows;
    a->work = (a->by_block ? a->images * a->rows * 64 : a->results) * a->columns * depth;
}
