/* Steps of several operands that may broadcast: sums and products. */

#include "broadcast.h"

/* ---- rows of operands ------------------------------------------------------------------------------------------------- */

int make_broadcast(checker *c, broadcast *b, const int64_t *sizes, int64_t rank, const uint8_t *masks, isize operands,
                   int whole) {
    if (rank < 0 || rank > MAX_RANK || operands < 1 || operands > MAX_OPERANDS)
        return refuse(c, "operands of no such rank or number");
    isize size[MAX_RANK + 1], dims = 0, previous = -1;
    isize source[MAX_RANK + 1]; /* the dimension whose bits hold for a merged one */
    b->count = 1, b->operands = operands;
    for (isize k = 0; k < rank; k++) b->count = checked_product(b->count, (isize)sizes[k]);
    if (b->count < 0) return refuse(c, "a result of no such size");
    if (!b->count) return 1; /* nothing is computed */
    for (isize k = 0; k < rank; k++) {
        const int last = whole && k == rank - 1;
        if (sizes[k] == 1 && !last) continue;
        int alike = previous >= 0 && !last;
        for (isize j = 0; alike && j < operands; j++) alike = (masks[j] >> k & 1) == (masks[j] >> previous & 1);
        if (alike)
            size[dims - 1] *= (isize)sizes[k];
        else
            size[dims] = (isize)sizes[k], source[dims] = k, dims++;
        previous = k;
    }
    if (!dims) size[0] = 1, source[0] = -1, dims = 1;
    b->rank = dims - 1, b->row = size[dims - 1], b->rows = b->count / b->row;
    for (isize j = 0; j < operands; j++) {
        isize stride = 1;
        for (isize k = dims - 1; k >= 0; k--) {
            const int one = source[k] >= 0 && (masks[j] >> source[k] & 1);
            if (k == dims - 1)
                b->step[j] = one ? 0 : 1;
            else
                b->size[k] = size[k], b->stride[k][j] = one ? 0 : stride;
            if (!one) stride *= size[k];
        }
        b->elements[j] = stride;
    }
    return 1;
}

void seek_row(const broadcast *b, isize row, row_position *at) {
    memset(at, 0, sizeof *at);
    for (isize k = b->rank - 1; k >= 0; k--) {
        at->index[k] = row % b->size[k], row /= b->size[k];
        for (isize j = 0; j < b->operands; j++) at->offset[j] += at->index[k] * b->stride[k][j];
    }
}

#define PIECE 4096 /* elements of a row that are one index of a kernel */

static isize pieces_of(const broadcast *b) { return ceil_div(b->row, PIECE); }

/* ---- add -------------------------------------------------------------------------------------------------------------- */

#define FLOAT_TERMS 7 /* whose sum float32 rounds less often than certificates allow: two roundings a term, one a sum */

typedef struct {
    const broadcast *b;
    const uint8_t *x[MAX_OPERANDS];
    uint8_t *y;
    const float *ratios;
    const int32_t *zeros;
    float low, high;
    int32_t zero;
} add_args;

int check_add(checker *c, const int64_t *step) {
    const add_step *s = (const add_step *)(const void *)step;
    isize terms;
    const int64_t *list = list_of(step, &terms);
    broadcast *b = (broadcast *)plan_memory(c, sizeof *b);
    const uint8_t *masks = (const uint8_t *)constant_at(c, s->broadcast);
    if (!b) return 0;
    const int32_t *zeros = (const int32_t *)constant_at(c, s->zeros);
    if (!masks || !zeros || !needs(c, s->broadcast, terms, 1, "broadcast") || !needs(c, s->zeros, terms, 4, "zeros"))
        return refuse(c, "a sum without constant zero points and masks");
    if (!make_broadcast(c, b, &s->d0, s->rank, masks, terms, 0)) return 0;
    for (isize j = 0; j < terms; j++)
        if (!needs(c, list[j], b->elements[j], 1, "x") || !check_clamp(c, zeros[j], 0, 255)) return 0;
    c->prepared = b;
    return check_clamp(c, s->zero, s->low, s->high) && needs(c, s->ratios, terms, 4, "ratios") &&
           needs(c, s->y, b->count, 1, "y");
}

/* sum = or += (x - zero) ratio, of elements that are `step` apart: 1 or 0. */
#define DEFINE_ADD_TERM(type)                                                                                        \
    INLINE void add_term_##type(const uint8_t *restrict x, isize step, type *restrict sum, isize count, int first,   \
                                int32_t zero, float ratio) {                                                         \
        if (!step) {                                                                                                 \
            const type all = (type)(*x - zero) * (type)ratio;                                                        \
            for (isize i = 0; i < count; i++) sum[i] = first ? all : sum[i] + all;                                   \
        } else if (first) {                                                                                          \
            for (isize i = 0; i < count; i++) sum[i] = (type)(x[i] - zero) * (type)ratio;                            \
        } else {                                                                                                     \
            for (isize i = 0; i < count; i++) sum[i] += (type)(x[i] - zero) * (type)ratio;                           \
        }                                                                                                            \
    }
DEFINE_ADD_TERM(float)
DEFINE_ADD_TERM(double)

/* Computes up to BLOCK elements of a row. Two terms, the usual number, need one pass. */
INLINE void add_block(const add_args *a, const row_position *at, isize from, isize count, uint8_t *restrict y) {
    const isize terms = a->b->operands;
    float sum[BLOCK];
    if (terms == 2 && a->b->step[0] && a->b->step[1]) {
        const uint8_t *restrict u = a->x[0] + at->offset[0] + from, *restrict v = a->x[1] + at->offset[1] + from;
        const int32_t zero_u = a->zeros[0], zero_v = a->zeros[1];
        const float ratio_u = a->ratios[0], ratio_v = a->ratios[1];
        for (isize i = 0; i < count; i++)
            y[i] = to_uint8((float)(u[i] - zero_u) * ratio_u + (float)(v[i] - zero_v) * ratio_v, a->low, a->high, a->zero);
        return;
    }
    if (terms <= FLOAT_TERMS) {
        for (isize j = 0; j < terms; j++)
            add_term_float(a->x[j] + at->offset[j] + from * a->b->step[j], a->b->step[j], sum, count, !j, a->zeros[j],
                           a->ratios[j]);
    } else {
        double exact[BLOCK];
        for (isize j = 0; j < terms; j++)
            add_term_double(a->x[j] + at->offset[j] + from * a->b->step[j], a->b->step[j], exact, count, !j, a->zeros[j],
                            a->ratios[j]);
        for (isize i = 0; i < count; i++) sum[i] = (float)exact[i];
    }
    for (isize i = 0; i < count; i++) y[i] = to_uint8(sum[i], a->low, a->high, a->zero);
}

/* An index is a piece of a row. */
MULTIVERSION static void add_kernel(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const add_args *a = (const add_args *)given;
    const isize pieces = ceil_div(a->b->row, PIECE);
    row_position at;
    (void)scratch;
    seek_row(a->b, lo / pieces, &at);
    for (isize i = lo; i < hi; i++) {
        const isize row = i / pieces, end = min_size((i % pieces + 1) * PIECE, a->b->row);
        for (isize from = i % pieces * PIECE; from < end; from += BLOCK)
            add_block(a, &at, from, min_size(end - from, BLOCK), a->y + row * a->b->row + from);
        if (end == a->b->row) next_row(a->b, &at);
    }
}

void run_add(frame *f, const int64_t *step, void *prepared) {
    const add_step *s = (const add_step *)(const void *)step;
    add_args a = {.b = (const broadcast *)prepared, .y = at(f, s->y), .ratios = at(f, s->ratios),
                  .zeros = at(f, s->zeros), .low = (float)(s->low - s->zero), .high = (float)(s->high - s->zero),
                  .zero = (int32_t)s->zero};
    isize terms;
    const int64_t *list = list_of(step, &terms);
    for (isize j = 0; j < terms; j++) a.x[j] = at(f, list[j]);
    if (a.b->count) parallel(f, add_kernel, &a, a.b->rows * pieces_of(a.b), a.b->count * terms);
}

/* ---- mul -------------------------------------------------------------------------------------------------------------- */

typedef struct {
    const broadcast *b;
    const uint8_t *x, *w;
    uint8_t *y;
    int32_t zero_x, zero_w, zero;
    float ratio, low, high;
} mul_args;

/* Of the two operands the second is the one that repeats; `swapped`: it is x. */
typedef struct {
    broadcast b;
    int swapped;
} mul_plan;

int check_mul(checker *c, const int64_t *step) {
    const mul_step *s = (const mul_step *)(const void *)step;
    mul_plan *t = (mul_plan *)plan_memory(c, sizeof *t);
    const uint8_t x = (uint8_t)s->broadcast_x, w = (uint8_t)s->broadcast_w, masks[2] = {x, w}, others[2] = {w, x};
    if (!t || !make_broadcast(c, &t->b, &s->d0, s->rank, masks, 2, 0)) return 0;
    broadcast *b = &t->b;
    const isize last = b->rank - 1;
    t->swapped = b->count && (!b->step[0] || (b->step[1] && b->rank && !b->stride[last][0] && b->stride[last][1]));
    if (t->swapped && !make_broadcast(c, b, &s->d0, s->rank, others, 2, 0)) return 0;
    if (b->count && !b->step[0]) return refuse(c, "a product of two values that both repeat");
    c->prepared = t;
    return check_clamp(c, s->zero, s->low, s->high) && check_clamp(c, s->zero_x, 0, 255) &&
           check_clamp(c, s->zero_w, 0, 255) && needs(c, s->x, b->elements[t->swapped], 1, "x") &&
           needs(c, s->w, b->elements[!t->swapped], 1, "w") && needs(c, s->y, b->count, 1, "y");
}

/* The product is exact in int32 and in float32; the ratio was rounded once, and their product is rounded once. */
INLINE void multiply_row(const uint8_t *restrict x, const uint8_t *restrict w, isize step_w, uint8_t *restrict y,
                         isize count, const mul_args *a) {
    const float ratio = a->ratio, low = a->low, high = a->high;
    const int32_t zero_x = a->zero_x, zero_w = a->zero_w, zero = a->zero;
    if (step_w) {
        for (isize i = 0; i < count; i++)
            y[i] = to_uint8((float)((x[i] - zero_x) * (w[i] - zero_w)) * ratio, low, high, zero);
    } else {
        const int32_t gate = *w - zero_w;
        for (isize i = 0; i < count; i++) y[i] = to_uint8((float)((x[i] - zero_x) * gate) * ratio, low, high, zero);
    }
}

/* An index is a piece of a row. */
MULTIVERSION static void mul_plain(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const mul_args *a = (const mul_args *)given;
    const isize pieces = ceil_div(a->b->row, PIECE), step_w = a->b->step[1];
    row_position at;
    (void)scratch;
    seek_row(a->b, lo / pieces, &at);
    for (isize i = lo; i < hi; i++) {
        const isize row = i / pieces, from = i % pieces * PIECE, count = min_size(a->b->row - from, PIECE);
        const uint8_t *x = a->x + at.offset[0] + from, *w = a->w + at.offset[1] + from * step_w;
        multiply_row(x, w, step_w, a->y + row * a->b->row + from, count, a);
        if (from + count == a->b->row) next_row(a->b, &at);
    }
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "avx512.h"

/* 64 bytes as floats. */
#define FOUR_QUARTERS(v, bytes)                                                                       \
    v[0] = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm512_castsi512_si128(bytes)));                   \
    v[1] = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(bytes, 1)));             \
    v[2] = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(bytes, 2)));             \
    v[3] = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(bytes, 3)));

/* The products of 16 bytes, rounded. Differences of bytes fit the lower halves of words, whose products are summed in
   pairs: those of the upper halves, of which `low_halves` leaves nothing, are 0. */
AVX512_INLINE __m512i multiply_16(__m128i x, __m512i gate, __m512i zero_x, __m512 ratio) {
    const __m512i products = _mm512_madd_epi16(_mm512_sub_epi32(_mm512_cvtepu8_epi32(x), zero_x), gate);
    return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_cvtepi32_ps(products), ratio));
}

AVX512_INLINE __m512i gate_16(__m128i w, __m512i zero_w) {
    return _mm512_and_si512(_mm512_sub_epi32(_mm512_cvtepu8_epi32(w), zero_w), _mm512_set1_epi32(0xffff));
}

/* As mul_plain. */
AVX512_TARGET static void mul_avx512(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const mul_args *a = (const mul_args *)given;
    const isize pieces = ceil_div(a->b->row, PIECE);
    const epilogue end = make_epilogue(a->zero, (int)a->low + a->zero, (int)a->high + a->zero);
    const __m512 ratio = _mm512_set1_ps(a->ratio);
    const __m512i zero_x = _mm512_set1_epi32(a->zero_x), zero_w = _mm512_set1_epi32(a->zero_w);
    row_position at;
    (void)scratch;
    seek_row(a->b, lo / pieces, &at);
    for (isize i = lo; i < hi; i++) {
        const isize row = i / pieces, from = i % pieces * PIECE, count = min_size(a->b->row - from, PIECE);
        const uint8_t *x = a->x + at.offset[0] + from, *w = a->w + at.offset[1] + from * a->b->step[1];
        uint8_t *y = a->y + row * a->b->row + from;
        __m512i all = _mm512_set1_epi8((char)*w);
        for (isize k = 0; k < count; k += VECTOR_BYTES) {
            const __mmask64 mask = byte_mask(count - k);
            const __m512i u = _mm512_maskz_loadu_epi8(mask, x + k);
            if (a->b->step[1]) all = _mm512_maskz_loadu_epi8(mask, w + k);
            const __m512i v[4] = {
                multiply_16(_mm512_castsi512_si128(u), gate_16(_mm512_castsi512_si128(all), zero_w), zero_x, ratio),
                multiply_16(_mm512_extracti32x4_epi32(u, 1), gate_16(_mm512_extracti32x4_epi32(all, 1), zero_w), zero_x, ratio),
                multiply_16(_mm512_extracti32x4_epi32(u, 2), gate_16(_mm512_extracti32x4_epi32(all, 2), zero_w), zero_x, ratio),
                multiply_16(_mm512_extracti32x4_epi32(u, 3), gate_16(_mm512_extracti32x4_epi32(all, 3), zero_w), zero_x, ratio)};
            _mm512_mask_storeu_epi8(y + k, mask, from_lane_order(to_bytes(v, &end)));
        }
        if (from + count == a->b->row) next_row(a->b, &at);
    }
}

#define LARGEST_SMALL_RATIO 0.4f /* products of bytes times it are rounded in int16 */

/* Whether every `size` rows that follow each other in x are multiplied by the same row of w, with small results. */
static int shares_gates(const mul_args *a) {
    const broadcast *b = a->b;
    return b->rank && pieces_of(b) == 1 && b->step[1] && !b->stride[b->rank - 1][1] &&
           b->stride[b->rank - 1][0] == b->row && a->ratio < LARGEST_SMALL_RATIO && a->ratio > -LARGEST_SMALL_RATIO;
}

/* Multiplies 64 columns of some rows, which are `apart`, by the same gates: (x - zero_x) (w - zero_w) is exact in float32. */
AVX512_INLINE void multiply_columns(const mul_args *a, const uint8_t *x, const uint8_t *w, uint8_t *y, isize rows, isize apart,
                                    __mmask64 mask, const epilogue *end) {
    const __m512 ratio = _mm512_set1_ps(a->ratio), zero_w = _mm512_set1_ps((float)a->zero_w);
    const __m512 zero_x = _mm512_set1_ps((float)-a->zero_x);
    const __m512i given = _mm512_maskz_loadu_epi8(mask, w);
    __m512 gate[4], offset[4], v[4];
    FOUR_QUARTERS(gate, given)
    for (int q = 0; q < 4; q++) gate[q] = _mm512_sub_ps(gate[q], zero_w), offset[q] = _mm512_mul_ps(gate[q], zero_x);
    for (isize r = 0; r < rows; r++, x += apart, y += apart) {
        const __m512i u = _mm512_maskz_loadu_epi8(mask, x);
        FOUR_QUARTERS(v, u)
        for (int q = 0; q < 4; q++) v[q] = _mm512_fmadd_ps(_mm512_fmadd_ps(v[q], gate[q], offset[q]), ratio, end->magic);
        _mm512_mask_storeu_epi8(y, mask, from_lane_order(small_to_bytes(v, end)));
    }
}

/* Multiplies rows of `row` bytes, one behind the other, by the same gates. */
AVX512_INLINE void multiply_rows(const mul_args *a, const uint8_t *x, const uint8_t *w, uint8_t *y, isize rows, isize row,
                                 const epilogue *end) {
    for (isize k = 0; k < row; k += VECTOR_BYTES)
        multiply_columns(a, x + k, w + k, y + k, rows, row, byte_mask(row - k), end);
}

#define MAX_TOGETHER 2048 /* bytes of rows that are taken as one */

/* How many rows that follow each other fill whole vectors; 1 where these are too many. */
static isize rows_together(isize row) {
    const isize lowest = row & -row, rows = lowest < VECTOR_BYTES ? VECTOR_BYTES / lowest : 1;
    return rows * row <= MAX_TOGETHER ? rows : 1;
}

/* As mul_plain, where shares_gates() says so. */
AVX512_TARGET static void mul_shared(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const mul_args *a = (const mul_args *)given;
    const broadcast *b = a->b;
    const epilogue end = make_epilogue(a->zero, (int)a->low + a->zero, (int)a->high + a->zero);
    const isize row = b->row, together = rows_together(row);
    uint8_t gates[MAX_TOGETHER];
    (void)scratch;
    for (isize i = lo, rows; i < hi; i += rows) {
        row_position at;
        seek_row(b, i, &at);
        rows = min_size(hi - i, b->size[b->rank - 1] - at.index[b->rank - 1]);
        const uint8_t *x = a->x + at.offset[0], *w = a->w + at.offset[1];
        uint8_t *y = a->y + i * row;
        const isize whole = together > 1 ? rows / together : 0, done = whole * together;
        for (isize k = 0; whole && k < together; k++) memcpy(gates + k * row, w, (size_t)row);
        if (whole) multiply_rows(a, x, gates, y, whole, together * row, &end);
        if (done < rows) multiply_rows(a, x + done * row, w, y + done * row, rows - done, row, &end);
    }
}

static kernel mul_kernel(const mul_args *a) {
    if (has_avx512_vnni() && shares_gates(a)) return mul_shared;
    /* Beyond this ratio, which no real program has, results would not fit int32. */
    const int fits = a->ratio < 32768.0f && a->ratio > -32768.0f;
    return fits && has_avx512_vnni() ? mul_avx512 : mul_plain;
}
#else
static kernel mul_kernel(const mul_args *a) { return (void)a, mul_plain; }
#endif

void run_mul(frame *f, const int64_t *step, void *prepared) {
    const mul_step *s = (const mul_step *)(const void *)step;
    const mul_plan *t = (const mul_plan *)prepared;
    const broadcast *b = &t->b;
    mul_args a = {b, at(f, s->x), at(f, s->w), at(f, s->y), (int32_t)s->zero_x, (int32_t)s->zero_w,
                  (int32_t)s->zero, bits_float(s->ratio), (float)(s->low - s->zero), (float)(s->high - s->zero)};
    if (t->swapped) a.x = at(f, s->w), a.w = at(f, s->x), a.zero_x = (int32_t)s->zero_w, a.zero_w = (int32_t)s->zero_x;
    if (b->count) parallel(f, mul_kernel(&a), &a, b->rows * pieces_of(b), 2 * b->count);
}
