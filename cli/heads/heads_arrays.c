/* 'multihead heads --attention': heads of maps from other programs, without a model. Each file
 * holds the maps of one text. Its tokens are known only from --tokens. */
#include "common/arena.h"
#include "common/contexts.h"
#include "common/map_arrays.h"
#include "common/progress.h"
#include "common/token_files.h"
#include "heads/heads.h"

#include <multihead/io.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* One file. */
typedef struct text_maps {
    const char *path;
    mha_tensor array;
    int64_t L, H, T;
    float *layer; /* [H,T,T] the current one */
    mha_tokens tokens;
    mha_heads_text text;
} text_maps;

ARENA_RELEASE(destroy_array, mha_npy_destroy)

static cli_exit read_array(const char *path, text_maps *maps)
{
    mha_npy *array = NULL;
    int64_t shape[4];
    *maps = (text_maps){.path = path};
    CLI_TRY(cli_check(mha_npy_read(path, &array)));
    CLI_TRY(arena_keep(array, destroy_array));
    maps->array = mha_npy_tensor(array);
    CLI_TRY(map_arrays_shape(path, &maps->array, shape));
    maps->L = shape[0], maps->H = shape[1], maps->T = shape[2];
    if (shape[2] != shape[3])
        return cli_fail(CLI_UNSUPPORTED,
                        "%s: has %" PRId64 " rows and %" PRId64
                        " columns; heads measures self-attention, whose maps are square",
                        path, shape[2], shape[3]);
    return ARENA_ALLOC(maps->H * maps->T * maps->T, &maps->layer);
}

static void load_layer(text_maps *maps, int64_t l)
{
    const int64_t size = maps->H * maps->T * maps->T;
    for (int64_t i = 0; i < size; i++)
        maps->layer[i] = map_arrays_element(&maps->array, l * size + i);
}

/* Whether no row of any map attends to a later column. */
static bool is_causal(const text_maps *maps)
{
    const int64_t T = maps->T;
    for (int64_t row = 0; row < maps->L * maps->H * T; row++)
        for (int64_t j = row % T + 1; j < T; j++)
            if (map_arrays_element(&maps->array, row * T + j) != 0) return false;
    return true;
}

/* A token's label and its position. */
typedef struct place_of {
    const char *label;
    int64_t at;
} place_of;

static int by_label(const void *a, const void *b)
{
    return strcmp(((const place_of *)a)->label, ((const place_of *)b)->label);
}

/* Tokens of the same text have the same id, as duplicate token and induction scores require. */
static cli_exit number_tokens(const mha_tokens *tokens, int64_t **ids)
{
    place_of *order;
    CLI_TRY(ARENA_ALLOC(tokens->count, ids));
    CLI_TRY(ARENA_ALLOC(tokens->count, &order));
    for (int64_t i = 0; i < tokens->count; i++) order[i] = (place_of){tokens->labels[i], i};
    qsort(order, (size_t)tokens->count, sizeof *order, by_label);
    for (int64_t i = 1; i < tokens->count; i++)
        (*ids)[order[i].at] =
            (*ids)[order[i - 1].at] + (strcmp(order[i].label, order[i - 1].label) != 0);
    return CLI_OK;
}

static cli_exit describe(const heads_options *options, int number, text_maps *maps)
{
    int64_t *ids = NULL;
    maps->text = (mha_heads_text){.struct_size = sizeof maps->text};
    if (options->tokens.count > 0) {
        const char *path = options->tokens.items[number];
        CLI_TRY(token_files_read(path, &maps->tokens));
        if (maps->tokens.count != maps->T)
            return cli_fail(CLI_BAD_INPUT,
                            "%s: has %" PRId64 " rows, but %s has %" PRId64 " tokens", maps->path,
                            maps->T, path, maps->tokens.count);
        CLI_TRY(number_tokens(&maps->tokens, &ids));
        const mha_tokens *t = &maps->tokens;
        mha_tokens_sentences(t->count, t->labels, t->special, t->separators, t->sentences);
        maps->text.separators = t->separators;
        maps->text.special = t->special;
        maps->text.segments = t->sentences;
        maps->text.ids = ids;
    }
    maps->text.queries = maps->text.keys = maps->T;
    if (is_causal(maps)) maps->text.flags |= MHA_HEADS_CAUSAL;
    return CLI_OK;
}

/* ---- measuring ------------------------------------------------------------------------------- */

ARENA_RELEASE(destroy_measures, mha_head_measures_destroy)

/* Set the properties of all files from the first one. */
static cli_exit begin(const heads_options *options, const text_maps *first, text_model *model,
                      heads_found *found)
{
    CLI_TRY(context_make(MHA_ISA_AUTO, options->threads, &model->context));
    CLI_TRY(maps_name_of_path(first->path, &model->name));
    memcpy(model->architecture, "maps", sizeof "maps");
    model->layers = first->L;
    model->heads = first->H;
    int64_t *heads;
    CLI_TRY(ARENA_ALLOC(first->L, &heads));
    for (int64_t l = 0; l < first->L; l++) heads[l] = first->H;
    *found =
        (heads_found){.model = model,
                      .of = {.struct_size = sizeof found->of, .layers = first->L, .heads = heads},
                      .count = first->L * first->H};
    const mha_head_measures_desc desc = {
        .struct_size = sizeof desc, .layers = first->L, .heads = found->of.heads};
    CLI_TRY(cli_check(mha_head_measures_create(model->context, &desc, &found->of.texts)));
    return arena_keep(found->of.texts, destroy_measures);
}

static cli_exit add(text_maps *maps, heads_found *found)
{
    const int64_t shape[] = {maps->H, maps->T, maps->T};
    if (maps->L != found->of.layers || maps->H != found->model->heads)
        return cli_fail(CLI_BAD_INPUT,
                        "%s: has %" PRId64 " layers of %" PRId64
                        " heads, the previous file %" PRId64 " of %" PRId64
                        "; give files of one model",
                        maps->path, maps->L, maps->H, found->of.layers, found->model->heads);
    mha_status status = mha_head_measures_begin(found->of.texts, &maps->text);
    for (int64_t l = 0; l < maps->L && status == MHA_OK; l++) {
        load_layer(maps, l);
        const mha_tensor p = mha_tensor_contiguous(maps->layer, MHA_F32, 3, shape);
        status = mha_head_measures_rows(found->of.texts, l, 0, &p);
    }
    if (status == MHA_OK) status = mha_head_measures_end(found->of.texts);
    if (status == MHA_ERR_NUMERIC)
        return cli_fail(CLI_BAD_INPUT,
                        "%s: %s; expected attention weights after softmax, whose rows sum to 1",
                        maps->path, mha_error_detail());
    return cli_check(status);
}

cli_exit heads_measure_arrays(const heads_options *options, text_model *model, heads_found *found)
{
    const int64_t count = options->attention.count;
    progress shown = progress_begin(options->quiet);
    for (int i = 0; i < count; i++) {
        text_maps maps;
        progress_show(&shown, (double)i / (double)count, "file %d of %" PRId64, i + 1, count);
        const size_t mark = arena_mark();
        CLI_TRY(read_array(options->attention.items[i], &maps));
        CLI_TRY(describe(options, i, &maps));
        if (i == 0) CLI_TRY(begin(options, &maps, model, found)); /* not released with the file */
        CLI_TRY(add(&maps, found));
        found->of.token_count += maps.T;
        if (i > 0) arena_release(mark);
    }
    progress_clear(&shown);
    found->of.text_count = count;
    return CLI_OK;
}
