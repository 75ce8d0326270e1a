/* Program files: what the C API reads of them. */

#ifndef INTACT8_FILE_H
#define INTACT8_FILE_H

#include "../engine/core.h"

typedef struct {
    uint8_t *content;      /* of the file, to be freed */
    const uint8_t *arrays; /* the part behind the header, in it */
    isize array_bytes;
    uint8_t *plan; /* to be freed */
    isize plan_bytes;
} program_file;

/* Reads a file and verifies its checksum. Returns NULL, or a reason why it is refused; free_file() either way. */
HIDDEN const char *read_program_file(const char *path, program_file *file);
HIDDEN void free_program_file(program_file *file);

/* SHA-256 (FIPS 180-4) of three pieces one after the other. */
typedef struct {
    const uint8_t *at;
    size_t bytes;
} piece;
HIDDEN void sha256(const piece *pieces, int count, uint8_t digest[32]);

#endif
