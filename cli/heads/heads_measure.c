/* The passes of 'multihead heads' (head_pass.h): what the tokens of each text are, then repeated
 * random tokens. */
#include "common/arena.h"
#include "common/launched.h"
#include "common/progress.h"
#include "common/signals.h"
#include "heads/heads.h"
#include "heads/heads_state.h"

#include <multihead/head_pass.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANDOM_BLOCK = 25, RANDOM_REPEATS = 4, RARE_RANK = 500 };

/* Everything that measuring texts needs. */
typedef struct job {
    const heads_options *options;
    const text_model *model;
    heads_found *found;
    int64_t *counts; /* [vocab_size] how often each token occurs */
    int64_t *ranks;  /* [vocab_size] 0: the most frequent */
    int64_t rare_rank;
    progress progress;
    const char *what;      /* "text" 3 of 8 */
    int64_t number, count; /* 3, 8 */
    int64_t rows;          /* tokens of it */
    heads_round round;
    heads_state state;
} job;

/* ---- Progress -------------------------------------------------------------------------------- */

static mha_status show_progress(void *user, int64_t layer, int64_t row)
{
    job *j = user;
    const double layers = (double)j->found->layers;
    const double here = ((double)layer + (double)row / (double)j->rows) / layers;
    char token[64] = "";
    if (j->rows > 1000)
        snprintf(token, sizeof token, ", token %" PRId64 " of %" PRId64, row, j->rows);
    progress_show(&j->progress, ((double)j->number + here) / (double)j->count,
                  "%s %" PRId64 " of %" PRId64 ", layer %" PRId64 " of %" PRId64 "%s", j->what,
                  j->number + 1, j->count, layer + 1, j->found->layers, token);
    return MHA_OK;
}

static void begin_progress(job *j, const char *what, int64_t count)
{
    j->progress = progress_begin(j->options->quiet);
    j->what = what;
    j->count = count;
}

/* ---- What the tokens of a text are ----------------------------------------------------------- */

/* Arrays of a text, and the description that points to them. */
typedef struct described {
    heads_arrays arrays;
    mha_heads_text text;
    int64_t *ranks, *words, *ids; /* [count] */
    mha_heads_link *links;
} described;

/* Special tokens but the first token, and the marks that end a sentence. */
static bool is_separator(const maps_token *token, int64_t index)
{
    if (token->special) return index > 0;
    const char *t = token->text;
    return t && t[0] && !t[1] && strchr(".!?;", t[0]);
}

cli_exit heads_arrays_make(const maps_tokens *tokens, heads_arrays *arrays)
{
    const int64_t n = tokens->count;
    CLI_TRY(ARENA_ALLOC(HEADS, n, &arrays->segments));
    CLI_TRY(ARENA_ALLOC(HEADS, n, &arrays->separators));
    CLI_TRY(ARENA_ALLOC(HEADS, n, &arrays->special));
    for (int64_t i = 0, segment = 0; i < n; i++) {
        arrays->special[i] = tokens->items[i].special;
        arrays->separators[i] = is_separator(&tokens->items[i], i);
        arrays->segments[i] = segment;
        segment += arrays->separators[i];
    }
    arrays->text = (mha_heads_text){.struct_size = sizeof arrays->text,
                                    .separators = arrays->separators,
                                    .special = arrays->special,
                                    .segments = arrays->segments};
    return CLI_OK;
}

static cli_exit make_arrays(const job *j, const text_tokens *tokens, described *d)
{
    const int64_t n = tokens->list.count;
    CLI_TRY(heads_arrays_make(&tokens->list, &d->arrays));
    d->text = d->arrays.text;
    if (!j->ranks) return CLI_OK;
    if (j->found->corpus) {
        CLI_TRY(heads_corpus_ids(j->found, tokens, &d->ids));
        d->text.ids = d->ids;
    }
    CLI_TRY(ARENA_ALLOC(HEADS, n, &d->ranks));
    for (int64_t i = 0; i < n; i++) d->ranks[i] = j->ranks[tokens->ids[i]];
    d->text.ranks = d->ranks;
    return CLI_OK;
}

/* Links between the words that have tokens. */
static cli_exit add_links(job *j, const conllu_sentence *gold, const text_tokens *tokens,
                          described *d)
{
    const int64_t n = tokens->list.count;
    int64_t *begin, *number;
    CLI_TRY(ARENA_ALLOC(HEADS, n, &begin));
    CLI_TRY(ARENA_ALLOC(HEADS, n, &d->words));
    CLI_TRY(ARENA_ALLOC(HEADS, gold->words, &number));
    CLI_TRY(ARENA_ALLOC(HEADS, gold->link_count, &d->links));
    for (int64_t i = 0; i < n; i++) begin[i] = tokens->list.items[i].begin;
    CLI_TRY(cli_check(HEADS, mha_head_pass_words(n, begin, gold->words, gold->begin, gold->end,
                                                 d->words, number)));
    for (int64_t i = 0; i < gold->link_count; i++) {
        const conllu_link *link = &gold->links[i];
        const int64_t from = number[link->from], to = number[link->to];
        if (from < 0 || to < 0)
            j->found->lost_links++;
        else
            d->links[d->text.links_count++] = (mha_heads_link){from, to, link->relation};
    }
    d->text.words = d->words;
    d->text.links = d->links;
    if (j->options->predict) d->text.flags |= MHA_HEADS_QUERY_PREDICTS;
    return CLI_OK;
}

/* ---- A pass ---------------------------------------------------------------------------------- */

static cli_exit measure(job *j, mha_head_measures *measures, const text_tokens *tokens,
                        const mha_heads_text *text, const text_visit *visit)
{
    const int64_t shape[] = {1, tokens->list.count};
    const mha_tensor ids = mha_tensor_contiguous(tokens->ids, MHA_I32, 2, shape),
                     types = mha_tensor_contiguous(tokens->types, MHA_I32, 2, shape);
    const bool typed = j->model->desc.type_count && tokens->types;
    const mha_tensor gates = mha_tensor_contiguous(j->found->gates, MHA_F32, 2,
                                                   (int64_t[]){j->found->layers, j->model->heads});
    const mha_transformer_input input = {.struct_size = sizeof input,
                                         .tokens = &ids,
                                         .token_types = typed ? &types : NULL,
                                         .gates = j->found->gates ? &gates : NULL,
                                         .outputs = visit->outputs,
                                         .after_layer = visit->after_layer,
                                         .after_layer_user = visit->user};
    const mha_head_pass pass = {.struct_size = sizeof pass,
                                .flags = j->found->spread ? MHA_HEAD_PASS_OWN_LAYERS : 0,
                                .measures = measures,
                                .distances =
                                    measures == j->found->texts ? j->found->distances : NULL,
                                .progress = show_progress,
                                .progress_user = j};
    j->rows = shape[1];
    mha_status status = mha_head_pass_run(j->model->context, j->model->net, &input, text, &pass);
    progress_clear(&j->progress);
    if (status == MHA_ERR_NUMERIC && j->options->beside) return CLI_BAD_INPUT;
    return cli_check(HEADS, status);
}

/* ---- Texts ----------------------------------------------------------------------------------- */

static cli_exit encode(job *j, text_model *model, const heads_source *source, text_tokens *tokens)
{
    const text_limits limits = {.most = j->options->max_tokens, .truncate = j->options->truncate};
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
static uint64_t print_of_text(uint64_t print, const text_tokens *tokens,
                              const conllu_sentence *gold)
{
    print = heads_state_mix(print, (uint64_t)tokens->list.count);
    for (int64_t t = 0; t < tokens->list.count; t++) {
        const maps_token *token = &tokens->list.items[t];
        print = heads_state_mix(print, (uint64_t)tokens->ids[t]);
        print = heads_state_mix(print, (uint64_t)(token->special ? 1 : 0) |
                                           (is_separator(token, t) ? 2 : 0) |
                                           (tokens->types ? (uint64_t)tokens->types[t] << 2 : 0));
        if (gold) print = heads_state_mix(print, (uint64_t)token->begin);
    }
    for (int64_t w = 0; gold && w < gold->words; w++)
        print = heads_state_mix(heads_state_mix(print, (uint64_t)gold->begin[w]),
                                (uint64_t)gold->end[w]);
    for (int64_t i = 0; gold && i < gold->link_count; i++) {
        print = heads_state_mix(print, (uint64_t)gold->links[i].from);
        print = heads_state_mix(print, (uint64_t)gold->links[i].to);
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
        text_tokens tokens;
        CLI_TRY(encode(j, model, &sources->items[i], &tokens));
        s->prints[i + 1] = print_of_text(s->prints[i], &tokens, sources->items[i].gold);
        s->lengths[i] = tokens.list.count;
        for (int64_t t = 0; t < tokens.list.count; t++)
            j->counts[tokens.ids[t]] += !tokens.list.items[t].special;
        j->found->token_count += tokens.list.count;
        arena_release(mark);
    }
    return CLI_OK;
}

static cli_exit rank_tokens(job *j, int64_t vocab_size)
{
    int64_t kinds = 0;
    CLI_TRY(ARENA_ALLOC(HEADS, vocab_size, &j->ranks));
    CLI_TRY(cli_check(
        HEADS, mha_head_pass_ranks(j->model->context, vocab_size, j->counts, j->ranks, &kinds)));
    j->rare_rank = kinds / 2 < RARE_RANK ? kinds / 2 : RARE_RANK;
    if (j->rare_rank < 1) j->rare_rank = 1;
    uint64_t print = heads_state_mix(1, (uint64_t)kinds);
    for (int64_t id = 0; id < vocab_size; id++)
        if (j->counts[id] > 0)
            print = heads_state_mix(heads_state_mix(print, (uint64_t)id), (uint64_t)j->ranks[id]);
    j->state.word[STATE_RANKS] = print;
    return CLI_OK;
}

static cli_exit measure_text(job *j, text_model *model, const heads_source *source)
{
    const size_t mark = arena_mark();
    text_tokens tokens;
    described d;
    CLI_TRY(encode(j, model, source, &tokens));
    CLI_TRY(make_arrays(j, &tokens, &d));
    if (source->gold) CLI_TRY(add_links(j, source->gold, &tokens, &d));
    CLI_TRY(measure(j, j->found->texts, &tokens, &d.text, &source->visit));
    arena_release(mark);
    return CLI_OK;
}

static void destroy_measures(void *measures)
{
    mha_head_measures_destroy(measures);
}

static cli_exit create(const job *j, const heads_sources *sources, mha_head_measures **measures)
{
    const heads_found *f = j->found;
    const mha_head_measures_desc desc = {.struct_size = sizeof desc,
                                         .layers = f->layers,
                                         .heads = f->heads,
                                         .rare_rank = j->rare_rank,
                                         .names = sources ? (const char *const *)sources->gold.names
                                                          : NULL,
                                         .relations = sources ? sources->gold.relations : 0};
    CLI_TRY(cli_check(HEADS, mha_head_measures_create(j->model->context, &desc, measures)));
    return arena_keep(HEADS, *measures, destroy_measures);
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
    s->word[STATE_LOST_LINKS] = (uint64_t)j->found->lost_links;
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

/* After a signal, save what was measured, and show it unless it is one part of a larger output. */
static bool end_of_measuring(job *j, cli_exit result, bool measured)
{
    end_by_signal();
    if (result != CLI_OK || !measured || j->options->beside) {
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
    j->state.word[STATE_LOST_LINKS] = (uint64_t)j->found->lost_links;
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
    CLI_TRY(end_round(j, f->texts, f->corpus, result));
    if (ranks_first() || j->number == sources->count) return CLI_OK;
    const bool corpus = f->corpus;
    arena_drop(f->corpus);
    arena_drop(f->texts);
    CLI_TRY(create(j, sources, &f->texts));
    return corpus ? heads_corpus_begin(f) : CLI_OK;
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
    const int64_t vocab_size = model->desc.vocab_size;
    heads_state *state = &j->state;
    if (sources->count == 0) return take_texts(j, 0);
    CLI_TRY(ARENA_ALLOC(HEADS, vocab_size, &j->counts));
    CLI_TRY(count_tokens(j, model, sources));
    CLI_TRY(rank_tokens(j, vocab_size));
    CLI_TRY(create(j, sources, &j->found->texts));
    if (j->options->clusters.given) CLI_TRY(heads_distances_make(j->found));
    if (j->options->corpus || j->options->state)
        CLI_TRY(heads_corpus_make(j->found, j->counts, vocab_size));
    CLI_TRY(take_texts(j, sources->count));
    begin_progress(j, "text", sources->count);
    state->word[STATE_TEXTS] = (uint64_t)j->number;
    signals_hold();
    cli_exit result = CLI_OK;
    while (result == CLI_OK && j->number < sources->count && !signals_came())
        result = measure_round(j, model, sources);
    const bool stopped = end_of_measuring(j, result, j->number > 0);
    CLI_TRY(result);
    j->found->text_count = j->number;
    if (stopped) {
        cli_note(false, "interrupted: %" PRId64 " of %" PRId64 " texts were measured", j->number,
                 sources->count);
        j->found->stopped = true;
        j->found->token_count = (int64_t)state->word[STATE_TOKENS];
    }
    j->found->relations = sources->gold.names;
    j->found->relation_count = sources->gold.relations;
    j->counts = j->ranks = NULL; /* random tokens have no ranks */
    return CLI_OK;
}

/* ---- Repeated random tokens ------------------------------------------------------------------ */

/* A word that may be drawn: words of letters, or all of a small vocabulary. */
static bool is_word(const text_model *model, int32_t id)
{
    if (model->pieces) return text_model_is_word(model, id);
    const char *word = mha_vocabulary_word(model->vocabulary, id);
    return word && word[0] != '<';
}

/* The tokens that a model puts around every text. */
static cli_exit find_ends(const text_model *model, mha_repeated_tokens *how)
{
    mha_encoding none = {.struct_size = sizeof none};
    CLI_TRY(cli_check(HEADS, mha_tokenizer_encode(model->pieces, NULL, "", 0, NULL, 0, &none)));
    if (none.count > 0) how->first = none.ids[0];
    if (none.count > 1) how->last = none.ids[none.count - 1];
    mha_encoding_free(&none);
    return CLI_OK;
}

cli_exit heads_random_plan(const text_model *model, heads_random *plan)
{
    mha_repeated_tokens *how = &plan->how;
    *how = (mha_repeated_tokens){.struct_size = sizeof *how,
                                 .block = RANDOM_BLOCK,
                                 .repeats = RANDOM_REPEATS,
                                 .first = -1,
                                 .last = -1,
                                 .seed = 1};
    CLI_TRY(ARENA_ALLOC(HEADS, model->desc.vocab_size, &plan->pool));
    int64_t words = model->desc.vocab_size;
    if (model->pieces) {
        CLI_TRY(find_ends(model, how));
    } else {
        int32_t first;
        words = mha_vocabulary_count(model->vocabulary);
        if (mha_vocabulary_encode(model->vocabulary, "", 0, &first, 1, &plan->pool_count) ==
                MHA_OK &&
            plan->pool_count == 1)
            how->first = first;
    }
    plan->pool_count = 0;
    for (int64_t id = 0; id < words; id++)
        if (is_word(model, (int32_t)id)) plan->pool[plan->pool_count++] = (int32_t)id;
    if (how->block > plan->pool_count) how->block = plan->pool_count;
    const int64_t most = model->max_length - 2;
    while (how->block * how->repeats > most && how->block > 0)
        how->repeats > 2 ? how->repeats-- : how->block--;
    return CLI_OK;
}

/* A sequence that the file has is drawn all the same: later ones depend on what was drawn. */
static cli_exit measure_drawn(job *j, heads_random *plan, int64_t sequence, bool measured)
{
    const int64_t room = plan->how.block * plan->how.repeats + 2;
    const size_t mark = arena_mark();
    text_tokens tokens = {0};
    described d;
    uint8_t *special;
    CLI_TRY(ARENA_ALLOC(HEADS, room, &tokens.list.items));
    CLI_TRY(ARENA_ALLOC(HEADS, room, &tokens.ids));
    CLI_TRY(ARENA_ALLOC(HEADS, room, &special));
    plan->how.sequence = (uint64_t)sequence;
    CLI_TRY(cli_check(HEADS, mha_head_pass_repeated(&plan->how, plan->pool_count, plan->pool,
                                                    tokens.ids, special, &tokens.list.count)));
    for (int64_t i = 0; i < tokens.list.count; i++) tokens.list.items[i].special = special[i];
    j->state.word[STATE_RANDOM] = print_of_text(j->state.word[STATE_RANDOM], &tokens, NULL);
    if (!measured) {
        CLI_TRY(make_arrays(j, &tokens, &d));
        CLI_TRY(measure(j, j->found->random, &tokens, &d.text, &(text_visit){0}));
    }
    arena_release(mark);
    return CLI_OK;
}

static cli_exit draw_round(job *j, heads_random *plan, int64_t sequences)
{
    cli_exit result = CLI_OK;
    heads_state *s = &j->state;
    CLI_TRY(heads_ranks_round(j->found, &j->round, NULL, sequences, round_seconds(j)));
    while (result == CLI_OK && j->number < j->round.end && !signals_came()) {
        const bool mine = j->number >= j->round.first && j->number < j->round.last;
        result = measure_drawn(j, plan, j->number, !mine);
        if (result != CLI_OK) break;
        s->word[STATE_SEQUENCES] = (uint64_t)++j->number;
        s->kept = false;
        if (!ranks_transport()) heads_state_save_if_due(s, j->found);
    }
    CLI_TRY(end_round(j, j->found->random, NULL, result));
    if (ranks_first() || j->number == sequences) return CLI_OK;
    arena_drop(j->found->random);
    return create(j, NULL, &j->found->random);
}

/* From sequence j->number on, until a signal comes. */
static cli_exit draw_and_measure(job *j, heads_random *plan, int64_t sequences)
{
    cli_exit result = CLI_OK;
    begin_progress(j, "random tokens", sequences);
    j->round = (heads_round){.end = j->number};
    signals_hold();
    while (result == CLI_OK && j->number < sequences && !signals_came())
        result = draw_round(j, plan, sequences);
    const bool stopped = end_of_measuring(j, result, j->number > 0 || j->found->texts);
    CLI_TRY(result);
    if (!stopped) return CLI_OK;
    cli_note(false, "interrupted: %" PRId64 " of %" PRId64 " random sequences were measured",
             j->number, sequences);
    j->found->stopped = true;
    return CLI_OK;
}

static cli_exit measure_random(job *j, const text_model *model, int64_t sequences)
{
    heads_random plan = {0};
    const int64_t done = (int64_t)j->state.was[STATE_SEQUENCES];
    if (sequences == 0) return CLI_OK;
    CLI_TRY(heads_random_plan(model, &plan));
    if (plan.how.block < HEADS_LEAST_BLOCK) {
        cli_note(j->options->quiet || j->options->beside,
                 "no random tokens: the model has too few words or positions");
        sequences = 0;
    } else {
        CLI_TRY(create(j, NULL, &j->found->random));
    }
    for (j->number = 0; j->number < done; j->number++)
        CLI_TRY(measure_drawn(j, &plan, j->number, true));
    CLI_TRY(agreed(j, heads_state_take_random(&j->state, j->found)));
    j->state.word[STATE_SEQUENCES] = (uint64_t)done;
    if (sequences > 0) CLI_TRY(draw_and_measure(j, &plan, sequences));
    j->found->random_count = j->number;
    j->found->random_block = plan.how.block;
    j->found->random_repeats = plan.how.repeats;
    return CLI_OK;
}

/* ---- Heads that are left out ----------------------------------------------------------------- */

static cli_exit make_gates(const heads_options *options, const text_model *model,
                           heads_found *found, int64_t *count)
{
    const args_texts none = {0};
    maps_picks picks;
    if (options->without.count == 0) return CLI_OK;
    CLI_TRY(text_model_pick(model, &none, &options->without, &picks));
    CLI_TRY(ARENA_ALLOC(HEADS, picks.layers * picks.heads, &found->gates));
    for (int64_t i = 0; i < picks.layers * picks.heads; i++) found->gates[i] = picks.on[i] ? 0 : 1;
    *count = picks.count;
    return CLI_OK;
}

/* ---- All together ---------------------------------------------------------------------------- */

cli_exit heads_begin(const text_model *model, heads_found *found)
{
    *found = (heads_found){.model = model, .layers = model->layers};
    CLI_TRY(ARENA_ALLOC(HEADS, found->layers, &found->heads));
    for (int64_t l = 0; l < found->layers; l++) {
        found->heads[l] = model->desc.layer_heads ? model->desc.layer_heads[l] : model->heads;
        found->count += found->heads[l];
    }
    return CLI_OK;
}

cli_exit heads_measure(const heads_options *options, text_model *model,
                       const heads_sources *sources, heads_found *found)
{
    job j = {.options = options, .model = model, .found = found, .rare_rank = RARE_RANK};
    int64_t without = 0;
    CLI_TRY(heads_begin(model, found));
    found->spread = options->spread && model->ranks;
    CLI_TRY(make_gates(options, model, found, &without));
    CLI_TRY(heads_state_begin(options, found, &j.state));
    if (options->state) CLI_TRY(ranks_share(HEADS, j.state.was, sizeof j.state.was));
    if (options->alone && (j.state.was[STATE_MAGIC] || options->random == 0))
        return heads_state_show(&j.state, options, found);
    cli_note(options->quiet || without == 0, "without %" PRId64 " heads: their output is 0",
             without);
    CLI_TRY(measure_texts(&j, model, sources));
    if (!found->stopped) CLI_TRY(measure_random(&j, model, options->random));
    if (!found->stopped && found->unsaved == CLI_OK)
        found->unsaved = heads_state_end(&j.state, found);
    arena_drop(j.state.file);
    if (!options->corpus) found->corpus = NULL; /* kept for the state only */
    if (found->lost_links > 0)
        cli_note(options->quiet,
                 "%" PRId64 " gold links are left out: a word of theirs has no token of its own",
                 found->lost_links);
    return CLI_OK;
}
