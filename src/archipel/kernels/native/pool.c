#include "pool.h"
#include "structs.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#define SPIN_SECONDS 2e-3 /* a thread polls this long before it sleeps: waking it up takes a tenth of a round */

const struct member archipel_task_members[] = {
    MEMBER(task, run), MEMBER(task, argument), MEMBER(task, next), MEMBER(task, done), MEMBER(task, generation),
    END(task),
};

/* The lock protects everything below it; `first` is atomic so that a thread can poll it without the lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t queued = PTHREAD_COND_INITIALIZER, finished = PTHREAD_COND_INITIALIZER;
static struct task *_Atomic first, *last;
static pthread_t *workers;
static int worker_count, limit = 1, exiting, generation = 1;

/* A forked child has the parent's memory, perhaps halfway through a change, and none of its threads. */
static void reset_after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&queued, NULL);
    pthread_cond_init(&finished, NULL);
    first = last = NULL;
    workers = NULL;
    worker_count = exiting = 0;
    generation++;
}

/* Join all workers. One that is running a task finishes it first; tasks that are still queued are dropped. */
static void join_workers(void) {
    pthread_mutex_lock(&lock);
    exiting = 1; /* from here on no worker is started */
    pthread_cond_broadcast(&queued);
    pthread_mutex_unlock(&lock);
    for (; worker_count > 0; worker_count--)
        pthread_join(workers[worker_count - 1], NULL);
}

__attribute__((constructor)) static void register_handlers(void) {
    pthread_atfork(NULL, NULL, reset_after_fork);
    atexit(join_workers);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + 1e-9 * time.tv_nsec;
}

/* Poll, without the lock, until a task is queued, this task is done, or the time is up. The lock is held before and
   after. */
static void spin(const struct task *task) {
    pthread_mutex_unlock(&lock);
    for (double end = now() + SPIN_SECONDS; first == NULL && !(task && task->done) && now() < end;)
        sched_yield();
    pthread_mutex_lock(&lock);
}

/* Run the oldest queued task, without the lock. The lock is held before and after. */
static void run_next(void) {
    struct task *task = first;
    first = task->next;
    pthread_mutex_unlock(&lock);
    task->run(task->argument);
    pthread_mutex_lock(&lock);
    task->done = 1;
    pthread_cond_broadcast(&finished);
}

static void *work(void *unused) {
    pthread_mutex_lock(&lock);
    while (!exiting) {
        if (first == NULL)
            spin(NULL);
        while (first == NULL && !exiting)
            pthread_cond_wait(&queued, &lock);
        if (!exiting)
            run_next();
    }
    pthread_mutex_unlock(&lock);
    return unused;
}

/* Start a worker, with the lock held. It blocks all signals, so that Python's threads handle them. */
static void start_worker(void) {
    pthread_t *grown = realloc(workers, (worker_count + 1) * sizeof *workers);
    if (grown == NULL)
        return; /* the waiting threads do the work */
    workers = grown;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&workers[worker_count], NULL, work, NULL) == 0)
        worker_count++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void pool_submit(struct task *task) {
    task->next = NULL;
    task->done = 0;
    task->generation = generation;
    pthread_mutex_lock(&lock);
    if (worker_count + 1 < limit && !exiting)
        start_worker();
    if (first == NULL)
        first = task;
    else
        last->next = task;
    last = task;
    pthread_cond_signal(&queued);
    pthread_mutex_unlock(&lock);
}

int pool_wait(struct task *task) {
    pthread_mutex_lock(&lock);
    while (!task->done && task->generation == generation) {
        if (first == NULL)
            spin(task);
        if (first != NULL)
            run_next();
        else if (!task->done)
            pthread_cond_wait(&finished, &lock);
    }
    pthread_mutex_unlock(&lock);
    return task->done;
}

void pool_reserve(int threads) {
    pthread_mutex_lock(&lock);
    if (threads > limit)
        limit = threads;
    pthread_mutex_unlock(&lock);
}

void archipel_pool_resize(int threads) {
    pthread_mutex_lock(&lock);
    limit = threads;
    pthread_mutex_unlock(&lock);
}
