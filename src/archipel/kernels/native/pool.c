#define _GNU_SOURCE /* gettid */

#include "pool.h"
#include "structs.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define POLL_SECONDS 0.05 /* how often a waiting thread looks whether SIGINT has arrived */
#define SPIN_SECONDS 2e-3 /* a thread polls this long before it sleeps: waking it up takes a tenth of a round */

const struct member archipel_task_members[] = {
    MEMBER(task, run), MEMBER(task, argument), MEMBER(task, next), MEMBER(task, done),
    MEMBER(task, cancelled), MEMBER(task, paused), MEMBER(task, generation), END(task),
};

/* The lock protects everything below it; `first` is atomic so that a thread can poll it without the lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t queued = PTHREAD_COND_INITIALIZER, finished = PTHREAD_COND_INITIALIZER;
static struct task *_Atomic first, *last;
static pthread_t *workers;
static int worker_count, limit = 1, exiting, generation = 1;

/* Of Python's main thread, while it waits: Python runs its handler when the call into this library has returned. */
static _Thread_local int interruptible;
static volatile sig_atomic_t interrupted;
static struct sigaction python;

static void note_interrupt(int signal) {
    interrupted = 1;
    python.sa_handler(signal);
}

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

/* Run the oldest queued task, without the lock. The lock is held before and after. A paused task is queued again. */
static void run_next(void) {
    struct task *task = first;
    first = task->next;
    pthread_mutex_unlock(&lock);
    task->run(task->argument);
    pthread_mutex_lock(&lock);
    if (task->paused) {
        task->paused = 0;
        task->next = first;
        if (first == NULL)
            last = task;
        first = task;
        pthread_cond_signal(&queued);
        pthread_cond_broadcast(&finished); /* a waiting thread runs it too */
        return;
    }
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
    task->done = task->cancelled = task->paused = 0;
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

int pool_must_pause(void) { return interruptible && interrupted; }

/* Wait, with the lock held, until some task is finished; an interruptible thread returns after a while. */
static void wait_for_any(void) {
    if (!interruptible) {
        pthread_cond_wait(&finished, &lock);
        return;
    }
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_nsec += (long)(POLL_SECONDS * 1e9);
    if (end.tv_nsec >= 1000000000) {
        end.tv_sec++;
        end.tv_nsec -= 1000000000;
    }
    pthread_cond_timedwait(&finished, &lock, &end);
}

enum waited pool_wait(struct task *task) {
    pthread_mutex_lock(&lock);
    while (!task->done && task->generation == generation && !pool_must_pause()) {
        if (first == NULL)
            spin(task);
        if (first != NULL)
            run_next();
        else if (!task->done)
            wait_for_any();
    }
    enum waited result = task->done ? DONE : task->generation == generation ? INTERRUPTED : NEVER;
    pthread_mutex_unlock(&lock);
    return result;
}

enum waited pool_wait_interruptibly(struct task *task) {
    struct sigaction noting = {.sa_handler = note_interrupt, .sa_flags = SA_ONSTACK};
    sigemptyset(&noting.sa_mask);
    if (task->done || gettid() != getpid()) /* Python handles signals in its main thread */
        return pool_wait(task);
    sigaction(SIGINT, NULL, &python);
    if (python.sa_flags & SA_SIGINFO || python.sa_handler == SIG_DFL || python.sa_handler == SIG_IGN)
        return pool_wait(task);
    interrupted = 0;
    interruptible = 1;
    sigaction(SIGINT, &noting, NULL);
    enum waited result = pool_wait(task);
    sigaction(SIGINT, &python, NULL);
    interruptible = 0;
    return result;
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
