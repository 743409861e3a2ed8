/* Random numbers by seed and stream: SplitMix64, the same on every machine. */
#ifndef CLI_RANDOM_H
#define CLI_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

typedef struct random_source {
    uint64_t state;
} random_source;

random_source random_make(uint64_t seed, uint64_t stream);
uint64_t random_next(random_source *r);
int64_t random_below(random_source *r, int64_t n); /* 0 .. n - 1; n up to 2^32 */
double random_part(random_source *r);              /* in [0, 1) */
bool random_chance(random_source *r, double probability);

#endif
