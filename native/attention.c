/* Float attention in one pass, so that scores are never in memory as a whole, on the widest vectors of this CPU. */

#include "arguments.h"

/* softmax(q k^T + mask) v; an index is a head of a sample. Strides are in elements, of samples, heads and rows. */
typedef struct {
    const float *q_data, *k_data, *v_data, *mask_data; /* mask_data may be NULL */
    float *y_data;
    Py_ssize_t heads, queries, keys, width;
    Py_ssize_t q[3], k[3], v[3], mask[3], y[3];
    Py_ssize_t padded_keys, padded_width; /* multiples of the vector width */
    Py_ssize_t scratch_floats;            /* per thread */
    float *scratch;
} attention_args;

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")))
#define NAME(x) x##_512
#define VECTOR __m512
#define WIDTH 16
#define COLUMNS 4
#define ZERO() _mm512_setzero_ps()
#define BROADCAST(x) _mm512_set1_ps(x)
#define LOAD(p) _mm512_loadu_ps(p)
#define STORE(p, x) _mm512_storeu_ps(p, x)
#define ADD(x, y) _mm512_add_ps(x, y)
#define SUB(x, y) _mm512_sub_ps(x, y)
#define MUL(x, y) _mm512_mul_ps(x, y)
#define MAX(x, y) _mm512_max_ps(x, y) /* y where one of them is NaN */
#define FMA(x, y, z) _mm512_fmadd_ps(x, y, z)
#define TIMES_POWER_OF_2(x, n) _mm512_scalef_ps(x, n)
#define ZERO_BELOW(x, least, y) _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, BROADCAST(least), _CMP_NLT_UQ), y)
TARGET INLINE float reduce_max_512(__m512 x) { return _mm512_reduce_max_ps(x); }
TARGET INLINE float reduce_add_512(__m512 x) { return _mm512_reduce_add_ps(x); }
#include "attention_kernel.h"

#undef TARGET
#undef NAME
#undef VECTOR
#undef WIDTH
#undef COLUMNS
#undef ZERO
#undef BROADCAST
#undef LOAD
#undef STORE
#undef ADD
#undef SUB
#undef MUL
#undef MAX
#undef FMA
#undef TIMES_POWER_OF_2
#undef ZERO_BELOW

#define TARGET __attribute__((target("avx2,fma")))
#define NAME(x) x##_256
#define VECTOR __m256
#define WIDTH 8
#define COLUMNS 2
#define ZERO() _mm256_setzero_ps()
#define BROADCAST(x) _mm256_set1_ps(x)
#define LOAD(p) _mm256_loadu_ps(p)
#define STORE(p, x) _mm256_storeu_ps(p, x)
#define ADD(x, y) _mm256_add_ps(x, y)
#define SUB(x, y) _mm256_sub_ps(x, y)
#define MUL(x, y) _mm256_mul_ps(x, y)
#define MAX(x, y) _mm256_max_ps(x, y)
#define FMA(x, y, z) _mm256_fmadd_ps(x, y, z)
#define EXPONENT(n) _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23)
#define TIMES_POWER_OF_2(x, n) MUL(x, _mm256_castsi256_ps(EXPONENT(n)))
#define ZERO_BELOW(x, least, y) _mm256_and_ps(_mm256_cmp_ps(x, BROADCAST(least), _CMP_NLT_UQ), y)
TARGET INLINE float reduce_max_256(__m256 x) {
    float v[8], most;
    _mm256_storeu_ps(v, x);
    most = v[0];
    for (int i = 1; i < 8; i++) most = v[i] > most ? v[i] : most;
    return most;
}
TARGET INLINE float reduce_add_256(__m256 x) {
    float v[8];
    _mm256_storeu_ps(v, x);
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}
#include "attention_kernel.h"

/* The kernel of this CPU, for which sizes are padded; NULL where no kernel is faster than torch. */
static kernel attention_kernel(attention_args *a) {
    const int wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                     __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
    if (!wide && !(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))) return NULL;
    const Py_ssize_t width = wide ? 16 : 8;
    a->padded_keys = ceil_div(a->keys, width) * width;
    a->padded_width = ceil_div(a->width, width) * width;
    a->scratch_floats = ceil_div((a->width + 6) * a->padded_keys + (a->keys + 6) * a->padded_width, 16) * 16;
    return wide ? attention_512 : attention_256;
}
#else
static kernel attention_kernel(attention_args *a) { return (void)a, NULL; }
#endif

/* Whether the rows of buffer `which` are in its memory. */
static int check_rows(const arguments *a, int which, Py_ssize_t samples, Py_ssize_t heads, Py_ssize_t rows, Py_ssize_t width,
                      const Py_ssize_t strides[3]) {
    const Py_ssize_t head = strided_extent(rows, strides[2], width);
    const Py_ssize_t sample = head > 0 ? strided_extent(heads, strides[1], head) : head;
    const Py_ssize_t all = sample > 0 ? strided_extent(samples, strides[0], sample) : sample;
    return check_buffer(a, which, a->value[which], all, 4);
}

#define MAX_SIZE (1 << 30) /* of keys and of width, whose product then fits */

FUNCTION(attend) {
    arguments a;
    if (!parse_arguments(&a, "attend", args, count, 25, 5)) return NULL;
    attention_args n = {.q_data = a.value[0], .k_data = a.value[1], .v_data = a.value[2], .mask_data = a.value[3],
                        .y_data = a.value[4], .heads = int_at(&a, 6), .queries = int_at(&a, 7), .keys = int_at(&a, 8),
                        .width = int_at(&a, 9)};
    const Py_ssize_t samples = int_at(&a, 5), heads = n.heads, queries = n.queries, keys = n.keys, width = n.width;
    Py_ssize_t *const strides[] = {n.q, n.k, n.v, n.mask, n.y};
    for (int i = 0; i < 15; i++) strides[i / 3][i % 3] = int_at(&a, 10 + i);
    if (!check_rows(&a, 0, samples, heads, queries, width, n.q) || !check_rows(&a, 1, samples, heads, keys, width, n.k) ||
        !check_rows(&a, 2, samples, heads, keys, width, n.v) ||
        (n.mask_data && !check_rows(&a, 3, samples, heads, queries, keys, n.mask)) ||
        !check_rows(&a, 4, samples, heads, queries, width, n.y))
        return NULL;
    const Py_ssize_t indices = checked_product(samples, heads);
    const Py_ssize_t work = checked_product(indices, checked_product(queries, keys));
    if (keys > MAX_SIZE || width > MAX_SIZE || work < 0) return PyErr_NoMemory();
    const kernel run = attention_kernel(&n);
    if (!run) {
        PyErr_SetString(PyExc_RuntimeError, "this CPU has no vectors for attention");
        return NULL;
    }
    const Py_ssize_t floats = checked_product(max_threads ? max_threads() : 1, n.scratch_floats);
    const Py_ssize_t bytes = checked_product(floats, (Py_ssize_t)sizeof(float));
    n.scratch = bytes < 0 ? NULL : (float *)PyMem_Malloc((size_t)bytes);
    if (!n.scratch) return PyErr_NoMemory();
    PyObject *none = run_unlocked(run, &n, indices, work);
    PyMem_Free(n.scratch);
    return none;
}

FUNCTION(can_attend) {
    arguments a;
    attention_args n = {0};
    return parse_arguments(&a, "can_attend", args, count, 0, 0) ? PyBool_FromLong(attention_kernel(&n) != NULL) : NULL;
}
