/* multihead train: small models, tasks on which their heads specialise, and measurements of both. A
 * task draws batches and selects the rows to probe; everything else is the same for all tasks.
 *
 * Letters: B sequences of T tokens in a batch, S tokens of a source; L layers, H heads. */
#ifndef CLI_TRAIN_H
#define CLI_TRAIN_H

#include "common/exits.h"
#include "common/random.h"

#include <multihead/checkpoint.h>
#include <multihead/optimizer.h>
#include <multihead/training.h>

enum {
    TRAIN_MOST_LAYERS = 12,
    TRAIN_MOST_HEADS = 32,
    TRAIN_MOST_RIGHT = 16, /* columns that may be right for a probe */
    TRAIN_KINDS = 3,       /* kinds of probes, which are scored separately */
    TRAIN_SENTENCE = 48    /* most words of a train_sentence */
};

/* ---- batches --------------------------------------------------------------------------------- */

/* Held-out data comes in two independent sets: one decides when to stop, the other is reported. */
typedef enum train_split { TRAIN_SPLIT_TRAIN, TRAIN_SPLIT_STOP, TRAIN_SPLIT_REPORT } train_split;

/* A row whose prediction counts, and the columns that a head must attend to for this prediction. */
typedef struct train_probe {
    int64_t b, row;
    int kind;
    int64_t right[TRAIN_MOST_RIGHT];
    int rights;
    int64_t wrong; /* -1: none */
} train_probe;

typedef struct train_batch {
    int64_t most, longest; /* capacity: sequences, tokens per sequence */
    int64_t B, T, S;
    int32_t *tokens, *targets; /* [B,T]; a target of -1 has no loss */
    float *weights;            /* [B,T] of the loss of each row */
    int32_t *source;           /* [B,S], encoder-decoder only */
    int64_t *lengths, *source_lengths;
    train_probe *probes;
    int64_t probe_count, probe_room;
} train_batch;

/* Allocate a batch in the arena. */
cli_exit train_batch_make(int64_t most, int64_t longest, int64_t probes, train_batch *batch);

/* ---- tasks ----------------------------------------------------------------------------------- */

/* A model and the settings that train it. */
typedef struct train_recipe {
    mha_transformer_desc model;   /* vocab_size and max_length are the task's */
    mha_transformer_desc encoder; /* num_layers 0: none */
    mha_transformer_init init;
    double learning_rate, beta1, beta2, weight_decay, clip;
    double dropout;                              /* of attention weights, in training steps only */
    int64_t warm_up, decay, batch, steps, every; /* maximum steps; steps between evaluations */
    int64_t tries;                               /* restarts with a derived seed, 1: none */
    int64_t patience; /* end training after this many evaluations without a lower held-out loss, and
                         keep the parameters of the lowest; 0: end at the goal, keep the last
                         parameters */
    int64_t probes_to_stop, probes_to_report;
} train_recipe;

/* Sizes of most small models. */
#define TRAIN_LLAMA(heads)                                                                       \
    .embed_dim = 64, .num_layers = 2, .num_heads = (heads), .ff_dim = 128, .norm = MHA_NORM_RMS, \
    .positions = MHA_ENCODING_ROTARY, .feed_forward = MHA_FEED_FORWARD_SWIGLU
#define TRAIN_LEARNED(layers, heads)                                              \
    .embed_dim = 64, .num_layers = (layers), .num_heads = (heads), .ff_dim = 128, \
    .norm = MHA_NORM_LAYER, .positions = MHA_ENCODING_LEARNED

/* Members of a recipe for most small models. */
#define TRAIN_USUAL_STEPS                                                                \
    .learning_rate = 3e-3, .beta1 = 0.9, .beta2 = 0.98, .weight_decay = 0.01, .clip = 1, \
    .warm_up = 50, .batch = 32

/* The measurements on held-out data. */
typedef struct train_scores {
    double loss;  /* mean over all rows that have a target */
    int64_t lost; /* number of these rows */
    int64_t probes[TRAIN_KINDS], correct[TRAIN_KINDS];
    /* Attention of each head, summed over the probes of a kind: on right columns, and on the wrong
     * column; and attention of all rows on the previous position. In encoder-decoders,
     * cross-attention. */
    double right[TRAIN_KINDS][TRAIN_MOST_LAYERS][TRAIN_MOST_HEADS];
    double wrong[TRAIN_KINDS][TRAIN_MOST_LAYERS][TRAIN_MOST_HEADS];
    /* The number of probes whose largest weight is on a right column. */
    int64_t hits[TRAIN_KINDS][TRAIN_MOST_LAYERS][TRAIN_MOST_HEADS];
    double previous[TRAIN_MOST_LAYERS][TRAIN_MOST_HEADS];
    double first[TRAIN_MOST_LAYERS][TRAIN_MOST_HEADS]; /* weight of all rows on the first token */
    int64_t rows;                                      /* rows counted in `previous` and `first` */
} train_scores;

/* Weights are attention weights; of a signed map, shares |M| / sum |M| of a row. Functions count
 * all probes, or one kind (0 if there are none). */
double train_accuracy(const train_scores *s);
double train_accuracy_of(const train_scores *s, int kind);
double train_right(const train_scores *s, int kind, int64_t layer, int64_t head);
double train_wrong(const train_scores *s, int kind, int64_t layer, int64_t head);
double train_first(const train_scores *s, int64_t layer, int64_t head);
double train_hits(const train_scores *s, int kind, int64_t layer, int64_t head);
double train_previous(const train_scores *s, int64_t layer, int64_t head);

/* Weight on right and on wrong columns, for the kind of probes on which a head is worst: an average
 * would accept a head that solves one kind only. */
double train_worst_right(const train_scores *s, int64_t layer, int64_t head);
double train_worst_wrong(const train_scores *s, int64_t layer, int64_t head);
double train_worst_accuracy(const train_scores *s);

typedef enum train_verdict { TRAIN_GO_ON, TRAIN_DONE, TRAIN_RESTART } train_verdict;

typedef struct train_task train_task;
typedef struct train_model train_model;

/* A request to a task: random sequences first, first + 1, ... of a split. */
typedef struct train_ask {
    const train_task *task;
    random_source *random;
    train_split split;
    int64_t first, count;
} train_ask;

struct train_task {
    const char *name, *summary;
    const char *goal;        /* the goal that ends training, in words */
    const char *hybrid_goal; /* the goal for models with mixers other than attention; NULL: none */
    const char *kinds[TRAIN_KINDS]; /* names of the kinds of probes; NULL: only one */
    const char *const *words;       /* [word_count] the vocabulary */
    int64_t word_count, longest;    /* tokens, of a sequence */
    const train_recipe *recipe;
    int64_t probes; /* maximum per sequence */
    bool draws_all; /* draw() always makes the recipe's number of sequences */
    /* Draw the requested sequences into the batch, which has room for them. */
    void (*draw)(const train_ask *ask, train_batch *batch);
    /* Words of one class count as equally correct predictions; NULL: only equal words do. */
    int (*class_of)(int32_t word);
    /* Called after an evaluation on the held-out data that decides when to stop. */
    train_verdict (*judge)(const train_recipe *recipe, int64_t step, const train_scores *s);
    /* Print the accuracy of guesses without attention, on the reported number of sequences; NULL:
     * none. */
    void (*baselines)(random_source *r);
    /* Print further measurements after the heads; NULL: none. */
    cli_exit (*more)(train_model *model, const train_scores *all);
    int64_t begin, end;      /* the words that begin and end a sequence; -1: none */
    const char *examples[2]; /* words of an example; NULL: a random sequence */
    const char *looks[2];    /* for each, the word whose last occurrence is the right column */
    /* For a user's text, otherwise 0: */
    const struct train_text *text;
    int64_t unknown;         /* the unknown word; -1: none */
    mha_splitting splitting; /* how texts are split into words */
    int64_t looked_at;       /* sequences that are scored together; 0: 60 */
    const char *mark;        /* a fingerprint of the text */
};

/* The one list of tasks, ended by NULL. */
extern const train_task *const train_tasks[];
extern const train_task train_sentences, train_pronouns, train_induction, train_ioi, train_reverse,
    train_agreement, train_brackets;

/* The mixer of a name in --mixer (attention, gdn, mamba2); -1: none. */
int train_mixer_of(const char *name, size_t length);

/* The mixers of a recipe's layers, as in --mixer; empty if all attend. */
void train_recipe_mixers(const train_recipe *recipe, char *text, size_t size);

/* A sentence under construction, with one probe. */
typedef struct train_sentence {
    int32_t words[TRAIN_SENTENCE];
    int64_t length;
    int64_t noun[3];   /* positions, for the task */
    train_probe probe; /* but its b */
    int32_t answer;    /* the only target, at the probe's row; -1: every next word is one */
} train_sentence;

void train_put(train_sentence *s, int word);

/* One of `count` words from `first` on. */
int train_one_of(random_source *r, int first, int64_t count);

/* Draw sentences by `make`. The mean over all words with a target, and that over the probed rows,
 * have equal weights. */
void train_draw_sentences(const train_ask *ask,
                          void (*make)(random_source *r, train_split split, train_sentence *s),
                          train_batch *batch);

/* ---- a model in training --------------------------------------------------------------------- */

struct train_model {
    mha_context *context;
    const train_task *task;
    train_recipe recipe;
    uint64_t seed;                      /* seed of this attempt */
    int64_t step;                       /* done */
    mha_transformer *decoder, *encoder; /* encoder NULL: none */
    mha_trainer *trainer;
    train_batch batch, probe; /* for training, for probing */
    float *probabilities;
    const float *logits; /* logits of the last evaluation, until the next step */
    double loss;         /* loss of the last step */
};

/* Create the rest of a model whose context, task and recipe are set. */
cli_exit train_model_make(uint64_t seed, train_model *model);

/* Draw a batch and run the trainer's step. *stopped: no step was run, because a rank received a
 * signal. */
cli_exit train_model_step(train_model *model, bool *stopped);

/* Compute scores over `count` sequences of held-out data. gates [L,H] (NULL: 1) switch heads
 * off. */
cli_exit train_model_score(train_model *model, train_split split, int64_t count,
                           const mha_tensor *gates, train_scores *scores);

/* Run only the forward pass of the probe batch. *loss becomes the mean over rows with a target
 * (NULL: not requested), model->probabilities [L,B,H,T,T] (cross: [L,B,H,T,S]), model->logits
 * [B,T,V]. */
cli_exit train_model_look(train_model *model, const mha_tensor *gates, double *loss);

/* The weight on right columns of the best head, for its weakest kind. */
double train_best_right(const train_recipe *recipe, const train_scores *s);

/* The operations of a step: 6 for each parameter of a matrix and row (2 forward, 4 backward), 12 D
 * for each head and visible pair of tokens. The batch of the first step is drawn again to count its
 * pairs. */
double train_model_flops(train_model *model);

/* The seed of an attempt. */
uint64_t train_try_seed(uint64_t seed, int64_t attempt);

#endif
