/* Models: the constants of a program, and what plans packed of them. */

#if defined(__linux__)
#define _DEFAULT_SOURCE /* madvise */
#endif
#include "plan.h"

#include <stdlib.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

typedef struct pack {
    struct pack *next;
    const void *key;
    isize variant, bytes;
    void *memory; /* behind this struct */
} pack;

/* Memory for packs in huge pages as far as it fills them: a block of weights for 64 channels reaches over more ordinary pages
   than the first level of the TLB knows. Where there are no such pages every pack has memory of its own. */
typedef struct {
    uint8_t *mapped, *from;
    isize mapped_bytes, bytes, used;
} arena;

struct model {
    isize references, count, room;
    const void **constants;
    isize *bytes;
    pack *packs;
    arena arena;
};

model *open_model(void) {
    model *m = (model *)calloc(1, sizeof *m);
    if (m) m->references = 1;
    return m;
}

model *retain_model(model *m) {
    m->references++;
    return m;
}

isize add_constant(model *m, const void *at, isize bytes) {
    if (m->count == m->room) {
        const isize room = m->room ? 2 * m->room : 64;
        const void **constants = (const void **)realloc((void *)m->constants, (size_t)room * sizeof *constants);
        if (constants) m->constants = constants;
        isize *sizes = (isize *)realloc(m->bytes, (size_t)room * sizeof *sizes);
        if (sizes) m->bytes = sizes;
        if (!constants || !sizes || bytes < 0) return -1;
        m->room = room;
    }
    m->constants[m->count] = at, m->bytes[m->count] = bytes;
    return m->count++;
}

const void *model_constant(const model *m, int64_t index, int64_t bytes) {
    return index >= 0 && index < m->count && bytes <= m->bytes[index] ? m->constants[index] : NULL;
}

#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__) /* which sees where memory of malloc() ends, not where a pack does */
/* Maps memory for packs of all constants there are now. */
static void open_arena(model *m) {
    isize all = 0;
    for (isize i = 0; i < m->count; i++) all = checked_sum(all, m->bytes[i]);
    all = checked_sum(all, all / 16); /* what packing fills up, and the packs' own fields */
    if (m->arena.mapped || all < HUGE_PAGE) return;
    arena a = {.mapped_bytes = all + HUGE_PAGE, .bytes = all};
    void *at = mmap(NULL, (size_t)a.mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return;
    a.mapped = (uint8_t *)at;
    a.from = a.mapped + (-(uintptr_t)at & (uintptr_t)(HUGE_PAGE - 1));
    (void)madvise(a.from, (size_t)(all / HUGE_PAGE * HUGE_PAGE), MADV_HUGEPAGE);
    m->arena = a;
}

static void close_arena(const arena *a) {
    if (a->mapped) munmap(a->mapped, (size_t)a->mapped_bytes);
}
#else
static void open_arena(model *m) { (void)m; }
static void close_arena(const arena *a) { (void)a; }
#endif

void close_model(model *m) {
    if (!m || --m->references > 0) return;
    for (pack *p = m->packs, *next; p; p = next) {
        next = p->next;
        const uint8_t *at = (const uint8_t *)p;
        if (!m->arena.from || at < m->arena.from || at >= m->arena.from + m->arena.bytes) free(p);
    }
    close_arena(&m->arena);
    free((void *)m->constants), free(m->bytes), free(m);
}

void *aligned_memory(void **block, isize bytes, isize before) {
    const isize all = checked_sum(bytes, before + ALIGNMENT);
    *block = all < 0 ? NULL : calloc(1, (size_t)all);
    return *block ? (void *)(((uintptr_t)*block + (uintptr_t)(before + ALIGNMENT - 1)) / ALIGNMENT * ALIGNMENT) : NULL;
}

void *model_memory(model *m, const void *key, isize variant, isize bytes, int *fresh) {
    *fresh = 0;
    for (pack *p = m->packs; p; p = p->next)
        if (p->key == key && p->variant == variant && p->bytes == bytes) return p->memory;
    if (!m->packs) open_arena(m);
    arena *a = &m->arena;
    const isize before = round_up((isize)sizeof(pack), ALIGNMENT), all = checked_sum(bytes, before + ALIGNMENT - 1);
    void *block, *memory;
    if (all >= 0 && all / ALIGNMENT * ALIGNMENT <= a->bytes - a->used) {
        block = a->from + a->used, memory = a->from + a->used + before;
        a->used += all / ALIGNMENT * ALIGNMENT;
    } else
        memory = aligned_memory(&block, bytes, (isize)sizeof(pack));
    if (!memory) return NULL;
    pack *made = (pack *)block;
    *made = (pack){m->packs, key, variant, bytes, memory};
    m->packs = made, *fresh = 1;
    return memory;
}

void discard_model_memory(model *m, const void *memory) {
    for (pack *p = m->packs; p; p = p->next)
        if (p->memory == memory) p->bytes = -1;
}
