/* softmax(q k^T + mask) v for one width of vectors. attention.c includes this file once per instruction set and defines
   NAME, TARGET, VECTOR, WIDTH, COLUMNS and the operations before. Float32 with fused multiply-adds: the last bits may
   differ from those of torch, as those of every float island may. */

#define ROWS 6 /* the micro-kernel keeps ROWS x COLUMNS vectors of sums in registers */

/* c (ROWS, columns * WIDTH) = a (ROWS, depth) b (depth, columns * WIDTH) */
TARGET INLINE void NAME(microkernel)(const float *const *a, Py_ssize_t depth, const float *b, Py_ssize_t ldb, float *c,
                              Py_ssize_t ldc, const int columns) {
    VECTOR sum[ROWS][COLUMNS];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < columns; j++) sum[i][j] = ZERO();
    for (Py_ssize_t k = 0; k < depth; k++, b += ldb) {
        VECTOR part[COLUMNS];
        for (int j = 0; j < columns; j++) part[j] = LOAD(b + j * WIDTH);
        for (int i = 0; i < ROWS; i++) {
            const VECTOR x = BROADCAST(a[i][k]);
            for (int j = 0; j < columns; j++) sum[i][j] = FMA(x, part[j], sum[i][j]);
        }
    }
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < columns; j++) STORE(c + i * ldc + j * WIDTH, sum[i][j]);
}

TARGET INLINE void NAME(matmul)(const float *const *a, Py_ssize_t depth, const float *b, Py_ssize_t ldb, float *c) {
    Py_ssize_t at = 0;
    for (; at + COLUMNS * WIDTH <= ldb; at += COLUMNS * WIDTH) NAME(microkernel)(a, depth, b + at, ldb, c + at, ldb, COLUMNS);
    for (; at + 2 * WIDTH <= ldb; at += 2 * WIDTH) NAME(microkernel)(a, depth, b + at, ldb, c + at, ldb, 2);
    for (; at < ldb; at += WIDTH) NAME(microkernel)(a, depth, b + at, ldb, c + at, ldb, 1);
}

/* exp(x) for x <= 0, correct within two units in the last place; 0 below -87.3, NaN for NaN. The range is reduced by
   ln 2 in two parts, then a polynomial of degree 6 follows (expf of Cephes). */
TARGET INLINE VECTOR NAME(exp)(VECTOR x) {
    const VECTOR n = SUB(FMA(x, BROADCAST(1.44269504f), BROADCAST(ROUND_MAGIC)), BROADCAST(ROUND_MAGIC));
    const VECTOR r = FMA(n, BROADCAST(2.12194440e-4f), FMA(n, BROADCAST(-0.693359375f), x));
    VECTOR p = FMA(BROADCAST(1.9875691500e-4f), r, BROADCAST(1.3981999507e-3f));
    p = FMA(p, r, BROADCAST(8.3334519073e-3f));
    p = FMA(p, r, BROADCAST(4.1665795894e-2f));
    p = FMA(p, r, BROADCAST(1.6666665459e-1f));
    p = FMA(p, r, BROADCAST(5.0000001201e-1f));
    p = FMA(MUL(p, r), r, ADD(r, BROADCAST(1.0f)));
    return ZERO_BELOW(x, -87.3f, TIMES_POWER_OF_2(p, n));
}

/* One head: y = softmax(q k^T + mask) v. The scratch memory holds k transposed, v, and scores and results of ROWS rows. */
TARGET static void NAME(head)(const attention_args *a, const float *q, const float *k, const float *v, const float *mask,
                              float *y, float *scratch) {
    const Py_ssize_t keys = a->keys, depth = a->width, padded = a->padded_keys, width = a->padded_width;
    float *transposed = scratch, *values = transposed + depth * padded, *scores = values + keys * width;
    float *results = scores + ROWS * padded;
    for (Py_ssize_t d = 0; d < depth; d++) {
        float *restrict row = transposed + d * padded;
        for (Py_ssize_t t = 0; t < keys; t++) row[t] = k[t * a->k[2] + d];
        for (Py_ssize_t t = keys; t < padded; t++) row[t] = 0.0f;
    }
    for (Py_ssize_t t = 0; t < keys; t++) {
        memcpy(values + t * width, v + t * a->v[2], (size_t)depth * sizeof(float));
        memset(values + t * width + depth, 0, (size_t)(width - depth) * sizeof(float));
    }
    for (Py_ssize_t from = 0; from < a->queries; from += ROWS) {
        const Py_ssize_t count = min_size(a->queries - from, ROWS);
        const float *rows[ROWS];
        float weight[ROWS];
        for (Py_ssize_t i = 0; i < ROWS; i++) rows[i] = q + (from + (i < count ? i : count - 1)) * a->q[2];
        NAME(matmul)(rows, depth, transposed, padded, scores);
        for (Py_ssize_t i = 0; i < ROWS; i++) {
            float *restrict s = scores + i * padded;
            rows[i] = s;
            if (i >= count) continue;
            if (mask) {
                const float *restrict m = mask + (from + i) * a->mask[2];
                for (Py_ssize_t t = 0; t < keys; t++) s[t] += m[t];
            }
            for (Py_ssize_t t = keys; t < padded; t++) s[t] = -bits_float(INFINITY_BITS);
            VECTOR most = BROADCAST(-bits_float(INFINITY_BITS)), sum = ZERO();
            for (Py_ssize_t t = 0; t < padded; t += WIDTH) most = MAX(LOAD(s + t), most);
            const VECTOR top = BROADCAST(NAME(reduce_max)(most));
            for (Py_ssize_t t = 0; t < padded; t += WIDTH) {
                const VECTOR e = NAME(exp)(SUB(LOAD(s + t), top));
                STORE(s + t, e);
                sum = ADD(sum, e);
            }
            weight[i] = 1.0f / NAME(reduce_add)(sum);
        }
        NAME(matmul)(rows, keys, values, width, results);
        for (Py_ssize_t i = 0; i < count; i++) {
            float *restrict out = y + (from + i) * a->y[2];
            const float *restrict r = results + i * width;
            for (Py_ssize_t d = 0; d < depth; d++) out[d] = r[d] * weight[i];
        }
    }
}

TARGET static void NAME(attention)(const void *given, Py_ssize_t lo, Py_ssize_t hi) {
    const attention_args *a = (const attention_args *)given;
    float *scratch = a->scratch + (thread_number ? thread_number() : 0) * a->scratch_floats;
    for (Py_ssize_t at = lo; at < hi; at++) {
        const Py_ssize_t b = at / a->heads, h = at % a->heads;
        NAME(head)(a, a->q_data + b * a->q[0] + h * a->q[1], a->k_data + b * a->k[0] + h * a->k[1],
                   a->v_data + b * a->v[0] + h * a->v[1],
                   a->mask_data ? a->mask_data + b * a->mask[0] + h * a->mask[1] : NULL,
                   a->y_data + b * a->y[0] + h * a->y[1], scratch);
    }
}

#undef ROWS
