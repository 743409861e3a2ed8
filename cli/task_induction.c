/* Induction: a block of symbols, no two alike, repeated again and again. Whoever finds the earlier
 * copy of the symbol at hand knows the next one. It takes two layers: a head that looks at the
 * token before (so that each place knows what it follows), and one that looks for places that
 * follow the symbol at hand (Olsson et al. 2022). The period varies, or a fixed offset would do. */
#include "train.h"

enum { SYMBOLS = 64, BEGIN = SYMBOLS, WORDS, LENGTH = 64, SHORTEST = 8, LONGEST_PERIOD = 24 };

/* clang-format off */
static const char *const words[WORDS] = {
    "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s",
    "t", "u", "v", "w", "x", "y", "z", "A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L",
    "M", "N", "O", "P", "Q", "R", "S", "T", "U", "V", "W", "X", "Y", "Z", "0", "1", "2", "3", "4",
    "5", "6", "7", "8", "9", "+", "-", "<s>",
};
/* clang-format on */

static void draw_block(train_random *r, int64_t period, int32_t *block)
{
    int32_t symbols[SYMBOLS];
    for (int32_t i = 0; i < SYMBOLS; i++) symbols[i] = i;
    for (int64_t i = 0; i < period; i++) { /* the first steps of a shuffle */
        int64_t k = i + train_random_below(r, SYMBOLS - i);
        block[i] = symbols[k];
        symbols[k] = symbols[i];
    }
}

/* Row i foretells token i + 1, which is known from the second copy's second symbol on. */
static void add_probe(train_batch *batch, int64_t b, int64_t i, int64_t period)
{
    train_probe *probe = &batch->probes[batch->probe_count++];
    *probe = (train_probe){.b = b, .row = i, .wrong = -1};
    for (int64_t at = i + 1 - period; at >= 1 && probe->rights < TRAIN_MOST_RIGHT; at -= period)
        probe->right[probe->rights++] = at;
}

static void draw(train_random *r, train_split split, int64_t count, train_batch *batch)
{
    (void)split; /* blocks do not come twice */
    batch->B = count;
    batch->T = LENGTH;
    batch->S = batch->probe_count = 0;
    for (int64_t b = 0; b < count; b++) {
        int32_t block[LONGEST_PERIOD], *tokens = batch->tokens + b * LENGTH;
        int64_t period = SHORTEST + train_random_below(r, LONGEST_PERIOD - SHORTEST + 1);
        draw_block(r, period, block);
        tokens[0] = BEGIN;
        for (int64_t i = 1; i < LENGTH; i++) tokens[i] = block[(i - 1) % period];
        for (int64_t i = 0; i < LENGTH; i++) {
            bool known = i > period && i + 1 < LENGTH;
            batch->targets[b * LENGTH + i] = known ? tokens[i + 1] : -1;
            if (known) add_probe(batch, b, i, period);
        }
        batch->lengths[b] = LENGTH;
    }
    for (int64_t i = 0; i < count * LENGTH; i++)
        batch->weights[i] = 1.0f / (float)batch->probe_count;
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
    return train_accuracy(s) >= 0.985 && best >= 0.92 && previous >= 0.75 ? TRAIN_DONE
                                                                          : TRAIN_GO_ON;
}

static const train_recipe recipe = {
    .model = {.flags = MHA_TRANSFORMER_CAUSAL,
              .embed_dim = 64,
              .num_layers = 2,
              .num_heads = 2,
              .head_dim = 16,
              .norm = MHA_NORM_RMS,
              .positions = MHA_ENCODING_ROTARY},
    .learning_rate = 3e-3,
    .beta1 = 0.9,
    .beta2 = 0.98,
    .weight_decay = 0.01,
    .clip = 1,
    .warm_up = 50,
    .batch = 32,
    .steps = 800,
    .every = 25,
    .tries = 1,
    .probes_to_stop = 100,
    .probes_to_report = 500,
};

const train_task train_induction = {
    .name = "induction",
    .summary = "a block of symbols that repeats: look back to what followed last time",
    .goal = "98.5 % of the repeats, a head with 92 % of its weight on earlier copies, and heads of "
            "the first layer with 75 % on the token before",
    .words = words,
    .word_count = WORDS,
    .longest = LENGTH,
    .recipe = &recipe,
    .probes = LENGTH,
    .draw = draw,
    .judge = judge,
    .begin = BEGIN,
    .end = -1,
};
