/* Convolution, 2 x 2 max pooling and ReLU as one operation, forward and backward.

   Images, weights and results have their channels last, so that a row of a filter is one run of numbers, next to a run
   of the image that is as long. Of the four positions of a pooling window only the largest gets a gradient, and only if
   it is positive. Backward computes the products of these positions alone: at most a quarter of a convolution's, and
   mostly an eighth. */

#include <stdlib.h>
#include <string.h>

#include "lanes.h"
#include "structs.h"

#define TILE_WINDOWS (REGISTERS == 32 ? 3 : 1) /* adjacent pooling windows in a tile: 24 or 8 sums in registers */
#define TILE_VECTORS 2                         /* vectors of filters in a tile */
#define SUMS (REGISTERS == 32 ? 12 : 8)        /* vectors of a gradient in registers */
#define MAX_ROWS 5   /* rows of a filter whose gradient is summed at a time */
#define AHEAD 512    /* numbers of a tile's weights to prefetch: they come from the L2 cache */
#define INACTIVE 4   /* "position" of a maximum that ReLU sets to zero */

struct convolution {
    int64_t batch, height, width, channels;
    int64_t filters, rows, columns;
    int64_t padding_rows, padding_columns; /* zeros on each side */
    const float *images;                   /* [image, height, width, channel] */
    const float *weight;                   /* [filter, row, column, channel] */
    const float *bias;                     /* [filter], or NULL */
    float *out;                            /* [image, window, filter] */
    uint8_t *argmax;                       /* likewise: position of the maximum in its window, or INACTIVE */
    const float *out_gradient;             /* likewise */
    float *images_gradient;                /* these three: like what they are the gradient of; NULL if not wanted */
    float *weight_gradient;
    float *bias_gradient;
};

const struct member archipel_convolution_members[] = {
    MEMBER(convolution, batch), MEMBER(convolution, height), MEMBER(convolution, width), MEMBER(convolution, channels),
    MEMBER(convolution, filters), MEMBER(convolution, rows), MEMBER(convolution, columns),
    MEMBER(convolution, padding_rows), MEMBER(convolution, padding_columns), MEMBER(convolution, images),
    MEMBER(convolution, weight), MEMBER(convolution, bias), MEMBER(convolution, out), MEMBER(convolution, argmax),
    MEMBER(convolution, out_gradient), MEMBER(convolution, images_gradient), MEMBER(convolution, weight_gradient),
    MEMBER(convolution, bias_gradient), END(convolution),
};

/* Derived sizes, in numbers. Work is done on a padded copy of one image at a time. */
struct geometry {
    long row, image;                  /* of a padded row and image */
    long origin;                      /* offset of the image in its padded copy */
    long window_rows, window_columns; /* pooling windows, vertically and horizontally; */
    long windows;                     /* all of them */
    long filter_row, filter;          /* of a filter's row and of a filter */
};

static struct geometry geometry_of(const struct convolution *c) {
    long height = c->height + 2 * c->padding_rows, width = c->width + 2 * c->padding_columns;
    long window_rows = (height - c->rows + 1) / 2, window_columns = (width - c->columns + 1) / 2;
    long row = width * c->channels, filter_row = c->columns * c->channels;
    return (struct geometry){
        .row = row,
        .image = height * row,
        .origin = c->padding_rows * row + c->padding_columns * c->channels,
        .window_rows = window_rows,
        .window_columns = window_columns,
        .windows = window_rows * window_columns,
        .filter_row = filter_row,
        .filter = c->rows * filter_row,
    };
}

/* Offset of a window's first position in a padded image. */
static long window_offset(const struct convolution *c, const struct geometry *g, long i, long j) {
    return 2 * i * g->row + 2 * j * c->channels;
}

static void copy_into_padding(const struct convolution *c, const struct geometry *g, long n, float *padded) {
    long row = c->width * c->channels;
    for (long y = 0; y < c->height; y++)
        memcpy(padded + g->origin + y * g->row, c->images + (n * c->height + y) * row, row * sizeof(float));
}

static void copy_out_of_padding(const struct convolution *c, const struct geometry *g, long n, const float *padded) {
    long row = c->width * c->channels;
    for (long y = 0; y < c->height; y++)
        memcpy(c->images_gradient + (n * c->height + y) * row, padded + g->origin + y * g->row, row * sizeof(float));
}

/* Allocate zeros, and one vector more: the last access may reach beyond the end. */
static float *allocate_zeros(long count) {
    size_t size = (count + LANES + 15) / 16 * 64;
    float *zeros = aligned_alloc(64, size);
    return zeros == NULL ? NULL : memset(zeros, 0, size);
}

/* ------------------------------------------------------------------------------------------- inner loops of forward */

struct tile {
    const float *image;       /* padded, from the first window on */
    const float *weight;      /* [row, number of the row, filter] */
    const float *bias;        /* [filter] */
    long first_row, last_row; /* rows of the filters that overlap the image, not only its padding */
    long filters;             /* at most TILE_VECTORS * LANES */
    float *out;
    uint8_t *argmax;
};

/* As torch: the first of equal numbers, or the last NaN. */
INLINE void pool_window(const int filters, float (*window)[TILE_VECTORS * LANES], float *restrict out,
                        uint8_t *restrict argmax) {
    for (int k = 0; k < filters; k++) {
        float best = window[0][k];
        int32_t position = 0;
        for (int next = 1; next < 4; next++) {
            int better = (window[next][k] > best) | (window[next][k] != window[next][k]);
            best = better ? window[next][k] : best;
            position = better ? next : position;
        }
        int inactive = best <= 0;
        out[k] = inactive ? 0 : best;
        argmax[k] = inactive ? INACTIVE : position;
    }
}

/* Compute adjacent windows for some vectors of filters. */
INLINE void convolve_tile(const int windows, const int vectors, const struct convolution *c, const struct geometry *g,
                          const struct tile *t) {
    vfloat sums[2][2 * TILE_WINDOWS][TILE_VECTORS];
#pragma GCC unroll 6
    for (int i = 0; i < 2 * windows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            sums[0][i][v] = sums[1][i][v] = ((const vfloat *)t->bias)[v];
    for (long r = t->first_row; r < t->last_row; r++) {
        const float *upper = t->image + r * g->row, *lower = upper + g->row;
        const vfloat *weight = (const vfloat *)t->weight + r * g->filter_row * vectors;
        for (long k = 0; k < g->filter_row; k++, weight += vectors) {
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++)
                __builtin_prefetch((const float *)(weight + v) + AHEAD);
#pragma GCC unroll 6
            for (int i = 0; i < 2 * windows; i++)
#pragma GCC unroll 2
                for (int v = 0; v < vectors; v++)
                    sums[0][i][v] += upper[i * c->channels + k] * weight[v];
#pragma GCC unroll 6
            for (int i = 0; i < 2 * windows; i++)
#pragma GCC unroll 2
                for (int v = 0; v < vectors; v++)
                    sums[1][i][v] += lower[i * c->channels + k] * weight[v];
        }
    }
    float window[TILE_WINDOWS][4][TILE_VECTORS * LANES] __attribute__((aligned(64)));
#pragma GCC unroll 6
    for (int i = 0; i < 2 * windows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) {
            ((vfloat *)window[i / 2][i % 2])[v] = sums[0][i][v];
            ((vfloat *)window[i / 2][2 + i % 2])[v] = sums[1][i][v];
        }
    for (int w = 0; w < windows; w++) {
        float *out = t->out + w * c->filters;
        uint8_t *argmax = t->argmax + w * c->filters;
        if (t->filters == vectors * LANES) {
            pool_window(vectors * LANES, window[w], out, argmax);
        } else {
            float maxima[TILE_VECTORS * LANES];
            uint8_t positions[TILE_VECTORS * LANES];
            pool_window(vectors * LANES, window[w], maxima, positions);
            memcpy(out, maxima, t->filters * sizeof(float));
            memcpy(argmax, positions, t->filters);
        }
    }
}

#define TILE(w, v)                                                                                                     \
    case (w) * (TILE_VECTORS + 1) + (v):                                                                               \
        if ((w) <= TILE_WINDOWS)                                                                                       \
            convolve_tile(w, v, c, g, t);                                                                              \
        break;

static void convolve_windows(long windows, const struct convolution *c, const struct geometry *g,
                             const struct tile *t) {
    switch (windows * (TILE_VECTORS + 1) + round_to_lanes(t->filters) / LANES) {
        TILE(1, 1) TILE(2, 1) TILE(3, 1) TILE(1, 2) TILE(2, 2) TILE(3, 2)
    }
}

/* ------------------------------------------------------------------------------------------ inner loops of backward */

/* A nonzero gradient, and the offset of the numbers it is multiplied by. Offsets of 32 bits halve the memory that the
   inner loop reads; Python leaves larger images and weights to torch. */
struct nonzero {
    int32_t offset;
    float gradient;
};

/* Rows of sums, and the nonzeros whose products with rows of `from` are added to them. */
struct addition {
    float *sums;
    const float *from;
    long sums_row, from_row;
    const struct nonzero *nonzeros;
    long count;
};

INLINE void add_products(const int rows, const int vectors, const struct addition *a) {
    vfloat sums[SUMS];
    const float *from = a->from;
    long from_row = a->from_row;
#pragma GCC unroll 5
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 12
        for (int v = 0; v < vectors; v++)
            sums[r * vectors + v] = ((const vfloat_unaligned *)(a->sums + r * a->sums_row))[v];
    for (const struct nonzero *next = a->nonzeros, *end = next + a->count; next < end; next++)
#pragma GCC unroll 5
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 12
            for (int v = 0; v < vectors; v++)
                sums[r * vectors + v] +=
                    next->gradient * ((const vfloat_unaligned *)(from + next->offset + r * from_row))[v];
#pragma GCC unroll 5
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 12
        for (int v = 0; v < vectors; v++)
            ((vfloat_unaligned *)(a->sums + r * a->sums_row))[v] = sums[r * vectors + v];
}

#define ADD(r, v)                                                                                                      \
    case 16 * (r) + (v):                                                                                               \
        if ((r) * (v) <= SUMS)                                                                                         \
            add_products(r, v, a);                                                                                     \
        break;

static void add(long rows, long vectors, const struct addition *a) {
    switch (16 * rows + vectors) {
        ADD(1, 1) ADD(1, 2) ADD(1, 3) ADD(1, 4) ADD(1, 5) ADD(1, 6) ADD(1, 7) ADD(1, 8) ADD(1, 9)
        ADD(1, 10) ADD(1, 11) ADD(1, 12) ADD(2, 1) ADD(2, 2) ADD(2, 3) ADD(2, 4) ADD(2, 5) ADD(2, 6)
        ADD(3, 1) ADD(3, 2) ADD(3, 3) ADD(3, 4) ADD(4, 1) ADD(4, 2) ADD(4, 3) ADD(5, 1) ADD(5, 2)
    }
}

/* ---------------------------------------------------------------------------------------------------------- forward */

/* [filter, number] to [number, filter], padded with zeros to whole vectors. */
static void transpose(const float *weight, long filters, long filter, float *transposed) {
    long width = round_to_lanes(filters);
    for (long k = 0; k < filters; k++)
        for (long i = 0; i < filter; i++)
            transposed[i * width + k] = weight[k * filter + i];
}

/* Compute all windows of an image for a tile's filters. */
static void convolve_image(const struct convolution *c, const struct geometry *g, struct tile t) {
    const float *image = t.image;
    for (long i = 0; i < g->window_rows; i++) {
        long above = c->padding_rows - 1 - 2 * i;
        t.first_row = above > 0 ? above : 0;
        t.last_row = min_long(c->rows, c->padding_rows + c->height - 2 * i);
        for (long j = 0, windows; j < g->window_columns; j += windows) {
            windows = min_long(TILE_WINDOWS, g->window_columns - j);
            t.image = image + window_offset(c, g, i, j);
            convolve_windows(windows, c, g, &t);
            t.out += windows * c->filters;
            t.argmax += windows * c->filters;
        }
    }
}

/* Return 0 if out of memory. */
int archipel_convolve(const struct convolution *c) {
    const long tile = TILE_VECTORS * LANES;
    struct geometry g = geometry_of(c);
    float *padded = allocate_zeros(g.image);
    float *transposed = allocate_zeros(round_to_lanes(c->filters) * g.filter), *bias = allocate_zeros(c->filters);
    int allocated = padded && transposed && bias;
    if (allocated) {
        if (c->bias)
            memcpy(bias, c->bias, c->filters * sizeof(float));
        for (long k = 0; k < c->filters; k += tile)
            transpose(c->weight + k * g.filter, min_long(tile, c->filters - k), g.filter, transposed + k * g.filter);
        for (long n = 0; n < c->batch; n++) {
            copy_into_padding(c, &g, n, padded);
            for (long k = 0; k < c->filters; k += tile) {
                struct tile t = {
                    .image = padded,
                    .weight = transposed + k * g.filter,
                    .bias = bias + k,
                    .filters = min_long(tile, c->filters - k),
                    .out = c->out + n * g.windows * c->filters + k,
                    .argmax = c->argmax + n * g.windows * c->filters + k,
                };
                convolve_image(c, &g, t);
            }
        }
    }
    free(padded);
    free(transposed);
    free(bias);
    return allocated;
}

/* --------------------------------------------------------------------------------------------------------- backward */

/* How filters are divided into blocks whose sums stay in registers. */
struct blocking {
    long rows, vectors; /* of a block */
    long row_vectors;   /* of a filter's row */
    long filter;        /* numbers from a filter's row to the same row of the next filter: whole vectors, */
    long row;           /* and to its own next row: what is used together is adjacent */
};

static struct blocking blocking_of(const struct convolution *c, const struct geometry *g) {
    long row_vectors = round_to_lanes(g->filter_row) / LANES, parts = (row_vectors + SUMS - 1) / SUMS;
    long vectors = (row_vectors + parts - 1) / parts, filter = row_vectors * LANES;
    return (struct blocking){min_long(MAX_ROWS, SUMS / vectors), vectors, row_vectors, filter, c->filters * filter};
}

/* Collect the nonzeros of an image, filter by filter. */
static void collect_by_filter(const struct convolution *c, const struct geometry *g, long n, struct nonzero *nonzeros,
                              long *counts) {
    const float *gradient = c->out_gradient + n * g->windows * c->filters;
    const uint8_t *argmax = c->argmax + n * g->windows * c->filters;
    memset(counts, 0, c->filters * sizeof(long));
    for (long i = 0; i < g->window_rows; i++)
        for (long j = 0; j < g->window_columns; j++) {
            int32_t first = window_offset(c, g, i, j), below = first + g->row;
            int32_t offsets[] = {first, first + c->channels, below, below + c->channels, 0};
            for (long k = 0; k < c->filters; k++, gradient++, argmax++) {
                /* an inactive one is overwritten by the next: no branch */
                nonzeros[k * g->windows + counts[k]] = (struct nonzero){offsets[*argmax], *gradient};
                counts[k] += *argmax != INACTIVE;
            }
        }
}

/* Collect the nonzeros of a window, position by position, by a counting sort. Inactive ones come last. */
static void collect_by_position(const struct convolution *c, long window, long filter, struct nonzero *nonzeros,
                                long *ends) {
    const float *gradient = c->out_gradient + window * c->filters;
    const uint8_t *argmax = c->argmax + window * c->filters;
    long next[INACTIVE + 1] = {0};
    for (long k = 0; k < c->filters; k++)
        next[argmax[k]]++;
    for (long position = 0, begin = 0; position <= INACTIVE; position++) {
        long count = next[position];
        next[position] = begin;
        begin += count;
    }
    for (long k = 0; k < c->filters; k++)
        nonzeros[next[argmax[k]]++] = (struct nonzero){k * filter, gradient[k]};
    memcpy(ends, next, INACTIVE * sizeof(long));
}

static void bias_backward(const struct convolution *c) {
    float *restrict sums = c->bias_gradient;
    const float *gradients = c->out_gradient;
    const uint8_t *argmax = c->argmax;
    memset(sums, 0, c->filters * sizeof(float));
    for (long w = c->batch * geometry_of(c).windows; w > 0; w--, gradients += c->filters, argmax += c->filters)
        for (long k = 0; k < c->filters; k++) {
            float gradient = gradients[k]; /* read unconditionally, so that there is no branch */
            sums[k] += argmax[k] == INACTIVE ? 0 : gradient;
        }
}

static int weight_backward(const struct convolution *c) {
    struct geometry g = geometry_of(c);
    struct blocking b = blocking_of(c, &g);
    float *padded = allocate_zeros(g.image), *sums = allocate_zeros(c->rows * b.row);
    struct nonzero *nonzeros = malloc(c->filters * g.windows * sizeof(struct nonzero));
    long *counts = malloc(c->filters * sizeof(long));
    int allocated = padded && sums && nonzeros && counts;
    if (allocated) {
        for (long n = 0; n < c->batch; n++) {
            copy_into_padding(c, &g, n, padded);
            collect_by_filter(c, &g, n, nonzeros, counts);
            for (long r = 0; r < c->rows; r += b.rows)
                for (long v = 0; v < b.row_vectors; v += b.vectors)
                    for (long k = 0; k < c->filters; k++) {
                        struct addition a = {
                            .sums = sums + r * b.row + k * b.filter + v * LANES,
                            .sums_row = b.row,
                            .from = padded + r * g.row + v * LANES,
                            .from_row = g.row,
                            .nonzeros = nonzeros + k * g.windows,
                            .count = counts[k],
                        };
                        add(min_long(b.rows, c->rows - r), min_long(b.vectors, b.row_vectors - v), &a);
                    }
        }
        for (long k = 0; k < c->filters; k++)
            for (long r = 0; r < c->rows; r++)
                memcpy(c->weight_gradient + k * g.filter + r * g.filter_row, sums + r * b.row + k * b.filter,
                       g.filter_row * sizeof(float));
    }
    free(padded);
    free(sums);
    free(nonzeros);
    free(counts);
    return allocated;
}

static int images_backward(const struct convolution *c) {
    struct geometry g = geometry_of(c);
    struct blocking b = blocking_of(c, &g);
    float *padded = allocate_zeros(g.image), *weight = allocate_zeros(c->rows * b.row);
    struct nonzero *nonzeros = malloc(c->filters * g.windows * sizeof(struct nonzero));
    long(*ends)[INACTIVE] = malloc(g.windows * sizeof(*ends));
    int allocated = padded && weight && nonzeros && ends;
    if (allocated) {
        for (long k = 0; k < c->filters; k++)
            for (long r = 0; r < c->rows; r++)
                memcpy(weight + r * b.row + k * b.filter, c->weight + k * g.filter + r * g.filter_row,
                       g.filter_row * sizeof(float));
        for (long n = 0; n < c->batch; n++) {
            memset(padded, 0, g.image * sizeof(float));
            for (long w = 0; w < g.windows; w++)
                collect_by_position(c, n * g.windows + w, b.filter, nonzeros + w * c->filters, ends[w]);
            for (long r = 0; r < c->rows; r += b.rows)
                for (long v = 0; v < b.row_vectors; v += b.vectors)
                    for (long w = 0; w < g.windows; w++)
                        for (long position = 0, begin = 0; position < INACTIVE; begin = ends[w][position++]) {
                            long at = window_offset(c, &g, w / g.window_columns, w % g.window_columns) +
                                      position / 2 * g.row + position % 2 * c->channels;
                            struct addition a = {
                                .sums = padded + at + r * g.row + v * LANES,
                                .sums_row = g.row,
                                .from = weight + r * b.row + v * LANES,
                                .from_row = b.row,
                                .nonzeros = nonzeros + w * c->filters + begin,
                                .count = ends[w][position] - begin,
                            };
                            add(min_long(b.rows, c->rows - r), min_long(b.vectors, b.row_vectors - v), &a);
                        }
            copy_out_of_padding(c, &g, n, padded);
        }
    }
    free(padded);
    free(weight);
    free(nonzeros);
    free(ends);
    return allocated;
}

/* Return 0 if out of memory. */
int archipel_convolve_back(const struct convolution *c) {
    if (c->bias_gradient)
        bias_backward(c);
    return (!c->weight_gradient || weight_backward(c)) && (!c->images_gradient || images_backward(c));
}
