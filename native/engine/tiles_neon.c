/* Kernels of convolutions for 64-bit Arm: NEON alone, with dot products (sdot), and with those of uint8 and int8 (i8mm). */

#if defined(__aarch64__) && (defined(__GNUC__) || defined(__clang__))
#include "conv_gather.h"

#include <arm_neon.h>

#define VECTOR(f) neon_##f
#define ints int32x4_t
#define floats float32x4_t
#define LANES 4
#define VECTORS 4
#define BLOCK_VECTORS VECTORS

INLINE int32x4_t neon_load_ints(const int32_t *x) { return vld1q_s32(x); }
INLINE void neon_store_ints(int32_t *to, int32x4_t x) { vst1q_s32(to, x); }
INLINE int32x4_t neon_set_ints(int32_t x) { return vdupq_n_s32(x); }
INLINE int32x4_t neon_add_ints(int32x4_t a, int32x4_t b) { return vaddq_s32(a, b); }
INLINE int32x4_t neon_subtract_ints(int32x4_t a, int32x4_t b) { return vsubq_s32(a, b); }
INLINE float32x4_t neon_load_floats(const float *x) { return vld1q_f32(x); }
INLINE float32x4_t neon_set_floats(float x) { return vdupq_n_f32(x); }
INLINE float32x4_t neon_to_floats(int32x4_t x) { return vcvtq_f32_s32(x); }
INLINE float32x4_t neon_multiply(float32x4_t a, float32x4_t b) { return vmulq_f32(a, b); }
INLINE float32x4_t neon_add(float32x4_t a, float32x4_t b) { return vaddq_f32(a, b); }
INLINE float32x4_t neon_maximum(float32x4_t a, float32x4_t b) { return vmaxnmq_f32(a, b); }
INLINE float32x4_t neon_minimum(float32x4_t a, float32x4_t b) { return vminnmq_f32(a, b); }
INLINE int32x4_t neon_round_floats(float32x4_t x) { return vcvtnq_s32_f32(x); }
INLINE float32x4_t neon_where_negative(int32x4_t x, float32x4_t a, float32x4_t b) {
    return vbslq_f32(vcltzq_s32(x), a, b);
}

INLINE void neon_widen(const uint8_t *x, int32x4_t *to) {
    const uint8x16_t bytes = vld1q_u8(x);
    const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_high_u8(bytes);
    to[0] = vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))), to[1] = vreinterpretq_s32_u32(vmovl_high_u16(low));
    to[2] = vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))), to[3] = vreinterpretq_s32_u32(vmovl_high_u16(high));
}

INLINE void neon_narrow(const int32x4_t *x, uint8_t *to) {
    const int16x8_t low = vmovn_high_s32(vmovn_s32(x[0]), x[1]), high = vmovn_high_s32(vmovn_s32(x[2]), x[3]);
    vst1q_u8(to, vreinterpretq_u8_s8(vmovn_high_s16(vmovn_s16(low), high)));
}

INLINE void neon_store_windows(const int32x4_t *v, const tile_panel *p, uint8_t *y) {
    const tile_finish *f = &p->finish;
    const int16x8_t zero = vdupq_n_s16((int16_t)f->zero);
    const int16x8_t low = vqaddq_s16(vqmovn_high_s32(vqmovn_s32(v[0]), v[1]), zero);
    const int16x8_t high = vqaddq_s16(vqmovn_high_s32(vqmovn_s32(v[2]), v[3]), zero);
    const uint8x16_t most = vminq_u8(vqmovun_high_s16(vqmovun_s16(low), high), vdupq_n_u8(f->most));
    const uint8x16_t bytes = vmaxq_u8(most, vdupq_n_u8(f->least));
    if (p->channels == TILE_CHANNELS) {
        vst1q_u8(y, bytes);
        return;
    }
    uint8_t few[TILE_CHANNELS];
    vst1q_u8(few, bytes);
    copy_few(y, few, p->channels);
}

INLINE void neon_store_rows(const int32x4_t *v, const int rows, const tile_panel *p, uint8_t *y) {
    for (int r = 0; r < rows; r++) neon_store_windows(v + VECTORS * r, p, y + r * p->stride);
}

/* ---- NEON alone: products of 16-bit integers -------------------------------------------------------------------------- */

#define NAME(f) neon_alone_##f
#define TILE_TARGET
#define TILE_INLINE INLINE
#define ROWS 4

/* Adds x times 8 weights; x is lane `lane` of a vector. */
#define ADD_LANE(sum, x, lane, w)                                      \
    (sum)[0] = vmlal_laneq_s16((sum)[0], vget_low_s16(w), x, lane),    \
    (sum)[1] = vmlal_high_laneq_s16((sum)[1], w, x, lane)

#define ADD_LANES(lane)                                                                           \
    do {                                                                                          \
        const int8x16_t w = vld1q_s8(weight + TILE_CHANNELS * (lane));                            \
        const int16x8_t low = vmovl_s8(vget_low_s8(w)), high = vmovl_high_s8(w);                  \
        for (int r = 0; r < rows; r++) ADD_LANE(sum[r], words[r], lane, low);                     \
        for (int r = 0; r < rows && vectors > 2; r++) ADD_LANE(sum[r] + 2, words[r], lane, high); \
    } while (0)

INLINE const int8_t *neon_alone_accumulate(int32x4_t sum[ROWS][VECTORS], const uint8_t *const *x, const int8_t *weight,
                                           isize bytes, const int rows, const int vectors, const int nibbles,
                                           const int32_t *order) {
    (void)nibbles, (void)order;
    for (isize i = 0; i < bytes; i += 4, weight += 4 * TILE_CHANNELS) {
        int16x8_t words[ROWS];
        for (int r = 0; r < rows; r++)
            words[r] = vreinterpretq_s16_u16(vmovl_u8(vcreate_u8((uint32_t)four_bytes(x[r] + i))));
        ADD_LANES(0);
        ADD_LANES(1);
        ADD_LANES(2);
        ADD_LANES(3);
    }
    return weight;
}

INLINE void neon_alone_accumulate_four(int32x4_t *sum, const uint8_t *const *x, const int8_t *weight, const int fits) {
    (void)fits;
    for (int k = 0; k < 4; k++) {
        const uint8x16_t bytes = vld1q_u8(x[k]);
        const int8x16_t w = vld1q_s8(weight + TILE_CHANNELS * k);
        const int16x8_t x0 = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(bytes))), w0 = vmovl_s8(vget_low_s8(w));
        const int16x8_t x1 = vreinterpretq_s16_u16(vmovl_high_u8(bytes)), w1 = vmovl_high_s8(w);
        sum[0] = vmlal_s16(sum[0], vget_low_s16(x0), vget_low_s16(w0)), sum[1] = vmlal_high_s16(sum[1], x0, w0);
        sum[2] = vmlal_s16(sum[2], vget_low_s16(x1), vget_low_s16(w1)), sum[3] = vmlal_high_s16(sum[3], x1, w1);
    }
}

#include "conv_tiles.h"
const tile_kernels neon_tiles = {1, 0, 0, 16, neon_alone_dense, neon_alone_depthwise, NULL};

/* ---- dot products of four bytes ------------------------------------------------------------------------------------------ */

#if defined(__clang__)
#define DOT_TARGET __attribute__((target("dotprod")))
#define DOT_INLINE static inline __attribute__((always_inline, target("dotprod")))
#define I8MM_TARGET __attribute__((target("dotprod,i8mm")))
#define I8MM_INLINE static inline __attribute__((always_inline, target("dotprod,i8mm")))
#else
#define DOT_TARGET __attribute__((target("arch=armv8.2-a+dotprod")))
#define DOT_INLINE static inline __attribute__((always_inline, target("arch=armv8.2-a+dotprod")))
#define I8MM_TARGET __attribute__((target("arch=armv8.2-a+dotprod+i8mm")))
#define I8MM_INLINE static inline __attribute__((always_inline, target("arch=armv8.2-a+dotprod+i8mm")))
#endif

/* Four taps of 16 channels, which stand together for each channel: vectors of four channels. */
INLINE void interleave_four(const uint8_t *const *x, uint8x16_t *to) {
    const uint8x16_t a = vld1q_u8(x[0]), b = vld1q_u8(x[1]), c = vld1q_u8(x[2]), d = vld1q_u8(x[3]);
    const uint16x8_t ab = vreinterpretq_u16_u8(vzip1q_u8(a, b)), cd = vreinterpretq_u16_u8(vzip1q_u8(c, d));
    const uint16x8_t AB = vreinterpretq_u16_u8(vzip2q_u8(a, b)), CD = vreinterpretq_u16_u8(vzip2q_u8(c, d));
    to[0] = vreinterpretq_u8_u16(vzip1q_u16(ab, cd)), to[1] = vreinterpretq_u8_u16(vzip2q_u16(ab, cd));
    to[2] = vreinterpretq_u8_u16(vzip1q_u16(AB, CD)), to[3] = vreinterpretq_u8_u16(vzip2q_u16(AB, CD));
}

/* Vector v of the weights of a word; of 4 bits, those of the first two are in the low halves of bytes. */
INLINE int8x16_t word_weights(const int8_t *word, int v, const int nibbles) {
    const int8x16_t w = vld1q_s8(word + 16 * (nibbles ? v % 2 : v));
    return !nibbles ? w : vshrq_n_s8(v < 2 ? vshlq_n_s8(w, 4) : w, 4);
}

/* Adds the products of four bytes of x, lane `lane` of a vector of 16, and weights of 16 channels. */
#define DOT_LANES(lane)                                                                          \
    for (int v = 0; v < vectors; v++) {                                                          \
        const int8x16_t w = word_weights(weight + (nibbles ? 32 : 64) * (lane), v, nibbles);     \
        for (int r = 0; r < rows; r++) sum[r][v] = DOT_LANE(sum[r][v], w, words[r], lane);       \
    }

/* Defines accumulate and accumulate_four by DOT_LANE, DOT, and READ, which makes operands of them of 16 bytes of x. */
#define PRODUCTS(inlined)                                                                                               \
    inlined const int8_t *NAME(accumulate)(int32x4_t sum[ROWS][VECTORS], const uint8_t *const *x, const int8_t *weight, \
                                           isize bytes, const int rows, const int vectors, const int nibbles,           \
                                           const int32_t *order) {                                                      \
        (void)order;                                                                                                    \
        isize i = 0;                                                                                                    \
        BYTES words[ROWS];                                                                                              \
        for (; i + 16 <= bytes; i += 16, weight += nibbles ? 128 : 256) {                                               \
            for (int r = 0; r < rows; r++) words[r] = READ(vld1q_u8(x[r] + i));                                         \
            DOT_LANES(0)                                                                                                \
            DOT_LANES(1)                                                                                                \
            DOT_LANES(2)                                                                                                \
            DOT_LANES(3)                                                                                                \
        }                                                                                                               \
        for (; i < bytes; i += 4, weight += nibbles ? 32 : 64) {                                                        \
            for (int r = 0; r < rows; r++)                                                                              \
                words[r] = READ(vreinterpretq_u8_s32(vdupq_n_s32(four_bytes(x[r] + i))));                               \
            DOT_LANES(0)                                                                                                \
        }                                                                                                               \
        return weight;                                                                                                  \
    }                                                                                                                   \
    inlined void NAME(accumulate_four)(int32x4_t *sum, const uint8_t *const *x, const int8_t *weight, const int fits) { \
        (void)fits;                                                                                                     \
        uint8x16_t words[4];                                                                                            \
        interleave_four(x, words);                                                                                      \
        for (int v = 0; v < VECTORS; v++) sum[v] = DOT(sum[v], READ(words[v]), vld1q_s8(weight + 16 * v));              \
    }

/* sdot multiplies signed bytes: x - 128, which the correction undoes. */
#define NAME(f) neon_dot_##f
#define TILE_TARGET DOT_TARGET
#define TILE_INLINE DOT_INLINE
#define ROWS 4
#define BYTES int8x16_t
#define READ(x) vreinterpretq_s8_u8(veorq_u8(x, vdupq_n_u8(128)))
#define DOT(sum, x, w) vdotq_s32(sum, x, w)
#define DOT_LANE(sum, w, x, lane) vdotq_laneq_s32(sum, w, x, lane)
PRODUCTS(DOT_INLINE)
#define NIBBLES
#include "conv_tiles.h"
const tile_kernels neon_dot_tiles = {4, 128, 0, 16, neon_dot_dense, neon_dot_depthwise, neon_dot_dense_nibbles};

#undef BYTES
#undef READ
#undef DOT
#undef DOT_LANE
#define NAME(f) neon_i8mm_##f
#define TILE_TARGET I8MM_TARGET
#define TILE_INLINE I8MM_INLINE
#define ROWS 4
#define BYTES uint8x16_t
#define READ(x) (x)
#define DOT(sum, x, w) vusdotq_s32(sum, x, w)
#define DOT_LANE(sum, w, x, lane) vsudotq_laneq_s32(sum, w, x, lane)
PRODUCTS(I8MM_INLINE)
#define NIBBLES
#include "conv_tiles.h"
const tile_kernels neon_i8mm_tiles = {4, 0, 0, 16, neon_i8mm_dense, neon_i8mm_depthwise, neon_i8mm_dense_nibbles};
#endif
