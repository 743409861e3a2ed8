/* multihead perplexity: the measurement and its output. */
#ifndef CLI_PERPLEXITY_H
#define CLI_PERPLEXITY_H

#include "common/cache_options.h"

#include <multihead/model.h>

typedef struct perplexity_options {
    const char *text;
    int64_t tokens, context, chunk, threads;
    cache_options cache;
    int compute, json, quiet;
} perplexity_options;

typedef struct perplexity_run {
    const perplexity_options *options;
    const char *folder;
    mha_context *context;
    mha_model *model;
    mha_transformer_desc desc;
    mha_decoder *decoder;
    int32_t *ids; /* [count] */
    int64_t count;
    int64_t limit;     /* tokens of a context */
    float *logits;     /* [chunk,V] of a step */
    double *losses;    /* [count], the first `done` are set; NaN: a context's first token */
    int64_t done;      /* tokens */
    int64_t predicted; /* predicted tokens among the done ones */
    double sum;        /* sum of the predicted tokens' losses */
    double seconds;
    double mean, mean_error, perplexity, error; /* errors of a single loss are NaN */
} perplexity_run;

const char *perplexity_cache_name(const perplexity_run *run);
const char *perplexity_compute_name(const perplexity_run *run);

/* The result on stdout. Errors are printed. */
cli_exit perplexity_print(const perplexity_run *run);
cli_exit perplexity_write_json(const perplexity_run *run);

#endif
