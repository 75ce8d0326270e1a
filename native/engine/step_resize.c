/* Linear resizing of images: exact integer sums in float32, and one division, whose quotients are far enough from the
   middle of two integers (intact8/arithmetic/resize.py). */

#include "plan.h"

#define MAX_SIZE ((int64_t)1 << 30)
#define MAX_TOTAL 65793 /* the sum of 255 times the weights stays below 2^24 */

typedef struct {
    isize batch, size[3], out[3], channels;
    int32_t denominator[3];
    const int32_t *taps[3];
    const uint8_t *x;
    uint8_t *y;
} resize_args;

/* Whether all indices are of an axis of this size, the second one that of the first or of its neighbour. */
static int are_taps(const int32_t *taps, isize count, isize size, int64_t denominator) {
    for (isize i = 0; i < 3 * count; i += 3)
        if (taps[i] < 0 || taps[i + 1] < taps[i] || taps[i + 1] - taps[i] > 1 || taps[i + 1] >= size || taps[i + 2] < 0 ||
            taps[i + 2] > denominator)
            return 0;
    return 1;
}

int check_resize(checker *c, const int64_t *step) {
    const resize_step *s = (const resize_step *)(const void *)step;
    resize_args *a = (resize_args *)plan_memory(c, sizeof *a);
    const int32_t *taps = (const int32_t *)constant_at(c, s->taps);
    if (!a || s->batch < 0 || s->batch > MAX_SIZE || s->channels < 1 || s->channels > MAX_SIZE)
        return a ? refuse(c, "images of no such size") : 0;
    a->batch = (isize)s->batch, a->channels = (isize)s->channels;
    isize elements = checked_product(a->batch, a->channels), results = elements, positions = 0, total = 1;
    for (int i = 0; i < 3; i++) {
        const int64_t size = (&s->depth)[i], out = (&s->out_depth)[i], denominator = (&s->denominator_d)[i];
        if (size < 1 || size > MAX_SIZE || out < 1 || out > MAX_SIZE || denominator < 1 || denominator > MAX_TOTAL)
            return refuse(c, "an axis of no such size");
        a->size[i] = (isize)size, a->out[i] = (isize)out, a->denominator[i] = (int32_t)denominator;
        elements = checked_product(elements, a->size[i]), results = checked_product(results, a->out[i]);
        positions += a->out[i], total *= (isize)denominator;
    }
    if (total > MAX_TOTAL) return refuse(c, "sums of weights that float32 does not hold");
    if (!taps || !needs(c, s->taps, 3 * positions, 4, "taps")) return refuse(c, "a resize without constant weights");
    for (int i = 0; i < 3; taps += 3 * a->out[i++]) {
        a->taps[i] = taps;
        if (!are_taps(taps, a->out[i], a->size[i], a->denominator[i])) return refuse(c, "weights outside of the image");
    }
    c->prepared = a;
    return needs(c, s->x, elements, 1, "x") && needs(c, s->y, results, 1, "y");
}

/* Rows of a row of results and their weights, those of weight 0 left out: up to four. */
typedef struct {
    isize count;
    const uint8_t *row[4];
    float weight[4];
} blended_rows;

static blended_rows rows_of(const resize_args *a, isize index) {
    const isize line = a->size[2] * a->channels, plane = a->size[1] * line;
    const int32_t *d = a->taps[0] + index / a->out[1] % a->out[0] * 3, *h = a->taps[1] + index % a->out[1] * 3;
    const uint8_t *image = a->x + index / (a->out[1] * a->out[0]) * a->size[0] * plane;
    blended_rows found = {0};
    for (int i = 0; i < 4; i++) {
        const int32_t down = i / 2 ? d[2] : a->denominator[0] - d[2], across = i % 2 ? h[2] : a->denominator[1] - h[2];
        if (!down || !across) continue;
        found.row[found.count] = image + d[i / 2] * plane + h[i % 2] * line;
        found.weight[found.count++] = (float)(down * across);
    }
    return found;
}

/* Sums of `count` bytes of the rows. */
INLINE void blend(const blended_rows *r, isize at, isize count, float *restrict v) {
    for (isize i = 0; i < r->count; i++) {
        const uint8_t *restrict row = r->row[i] + at;
        const float weight = r->weight[i];
        if (i)
            for (isize c = 0; c < count; c++) v[c] += weight * (float)row[c];
        else
            for (isize c = 0; c < count; c++) v[c] = weight * (float)row[c];
    }
}

/* An index is a row of results. Columns of blended rows are cached in two places, by the parity of their index: the next
   column of results often needs the same ones. */
MULTIVERSION static void resize_kernel(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const resize_args *a = (const resize_args *)given;
    const isize channels = a->channels;
    const float total = (float)(a->denominator[0] * a->denominator[1] * a->denominator[2]);
    float blended[2][BLOCK];
    (void)scratch;
    for (isize at = lo; at < hi; at++) {
        const blended_rows rows = rows_of(a, at);
        for (isize from = 0; from < channels; from += BLOCK) {
            const isize count = min_size(channels - from, BLOCK);
            int32_t cached[2] = {-1, -1};
            for (isize j = 0; j < a->out[2]; j++) {
                const int32_t *column = a->taps[2] + 3 * j;
                for (int side = 0; side < 2; side++) {
                    const int32_t k = column[side];
                    if (cached[k & 1] == k) continue;
                    blend(&rows, k * channels + from, count, blended[k & 1]);
                    cached[k & 1] = k;
                }
                const float after = (float)column[2], before = (float)(a->denominator[2] - column[2]);
                const float *restrict left = blended[column[0] & 1], *restrict right = blended[column[1] & 1];
                uint8_t *restrict y = a->y + (at * a->out[2] + j) * channels + from;
                for (isize c = 0; c < count; c++)
                    y[c] = (uint8_t)float_bits((before * left[c] + after * right[c]) / total + ROUND_MAGIC);
            }
        }
    }
}

void run_resize(frame *f, const int64_t *step, void *prepared) {
    const resize_step *s = (const resize_step *)(const void *)step;
    resize_args a = *(const resize_args *)prepared;
    a.x = at(f, s->x), a.y = at(f, s->y);
    parallel(f, resize_kernel, &a, a.batch * a.out[0] * a.out[1], 4 * value_bytes(f->p, s->y));
}
