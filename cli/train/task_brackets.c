/* Brackets: the next symbol of texts in which four kinds of brackets are opened and closed, up to
 * five deep. To close a bracket, a model must copy the kind of the open one, which may be far back,
 * before brackets that are already closed: "( [ ] { < > } )".
 *
 * The task is to predict, not to judge balance. Judging requires only counting, but closing a
 * bracket requires finding its opener. A probe is "near" if its opener is the last bracket opened.
 * It is "far" if other brackets were opened and closed since; attending to the last opener is then
 * wrong. */
#include "train/train.h"

#include <stdio.h>

enum { SORTS = 4, DEEPEST = 5, LENGTH = 41, BEGIN = 2 * SORTS, WORDS };

static const char *const words[WORDS] = {"(", "[", "{", "<", ")", "]", "}", ">", "<s>"};

/* Open or close with equal probability, if both are possible. */
static int32_t next_symbol(random_source *r, int64_t depth, const int32_t *stack)
{
    const bool opens = depth == 0 || (depth < DEEPEST && random_chance(r, 0.5));
    return opens ? (int32_t)random_below(r, SORTS) : SORTS + stack[depth - 1];
}

static void draw_text(random_source *r, int64_t b, train_batch *batch)
{
    int32_t stack[DEEPEST], *tokens = batch->tokens + b * LENGTH;
    int64_t at[DEEPEST], depth = 0, last = 0;
    tokens[0] = BEGIN;
    for (int64_t i = 0; i < LENGTH; i++) {
        if (i > 0 && tokens[i] < SORTS) {
            stack[depth] = tokens[i];
            at[depth++] = last = i;
        } else if (i > 0) {
            depth--;
        }
        const int32_t next = next_symbol(r, depth, stack);
        batch->targets[b * LENGTH + i] = next;
        if (i + 1 < LENGTH) tokens[i + 1] = next;
        if (next < SORTS) continue;
        const bool far = at[depth - 1] != last;
        batch->probes[batch->probe_count++] = (train_probe){.b = b,
                                                            .row = i,
                                                            .kind = far,
                                                            .right = {at[depth - 1]},
                                                            .rights = 1,
                                                            .wrong = far ? last : -1};
    }
    batch->lengths[b] = LENGTH;
}

static void draw(const train_ask *ask, train_batch *batch)
{
    const int64_t count = ask->count; /* the split does not matter: texts do not repeat */
    batch->B = count;
    batch->T = LENGTH;
    batch->S = batch->probe_count = 0;
    for (int64_t b = 0; b < count; b++) draw_text(ask->random, b, batch);
    for (int64_t i = 0; i < count * LENGTH; i++) batch->weights[i] = 1.0f / (float)(count * LENGTH);
}

static train_verdict judge(const train_recipe *recipe, int64_t step, const train_scores *s)
{
    (void)step;
    return train_worst_accuracy(s) >= 0.98 && train_best_right(recipe, s) >= 0.5 ? TRAIN_DONE
                                                                                 : TRAIN_GO_ON;
}

static void baselines(random_source *r)
{
    enum { TEXTS = 500 };
    int64_t probes = 0, nearest = 0, sort = 0, offset[LENGTH] = {0}, best = 0;
    int32_t tokens[LENGTH], targets[LENGTH];
    int64_t length;
    float weights[LENGTH];
    train_probe room[LENGTH];
    train_batch batch = {.tokens = tokens,
                         .targets = targets,
                         .lengths = &length,
                         .weights = weights,
                         .probes = room};
    for (int i = 0; i < TEXTS; i++) {
        draw(&(train_ask){.random = r, .count = 1}, &batch);
        for (int64_t k = 0; k < batch.probe_count; k++) {
            const train_probe *p = &room[k];
            probes++;
            nearest += p->kind == 0;
            sort += tokens[p->kind ? p->wrong : p->right[0]] == tokens[p->right[0]];
            offset[p->row - p->right[0]]++;
        }
    }
    for (int i = 0; i < LENGTH; i++)
        if (offset[i] > best) best = offset[i];
    cli_print("Without attention: the last bracket opened is the right one in %.1f %%, and of the "
              "right kind in %.1f %%;\nthe best fixed offset finds the opener in %.1f %%\n",
              100.0 * (double)nearest / (double)probes, 100.0 * (double)sort / (double)probes,
              100.0 * (double)best / (double)probes);
}

static const train_recipe recipe = {
    .model = {.flags = MHA_TRANSFORMER_CAUSAL | MHA_TRANSFORMER_BIAS, TRAIN_LEARNED(2, 2)},
    .init = {.embedding_std = 0.25, .position_std = 0.25},
    TRAIN_USUAL_STEPS,
    .steps = 3000,
    .every = 50,
    .tries = 1,
    .probes_to_stop = 100,
    .probes_to_report = 500,
};

const train_task train_brackets = {
    .name = "brackets",
    .summary = "brackets of four kinds, up to five deep: close the one that is open",
    .goal = "98 % of the closing brackets, near and far, one head with half of its weight on the "
            "open bracket for both",
    .kinds = {"near", "far"},
    .words = words,
    .word_count = WORDS,
    .longest = LENGTH,
    .recipe = &recipe,
    .probes = LENGTH,
    .draw = draw,
    .judge = judge,
    .baselines = baselines,
    .begin = BEGIN,
    .end = -1,
    .examples = {"( [ { } ] < { } > [ ] ) { < ( ) > }"},
    .looks = {">"},
};
