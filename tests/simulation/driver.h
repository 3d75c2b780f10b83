/* What the drivers share: random numbers that are the same in every run, and memory of exactly the size asked for. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long below(long bound) {
    static _Thread_local uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (long)(state >> 20) % bound;
}

static void *allocate(long count, size_t size) {
    void *allocated = calloc(count ? count : 1, size);
    if (allocated == NULL)
        abort();
    return allocated;
}

/* Multiples of a step from -range to range. */
static float *numbers(long count, long range, float step) {
    float *drawn = allocate(count, sizeof(float));
    for (long i = 0; i < count; i++)
        drawn[i] = step * (float)(below(2 * range + 1) - range);
    return drawn;
}
