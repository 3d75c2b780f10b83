/* As many numbers as a register of the machine that is compiled for holds. */
#ifndef ARCHIPEL_LANES_H
#define ARCHIPEL_LANES_H

#include <stdint.h>

#if defined(__AVX512F__)
#define LANES 16
#define REGISTERS 32
#elif defined(__AVX2__)
#define LANES 8
#define REGISTERS 16
#else
#define LANES 4
#define REGISTERS 16
#endif

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef int32_t whole_lanes __attribute__((vector_size(4 * LANES)));

#define INLINE static inline __attribute__((always_inline))

/* So many numbers, and those that fill their last lanes up. */
INLINE long filled(long numbers) { return (numbers + LANES - 1) / LANES * LANES; }

INLINE lanes all(float number) { return number - (lanes){0}; }

/* a where the bits of `where` are set, else 0. */
INLINE lanes only(whole_lanes where, lanes a) { return (lanes)(where & (whole_lanes)a); }

/* A NaN stays one. */
INLINE lanes rectified(lanes a) { return only(~(a <= all(0)), a); }

INLINE lanes larger(lanes a, lanes b) {
    whole_lanes where = a > b;
    return (lanes)((where & (whole_lanes)a) | (~where & (whole_lanes)b));
}

/* LOW and HIGH: a b a b … of the lower and of the upper halves. FOLD: f of all of them, in every lane. */
#define SHUFFLE __builtin_shufflevector
#if LANES == 16
#define LOW(a, b) SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH(a, b) SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#define ROTATED(a, by) SHUFFLE(a, a, (0 + by) % 16, (1 + by) % 16, (2 + by) % 16, (3 + by) % 16, (4 + by) % 16, \
    (5 + by) % 16, (6 + by) % 16, (7 + by) % 16, (8 + by) % 16, (9 + by) % 16, (10 + by) % 16, (11 + by) % 16, \
    (12 + by) % 16, (13 + by) % 16, (14 + by) % 16, (15 + by) % 16)
#define FOLD(a, f) a = f(a, ROTATED(a, 8)), a = f(a, ROTATED(a, 4)), a = f(a, ROTATED(a, 2)), a = f(a, ROTATED(a, 1))
#elif LANES == 8
#define LOW(a, b) SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH(a, b) SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#define ROTATED(a, by) SHUFFLE(a, a, (0 + by) % 8, (1 + by) % 8, (2 + by) % 8, (3 + by) % 8, (4 + by) % 8, \
    (5 + by) % 8, (6 + by) % 8, (7 + by) % 8)
#define FOLD(a, f) a = f(a, ROTATED(a, 4)), a = f(a, ROTATED(a, 2)), a = f(a, ROTATED(a, 1))
#else
#define LOW(a, b) SHUFFLE(a, b, 0, 4, 1, 5)
#define HIGH(a, b) SHUFFLE(a, b, 2, 6, 3, 7)
#define ROTATED(a, by) SHUFFLE(a, a, (0 + by) % 4, (1 + by) % 4, (2 + by) % 4, (3 + by) % 4)
#define FOLD(a, f) a = f(a, ROTATED(a, 2)), a = f(a, ROTATED(a, 1))
#endif

INLINE lanes added(lanes a, lanes b) { return a + b; }

INLINE float sum(lanes a) {
    FOLD(a, added);
    return a[0];
}

INLINE float largest(lanes a) {
    FOLD(a, larger);
    return a[0];
}

/* A square of numbers, rows for columns. Shuffling the upper half of the rows into the lower one, again and again, does
   it. */
INLINE void turn_square(const float *from, long from_row, float *to, long to_row) {
    lanes rows[LANES], next[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        rows[i] = *(const lanes *)(from + i * from_row);
#pragma GCC unroll 4
    for (int size = 1; size < LANES; size *= 2) {
#pragma GCC unroll 16
        for (int i = 0; i < LANES / 2; i++) {
            next[2 * i] = LOW(rows[i], rows[i + LANES / 2]);
            next[2 * i + 1] = HIGH(rows[i], rows[i + LANES / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            rows[i] = next[i];
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        *(lanes *)(to + i * to_row) = rows[i];
}

/* e^a for a <= 0, to some units in the last place, as in Cephes: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2]. Below
   -87 it is as good as 0. */
INLINE lanes exponential(lanes a) {
    a = larger(all(-87), a);
    lanes magic = all(0x1.8p23f); /* added and taken off, it rounds */
    lanes n = a * 1.44269504f + magic - magic;
    lanes r = a - n * 0.693359375f + n * 2.12194440e-4f; /* ln 2 in two parts, the first of them exact */
    lanes p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return (lanes)((whole_lanes)p + (__builtin_convertvector(n, whole_lanes) << 23));
}

#endif
