/* Convolutions of every geometry and linear layers: addresses of the bytes under windows, packed weights, and panels of
   windows for the kernels of conv_tiles.h. */

#include "byte_table.h"
#include "conv_args.h"
#include "conv_gather.h"
#include "nibbles.h"

#include <stdlib.h>

#define PANEL_WINDOWS 24        /* panels are multiples of it, which all kernels' tiles divide */
#define PANEL_BYTES (48 << 10)  /* of windows */
#define MAX_PANEL 96            /* windows */
#define UNPACK_WINDOWS 8        /* windows from which on weights of 4 bits become bytes before all products */
#define MAX_WAITING 16          /* words of weights that wait for one that may be added to them in 16 bits */
#define MATRIX_ROWS 24          /* rows that are multiplied by a block of a matrix before the next block */
#define WIDE_PIXEL 64           /* bytes of a pixel from which on pixels are taps of their own */
#define PACK_VARIANT 4096       /* variants of packed constants from here on are of this file */

/* ---- packing -------------------------------------------------------------------------------------------------------- */

static isize variant_of(const gather_plan *t, isize what) {
    return (isize)((uint64_t)PACK_VARIANT + (uint64_t)what + 16 * ((uint64_t)t->taps + ((uint64_t)t->groups << 24)));
}

/* Sums of pairs of products that a word of four weights of 16 channels can have at most, and at least, in uint8 steps. */
typedef struct {
    int16_t most[2 * TILE_CHANNELS], least[2 * TILE_CHANNELS];
} word_reach;

static word_reach reach_of(const int8_t *word) {
    word_reach r;
    for (int i = 0; i < 2 * TILE_CHANNELS; i++) {
        const int16_t first = word[2 * i], second = word[2 * i + 1];
        r.most[i] = (int16_t)((first > 0 ? first : 0) + (second > 0 ? second : 0));
        r.least[i] = (int16_t)(first + second - r.most[i]);
    }
    return r;
}

/* Whether sums of the pairs of two words, or of one, fit into 16 bits: 255 times 128 does, and the negative of it. */
static int fit_together(const word_reach *a, const word_reach *b) {
    int16_t beyond = 0;
    for (int i = 0; i < 2 * TILE_CHANNELS; i++) {
        const int16_t most = (int16_t)(a->most[i] + (b ? b->most[i] : 0)), least = (int16_t)(a->least[i] + (b ? b->least[i] : 0));
        beyond = (int16_t)(beyond | (most > 128) | (least < -128));
    }
    return !beyond;
}

/* Finds an order of the `words` of a tap, see tile_kernels: a word is added with the first of the next ones that fits.
   `reach`: memory for as many. Returns behind the order. */
static int32_t *order_words(const int8_t *tap, int32_t words, word_reach *reach, int32_t *order) {
    int32_t *const counts = order, *const end = order + 2 + words, *left = end, pairs = 0, singles = 0;
    for (int32_t w = 0; w < words; w++) reach[w] = reach_of(tap + 4 * TILE_CHANNELS * w);
    order += 2;
    int32_t waiting[MAX_WAITING], count = 0; /* words that nothing was added to */
    for (int32_t w = 0; w < words; w++) {
        if (!fit_together(reach + w, NULL)) {
            *--left = w;
            continue;
        }
        int32_t k = 0;
        while (k < count && !fit_together(reach + waiting[k], reach + w)) k++;
        if (k < count) {
            *order++ = waiting[k], *order++ = w, pairs++;
            for (count--; k < count; k++) waiting[k] = waiting[k + 1];
        } else if (count < MAX_WAITING) {
            waiting[count++] = w;
        } else { /* the first one waits no longer: it comes behind the pairs, for now in the place of the last wide one */
            *--left = ~waiting[0];
            for (k = 0; k + 1 < count; k++) waiting[k] = waiting[k + 1];
            waiting[count - 1] = w;
        }
    }
    for (int32_t k = 0; k < count; k++) *--left = ~waiting[k];
    /* What is left is in any order; those that were marked come first. */
    for (int32_t *p = left; p < end; p++)
        if (*p < 0) {
            const int32_t w = ~*p;
            *p = left[singles], left[singles++] = w;
        }
    counts[0] = pairs, counts[1] = singles;
    for (int32_t *p = counts + 2; p < end; p++) *p *= 4;
    return end;
}

/* The weights of a block, as they stand in the matrix, as the kernels of this instruction set read them; and their order. */
static void order_block(const gather_plan *t, const int8_t *from, word_reach *reach, int32_t *order, int8_t *to) {
    const int32_t words = (int32_t)(t->tap_bytes / 4);
    for (isize k = 0; k < t->taps; k++, from += TILE_CHANNELS * t->tap_bytes) {
        int32_t *const end = order_words(from, words, reach, order);
        for (order += 2; order < end; order++, to += 4 * TILE_CHANNELS)
            memcpy(to, from + TILE_CHANNELS * *order, 4 * TILE_CHANNELS);
    }
}

/* Those of weights of 4 bits, any two words of which fit together, are added as they come. */
static void order_nibbles(const gather_plan *t, int32_t *order) {
    const int32_t words = (int32_t)(t->tap_bytes / 4);
    for (isize k = 0; k < t->taps; k++) {
        *order++ = words / 2, *order++ = words % 2;
        for (int32_t w = 0; w < words; w++) *order++ = 4 * w;
    }
}

/* Weights of matrices (groups, outputs, taps, bytes) as the kernels read them; each block begins with its correction, and its
   order where there is one. `block` is memory for a block of weights that are packed further, `reach` for words of a tap. */
static void pack_weights(const gather_plan *t, isize bytes, const int8_t *weight, int8_t *block, word_reach *reach, int8_t *to) {
    const isize window = t->taps * bytes, whole = t->depthwise ? 1 : t->tap_bytes, wide = t->block;
    const isize together = t->kernels->together ? t->kernels->together : whole;
    const int ordered = t->kernels->ordered, further = t->nibbles || (ordered && !t->depthwise);
    for (isize g = 0; g < t->groups; g++)
        for (isize b = 0; b < t->blocks; b++, to += t->block_bytes) {
            int32_t *order = (int32_t *)(void *)(to + wide * (isize)sizeof(int32_t));
            int8_t *const packed = (int8_t *)order + t->order_bytes, *words = further ? block : packed;
            if (further) memset(block, 0, (size_t)(t->taps * t->tap_bytes * wide));
            for (isize o = 0; o < min_size(t->outputs - b * wide, wide); o++) {
                const int8_t *from = weight + (g * t->outputs + b * wide + o) * window;
                const isize lane = wide == TILE_CHANNELS ? o : block_lane(o);
                int64_t sum = 0;
                for (isize k = 0; k < t->taps; k++)
                    for (isize i = 0; i < bytes; i++, from++) {
                        const isize at = k * round_up(bytes, 4) + i, part = at / together * together;
                        words[part * wide + lane * together + at % together] = *from;
                        sum += *from;
                    }
                const uint32_t correction = (uint32_t)(sum * t->kernels->x_offset);
                memcpy(to + 4 * o, &correction, 4);
            }
            if (t->nibbles)
                pack_nibbles(block, t->unpacked, 32, packed);
            else if (further)
                order_block(t, block, reach, order, packed);
            if (ordered && t->nibbles) order_nibbles(t, order);
            if (ordered && t->depthwise) {
                *order = 1;
                for (isize at = 0; at < t->tap_bytes * wide; at += 4 * TILE_CHANNELS) {
                    const word_reach of_word = reach_of(packed + at);
                    *order &= fit_together(&of_word, NULL);
                }
            }
        }
}

/* Packs int32 or float32 numbers (groups, outputs); NULL with a reason where there is no memory. */
static const void *pack_numbers(checker *c, const gather_plan *t, const void *numbers) {
    const char *from = (const char *)numbers;
    int fresh;
    const isize outputs = t->blocks * t->block;
    char *to = (char *)shared_memory(c, from, variant_of(t, 0), checked_product(t->groups, 4 * outputs), &fresh);
    for (isize g = 0; to && fresh && g < t->groups; g++)
        memcpy(to + 4 * g * outputs, from + 4 * g * t->outputs, (size_t)(4 * t->outputs));
    return to;
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
static const tile_kernels *choose_kernels(void) {
    const enum isa isa = current_isa();
    if (isa == AVX_VNNI) return avx_vnni_tiles();
    return has_avx512_vnni() ? &avx512_tiles : isa == AVX2 ? &avx2_tiles : &plain_tiles;
}
#else
static const tile_kernels *choose_kernels(void) {
#if defined(__aarch64__) && (defined(__GNUC__) || defined(__clang__))
    const enum isa isa = current_isa();
    if (isa == NEON) return &neon_tiles;
    if (isa == NEON_DOT) return &neon_dot_tiles;
    if (isa == NEON_I8MM) return &neon_i8mm_tiles;
#endif
    return &plain_tiles;
}
#endif

/* Packs weights of `bytes` bytes a tap; 0 where there is no memory. */
static int pack_panels(const gather_plan *t, isize bytes, const int8_t *weight, int8_t *to) {
    int8_t *block = (int8_t *)malloc((size_t)(t->taps * t->tap_bytes * t->block));
    word_reach *reach = (word_reach *)malloc((size_t)(t->order_bytes ? t->tap_bytes / 4 : 1) * sizeof *reach);
    const int packed = block && reach;
    if (packed) pack_weights(t, bytes, weight, block, reach, to);
    free(block);
    free(reach);
    return packed;
}

/* Lets a panel have the weights of a block. */
static void find_block(const gather_plan *t, isize block, tile_panel *p) {
    const int8_t *at = (const int8_t *)t->weight + block * t->block_bytes;
    p->correction = (const int32_t *)(const void *)at;
    if (t->order_bytes) p->order = p->correction + t->block;
    p->weight = at + t->block * (isize)sizeof(int32_t) + t->order_bytes;
}

static int pack_fresh(checker *c, const conv_step *s, const gather_plan *t, isize bytes, int8_t *to) {
    const int8_t *weight = conv_weights(c, s);
    const int packed = weight && pack_panels(t, bytes, weight, to);
    free_conv_weights(c, s, weight);
    if (!packed) discard_memory(c, to);
    return packed || refuse(c, "there is no memory to pack weights");
}

/* Finds the sizes of packed blocks; 0 where they have too many bytes. */
static int size_blocks(gather_plan *t) {
    const isize weights = checked_product(checked_product(t->taps, t->tap_bytes), t->block), word = (isize)sizeof(int32_t);
    if (weights < 0 || (t->kernels->ordered && t->tap_bytes > INT32_MAX)) return 0;
    if (t->nibbles) t->unpacked = weights;
    if (t->kernels->ordered)
        t->order_bytes = round_up(t->depthwise ? word : checked_product(t->taps, (2 + t->tap_bytes / 4) * word), ALIGNMENT);
    t->block_bytes = checked_sum(t->nibbles ? weights / 2 : weights, t->block * word + t->order_bytes);
    return t->block_bytes >= 0;
}

static int pack(checker *c, const conv_step *s, const int32_t *bias, gather_plan *t, isize bytes) {
    int fresh;
    const isize blocks = checked_product(t->groups, t->blocks);
    const isize form = 1 + t->kernels->together + (t->kernels->x_offset > 0) + 8 * t->nibbles;
    int8_t *to = (int8_t *)shared_memory(c, constant_at(c, s->weight), variant_of(t, form),
                                         checked_product(blocks, t->block_bytes), &fresh);
    if (!to || (fresh && !pack_fresh(c, s, t, bytes, to))) return 0;
    t->weight = to;
    return (t->bias = pack_numbers(c, t, bias)) && (t->ratio = pack_numbers(c, t, constant_at(c, s->ratio))) &&
           (s->ratio_negative < 0 || (t->ratio_negative = pack_numbers(c, t, constant_at(c, s->ratio_negative))));
}

/* ---- matrices --------------------------------------------------------------------------------------------------------- */

isize size_matrix(isize depth, isize outputs, int64_t bits, gather_plan *t) {
    *t = (gather_plan){.kernels = choose_kernels(), .block = TILE_CHANNELS, .groups = 1, .outputs = outputs, .taps = 1};
    t->blocks = ceil_div(outputs, TILE_CHANNELS), t->tap_bytes = round_up(depth, 4);
    t->nibbles = bits == 4 && t->kernels->dense_nibbles;
    return size_blocks(t) ? checked_product(t->blocks, t->block_bytes) : -1;
}

int pack_matrix(const gather_plan *t, isize depth, const int8_t *weight, int8_t *to) { return pack_panels(t, depth, weight, to); }

void multiply_matrix(const gather_plan *t, const uint8_t *x, isize rows, isize from, isize columns, int32_t *sums, isize apart) {
    static const int32_t no_bias[TILE_CHANNELS];
    const uint8_t *row[MATRIX_ROWS];
    for (isize first = 0; first < rows; first += MATRIX_ROWS) {
        tile_panel p = {.taps = row, .count = min_size(rows - first, MATRIX_ROWS), .tap_count = 1, .tap_bytes = t->tap_bytes,
                        .bias = no_bias, .stride = apart, .channels = TILE_CHANNELS, .finish = {.form = TILE_SUMS}};
        for (isize r = 0; r < p.count; r++) row[r] = x + (first + r) * t->tap_bytes;
        for (isize c = 0; c < columns; c += TILE_CHANNELS) {
            find_block(t, (from + c) / TILE_CHANNELS, &p);
            p.sums = sums + first * apart + c;
            (t->nibbles ? t->kernels->dense_nibbles : t->kernels->dense)(&p);
        }
    }
}

/* ---- check ------------------------------------------------------------------------------------------------------------ */

static isize scratch_of(const gather_plan *t) {
    const isize of_window = checked_sum(checked_product(t->pointers + 1, (isize)sizeof(void *)), t->copied);
    return checked_sum(checked_product(t->panel, of_window), checked_sum(t->blank + ALIGNMENT, t->unpacked + t->sum_bytes));
}

/* What becomes of sums, see tile_form. */
static tile_form form_of_results(const conv_step *s, const conv_limits *limits, isize sum_bytes) {
    if (sum_bytes) return TILE_SUMS;
    if (limits->reach > LARGE_RESULT || s->ratio_negative >= 0) return TILE_GENERAL;
    if (s->residual < 0) return TILE_USUAL;
    const float own = bits_float(s->own_ratio), other = bits_float(s->residual_ratio);
    const float largest = 255 * ((own < 0 ? -own : own) + (other < 0 ? -other : other));
    return !s->residual_joint && largest < LARGE_RESULT ? TILE_ADDED : TILE_GENERAL;
}

int check_gathered(checker *c, const conv_step *s, const conv_limits *limits, isize sum_bytes, gather_plan *t) {
    const isize channels = (isize)s->channels, width = channels / (isize)s->groups;
    const isize pixels = (isize)(s->kernel_d * s->kernel_h * s->kernel_w), rows = (isize)(s->kernel_d * s->kernel_h);
    if (s->ratio_negative >= 0 && !constant_at(c, s->ratio_negative)) return refuse(c, "ratios that are not constants");
    t->depthwise = s->groups == s->channels && s->channels == s->out_channels && s->groups > 1;
    t->sum_bytes = sum_bytes;
    t->results = form_of_results(s, limits, sum_bytes);
    t->kernels = choose_kernels();
    t->block = t->depthwise ? t->kernels->block : TILE_CHANNELS;
    t->groups = t->depthwise ? 1 : (isize)s->groups;
    t->outputs = (isize)s->out_channels / t->groups, t->blocks = ceil_div(t->outputs, t->block);
    isize bytes = width; /* of a tap, as the weights have them */
    t->form = PIXELS, t->taps = t->pointers = pixels;
    if (t->depthwise) {
        bytes = pixels, t->taps = 1, t->pointers = round_up(pixels, 4);
    } else if (s->groups == 1 && !s->transposed && (s->dilation_w == 1 || s->kernel_w == 1) &&
               (width % 4 || width < WIDE_PIXEL || pixels == 1)) {
        t->form = RUNS, bytes = (isize)s->kernel_w * width, t->taps = t->pointers = rows;
        t->copied = checked_product(rows, round_up(bytes, 4));
    } else if (width % 4 || width < 8) {
        t->form = COPIES, bytes = pixels * width, t->taps = 1;
        t->copied = round_up(bytes, 4) + TILE_CHANNELS;
    }
    t->tap_bytes = round_up(bytes, 4);
    t->nibbles = s->bits == 4 && !t->depthwise;
    if (!size_blocks(t)) return refuse(c, "windows of too many bytes");
    t->blank = max_size(t->tap_bytes, channels) + t->block;
    const isize windows = (isize)(s->batch * s->out_depth * s->out_height * s->out_width);
    const isize fitting = PANEL_BYTES / (t->taps * t->tap_bytes) / PANEL_WINDOWS * PANEL_WINDOWS;
    const isize most = MAX_PANEL * TILE_CHANNELS / t->block; /* whose sums are SUM_BYTES at most */
    t->panel = min_size(max_size(min_size(fitting, most), PANEL_WINDOWS), max_size(windows, 1));
    /* Where there are more weights than bytes of results, threads share the weights. */
    t->split_channels = !t->depthwise && t->groups * t->blocks >= 4 && windows < t->taps * t->tap_bytes;
    c->scratch = scratch_of(t);
    return pack(c, s, limits->bias, t, bytes);
}

/* ---- addresses ---------------------------------------------------------------------------------------------------------- */

typedef struct {
    const conv_step *s;
    const gather_plan *t;
    const uint8_t *x, *residual;
    uint8_t *y;
    isize x_bytes;
    tile_finish finish;
    const sum_finish *sums; /* finishes them where the kernels do not */
    const uint8_t *table;   /* NULL, or what results are looked up in where the kernels finish them */
} gather_args;

/* What a thread keeps in its scratch memory. */
typedef struct {
    uint8_t *sums;         /* and the memory of what finishes them */
    uint8_t *blank;        /* zero points */
    const uint8_t **taps;  /* addresses for each window */
    const uint8_t **copy;  /* an address for each window */
    uint8_t *copied;
    int8_t *unpacked;      /* a block of weights of 4 bits as bytes */
} gather_buffers;

/* Where tap k of result o reads along an axis; -1 outside of the image. */
INLINE isize source(isize o, isize k, isize size, isize stride, isize pad, isize dilation, int transposed) {
    const isize at = transposed ? o + pad + k * dilation : o * stride - pad + k * dilation;
    if (!transposed) return at < 0 || at >= size ? -1 : at;
    return at < 0 || at % stride || at / stride >= size ? -1 : at / stride;
}

/* The first pixel of row (n, d, h) of the images, for taps i and j of the result; NULL outside. */
static const uint8_t *row_at(const gather_args *a, isize n, isize od, isize oh, isize i, isize j) {
    const conv_step *s = a->s;
    const int transposed = s->transposed != 0;
    const isize d = source(od, i, (isize)s->depth, (isize)s->stride_d, (isize)s->pad_d, (isize)s->dilation_d, transposed);
    const isize h = source(oh, j, (isize)s->height, (isize)s->stride_h, (isize)s->pad_h, (isize)s->dilation_h, transposed);
    if (d < 0 || h < 0) return NULL;
    return a->x + ((n * (isize)s->depth + d) * (isize)s->height + h) * (isize)(s->width * s->channels);
}

/* A run of kernel_w pixels from column w on; copied where it begins or ends outside, or reads beyond the images. */
static const uint8_t *run_at(const gather_args *a, const uint8_t *row, isize w, const uint8_t *blank, uint8_t *copy) {
    const isize pixel = (isize)a->s->channels, width = (isize)a->s->width, count = (isize)a->s->kernel_w;
    const isize first = w < 0 ? min_size(-w, count) : 0, last = min_size(count, width - w);
    if (!row || first >= last) return blank;
    const uint8_t *from = row + (w + first) * pixel;
    if (last - first == count && from - a->x + a->t->tap_bytes <= a->x_bytes) return from;
    memset(copy, (int)a->s->zero_x, (size_t)a->t->tap_bytes);
    memcpy(copy + first * pixel, from, (size_t)((last - first) * pixel));
    return copy;
}

/* Addresses of the taps of one window, number (n, od, oh, ow). */
static void find_window(const gather_args *a, const gather_buffers *b, isize n, isize od, isize oh, isize ow, uint8_t *copy,
                        const uint8_t **tap) {
    const conv_step *s = a->s;
    const gather_plan *t = a->t;
    const isize pixel = (isize)s->channels, stride = (isize)s->stride_w, pad = (isize)s->pad_w;
    const isize columns = (isize)s->kernel_w, dilation = (isize)s->dilation_w;
    const uint8_t **const end = tap + t->pointers;
    for (isize i = 0; i < s->kernel_d; i++)
        for (isize j = 0; j < s->kernel_h; j++) {
            const uint8_t *row = row_at(a, n, od, oh, i, j);
            if (t->form == RUNS) {
                *tap++ = run_at(a, row, ow * stride - pad, b->blank, copy);
                copy += t->tap_bytes;
                continue;
            }
            for (isize k = 0; k < columns; k++) {
                const isize w = source(ow, k, (isize)s->width, stride, pad, dilation, s->transposed != 0);
                *tap++ = row && w >= 0 ? row + w * pixel : b->blank;
            }
        }
    while (tap < end) *tap++ = b->blank;
}

/* How many windows from the last one found on, at most `most`, lie `step` bytes apart and read nothing behind the images. */
static isize same_run(const gather_args *a, const uint8_t *blank, isize step, isize most, const uint8_t *const *tap) {
    const isize bytes = a->t->form == RUNS ? a->t->tap_bytes : 0;
    const uint8_t *last = a->x;
    for (isize k = 0; k < a->t->pointers; k++) {
        if (tap[k] == blank) continue;
        /* A run that was copied is not followed by others. */
        if ((uintptr_t)tap[k] < (uintptr_t)a->x || (uintptr_t)tap[k] >= (uintptr_t)a->x + (uintptr_t)a->x_bytes) return 0;
        if (tap[k] > last) last = tap[k];
    }
    const isize left = a->x_bytes - bytes - (last - a->x);
    return left < 0 ? 0 : step ? min_size(most, left / step) : most;
}

/* Addresses of `count` windows behind one that was found. */
static void follow_taps(const gather_plan *t, const uint8_t *blank, isize step, isize count, const uint8_t **tap) {
    const isize pointers = t->pointers;
    if (pointers == 1) {
        const uint8_t *first = tap[-1];
        const isize by = first == blank ? 0 : step;
        for (isize i = 0; i < count; i++) tap[i] = first + (i + 1) * by;
        return;
    }
    for (isize k = 0; k < pointers; k++) {
        const uint8_t *at = tap[k - pointers];
        const isize by = at == blank ? 0 : step;
        for (isize i = 0; i < count; i++) tap[i * pointers + k] = at += by;
    }
}

/* Addresses of the taps of `count` windows, the first of which is window `from` of all. */
static void find_taps(const gather_args *a, const gather_buffers *b, isize from, isize count) {
    const conv_step *s = a->s;
    const gather_plan *t = a->t;
    const isize stride = (isize)s->stride_w, pad = (isize)s->pad_w, reach = (isize)((s->kernel_w - 1) * s->dilation_w);
    const isize step = stride * (isize)s->channels, width = (isize)s->out_width;
    isize ow = from % width, rest = from / width;
    isize oh = rest % (isize)s->out_height, od = rest / (isize)s->out_height % (isize)s->out_depth;
    isize n = rest / (isize)(s->out_height * s->out_depth);
    const uint8_t **tap = b->taps;
    uint8_t *copy = b->copied;
    for (isize window = 0; window < count;) {
        find_window(a, b, n, od, oh, ow, copy, tap);
        /* Windows of a row no column of which is outside of the image follow each other. */
        const isize first = ow * stride - pad, inside = ((isize)s->width - 1 - reach - first) / stride;
        isize more = 0;
        if (!s->transposed && first >= 0 && first + reach < (isize)s->width)
            more = same_run(a, b->blank, step, min_size(min_size(inside, width - 1 - ow), count - window - 1), tap);
        follow_taps(t, b->blank, step, more, tap + t->pointers);
        const isize found = 1 + more;
        tap += found * t->pointers, copy += t->form == RUNS ? found * t->copied : 0;
        window += found, ow += found;
        if (ow < width) continue;
        ow = 0;
        if (++oh < s->out_height) continue;
        oh = 0;
        if (++od == s->out_depth) od = 0, n++;
    }
}

/* Copies the windows of one group. Small pixels are copied 16 bytes at a time; the next one overwrites what is too much. */
static void copy_windows(const gather_args *a, const gather_buffers *b, isize count, isize group) {
    const isize width = (isize)(a->s->channels / a->s->groups), shift = group * width;
    const uint8_t *last = a->x + a->x_bytes - TILE_CHANNELS, *const *tap = b->taps;
    for (isize i = 0; i < count; i++) {
        uint8_t *to = b->copied + i * a->t->copied;
        b->copy[i] = to;
        for (isize k = 0; k < a->t->pointers; k++, to += width) {
            const uint8_t *from = *tap++ + shift;
            if (width <= TILE_CHANNELS && a->x_bytes >= TILE_CHANNELS && (uintptr_t)from <= (uintptr_t)last)
                memcpy(to, from, TILE_CHANNELS);
            else
                memcpy(to, from, (size_t)width);
        }
    }
}

/* ---- panels ---------------------------------------------------------------------------------------------------------------- */

/* Runs the kernel, on bytes where it takes no weights of 4 bits or where many windows share the work of unpacking them. */
static void multiply(const gather_plan *t, const gather_buffers *b, tile_panel *p) {
    if (t->nibbles && t->kernels->dense_nibbles && p->count < UNPACK_WINDOWS) {
        t->kernels->dense_nibbles(p);
        return;
    }
    if (t->nibbles) unpack_nibbles(p->weight, t->unpacked, b->unpacked), p->weight = b->unpacked;
    (t->depthwise ? t->kernels->depthwise : t->kernels->dense)(p);
}

/* Returns the first output channel of a block, which is counted over all groups. */
static isize first_output(const gather_plan *t, isize block) {
    return block / t->blocks * t->outputs + block % t->blocks * t->block;
}

/* Computes the blocks lo to hi, which are counted over all groups, for `count` windows. */
static void run_panel(const gather_args *a, const gather_buffers *b, isize from, isize count, isize lo, isize hi) {
    const gather_plan *t = a->t;
    tile_panel p = {.taps = b->taps, .count = count, .tap_count = t->pointers, .tap_bytes = t->tap_bytes,
                    .stride = t->sum_bytes ? t->block : (isize)a->s->out_channels, .finish = a->finish};
    p.last = a->x_bytes < t->block ? NULL : a->x + a->x_bytes - t->block;
    find_taps(a, b, from, count);
    for (isize at = lo; at < hi; at++) {
        const isize g = at / t->blocks, first = at % t->blocks * t->block;
        if (t->form == COPIES && (at == lo || !first)) copy_windows(a, b, count, g);
        if (t->form == COPIES) p.taps = b->copy, p.tap_count = 1;
        if (t->form == PIXELS) p.shift = t->depthwise ? first : g * (isize)(a->s->channels / a->s->groups);
        find_block(t, at, &p);
        p.bias = (const int32_t *)t->bias + at * t->block, p.ratio = (const float *)t->ratio + at * t->block;
        if (t->ratio_negative) p.ratio_negative = (const float *)t->ratio_negative + at * t->block;
        p.channels = min_size(t->outputs - first, t->block);
        const isize place = from * (isize)a->s->out_channels + first_output(t, at);
        if (t->sum_bytes)
            p.sums = (int32_t *)(void *)b->sums;
        else
            p.y = a->y + place;
        p.residual = a->residual ? a->residual + place : NULL;
        multiply(t, b, &p);
        if (!t->sum_bytes) continue;
        const sum_block block_of_sums = {p.sums, NULL, count, p.channels, t->block, from, first_output(t, at)};
        a->sums->run(a->sums->args, &block_of_sums, b->sums + SUM_BYTES);
    }
    if (!a->table || t->sum_bytes || lo == hi) return;
    const isize channels = (isize)a->s->out_channels, first = first_output(t, lo), bytes = first_output(t, hi) - first;
    uint8_t *y = a->y + from * channels + first;
    if (bytes == channels) {
        look_up_bytes(a->table, y, y, count * channels);
        return;
    }
    for (isize i = 0; i < count; i++, y += channels) look_up_bytes(a->table, y, y, bytes);
}

/* An index is a window, or a block of output channels of all windows. */
static void gather_kernel(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const gather_args *a = (const gather_args *)given;
    const gather_plan *t = a->t;
    const conv_step *s = a->s;
    gather_buffers b = {.sums = scratch, .blank = scratch + t->sum_bytes};
    b.taps = (const uint8_t **)(void *)(b.blank + round_up(t->blank, ALIGNMENT));
    b.copy = b.taps + t->panel * t->pointers, b.copied = (uint8_t *)(void *)(b.copy + t->panel);
    b.unpacked = (int8_t *)b.copied + t->panel * t->copied;
    memset(b.blank, (int)s->zero_x, (size_t)t->blank);
    if (t->form == COPIES) memset(b.copied, 0, (size_t)(t->panel * t->copied));
    const isize windows = (isize)(s->batch * s->out_depth * s->out_height * s->out_width);
    const isize first = t->split_channels ? 0 : lo, end = t->split_channels ? windows : hi;
    const isize first_block = t->split_channels ? lo : 0, last_block = t->split_channels ? hi : t->groups * t->blocks;
    for (isize from = first; from < end; from += t->panel)
        run_panel(a, &b, from, min_size(t->panel, end - from), first_block, last_block);
}

void run_gathered(frame *f, const conv_step *s, const gather_plan *t, const sum_finish *finish, isize work) {
    gather_args a = {.s = s, .t = t, .x = at(f, s->x), .residual = at(f, s->residual), .y = at(f, s->y), .sums = finish,
                     .table = at(f, s->table)};
    a.x_bytes = (isize)(s->batch * s->depth * s->height * s->width * s->channels);
    const int behind = s->residual >= 0 && !s->residual_joint; /* the residual is added behind the rounding */
    a.finish = (tile_finish){.form = t->results, .low = (float)(s->low - s->zero), .high = (float)(s->high - s->zero),
                             .own_ratio = bits_float(s->own_ratio), .residual_ratio = bits_float(s->residual_ratio),
                             .residual_zero = (int32_t)s->residual_zero, .zero = (int32_t)(behind ? s->sum_zero : s->zero),
                             .joint = s->residual_joint != 0,
                             .least = (uint8_t)(behind ? s->sum_low : s->low), .most = (uint8_t)(behind ? s->sum_high : s->high)};
    if (behind) a.finish.sum_low = (float)(s->sum_low - s->sum_zero), a.finish.sum_high = (float)(s->sum_high - s->sum_zero);
    const isize windows = (isize)(s->batch * s->out_depth * s->out_height * s->out_width);
    parallel(f, gather_kernel, &a, t->split_channels ? t->groups * t->blocks : windows, work);
}
