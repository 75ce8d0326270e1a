/* Kernels of convolutions for x86: AVX2, AVX-VNNI, and AVX-512 VNNI. */

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "conv_gather.h"

#include <immintrin.h>

#define TARGET(features) __attribute__((target(features)))
#define INLINE_FOR(features) static inline __attribute__((always_inline, target(features)))
#define AVX2_INLINE INLINE_FOR("avx2")

AVX2_INLINE __m128i load_16(const void *x) { return _mm_loadu_si128((const __m128i *)x); }
AVX2_INLINE __m256i load_32(const void *x) { return _mm256_loadu_si256((const __m256i *)x); }

/* Four taps of 32 channels, which stand together for each channel: vectors of eight channels in the order of block_lane(). */
AVX2_INLINE void ymm_interleave_four(const uint8_t *const *x, __m256i *to) {
    const __m256i a = load_32(x[0]), b = load_32(x[1]), c = load_32(x[2]), d = load_32(x[3]);
    const __m256i ab = _mm256_unpacklo_epi8(a, b), cd = _mm256_unpacklo_epi8(c, d);
    const __m256i AB = _mm256_unpackhi_epi8(a, b), CD = _mm256_unpackhi_epi8(c, d);
    to[0] = _mm256_unpacklo_epi16(ab, cd), to[1] = _mm256_unpackhi_epi16(ab, cd);
    to[2] = _mm256_unpacklo_epi16(AB, CD), to[3] = _mm256_unpackhi_epi16(AB, CD);
}

/* The same of 16 channels: vectors of four. */
AVX2_INLINE void interleave_four(const uint8_t *const *x, __m128i *to) {
    const __m128i a = load_16(x[0]), b = load_16(x[1]), c = load_16(x[2]), d = load_16(x[3]);
    const __m128i ab = _mm_unpacklo_epi8(a, b), cd = _mm_unpacklo_epi8(c, d);
    const __m128i AB = _mm_unpackhi_epi8(a, b), CD = _mm_unpackhi_epi8(c, d);
    to[0] = _mm_unpacklo_epi16(ab, cd), to[1] = _mm_unpackhi_epi16(ab, cd);
    to[2] = _mm_unpacklo_epi16(AB, CD), to[3] = _mm_unpackhi_epi16(AB, CD);
}

/* ---- operations on vectors of 256 bits ------------------------------------------------------------------------------ */

#define VECTOR(f) ymm_##f
#define ints __m256i
#define floats __m256
#define LANES 8
#define VECTORS 2
#define BLOCK_VECTORS 4

AVX2_INLINE __m256i ymm_load_ints(const int32_t *x) { return load_32(x); }
AVX2_INLINE void ymm_store_ints(int32_t *to, __m256i x) { _mm256_storeu_si256((__m256i *)(void *)to, x); }
AVX2_INLINE __m256i ymm_set_ints(int32_t x) { return _mm256_set1_epi32(x); }
AVX2_INLINE __m256i ymm_add_ints(__m256i a, __m256i b) { return _mm256_add_epi32(a, b); }
AVX2_INLINE __m256i ymm_subtract_ints(__m256i a, __m256i b) { return _mm256_sub_epi32(a, b); }
AVX2_INLINE __m256 ymm_load_floats(const float *x) { return _mm256_loadu_ps(x); }
AVX2_INLINE __m256 ymm_set_floats(float x) { return _mm256_set1_ps(x); }
AVX2_INLINE __m256 ymm_to_floats(__m256i x) { return _mm256_cvtepi32_ps(x); }
AVX2_INLINE __m256 ymm_multiply(__m256 a, __m256 b) { return _mm256_mul_ps(a, b); }
AVX2_INLINE __m256 ymm_add(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
AVX2_INLINE __m256 ymm_maximum(__m256 a, __m256 b) { return _mm256_max_ps(a, b); }
AVX2_INLINE __m256 ymm_minimum(__m256 a, __m256 b) { return _mm256_min_ps(a, b); }
AVX2_INLINE __m256i ymm_round_floats(__m256 x) { return _mm256_cvtps_epi32(x); }

AVX2_INLINE __m256 ymm_where_negative(__m256i x, __m256 a, __m256 b) {
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(x));
}

AVX2_INLINE void ymm_widen(const uint8_t *x, __m256i *to) {
    const __m128i bytes = load_16(x);
    to[0] = _mm256_cvtepu8_epi32(bytes), to[1] = _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8));
}

AVX2_INLINE void ymm_narrow(const __m256i *x, uint8_t *to) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x[0], x[1]), _MM_SHUFFLE(3, 1, 2, 0));
    const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)(void *)to, bytes);
}

/* Words plus the zero point as bytes of results; those of `a` and `b` alternate as _mm256_packus_epi16 leaves them. */
AVX2_INLINE __m256i ymm_results(__m256i a, __m256i b, const tile_finish *f) {
    const __m256i zero = _mm256_set1_epi16((short)f->zero);
    const __m256i bytes = _mm256_packus_epi16(_mm256_adds_epi16(a, zero), _mm256_adds_epi16(b, zero));
    const __m256i most = _mm256_min_epu8(bytes, _mm256_set1_epi8((char)f->most));
    return _mm256_max_epu8(most, _mm256_set1_epi8((char)f->least));
}

/* Stores bytes of a window, fewer than 16 where there are no more channels. */
AVX2_INLINE void store_16(uint8_t *y, __m128i bytes, isize channels) {
    if (channels == TILE_CHANNELS) {
        _mm_storeu_si128((__m128i *)(void *)y, bytes);
        return;
    }
    if (channels == TILE_CHANNELS / 2) {
        _mm_storel_epi64((__m128i *)(void *)y, bytes);
        return;
    }
    uint8_t few[TILE_CHANNELS];
    _mm_storeu_si128((__m128i *)(void *)few, bytes);
    copy_few(y, few, channels);
}

AVX2_INLINE void ymm_store_rows(const __m256i *v, const int rows, const tile_panel *p, uint8_t *y) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); /* two windows, one behind the other */
    for (int r = 0; r < rows; r += 2) {
        const __m256i a = _mm256_packs_epi32(v[2 * r], v[2 * r + 1]);
        const __m256i b = r + 1 < rows ? _mm256_packs_epi32(v[2 * r + 2], v[2 * r + 3]) : a;
        const __m256i both = _mm256_permutevar8x32_epi32(ymm_results(a, b, &p->finish), order);
        store_16(y + r * p->stride, _mm256_castsi256_si128(both), p->channels);
        if (r + 1 < rows) store_16(y + (r + 1) * p->stride, _mm256_extracti128_si256(both, 1), p->channels);
    }
}

/* Packing undoes the order of block_lane(). */
AVX2_INLINE void ymm_store_windows(const __m256i *v, const tile_panel *p, uint8_t *y) {
    const __m256i bytes = ymm_results(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]), &p->finish);
    if (p->channels == 32) {
        _mm256_storeu_si256((__m256i *)(void *)y, bytes);
        return;
    }
    uint8_t few[32];
    _mm256_storeu_si256((__m256i *)(void *)few, bytes);
    copy_few(y, few, p->channels);
}

/* The weights of the low or the high halves of bytes. */
AVX2_INLINE __m256i ymm_nibbles(__m256i bytes, const int high) {
    const __m256i values = _mm256_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1,
                                            0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    return _mm256_shuffle_epi8(values, _mm256_and_si256(high ? _mm256_srli_epi16(bytes, 4) : bytes, _mm256_set1_epi8(15)));
}

/* Defines accumulate and accumulate_four by `dot(sum, x, weight)`, which adds four products to each of eight sums. */
#define PRODUCTS(inlined, dot)                                                                                          \
    inlined const int8_t *NAME(accumulate)(__m256i sum[ROWS][VECTORS], const uint8_t *const *x, const int8_t *weight,  \
                                           isize bytes, const int rows, const int vectors, const int nibbles,          \
                                           const int32_t *order) {                                                     \
        (void)order;                                                                                                   \
        for (isize i = 0; i < bytes; i += 4, weight += nibbles ? 32 : 64) {                                            \
            const __m256i first = load_32(weight);                                                                     \
            const __m256i w[2] = {nibbles ? ymm_nibbles(first, 0) : first,                                             \
                                  nibbles ? ymm_nibbles(first, 1) : load_32(weight + 32)};                             \
            for (int r = 0; r < rows; r++) {                                                                           \
                const __m256i four = _mm256_set1_epi32(four_bytes(x[r] + i));                                          \
                for (int v = 0; v < vectors; v++) sum[r][v] = dot(sum[r][v], four, w[v]);                              \
            }                                                                                                          \
        }                                                                                                              \
        return weight;                                                                                                 \
    }                                                                                                                  \
    inlined void NAME(accumulate_four)(__m256i *sum, const uint8_t *const *x, const int8_t *weight, const int fits) {  \
        (void)fits;                                                                                                    \
        __m256i taps[4];                                                                                               \
        ymm_interleave_four(x, taps);                                                                                  \
        for (int v = 0; v < 4; v++) sum[v] = dot(sum[v], taps[v], load_32(weight + 32 * v));                           \
    }

/* ---- AVX2 ------------------------------------------------------------------------------------------------------------ */

#define NAME(f) avx2_##f
#define TILE_TARGET TARGET("avx2")
#define TILE_INLINE AVX2_INLINE
#define ROWS 4

/* Adds pairs of 16-bit sums. */
AVX2_INLINE __m256i add_pairs(__m256i sum, __m256i pairs) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

AVX2_INLINE __m256i dot_pairs(__m256i sum, __m256i x, __m256i weight) {
    return add_pairs(sum, _mm256_maddubs_epi16(x, weight));
}

/* The same without a sum in 16 bits, with even and odd bytes apart. */
AVX2_INLINE __m256i dot_wide(__m256i sum, __m256i x, __m256i weight) {
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(x, _mm256_set1_epi16(255)),
                                           _mm256_srai_epi16(_mm256_slli_epi16(weight, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(x, 8), _mm256_srai_epi16(weight, 8));
    return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}

AVX2_INLINE __m256i four_times_eight(const uint8_t *x) { return _mm256_set1_epi32(four_bytes(x)); }

/* Adds the products of two words of a tap, which stand at `first` and `second`; 16 bits hold the sum of both. */
AVX2_INLINE void add_two_words(__m256i sum[ROWS][VECTORS], const uint8_t *const *x, isize first, isize second,
                               const __m256i *a, const __m256i *b, const int rows, const int vectors) {
    for (int r = 0; r < rows; r++) {
        const __m256i p = four_times_eight(x[r] + first), q = four_times_eight(x[r] + second);
        for (int v = 0; v < vectors; v++)
            sum[r][v] = add_pairs(sum[r][v], _mm256_add_epi16(_mm256_maddubs_epi16(p, a[v]), _mm256_maddubs_epi16(q, b[v])));
    }
}

/* Weights of 4 bits: 16 bits hold the sums of any two words. */
AVX2_INLINE const int8_t *add_nibbles(__m256i sum[ROWS][VECTORS], const uint8_t *const *x, const int8_t *weight, isize bytes,
                                      const int rows, const int vectors) {
    isize i = 0;
    for (; i + 8 <= bytes; i += 8, weight += 64) {
        const __m256i first = load_32(weight), second = load_32(weight + 32);
        const __m256i a[2] = {ymm_nibbles(first, 0), ymm_nibbles(first, 1)};
        const __m256i b[2] = {ymm_nibbles(second, 0), ymm_nibbles(second, 1)};
        add_two_words(sum, x, i, i + 4, a, b, rows, vectors);
    }
    for (; i < bytes; i += 4, weight += 32) {
        const __m256i both = load_32(weight), w[2] = {ymm_nibbles(both, 0), ymm_nibbles(both, 1)};
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < vectors; v++) sum[r][v] = dot_pairs(sum[r][v], four_times_eight(x[r] + i), w[v]);
    }
    return weight;
}

AVX2_INLINE const int8_t *avx2_accumulate(__m256i sum[ROWS][VECTORS], const uint8_t *const *x, const int8_t *weight,
                                          isize bytes, const int rows, const int vectors, const int nibbles,
                                          const int32_t *order) {
    if (nibbles) return add_nibbles(sum, x, weight, bytes, rows, vectors);
    const int32_t *at = order + 2, *const single = at + 2 * order[0], *const wide = single + order[1];
    for (; at < single; at += 2, weight += 128) {
        const __m256i a[2] = {load_32(weight), load_32(weight + 32)}, b[2] = {load_32(weight + 64), load_32(weight + 96)};
        add_two_words(sum, x, at[0], at[1], a, b, rows, vectors);
    }
    for (; at < wide; at++, weight += 64)
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < vectors; v++)
                sum[r][v] = dot_pairs(sum[r][v], four_times_eight(x[r] + *at), load_32(weight + 32 * v));
    for (const int32_t *const end = order + 2 + bytes / 4; at < end; at++, weight += 64)
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < vectors; v++)
                sum[r][v] = dot_wide(sum[r][v], four_times_eight(x[r] + *at), load_32(weight + 32 * v));
    return weight;
}

AVX2_INLINE void avx2_accumulate_four(__m256i *sum, const uint8_t *const *x, const int8_t *weight, const int fits) {
    __m256i taps[4];
    ymm_interleave_four(x, taps);
    for (int v = 0; v < 4; v++) {
        const __m256i w = load_32(weight + 32 * v);
        sum[v] = fits ? dot_pairs(sum[v], taps[v], w) : dot_wide(sum[v], taps[v], w);
    }
}

#define NIBBLES
#define ORDERED
#include "conv_tiles.h"
const tile_kernels avx2_tiles = {4, 0, 1, 32, avx2_dense, avx2_depthwise, avx2_dense_nibbles};

/* ---- vpdpbusd of 256 bits: AVX-VNNI, or AVX-512 VNNI where INTACT8_ISA asks for it on a CPU without AVX-VNNI -------- */

#if defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11
#define HAS_AVX_VNNI 1
#define AVX_VNNI "avx2,avxvnni"

INLINE_FOR(AVX_VNNI) __m256i dot_vex(__m256i sum, __m256i x, __m256i weight) {
    return _mm256_dpbusd_avx_epi32(sum, x, weight);
}

#define NAME(f) avx_vnni_##f
#define TILE_TARGET TARGET(AVX_VNNI)
#define TILE_INLINE INLINE_FOR(AVX_VNNI)
#define ROWS 6
PRODUCTS(INLINE_FOR(AVX_VNNI), dot_vex)
#define NIBBLES
#include "conv_tiles.h"
static const tile_kernels vex_tiles = {4, 0, 0, 32, avx_vnni_dense, avx_vnni_depthwise, avx_vnni_dense_nibbles};
#endif

#define EVEX "avx2,avx512f,avx512vl,avx512bw,avx512vnni"

INLINE_FOR(EVEX) __m256i dot_evex(__m256i sum, __m256i x, __m256i weight) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(weight));
    return sum;
}

#define NAME(f) evex_##f
#define TILE_TARGET TARGET(EVEX)
#define TILE_INLINE INLINE_FOR(EVEX)
#define ROWS 6
PRODUCTS(INLINE_FOR(EVEX), dot_evex)
#define NIBBLES
#include "conv_tiles.h"
static const tile_kernels evex_tiles = {4, 0, 0, 32, evex_dense, evex_depthwise, evex_dense_nibbles};

const tile_kernels *avx_vnni_tiles(void) {
#if HAS_AVX_VNNI
    if (has_avx_vnni()) return &vex_tiles;
#endif
    return &evex_tiles;
}

/* ---- AVX-512 VNNI: 16 channels in a vector ---------------------------------------------------------------------------- */

#undef VECTOR
#undef ints
#undef floats
#undef LANES
#undef VECTORS
#undef BLOCK_VECTORS
#define VECTOR(f) zmm_##f
#define ints __m512i
#define floats __m512
#define LANES 16
#define VECTORS 1
#define BLOCK_VECTORS VECTORS
#define ROWS 8
#define NAME(f) avx512_##f
#define AVX512_VNNI_FEATURES "avx512f,avx512bw,avx512vl,avx512vnni,prfchw"
#define TILE_TARGET TARGET(AVX512_VNNI_FEATURES)
#define TILE_INLINE INLINE_FOR(AVX512_VNNI_FEATURES)

TILE_INLINE __m512i zmm_load_ints(const int32_t *x) { return _mm512_loadu_si512(x); }
TILE_INLINE void zmm_store_ints(int32_t *to, __m512i x) { _mm512_storeu_si512(to, x); }
TILE_INLINE __m512i zmm_set_ints(int32_t x) { return _mm512_set1_epi32(x); }
TILE_INLINE __m512i zmm_add_ints(__m512i a, __m512i b) { return _mm512_add_epi32(a, b); }
TILE_INLINE __m512i zmm_subtract_ints(__m512i a, __m512i b) { return _mm512_sub_epi32(a, b); }
TILE_INLINE __m512 zmm_load_floats(const float *x) { return _mm512_loadu_ps(x); }
TILE_INLINE __m512 zmm_set_floats(float x) { return _mm512_set1_ps(x); }
TILE_INLINE __m512 zmm_to_floats(__m512i x) { return _mm512_cvtepi32_ps(x); }
TILE_INLINE __m512 zmm_multiply(__m512 a, __m512 b) { return _mm512_mul_ps(a, b); }
TILE_INLINE __m512 zmm_add(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
TILE_INLINE __m512 zmm_maximum(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
TILE_INLINE __m512 zmm_minimum(__m512 a, __m512 b) { return _mm512_min_ps(a, b); }
TILE_INLINE __m512i zmm_round_floats(__m512 x) { return _mm512_cvtps_epi32(x); }
TILE_INLINE __m512 zmm_where_negative(__m512i x, __m512 a, __m512 b) {
    return _mm512_mask_blend_ps(_mm512_cmplt_epi32_mask(x, _mm512_setzero_si512()), b, a);
}

TILE_INLINE void zmm_widen(const uint8_t *x, __m512i *to) { *to = _mm512_cvtepu8_epi32(load_16(x)); }
TILE_INLINE void zmm_narrow(const __m512i *x, uint8_t *to) {
    _mm_storeu_si128((__m128i *)(void *)to, _mm512_cvtepi32_epi8(*x));
}

TILE_INLINE void zmm_store_rows(const __m512i *v, const int rows, const tile_panel *p, uint8_t *y) {
    const tile_finish *f = &p->finish;
    for (int r = 0; r < rows; r++, y += p->stride) {
        const __m256i words = _mm256_adds_epi16(_mm512_cvtsepi32_epi16(v[r]), _mm256_set1_epi16((short)f->zero));
        const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        const __m128i most = _mm_min_epu8(bytes, _mm_set1_epi8((char)f->most));
        const __m128i clamped = _mm_max_epu8(most, _mm_set1_epi8((char)f->least));
        _mm_mask_storeu_epi8(y, (__mmask16)((1 << p->channels) - 1), clamped);
    }
}

TILE_INLINE void zmm_store_windows(const __m512i *v, const tile_panel *p, uint8_t *y) { zmm_store_rows(v, 1, p, y); }

/* Inline assembly for the reason that conv.h gives. */
TILE_INLINE __m512i dot_zmm(__m512i sum, __m512i x, __m512i weight) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(weight));
    return sum;
}

TILE_INLINE const int8_t *avx512_accumulate(__m512i sum[ROWS][VECTORS], const uint8_t *const *x, const int8_t *weight,
                                            isize bytes, const int rows, const int vectors, const int nibbles,
                                            const int32_t *order) {
    (void)vectors, (void)nibbles, (void)order;
    for (isize i = 0; i < bytes; i += 4, weight += 64) {
        const __m512i w = _mm512_loadu_si512(weight);
        for (int r = 0; r < rows; r++) sum[r][0] = dot_zmm(sum[r][0], _mm512_set1_epi32(four_bytes(x[r] + i)), w);
    }
    return weight;
}

TILE_INLINE void avx512_accumulate_four(__m512i *sum, const uint8_t *const *x, const int8_t *weight, const int fits) {
    (void)fits;
    __m128i v[4];
    interleave_four(x, v);
    const __m256i low = _mm256_setr_m128i(v[0], v[1]), high = _mm256_setr_m128i(v[2], v[3]);
    *sum = dot_zmm(*sum, _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1), _mm512_loadu_si512(weight));
}

#include "conv_tiles.h"
const tile_kernels avx512_tiles = {4, 0, 0, 16, avx512_dense, avx512_depthwise, NULL};
#endif
