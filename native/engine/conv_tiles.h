/* The micro-kernels of convolutions, included once for each instruction set. What is defined before:

   NAME(f)            the name of f for this instruction set
   VECTOR(f)          the name of an operation on vectors: load_ints, store_ints, add_ints, subtract_ints, set_ints, load_floats, set_floats,
                      to_floats, multiply, add, maximum, minimum, round_floats (half to even), where_negative, widen and
                      narrow, which load and store 16 bytes, and store_rows and
                      store_windows, which store the clamped results of some windows, and of a depthwise block of one
   TILE_TARGET        attributes of functions, TILE_INLINE of inlined ones
   ints, floats       vectors of LANES int32 or float32; VECTORS of them are 16 channels
   ROWS               windows of a tile
   NAME(accumulate)   adds the products of one tap of some windows to their sums, and returns the next weights; with `nibbles`
                      these are of 4 bits. `vectors`: whose channels there are, the others may be left out. `order`: see
                      tile_kernels
   NIBBLES            where it takes these
   ORDERED            where kernels are `ordered`, see tile_kernels
   NAME(accumulate_four) adds the products of four taps of a block of channels, with a weight for each of them; `fits`: whether
                      no two of these products overflow 16 bits, where that matters
   BLOCK_VECTORS      vectors of such a block, whose channels are in the order of block_lane() where they are not VECTORS */

#define BLOCK_CHANNELS (LANES * BLOCK_VECTORS)
#define HALF (VECTORS / 2)

/* Stores the sums of one window, or the bytes that they become. */
TILE_INLINE void NAME(store)(const ints *sum, const tile_panel *given, isize window) {
    const tile_panel *p = read_again(given);
    const tile_finish *f = &p->finish;
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
}

/* The same for some windows, the sums of which are in memory. */
TILE_TARGET static void NAME(store_each)(const int32_t *sums, const tile_panel *p, isize window, isize rows) {
    for (isize r = 0; r < rows; r++, sums += TILE_CHANNELS) {
        ints sum[VECTORS];
        for (int v = 0; v < VECTORS; v++) sum[v] = VECTOR(load_ints)(sums + LANES * v);
        NAME(store)(sum, p, window + r);
    }
}

/* Stores the sums of `rows` windows, or the bytes that they become; `added`: with a residual. */
TILE_INLINE void NAME(store_bytes)(ints (*sum)[VECTORS], const tile_panel *p, isize window, const int rows, const int added) {
    const tile_finish *f = &p->finish;
    floats ratio[VECTORS];
    for (int v = 0; v < VECTORS; v++) ratio[v] = VECTOR(load_floats)(p->ratio + LANES * v);
    for (int r = 0; r < rows; r++) {
        ints residual[VECTORS];
        uint8_t few[TILE_CHANNELS] = {0};
        const uint8_t *other = added ? p->residual + (window + r) * p->stride : NULL;
        if (added && p->channels != TILE_CHANNELS) copy_few(few, other, p->channels), other = few;
        if (added) VECTOR(widen)(other, residual);
        for (int v = 0; v < VECTORS; v++) {
            floats value = VECTOR(multiply)(VECTOR(to_floats)(sum[r][v]), ratio[v]);
            if (added) {
                value = VECTOR(minimum)(VECTOR(maximum)(value, VECTOR(set_floats)(f->low)), VECTOR(set_floats)(f->high));
                value = VECTOR(multiply)(VECTOR(to_floats)(VECTOR(round_floats)(value)), VECTOR(set_floats)(f->own_ratio));
                const ints steps = VECTOR(subtract_ints)(residual[v], VECTOR(set_ints)(f->residual_zero));
                value = VECTOR(add)(value, VECTOR(multiply)(VECTOR(to_floats)(steps), VECTOR(set_floats)(f->residual_ratio)));
            }
            sum[r][v] = VECTOR(round_floats)(value);
        }
    }
    VECTOR(store_rows)((const ints *)sum, rows, p, p->y + window * p->stride);
}

/* Stores what becomes of a tile; the usual forms at once where it is whole. */
TILE_INLINE void NAME(store_tile)(ints (*sum)[VECTORS], const tile_panel *given, isize window, const int rows) {
    const tile_panel *p = read_again(given);
    if (rows == ROWS && p->finish.form == TILE_USUAL) {
        NAME(store_bytes)(sum, p, window, rows, 0);
        return;
    }
    if (rows == ROWS && p->finish.form == TILE_ADDED) {
        NAME(store_bytes)(sum, p, window, rows, 1);
        return;
    }
    int32_t own[ROWS * TILE_CHANNELS];
    const int whole = p->finish.form == TILE_SUMS;
    int32_t *sums = whole ? p->sums + window * p->stride : own;
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++)
            VECTOR(store_ints)(sums + r * (whole ? p->stride : TILE_CHANNELS) + LANES * v, sum[r][v]);
    if (!whole) NAME(store_each)(own, p, window, rows);
}

/* Computes `rows` windows from i on, channels of the first `vectors`. */
TILE_INLINE void NAME(dense_tile)(const tile_panel *p, isize i, const int rows, const int vectors, const int nibbles) {
    ints sum[ROWS][VECTORS];
    for (int v = 0; v < VECTORS; v++)
        sum[0][v] = VECTOR(add_ints)(VECTOR(load_ints)(p->bias + LANES * v), VECTOR(load_ints)(p->correction + LANES * v));
    for (int r = 1; r < rows; r++)
        for (int v = 0; v < VECTORS; v++) sum[r][v] = sum[0][v];
    const int8_t *weight = p->weight;
    const int32_t *order = p->order;
    for (isize t = 0; t < p->tap_count; t++) {
        const uint8_t *x[ROWS];
        for (int r = 0; r < rows; r++) x[r] = p->taps[(i + r) * p->tap_count + t] + p->shift;
        weight = NAME(accumulate)(sum, x, weight, p->tap_bytes, rows, vectors, nibbles, order);
        if (order) order += 2 + p->tap_bytes / 4;
    }
    NAME(store_tile)(sum, p, i, rows);
}

TILE_INLINE void NAME(dense_tiles)(const tile_panel *given, const int nibbles) {
    const tile_panel p = *given; /* a copy that no store to y can change, as the compiler knows */
    isize i = 0;
    if (HALF && p.channels <= TILE_CHANNELS / 2) { /* of groups of 8 channels, or the last ones of a layer */
        for (; p.count - i >= ROWS; i += ROWS) NAME(dense_tile)(&p, i, ROWS, HALF, nibbles);
        for (; i < p.count; i++) NAME(dense_tile)(&p, i, 1, HALF, nibbles);
        return;
    }
    for (; p.count - i >= ROWS; i += ROWS) NAME(dense_tile)(&p, i, ROWS, VECTORS, nibbles);
    for (; ROWS > 1 && i < p.count; i++) NAME(dense_tile)(&p, i, 1, VECTORS, nibbles);
}

TILE_TARGET static void NAME(dense)(const tile_panel *p) { NAME(dense_tiles)(p, 0); }
#ifdef NIBBLES
TILE_TARGET static void NAME(dense_nibbles)(const tile_panel *p) { NAME(dense_tiles)(p, 1); }
#endif

/* Has the sums of a window of a depthwise block stored by what is not usual, its channels in order. */
TILE_TARGET static void NAME(store_block)(const int32_t *sums, const tile_panel *given, isize window) {
    tile_panel p = *given;
    for (isize first = 0; first < given->channels; first += TILE_CHANNELS, sums += TILE_CHANNELS) {
        p.channels = min_size(given->channels - first, TILE_CHANNELS);
        NAME(store_each)(sums, &p, window, 1);
        p.ratio += TILE_CHANNELS, p.y += TILE_CHANNELS;
        if (p.ratio_negative) p.ratio_negative += TILE_CHANNELS;
        if (p.residual) p.residual += TILE_CHANNELS;
    }
}

/* `fits`: see NAME(accumulate_four). */
TILE_INLINE void NAME(depthwise_windows)(const tile_panel *given, const int fits) {
    const tile_panel p = *given;
    const int every = p.channels == BLOCK_CHANNELS; /* whether all bytes of a block may be read at every address */
    uint8_t copies[4][BLOCK_CHANNELS] = {{0}};
    int32_t bias[BLOCK_CHANNELS], sums[BLOCK_CHANNELS];
    float ratio[BLOCK_CHANNELS];
    for (isize c = 0; c < BLOCK_CHANNELS; c++) {
        const isize lane = BLOCK_VECTORS == VECTORS ? c : block_lane(c);
        bias[lane] = p.bias[c] + p.correction[c], ratio[lane] = p.ratio[c];
    }
    for (isize i = 0; i < p.count; i++) {
        ints sum[BLOCK_VECTORS];
        for (int v = 0; v < BLOCK_VECTORS; v++) sum[v] = VECTOR(load_ints)(bias + LANES * v);
        const uint8_t *const *tap = p.taps + i * p.tap_count;
        const int8_t *weight = p.weight;
        for (isize t = 0; t < p.tap_count; t += 4, weight += 4 * BLOCK_CHANNELS) {
            const uint8_t *x[4];
            for (int k = 0; k < 4; k++) {
                x[k] = tap[t + k] + p.shift;
                if (every || (uintptr_t)x[k] <= (uintptr_t)p.last) continue;
                copy_few(copies[k], x[k], p.channels);
                x[k] = copies[k];
            }
            NAME(accumulate_four)(sum, x, weight, fits);
        }
        if (p.finish.form == TILE_USUAL) {
            for (int v = 0; v < BLOCK_VECTORS; v++)
                sum[v] = VECTOR(round_floats)(VECTOR(multiply)(VECTOR(to_floats)(sum[v]), VECTOR(load_floats)(ratio + LANES * v)));
            VECTOR(store_windows)(sum, &p, p.y + i * p.stride);
            continue;
        }
        for (int v = 0; v < BLOCK_VECTORS; v++) VECTOR(store_ints)(sums + LANES * v, sum[v]);
        int32_t ordered[BLOCK_CHANNELS], *to = p.finish.form == TILE_SUMS ? p.sums + i * p.stride : ordered;
        for (isize c = 0; c < BLOCK_CHANNELS; c++) to[c] = sums[BLOCK_VECTORS == VECTORS ? c : block_lane(c)];
        if (to == ordered) NAME(store_block)(ordered, &p, i);
    }
}

TILE_TARGET static void NAME(depthwise)(const tile_panel *p) {
#ifdef ORDERED
    if (!p->order[0]) {
        NAME(depthwise_windows)(p, 0);
        return;
    }
#endif
    NAME(depthwise_windows)(p, 1);
}

#undef NAME
#undef NIBBLES
#undef ORDERED
#undef ROWS
#undef TILE_TARGET
#undef TILE_INLINE
#undef BLOCK_CHANNELS
#undef HALF
