/* Add rows of random lengths and alignments from two threads at once, each of which uses the pool, for a compiler that
   checks every access.

   Arguments: rounds, threads. Compiled without fused operations, the sums equal those of a plain loop. */

#include "driver.h"
#include "merge.c"
#include "pool.c"

#define MAX_COUNT 20

static long draw_length(void) {
    static const long lengths[] = {0, 1, 7, 15, 17, 31, 33, 63, 65, 130, 1000, MIN_BLOCK + 1, 9000};
    return below(40) ? lengths[below(13)] : BLOCK + 1 + below(BLOCK);
}

/* Rows begin anywhere in their memory, and end where it ends. */
struct rows {
    float *memory[MAX_COUNT];
    const float *begin[MAX_COUNT];
    double weights[MAX_COUNT];
    long count;
};

static struct rows draw_rows(long length) {
    struct rows rows = {.count = below(MAX_COUNT + 1)};
    for (long i = 0; i < rows.count; i++) {
        long skipped = below(4);
        rows.memory[i] = numbers(length + skipped, 1000, 1e-3f);
        rows.begin[i] = rows.memory[i] + skipped;
        rows.weights[i] = 0.37 * (double)(1 + below(9));
    }
    return rows;
}

static int add_to_floats(int threads) {
    long length = draw_length(), start = below(length + 1), stop = start + below(length - start + 1);
    int from_nothing = (int)below(2);
    struct rows rows = draw_rows(length);
    float *sum = numbers(length, 1000, 1e-3f), *expected = allocate(length, sizeof(float));
    memcpy(expected, sum, length * sizeof(float));
    for (long i = start; i < stop; i++) {
        expected[i] = from_nothing ? 0 : expected[i];
        for (long row = 0; row < rows.count; row++)
            expected[i] += (float)rows.weights[row] * rows.begin[row][i];
    }
    archipel_add_rows(sum, rows.begin, rows.weights, rows.count, from_nothing, start, stop, threads);
    int correct = memcmp(sum, expected, length * sizeof(float)) == 0;
    for (long row = 0; row < rows.count; row++)
        free(rows.memory[row]);
    free(sum);
    free(expected);
    return correct;
}

static int commit_to_doubles(int threads) {
    long length = draw_length();
    int from_nothing = (int)below(2);
    struct rows rows = draw_rows(length);
    double *sum = allocate(length, sizeof(double)), *expected = allocate(length, sizeof(double));
    float *mean = below(2) ? allocate(length, sizeof(float)) : NULL;
    int32_t *largest = allocate(rows.count, sizeof(int32_t));
    for (long i = 0; i < length; i++) {
        sum[i] = 1e-3 * (double)below(1000);
        expected[i] = from_nothing ? 0 : sum[i];
        for (long row = 0; row < rows.count; row++)
            expected[i] += rows.weights[row] * (double)rows.begin[row][i];
    }
    archipel_commit(sum, rows.begin, rows.weights, rows.count, from_nothing, length, largest, mean, 0.7, threads);
    int correct = memcmp(sum, expected, length * sizeof(double)) == 0;
    for (long i = 0; mean && i < length; i++)
        correct &= mean[i] == (float)(expected[i] / 0.7);
    for (long row = 0; row < rows.count; row++) {
        float found, magnitude = 0;
        memcpy(&found, largest + row, sizeof found);
        for (long i = 0; i < length; i++) {
            float size = rows.begin[row][i] < 0 ? -rows.begin[row][i] : rows.begin[row][i];
            magnitude = size > magnitude ? size : magnitude;
        }
        correct &= found == magnitude;
        free(rows.memory[row]);
    }
    free(sum);
    free(expected);
    free(mean);
    free(largest);
    return correct;
}

struct caller {
    pthread_t id;
    int rounds, threads, failed;
};

static void *merge_repeatedly(void *argument) {
    struct caller *caller = argument;
    for (int round = 0; round < caller->rounds && !caller->failed; round++) {
        int threads = 1 + (int)below(caller->threads);
        caller->failed = !add_to_floats(threads) || !commit_to_doubles(threads);
    }
    return NULL;
}

int main(int count, char **arguments) {
    (void)count;
    struct caller callers[2];
    int failed = 0;
    for (int i = 0; i < 2; i++) {
        callers[i] = (struct caller){.rounds = atoi(arguments[1]), .threads = atoi(arguments[2])};
        if (pthread_create(&callers[i].id, NULL, merge_repeatedly, &callers[i]) != 0)
            abort();
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(callers[i].id, NULL);
        failed |= callers[i].failed;
    }
    if (failed)
        printf("a sum differs from that of a plain loop\n");
    return failed;
}
