/* Products of uint8 tensors of one shape, or of rows with a gate that many rows share. The product of the two differences
   is exact; the ratio is rounded once, and its product once. */

#include "arguments.h"
#include "kernels.h"

INLINE void multiply_row(const uint8_t *restrict x, const uint8_t *restrict w, uint8_t *restrict y, Py_ssize_t count,
                         const multiply_args *a) {
    const int32_t zero_x = a->zero_x, zero_w = a->zero_w, zero = a->zero;
    const float ratio = a->ratio, low = a->low, high = a->high;
    for (Py_ssize_t i = 0; i < count; i++)
        y[i] = to_uint8((float)((x[i] - zero_x) * (w[i] - zero_w)) * ratio, low, high, zero);
}

/* How often a narrow gate is repeated in a block, so that it multiplies as many rows at once. */
INLINE Py_ssize_t gate_copies(const multiply_args *a) {
    return a->repeat > 1 && a->width < BLOCK ? BLOCK / a->width : 1;
}

MULTIVERSION static void multiply_portable(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const multiply_args *a = (const multiply_args *)given;
    const Py_ssize_t width = a->width, copies = gate_copies(a);
    uint8_t gate[BLOCK];
    for (Py_ssize_t r = lo; r < hi;) {
        const Py_ssize_t group = r / a->repeat, end = min_size((group + 1) * a->repeat, hi);
        const uint8_t *w = a->w + group * width;
        if (copies > 1) {
            for (Py_ssize_t i = 0; i < copies; i++) memcpy(gate + i * width, w, (size_t)width);
            w = gate;
        }
        for (; r < end; r += copies)
            multiply_row(a->x + r * width, w, a->y + r * width, min_size(end - r, copies) * width, a);
        r = end;
    }
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "avx512.h"

/* (x - zero_x) (w - zero_w) ratio of 16 bytes, rounded; factor is w - zero_w, offset is -zero_x (w - zero_w). These are
   integers below 2^17, so that the fused multiply-add is exact. */
AVX512_INLINE __m512i multiply_16(__m128i x, const float *factor, const float *offset, __m512 ratio) {
    const __m512 v = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(x));
    const __m512 product = _mm512_fmadd_ps(v, _mm512_loadu_ps(factor), _mm512_loadu_ps(offset));
    return _mm512_cvtps_epi32(_mm512_mul_ps(product, ratio));
}

AVX512_TARGET static void multiply_avx512(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const multiply_args *a = (const multiply_args *)given;
    const Py_ssize_t width = a->width, copies = gate_copies(a);
    const epilogue end = make_epilogue(a->zero, (int)a->low + a->zero, (int)a->high + a->zero);
    const __m512 ratio = _mm512_set1_ps(a->ratio);
    float factor[BLOCK], offset[BLOCK];
    memset(factor, 0, sizeof factor), memset(offset, 0, sizeof offset);
    for (Py_ssize_t r = lo; r < hi;) {
        const Py_ssize_t group = r / a->repeat, last = min_size((group + 1) * a->repeat, hi);
        for (Py_ssize_t from = 0; from < width; from += BLOCK) {
            const Py_ssize_t piece = min_size(width - from, BLOCK);
            const uint8_t *w = a->w + group * width + from;
            for (Py_ssize_t k = 0; k < copies; k++)
                for (Py_ssize_t i = 0; i < piece; i++) {
                    factor[k * piece + i] = (float)(w[i] - a->zero_w);
                    offset[k * piece + i] = (float)(-a->zero_x * (w[i] - a->zero_w));
                }
            for (Py_ssize_t at = r; at < last; at += copies) {
                const Py_ssize_t count = min_size(last - at, copies) * piece;
                const uint8_t *x = a->x + at * width + from;
                uint8_t *y = a->y + at * width + from;
                for (Py_ssize_t i = 0; i < count; i += VECTOR_BYTES) {
                    const __mmask64 mask = byte_mask(count - i);
                    const __m512i bytes = _mm512_maskz_loadu_epi8(mask, x + i);
                    const float *f = factor + i, *o = offset + i;
                    const __m512i v[4] = {multiply_16(_mm512_castsi512_si128(bytes), f, o, ratio),
                                          multiply_16(_mm512_extracti32x4_epi32(bytes, 1), f + 16, o + 16, ratio),
                                          multiply_16(_mm512_extracti32x4_epi32(bytes, 2), f + 32, o + 32, ratio),
                                          multiply_16(_mm512_extracti32x4_epi32(bytes, 3), f + 48, o + 48, ratio)};
                    _mm512_mask_storeu_epi8(y + i, mask, from_lane_order(to_bytes(v, &end)));
                }
            }
        }
        r = last;
    }
}

kernel multiply_kernel(const multiply_args *a) {
    /* Beyond this ratio, which no real program has, results would not fit int32. */
    const int fits = a->ratio < 32768.0f && a->ratio > -32768.0f;
    const int able = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    return !force_portable && fits && able ? multiply_avx512 : multiply_portable;
}
#else
kernel multiply_kernel(const multiply_args *a) { return (void)a, multiply_portable; }
#endif

FUNCTION(multiply) {
    arguments a;
    if (!parse_arguments(&a, "multiply", args, count, 12, 3)) return NULL;
    const Py_ssize_t rows = int_at(&a, 3), width = int_at(&a, 4), repeat = int_at(&a, 5);
    const Py_ssize_t zero_x = int_at(&a, 6), zero_w = int_at(&a, 7), zero = int_at(&a, 8);
    const Py_ssize_t size = checked_product(rows, width), groups = repeat < 1 || rows < 0 ? -1 : ceil_div(rows, repeat);
    if (!check_buffer(&a, 0, a.value[0], size, 1) || !check_buffer(&a, 1, a.value[1], checked_product(groups, width), 1) ||
        !check_buffer(&a, 2, a.value[2], size, 1))
        return NULL;
    if (!check_clamp(&a, int_at(&a, 10), int_at(&a, 11), zero) || !check_clamp(&a, 0, 0, zero_x) ||
        !check_clamp(&a, 0, 0, zero_w))
        return NULL;
    if (!size) Py_RETURN_NONE;
    const multiply_args given = {a.value[0], a.value[1], a.value[2], width, repeat,
                                 (int32_t)zero_x, (int32_t)zero_w, (int32_t)zero,
                                 float_at(&a, 9), (float)int_at(&a, 10), (float)int_at(&a, 11)};
    return run_unlocked(multiply_kernel(&given), &given, rows, size);
}
