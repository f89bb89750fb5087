/* Standard normals of one parameter, in the blocks of `posterity.noise`. */

#include "noise.h"

#define BLOCK (2 * HALF)

/* The normals of indices start .. start + count - 1. */
void draw(float *noise, int64_t start, int64_t count, uint32_t a, uint32_t b, int threads) {
    const uint32_t key[2] = {a, b};
    int64_t first = start / BLOCK, last = (start + count + BLOCK - 1) / BLOCK;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t block = first; block < last; block++) {
        float room[BLOCK];
        for (int j = 0; j < HALF; j++)
            normals((uint32_t)(block * HALF) + (uint32_t)j, key, room + j, room + HALF + j);
        int64_t from = block * BLOCK < start ? start : block * BLOCK;
        int64_t to = (block + 1) * BLOCK < start + count ? (block + 1) * BLOCK : start + count;
        memcpy(noise + (from - start), room + (from - block * BLOCK), (size_t)(to - from) * sizeof *noise);
    }
}
