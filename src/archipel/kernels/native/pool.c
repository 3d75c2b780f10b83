#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

#define PATIENCE 2e-3 /* seconds that a thread looks for work before it sleeps: to be woken takes a tenth of a round */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work_waits = PTHREAD_COND_INITIALIZER, work_done = PTHREAD_COND_INITIALIZER;
static struct task *_Atomic first, *last;
static int most = 1, others, generation = 1;

/* A forked process has this memory and none of the threads. */
static void forget(void) {
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&work_waits, NULL);
    pthread_cond_init(&work_done, NULL);
    first = last = NULL;
    others = 0;
    generation++;
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, forget); }

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + 1e-9 * time.tv_nsec;
}

/* With the lock held, as before and after: look out for a while, without it, until there is work or this task is done.
   Whoever else wants the core has it meanwhile. */
static void look_out(const struct task *task) {
    pthread_mutex_unlock(&lock);
    for (double end = now() + PATIENCE; first == NULL && !(task && task->done) && now() < end;)
        sched_yield();
    pthread_mutex_lock(&lock);
}

/* With the lock held: run the task that waits longest, without it. */
static void run_one(void) {
    struct task *task = first;
    first = task->next;
    pthread_mutex_unlock(&lock);
    task->run(task->given);
    pthread_mutex_lock(&lock);
    task->done = 1;
    pthread_cond_broadcast(&work_done);
}

static void *worker(void *nothing) {
    pthread_mutex_lock(&lock);
    for (;;) {
        if (first == NULL)
            look_out(NULL);
        while (first == NULL)
            pthread_cond_wait(&work_waits, &lock);
        run_one();
    }
    return nothing;
}

/* With the lock held. Signals are for the threads that Python knows. */
static void hire(void) {
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, NULL, worker, NULL) == 0) {
        pthread_detach(thread);
        others++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void pool_begin(struct task *task) {
    task->next = NULL;
    task->done = 0;
    task->generation = generation;
    pthread_mutex_lock(&lock);
    if (others + 1 < most)
        hire();
    if (first == NULL)
        first = task;
    else
        last->next = task;
    last = task;
    pthread_cond_signal(&work_waits);
    pthread_mutex_unlock(&lock);
}

int pool_wait(struct task *task) {
    pthread_mutex_lock(&lock);
    while (!task->done && task->generation == generation) {
        if (first == NULL)
            look_out(task);
        if (first != NULL)
            run_one();
        else if (!task->done)
            pthread_cond_wait(&work_done, &lock);
    }
    pthread_mutex_unlock(&lock);
    return task->done;
}

int pool_threads(void) { return most; }

void pool_allow(int threads) {
    if (threads > most)
        most = threads;
}

void archipel_pool_resize(int threads) { most = threads; }
