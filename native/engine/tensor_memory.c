/* Memory of tensors that passes of training write, kept for the next step.

   A step takes and gives back the same sizes again and again. An allocator that returns memory to the system in between
   has to get it page by page in every step, which takes longer than many a pass. Blocks that were given back are kept
   here, and taken by whoever needs about as many bytes. No thread waits for another: who finds the list taken allocates
   or frees by itself. */

#if !defined(_WIN32) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif

#include "tensor_memory.h"

#include <stdlib.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(_MSC_VER)
#include <intrin.h>
#endif

#define GRANULE 4096       /* sizes of blocks are multiples */
#define IDLE_TAKES 65536   /* a block that was not needed for so many is freed */

typedef struct block {
    struct block *next;
    size_t bytes;    /* without this header */
    uint64_t given;  /* when it was given back, counted in blocks that were taken */
    tensor tensor;
    int64_t shape[TENSOR_DIMENSIONS];
} block;

#define HEADER ((size_t)round_up((isize)sizeof(block), ALIGNMENT))

static block *kept; /* the last given back first */
static uint64_t taken;

#if defined(_MSC_VER)
static volatile long busy;
static int try_list(void) { return !_InterlockedExchange(&busy, 1); }
static void leave_list(void) { _InterlockedExchange(&busy, 0); }
#else
static int busy;
static int try_list(void) { return !__atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE); }
static void leave_list(void) { __atomic_store_n(&busy, 0, __ATOMIC_RELEASE); }
#endif

static block *allocate(size_t bytes) {
    block *b;
#if defined(_WIN32)
    b = _aligned_malloc(HEADER + bytes, ALIGNMENT);
#else
    void *at = NULL;
    if (posix_memalign(&at, bytes >= 2 * (size_t)HUGE_PAGE ? HUGE_PAGE : ALIGNMENT, HEADER + bytes)) return NULL;
    b = at;
#if defined(__linux__)
    if (bytes >= 2 * (size_t)HUGE_PAGE) madvise(at, HEADER + bytes, MADV_HUGEPAGE); /* a wish */
#endif
#endif
    if (b) b->bytes = bytes;
    return b;
}

static void release(block *b) {
#if defined(_WIN32)
    _aligned_free(b);
#else
    free(b);
#endif
}

/* Takes the smallest block of `bytes` or a little more from the list, and from it what has not been needed for long. */
static block *take(size_t bytes, block **old) {
    block **best = NULL;
    taken++;
    for (block **at = &kept; *at; at = &(*at)->next) {
        if (taken - (*at)->given > IDLE_TAKES) { /* so are all behind it */
            *old = *at;
            *at = NULL;
            break;
        }
        if ((*at)->bytes >= bytes && (*at)->bytes - bytes <= bytes / 4 && (!best || (*at)->bytes < (*best)->bytes)) best = at;
    }
    if (!best) return NULL;
    block *b = *best;
    *best = b->next;
    return b;
}

static void release_all(block *b) {
    while (b) {
        block *next = b->next;
        release(b);
        b = next;
    }
}

static void give_back(tensor *t) {
    block *b = t->owner;
    if (!try_list()) {
        release(b);
        return;
    }
    b->given = taken;
    b->next = kept;
    kept = b;
    leave_list();
}

tensor *take_tensor(int code, int bits, const int64_t *shape, int dimensions) {
    isize size = bits / 8;
    for (int d = 0; d < dimensions; d++) {
        size = checked_product(size, (isize)shape[d]);
        if (size < 0) return NULL;
    }
    const size_t bytes = ((size_t)size + GRANULE - 1) / GRANULE * GRANULE;
    block *b = NULL, *old = NULL;
    if (try_list()) {
        b = take(bytes, &old);
        leave_list();
    }
    release_all(old);
    if (!b && !(b = allocate(bytes))) return NULL;
    memset(&b->tensor, 0, sizeof b->tensor);
    memcpy(b->shape, shape, (size_t)dimensions * sizeof *shape);
    b->tensor.array.data = (uint8_t *)b + HEADER;
    b->tensor.array.device_type = DLPACK_CPU;
    b->tensor.array.dimensions = dimensions;
    b->tensor.array.code = (uint8_t)code, b->tensor.array.bits = (uint8_t)bits, b->tensor.array.lanes = 1;
    b->tensor.array.shape = b->shape;
    b->tensor.owner = b;
    b->tensor.release = give_back;
    return &b->tensor;
}

void release_tensors(void) {
    if (!try_list()) return;
    block *all = kept;
    kept = NULL;
    leave_list();
    release_all(all);
}
