/* Models: the constants of a program, and what plans packed of them. */

#include "plan.h"

#include <stdlib.h>

typedef struct pack {
    struct pack *next;
    const void *key;
    isize variant, bytes;
    void *memory; /* behind this struct */
} pack;

struct model {
    isize references, count, room;
    const void **constants;
    isize *bytes;
    pack *packs;
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

void close_model(model *m) {
    if (!m || --m->references > 0) return;
    for (pack *p = m->packs, *next; p; p = next) {
        next = p->next;
        free(p);
    }
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
    void *block, *memory = aligned_memory(&block, bytes, (isize)sizeof(pack));
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
