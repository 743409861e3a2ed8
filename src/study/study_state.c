/* The state of a study: its results, with fingerprints of everything that they depend on. */
#include "study/study_parts.h"

#include <multihead/head_state.h>
#include <multihead/multihead.h>

#include <inttypes.h>
#include <string.h>

#define MAGIC UINT64_C(0x53444145484E554D) /* "MUNHEADS" */
#define FIRST_PRINT UINT64_C(0xCBF29CE484222325)
#define PRODUCER (((uint64_t)MHA_VERSION_MAJOR << 16 | MHA_VERSION_MINOR) << 16 | MHA_VERSION_PATCH)
enum { VERSION = 3, ONE = 0x3F800000 /* 1 as f32 */ };

/* Invertible in both arguments, so that a change of any single word is detected. */
static uint64_t mix(uint64_t print, uint64_t word)
{
    print = (print ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    return print ^ print >> 32;
}

/* ---- fingerprints ---------------------------------------------------------------------------- */

/* The tokenizer is omitted: the fingerprints of texts depend on it. */
static uint64_t print_of_model(const mha_study *s)
{
    return mix(mix(FIRST_PRINT, s->state.model.configuration), s->state.model.weights);
}

static uint64_t print_of_gates(const mha_study *s)
{
    uint64_t print = FIRST_PRINT;
    const mha_tensor *gates = s->desc.gates;
    for (int64_t i = 0; gates && i < gates->shape[0] * gates->shape[1]; i++) {
        const int64_t l = i / gates->shape[1], h = i % gates->shape[1];
        const float gate =
            ((const float *)gates->data)[l * gates->stride[0] + h * gates->stride[1]];
        uint32_t bits;
        memcpy(&bits, &gate, sizeof bits);
        if (bits != ONE) print = mix(print, (uint64_t)i);
        if (bits != ONE && bits != 0) print = mix(print, bits);
    }
    return print;
}

/* The fingerprint of the names of gold links. */
static uint64_t print_of_relations(const mha_study *s)
{
    uint64_t print = mix(1, s->desc.flags & MHA_STUDY_PREDICT ? 1 : 0);
    for (int64_t r = 0; r < s->desc.relation_count; r++) {
        for (const char *c = s->desc.relations[r]; *c; c++) print = mix(print, (unsigned char)*c);
        print = mix(print, 0);
    }
    return print;
}

/* The fingerprint of all properties of a text that scores depend on. */
static uint64_t print_of_text(uint64_t print, const mha_tokens *tokens, const mha_study_links *gold)
{
    print = mix(print, (uint64_t)tokens->count);
    for (int64_t t = 0; t < tokens->count; t++) {
        print = mix(print, (uint64_t)tokens->ids[t]);
        print = mix(print, (uint64_t)(tokens->special[t] ? 1 : 0) |
                               (tokens->separators[t] ? 2 : 0) | (uint64_t)tokens->types[t] << 2);
        if (gold) print = mix(print, (uint64_t)tokens->begin[t]);
    }
    const mha_picture *picture = tokens->picture;
    for (int64_t i = 0; picture && i < tokens->count * picture->feature_dim; i++) {
        uint32_t bits;
        memcpy(&bits, &picture->features[i], sizeof bits);
        print = mix(print, bits);
    }
    for (int64_t w = 0; gold && w < gold->words; w++)
        print = mix(mix(print, (uint64_t)gold->begin[w]), (uint64_t)gold->end[w]);
    for (int64_t i = 0; gold && i < gold->count; i++) {
        print = mix(print, (uint64_t)gold->links[i].query);
        print = mix(print, (uint64_t)gold->links[i].key);
        print = mix(print, (uint64_t)gold->links[i].relation);
    }
    return print;
}

void mhai_state_count(mha_study *s, const mha_tokens *tokens, const mha_study_links *links)
{
    if (!s->desc.state) return;
    if (s->counted == 0) s->prints[0] = print_of_relations(s);
    s->prints[s->counted + 1] = print_of_text(s->prints[s->counted], tokens, links);
}

void mhai_state_draw(mha_study *s, const mha_tokens *tokens)
{
    if (s->desc.state) s->print_of_random = print_of_text(s->print_of_random, tokens, NULL);
}

static uint64_t print_of_ranks(const mha_study *s)
{
    const mha_study_found *f = &s->found;
    uint64_t print = mix(1, (uint64_t)f->kinds);
    for (int64_t id = 0; id < f->vocab_size; id++)
        if (f->counts[id] > 0) print = mix(mix(print, (uint64_t)id), (uint64_t)f->ranks[id]);
    return f->texts ? print : 0;
}

/* ---- reading --------------------------------------------------------------------------------- */

static mha_status damaged(const mha_study *s)
{
    return mha_fail(MHA_ERR_FORMAT,
                    "%s: is not a state of measured heads, or is damaged; remove it to start over",
                    s->state.name);
}

static mha_status refuse(const mha_study *s, const char *what)
{
    return mha_fail(MHA_ERR_ARGUMENT, "%s: %s; remove it to start over, or name another file",
                    s->state.name, what);
}

static uint64_t get_word(const uint8_t *from)
{
    uint64_t word = 0;
    for (int i = 0; i < 8; i++) word |= (uint64_t)from[i] << 8 * i;
    return word;
}

/* Read and check the words. `rest` bytes are left for the results. */
static mha_status read_words(mha_study *s, size_t *rest)
{
    uint64_t *was = s->saved.word, check = FIRST_PRINT;
    const uint8_t *bytes = s->state.bytes;
    if (s->state.size < 8 * (STATE_WORDS + 2)) return damaged(s);
    for (int i = 0; i < STATE_WORDS; i++) was[i] = get_word(bytes + (size_t)i * 8);
    if (was[STATE_MAGIC] != MAGIC) return damaged(s);
    if (was[STATE_VERSION] != VERSION || was[STATE_PRODUCER] != PRODUCER)
        return refuse(s, "was made by another version of multihead");
    const size_t left = s->state.size / 8 - STATE_WORDS - 2;
    if (was[STATE_TEXTS] > left || was[STATE_KINDS] > left - was[STATE_TEXTS]) return damaged(s);
    const size_t of_head = STATE_WORDS + 1 + (size_t)(was[STATE_TEXTS] + was[STATE_KINDS]);
    for (size_t i = 0; i < of_head; i++) check = mix(check, get_word(bytes + i * 8));
    *rest = s->state.size - 8 * (of_head + 1);
    if (check != get_word(bytes + 8 * of_head) || was[STATE_OF_TEXTS] > *rest ||
        was[STATE_OF_RANDOM] != *rest - was[STATE_OF_TEXTS] || was[STATE_TOKENS] > INT64_MAX ||
        was[STATE_LOST_LINKS] > INT64_MAX || was[STATE_SEQUENCES] > INT64_MAX ||
        (was[STATE_TEXTS] > 0 && was[STATE_OF_TEXTS] == 0) ||
        (was[STATE_SEQUENCES] > 0 && was[STATE_OF_RANDOM] == 0))
        return damaged(s);
    const int64_t count = (int64_t)(was[STATE_TEXTS] + 1 + was[STATE_KINDS]);
    MHA_TRY(MHA_ROOM_ALLOC(&s->room, count, &s->saved.prints));
    for (int64_t i = 0; i < count; i++)
        s->saved.prints[i] = get_word(bytes + 8 * (STATE_WORDS + i));
    s->saved.kinds = s->saved.prints + was[STATE_TEXTS] + 1;
    return MHA_OK;
}

static mha_status read_part(mha_study *s, const uint8_t *bytes, uint64_t size,
                            mha_head_measures **measures, mha_head_corpus **corpus)
{
    if (size == 0) return MHA_OK;
    const mha_status status =
        mha_head_state_read(s->context, bytes, (size_t)size, NULL, measures, corpus);
    return status == MHA_OK || status == MHA_ERR_NOMEM ? status : damaged(s);
}

static mha_status read_all(mha_study *s)
{
    mhai_saved *saved = &s->saved;
    mha_head_corpus *none = NULL;
    size_t rest = 0;
    MHA_TRY(read_words(s, &rest));
    if (saved->word[STATE_MODEL] != print_of_model(s))
        return refuse(s, "was measured on another model, or its files have changed");
    if (saved->word[STATE_GATES] != print_of_gates(s))
        return refuse(s, "was measured with other heads ablated");
    const uint8_t *bytes = (const uint8_t *)s->state.bytes + s->state.size - rest;
    MHA_TRY(read_part(s, bytes, saved->word[STATE_OF_TEXTS], &saved->texts, &saved->corpus));
    bytes += saved->word[STATE_OF_TEXTS];
    MHA_TRY(read_part(s, bytes, saved->word[STATE_OF_RANDOM], &saved->random, &none));
    mha_head_corpus_destroy(none);
    return none ? damaged(s) : MHA_OK;
}

void mhai_saved_destroy(mhai_saved *saved)
{
    mha_head_corpus_destroy(saved->corpus);
    mha_head_measures_destroy(saved->texts);
    mha_head_measures_destroy(saved->random);
    saved->corpus = NULL;
    saved->texts = saved->random = NULL;
}

mha_status mhai_state_read(mha_study *s)
{
    const bool first = !s->desc.ranks || s->desc.ranks->rank == 0;
    const mha_status status = s->desc.state && s->state.size > 0 && first ? read_all(s) : MHA_OK;
    MHA_TRY(mhai_study_agree(s, status));
    if (!s->desc.state || !s->desc.ranks) return MHA_OK;
    return mha_transport_broadcast(s->desc.ranks, 0, s->saved.word, sizeof s->saved.word);
}

bool mha_study_resumes(const mha_study *study, int64_t *texts, int64_t *sequences)
{
    *texts = (int64_t)study->saved.word[STATE_TEXTS];
    *sequences = (int64_t)study->saved.word[STATE_SEQUENCES];
    return study->saved.word[STATE_MAGIC] != 0;
}

/* ---- restoring ------------------------------------------------------------------------------- */

/* Whether a place is within a text. A state is untrusted, and pages look up its places. */
static bool has_place(const mha_study *s, const mha_head_place *place, int64_t texts)
{
    return place->text < texts && place->row < s->lengths[place->text] &&
           place->key < s->lengths[place->text];
}

static bool has_places(const mha_study *s, int64_t layer, int64_t head, int64_t texts)
{
    mha_head_place places[MHA_HEAD_CORPUS_MOST_PLACES];
    for (int n = 0; n < 2 * MHA_MEASURES; n++) {
        const int64_t count =
            mha_head_corpus_places(s->found.corpus, layer, head, (mha_head_measure)(n / 2), n % 2,
                                   places, MHA_HEAD_CORPUS_MOST_PLACES);
        for (int64_t i = 0; i < count; i++)
            if (!has_place(s, &places[i], texts)) return false;
    }
    return true;
}

/* Merge the state's results, whose shape may contradict its fingerprints. */
static mha_status merge(mha_study *s, mha_head_measures *to, const mha_head_measures *from)
{
    mha_status status = to ? mha_head_measures_merge(to, from) : MHA_ERR_FORMAT;
    if (status == MHA_OK && !s->random && (!s->saved.corpus != !s->found.corpus))
        status = MHA_ERR_FORMAT;
    if (status == MHA_OK && !s->random && s->found.corpus)
        status = mha_head_corpus_merge(s->found.corpus, s->saved.corpus);
    return status == MHA_OK || status == MHA_ERR_NOMEM ? status : damaged(s);
}

static mha_status check_counts(const mha_study *s)
{
    char what[160];
    const int64_t texts = (int64_t)s->saved.word[STATE_TEXTS],
                  sequences = (int64_t)s->saved.word[STATE_SEQUENCES];
    if (sequences > s->sequences)
        mha_format(what, sizeof what,
                   "has %" PRId64 " random sequences, but %" PRId64 " are requested", sequences,
                   s->sequences);
    else if (texts > s->counted)
        mha_format(what, sizeof what, "has %" PRId64 " text%s, but %" PRId64 " are given", texts,
                   texts == 1 ? "" : "s", s->counted);
    else
        return MHA_OK;
    return refuse(s, what);
}

static mha_status check_texts(const mha_study *s)
{
    char what[160];
    const int64_t had = (int64_t)s->saved.word[STATE_TEXTS];
    for (int64_t i = 0; had > 0 && i <= had; i++) {
        if (s->saved.prints[i] == s->prints[i]) continue;
        mha_format(what, sizeof what, "was measured on other texts: text %" PRId64 " differs", i);
        return refuse(s, i == 0 ? "was measured with other options of gold links" : what);
    }
    if (had > 0 && s->saved.word[STATE_RANKS] != print_of_ranks(s))
        return refuse(s, "was measured with other texts after those that it contains: ranks of "
                         "tokens by frequency, for rare words, depend on all texts");
    return MHA_OK;
}

mha_status mhai_state_take_texts(mha_study *s)
{
    mha_study_found *f = &s->found;
    const int64_t had = (int64_t)s->saved.word[STATE_TEXTS];
    if (s->saved.prints) { /* at rank 0 only */
        MHA_TRY(check_counts(s));
        MHA_TRY(check_texts(s));
    }
    if (s->saved.prints && had > 0) {
        MHA_TRY(merge(s, f->texts, s->saved.texts));
        for (int64_t l = 0; f->corpus && l < f->layers; l++)
            for (int64_t h = 0; h < f->heads[l]; h++)
                if (!has_places(s, l, h, had)) return damaged(s);
        f->lost_links = (int64_t)s->saved.word[STATE_LOST_LINKS];
    }
    f->token_count = (int64_t)s->saved.word[STATE_TOKENS];
    s->round.end = f->text_count = had;
    return MHA_OK;
}

mha_status mhai_state_take_random(mha_study *s)
{
    const uint64_t had = s->saved.word[STATE_SEQUENCES];
    if (s->saved.prints) {
        MHA_TRY(check_counts(s));
        if (had > 0 && s->saved.word[STATE_RANDOM] != s->print_of_random)
            return refuse(s, "was measured on other random tokens");
        if (had > 0) MHA_TRY(merge(s, s->found.random, s->saved.random));
    }
    s->round.end = s->found.random_count = (int64_t)had;
    return MHA_OK;
}

/* The fingerprint of the model in a state may be forged. */
static bool fits_model(const mha_study *s, const mha_head_measures *measures)
{
    bool fits = !measures || mha_head_measures_heads(measures, s->found.layers) < 0;
    for (int64_t l = 0; measures && l < s->found.layers; l++)
        fits = fits && mha_head_measures_heads(measures, l) == s->found.heads[l];
    return fits;
}

static mha_status name_relations(mha_study *s)
{
    mha_study_found *f = &s->found;
    const char **names;
    f->relation_count = 0;
    while (mha_head_measures_name(f->texts, f->relation_count)) f->relation_count++;
    MHA_TRY(MHA_ROOM_ALLOC(&s->room, f->relation_count, &names));
    for (int64_t r = 0; r < f->relation_count; r++) names[r] = mha_head_measures_name(f->texts, r);
    f->relations = names;
    return MHA_OK;
}

mha_status mha_study_restore(mha_study *study)
{
    if (!study) return mha_fail(MHA_ERR_NULL, "mha_study_restore: study is NULL");
    mha_study_found *f = &study->found;
    mhai_saved *saved = &study->saved;
    const uint64_t *was = saved->word;
    if (f->texts || f->random || !saved->prints)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_study_restore: expected a new study with a state, at rank 0");
    if (!fits_model(study, saved->texts) || !fits_model(study, saved->random) ||
        was[STATE_KINDS] > (uint64_t)study->vocab_size)
        return damaged(study);
    for (uint64_t k = 0; k < was[STATE_KINDS]; k++) {
        if (saved->kinds[k] >= (uint64_t)study->vocab_size) return damaged(study);
        study->id_of[k] = (int64_t)saved->kinds[k];
    }
    f->kinds = (int64_t)was[STATE_KINDS];
    f->id_of = study->id_of;
    f->texts = saved->texts;
    f->corpus = saved->corpus;
    f->random = saved->random;
    saved->texts = saved->random = NULL;
    saved->corpus = NULL;
    f->text_count = (int64_t)was[STATE_TEXTS];
    f->token_count = (int64_t)was[STATE_TOKENS];
    f->lost_links = (int64_t)was[STATE_LOST_LINKS];
    f->random_count = (int64_t)was[STATE_SEQUENCES];
    if (f->random) MHA_TRY(mha_random_tokens_plan(study->model, &study->plan));
    if (f->random) f->plan = &study->plan;
    return name_relations(study);
}

/* ---- writing --------------------------------------------------------------------------------- */

static mha_status put_words(const mha_sink *sink, const uint64_t *from, int64_t count,
                            uint64_t *check)
{
    for (int64_t i = 0; i < count; i++) {
        uint8_t bytes[8];
        for (int n = 0; n < 8; n++) bytes[n] = (uint8_t)(from[i] >> 8 * n & 0xFF);
        *check = mix(*check, from[i]);
        MHA_TRY(sink->write(sink->user, bytes, sizeof bytes));
    }
    return MHA_OK;
}

mha_status mha_study_write(const mha_study *study, const mha_sink *sink)
{
    MHA_NEED("mha_study_write", study, sink);
    if (!study->desc.state)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_study_write: the study was created without a state");
    const mha_study_found *f = &study->found;
    const uint64_t word[STATE_WORDS] = {
        [STATE_MAGIC] = MAGIC,
        [STATE_VERSION] = VERSION,
        [STATE_PRODUCER] = PRODUCER,
        [STATE_MODEL] = print_of_model(study),
        [STATE_GATES] = print_of_gates(study),
        [STATE_RANKS] = print_of_ranks(study),
        [STATE_RANDOM] = study->print_of_random,
        [STATE_TEXTS] = (uint64_t)f->text_count,
        [STATE_TOKENS] = (uint64_t)f->token_count,
        [STATE_LOST_LINKS] = (uint64_t)f->lost_links,
        [STATE_SEQUENCES] = (uint64_t)f->random_count,
        [STATE_KINDS] = (uint64_t)f->kinds,
        [STATE_OF_TEXTS] = (uint64_t)mha_head_state_bytes(f->texts),
        [STATE_OF_RANDOM] = (uint64_t)mha_head_state_bytes(f->random),
    };
    uint64_t check = FIRST_PRINT;
    const uint64_t none = FIRST_PRINT, *prints = study->prints ? study->prints : &none;
    MHA_TRY(put_words(sink, word, STATE_WORDS, &check));
    MHA_TRY(put_words(sink, prints, f->text_count + 1, &check));
    MHA_TRY(put_words(sink, (const uint64_t *)f->id_of, f->kinds, &check));
    const uint64_t whole = check;
    MHA_TRY(put_words(sink, &whole, 1, &check));
    if (f->texts) MHA_TRY(mha_head_state_write(f->texts, sink));
    return f->random ? mha_head_state_write(f->random, sink) : MHA_OK;
}
