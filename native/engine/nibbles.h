/* Weights of 4 bits: as programs store them, and as kernels read them. */

#ifndef INTACT8_NIBBLES_H
#define INTACT8_NIBBLES_H

#include "plan.h"

/* Whether a value holds `count` constant weights of `bits` bits: bytes for 8; for 4 pairs of q + 8, of which the first is in
   the low half of a byte. */
HIDDEN int check_weights(checker *c, int64_t value, isize count, int64_t bits);

/* Returns those weights as int8, for `free_weights`; NULL with a reason where there is no memory. */
HIDDEN const int8_t *int8_weights(checker *c, int64_t value, isize count, int64_t bits);
HIDDEN void free_weights(const int8_t *weights, int64_t bits);

/* Packed weights for kernels in half the bytes: of every 2 * span weights the first `span` are in the low halves of `span`
   bytes, and the others in the high halves, each in two's complement. `count` is a multiple of 2 * span. */
HIDDEN void pack_nibbles(const int8_t *weights, isize count, isize span, int8_t *to);

/* The reverse for a span of 32. */
HIDDEN void unpack_nibbles(const int8_t *packed, isize count, int8_t *to);

#endif
