/* Steps that read rows of tables by index. */

#include "plan.h"

/* Whether indices are rows of a table; if not, the call fails. */
static int check_indices(frame *f, const int64_t *index, isize count, int64_t rows) {
    uint64_t most = 0; /* negative indices become larger than any number of rows */
    for (isize i = 0; i < count; i++) most = (uint64_t)index[i] > most ? (uint64_t)index[i] : most;
    if (count && most >= (uint64_t)rows) f->failure = 1;
    return !f->failure;
}

/* ---- take_rows ---------------------------------------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *x;
    const int64_t *index;
    uint8_t *y;
    isize rows, count, bytes;
} take_rows_args;

int check_take_rows(checker *c, const int64_t *step) {
    const take_rows_step *s = (const take_rows_step *)(const void *)step;
    const isize from = checked_product(checked_product((isize)s->outer, (isize)s->rows), (isize)s->bytes);
    const isize to = checked_product(checked_product((isize)s->outer, (isize)s->count), (isize)s->bytes);
    return needs(c, s->x, from, 1, "x") && needs(c, s->y, to, 1, "y") && needs(c, s->index, (isize)s->count, 8, "index");
}

static void take_rows_kernel(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const take_rows_args *a = (const take_rows_args *)given;
    (void)scratch;
    for (isize i = lo; i < hi; i++) {
        const uint8_t *from = a->x + (i / a->count * a->rows + (isize)a->index[i % a->count]) * a->bytes;
        memcpy(a->y + i * a->bytes, from, (size_t)a->bytes);
    }
}

void run_take_rows(frame *f, const int64_t *step, void *prepared) {
    const take_rows_step *s = (const take_rows_step *)(const void *)step;
    const take_rows_args a = {at(f, s->x), at(f, s->index), at(f, s->y), (isize)s->rows, (isize)s->count, (isize)s->bytes};
    (void)prepared;
    const isize all = (isize)s->outer * a.count;
    if (all && check_indices(f, a.index, a.count, s->rows)) parallel(f, take_rows_kernel, &a, all, all * a.bytes);
}

/* ---- decode_rows -------------------------------------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *codes;
    const float *scales;
    const int64_t *index;
    float *y;
    isize columns, group, groups, row; /* row: bytes of codes */
    int bits;
} decode_rows_args;

static isize row_bytes(const decode_rows_step *s) { return s->bits == 8 ? (isize)s->columns : ceil_div((isize)s->columns, 2); }

int check_decode_rows(checker *c, const int64_t *step) {
    const decode_rows_step *s = (const decode_rows_step *)(const void *)step;
    if (s->bits != 4 && s->bits != 8) return refuse(c, "codes of no such number of bits");
    if (s->group < 0 || s->columns < 1) return refuse(c, "rows or groups of no such size");
    const isize groups = s->group ? ceil_div((isize)s->columns, (isize)s->group) : 1;
    return needs(c, s->codes, checked_product((isize)s->rows, row_bytes(s)), 1, "codes") &&
           needs(c, s->scales, checked_product((isize)s->rows, groups), 4, "scales") &&
           needs(c, s->index, (isize)s->count, 8, "index") &&
           needs(c, s->y, checked_product((isize)s->count, (isize)s->columns), 4, "y");
}

MULTIVERSION static void decode_rows_kernel(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const decode_rows_args *a = (const decode_rows_args *)given;
    (void)scratch;
    for (isize i = lo; i < hi; i++) {
        const uint8_t *codes = a->codes + (isize)a->index[i] * a->row;
        const float *scales = a->scales + (isize)a->index[i] * a->groups;
        float *restrict y = a->y + i * a->columns;
        for (isize g = 0; g < a->groups; g++) {
            const isize from = g * a->group, end = a->group ? min_size(from + a->group, a->columns) : a->columns;
            const float scale = scales[g];
            if (a->bits == 8)
                for (isize k = from; k < end; k++) y[k] = (float)(codes[k] - 128) * scale;
            else
                for (isize k = from; k < end; k++) y[k] = (float)((codes[k / 2] >> k % 2 * 4 & 15) - 8) * scale;
        }
    }
}

void run_decode_rows(frame *f, const int64_t *step, void *prepared) {
    const decode_rows_step *s = (const decode_rows_step *)(const void *)step;
    const isize count = (isize)s->count, columns = (isize)s->columns, group = (isize)s->group;
    const decode_rows_args a = {at(f, s->codes), at(f, s->scales), at(f, s->index), at(f, s->y), columns, group,
                                group ? ceil_div(columns, group) : 1, row_bytes(s), (int)s->bits};
    (void)prepared;
    if (check_indices(f, a.index, count, s->rows)) parallel(f, decode_rows_kernel, &a, count, count * columns * 4);
}
