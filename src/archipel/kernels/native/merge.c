/* Weighted sums of models in one pass over memory: a mean of many rows, and a commit that updates a sum and divides it.

   Every result has the same bits as torch's: rows are added in order, each by a multiplication and an addition, which
   are fused where torch's own code fuses them. */

#include <stdint.h>
#include <string.h>

#include "lanes.h"
#include "pool.h"

#define ROWS_AT_ONCE 6      /* rows read together: hardware prefetchers follow about as many streams */
#define BLOCK (1 << 16)     /* numbers to which all rows are added before the next block: the sums stay in the L2 cache */
#define MIN_BLOCK (1 << 11) /* numbers of the last blocks: bounds the time that threads wait for the slowest one */
#define CACHE_LINE 64       /* bytes */

/* STEP: numbers of one row that are added before the next row. AHEAD: bytes of a row that are prefetched; 0 where the
   hardware prefetcher alone was measured to be faster, by a tenth. */
#if defined(__AVX512F__)
#define STEP 64
#define AHEAD 1024
#else
#define STEP 32
#define AHEAD 0
#endif

struct sum {
    /* Add `count` rows from `first` on to `numbers` numbers that begin at `start`. */
    void (*add)(const struct sum *sum, long first, long count, long start, long numbers);
    const float *const *rows;
    const double *weights;
    long count;
    int from_nothing; /* start from zeros, whatever the sum holds */
    union {
        float *float_sum;
        double *double_sum;
    };
    /* only with double_sum: */
    int32_t *largest; /* [row]: largest magnitude, as bits */
    float *mean;      /* receives double_sum / weight, unless NULL */
    double weight;
};

/* --------------------------------------------------------------------------------------------------- sums in float32 */

/* Add one whole step with the sums in registers: fewer instructions keep more loads in flight. */
INLINE void add_step(float *into, const float *const *rows, const double *weights, long count, long start) {
    vfloat sums[STEP / LANES];
#pragma GCC unroll 16
    for (int i = 0; i < STEP / LANES; i++)
        sums[i] = ((vfloat_unaligned *)into)[i];
    for (long row = 0; row < count; row++) {
        const vfloat_unaligned *numbers = (const vfloat_unaligned *)(rows[row] + start);
        float weight = (float)weights[row];
#pragma GCC unroll 4
        for (int i = 0; AHEAD && i < STEP * (int)sizeof(float); i += CACHE_LINE)
            __builtin_prefetch((const char *)numbers + AHEAD + i, 0, 2);
#pragma GCC unroll 16
        for (int i = 0; i < STEP / LANES; i++)
            sums[i] += weight * numbers[i];
    }
#pragma GCC unroll 16
    for (int i = 0; i < STEP / LANES; i++)
        ((vfloat_unaligned *)into)[i] = sums[i];
}

INLINE void add_row(float *restrict into, const float *restrict row, float weight, long numbers) {
    for (long i = 0; i < numbers; i++)
        into[i] += weight * row[i];
}

static void add_to_float(const struct sum *sum, long first, long count, long start, long numbers) {
    float *into = sum->float_sum + start;
    if (first == 0 && sum->from_nothing)
        memset(into, 0, numbers * sizeof *into);
    if (numbers == STEP)
        add_step(into, sum->rows + first, sum->weights + first, count, start);
    else
        for (long row = first; row < first + count; row++)
            add_row(into, sum->rows[row] + start, (float)sum->weights[row], numbers);
}

/* --------------------------------------------------------------------------------------------------- sums in float64 */

/* Add a row and return its largest magnitude as bits: without the sign bit, floats are ordered like integers, and NaN
   is above all numbers. */
INLINE int32_t add_row_to_double(double *restrict into, const float *restrict row, double weight, long numbers) {
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

INLINE void atomic_max(int32_t *target, int32_t value) {
    int32_t current = __atomic_load_n(target, __ATOMIC_RELAXED);
    while (value > current &&
           !__atomic_compare_exchange_n(target, &current, value, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

static void add_to_double(const struct sum *sum, long first, long count, long start, long numbers) {
    double *into = sum->double_sum + start;
    if (first == 0 && sum->from_nothing)
        memset(into, 0, numbers * sizeof *into);
    for (long row = first; row < first + count; row++)
        atomic_max(sum->largest + row, add_row_to_double(into, sum->rows[row] + start, sum->weights[row], numbers));
    if (sum->mean && first + count == sum->count)
        divide(sum->mean + start, into, sum->weight, numbers);
}

/* ----------------------------------------------------------------------------------------------- blocks for threads */

struct work {
    const struct sum *sum;
    long stop;
    long next; /* start of the next block: a thread that starts late finds less left to do */
    int threads;
};

/* Claim three quarters of this thread's share of the rest; return 0 if nothing is left. */
static int take_block(struct work *work, long *start, long *end) {
    *start = __atomic_load_n(&work->next, __ATOMIC_RELAXED);
    do {
        long left = work->stop - *start, part = 3 * left / (4 * work->threads) / STEP * STEP;
        if (left <= 0)
            return 0;
        *end = *start + min_long(left, work->threads == 1 ? BLOCK : min_long(part > MIN_BLOCK ? part : MIN_BLOCK, BLOCK));
    } while (!__atomic_compare_exchange_n(&work->next, start, *end, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return 1;
}

static void add_blocks(void *argument) {
    struct work *work = argument;
    const struct sum *sum = work->sum;
    long start, end;
    while (take_block(work, &start, &end)) {
        long row = 0;
        do { /* also without rows: the mean may have to be written */
            for (long step = start; step < end; step += STEP)
                sum->add(sum, row, min_long(ROWS_AT_ONCE, sum->count - row), step, min_long(STEP, end - step));
            row += ROWS_AT_ONCE;
        } while (row < sum->count);
    }
}

static void add_in_parallel(const struct sum *sum, long start, long stop, int threads) {
    struct work work = {sum, stop, start, threads};
    struct task tasks[threads];
    if (threads > 1)
        pool_reserve(threads);
    for (int i = 1; i < threads; i++) {
        tasks[i] = (struct task){add_blocks, &work};
        pool_submit(&tasks[i]);
    }
    add_blocks(&work);
    for (int i = 1; i < threads; i++)
        pool_wait(&tasks[i]);
}

void archipel_add_rows(float *into, const float *const *rows, const double *weights, long count, int from_nothing,
                       long start, long stop, int threads) {
    struct sum sum = {add_to_float, rows, weights, count, from_nothing, .float_sum = into};
    add_in_parallel(&sum, start, stop, threads);
}

void archipel_commit(double *into, const float *const *rows, const double *weights, long count, int from_nothing,
                     long numbers, int32_t *largest, float *mean, double weight, int threads) {
    struct sum sum = {
        add_to_double, rows, weights, count, from_nothing,
        .double_sum = into, .largest = largest, .mean = mean, .weight = weight,
    };
    add_in_parallel(&sum, 0, numbers, threads);
}
