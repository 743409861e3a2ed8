/* Induction: a block of distinct symbols, repeated. The token after the earlier occurrence of the
 * current symbol is the next token. This takes two layers: a head that copies the previous token
 * into each position, and a head that attends to the positions whose previous token is the current
 * symbol (Olsson et al. 2022). The period varies; otherwise a fixed offset would
 * suffice. */
#include "train/train_report.h"

#include <inttypes.h>
#include <stdio.h>

/* Training uses LENGTH tokens; the model has positions for LONGEST, to test longer texts. */
enum { SYMBOLS = 64, BEGIN = SYMBOLS, WORDS, LENGTH = 64, LONGEST = 96, MOST_PERIOD = 40 };

typedef struct course {
    int64_t length, shortest, longest; /* tokens; periods */
} course;

static const course learned = {LENGTH, 8, 24}, longer = {LENGTH, 25, 30},
                    beyond = {LONGEST, 30, 40};

/* clang-format off */
static const char *const words[WORDS] = {
    "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s",
    "t", "u", "v", "w", "x", "y", "z", "A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L",
    "M", "N", "O", "P", "Q", "R", "S", "T", "U", "V", "W", "X", "Y", "Z", "0", "1", "2", "3", "4",
    "5", "6", "7", "8", "9", "+", "-", "<s>",
};
/* clang-format on */

static void draw_block(random_source *r, int64_t period, int32_t *block)
{
    int32_t symbols[SYMBOLS];
    for (int32_t i = 0; i < SYMBOLS; i++) symbols[i] = i;
    for (int64_t i = 0; i < period; i++) { /* the first steps of a shuffle */
        int64_t k = i + random_below(r, SYMBOLS - i);
        block[i] = symbols[k];
        symbols[k] = symbols[i];
    }
}

/* Row i predicts token i + 1, which is determined from the second symbol of the second copy on. */
static void add_probe(train_batch *batch, int64_t b, int64_t i, int64_t period)
{
    train_probe *probe = &batch->probes[batch->probe_count++];
    *probe = (train_probe){.b = b, .row = i, .wrong = -1};
    for (int64_t at = i + 1 - period; at >= 1 && probe->rights < TRAIN_MOST_RIGHT; at -= period)
        probe->right[probe->rights++] = at;
}

static void draw_course(const train_ask *ask, const course *c, train_batch *batch)
{
    random_source *r = ask->random;
    const int64_t count = ask->count, T = c->length; /* blocks do not repeat */
    batch->B = count;
    batch->T = T;
    batch->S = batch->probe_count = 0;
    for (int64_t b = 0; b < count; b++) {
        int32_t block[MOST_PERIOD], *tokens = batch->tokens + b * T;
        int64_t period = c->shortest + random_below(r, c->longest - c->shortest + 1);
        draw_block(r, period, block);
        tokens[0] = BEGIN;
        for (int64_t i = 1; i < T; i++) tokens[i] = block[(i - 1) % period];
        for (int64_t i = 0; i < T; i++) {
            bool known = i > period && i + 1 < T;
            batch->targets[b * T + i] = known ? tokens[i + 1] : -1;
            if (known) add_probe(batch, b, i, period);
        }
        batch->lengths[b] = T;
    }
    for (int64_t i = 0; i < count * T; i++) batch->weights[i] = 1.0f / (float)batch->probe_count;
}

static void draw(const train_ask *ask, train_batch *batch)
{
    draw_course(ask, &learned, batch);
}

static void draw_longer(const train_ask *ask, train_batch *batch)
{
    draw_course(ask, &longer, batch);
}

static void draw_beyond(const train_ask *ask, train_batch *batch)
{
    draw_course(ask, &beyond, batch);
}

static train_verdict judge(const train_recipe *recipe, int64_t step, const train_scores *s)
{
    (void)step;
    double best = 0, previous = 0;
    const int64_t last = recipe->model.num_layers - 1;
    for (int64_t h = 0; h < recipe->model.num_heads; h++) {
        if (train_right(s, 0, last, h) > best) best = train_right(s, 0, last, h);
        previous += train_previous(s, 0, h);
    }
    const bool heads = recipe->model.layers || (best >= 0.92 && previous >= 0.75);
    return train_accuracy(s) >= 0.985 && heads ? TRAIN_DONE : TRAIN_GO_ON;
}

/* The accuracy on sequences with periods that do not occur in training. */
static cli_exit score_course(train_model *model, void (*draws)(const train_ask *, train_batch *),
                             double *accuracy)
{
    const train_task *task = model->task;
    train_task other = *task;
    train_scores s;
    other.draw = draws;
    model->task = &other;
    const cli_exit code =
        train_model_score(model, TRAIN_SPLIT_REPORT, model->recipe.probes_to_report, NULL, &s);
    model->task = task;
    CLI_TRY(code);
    *accuracy = train_accuracy(&s);
    return CLI_OK;
}

/* The best prefix score of the last layer: weight on all earlier copies of the next token. */
static double prefix_of(const train_scores *s, int64_t last, int64_t heads, int64_t *head)
{
    for (int64_t h = *head = 0; h < heads; h++)
        if (train_right(s, 0, last, h) > train_right(s, 0, last, *head)) *head = h;
    return train_right(s, 0, last, *head);
}

/* The scores of the induction heads without the previous-token head, and without its whole
 * layer. */
static cli_exit without_previous(train_model *model, const train_scores *all)
{
    mha_transformer_desc d;
    uint8_t off[TRAIN_MOST_LAYERS * TRAIN_MOST_HEADS] = {0};
    int64_t previous = 0, best, after;
    double sum = 0;
    train_scores one, none;
    mha_transformer_describe(model->decoder, &d);
    const int64_t last = d.num_layers - 1, H = d.num_heads;
    for (int64_t h = 0; h < H; h++) {
        sum += train_previous(all, 0, h);
        if (train_previous(all, 0, h) > train_previous(all, 0, previous)) previous = h;
    }
    const double prefix = prefix_of(all, last, H, &best);
    off[previous] = 1;
    CLI_TRY(train_report_without(model, off, &one));
    for (int64_t h = 0; h < H; h++) off[h] = 1;
    CLI_TRY(train_report_without(model, off, &none));
    cli_print(
        "The heads of layer 0 together have %.2f of their weight on the previous token, L0H%" PRId64
        " %.2f.\nThe prefix score of L%" PRId64 "H%" PRId64 ", %.2f, is %.2f without L0H%" PRId64
        " (right: %.1f %%) and %.2f without layer 0 "
        "(right: %.1f %%).\n",
        sum, previous, train_previous(all, 0, previous), last, best, prefix,
        train_right(&one, 0, last, best), previous, 100 * train_accuracy(&one),
        prefix_of(&none, last, H, &after), 100 * train_accuracy(&none));
    return CLI_OK;
}

static cli_exit more(train_model *model, const train_scores *all)
{
    double within = 0, far = 0;
    CLI_TRY(score_course(model, draw_longer, &within));
    CLI_TRY(score_course(model, draw_beyond, &far));
    cli_print("Periods of 25 to 30, longer than in training: %.1f %%; much longer, 30 to 40 in 96 "
              "tokens: %.1f %%.\n",
              100 * within, 100 * far);
    return model->recipe.model.num_layers > 1 ? without_previous(model, all) : CLI_OK;
}

static const train_recipe recipe = {
    .model = {.flags = MHA_TRANSFORMER_CAUSAL,
              .embed_dim = 64,
              .num_layers = 2,
              .num_heads = 2,
              .head_dim = 16,
              .norm = MHA_NORM_RMS,
              .positions = MHA_ENCODING_ROTARY},
    TRAIN_USUAL_STEPS,
    .steps = 800,
    .every = 25,
    .tries = 1,
    .probes_to_stop = 100,
    .probes_to_report = 500,
};

const train_task train_induction = {
    .name = "induction",
    .summary = "a block of symbols that repeats: copy the symbol that followed last time",
    .goal = "98.5 % of the repeats, a head with 92 % of its weight on earlier copies, and heads of "
            "the first layer with 75 % on the previous token",
    .hybrid_goal = "98.5 % of the repeats",
    .words = words,
    .word_count = WORDS,
    .longest = LONGEST,
    .recipe = &recipe,
    .probes = LONGEST,
    .draw = draw,
    .judge = judge,
    .more = more,
    .begin = BEGIN,
    .end = -1,
};
