/* See heads_state.h. */
#include "heads/heads_state.h"
#include "common/words.h"

#include "common/arena.h"
#include "common/files.h"
#include "common/launched.h"
#include "common/signals.h"
#include "common/texts.h"

#include <multihead/head_state.h>
#include <multihead/multihead.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define MAGIC UINT64_C(0x53444145484E554D) /* "MUNHEADS" */
#define FIRST_PRINT UINT64_C(0xCBF29CE484222325)
enum { VERSION = 3 };

/* Invertible in both: no single word can change unseen. */
uint64_t heads_state_mix(uint64_t print, uint64_t word)
{
    print = (print ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    return print ^ print >> 32;
}

static uint64_t get_word(const uint8_t *from)
{
    uint64_t word = 0;
    for (int i = 0; i < 8; i++) word |= (uint64_t)from[i] << 8 * i;
    return word;
}

/* ---- fingerprints of the model ---------------------------------------------------------------- */

/* The tokenizer is left out: the fingerprints of texts depend on it. */
static cli_exit print_of_model(const heads_options *options, const heads_found *found,
                               uint64_t *print)
{
    mha_model_digests d;
    CLI_TRY(cli_check(HEADS, mha_model_digest(found->model->context, options->model,
                                              MHA_MODEL_NO_TOKENIZER, &d)));
    *print = heads_state_mix(heads_state_mix(FIRST_PRINT, d.configuration), d.weights);
    return CLI_OK;
}

static uint64_t print_of_gates(const heads_found *found)
{
    uint64_t print = FIRST_PRINT;
    for (int64_t i = 0; found->gates && i < found->of.layers * found->model->heads; i++)
        if (found->gates[i] == 0) print = heads_state_mix(print, (uint64_t)i);
    return print;
}

/* ---- reading ---------------------------------------------------------------------------------- */

static cli_exit damaged(const heads_state *state)
{
    return cli_fail(CLI_BAD_INPUT, HEADS,
                    "%s: is no state of 'multihead heads', or is damaged; remove it to begin anew",
                    state->path);
}

static cli_exit refuse(const heads_state *state, const char *what)
{
    return cli_fail(CLI_USAGE, HEADS, "%s: %s; remove it to begin anew, or name another file",
                    state->path, what);
}

/* Words, fingerprints and their check, and how long the rest is. */
static cli_exit read_head(heads_state *state, const uint8_t *bytes, size_t size)
{
    uint64_t *was = state->was, check = FIRST_PRINT;
    if (size < 8 * (STATE_WORDS + 2)) return damaged(state);
    for (int i = 0; i < STATE_WORDS; i++) was[i] = get_word(bytes + (size_t)i * 8);
    if (was[STATE_MAGIC] != MAGIC) return damaged(state);
    if (was[STATE_VERSION] != VERSION || was[STATE_PRODUCER] != state->word[STATE_PRODUCER])
        return refuse(state, "was made by another version of multihead");
    const size_t left = size / 8 - STATE_WORDS - 2;
    if (was[STATE_TEXTS] > left || was[STATE_KINDS] > left - was[STATE_TEXTS])
        return damaged(state);
    const size_t of_head = STATE_WORDS + 1 + (size_t)(was[STATE_TEXTS] + was[STATE_KINDS]);
    for (size_t i = 0; i < of_head; i++) check = heads_state_mix(check, get_word(bytes + i * 8));
    const size_t rest = size - 8 * (of_head + 1);
    if (check != get_word(bytes + 8 * of_head) || was[STATE_OF_TEXTS] > rest ||
        was[STATE_OF_RANDOM] != rest - was[STATE_OF_TEXTS] || was[STATE_TOKENS] > INT64_MAX ||
        was[STATE_LOST_LINKS] > INT64_MAX || was[STATE_SEQUENCES] > INT64_MAX ||
        (was[STATE_TEXTS] > 0 && was[STATE_OF_TEXTS] == 0) ||
        (was[STATE_SEQUENCES] > 0 && was[STATE_OF_RANDOM] == 0))
        return damaged(state);
    state->were = bytes + (size_t)8 * STATE_WORDS;
    state->of_texts = (const char *)bytes + 8 * (of_head + 1);
    state->of_random = state->of_texts + was[STATE_OF_TEXTS];
    return CLI_OK;
}

/* Random sequences are taken after the texts, which may be hours later: damage is found now. */
static cli_exit check_random(const heads_state *state, const heads_found *found)
{
    mha_head_measures *measures = NULL;
    mha_head_corpus *corpus = NULL;
    if (state->was[STATE_OF_RANDOM] == 0) return CLI_OK;
    const mha_status status =
        mha_head_state_read(found->model->context, state->of_random,
                            (size_t)state->was[STATE_OF_RANDOM], NULL, &measures, &corpus);
    const bool plain = status == MHA_OK && !corpus;
    mha_head_corpus_destroy(corpus);
    mha_head_measures_destroy(measures);
    if (status == MHA_ERR_NOMEM) return cli_fail_status(HEADS, status);
    return plain ? CLI_OK : damaged(state);
}

cli_exit heads_state_begin(const heads_options *options, const heads_found *found,
                           heads_state *state)
{
    struct stat status;
    size_t size;
    char what[160];
    *state = (heads_state){.path = ranks_first() ? options->state : NULL,
                           .every = options->save_every < 0 ? 60 : (double)options->save_every,
                           .due = seconds_now()};
    if (!state->path) return CLI_OK;
    state->due += state->every;
    uint64_t *word = state->word;
    word[STATE_MAGIC] = MAGIC;
    word[STATE_VERSION] = VERSION;
    word[STATE_PRODUCER] =
        ((uint64_t)MHA_VERSION_MAJOR << 16 | MHA_VERSION_MINOR) << 16 | MHA_VERSION_PATCH;
    word[STATE_WITHOUT] = print_of_gates(found);
    CLI_TRY(print_of_model(options, found, &word[STATE_MODEL]));
    if (!state->path || stat(state->path, &status) != 0 || status.st_size == 0) return CLI_OK;
    /* Not as texts are read: there is no limit, a state of 1,000 heads has some 400 MB. */
    CLI_TRY(texts_read_regular(HEADS, state->path, PTRDIFF_MAX, &state->file, &size));
    CLI_TRY(read_head(state, (const uint8_t *)state->file, size));
    if (state->was[STATE_MODEL] != word[STATE_MODEL])
        return refuse(state, "was measured on another model, or its files have changed");
    if (state->was[STATE_WITHOUT] != word[STATE_WITHOUT])
        return refuse(state, "was measured with other heads left out (--without)");
    if (!options->alone && state->was[STATE_SEQUENCES] > (uint64_t)options->random) {
        snprintf(what, sizeof what, "has %" PRIu64 " random sequences, --random asks for %" PRId64,
                 state->was[STATE_SEQUENCES], options->random);
        return refuse(state, what);
    }
    CLI_TRY(check_random(state, found));
    state->kept = true; /* until something is measured */
    return CLI_OK;
}

/* A file may say anything: pages look these places up. */
static bool places_are_there(const heads_state *state, const mha_head_corpus *corpus, int64_t layer,
                             int64_t head, int64_t texts)
{
    mha_head_place places[MHA_HEAD_CORPUS_MOST_PLACES];
    for (int n = 0; n < MHA_MEASURES; n++)
        for (int least = 0; least < 2; least++) {
            const int64_t count =
                mha_head_corpus_places(corpus, layer, head, (mha_head_measure)n, least, places,
                                       MHA_HEAD_CORPUS_MOST_PLACES);
            for (int64_t i = 0; i < count; i++)
                if (places[i].text >= texts || places[i].row >= state->lengths[places[i].text] ||
                    places[i].key >= state->lengths[places[i].text])
                    return false;
        }
    return true;
}

mha_status heads_state_merge(const heads_found *found, const void *bytes, size_t size,
                             mha_head_measures *measures, mha_head_corpus *corpus)
{
    mha_head_measures *m = NULL;
    mha_head_corpus *c = NULL;
    mha_status status = mha_head_state_read(found->model->context, bytes, size, NULL, &m, &c);
    if (status == MHA_OK && (c == NULL) != (corpus == NULL)) status = MHA_ERR_FORMAT;
    if (status == MHA_OK)
        status = found->spread ? mha_head_measures_merge_layers(measures, m)
                               : mha_head_measures_merge(measures, m);
    if (status == MHA_OK && corpus)
        status = found->spread ? mha_head_corpus_merge_layers(corpus, c)
                               : mha_head_corpus_merge(corpus, c);
    mha_head_corpus_destroy(c);
    mha_head_measures_destroy(m);
    return status;
}

static cli_exit take(const heads_state *state, const heads_found *found, const char *bytes,
                     uint64_t size, mha_head_measures *measures, mha_head_corpus *corpus)
{
    const mha_status status = heads_state_merge(found, bytes, (size_t)size, measures, corpus);
    if (status == MHA_ERR_NOMEM) return cli_fail_status(HEADS, status);
    return status == MHA_OK ? CLI_OK : damaged(state);
}

cli_exit heads_state_take_texts(heads_state *state, const heads_options *options,
                                heads_found *found, int64_t texts, int64_t *done)
{
    char what[160];
    const int64_t had = (int64_t)state->was[STATE_TEXTS];
    *done = had;
    if (!state->path || had == 0) return CLI_OK;
    if (had > texts) {
        snprintf(what, sizeof what, "has %" PRId64 " text%s, but %" PRId64 " are given", had,
                 words_s(had), texts);
        return refuse(state, what);
    }
    for (int64_t i = 0; i <= had; i++) {
        if (get_word(state->were + 8 * i) == state->prints[i]) continue;
        snprintf(what, sizeof what, "was measured on other texts: text %" PRId64 " differs", i);
        return refuse(state, i == 0 ? "was measured with other options of gold links" : what);
    }
    if (state->was[STATE_RANKS] != state->word[STATE_RANKS])
        return refuse(state, "was measured when there were other texts after those that it has: "
                             "ranks of tokens by frequency, for rare words, are of all texts");
    CLI_TRY(take(state, found, state->of_texts, state->was[STATE_OF_TEXTS], found->of.texts,
                 found->of.corpus));
    for (int64_t l = 0; l < found->of.layers; l++)
        for (int64_t h = 0; h < found->of.heads[l]; h++)
            if (!places_are_there(state, found->of.corpus, l, h, had)) return damaged(state);
    state->word[STATE_TOKENS] = state->was[STATE_TOKENS];
    found->of.lost_links = (int64_t)state->was[STATE_LOST_LINKS];
    cli_note(options->quiet,
             "%s: goes on after %" PRId64 " of %" PRId64 " text%s and %" PRIu64
             " random sequence%s",
             state->path, had, texts, words_s(texts), state->was[STATE_SEQUENCES],
             words_s((int64_t)state->was[STATE_SEQUENCES]));
    return CLI_OK;
}

cli_exit heads_state_take_random(heads_state *state, heads_found *found)
{
    if (!state->path || state->was[STATE_SEQUENCES] == 0) return CLI_OK;
    if (state->was[STATE_RANDOM] != state->word[STATE_RANDOM])
        return refuse(state, "was measured on other random tokens");
    return take(state, found, state->of_random, state->was[STATE_OF_RANDOM], found->of.random,
                NULL);
}

/* ---- shown as it is --------------------------------------------------------------------------- */

ARENA_RELEASE(destroy_measures, mha_head_measures_destroy)
ARENA_RELEASE(destroy_corpus, mha_head_corpus_destroy)

/* The fingerprint of the model in a file's header may be forged. */
static bool fits_model(const heads_found *found, const mha_head_measures *measures)
{
    bool fits = mha_head_measures_heads(measures, found->of.layers) < 0;
    for (int64_t l = 0; l < found->of.layers; l++)
        fits = fits && mha_head_measures_heads(measures, l) == found->of.heads[l];
    return fits;
}

static cli_exit read_part(const heads_state *state, const heads_found *found, const char *bytes,
                          uint64_t size, mha_head_measures **measures, mha_head_corpus **corpus)
{
    if (size == 0) return CLI_OK;
    const mha_status status =
        mha_head_state_read(found->model->context, bytes, (size_t)size, NULL, measures, corpus);
    if (status == MHA_ERR_NOMEM) return cli_fail_status(HEADS, status);
    if (status != MHA_OK) return damaged(state);
    CLI_TRY(arena_keep(HEADS, *measures, destroy_measures));
    if (!fits_model(found, *measures)) return damaged(state);
    return *corpus ? arena_keep(HEADS, *corpus, destroy_corpus) : CLI_OK;
}

static cli_exit take_kinds(const heads_state *state, heads_found *found)
{
    const uint8_t *from = state->were + 8 * (state->was[STATE_TEXTS] + 1);
    int64_t *ids;
    found->of.kinds = (int64_t)state->was[STATE_KINDS];
    CLI_TRY(ARENA_ALLOC(HEADS, found->of.kinds, &ids));
    for (int64_t k = 0; k < found->of.kinds; k++) {
        ids[k] = (int64_t)get_word(from + 8 * k);
        if (get_word(from + 8 * k) >= (uint64_t)found->model->desc.vocab_size)
            return damaged(state);
    }
    found->of.id_of = ids;
    return CLI_OK;
}

static cli_exit take_relations(heads_found *found)
{
    const char **names;
    while (mha_head_measures_name(found->of.texts, found->of.relation_count))
        found->of.relation_count++;
    CLI_TRY(ARENA_ALLOC(HEADS, found->of.relation_count, &names));
    for (int64_t r = 0; r < found->of.relation_count; r++)
        names[r] = mha_head_measures_name(found->of.texts, r);
    found->of.relations = names;
    return CLI_OK;
}

cli_exit heads_state_show(const heads_state *state, const heads_options *options,
                          heads_found *found)
{
    const uint64_t *was = state->was;
    mha_head_corpus *none = NULL;
    if (!ranks_first()) return CLI_OK;
    if (!was[STATE_MAGIC])
        return cli_fail(CLI_NO_INPUT, HEADS,
                        "%s: holds no scores; 'multihead heads %s --text FILE --state %s' measures "
                        "them",
                        options->state, options->model, options->state);
    CLI_TRY(read_part(state, found, state->of_texts, was[STATE_OF_TEXTS], &found->of.texts,
                      &found->of.corpus));
    CLI_TRY(
        read_part(state, found, state->of_random, was[STATE_OF_RANDOM], &found->of.random, &none));
    CLI_TRY(take_kinds(state, found));
    CLI_TRY(take_relations(found));
    if (!options->corpus) found->of.corpus = NULL;
    found->of.text_count = (int64_t)was[STATE_TEXTS];
    found->of.token_count = (int64_t)was[STATE_TOKENS];
    found->of.lost_links = (int64_t)was[STATE_LOST_LINKS];
    found->of.random_count = (int64_t)was[STATE_SEQUENCES];
    cli_note(options->quiet,
             "%s: %" PRId64 " text%s and %" PRId64 " random sequence%s; nothing is measured",
             state->path, found->of.text_count, words_s(found->of.text_count),
             found->of.random_count, words_s(found->of.random_count));
    return CLI_OK;
}

/* ---- writing ---------------------------------------------------------------------------------- */

typedef struct saving {
    const heads_state *state;
    const heads_found *found;
} saving;

static mha_status put_words(const mha_sink *sink, const uint64_t *from, int64_t count,
                            uint64_t *check)
{
    for (int64_t i = 0; i < count; i++) {
        uint8_t bytes[8];
        for (int n = 0; n < 8; n++) bytes[n] = (uint8_t)(from[i] >> 8 * n & 0xFF);
        *check = heads_state_mix(*check, from[i]);
        const mha_status status = sink->write(sink->user, bytes, sizeof bytes);
        if (status != MHA_OK) return status;
    }
    return MHA_OK;
}

static mha_status draw(const void *user, const mha_sink *sink)
{
    const saving *s = user;
    uint64_t word[STATE_WORDS], check = FIRST_PRINT;
    memcpy(word, s->state->word, sizeof word);
    word[STATE_OF_TEXTS] = (uint64_t)mha_head_state_bytes(s->found->of.texts);
    word[STATE_OF_RANDOM] = (uint64_t)mha_head_state_bytes(s->found->of.random);
    word[STATE_KINDS] = (uint64_t)s->found->of.kinds;
    mha_status status = put_words(sink, word, STATE_WORDS, &check);
    const uint64_t none = FIRST_PRINT, *prints = s->state->prints ? s->state->prints : &none;
    if (status == MHA_OK) status = put_words(sink, prints, (int64_t)word[STATE_TEXTS] + 1, &check);
    if (status == MHA_OK)
        status = put_words(sink, (const uint64_t *)s->found->of.id_of, s->found->of.kinds, &check);
    const uint64_t whole = check;
    if (status == MHA_OK) status = put_words(sink, &whole, 1, &check);
    if (status == MHA_OK && s->found->of.texts)
        status = mha_head_state_write(s->found->of.texts, sink);
    if (status == MHA_OK && s->found->of.random)
        status = mha_head_state_write(s->found->of.random, sink);
    return status;
}

static mha_status save(heads_state *state, const heads_found *found)
{
    signals_hold(); /* to the end of the file: all that was measured is in it */
    const mha_status status =
        files_draw(state->path, draw, &(saving){.state = state, .found = found});
    signals_release();
    state->due = seconds_now() + state->every;
    state->kept = status == MHA_OK;
    return status;
}

void heads_state_save(heads_state *state, const heads_found *found)
{
    if (!state->path || state->kept) return;
    const mha_status status = save(state, found);
    if (status != MHA_OK) cli_warn(HEADS, "%s; the work goes on", mha_error_detail());
}

void heads_state_save_if_due(heads_state *state, const heads_found *found)
{
    if (state->path && seconds_now() >= state->due) heads_state_save(state, found);
}

cli_exit heads_state_end(heads_state *state, const heads_found *found)
{
    if (!state->path || state->kept) return CLI_OK;
    return cli_check(HEADS, save(state, found));
}
