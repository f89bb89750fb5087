/* Samples of a Gaussian posterior, their removal, and a look at gradients: what the steps of all optimizers share. */

#include "native_memory.h"

/* ── noise ───────────────────────────────────────────────────────────────────────────────────────────────────── */

/* `posterity.noise.words` of the sample drawn last (0), or of the one ahead of it (1). */
static void find_words(const Work *work, int64_t t, int ahead) {
    const int64_t *row = work->table + t * AT_WIDTH, *mark = work->marks + row[AT_GROUP] * MARK_WIDTH;
    uint32_t a = 0x9E3779B9u, b = 0x85EBCA6Bu;
    absorb(&a, &b, mark[MARK_SEED]);
    absorb(&a, &b, *(int64_t *)mark[MARK_DRAWS] + ahead);
    absorb(&a, &b, mark[MARK_SAMPLE]);
    absorb(&a, &b, row[AT_INDEX]);
    work->keys[4 * t + 2 * ahead] = a;
    work->keys[4 * t + 2 * ahead + 1] = b;
}

/* Where an index goes when each matrix of (outer, inner) in a batch of them is transposed. */
INLINE int64_t transposed(int64_t index, int64_t inner, int64_t outer) {
    int64_t within = index % (inner * outer);
    return index - within + within % inner * outer + within / inner;
}

/* The normals of a block of memory. */
static void draw_block(const Block *block, const uint32_t *key, float *restrict noise) {
    const uint32_t words[2] = {key[0], key[1]};
    int64_t start = block->row[AT_START];
    if (block->row[AT_INNER] == 1 && start % BLOCK == 0) {
        uint32_t first = (uint32_t)((start + block->begin) / 2);
        int pairs = block->size < HALF ? block->size : HALF;
        for (int j = 0; j < pairs; j++)
            normals(first + (uint32_t)j, words, noise + j, noise + HALF + j);
        return;
    }
    uint32_t counters[BLOCK], late[BLOCK];
    for (int j = 0; j < block->size; j++) {
        int64_t index = start + transposed(block->begin + j, block->row[AT_INNER], block->row[AT_OUTER]);
        int64_t within = index % BLOCK;
        counters[j] = (uint32_t)(index / BLOCK * HALF + within % HALF);
        late[j] = within >= HALF;
    }
    for (int j = 0; j < block->size; j++) {
        float left, right;
        normals(counters[j], words, &left, &right);
        noise[j] = late[j] ? right : left;
    }
}

/* ── samples ─────────────────────────────────────────────────────────────────────────────────────────────────── */

/* p <- m + sigma noise. */
static void perturb(const Block *block, Width width, const float *restrict noise, float *restrict p) {
    const float *restrict hessian = state(block, AT_HESSIAN), *restrict prior = state(block, AT_PRIOR_PRECISION);
    float ess = width.ess, factor = width.factor, delta = width.delta, zero = width.delta * width.still;
    if (prior)
        for (int j = 0; j < block->size; j++) p[j] += noise[j] / sqrtf(hessian[j] * ess + prior[j]);
    else
        for (int j = 0; j < block->size; j++) {
            float own = p[j] == 0.0f && hessian[j] == 0.0f ? zero : delta;
            p[j] += noise[j] / sqrtf((hessian[j] * factor + own) * ess);
        }
}

static void sample_block(const Work *work, const Block *block, int ahead) {
    float noise[BLOCK], room[BLOCK];
    draw_block(block, work->keys + 4 * block->t + 2 * ahead, noise);
    float *p = get(block, block->row[AT_P], room);
    memcpy(place(block, block->row[AT_BUFFER]), place(block, block->row[AT_P]), block->size * width_of(block->dtype));
    perturb(block, work->widths[block->t], noise, p);
    put(block, block->row[AT_P], p);
}

/* Add (before - now) gradient to the products of a block: the noise of one sample less that of the next. */
static void sum_block(const Work *work, const Block *block, const float *restrict before) {
    float rooms[2][BLOCK], *restrict product = (float *)work->products[block->t] + block->begin;
    const float *restrict now = get(block, block->row[AT_P], rooms[0]);
    const float *restrict gradient = get(block, work->gradients[block->t], rooms[1]);
    for (int j = 0; j < block->size; j++)
        product[j] += (before[j] - now[j]) * gradient[j];
}

/* Put the next sample in place of the means, which go into the buffers; or the last one again, if it is not `fresh`.
 *
 * With `summed` the buffers hold the last sample, whose gradients are there: its product is summed by parts. What the
 * widths of a tensor depend on, beside the tensor itself, is found by `find_widths`.
 */
static void draw_samples(const Work *work, int fresh, int summed, int threads,
                         void (*find_widths)(const Work *, int64_t)) {
    for (int64_t group = 0; group < work->groups; group++)
        *(int64_t *)work->marks[group * MARK_WIDTH + MARK_DRAWS] += fresh;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for
        for (int64_t t = 0; t < work->tensors; t++) {
            find_words(work, t, 0);
            find_widths(work, t);
        }
#pragma omp for schedule(static)
        for (int64_t k = 0; k < work->count; k++) {
            Block block = find_block(work, k);
            float room[BLOCK];
            int before = summed && work->products[block.t];
            float *last = before ? get(&block, block.row[AT_BUFFER], room) : room;
            if (last != room)
                memcpy(room, last, block.size * sizeof *room);
            sample_block(work, &block, 0);
            if (before)
                sum_block(work, &block, room);
        }
    }
}

/* Exchange parameters and buffers, bit for bit. */
void swap(const Work *work, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t k = 0; k < work->count; k++) {
        Block block = find_block(work, k);
        char *restrict p = place(&block, block.row[AT_P]), *restrict buffer = place(&block, block.row[AT_BUFFER]);
        for (size_t j = 0; j < block.size * width_of(block.dtype); j++) {
            char kept = p[j];
            p[j] = buffer[j];
            buffer[j] = kept;
        }
    }
}

/* ── gradients ───────────────────────────────────────────────────────────────────────────────────────────────── */

/* Whether all gradients of a block can be learnt from: by their bits, as no compiler takes it for granted. */
static int finite(const Block *block, int64_t address, double ess) {
    uint32_t wrong = 0, limit = as_bits((float)(LARGEST / sqrt(fmax(ess, 1))));
    if (block->dtype == FLOAT32) {
        const uint32_t *bits = (uint32_t *)place(block, address);
        for (int j = 0; j < block->size; j++) wrong |= (bits[j] & 0x7FFFFFFFu) >= limit;
    } else {
        const uint16_t *bits = (uint16_t *)place(block, address), most = block->dtype == BFLOAT16 ? limit >> 16 : 0x7C00;
        for (int j = 0; j < block->size; j++) wrong |= (bits[j] & 0x7FFF) >= most;
    }
    return !wrong;
}

/* ── what steps share ────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct {
    int held;    /* whether the sample is still in the parameters and the mean in the buffers; it is put back */
    int ahead;   /* whether the next sample is put in place, and the mean into the buffers */
    int sampled; /* whether to learn from the last sample, */
    int summed;  /* and whether from the products that are given */
} Way;

/* As torch.lerp, from the nearer end: a weight of 1 gives `to`, bit for bit. */
INLINE float lerp(float from, float to, float weight) {
    return weight < 0.5f ? from + weight * (to - from) : to - (1.0f - weight) * (to - from);
}
