/* Convolve images of random shapes, on several threads at once, for a compiler that checks every access.

   Arguments: rounds, threads. All numbers are small integers, so that every order of addition gives the same sums. */

#include <pthread.h>

#include "convolution.c"
#include "driver.h"

#define MAX_THREADS 8

struct result {
    struct convolution c;
    int done;
};

static void draw_shape(struct convolution *c) {
    static const long channels[] = {1, 2, 3, 5, 8, 17, 33}, filters[] = {1, 4, 7, 8, 15, 16, 17, 33, 64};
    c->batch = below(3);
    c->channels = channels[below(7)];
    c->filters = filters[below(9)];
    c->rows = 1 + below(6);
    c->columns = 1 + below(6);
    c->padding_rows = below(4);
    c->padding_columns = below(4);
    long least_height = c->rows + 1 - 2 * c->padding_rows, least_width = c->columns + 1 - 2 * c->padding_columns;
    c->height = (least_height > 1 ? least_height : 1) + below(8);
    c->width = (least_width > 1 ? least_width : 1) + below(8);
}

static long windows_of(const struct convolution *c) { return c->batch * geometry_of(c).windows; }
static long images_size(const struct convolution *c) { return c->batch * c->height * c->width * c->channels; }
static long weight_size(const struct convolution *c) { return c->filters * c->rows * c->columns * c->channels; }

static void allocate_result(struct convolution *c) {
    c->out = allocate(windows_of(c) * c->filters, sizeof(float));
    c->argmax = allocate(windows_of(c) * c->filters, 1);
    c->images_gradient = allocate(images_size(c), sizeof(float));
    c->weight_gradient = allocate(weight_size(c), sizeof(float));
    c->bias_gradient = c->bias ? allocate(c->filters, sizeof(float)) : NULL;
}

static void free_result(struct convolution *c) {
    free(c->out);
    free(c->argmax);
    free(c->images_gradient);
    free(c->weight_gradient);
    free(c->bias_gradient);
}

static void *convolve(void *argument) {
    struct result *result = argument;
    result->done = archipel_convolve(&result->c) && archipel_convolve_back(&result->c);
    return NULL;
}

/* For all products of one output: add them up, or, with a gradient, add their derivatives. */
static float visit_products(const struct convolution *c, long n, long y, long x, long k, const float *gradient) {
    float sum = c->bias ? c->bias[k] : 0;
    for (long r = 0; r < c->rows; r++)
        for (long s = 0; s < c->columns; s++) {
            long image_y = y + r - c->padding_rows, image_x = x + s - c->padding_columns;
            if (image_y < 0 || image_y >= c->height || image_x < 0 || image_x >= c->width)
                continue;
            for (long channel = 0; channel < c->channels; channel++) {
                long i = ((n * c->height + image_y) * c->width + image_x) * c->channels + channel;
                long w = ((k * c->rows + r) * c->columns + s) * c->channels + channel;
                sum += c->images[i] * c->weight[w];
                if (gradient) {
                    c->images_gradient[i] += *gradient * c->weight[w];
                    c->weight_gradient[w] += *gradient * c->images[i];
                }
            }
        }
    if (gradient && c->bias)
        c->bias_gradient[k] += *gradient;
    return sum;
}

static void convolve_plainly(const struct convolution *c) {
    struct geometry g = geometry_of(c);
    for (long window = 0; window < windows_of(c); window++)
        for (long k = 0; k < c->filters; k++) {
            long n = window / g.windows, i = window % g.windows / g.window_columns, j = window % g.window_columns;
            long out = window * c->filters + k, best = 0;
            float largest = visit_products(c, n, 2 * i, 2 * j, k, NULL);
            for (long position = 1; position < 4; position++) {
                float value = visit_products(c, n, 2 * i + position / 2, 2 * j + position % 2, k, NULL);
                best = value > largest ? position : best;
                largest = value > largest ? value : largest;
            }
            c->out[out] = largest > 0 ? largest : 0;
            c->argmax[out] = largest > 0 ? (uint8_t)best : INACTIVE;
            if (largest > 0)
                visit_products(c, n, 2 * i + best / 2, 2 * j + best % 2, k, &c->out_gradient[out]);
        }
}

static int equal(const float *a, const float *b, long count) {
    for (long i = 0; i < count; i++)
        if (a[i] != b[i])
            return 0;
    return 1;
}

static int same(const struct convolution *a, const struct convolution *b) {
    long outputs = windows_of(a) * a->filters;
    return equal(a->out, b->out, outputs) && memcmp(a->argmax, b->argmax, outputs) == 0 &&
           equal(a->images_gradient, b->images_gradient, images_size(a)) &&
           equal(a->weight_gradient, b->weight_gradient, weight_size(a)) &&
           (!a->bias || equal(a->bias_gradient, b->bias_gradient, a->filters));
}

/* Convolve the same images on all threads; return 1 if each result equals that of a plain loop. */
static int convolve_on(int threads) {
    struct convolution c = {0};
    draw_shape(&c);
    float *images = numbers(images_size(&c), 3, 1), *weight = numbers(weight_size(&c), 2, 1);
    float *bias = below(2) ? numbers(c.filters, 5, 1) : NULL, *gradient = numbers(windows_of(&c) * c.filters, 3, 1);
    c.images = images;
    c.weight = weight;
    c.bias = bias;
    c.out_gradient = gradient;
    struct convolution expected = c;
    allocate_result(&expected);
    convolve_plainly(&expected);
    struct result results[MAX_THREADS];
    pthread_t ids[MAX_THREADS];
    int correct = 1;
    for (int t = 0; t < threads; t++) {
        results[t] = (struct result){c, 0};
        allocate_result(&results[t].c);
        if (pthread_create(&ids[t], NULL, convolve, &results[t]) != 0)
            abort();
    }
    for (int t = 0; t < threads; t++) {
        pthread_join(ids[t], NULL);
        correct &= results[t].done && same(&results[t].c, &expected);
        free_result(&results[t].c);
    }
    free_result(&expected);
    free(images);
    free(weight);
    free(bias);
    free(gradient);
    return correct;
}

int main(int count, char **arguments) {
    (void)count;
    for (int round = 0; round < atoi(arguments[1]); round++)
        if (!convolve_on(atoi(arguments[2]))) {
            printf("round %d gave another result\n", round);
            return 1;
        }
    return 0;
}
