/* The counter generator of `posterity.noise` in C: the same integers, and normals within a few units in the last place.
 *
 * The rounds of the hash, S1 to S6 and M1 to M6, are given by `definitions` when this is compiled.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

INLINE uint32_t as_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

INLINE float as_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#define ROUND(x, n) (((x) ^ ((x) >> S##n)) * M##n)

INLINE uint32_t mix(uint32_t x) {
    x = ROUND(x, 1);
    x = ROUND(x, 2);
    return x ^ (x >> 16);
}

INLINE void absorb(uint32_t *a, uint32_t *b, uint64_t number) {
    for (int part = 0; part < 2; part++, number >>= 32) {
        *a = mix((*a ^ (uint32_t)number) + 0x6A09E667u);
        *b = mix((*b + (uint32_t)number) ^ *a);
    }
}

/* Processors that have it, which is all but old ones, agree to the last bit. Clang says so by the two other names. */
#if defined(FP_FAST_FMAF) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define MULTIPLY_ADD fmaf
#else
#define MULTIPLY_ADD(x, y, z) ((x) * (y) + (z))
#endif

/* -2 log of a number in (0, 1]: its exponent, and a polynomial on [sqrt(1/2), sqrt(2)). */
INLINE float minus_two_log(float x) {
    int32_t exponent = ((int32_t)as_bits(x) - 0x3F3504F3) >> 23;
    float f = as_float(as_bits(x) - ((uint32_t)exponent << 23)) - 1.0f;
    float p = MULTIPLY_ADD(f, -0.0785961524f, 0.128816485f);
    p = MULTIPLY_ADD(f, p, -0.131287545f);
    p = MULTIPLY_ADD(f, p, 0.141811922f);
    p = MULTIPLY_ADD(f, p, -0.166245535f);
    p = MULTIPLY_ADD(f, p, 0.200022861f);
    p = MULTIPLY_ADD(f, p, -0.250008106f);
    p = MULTIPLY_ADD(f, p, 0.333333164f);
    p = MULTIPLY_ADD(f, p, -0.5f);
    return -2.0f * MULTIPLY_ADD((float)exponent, 0.693147181f, MULTIPLY_ADD(f * f, p, f));
}

INLINE void hash_pair(uint32_t counter, uint32_t a, uint32_t b, uint32_t *first, uint32_t *second) {
    uint32_t x = ROUND(counter + a, 1) + b;
    x = ROUND(x, 2);
    x = ROUND(x, 3);
    *first = ROUND(x, 4);
    x = *first + a;
    x = ROUND(x, 5);
    *second = ROUND(x, 6);
}

/* Two normals from two words. The quadrant of the angle is read off its integer: nothing has to be reduced. */
INLINE void box_muller(uint32_t first, uint32_t second, float *left, float *right) {
    float radius = sqrtf(minus_two_log((fabsf((float)(int32_t)first) + 0.5f) * 0x1p-31f));
    uint32_t turned = second + (1u << 29), odd = turned & 0x40000000u; /* the upper two bits are the quadrant */
    float t = (float)(int32_t)(second - (turned & 0xC0000000u)) * 0x1p-30f, z = t * t; /* in quarters of a turn */
    float sine = MULTIPLY_ADD(z, -0.00460217707f, 0.0796802267f);
    sine = t * MULTIPLY_ADD(z, MULTIPLY_ADD(z, sine, -0.64596349f), 1.57079637f);
    float cosine = MULTIPLY_ADD(z, 0.000903631677f, -0.0208600722f);
    cosine = MULTIPLY_ADD(z, MULTIPLY_ADD(z, MULTIPLY_ADD(z, cosine, 0.253669202f), -1.23370051f), 1.0f);
    uint32_t c = as_bits(odd ? sine : cosine) ^ ((turned + 0x40000000u) & 0x80000000u);
    uint32_t s = as_bits(odd ? cosine : sine) ^ (turned & 0x80000000u);
    *left = as_float(c) * radius;
    *right = as_float(s) * radius;
}

INLINE void normals(uint32_t counter, const uint32_t *key, float *left, float *right) {
    uint32_t first, second;
    hash_pair(counter, key[0], key[1], &first, &second);
    box_muller(first, second, left, right);
}
