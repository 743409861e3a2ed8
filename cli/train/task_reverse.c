/* Reverse a sequence, with an encoder and a decoder: to write the i-th symbol, cross-attention must
 * attend to the i-th symbol from the end. Its map becomes the anti-diagonal. */
#include "train/train.h"

enum { SYMBOLS = 30, BEGIN = SYMBOLS, END, WORDS, SHORTEST = 6, LONGEST = 12 };

/* clang-format off */
static const char *const words[WORDS] = {
    "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s",
    "t", "u", "v", "w", "x", "y", "z", "A", "B", "C", "D", "<s>", "</s>",
};
/* clang-format on */

static void draw(const train_ask *ask, train_batch *batch)
{
    random_source *r = ask->random;
    const int64_t count = ask->count; /* the split does not matter: sequences do not repeat */
    const int64_t length = SHORTEST + random_below(r, LONGEST - SHORTEST + 1);
    batch->B = count;
    batch->S = length;
    batch->T = length + 1;
    batch->probe_count = 0;
    for (int64_t b = 0; b < count; b++) {
        int32_t *source = batch->source + b * batch->S;
        for (int64_t i = 0; i < length; i++) source[i] = (int32_t)random_below(r, SYMBOLS);
        for (int64_t i = 0; i <= length; i++) {
            const int64_t at = b * batch->T + i;
            batch->tokens[at] = i == 0 ? BEGIN : source[length - i];
            batch->targets[at] = i == length ? END : source[length - 1 - i];
            batch->weights[at] = 1.0f / (float)(count * batch->T);
            if (i < length)
                batch->probes[batch->probe_count++] = (train_probe){
                    .b = b, .row = i, .right = {length - 1 - i}, .rights = 1, .wrong = -1};
        }
        batch->lengths[b] = batch->T;
        batch->source_lengths[b] = batch->S;
    }
}

static train_verdict judge(const train_recipe *recipe, int64_t step, const train_scores *s)
{
    (void)step;
    double mean = 0;
    for (int64_t h = 0; h < recipe->model.num_heads; h++)
        mean += train_right(s, 0, recipe->model.num_layers - 1, h);
    mean /= (double)recipe->model.num_heads;
    return train_accuracy(s) >= 0.98 && mean >= 0.85 ? TRAIN_DONE : TRAIN_GO_ON;
}

static const train_recipe recipe = {
    .model = {.flags = MHA_TRANSFORMER_CAUSAL | MHA_TRANSFORMER_CROSS | MHA_TRANSFORMER_BIAS,
              TRAIN_LEARNED(1, 2),
              .head_dim = 16},
    .encoder = {.flags = MHA_TRANSFORMER_BIAS | MHA_TRANSFORMER_NO_OUTPUT,
                TRAIN_LEARNED(1, 2),
                .head_dim = 16},
    .init = {.embedding_std = 0.25, .position_std = 0.25},
    TRAIN_USUAL_STEPS,
    .steps = 1600,
    .every = 50,
    .tries = 1,
    .probes_to_stop = 200,
    .probes_to_report = 500,
};

const train_task train_reverse = {
    .name = "reverse",
    .summary = "write a sequence backwards: cross-attention becomes the anti-diagonal",
    .goal = "98 % of the symbols, and 85 % of cross-attention on the anti-diagonal",
    .words = words,
    .word_count = WORDS,
    .longest = LONGEST + 1,
    .recipe = &recipe,
    .probes = LONGEST,
    .draw = draw,
    .judge = judge,
    .begin = BEGIN,
    .end = END,
};
