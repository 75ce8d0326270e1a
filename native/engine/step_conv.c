/* Convolutions and linear layers: their check, the choice of a kernel, and weights packed for AVX-512 VNNI. */

#include "conv_args.h"
#include "conv_gather.h"
#include "conv_weights.h"
#include "nibbles.h"

#include <stdlib.h>

#define MAX_WINDOW 64 /* or stride or padding of the fast kernels */
#define MAX_SIZE ((isize)1 << 31)
#define NIBBLE_VARIANT (-2)
#define MAX_NIBBLE_SUM ((int64_t)1 << 27) /* from which on 16 times a sum is no int32 */

typedef enum { GATHERED, DENSE, DEPTHWISE } conv_form;

/* What the check of a convolution prepares. */
struct conv_plan {
    conv_form form;
    gather_plan gathered;
    conv_args fast; /* without addresses; not of form GATHERED, as all that follows */
    isize window;   /* products of one result */
    const void *packed_weight, *packed_bias, *packed_ratio, *packed_negative;
    const conv_plan *joined; /* NULL, or another convolution that is computed with this one, and its step */
    const conv_step *joined_step;
};

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define HAS_AVX512_KERNELS 1

/* ---- packing for AVX-512 -------------------------------------------------------------------------------------------- */

typedef struct {
    isize weight, channels;
} packed_size;

static packed_size packed_size_of(const conv_args *a, int dense) {
    if (a->group_width) {
        const isize channels = round_up(a->out_channels, 16);
        return (packed_size){channels * a->kernel_h * a->kernel_w * a->group_width, channels};
    }
    const isize whole = a->out_channels * a->block_pixels / 64 * 64, last = a->out_channels * a->block_pixels - whole;
    const isize channels = whole + round_up(last, !dense ? 64 : a->nibbles ? 32 : 16);
    const isize depth =
        dense ? a->kernel_h * ceil_div(a->kernel_w * a->channels, 4) : a->kernel_w * ceil_div(a->kernel_h, 4);
    return (packed_size){channels * depth * 4, channels};
}

/* Weights (O, rows, columns, C) for the dense kernel: blocks of 64 outputs (the last of 16, 32 or 48 where there are no more),
   rows, words of four bytes along them, outputs, bytes. Bytes beyond a row, and outputs beyond the last, are 0. */
static void pack_dense(const conv_args *a, const int8_t *weight, int8_t *to) {
    const isize channels = packed_size_of(a, 1).channels, row = a->kernel_w * a->channels, words = ceil_div(row, 4);
    for (isize from = 0; from < channels; from += 64) {
        const isize count = min_size(channels - from, 64);
        for (isize r = 0; r < a->kernel_h; r++)
            for (isize w = 0; w < words; w++)
                for (isize o = from; o < from + count; o++, to += 4)
                    if (o < a->out_channels && 4 * w + 4 <= row)
                        memcpy(to, weight + (o * a->kernel_h + r) * row + 4 * w, 4);
                    else
                        for (isize b = 4 * w; b < 4 * w + 4; b++)
                            to[b % 4] = o < a->out_channels && b < row ? weight[(o * a->kernel_h + r) * row + b] : 0;
    }
}

/* Where the depthwise kernel has channel c of a block of 64: c = 16 l + 4 q + i comes at (q, l, i). */
static isize interleaved(isize c) { return c / 64 * 64 + c % 16 / 4 * 16 + c % 64 / 16 * 4 + c % 4; }

/* Where narrow groups have channel c. */
static isize grouped(const conv_args *a, isize c) { return c / 16 * 16 + group_lane(a->group_width, c % 16); }

/* Weights (O, taps, group_width) of narrow groups: blocks of 16 outputs, taps, words of four bytes, lanes, bytes. In groups of
   8: taps, the two groups, outputs, words, bytes. */
static void pack_groups(const conv_args *a, const int8_t *weight, int8_t *to) {
    const isize words = a->kernel_h * a->kernel_w * a->group_width / 4, pairs = a->group_width == 8;
    for (isize o = 0; o < a->out_channels; o++)
        for (isize w = 0, at = grouped(a, o); w < words; w++) {
            const isize vector = pairs ? w / 2 * 2 + at % 16 / 8 : w, lane = pairs ? at % 8 * 2 + w % 2 : at % 16;
            memcpy(to + 4 * ((at / 16 * words + vector) * 16 + lane), weight + 4 * (o * words + w), 4);
        }
}

/* Weights (C, rows, columns) for the depthwise kernel, as often as pixels stand side by side: blocks of 64 channels,
   columns, groups of four rows, channels in the order of interleaved(), rows. */
static void pack_depthwise(const conv_args *a, const int8_t *weight, int8_t *to) {
    const isize groups = ceil_div(a->kernel_h, 4);
    for (isize at = 0; at < a->channels * a->block_pixels; at++) {
        const isize c = at % a->channels, place = interleaved(at), block = place / 64, lane = place % 64;
        for (isize k = 0; k < a->kernel_w; k++)
            for (isize r = 0; r < a->kernel_h; r++)
                to[(((block * a->kernel_w + k) * groups + r / 4) * 64 + lane) * 4 + r % 4] =
                    weight[(c * a->kernel_h + r) * a->kernel_w + k];
    }
}

static int pack_weights(checker *c, const conv_step *s, const conv_plan *t, isize bytes, int8_t *to) {
    const int8_t *weight = conv_weights(c, s);
    int8_t *panels = t->fast.nibbles ? (int8_t *)calloc(2, (size_t)bytes) : to;
    if (weight && panels)
        (t->form != DENSE ? pack_depthwise : t->fast.group_width ? pack_groups : pack_dense)(&t->fast, weight, panels);
    if (weight && panels && t->fast.nibbles) pack_nibbles(panels, 2 * bytes, 64, to);
    const int packed = weight && panels;
    if (panels != to) free(panels);
    free_conv_weights(c, s, weight);
    if (!packed) discard_memory(c, to);
    return packed || refuse(c, "there is no memory to pack weights");
}

/* Packs int32 or float32 numbers (O) in the order of the weights. */
static void pack_numbers(const conv_args *a, int dense, const void *numbers, void *to) {
    for (isize i = 0; i < a->out_channels * a->block_pixels; i++) {
        const isize place = a->group_width ? grouped(a, i) : dense ? i : interleaved(i);
        memcpy((char *)to + 4 * place, (const char *)numbers + 4 * (i % a->out_channels), 4);
    }
}

/* Packs biases or multipliers, or takes those that another plan packed; for weights of 4 bits they become those of sums
   times 16. Returns NULL with a reason. */
static const void *packed_numbers(checker *c, const conv_plan *t, const void *numbers, isize variant, isize channels, int biases) {
    int fresh;
    void *to = shared_memory(c, numbers, variant, 4 * channels, &fresh);
    if (!to || !fresh) return to;
    pack_numbers(&t->fast, t->form == DENSE, numbers, to);
    uint32_t *whole = (uint32_t *)to;
    float *real = (float *)to;
    for (isize i = 0; t->fast.nibbles && i < channels; i++)
        if (biases)
            whole[i] *= 16;
        else
            real[i] *= 0.0625f;
    return to;
}

/* Packs weights, biases and multipliers, or takes what another plan of the model packed. */
static int pack(checker *c, const conv_step *s, const int32_t *bias, conv_plan *t) {
    const conv_args *a = &t->fast;
    const int dense = t->form == DENSE;
    const packed_size size = packed_size_of(a, dense);
    const isize variant = a->nibbles ? NIBBLE_VARIANT : dense ? 0 : a->block_pixels;
    const isize bytes = a->nibbles ? size.weight / 2 : size.weight;
    const void *negative = constant_at(c, s->ratio_negative);
    int fresh;
    int8_t *to = (int8_t *)shared_memory(c, constant_at(c, s->weight), variant, bytes, &fresh);
    if (!to || (fresh && !pack_weights(c, s, t, bytes, to))) return 0;
    t->packed_weight = to;
    t->packed_bias = packed_numbers(c, t, bias, variant, size.channels, 1);
    t->packed_ratio = packed_numbers(c, t, constant_at(c, s->ratio), variant, size.channels, 0);
    if (negative) t->packed_negative = packed_numbers(c, t, negative, variant, size.channels, 0);
    return t->packed_bias && t->packed_ratio && (!negative || t->packed_negative);
}

/* Chooses a fast kernel and fills in what it is given; GATHERED where none takes the convolution. */
static conv_form choose(const conv_step *s, const conv_limits *limits, isize sum_bytes, conv_args *a) {
    const int64_t sizes[] = {s->kernel_h, s->kernel_w, s->stride_h, s->stride_w};
    if (!has_avx512_vnni() || s->transposed || s->kernel_d != 1 || s->depth != 1 || s->out_depth != 1 ||
        s->pad_d || s->dilation_h != 1 || s->dilation_w != 1)
        return GATHERED;
    for (int i = 0; i < 4; i++)
        if (sizes[i] > MAX_WINDOW) return GATHERED;
    if (s->pad_h > MAX_WINDOW || s->pad_w > MAX_WINDOW || limits->bound >= 1 << 30) return GATHERED;
    const int depthwise = s->groups == s->channels && s->channels == s->out_channels && s->groups > 1;
    const int64_t width = s->channels / s->groups;
    const int narrow = s->channels == s->out_channels && (width == 4 || width == 8 || width == 16) && s->groups > 1;
    if (!depthwise && !narrow && s->groups != 1) return GATHERED;
    if ((s->width + s->pad_w + MAX_WINDOW) * s->channels > INT_MAX - 64 || s->height >= 1 << 24 || s->batch >= 1 << 24) return GATHERED;
    if ((s->out_height - 1) * s->stride_h + s->kernel_h > s->height + s->pad_h + MAX_WINDOW ||
        (s->out_width - 1) * s->stride_w + s->kernel_w > s->width + s->pad_w + MAX_WINDOW)
        return GATHERED;
    a->batch = (isize)s->batch, a->height = (isize)s->height, a->width = (isize)s->width;
    a->channels = (isize)s->channels, a->out_channels = (isize)s->out_channels;
    a->kernel_h = (isize)s->kernel_h, a->kernel_w = (isize)s->kernel_w;
    a->stride_h = (isize)s->stride_h, a->stride_w = (isize)s->stride_w;
    a->pad_h = (isize)s->pad_h, a->pad_w = (isize)s->pad_w;
    a->out_height = (isize)s->out_height, a->out_width = (isize)s->out_width;
    a->in_zero = (int)s->zero_x, a->out_zero = (int)s->zero, a->low = (int)s->low, a->high = (int)s->high;
    a->sum_bytes = sum_bytes;
    a->residual_joint = s->residual >= 0 && s->residual_joint;
    a->large = limits->reach > SMALL_RESULT;
    a->general = limits->reach > (depthwise ? SMALL_RESULT : LARGE_RESULT) || s->ratio_negative >= 0 || a->residual_joint;
    a->own_ratio = bits_float(s->own_ratio), a->residual_ratio = bits_float(s->residual_ratio);
    a->residual_zero = (int)s->residual_zero;
    a->sum_zero = (int)s->sum_zero, a->sum_low = (int)s->sum_low, a->sum_high = (int)s->sum_high;
    a->block_pixels = depthwise && s->stride_w == 1 ? max_size(64 / (isize)s->channels, 1) : 1;
    a->group_width = narrow ? (isize)width : 0;
    const int few = current_isa() != AMX || a->batch * a->out_height * a->out_width < 16; /* windows: tiles take bytes */
    a->nibbles = s->bits == 4 && few && !depthwise && !narrow && limits->bound < MAX_NIBBLE_SUM;
    const isize depth = a->kernel_h * a->kernel_w * (depthwise ? 1 : a->channels), blocks = ceil_div(a->out_channels, 64);
    /* Where there are more weights than bytes of images, threads share the weights. */
    a->split_channels = !depthwise && !narrow && blocks >= 4 && a->out_channels * depth > a->batch * a->height * a->width * a->channels;
    return depthwise ? DEPTHWISE : DENSE;
}

static int prepare(checker *c, const conv_step *s, const conv_limits *limits, conv_plan *t) {
    c->scratch = t->form == DENSE ? dense_scratch(&t->fast) : depthwise_scratch(&t->fast);
    return pack(c, s, limits->bias, t);
}

int join_convolution(checker *c, conv_plan *t, const conv_step *other, const conv_plan *other_plan) {
    const conv_args *a = &t->fast, *b = &other_plan->fast;
    if (t->form != DENSE || other_plan->form != DENSE || a->group_width || b->group_width || a->nibbles != b->nibbles ||
        a->batch * a->out_height != b->batch * b->out_height || a->out_width != b->out_width || a->out_channels != b->out_channels)
        return 0;
    t->joined = other_plan, t->joined_step = other;
    t->fast.joined = b; /* for its scratch memory; calls have their own */
    t->fast.sum_bytes += (isize)SUM_BYTES;
    c->scratch = dense_scratch(a);
    return 1;
}

/* Fills in the addresses of a call. */
static conv_args addressed(const frame *f, const conv_step *s, const conv_plan *t) {
    conv_args a = t->fast;
    a.x = at(f, s->x), a.y = at(f, s->y), a.residual = at(f, s->residual), a.table = at(f, s->table);
    a.multiplier_negative = t->packed_negative, a.weight = t->packed_weight, a.bias = t->packed_bias, a.multiplier = t->packed_ratio;
    return a;
}
#else
int join_convolution(checker *c, conv_plan *t, const conv_step *other, const conv_plan *other_plan) {
    return (void)c, (void)t, (void)other, (void)other_plan, 0;
}

static conv_form choose(const conv_step *s, const conv_limits *limits, isize sum_bytes, conv_args *a) {
    return (void)s, (void)limits, (void)sum_bytes, (void)a, GATHERED;
}
static int prepare(checker *c, const conv_step *s, const conv_limits *limits, conv_plan *t) {
    return (void)c, (void)s, (void)limits, (void)t, 1;
}
#endif

/* ---- checks --------------------------------------------------------------------------------------------------------- */

static int check_axis(int64_t size, int64_t out, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation, int transposed) {
    if (size < 1 || out < 1 || kernel < 1 || stride < 1 || dilation < 1 || pad < -MAX_SIZE || size >= MAX_SIZE ||
        out >= MAX_SIZE || kernel >= MAX_SIZE || stride >= MAX_SIZE || dilation >= MAX_SIZE || pad >= MAX_SIZE)
        return 0;
    /* Windows may begin and end outside: what is outside is the zero point. Products of these numbers stay far below 2^63. */
    return transposed || pad >= 0;
}

static isize product(const int64_t *sizes, int count) {
    isize all = 1;
    for (int i = 0; i < count; i++) all = checked_product(all, (isize)sizes[i]);
    return all;
}

conv_plan *check_convolution(checker *c, const conv_step *s, isize sum_scratch) {
    const int64_t x[] = {s->batch, s->depth, s->height, s->width, s->channels};
    if (!check_axis(s->depth, s->out_depth, s->kernel_d, s->stride_d, s->pad_d, s->dilation_d, s->transposed != 0) ||
        !check_axis(s->height, s->out_height, s->kernel_h, s->stride_h, s->pad_h, s->dilation_h, s->transposed != 0) ||
        !check_axis(s->width, s->out_width, s->kernel_w, s->stride_w, s->pad_w, s->dilation_w, s->transposed != 0))
        return refuse(c, "a convolution of no such size"), NULL;
    if (s->batch < 0 || s->channels < 1 || s->groups < 1 || s->channels % s->groups || s->out_channels < 1 ||
        s->out_channels % s->groups)
        return refuse(c, "groups that do not divide the channels"), NULL;
    const int64_t w[] = {s->out_channels, s->kernel_d, s->kernel_h, s->kernel_w, s->channels / s->groups};
    if (!needs(c, s->x, product(x, 5), 1, "x") || !check_weights(c, s->weight, product(w, 5), s->bits) ||
        !needs(c, s->ratio, (isize)s->out_channels, 4, "ratio") || !check_clamp(c, s->zero_x, 0, 255))
        return NULL;
    if (!constant_at(c, s->ratio)) return refuse(c, "ratios that are not constants"), NULL;
    conv_plan *t = (conv_plan *)plan_memory(c, sizeof *t);
    if (!t) return NULL;
    t->window = product(w + 1, 4);
    conv_limits limits;
    if (!find_limits(c, s, t->window, &limits)) return NULL;
    const isize sum_bytes = sum_scratch < 0 ? 0 : (isize)SUM_BYTES + round_up(sum_scratch, ALIGNMENT);
    t->form = choose(s, &limits, sum_bytes, &t->fast);
    const int ready = t->form == GATHERED ? check_gathered(c, s, &limits, sum_bytes, &t->gathered) : prepare(c, s, &limits, t);
    return ready ? t : NULL;
}

int check_conv(checker *c, const int64_t *step) {
    const conv_step *s = (const conv_step *)(const void *)step;
    const int64_t y[] = {s->batch, s->out_depth, s->out_height, s->out_width, s->out_channels};
    if (!needs(c, s->y, product(y, 5), 1, "y") || !needs(c, s->bias, (isize)s->out_channels, 4, "bias")) return 0;
    if (s->ratio_negative >= 0 && !needs(c, s->ratio_negative, (isize)s->out_channels, 4, "ratio_negative")) return 0;
    if (s->residual >= 0 && !needs(c, s->residual, product(y, 5), 1, "residual")) return 0;
    if (s->table >= 0 && !needs(c, s->table, 256, 1, "table")) return 0;
    if (!constant_at(c, s->bias) || (s->ratio_negative >= 0 && !constant_at(c, s->ratio_negative)))
        return refuse(c, "weights that are not constants");
    if (!check_clamp(c, s->zero, s->low, s->high) ||
        (s->residual >= 0 && (!check_clamp(c, s->residual_zero, 0, 255) || !check_clamp(c, s->sum_zero, s->sum_low, s->sum_high))))
        return 0;
    return (c->prepared = check_convolution(c, s, -1)) != NULL;
}

/* ---- execution -------------------------------------------------------------------------------------------------------- */

void run_conv(frame *f, const int64_t *step, void *prepared) {
    run_convolution(f, (const conv_step *)(const void *)step, (const conv_plan *)prepared, NULL);
}

void run_convolution(frame *f, const conv_step *s, const conv_plan *t, const sum_finish *finish) {
    const isize places = (isize)(s->batch * s->out_depth * s->out_height * s->out_width);
    if (!places) return;
    const double products = (double)places * (double)s->out_channels * (double)t->window / 16;
    const isize work = products > 1e15 ? (isize)1 << 50 : (isize)products;
    if (t->form == GATHERED) {
        run_gathered(f, s, &t->gathered, finish, work);
        return;
    }
#if HAS_AVX512_KERNELS
    conv_args joined, a = addressed(f, s, t);
    if (t->joined) joined = addressed(f, t->joined_step, t->joined), a.joined = &joined;
    a.finish = finish;
    const isize count = a.split_channels ? ceil_div(a.out_channels, 64) : a.batch * a.out_height;
    parallel(f, t->form == DENSE ? dense_kernel : depthwise_kernel, &a, count, work);
#endif
}
