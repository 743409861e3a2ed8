/* Random numbers for tests: the same on every machine, the seed printed and settable.
 *
 * MHA_TEST_SEED repeats a run; without it every run draws a new seed. MHA_TEST_LONG=1 selects the full grids instead of
 * a sample, MHA_TEST_SHORT=n selects an n-th of the sample (emulators). */
#ifndef TEST_RNG_H
#define TEST_RNG_H

#include <stdbool.h>
#include <stdint.h>

typedef struct rng {
    uint64_t state;
} rng;

/* The run's seed, from MHA_TEST_SEED or the clock; printed at the first call. */
uint64_t rng_run_seed(void);

/* Whether MHA_TEST_LONG is set to something other than 0. */
bool rng_long_run(void);

/* The number of cases to test: `sample`, or all in a long run. Under the thread sanitizer, which is
 * about fifty times slower, a quarter of the sample. */
int rng_cases(int sample, int all);

/* The cases to test: *first .. *end - 1, those of rng_cases(). Returns false if MHA_TEST_CASE selects one. */
bool rng_range(int sample, int all, int *first, int *end);

/* False if samples are reduced; tests must then not rely on rare cases. */
bool rng_whole_sample(void);

/* Whether case `number` of a list is tested: all in a long run, one in `share` in a full sample,
 * and a quarter of these in a short sample. The seed selects them. */
bool rng_takes(int64_t number, int share);

/* A separate generator for each (seed, stream), so that a case does not depend on earlier cases. */
rng rng_make(uint64_t seed, uint64_t stream);

uint64_t rng_next(rng *r);
int64_t rng_between(rng *r, int64_t low, int64_t high); /* both ends included */
bool rng_chance(rng *r, double probability);
double rng_uniform(rng *r); /* [0, 1) */
float rng_normal(rng *r);   /* mean 0, deviation 1, within 3.47 */

#define RNG_PICK(r, array) \
    ((array)[rng_between(r, 0, (int64_t)(sizeof(array) / sizeof((array)[0])) - 1)])

#endif
