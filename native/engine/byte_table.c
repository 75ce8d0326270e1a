/* Tables of 256 bytes, looked up in vectors. */

#include "byte_table.h"

static void plain_bytes(const uint8_t *table, const uint8_t *x, uint8_t *y, isize count) {
    for (isize i = 0; i < count; i++) y[i] = table[x[i]];
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))

VBMI_TARGET static void vbmi_bytes(const uint8_t *table, const uint8_t *x, uint8_t *y, isize count) {
    const byte_table t = load_table(table);
    isize i = 0;
    for (; i + VECTOR_BYTES <= count; i += VECTOR_BYTES) _mm512_storeu_si512(y + i, look_up(&t, _mm512_loadu_si512(x + i)));
    if (i == count) return;
    const __mmask64 mask = byte_mask(count - i);
    _mm512_mask_storeu_epi8(y + i, mask, look_up(&t, _mm512_maskz_loadu_epi8(mask, x + i)));
}

#define AVX2_TARGET __attribute__((target("avx2")))

/* A shuffle reads one of 16 bytes, and gives 0 where the index is negative. So every 16 entries are taken as what
   distinguishes them from the 16 before, and what is read at and before an index is combined. The two halves of a table are
   taken one after the other; the indices of a half are those that are not negative there. */
AVX2_TARGET static void avx2_bytes(const uint8_t *table, const uint8_t *x, uint8_t *y, isize count) {
    const isize vector = 32, step = 2 * vector;
    __m256i changes[16];
    for (int k = 0; k < 16; k++) {
        const __m128i now = _mm_loadu_si128((const __m128i *)(const void *)(table + 16 * k));
        const __m128i before = k % 8 ? _mm_loadu_si128((const __m128i *)(const void *)(table + 16 * k - 16)) : _mm_setzero_si128();
        changes[k] = _mm256_broadcastsi128_si256(_mm_xor_si128(now, before));
    }
    isize i = 0;
    for (; i + step <= count; i += step) {
        __m256i found[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()}, index[2];
        for (int half = 0; half < 2; half++) {
            for (int v = 0; v < 2; v++) {
                const __m256i bytes = _mm256_loadu_si256((const __m256i *)(const void *)(x + i + vector * v));
                index[v] = _mm256_xor_si256(bytes, _mm256_set1_epi8((char)(128 * half)));
            }
            for (int k = 8 * half; k < 8 * half + 8; k++)
                for (int v = 0; v < 2; v++) {
                    found[v] = _mm256_xor_si256(found[v], _mm256_shuffle_epi8(changes[k], index[v]));
                    index[v] = _mm256_subs_epi8(index[v], _mm256_set1_epi8(16));
                }
        }
        for (int v = 0; v < 2; v++) _mm256_storeu_si256((__m256i *)(void *)(y + i + vector * v), found[v]);
    }
    plain_bytes(table, x + i, y + i, count - i);
}

void look_up_bytes(const uint8_t *table, const uint8_t *x, uint8_t *y, isize count) {
    const enum isa isa = current_isa();
    if (has_byte_tables())
        vbmi_bytes(table, x, y, count);
    else if (isa == PLAIN)
        plain_bytes(table, x, y, count);
    else
        avx2_bytes(table, x, y, count);
}

#elif defined(__aarch64__) && (defined(__GNUC__) || defined(__clang__))
#include <arm_neon.h>

void look_up_bytes(const uint8_t *table, const uint8_t *x, uint8_t *y, isize count) {
    if (current_isa() == PLAIN) {
        plain_bytes(table, x, y, count);
        return;
    }
    const uint8x16x4_t a = vld1q_u8_x4(table), b = vld1q_u8_x4(table + 64), c = vld1q_u8_x4(table + 128), d = vld1q_u8_x4(table + 192);
    const uint8x16_t quarter = vdupq_n_u8(64);
    isize i = 0;
    for (; i + 16 <= count; i += 16) {
        uint8x16_t index = vld1q_u8(x + i), found = vqtbl4q_u8(a, index); /* 0 where the index is 64 or more */
        found = vqtbx4q_u8(found, b, index = vsubq_u8(index, quarter));
        found = vqtbx4q_u8(found, c, index = vsubq_u8(index, quarter));
        vst1q_u8(y + i, vqtbx4q_u8(found, d, vsubq_u8(index, quarter)));
    }
    plain_bytes(table, x + i, y + i, count - i);
}

#else

void look_up_bytes(const uint8_t *table, const uint8_t *x, uint8_t *y, isize count) { plain_bytes(table, x, y, count); }

#endif
