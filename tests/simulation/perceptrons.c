/* Perceptrons of random shapes, trained and tried on so many threads, for a compiler that watches every access.

   Arguments: rounds, threads. What is given lies in memory of exactly its size. */

#include <stdio.h>

#include "perceptron.c"
#include "pool.c"

#define ALIKE 4 /* trainings of the same, which have to come to the same bits */

static long below(long bound) {
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (long)(state >> 20) % bound;
}

static void *room_for(long count, size_t size) {
    void *found = calloc(count ? count : 1, size);
    if (found == NULL)
        abort();
    return found;
}

static float *numbers(long count) {
    float *found = room_for(count, sizeof(float));
    for (long i = 0; i < count; i++)
        found[i] = below(2001) / 3000.0f - 0.333f;
    return found;
}

static int64_t *choices(long count, long bound) {
    int64_t *found = room_for(count, sizeof(int64_t));
    for (long i = 0; i < count; i++)
        found[i] = below(bound);
    return found;
}

/* Layers of widths around those of the lanes; how many numbers a model of them has. */
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

/* One network with data of its own; 1 if all that was begun came to the same, and every example was counted. */
static int train_and_try(void) {
    struct layer layer[4];
    long layers = 1 + below(4), size = draw_layers(layer, layers), all_examples = 1 + below(60);
    long classes = layer[layers - 1].outputs, cells = classes * classes;
    float *x = numbers(all_examples * layer[0].inputs), *begin = numbers(size);
    int64_t *y = choices(all_examples, classes);
    struct network net = {x, y, layer, layers, 0.1f, below(2) ? 0.9f : 0, below(2) ? 0.5f : 0, below(2) ? 0.1f : 0,
                          below(2)};
    long examples = 1 + below(all_examples), batch = 1 + below(examples + 5), epochs = 1 + below(3);
    long per_epoch = (examples + batch - 1) / batch, parts = 2;
    int64_t *own = choices(examples, all_examples), *order = choices(examples * epochs, examples);
    int64_t sizes[] = {below(2) ? below(100) : 0, below(100)};
    int64_t *tried = choices(sizes[0] + sizes[1], all_examples);
    long steps = 1 + below(per_epoch * epochs);

    struct training training[ALIKE];
    struct trial trial[ALIKE];
    for (int i = 0; i < ALIKE; i++) {
        float *model = room_for(size, sizeof(float));
        memcpy(model, begin, size * sizeof(float));
        trial[i] = (struct trial){
            .network = &net, .model = model, .examples = tried, .sizes = sizes, .parts = parts,
            .losses = room_for(parts, sizeof(double)), .confusion = room_for(parts * cells, sizeof(int64_t)),
        };
        training[i] = (struct training){
            .network = &net, .model = model, .anchor = net.proximal ? begin : NULL,
            .momentum = net.momentum ? room_for(size, sizeof(float)) : NULL,
            .own = own, .order = order, .examples = examples, .batch = batch, .steps = steps,
            .then = i % 2 ? &trial[i] : NULL,
        };
        archipel_begin_training(&training[i]);
    }
    for (int i = ALIKE - 1; i >= 0; i--) {
        archipel_wait(&training[i].task);
        if (training[i].then == NULL)
            archipel_begin_trial(&trial[i]);
    }
    int right = 1;
    for (int i = 0; i < ALIKE; i++) {
        if (training[i].then == NULL)
            archipel_wait(&trial[i].task);
        int64_t counted = 0;
        for (long j = 0; j < parts * cells; j++)
            counted += trial[i].confusion[j];
        right &= counted == sizes[0] + sizes[1] && !training[i].failed && !trial[i].failed;
        right &= memcmp(training[i].model, training[0].model, size * sizeof(float)) == 0;
        right &= memcmp(trial[i].losses, trial[0].losses, parts * sizeof(double)) == 0;
    }
    for (int i = 0; i < ALIKE; i++) {
        free(training[i].model);
        free(training[i].momentum);
        free(trial[i].losses);
        free(trial[i].confusion);
    }
    free(x);
    free(y);
    free(begin);
    free(own);
    free(order);
    free(tried);
    return right;
}

int main(int count, char **given) {
    (void)count;
    archipel_pool_resize(atoi(given[2]));
    for (int round = 0; round < atoi(given[1]); round++) {
        if (!train_and_try()) {
            printf("round %d came to something else\n", round);
            return 1;
        }
        free(room.numbers); /* so that the next one has no more room than it asks for */
        room.numbers = NULL;
        room.size = 0;
    }
    return 0;
}
