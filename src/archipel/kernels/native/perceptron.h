/* What Python fills in: a perceptron, and what is to be done with it. */
#ifndef ARCHIPEL_PERCEPTRON_H
#define ARCHIPEL_PERCEPTRON_H

#include <stdint.h>

#include "pool.h"

struct layer {
    int64_t inputs, outputs;
    int64_t weight, bias; /* offsets in the model; bias -1: none */
    int64_t rectified, trained;
};

struct network {
    const float *x;   /* [example, input] */
    const int64_t *y; /* [example] */
    const struct layer *layer;
    int64_t layers;
    float rate, momentum, proximal, decay;
    int32_t nesterov;
};

struct trial {
    struct task task;
    const struct network *network;
    const float *model;
    const int64_t *examples; /* indices, part after part */
    const int64_t *sizes;    /* [part] */
    int64_t parts;
    double *losses;     /* [part]: sums */
    int64_t *confusion; /* [part, actual, predicted]: counts are added */
    int64_t failed;     /* out of memory */
};

struct training {
    struct task task;
    const struct network *network;
    float *model;           /* updated in place */
    const float *anchor;    /* the model that the proximal term pulls towards, or NULL */
    const float *shift;     /* added to every gradient, or NULL */
    float *momentum;        /* updated in place, or NULL */
    const int64_t *indices; /* the learner's examples */
    const int64_t *order;   /* [epoch, example]: positions in `indices` */
    int64_t examples, batch, steps;
    int64_t steps_done, epoch_done; /* steps, and examples of the current epoch, before a pause */
    struct trial *then; /* evaluates the trained model, or NULL */
    int64_t failed;     /* out of memory */
};

#endif
