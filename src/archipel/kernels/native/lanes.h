/* SIMD vectors as wide as a register of the target: arithmetic on all lanes, reductions and transposes. */
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

typedef float vfloat __attribute__((vector_size(4 * LANES)));
typedef float vfloat_unaligned __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t vint __attribute__((vector_size(4 * LANES)));

#define INLINE static inline __attribute__((always_inline))

/* Round up to a multiple of LANES. */
INLINE long round_to_lanes(long count) { return (count + LANES - 1) / LANES * LANES; }

INLINE long min_long(long a, long b) { return a < b ? a : b; }

INLINE vfloat broadcast(float number) { return number - (vfloat){0}; }

/* a where the mask is set, else 0. */
INLINE vfloat select_or_zero(vint mask, vfloat a) { return (vfloat)(mask & (vint)a); }

/* max(a, 0), where NaN stays NaN. */
INLINE vfloat relu(vfloat a) { return select_or_zero(~(a <= broadcast(0)), a); }

INLINE vfloat vmax(vfloat a, vfloat b) {
    vint mask = a > b;
    return (vfloat)((mask & (vint)a) | (~mask & (vint)b));
}

INLINE vfloat vadd(vfloat a, vfloat b) { return a + b; }

/* INTERLEAVE_LOW and INTERLEAVE_HIGH: a b a b ... of the lower and of the upper halves.
   REDUCE: combine all lanes with f; every lane holds the result. */
#define SHUFFLE __builtin_shufflevector
#if LANES == 16
#define INTERLEAVE_LOW(a, b) SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define INTERLEAVE_HIGH(a, b) SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#define ROTATE(a, by) SHUFFLE(a, a, (0 + by) % 16, (1 + by) % 16, (2 + by) % 16, (3 + by) % 16, (4 + by) % 16, \
    (5 + by) % 16, (6 + by) % 16, (7 + by) % 16, (8 + by) % 16, (9 + by) % 16, (10 + by) % 16, (11 + by) % 16, \
    (12 + by) % 16, (13 + by) % 16, (14 + by) % 16, (15 + by) % 16)
#define REDUCE(a, f) a = f(a, ROTATE(a, 8)), a = f(a, ROTATE(a, 4)), a = f(a, ROTATE(a, 2)), a = f(a, ROTATE(a, 1))
#elif LANES == 8
#define INTERLEAVE_LOW(a, b) SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define INTERLEAVE_HIGH(a, b) SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#define ROTATE(a, by) SHUFFLE(a, a, (0 + by) % 8, (1 + by) % 8, (2 + by) % 8, (3 + by) % 8, (4 + by) % 8, \
    (5 + by) % 8, (6 + by) % 8, (7 + by) % 8)
#define REDUCE(a, f) a = f(a, ROTATE(a, 4)), a = f(a, ROTATE(a, 2)), a = f(a, ROTATE(a, 1))
#else
#define INTERLEAVE_LOW(a, b) SHUFFLE(a, b, 0, 4, 1, 5)
#define INTERLEAVE_HIGH(a, b) SHUFFLE(a, b, 2, 6, 3, 7)
#define ROTATE(a, by) SHUFFLE(a, a, (0 + by) % 4, (1 + by) % 4, (2 + by) % 4, (3 + by) % 4)
#define REDUCE(a, f) a = f(a, ROTATE(a, 2)), a = f(a, ROTATE(a, 1))
#endif

INLINE float reduce_add(vfloat a) {
    REDUCE(a, vadd);
    return a[0];
}

INLINE float reduce_max(vfloat a) {
    REDUCE(a, vmax);
    return a[0];
}

/* Transpose a square of LANES x LANES numbers by log2(LANES) passes that interleave its upper and lower rows. */
INLINE void transpose_square(const float *from, long from_stride, float *to, long to_stride) {
    vfloat rows[LANES], next[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        rows[i] = *(const vfloat *)(from + i * from_stride);
#pragma GCC unroll 4
    for (int size = 1; size < LANES; size *= 2) {
#pragma GCC unroll 16
        for (int i = 0; i < LANES / 2; i++) {
            next[2 * i] = INTERLEAVE_LOW(rows[i], rows[i + LANES / 2]);
            next[2 * i + 1] = INTERLEAVE_HIGH(rows[i], rows[i + LANES / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            rows[i] = next[i];
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        *(vfloat *)(to + i * to_stride) = rows[i];
}

/* e^a for a <= 0, accurate to a few units in the last place, as in Cephes: 2^n times a polynomial on
   [-ln 2 / 2, ln 2 / 2]. Inputs below -87 are clamped: the result is close enough to 0. */
INLINE vfloat vexp(vfloat a) {
    a = vmax(broadcast(-87), a);
    vfloat magic = broadcast(0x1.8p23f); /* adding and subtracting it rounds to an integer */
    vfloat n = a * 1.44269504f + magic - magic;
    vfloat r = a - n * 0.693359375f + n * 2.12194440e-4f; /* ln 2 in two parts, the first of them exact */
    vfloat p = broadcast(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return (vfloat)((vint)p + (__builtin_convertvector(n, vint) << 23));
}

#endif
