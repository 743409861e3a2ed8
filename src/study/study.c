/* Run texts and repeated random tokens through a model, and measure its heads. */
#include "study/study_parts.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { RARE_RANK = 500, CORPUS_SEED = 1 };

/* Callers of 0.1 may have a mha_study_visit without a source. */
enum { SHORTEST_VISIT = offsetof(mha_study_visit, source) };

/* ---- creation and destruction ---------------------------------------------------------------- */

/* Whether the keys are the source's. */
static bool is_cross(const mha_study *s)
{
    return s->desc.flags & MHA_STUDY_CROSS;
}

/* Combinations that an encoder-decoder, or cross-attention, does not have. */
static mha_status check_towers(const mha_study *s)
{
    const bool cross = is_cross(s);
    const char *lacks = cross && !s->encoder ? "requires an encoder-decoder"
                        : cross && s->desc.flags & MHA_STUDY_DISTANCES ? "has no distances"
                        : cross && s->desc.relation_count > 0          ? "has no gold links"
                                                                       : NULL;
    if (lacks) return mha_fail(MHA_ERR_UNSUPPORTED, "mha_study_create: MHA_STUDY_CROSS %s", lacks);
    if (!s->encoder) return MHA_OK;
    if (s->desc.state || s->desc.flags & MHA_STUDY_OWN_LAYERS)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_study_create: the heads of an encoder-decoder "
                                             "are measured without a state, and with all layers");
    return mhai_encoder_reads_texts(s->encoder, "mha_study_create");
}

static mha_status make(mha_study *s)
{
    const mha_transformer_desc *d = &s->net_desc;
    const int64_t L = d->num_layers;
    s->heads = calloc((size_t)L + 1, sizeof *s->heads);
    int64_t **arrays[] = {&s->counts, &s->ranks, &s->kind_of, &s->id_of};
    bool whole = s->heads;
    for (int i = 0; i < 4; i++) {
        *arrays[i] = calloc((size_t)s->vocab_size + 1, sizeof(int64_t));
        whole = whole && *arrays[i];
    }
    s->found = (mha_study_found){.struct_size = sizeof s->found,
                                 .layers = L,
                                 .heads = s->heads,
                                 .relations = s->desc.relations,
                                 .relation_count = s->desc.relation_count};
    if (!whole) return mha_fail(MHA_ERR_NOMEM, "out of memory for a study");
    for (int64_t l = 0; l < L; l++)
        s->heads[l] = is_cross(s) ? d->num_heads : mha_transformer_heads(d, l);
    return MHA_OK;
}

mha_status mha_study_create(mha_context *context, mha_model *model, const mha_study_desc *desc,
                            mha_study **study)
{
    const uint32_t known = MHA_STUDY_OWN_LAYERS | MHA_STUDY_CORPUS | MHA_STUDY_DISTANCES |
                           MHA_STUDY_PREDICT | MHA_STUDY_CROSS;
    mha_study_desc own;
    mha_study_state state;
    mhai_reader reader;
    MHA_NEED("mha_study_create", context, model, study);
    MHA_TRY(mha_struct_read("mha_study_desc", &own, sizeof own, sizeof own, desc,
                            desc ? desc->struct_size : 0));
    MHA_TRY(mha_struct_read("mha_study_state", &state, sizeof state, sizeof state, own.state,
                            own.state ? own.state->struct_size : 0));
    if (own.flags & ~known)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_study_create: flags has unknown bits");
    mha_model_info info = {.struct_size = sizeof info};
    MHA_TRY(mha_model_describe(model, &info));
    if (info.patch_size == 0) MHA_TRY(mhai_reader_make(model, &reader));
    mha_study *made = calloc(1, sizeof *made);
    if (!made) return mha_fail(MHA_ERR_NOMEM, "out of memory for a study");
    *made = (mha_study){.context = context,
                        .model = model,
                        .encoder = mha_model_encoder(model),
                        .net = mha_model_transformer(model),
                        .desc = own,
                        .state = state,
                        .sequences = own.sequences,
                        .plan = {.struct_size = sizeof made->plan},
                        .rare_rank = RARE_RANK};
    mha_transformer_describe(made->net, &made->net_desc);
    made->vocab_size = made->net_desc.vocab_size;
    mha_status status = check_towers(made);
    if (status == MHA_OK && is_cross(made)) {
        status = mha_model_describe(made->encoder, &info);
        made->vocab_size = info.vocab_size;
    }
    if (status == MHA_OK) status = make(made);
    if (status == MHA_OK) status = mhai_state_read(made);
    if (status == MHA_OK)
        *study = made;
    else
        mha_study_destroy(made);
    return status;
}

static void destroy_texts(mha_study *s)
{
    mha_study_found *f = &s->found;
    for (int64_t l = 0; f->distances && l < f->layers; l++)
        mha_head_distances_destroy(f->distances[l]);
    free(f->distances);
    mha_head_corpus_destroy(f->corpus);
    mha_head_measures_destroy(f->texts);
    f->distances = NULL;
    f->corpus = NULL;
    f->texts = NULL;
}

void mha_study_destroy(mha_study *study)
{
    if (!study) return;
    destroy_texts(study);
    mha_head_measures_destroy(study->found.random);
    mhai_saved_destroy(&study->saved);
    mha_random_tokens_free(&study->plan);
    mha_room_release(&study->room, 0);
    free(study->heads);
    free(study->counts), free(study->ranks);
    free(study->kind_of), free(study->id_of);
    free(study);
}

/* ---- texts ----------------------------------------------------------------------------------- */

static mha_status check_ids(const mha_study *s, const mha_tokens *tokens)
{
    for (int64_t i = 0; i < tokens->count; i++)
        if (tokens->ids[i] < 0 || tokens->ids[i] >= s->vocab_size)
            return mha_fail(MHA_ERR_ARGUMENT,
                            "token %" PRId64 " is %" PRId32 ", the model has 0..%" PRId64
                            "; use the model's own tokenizer",
                            i, tokens->ids[i], s->vocab_size - 1);
    return MHA_OK;
}

static mha_status grow(mha_study *s)
{
    const int64_t places = 2 * s->places + 16;
    if (s->counted < s->places) return MHA_OK;
    MHA_TRY(mha_room_grow(&s->room, places, sizeof *s->lengths, &s->lengths));
    MHA_TRY(mha_room_grow(&s->room, places + 1, sizeof *s->prints, &s->prints));
    s->places = places;
    return MHA_OK;
}

mha_status mha_study_count(mha_study *study, const mha_tokens *tokens, const mha_study_links *links)
{
    MHA_NEED("mha_study_count", study, tokens);
    if (study->found.texts)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_study_count: count all texts before mha_study_begin()");
    MHA_TRY(check_ids(study, tokens));
    for (int64_t i = 0; i < tokens->count; i++)
        study->counts[tokens->ids[i]] += !tokens->special[i];
    MHA_TRY(grow(study));
    study->lengths[study->counted] = tokens->count;
    mhai_state_count(study, tokens, links);
    study->counted++;
    return MHA_OK;
}

/* Number only the tokens that occur. For 1,000 heads, a corpus over a vocabulary of 50,000 would
 * take most of a gigabyte. */
static mha_status rank(mha_study *s)
{
    s->found.kinds = 0;
    for (int64_t id = 0; id < s->vocab_size; id++) {
        s->kind_of[id] = s->found.kinds;
        if (s->counts[id] > 0) s->id_of[s->found.kinds++] = id;
    }
    s->rare_rank = s->found.kinds / 2 < RARE_RANK ? s->found.kinds / 2 : RARE_RANK;
    if (s->rare_rank < 1) s->rare_rank = 1;
    s->found.vocab_size = s->vocab_size;
    s->found.counts = s->counts;
    s->found.ranks = s->ranks;
    s->found.id_of = s->id_of;
    return mha_head_pass_ranks(s->context, s->vocab_size, s->counts, s->ranks, NULL);
}

static mha_status create(const mha_study *s, bool links, mha_head_measures **measures)
{
    const mha_head_measures_desc desc = {.struct_size = sizeof desc,
                                         .layers = s->found.layers,
                                         .heads = s->heads,
                                         .rare_rank = s->rare_rank,
                                         .names = links ? s->found.relations : NULL,
                                         .relations = links ? s->found.relation_count : 0};
    return mha_head_measures_create(s->context, &desc, measures);
}

static mha_status create_distances(mha_study *s)
{
    mha_study_found *f = &s->found;
    f->distances = calloc((size_t)f->layers + 1, sizeof(mha_head_distances *));
    if (!f->distances) return mha_fail(MHA_ERR_NOMEM, "out of memory for distances");
    for (int64_t l = 0; l < f->layers; l++)
        MHA_TRY(mha_head_pass_distances(s->context, s->net, l, &f->distances[l]));
    return MHA_OK;
}

static mha_status create_corpus(mha_study *s)
{
    const mha_head_corpus_desc desc = {.struct_size = sizeof desc,
                                       .vocab_size =
                                           s->found.kinds + 1, /* the last is for special tokens */
                                       .seed = CORPUS_SEED};
    MHA_TRY(mha_head_corpus_create(s->context, s->found.texts, &desc, &s->found.corpus));
    return mha_head_corpus_attach(s->found.texts, s->found.corpus);
}

static mha_status renew_texts(mha_study *s)
{
    mha_study_found *f = &s->found;
    destroy_texts(s);
    f->lost_links = 0;
    MHA_TRY(create(s, true, &f->texts));
    if (s->desc.flags & MHA_STUDY_DISTANCES) MHA_TRY(create_distances(s));
    return s->desc.flags & MHA_STUDY_CORPUS ? create_corpus(s) : MHA_OK;
}

static mha_status renew_random(mha_study *s)
{
    mha_head_measures_destroy(s->found.random);
    s->found.random = NULL;
    const bool none = s->encoder || s->plan.how.block < MHA_RANDOM_LEAST_BLOCK;
    return none ? MHA_OK : create(s, false, &s->found.random);
}

mha_status mhai_study_renew(mha_study *s)
{
    return s->random ? renew_random(s) : renew_texts(s);
}

static mha_status begin_texts(mha_study *s)
{
    mha_study_found *f = &s->found;
    s->random = false;
    s->round = (mhai_round){0};
    f->text_count = f->token_count = 0;
    MHA_TRY(rank(s));
    MHA_TRY(renew_texts(s));
    return mhai_state_take_texts(s);
}

mha_status mha_study_begin(mha_study *study)
{
    if (!study) return mha_fail(MHA_ERR_NULL, "mha_study_begin: study is NULL");
    return mhai_study_agree(study, begin_texts(study));
}

mha_status mha_study_next(mha_study *study, int64_t *number)
{
    MHA_NEED("mha_study_next", study, number);
    mha_study_found *f = &study->found;
    if (!(study->random ? f->random : f->texts))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_study_next: call mha_study_begin() first");
    MHA_TRY(mhai_study_round(study));
    while (!study->random && f->text_count < study->counted && !mhai_study_mine(study)) {
        f->token_count += study->lengths[f->text_count++];
        MHA_TRY(mhai_study_round(study));
    }
    const int64_t at = study->random ? f->random_count : f->text_count;
    *number = at < (study->random ? study->sequences : study->counted) ? at : -1;
    return MHA_OK;
}

static mha_status save(const mha_study *s)
{
    if (s->state.save && !s->desc.ranks) s->state.save(s->state.save_user);
    return MHA_OK;
}

/* ---- a run ----------------------------------------------------------------------------------- */

static mha_status show_progress(void *user, int64_t layer, int64_t row)
{
    mha_study *s = user;
    s->progress.layer = layer;
    s->progress.row = row;
    return s->desc.progress(s->desc.progress_user, &s->progress);
}

void mhai_sequence_make(const mha_tokens *tokens, const mha_transformer_desc *d, mhai_sequence *s)
{
    const int64_t shape[] = {1, tokens->count};
    s->ids = mha_tensor_contiguous(tokens->ids, MHA_I32, 2, shape);
    s->types = mha_tensor_contiguous(tokens->types, MHA_I32, 2, shape);
    s->input =
        (mha_transformer_input){.struct_size = sizeof s->input,
                                .tokens = &s->ids,
                                .token_types = d->type_count && tokens->types ? &s->types : NULL};
    if (!tokens->picture) return;
    s->features =
        mha_tensor_contiguous(tokens->picture->features, MHA_F32, 3,
                              (const int64_t[]){1, tokens->count, tokens->picture->feature_dim});
    s->input.features = &s->features;
}

static mha_status run(mha_study *s, const mha_tokens *tokens, const mha_heads_text *text,
                      const mha_transformer_input *also, const mha_tensor *memory, bool random)
{
    mhai_sequence of;
    mha_transformer_input input;
    mhai_sequence_make(tokens, &s->net_desc, &of);
    MHA_TRY(mha_struct_read("mha_transformer_input", &input, sizeof input, sizeof input, also,
                            also ? also->struct_size : 0));
    input.struct_size = sizeof input;
    input.tokens = of.input.tokens;
    input.token_types = of.input.token_types;
    input.features = of.input.features;
    *(is_cross(s) ? &input.cross_gates : &input.gates) = s->desc.gates;
    if (memory) input.memory = memory;
    const mha_head_pass pass = {
        .struct_size = sizeof pass,
        .flags = (s->desc.flags & MHA_STUDY_OWN_LAYERS ? MHA_HEAD_PASS_OWN_LAYERS : 0) |
                 (is_cross(s) ? MHA_HEAD_PASS_CROSS : 0),
        .measures = random ? s->found.random : s->found.texts,
        .distances = random ? NULL : s->found.distances,
        .progress = s->desc.progress ? show_progress : NULL,
        .progress_user = s};
    s->progress.random = random;
    s->progress.layers = s->found.layers;
    s->progress.rows = tokens->count;
    return mha_head_pass_run(s->context, s->net, &input, text, &pass);
}

/* ---- the words and links of a text ----------------------------------------------------------- */

static mha_status numbers(mha_study *s, int64_t count, int64_t **array)
{
    MHA_TRY(mha_scratch_alloc(s->context, count, sizeof **array, array));
    return MHA_OK;
}

static mha_status add_words(mha_study *s, const mha_tokens *tokens, mha_heads_text *text)
{
    const int64_t n = tokens->count;
    int64_t *ranks, *ids;
    MHA_TRY(numbers(s, n, &ranks));
    for (int64_t i = 0; i < n; i++) ranks[i] = s->ranks[tokens->ids[i]];
    text->ranks = ranks;
    if (!s->found.corpus) return MHA_OK;
    MHA_TRY(numbers(s, n, &ids));
    mha_study_kinds(s, tokens, ids);
    text->ids = ids;
    return MHA_OK;
}

/* Set the begin of each token to its start in a word. Tokens of a byte-level vocabulary without
 * trimmed offsets (GGUF) begin at the space before the word. */
static void skip_to_words(const mha_tokens *tokens, const mha_study_links *links, int64_t *begin)
{
    int64_t w = 0;
    for (int64_t i = 0; i < tokens->count; i++) {
        begin[i] = tokens->begin[i];
        while (w < links->words && begin[i] >= 0 && links->end[w] <= begin[i]) w++;
        if (w < links->words && begin[i] >= 0 && begin[i] < links->begin[w] &&
            links->begin[w] < tokens->end[i])
            begin[i] = links->begin[w];
    }
}

/* Add the links between words that have tokens. */
static mha_status add_links(mha_study *s, const mha_tokens *tokens, const mha_study_links *links,
                            mha_heads_text *text)
{
    int64_t *words, *number, *begin;
    void *kept;
    MHA_TRY(numbers(s, tokens->count, &words));
    MHA_TRY(numbers(s, tokens->count, &begin));
    MHA_TRY(numbers(s, links->words, &number));
    MHA_TRY(mha_scratch_alloc(s->context, links->count, sizeof(mha_heads_link), &kept));
    skip_to_words(tokens, links, begin);
    MHA_TRY(mha_head_pass_words(tokens->count, begin, links->words, links->begin, links->end, words,
                                number));
    mha_heads_link *to = kept;
    for (int64_t i = 0; i < links->count; i++) {
        const mha_heads_link *link = &links->links[i];
        if (link->query < 0 || link->query >= links->words || link->key < 0 ||
            link->key >= links->words)
            return mha_fail(MHA_ERR_ARGUMENT,
                            "mha_study_text: link %" PRId64 " names a word that does not exist", i);
        if (number[link->query] < 0 || number[link->key] < 0)
            s->found.lost_links++;
        else
            to[text->links_count++] =
                (mha_heads_link){number[link->query], number[link->key], link->relation};
    }
    text->words = words;
    text->links = to;
    if (s->desc.flags & MHA_STUDY_PREDICT) text->flags |= MHA_HEADS_QUERY_PREDICTS;
    return MHA_OK;
}

/* The tokens that are the keys of a text. */
static const mha_tokens *keys_of(const mha_study *s, const mha_tokens *tokens,
                                 const mha_study_visit *visit)
{
    return is_cross(s) ? visit->source : tokens;
}

static mha_status check_source(const mha_study *s, const mha_study_visit *visit)
{
    const bool given = visit && visit->source;
    if (given == (s->encoder != NULL)) return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT, "mha_study_text: %s",
                    given ? "a source without an encoder"
                          : "an encoder-decoder needs the source of each text");
}

static mha_status measure(mha_study *s, const mha_tokens *tokens, const mha_study_visit *visit,
                          bool random)
{
    MHA_TRY(check_source(s, visit));
    const mha_tokens *keys = keys_of(s, tokens, visit);
    mha_heads_text text = {.struct_size = sizeof text,
                           .separators = keys->separators,
                           .special = keys->special,
                           .segments = keys->sentences};
    const mha_picture *picture = tokens->picture;
    mha_grid grid;
    if (picture) {
        grid = (mha_grid){picture->rows, picture->cols, picture->first, picture->registers};
        text.grid = &grid;
        text.separators = keys->special; /* confidence is the largest weight on a patch */
    }
    mha_study_found *f = &s->found;
    mha_room room = {0};
    mha_tensor memory;
    const int64_t lost = f->lost_links;
    MHA_TRY(check_ids(s, keys));
    const mha_scratch_mark mark = mha_scratch_top(s->context);
    mha_status status = random ? MHA_OK : add_words(s, keys, &text);
    if (status == MHA_OK && visit && visit->links)
        status = is_cross(s) ? mha_fail(MHA_ERR_UNSUPPORTED, "cross-attention has no gold links")
                             : add_links(s, tokens, visit->links, &text);
    if (status == MHA_OK && s->encoder)
        status = mhai_encode(s->context, mha_model_transformer(s->encoder), visit->source, &room,
                             &memory);
    if (status == MHA_OK)
        status =
            run(s, tokens, &text, visit ? visit->run : NULL, s->encoder ? &memory : NULL, random);
    mha_room_release(&room, 0);
    mha_scratch_release(s->context, mark);
    if (status != MHA_OK) f->lost_links = lost;
    return status;
}

mha_status mha_study_text(mha_study *study, const mha_tokens *tokens, const mha_study_visit *visit)
{
    mha_study_visit own;
    MHA_NEED("mha_study_text", study, tokens);
    MHA_TRY(mha_struct_read("mha_study_visit", &own, sizeof own, SHORTEST_VISIT, visit,
                            visit ? visit->struct_size : 0));
    mha_study_found *f = &study->found;
    if (!f->texts)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_study_text: call mha_study_begin() first");
    if (f->corpus && mhai_study_dealt(study))
        MHA_TRY(mha_head_corpus_number(f->corpus, f->text_count));
    study->progress.number = f->text_count;
    study->progress.count = study->counted;
    MHA_TRY(measure(study, tokens, &own, false));
    f->text_count++;
    f->token_count += keys_of(study, tokens, &own)->count;
    return save(study);
}

/* ---- random tokens --------------------------------------------------------------------------- */

/* Later sequences depend on all draws before them, including those that other ranks measure. */
static mha_status draw(mha_study *s, bool mine)
{
    mha_tokens tokens = {.struct_size = sizeof tokens};
    MHA_TRY(mha_random_tokens_draw(&s->plan, &tokens));
    mhai_state_draw(s, &tokens);
    const mha_status status = mine ? measure(s, &tokens, NULL, true) : MHA_OK;
    mha_tokens_free(&tokens);
    return status;
}

static mha_status begin_random(mha_study *s)
{
    mha_study_found *f = &s->found;
    s->random = true;
    s->round = (mhai_round){0};
    s->print_of_random = 0;
    f->random_count = 0;
    if (!s->plan.pool) MHA_TRY(mha_random_tokens_plan(s->model, &s->plan));
    f->plan = &s->plan;
    MHA_TRY(renew_random(s));
    const int64_t had = (int64_t)s->saved.word[STATE_SEQUENCES];
    for (int64_t i = 0; had <= s->sequences && i < had; i++) MHA_TRY(draw(s, false));
    return mhai_state_take_random(s);
}

mha_status mha_study_begin_random(mha_study *study)
{
    if (!study) return mha_fail(MHA_ERR_NULL, "mha_study_begin_random: study is NULL");
    return mhai_study_agree(study, begin_random(study));
}

mha_status mha_study_draw(mha_study *study)
{
    if (!study) return mha_fail(MHA_ERR_NULL, "mha_study_draw: study is NULL");
    if (!study->found.random)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_study_draw: call mha_study_begin_random() first");
    study->progress.number = study->found.random_count;
    study->progress.count = study->sequences;
    MHA_TRY(draw(study, mhai_study_mine(study)));
    study->found.random_count++;
    return save(study);
}

/* ---- a complete measurement ------------------------------------------------------------------ */

static mha_status draw_all(mha_study *s, int64_t sequences)
{
    int64_t number = 0;
    s->sequences = sequences;
    MHA_TRY(mha_study_begin_random(s));
    while (s->found.random) {
        MHA_TRY(mha_study_next(s, &number));
        if (number < 0) break;
        MHA_TRY(mha_study_draw(s));
    }
    return MHA_OK;
}

static mha_status count_one(mha_study *s, const mha_tokens *tokens, const mha_study_visit *visit)
{
    mha_study_visit own;
    MHA_TRY(mha_struct_read("mha_study_visit", &own, sizeof own, SHORTEST_VISIT, visit,
                            visit ? visit->struct_size : 0));
    MHA_TRY(check_source(s, &own));
    return mha_study_count(s, keys_of(s, tokens, &own), own.links);
}

mha_status mha_study_measure(mha_study *study, const mha_tokens *texts, int64_t count,
                             const mha_study_visit *const *visit, int64_t sequences)
{
    int64_t number = 0;
    MHA_NEED_AS("mha_study_measure", "study, texts", study, texts || count <= 0);
    for (int64_t i = 0; i < count; i++)
        MHA_TRY(count_one(study, &texts[i], visit ? visit[i] : NULL));
    if (count > 0) MHA_TRY(mha_study_begin(study));
    while (count > 0) {
        MHA_TRY(mha_study_next(study, &number));
        if (number < 0) break;
        MHA_TRY(mha_study_text(study, &texts[number], visit ? visit[number] : NULL));
    }
    return sequences > 0 ? draw_all(study, sequences) : MHA_OK;
}

const mha_study_found *mha_study_results(const mha_study *study)
{
    return &study->found;
}

void mha_study_kinds(const mha_study *study, const mha_tokens *tokens, int64_t *kinds)
{
    for (int64_t i = 0; i < tokens->count; i++)
        kinds[i] = tokens->special[i] ? study->found.kinds : study->kind_of[tokens->ids[i]];
}
