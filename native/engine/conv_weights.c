/* Weights of convolutions, see conv_weights.h. */

#include "conv_weights.h"
#include "nibbles.h"

#include <stdlib.h>

#define SUM_BLOCK (1 << 16)            /* weights whose sum fits int32 */
#define MAX_REACH ((int64_t)1 << 40)

static isize channels_of_group(const conv_step *s) { return (isize)(s->channels / s->groups); }
static isize places_of(const conv_step *s) { return (isize)(s->kernel_d * s->kernel_h * s->kernel_w); }

MULTIVERSION static void channels_last(const int8_t *restrict from, isize outputs, isize places, isize channels,
                                       int8_t *restrict to) {
    for (isize o = 0; o < outputs; o++, from += places * channels)
        for (isize k = 0; k < places; k++)
            for (isize i = 0; i < channels; i++) *to++ = from[i * places + k];
}

const int8_t *conv_weights(checker *c, const conv_step *s) {
    const isize places = places_of(s), channels = channels_of_group(s), count = (isize)s->out_channels * places * channels;
    const int8_t *stored = int8_weights(c, s->weight, count, s->bits);
    if (!stored || !s->channels_first || places == 1 || channels == 1) return stored;
    int8_t *made = (int8_t *)malloc((size_t)count);
    if (made)
        channels_last(stored, (isize)s->out_channels, places, channels, made);
    else
        refuse(c, "there is no memory for %lld weights", (long long)count);
    free_weights(stored, s->bits);
    return made;
}

void free_conv_weights(const checker *c, const conv_step *s, const int8_t *weights) {
    if ((const void *)weights != constant_at(c, s->weight)) free((void *)(uintptr_t)weights);
}

/* The sum of up to SUM_BLOCK weights, and that of their magnitudes. */
MULTIVERSION static void sum_block(const int8_t *restrict w, isize count, int32_t *sum, int32_t *magnitude) {
    int32_t all = 0, positive = 0;
    for (isize i = 0; i < count; i++) {
        all += w[i];
        positive += w[i] > 0 ? w[i] : 0;
    }
    *sum = all, *magnitude = 2 * positive - all;
}

/* Fills in the largest |acc| of every output, and biases with the zero point in them; `bias` is NULL for none. */
static void sum_weights(const conv_step *s, const int8_t *w, isize window, const int32_t *bias, int64_t *bounds, int32_t *folded) {
    for (isize o = 0; o < s->out_channels; o++) {
        int64_t sum = 0, magnitude = 0;
        for (isize at = 0, count; at < window; at += count, w += count) {
            int32_t part, size;
            count = min_size(window - at, SUM_BLOCK);
            sum_block(w, count, &part, &size);
            sum += part, magnitude += size;
        }
        const int64_t own = bias ? bias[o] : 0;
        bounds[o] = 255 * magnitude + (own < 0 ? -own : own);
        folded[o] = (int32_t)((uint32_t)own - (uint32_t)s->zero_x * (uint32_t)sum);
    }
}

int find_limits(checker *c, const conv_step *s, isize window, conv_limits *found) {
    const isize outputs = (isize)s->out_channels;
    const void *weight = constant_at(c, s->weight);
    const int32_t *bias = (const int32_t *)constant_at(c, s->bias);
    const float *ratio = (const float *)constant_at(c, s->ratio);
    /* A variant for every array of weights and zero point: layers may share the one or the other. */
    const isize variant = (isize)((uint64_t)(uintptr_t)weight << 8 | (uint64_t)s->zero_x);
    int fresh;
    int64_t *bounds = (int64_t *)shared_memory(c, bias ? (const void *)bias : ratio, variant, checked_product(outputs, 12), &fresh);
    if (!bounds) return 0;
    int32_t *folded = (int32_t *)(void *)(bounds + outputs);
    if (fresh) {
        /* The order of an output's weights does not matter to their sums. */
        const int8_t *w = int8_weights(c, s->weight, outputs * window, s->bits);
        if (!w) return discard_memory(c, bounds), 0;
        sum_weights(s, w, window, bias, bounds, folded);
        free_weights(w, s->bits);
    }
    double reach = 0.0;
    int64_t bound = 0;
    for (isize o = 0; o < outputs; o++) {
        const double size = (double)bounds[o] * (double)(ratio[o] < 0 ? -ratio[o] : ratio[o]);
        bound = bounds[o] > bound ? bounds[o] : bound;
        reach = size <= reach ? reach : size; /* NaN is the largest */
    }
    *found = (conv_limits){folded, bound, reach < (double)MAX_REACH ? (int64_t)reach + 1 : MAX_REACH};
    return 1;
}
