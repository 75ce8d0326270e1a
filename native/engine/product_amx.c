/* Products of rows of bytes with packed int8 weights on AMX, see product.h. Sums of 32 rows and 32 columns are four tiles. */

#include "amx.h"
#include "product.h"

#if HAS_AMX_KERNELS

#define LEAST_DEPTH 32 /* from which on tiles are worth it */
#define GROUP_BYTES (AMX_ROWS * AMX_BYTES)

/* What the products of a block of columns share. */
typedef struct {
    const int8_t *weight, *tail_weight;
    isize depth, pieces, apart; /* whole pieces of 64 bytes; bytes from one word of weights to the next */
} block;

/* 16 or 32 rows (`groups`), and 16 or 32 columns (`own` blocks) from block b on. */
AMX_INLINE void multiply_tiles(const block *w, const uint8_t *x, isize stride, const uint8_t *tails, int32_t *sums, isize apart,
                               const int groups, const int b, const int own) {
    const amx_rows rows[2] = {{x, stride}, {x + AMX_ROWS * stride, stride}};
    const amx_rows tail[2] = {{tails, AMX_BYTES}, {tails + GROUP_BYTES, AMX_BYTES}};
    amx_zero();
    amx_products(rows, w->pieces, w->weight + AMX_BYTES * b, w->apart, groups, own);
    if (w->depth % AMX_BYTES) amx_products(tail, 1, w->tail_weight + AMX_BYTES * b, w->apart, groups, own);
    amx_store(sums + 16 * b, 4 * apart, groups, own);
}

/* 16 or 32 rows and a block of columns. */
AMX_INLINE void multiply_groups(const block *w, const uint8_t *x, isize stride, int32_t *sums, isize apart, const int groups,
                                const int blocks) {
    uint8_t tails[2 * GROUP_BYTES];
    if (w->depth % AMX_BYTES)
        copy_rows(tails, x + w->pieces * AMX_BYTES, groups * AMX_ROWS, stride, AMX_BYTES, 0, byte_mask(w->depth % AMX_BYTES));
    multiply_tiles(w, x, stride, tails, sums, apart, groups, 0, blocks > 1 ? 2 : 1);
    if (blocks > 2) multiply_tiles(w, x, stride, tails, sums, apart, groups, 2, blocks - 2);
}

/* Fewer than 16 rows. */
AMX_INLINE void multiply_few(const block *w, const uint8_t *x, isize stride, isize count, int32_t *sums, isize apart,
                             const int blocks) {
    uint8_t copy[GROUP_BYTES];
    int32_t own[AMX_ROWS * 64];
    const amx_rows rows[2] = {{copy, AMX_BYTES}, {copy, AMX_BYTES}};
    for (int b = 0; b < blocks; b += 2) {
        const int two = blocks - b > 1;
        amx_zero();
        for (isize k = 0; k < w->depth; k += AMX_BYTES) {
            const int8_t *weight = (w->depth - k < AMX_BYTES ? w->tail_weight : w->weight + k / 4 * w->apart) + AMX_BYTES * b;
            copy_rows(copy, x + k, count, stride, AMX_BYTES, 0, byte_mask(min_size(w->depth - k, AMX_BYTES)));
            if (two)
                amx_products(rows, 1, weight, w->apart, 1, 2);
            else
                amx_products(rows, 1, weight, w->apart, 1, 1);
        }
        if (two)
            amx_store(own + 16 * b, 4 * 64, 1, 2);
        else
            amx_store(own + 16 * b, 4 * 64, 1, 1);
    }
    for (isize r = 0; r < count; r++) memcpy(sums + r * apart, own + 64 * r, (size_t)blocks * 64);
}

AMX_INLINE void multiply_block(const block *w, const uint8_t *x, isize stride, isize rows, int32_t *sums, isize apart,
                               const int blocks) {
    isize r = 0;
    for (; rows - r >= 2 * AMX_ROWS; r += 2 * AMX_ROWS)
        multiply_groups(w, x + r * stride, stride, sums + r * apart, apart, 2, blocks);
    if (rows - r >= AMX_ROWS) {
        multiply_groups(w, x + r * stride, stride, sums + r * apart, apart, 1, blocks);
        r += AMX_ROWS;
    }
    if (rows - r >= AMX_FEWEST_ROWS)
        multiply_few(w, x + r * stride, stride, rows - r, sums + r * apart, apart, blocks);
    else if (rows > r)
        product_vnni(x + r * stride, stride, rows - r, w->depth, w->weight, 16 * blocks, sums + r * apart, apart);
}

AMX_TARGET void product_amx(const uint8_t *x, isize stride, isize rows, isize depth, const int8_t *weight, isize columns,
                            int32_t *sums, isize apart) {
    if (rows < AMX_FEWEST_ROWS || depth < LEAST_DEPTH) {
        product_vnni(x, stride, rows, depth, weight, columns, sums, apart);
        return;
    }
    int8_t tail_weight[4 * AMX_WEIGHT_BYTES];
    amx_begin();
    for (isize from = 0; from < columns; from += PRODUCT_COLUMNS) {
        const int8_t *own = weight + from * depth;
        const isize blocks = min_size(columns - from, PRODUCT_COLUMNS) / 16, pieces = depth / AMX_BYTES;
        const block w = {own, tail_weight, depth, pieces, AMX_BYTES * blocks};
        if (depth % AMX_BYTES) copy_words(tail_weight, own + pieces * AMX_ROWS * w.apart, depth % AMX_BYTES / 4, w.apart);
        switch (blocks) {
            case 1: multiply_block(&w, x, stride, rows, sums + from, apart, 1); break;
            case 2: multiply_block(&w, x, stride, rows, sums + from, apart, 2); break;
            case 3: multiply_block(&w, x, stride, rows, sums + from, apart, 3); break;
            default: multiply_block(&w, x, stride, rows, sums + from, apart, 4); break;
        }
    }
    amx_end();
}
#endif
