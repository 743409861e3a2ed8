/* SplitMix64 (Steele, Lea and Flood 2014); its mixing function separates the streams. */
#include "common/random.h"

uint64_t random_next(random_source *r)
{
    uint64_t z = r->state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

random_source random_make(uint64_t seed, uint64_t stream)
{
    random_source a = {seed};
    random_source b = {random_next(&a) ^ stream};
    return (random_source){random_next(&b)};
}

int64_t random_below(random_source *r, int64_t n)
{
    return (int64_t)(((random_next(r) >> 32) * (uint64_t)n) >> 32);
}

double random_part(random_source *r)
{
    return (double)(random_next(r) >> 11) * 0x1p-53;
}

bool random_chance(random_source *r, double probability)
{
    return random_part(r) < probability;
}
