/* Steps that move values: strided copies and fills. */

#include "plan.h"

typedef struct {
    isize size[MAX_RANK], x[MAX_RANK], y[MAX_RANK]; /* elements, and strides in bytes */
    isize element, rank;
    isize turned; /* the dimension whose elements lie together in x where it is not the last one; -1: none */
    const uint8_t *from;
    uint8_t *to;
} copy_args;

static int element_size(int64_t size) { return size == 1 || size == 4 || size == 8; }

int check_extent(checker *c, int64_t value, int64_t offset, const int64_t *sizes, const int64_t *strides, int64_t rank,
                 int64_t size, const char *what) {
    const int64_t most = (int64_t)1 << 40;
    int64_t low = offset, high = offset;
    for (int64_t i = 0; i < rank; i++) {
        if (strides[i] < -most || strides[i] > most || sizes[i] > most) return refuse(c, "%s has no such strides", what);
        const double span = (double)(sizes[i] - 1) * (double)strides[i];
        if (span > (double)most || span < -(double)most) return refuse(c, "%s has no such strides", what);
        if (strides[i] < 0)
            low += (sizes[i] - 1) * strides[i];
        else
            high += (sizes[i] - 1) * strides[i];
    }
    if (low < 0) return refuse(c, "%s begins before its memory", what);
    return needs(c, value, (isize)high + 1, (isize)size, what);
}

/* Sufficient, and true of every view of a dense tensor: from the smallest stride on, each steps over all that lies before. */
int check_result(checker *c, int64_t value, int64_t offset, const int64_t *sizes, const int64_t *strides, int64_t rank,
                 int64_t size) {
    if (!check_extent(c, value, offset, sizes, strides, rank, size, "y")) return 0;
    int64_t reach = 0; /* from the first to the last element of the dimensions so far */
    for (unsigned done = 0;;) {
        int64_t next = -1, least = INT64_MAX;
        for (int64_t i = 0; i < rank; i++) {
            const int64_t stride = strides[i] < 0 ? -strides[i] : strides[i];
            if (sizes[i] > 1 && !(done >> i & 1) && stride < least) next = i, least = stride;
        }
        if (next < 0) return 1;
        if (least <= reach) return refuse(c, "elements of y lie upon each other");
        reach += (sizes[next] - 1) * least, done |= 1u << next;
    }
}

int check_copy(checker *c, const int64_t *step) {
    const copy_step *s = (const copy_step *)(const void *)step;
    const int64_t *sizes = &s->d0, most = (int64_t)1 << 40;
    if (!element_size(s->size) || s->rank < 0 || s->rank > MAX_RANK) return refuse(c, "elements of no such size or rank");
    isize count = 1;
    for (int64_t i = 0; i < s->rank; i++) count = checked_product(count, (isize)sizes[i]);
    if (count < 0 || count > most) return refuse(c, "a copy of no such size");
    if (s->offset_x < 0 || s->offset_x > most || s->offset_y < 0 || s->offset_y > most)
        return refuse(c, "offsets outside of the values");
    copy_args *a = (copy_args *)plan_memory(c, sizeof *a);
    if (!a) return 0;
    c->prepared = a;
    if (!count) return 1; /* a->rank stays 0, and the element 0 */
    if (!check_extent(c, s->x, s->offset_x, sizes, &s->x0, s->rank, s->size, "x") ||
        !check_result(c, s->y, s->offset_y, sizes, &s->y0, s->rank, s->size))
        return 0;
    /* Dimensions of one element go, and those that lie together in both become one. */
    a->element = (isize)s->size;
    for (int64_t i = 0; i < s->rank; i++) {
        const isize n = (isize)sizes[i], x = (isize)(&s->x0)[i] * a->element, y = (isize)(&s->y0)[i] * a->element;
        if (n == 1) continue;
        const isize k = a->rank - 1;
        if (a->rank && a->x[k] == n * x && a->y[k] == n * y)
            a->size[k] *= n, a->x[k] = x, a->y[k] = y;
        else
            a->size[a->rank] = n, a->x[a->rank] = x, a->y[a->rank] = y, a->rank++;
    }
    a->turned = -1;
    const isize last = a->rank - 1;
    for (isize k = 0; k < last; k++)
        if (a->x[k] == a->element && a->y[last] == a->element && a->x[last] != a->element) a->turned = k;
    return 1;
}

#define COPY_LINE(type)                                                       \
    do {                                                                      \
        for (isize i = 0; i < n; i++, from += sx, to += sy) memcpy(to, from, sizeof(type)); \
    } while (0)

static void copy_line(const uint8_t *from, uint8_t *to, isize n, isize sx, isize sy, isize element) {
    if (sx == element && sy == element)
        memcpy(to, from, (size_t)(n * element));
    else if (sx == 0 && sy == 1)
        memset(to, *from, (size_t)n);
    else if (element == 1)
        COPY_LINE(uint8_t);
    else if (element == 4)
        COPY_LINE(uint32_t);
    else
        COPY_LINE(uint64_t);
}

/* Copies rows of `bytes` bytes, `sx` and `sy` bytes apart. Short ones go in pieces of one size, the last of which overlaps. */
static void copy_rows(const uint8_t *from, uint8_t *to, isize rows, isize sx, isize sy, isize bytes) {
    for (isize r = 0; r < rows; r++, from += sx, to += sy)
        if (bytes >= 16 && bytes <= 256) {
            for (isize k = 0; k < bytes - 16; k += 16) memcpy(to + k, from + k, 16);
            memcpy(to + bytes - 16, from + bytes - 16, 16);
        } else if (bytes >= 8 && bytes < 16) {
            memcpy(to, from, 8), memcpy(to + bytes - 8, from + bytes - 8, 8);
        } else {
            memcpy(to, from, (size_t)bytes);
        }
}

#define TILE 16 /* rows and columns that are turned at once */

#if defined(__SSE2__)
#include <emmintrin.h>

/* One of four passes, after which rows are columns: what stands side by side comes from rows eight apart. */
INLINE void interleave(const __m128i *from, __m128i *to) {
    for (int i = 0; i < 8; i++)
        to[2 * i] = _mm_unpacklo_epi8(from[i], from[i + 8]), to[2 * i + 1] = _mm_unpackhi_epi8(from[i], from[i + 8]);
}

INLINE void turn_tile(const uint8_t *from, uint8_t *to, isize from_row, isize to_row) {
    __m128i a[TILE], b[TILE];
    for (int i = 0; i < TILE; i++) a[i] = _mm_loadu_si128((const __m128i *)(const void *)(from + i * from_row));
    interleave(a, b), interleave(b, a), interleave(a, b), interleave(b, a);
    for (int i = 0; i < TILE; i++) _mm_storeu_si128((__m128i *)(void *)(to + i * to_row), a[i]);
}
#else
INLINE void turn_tile(const uint8_t *from, uint8_t *to, isize from_row, isize to_row) {
    for (int i = 0; i < TILE; i++)
        for (int j = 0; j < TILE; j++) to[j * to_row + i] = from[i * from_row + j];
}
#endif

/* Copies a matrix whose rows lie together in x, and its columns in y; `rows` and `columns` are strides in bytes. */
static void turn_matrix(const uint8_t *from, uint8_t *to, isize height, isize width, isize from_row, isize to_row,
                        isize element) {
    for (isize i = 0; i < height; i += TILE)
        for (isize j = 0; j < width; j += TILE) {
            const isize rows = min_size(height - i, TILE), columns = min_size(width - j, TILE);
            const uint8_t *x = from + i * from_row + j * element;
            uint8_t *y = to + j * to_row + i * element;
            if (element == 1 && rows == TILE && columns == TILE)
                turn_tile(x, y, from_row, to_row);
            else if (rows < columns)
                for (isize r = 0; r < rows; r++) copy_line(x + r * from_row, y + r * element, columns, element, to_row, element);
            else
                for (isize k = 0; k < columns; k++) copy_line(x + k * element, y + k * to_row, rows, from_row, element, element);
        }
}

/* Copies from dimension `level` on. */
static void copy_level(const copy_args *a, isize level, const uint8_t *from, uint8_t *to) {
    const isize last = a->rank - 1, k = a->turned;
    if (level == k)
        copy_level(a, level + 1, from, to);
    else if (level == last - 1 && k < 0 && a->x[last] == a->element && a->y[last] == a->element)
        copy_rows(from, to, a->size[level], a->x[level], a->y[level], a->size[last] * a->element);
    else if (level < last)
        for (isize i = 0; i < a->size[level]; i++) copy_level(a, level + 1, from + i * a->x[level], to + i * a->y[level]);
    else if (k < 0)
        copy_line(from, to, a->size[level], a->x[level], a->y[level], a->element);
    else
        turn_matrix(from, to, a->size[last], a->size[k], a->x[last], a->y[k], a->element);
}

/* An index is one of the first dimension. */
static void copy_kernel(const void *given, isize lo, isize hi, uint8_t *scratch) {
    copy_args a = *(const copy_args *)given;
    (void)scratch;
    a.size[0] = hi - lo;
    copy_level(&a, 0, a.from + lo * a.x[0], a.to + lo * a.y[0]);
}

void run_copy(frame *f, const int64_t *step, void *prepared) {
    const copy_step *s = (const copy_step *)(const void *)step;
    copy_args a = *(const copy_args *)prepared;
    if (!a.element) return;
    a.from = (const uint8_t *)at(f, s->x) + s->offset_x * s->size, a.to = (uint8_t *)at(f, s->y) + s->offset_y * s->size;
    if (!a.rank) {
        memcpy(a.to, a.from, (size_t)a.element);
        return;
    }
    isize bytes = a.element;
    for (isize i = 0; i < a.rank; i++) bytes *= a.size[i];
    parallel(f, copy_kernel, &a, a.size[0], bytes);
}

int check_fill(checker *c, const int64_t *step) {
    const fill_step *s = (const fill_step *)(const void *)step;
    if (!element_size(s->size)) return refuse(c, "elements of no such size");
    return needs(c, s->y, (isize)s->count, (isize)s->size, "y");
}

void run_fill(frame *f, const int64_t *step, void *prepared) {
    const fill_step *s = (const fill_step *)(const void *)step;
    uint8_t *to = at(f, s->y);
    (void)prepared;
    const uint64_t bits = (uint64_t)s->bits;
    if (s->size == 1) {
        memset(to, (int)(bits & 255), (size_t)s->count);
        return;
    }
    for (int64_t i = 0; i < s->count; i++) {
        const uint32_t four = (uint32_t)bits;
        memcpy(to + i * s->size, s->size == 4 ? (const void *)&four : (const void *)&bits, (size_t)s->size);
    }
}
