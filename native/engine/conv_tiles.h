/* The micro-kernels of convolutions, included once for each instruction set. What is defined before:

   NAME(f)            the name of f for this instruction set
   VECTOR(f)          the name of an operation on vectors: load_ints, store_ints, add_ints, subtract_ints, set_ints, load_floats, set_floats,
                      to_floats, multiply, add, maximum, minimum, round_floats (half to even), where_negative, and widen and
                      narrow, which load and store 16 bytes
   TILE_TARGET        attributes of functions, TILE_INLINE of inlined ones
   ints, floats       vectors of LANES int32 or float32; VECTORS of them are 16 channels
   ROWS               windows of a tile
   NAME(accumulate)   adds the products of one tap of some windows to their sums, and returns the next weights; with `nibbles`
                      these are of 4 bits
   NIBBLES            where it takes these
   NAME(accumulate_four) adds the products of four taps of 16 channels each, with a weight for each of them */

/* Returns 16 bytes at x that may be read; a copy of the first `channels` where they may not. */
TILE_INLINE const uint8_t *NAME(readable)(const uint8_t *x, const tile_panel *p, uint8_t *copy) {
    if (p->channels == TILE_CHANNELS || (uintptr_t)x <= (uintptr_t)p->last) return x;
    copy_few(copy, x, p->channels);
    return copy;
}

/* Stores the sums of one window, or the bytes that they become. */
TILE_INLINE void NAME(store)(const ints *sum, const tile_panel *given, isize window) {
    const tile_panel *p = read_again(given);
    const tile_finish *f = &p->finish;
    if (p->sums) {
        for (int v = 0; v < VECTORS; v++) VECTOR(store_ints)(p->sums + window * TILE_CHANNELS + LANES * v, sum[v]);
        return;
    }
    uint8_t *y = p->y + window * p->stride, few[TILE_CHANNELS] = {0};
    const uint8_t *added = p->residual;
    ints result[VECTORS], residual[VECTORS];
    if (added) {
        added += window * p->stride;
        if (p->channels != TILE_CHANNELS) {
            copy_few(few, added, p->channels);
            added = few;
        }
        VECTOR(widen)(added, residual);
    }
    for (int v = 0; v < VECTORS; v++) {
        floats ratio = VECTOR(load_floats)(p->ratio + LANES * v);
        if (p->ratio_negative)
            ratio = VECTOR(where_negative)(sum[v], VECTOR(load_floats)(p->ratio_negative + LANES * v), ratio);
        floats value = VECTOR(multiply)(VECTOR(to_floats)(sum[v]), ratio), other = value;
        if (added) {
            const ints steps = VECTOR(subtract_ints)(residual[v], VECTOR(set_ints)(f->residual_zero));
            other = VECTOR(multiply)(VECTOR(to_floats)(steps), VECTOR(set_floats)(f->residual_ratio));
            if (f->joint) value = VECTOR(add)(value, other);
        }
        value = VECTOR(minimum)(VECTOR(maximum)(value, VECTOR(set_floats)(f->low)), VECTOR(set_floats)(f->high));
        result[v] = VECTOR(round_floats)(value);
        if (added && !f->joint) {
            value = VECTOR(add)(VECTOR(multiply)(VECTOR(to_floats)(result[v]), VECTOR(set_floats)(f->own_ratio)), other);
            value = VECTOR(minimum)(VECTOR(maximum)(value, VECTOR(set_floats)(f->sum_low)), VECTOR(set_floats)(f->sum_high));
            result[v] = VECTOR(round_floats)(value);
        }
        result[v] = VECTOR(add_ints)(result[v], VECTOR(set_ints)(f->zero));
    }
    if (p->channels == TILE_CHANNELS) {
        VECTOR(narrow)(result, y);
    } else {
        VECTOR(narrow)(result, few);
        copy_few(y, few, p->channels);
    }
    if (f->table)
        for (isize i = 0; i < p->channels; i++) y[i] = f->table[y[i]];
}

TILE_INLINE void NAME(initialize)(ints *sum, const tile_panel *p) {
    for (int v = 0; v < VECTORS; v++)
        sum[v] = VECTOR(add_ints)(VECTOR(load_ints)(p->bias + LANES * v), VECTOR(load_ints)(p->correction + LANES * v));
}

/* Computes `rows` windows from i on. */
TILE_INLINE void NAME(dense_tile)(const tile_panel *p, isize i, const int rows, const int nibbles) {
    ints sum[ROWS][VECTORS];
    NAME(initialize)(sum[0], p);
    for (int r = 1; r < rows; r++)
        for (int v = 0; v < VECTORS; v++) sum[r][v] = sum[0][v];
    const int8_t *weight = p->weight;
    for (isize t = 0; t < p->tap_count; t++) {
        const uint8_t *x[ROWS];
        for (int r = 0; r < rows; r++) x[r] = p->taps[(i + r) * p->tap_count + t] + p->shift;
        weight = NAME(accumulate)(sum, x, weight, p->tap_bytes, rows, nibbles);
    }
    for (int r = 0; r < rows; r++) NAME(store)(sum[r], p, i + r);
}

TILE_INLINE void NAME(dense_tiles)(const tile_panel *given, const int nibbles) {
    const tile_panel p = *given; /* a copy that no store to y can change, as the compiler knows */
    isize i = 0;
    for (; p.count - i >= ROWS; i += ROWS) NAME(dense_tile)(&p, i, ROWS, nibbles);
    for (; i < p.count; i++) NAME(dense_tile)(&p, i, 1, nibbles);
}

TILE_TARGET static void NAME(dense)(const tile_panel *p) { NAME(dense_tiles)(p, 0); }
#ifdef NIBBLES
TILE_TARGET static void NAME(dense_nibbles)(const tile_panel *p) { NAME(dense_tiles)(p, 1); }
#endif

TILE_TARGET static void NAME(depthwise)(const tile_panel *given) {
    const tile_panel p = *given;
    uint8_t copies[4][TILE_CHANNELS] = {{0}};
    for (isize i = 0; i < p.count; i++) {
        ints sum[VECTORS];
        NAME(initialize)(sum, &p);
        const uint8_t *const *tap = p.taps + i * p.tap_count;
        const int8_t *weight = p.weight;
        for (isize t = 0; t < p.tap_count; t += 4, weight += 4 * TILE_CHANNELS) {
            const uint8_t *x[4];
            for (int k = 0; k < 4; k++) x[k] = NAME(readable)(tap[t + k] + p.shift, &p, copies[k]);
            NAME(accumulate_four)(sum, x, weight);
        }
        NAME(store)(sum, &p, i);
    }
}

#undef NAME
#undef NIBBLES
#undef ROWS
#undef TILE_TARGET
#undef TILE_INLINE
