/* Reads program files: safetensors files with the program as JSON in their metadata (docs/format.md). Of the JSON only the
   way to the plan is read: __metadata__ -> intact -> provenance -> plan. */

#include "file.h"

#include <stdio.h>
#include <stdlib.h>

#define LARGEST_HEADER 100000000
#define SEALED "{\"__metadata__\":{\"checksum\":\"" /* how every header begins; 64 digits follow */
#define DIGITS 64

/* ---- JSON ----------------------------------------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *at, *end;
} text;

static void skip_space(text *t) {
    while (t->at < t->end && (*t->at == ' ' || *t->at == '\n' || *t->at == '\r' || *t->at == '\t')) t->at++;
}

static int take(text *t, char what) {
    skip_space(t);
    return t->at < t->end && *t->at == (uint8_t)what ? t->at++, 1 : 0;
}

/* What stands between the quotes of a string, escapes as they are. */
static int take_string(text *t, text *inside) {
    if (!take(t, '"')) return 0;
    inside->at = t->at;
    for (; t->at < t->end; t->at++) {
        if (*t->at == '\\') {
            if (++t->at == t->end) return 0;
        } else if (*t->at == '"') {
            inside->end = t->at++;
            return 1;
        }
    }
    return 0;
}

/* Skips a value by its brackets and strings: whoever wrote what is between them answers for it. */
static int skip_value(text *t) {
    text string;
    isize depth = 0;
    for (;;) {
        skip_space(t);
        if (t->at == t->end) return 0;
        if (*t->at == '"') {
            if (!take_string(t, &string)) return 0;
        } else if (*t->at == '{' || *t->at == '[') {
            t->at++, depth++;
            continue;
        } else if (*t->at == '}' || *t->at == ']') {
            if (!depth--) return 0;
            t->at++;
        } else if (*t->at == ',' || *t->at == ':') {
            if (!depth) return 0;
            t->at++;
            continue;
        } else {
            do t->at++;
            while (t->at < t->end && !memchr(" \n\r\t,:{}[]\"", *t->at, 10));
        }
        if (!depth) return 1;
    }
}

/* Moves to the value of a name in an object. */
static int find(text *t, const char *name) {
    const size_t length = strlen(name);
    text key;
    if (!take(t, '{')) return 0;
    do {
        if (!take_string(t, &key) || !take(t, ':')) return 0;
        if ((size_t)(key.end - key.at) == length && !memcmp(key.at, name, length)) return 1;
    } while (skip_value(t) && take(t, ','));
    return 0;
}

static int hexadecimal(const uint8_t *at) {
    int value = 0;
    for (int i = 0; i < 4; i++) {
        const int c = at[i], digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* Resolves the escapes of a string; the result is never longer. NULL where an escape is none, or there is no memory. */
static uint8_t *unescaped(text from, isize *length) {
    static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    uint8_t *made = (uint8_t *)malloc((size_t)(from.end - from.at) + 1), *to = made;
    if (!made) return NULL;
    while (from.at < from.end) {
        if (*from.at != '\\') {
            *to++ = *from.at++;
            continue;
        }
        const int c = from.end - from.at >= 2 ? from.at[1] : 0;
        const char *known = c ? strchr(letters, c) : NULL;
        if (known) {
            *to++ = (uint8_t)meant[known - letters], from.at += 2;
            continue;
        }
        const int code = c == 'u' && from.end - from.at >= 6 ? hexadecimal(from.at + 2) : -1;
        if (code < 0) return free(made), NULL;
        if (code >= 0x800) *to++ = (uint8_t)(0xE0 | code >> 12);
        if (code >= 0x80) *to++ = (uint8_t)(code >= 0x800 ? 0x80 | (code >> 6 & 0x3F) : 0xC0 | code >> 6);
        *to++ = (uint8_t)(code >= 0x80 ? 0x80 | (code & 0x3F) : code);
        from.at += 6;
    }
    *length = to - made;
    return made;
}

/* ---- base64 --------------------------------------------------------------------------------------------------------- */

static int sextet(uint8_t c) {
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

static uint8_t *decoded(text from, isize *length) {
    while (from.end > from.at && from.end[-1] == '=') from.end--;
    uint8_t *made = (uint8_t *)malloc((size_t)(from.end - from.at) + 1), *to = made;
    uint32_t bits = 0;
    int count = 0;
    for (; made && from.at < from.end; from.at++) {
        const int six = sextet(*from.at);
        if (six < 0) return free(made), NULL;
        bits = bits << 6 | (uint32_t)six, count += 6;
        if (count >= 8) count -= 8, *to++ = (uint8_t)(bits >> count);
    }
    *length = made ? to - made : 0;
    return made;
}

/* ---- files ---------------------------------------------------------------------------------------------------------- */

static const char *read_content(const char *path, program_file *file, isize *bytes) {
    FILE *stream = fopen(path, "rb");
    if (!stream) return "the file cannot be opened";
    const char *reason = "the file cannot be read";
    if (!fseek(stream, 0, SEEK_END)) {
        const long size = ftell(stream);
        file->content = size > 0 && !fseek(stream, 0, SEEK_SET) ? (uint8_t *)malloc((size_t)size) : NULL;
        if (file->content && fread(file->content, 1, (size_t)size, stream) == (size_t)size) reason = NULL, *bytes = (isize)size;
    }
    fclose(stream);
    return reason;
}

static int is_sealed(const uint8_t *content, isize bytes) {
    static const uint8_t zeros[] = "0000000000000000000000000000000000000000000000000000000000000000";
    const isize place = 8 + (isize)sizeof SEALED - 1;
    if (bytes < place + DIGITS || memcmp(content + 8, SEALED, sizeof SEALED - 1)) return 0;
    const piece pieces[] = {{content, (size_t)place}, {zeros, DIGITS}, {content + place + DIGITS, (size_t)(bytes - place - DIGITS)}};
    uint8_t digest[32];
    sha256(pieces, 3, digest);
    for (int i = 0; i < DIGITS; i++)
        if (content[place + i] != "0123456789abcdef"[digest[i / 2] >> (i % 2 ? 0 : 4) & 15]) return 0;
    return 1;
}

/* Follows the names to the plan. */
static const char *read_plan(text header, program_file *file) {
    text value = header, string;
    isize length = 0;
    if (!find(&value, "__metadata__") || !find(&value, "intact") || !take_string(&value, &string))
        return "the file is not an intact8 program";
    uint8_t *document = unescaped(string, &length);
    if (!document) return "the program in the file cannot be read";
    value = (text){document, document + length};
    if (find(&value, "provenance") && find(&value, "plan") && take_string(&value, &string))
        file->plan = decoded(string, &file->plan_bytes);
    free(document);
    return file->plan ? NULL : "the file has no plan: save the program with plan=True";
}

const char *read_program_file(const char *path, program_file *file) {
    isize bytes = 0;
    memset(file, 0, sizeof *file);
    const char *reason = read_content(path, file, &bytes);
    if (reason) return reason;
    uint64_t header = 0;
    for (int i = 7; i >= 0 && bytes >= 8; i--) header = header << 8 | file->content[i];
    if (bytes < 8 || header > LARGEST_HEADER || (isize)header > bytes - 8) return "the file is not a safetensors file";
    if (!is_sealed(file->content, bytes)) return "the file is damaged, or of a version without checksum: save it again";
    file->arrays = file->content + 8 + header, file->array_bytes = bytes - 8 - (isize)header;
    return read_plan((text){file->content + 8, file->arrays}, file);
}

void free_program_file(program_file *file) { free(file->content), free(file->plan); }
