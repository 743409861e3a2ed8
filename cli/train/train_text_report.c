/* The results for a text: how well the model predicts held-out text, compared with guesses from the
 * frequencies of words and pairs of words, and the loss without each head. */
#include "train/train_text.h"

#include "common/arena.h"
#include "common/words.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- guesses without attention ------------------------------------------------------------- */

static int by_number(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Counts of the training part. */
typedef struct counts {
    int64_t *words;  /* [V] */
    int64_t *follow; /* [V] distinct words that follow a word */
    uint64_t *pairs; /* [held_out[0] - 1], sorted */
    int64_t pair_count;
} counts;

static cli_exit count(const train_text *text, counts *c)
{
    c->pair_count = text->held_out[0] - 1;
    CLI_TRY(ARENA_ALLOC(text->word_count, &c->words));
    CLI_TRY(ARENA_ALLOC(text->word_count, &c->follow));
    CLI_TRY(ARENA_ALLOC(c->pair_count, &c->pairs));
    for (int64_t i = 0; i < text->held_out[0]; i++) c->words[text->tokens[i]]++;
    for (int64_t i = 0; i < c->pair_count; i++)
        c->pairs[i] = (uint64_t)text->tokens[i] << 32 | (uint64_t)text->tokens[i + 1];
    qsort(c->pairs, (size_t)c->pair_count, sizeof *c->pairs, by_number);
    for (int64_t i = 0; i < c->pair_count; i++)
        if (i == 0 || c->pairs[i] != c->pairs[i - 1]) c->follow[c->pairs[i] >> 32]++;
    return CLI_OK;
}

/* The first pair not below the given one. */
static int64_t first_pair(const counts *c, uint64_t pair)
{
    int64_t low = 0, high = c->pair_count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (c->pairs[middle] < pair)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Mean losses over the reported part of two guesses: from the counts of single words, plus 1 each,
 * and from pairs, interpolated with single words by the number of distinct followers (Witten and
 * Bell 1991). */
static cli_exit guess(const train_text *text, double loss[2])
{
    const size_t mark = arena_mark();
    counts c;
    CLI_TRY(count(text, &c));
    const int64_t from = text->held_out[1], all = text->held_out[0] + text->word_count;
    loss[0] = loss[1] = 0;
    for (int64_t i = from; i < text->count; i++) {
        const int32_t word = text->tokens[i], before = text->tokens[i - 1];
        const uint64_t pair = (uint64_t)before << 32 | (uint64_t)word;
        const double single = (double)(c.words[word] + 1) / (double)all;
        const double pairs = (double)(first_pair(&c, pair + 1) - first_pair(&c, pair));
        const double follow = (double)c.follow[before];
        const double begun = (double)(first_pair(&c, ((uint64_t)before + 1) << 32) -
                                      first_pair(&c, (uint64_t)before << 32));
        loss[0] -= mha_log(single);
        loss[1] -=
            mha_log(begun + follow > 0 ? (pairs + follow * single) / (begun + follow) : single);
    }
    for (int i = 0; i < 2; i++) loss[i] /= (double)(text->count - from);
    arena_release(mark);
    return CLI_OK;
}

/* ---- numbers ------------------------------------------------------------------------------- */

static void print_heads(train_model *model, train_finding *found)
{
    const train_scores *all = &found->all;
    mha_transformer_desc d;
    double most = -INFINITY;
    mha_transformer_describe(model->decoder, &d);
    cli_print("\nhead    before   <s>   perplexity without it\n");
    for (int64_t i = 0; i < d.num_layers * d.num_heads; i++) {
        const int64_t l = i / d.num_heads, h = i % d.num_heads;
        const int used = cli_print("L%" PRId64 "H%" PRId64, l, h);
        cli_print("%*s  %5.2f %5.2f   %.2f\n", used < 6 ? 6 - used : 0, "",
                  train_previous(all, l, h), train_first(all, l, h), found->left[i]);
        if (found->left[i] <= most) continue;
        most = found->left[i];
        found->layer = l;
        found->head = h;
    }
    cli_print("\nL%" PRId64 "H%" PRId64
              " is the most important: without it the perplexity is %.2f instead of %.2f.\n",
              found->layer, found->head, most, mha_exp(all->loss));
}

cli_exit train_text_print(train_model *model, train_finding *found)
{
    const train_text *text = model->task->text;
    const bool characters = model->task->splitting == MHA_SPLIT_CHARACTERS;
    const char *one = characters ? "character" : "word";
    double guesses[2];
    const train_scores *all = &found->all;
    CLI_TRY(guess(text, guesses));
    cli_print("The text: %s %s, %s distinct; the vocabulary has %s, %.1f %% of the text is <unk>\n",
              words_count(text->count).text, characters ? "characters" : "words and marks",
              words_count(text->kinds).text, words_count(text->word_count - 2).text,
              100.0 * (double)text->unknown / (double)text->count);
    train_report_size(model);
    cli_print("Without attention: perplexity %.2f from the frequency of each %s, %.2f from pairs "
              "of them\n",
              mha_exp(guesses[0]), one, mha_exp(guesses[1]));
    cli_print("On test text, not used to stop training: perplexity %.2f per %s (loss %.4f",
              mha_exp(all->loss), one, all->loss);
    if (characters) cli_print(", %.3f bits", all->loss / mha_log(2));
    cli_print("), the most likely %s is right in %.1f %%\n", one, 100 * train_accuracy(all));
    print_heads(model, found);
    return CLI_OK;
}
