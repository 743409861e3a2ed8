/* What is lost without heads ('multihead heads --ablate'): the texts, repeated random tokens and prompts
 * it is measured on, and what was found. The work is in heads_effects.c, task files are read in
 * heads_effects_task.c, and heads_effects_out.c prints. */
#ifndef CLI_HEADS_EFFECTS_H
#define CLI_HEADS_EFFECTS_H

#include "heads/heads.h"

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

typedef struct heads_effects {
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
} heads_effects;

/* Options that exclude or require each other. */
cli_exit heads_effects_check(const heads_options *options);

/* What it is measured on; refuses what cannot be measured, before any work. */
cli_exit heads_effects_begin(const heads_options *options, text_model *model,
                             const heads_sources *sources, heads_effects **effects);

/* All of it: found->effects. */
cli_exit heads_effects_make(const heads_options *options, text_model *model, heads_effects *effects,
                            heads_found *found);

/* Prompts of options->task: their terms and, where they have them, their corrupted forms. */
cli_exit heads_effects_read_task(const heads_options *options, text_model *model,
                                 heads_effects *effects);

/* Receivers of options->paths; none: the logits. */
cli_exit heads_effects_receivers(const heads_options *options, const text_model *model,
                                 mha_path_receiver **receivers, int64_t *count);

/* Room for a text of B sequences of T tokens with so many terms; ids [B T], lengths [B] to be filled. */
cli_exit heads_effects_text(int64_t B, int64_t T, int64_t terms, mha_effect_text *text,
                            int32_t **ids, int64_t **lengths, mha_effect_term **list);

cli_exit heads_effects_print(const heads_options *options, const heads_found *found);
void heads_effects_json(json_out *json, const heads_found *found);

/* Columns of the page: of each measure the gradient's estimate of all heads, if there is one, and the
 * effect of those measured exactly; and their values for a head. */
enum { EFFECT_COLUMNS = 2 * EFFECT_MEASURES };
cli_exit heads_effects_columns(const heads_found *found, mha_heads_column columns[EFFECT_COLUMNS],
                               int64_t *count);
void heads_effects_values(const heads_found *found, const heads_row *row,
                          mha_heads_value values[EFFECT_COLUMNS]);

/* For a head's card, of each measure the pairs with it that were measured, largest interaction
 * first. */
cli_exit heads_effects_lists(const heads_found *found, const heads_row *row,
                             mha_heads_list lists[EFFECT_MEASURES], int64_t *count);

#endif
