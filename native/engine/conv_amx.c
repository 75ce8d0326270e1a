/* Dense convolutions on AMX. Sums of 32 windows and 32 channels are four tiles. Windows are read in place where 16 of them lie
   evenly apart; others, and bytes beyond the last 64 of a window, are copied. */

#include "amx.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "conv_panel.h"

#if HAS_AMX_KERNELS

#define LEAST_DEPTH 64        /* bytes of a window from which on tiles are worth it */
#define MOST_DEPTH (16 << 10)
#define COPIES (384 << 10)    /* bytes of a panel's copied windows, which stay in the L2 cache beside weights */
#define WINDOWS (2 * AMX_ROWS)
#define SUMS_BYTES (WINDOWS * 64 * (isize)sizeof(int32_t))

INLINE isize depth_of(const conv_args *a) { return a->kernel_h * round_up(a->kernel_w * a->channels, 4); }

/* Bytes from one copied window to the next: not a multiple of 4096, for the cache's sake. */
INLINE isize copied_bytes(isize depth) { return round_up(depth, AMX_BYTES) + AMX_BYTES; }

static int takes(const conv_args *a) {
    const isize depth = depth_of(a);
    return current_isa() == AMX && !a->nibbles && !a->group_width && depth >= LEAST_DEPTH && depth <= MOST_DEPTH;
}

/* Windows whose copies are kept for all blocks of channels; those of one block only need no more than 32. */
static int keeps_copies(const conv_args *a) { return a->out_channels > 64; }

isize amx_windows(const conv_args *a) {
    return takes(a) && keeps_copies(a) ? COPIES / copied_bytes(depth_of(a)) : PTRDIFF_MAX;
}

isize amx_scratch(const conv_args *a, isize windows) {
    const isize copies = keeps_copies(a) ? round_up(windows, WINDOWS) : WINDOWS;
    return takes(a) ? 2 * SUMS_BYTES + 4 * AMX_WEIGHT_BYTES + copies * copied_bytes(depth_of(a)) : 0;
}

/* How a panel's windows are read. */
typedef struct {
    int in_place;        /* whether windows that lie evenly apart are */
    isize rows, pieces;  /* rows of a window, and pieces of 64 bytes of each, the tail aside */
    isize tail, copied;  /* bytes beyond the last whole piece; those from one copied window to the next */
    int32_t *sums[2];    /* each of 32 windows */
    int8_t *tail_weights;
    uint8_t *copies;     /* of windows, or of the tails of those that are read in place */
    int keeps;           /* whether those of all windows are kept */
    isize share;         /* windows before these that are finished with every product of tiles */
} reading;

AMX_INLINE reading reading_of(const panel *p, const int blocks) {
    const isize depth = p->kernel_h * p->bytes, tail = depth % AMX_BYTES;
    const int in_place = p->kernel_h == 1 || p->bytes % AMX_BYTES == 0;
    const isize rows = in_place ? p->kernel_h : 1, pieces = (in_place ? p->bytes : depth) / AMX_BYTES;
    const isize products = (rows * pieces + (tail > 0)) * (blocks > 2 ? 2 : 1);
    uint8_t *const weights = p->amx + 2 * SUMS_BYTES;
    return (reading){.in_place = in_place, .rows = rows, .pieces = pieces, .tail = tail, .copied = copied_bytes(depth),
                     .sums = {(int32_t *)(void *)p->amx, (int32_t *)(void *)(p->amx + SUMS_BYTES)},
                     .tail_weights = (int8_t *)weights, .copies = weights + 4 * AMX_WEIGHT_BYTES,
                     .keeps = keeps_copies(p->args), .share = ceil_div(WINDOWS, products)};
}

/* Finds 16 rows from window i on, `count` of which are there. Sets `step` to the bytes from one row of a window to the next, and
   `tail` to where bytes beyond the last whole piece are. */
AMX_INLINE amx_rows rows_from(const panel *p, const reading *r, isize i, isize count, isize *step, amx_rows *tail) {
    const isize at = p->offset + i - p->begin;
    uint8_t *to = r->copies + (r->keeps ? at : at % WINDOWS) * r->copied;
    const int fresh = !r->keeps || !p->copied;
    if (r->in_place && count == AMX_ROWS && evenly_apart(p, i, AMX_ROWS)) {
        const amx_rows rows = {p->x + p->offset[i], p->apart};
        *step = p->line, *tail = (amx_rows){to, AMX_BYTES};
        if (fresh && r->tail)
            copy_rows(to, rows.x + r->pieces * AMX_BYTES, AMX_ROWS, rows.apart, AMX_BYTES, 0, byte_mask(r->tail));
        return rows;
    }
    const amx_rows rows = {to, r->copied};
    const isize whole = p->bytes / VECTOR_BYTES;
    const __mmask64 rest = byte_mask(p->bytes % VECTOR_BYTES);
    for (isize w = 0; fresh && w < count; w++, to += r->copied) {
        const uint8_t *from = p->x + p->offset[i + w];
        if (whole)
            copy_rows(to, from, p->kernel_h, p->line, p->bytes, whole, rest);
        else
            copy_rows(to, from, p->kernel_h, p->line, p->bytes, 0, rest);
        if (r->tail) _mm512_storeu_si512(to + p->kernel_h * p->bytes, _mm512_setzero_si512());
    }
    *step = p->bytes, *tail = (amx_rows){rows.x + r->rows * r->pieces * AMX_BYTES, r->copied};
    return rows;
}

/* Windows whose sums are there and whose results are not. */
typedef struct {
    const int32_t *sums;
    isize i, count;
} unfinished;

/* Stores the results of up to `most` windows. */
AMX_INLINE void finish_windows(const panel *p, unfinished *w, isize most, const int blocks, const int whole, const finish_form form) {
    const isize pixels = 4 / blocks;
    for (; most > 0 && w->count > 0; most -= pixels, w->count -= pixels, w->i += pixels, w->sums += 16 * blocks * pixels) {
        __m512i sum[4];
        for (int q = 0; q < 4 / blocks * blocks; q++) sum[q] = _mm512_loadu_si512(w->sums + 16 * q);
        store_results(p, sum, w->i, w->count >= pixels, blocks, whole, 0, 0, form);
    }
}

/* Computes sums of 16 or 32 windows (`groups`) and of 16 or 32 channels (`own` of `blocks`) from block `b` on. Tiles are multiplied
   while the results of windows before these are stored. */
AMX_INLINE void add_blocks(const panel *p, const reading *r, const amx_rows *x, const isize *step, const amx_rows *tail, int32_t *sums,
                           unfinished *before, const int groups, const int blocks, const int b, const int own, const int whole,
                           const finish_form form) {
    const isize apart = AMX_BYTES * blocks;
    const int8_t *weight = p->weight + AMX_BYTES * b;
    amx_load_biases(p->bias + 16 * b, groups, own);
    amx_rows now[2] = {x[0], groups > 1 ? x[1] : x[0]};
    for (isize row = 0; row < r->rows; row++) {
        for (isize k = 0; k < r->pieces; k++, weight += AMX_ROWS * apart) {
            amx_products(now, 1, weight, apart, groups, own);
            now[0].x += AMX_BYTES, now[1].x += AMX_BYTES;
            if (form != SUMS) finish_windows(p, before, r->share, blocks, whole, form);
        }
        for (int g = 0; g < groups; g++) now[g].x += step[g] - r->pieces * AMX_BYTES;
    }
    if (r->tail) {
        amx_products(tail, 1, r->tail_weights + AMX_BYTES * b, apart, groups, own);
        if (form != SUMS) finish_windows(p, before, r->share, blocks, whole, form);
    }
    amx_store(sums + 16 * b, apart, groups, own);
}

/* Computes the sums of 16 or 32 windows from i on, `count` of which are there. */
AMX_INLINE void compute_windows(const panel *p, const reading *r, isize i, isize count, int32_t *sums, unfinished *before,
                                const int groups, const int blocks, const int whole, const finish_form form) {
    isize step[2] = {0, 0};
    amx_rows x[2], tail[2];
    for (int g = 0; g < groups; g++)
        x[g] = rows_from(p, r, i + g * AMX_ROWS, min_size(count - g * AMX_ROWS, AMX_ROWS), &step[g], &tail[g]);
    if (form != SUMS && p->fetches)
        fetch_results(p->y + i * p->stride, p->residual ? p->residual + i * p->stride : NULL, p->stride, count);
    add_blocks(p, r, x, step, tail, sums, before, groups, blocks, 0, blocks > 1 ? 2 : 1, whole, form);
    if (blocks > 2) add_blocks(p, r, x, step, tail, sums, before, groups, blocks, 2, blocks - 2, whole, form);
    if (form != SUMS) finish_windows(p, before, WINDOWS, blocks, whole, form);
    *before = (unfinished){sums, i, count};
}

AMX_INLINE void run_amx(const panel *given, const int blocks, const int whole, const finish_form form) {
    const panel p = *given;
    const reading r = reading_of(&p, blocks);
    const isize apart = AMX_BYTES * blocks;
    if (r.tail) copy_words(r.tail_weights, p.weight + r.rows * r.pieces * AMX_ROWS * apart, r.tail / 4, apart);
    unfinished before = {NULL, 0, 0};
    isize i = 0;
    for (int turn = 0; p.count - i >= AMX_FEWEST_ROWS; turn = !turn) {
        const isize left = p.count - i;
        int32_t *sums = form == SUMS ? p.sums + 16 * i * blocks : r.sums[turn];
        if (left >= AMX_ROWS + AMX_FEWEST_ROWS) {
            compute_windows(&p, &r, i, min_size(left, WINDOWS), sums, &before, 2, blocks, whole, form);
            i += WINDOWS;
        } else {
            compute_windows(&p, &r, i, min_size(left, AMX_ROWS), sums, &before, 1, blocks, whole, form);
            i += AMX_ROWS;
        }
    }
    if (form != SUMS) finish_windows(&p, &before, WINDOWS, blocks, whole, form);
    if (i >= p.count) return;
    panel rest = p;
    rest.offset += i, rest.count -= i, rest.y += i * p.stride;
    if (p.residual) rest.residual += i * p.stride;
    if (form == SUMS) rest.sums += 16 * i * blocks;
    p.few(&rest);
}

#define AMX_KERNEL(name, blocks, whole, form) \
    AMX_TARGET static __attribute__((noinline)) void name(const panel *p) { run_amx(p, blocks, whole, form); }
#define AMX_KERNELS(name, blocks)                \
    AMX_KERNEL(name, blocks, 0, USUAL)           \
    AMX_KERNEL(name##_residual, blocks, 0, RESIDUAL) \
    AMX_KERNEL(name##_general, blocks, 0, GENERAL)   \
    AMX_KERNEL(name##_sums, blocks, 0, SUMS)
AMX_KERNELS(one_block, 1)
AMX_KERNELS(two_blocks, 2)
AMX_KERNELS(three_blocks, 3)
AMX_KERNELS(four_blocks, 4)
AMX_KERNEL(one_whole_block, 1, 1, USUAL)
AMX_KERNEL(two_whole_blocks, 2, 1, USUAL)

panel_kernel amx_panel_kernel(const conv_args *a, isize blocks) {
    static const panel_kernel usual[] = {one_block, two_blocks, three_blocks, four_blocks};
    static const panel_kernel residual[] = {one_block_residual, two_blocks_residual, three_blocks_residual, four_blocks_residual};
    static const panel_kernel general[] = {one_block_general, two_blocks_general, three_blocks_general, four_blocks_general};
    static const panel_kernel sums[] = {one_block_sums, two_blocks_sums, three_blocks_sums, four_blocks_sums};
    static const panel_kernel whole[] = {one_whole_block, two_whole_blocks, three_blocks, four_blocks};
    if (!takes(a)) return NULL;
    if (a->sum_bytes) return sums[blocks - 1];
    if (a->general) return general[blocks - 1];
    if (adds_residual(a)) return residual[blocks - 1];
    return a->out_channels == 16 * blocks ? whole[blocks - 1] : usual[blocks - 1];
}

AMX_TARGET void begin_amx(void) { amx_begin(); }
AMX_TARGET void end_amx(void) { amx_end(); }
#else
panel_kernel amx_panel_kernel(const conv_args *a, isize blocks) { return (void)a, (void)blocks, NULL; }
isize amx_windows(const conv_args *a) { return (void)a, PTRDIFF_MAX; }
isize amx_scratch(const conv_args *a, isize windows) { return (void)a, (void)windows, 0; }
void begin_amx(void) {}
void end_amx(void) {}
#endif
#endif
