/* What follows a convolution's results while they are in the cache: a residual sum with a rounding of its own, and a table. */

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "byte_table.h"
#include "conv.h"

typedef struct {
    __m512 own_ratio, residual_ratio;
    __m512i own_zero, residual_zero;
    epilogue end;
} finish;

/* 16 sums; each product and the sum are rounded. */
VNNI_INLINE __m512i add_sixteen(__m512i x, __m512i residual, int q, const finish *f) {
    const __m512i own = _mm512_sub_epi32(bytes_of(x, q), f->own_zero);
    const __m512i other = _mm512_sub_epi32(bytes_of(residual, q), f->residual_zero);
    return _mm512_cvtps_epi32(_mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(own), f->own_ratio),
                                            _mm512_mul_ps(_mm512_cvtepi32_ps(other), f->residual_ratio)));
}

VNNI_INLINE __m512i add_bytes(__m512i x, __m512i residual, const finish *f) {
    const __m512i v[4] = {add_sixteen(x, residual, 0, f), add_sixteen(x, residual, 1, f),
                          add_sixteen(x, residual, 2, f), add_sixteen(x, residual, 3, f)};
    return from_lane_order(to_bytes(v, &f->end));
}

VNNI_TARGET static void add_run(const finish *f, const uint8_t *residual, uint8_t *y, isize count) {
    isize k = 0;
    for (; k + VECTOR_BYTES <= count; k += VECTOR_BYTES)
        _mm512_storeu_si512(y + k, add_bytes(_mm512_loadu_si512(y + k), _mm512_loadu_si512(residual + k), f));
    if (k < count) {
        const __mmask64 mask = byte_mask(count - k);
        const __m512i x = _mm512_maskz_loadu_epi8(mask, y + k), v = _mm512_maskz_loadu_epi8(mask, residual + k);
        _mm512_mask_storeu_epi8(y + k, mask, add_bytes(x, v, f));
    }
}

VNNI_TARGET void finish_results(const conv_args *a, int added, isize at, isize rows, isize bytes) {
    const int sum = a->residual && !a->residual_joint && !added;
    if (!sum && !a->table) return;
    if (bytes == a->out_channels) bytes *= rows, rows = 1;
    finish f = {.own_zero = _mm512_set1_epi32(a->out_zero)};
    if (sum) {
        f.own_ratio = _mm512_set1_ps(a->own_ratio), f.residual_ratio = _mm512_set1_ps(a->residual_ratio);
        f.residual_zero = _mm512_set1_epi32(a->residual_zero);
        f.end = make_epilogue(a->sum_zero, a->sum_low, a->sum_high);
    }
    for (isize r = 0; r < rows; r++, at += a->out_channels) {
        uint8_t *y = a->y + at;
        if (sum) add_run(&f, a->residual + at, y, bytes);
        if (a->table) look_up_bytes(a->table, y, y, bytes);
    }
}
#endif
