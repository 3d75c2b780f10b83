/* Train and evaluate perceptrons of random shapes on some threads, for a compiler that checks every access.

   Arguments: rounds, threads, and "fork" to repeat the last rounds in a forked child. */

#include <dirent.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"
#include "perceptron.c"
#include "pool.c"

#define REPEATS 4 /* equal trainings, which must give equal bits */

static int64_t *choices(long count, long bound) {
    int64_t *drawn = allocate(count, sizeof(int64_t));
    for (long i = 0; i < count; i++)
        drawn[i] = below(bound);
    return drawn;
}

/* Draw layers of widths around those of vectors; return the size of a model. */
static long draw_layers(struct layer *layer, long layers) {
    static const long widths[] = {1, 2, 3, 7, 15, 16, 17, 31, 33, 64, 65, 100};
    long size = 0, width = widths[below(12)];
    for (long l = 0; l < layers; l++) {
        long outputs = l == layers - 1 ? 2 + below(40) : widths[below(12)];
        layer[l] = (struct layer){width, outputs, size, -1, l < layers - 1 && below(4), below(4) > 0};
        size += width * outputs;
        if (below(3)) {
            layer[l].bias = size;
            size += outputs;
        }
        width = outputs;
    }
    return size;
}

static long interrupts, pauses;

static void count_interrupt(int unused) { interrupts += unused != 0; }

static void interrupt(int unused) {
    (void)unused;
    raise(SIGINT);
}

/* Wait for a task while SIGINT arrives again and again. */
static void wait_interrupted(struct task *task) {
    struct itimerval often = {{0, 40}, {0, 40}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    while (archipel_wait(task) == INTERRUPTED)
        pauses++;
    setitimer(ITIMER_REAL, &never, NULL);
}

/* Use one random network; return 1 if all repeats gave equal bits and every example was counted. */
static int train_and_evaluate(void) {
    struct layer layer[4];
    long layers = 1 + below(4), size = draw_layers(layer, layers), all_examples = 1 + below(60);
    long classes = layer[layers - 1].outputs, cells = classes * classes;
    float *x = numbers(all_examples * layer[0].inputs, 1000, 3e-4f), *begin = numbers(size, 1000, 3e-4f);
    int64_t *y = choices(all_examples, classes);
    struct network net = {x, y, layer, layers, 0.1f, below(2) ? 0.9f : 0, below(2) ? 0.5f : 0, below(2) ? 0.1f : 0,
                          below(2)};
    long examples = 1 + below(all_examples), batch = 1 + below(examples + 5), epochs = 1 + below(3);
    long per_epoch = (examples + batch - 1) / batch, parts = 2;
    int64_t *indices = choices(examples, all_examples), *order = choices(examples * epochs, examples);
    int64_t sizes[] = {below(2) ? below(100) : 0, below(100)};
    int64_t *evaluated = choices(sizes[0] + sizes[1], all_examples);
    long steps = 1 + below(per_epoch * epochs);
    int shifts = below(2);

    struct training training[REPEATS];
    struct trial trial[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        float *model = allocate(size, sizeof(float));
        memcpy(model, begin, size * sizeof(float));
        trial[i] = (struct trial){
            .network = &net, .model = model, .examples = evaluated, .sizes = sizes, .parts = parts,
            .losses = allocate(parts, sizeof(double)), .confusion = allocate(parts * cells, sizeof(int64_t)),
        };
        training[i] = (struct training){
            .network = &net, .model = model, .anchor = net.proximal ? begin : NULL,
            .shift = shifts ? begin : NULL, .momentum = net.momentum ? allocate(size, sizeof(float)) : NULL,
            .indices = indices, .order = order, .examples = examples, .batch = batch, .steps = steps,
            .then = i % 2 ? &trial[i] : NULL,
        };
        archipel_begin_training(&training[i]);
    }
    struct training dropped = {
        .network = &net, .model = allocate(size, sizeof(float)), .anchor = net.proximal ? begin : NULL,
        .momentum = net.momentum ? allocate(size, sizeof(float)) : NULL,
        .indices = indices, .order = order, .examples = examples, .batch = batch, .steps = steps,
    };
    archipel_begin_training(&dropped);
    archipel_cancel(&dropped.task);
    wait_interrupted(&dropped.task);
    free(dropped.model);
    free(dropped.momentum);
    for (int i = REPEATS - 1; i >= 0; i--) {
        wait_interrupted(&training[i].task);
        if (training[i].then == NULL)
            archipel_begin_trial(&trial[i]);
    }
    int correct = 1;
    for (int i = 0; i < REPEATS; i++) {
        if (training[i].then == NULL)
            archipel_wait(&trial[i].task);
        int64_t counted = 0;
        for (long j = 0; j < parts * cells; j++)
            counted += trial[i].confusion[j];
        correct &= counted == sizes[0] + sizes[1] && !training[i].failed && !trial[i].failed;
        correct &= memcmp(training[i].model, training[0].model, size * sizeof(float)) == 0;
        correct &= memcmp(trial[i].losses, trial[0].losses, parts * sizeof(double)) == 0;
    }
    for (int i = 0; i < REPEATS; i++) {
        free(training[i].model);
        free(training[i].momentum);
        free(trial[i].losses);
        free(trial[i].confusion);
    }
    free(x);
    free(y);
    free(begin);
    free(indices);
    free(order);
    free(evaluated);
    return correct;
}

static int run_rounds(int rounds) {
    for (int round = 0; round < rounds; round++) {
        if (!train_and_evaluate()) {
            printf("round %d gave another result\n", round);
            return 1;
        }
        free(arena.numbers); /* so that the next arena is no larger than needed */
        arena.numbers = NULL;
        arena.size = 0;
    }
    return 0;
}

#ifndef __SANITIZE_THREAD__ /* which has a thread of its own, and no forks */

static long threads_alive(void) {
    long count = 0;
    DIR *tasks = opendir("/proc/self/task");
    while (readdir(tasks))
        count++;
    closedir(tasks);
    return count - 2; /* . and .. */
}

/* A joined thread leaves /proc a moment later. One that was not joined would stay for good. */
static void check_joined(void) {
    for (double end = now() + 20; threads_alive() > 1 && now() < end;)
        sched_yield();
    if (threads_alive() > 1 || worker_count != 0) {
        printf("%d workers were not joined\n", worker_count);
        fflush(stdout);
        _exit(3);
    }
}

/* Before the pool registers its own handler: handlers run in reverse order. */
__attribute__((constructor(101))) static void check_joined_at_exit(void) { atexit(check_joined); }

#endif

int main(int count, char **arguments) {
    int rounds = atoi(arguments[1]), status = 0;
    signal(SIGINT, count_interrupt);
    signal(SIGALRM, interrupt);
    archipel_pool_resize(atoi(arguments[2]));
    if (run_rounds(rounds))
        return 1;
    if (interrupts == 0 || pauses == 0) {
        printf("%ld interrupts and %ld pauses: nothing was paused\n", interrupts, pauses);
        return 1;
    }
    if (count > 3) {
        pid_t child = fork();
        if (child == 0)
            return run_rounds(10);
        waitpid(child, &status, 0);
    }
    return run_rounds(10) || status;
}
