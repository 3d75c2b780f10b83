/* Threads that take pieces of work from one queue. The thread that waits for a piece works too. */
#ifndef ARCHIPEL_POOL_H
#define ARCHIPEL_POOL_H

#include <stdatomic.h>

struct task {
    void (*run)(void *given);
    void *given;
    struct task *next;
    atomic_int done;
    int generation; /* of processes: a fork has its parent's memory, and nobody who would run its tasks */
};

/* Have a task run by whoever is free first. It and what it was given have to stay where they are until it was waited
   for. */
void pool_begin(struct task *task);

/* Return 1 when it has run; run others of the queue meanwhile. 0 if it was begun before this process was forked: it will
   never run here. */
int pool_wait(struct task *task);

/* So many threads at most, this one included. */
int pool_threads(void);

/* So many at least, if there is work for them. */
void pool_allow(int threads);

#endif
