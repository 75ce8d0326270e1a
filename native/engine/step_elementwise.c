/* Steps of one pass over the elements of one value: quantize, tables. */

#include "byte_table.h"
#include "plan.h"
#include "quantize.h"

int check_clamp(checker *c, int64_t zero, int64_t low, int64_t high) {
    if (zero >= 0 && zero <= 255 && low >= 0 && low <= high && high <= 255) return 1;
    return refuse(c, "a clamp that does not fit a byte");
}

/* ---- quantize ------------------------------------------------------------------------------------------------------- */

int check_quantize(checker *c, const int64_t *step) {
    const quantize_step *s = (const quantize_step *)(const void *)step;
    const isize count = checked_product(checked_product((isize)s->batch, (isize)s->channels), (isize)s->pixels);
    return check_clamp(c, s->zero, s->low, s->high) && needs(c, s->x, count, 4, "x") && needs(c, s->y, count, 1, "y");
}

MULTIVERSION void quantize_line(const float *restrict x, uint8_t *restrict y, isize count, const quantize_args *a) {
    const float divisor = a->divisor, low = a->low, high = a->high;
    const int32_t zero = a->zero;
    isize i = 0;
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    if (has_avx512_vnni()) i = quantize_vectors(x, y, count, a);
#endif
    for (; i < count; i++) y[i] = to_uint8(x[i] / divisor, low, high, zero);
}

/* An index is a block of BLOCK elements. */
static void quantize_plain(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const quantize_args *a = (const quantize_args *)given;
    (void)scratch;
    const isize from = lo * BLOCK, end = min_size(hi * BLOCK, a->pixels);
    quantize_line(a->x + from, a->y + from, end - from, a);
}

#define PIXELS 1024 /* of a line that is quantized before its channels are interleaved */

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <immintrin.h>

/* Does what interleave_three does, sixteen pixels at a time, and returns how many. Byte i of piece k of 48 is of channel (16 k + i) % 3. */
__attribute__((target("avx2"))) static isize interleave_sixteen(const uint8_t (*line)[PIXELS], uint8_t *y, isize count) {
    __m128i pick[3][3];
    for (int k = 0; k < 3; k++)
        for (int c = 0; c < 3; c++) {
            int8_t from[16];
            for (int i = 0; i < 16; i++) from[i] = (int8_t)((16 * k + i) % 3 == c ? (16 * k + i) / 3 : -1);
            memcpy(&pick[k][c], from, 16);
        }
    isize i = 0;
    for (; i + 16 <= count; i += 16)
        for (int k = 0; k < 3; k++) {
            __m128i all = _mm_setzero_si128();
            for (int c = 0; c < 3; c++) {
                __m128i pixels;
                memcpy(&pixels, line[c] + i, 16);
                all = _mm_or_si128(all, _mm_shuffle_epi8(pixels, pick[k][c]));
            }
            memcpy(y + 3 * i + 16 * k, &all, 16);
        }
    return i;
}
#define HAS_SHUFFLES 1
#endif

/* Writes pixels of three channels, each of which has a line of PIXELS bytes. */
static void interleave_three(const uint8_t (*line)[PIXELS], uint8_t *y, isize count) {
    isize i = 0;
#if HAS_SHUFFLES
    if (current_isa() >= AVX2) i = interleave_sixteen(line, y, count);
#endif
    for (; i < count; i++)
        for (int c = 0; c < 3; c++) y[3 * i + c] = line[c][i];
}

/* An index is a block of PIXELS pixels of an image. */
static void quantize_nhwc(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const quantize_args *a = (const quantize_args *)given;
    const isize channels = a->channels, blocks = ceil_div(a->pixels, PIXELS);
    uint8_t line[3][PIXELS];
    (void)scratch;
    for (isize at = lo; at < hi; at++) {
        const isize n = at / blocks, from = at % blocks * PIXELS, count = min_size(a->pixels - from, PIXELS);
        uint8_t *y = a->y + (n * a->pixels + from) * channels;
        for (isize c = 0; c < channels; c++) {
            uint8_t *to = line[channels == 3 ? c : 0];
            quantize_line(a->x + (n * channels + c) * a->pixels + from, to, count, a);
            for (isize i = 0; channels != 3 && i < count; i++) y[i * channels + c] = to[i];
        }
        if (channels == 3) interleave_three((const uint8_t(*)[PIXELS])line, y, count);
    }
}

void run_quantize(frame *f, const int64_t *step, void *prepared) {
    const quantize_step *s = (const quantize_step *)(const void *)step;
    quantize_args a = {at(f, s->x), at(f, s->y), (isize)s->channels, (isize)s->pixels, bits_float(s->divisor),
                       (float)(s->low - s->zero), (float)(s->high - s->zero), (int32_t)s->zero};
    (void)prepared;
    const isize count = (isize)(s->batch * s->channels * s->pixels);
    if (!count) return;
    if (s->channels == 1) {
        a.pixels = count;
        parallel(f, quantize_plain, &a, ceil_div(count, BLOCK), count);
    } else {
        parallel(f, quantize_nhwc, &a, (isize)s->batch * ceil_div(a.pixels, PIXELS), count);
    }
}

/* ---- table ------------------------------------------------------------------------------------------------------------ */

typedef struct {
    const uint8_t *x, *table;
    uint8_t *y;
} table_args;

int check_table(checker *c, const int64_t *step) {
    const table_step *s = (const table_step *)(const void *)step;
    return needs(c, s->entries, 256, 1, "entries") && needs(c, s->x, (isize)s->count, 1, "x") &&
           needs(c, s->y, (isize)s->count, 1, "y");
}

static void table_kernel(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const table_args *a = (const table_args *)given;
    (void)scratch;
    look_up_bytes(a->table, a->x + lo, a->y + lo, hi - lo);
}

void run_table(frame *f, const int64_t *step, void *prepared) {
    const table_step *s = (const table_step *)(const void *)step;
    const table_args a = {at(f, s->x), at(f, s->entries), at(f, s->y)};
    (void)prepared;
    parallel(f, table_kernel, &a, (isize)s->count, (isize)s->count);
}
