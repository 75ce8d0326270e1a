/* Cells of LSTM on AVX-512: the operations of lstm_cell, in registers. */

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "avx512.h"
#include "recurrent.h"

/* table[R(v)] with the sign of R(v); NaN reads the table's end and is noted in `bad`. */
AVX512_INLINE __m512 found(const float *table, __m512 v, __mmask16 *bad) {
    const __m512i sign = _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(INT32_MIN));
    const __m512 size = _mm512_min_ps(_mm512_abs_ps(v), _mm512_set1_ps(TABLE_END));
    const __m512i index = _mm512_sub_epi32(_mm512_castps_si512(_mm512_add_ps(size, _mm512_set1_ps(ROUND_MAGIC))),
                                           _mm512_castps_si512(_mm512_set1_ps(ROUND_MAGIC)));
    const __m512i result = _mm512_i32gather_epi32(index, table, sizeof *table);
    *bad |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_castsi512_ps(_mm512_mask_xor_epi32(result, _mm512_test_epi32_mask(index, index), result, sign));
}

AVX512_INLINE __m512 sigmoid(const float *table, __m512 v, __mmask16 *bad) {
    const __m512 half = _mm512_set1_ps(0.5f);
    return _mm512_add_ps(_mm512_mul_ps(found(table, v, bad), half), half);
}

AVX512_INLINE __m512 gate(const hidden_product *p, const float *v, isize at) {
    const __m512i sum = _mm512_add_epi32(_mm512_loadu_si512(p->sums + at), _mm512_loadu_si512(p->offsets + at));
    const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_loadu_ps(p->scale + at));
    return _mm512_add_ps(_mm512_mul_ps(scaled, _mm512_set1_ps(p->s)), _mm512_loadu_ps(v + at));
}

AVX512_TARGET isize lstm_vectors(const float *table, const float *v, const hidden_product *p, isize size, float *h, float *c,
                                 int *bad) {
    __mmask16 wrong = 0;
    isize j = 0;
    for (; j + 16 <= size; j += 16) {
        const __m512 in = sigmoid(table, gate(p, v, j), &wrong), keep = sigmoid(table, gate(p, v, size + j), &wrong);
        const __m512 new = found(table, gate(p, v, 2 * size + j), &wrong);
        const __m512 out = sigmoid(table, gate(p, v, 3 * size + j), &wrong);
        const __m512 added = _mm512_mul_ps(in, _mm512_mul_ps(new, _mm512_set1_ps(CELL_STEPS)));
        const __m512 cell = _mm512_add_ps(_mm512_mul_ps(keep, _mm512_loadu_ps(c + j)), added);
        _mm512_storeu_ps(c + j, cell);
        _mm512_storeu_ps(h + j, _mm512_mul_ps(out, _mm512_mul_ps(found(table, cell, &wrong), _mm512_set1_ps(REACH))));
    }
    *bad |= wrong != 0;
    return j;
}
#endif
