/* The indirect object in its smallest form: "A B A -> B". A sequence is two names, then one of them
 * again; the answer is the other name. Six names give sixty sequences, all in one batch. A single
 * head that attends to both names equally fails. Two heads succeed: one adds and one subtracts
 * (symbolic indirect object identification, arXiv 2510.25013). */
#include "train/train.h"

enum { NAMES = 6, BEGIN = NAMES, MIDDLE, WORDS, LENGTH = 5, SEQUENCES = NAMES * (NAMES - 1) * 2 };

static const char *const words[WORDS] = {"Ada", "Bob", "Cem", "Dua", "Eva", "Fen", "<s>", "?"};

static void draw(const train_ask *ask, train_batch *batch)
{
    (void)ask; /* always all sequences */
    batch->B = SEQUENCES;
    batch->T = LENGTH;
    batch->S = 0;
    batch->probe_count = SEQUENCES;
    for (int32_t b = 0; b < SEQUENCES; b++) {
        const int32_t first = b / 2 / (NAMES - 1), rest = b / 2 % (NAMES - 1);
        const int32_t second = rest + (rest >= first), again = b % 2;
        const int32_t tokens[LENGTH] = {BEGIN, first, second, again ? second : first, MIDDLE};
        for (int i = 0; i < LENGTH; i++) {
            batch->tokens[b * LENGTH + i] = tokens[i];
            batch->targets[b * LENGTH + i] = -1;
            batch->weights[b * LENGTH + i] = 1.0f / SEQUENCES;
        }
        batch->targets[b * LENGTH + LENGTH - 1] = again ? first : second;
        batch->lengths[b] = LENGTH;
        batch->probes[b] = (train_probe){.b = b,
                                         .row = LENGTH - 1,
                                         .right = {again ? 1 : 2},
                                         .rights = 1,
                                         .wrong = again ? 2 : 1};
    }
}

static train_verdict judge(const train_recipe *recipe, int64_t step, const train_scores *s)
{
    (void)recipe;
    if (train_accuracy(s) == 1 && s->loss < 0.01) return TRAIN_DONE; /* with high confidence */
    return step >= 200 ? TRAIN_RESTART : TRAIN_GO_ON;
}

static const train_recipe recipe = {
    .model = {.flags = MHA_TRANSFORMER_CAUSAL,
              .embed_dim = 16,
              .num_layers = 1,
              .num_heads = 2,
              .head_dim = 8,
              .positions = MHA_ENCODING_LEARNED},
    .init = {.embedding_std = 0.25, .position_std = 0.5},
    .learning_rate = 1e-2,
    .beta1 = 0.9,
    .beta2 = 0.98,
    .clip = 1,
    .warm_up = 20,
    .batch = SEQUENCES,
    .steps = 200,
    .every = 10,
    .tries = 8,
    .probes_to_stop = SEQUENCES,
    .probes_to_report = SEQUENCES,
};

const train_task train_ioi = {
    .name = "ioi",
    .summary =
        "\"A B A\" is followed by \"B\": sixty sequences that two heads solve and one does not",
    .draws_all = true,
    .goal = "all sixty sequences, with a loss below 0.01",
    .words = words,
    .word_count = WORDS,
    .longest = LENGTH,
    .recipe = &recipe,
    .probes = 1,
    .draw = draw,
    .judge = judge,
    .begin = BEGIN,
    .end = -1,
};
