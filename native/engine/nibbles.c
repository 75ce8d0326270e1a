/* Weights of 4 bits, see nibbles.h. */

#include "nibbles.h"

#include <stdlib.h>

#define SPAN 32

int check_weights(checker *c, int64_t value, isize count, int64_t bits) {
    if (bits != 8 && bits != 4) return refuse(c, "weights of %lld bits", (long long)bits);
    if (!needs(c, value, bits == 8 ? count : count < 0 ? -1 : ceil_div(count, 2), 1, "weight")) return 0;
    return constant_at(c, value) ? 1 : refuse(c, "weights that are not constants");
}

MULTIVERSION static void read_pairs(const uint8_t *restrict from, isize pairs, int8_t *restrict to) {
    for (isize i = 0; i < pairs; i++) {
        to[2 * i] = (int8_t)((from[i] & 15) - 8);
        to[2 * i + 1] = (int8_t)((from[i] >> 4) - 8);
    }
}

const int8_t *int8_weights(checker *c, int64_t value, isize count, int64_t bits) {
    const uint8_t *from = (const uint8_t *)constant_at(c, value);
    if (bits == 8) return (const int8_t *)from;
    int8_t *made = (int8_t *)malloc((size_t)count + 1);
    if (!made) return refuse(c, "there is no memory for %lld weights", (long long)count), NULL;
    read_pairs(from, count / 2, made);
    if (count % 2) made[count - 1] = (int8_t)((from[count / 2] & 15) - 8);
    return made;
}

void free_weights(const int8_t *weights, int64_t bits) {
    if (bits != 8) free((void *)(uintptr_t)weights);
}

void pack_nibbles(const int8_t *weights, isize count, isize span, int8_t *to) {
    for (isize at = 0; at < count; at += 2 * span, to += span)
        for (isize i = 0; i < span; i++)
            to[i] = (int8_t)((weights[at + i] & 15) | (weights[at + span + i] & 15) * 16);
}

MULTIVERSION void unpack_nibbles(const int8_t *restrict packed, isize count, int8_t *restrict to) {
    for (isize at = 0; at < count; at += 2 * SPAN, packed += SPAN)
        for (isize i = 0; i < SPAN; i++) {
            to[at + i] = (int8_t)(((packed[i] & 15) ^ 8) - 8);
            to[at + SPAN + i] = (int8_t)(packed[i] >> 4);
        }
}
