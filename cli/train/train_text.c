/* A text as a task. It is split into words and punctuation marks, or into characters. The saved
 * folder records the splitting, so that loading it gives the same tokens. Case is preserved. The
 * vocabulary comes from the training part, most frequent first: words that occur at least twice, or
 * all characters. Everything else is the token <unk>. */
#include "train/train_text.h"

#include "common/arena.h"
#include "common/texts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BEGIN,
    UNKNOWN,
    SPECIALS,
    LEAST_CONTEXT = 8,
    PARTS = 20,      /* one held-out part decides when to stop, another is reported */
    MOST_PARTS = 5,  /* the parts of a short text */
    TO_STOP = 64,    /* maximum number of sequences for an evaluation on held-out data */
    TO_REPORT = 2000 /* and the report */
};

static const size_t most_bytes = (size_t)1 << 30;

/* ---- the file ------------------------------------------------------------------------------ */

static cli_exit read_file(const char *path, char **bytes, size_t *size)
{
    CLI_TRY(texts_read_regular(path, most_bytes, bytes, size));
    texts_unmark(*bytes, size);
    if (*size > 0) return CLI_OK;
    return cli_fail(CLI_BAD_INPUT, "--text %s: is empty", path);
}

/* ---- counting words ------------------------------------------------------------------------ */

/* A word of the text: its first position, and its count in the training part. */
typedef struct entry {
    const char *word;
    size_t bytes;
    int64_t count, first;
    int32_t id; /* in the vocabulary */
} entry;

/* Open addressing; entries keep the order of their first occurrence. */
typedef struct table {
    entry *entries;
    int64_t count, room;
    int64_t *slots; /* [slot_count], -1: free */
    int64_t slot_count;
} table;

static uint64_t hash_of(const char *word, size_t bytes)
{
    random_source r = {bytes};
    for (size_t i = 0; i < bytes; i++) r.state = random_next(&r) ^ (unsigned char)word[i];
    return random_next(&r);
}

static int64_t *slot_of(const table *t, const char *word, size_t bytes)
{
    uint64_t at = hash_of(word, bytes);
    for (;; at++) {
        int64_t *slot = &t->slots[at % (uint64_t)t->slot_count];
        if (*slot < 0) return slot;
        const entry *e = &t->entries[*slot];
        if (e->bytes == bytes && memcmp(e->word, word, bytes) == 0) return slot;
    }
}

static cli_exit grow(table *t)
{
    t->room = t->room ? 2 * t->room : 1024;
    t->slot_count = 2 * t->room;
    CLI_TRY(arena_grow(t->room, sizeof *t->entries, &t->entries));
    CLI_TRY(arena_grow(t->slot_count, sizeof *t->slots, &t->slots));
    for (int64_t i = 0; i < t->slot_count; i++) t->slots[i] = -1;
    for (int64_t i = 0; i < t->count; i++) *slot_of(t, t->entries[i].word, t->entries[i].bytes) = i;
    return CLI_OK;
}

static cli_exit find_entry(table *t, const char *word, size_t bytes, int64_t *index)
{
    if (t->count == t->room) CLI_TRY(grow(t));
    int64_t *slot = slot_of(t, word, bytes);
    if (*slot < 0) {
        t->entries[t->count] = (entry){.word = word, .bytes = bytes, .first = t->count};
        *slot = t->count++;
    }
    *index = *slot;
    return CLI_OK;
}

/* Store each word of the text as the index of its entry. */
static cli_exit split(const char *path, const char *bytes, size_t size, mha_splitting how,
                      table *words, train_text *text)
{
    int64_t room = 0;
    for (size_t at = 0, from = 0;;) {
        mha_status status = mha_split_next(how, bytes, size, &at, &from);
        if (status == MHA_ERR_UTF8)
            return cli_fail(CLI_BAD_INPUT, "--text %s: not UTF-8 text: %s", path,
                            mha_error_detail());
        CLI_TRY(cli_check(status));
        if (from == size) return CLI_OK;
        if (text->count == room) {
            room = room ? 2 * room : 4096;
            CLI_TRY(arena_grow(room, sizeof *text->tokens, &text->tokens));
        }
        int64_t index;
        CLI_TRY(find_entry(words, bytes + from, at - from, &index));
        text->tokens[text->count++] = (int32_t)index;
    }
}

/* ---- the vocabulary ------------------------------------------------------------------------ */

/* Frequent words come first; of equally frequent words, the earlier one. */
static int by_count(const void *a, const void *b)
{
    const entry *x = *(entry *const *)a, *y = *(entry *const *)b;
    if (x->count != y->count) return x->count < y->count ? 1 : -1;
    return x->first < y->first ? -1 : x->first > y->first;
}

static cli_exit add_word(train_text *text, const char *word, size_t bytes)
{
    return arena_text(word, bytes, &text->words[text->word_count++]);
}

static cli_exit choose_words(table *words, int64_t most, int64_t least_count, train_text *text)
{
    entry **order;
    CLI_TRY(arena_alloc(words->count + SPECIALS, sizeof(char *), &text->words));
    CLI_TRY(arena_alloc(words->count, sizeof(entry *), &order));
    for (int64_t i = 0; i < words->count; i++) order[i] = &words->entries[i];
    qsort(order, (size_t)words->count, sizeof *order, by_count);
    CLI_TRY(add_word(text, "<s>", 3));
    CLI_TRY(add_word(text, "<unk>", 5));
    for (int64_t i = 0; i < words->count; i++) {
        const bool kept = text->word_count < most && order[i]->count >= least_count;
        order[i]->id = kept ? (int32_t)text->word_count : UNKNOWN;
        if (kept) CLI_TRY(add_word(text, order[i]->word, order[i]->bytes));
    }
    arena_drop(order);
    return CLI_OK;
}

/* Find the start of the held-out parts, which have at least one sequence each. */
static cli_exit divide(const train_text_options *o, train_text *text, int64_t *context)
{
    const int64_t whole = text->count, usual = o->characters ? 128 : 64;
    const int64_t room = whole / MOST_PARTS; /* room for one sequence and its next word */
    *context = o->context ? o->context : usual < room - 1 ? usual : room - 1;
    if (*context + 1 > room || *context < LEAST_CONTEXT)
        return cli_fail(CLI_BAD_INPUT,
                        "--text %s: %" PRId64 " %s are too few, at least %" PRId64 " are needed%s",
                        o->path, whole, o->characters ? "characters" : "words and marks",
                        MOST_PARTS * ((o->context ? o->context : LEAST_CONTEXT) + 1),
                        o->context ? " for such a --context" : "");
    const int64_t part = whole / PARTS > *context + 1 ? whole / PARTS : *context + 1;
    text->held_out[0] = whole - 2 * part;
    text->held_out[1] = whole - part;
    return CLI_OK;
}

/* ---- the task ------------------------------------------------------------------------------ */

/* Set the tokens to <s> w1 .. wT-1 and the targets to w1 .. wT. */
static void set_window(const int32_t *words, int64_t b, train_batch *batch)
{
    const int64_t T = batch->T;
    for (int64_t i = 0; i < T; i++) {
        batch->tokens[b * T + i] = i == 0 ? BEGIN : words[i - 1];
        batch->targets[b * T + i] = words[i];
        batch->weights[b * T + i] = 1.0f / (float)(batch->B * T);
        batch->probes[batch->probe_count++] = (train_probe){.b = b, .row = i, .wrong = -1};
    }
    batch->lengths[b] = T;
}

/* The number of consecutive sequences of a held-out part. */
static int64_t windows(const train_text *text, train_split split)
{
    const int64_t begin = text->held_out[split == TRAIN_SPLIT_REPORT];
    const int64_t end = split == TRAIN_SPLIT_REPORT ? text->count : text->held_out[1];
    return (end - begin) / text->task.longest;
}

static void draw(const train_ask *ask, train_batch *batch)
{
    const train_text *text = ask->task->text;
    const int64_t T = ask->task->longest;
    batch->B = ask->count;
    batch->T = T;
    batch->S = batch->probe_count = 0;
    for (int64_t b = 0; b < batch->B; b++) {
        int64_t at;
        if (ask->split == TRAIN_SPLIT_TRAIN) {
            at = random_below(ask->random, text->held_out[0] - T + 1);
        } else { /* evenly spaced, if the part is not evaluated completely */
            const bool report = ask->split == TRAIN_SPLIT_REPORT;
            const int64_t of = windows(text, ask->split);
            const int64_t asked =
                report ? text->recipe.probes_to_report : text->recipe.probes_to_stop;
            at = text->held_out[report] + (ask->first + b) * of / asked % of * T;
        }
        set_window(text->tokens + at, b, batch);
    }
}

static train_verdict judge(const train_recipe *recipe, int64_t step, const train_scores *s)
{
    (void)recipe;
    (void)step;
    (void)s;
    return TRAIN_GO_ON; /* training ends by patience or by the number of steps */
}

/* A Llama with tied embeddings, regularised because texts are short. */
static const train_recipe recipe = {
    .model = {.flags = MHA_TRANSFORMER_CAUSAL | MHA_TRANSFORMER_TIED, TRAIN_LLAMA(4)},
    .learning_rate = 2e-3,
    .beta1 = 0.9,
    .beta2 = 0.98,
    .weight_decay = 0.1,
    .clip = 1,
    .dropout = 0.3,
    .warm_up = 50,
    .batch = 16,
    .steps = 1000,
    .every = 50,
    .tries = 1,
    .patience = 6,
};

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void make_task(const train_text_options *o, int64_t context, train_text *text)
{
    text->recipe = recipe;
    text->task = (train_task){
        .name = "text",
        .summary = "the text of a file: predict the next word",
        .goal = "the next word",
        .hybrid_goal = "the next word",
        .words = (const char *const *)text->words,
        .word_count = text->word_count,
        .longest = context,
        .recipe = &text->recipe,
        .probes = context,
        .draw = draw,
        .judge = judge,
        .begin = BEGIN,
        .end = -1,
        .text = text,
        .unknown = UNKNOWN,
        .splitting = o->characters ? MHA_SPLIT_CHARACTERS : MHA_SPLIT_PUNCTUATION,
        .looked_at = context >= 512 ? 4 : 16,
        .mark = text->mark,
    };
    text->recipe.probes_to_stop = smaller(windows(text, TRAIN_SPLIT_STOP), TO_STOP);
    text->recipe.probes_to_report = smaller(windows(text, TRAIN_SPLIT_REPORT), TO_REPORT);
}

/* Reject texts with nothing to learn. */
static cli_exit check_words(const train_text_options *o, const train_text *text)
{
    const double part = 100.0 * (double)text->unknown / (double)text->count;
    if (text->word_count == SPECIALS)
        return cli_fail(CLI_BAD_INPUT,
                        "--text %s: none of the %" PRId64
                        " words and marks for training occurs twice, so there is nothing to learn; "
                        "give a longer text, or --chars",
                        o->path, text->held_out[0]);
    if (part > 40)
        cli_warn(
            "--text %s: %.0f %% of the text is <unk>, words that do not occur twice%s, so that "
            "most targets are <unk>; give a longer text%s",
            o->path, part, o->words ? " or are beyond --words" : "",
            o->characters ? "" : ", or --chars");
    return CLI_OK;
}

cli_exit train_text_make(const train_text_options *o, train_text *text)
{
    char *bytes = NULL;
    size_t size = 0;
    int64_t context = 0;
    table words = {0};
    *text = (train_text){0};
    CLI_TRY(read_file(o->path, &bytes, &size));
    CLI_TRY(split(o->path, bytes, size,
                  o->characters ? MHA_SPLIT_CHARACTERS : MHA_SPLIT_PUNCTUATION, &words, text));
    CLI_TRY(divide(o, text, &context));
    for (int64_t i = 0; i < text->held_out[0]; i++) words.entries[text->tokens[i]].count++;
    CLI_TRY(choose_words(&words, o->words ? o->words : 4096, o->characters ? 1 : 2, text));
    text->bytes = (int64_t)size;
    text->kinds = words.count;
    for (int64_t i = 0; i < text->count; i++) {
        text->tokens[i] = words.entries[text->tokens[i]].id;
        text->unknown += text->tokens[i] == UNKNOWN;
    }
    CLI_TRY(check_words(o, text));
    snprintf(text->mark, sizeof text->mark, "%" PRId64 " %" PRId64 " %016" PRIx64, text->count,
             context, hash_of(bytes, size));
    make_task(o, context, text);
    arena_drop(words.entries), arena_drop(words.slots), arena_drop(bytes);
    return CLI_OK;
}
