/* Write the results as a folder for HeadVis (Luger et al. 2026), in the format of data_pipeline.py
 * of its release: config.json, scatter_data.json and heads/LxHy.json. Each text runs two more
 * times. The first run finds the largest weight of each head in the text; texts are divided into
 * ten intervals by this weight. The second run writes the weights of the shown texts. */
#include "common/arena.h"
#include "common/files.h"
#include "common/progress.h"
#include "common/signals.h"
#include "common/words.h"
#include "heads/heads.h"
#include "heads/heads_folder.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    MOST_TEXTS = 200, /* texts considered, evenly spaced: 20 in each interval */
    INTERVALS = 10,
    SAMPLES = 5, /* texts shown per interval: half a megabyte per head for texts of 256 tokens */
    LARGEST = 8, /* weights kept per row, each at least LEAST, as HeadVis recommends */
    EDGES = 20,  /* edges of bins of distances: 0, 1, 2, 4, ... */
    BARS = 20,   /* bars of the histogram of largest weights */
    TOP_TOKENS = 50,
    NAME_BYTES = MHA_STUDY_NAME_BYTES,
    PATH_BYTES = 4096
};
#define LEAST 0.005F

/* A head of the output. */
typedef struct shown_head {
    heads_row row;
    float *most;       /* [count] largest weight in each text */
    uint8_t *interval; /* [count] 1 .. INTERVALS; 0: not shown */
    double *mass[2];   /* [kinds + 1] by the kind of the query's token, and of the key's token */
    int64_t distances[EDGES];
    int64_t written; /* calls of begin_file() */
    mha_json json;   /* writer of the head's file */
} shown_head;

typedef struct headvis {
    const heads_options *options;
    const heads_found *found;
    text_model *model;
    const heads_sources *sources;
    char *folder;
    shown_head *heads;         /* [head_count] */
    int64_t *head_at;          /* [layers, heads] index of the head, or -1 */
    int64_t head_count, count; /* count: texts */
    int64_t *texts;            /* [count] sources of the texts */
    mha_tensor gates;
    /* of the current text */
    bool writing;
    int64_t text, tokens;
    mha_tokens *read;
    int64_t *kinds;       /* [tokens] */
    const char **strings; /* [tokens] */
    int64_t layer;
    int64_t *used;   /* [heads] number of weights kept for each head of the layer */
    int32_t *places; /* [heads][tokens * LARGEST] query * tokens + key */
    float *weights;
    progress progress;
    cli_exit failed;
} headvis;

static shown_head *head_of(const headvis *v, int64_t layer, int64_t head)
{
    const int64_t at = v->head_at[layer * v->found->model->heads + head];
    return at < 0 ? NULL : &v->heads[at];
}

/* ---- rows ------------------------------------------------------------------------------------- */

/* Find the keys of a row's largest weights, largest first. Returns their number. */
static int64_t keep_row(const float *row, int64_t step, int64_t keys, int64_t found[LARGEST])
{
    int64_t held = 0;
    for (int64_t j = 0; j < keys; j++) {
        const float w = row[j * step];
        if (w < LEAST || (held == LARGEST && w <= row[found[LARGEST - 1] * step])) continue;
        int64_t at = held < LARGEST ? held++ : LARGEST - 1;
        for (; at > 0 && row[found[at - 1] * step] < w; at--) found[at] = found[at - 1];
        found[at] = j;
    }
    return held;
}

/* The largest weight, ignoring the diagonal, the first row and the first column, as in HeadVis. */
static void find_most(shown_head *head, int64_t text, const float *row, int64_t step, int64_t i,
                      int64_t keys)
{
    for (int64_t j = 1; i > 0 && j < keys; j++)
        if (j != i && row[j * step] > head->most[text]) head->most[text] = row[j * step];
}

static mha_status take_rows(void *user, int64_t b, int64_t row, const mha_tensor *p)
{
    headvis *v = user;
    const int64_t step = p->stride[2], keys = p->shape[2];
    (void)b;
    for (int64_t h = 0; h < p->shape[0]; h++) {
        shown_head *head = head_of(v, v->layer, h);
        if (!head || (v->writing && !head->interval[v->text])) continue;
        for (int64_t r = 0; r < p->shape[1]; r++) {
            const float *from = (const float *)p->data + h * p->stride[0] + r * p->stride[1];
            int64_t kept[LARGEST];
            if (!v->writing) {
                find_most(head, v->text, from, step, row + r, keys);
                continue;
            }
            const int64_t count = keep_row(from, step, keys, kept);
            for (int64_t n = 0; n < count; n++) {
                const int64_t at = h * v->tokens * LARGEST + v->used[h]++;
                v->places[at] = (int32_t)((row + r) * keys + kept[n]);
                v->weights[at] = from[kept[n] * step];
            }
        }
    }
    return MHA_OK;
}

/* ---- a head's file ---------------------------------------------------------------------------- */

typedef void put_fn(const headvis *v, shown_head *head);

typedef struct appended {
    const headvis *v;
    shown_head *head;
    put_fn *put;
} appended;

static mha_status draw_appended(const void *user, const mha_sink *sink)
{
    const appended *a = user;
    a->head->json.sink = sink;
    a->put(a->v, a->head);
    return a->head->json.status;
}

/* Append the output of put to the head's file. */
static cli_exit append(const headvis *v, shown_head *head, put_fn *put)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/heads/L%" PRId64 "H%" PRId64 ".json", v->folder,
             head->row.layer, head->row.head);
    return cli_check(files_append(path, draw_appended, &(appended){v, head, put}));
}

static void begin_file(shown_head *head)
{
    if (head->written++ > 0) return;
    mha_json_object(&head->json, NULL);
    mha_json_array(&head->json, "sequences");
}

static void put_sequence(const headvis *v, shown_head *head)
{
    const int64_t h = head->row.head, n = v->tokens, first = h * n * LARGEST;
    mha_json *json = &head->json;
    begin_file(head);
    mha_json_line(json, 0);
    mha_json_object(json, NULL);
    mha_json_integer(json, "sequence_id", v->texts[v->text]);
    mha_json_integer(json, "interval", head->interval[v->text]);
    mha_json_integer(json, "seq_len", n);
    mha_json_decimals(json, "max_activation", (double)head->most[v->text], 4);
    mha_json_texts(json, "tokens", v->strings, n);
    mha_json_array(json, "attention_indices");
    json->compact = true; /* most of the file */
    for (int64_t i = 0; i < v->used[h]; i++) mha_json_integer(json, NULL, v->places[first + i]);
    json->compact = false;
    mha_json_end(json);
    mha_json_array(json, "attention_values");
    json->compact = true;
    for (int64_t i = 0; i < v->used[h]; i++) {
        const int64_t q = v->places[first + i] / n, k = v->places[first + i] % n;
        const double w = (double)v->weights[first + i];
        int64_t distance = q > k ? q - k : k - q, bin = 0;
        mha_json_decimals(json, NULL, w, 4);
        head->mass[0][v->kinds[q]] += w;
        head->mass[1][v->kinds[k]] += w;
        for (; distance > 0 && bin < EDGES - 2; distance /= 2) bin++;
        head->distances[bin]++;
    }
    json->compact = false;
    mha_json_end(json);
    mha_json_end(json);
}

static mha_status look_at_layer(void *user, const mha_activations *kept, int64_t layer)
{
    headvis *v = user;
    mha_layer_view view = {.struct_size = sizeof view};
    bool any = false;
    for (int64_t h = 0; h < v->found->of.heads[layer]; h++) {
        const shown_head *head = head_of(v, layer, h);
        any = any || (head && (!v->writing || head->interval[v->text]));
        v->used[h] = 0;
    }
    if (!any) return MHA_OK;
    progress_show(&v->progress,
                  ((v->writing ? (double)v->count : 0) + (double)v->text +
                   (double)layer / (double)v->found->of.layers) /
                      (2 * (double)v->count),
                  "HeadVis: %s, text %" PRId64 " of %" PRId64,
                  v->writing ? "weights" : "largest weights", v->text + 1, v->count);
    v->layer = layer;
    mha_status status = mha_activations_layer(kept, layer, MHA_PART_SELF_ATTENTION, &view);
    if (status == MHA_OK)
        status = mha_attention_visit_rows(v->found->model->context, &view.attention, &view.q,
                                          &view.k, 0, take_rows, v);
    for (int64_t h = 0; status == MHA_OK && v->writing && h < v->found->of.heads[layer]; h++) {
        shown_head *head = head_of(v, layer, h);
        if (!head || !head->interval[v->text]) continue;
        v->failed = append(v, head, put_sequence);
        if (v->failed != CLI_OK) return MHA_ERR_CALLBACK;
    }
    return status;
}

/* ---- texts ------------------------------------------------------------------------------------ */

static bool is_shown(const headvis *v)
{
    for (int64_t i = 0; i < v->head_count; i++)
        if (v->heads[i].interval[v->text]) return true;
    return false;
}

static cli_exit read_text(headvis *v)
{
    const heads_source *source = &v->sources->items[v->texts[v->text]];
    const int64_t heads = v->found->model->heads;
    CLI_TRY(heads_source_encode(v->options, v->model, source, &v->read, NULL));
    v->tokens = v->read->count;
    if (v->tokens > INT16_MAX)
        return cli_fail(CLI_UNSUPPORTED,
                        "--headvis: a text has %" PRId64 " tokens, at most %d; cut it with --cut",
                        v->tokens, INT16_MAX);
    CLI_TRY(ARENA_ALLOC(heads, &v->used));
    if (!v->writing) return CLI_OK;
    CLI_TRY(ARENA_ALLOC(v->tokens, &v->kinds));
    mha_study_kinds(v->found->study, v->read, v->kinds);
    CLI_TRY(ARENA_ALLOC(heads * v->tokens * LARGEST, &v->places));
    CLI_TRY(ARENA_ALLOC(heads * v->tokens * LARGEST, &v->weights));
    CLI_TRY(ARENA_ALLOC(v->tokens, &v->strings));
    for (int64_t i = 0; i < v->tokens; i++)
        CLI_TRY(heads_report_spelled(source, v->read, i, &v->strings[i]));
    return CLI_OK;
}

static cli_exit run_texts(headvis *v, bool writing)
{
    v->writing = writing;
    for (v->text = 0; v->text < v->count; v->text++) {
        const size_t mark = arena_mark();
        const text_visit visit = {
            .after_layer = look_at_layer, .user = v, .gates = v->found->gates ? &v->gates : NULL};
        if (signals_came()) return cli_fail_status(MHA_ERR_CALLBACK); /* without a message */
        if (writing && !is_shown(v)) continue;
        CLI_TRY(read_text(v));
        const mha_status status = text_model_run(v->model, v->read, &visit);
        progress_clear(&v->progress);
        CLI_TRY(v->failed);
        CLI_TRY(cli_check(status));
        arena_release(mark);
    }
    return CLI_OK;
}

/* ---- intervals -------------------------------------------------------------------------------- */

typedef struct ranked {
    float most;
    int64_t text;
} ranked;

static int by_most(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->most != y->most) return x->most < y->most ? -1 : 1;
    return x->text < y->text ? -1 : x->text > y->text;
}

/* Sort texts by their largest weights, divide them into ten equal intervals, and choose evenly
 * spaced ones in each. */
static cli_exit divide_texts(headvis *v, shown_head *head)
{
    const size_t mark = arena_mark();
    ranked *order;
    CLI_TRY(ARENA_ALLOC(v->count, &order));
    for (int64_t i = 0; i < v->count; i++) order[i] = (ranked){head->most[i], i};
    qsort(order, (size_t)v->count, sizeof *order, by_most);
    for (int interval = 0; interval < INTERVALS; interval++) {
        const int64_t begin = interval * v->count / INTERVALS,
                      end = (interval + 1) * v->count / INTERVALS;
        const int64_t shown = end - begin < SAMPLES ? end - begin : SAMPLES;
        for (int64_t i = 0; i < shown; i++)
            head->interval[order[begin + i * (end - begin) / shown].text] = (uint8_t)(interval + 1);
    }
    arena_release(mark);
    return CLI_OK;
}

/* ---- writing the files ---------------------------------------------------------------------- */

static void put_tokens(const headvis *v, const shown_head *head, int side, const char *name,
                       mha_json *json)
{
    const int64_t kinds = v->found->of.kinds + 1;
    double all = 0;
    int64_t top[TOP_TOKENS], held = 0;
    const double *mass = head->mass[side];
    for (int64_t i = 0; i < kinds; i++) {
        all += mass[i];
        if (!(mass[i] > 0) || (held == TOP_TOKENS && mass[i] <= mass[top[held - 1]])) continue;
        int64_t at = held < TOP_TOKENS ? held++ : TOP_TOKENS - 1;
        for (; at > 0 && mass[top[at - 1]] < mass[i]; at--) top[at] = top[at - 1];
        top[at] = i;
    }
    mha_json_line(json, 0);
    mha_json_array(json, name);
    for (int64_t i = 0; i < held && !json->status; i++) {
        const size_t mark = arena_mark();
        char *text = NULL;
        if (top[i] < v->found->of.kinds &&
            text_model_token(v->model, (int32_t)v->found->of.id_of[top[i]], &text) != CLI_OK)
            json->status = MHA_ERR_CALLBACK;
        mha_json_object(json, NULL);
        mha_json_text(json, "token", text ? text : "(special tokens)");
        mha_json_decimals(json, "weight", mass[top[i]] / all, 4);
        mha_json_end(json);
        arena_release(mark);
    }
    mha_json_end(json);
}

static void put_end(const headvis *v, shown_head *head)
{
    mha_json *json = &head->json;
    int64_t bars[BARS] = {0};
    double sum = 0;
    if (head->written > 0) mha_json_line(json, 0);
    begin_file(head);
    mha_json_end(json);
    mha_json_line(json, 0);
    mha_json_object(json, "qk_distance_histogram");
    mha_json_array(json, "bin_edges");
    for (int i = 0; i < EDGES; i++) mha_json_integer(json, NULL, i ? INT64_C(1) << (i - 1) : 0);
    mha_json_end(json);
    mha_json_integers(json, "bin_values", head->distances, EDGES - 1);
    mha_json_end(json);
    put_tokens(v, head, 0, "top_query_tokens", json);
    put_tokens(v, head, 1, "top_key_tokens", json);
    for (int64_t i = 0; i < v->count; i++) {
        const int bar = (int)(head->most[i] * BARS);
        bars[bar < 0 ? 0 : bar < BARS ? bar : BARS - 1]++;
        sum += (double)head->most[i];
    }
    mha_json_line(json, 0);
    mha_json_object(json, "histogram");
    mha_json_array(json, "bin_edges");
    for (int i = 0; i <= BARS; i++) mha_json_decimals(json, NULL, (double)i / BARS, i ? 2 : 0);
    mha_json_end(json);
    mha_json_integers(json, "bin_values", bars, BARS);
    mha_json_end(json);
    mha_json_line(json, 0);
    mha_json_object(json, "statistics");
    mha_json_decimals(json, "mean_max_activation", v->count > 0 ? sum / (double)v->count : 0, 4);
    mha_json_end(json);
    mha_json_end(json);
}

/* A score is an axis if all shown heads have it. */
static bool is_axis(const headvis *v, int64_t score)
{
    for (int64_t i = 0; i < v->head_count; i++)
        if (mha_study_score(&v->found->of, v->heads[i].row.layer, v->heads[i].row.head, score)
                .rows == 0)
            return false;
    return true;
}

static mha_status draw_scatter(const void *user, const mha_sink *sink)
{
    const headvis *v = user;
    mha_json json = {.sink = sink};
    char name[NAME_BYTES];
    mha_json_array(&json, NULL);
    for (int64_t i = 0; i < v->head_count; i++) {
        const heads_row *row = &v->heads[i].row;
        if (i) mha_json_line(&json, 0);
        mha_json_object(&json, NULL);
        mha_json_integer(&json, "layer", row->layer);
        mha_json_integer(&json, "head", row->head);
        for (int64_t s = 0; s < mha_study_score_count(&v->found->of); s++) {
            if (!is_axis(v, s)) continue;
            mha_study_score_name(&v->found->of, s, name);
            mha_json_number(&json, name,
                            mha_study_score(&v->found->of, row->layer, row->head, s).value);
        }
        mha_json_end(&json);
    }
    mha_json_end(&json);
    return mha_json_finish(&json);
}

/* Write the names of all axes, or their names and definitions. */
static void put_axes(const headvis *v, mha_json *json, bool text)
{
    char name[NAME_BYTES];
    for (int64_t s = 0; s < mha_study_score_count(&v->found->of); s++) {
        if (!is_axis(v, s)) continue;
        mha_study_score_name(&v->found->of, s, name);
        mha_json_text(json, text ? name : NULL, text ? mha_study_score_text(s) : name);
    }
}

/* Write additional columns in HeadVis: keys of the heads' files, and their titles. */
static void put_titles(mha_json *json, const char *name, const char *const titles[2][2])
{
    mha_json_line(json, 1);
    mha_json_array(json, name);
    for (int i = 0; i < 2; i++) {
        if (i) mha_json_line(json, 2);
        mha_json_object(json, NULL);
        mha_json_text(json, "key", titles[i][0]);
        mha_json_text(json, "label", titles[i][1]);
        mha_json_end(json);
    }
    mha_json_end(json);
}

static mha_status draw_config(const void *user, const mha_sink *sink)
{
    static const char *const plots[2][2] = {{"qk_distance_histogram", "Q-K distance"},
                                            {"histogram", "Largest weight of a text"}};
    static const char *const tables[2][2] = {{"top_query_tokens", "Top query tokens"},
                                             {"top_key_tokens", "Top key tokens"}};
    const headvis *v = user;
    mha_json json = {.sink = sink};
    mha_json_object(&json, NULL);
    mha_json_text(&json, "model_name", v->found->model->name);
    mha_json_line(&json, 1);
    mha_json_array(&json, "heads");
    for (int64_t i = 0; i < v->head_count; i++)
        mha_json_integers(&json, NULL, (int64_t[]){v->heads[i].row.layer, v->heads[i].row.head}, 2);
    mha_json_end(&json);
    mha_json_line(&json, 1);
    mha_json_integer(&json, "n_layers", v->found->of.layers);
    mha_json_integer(&json, "n_heads", v->found->model->heads);
    mha_json_integer(&json, "n_intervals", INTERVALS);
    mha_json_line(&json, 1);
    mha_json_array(&json, "metrics");
    put_axes(v, &json, false);
    mha_json_end(&json);
    mha_json_line(&json, 1);
    mha_json_object(&json, "metric_descriptions");
    put_axes(v, &json, true);
    mha_json_end(&json);
    mha_json_line(&json, 1);
    mha_json_text(&json, "head_data_pattern", "L{layer}H{head}.json");
    mha_json_bool(&json, "has_umap", false);
    mha_json_integers(&json, "umap_heads", NULL, 0);
    put_titles(&json, "custom_plots", plots);
    put_titles(&json, "custom_tables", tables);
    mha_json_line(&json, 1);
    mha_json_object(&json, "statistics_display");
    mha_json_object(&json, "mean_max_activation");
    mha_json_text(&json, "label", "Mean max activation");
    mha_json_text(&json, "format", "default");
    mha_json_end(&json);
    mha_json_end(&json);
    mha_json_end(&json);
    return mha_json_finish(&json);
}

static mha_status draw_nothing(const void *user, const mha_sink *sink)
{
    (void)user;
    return sink->write(sink->user, "{}\n", 3);
}

/* ---- the folder ------------------------------------------------------------------------------- */

static cli_exit make_heads(headvis *v, const heads_row *rows)
{
    const int64_t all = v->found->of.layers * v->found->model->heads;
    CLI_TRY(ARENA_ALLOC(all, &v->head_at));
    CLI_TRY(ARENA_ALLOC(v->head_count, &v->heads));
    CLI_TRY(ARENA_ALLOC(v->count, &v->texts));
    for (int64_t i = 0; i < v->count; i++) v->texts[i] = i * v->found->of.text_count / v->count;
    for (int64_t i = 0; i < all; i++) v->head_at[i] = -1;
    for (int64_t i = 0; i < v->head_count; i++) {
        shown_head *head = &v->heads[i];
        head->row = rows[i];
        v->head_at[rows[i].layer * v->found->model->heads + rows[i].head] = i;
        CLI_TRY(ARENA_ALLOC(v->count, &head->most));
        CLI_TRY(ARENA_ALLOC(v->count, &head->interval));
        for (int side = 0; side < 2; side++)
            CLI_TRY(ARENA_ALLOC(v->found->of.kinds + 1, &head->mass[side]));
    }
    v->gates = mha_tensor_contiguous(v->found->gates, MHA_F32, 2,
                                     (int64_t[]){v->found->of.layers, v->found->model->heads});
    return CLI_OK;
}

static cli_exit fill(void *of)
{
    headvis *v = of;
    char path[PATH_BYTES + 16];
    CLI_TRY(heads_folder_add(v->folder, "heads"));
    CLI_TRY(heads_folder_add(v->folder, "attributions"));
    CLI_TRY(run_texts(v, false));
    for (int64_t i = 0; i < v->head_count; i++) CLI_TRY(divide_texts(v, &v->heads[i]));
    CLI_TRY(run_texts(v, true));
    for (int64_t i = 0; i < v->head_count; i++) CLI_TRY(append(v, &v->heads[i], put_end));
    CLI_TRY(cli_check(files_draw_in(v->folder, "scatter_data.json", draw_scatter, v)));
    CLI_TRY(cli_check(files_draw_in(v->folder, "server_config.json", draw_nothing, v)));
    snprintf(path, sizeof path, "%s/attributions", v->folder);
    CLI_TRY(cli_check(files_draw_in(path, "manifest.json", draw_nothing, v)));
    return cli_check(files_draw_in(v->folder, "config.json", draw_config, v));
}

cli_exit heads_write_headvis(const heads_options *options, text_model *model,
                             const heads_sources *sources, const heads_found *found,
                             const heads_row *rows, int64_t count)
{
    headvis v = {.options = options,
                 .found = found,
                 .model = model,
                 .sources = sources,
                 .head_count = count,
                 .count = found->of.text_count < MOST_TEXTS ? found->of.text_count : MOST_TEXTS,
                 .progress = progress_begin(options->quiet)};
    CLI_TRY(make_heads(&v, rows));
    CLI_TRY(heads_folder_write(options->headvis, &v.folder, fill, &v));
    cli_note(options->quiet, "wrote %s: %" PRId64 " head%s in %" PRId64 " text%s, for HeadVis",
             options->headvis, count, words_s(count), v.count, words_s(v.count));
    return CLI_OK;
}
