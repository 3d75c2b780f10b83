/* Tables of a struct's members, by which Python checks its own declaration of the struct before it uses the library. */
#ifndef ARCHIPEL_STRUCTS_H
#define ARCHIPEL_STRUCTS_H

#include <stddef.h>
#include <stdint.h>

struct member {
    const char *name; /* NULL: the end of the struct */
    int64_t offset;
};

#define MEMBER(type, name) {#name, offsetof(struct type, name)}
#define END(type) {NULL, sizeof(struct type)}

#endif
