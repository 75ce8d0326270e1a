/* Rows of integer softmax, in plain C and by lookups in vectors. */

#include "softmax.h"

integer_softmax make_softmax(const int32_t *entries, int64_t levels, int64_t zero, int64_t low, int64_t high) {
    integer_softmax t = {.entries = entries, .narrow = 1, .levels = bits_float(levels), .low = (float)(low - zero),
                         .high = (float)(high - zero), .zero = (int32_t)zero};
    for (int i = 0; i < 256; i++) {
        t.narrow &= entries[i] >= 0 && entries[i] <= UINT16_MAX;
        t.low_bytes[i] = (uint8_t)((uint32_t)entries[i] & 255), t.high_bytes[i] = (uint8_t)((uint32_t)entries[i] >> 8 & 255);
    }
    return t;
}

MULTIVERSION static void row_plain(const integer_softmax *t, const uint8_t *restrict x, const uint8_t *restrict mask,
                                   uint8_t *restrict y, isize count) {
    const int32_t *restrict entries = t->entries;
    const float low = t->low, high = t->high;
    const int32_t zero = t->zero;
    uint8_t most = 0;
    int64_t sum = 0;
    for (isize i = 0; i < count; i++) {
        const uint8_t v = mask && mask[i] ? 0 : x[i];
        most = v > most ? v : most;
    }
    for (isize i = 0; i < count; i++) sum += mask && mask[i] ? 0 : entries[most - x[i]];
    const float factor = t->levels / (float)(sum > 1 ? sum : 1);
    for (isize i = 0; i < count; i++)
        y[i] = to_uint8((float)(mask && mask[i] ? 0 : entries[most - x[i]]) * factor, low, high, zero);
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "byte_table.h"

/* Which of up to 64 elements count. */
VBMI_INLINE __mmask64 counted(const uint8_t *mask, isize from, isize count) {
    const __mmask64 inside = byte_mask(count - from);
    return mask ? inside & _mm512_testn_epi8_mask(_mm512_maskz_loadu_epi8(inside, mask + from), _mm512_set1_epi8(-1)) : inside;
}

VBMI_INLINE uint8_t largest_byte(__m512i v) {
    const __m256i half = _mm256_max_epu8(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
    __m128i top = _mm_max_epu8(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    top = _mm_xor_si128(top, _mm_set1_epi8(-1)); /* the largest byte becomes the smallest, which an instruction finds */
    const __m128i smallest = _mm_minpos_epu16(_mm_min_epu8(top, _mm_srli_epi16(top, 8)));
    return (uint8_t)(255 - (_mm_cvtsi128_si32(smallest) & 255));
}

/* The same for entries of 16 bits, which are two lookups of bytes. */
VBMI_TARGET static void row_vbmi(const integer_softmax *t, const uint8_t *x, const uint8_t *mask, uint8_t *y, isize count) {
    const byte_table low = load_table(t->low_bytes), high = load_table(t->high_bytes);
    const __m512i nothing = _mm512_setzero_si512();
    __m512i most = nothing, low_sums = nothing, high_sums = nothing;
    for (isize i = 0; i < count; i += VECTOR_BYTES)
        most = _mm512_max_epu8(most, _mm512_maskz_loadu_epi8(counted(mask, i, count), x + i));
    const __m512i from = _mm512_set1_epi8((char)largest_byte(most));
    for (isize i = 0; i < count; i += VECTOR_BYTES) {
        const __mmask64 some = counted(mask, i, count);
        const __m512i d = _mm512_sub_epi8(from, _mm512_maskz_loadu_epi8(some, x + i));
        low_sums = _mm512_add_epi64(low_sums, _mm512_sad_epu8(_mm512_maskz_mov_epi8(some, look_up(&low, d)), nothing));
        high_sums = _mm512_add_epi64(high_sums, _mm512_sad_epu8(_mm512_maskz_mov_epi8(some, look_up(&high, d)), nothing));
    }
    const int64_t sum = _mm512_reduce_add_epi64(low_sums) + 256 * _mm512_reduce_add_epi64(high_sums);
    const __m512 factor = _mm512_set1_ps(t->levels / (float)(sum > 1 ? sum : 1));
    const __m512 least = _mm512_set1_ps(t->low), greatest = _mm512_set1_ps(t->high);
    const epilogue end = make_epilogue(t->zero, 0, 255);
    for (isize i = 0; i < count; i += VECTOR_BYTES) {
        const __mmask64 some = counted(mask, i, count);
        const __m512i d = _mm512_sub_epi8(from, _mm512_maskz_loadu_epi8(some, x + i));
        const __m512i l = _mm512_maskz_mov_epi8(some, look_up(&low, d)), h = _mm512_maskz_mov_epi8(some, look_up(&high, d));
        const __m512i first = _mm512_unpacklo_epi8(l, h), second = _mm512_unpackhi_epi8(l, h);
        __m512i v[4] = {_mm512_unpacklo_epi16(first, nothing), _mm512_unpackhi_epi16(first, nothing),
                        _mm512_unpacklo_epi16(second, nothing), _mm512_unpackhi_epi16(second, nothing)};
        for (int q = 0; q < 4; q++) { /* what is clamped first fits int32, whatever the levels are */
            const __m512 steps = _mm512_mul_ps(_mm512_cvtepi32_ps(v[q]), factor);
            v[q] = _mm512_cvtps_epi32(_mm512_min_ps(_mm512_max_ps(steps, least), greatest));
        }
        _mm512_mask_storeu_epi8(y + i, byte_mask(count - i), to_bytes(v, &end));
    }
}

softmax_row softmax_row_of(const integer_softmax *t) { return t->narrow && has_byte_tables() ? row_vbmi : row_plain; }
#else
softmax_row softmax_row_of(const integer_softmax *t) { return (void)t, row_plain; }
#endif
