/* A thread pool with one queue. A thread that waits for a task runs queued tasks meanwhile. */
#ifndef ARCHIPEL_POOL_H
#define ARCHIPEL_POOL_H

#include <stdatomic.h>

struct task {
    void (*run)(void *argument);
    void *argument;
    struct task *next;
    atomic_int done;
    atomic_int cancelled; /* stop at the next batch; there will be no result */
    int paused;           /* `run` has returned before its end and is to be called again */
    int generation; /* of the process that submitted it: a forked child inherits the memory, but no workers */
};

/* Queue a task. The task and its argument must stay in place until `pool_wait` has returned. */
void pool_submit(struct task *task);

enum waited {
    NEVER,       /* the task was submitted before this process was forked: it does not run here */
    DONE,        /* the task has run */
    INTERRUPTED, /* SIGINT has arrived: handle it, then wait again */
};

/* Wait for a task. */
enum waited pool_wait(struct task *task);

/* Wait for a task, from Python's main thread until SIGINT arrives at most. */
enum waited pool_wait_interruptibly(struct task *task);

/* Return whether a task that this thread is running has to pause. */
int pool_must_pause(void);

/* Raise the limit to at least this many threads, the caller included. */
void pool_reserve(int threads);

#endif
