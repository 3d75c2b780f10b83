/* Perceptrons with ReLU hidden layers and class scores under cross entropy: training by SGD, and evaluation.

   A learner's parameters, activations and gradients stay in the L2 cache from its first step to its last. Every product
   is computed in register tiles, so that it runs at the speed of the arithmetic. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lanes.h"
#include "perceptron.h"
#include "pool.h"
#include "product.h"
#include "structs.h"

#define TRIAL_BLOCK 48            /* examples evaluated at a time: their activations stay in the L1 cache */
#define ARENA_KEEP (1 << 20)      /* numbers of a thread's arena that are kept for the next task: allocation is slow */
#define PADDING_SCORE (-INFINITY) /* score of the classes that only pad a row of scores to whole vectors */

const struct member archipel_layer_members[] = {
    MEMBER(layer, inputs), MEMBER(layer, outputs), MEMBER(layer, weight), MEMBER(layer, bias),
    MEMBER(layer, rectified), MEMBER(layer, trained), END(layer),
};
const struct member archipel_network_members[] = {
    MEMBER(network, x), MEMBER(network, y), MEMBER(network, layer), MEMBER(network, layers), MEMBER(network, rate),
    MEMBER(network, momentum), MEMBER(network, proximal), MEMBER(network, decay), MEMBER(network, nesterov),
    END(network),
};
const struct member archipel_trial_members[] = {
    MEMBER(trial, task), MEMBER(trial, network), MEMBER(trial, model), MEMBER(trial, examples), MEMBER(trial, sizes),
    MEMBER(trial, parts), MEMBER(trial, losses), MEMBER(trial, confusion), MEMBER(trial, failed), END(trial),
};
const struct member archipel_training_members[] = {
    MEMBER(training, task), MEMBER(training, network), MEMBER(training, model), MEMBER(training, anchor),
    MEMBER(training, shift), MEMBER(training, momentum), MEMBER(training, indices), MEMBER(training, order),
    MEMBER(training, examples), MEMBER(training, batch), MEMBER(training, steps), MEMBER(training, steps_done),
    MEMBER(training, epoch_done), MEMBER(training, then), MEMBER(training, failed), END(training),
};

/* ----------------------------------------------------------------------------------------------- memory of a thread */

/* Buffers of one layer. Rows are padded to whole vectors with zeros. A forward pass reads `transposed`. The first layer
   has only that copy of its weight: the gradient of its inputs, which needs the other one, is never computed. */
struct buffers {
    float *weight;            /* [output, input] */
    float *transposed;        /* [input, output] */
    float *bias;              /* [output] */
    float *anchor;            /* like `weight` (in the first layer like `transposed`), followed by the bias's */
    float *shift;             /* likewise */
    float *momentum;          /* likewise */
    float *outputs;           /* [example, output] */
    float *gradient;          /* [example, output]: of the outputs before ReLU */
    long in_width, out_width; /* inputs and outputs, padded */
};

static _Thread_local struct {
    float *numbers;
    size_t size, used;
} arena;

/* Take numbers from the arena, aligned to vectors. Without an arena the numbers are only counted. */
static float *arena_take(size_t count) {
    float *taken = arena.numbers ? arena.numbers + arena.used : NULL;
    arena.used += (count + LANES - 1) / LANES * LANES;
    return taken;
}

/* Numbers of a layer's weight, padded in both dimensions. */
static long weight_size(const struct buffers *buffers) { return buffers->in_width * buffers->out_width; }

/* Take room for a layer's part of a vector like the model; NULL if there is no such vector. */
static float *take_extra(const struct buffers *own, const void *vector) {
    return vector ? arena_take(weight_size(own) + own->out_width) : NULL;
}

/* job: NULL for a trial. */
static void assign_buffers(const struct network *net, struct buffers *buffers, long batch, const struct training *job,
                           float **inputs) {
    arena.used = 0;
    *inputs = arena_take(batch * net->layer[0].inputs);
    for (int64_t l = 0; l < net->layers; l++) {
        const struct layer *layer = &net->layer[l];
        struct buffers *own = &buffers[l];
        own->in_width = round_to_lanes(layer->inputs);
        own->out_width = round_to_lanes(layer->outputs);
        long size = weight_size(own);
        own->weight = l == 0 ? NULL : arena_take(size);
        own->transposed = arena_take(size);
        own->bias = arena_take(own->out_width);
        own->anchor = take_extra(own, job ? job->anchor : NULL);
        own->shift = take_extra(own, job ? job->shift : NULL);
        own->momentum = take_extra(own, job ? job->momentum : NULL);
        own->outputs = arena_take(batch * own->out_width);
        own->gradient = arena_take(batch * own->out_width);
    }
}

/* Assign all buffers, in a larger arena if needed; return 0 if out of memory. */
static int allocate_buffers(const struct network *net, struct buffers *buffers, long batch, const struct training *job,
                            float **inputs) {
    float *numbers = arena.numbers;
    arena.numbers = NULL;
    assign_buffers(net, buffers, batch, job, inputs);
    arena.numbers = numbers;
    if (arena.used > arena.size) {
        free(arena.numbers);
        arena.size = (arena.used + 15) / 16 * 16;
        arena.numbers = aligned_alloc(64, arena.size * sizeof(float));
        if (arena.numbers == NULL) {
            arena.size = 0;
            return 0;
        }
    }
    assign_buffers(net, buffers, batch, job, inputs);
    return 1;
}

static void trim_arena(void) {
    if (arena.size > ARENA_KEEP) {
        free(arena.numbers);
        arena.numbers = NULL;
        arena.size = 0;
    }
}

/* ----------------------------------------------------------------------------------------------------------- layers */

/* [row, column] to [column, row] */
static void transpose(const float *from, long rows, long columns, long from_row, float *to, long to_row) {
    for (long row = 0; row < rows; row++)
        for (long column = 0; column < columns; column++)
            to[column * to_row + row] = from[row * from_row + column];
}

/* The same for a matrix that is padded in both dimensions. */
static void transpose_padded(const float *from, long rows, long columns, float *to) {
    for (long row = 0; row < rows; row += LANES)
        for (long column = 0; column < columns; column += LANES)
            transpose_square(from + row * columns + column, columns, to + column * rows + row, rows);
}

/* Copy a layer's numbers from a model (or its anchor, shift or momentum) into padded buffers. */
static void load_layer(const struct layer *layer, const struct buffers *own, int first, const float *vector,
                       float *weight, float *bias) {
    memset(weight, 0, sizeof(float) * weight_size(own));
    if (first)
        transpose(vector + layer->weight, layer->outputs, layer->inputs, layer->inputs, weight, own->out_width);
    else
        for (long i = 0; i < layer->outputs; i++)
            memcpy(weight + i * own->in_width, vector + layer->weight + i * layer->inputs,
                   sizeof(float) * layer->inputs);
    memset(bias, 0, sizeof(float) * own->out_width);
    if (layer->bias >= 0)
        memcpy(bias, vector + layer->bias, sizeof(float) * layer->outputs);
}

/* Copy them back. */
static void store_layer(const struct layer *layer, const struct buffers *own, int first, float *vector,
                        const float *weight, const float *bias) {
    if (first)
        transpose(weight, layer->inputs, layer->outputs, own->out_width, vector + layer->weight, layer->inputs);
    else
        for (long i = 0; i < layer->outputs; i++)
            memcpy(vector + layer->weight + i * layer->inputs, weight + i * own->in_width,
                   sizeof(float) * layer->inputs);
    if (layer->bias >= 0)
        memcpy(vector + layer->bias, bias, sizeof(float) * layer->outputs);
}

/* The copy of a layer's weight that is trained. */
static float *trained_weight(const struct buffers *own, int first) { return first ? own->transposed : own->weight; }

static void load_model(const struct network *net, struct buffers *buffers, const float *model,
                       const struct training *job) {
    for (int64_t l = 0; l < net->layers; l++) {
        const struct layer *layer = &net->layer[l];
        struct buffers *own = &buffers[l];
        long size = weight_size(own);
        load_layer(layer, own, l == 0, model, trained_weight(own, l == 0), own->bias);
        if (l > 0)
            memset(own->transposed, 0, sizeof(float) * size);
        if (own->anchor)
            load_layer(layer, own, l == 0, job->anchor, own->anchor, own->anchor + size);
        if (own->shift)
            load_layer(layer, own, l == 0, job->shift, own->shift, own->shift + size);
        if (own->momentum)
            load_layer(layer, own, l == 0, job->momentum, own->momentum, own->momentum + size);
    }
}

/* Copy the inputs of examples: of `indices[chosen]`, or of `chosen` if indices is NULL. */
static void gather(const struct network *net, const int64_t *indices, const int64_t *chosen, long count,
                   float *inputs) {
    long width = net->layer[0].inputs;
    for (long i = 0; i < count; i++)
        memcpy(inputs + i * width, net->x + (indices ? indices[chosen[i]] : chosen[i]) * width, sizeof(float) * width);
}

/* Update what a forward pass reads. The scores of padding classes are reset, because every step changes them. */
static void prepare_forward(const struct network *net, struct buffers *buffers) {
    for (int64_t l = 1; l < net->layers; l++)
        transpose_padded(buffers[l].weight, buffers[l].out_width, buffers[l].in_width, buffers[l].transposed);
    int64_t last = net->layers - 1;
    for (long i = net->layer[last].outputs; i < buffers[last].out_width; i++)
        buffers[last].bias[i] = PADDING_SCORE;
}

static void forward(const struct network *net, struct buffers *buffers, const float *inputs, long count) {
    long width = net->layer[0].inputs;
    for (int64_t l = 0; l < net->layers; l++) {
        struct buffers *own = &buffers[l];
        struct product p = {
            .a = inputs, .a_row = width, .a_depth = 1,
            .b = own->transposed, .b_row = own->out_width,
            .rows = count, .depth = net->layer[l].inputs, .vectors = own->out_width / LANES,
            .to = own->outputs, .to_row = own->out_width,
            .bias = own->bias, .relu = (int)net->layer[l].rectified,
        };
        multiply(FORWARD, &p);
        inputs = own->outputs;
        width = own->out_width;
    }
}

/* Write e^(score - max) for all scores of an example and return their sum. */
INLINE float softmax_terms(const float *scores, long width, float *max, float *terms) {
    vfloat high = *(const vfloat *)scores, total = broadcast(0);
    for (long i = LANES; i < width; i += LANES)
        high = vmax(*(const vfloat *)(scores + i), high);
    *max = reduce_max(high);
    for (long i = 0; i < width; i += LANES) {
        vfloat term = vexp(*(const vfloat *)(scores + i) - *max);
        *(vfloat *)(terms + i) = term;
        total += term;
    }
    return reduce_add(total);
}

/* d mean cross entropy / d scores = (softmax - one-hot) / examples */
static void cross_entropy_gradient(const struct network *net, struct buffers *last, const int64_t *indices,
                                   const int64_t *chosen, long count) {
    for (long i = 0; i < count; i++) {
        float max, *to = last->gradient + i * last->out_width;
        float scale = 1 / softmax_terms(last->outputs + i * last->out_width, last->out_width, &max, to);
        for (long j = 0; j < last->out_width; j += LANES)
            *(vfloat *)(to + j) *= scale / count;
        to[net->y[indices[chosen[i]]]] -= 1.0f / count;
    }
}

static void step_bias(const struct network *net, struct buffers *own, long count) {
    long size = weight_size(own);
    for (long j = 0; j < own->out_width; j += LANES) {
        vfloat total = broadcast(0);
        for (long i = 0; i < count; i++)
            total += *(const vfloat *)(own->gradient + i * own->out_width + j);
        sgd_step(net, (vfloat *)(own->bias + j), total, own->anchor ? own->anchor + size + j : NULL,
                 own->shift ? own->shift + size + j : NULL, own->momentum ? own->momentum + size + j : NULL);
    }
}

/* Propagate the gradient of a layer's outputs to the layer below, then update the layer's own tensors with it. */
static void backward(const struct network *net, struct buffers *buffers, const float *inputs, long count) {
    int64_t lowest = 0;
    while (lowest < net->layers && !net->layer[lowest].trained)
        lowest++;
    int extras = net->proximal != 0 || net->decay != 0 || net->momentum != 0 || buffers->shift;
    for (int64_t l = net->layers - 1; l >= lowest; l--) {
        const struct layer *layer = &net->layer[l];
        struct buffers *own = &buffers[l], *below = l > 0 ? &buffers[l - 1] : NULL;
        if (l > lowest) {
            struct product p = {
                .a = own->gradient, .a_row = own->out_width, .a_depth = 1,
                .b = own->weight, .b_row = own->in_width,
                .rows = count, .depth = layer->outputs, .vectors = own->in_width / LANES,
                .to = below->gradient, .to_row = below->out_width,
                .activations = net->layer[l - 1].rectified ? below->outputs : NULL,
            };
            multiply(BACKWARD, &p);
        }
        if (!layer->trained)
            continue;
        struct product p = l == 0 ? (struct product){
            .a = inputs, .a_row = 1, .a_depth = layer->inputs,
            .b = own->gradient, .b_row = own->out_width,
            .rows = layer->inputs, .vectors = own->out_width / LANES,
            .to = own->transposed, .to_row = own->out_width,
        } : (struct product){
            .a = own->gradient, .a_row = 1, .a_depth = own->out_width,
            .b = below->outputs, .b_row = below->out_width,
            .rows = layer->outputs, .vectors = own->in_width / LANES,
            .to = own->weight, .to_row = own->in_width,
        };
        p.depth = count;
        p.net = net;
        p.anchor = own->anchor;
        p.shift = own->shift;
        p.momentum = own->momentum;
        if (extras)
            multiply(SGD_WITH_EXTRAS, &p);
        else
            multiply(SGD, &p);
        if (layer->bias >= 0)
            step_bias(net, own, count);
    }
}

/* --------------------------------------------------------------------------------------------- trainings and trials */

/* As torch.argmax: the first of equal scores, and NaN above all numbers. */
static long argmax(const float *scores, long classes) {
    long best = 0;
    for (long i = 1; i < classes; i++)
        if (scores[i] > scores[best] || (scores[i] != scores[i] && scores[best] == scores[best]))
            best = i;
    return best;
}

static void run_trial(void *argument) {
    struct trial *job = argument;
    const struct network *net = job->network;
    struct buffers buffers[net->layers];
    float *inputs;
    if (!allocate_buffers(net, buffers, TRIAL_BLOCK, NULL, &inputs)) {
        job->failed = 1;
        return;
    }
    load_model(net, buffers, job->model, NULL);
    prepare_forward(net, buffers);
    struct buffers *last = &buffers[net->layers - 1];
    long classes = net->layer[net->layers - 1].outputs;
    int64_t total = 0, part = 0, left = job->parts ? job->sizes[0] : 0;
    for (int64_t i = 0; i < job->parts; i++)
        total += job->sizes[i];
    for (int64_t start = 0; start < total; start += TRIAL_BLOCK) {
        long count = total - start < TRIAL_BLOCK ? total - start : TRIAL_BLOCK;
        gather(net, NULL, job->examples + start, count, inputs);
        forward(net, buffers, inputs, count);
        for (long i = 0; i < count; i++, left--) {
            while (left == 0)
                left = job->sizes[++part];
            const float *scores = last->outputs + i * last->out_width;
            long actual = net->y[job->examples[start + i]];
            float max, terms = softmax_terms(scores, last->out_width, &max, last->gradient);
            job->losses[part] += logf(terms) - (scores[actual] - max);
            job->confusion[(part * classes + actual) * classes + argmax(scores, classes)]++;
        }
    }
    trim_arena();
    job->failed = 0;
}

static void run_training(void *argument) {
    struct training *job = argument;
    const struct network *net = job->network;
    struct buffers buffers[net->layers];
    float *inputs;
    long batch = job->batch < job->examples ? job->batch : job->examples;
    if (!allocate_buffers(net, buffers, batch, job, &inputs)) {
        job->failed = 1;
        return;
    }
    load_model(net, buffers, job->model, job);
    while (job->steps_done < job->steps) {
        if (job->task.cancelled)
            return;
        if (pool_must_pause()) {
            job->task.paused = 1;
            break;
        }
        const int64_t *order = job->order;
        long left = job->examples - job->epoch_done, count = left < batch ? left : batch;
        gather(net, job->indices, order, count, inputs);
        prepare_forward(net, buffers);
        forward(net, buffers, inputs, count);
        cross_entropy_gradient(net, &buffers[net->layers - 1], job->indices, order, count);
        backward(net, buffers, inputs, count);
        job->order += count;
        job->epoch_done = count == left ? 0 : job->epoch_done + count;
        job->steps_done++;
    }
    for (int64_t l = 0; l < net->layers; l++) {
        const struct layer *layer = &net->layer[l];
        struct buffers *own = &buffers[l];
        store_layer(layer, own, l == 0, job->model, trained_weight(own, l == 0), own->bias);
        if (job->momentum)
            store_layer(layer, own, l == 0, job->momentum, own->momentum, own->momentum + weight_size(own));
    }
    trim_arena();
    job->failed = 0;
    if (job->then && !job->task.paused)
        run_trial(job->then);
}

void archipel_begin_training(struct training *job) {
    job->task.run = run_training;
    job->task.argument = job;
    pool_submit(&job->task);
}

void archipel_begin_trial(struct trial *job) {
    job->task.run = run_trial;
    job->task.argument = job;
    pool_submit(&job->task);
}

/* Wait for a training or a trial. */
enum waited archipel_wait(struct task *task) { return pool_wait_interruptibly(task); }

/* Stop a training at its next batch. Wait for it before its memory is freed. */
void archipel_cancel(struct task *task) { task->cancelled = 1; }
