/* Sums of models in one pass over memory: a mean of many rows, and a commit that changes a sum and divides it.

   Every number has the bits that torch gives it: rows are added in their order, each by a multiplication and an
   addition, which are one operation where torch's own code has that. */

#include <stdint.h>
#include <string.h>

#include "lanes.h"
#include "pool.h"

#define SIDE_BY_SIDE 6  /* rows that are read together: the processor fetches ahead in about as many places */
#define BLOCK (1 << 16) /* numbers that all rows are added to before the next ones: their sums are in the second cache */
#define LAST (1 << 11)  /* numbers of a block when little is left: nobody waits for longer than that for another thread */
#define LINE 64         /* bytes that come from memory at a time */

/* STEP: numbers of a row before the next one's turn. AHEAD: bytes of a row that are asked for before they are needed,
   which some processors gain by, and others, that do it better by themselves, lose a tenth. As it was measured. */
#if defined(__AVX512F__)
#define STEP 64
#define AHEAD 1024
#else
#define STEP 32
#define AHEAD 0
#endif

struct sum {
    /* Add so many rows, from the first one given, to so many numbers from a place on. */
    void (*add)(const struct sum *sum, long first, long count, long place, long numbers);
    const float *const *rows;
    const double *weights;
    long count;
    int from_nothing; /* what was in the sum before does not count */
    union {
        float *narrow;
        double *wide;
    };
    /* of a wide sum: */
    int32_t *largest; /* [row] */
    float *mean;      /* the sum / weight; NULL: not yet */
    double weight;
};

INLINE long least(long a, long b) { return a < b ? a : b; }

/* ------------------------------------------------------------------------------------------------------ narrow sums */

typedef lanes anywhere __attribute__((aligned(4)));

/* A whole step, whose sums stay in registers: the fewer instructions, the more of memory is on its way at once. */
INLINE void add_step(float *into, const float *const *rows, const double *weights, long count, long place) {
    lanes sums[STEP / LANES];
#pragma GCC unroll 16
    for (int i = 0; i < STEP / LANES; i++)
        sums[i] = ((anywhere *)into)[i];
    for (long row = 0; row < count; row++) {
        const anywhere *numbers = (const anywhere *)(rows[row] + place);
        float weight = (float)weights[row];
#pragma GCC unroll 4
        for (int i = 0; AHEAD && i < STEP * (int)sizeof(float); i += LINE)
            __builtin_prefetch((const char *)numbers + AHEAD + i, 0, 2);
#pragma GCC unroll 16
        for (int i = 0; i < STEP / LANES; i++)
            sums[i] += weight * numbers[i];
    }
#pragma GCC unroll 16
    for (int i = 0; i < STEP / LANES; i++)
        ((anywhere *)into)[i] = sums[i];
}

INLINE void add_row(float *restrict into, const float *restrict row, float weight, long numbers) {
    for (long i = 0; i < numbers; i++)
        into[i] += weight * row[i];
}

static void add_to_narrow(const struct sum *sum, long first, long count, long place, long numbers) {
    float *into = sum->narrow + place;
    if (first == 0 && sum->from_nothing)
        memset(into, 0, numbers * sizeof *into);
    if (numbers == STEP)
        add_step(into, sum->rows + first, sum->weights + first, count, place);
    else
        for (long row = first; row < first + count; row++)
            add_row(into, sum->rows[row] + place, (float)sum->weights[row], numbers);
}

/* -------------------------------------------------------------------------------------------------------- wide sums */

/* The largest magnitude, as bits: without the sign they are in the order of their numbers, NaN above all of them. */
INLINE int32_t add_row_widened(double *restrict into, const float *restrict row, double weight, long numbers) {
    int32_t largest = 0;
    for (long i = 0; i < numbers; i++) {
        int32_t bits;
        memcpy(&bits, row + i, sizeof bits);
        bits &= INT32_MAX;
        largest = bits > largest ? bits : largest;
        into[i] += weight * (double)row[i];
    }
    return largest;
}

INLINE void divide(float *restrict into, const double *restrict sum, double weight, long numbers) {
    for (long i = 0; i < numbers; i++)
        into[i] = (float)(sum[i] / weight);
}

/* Other threads may want to as well. */
INLINE void lift(int32_t *largest, int32_t to) {
    int32_t now = __atomic_load_n(largest, __ATOMIC_RELAXED);
    while (to > now && !__atomic_compare_exchange_n(largest, &now, to, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

static void add_to_wide(const struct sum *sum, long first, long count, long place, long numbers) {
    double *into = sum->wide + place;
    if (first == 0 && sum->from_nothing)
        memset(into, 0, numbers * sizeof *into);
    for (long row = first; row < first + count; row++)
        lift(sum->largest + row, add_row_widened(into, sum->rows[row] + place, sum->weights[row], numbers));
    if (sum->mean && first + count == sum->count)
        divide(sum->mean + place, into, sum->weight, numbers);
}

/* ------------------------------------------------------------------------------------------------ blocks of the sum */

struct work {
    const struct sum *sum;
    long stop;
    long next; /* where the next block begins: a thread that comes late, for others keep its core busy, finds less */
    int threads;
};

/* Take three quarters of what would be this thread's share of the rest; 0: nothing is left. */
static int take_block(struct work *work, long *start, long *end) {
    *start = __atomic_load_n(&work->next, __ATOMIC_RELAXED);
    do {
        long left = work->stop - *start, part = 3 * left / (4 * work->threads) / STEP * STEP;
        if (left <= 0)
            return 0;
        *end = *start + least(left, work->threads == 1 ? BLOCK : least(part > LAST ? part : LAST, BLOCK));
    } while (!__atomic_compare_exchange_n(&work->next, start, *end, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return 1;
}

static void add_blocks(void *given) {
    struct work *work = given;
    const struct sum *sum = work->sum;
    long start, end;
    while (take_block(work, &start, &end)) {
        long row = 0;
        do { /* without a row too: there may be something to divide */
            for (long place = start; place < end; place += STEP)
                sum->add(sum, row, least(SIDE_BY_SIDE, sum->count - row), place, least(STEP, end - place));
            row += SIDE_BY_SIDE;
        } while (row < sum->count);
    }
}

static void share_out(const struct sum *sum, long start, long stop, int threads) {
    struct work work = {sum, stop, start, threads};
    struct task tasks[threads];
    pool_allow(threads);
    for (int i = 1; i < threads; i++) {
        tasks[i] = (struct task){add_blocks, &work};
        pool_begin(&tasks[i]);
    }
    add_blocks(&work);
    for (int i = 1; i < threads; i++)
        pool_wait(&tasks[i]);
}

void archipel_add_rows(float *into, const float *const *rows, const double *weights, long count, int from_nothing,
                       long start, long stop, int threads) {
    struct sum sum = {add_to_narrow, rows, weights, count, from_nothing, .narrow = into};
    share_out(&sum, start, stop, threads);
}

void archipel_commit(double *into, const float *const *rows, const double *weights, long count, int from_nothing,
                     long numbers, int32_t *largest, float *mean, double weight, int threads) {
    struct sum sum = {
        add_to_wide, rows, weights, count, from_nothing,
        .wide = into, .largest = largest, .mean = mean, .weight = weight,
    };
    share_out(&sum, 0, numbers, threads);
}
