/* See rng.h. The generator is SplitMix64 (Steele, Lea and Flood 2014). */
#include "support/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

uint64_t rng_run_seed(void)
{
    static bool drawn;
    static uint64_t seed;
    if (drawn) return seed;
    const char *text = getenv("MHA_TEST_SEED");
    if (text && *text)
        seed = strtoull(text, NULL, 0);
    else
        seed = mix((uint64_t)time(NULL) ^ ((uint64_t)getpid() << 40)) >> 32;
    drawn = true;
    printf("seed %llu (repeat this run with MHA_TEST_SEED=%llu)\n", (unsigned long long)seed,
           (unsigned long long)seed);
    return seed;
}

bool rng_long_run(void)
{
    const char *text = getenv("MHA_TEST_LONG");
    return text && *text && *text != '0';
}

#if defined(__SANITIZE_THREAD__)
#define SLOWER 4
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SLOWER 4
#endif
#endif
#ifndef SLOWER
#define SLOWER 1
#endif

/* The divisor of the sample size. */
static int slower(void)
{
    const char *text = getenv("MHA_TEST_SHORT");
    const int asked = text ? atoi(text) : 0;
    return asked > SLOWER ? asked : SLOWER;
}

int rng_cases(int sample, int all)
{
    return rng_long_run() ? all : (sample + slower() - 1) / slower();
}

bool rng_range(int sample, int all, int *first, int *end)
{
    const char *one = getenv("MHA_TEST_CASE");
    const bool whole = !one || !*one;
    *first = whole ? 0 : atoi(one);
    *end = whole ? rng_cases(sample, all) : *first + 1;
    if (whole) printf("  %d cases\n", *end);
    return whole;
}

bool rng_whole_sample(void)
{
    return rng_long_run() || slower() == 1;
}

bool rng_takes(int64_t number, int share)
{
    rng r = rng_make(rng_run_seed(), UINT64_C(0xABCD) << 32 | (uint64_t)number);
    const int64_t of = rng_long_run() ? 1 : rng_whole_sample() ? share : 4 * (int64_t)share;
    return rng_between(&r, 1, of) == 1;
}

rng rng_make(uint64_t seed, uint64_t stream)
{
    return (rng){mix(mix(seed) + 0x9E3779B97F4A7C15u * (stream + 1))};
}

uint64_t rng_next(rng *r)
{
    r->state += 0x9E3779B97F4A7C15u;
    return mix(r->state);
}

int64_t rng_between(rng *r, int64_t low, int64_t high)
{
    return low + (int64_t)(rng_next(r) % (uint64_t)(high - low + 1));
}

double rng_uniform(rng *r)
{
    return (double)(rng_next(r) >> 11) * 0x1p-53;
}

bool rng_chance(rng *r, double probability)
{
    return rng_uniform(r) < probability;
}

/* The sum of four uniform numbers: close enough to normal for inputs. Logarithms and cosines would take a third of the
 * time of some suites. */
float rng_normal(rng *r)
{
    const uint64_t x = rng_next(r), y = rng_next(r), low = 0xFFFFFFFF;
    const uint64_t sum = (x & low) + (x >> 32) + (y & low) + (y >> 32);
    return (float)(((double)sum - 2.0 * (double)low) * (1.7320508075688772 * 0x1p-32));
}
