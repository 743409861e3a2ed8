/* The passes of 'multihead heads' (head_pass.h): what the tokens of each text are, then repeated
 * random tokens. */
#include "common/arena.h"
#include "common/launched.h"
#include "common/progress.h"
#include "common/signals.h"
#include "common/words.h"
#include "heads/heads.h"
#include "heads/heads_state.h"

#include <multihead/head_pass.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Everything that measuring texts needs. */
typedef struct job {
    const heads_options *options;
    const text_model *model;
    heads_found *found;
    mha_study *study;
    const mha_study_found *is; /* what it has measured */
    progress progress;
    int64_t number, count; /* text 3 of 8 */
    heads_round round;
    heads_state state;
} job;

/* The study counts what it was given; of a state, or over ranks, there is more. */
static mha_status show_progress(void *user, const mha_study_progress *at)
{
    job *j = user;
    mha_study_progress whole = *at;
    whole.number = j->number;
    whole.count = j->count;
    text_show_study(&j->progress, &whole);
    return MHA_OK;
}

static void begin_progress(job *j, int64_t count)
{
    j->progress = progress_begin(j->options->quiet);
    j->count = count;
}

/* What a call of the study gave; it may have made its objects anew. */
static cli_exit take(job *j, mha_status status)
{
    progress_clear(&j->progress);
    j->found->of.texts = j->is->texts;
    j->found->of.random = j->is->random;
    j->found->of.corpus = j->is->corpus;
    j->found->of.distances = j->is->distances;
    return cli_check(HEADS, status);
}

/* ---- Texts ----------------------------------------------------------------------------------- */

cli_exit heads_source_encode(const heads_options *options, text_model *model,
                             const heads_source *source, mha_tokens **tokens)
{
    const text_limits limits = {.most = options->max_tokens, .truncate = options->truncate};
    text_model_where(model, source->file, source->line);
    return text_model_encode(model, &limits, source->text, source->bytes, NULL, 0, tokens);
}

static uint64_t print_of_string(uint64_t print, const char *text)
{
    for (; *text; text++) print = heads_state_mix(print, (unsigned char)*text);
    return heads_state_mix(print, 0);
}

/* What gold links can be of. */
static uint64_t print_of_relations(const job *j, const conllu *gold)
{
    uint64_t print = heads_state_mix(1, (uint64_t)j->options->predict);
    for (int64_t r = 0; r < gold->relations; r++) print = print_of_string(print, gold->names[r]);
    return print;
}

/* All of a text that scores depend on. */
static uint64_t print_of_text(uint64_t print, const mha_tokens *tokens, const conllu_sentence *gold)
{
    print = heads_state_mix(print, (uint64_t)tokens->count);
    for (int64_t t = 0; t < tokens->count; t++) {
        print = heads_state_mix(print, (uint64_t)tokens->ids[t]);
        print = heads_state_mix(print, (uint64_t)(tokens->special[t] ? 1 : 0) |
                                           (tokens->separators[t] ? 2 : 0) |
                                           (uint64_t)tokens->types[t] << 2);
        if (gold) print = heads_state_mix(print, (uint64_t)tokens->begin[t]);
    }
    for (int64_t w = 0; gold && w < gold->words; w++)
        print = heads_state_mix(heads_state_mix(print, (uint64_t)gold->begin[w]),
                                (uint64_t)gold->end[w]);
    for (int64_t i = 0; gold && i < gold->link_count; i++) {
        print = heads_state_mix(print, (uint64_t)gold->links[i].query);
        print = heads_state_mix(print, (uint64_t)gold->links[i].key);
        print = heads_state_mix(print, (uint64_t)gold->links[i].relation);
    }
    return print;
}

/* Tokens are counted first: which are rare is known when all are. */
static cli_exit count_tokens(job *j, text_model *model, const heads_sources *sources)
{
    heads_state *s = &j->state;
    CLI_TRY(ARENA_ALLOC(HEADS, sources->count + 1, &s->prints));
    CLI_TRY(ARENA_ALLOC(HEADS, sources->count, &s->lengths));
    s->prints[0] = print_of_relations(j, &sources->gold);
    for (int64_t i = 0; i < sources->count; i++) {
        const size_t mark = arena_mark();
        mha_tokens *tokens;
        CLI_TRY(heads_source_encode(j->options, model, &sources->items[i], &tokens));
        s->prints[i + 1] = print_of_text(s->prints[i], tokens, sources->items[i].gold);
        s->lengths[i] = tokens->count;
        CLI_TRY(cli_check(HEADS, mha_study_count(j->study, tokens)));
        j->found->of.token_count += tokens->count;
        arena_release(mark);
    }
    return CLI_OK;
}

static cli_exit rank_tokens(job *j)
{
    CLI_TRY(take(j, mha_study_begin(j->study)));
    const mha_study_found *is = j->is;
    uint64_t print = heads_state_mix(1, (uint64_t)is->kinds);
    for (int64_t id = 0; id < is->vocab_size; id++)
        if (is->counts[id] > 0)
            print = heads_state_mix(heads_state_mix(print, (uint64_t)id), (uint64_t)is->ranks[id]);
    j->state.word[STATE_RANKS] = print;
    j->found->of.kinds = is->kinds;
    j->found->of.id_of = is->id_of;
    return CLI_OK;
}

static cli_exit measure_text(job *j, text_model *model, const heads_source *source)
{
    const conllu_sentence *gold = source->gold;
    const size_t mark = arena_mark();
    const int64_t lost = j->is->lost_links;
    mha_study_links links;
    mha_study_visit visit = {.struct_size = sizeof visit};
    mha_tokens *tokens;
    CLI_TRY(heads_source_encode(j->options, model, source, &tokens));
    if (gold) {
        links = (mha_study_links){.begin = gold->begin,
                                  .end = gold->end,
                                  .words = gold->words,
                                  .links = gold->links,
                                  .count = gold->link_count,
                                  .predict = j->options->predict};
        visit.links = &links;
    }
    CLI_TRY(take(j, mha_study_text(j->study, tokens, &visit)));
    j->found->of.lost_links += j->is->lost_links - lost;
    arena_release(mark);
    return CLI_OK;
}

static cli_exit next_text(job *j, text_model *model, const heads_sources *sources)
{
    heads_state *s = &j->state;
    if (j->number >= j->round.first && j->number < j->round.last) {
        CLI_TRY(heads_ranks_number(j->found, j->number));
        CLI_TRY(measure_text(j, model, &sources->items[j->number]));
    }
    s->word[STATE_TOKENS] += (uint64_t)s->lengths[j->number];
    s->word[STATE_TEXTS] = (uint64_t)++j->number;
    s->word[STATE_LOST_LINKS] = (uint64_t)j->found->of.lost_links;
    s->kept = false;
    if (!ranks_transport()) heads_state_save_if_due(s, j->found);
    return CLI_OK;
}

/* Of --state over ranks: seconds that a round takes; else all is one. */
static double round_seconds(const job *j)
{
    return j->options->state ? j->state.every : -1;
}

/* A signal to one of several ranks ends it, and so all: what rank 0 has saved is whole. */
static void end_by_signal(void)
{
    if (ranks_transport()) signals_end();
}

/* After a signal, save what was measured, and show it. */
static bool end_of_measuring(job *j, cli_exit result, bool measured)
{
    end_by_signal();
    if (result != CLI_OK || !measured) {
        signals_release();
        return false;
    }
    const bool stopped = signals_postpone();
    if (stopped) j->found->unsaved = heads_state_end(&j->state, j->found);
    return stopped;
}

/* After a round over ranks: what all have measured, at rank 0. */
static cli_exit end_round(job *j, mha_head_measures *measures, mha_head_corpus *corpus,
                          cli_exit result)
{
    end_by_signal();
    j->round.seconds = seconds_now() - j->round.began;
    CLI_TRY(heads_ranks_gather(j->found, measures, corpus, result));
    end_by_signal();
    j->state.word[STATE_LOST_LINKS] = (uint64_t)j->found->of.lost_links;
    if (ranks_transport()) heads_state_save_if_due(&j->state, j->found);
    return CLI_OK;
}

static cli_exit measure_round(job *j, text_model *model, const heads_sources *sources)
{
    heads_found *f = j->found;
    cli_exit result = CLI_OK;
    CLI_TRY(heads_ranks_round(f, &j->round, j->state.lengths, sources->count, round_seconds(j)));
    while (result == CLI_OK && j->number < j->round.end && !signals_came())
        result = next_text(j, model, sources);
    CLI_TRY(end_round(j, f->of.texts, f->of.corpus, result));
    if (ranks_first() || j->number == sources->count) return CLI_OK;
    return take(j, mha_study_begin(j->study));
}

/* The file is rank 0's: what it says of it holds for all. */
static cli_exit agreed(const job *j, cli_exit code)
{
    return j->options->state ? ranks_agree(HEADS, code) : code;
}

static cli_exit take_texts(job *j, int64_t count)
{
    int64_t done = 0;
    CLI_TRY(agreed(j, heads_state_take_texts(&j->state, j->options, j->found, count, &done)));
    j->number = done;
    j->round = (heads_round){.end = done};
    return CLI_OK;
}

static cli_exit measure_texts(job *j, text_model *model, const heads_sources *sources)
{
    heads_state *state = &j->state;
    if (sources->count == 0) return take_texts(j, 0);
    CLI_TRY(count_tokens(j, model, sources));
    CLI_TRY(rank_tokens(j));
    CLI_TRY(take_texts(j, sources->count));
    begin_progress(j, sources->count);
    state->word[STATE_TEXTS] = (uint64_t)j->number;
    signals_hold();
    cli_exit result = CLI_OK;
    while (result == CLI_OK && j->number < sources->count && !signals_came())
        result = measure_round(j, model, sources);
    const bool stopped = end_of_measuring(j, result, j->number > 0);
    CLI_TRY(result);
    j->found->of.text_count = j->number;
    if (stopped) {
        cli_note(false, "interrupted: %" PRId64 " of %" PRId64 " text%s were measured", j->number,
                 sources->count, words_s(sources->count));
        j->found->stopped = true;
        j->found->of.token_count = (int64_t)state->word[STATE_TOKENS];
    }
    j->found->of.relations = j->is->relations;
    j->found->of.relation_count = j->is->relation_count;
    return CLI_OK;
}

/* ---- Repeated random tokens ------------------------------------------------------------------ */

ARENA_RELEASE(free_tokens, mha_tokens_free)

/* A sequence that the file has is drawn all the same: later ones depend on what was drawn. */
static cli_exit measure_drawn(job *j, bool measured)
{
    const size_t mark = arena_mark();
    mha_tokens *tokens;
    CLI_TRY(ARENA_ALLOC(HEADS, 1, &tokens));
    tokens->struct_size = sizeof *tokens;
    CLI_TRY(cli_check(HEADS, mha_random_tokens_draw(j->is->plan, tokens)));
    CLI_TRY(arena_keep(HEADS, tokens, free_tokens));
    j->state.word[STATE_RANDOM] = print_of_text(j->state.word[STATE_RANDOM], tokens, NULL);
    if (!measured) CLI_TRY(take(j, mha_study_random(j->study, tokens)));
    arena_release(mark);
    return CLI_OK;
}

static cli_exit draw_round(job *j, int64_t sequences)
{
    cli_exit result = CLI_OK;
    heads_state *s = &j->state;
    CLI_TRY(heads_ranks_round(j->found, &j->round, NULL, sequences, round_seconds(j)));
    while (result == CLI_OK && j->number < j->round.end && !signals_came()) {
        const bool mine = j->number >= j->round.first && j->number < j->round.last;
        result = measure_drawn(j, !mine);
        if (result != CLI_OK) break;
        s->word[STATE_SEQUENCES] = (uint64_t)++j->number;
        s->kept = false;
        if (!ranks_transport()) heads_state_save_if_due(s, j->found);
    }
    CLI_TRY(end_round(j, j->found->of.random, NULL, result));
    if (ranks_first() || j->number == sequences) return CLI_OK;
    return take(j, mha_study_begin_random(j->study));
}

/* From sequence j->number on, until a signal comes. */
static cli_exit draw_and_measure(job *j, int64_t sequences)
{
    cli_exit result = CLI_OK;
    begin_progress(j, sequences);
    j->round = (heads_round){.end = j->number};
    signals_hold();
    while (result == CLI_OK && j->number < sequences && !signals_came())
        result = draw_round(j, sequences);
    const bool stopped = end_of_measuring(j, result, j->number > 0 || j->found->of.texts);
    CLI_TRY(result);
    if (!stopped) return CLI_OK;
    cli_note(false, "interrupted: %" PRId64 " of %" PRId64 " random sequence%s were measured",
             j->number, sequences, words_s(sequences));
    j->found->stopped = true;
    return CLI_OK;
}

static cli_exit measure_random(job *j, int64_t sequences)
{
    const int64_t done = (int64_t)j->state.was[STATE_SEQUENCES];
    if (sequences == 0) return CLI_OK;
    CLI_TRY(take(j, mha_study_begin_random(j->study)));
    if (!j->is->random) {
        cli_note(j->options->quiet, "no random tokens: the model has too few words or positions");
        sequences = 0;
    }
    for (j->number = 0; j->number < done; j->number++) CLI_TRY(measure_drawn(j, true));
    CLI_TRY(agreed(j, heads_state_take_random(&j->state, j->found)));
    j->state.word[STATE_SEQUENCES] = (uint64_t)done;
    if (sequences > 0) CLI_TRY(draw_and_measure(j, sequences));
    j->found->of.random_count = j->number;
    j->found->of.plan = j->is->plan;
    return CLI_OK;
}

/* ---- Heads that are left out ----------------------------------------------------------------- */

static cli_exit make_gates(const heads_options *options, const text_model *model,
                           heads_found *found, int64_t *count)
{
    maps_picks picks;
    if (options->without.count == 0) return CLI_OK;
    CLI_TRY(text_model_pick(model, NULL, &options->without, &picks));
    CLI_TRY(ARENA_ALLOC(HEADS, picks.layers * picks.heads, &found->gates));
    for (int64_t i = 0; i < picks.layers * picks.heads; i++) found->gates[i] = picks.on[i] ? 0 : 1;
    *count = picks.count;
    return CLI_OK;
}

/* ---- All together ---------------------------------------------------------------------------- */

ARENA_RELEASE(destroy_study, mha_study_destroy)

static cli_exit begin_study(job *j, const heads_sources *sources)
{
    const heads_options *o = j->options;
    heads_found *f = j->found;
    mha_tensor *gates;
    CLI_TRY(ARENA_ALLOC(HEADS, 1, &gates)); /* outlives this call */
    *gates =
        mha_tensor_contiguous(f->gates, MHA_F32, 2, (int64_t[]){f->of.layers, j->model->heads});
    const mha_study_desc desc = {
        .struct_size = sizeof desc,
        .flags = (f->spread ? MHA_STUDY_OWN_LAYERS : 0) |
                 (o->corpus || o->state ? MHA_STUDY_CORPUS : 0) |
                 (o->clusters.given ? MHA_STUDY_DISTANCES : 0),
        .gates = f->gates ? gates : NULL,
        .relations = (const char *const *)sources->gold.names,
        .relation_count = sources->gold.relations,
        .progress = show_progress,
        .progress_user = j,
    };
    CLI_TRY(
        cli_check(HEADS, mha_study_create(j->model->context, j->model->model, &desc, &j->study)));
    CLI_TRY(arena_keep(HEADS, j->study, destroy_study));
    f->study = j->study;
    j->is = mha_study_results(j->study);
    return CLI_OK;
}

cli_exit heads_begin(const text_model *model, heads_found *found)
{
    int64_t *heads, count = 0;
    CLI_TRY(ARENA_ALLOC(HEADS, model->layers, &heads));
    for (int64_t l = 0; l < model->layers; l++) {
        heads[l] = model->desc.layer_heads ? model->desc.layer_heads[l] : model->heads;
        count += heads[l];
    }
    *found = (heads_found){
        .model = model,
        .of = {.struct_size = sizeof found->of, .layers = model->layers, .heads = heads},
        .count = count};
    return CLI_OK;
}

/* What the file has, without measuring. */
static cli_exit show_state(job *j)
{
    CLI_TRY(heads_state_show(&j->state, j->options, j->found));
    if (!j->found->of.random) return CLI_OK;
    CLI_TRY(cli_check(HEADS, mha_study_begin_random(j->study)));
    j->found->of.plan = j->is->plan;
    return CLI_OK;
}

cli_exit heads_measure(const heads_options *options, text_model *model,
                       const heads_sources *sources, heads_found *found)
{
    job j = {.options = options, .model = model, .found = found};
    int64_t without = 0;
    CLI_TRY(heads_begin(model, found));
    found->spread = options->spread && model->ranks;
    CLI_TRY(make_gates(options, model, found, &without));
    CLI_TRY(begin_study(&j, sources));
    CLI_TRY(heads_state_begin(options, found, &j.state));
    if (options->state) CLI_TRY(ranks_share(HEADS, j.state.was, sizeof j.state.was));
    if (options->alone && (j.state.was[STATE_MAGIC] || options->random == 0)) return show_state(&j);
    cli_note(options->quiet || without == 0, "without %" PRId64 " head%s: output 0", without,
             words_s(without));
    CLI_TRY(measure_texts(&j, model, sources));
    if (!found->stopped) CLI_TRY(measure_random(&j, options->random));
    if (!found->stopped && found->unsaved == CLI_OK)
        found->unsaved = heads_state_end(&j.state, found);
    arena_drop(j.state.file);
    if (!options->corpus) found->of.corpus = NULL; /* kept for the state only */
    if (found->of.lost_links > 0)
        cli_note(options->quiet, "%" PRId64 " gold link%s left out: a word has no token of its own",
                 found->of.lost_links, words_s(found->of.lost_links));
    return CLI_OK;
}
