/* Kernels of convolutions for x86: AVX2, AVX-VNNI, and AVX-512 VNNI. */

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "conv_gather.h"

#include <immintrin.h>

#define TARGET(features) __attribute__((target(features)))
#define INLINE_FOR(features) static inline __attribute__((always_inline, target(features)))
#define AVX2_INLINE INLINE_FOR("avx2")

AVX2_INLINE __m128i load_16(const void *x) { return _mm_loadu_si128((const __m128i *)x); }
AVX2_INLINE __m256i load_32(const void *x) { return _mm256_loadu_si256((const __m256i *)x); }

/* Four taps of 16 channels, which stand together for each channel: vectors of four channels. */
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

/* The weights of the low or the high halves of bytes. */
AVX2_INLINE __m256i ymm_nibbles(__m256i bytes, const int high) {
    const __m256i values = _mm256_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1,
                                            0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    return _mm256_shuffle_epi8(values, _mm256_and_si256(high ? _mm256_srli_epi16(bytes, 4) : bytes, _mm256_set1_epi8(15)));
}

/* Defines accumulate and accumulate_four by `dot(sum, x, weight)`, which adds four products to each of eight sums. */
#define PRODUCTS(inlined, dot)                                                                                          \
    inlined const int8_t *NAME(accumulate)(__m256i sum[ROWS][VECTORS], const uint8_t *const *x, const int8_t *weight,  \
                                           isize bytes, const int rows, const int nibbles) {                           \
        for (isize i = 0; i < bytes; i += 4, weight += nibbles ? 32 : 64) {                                            \
            const __m256i first = load_32(weight);                                                                     \
            const __m256i w[2] = {nibbles ? ymm_nibbles(first, 0) : first,                                             \
                                  nibbles ? ymm_nibbles(first, 1) : load_32(weight + 32)};                             \
            for (int r = 0; r < rows; r++) {                                                                           \
                const __m256i four = _mm256_set1_epi32(four_bytes(x[r] + i));                                          \
                sum[r][0] = dot(sum[r][0], four, w[0]), sum[r][1] = dot(sum[r][1], four, w[1]);                        \
            }                                                                                                          \
        }                                                                                                              \
        return weight;                                                                                                 \
    }                                                                                                                  \
    inlined void NAME(accumulate_four)(__m256i *sum, const uint8_t *const *x, const int8_t *weight) {                  \
        __m128i v[4];                                                                                                  \
        interleave_four(x, v);                                                                                         \
        sum[0] = dot(sum[0], _mm256_setr_m128i(v[0], v[1]), load_32(weight));                                          \
        sum[1] = dot(sum[1], _mm256_setr_m128i(v[2], v[3]), load_32(weight + 32));                                     \
    }

/* ---- AVX2, where no pair of products can saturate ------------------------------------------------------------------- */

AVX2_INLINE __m256i dot_pairs(__m256i sum, __m256i x, __m256i weight) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(x, weight), _mm256_set1_epi16(1)));
}

#define NAME(f) avx2_##f
#define TILE_TARGET TARGET("avx2")
#define TILE_INLINE AVX2_INLINE
#define ROWS 4
PRODUCTS(AVX2_INLINE, dot_pairs)
#define NIBBLES
#include "conv_tiles.h"
const tile_kernels avx2_tiles = {4, 0, avx2_dense, avx2_depthwise, avx2_dense_nibbles};

/* ---- AVX2 for all weights: products of 16-bit integers -------------------------------------------------------------- */

#define NAME(f) avx2_wide_##f
#define TILE_TARGET TARGET("avx2")
#define TILE_INLINE AVX2_INLINE
#define ROWS 4

/* Two weights of each of eight channels. */
AVX2_INLINE __m256i wide_weights(const int8_t *weight) { return _mm256_cvtepi8_epi16(load_16(weight)); }

AVX2_INLINE const int8_t *avx2_wide_accumulate(__m256i sum[ROWS][VECTORS], const uint8_t *const *x, const int8_t *weight,
                                               isize bytes, const int rows, const int nibbles) {
    (void)nibbles;
    for (isize i = 0; i < bytes; i += 2, weight += 32) {
        const __m256i w[2] = {wide_weights(weight), wide_weights(weight + 16)};
        for (int r = 0; r < rows; r++) {
            const __m256i two = _mm256_set1_epi32(x[r][i] | x[r][i + 1] << 16);
            for (int v = 0; v < 2; v++) sum[r][v] = _mm256_add_epi32(sum[r][v], _mm256_madd_epi16(two, w[v]));
        }
    }
    return weight;
}

AVX2_INLINE void avx2_wide_accumulate_four(__m256i *sum, const uint8_t *const *x, const int8_t *weight) {
    for (int k = 0; k < 4; k += 2, weight += 32) {
        const __m128i a = load_16(x[k]), b = load_16(x[k + 1]);
        const __m256i low = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b));
        const __m256i high = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b));
        sum[0] = _mm256_add_epi32(sum[0], _mm256_madd_epi16(low, wide_weights(weight)));
        sum[1] = _mm256_add_epi32(sum[1], _mm256_madd_epi16(high, wide_weights(weight + 16)));
    }
}

#include "conv_tiles.h"
const tile_kernels avx2_wide_tiles = {2, 0, avx2_wide_dense, avx2_wide_depthwise, NULL};

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
static const tile_kernels vex_tiles = {4, 0, avx_vnni_dense, avx_vnni_depthwise, avx_vnni_dense_nibbles};
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
static const tile_kernels evex_tiles = {4, 0, evex_dense, evex_depthwise, evex_dense_nibbles};

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
#define VECTOR(f) zmm_##f
#define ints __m512i
#define floats __m512
#define LANES 16
#define VECTORS 1
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

/* Inline assembly for the reason that conv.h gives. */
TILE_INLINE __m512i dot_zmm(__m512i sum, __m512i x, __m512i weight) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(weight));
    return sum;
}

TILE_INLINE const int8_t *avx512_accumulate(__m512i sum[ROWS][VECTORS], const uint8_t *const *x, const int8_t *weight,
                                            isize bytes, const int rows, const int nibbles) {
    (void)nibbles;
    for (isize i = 0; i < bytes; i += 4, weight += 64) {
        const __m512i w = _mm512_loadu_si512(weight);
        for (int r = 0; r < rows; r++) sum[r][0] = dot_zmm(sum[r][0], _mm512_set1_epi32(four_bytes(x[r] + i)), w);
    }
    return weight;
}

TILE_INLINE void avx512_accumulate_four(__m512i *sum, const uint8_t *const *x, const int8_t *weight) {
    __m128i v[4];
    interleave_four(x, v);
    const __m256i low = _mm256_setr_m128i(v[0], v[1]), high = _mm256_setr_m128i(v[2], v[3]);
    *sum = dot_zmm(*sum, _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1), _mm512_loadu_si512(weight));
}

#include "conv_tiles.h"
const tile_kernels avx512_tiles = {4, 0, avx512_dense, avx512_depthwise, NULL};
#endif
