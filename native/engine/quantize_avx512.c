/* Quantization of lines on AVX-512. */

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "quantize_avx512.h"

AVX512_TARGET isize quantize_vectors(const float *x, uint8_t *y, isize count, const quantize_args *a) {
    if (!has_usual_divisor(a)) return 0;
    const quantize_vector grid = make_quantize_vector(a);
    const epilogue e = make_epilogue(a->zero, 0, 255);
    isize i = 0;
    for (; i + VECTOR_BYTES <= count; i += VECTOR_BYTES) {
        __m512 v[4];
        for (int q = 0; q < 4; q++) v[q] = _mm512_add_ps(nearest_steps(_mm512_loadu_ps(x + i + 16 * q), &grid), e.magic);
        _mm512_storeu_si512(y + i, from_lane_order(small_to_bytes(v, &e)));
    }
    return i;
}
#endif
