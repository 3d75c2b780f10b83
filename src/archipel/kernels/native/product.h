/* Matrix products in register tiles, which go straight into a layer's outputs, gradients or parameters. */
#ifndef ARCHIPEL_PRODUCT_H
#define ARCHIPEL_PRODUCT_H

#include <stddef.h>

#include "lanes.h"
#include "perceptron.h"

/* A tile's sums stay in registers, beside one row of b and one number of a. */
#define TILE_ROWS 6
#define TILE_VECTORS (REGISTERS == 32 ? 4 : 2)

/* What is done with a tile of the product of a [row, depth] and b [depth, column]. */
enum use { FORWARD, BACKWARD, SGD, SGD_WITH_EXTRAS };

struct product {
    const float *a;
    long a_row, a_depth; /* strides of a */
    const float *b;
    long b_row;
    long rows, depth, vectors; /* vectors: columns / LANES */
    float *to;
    long to_row;
    const float *bias;         /* FORWARD */
    const float *activations;  /* BACKWARD: the gradient is zero where ReLU's output is, or NULL */
    int relu;                  /* FORWARD */
    const struct network *net; /* SGD */
    const float *anchor;       /* SGD_WITH_EXTRAS: laid out like `to`, or NULL */
    const float *shift;        /* likewise */
    float *momentum;           /* likewise */
};

/* Update one vector of parameters as torch.optim.SGD does. */
INLINE void sgd_step(const struct network *net, vfloat *weight, vfloat gradient, const float *anchor,
                     const float *shift, float *momentum) {
    if (shift)
        gradient += *(const vfloat *)shift;
    if (anchor)
        gradient += net->proximal * (*weight - *(const vfloat *)anchor);
    if (net->decay != 0) /* 0 times an infinite weight would be NaN */
        gradient += net->decay * *weight;
    if (momentum) {
        vfloat updated = net->momentum * *(vfloat *)momentum + gradient;
        *(vfloat *)momentum = updated;
        gradient = net->nesterov ? gradient + net->momentum * updated : updated;
    }
    *weight -= net->rate * gradient;
}

INLINE void compute_tile(const enum use use, const int rows, const int vectors, const struct product *p, long row,
                         long column) {
    const float *a = p->a + row * p->a_row, *b = p->b + column * LANES;
    long a_row = p->a_row, a_depth = p->a_depth, b_row = p->b_row, depth = p->depth;
    vfloat sums[TILE_ROWS][TILE_VECTORS];
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++)
            sums[i][j] = use == FORWARD ? *(const vfloat *)(p->bias + (column + j) * LANES) : broadcast(0);
    for (long k = 0; k < depth; k++) {
        vfloat b_vectors[TILE_VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++)
            b_vectors[j] = *(const vfloat *)(b + k * b_row + j * LANES);
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++)
                sums[i][j] += a[i * a_row + k * a_depth] * b_vectors[j];
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) {
            long at = (row + i) * p->to_row + (column + j) * LANES;
            vfloat *to = (vfloat *)(p->to + at);
            if (use == FORWARD)
                *to = p->relu ? relu(sums[i][j]) : sums[i][j];
            else if (use == BACKWARD)
                *to = p->activations
                          ? select_or_zero(~(*(const vfloat *)(p->activations + at) <= broadcast(0)), sums[i][j])
                          : sums[i][j];
            else if (use == SGD)
                *to -= p->net->rate * sums[i][j];
            else
                sgd_step(p->net, to, sums[i][j], p->anchor ? p->anchor + at : NULL,
                         p->shift ? p->shift + at : NULL, p->momentum ? p->momentum + at : NULL);
        }
}

/* Compute all rows of some columns. */
INLINE void compute_strip(const enum use use, const int vectors, const struct product *p, long column) {
    long row = 0;
    for (; row + TILE_ROWS <= p->rows; row += TILE_ROWS)
        compute_tile(use, TILE_ROWS, vectors, p, row, column);
    switch (p->rows - row) {
    case 1: compute_tile(use, 1, vectors, p, row, column); break;
    case 2: compute_tile(use, 2, vectors, p, row, column); break;
    case 3: compute_tile(use, 3, vectors, p, row, column); break;
    case 4: compute_tile(use, 4, vectors, p, row, column); break;
    case 5: compute_tile(use, 5, vectors, p, row, column); break;
    }
}

INLINE void multiply(const enum use use, const struct product *p) {
    long column = 0;
    for (; column + TILE_VECTORS <= p->vectors; column += TILE_VECTORS)
        compute_strip(use, TILE_VECTORS, p, column);
    if (TILE_VECTORS > 2 && p->vectors - column >= 2) {
        compute_strip(use, 2, p, column);
        column += 2;
    }
    if (column < p->vectors)
        compute_strip(use, 1, p, column);
}

#endif
