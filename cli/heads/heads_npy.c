/* Write the results as NumPy arrays in a folder (--npy), with an index that names each array, its
 * axes and definition: docs/heads-corpus.md. The folder appears complete or not at all. */
#include "common/arena.h"
#include "common/commands.h"
#include "common/files.h"
#include "heads/heads.h"
#include "heads/heads_folder.h"

#include <multihead/io.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = MHA_STUDY_NAME_BYTES, DECILES = 11 };

typedef struct arrays {
    const heads_options *options;
    const heads_found *found;
    const heads_beside *beside; /* NULL: none */
    char *folder;               /* the temporary folder; NULL: none */
    mha_buffer index;           /* "arrays", and a newline */
    mha_json json;              /* writes into index */
    mha_sink sink;
    int64_t layers, heads, count;
} arrays;

/* ---- arrays ----------------------------------------------------------------------------------- */

/* Write a file and its line of the index. axes is JSON; definition may be any text. */
static cli_exit put(arrays *a, const char *file, const char *name, const char *part,
                    const mha_tensor *data, const char *axes, const char *definition)
{
    mha_json *json = &a->json;
    char path[NAME_BYTES + 8];
    snprintf(path, sizeof path, "%s.npy", file);
    CLI_TRY(cli_check(files_draw_in(a->folder, path, files_draw_npy, data)));
    mha_json_object(json, NULL);
    mha_json_text(json, "file", path);
    mha_json_text(json, "name", name);
    mha_json_text(json, "part", part);
    mha_json_line(json, 5);
    mha_json_text(json, "dtype",
                  data->dtype == MHA_I64   ? "int64"
                  : data->dtype == MHA_F32 ? "float32"
                                           : "float64");
    mha_json_integers(json, "shape", data->shape, data->ndim);
    mha_json_value(json, "axes");
    if (!json->status) json->status = a->sink.write(a->sink.user, axes, strlen(axes));
    mha_json_line(json, 5);
    mha_json_text(json, "definition", definition);
    mha_json_end(json);
    a->count++;
    return cli_check(json->status);
}

#define HEAD_AXES "[\"layer\", \"head\"]"

/* An array of one number per head, or of `more` numbers. */
static mha_tensor of_heads(const arrays *a, void *data, mha_dtype dtype, int64_t more)
{
    return mha_tensor_contiguous(data, dtype, more == 1 ? 2 : 3,
                                 (int64_t[]){a->layers, a->heads, more});
}

static cli_exit empty(const arrays *a, int64_t more, double **numbers)
{
    const int64_t count = a->layers * a->heads * more;
    CLI_TRY(ARENA_ALLOC(count, numbers));
    for (int64_t i = 0; i < count; i++) (*numbers)[i] = NAN;
    return CLI_OK;
}

/* Write an array to NAME.npy or NAME.PART.npy. */
static cli_exit put_part(arrays *a, const char *file, const char *name, const char *part,
                         void *data, mha_dtype dtype, int64_t more, const char *axes,
                         const char *definition)
{
    char whole[2 * NAME_BYTES];
    const mha_tensor tensor = of_heads(a, data, dtype, more);
    if (!strcmp(part, "value"))
        snprintf(whole, sizeof whole, "%.80s", file);
    else
        snprintf(whole, sizeof whole, "%.70s.%s", file, part);
    return put(a, whole, name, part, &tensor, axes, definition);
}

static cli_exit put_distribution(arrays *a, const char *name, mha_head_measure which)
{
    double *low, *high, *deciles;
    CLI_TRY(empty(a, 1, &low));
    CLI_TRY(empty(a, 1, &high));
    CLI_TRY(empty(a, DECILES, &deciles));
    for (int64_t l = 0; l < a->layers; l++)
        for (int64_t h = 0; h < a->found->of.heads[l]; h++) {
            const int64_t i = l * a->heads + h;
            const mha_head_distribution d =
                mha_head_corpus_distribution(a->found->of.corpus, l, h, which);
            if (d.rows == 0) continue;
            low[i] = d.low;
            high[i] = d.high;
            memcpy(deciles + i * DECILES, d.deciles, sizeof d.deciles);
        }
    CLI_TRY(put_part(a, name, name, "low", low, MHA_F64, 1, HEAD_AXES,
                     "2.5 % of the bootstrap over texts"));
    CLI_TRY(put_part(a, name, name, "high", high, MHA_F64, 1, HEAD_AXES,
                     "97.5 % of the bootstrap over texts"));
    return put_part(a, name, name, "deciles", deciles, MHA_F64, DECILES,
                    "[\"layer\", \"head\", \"decile\"]",
                    "of rows: the smallest, 10 %, ... 90 %, the largest");
}

/* The names of relations may not be valid file names, so these files are numbered. */
static cli_exit put_score(arrays *a, int64_t score)
{
    const int64_t relations =
        mha_study_score_count(&a->found->of) - 2 * a->found->of.relation_count;
    char name[NAME_BYTES], file[NAME_BYTES];
    double *value, *chance;
    int64_t *rows, all = 0;
    mha_study_score_name(&a->found->of, score, name);
    snprintf(file, sizeof file, "%s", name);
    if (score >= relations) snprintf(file, sizeof file, "relation_%" PRId64, score - relations);
    CLI_TRY(empty(a, 1, &value));
    CLI_TRY(empty(a, 1, &chance));
    CLI_TRY(ARENA_ALLOC(a->layers * a->heads, &rows));
    for (int64_t l = 0; l < a->layers; l++)
        for (int64_t h = 0; h < a->found->of.heads[l]; h++) {
            const int64_t i = l * a->heads + h;
            const mha_head_score s = mha_study_score(&a->found->of, l, h, score);
            rows[i] = s.rows;
            all += s.rows;
            if (s.rows > 0) value[i] = s.value, chance[i] = s.chance;
        }
    if (all == 0) return CLI_OK;
    CLI_TRY(put_part(a, file, name, "value", value, MHA_F64, 1, HEAD_AXES,
                     mha_study_score_text(score)));
    CLI_TRY(put_part(a, file, name, "chance", chance, MHA_F64, 1, HEAD_AXES,
                     "of uniform attention over the same rows"));
    CLI_TRY(put_part(a, file, name, "rows", rows, MHA_I64, 1, HEAD_AXES, "that count"));
    if (score >= MHA_MEASURES || !a->found->of.corpus) return CLI_OK;
    return put_distribution(a, name, (mha_head_measure)score);
}

static cli_exit put_positions(arrays *a)
{
    static const char axes[] = "[\"layer\", \"head\", \"position: 0, 1, 2-3, 4-7, ...\"]";
    enum { BINS = MHA_HEAD_CORPUS_POSITIONS };
    double *entropy, *distance, *mass, *moved;
    int64_t *rows;
    CLI_TRY(empty(a, BINS, &entropy));
    CLI_TRY(empty(a, BINS, &distance));
    CLI_TRY(empty(a, 1, &mass));
    CLI_TRY(empty(a, 1, &moved));
    CLI_TRY(ARENA_ALLOC(a->layers * a->heads * BINS, &rows));
    for (int64_t l = 0; l < a->layers; l++)
        for (int64_t h = 0; h < a->found->of.heads[l]; h++) {
            mha_head_position bins[BINS];
            const int64_t i = l * a->heads + h;
            const int64_t count = mha_head_corpus_positions(a->found->of.corpus, l, h, bins);
            const mha_head_rest rest = mha_head_corpus_rest(a->found->of.corpus, l, h);
            if (rest.rows > 0) mass[i] = rest.mass;
            if (rest.moved_rows > 0) moved[i] = rest.moved;
            for (int64_t n = 0; n < count; n++) {
                rows[i * BINS + n] = bins[n].rows;
                if (bins[n].rows == 0) continue;
                entropy[i * BINS + n] = bins[n].entropy;
                distance[i * BINS + n] = bins[n].distance;
            }
        }
    CLI_TRY(put_part(a, "positions", "positions", "entropy", entropy, MHA_F64, BINS, axes,
                     "mean entropy by the position of the query, nats"));
    CLI_TRY(put_part(a, "positions", "positions", "distance", distance, MHA_F64, BINS, axes,
                     "mean distance by the position of the query, tokens"));
    CLI_TRY(put_part(a, "positions", "positions", "rows", rows, MHA_I64, BINS, axes,
                     "of each position"));
    CLI_TRY(put_part(a, "first_token", "first_token", "mass", mass, MHA_F64, 1, HEAD_AXES,
                     "mean weight on the first token"));
    return put_part(a, "first_token", "first_token", "moved", moved, MHA_F64, 1, HEAD_AXES,
                    "the first token's share of the norms of weighted values");
}

static cli_exit put_composition(arrays *a)
{
    static const char *const files[HEADS_COMPOSITIONS] = {"composition_q", "composition_k",
                                                          "composition_v"};
    const int64_t shape[] = {a->layers, a->heads, a->layers, a->heads};
    for (int n = 0; n < HEADS_COMPOSITIONS; n++) {
        const mha_tensor data = mha_tensor_contiguous(a->beside->composition[n], MHA_F32, 4, shape);
        CLI_TRY(put(a, files[n], files[n], "value", &data,
                    "[\"layer\", \"head\", \"writer's layer\", \"writer's head\"]",
                    "how much a head reads of an earlier head's output, from the weights"));
    }
    return CLI_OK;
}

/* Write a column of the page. */
static cli_exit put_column(arrays *a, int64_t c)
{
    const mha_heads_column *column = &a->beside->columns[c];
    double *value, *low, *high;
    bool interval = false;
    CLI_TRY(empty(a, 1, &value));
    CLI_TRY(empty(a, 1, &low));
    CLI_TRY(empty(a, 1, &high));
    for (int64_t l = 0; l < a->layers; l++)
        for (int64_t h = 0; h < a->found->of.heads[l]; h++) {
            mha_heads_value values[HEADS_MOST_BESIDE];
            const int64_t i = l * a->heads + h;
            a->beside->values(a->beside->of, &(heads_row){.layer = l, .head = h}, values);
            if (values[c].rows == 0) continue;
            value[i] = values[c].value;
            low[i] = values[c].low;
            high[i] = values[c].high;
            interval = interval || !isnan(values[c].low);
        }
    const char *name = column->name;
    CLI_TRY(put_part(a, name, name, "value", value, MHA_F64, 1, HEAD_AXES, column->text));
    if (!interval) return CLI_OK;
    CLI_TRY(put_part(a, name, name, "low", low, MHA_F64, 1, HEAD_AXES,
                     "2.5 % of the bootstrap over texts"));
    return put_part(a, name, name, "high", high, MHA_F64, 1, HEAD_AXES,
                    "97.5 % of the bootstrap over texts");
}

/* ---- the folder ------------------------------------------------------------------------------- */

static mha_status draw_index(const void *user, const mha_sink *sink)
{
    const arrays *a = user;
    const heads_found *f = a->found;
    mha_json json = {.sink = sink};
    heads_json_begin(&json, "multihead-heads-arrays", f, a->heads);
    mha_json_integer(&json, "texts", f->of.text_count);
    mha_json_lines(&json, -1);
    mha_json_integer(&json, "tokens", f->of.token_count);
    mha_json_integer(&json, "random", f->of.random_count);
    mha_json_lines(&json, 2);
    if (f->of.corpus) heads_corpus_json_luck(&json, f->of.corpus);
    if (a->beside && a->beside->composition)
        mha_json_number(&json, "composition_chance", a->beside->composition_chance);
    mha_json_value(&json, "arrays");
    if (!json.status) json.status = sink->write(sink->user, a->index.data, a->index.size - 1);
    mha_json_end(&json);
    return mha_json_finish(&json);
}

static cli_exit fill(void *of)
{
    arrays *a = of;
    for (int64_t s = 0; s < mha_study_score_count(&a->found->of); s++) CLI_TRY(put_score(a, s));
    if (a->found->of.corpus) CLI_TRY(put_positions(a));
    if (a->beside && a->beside->composition) CLI_TRY(put_composition(a));
    for (int64_t c = 0; a->beside && c < a->beside->column_count; c++) CLI_TRY(put_column(a, c));
    mha_json_end(&a->json);
    CLI_TRY(cli_check(mha_json_finish(&a->json)));
    return cli_check(files_draw_in(a->folder, "index.json", draw_index, a));
}

cli_exit heads_write_npy(const heads_options *options, const heads_found *found,
                         const heads_beside *beside)
{
    arrays a = {.options = options,
                .found = found,
                .beside = beside,
                .layers = found->of.layers,
                .heads = found->model->heads};
    a.sink = mha_buffer_sink(&a.index);
    a.json.sink = &a.sink;
    mha_json_array(&a.json, NULL);
    mha_json_lines(&a.json, 4);
    const cli_exit result = heads_folder_write(options->npy, &a.folder, fill, &a);
    mha_buffer_free(&a.index);
    CLI_TRY(result);
    cli_note(options->quiet, "wrote %s: %" PRId64 " arrays and index.json", options->npy, a.count);
    return CLI_OK;
}
