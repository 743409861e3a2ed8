/* multihead ablate: what is lost without heads. The texts, repeated random tokens and prompts it is
 * measured on, and what was found. Options are in cmd_ablate.c, the work in ablate_measure.c, task files
 * are read in ablate_task.c, and ablate_out.c prints. */
#ifndef CLI_ABLATE_H
#define CLI_ABLATE_H

#include "heads/heads.h"

#include <multihead/ablation.h>

#define ABLATE "ablate"

typedef struct ablate_options {
    heads_options heads;                  /* the first: texts, outputs */
    int kind;                             /* mha_ablation */
    const char *task, *paths;             /* FILE of prompts; receivers */
    int64_t head_count, pairs, max_texts; /* head_count -1: not given */
} ablate_options;

/* Tokens whose mean losses make in-context learning: those around the 50th less those around the
 * 500th, as bench/ablation.py has it. */
enum {
    EFFECT_EARLY = 41,
    EFFECT_EARLY_END = 62,
    EFFECT_LATE = 451,
    EFFECT_LATE_END = 552,
    EFFECT_SETS = 3,
    EFFECT_MEASURES = 4
};

/* Texts that have the same measures: those given, repeated random tokens, prompts. */
typedef struct effect_set {
    mha_effect_data data;
    mha_effect_text *texts; /* [data.texts] */
    const mha_effect_text **list;
    int64_t tokens;                   /* of all of them */
    mha_tensor means;                 /* of MEAN */
    double *estimates, *direct;       /* [L H, texts, measures]; direct NULL: has none */
    double *whole, *single, *without; /* [texts, m], [chosen, ..], [pairs, ..] */
} effect_set;

/* A prompt of a task, of which corrupted has as many tokens as text. */
typedef struct effect_prompt {
    mha_tensor corrupted; /* ndim 0: none */
    double clean, other;  /* the measure of both */
} effect_prompt;

typedef struct effect_measure {
    const char *name, *text; /* text: its definition */
    int set, index;
} effect_measure;

typedef struct ablate_effects {
    const ablate_options *options;
    text_model *model;
    heads_found *found; /* the model's heads, and their scores if these were measured */
    mha_ablation kind;
    effect_set sets[EFFECT_SETS];
    effect_measure measures[EFFECT_MEASURES];
    int measure_count;
    bool estimated;                /* there are estimates */
    int64_t *chosen, chosen_count; /* heads measured exactly, layer * H + head, the best first */
    int64_t *pairs, pair_count;    /* [pair_count, 2] places in chosen */
    effect_prompt *prompts;        /* of the task */
    double *patched, *paths; /* [L H, prompts] what is restored; what changes. NULL: not asked */
    const char *paths_to;
    mha_path_receiver *receivers; /* of the paths; none: the logits */
    int64_t receiver_count;
    double *row;        /* room for a number of each text of a set */
    mha_status *failed; /* the first failure of what is told */
} ablate_effects;

/* What it is measured on; refuses what cannot be measured, before any work. */
cli_exit ablate_begin(ablate_effects *effects, const heads_sources *sources);

/* All of it. */
cli_exit ablate_measure(ablate_effects *effects);

/* Prompts of --task: their terms and, where they have them, their corrupted forms. */
cli_exit ablate_read_task(ablate_effects *effects);

/* Receivers of --paths; none: the logits. */
cli_exit ablate_read_paths(ablate_effects *effects);

/* Room for a text of B sequences of T tokens with so many terms; ids [B T], lengths [B] to be filled. */
cli_exit ablate_text(int64_t B, int64_t T, int64_t terms, mha_effect_text *text, int32_t **ids,
                     int64_t **lengths, mha_effect_term **list);

/* No memory while effects were told: then exit 7. */
cli_exit ablate_told(const ablate_effects *effects);

cli_exit ablate_print(const ablate_effects *effects);
cli_exit ablate_write_json(const ablate_effects *effects);

/* For the page and arrays: of each measure the gradient's estimate of all heads, if there is one, and the
 * effect of those measured exactly; and on a head's card the pairs with it, the largest interaction
 * first. */
cli_exit ablate_beside(const ablate_effects *effects, heads_beside *beside);

#endif
