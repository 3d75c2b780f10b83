/* A thread pool with one queue. A thread that waits for a task runs queued tasks meanwhile. */
#ifndef ARCHIPEL_POOL_H
#define ARCHIPEL_POOL_H

#include <stdatomic.h>

struct task {
    void (*run)(void *argument);
    void *argument;
    struct task *next;
    atomic_int done;
    int generation; /* of the process that submitted it: a forked child inherits the memory, but no workers */
};

/* Queue a task. The task and its argument must stay in place until `pool_wait` has returned. */
void pool_submit(struct task *task);

/* Return 1 once the task has run, or 0 if it was submitted before this process was forked: it never runs here. */
int pool_wait(struct task *task);

/* Raise the limit to at least this many threads, the caller included. */
void pool_reserve(int threads);

#endif
