/* Steps that move or order elements by indices that the network computes, and sums up to each element, along one dimension of
   x (outer, size, inner). Elements are float32, int64 or bytes. */

#include "plan.h"

enum { FLOAT32, INT64, BYTES };                        /* types of elements */
enum { TAKEN_LAST, ADDED, MULTIPLIED, LARGEST, LEAST }; /* what a scatter does where several elements have one place */

static isize type_size(int64_t type) { return type == FLOAT32 ? 4 : type == INT64 ? 8 : 1; }

/* An index of a kernel is one of the outer dimension and of the inner one: a column. */
typedef struct {
    const uint8_t *x;
    const int64_t *index;
    const uint8_t *source;
    uint8_t *y;
    isize size, count, inner, element; /* count: indices of a column */
    int64_t function, type;
} column_args;

INLINE isize column_start(const column_args *a, isize column, isize rows) {
    return column / a->inner * rows * a->inner + column % a->inner;
}

/* An index outside counts as the nearest inside. */
INLINE isize inside(int64_t index, isize size) { return index < 0 ? 0 : index >= size ? size - 1 : (isize)index; }

static isize elements_of(int64_t outer, int64_t rows, int64_t inner) {
    return checked_product(checked_product((isize)outer, (isize)inner), (isize)rows);
}

/* ---- gather ------------------------------------------------------------------------------------------------------------- */

int check_gather(checker *c, const int64_t *step) {
    const gather_step *s = (const gather_step *)(const void *)step;
    const isize count = elements_of(s->outer, s->count, s->inner);
    if (s->type < FLOAT32 || s->type > BYTES || (count && s->size < 1)) return refuse(c, "elements of no such type or number");
    return needs(c, s->x, elements_of(s->outer, s->size, s->inner), type_size(s->type), "x") &&
           needs(c, s->index, count, 8, "index") && needs(c, s->y, count, type_size(s->type), "y");
}

static void gather_kernel(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const column_args *a = (const column_args *)given;
    (void)scratch;
    for (isize column = lo; column < hi; column++) {
        const uint8_t *x = a->x + column_start(a, column, a->size) * a->element;
        isize at = column_start(a, column, a->count);
        for (isize j = 0; j < a->count; j++, at += a->inner) {
            const uint8_t *from = x + inside(a->index[at], a->size) * a->inner * a->element;
            if (a->element == 4)
                memcpy(a->y + 4 * at, from, 4);
            else
                memcpy(a->y + a->element * at, from, (size_t)a->element);
        }
    }
}

void run_gather(frame *f, const int64_t *step, void *prepared) {
    const gather_step *s = (const gather_step *)(const void *)step;
    const column_args a = {.x = at(f, s->x), .index = at(f, s->index), .y = at(f, s->y), .size = (isize)s->size,
                           .count = (isize)s->count, .inner = (isize)s->inner, .element = type_size(s->type)};
    const isize columns = (isize)(s->outer * s->inner);
    (void)prepared;
    if (columns && a.count) parallel(f, gather_kernel, &a, columns, columns * a.count * 8);
}

/* ---- scatter ------------------------------------------------------------------------------------------------------------ */

int check_scatter(checker *c, const int64_t *step) {
    const scatter_step *s = (const scatter_step *)(const void *)step;
    const isize count = elements_of(s->outer, s->count, s->inner), size = type_size(s->type);
    if (s->type < FLOAT32 || s->type > BYTES || s->function < TAKEN_LAST || s->function > LEAST ||
        (s->type == BYTES && s->function != TAKEN_LAST) || (count && s->size < 1))
        return refuse(c, "elements of no such type or number");
    return needs(c, s->x, elements_of(s->outer, s->size, s->inner), size, "x") && needs(c, s->index, count, 8, "index") &&
           needs(c, s->source, count, size, "source") && needs(c, s->y, elements_of(s->outer, s->size, s->inner), size, "y");
}

/* As numpy reduces: NaN stays. */
INLINE float reduced_float(float u, float v, int64_t function) {
    return function == ADDED        ? u + v
           : function == MULTIPLIED ? u * v
           : function == LARGEST    ? (u > v || u != u ? u : v)
           : function == LEAST      ? (u < v || u != u ? u : v)
                                    : v;
}

INLINE int64_t reduced_int64(int64_t u, int64_t v, int64_t function) {
    return function == ADDED        ? (int64_t)((uint64_t)u + (uint64_t)v)
           : function == MULTIPLIED ? (int64_t)((uint64_t)u * (uint64_t)v)
           : function == LARGEST    ? (u > v ? u : v)
           : function == LEAST      ? (u < v ? u : v)
                                    : v;
}

static void scatter_kernel(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const column_args *a = (const column_args *)given;
    (void)scratch;
    for (isize column = lo; column < hi; column++) {
        const isize begin = column_start(a, column, a->size);
        isize from = column_start(a, column, a->count);
        for (isize j = 0, k = begin; j < a->size; j++, k += a->inner)
            memcpy(a->y + k * a->element, a->x + k * a->element, (size_t)a->element);
        for (isize j = 0; j < a->count; j++, from += a->inner) {
            const isize to = begin + inside(a->index[from], a->size) * a->inner;
            if (a->type == FLOAT32)
                ((float *)(void *)a->y)[to] = reduced_float(((const float *)(const void *)a->y)[to],
                                                            ((const float *)(const void *)a->source)[from], a->function);
            else if (a->type == INT64)
                ((int64_t *)(void *)a->y)[to] = reduced_int64(((const int64_t *)(const void *)a->y)[to],
                                                              ((const int64_t *)(const void *)a->source)[from], a->function);
            else
                a->y[to] = a->source[from];
        }
    }
}

void run_scatter(frame *f, const int64_t *step, void *prepared) {
    const scatter_step *s = (const scatter_step *)(const void *)step;
    const column_args a = {at(f, s->x), at(f, s->index), at(f, s->source), at(f, s->y), (isize)s->size, (isize)s->count,
                           (isize)s->inner, type_size(s->type), s->function, s->type};
    const isize columns = (isize)(s->outer * s->inner);
    (void)prepared;
    if (columns && a.size) parallel(f, scatter_kernel, &a, columns, columns * (a.size + a.count) * 8);
}

/* ---- cumsum ------------------------------------------------------------------------------------------------------------- */

int check_cumsum(checker *c, const int64_t *step) {
    const cumsum_step *s = (const cumsum_step *)(const void *)step;
    const isize count = elements_of(s->outer, s->size, s->inner);
    if (s->type < FLOAT32 || s->type > BYTES) return refuse(c, "elements of no such type");
    return needs(c, s->x, count, type_size(s->type), "x") && needs(c, s->y, count, s->type == FLOAT32 ? 4 : 8, "y");
}

/* Sums of float32 are float32, one rounding each; others are int64. */
static void cumsum_kernel(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const column_args *a = (const column_args *)given;
    (void)scratch;
    for (isize column = lo; column < hi; column++) {
        float sum = 0;
        uint64_t whole = 0;
        isize i = column_start(a, column, a->size);
        for (isize j = 0; j < a->size; j++, i += a->inner)
            if (a->type == FLOAT32) {
                const float x = ((const float *)(const void *)a->x)[i];
                ((float *)(void *)a->y)[i] = sum = j ? sum + x : x;
            } else {
                whole += a->type == INT64 ? ((const uint64_t *)(const void *)a->x)[i] : a->x[i];
                ((uint64_t *)(void *)a->y)[i] = whole;
            }
    }
}

void run_cumsum(frame *f, const int64_t *step, void *prepared) {
    const cumsum_step *s = (const cumsum_step *)(const void *)step;
    const column_args a = {.x = at(f, s->x), .y = at(f, s->y), .size = (isize)s->size, .inner = (isize)s->inner, .type = s->type};
    const isize columns = (isize)(s->outer * s->inner);
    (void)prepared;
    if (columns && a.size) parallel(f, cumsum_kernel, &a, columns, columns * a.size * 8);
}

/* ---- argsort ------------------------------------------------------------------------------------------------------------ */

int check_argsort(checker *c, const int64_t *step) {
    const argsort_step *s = (const argsort_step *)(const void *)step;
    const isize count = elements_of(s->outer, s->size, s->inner);
    if (s->type < FLOAT32 || s->type > BYTES) return refuse(c, "elements of no such type");
    c->scratch = checked_product((isize)s->size, 16);
    return needs(c, s->x, count, type_size(s->type), "x") && needs(c, s->y, count, 8, "y");
}

/* Whether element v comes before element u, which stands before it: only then do they change places. */
INLINE int comes_first(const column_args *a, isize begin, int64_t v, int64_t u) {
    const isize i = begin + (isize)v * a->inner, j = begin + (isize)u * a->inner;
    const int descending = a->function != 0;
    if (a->type == FLOAT32) { /* NaN is the largest */
        const float x = ((const float *)(const void *)a->x)[i], y = ((const float *)(const void *)a->x)[j];
        return descending ? (x > y || (x != x && y == y)) : (x < y || (y != y && x == x));
    }
    if (a->type == INT64) {
        const int64_t x = ((const int64_t *)(const void *)a->x)[i], y = ((const int64_t *)(const void *)a->x)[j];
        return descending ? x > y : x < y;
    }
    return descending ? a->x[i] > a->x[j] : a->x[i] < a->x[j];
}

/* A merge sort from runs of one element on, which keeps the order of equal ones. */
static void argsort_kernel(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const column_args *a = (const column_args *)given;
    const isize n = a->size;
    for (isize column = lo; column < hi; column++) {
        const isize begin = column_start(a, column, n);
        int64_t *from = (int64_t *)(void *)scratch, *to = from + n, *y = (int64_t *)(void *)a->y + begin;
        for (isize i = 0; i < n; i++) from[i] = i;
        for (isize run = 1; run < n; run *= 2) {
            for (isize start = 0; start < n; start += 2 * run) {
                const isize middle = min_size(start + run, n), end = min_size(start + 2 * run, n);
                for (isize i = start, j = middle, k = start; k < end; k++)
                    to[k] = i < middle && (j == end || !comes_first(a, begin, from[j], from[i])) ? from[i++] : from[j++];
            }
            int64_t *other = from;
            from = to, to = other;
        }
        for (isize i = 0; i < n; i++) y[i * a->inner] = from[i];
    }
}

void run_argsort(frame *f, const int64_t *step, void *prepared) {
    const argsort_step *s = (const argsort_step *)(const void *)step;
    const column_args a = {.x = at(f, s->x), .y = at(f, s->y), .size = (isize)s->size, .inner = (isize)s->inner,
                           .function = s->descending, .type = s->type};
    const isize columns = (isize)(s->outer * s->inner);
    (void)prepared;
    if (columns && a.size) parallel(f, argsort_kernel, &a, columns, columns * a.size * 64);
}

/* ---- integer_reduce ----------------------------------------------------------------------------------------------------- */

/* Functions up to the place of the first largest element are those of a scatter, the sum first. */
#define ARGMAX 4

int check_integer_reduce(checker *c, const int64_t *step) {
    const integer_reduce_step *s = (const integer_reduce_step *)(const void *)step;
    if (s->type < FLOAT32 || s->type > BYTES || s->function < 0 || s->function > ARGMAX || s->size < 1 ||
        (s->type == FLOAT32 && s->function != ARGMAX))
        return refuse(c, "a reduction of no such type, function or size");
    return needs(c, s->x, elements_of(s->outer, s->size, s->inner), type_size(s->type), "x") &&
           needs(c, s->y, elements_of(s->outer, 1, s->inner), 8, "y");
}

/* The place of the first largest element; NaN is larger than all. */
INLINE int64_t largest_float(const float *x, isize size, isize inner) {
    isize best = 0;
    for (isize j = 1; j < size; j++) {
        const float u = x[best * inner], v = x[j * inner];
        if (v > u || (v != v && u == u)) best = j;
    }
    return best;
}

static void integer_reduce_kernel(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const column_args *a = (const column_args *)given;
    (void)scratch;
    for (isize column = lo; column < hi; column++) {
        isize i = column_start(a, column, a->size);
        int64_t *y = (int64_t *)(void *)a->y + column, best = 0;
        if (a->type == FLOAT32) {
            *y = largest_float((const float *)(const void *)a->x + i, a->size, a->inner);
            continue;
        }
        for (isize j = 0; j < a->size; j++, i += a->inner) {
            const int64_t v = a->type == INT64 ? ((const int64_t *)(const void *)a->x)[i] : a->x[i];
            if (!j || (a->function == ARGMAX && v > *y)) best = j, *y = v;
            else if (a->function != ARGMAX)
                *y = reduced_int64(*y, v, ADDED + a->function);
        }
        if (a->function == ARGMAX) *y = best;
    }
}

void run_integer_reduce(frame *f, const int64_t *step, void *prepared) {
    const integer_reduce_step *s = (const integer_reduce_step *)(const void *)step;
    const column_args a = {.x = at(f, s->x), .y = at(f, s->y), .size = (isize)s->size, .inner = (isize)s->inner,
                           .function = s->function, .type = s->type};
    const isize columns = (isize)(s->outer * s->inner);
    (void)prepared;
    if (columns) parallel(f, integer_reduce_kernel, &a, columns, columns * a.size * 8);
}
