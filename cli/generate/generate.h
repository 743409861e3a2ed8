/* multihead generate: which token comes next. */
#ifndef CLI_GENERATE_H
#define CLI_GENERATE_H

#include "common/exits.h"

#include <stdint.h>

#define GENERATE "generate"

/* How a token is chosen. */
typedef struct generate_how {
    double temperature; /* 0: the most likely token */
    int64_t top_k;      /* only among so many; 0: all */
    double top_p;       /* sample from the most likely that add up to this; 1: all */
    double min_p;       /* only from those at least so many times as likely as the first; 0: all */
    uint64_t seed;
} generate_how;

typedef struct generate_candidate {
    double weight; /* logit, then probability by and by */
    int32_t id;
} generate_candidate;

/* Choose among count logits. step is the number of tokens chosen before: the draw depends on seed
 * and step alone. work [count]. False: a logit is not finite. */
bool generate_pick(const generate_how *how, uint64_t step, const float *logits, int64_t count,
                   generate_candidate *work, int32_t *id);

#endif
