/* The passes of 'multihead heads': each text goes through the model once, and the rows of each
 * layer's attention are computed again from its queries and keys, a block at a time, so that
 * nothing of the size of a map is kept. Repeated random tokens follow (Olsson et al. 2022). */
#include "common/random.h"
#include "heads/heads.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANDOM_BLOCK = 25, RANDOM_REPEATS = 4, LEAST_BLOCK = 4, RARE_RANK = 500 };

/* Everything that measuring texts needs. */
typedef struct job {
    const heads_options *options;
    const text_model *model;
    heads_found *found;
    int64_t *counts; /* [vocab_size] how often each token occurs */
    int64_t *ranks;  /* [vocab_size] 0: the most frequent */
    int64_t rare_rank;
    bool progress;
    char what[64]; /* "text 3 of 8" */
} job;

/* ---- One line on a terminal that disappears again -------------------------------------------- */

static bool want_progress(const heads_options *options)
{
    const char *term = getenv("TERM");
    const bool dumb = !term || !*term || !strcmp(term, "dumb");
    return !options->quiet && !dumb && isatty(STDERR_FILENO);
}

static void clear_progress(const job *j)
{
    if (j->progress) cli_print_to(stderr, "\r\033[K");
}

static void show_progress(const job *j, int64_t layer, int64_t row, int64_t rows)
{
    if (!j->progress) return;
    cli_print_to(stderr, "\r\033[K%s, layer %" PRId64 " of %" PRId64, j->what, layer + 1,
                 j->found->layers);
    if (rows > 1000) cli_print_to(stderr, ", token %" PRId64 " of %" PRId64, row, rows);
}

/* ---- What the tokens of a text are ----------------------------------------------------------- */

/* Arrays of a text, and the description that points to them. */
typedef struct described {
    mha_heads_text text;
    int64_t *ids, *segments, *ranks, *words; /* [count] */
    uint8_t *separators, *special;           /* [count] */
    mha_heads_link *links;
} described;

static void free_described(described *d)
{
    free(d->ids);
    free(d->segments);
    free(d->ranks);
    free(d->words);
    free(d->separators);
    free(d->special);
    free(d->links);
}

/* Special tokens but the first token, and the marks that end a sentence. */
static bool is_separator(const maps_token *token, int64_t index)
{
    if (token->special) return index > 0;
    const char *t = token->text;
    return t && t[0] && !t[1] && strchr(".!?;", t[0]);
}

static cli_exit make_arrays(const job *j, const text_tokens *tokens, described *d)
{
    const int64_t n = tokens->list.count;
    void *memory[6] = {0};
    const size_t sizes[6] = {
        sizeof(int64_t), sizeof(int64_t), sizeof(int64_t), sizeof(int64_t), 1, 1};
    cli_exit code = CLI_OK;
    for (int i = 0; i < 6 && code == CLI_OK; i++) code = maps_alloc(HEADS, n, sizes[i], &memory[i]);
    *d = (described){.ids = memory[0],
                     .segments = memory[1],
                     .ranks = memory[2],
                     .words = memory[3],
                     .separators = memory[4],
                     .special = memory[5]};
    for (int64_t i = 0, segment = 0; i < n && code == CLI_OK; i++) {
        const maps_token *token = &tokens->list.items[i];
        d->ids[i] = tokens->ids[i];
        d->special[i] = token->special;
        d->separators[i] = is_separator(token, i);
        d->segments[i] = segment;
        segment += d->separators[i];
        d->ranks[i] = j->ranks ? j->ranks[tokens->ids[i]] : 0;
        d->words[i] = -1;
    }
    d->text = (mha_heads_text){.struct_size = sizeof d->text,
                               .flags = j->model->causal ? MHA_HEADS_CAUSAL : 0,
                               .queries = n,
                               .keys = n,
                               .ids = d->ids,
                               .separators = d->separators,
                               .special = d->special,
                               .segments = d->segments,
                               .ranks = j->ranks ? d->ranks : NULL};
    return code;
}

/* The gold word that a token begins in, or -1. Words and tokens stand in the same order. */
static int64_t word_of(const conllu_sentence *gold, const maps_token *token, int64_t *at)
{
    while (*at < gold->words && token->begin >= 0 && gold->end[*at] <= token->begin) ++*at;
    return *at < gold->words && token->begin >= gold->begin[*at] ? *at : -1;
}

/* Number the words that have tokens, and link them. */
static cli_exit add_links(job *j, const conllu_sentence *gold, const text_tokens *tokens,
                          described *d)
{
    void *memory = NULL, *links = NULL;
    cli_exit code = maps_alloc(HEADS, gold->words, sizeof(int64_t), &memory);
    if (code == CLI_OK) code = maps_alloc(HEADS, gold->link_count, sizeof *d->links, &links);
    int64_t *number = memory, count = 0, at = 0, last = -1;
    d->links = links;
    for (int64_t w = 0; w < gold->words && code == CLI_OK; w++) number[w] = -1;
    for (int64_t i = 0; i < tokens->list.count && code == CLI_OK; i++) {
        const int64_t word = word_of(gold, &tokens->list.items[i], &at);
        const bool first = word >= 0 && number[word] < 0;
        if (first) number[word] = count++;
        if (first || (word >= 0 && word == last)) d->words[i] = number[word];
        last = word;
    }
    for (int64_t i = 0; i < gold->link_count && code == CLI_OK; i++) {
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
    free(memory);
    return code;
}

/* ---- A pass ---------------------------------------------------------------------------------- */

/* Where rows go. */
typedef struct visit {
    const job *j;
    mha_head_measures *measures;
    int64_t layer, rows;
} visit;

static mha_status take_rows(void *user, int64_t b, int64_t row, const mha_tensor *p)
{
    const visit *v = user;
    (void)b;
    show_progress(v->j, v->layer, row, v->rows);
    if (v->measures == v->j->found->texts) {
        const mha_status status = heads_distances_rows(v->j->found, v->layer, p);
        if (status != MHA_OK) return status;
    }
    return mha_head_measures_rows(v->measures, v->layer, row, p);
}

static mha_status measure_layer(void *user, const mha_activations *kept, int64_t layer)
{
    visit *v = user;
    const job *j = v->j;
    mha_head_measures *measures = v->measures;
    mha_layer_view view = {.struct_size = sizeof view};
    const mha_attention_desc desc = {.struct_size = sizeof desc,
                                     .flags = j->model->causal ? MHA_ATTENTION_CAUSAL : 0};
    v->layer = layer;
    if (j->found->heads[layer] == 0) return MHA_OK; /* pruned */
    mha_status status = mha_activations_layer(kept, layer, MHA_PART_SELF_ATTENTION, &view);
    if (status != MHA_OK) return status;
    mha_tensor input = view.input; /* of one sequence: [T,E] */
    input.ndim = 2;
    for (int i = 0; i < 2; i++) {
        input.shape[i] = view.input.shape[i + 1];
        input.stride[i] = view.input.stride[i + 1];
    }
    status = mha_head_measures_inputs(measures, layer, &input);
    if (status == MHA_OK && measures == j->found->texts)
        status = heads_distances_outputs(j->found, layer, &view.heads);
    if (status != MHA_OK) return status;
    return mha_attention_visit_rows(j->model->context, &desc, &view.q, &view.k, 0, take_rows, v);
}

static cli_exit measure(const job *j, mha_head_measures *measures, const text_tokens *tokens,
                        const mha_heads_text *text)
{
    visit v = {.j = j, .measures = measures, .rows = tokens->list.count};
    show_progress(j, 0, 0, 0);
    mha_status status = mha_head_measures_begin(measures, text);
    if (status == MHA_OK) status = text_model_run(j->model, tokens, NULL, measure_layer, &v);
    if (status == MHA_OK) status = mha_head_measures_end(measures);
    clear_progress(j);
    if (status == MHA_ERR_NUMERIC && j->options->beside) return CLI_BAD_INPUT;
    return status == MHA_OK ? CLI_OK : cli_fail_status(HEADS, status);
}

/* ---- Texts ----------------------------------------------------------------------------------- */

static cli_exit encode(job *j, text_model *model, const heads_source *source, text_tokens *tokens)
{
    const text_limits limits = {.most = j->options->max_tokens, .truncate = j->options->truncate};
    model->where[0] = '\0';
    if (source->file && source->line)
        snprintf(model->where, sizeof model->where, "%.120s: line %" PRId64 ": ", source->file,
                 source->line);
    else if (source->file)
        snprintf(model->where, sizeof model->where, "%.120s: ", source->file);
    return text_model_encode(model, &limits, source->text, source->bytes, NULL, 0, tokens);
}

/* Tokens are counted first: which are rare is known when all are. */
static cli_exit count_tokens(job *j, text_model *model, const heads_sources *sources)
{
    cli_exit code = CLI_OK;
    for (int64_t i = 0; i < sources->count && code == CLI_OK; i++) {
        text_tokens tokens = {0};
        code = encode(j, model, &sources->items[i], &tokens);
        for (int64_t t = 0; t < tokens.list.count && code == CLI_OK; t++)
            j->counts[tokens.ids[t]] += !tokens.list.items[t].special;
        j->found->token_count += tokens.list.count;
        text_tokens_free(&tokens);
    }
    return code;
}

typedef struct counted {
    int64_t id, count;
} counted;

/* The most frequent first; of equals the one with the lower id, which WordPiece gives to the more
 * frequent. */
static int by_count(const void *a, const void *b)
{
    const counted *x = a, *y = b;
    if (x->count != y->count) return x->count < y->count ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static cli_exit rank_tokens(job *j, int64_t vocab_size)
{
    void *memory = NULL, *ranks = NULL;
    int64_t kinds = 0;
    cli_exit code = maps_alloc(HEADS, vocab_size, sizeof(counted), &memory);
    if (code == CLI_OK) code = maps_alloc(HEADS, vocab_size, sizeof(int64_t), &ranks);
    counted *all = memory;
    j->ranks = ranks;
    for (int64_t id = 0; id < vocab_size && code == CLI_OK; id++)
        if (j->counts[id] > 0) all[kinds++] = (counted){id, j->counts[id]};
    if (kinds > 0) qsort(all, (size_t)kinds, sizeof *all, by_count);
    for (int64_t i = 0; i < kinds; i++) j->ranks[all[i].id] = i;
    j->rare_rank = kinds / 2 < RARE_RANK ? kinds / 2 : RARE_RANK;
    if (j->rare_rank < 1) j->rare_rank = 1;
    free(memory);
    return code;
}

static cli_exit measure_text(job *j, text_model *model, const heads_source *source)
{
    text_tokens tokens = {0};
    described d = {0};
    cli_exit code = encode(j, model, source, &tokens);
    if (code == CLI_OK) code = make_arrays(j, &tokens, &d);
    if (code == CLI_OK && source->gold) code = add_links(j, source->gold, &tokens, &d);
    if (code == CLI_OK) code = measure(j, j->found->texts, &tokens, &d.text);
    free_described(&d);
    text_tokens_free(&tokens);
    return code;
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
    mha_status status = mha_head_measures_create(j->model->context, &desc, measures);
    return status == MHA_OK ? CLI_OK : cli_fail_status(HEADS, status);
}

static cli_exit measure_texts(job *j, text_model *model, const heads_sources *sources)
{
    void *counts = NULL;
    const int64_t vocab_size = model->desc.vocab_size;
    if (sources->count == 0) return CLI_OK;
    cli_exit code = maps_alloc(HEADS, vocab_size, sizeof(int64_t), &counts);
    j->counts = counts;
    if (code == CLI_OK) code = count_tokens(j, model, sources);
    if (code == CLI_OK) code = rank_tokens(j, vocab_size);
    if (code == CLI_OK) code = create(j, sources, &j->found->texts);
    if (code == CLI_OK && j->options->clusters.given) code = heads_distances_make(j->found);
    for (int64_t i = 0; i < sources->count && code == CLI_OK; i++) {
        snprintf(j->what, sizeof j->what, "text %" PRId64 " of %" PRId64, i + 1, sources->count);
        code = measure_text(j, model, &sources->items[i]);
    }
    j->found->text_count = sources->count;
    j->found->relations = sources->gold.names;
    j->found->relation_count = sources->gold.relations;
    free(j->counts);
    free(j->ranks);
    j->counts = j->ranks = NULL;
    return code;
}

/* ---- Repeated random tokens ------------------------------------------------------------------ */

/* A word that may be drawn: whole words of letters, or all of a small vocabulary. */
static bool is_word(const text_model *model, int32_t id)
{
    const char *text = text_model_token(model, id);
    if (!model->pieces) return text[0] != '<';
    size_t length = 0;
    for (; text[length] >= 'a' && text[length] <= 'z'; length++) continue;
    return length > 1 && text[length] == '\0';
}

typedef struct random_plan {
    int32_t *pool; /* [pool_count] tokens to draw from */
    int64_t pool_count, block, repeats;
    int32_t front, back; /* -1: none */
} random_plan;

static cli_exit plan_random(const text_model *model, random_plan *plan)
{
    void *pool;
    *plan =
        (random_plan){.front = -1, .back = -1, .block = RANDOM_BLOCK, .repeats = RANDOM_REPEATS};
    cli_exit code = maps_alloc(HEADS, model->desc.vocab_size, sizeof(int32_t), &pool);
    if (code != CLI_OK) return code;
    plan->pool = pool;
    mha_tokenizer_info info = {.struct_size = sizeof info};
    int64_t words = 0;
    if (model->pieces && mha_tokenizer_describe(model->pieces, &info) == MHA_OK) {
        plan->front = info.cls_id;
        plan->back = info.sep_id;
        words = info.vocab_size;
    } else {
        int32_t first;
        words = mha_vocabulary_count(model->vocabulary);
        if (mha_vocabulary_encode(model->vocabulary, "", 0, &first, 1, &plan->pool_count) ==
                MHA_OK &&
            plan->pool_count == 1)
            plan->front = first;
    }
    plan->pool_count = 0;
    for (int64_t id = 0; id < words; id++)
        if (is_word(model, (int32_t)id)) plan->pool[plan->pool_count++] = (int32_t)id;
    if (plan->block > plan->pool_count) plan->block = plan->pool_count;
    const int64_t most = model->max_length - 2;
    while (plan->block * plan->repeats > most && plan->block > 0)
        plan->repeats > 2 ? plan->repeats-- : plan->block--;
    return CLI_OK;
}

/* Different tokens, repeated as they are, between the model's special ones. */
static void draw(const random_plan *plan, int64_t sequence, text_tokens *tokens)
{
    random_source r = random_make(1, (uint64_t)sequence);
    int64_t n = 0;
    for (int64_t i = 0; i < plan->block; i++) { /* the first of a shuffled pool */
        const int64_t other = i + random_below(&r, plan->pool_count - i);
        const int32_t kept = plan->pool[i];
        plan->pool[i] = plan->pool[other];
        plan->pool[other] = kept;
    }
    if (plan->front >= 0) {
        tokens->list.items[n].special = true;
        tokens->ids[n++] = plan->front;
    }
    for (int64_t i = 0; i < plan->block * plan->repeats; i++)
        tokens->ids[n++] = plan->pool[i % plan->block];
    if (plan->back >= 0) {
        tokens->list.items[n].special = true;
        tokens->ids[n++] = plan->back;
    }
    tokens->list.count = n;
}

static cli_exit measure_drawn(job *j, const random_plan *plan, int64_t sequence)
{
    const int64_t room = plan->block * plan->repeats + 2;
    void *items = NULL, *ids = NULL;
    described d = {0};
    cli_exit code = maps_alloc(HEADS, room, sizeof(maps_token), &items);
    if (code == CLI_OK) code = maps_alloc(HEADS, room, sizeof(int32_t), &ids);
    text_tokens tokens = {.list = {.items = items}, .ids = ids};
    if (code == CLI_OK) draw(plan, sequence, &tokens);
    if (code == CLI_OK) code = make_arrays(j, &tokens, &d);
    if (code == CLI_OK) code = measure(j, j->found->random, &tokens, &d.text);
    free_described(&d);
    free(ids);
    free(items); /* without texts */
    return code;
}

static cli_exit measure_random(job *j, const text_model *model, int64_t sequences)
{
    random_plan plan = {0};
    if (sequences == 0) return CLI_OK;
    cli_exit code = plan_random(model, &plan);
    if (code == CLI_OK && plan.block < LEAST_BLOCK) {
        cli_note(j->options->quiet || j->options->beside,
                 "no random tokens: the model has too few words or positions");
        sequences = 0;
    } else if (code == CLI_OK) {
        code = create(j, NULL, &j->found->random);
    }
    for (int64_t i = 0; i < sequences && code == CLI_OK; i++) {
        snprintf(j->what, sizeof j->what, "random tokens %" PRId64 " of %" PRId64, i + 1,
                 sequences);
        code = measure_drawn(j, &plan, i);
    }
    j->found->random_count = sequences;
    j->found->random_block = plan.block;
    j->found->random_repeats = plan.repeats;
    free(plan.pool);
    return code;
}

/* ---- All together ---------------------------------------------------------------------------- */

cli_exit heads_measure(const heads_options *options, text_model *model,
                       const heads_sources *sources, heads_found *found)
{
    void *heads;
    job j = {.options = options,
             .model = model,
             .found = found,
             .rare_rank = RARE_RANK,
             .progress = want_progress(options)};
    *found = (heads_found){.model = model, .layers = model->layers};
    cli_exit code = maps_alloc(HEADS, found->layers, sizeof(int64_t), &heads);
    if (code != CLI_OK) return code;
    found->heads = heads;
    for (int64_t l = 0; l < found->layers; l++) {
        found->heads[l] = model->desc.layer_heads ? model->desc.layer_heads[l] : model->heads;
        found->count += found->heads[l];
    }
    code = measure_texts(&j, model, sources);
    if (code == CLI_OK) code = measure_random(&j, model, options->random);
    if (code == CLI_OK && found->lost_links > 0)
        cli_note(options->quiet,
                 "%" PRId64 " gold links are left out: a word of theirs has no token of its own",
                 found->lost_links);
    return code;
}

void heads_found_free(heads_found *found)
{
    heads_distances_free(found);
    mha_head_measures_destroy(found->random);
    mha_head_measures_destroy(found->texts);
    free(found->heads);
    *found = (heads_found){0};
}
