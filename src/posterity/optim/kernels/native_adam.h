/* Samples, prices and steps of `posterity.optim.Variational` over Adam or AdamW, float32.
 *
 * Adam's averages stand in the columns of the momentum (of gradients) and of the Hessian (of their squares). Sums over
 * all weights are taken block by block and then in the order of the blocks, so that threads change no bit of them.
 */

#include "native_sample.h"

#define LANES 16 /* a line of memory */

INLINE const double *adam_of(const Work *work, int64_t t) {
    return work->numbers + work->table[t * AT_WIDTH + AT_GROUP] * ADAM_WIDTH;
}

INLINE float *words_of(const Block *block, int column) { return (float *)block->row[column] + block->begin; }

/* sigma^2 = 1 / (ess (B v / (1 - beta2^t) + delta)). */
static void adam_widths(const Work *work, int64_t t) {
    float steps = *(float *)work->table[t * AT_WIDTH + AT_STEP];
    float factor = (float)(work->given[1] / (1 - pow(adam_of(work, t)[ADAM_BETA2], steps)));
    work->widths[t] = (Width){(float)work->given[0], factor, (float)work->given[3 + t], (float)work->given[2]};
}

void adam_draw(const Work *work, int fresh, int threads) { draw_samples(work, fresh, 0, threads, adam_widths); }

static double ordered_sum(const double *sums, int64_t count) {
    double total = 0;
    for (int64_t k = 0; k < count; k++)
        total += sums[k];
    return total;
}

/* ── what is measured ────────────────────────────────────────────────────────────────────────────────────────── */

/* Whether a gradient is too large to learn from. */
int adam_check(const Work *work, int threads) {
    int wrong = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(| : wrong)
    for (int64_t k = 0; k < work->count; k++) {
        Block block = find_block(work, work->count - 1 - k); /* the first blocks last, which the update begins with */
        wrong |= work->gradients[block.t] && !finite(&block, work->gradients[block.t], 1);
    }
    return wrong;
}

/* The sum of squares of some of the gradients, in whole lines of memory: whoever scales them scales it too. */
double adam_size(const Work *work, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t t = 0; t < work->tensors; t++) {
        const float *gradient = (float *)work->gradients[t];
        int64_t size = work->table[t * AT_WIDTH + AT_SIZE], lines = (size + LANES - 1) / LANES;
        int64_t stride = 1 + lines / (SOME / LANES);
        double lanes[LANES] = {0};
        for (int64_t line = 0; gradient && line < lines; line += stride) {
            const float *begin = gradient + line * LANES;
            int64_t left = size - line * LANES;
            if (left >= LANES)
                for (int i = 0; i < LANES; i++) lanes[i] += (double)begin[i] * begin[i];
            else
                for (int i = 0; i < left; i++) lanes[i] += (double)begin[i] * begin[i];
        }
        work->sums[t] = ordered_sum(lanes, LANES);
    }
    return ordered_sum(work->sums, work->tensors);
}

static double product(const float *a, const float *b, int64_t size) {
    double lanes[LANES] = {0}, rest = 0;
    for (int64_t j = 0; j + LANES <= size; j += LANES)
        for (int i = 0; i < LANES; i++) lanes[i] += (double)a[j + i] * b[j + i];
    for (int64_t j = size - size % LANES; j < size; j++)
        rest += (double)a[j] * b[j];
    return rest + ordered_sum(lanes, LANES);
}

/* The sum of squares of each tensor's means, into `sums`. */
void adam_squares(const Work *work, int held, int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t t = 0; t < work->tensors; t++) {
        const int64_t *row = work->table + t * AT_WIDTH;
        const float *mean = (float *)row[held ? AT_BUFFER : AT_P];
        work->sums[t] = product(mean, mean, row[AT_SIZE]);
    }
}

/* Sum h / (h + delta) over all weights. */
double adam_effective(const Work *work, int threads) {
#pragma omp parallel num_threads(threads)
    {
#pragma omp for
        for (int64_t t = 0; t < work->tensors; t++)
            adam_widths(work, t);
#pragma omp for schedule(static)
        for (int64_t k = 0; k < work->count; k++) {
            Block block = find_block(work, k);
            const float *restrict squares = words_of(&block, AT_HESSIAN);
            float factor = work->widths[block.t].factor, delta = work->widths[block.t].delta;
            double lanes[LANES] = {0};
            float shares[BLOCK];
            for (int j = 0; j < block.size; j++) shares[j] = squares[j] * factor / (squares[j] * factor + delta);
            for (int j = 0; j < block.size; j++) lanes[j % LANES] += shares[j];
            work->sums[k] = ordered_sum(lanes, LANES);
        }
    }
    return ordered_sum(work->sums, work->count);
}

/* Sum eta (g - mean g) g / (sqrt(v) + eps) over all weights, with the v of the coming step; see gap.py.
 *
 * The average of gradients has coupled decay and the pull of a prior in it, which mean g has not.
 */
double adam_own_doing(const Work *work, int held, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t k = 0; k < work->count; k++) {
        Block block = find_block(work, k);
        work->sums[k] = 0;
        if (!work->gradients[block.t]) continue;
        const double *number = adam_of(work, block.t);
        const float *restrict gradient = (float *)work->gradients[block.t] + block.begin;
        const float *restrict average = words_of(&block, AT_MOMENTUM), *restrict squares = words_of(&block, AT_HESSIAN);
        const float *restrict mean = words_of(&block, held ? AT_BUFFER : AT_P);
        double steps = *(float *)block.row[AT_STEP], lanes[LANES] = {0};
        float coupled = (float)number[ADAM_COUPLED], before = (float)(1 / (1 - pow(number[ADAM_BETA1], steps))), beta2 = (float)number[ADAM_BETA2];
        float debias = (float)(1 / (1 - pow(number[ADAM_BETA2], steps + 1))), eps = (float)number[ADAM_EPS];
        float rho2 = (float)(1 - number[ADAM_BETA2]), parts[BLOCK];
        for (int j = 0; j < block.size; j++) {
            float g = gradient[j], v = (squares[j] * beta2 + rho2 * g * g) * debias;
            parts[j] = (g - (average[j] * before - coupled * mean[j])) * g / (sqrtf(v) + eps);
        }
        for (int j = 0; j < block.size; j++) lanes[j % LANES] += parts[j];
        work->sums[k] = number[ADAM_LR] * ordered_sum(lanes, LANES);
    }
    return ordered_sum(work->sums, work->count);
}

/* Minus the sum of m times mean g of each tensor, into `sums`: what larger weights would gain; see gap.py. */
void adam_growing(const Work *work, int held, int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t t = 0; t < work->tensors; t++) {
        const int64_t *row = work->table + t * AT_WIDTH;
        const float *mean = (float *)row[held ? AT_BUFFER : AT_P], *average = (float *)row[AT_MOMENTUM];
        const double *number = adam_of(work, t);
        double kept = 1 - pow(number[ADAM_BETA1], *(float *)row[AT_STEP]);
        int64_t size = row[AT_SIZE];
        double coupled = number[ADAM_COUPLED] ? number[ADAM_COUPLED] * product(mean, mean, size) : 0;
        work->sums[t] = work->gradients[t] ? coupled - product(mean, average, size) / kept : 0;
    }
}

/* ── steps ───────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Sum of noise times gradient. */
static double price_of(int size, const float *restrict sample, const float *restrict mean, const float *restrict gradient) {
    float lanes[LANES] = {0};
    double total = 0;
    int even = size - size % LANES;
    for (int j = 0; j < even; j += LANES)
        for (int i = 0; i < LANES; i++) lanes[i] += (sample[j + i] - mean[j + i]) * gradient[j + i];
    for (int i = 0; i < LANES; i++) total += lanes[i];
    for (int j = even; j < size; j++) total += (sample[j] - mean[j]) * gradient[j];
    return total;
}

/* torch.optim.AdamW of one block; `coupled` is L2, of Adam's weight decay or of a prior. */
static void adam_block(const Work *work, const Block *block, const float *restrict mean, float *restrict moved) {
    const double *number = adam_of(work, block->t);
    const float *restrict gradient = (float *)work->gradients[block->t] + block->begin;
    float *restrict average = words_of(block, AT_MOMENTUM), *restrict squares = words_of(block, AT_HESSIAN);
    float rate = work->measured[2 * block->t], root = work->measured[2 * block->t + 1];
    float weight = (float)(1 - number[ADAM_BETA1]), beta2 = (float)number[ADAM_BETA2];
    float rho2 = (float)(1 - number[ADAM_BETA2]), eps = (float)number[ADAM_EPS];
    float kept = (float)(1 - number[ADAM_LR] * number[ADAM_DECAY]), coupled = (float)number[ADAM_COUPLED];
    for (int j = 0; j < block->size; j++) {
        float g = gradient[j] + coupled * mean[j];
        float a = lerp(average[j], g, weight), v = squares[j] * beta2 + rho2 * g * g;
        average[j] = a;
        squares[j] = v;
        moved[j] = mean[j] * kept - rate * a / (sqrtf(v) / root + eps);
    }
}

/* Update everything; p gets the mean, or the sample `ahead` while the buffer gets the mean.
 *
 * Returns the sum of noise times gradient over all weights.
 */
double adam_step(const Work *work, Way way, int threads) {
#pragma omp parallel num_threads(threads)
    {
#pragma omp for
        for (int64_t t = 0; t < work->tensors; t++) {
            const int64_t *row = work->table + t * AT_WIDTH;
            const double *number = adam_of(work, t);
            if (work->gradients[t]) {
                float steps = ++*(float *)row[AT_STEP];
                ++*(float *)row[AT_UPDATES];
                work->measured[2 * t] = (float)(number[ADAM_LR] / (1 - pow(number[ADAM_BETA1], steps)));
                work->measured[2 * t + 1] = (float)sqrt(1 - pow(number[ADAM_BETA2], steps));
            }
            find_words(work, t, 1);
            adam_widths(work, t);
        }
#pragma omp for schedule(static)
        for (int64_t k = 0; k < work->count; k++) {
            Block block = find_block(work, k);
            float *p = words_of(&block, AT_P), *buffer = words_of(&block, AT_BUFFER), moved[BLOCK];
            const float *mean = way.held ? buffer : p, *sample = way.held ? p : buffer;
            size_t bytes = block.size * sizeof *p;
            work->sums[k] = 0;
            if (work->gradients[block.t]) {
                const float *gradient = (float *)work->gradients[block.t] + block.begin;
                work->sums[k] = price_of(block.size, sample, mean, gradient);
                adam_block(work, &block, mean, moved);
                memcpy(p, moved, bytes);
            } else if (way.held)
                memcpy(p, buffer, bytes);
            if (way.ahead)
                sample_block(work, &block, 1);
        }
    }
    return ordered_sum(work->sums, work->count);
}
