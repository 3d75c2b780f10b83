/* A convolution, the largest of every two by two of its places, rectified: one operation forward and one backward.

   Images, weights and results have their channels last, so that a filter's row is one run of numbers beside as long a
   run of the image. Of four places one is the largest, and only if it is positive does a slope come back to it. So
   backward has at most a quarter of a convolution's products, and mostly an eighth; the others are left out. */

#include <stdlib.h>
#include <string.h>

#include "lanes.h"

#define WINDOWS (REGISTERS == 32 ? 3 : 1) /* of two by two places, side by side in a tile: 24 sums or 8 in registers */
#define WIDE 2                            /* lanes of filters in a tile */
#define SUMS (REGISTERS == 32 ? 12 : 8)   /* lanes of a gradient in registers */
#define ROWS 5     /* of a filter, at a time */
#define AHEAD 512  /* numbers that a tile's weights are fetched ahead: they come from the second cache */
#define NOWHERE 4  /* where the largest is that is not positive */

/* Not at the beginning of a line of the cache. */
typedef float lanes_anywhere __attribute__((vector_size(4 * LANES), aligned(4)));

struct convolution {
    int64_t batch, height, width, channels;
    int64_t filters, rows, columns;
    int64_t margin_rows, margin_columns; /* of zeros, at either end */
    const float *images;                 /* [image, height, width, channel] */
    const float *weight;                 /* [filter, row, column, channel] */
    const float *bias;                   /* [filter], or NULL */
    float *out;                          /* [image, window, filter] */
    uint8_t *where;                      /* likewise: which of a window's four places is the largest, or NOWHERE */
    const float *slopes;                 /* likewise: what comes back to `out` */
    float *to_images;                    /* what goes back to the images, or NULL, */
    float *to_weight, *to_bias;          /* and to the others */
};

/* What follows from it. An image is worked on in a frame of zeros, its margins. */
struct frame {
    long row, size;   /* numbers of a row and of an image in its frame */
    long corner;      /* where the image begins in it */
    long high, broad; /* windows of two by two places, one below the other and side by side; */
    long windows;     /* all of them */
    long run, filter; /* numbers of a filter's row and of a filter */
};

static struct frame frame_of(const struct convolution *c) {
    long height = c->height + 2 * c->margin_rows, width = c->width + 2 * c->margin_columns;
    long high = (height - c->rows + 1) / 2, broad = (width - c->columns + 1) / 2;
    long row = width * c->channels, run = c->columns * c->channels;
    return (struct frame){
        .row = row,
        .size = height * row,
        .corner = c->margin_rows * row + c->margin_columns * c->channels,
        .high = high,
        .broad = broad,
        .windows = high * broad,
        .run = run,
        .filter = c->rows * run,
    };
}

/* Where a window's first place is in an image's frame. */
static long place_of(const struct convolution *c, const struct frame *f, long i, long j) {
    return 2 * i * f->row + 2 * j * c->channels;
}

static void put_into_frame(const struct convolution *c, const struct frame *f, long n, float *framed) {
    long row = c->width * c->channels;
    for (long y = 0; y < c->height; y++)
        memcpy(framed + f->corner + y * f->row, c->images + (n * c->height + y) * row, row * sizeof(float));
}

static void take_out_of_frame(const struct convolution *c, const struct frame *f, long n, const float *framed) {
    long row = c->width * c->channels;
    for (long y = 0; y < c->height; y++)
        memcpy(c->to_images + (n * c->height + y) * row, framed + f->corner + y * f->row, row * sizeof(float));
}

/* Lanes may reach over their end. */
static float *zeros(long count) {
    size_t size = (count + LANES + 15) / 16 * 64;
    float *all = aligned_alloc(64, size);
    return all == NULL ? NULL : memset(all, 0, size);
}

static long least(long a, long b) { return a < b ? a : b; }

/* ------------------------------------------------------------------------------------------- inner loops of forward */

struct tile {
    const float *image;       /* in its frame, from the first window on */
    const float *weight;      /* [row, number of the run, filter] */
    const float *bias;        /* [filter] */
    long first_row, last_row; /* of the filters: those that have something of the image below them */
    long filters;             /* of those that fill the lanes */
    float *out;
    uint8_t *where;
};

/* The first of the largest, or the last NaN, as in torch. */
INLINE void take_largest(const int filters, float (*four)[WIDE * LANES], float *restrict out, uint8_t *restrict where) {
    for (int k = 0; k < filters; k++) {
        float best = four[0][k];
        int32_t place = 0;
        for (int next = 1; next < 4; next++) {
            int better = (four[next][k] > best) | (four[next][k] != four[next][k]);
            best = better ? four[next][k] : best;
            place = better ? next : place;
        }
        int dead = best <= 0;
        out[k] = dead ? 0 : best;
        where[k] = dead ? NOWHERE : place;
    }
}

/* Windows side by side. */
INLINE void convolve_tile(const int windows, const int wide, const struct convolution *c, const struct frame *f,
                          const struct tile *t) {
    lanes sums[2][2 * WINDOWS][WIDE];
#pragma GCC unroll 6
    for (int i = 0; i < 2 * windows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < wide; v++)
            sums[0][i][v] = sums[1][i][v] = ((const lanes *)t->bias)[v];
    for (long r = t->first_row; r < t->last_row; r++) {
        const float *upper = t->image + r * f->row, *lower = upper + f->row;
        const lanes *weight = (const lanes *)t->weight + r * f->run * wide;
        for (long k = 0; k < f->run; k++, weight += wide) {
#pragma GCC unroll 2
            for (int v = 0; v < wide; v++)
                __builtin_prefetch((const float *)(weight + v) + AHEAD);
#pragma GCC unroll 6
            for (int i = 0; i < 2 * windows; i++)
#pragma GCC unroll 2
                for (int v = 0; v < wide; v++)
                    sums[0][i][v] += upper[i * c->channels + k] * weight[v];
#pragma GCC unroll 6
            for (int i = 0; i < 2 * windows; i++)
#pragma GCC unroll 2
                for (int v = 0; v < wide; v++)
                    sums[1][i][v] += lower[i * c->channels + k] * weight[v];
        }
    }
    float four[WINDOWS][4][WIDE * LANES] __attribute__((aligned(64)));
#pragma GCC unroll 6
    for (int i = 0; i < 2 * windows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < wide; v++) {
            ((lanes *)four[i / 2][i % 2])[v] = sums[0][i][v];
            ((lanes *)four[i / 2][2 + i % 2])[v] = sums[1][i][v];
        }
    for (int w = 0; w < windows; w++) {
        float *out = t->out + w * c->filters;
        uint8_t *where = t->where + w * c->filters;
        if (t->filters == wide * LANES) {
            take_largest(wide * LANES, four[w], out, where);
        } else {
            float largest[WIDE * LANES];
            uint8_t places[WIDE * LANES];
            take_largest(wide * LANES, four[w], largest, places);
            memcpy(out, largest, t->filters * sizeof(float));
            memcpy(where, places, t->filters);
        }
    }
}

#define TILE(w, v)                                                                                                     \
    case (w) * (WIDE + 1) + (v):                                                                                       \
        if ((w) <= WINDOWS)                                                                                            \
            convolve_tile(w, v, c, f, t);                                                                              \
        break;

static void convolve_windows(long windows, const struct convolution *c, const struct frame *f,
                                        const struct tile *t) {
    switch (windows * (WIDE + 1) + filled(t->filters) / LANES) {
        TILE(1, 1) TILE(2, 1) TILE(3, 1) TILE(1, 2) TILE(2, 2) TILE(3, 2)
    }
}

/* ------------------------------------------------------------------------------------------ inner loops of backward */

/* A slope, and where the numbers begin that it is multiplied with. */
struct spot {
    int32_t at;
    float slope;
};

/* Rows of sums, and what is added to them: slopes times the rows at their spots. */
struct addition {
    float *sums;
    const float *from;
    long sums_row, from_row;
    const struct spot *spots;
    long count;
};

INLINE void add_lanes(const int rows, const int wide, const struct addition *a) {
    lanes sums[SUMS];
    const float *from = a->from;
    long from_row = a->from_row;
#pragma GCC unroll 5
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 12
        for (int v = 0; v < wide; v++)
            sums[r * wide + v] = ((const lanes_anywhere *)(a->sums + r * a->sums_row))[v];
    for (const struct spot *spot = a->spots, *end = spot + a->count; spot < end; spot++)
#pragma GCC unroll 5
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 12
            for (int v = 0; v < wide; v++)
                sums[r * wide + v] += spot->slope * ((const lanes_anywhere *)(from + spot->at + r * from_row))[v];
#pragma GCC unroll 5
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 12
        for (int v = 0; v < wide; v++)
            ((lanes_anywhere *)(a->sums + r * a->sums_row))[v] = sums[r * wide + v];
}

#define ADD(r, v)                                                                                                      \
    case 16 * (r) + (v):                                                                                               \
        if ((r) * (v) <= SUMS)                                                                                         \
            add_lanes(r, v, a);                                                                                        \
        break;

static void add(long rows, long wide, const struct addition *a) {
    switch (16 * rows + wide) {
        ADD(1, 1) ADD(1, 2) ADD(1, 3) ADD(1, 4) ADD(1, 5) ADD(1, 6) ADD(1, 7) ADD(1, 8) ADD(1, 9)
        ADD(1, 10) ADD(1, 11) ADD(1, 12) ADD(2, 1) ADD(2, 2) ADD(2, 3) ADD(2, 4) ADD(2, 5) ADD(2, 6)
        ADD(3, 1) ADD(3, 2) ADD(3, 3) ADD(3, 4) ADD(4, 1) ADD(4, 2) ADD(4, 3) ADD(5, 1) ADD(5, 2)
    }
}

/* ---------------------------------------------------------------------------------------------------------- forward */

/* [filter, number] to [number, filter], the lanes filled up with zeros. */
static void turn(const float *weight, long filters, long filter, float *turned) {
    long across = filled(filters);
    for (long k = 0; k < filters; k++)
        for (long i = 0; i < filter; i++)
            turned[i * across + k] = weight[k * filter + i];
}

/* All windows of an image, for as many filters as fill the lanes. */
static void convolve_image(const struct convolution *c, const struct frame *f, struct tile t) {
    const float *image = t.image;
    for (long i = 0; i < f->high; i++) {
        long above = c->margin_rows - 1 - 2 * i;
        t.first_row = above > 0 ? above : 0;
        t.last_row = least(c->rows, c->margin_rows + c->height - 2 * i);
        for (long j = 0, windows; j < f->broad; j += windows) {
            windows = least(WINDOWS, f->broad - j);
            t.image = image + place_of(c, f, i, j);
            convolve_windows(windows, c, f, &t);
            t.out += windows * c->filters;
            t.where += windows * c->filters;
        }
    }
}

/* 0: there is no memory. */
int archipel_convolve(const struct convolution *c) {
    struct frame f = frame_of(c);
    float *framed = zeros(f.size), *turned = zeros(filled(c->filters) * f.filter), *bias = zeros(c->filters);
    int there = framed && turned && bias;
    if (there) {
        if (c->bias)
            memcpy(bias, c->bias, c->filters * sizeof(float));
        for (long k = 0; k < c->filters; k += WIDE * LANES)
            turn(c->weight + k * f.filter, least(WIDE * LANES, c->filters - k), f.filter, turned + k * f.filter);
        for (long n = 0; n < c->batch; n++) {
            put_into_frame(c, &f, n, framed);
            for (long k = 0; k < c->filters; k += WIDE * LANES) {
                struct tile t = {
                    .image = framed,
                    .weight = turned + k * f.filter,
                    .bias = bias + k,
                    .filters = least(WIDE * LANES, c->filters - k),
                    .out = c->out + n * f.windows * c->filters + k,
                    .where = c->where + n * f.windows * c->filters + k,
                };
                convolve_image(c, &f, t);
            }
        }
    }
    free(framed);
    free(turned);
    free(bias);
    return there;
}

/* --------------------------------------------------------------------------------------------------------- backward */

/* How a filter is cut into pieces whose sums stay in registers. */
struct cut {
    long rows, wide; /* of a piece, in lanes */
    long lanes;      /* of a filter's row */
    long filter;     /* numbers from the row of a filter to the same row of the next one, */
    long row;        /* and to its own next row: whole lanes, and beside each other what is used together */
};

static struct cut cut_of(const struct convolution *c, const struct frame *f) {
    long lanes_of_row = filled(f->run) / LANES, parts = (lanes_of_row + SUMS - 1) / SUMS;
    long wide = (lanes_of_row + parts - 1) / parts, filter = lanes_of_row * LANES;
    return (struct cut){least(ROWS, SUMS / wide), wide, lanes_of_row, filter, c->filters * filter};
}

/* By filter: its spots in an image. */
static void sort_by_filter(const struct convolution *c, const struct frame *f, long n, struct spot *spots,
                           long *counts) {
    const float *slope = c->slopes + n * f->windows * c->filters;
    const uint8_t *where = c->where + n * f->windows * c->filters;
    memset(counts, 0, c->filters * sizeof(long));
    for (long i = 0; i < f->high; i++)
        for (long j = 0; j < f->broad; j++) {
            int32_t first = place_of(c, f, i, j), below = first + f->row;
            int32_t places[] = {first, first + c->channels, below, below + c->channels, 0};
            for (long k = 0; k < c->filters; k++, slope++, where++) {
                /* who is nowhere is written over by the next one */
                spots[k * f->windows + counts[k]] = (struct spot){places[*where], *slope};
                counts[k] += *where != NOWHERE;
            }
        }
}

/* By place of a window: the filters that are largest there, and last those that are nowhere. */
static void sort_by_place(const struct convolution *c, long window, long filter, struct spot *spots, long *ends) {
    const float *slopes = c->slopes + window * c->filters;
    const uint8_t *where = c->where + window * c->filters;
    long next[NOWHERE + 1] = {0};
    for (long k = 0; k < c->filters; k++)
        next[where[k]]++;
    for (long place = 0, begin = 0; place <= NOWHERE; place++) {
        long count = next[place];
        next[place] = begin;
        begin += count;
    }
    for (long k = 0; k < c->filters; k++)
        spots[next[where[k]]++] = (struct spot){k * filter, slopes[k]};
    memcpy(ends, next, NOWHERE * sizeof(long));
}

static void bias_back(const struct convolution *c) {
    float *restrict sums = c->to_bias;
    const float *slopes = c->slopes;
    const uint8_t *where = c->where;
    memset(sums, 0, c->filters * sizeof(float));
    for (long w = c->batch * frame_of(c).windows; w > 0; w--, slopes += c->filters, where += c->filters)
        for (long k = 0; k < c->filters; k++) {
            float slope = slopes[k]; /* read in any case, so that there is no branch */
            sums[k] += where[k] == NOWHERE ? 0 : slope;
        }
}

static int weight_back(const struct convolution *c) {
    struct frame f = frame_of(c);
    struct cut cut = cut_of(c, &f);
    float *framed = zeros(f.size), *sums = zeros(c->rows * cut.row);
    struct spot *spots = malloc(c->filters * f.windows * sizeof(struct spot));
    long *counts = malloc(c->filters * sizeof(long));
    int there = framed && sums && spots && counts;
    if (there) {
        for (long n = 0; n < c->batch; n++) {
            put_into_frame(c, &f, n, framed);
            sort_by_filter(c, &f, n, spots, counts);
            for (long r = 0; r < c->rows; r += cut.rows)
                for (long v = 0; v < cut.lanes; v += cut.wide)
                    for (long k = 0; k < c->filters; k++) {
                        struct addition a = {
                            .sums = sums + r * cut.row + k * cut.filter + v * LANES,
                            .sums_row = cut.row,
                            .from = framed + r * f.row + v * LANES,
                            .from_row = f.row,
                            .spots = spots + k * f.windows,
                            .count = counts[k],
                        };
                        add(least(cut.rows, c->rows - r), least(cut.wide, cut.lanes - v), &a);
                    }
        }
        for (long k = 0; k < c->filters; k++)
            for (long r = 0; r < c->rows; r++)
                memcpy(c->to_weight + k * f.filter + r * f.run, sums + r * cut.row + k * cut.filter,
                       f.run * sizeof(float));
    }
    free(framed);
    free(sums);
    free(spots);
    free(counts);
    return there;
}

static int images_back(const struct convolution *c) {
    struct frame f = frame_of(c);
    struct cut cut = cut_of(c, &f);
    float *framed = zeros(f.size), *weight = zeros(c->rows * cut.row);
    struct spot *spots = malloc(c->filters * f.windows * sizeof(struct spot));
    long(*ends)[NOWHERE] = malloc(f.windows * sizeof(*ends));
    int there = framed && weight && spots && ends;
    if (there) {
        for (long k = 0; k < c->filters; k++)
            for (long r = 0; r < c->rows; r++)
                memcpy(weight + r * cut.row + k * cut.filter, c->weight + k * f.filter + r * f.run,
                       f.run * sizeof(float));
        for (long n = 0; n < c->batch; n++) {
            memset(framed, 0, f.size * sizeof(float));
            for (long w = 0; w < f.windows; w++)
                sort_by_place(c, n * f.windows + w, cut.filter, spots + w * c->filters, ends[w]);
            for (long r = 0; r < c->rows; r += cut.rows)
                for (long v = 0; v < cut.lanes; v += cut.wide)
                    for (long w = 0; w < f.windows; w++)
                        for (long place = 0, begin = 0; place < NOWHERE; begin = ends[w][place++]) {
                            long at = place_of(c, &f, w / f.broad, w % f.broad) + place / 2 * f.row +
                                      place % 2 * c->channels;
                            struct addition a = {
                                .sums = framed + at + r * f.row + v * LANES,
                                .sums_row = f.row,
                                .from = weight + r * cut.row + v * LANES,
                                .from_row = cut.row,
                                .spots = spots + w * c->filters + begin,
                                .count = ends[w][place] - begin,
                            };
                            add(least(cut.rows, c->rows - r), least(cut.wide, cut.lanes - v), &a);
                        }
            take_out_of_frame(c, &f, n, framed);
        }
    }
    free(framed);
    free(weight);
    free(spots);
    free(ends);
    return there;
}

/* 0: there is no memory. */
int archipel_convolve_back(const struct convolution *c) {
    if (c->to_bias)
        bias_back(c);
    return (!c->to_weight || weight_back(c)) && (!c->to_images || images_back(c));
}
