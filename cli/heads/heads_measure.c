/* Run the texts of 'multihead heads', and repeated random tokens, through a study (study.h). */
#include "common/arena.h"
#include "common/launched.h"
#include "common/progress.h"
#include "common/signals.h"
#include "common/words.h"
#include "heads/heads.h"
#include "heads/heads_state.h"

#include <inttypes.h>

typedef struct job {
    const heads_options *options;
    text_model *model;
    const heads_sources *sources;
    mha_study *study;
    const mha_study_found *is; /* the study's results */
    mha_tensor gates;
    int64_t without; /* heads with a gate of 0 */
    progress progress;
    heads_state state;
    bool resumes;        /* whether the state has results */
    bool stopped, cross; /* cross: measure cross-attention */
} job;

static mha_status show_progress(void *user, const mha_study_progress *at)
{
    job *j = user;
    text_show_study(&j->progress, at);
    return MHA_OK;
}

static void save_if_due(void *user)
{
    job *j = user;
    progress_clear(&j->progress);
    heads_state_save_if_due(&j->state);
}

/* ---- texts ----------------------------------------------------------------------------------- */

cli_exit heads_source_encode(const heads_options *options, text_model *model,
                             const heads_source *source, mha_tokens **tokens, mha_tokens **keys)
{
    const text_limits limits = {.most = options->max_tokens, .truncate = options->truncate};
    const bool pair = model->encoder;
    const char *text = pair ? source->target : source->text;
    const size_t bytes = pair ? source->target_bytes : source->bytes;
    text_model_where(model, source->file, source->line);
    *tokens = source->made;
    if (source->image)
        CLI_TRY(text_model_read_image(model, source->file, tokens));
    else if (!*tokens)
        CLI_TRY(text_model_encode(model, &limits, text, bytes, NULL, 0, tokens));
    if (keys) *keys = *tokens;
    if (!keys || !pair) return CLI_OK;
    return text_model_encode_source(model, &limits, source->text, source->bytes, keys);
}

/* Count a text, or measure it. */
static cli_exit study_text(job *j, int64_t number, bool count)
{
    const heads_source *source = &j->sources->items[number];
    const conllu_sentence *gold = source->gold;
    const size_t mark = arena_mark();
    mha_study_links links;
    mha_study_visit visit = {.struct_size = sizeof visit};
    mha_tokens *tokens, *keys;
    CLI_TRY(heads_source_encode(j->options, j->model, source, &tokens, &keys));
    if (j->model->encoder) visit.source = keys;
    if (gold) {
        links = (mha_study_links){.begin = gold->begin,
                                  .end = gold->end,
                                  .words = gold->words,
                                  .links = gold->links,
                                  .count = gold->link_count};
        visit.links = &links;
    }
    const mha_status status = count
                                  ? mha_study_count(j->study, j->cross ? keys : tokens, visit.links)
                                  : mha_study_text(j->study, tokens, &visit);
    progress_clear(&j->progress);
    arena_release(mark);
    return cli_check(status);
}

static cli_exit measure_text(job *j, int64_t number)
{
    return study_text(j, number, false);
}

static cli_exit measure_drawn(job *j, int64_t number)
{
    (void)number;
    const mha_status status = mha_study_draw(j->study);
    progress_clear(&j->progress);
    return cli_check(status);
}

/* Measure until all texts are done or a signal arrives. After a signal the results so far are saved
 * and shown. A signal to one of several ranks stops all ranks; the state that rank 0 has saved is
 * complete. */
static cli_exit measure_all(job *j, cli_exit (*measure)(job *j, int64_t number))
{
    cli_exit result = CLI_OK;
    int64_t number = 0;
    j->progress = progress_begin(j->options->quiet);
    signals_hold();
    while (result == CLI_OK && number >= 0 && !signals_came()) {
        result = ranks_check(mha_study_next(j->study, &number));
        if (result == CLI_OK && number >= 0) result = measure(j, number);
    }
    if (ranks_transport()) signals_end();
    if (result == CLI_OK && j->is->text_count + j->is->random_count > 0)
        j->stopped = signals_postpone();
    else
        signals_release();
    return result;
}

static cli_exit measure_texts(job *j)
{
    const int64_t count = j->sources->count;
    int64_t texts, sequences;
    if (count == 0) return CLI_OK;
    for (int64_t i = 0; i < count; i++) CLI_TRY(study_text(j, i, true));
    CLI_TRY(ranks_check(mha_study_begin(j->study)));
    mha_study_resumes(j->study, &texts, &sequences);
    cli_note(j->options->quiet || texts == 0,
             "%s: continues after %" PRId64 " of %" PRId64 " text%s and %" PRId64
             " random sequence%s",
             j->options->state, texts, count, words_s(count), sequences, words_s(sequences));
    return measure_all(j, measure_text);
}

static cli_exit measure_random(job *j)
{
    if (j->options->random == 0 || j->stopped || j->model->encoder) return CLI_OK;
    CLI_TRY(ranks_check(mha_study_begin_random(j->study)));
    if (j->is->random) return measure_all(j, measure_drawn);
    cli_note(j->options->quiet, "no random tokens: the model has too few words or positions");
    return CLI_OK;
}

static void note_end(const job *j)
{
    const int64_t texts = j->sources->count, sequences = j->options->random;
    if (j->stopped && j->is->random)
        cli_note(false, "interrupted: %" PRId64 " of %" PRId64 " random sequence%s were measured",
                 j->is->random_count, sequences, words_s(sequences));
    else if (j->stopped)
        cli_note(false, "interrupted: %" PRId64 " of %" PRId64 " text%s were measured",
                 j->is->text_count, texts, words_s(texts));
    cli_note(j->options->quiet || j->is->lost_links == 0,
             "%" PRId64 " gold link%s skipped: a word has no token of its own", j->is->lost_links,
             words_s(j->is->lost_links));
}

/* ---- the study ------------------------------------------------------------------------------- */

/* --without */
static cli_exit make_gates(job *j)
{
    maps_picks picks;
    float *gates;
    if (j->options->without.count == 0) return CLI_OK;
    CLI_TRY(text_model_pick(j->model, NULL, &j->options->without, &picks));
    CLI_TRY(ARENA_ALLOC(picks.layers * picks.heads, &gates));
    for (int64_t i = 0; i < picks.layers * picks.heads; i++) gates[i] = picks.on[i] ? 0 : 1;
    j->gates = mha_tensor_contiguous(gates, MHA_F32, 2, (int64_t[]){picks.layers, picks.heads});
    j->without = picks.count;
    return CLI_OK;
}

ARENA_RELEASE(destroy_study, mha_study_destroy)

static cli_exit begin_study(job *j)
{
    const heads_options *o = j->options;
    int64_t texts, sequences;
    CLI_TRY(heads_state_begin(o, j->model, &j->state));
    j->state.of.save = save_if_due;
    j->state.of.save_user = j;
    const mha_study_desc desc = {
        .struct_size = sizeof desc,
        .flags = (o->spread && j->model->ranks ? MHA_STUDY_OWN_LAYERS : 0) |
                 (o->corpus || o->state ? MHA_STUDY_CORPUS : 0) |
                 (o->clusters.given ? MHA_STUDY_DISTANCES : 0) |
                 (o->predict ? MHA_STUDY_PREDICT : 0) | (j->cross ? MHA_STUDY_CROSS : 0),
        .gates = j->without > 0 ? &j->gates : NULL,
        .relations = (const char *const *)j->sources->gold.names,
        .relation_count = j->sources->gold.relations,
        .progress = show_progress,
        .progress_user = j,
        .sequences = o->random,
        .ranks = ranks_transport(),
        .state = o->state ? &j->state.of : NULL,
    };
    CLI_TRY(ranks_check(mha_study_create(j->model->context, j->model->model, &desc, &j->study)));
    CLI_TRY(arena_keep(j->study, destroy_study));
    arena_drop(j->state.of.bytes);
    j->state.study = j->study;
    j->is = mha_study_results(j->study);
    j->resumes = mha_study_resumes(j->study, &texts, &sequences);
    if (j->resumes) j->state.kept = texts + sequences;
    return CLI_OK;
}

/* Show the results of the file without measuring. */
static cli_exit show_state(const job *j)
{
    const heads_options *o = j->options;
    if (!ranks_first()) return CLI_OK;
    if (!j->resumes)
        return cli_fail(CLI_NO_INPUT,
                        "%s: holds no scores; 'multihead heads %s --text FILE --state %s' measures "
                        "them",
                        o->state, o->model, o->state);
    CLI_TRY(cli_check(mha_study_restore(j->study)));
    cli_note(o->quiet,
             "%s: %" PRId64 " text%s and %" PRId64 " random sequence%s; nothing is measured",
             o->state, j->is->text_count, words_s(j->is->text_count), j->is->random_count,
             words_s(j->is->random_count));
    return CLI_OK;
}

static cli_exit measure(job *j, cli_exit *unsaved)
{
    const heads_options *o = j->options;
    if (o->alone && (j->resumes || o->random == 0)) return ranks_agree(show_state(j));
    cli_note(o->quiet || j->without == 0, "without %" PRId64 " head%s: output 0", j->without,
             words_s(j->without));
    CLI_TRY(measure_texts(j));
    CLI_TRY(measure_random(j));
    *unsaved = heads_state_end(&j->state);
    note_end(j);
    return CLI_OK;
}

cli_exit heads_begin(const text_model *model, heads_found *found)
{
    int64_t *heads, count = 0;
    CLI_TRY(ARENA_ALLOC(model->layers, &heads));
    for (int64_t l = 0; l < model->layers; l++) {
        heads[l] = found->cross ? model->heads : mha_transformer_heads(&model->desc, l);
        count += heads[l];
    }
    *found = (heads_found){
        .model = model,
        .of = {.struct_size = sizeof found->of, .layers = model->layers, .heads = heads},
        .count = count,
        .cross = found->cross};
    return CLI_OK;
}

cli_exit heads_measure(const heads_options *options, text_model *model,
                       const heads_sources *sources, heads_found *found, cli_exit *unsaved)
{
    job *j; /* the study keeps a pointer to it */
    *unsaved = CLI_OK;
    CLI_TRY(ARENA_ALLOC(1, &j));
    found->cross = model->encoder && !options->self;
    *j = (job){.options = options, .model = model, .sources = sources, .cross = found->cross};
    CLI_TRY(make_gates(j));
    CLI_TRY(begin_study(j));
    CLI_TRY(measure(j, unsaved));
    CLI_TRY(heads_begin(model, found));
    found->of = *j->is;
    if (!options->corpus) found->of.corpus = NULL; /* stored in the state only */
    found->study = j->study;
    found->images = options->images.count > 0;
    found->gates = j->gates.data;
    found->stopped = j->stopped;
    found->made = sources->made;
    return CLI_OK;
}
