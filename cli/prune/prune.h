/* multihead prune: the heads that can be removed, the cost of each, and the smaller model.
 *
 * Heads are numbered layer * H + head, where H is the largest number of heads of a layer. */
#ifndef CLI_PRUNE_H
#define CLI_PRUNE_H

#include "common/progress.h"
#include "common/text_model.h"
#include "train/train.h"

#include <multihead/importance.h>
#include <multihead/render.h>

enum {
    PRUNE_RANDOM = 5, /* random orders */
    PRUNE_TIMES = 3   /* passes; the fastest counts */
};

/* The stages that take time, in order. */
typedef enum prune_stage {
    PRUNE_MEASURING,
    PRUNE_RANKING,
    PRUNE_REMOVING,
    PRUNE_TIMING,
    PRUNE_STAGES
} prune_stage;

typedef struct prune_options {
    const char *text, *task, *folder, *json, *csv, *svg, *pdf, *html, *measured_by;
    args_real fraction, stop;
    int64_t keep, step, least, kv_heads, lines, seed, threads; /* keep, kv_heads -1: not given */
    int measure;                                               /* mha_importance */
    int normalise, mask, dry_run, quiet;
} prune_options;

/* The text, or sentences of a task, in batches, with the targets or the outputs to preserve. */
typedef struct prune_data {
    bool predicts;                      /* targets; else embeddings */
    int64_t sequences, tokens, batches; /* tokens: without padding */
    int (*class_of)(int32_t word);      /* classes of equivalent words, or NULL */
    int64_t cut;                        /* tokens truncated from long sequences */
    int64_t *lengths;                   /* [sequences], longest first */
    int32_t *ids, *targets;             /* [B,T] of each batch, concatenated */
    float *embeddings, *directions;     /* [sequences, width] */
    mha_tensor *tensors;                /* [4 * batches] ids, targets, embeddings, directions */
    mha_transformer_input *inputs;
    const mha_transformer_input **input_list;
    const mha_tensor **target_list, **embedding_list, **direction_list;
} prune_data;

/* The quality of a model on the data. */
typedef struct prune_quality {
    double loss;    /* mean over targets; or 1 - cosine */
    double measure; /* accuracy; or cosine. --stop compares this */
} prune_quality;

/* A pruned model. */
typedef struct prune_point {
    int64_t removed, heads, parameters;
    double seconds; /* time of a forward pass over the data without the removed heads */
    prune_quality ours, reversed, random[PRUNE_RANDOM];
} prune_point;

typedef struct prune_job {
    const prune_options *options;
    text_model model;
    prune_data data;
    int64_t heads;      /* heads of the model */
    int64_t *order;     /* [count] in the order of removal */
    double *scores;     /* [count] importance of each head when it was removed */
    double *importance; /* [L H] of the whole model */
    int64_t count;
    prune_point *points;
    int64_t point_count, chosen; /* chosen: index of the saved point */
    prune_quality whole, shared; /* with --kv-heads: before and after */
    int64_t shared_parameters;
    mha_transformer *made; /* the model to write */
    progress progress;
    double work[PRUNE_STAGES]; /* work of each stage, in forward passes over the data */
} prune_job;

/* ---- prune_data.c */
cli_exit prune_data_from_text(prune_job *job);
cli_exit prune_data_from_task(prune_job *job);

/* ---- prune_curve.c */
cli_exit prune_measure(const prune_job *job, const mha_transformer *net, prune_quality *quality);
cli_exit prune_order(prune_job *job);
cli_exit prune_curve(prune_job *job);
cli_exit prune_choose(prune_job *job);

/* Set the gates of the first `removed` heads of an order to 0. */
void prune_gates(const prune_job *job, const int64_t *order, int64_t removed, float *gates);

/* ---- prune_out.c */
const char *prune_measured(const prune_job *job); /* "accuracy" or "cosine" */
void prune_print(const prune_job *job);
void prune_print_shared(const prune_job *job);
mha_status prune_write_csv(const void *job, const mha_sink *sink);
mha_status prune_write_json(const void *job, const mha_sink *sink);

/* ---- prune_chart.c */
mha_status prune_write_svg(const void *job, const mha_sink *sink);
mha_status prune_write_pdf(const void *job, const mha_sink *sink);

/* ---- prune_html.c */
mha_status prune_write_html(const void *job, const mha_sink *sink);

/* ---- prune_save.c */
/* Free a net at the end of the command, or at a mark. Errors are printed. */
cli_exit prune_keep(mha_transformer *net);
cli_exit prune_make(prune_job *job);
cli_exit prune_save(prune_job *job);

#endif
