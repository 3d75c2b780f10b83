/* Perceptrons with rectified hidden layers and class scores under cross entropy: training by SGD, and trying a model.

   A learner's parameters, activations and gradients stay in the second cache from its first step to its last. Every
   product goes through one tile, which keeps its sums in registers, so that it runs at the speed of the arithmetic. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lanes.h"
#include "pool.h"

/* A tile's sums stay in registers, beside a row of b and a number of a. */
#define ROWS 6
#define WIDE (REGISTERS == 32 ? 4 : 2) /* in lanes */
#define BLOCK 48 /* examples of a trial at a time, so that their activations stay in the first cache */
#define KEPT (1 << 20) /* numbers of a thread's memory that it keeps for the next training: new memory takes time */
#define NOTHING -INFINITY /* the score of a class that is only there to fill the lanes */

struct layer {
    int64_t inputs, outputs;
    int64_t weight, bias; /* where they begin in the model; bias -1: it has none */
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
    const int64_t *examples; /* of all parts, one after the other */
    const int64_t *sizes;    /* [part] */
    int64_t parts;
    double *losses;     /* [part]: sums */
    int64_t *confusion; /* [part, actual, predicted], to be added to */
    int64_t failed;
};

struct training {
    struct task task;
    const struct network *network;
    float *model;         /* what it begins with, and then what has become of it */
    const float *anchor;  /* the model that the proximal term holds on to, or NULL */
    float *momentum;      /* or NULL */
    const int64_t *own;   /* the learner's examples */
    const int64_t *order; /* [epoch, example]: places in `own` */
    int64_t examples, batch, steps;
    struct trial *then; /* of the model that it ends with, or NULL */
    int64_t failed;     /* there was no memory */
};

/* ----------------------------------------------------------------------------------------------- memory of a thread */

/* A layer as it is worked on. Rows are filled up to whole lanes with zeros. `turned` is what a forward pass reads; the
   first layer's own tensor is kept turned, for nobody asks for the gradient of its inputs. */
struct place {
    float *weight;   /* [output, input] */
    float *turned;   /* [input, output] */
    float *bias;     /* [output] */
    float *anchor;   /* as `weight` (of the first layer as `turned`), and behind it the bias's */
    float *momentum; /* likewise */
    float *outputs;  /* [example, output] */
    float *gradient; /* [example, output]: of the outputs before they were rectified */
    long ins, outs;  /* in numbers, filled up */
};

static _Thread_local struct {
    float *numbers;
    size_t size, used;
} room;

/* So many numbers at the beginning of a line of the cache. First nothing is there, and the numbers are only counted. */
static float *take(size_t count) {
    float *here = room.numbers ? room.numbers + room.used : NULL;
    room.used += (count + LANES - 1) / LANES * LANES;
    return here;
}

/* A layer's own tensor, filled up both ways. */
static long weights_of(const struct place *place) { return place->ins * place->outs; }

static void lay_out(const struct network *net, struct place *places, long batch, int anchored, int remembers,
                    float **inputs) {
    room.used = 0;
    *inputs = take(batch * net->layer[0].inputs);
    for (int64_t l = 0; l < net->layers; l++) {
        const struct layer *layer = &net->layer[l];
        struct place *place = &places[l];
        place->ins = filled(layer->inputs);
        place->outs = filled(layer->outputs);
        long own = weights_of(place);
        place->weight = l == 0 ? NULL : take(own);
        place->turned = take(own);
        place->bias = take(place->outs);
        place->anchor = anchored ? take(own + place->outs) : NULL;
        place->momentum = remembers ? take(own + place->outs) : NULL;
        place->outputs = take(batch * place->outs);
        place->gradient = take(batch * place->outs);
    }
}

/* Have all places in memory; 0 if there is none. */
static int make_room(const struct network *net, struct place *places, long batch, int anchored, int remembers,
                     float **inputs) {
    float *numbers = room.numbers;
    room.numbers = NULL;
    lay_out(net, places, batch, anchored, remembers, inputs);
    room.numbers = numbers;
    if (room.used > room.size) {
        free(room.numbers);
        room.size = (room.used + 15) / 16 * 16;
        room.numbers = aligned_alloc(64, room.size * sizeof(float));
        if (room.numbers == NULL) {
            room.size = 0;
            return 0;
        }
    }
    lay_out(net, places, batch, anchored, remembers, inputs);
    return 1;
}

static void leave_room(void) {
    if (room.size > KEPT) {
        free(room.numbers);
        room.numbers = NULL;
        room.size = 0;
    }
}

/* --------------------------------------------------------------------------------------------------------- products */

/* Of the product of a [row, inner] and b [inner, column], by what is done with a tile of it. */
enum use { FORWARD, BACKWARD, DESCEND, DESCEND_WITH_MORE };

struct product {
    const float *a;
    long row, inner; /* from one row of a to the next, and from one of its inner numbers to the next */
    const float *b;
    long b_row;
    long rows, inners, columns; /* columns in lanes */
    float *to;
    long to_row;
    const float *begin;                /* FORWARD: the bias */
    const float *rectified;            /* BACKWARD: what the gradient goes back through, or NULL */
    int rectify;                       /* FORWARD */
    const struct network *net;         /* DESCEND: how */
    const float *anchor;               /* like `to` */
    float *momentum;                   /* like `to` */
};

/* One step down for some numbers, as torch.optim.SGD writes it. */
INLINE void descend(const struct network *net, lanes *weight, lanes gradient, const float *anchor, float *momentum) {
    if (anchor)
        gradient += net->proximal * (*weight - *(const lanes *)anchor);
    if (net->decay != 0) /* times an infinite weight that would be NaN */
        gradient += net->decay * *weight;
    if (momentum) {
        lanes kept = net->momentum * *(lanes *)momentum + gradient;
        *(lanes *)momentum = kept;
        gradient = net->nesterov ? gradient + net->momentum * kept : kept;
    }
    *weight -= net->rate * gradient;
}

INLINE void tile(const enum use use, const int rows, const int columns, const struct product *p, long row,
                 long column) {
    const float *a = p->a + row * p->row, *b = p->b + column * LANES;
    long a_row = p->row, a_inner = p->inner, b_row = p->b_row, inners = p->inners;
    lanes sums[ROWS][WIDE];
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < columns; j++)
            sums[i][j] = use == FORWARD ? *(const lanes *)(p->begin + (column + j) * LANES) : all(0);
    for (long k = 0; k < inners; k++) {
        lanes across[WIDE];
#pragma GCC unroll 4
        for (int j = 0; j < columns; j++)
            across[j] = *(const lanes *)(b + k * b_row + j * LANES);
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
            for (int j = 0; j < columns; j++)
                sums[i][j] += a[i * a_row + k * a_inner] * across[j];
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < columns; j++) {
            long at = (row + i) * p->to_row + (column + j) * LANES;
            lanes *to = (lanes *)(p->to + at);
            if (use == FORWARD)
                *to = p->rectify ? rectified(sums[i][j]) : sums[i][j];
            else if (use == BACKWARD)
                *to = p->rectified ? only(~(*(const lanes *)(p->rectified + at) <= all(0)), sums[i][j]) : sums[i][j];
            else if (use == DESCEND)
                *to -= p->net->rate * sums[i][j];
            else
                descend(p->net, to, sums[i][j], p->anchor ? p->anchor + at : NULL,
                        p->momentum ? p->momentum + at : NULL);
        }
}

/* All rows of some columns. */
INLINE void strip(const enum use use, const int columns, const struct product *p, long column) {
    long row = 0;
    for (; row + ROWS <= p->rows; row += ROWS)
        tile(use, ROWS, columns, p, row, column);
    switch (p->rows - row) {
    case 1: tile(use, 1, columns, p, row, column); break;
    case 2: tile(use, 2, columns, p, row, column); break;
    case 3: tile(use, 3, columns, p, row, column); break;
    case 4: tile(use, 4, columns, p, row, column); break;
    case 5: tile(use, 5, columns, p, row, column); break;
    }
}

INLINE void multiply(const enum use use, const struct product *p) {
    long column = 0;
    for (; column + WIDE <= p->columns; column += WIDE)
        strip(use, WIDE, p, column);
    if (WIDE > 2 && p->columns - column >= 2) {
        strip(use, 2, p, column);
        column += 2;
    }
    if (column < p->columns)
        strip(use, 1, p, column);
}

/* ----------------------------------------------------------------------------------------------------------- layers */

/* [row, column] to [column, row] */
static void turn(const float *from, long rows, long columns, long from_row, float *to, long to_row) {
    for (long row = 0; row < rows; row++)
        for (long column = 0; column < columns; column++)
            to[column * to_row + row] = from[row * from_row + column];
}

/* The same for what is filled up both ways. */
static void turn_filled(const float *from, long rows, long columns, float *to) {
    for (long row = 0; row < rows; row += LANES)
        for (long column = 0; column < columns; column += LANES)
            turn_square(from + row * columns + column, columns, to + column * rows + row, rows);
}

/* A vector's numbers of a layer to their place, */
static void bring(const struct layer *layer, const struct place *place, int first, const float *vector, float *weight,
                  float *bias) {
    memset(weight, 0, sizeof(float) * weights_of(place));
    if (first)
        turn(vector + layer->weight, layer->outputs, layer->inputs, layer->inputs, weight, place->outs);
    else
        for (long i = 0; i < layer->outputs; i++)
            memcpy(weight + i * place->ins, vector + layer->weight + i * layer->inputs, sizeof(float) * layer->inputs);
    memset(bias, 0, sizeof(float) * place->outs);
    if (layer->bias >= 0)
        memcpy(bias, vector + layer->bias, sizeof(float) * layer->outputs);
}

/* and back. */
static void take_back(const struct layer *layer, const struct place *place, int first, float *vector,
                      const float *weight, const float *bias) {
    if (first)
        turn(weight, layer->inputs, layer->outputs, place->outs, vector + layer->weight, layer->inputs);
    else
        for (long i = 0; i < layer->outputs; i++)
            memcpy(vector + layer->weight + i * layer->inputs, weight + i * place->ins, sizeof(float) * layer->inputs);
    if (layer->bias >= 0)
        memcpy(vector + layer->bias, bias, sizeof(float) * layer->outputs);
}

static float *own_weight(const struct place *place, int first) { return first ? place->turned : place->weight; }

static void load(const struct network *net, struct place *places, const float *model, const float *anchor,
                 const float *momentum) {
    for (int64_t l = 0; l < net->layers; l++) {
        const struct layer *layer = &net->layer[l];
        struct place *place = &places[l];
        long own = weights_of(place);
        bring(layer, place, l == 0, model, own_weight(place, l == 0), place->bias);
        if (l > 0)
            memset(place->turned, 0, sizeof(float) * own);
        if (anchor)
            bring(layer, place, l == 0, anchor, place->anchor, place->anchor + own);
        if (momentum)
            bring(layer, place, l == 0, momentum, place->momentum, place->momentum + own);
    }
}

static void gather(const struct network *net, const int64_t *own, const int64_t *chosen, long count, float *inputs) {
    long width = net->layer[0].inputs;
    for (long i = 0; i < count; i++)
        memcpy(inputs + i * width, net->x + (own ? own[chosen[i]] : chosen[i]) * width, sizeof(float) * width);
}

/* What a forward pass reads. Classes that only fill the lanes must stay unlikely, whatever a step does to them. */
static void make_ready(const struct network *net, struct place *places) {
    for (int64_t l = 1; l < net->layers; l++)
        turn_filled(places[l].weight, places[l].outs, places[l].ins, places[l].turned);
    int64_t last = net->layers - 1;
    for (long i = net->layer[last].outputs; i < places[last].outs; i++)
        places[last].bias[i] = NOTHING;
}

static void forward(const struct network *net, struct place *places, const float *inputs, long count) {
    long width = net->layer[0].inputs;
    for (int64_t l = 0; l < net->layers; l++) {
        struct place *place = &places[l];
        struct product p = {
            .a = inputs, .row = width, .inner = 1,
            .b = place->turned, .b_row = place->outs,
            .rows = count, .inners = net->layer[l].inputs, .columns = place->outs / LANES,
            .to = place->outputs, .to_row = place->outs,
            .begin = place->bias, .rectify = (int)net->layer[l].rectified,
        };
        multiply(FORWARD, &p);
        inputs = place->outputs;
        width = place->outs;
    }
}

/* The largest of an example's scores, and the sum of e^(score - largest), whose terms go to `terms`. */
INLINE float exponentials(const float *scores, long outs, float *most, float *terms) {
    lanes high = *(const lanes *)scores, total = all(0);
    for (long i = LANES; i < outs; i += LANES)
        high = larger(*(const lanes *)(scores + i), high);
    *most = largest(high);
    for (long i = 0; i < outs; i += LANES) {
        lanes term = exponential(*(const lanes *)(scores + i) - *most);
        *(lanes *)(terms + i) = term;
        total += term;
    }
    return sum(total);
}

/* d mean cross entropy / d scores = (softmax - one-hot) / examples */
static void cross_entropy_gradient(const struct network *net, struct place *last, const int64_t *own,
                                   const int64_t *chosen, long count) {
    for (long i = 0; i < count; i++) {
        float most, *to = last->gradient + i * last->outs;
        float share = 1 / exponentials(last->outputs + i * last->outs, last->outs, &most, to);
        for (long j = 0; j < last->outs; j += LANES)
            *(lanes *)(to + j) *= share / count;
        to[net->y[own[chosen[i]]]] -= 1.0f / count;
    }
}

static void descend_bias(const struct network *net, struct place *place, long count) {
    long own = weights_of(place);
    for (long j = 0; j < place->outs; j += LANES) {
        lanes total = all(0);
        for (long i = 0; i < count; i++)
            total += *(const lanes *)(place->gradient + i * place->outs + j);
        descend(net, (lanes *)(place->bias + j), total, place->anchor ? place->anchor + own + j : NULL,
                place->momentum ? place->momentum + own + j : NULL);
    }
}

/* The gradient of a layer's outputs goes to the layer below, and then into the layer's own tensors. */
static void backward(const struct network *net, struct place *places, const float *inputs, long count) {
    int64_t lowest = 0;
    while (lowest < net->layers && !net->layer[lowest].trained)
        lowest++;
    int more = net->proximal != 0 || net->decay != 0 || net->momentum != 0;
    for (int64_t l = net->layers - 1; l >= lowest; l--) {
        const struct layer *layer = &net->layer[l];
        struct place *place = &places[l], *below = l > 0 ? &places[l - 1] : NULL;
        if (l > lowest) {
            struct product p = {
                .a = place->gradient, .row = place->outs, .inner = 1,
                .b = place->weight, .b_row = place->ins,
                .rows = count, .inners = layer->outputs, .columns = place->ins / LANES,
                .to = below->gradient, .to_row = below->outs,
                .rectified = net->layer[l - 1].rectified ? below->outputs : NULL,
            };
            multiply(BACKWARD, &p);
        }
        if (!layer->trained)
            continue;
        struct product p = l == 0 ? (struct product){
            .a = inputs, .row = 1, .inner = layer->inputs,
            .b = place->gradient, .b_row = place->outs,
            .rows = layer->inputs, .columns = place->outs / LANES,
            .to = place->turned, .to_row = place->outs,
        } : (struct product){
            .a = place->gradient, .row = 1, .inner = place->outs,
            .b = below->outputs, .b_row = below->outs,
            .rows = layer->outputs, .columns = place->ins / LANES,
            .to = place->weight, .to_row = place->ins,
        };
        p.inners = count;
        p.net = net;
        p.anchor = place->anchor;
        p.momentum = place->momentum;
        if (more)
            multiply(DESCEND_WITH_MORE, &p);
        else
            multiply(DESCEND, &p);
        if (layer->bias >= 0)
            descend_bias(net, place, count);
    }
}

/* --------------------------------------------------------------------------------------------- trainings and trials */

/* As torch.argmax: the first of the largest, and a NaN is larger than any number. */
static long predicted(const float *scores, long classes) {
    long best = 0;
    for (long i = 1; i < classes; i++)
        if (scores[i] > scores[best] || (scores[i] != scores[i] && scores[best] == scores[best]))
            best = i;
    return best;
}

static void try_out(void *given) {
    struct trial *job = given;
    const struct network *net = job->network;
    struct place places[net->layers];
    float *inputs;
    if (!make_room(net, places, BLOCK, 0, 0, &inputs)) {
        job->failed = 1;
        return;
    }
    load(net, places, job->model, NULL, NULL);
    make_ready(net, places);
    struct place *last = &places[net->layers - 1];
    long classes = net->layer[net->layers - 1].outputs;
    int64_t total = 0, part = 0, left = job->parts ? job->sizes[0] : 0;
    for (int64_t i = 0; i < job->parts; i++)
        total += job->sizes[i];
    for (int64_t start = 0; start < total; start += BLOCK) {
        long count = total - start < BLOCK ? total - start : BLOCK;
        gather(net, NULL, job->examples + start, count, inputs);
        forward(net, places, inputs, count);
        for (long i = 0; i < count; i++, left--) {
            while (left == 0)
                left = job->sizes[++part];
            const float *scores = last->outputs + i * last->outs;
            long actual = net->y[job->examples[start + i]];
            float most, whole = exponentials(scores, last->outs, &most, last->gradient);
            job->losses[part] += logf(whole) - (scores[actual] - most);
            job->confusion[(part * classes + actual) * classes + predicted(scores, classes)]++;
        }
    }
    leave_room();
    job->failed = 0;
}

static void train(void *given) {
    struct training *job = given;
    const struct network *net = job->network;
    struct place places[net->layers];
    float *inputs;
    long batch = job->batch < job->examples ? job->batch : job->examples;
    if (!make_room(net, places, batch, job->anchor != NULL, job->momentum != NULL, &inputs)) {
        job->failed = 1;
        return;
    }
    load(net, places, job->model, job->anchor, job->momentum);
    const int64_t *order = job->order;
    long done = 0; /* examples of this epoch */
    for (int64_t step = 0; step < job->steps; step++) {
        long count = job->examples - done < batch ? job->examples - done : batch;
        gather(net, job->own, order, count, inputs);
        make_ready(net, places);
        forward(net, places, inputs, count);
        cross_entropy_gradient(net, &places[net->layers - 1], job->own, order, count);
        backward(net, places, inputs, count);
        order += count;
        done = done + count == job->examples ? 0 : done + count;
    }
    for (int64_t l = 0; l < net->layers; l++) {
        const struct layer *layer = &net->layer[l];
        take_back(layer, &places[l], l == 0, job->model, own_weight(&places[l], l == 0), places[l].bias);
        if (job->momentum)
            take_back(layer, &places[l], l == 0, job->momentum, places[l].momentum,
                      places[l].momentum + weights_of(&places[l]));
    }
    leave_room();
    job->failed = 0;
    if (job->then)
        try_out(job->then);
}

void archipel_begin_training(struct training *job) {
    job->task.run = train;
    job->task.given = job;
    pool_begin(&job->task);
}

void archipel_begin_trial(struct trial *job) {
    job->task.run = try_out;
    job->task.given = job;
    pool_begin(&job->task);
}

/* A training or a trial; 0 if it was begun in another process, of which this one is a fork. */
int archipel_wait(struct task *task) { return pool_wait(task); }
