/* Memory of tensors that passes of training write, handed to torch by the protocol DLPack. */

#ifndef INTACT8_TENSOR_MEMORY_H
#define INTACT8_TENSOR_MEMORY_H

#include "core.h"

#define TENSOR_DIMENSIONS 8
#define DLPACK_CPU 1

/* A DLManagedTensor of https://github.com/dmlc/dlpack, version 0.x, which is what capsules named "dltensor" hold. */
typedef struct tensor {
    struct {
        void *data;
        int32_t device_type, device;
        int32_t dimensions;
        uint8_t code, bits; /* code: 0 int, 1 uint, 2 float */
        uint16_t lanes;
        int64_t *shape, *strides; /* strides: NULL, that is, contiguous */
        uint64_t offset;
    } array;
    void *owner;
    void (*release)(struct tensor *);
} tensor;

/* Returns a tensor of undefined values, of at most TENSOR_DIMENSIONS; NULL without memory. */
HIDDEN tensor *take_tensor(int code, int bits, const int64_t *shape, int dimensions);

/* Frees what is kept for tensors to come. */
HIDDEN void release_tensors(void);

#endif
