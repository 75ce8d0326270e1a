/* Tiles of AMX: registers of 16 rows of 64 bytes. A product adds to 16 rows of 16 int32 what rows of 64 bytes give with packed
   int8 weights, 16 words of four bytes of 16 columns: exact sums, as vpdpbusd has them. */

#ifndef INTACT8_AMX_H
#define INTACT8_AMX_H

#include "core.h"

#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
#define WITHOUT_AMX_KERNELS 1 /* it does not know that inline assembly stores sums */
#endif
#endif

#if !WITHOUT_AMX_KERNELS && defined(__linux__) && defined(__x86_64__) && (defined(__clang__) ? __clang_major__ >= 12 : defined(__GNUC__) && __GNUC__ >= 11)
#define HAS_AMX_KERNELS 1
#include "avx512.h"

#define AMX_ROWS 16
#define AMX_BYTES 64           /* of a row, and of the products of one instruction that become a sum */
#define AMX_FEWEST_ROWS 4      /* that take no less time than as many with vpdpbusd */
#define AMX_WEIGHT_BYTES (AMX_ROWS * AMX_BYTES)

#define AMX_FEATURES "avx512f,avx512bw,avx512vl,avx512vnni,prfchw,amx-tile,amx-int8"
#define AMX_TARGET __attribute__((target(AMX_FEATURES)))
#define AMX_INLINE static inline __attribute__((always_inline, target(AMX_FEATURES)))

/* Inline assembly: GCC's intrinsics do not say that they read and write memory. Nothing else than these uses tiles. */
#define TILE_LOAD(tile, at, apart) __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(at), "r"(apart))
#define TILE_STORE(tile, at, apart) __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(at), "r"(apart) : "memory")
#define TILE_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile : :)
#define TILE_PRODUCT(sums, rows, weights) \
    __asm__ volatile("tdpbusd %%tmm" #weights ", %%tmm" #rows ", %%tmm" #sums : :)

/* Makes all eight tiles of the thread whole ones, until amx_end(). */
AMX_INLINE void amx_begin(void) {
    static const struct {
        uint8_t palette, first_row, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } whole = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    __asm__ volatile("ldtilecfg %0" : : "m"(whole));
}

AMX_INLINE void amx_end(void) { __asm__ volatile("tilerelease" : :); }

/* Copies `rows` rows of so many whole pieces of 64 bytes and those of `rest`, which are `line` bytes apart, one behind the other,
   `bytes` apart; up to 63 bytes behind the last one may be stored, which are 0 then. */
AMX_INLINE void copy_rows(uint8_t *to, const uint8_t *from, isize rows, isize line, isize bytes, isize whole, __mmask64 rest) {
    for (isize r = 0; r < rows; r++, to += bytes, from += line) {
        for (isize i = 0; i < whole; i++) _mm512_storeu_si512(to + i * AMX_BYTES, _mm512_loadu_si512(from + i * AMX_BYTES));
        if (rest) _mm512_storeu_si512(to + whole * AMX_BYTES, _mm512_maskz_loadu_epi8(rest, from + whole * AMX_BYTES));
    }
}

/* Copies the weights of fewer than 16 words, `apart` bytes from one to the next, and 0 for the others. */
INLINE void copy_words(int8_t *to, const int8_t *from, isize words, isize apart) {
    memcpy(to, from, (size_t)(words * apart));
    memset(to + words * apart, 0, (size_t)((AMX_ROWS - words) * apart));
}

/* 16 rows, `apart` bytes from one to the next. */
typedef struct {
    const uint8_t *x;
    isize apart;
} amx_rows;

/* Adds the products of `pieces` times 64 bytes of 16 or 32 rows (`groups`) to the sums of 16 or 32 columns (`blocks`), which are
   in tiles 0 to 3. Words of weights are `apart` bytes from one to the next. */
AMX_INLINE void amx_products(const amx_rows *x, isize pieces, const int8_t *weight, isize apart, const int groups,
                             const int blocks) {
    const uint8_t *first = x[0].x, *second = groups > 1 ? x[1].x : NULL;
    const isize first_apart = x[0].apart, second_apart = groups > 1 ? x[1].apart : 0;
    __asm__ volatile("" : : : "memory"); /* what was stored before is read here */
    for (; pieces > 0; pieces--, first += AMX_BYTES, second += AMX_BYTES, weight += AMX_ROWS * apart) {
        TILE_LOAD(6, weight, apart);
        TILE_LOAD(4, first, first_apart);
        TILE_PRODUCT(0, 4, 6);
        if (blocks > 1) TILE_LOAD(7, weight + AMX_BYTES, apart);
        if (blocks > 1) TILE_PRODUCT(1, 4, 7);
        if (groups > 1) TILE_LOAD(5, second, second_apart);
        if (groups > 1) TILE_PRODUCT(2, 5, 6);
        if (groups > 1 && blocks > 1) TILE_PRODUCT(3, 5, 7);
    }
}

/* Stores the sums that amx_products() left, `apart` bytes from one row to the next. */
AMX_INLINE void amx_store(int32_t *sums, isize apart, const int groups, const int blocks) {
    TILE_STORE(0, sums, apart);
    if (blocks > 1) TILE_STORE(1, sums + 16, apart);
    int32_t *second = sums + AMX_ROWS * (apart / 4);
    if (groups > 1) TILE_STORE(2, second, apart);
    if (groups > 1 && blocks > 1) TILE_STORE(3, second + 16, apart);
}

AMX_INLINE void amx_zero(void) {
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
}

/* Begins sums of columns with their biases. */
AMX_INLINE void amx_load_biases(const int32_t *bias, const int groups, const int blocks) {
    const isize none = 0; /* every row is the same */
    TILE_LOAD(0, bias, none);
    if (blocks > 1) TILE_LOAD(1, bias + 16, none);
    if (groups > 1) TILE_LOAD(2, bias, none);
    if (groups > 1 && blocks > 1) TILE_LOAD(3, bias + 16, none);
}
#endif
#endif
