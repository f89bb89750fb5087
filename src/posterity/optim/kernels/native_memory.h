/* The table of `_pointer_table.py`, and its tensors block by block: float32 as it is, half precisions widened.
 *
 * AT_, NUMBER_ and MARK_ constants and HALF are given by `_native.py` when this is compiled.
 */

#include "noise.h"

#define BLOCK (2 * HALF)

enum { FLOAT32, BFLOAT16, FLOAT16 };

/* sigma^2 = 1 / (ess (factor h + delta)); delta is `still` times as large where both weight and curvature are 0. */
typedef struct {
    float ess, factor, delta, still;
} Width;

typedef struct {
    const int64_t *table, *marks; /* a row for each tensor, and for each group */
    const double *numbers;        /* a row for each group */
    const int64_t *gradients;     /* an address for each tensor, or 0 */
    const int64_t *products;      /* likewise, of noise and gradient, from samples before the last one */
    const int32_t *kinds;         /* dtype and whether squared gradients estimate the Hessian, for each tensor */
    const int32_t *blocks;        /* pairs (tensor, block) */
    uint32_t *keys;               /* two words for each tensor's noise, and two for that of the sample ahead */
    float *measured;              /* two numbers for the step of each tensor */
    Width *widths;                /* of the noise of each tensor */
    double *sums;                 /* a number for each block */
    const double *given;          /* for Adam: ess, the examples behind a gradient, `still`, and delta of each tensor */
    int64_t tensors, groups, count; /* count of blocks */
} Work;

typedef struct {
    const int64_t *row;
    const double *number;
    int64_t t, begin;
    int dtype, size;
} Block;

INLINE Block find_block(const Work *work, int64_t k) {
    int64_t t = work->blocks[2 * k], begin = (int64_t)work->blocks[2 * k + 1] * BLOCK;
    const int64_t *row = work->table + t * AT_WIDTH;
    int64_t rest = row[AT_SIZE] - begin;
    return (Block){row, work->numbers + row[AT_GROUP] * NUMBER_WIDTH, t, begin, work->kinds[2 * t],
                   rest < BLOCK ? (int)rest : BLOCK};
}

/* ── half precisions ─────────────────────────────────────────────────────────────────────────────────────────── */

INLINE float widen_half(uint16_t x) {
    float scaled = as_float((uint32_t)(x & 0x7FFF) << 13) * 0x1p112f; /* subnormal numbers too */
    uint32_t bits = (x & 0x7C00) == 0x7C00 ? as_bits(scaled) | 0x7F800000u : as_bits(scaled);
    return as_float(bits | (uint32_t)(x & 0x8000) << 16);
}

INLINE uint16_t narrow_half(float x) {
    uint32_t bits = as_bits(x), sign = bits >> 16 & 0x8000, size = bits & 0x7FFFFFFFu;
    uint32_t normal = (size + 0xFFF + (size >> 13 & 1) - 0x38000000u) >> 13;
    uint32_t small = as_bits(as_float(size) + 0.5f) - 0x3F000000u; /* the sum rounds at 2^-24, the smallest step */
    uint32_t large = size > 0x7F800000u ? 0x7E00 : 0x7C00;
    return (uint16_t)(sign | (size >= 0x477FF000u ? large : size < 0x38800000u ? small : normal));
}

INLINE float widen_bfloat(uint16_t x) { return as_float((uint32_t)x << 16); }

INLINE uint16_t narrow_bfloat(float x) {
    uint32_t bits = as_bits(x);
    return (uint16_t)((bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0 : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* ── blocks ──────────────────────────────────────────────────────────────────────────────────────────────────── */

INLINE size_t width_of(int dtype) { return dtype == FLOAT32 ? 4 : 2; }

INLINE char *place(const Block *block, int64_t address) {
    return (char *)address + (size_t)block->begin * width_of(block->dtype);
}

/* The numbers of a block as float32: in place if they are, or else widened into the room. */
static float *get(const Block *block, int64_t address, float *restrict room) {
    char *from = place(block, address);
    if (block->dtype == FLOAT32)
        return (float *)from;
    const uint16_t *restrict narrow = (uint16_t *)from;
    if (block->dtype == BFLOAT16)
        for (int j = 0; j < block->size; j++) room[j] = widen_bfloat(narrow[j]);
    else
        for (int j = 0; j < block->size; j++) room[j] = widen_half(narrow[j]);
    return room;
}

/* Write numbers back that `get` has widened. */
static void put(const Block *block, int64_t address, const float *restrict room) {
    uint16_t *restrict narrow = (uint16_t *)place(block, address);
    if (block->dtype == BFLOAT16)
        for (int j = 0; j < block->size; j++) narrow[j] = narrow_bfloat(room[j]);
    else if (block->dtype == FLOAT16)
        for (int j = 0; j < block->size; j++) narrow[j] = narrow_half(room[j]);
}

INLINE float *state(const Block *block, int column) {
    int64_t address = block->row[column];
    return address ? (float *)address + block->begin : 0;
}

/* Numbers from here and there as float32; whole memory lines are fetched for them, so all are asked for at once. */
static void gather(int dtype, int64_t address, const int64_t *restrict places, int count, float *restrict room) {
    if (dtype == FLOAT32)
        for (int j = 0; j < count; j++) room[j] = ((const float *)address)[places[j]];
    else if (dtype == BFLOAT16)
        for (int j = 0; j < count; j++) room[j] = widen_bfloat(((const uint16_t *)address)[places[j]]);
    else
        for (int j = 0; j < count; j++) room[j] = widen_half(((const uint16_t *)address)[places[j]]);
}
