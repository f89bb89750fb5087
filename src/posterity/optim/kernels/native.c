/* Samples and steps of IVON on a CPU: one pass over memory each, through the table of `_pointer_table.py`.
 *
 * Work comes in noise blocks of 2 * HALF weights, whose halves share their Box-Muller pairs; what a block needs beside
 * the tensors themselves stays in the first cache. Numbers are float32, as in tensor operations; half precisions are
 * widened block by block. The equations are those of `posterity.optim.ivon`.
 *
 * Constants in capitals are given by `_native.py` when this is compiled.
 */

#include "native_adam.h"

/* ── samples ─────────────────────────────────────────────────────────────────────────────────────────────────── */

static void find_widths(const Work *work, int64_t t) {
    const double *number = work->numbers + work->table[t * AT_WIDTH + AT_GROUP] * NUMBER_WIDTH;
    work->widths[t] = (Width){(float)number[NUMBER_ESS], 1.0f, (float)number[NUMBER_DELTA], 1.0f};
}

void draw(const Work *work, int fresh, int summed, int threads) {
    draw_samples(work, fresh, summed, threads, find_widths);
}

/* ── steps ───────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct {
    float ess, share, delta, rho1, rate, debias, lr, clip, batch; /* share is 1 / ess */
} Numbers;

typedef struct {
    const float *sample, *gradient, *product; /* the first and the last may be 0 */
    const float *precision, *mean, *linear, *quadratic; /* prior and extra term */
} Terms;

/* (h_hat - h) / (h + delta). */
INLINE float surprise(float product, float gradient, float hessian, float reciprocal, float quadratic, Numbers n,
                      int squares) {
    float found = squares ? (gradient * gradient * n.batch - hessian) * reciprocal
                          : product * n.ess - hessian * reciprocal;
    return found + quadratic * reciprocal * n.share;
}

INLINE void equations(int size, float *restrict mean, float *restrict momentum, float *restrict hessian, Terms terms,
                      Numbers n, int sampled, int summed, int prior, int term, int squares) {
    const float *restrict sample = terms.sample, *restrict gradient = terms.gradient;
    const float *restrict product = terms.product;
    for (int j = 0; j < size; j++) {
        float m = mean[j], g = gradient[j], h = hessian[j];
        float delta = prior ? terms.precision[j] * n.share : n.delta;
        float center = prior ? terms.mean[j] : 0.0f;
        float linear = term ? terms.linear[j] : 0.0f, quadratic = term ? terms.quadratic[j] : 0.0f;
        float precision = h + delta;
        float noisy = (sampled ? (sample[j] - m) * g : 0.0f) + (summed ? product[j] : 0.0f);
        float x = n.rate * surprise(noisy, g, h, 1.0f / precision, quadratic, n, squares);
        float average = lerp(momentum[j], g, n.rho1);
        h += precision * (x + 0.5f * x * x);
        float force = average * n.debias + (m - center) * delta + (quadratic * m - linear) * n.share;
        float direction = force / (h + delta);
        direction = direction > n.clip ? n.clip : direction < -n.clip ? -n.clip : direction;
        momentum[j] = average;
        hessian[j] = h;
        mean[j] = m - n.lr * direction;
    }
}

static Numbers numbers_of(const double *number, const float *measured) {
    return (Numbers){(float)number[NUMBER_ESS],   (float)(1 / number[NUMBER_ESS]), (float)number[NUMBER_DELTA],
                     (float)number[NUMBER_RHO1],  measured[1],                     measured[0],
                     (float)number[NUMBER_LR],    (float)number[NUMBER_CLIP_RADIUS],
                     (float)number[NUMBER_BATCH_SIZE]};
}

static void step_block(const Work *work, const Block *block, Way way) {
    float rooms[3][BLOCK];
    float *mean = get(block, block->row[way.held ? AT_BUFFER : AT_P], rooms[0]);
    float *momentum = state(block, AT_MOMENTUM), *hessian = state(block, AT_HESSIAN);
    Terms terms = {way.sampled ? get(block, block->row[way.held ? AT_P : AT_BUFFER], rooms[1]) : 0,
                   get(block, work->gradients[block->t], rooms[2]),
                   way.summed ? (float *)work->products[block->t] + block->begin : 0,
                   state(block, AT_PRIOR_PRECISION), state(block, AT_PRIOR_MEAN),
                   state(block, AT_LINEAR), state(block, AT_QUADRATIC)};
    Numbers n = numbers_of(block->number, work->measured + 2 * block->t);
    int squares = work->kinds[2 * block->t + 1];
    int prior = terms.precision != 0, term = terms.quadratic != 0;
    if (prior || term || squares)
        equations(block->size, mean, momentum, hessian, terms, n, way.sampled, way.summed, prior, term, squares);
    else if (!way.summed)
        equations(block->size, mean, momentum, hessian, terms, n, 1, 0, 0, 0, 0);
    else if (way.sampled)
        equations(block->size, mean, momentum, hessian, terms, n, 1, 1, 0, 0, 0);
    else
        equations(block->size, mean, momentum, hessian, terms, n, 0, 1, 0, 0, 0);
    put(block, block->row[way.held ? AT_BUFFER : AT_P], mean);
}

/* `IVON.observe`: averages of h_hat + delta, (h_hat - h)^2 / (h + delta) and h + delta over some of the weights. */
static void observe(const Work *work, int64_t t, Way way, float steps) {
    const int64_t *row = work->table + t * AT_WIDTH;
    int64_t stride = 1 + row[AT_SIZE] / SOME, some = (row[AT_SIZE] + stride - 1) / stride, places[HALF];
    int dtype = work->kinds[2 * t], squares = work->kinds[2 * t + 1];
    Numbers n = numbers_of(work->numbers + row[AT_GROUP] * NUMBER_WIDTH, work->measured + 2 * t);
    double level = 0, scatter = 0, total = 0;
    float mean[HALF], sample[HALF], gradient[HALF], product[HALF], hessian[HALF], delta[HALF], quadratic[HALF];
    memset(product, 0, sizeof product);
    for (int64_t begin = 0; begin < some; begin += HALF) {
        int count = some - begin < HALF ? (int)(some - begin) : HALF;
        for (int j = 0; j < count; j++) {
            int64_t index = (begin + j) * stride;
            places[j] = row[AT_INNER] == 1 ? index : transposed(index, row[AT_OUTER], row[AT_INNER]);
            delta[j] = n.delta * n.ess;
            quadratic[j] = 0.0f;
        }
        gather(dtype, row[way.held ? AT_BUFFER : AT_P], places, count, mean);
        gather(dtype, row[way.held ? AT_P : AT_BUFFER], places, count, sample);
        gather(dtype, work->gradients[t], places, count, gradient);
        if (way.summed)
            gather(FLOAT32, work->products[t], places, count, product);
        gather(FLOAT32, row[AT_HESSIAN], places, count, hessian);
        if (row[AT_PRIOR_PRECISION])
            gather(FLOAT32, row[AT_PRIOR_PRECISION], places, count, delta);
        if (row[AT_QUADRATIC])
            gather(FLOAT32, row[AT_QUADRATIC], places, count, quadratic);
        for (int j = 0; j < count; j++) {
            float h = hessian[j], precision = h + delta[j] * n.share;
            float noisy = (way.sampled ? (sample[j] - mean[j]) * gradient[j] : 0.0f) + product[j];
            float found = surprise(noisy, gradient[j], h, 1.0f / precision, quadratic[j], n, squares);
            level += precision * (1 + found);
            scatter += precision * found * found;
            total += precision;
        }
    }
    double weight = fmax(1 / (steps <= 10 ? steps : 10 + floor(steps / 10)), 0.02);
    float *levels = (float *)row[AT_LEVEL], *scatters = (float *)row[AT_SCATTER];
    *levels += (float)(weight * (level / some - *levels));
    *scatters += (float)(weight * (scatter / some - *scatters));
    *(float *)row[AT_SPREAD] = *scatters / fmaxf(*levels, (float)(total / some));
}

/* What the step of a tensor needs to know: step count, debiasing, 1 - beta2. */
static void measure(const Work *work, int64_t t, Way way) {
    const int64_t *row = work->table + t * AT_WIDTH;
    const double *number = work->numbers + row[AT_GROUP] * NUMBER_WIDTH;
    float steps = ++*(float *)row[AT_STEP];
    if (steps <= 10 || fmodf(steps, 10) == 0)
        observe(work, t, way, steps);
    double rate = number[NUMBER_RHO2], spread = *(float *)row[AT_SPREAD];
    if (spread > 0)
        rate = fmin(rate, number[NUMBER_BIAS] / spread);
    *(float *)row[AT_FORGETTING] -= (float)log(fmax(1 - rate, 1e-9));
    work->measured[2 * t] = (float)(1 / (1 - exp(number[NUMBER_LOG_BETA1] * steps)));
    work->measured[2 * t + 1] = (float)rate;
}

/* Update everything, or skip it all if a gradient is too large; what is put back or ahead is so whatever happens. */
void step(const Work *work, Way way, int threads) {
    int wrong = 0;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static) reduction(| : wrong)
        for (int64_t k = 0; k < work->count; k++) {
            Block block = find_block(work, work->count - 1 - k); /* the first blocks last, which the update begins with */
            wrong |= work->gradients[block.t] &&
                     !finite(&block, work->gradients[block.t], block.number[NUMBER_ESS]);
        }
#pragma omp for schedule(dynamic)
        for (int64_t t = 0; t < work->tensors; t++) {
            find_words(work, t, 1);
            find_widths(work, t);
            if (work->gradients[t] && !wrong)
                measure(work, t, way);
        }
#pragma omp for schedule(static)
        for (int64_t k = 0; k < work->count; k++) {
            Block block = find_block(work, k);
            if (work->gradients[block.t] && !wrong)
                step_block(work, &block, way);
            if (way.held)
                memcpy(place(&block, block.row[AT_P]), place(&block, block.row[AT_BUFFER]),
                       block.size * width_of(block.dtype));
            if (way.ahead)
                sample_block(work, &block, 1);
        }
    }
    for (int64_t group = 0; group < work->groups; group++)
        *(int64_t *)work->marks[group * MARK_WIDTH + MARK_SKIPPED] += wrong;
}
