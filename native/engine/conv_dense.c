/* Dense convolutions and those of narrow groups without an im2col copy: the micro-kernel reads windows through a buffer of
   their offsets.

   A row of a window is a run of bytes, whatever channels and columns they belong to. The micro-kernel multiplies four bytes
   at a time by the weights of 16 output channels. Four vectors of accumulators become 64 bytes: one pixel, or two or four
   pixels where the last block of output channels is 32 or 16 wide. Where it is 48 wide, one of the vectors is not stored.

   In groups of 4, 8 or 16 channels (as many outputs as inputs) a block is 16 output channels, and the 16 input channels of
   their groups are all it reads of a pixel. In groups of 4 they are repeated in every lane of a vector, each group's word for
   its outputs; in groups of 8 the two words of a group are, for two sums of each of its outputs; in groups of 16 words are
   repeated one by one. */

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "conv_panel.h"

#define MAX_TILE 4             /* vectors of 64 results per call of the micro-kernel */
#define PANEL_BYTES (96 << 10) /* bytes of input rows that all blocks of output channels read before the next rows */
#define LONG_WINDOW 256        /* bytes of a window from which on memory is fetched while its products are computed */
#define MAX_NEAR (32 << 10)    /* bytes of a block's weights that stay in the L1 cache */
#define FETCH_AHEAD 2048       /* bytes that others are fetched ahead of their use, in words of a block some 8 */
#define MIN_FETCHED (512 << 10) /* bytes of results from which on they are fetched ahead of their use */
#define MAX_WINDOWS (16 << 10) /* windows of a panel */
#define ROW_PADDING 16         /* bytes of a copied row that may be read beyond its last window */
#define OFFSET_PADDING 3       /* extra offsets, since the last call may read some beyond the last window */

/* Adds the products of row `row` of `count` windows in groups of `words` words and returns the weights behind them. In groups
   of two words the lanes of a vector are both words of eight outputs, and `second` has the sums of the second group. */
VNNI_INLINE const int8_t *add_groups(const panel *p, const uint8_t *const *window, isize row, const int8_t *weight,
                                     const int count, const int words, __m512i (*sum)[4], __m512i (*second)[4]) {
    for (isize d = row; d < row + p->bytes; d += p->pixel) {
        __m512i w[4];
        for (int k = 0; k < words; k++, weight += VECTOR_BYTES) w[k] = _mm512_loadu_si512(weight);
        for (int u = 0; u < count; u++) {
            const uint8_t *x = window[u] + d;
            __m512i *own = &sum[u / 4][u % 4];
            if (words == 1)
                *own = dot_product(*own, _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)x)), w[0]);
            if (words == 2) {
                *own = dot_product(*own, _mm512_set1_epi64(load_long(x)), w[0]);
                second[u / 4][u % 4] = dot_product(second[u / 4][u % 4], _mm512_set1_epi64(load_long(x + 8)), w[1]);
            }
            for (int k = 0; words > 2 && k < words; k++) *own = dot_product(*own, _mm512_set1_epi32(load_int(x + 4 * k)), w[k]);
        }
    }
    return weight;
}

/* The sums of 16 outputs of two groups whose lanes are both words of eight outputs each. */
VNNI_INLINE __m512i join_groups(__m512i bias, __m512i first, __m512i second) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
    return _mm512_add_epi32(bias, _mm512_add_epi32(_mm512_permutex2var_epi32(first, even, second),
                                                   _mm512_permutex2var_epi32(first, odd, second)));
}

/* Adds the products of 4 `groups` windows that lie evenly apart from the first one on: a register for every four of them and
   two for how far they are apart, where addresses of their own would take one for each. */
VNNI_INLINE void add_even(const panel *p, const uint8_t *first, const int groups, const int blocks, __m512i (*sum)[4]) {
    const int pixels = 4 / blocks;
    const isize apart = p->apart, thrice = 3 * apart, bytes = p->bytes;
    const int8_t *weight = p->weight;
    const uint8_t *x[MAX_TILE];
    for (int g = 0; g < groups; g++) x[g] = first + 4 * g * apart;
    for (isize row = p->kernel_h; row > 0; row--) {
        for (isize d = bytes; d > 0; d -= 4, weight += VECTOR_BYTES * blocks) {
            __m512i w[4];
            load_weights(weight, blocks, 0, w);
            for (int g = 0; g < groups; g++) {
                for (int k = 0; k < 4; k++) {
                    const int u = 4 * g + k;
                    const __m512i four = _mm512_set1_epi32(load_int(x[g] + (k == 3 ? thrice : k * apart)));
                    for (int b = 0; b < blocks; b++) {
                        __m512i *own = &sum[u / pixels][u % pixels * blocks + b];
                        *own = dot_product(*own, four, w[b]);
                    }
                }
                x[g] = (const uint8_t *)opaque_pointer(x[g] + 4);
            }
        }
        for (int g = 0; g < groups; g++) x[g] += p->line - bytes;
    }
}

/* Adds the products of bytes `row` to `end` of a row of `tile` times 4 / blocks windows, and returns the weights behind them.
   `far`: weights are fetched ahead of their use. */
VNNI_INLINE const int8_t *add_row(const uint8_t *const *window, isize row, isize end, const int8_t *weight, const int tile,
                                  const int blocks, const int nibbles, const int far, __m512i (*sum)[4]) {
    const int pixels = 4 / blocks;
    for (isize d = row; d < end; d += 4, weight += VECTOR_BYTES * blocks / (nibbles ? 2 : 1)) {
        __m512i w[4];
        load_weights(weight, blocks, nibbles, w);
        for (int b = 0; far && b < blocks; b++) __builtin_prefetch(weight + FETCH_AHEAD + VECTOR_BYTES * b);
        for (int u = 0; u < tile; u++)
            for (int k = 0; k < pixels; k++) {
                const __m512i x = _mm512_set1_epi32(load_int(window[u * pixels + k] + d));
                for (int b = 0; b < blocks; b++)
                    sum[u][k * blocks + b] = dot_product(sum[u][k * blocks + b], x, w[b]);
            }
    }
    return weight;
}

/* Computes windows from i on, `blocks` vectors of 16 channels each. Each of the `tile` vectors of 64 results holds 4 / blocks
   windows. `flat`: a window has one row. `whole`: the vector is stored in one piece, since this block is all the output
   channels. `words`: of four bytes in a narrow group; 0 for one group. `nibbles`: weights have 4 bits. `even`: the windows
   are evenly_apart(). */
VNNI_INLINE void microkernel(const panel *p, isize i, const int tile, const int blocks, const int flat, const int whole,
                             const int words, const int nibbles, const finish_form form, const int even) {
    const int pixels = 4 / blocks;
    if (form != SUMS && p->fetches) {
        const isize ahead = (i + RESULTS_AHEAD) * p->stride;
        fetch_results(p->y + ahead, p->residual ? p->residual + ahead : NULL, pixels * p->stride, tile);
    }
    const uint8_t *window[MAX_TILE * 4];
    for (int u = 0; !even && u < tile * pixels; u++) window[u] = p->x + p->offset[i + u];
    __m512i sum[MAX_TILE][4], second[MAX_TILE][4];
    const int32_t *bias = (const int32_t *)opaque_pointer(p->bias);
    for (int q = 0; q < 4; q++) sum[0][q] = words == 2 ? _mm512_setzero_si512() : _mm512_loadu_si512(bias + 16 * (q % blocks));
    for (int u = 1; u < tile; u++)
        for (int q = 0; q < 4; q++) sum[u][q] = sum[0][q];
    for (int u = 0; words == 2 && u < tile; u++)
        for (int q = 0; q < 4; q++) second[u][q] = _mm512_setzero_si512();
    const int8_t *weight = p->weight;
    const isize end = flat ? p->line : p->kernel_h * p->line, bytes = p->bytes;
    for (isize row = 0; words && row < end; row += p->line)
        weight = add_groups(p, window, row, weight, 4 * tile, words, sum, second);
    for (int u = 0; words == 2 && u < tile; u++)
        for (int q = 0; q < 4; q++) sum[u][q] = join_groups(_mm512_loadu_si512(p->bias), sum[u][q], second[u][q]);
    if (even) add_even(p, p->x + p->offset[i], tile * pixels / 4, blocks, sum);
    for (isize row = 0; !words && !even && row < end; row += p->line)
        weight = blocks == 4 && !nibbles && p->far
                     ? add_row(window, row, row + bytes, weight, tile, blocks, nibbles, 1, sum)
                     : add_row(window, row, row + bytes, weight, tile, blocks, nibbles, 0, sum);
    store_results(p, sum[0], i, tile > 1, blocks, whole, words, nibbles, form); /* no loop, in which sums would be in memory */
    if (tile > 1) store_results(p, sum[1], i + pixels, 1, blocks, whole, words, nibbles, form);
    if (tile > 2) store_results(p, sum[2], i + 2 * pixels, 1, blocks, whole, words, nibbles, form);
    if (tile > 2) store_results(p, sum[3], i + 3 * pixels, 1, blocks, whole, words, nibbles, form);
}

VNNI_INLINE void run_panel(const panel *given, const int blocks, const int flat, const int whole, const int words,
                           const int nibbles, const finish_form form) {
    const panel p = *given; /* a copy that no store to y can change, as the compiler knows */
    const int pixels = 4 / blocks, narrow = pixels > 1;
    const int tile = narrow ? 2 : MAX_TILE; /* a larger one has more addresses of windows than there are registers */
    isize i = 0;
    while (p.count - i >= tile * pixels)
        if (narrow && !words && !nibbles && form != GENERAL && p.count - i >= MAX_TILE * pixels && evenly_apart(&p, i, MAX_TILE * pixels)) {
            microkernel(&p, i, MAX_TILE, blocks, flat, whole, 0, 0, form, 1);
            i += MAX_TILE * pixels;
        } else {
            microkernel(&p, i, tile, blocks, flat, whole, words, nibbles, form, 0);
            i += tile * pixels;
        }
    for (; tile > 2 && p.count - i >= 2 * pixels; i += 2 * pixels)
        microkernel(&p, i, 2, blocks, flat, whole, words, nibbles, form, 0);
    for (; i < p.count; i += pixels) microkernel(&p, i, 1, blocks, flat, whole, words, nibbles, form, 0);
}

/* A function for each case, so that each gets registers of its own. */
#define PANEL_KERNEL(name, blocks, flat, whole, words, nibbles, form)        \
    VNNI_TARGET static __attribute__((noinline)) void name(const panel *p) { \
        run_panel(p, blocks, flat, whole, words, nibbles, form);             \
    }
#define PANEL_KERNELS(name, blocks, nibbles)                              \
    PANEL_KERNEL(name, blocks, 0, 0, 0, nibbles, USUAL)                   \
    PANEL_KERNEL(name##_residual, blocks, 0, 0, 0, nibbles, RESIDUAL)     \
    PANEL_KERNEL(name##_general, blocks, 0, 0, 0, nibbles, GENERAL)       \
    PANEL_KERNEL(name##_sums, blocks, 0, 0, 0, nibbles, SUMS)
PANEL_KERNELS(one_block, 1, 0)
PANEL_KERNELS(two_blocks, 2, 0)
PANEL_KERNELS(three_blocks, 3, 0)
PANEL_KERNELS(four_blocks, 4, 0)
PANEL_KERNELS(two_blocks_nibbles, 2, 1)
PANEL_KERNELS(four_blocks_nibbles, 4, 1)
PANEL_KERNEL(one_whole_block, 1, 0, 1, 0, 0, USUAL)
PANEL_KERNEL(two_whole_blocks, 2, 0, 1, 0, 0, USUAL)
PANEL_KERNEL(three_blocks_flat, 3, 1, 0, 0, 0, USUAL)
PANEL_KERNEL(four_blocks_flat, 4, 1, 0, 0, 0, USUAL)
PANEL_KERNEL(groups_of_4, 1, 0, 0, 1, 0, USUAL)
PANEL_KERNEL(groups_of_8, 1, 0, 0, 2, 0, USUAL)
PANEL_KERNEL(groups_of_16, 1, 0, 0, 4, 0, USUAL)
PANEL_KERNEL(groups_of_4_sums, 1, 0, 0, 1, 0, SUMS)
PANEL_KERNEL(groups_of_8_sums, 1, 0, 0, 2, 0, SUMS)
PANEL_KERNEL(groups_of_16_sums, 1, 0, 0, 4, 0, SUMS)
PANEL_KERNEL(groups_of_4_general, 1, 0, 0, 1, 0, GENERAL)
PANEL_KERNEL(groups_of_8_general, 1, 0, 0, 2, 0, GENERAL)
PANEL_KERNEL(groups_of_16_general, 1, 0, 0, 4, 0, GENERAL)

static panel_kernel vnni_kernel(const conv_args *a, isize blocks) {
    static const panel_kernel residual[] = {one_block_residual, two_blocks_residual, three_blocks_residual, four_blocks_residual};
    static const panel_kernel general[] = {one_block_general, two_blocks_general, three_blocks_general, four_blocks_general};
    static const panel_kernel whole[] = {one_whole_block, two_whole_blocks, three_blocks, four_blocks};
    static const panel_kernel usual[] = {one_block, two_blocks, three_blocks, four_blocks};
    static const panel_kernel nibbles[] = {two_blocks_nibbles,  two_blocks_nibbles_residual,  two_blocks_nibbles_general,
                                           four_blocks_nibbles, four_blocks_nibbles_residual, four_blocks_nibbles_general};
    static const panel_kernel sums[] = {one_block_sums, two_blocks_sums, three_blocks_sums, four_blocks_sums};
    if (a->sum_bytes && a->nibbles) return blocks > 2 ? four_blocks_nibbles_sums : two_blocks_nibbles_sums;
    if (a->sum_bytes && a->group_width)
        return a->group_width == 4 ? groups_of_4_sums : a->group_width == 8 ? groups_of_8_sums : groups_of_16_sums;
    if (a->sum_bytes) return sums[blocks - 1];
    if (a->nibbles) return nibbles[(blocks > 2 ? 3 : 0) + (a->general ? 2 : adds_residual(a) ? 1 : 0)];
    if (a->group_width == 4) return a->general ? groups_of_4_general : groups_of_4;
    if (a->group_width == 8) return a->general ? groups_of_8_general : groups_of_8;
    if (a->group_width == 16) return a->general ? groups_of_16_general : groups_of_16;
    if (a->general) return general[blocks - 1];
    if (adds_residual(a)) return residual[blocks - 1];
    if (a->kernel_h == 1 && blocks > 2) return blocks == 3 ? three_blocks_flat : four_blocks_flat;
    return a->out_channels == 16 * blocks ? whole[blocks - 1] : usual[blocks - 1];
}

static panel_kernel choose_kernel(const conv_args *a, isize blocks) {
    const panel_kernel amx = amx_panel_kernel(a, blocks);
    return amx ? amx : vnni_kernel(a, blocks);
}

/* Computes sums of the windows of a panel, the first of which is `place` of all, and has them finished; with those of `other`,
   which is not NULL where another convolution is joined. */
static void run_sums(const conv_args *a, panel *p, panel *other, isize blocks, isize place, isize channel, uint8_t *scratch) {
    const panel_kernel run = choose_kernel(a, blocks), run_other = other ? choose_kernel(a->joined, blocks) : NULL;
    const isize count = p->count;
    const int32_t *offset = p->offset, *other_offset = other ? other->offset : NULL;
    p->sums = (int32_t *)(void *)scratch;
    if (other) other->sums = (int32_t *)(void *)(scratch + a->sum_bytes - (isize)SUM_BYTES);
    for (isize i = 0; i < count; i += SUM_WINDOWS) {
        p->offset = offset + i, p->count = min_size(count - i, SUM_WINDOWS);
        const sum_block b = {p->sums, other ? other->sums : NULL, p->count, p->channels, 16 * blocks, place + i, channel};
        if (p->count > 4 && a->kernel_h * p->bytes >= LONG_WINDOW) a->finish->expect(a->finish->args, &b);
        if (other) {
            other->offset = other_offset + i, other->count = p->count;
            run_other(other);
        }
        run(p);
        a->finish->run(a->finish->args, &b, scratch + SUM_BYTES);
    }
    p->offset = offset, p->count = count;
    if (other) other->offset = other_offset, other->count = count;
}

/* Makes the output channels from `channel` on those that the panel computes. Returns how many vectors of 16 they are. */
static isize take_block(const conv_args *a, panel *p, isize at, isize channel) {
    const isize depth = a->kernel_h * (a->group_width ? a->kernel_w * a->group_width : p->bytes), block = dense_block(a);
    p->far = depth * block > MAX_NEAR;
    p->y = a->y + at + channel;
    p->residual = a->residual && (a->residual_joint || adds_residual(a)) ? a->residual + at + channel : NULL;
    p->channels = min_size(a->out_channels - channel, block);
    p->weight = a->weight + (a->nibbles ? channel * depth / 2 : channel * depth), p->bias = a->bias + channel;
    const isize blocks = a->nibbles ? 2 * ceil_div(p->channels, 32) : ceil_div(p->channels, 16);
    for (int q = 0; q < 4; q++) {
        const isize from = channel + 16 * (q % blocks);
        p->multiplier[q] = a->multiplier + from;
        p->negative[q] = a->multiplier_negative ? a->multiplier_negative + from : p->multiplier[q];
    }
    p->few = vnni_kernel(a, blocks);
    return blocks;
}

/* Computes the blocks lo to hi of output channels for all windows of the panel, the first of which is `place` of all; `other`
   as of run_sums(). */
VNNI_TARGET static void run_blocks(const conv_args *a, panel *p, panel *other, isize place, isize lo, isize hi, uint8_t *sums) {
    const isize at = place * a->out_channels, block = dense_block(a);
    const uint8_t *x = p->x;
    for (isize channel = lo * block; channel < hi * block; channel += block) {
        const isize blocks = take_block(a, p, at, channel);
        if (other) take_block(a->joined, other, at, channel);
        if (a->group_width) p->x = x + channel;
        p->copied = channel > lo * block;
        if (other) other->copied = p->copied;
        if (a->sum_bytes)
            run_sums(a, p, other, blocks, place, channel, sums);
        else
            choose_kernel(a, blocks)(p);
    }
}

/* Fills in which channel of a narrow group each lane computes. */
VNNI_INLINE void order_lanes(const conv_args *a, panel *p) {
    uint8_t to[16], from[16];
    for (isize c = 0; c < 16; c++) from[c] = (uint8_t)group_lane(a->group_width, c), to[from[c]] = (uint8_t)c;
    p->to_lanes = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)to));
    p->from_lanes = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)from));
}

/* Copies the rows of the padded images under result rows lo to hi, one after the other, to `to`. */
static void copy_padded_rows(const conv_args *a, isize lo, isize hi, isize line, uint8_t *to) {
    const isize bytes = a->width * a->channels;
    for (isize at = lo, end; at < hi; at = end) { /* one image */
        const isize n = at / a->out_height, top = at % a->out_height;
        end = min_size((n + 1) * a->out_height, hi);
        const isize last = (top + end - at - 1) * a->stride_h + a->kernel_h;
        for (isize k = top * a->stride_h; k < last; k++, to += line) {
            const isize source = k - a->pad_h;
            if (source < 0 || source >= a->height)
                memset(to, a->in_zero, (size_t)line);
            else
                memcpy(to + a->pad_w * a->channels, a->x + (n * a->height + source) * bytes, (size_t)bytes);
        }
    }
}

/* Fills in where the windows of result rows lo to hi begin: in rows as copy_padded_rows leaves them, or in the images. */
static void fill_offsets(const conv_args *a, isize lo, isize hi, isize line, int padded, int32_t *offset) {
    const isize pixel = a->stride_w * a->channels;
    const isize image_rows = padded ? (a->out_height - 1) * a->stride_h + a->kernel_h : a->height;
    const isize begin = -(lo % a->out_height) * a->stride_h;
    for (isize r = lo; r < hi; r++) {
        const isize n = r / a->out_height - lo / a->out_height;
        const isize row = begin + n * image_rows + r % a->out_height * a->stride_h;
        for (isize c = 0; c < a->out_width; c++) offset[c] = (int32_t)(row * line + c * pixel);
        offset += a->out_width;
    }
    for (isize i = 0; i < OFFSET_PADDING; i++) offset[i] = offset[-1];
}

/* How rows are taken: in place, or copied with their padding. */
typedef struct {
    int padded;
    isize line, step, rows_bytes, windows; /* bytes of a row, result rows of a panel, bytes of copied rows, offsets */
    isize amx; /* bytes of scratch memory of the kernel for AMX */
} dense_layout;

static dense_layout dense_layout_of(const conv_args *a) {
    const isize all = a->batch * a->out_height;
    /* Windows are read in place, unless they reach beyond the images or end amid four bytes. */
    const int beyond = a->pad_h || a->pad_w || (a->out_height - 1) * a->stride_h + a->kernel_h > a->height ||
                       (a->out_width - 1) * a->stride_w + a->kernel_w > a->width;
    const int padded = beyond || a->kernel_w * a->channels % 4 || a->group_width;
    const isize reach = (a->out_width - 1) * a->stride_w + a->kernel_w;
    const isize line = padded ? max_size(reach, a->pad_w + a->width) * a->channels + ROW_PADDING : a->width * a->channels;
    const isize fitting = min_size(PANEL_BYTES / (line * a->stride_h), min_size(MAX_WINDOWS, amx_windows(a)) / a->out_width);
    const isize step = fitting < 1 ? 1 : min_size(fitting, all);
    const isize overlap = max_size(a->kernel_h - a->stride_h, 0), images = min_size(step / a->out_height + 2, step);
    const isize bytes = padded ? (step * a->stride_h + images * overlap) * line : 0;
    return (dense_layout){padded, line, step, bytes, step * a->out_width + OFFSET_PADDING, amx_scratch(a, step * a->out_width)};
}

/* Scratch memory of a convolution: offsets of windows, and copied rows. */
static isize layout_bytes(const dense_layout *t) { return t->rows_bytes + t->windows * (isize)sizeof(int32_t); }

isize dense_scratch(const conv_args *a) {
    const dense_layout t = dense_layout_of(a), other = a->joined ? dense_layout_of(a->joined) : (dense_layout){0};
    return a->sum_bytes + t.amx + other.amx + layout_bytes(&t) + round_up(layout_bytes(&other), ALIGNMENT) + ALIGNMENT;
}

/* Makes a panel of the windows of result rows r to end; `scratch` has layout_bytes(), and zero points where rows are copied. */
VNNI_TARGET static void take_rows(const conv_args *a, const dense_layout *t, isize r, isize end, uint8_t *scratch, panel *p) {
    int32_t *offset = (int32_t *)(void *)scratch;
    uint8_t *rows = scratch + t->windows * (isize)sizeof(int32_t);
    const isize top = (r / a->out_height * a->height + r % a->out_height * a->stride_h) * t->line;
    const isize all = a->batch * a->out_height * a->out_width * a->out_channels;
    *p = (panel){.x = t->padded ? rows : a->x + top, .offset = offset, .count = (end - r) * a->out_width, .kernel_h = a->kernel_h,
                 .line = t->line, .bytes = ceil_div(a->kernel_w * a->channels, 4) * 4, .pixel = a->channels,
                 .apart = a->stride_w * a->channels, .large = a->large, .stride = a->out_channels, .args = a, .begin = offset,
                 .fetches = a->out_channels > VECTOR_BYTES && all > MIN_FETCHED,
                 .end = conv_epilogue(a), .sum_end = make_epilogue(a->sum_zero, a->sum_low, a->sum_high)};
    if (a->group_width) order_lanes(a, p);
    if (t->padded) copy_padded_rows(a, r, end, t->line, rows);
    fill_offsets(a, r, end, t->line, t->padded, offset);
}

VNNI_TARGET void dense_kernel(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const conv_args *a = (const conv_args *)given, *joined = a->joined;
    const isize all = a->batch * a->out_height, block = dense_block(a), blocks = ceil_div(a->out_channels, block);
    const isize first_block = a->split_channels ? lo : 0, last_block = a->split_channels ? hi : blocks;
    if (a->split_channels) lo = 0, hi = all;
    const dense_layout t = dense_layout_of(a), other = joined ? dense_layout_of(joined) : (dense_layout){.step = t.step};
    uint8_t *own_scratch = scratch + a->sum_bytes + t.amx + other.amx;
    uint8_t *other_scratch = own_scratch + round_up(layout_bytes(&t), ALIGNMENT);
    memset(own_scratch + layout_bytes(&t) - t.rows_bytes, a->in_zero, (size_t)t.rows_bytes);
    if (joined) memset(other_scratch + layout_bytes(&other) - other.rows_bytes, joined->in_zero, (size_t)other.rows_bytes);
    const isize step = min_size(t.step, other.step);
    if (t.amx + other.amx) begin_amx();
    for (isize r = lo, end; r < hi; r = end) {
        end = min_size(r + step, hi);
        panel p, second;
        take_rows(a, &t, r, end, own_scratch, &p);
        if (joined) take_rows(joined, &other, r, end, other_scratch, &second);
        p.amx = scratch + a->sum_bytes, second.amx = p.amx + t.amx;
        const isize place = r * a->out_width, at = place * a->out_channels, from = first_block * block;
        run_blocks(a, &p, joined ? &second : NULL, place, first_block, last_block, scratch);
        finish_results(a, adds_residual(a), at + from, p.count, min_size(last_block * block, a->out_channels) - from);
    }
    if (t.amx + other.amx) end_amx();
}
#endif
