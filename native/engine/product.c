/* Products of rows of bytes with packed int8 weights, see product.h. */

#include "product.h"

#include "amx.h"

/* Packs words of four k that lie side by side. */
MULTIVERSION static void pack_words(const uint8_t *w, isize words, isize columns, isize c_stride, isize count, uint32_t flip,
                                    int8_t *to) {
    for (isize c = 0; c < columns; c++)
        for (isize k = 0; k < words; k++) {
            uint32_t word;
            memcpy(&word, w + c * c_stride + 4 * k, 4);
            word ^= flip;
            memcpy(to + (k * count + c) * 4, &word, 4);
        }
}

/* Packs words of four rows whose columns lie side by side. */
MULTIVERSION static void pack_rows(const uint8_t *w, isize words, isize columns, isize k_stride, isize count, uint8_t flip,
                                   int8_t *to) {
    for (isize k = 0; k < words; k++, w += 4 * k_stride, to += 4 * count) {
        const uint8_t *restrict a = w, *restrict b = w + k_stride, *restrict d = b + k_stride, *restrict e = d + k_stride;
        int8_t *restrict out = to;
        for (isize c = 0; c < columns; c++) {
            out[4 * c] = (int8_t)(a[c] ^ flip), out[4 * c + 1] = (int8_t)(b[c] ^ flip);
            out[4 * c + 2] = (int8_t)(d[c] ^ flip), out[4 * c + 3] = (int8_t)(e[c] ^ flip);
        }
    }
}

void pack_product(const uint8_t *w, isize depth, isize columns, isize width, isize k_stride, isize c_stride, uint8_t flip,
                  int8_t *to) {
    const isize words = packed_depth(depth) / 4, whole = depth / 4;
    for (isize from = 0; from < width; from += PRODUCT_COLUMNS) {
        const isize count = min_size(width - from, PRODUCT_COLUMNS), real = min_size(columns - from, count);
        int8_t *block = to + from * words * 4;
        const uint8_t *x = w + from * c_stride;
        if (real < count || whole < words) memset(block, 0, (size_t)(count * words * 4));
        if (k_stride == 1)
            pack_words(x, whole, real, c_stride, count, flip * 0x01010101u, block);
        else
            for (isize c = c_stride == 1 ? real : 0; c < real; c++)
                for (isize k = 0; k < 4 * whole; k++)
                    block[(k / 4 * count + c) * 4 + k % 4] = (int8_t)(x[k * k_stride + c * c_stride] ^ flip);
        if (c_stride == 1 && k_stride != 1) pack_rows(x, whole, real, k_stride, count, flip, block);
        for (isize k = 4 * whole; k < depth; k++)
            for (isize c = 0; c < real; c++)
                block[(whole * count + c) * 4 + k % 4] = (int8_t)(x[k * k_stride + c * c_stride] ^ flip);
    }
}

MULTIVERSION static void add_words(const int8_t *restrict weight, isize words, isize count, int32_t *restrict sums) {
    for (isize c = 0; c < count; c++) sums[c] = 0;
    for (isize k = 0; k < words; k++, weight += 4 * count)
        for (isize c = 0; c < count; c++)
            sums[c] += weight[4 * c] + weight[4 * c + 1] + weight[4 * c + 2] + weight[4 * c + 3];
}

/* sums[c] = Σ_k weight[k, c] of packed weights. */
static void sum_columns(const int8_t *weight, isize depth, isize columns, int32_t *sums) {
    for (isize from = 0; from < columns; from += PRODUCT_COLUMNS)
        add_words(weight + from * depth, depth / 4, min_size(columns - from, PRODUCT_COLUMNS), sums + from);
}

void pack_activations(const uint8_t *w, isize depth, isize columns, isize k_stride, isize c_stride, int zero_x, int zero_w,
                      int8_t *to, int32_t *offsets) {
    const isize wide = packed_columns(columns);
    const uint32_t zero = (uint32_t)zero_x, all = (uint32_t)(depth * zero_x * (zero_w - 128));
    pack_product(w, depth, columns, wide, k_stride, c_stride, 0x80, to);
    sum_columns(to, packed_depth(depth), wide, offsets);
    for (isize c = 0; c < wide; c++) offsets[c] = (int32_t)(all - zero * (uint32_t)offsets[c]);
}

MULTIVERSION static uint32_t sum_bytes(const uint8_t *restrict x, isize count) {
    uint32_t sum = 0;
    for (isize i = 0; i < count; i++) sum += x[i];
    return sum;
}

int32_t offset_of_row(const uint8_t *x, isize depth, int zero_w) {
    return zero_w == 128 ? 0 : (int32_t)((uint32_t)(128 - zero_w) * sum_bytes(x, depth));
}

MULTIVERSION void requantize_row(const int32_t *restrict sums, const int32_t *restrict offsets, int32_t offset,
                                 const requantization *to, uint8_t *restrict y, isize count) {
    const requantization t = *to;
    for (isize i = 0; i < count; i++) {
        const uint32_t sum = (uint32_t)sums[i] + (uint32_t)offsets[i] + (uint32_t)offset;
        y[i] = to_uint8((float)(int32_t)sum * t.ratio, t.low, t.high, t.zero);
    }
}

static void product_plain(const uint8_t *x, isize stride, isize rows, isize depth, const int8_t *weight, isize columns,
                          int32_t *sums, isize apart) {
    for (isize from = 0; from < columns; from += PRODUCT_COLUMNS) {
        const isize count = min_size(columns - from, PRODUCT_COLUMNS);
        for (isize r = 0; r < rows; r++) {
            const uint8_t *row = x + r * stride;
            const int8_t *restrict w = weight + from * depth;
            uint32_t sum[PRODUCT_COLUMNS] = {0}; /* sums of hostile plans wrap around */
            for (isize k = 0; k < depth; k += 4, w += 4 * count) {
                const int32_t a = row[k], b = row[k + 1], d = row[k + 2], e = row[k + 3];
                for (isize c = 0; c < count; c++)
                    sum[c] += (uint32_t)(a * w[4 * c] + b * w[4 * c + 1] + d * w[4 * c + 2] + e * w[4 * c + 3]);
            }
            memcpy(sums + r * apart + from, sum, (size_t)count * sizeof(int32_t));
        }
    }
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "conv.h"

#define ROWS 6 /* rows of a tile: with four vectors of columns, 24 registers of sums */

VNNI_INLINE void product_tile(const uint8_t *x, isize stride, isize depth, const int8_t *weight, int32_t *sums,
                              isize apart, const int rows, const int vectors, const int nibbles) {
    const uint8_t *row[ROWS];
    __m512i sum[ROWS][4];
    for (int r = 0; r < rows; r++) {
        row[r] = x + r * stride;
        for (int v = 0; v < vectors; v++) sum[r][v] = _mm512_setzero_si512();
    }
    for (isize k = 0; k < depth; k += 4, weight += vectors * VECTOR_BYTES / (nibbles ? 2 : 1)) {
        __m512i w[4];
        load_weights(weight, vectors, nibbles, w);
        for (int r = 0; r < rows; r++) {
            int32_t four;
            memcpy(&four, row[r] + k, 4);
            const __m512i bytes = _mm512_set1_epi32(four);
            for (int v = 0; v < vectors; v++) sum[r][v] = dot_product(sum[r][v], bytes, w[v]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            _mm512_storeu_si512(sums + r * apart + 16 * v, nibbles ? _mm512_srai_epi32(sum[r][v], 4) : sum[r][v]);
}

#define TILE_OF(rows, vectors) product_tile(x, stride, depth, weight, sums, apart, rows, vectors, nibbles)

/* One block of columns. Rows go in as few tiles as possible, of nearly the same size. */
VNNI_INLINE void product_block(const uint8_t *x, isize stride, isize rows, isize depth, const int8_t *weight,
                               int32_t *sums, isize apart, const int vectors, const int nibbles) {
    for (isize tiles = ceil_div(rows, ROWS); tiles; tiles--) {
        const isize count = ceil_div(rows, tiles);
        switch (count) {
            case 6: TILE_OF(6, vectors); break;
            case 5: TILE_OF(5, vectors); break;
            case 4: TILE_OF(4, vectors); break;
            case 3: TILE_OF(3, vectors); break;
            case 2: TILE_OF(2, vectors); break;
            default: TILE_OF(1, vectors); break;
        }
        rows -= count, x += count * stride, sums += count * apart;
    }
}

#define BLOCK_OF(name, vectors, nibbles)                                                                               \
    VNNI_TARGET static __attribute__((noinline)) void name(const uint8_t *x, isize stride, isize rows, isize depth,    \
                                                           const int8_t *weight, int32_t *sums, isize apart) {         \
        product_block(x, stride, rows, depth, weight, sums, apart, vectors, nibbles);                                  \
    }
BLOCK_OF(block_of_16, 1, 0)
BLOCK_OF(block_of_32, 2, 0)
BLOCK_OF(block_of_48, 3, 0)
BLOCK_OF(block_of_64, 4, 0)
BLOCK_OF(block_of_32_nibbles, 2, 1)
BLOCK_OF(block_of_64_nibbles, 4, 1)

void product_vnni(const uint8_t *x, isize stride, isize rows, isize depth, const int8_t *weight, isize columns, int32_t *sums,
                  isize apart) {
    for (isize from = 0; from < columns; from += PRODUCT_COLUMNS) {
        const int8_t *w = weight + from * depth;
        switch (min_size(columns - from, PRODUCT_COLUMNS) / 16) {
            case 1: block_of_16(x, stride, rows, depth, w, sums + from, apart); break;
            case 2: block_of_32(x, stride, rows, depth, w, sums + from, apart); break;
            case 3: block_of_48(x, stride, rows, depth, w, sums + from, apart); break;
            default: block_of_64(x, stride, rows, depth, w, sums + from, apart); break;
        }
    }
}

static void product_nibbles_vnni(const uint8_t *x, isize stride, isize rows, isize depth, const int8_t *weight, isize columns,
                                 int32_t *sums, isize apart) {
    for (isize from = 0; from < columns; from += PRODUCT_COLUMNS)
        (columns - from < PRODUCT_COLUMNS ? block_of_32_nibbles : block_of_64_nibbles)(
            x, stride, rows, depth, weight + from * depth / 2, sums + from, apart);
}

/* ---- AVX2: bytes become int16, whose products are added in pairs to int32 ------------------------------------------------ */

#define AVX2_ROWS 3 /* with four vectors of columns, 12 registers of sums */
#define AVX2_TARGET __attribute__((target("avx2")))
#define AVX2_INLINE static inline __attribute__((always_inline, target("avx2")))

/* The weights of four columns. */
AVX2_INLINE __m256i wide_weights(const int8_t *weight) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)weight));
}

/* 16 columns of some rows; `apart_k` is the distance of the words of weights. */
AVX2_INLINE void tile_avx2(const uint8_t *x, isize stride, isize depth, const int8_t *weight, isize apart_k, int32_t *sums,
                           isize apart, const int rows) {
    __m256i sum[AVX2_ROWS][4]; /* each two partial sums of four columns */
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 4; v++) sum[r][v] = _mm256_setzero_si256();
    for (isize k = 0; k < depth; k += 4, weight += apart_k) {
        __m256i four[AVX2_ROWS];
        for (int r = 0; r < rows; r++) {
            int32_t word;
            memcpy(&word, x + r * stride + k, 4);
            four[r] = _mm256_broadcastq_epi64(_mm_cvtepu8_epi16(_mm_cvtsi32_si128(word)));
        }
        for (int v = 0; v < 4; v++) {
            const __m256i w = wide_weights(weight + 16 * v);
            for (int r = 0; r < rows; r++) sum[r][v] = _mm256_add_epi32(sum[r][v], _mm256_madd_epi16(four[r], w));
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 4; v += 2) { /* both partial sums of eight columns, which come out lane by lane */
            const __m256i both = _mm256_permute4x64_epi64(_mm256_hadd_epi32(sum[r][v], sum[r][v + 1]), 0xd8);
            _mm256_storeu_si256((__m256i *)(void *)(sums + r * apart + 4 * v), both);
        }
}

AVX2_TARGET static void product_avx2(const uint8_t *x, isize stride, isize rows, isize depth, const int8_t *weight,
                                     isize columns, int32_t *sums, isize apart) {
    for (isize from = 0; from < columns; from += 16) {
        const isize block = from / PRODUCT_COLUMNS * PRODUCT_COLUMNS, wide = min_size(columns - block, PRODUCT_COLUMNS);
        const int8_t *w = weight + block * depth + (from - block) * 4;
        isize r = 0;
        for (; r + AVX2_ROWS <= rows; r += AVX2_ROWS)
            tile_avx2(x + r * stride, stride, depth, w, 4 * wide, sums + r * apart + from, apart, AVX2_ROWS);
        for (; r < rows; r++) tile_avx2(x + r * stride, stride, depth, w, 4 * wide, sums + r * apart + from, apart, 1);
    }
}

product_kernel product_of_isa(void) {
    const enum isa isa = current_isa();
#if HAS_AMX_KERNELS
    if (isa == AMX) return product_amx;
#endif
    return isa == AVX512_VNNI ? product_vnni : isa >= AVX2 && isa < AVX512_VNNI ? product_avx2 : product_plain;
}

product_kernel nibble_product_of_isa(void) { return has_avx512_vnni() ? product_nibbles_vnni : NULL; }
#else
product_kernel product_of_isa(void) { return product_plain; }
product_kernel nibble_product_of_isa(void) { return NULL; }
#endif
