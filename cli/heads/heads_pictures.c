/* The folder of --pictures: attention around the places where heads score highest, drawn as 'view'
 * draws it, and a page with all pictures. The texts of these places run once more. */
#include "common/arena.h"
#include "common/files.h"
#include "common/progress.h"
#include "common/signals.h"
#include "common/words.h"
#include "heads/heads.h"
#include "heads/heads_folder.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    MOST_HEADS = 10, /* heads of a selection: at most 240 pictures */
    FEW_PLACES = 3,  /* places of a head and measure, as on the page of -o */
    WINDOW = 48,     /* tokens: few enough for legible labels and one screen */
    BEFORE = 36,     /* tokens before the query in a causal model, which sees no later ones */
    AROUND_KEY = 2,  /* tokens on each side of a distant key */
    MOST_COLUMNS = WINDOW + 2 * AROUND_KEY + 2,
    LARGE_SCALE = 2, /* pixels of PNG per unit */
    NAME_BYTES = MHA_STUDY_NAME_BYTES,
    TOKEN_BYTES = 64,
    LINE_BYTES = 1024
};
#define ELLIPSIS "\xE2\x80\xA6"

typedef struct picture {
    heads_row row;
    mha_head_measure measure;
    mha_head_place place;
    bool made;
    char name[NAME_BYTES]; /* name of the picture's files, without extension */
    char title[LINE_BYTES], said[LINE_BYTES], shown[LINE_BYTES];
    /* Set while the text is processed. */
    int64_t first, end;       /* rows */
    int64_t at[MOST_COLUMNS]; /* [columns] tokens; -1: an omitted range */
    int64_t columns, mark[2];
    float *weights; /* [end - first, columns] */
    double seen;    /* share of the row's attention that the picture shows */
} picture;

typedef struct pictures {
    const heads_options *options;
    const heads_found *found;
    text_model *model;
    const heads_sources *sources;
    char *folder;
    picture *items;
    int64_t count, made;
    mha_tensor gates;
    int64_t text, layer; /* current */
    progress progress;
} pictures;

/* ---- selection of heads and places ------------------------------------------------------------ */

static cli_exit add_places(pictures *p, const heads_row *row, mha_head_measure measure)
{
    mha_head_place places[FEW_PLACES];
    const char *name = mha_measure_describe(measure).name;
    const int64_t held = mha_head_corpus_places(p->found->of.corpus, row->layer, row->head, measure,
                                                false, places, FEW_PLACES);
    CLI_TRY(arena_grow(p->count + FEW_PLACES, sizeof *p->items, &p->items));
    for (int64_t i = 0; i < held && i < FEW_PLACES; i++) {
        if (places[i].row < 0 || places[i].key < 0 || !(places[i].value > 0)) continue;
        picture *made = &p->items[p->count++];
        *made = (picture){.row = *row, .measure = measure, .place = places[i]};
        snprintf(made->name, sizeof made->name, "L%" PRId64 "H%" PRId64 "-%s-%" PRId64, row->layer,
                 row->head, name, i + 1);
    }
    return CLI_OK;
}

/* The head with the largest mean. */
static heads_row best_head(const mha_study_found *found, mha_head_measure measure)
{
    heads_row best = {.layer = -1};
    for (int64_t l = 0; l < found->layers; l++)
        for (int64_t h = 0; h < found->heads[l]; h++) {
            const mha_head_score score = mha_study_score(found, l, h, measure);
            if (score.rows > 0 && (best.layer < 0 || score.value > best.key))
                best = (heads_row){.layer = l, .head = h, .key = score.value};
        }
    return best;
}

static bool is_selected(const heads_options *o)
{
    return o->layers.count > 0 || o->heads.count > 0 || o->roles.count > 0 || o->min.given;
}

/* Whether heads are sorted by this measure, or by none that has pictures. */
static bool is_wanted(const heads_options *options, mha_head_measure measure)
{
    bool sorted = false;
    for (int n = 0; options->sort && n < HEADS_PLACED; n++)
        sorted = sorted || !strcmp(options->sort, mha_measure_describe(heads_placed[n]).name);
    return !sorted || !strcmp(options->sort, mha_measure_describe(measure).name);
}

static cli_exit choose(pictures *p, const heads_row *rows, int64_t count)
{
    const bool selected = is_selected(p->options);
    const int64_t heads = !selected ? 1 : count < MOST_HEADS ? count : MOST_HEADS;
    for (int64_t i = 0; i < heads; i++)
        for (int n = 0; n < HEADS_PLACED; n++) {
            if (!is_wanted(p->options, heads_placed[n])) continue;
            const heads_row row = selected ? rows[i] : best_head(&p->found->of, heads_placed[n]);
            if (row.layer >= 0) CLI_TRY(add_places(p, &row, heads_placed[n]));
        }
    cli_note(p->options->quiet || !selected || count <= MOST_HEADS,
             "--pictures: the first %d of %" PRId64
             " heads; --head, --sort and --min choose others",
             (int)MOST_HEADS, count);
    if (p->count > 0) return CLI_OK;
    return cli_fail(CLI_BAD_INPUT,
                    "%s: no picture to draw: no selected head has an example in a row that sees at "
                    "least %d tokens",
                    p->options->pictures, (int)MHA_HEAD_CORPUS_PLACE_KEYS);
}

/* ---- contents of a picture -------------------------------------------------------------------- */

/* Tokens from begin to end as columns. */
static void add_columns(picture *made, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) made->at[made->columns++] = i;
}

/* Rows around the query, with the key if it is near; the same tokens as columns, and separate
 * columns around a distant key. */
static void set_window(picture *made, int64_t tokens, bool causal)
{
    const int64_t row = made->place.row, key = made->place.key;
    int64_t first = row - (causal ? BEFORE : WINDOW / 2);
    if (key < first && row - key < WINDOW) first = key;
    if (key >= first + WINDOW && key - row < WINDOW) first = key + 1 - WINDOW;
    if (first > tokens - WINDOW) first = tokens - WINDOW;
    if (first < 0) first = 0;
    const int64_t end = first + WINDOW < tokens ? first + WINDOW : tokens;
    int64_t from = key > AROUND_KEY ? key - AROUND_KEY : 0,
            to = key + AROUND_KEY + 1 < tokens ? key + AROUND_KEY + 1 : tokens;
    made->first = first;
    made->end = end;
    made->columns = 0;
    if (key < first) add_columns(made, from, to < first ? to : first);
    if (key < first && to < first) made->at[made->columns++] = -1;
    add_columns(made, first, end);
    if (key >= end && from > end) made->at[made->columns++] = -1;
    if (key >= end) add_columns(made, from > end ? from : end, to);
    made->mark[0] = row - first;
    for (int64_t c = 0; c < made->columns; c++)
        if (made->at[c] == key) made->mark[1] = c;
}

static mha_status take_rows(void *user, int64_t b, int64_t row, const mha_tensor *p)
{
    pictures *all = user;
    (void)b;
    for (int64_t i = 0; i < all->count; i++) {
        picture *made = &all->items[i];
        if (made->place.text != all->text || made->row.layer != all->layer) continue;
        for (int64_t r = 0; r < p->shape[1]; r++) {
            if (row + r < made->first || row + r >= made->end) continue;
            const float *from =
                (const float *)p->data + made->row.head * p->stride[0] + r * p->stride[1];
            float *to = made->weights + (row + r - made->first) * made->columns;
            for (int64_t c = 0; c < made->columns; c++)
                if (made->at[c] >= 0 && made->at[c] < p->shape[2])
                    to[c] = from[made->at[c] * p->stride[2]];
        }
    }
    return MHA_OK;
}

static mha_status look_at_layer(void *user, const mha_activations *kept, int64_t layer)
{
    pictures *p = user;
    mha_layer_view view = {.struct_size = sizeof view};
    bool any = false;
    for (int64_t i = 0; i < p->count; i++)
        any = any || (p->items[i].place.text == p->text && p->items[i].row.layer == layer);
    progress_show(&p->progress, (double)p->made / (double)p->count,
                  "picture %" PRId64 " of %" PRId64, p->made + 1, p->count);
    if (!any) return MHA_OK;
    p->layer = layer;
    MHA_TRY(mha_activations_layer(kept, layer, MHA_PART_SELF_ATTENTION, &view));
    return mha_attention_visit_rows(p->found->model->context, &view.attention, &view.q, &view.k, 0,
                                    take_rows, p);
}

/* ---- drawing ---------------------------------------------------------------------------------- */

static const char *label_of(const mha_tokens *tokens, int64_t at)
{
    return at < 0 ? ELLIPSIS : tokens->labels[at];
}

static int label_bytes(const char *label)
{
    return (int)heads_whole_characters(label, strlen(label), TOKEN_BYTES);
}

/* The texts above and below the picture. */
static void describe(const pictures *p, const mha_tokens *tokens, picture *made)
{
    const mha_measure_info info = mha_measure_describe(made->measure);
    const heads_source *source = &p->sources->items[made->place.text];
    const float *row = made->weights + made->mark[0] * made->columns;
    const char *query = label_of(tokens, made->place.row), *key = label_of(tokens, made->place.key);
    char where[320];
    heads_report_where(source, &made->place, where, sizeof where);
    for (int64_t c = 0; c < made->columns; c++) made->seen += (double)row[c];
    snprintf(made->title, sizeof made->title, "L%" PRId64 "H%" PRId64 ": %s %.2f%s",
             made->row.layer, made->row.head, info.label, made->place.value,
             info.kind == MHA_KIND_NATS     ? " nats"
             : info.kind == MHA_KIND_TOKENS ? " tokens"
                                            : "");
    snprintf(made->said, sizeof made->said,
             "%s, \xE2\x80\x9C%.*s\xE2\x80\x9D attends most to token %" PRId64
             ", \xE2\x80\x9C%.*s\xE2\x80\x9D: %.2f",
             where, label_bytes(query), query, made->place.key, label_bytes(key), key,
             (double)row[made->mark[1]]);
    snprintf(made->shown, sizeof made->shown,
             "tokens %" PRId64 " to %" PRId64 " of %" PRId64
             "; the columns shown hold %.0f %% of the marked row's attention",
             made->first, made->end - 1, tokens->count, 100 * made->seen);
}

static cli_exit draw_as(const pictures *p, const picture *made, const char *ending,
                        files_draw_fn *draw, const mha_figure *figure)
{
    char file[NAME_BYTES + 8];
    snprintf(file, sizeof file, "%s.%s", made->name, ending);
    return cli_check(files_draw_in(p->folder, file, draw, figure));
}

static cli_exit draw_picture(pictures *p, const mha_tokens *tokens, picture *made)
{
    const int64_t rows = made->end - made->first, columns = made->columns;
    const char **row_labels, **col_labels;
    uint8_t *masked;
    describe(p, tokens, made);
    CLI_TRY(ARENA_ALLOC(rows, &row_labels));
    CLI_TRY(ARENA_ALLOC(columns, &col_labels));
    CLI_TRY(ARENA_ALLOC(rows * columns, &masked));
    for (int64_t r = 0; r < rows; r++) row_labels[r] = label_of(tokens, made->first + r);
    for (int64_t c = 0; c < columns; c++) col_labels[c] = label_of(tokens, made->at[c]);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            masked[r * columns + c] =
                made->at[c] < 0 || (p->model->causal && made->at[c] > made->first + r);
    const mha_panel panel = {.values = made->weights, .masked = masked, .mark = made->mark};
    const mha_figure figure = {.struct_size = sizeof figure,
                               .panel_size = sizeof panel,
                               .title = made->title,
                               .subtitle = made->said,
                               .footnote = made->shown,
                               .row_axis = "query (attending)",
                               .col_axis = "key (attended to)",
                               .rows = rows,
                               .cols = columns,
                               .row_labels = row_labels,
                               .col_labels = col_labels,
                               .panels = &panel,
                               .panel_count = 1,
                               .pixel_ratio = LARGE_SCALE,
                               .value_name = "weight"};
    CLI_TRY(draw_as(p, made, "svg", files_draw_svg, &figure));
    if (p->options->png) CLI_TRY(draw_as(p, made, "png", files_draw_png, &figure));
    if (p->options->pdf) CLI_TRY(draw_as(p, made, "pdf", files_draw_pdf, &figure));
    made->made = true;
    p->made++;
    return CLI_OK;
}

/* Draw all pictures of a text. */
static cli_exit draw_text(pictures *p)
{
    const text_visit visit = {
        .after_layer = look_at_layer, .user = p, .gates = p->found->gates ? &p->gates : NULL};
    mha_tokens *tokens;
    CLI_TRY(heads_source_encode(p->options, p->model, &p->sources->items[p->text], &tokens, NULL));
    for (int64_t i = 0; i < p->count; i++) {
        picture *made = &p->items[i];
        if (made->place.text != p->text) continue;
        set_window(made, tokens->count, p->model->causal);
        CLI_TRY(ARENA_ALLOC((made->end - made->first) * made->columns, &made->weights));
    }
    const mha_status status = text_model_run(p->model, tokens, &visit);
    progress_clear(&p->progress);
    CLI_TRY(cli_check(status));
    for (int64_t i = 0; i < p->count; i++)
        if (p->items[i].place.text == p->text) CLI_TRY(draw_picture(p, tokens, &p->items[i]));
    return CLI_OK;
}

/* ---- the page --------------------------------------------------------------------------------- */

typedef struct html_out {
    const mha_sink *sink;
    mha_status status;
} html_out;

static void put_bytes(html_out *html, const char *bytes, size_t count)
{
    if (!html->status && count > 0)
        html->status = html->sink->write(html->sink->user, bytes, count);
}

static void put(html_out *html, const char *text)
{
    put_bytes(html, text, strlen(text));
}

static const char *entity(char code)
{
    return code == '&' ? "&#38;" : code == '<' ? "&#60;" : code == '>' ? "&#62;" : "&#34;";
}

static void put_escaped(html_out *html, const char *text)
{
    const char *end = text + strlen(text);
    while (text < end) {
        const char *from = text;
        bool hidden;
        mha_text_next(&text, end, &hidden);
        if (hidden)
            put(html, "\xEF\xBF\xBD");
        else if (*from == '&' || *from == '<' || *from == '>' || *from == '"')
            put(html, entity(*from));
        else
            put_bytes(html, from, (size_t)(text - from));
    }
}

static const char style[] =
    "<style>\nbody { font: 15px/1.5 system-ui, sans-serif; max-width: 1200px; margin: 2rem auto; "
    "padding: 0 1rem; color: #1b1b1f; background: #fff }\n"
    "figure { margin: 0 0 2.5rem }\nfigcaption { margin-bottom: .5rem }\n"
    "img { max-width: 100%; height: auto }\n</style>\n";
static const char guide[] =
    "Rows are queries, columns are keys; brighter cells have larger weights. The row of the "
    "example and its largest weight are marked. Tokens count from 0.";

/* The heading of a head and measure, before its first picture. */
static void put_heading(const pictures *p, const picture *made, html_out *html)
{
    char line[160];
    const mha_measure_info info = mha_measure_describe(made->measure);
    const mha_head_score score =
        mha_study_score(&p->found->of, made->row.layer, made->row.head, made->measure);
    snprintf(line, sizeof line, "<h2>L%" PRId64 "H%" PRId64 ", %s</h2>\n<p>", made->row.layer,
             made->row.head, info.label);
    put(html, line);
    put_escaped(html, info.text);
    snprintf(line, sizeof line, ": mean %.3f, chance %.3f, %" PRId64 " rows</p>\n", score.value,
             score.chance, score.rows);
    put(html, line);
}

static mha_status draw_index(const void *user, const mha_sink *sink)
{
    const pictures *p = user;
    char line[160];
    html_out html = {.sink = sink};
    put(&html, "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n"
               "<meta name=\"viewport\" content=\"width=device-width\">\n<title>Heads of ");
    put_escaped(&html, p->found->model->name);
    put(&html, " in their texts</title>\n");
    put(&html, style);
    put(&html, "<h1>Heads of ");
    put_escaped(&html, p->found->model->name);
    snprintf(line, sizeof line, " in their texts</h1>\n<p>%" PRId64 " text%s, %" PRId64 " tokens. ",
             p->found->of.text_count, words_s(p->found->of.text_count), p->found->of.token_count);
    put(&html, line);
    put(&html, guide);
    put(&html, "</p>\n");
    for (int64_t i = 0; i < p->count; i++) {
        const picture *made = &p->items[i], *before = i > 0 ? made - 1 : NULL;
        if (!before || before->measure != made->measure || before->row.layer != made->row.layer ||
            before->row.head != made->row.head)
            put_heading(p, made, &html);
        put(&html, "<figure>\n<figcaption><b>");
        put_escaped(&html, made->title);
        put(&html, "</b>, ");
        put_escaped(&html, made->said);
        put(&html, ".</figcaption>\n<a href=\"");
        put(&html, made->name);
        put(&html, ".svg\"><img loading=\"lazy\" src=\"");
        put(&html, made->name);
        put(&html, ".svg\" alt=\"");
        put_escaped(&html, made->title);
        put(&html, "\"></a>\n</figure>\n");
    }
    put(&html, "</html>\n");
    return html.status;
}

/* ---- the folder ------------------------------------------------------------------------------- */

static cli_exit fill(void *of)
{
    pictures *p = of;
    for (int64_t i = 0; i < p->count; i++) {
        const size_t mark = arena_mark();
        if (p->items[i].made) continue;
        if (signals_came()) return cli_fail_status(MHA_ERR_CALLBACK); /* silent */
        p->text = p->items[i].place.text;
        CLI_TRY(draw_text(p));
        arena_release(mark);
    }
    return cli_check(files_draw_in(p->folder, "index.html", draw_index, p));
}

cli_exit heads_write_pictures(const heads_options *options, text_model *model,
                              const heads_sources *sources, const heads_found *found,
                              const heads_row *rows, int64_t count)
{
    pictures p = {.options = options,
                  .found = found,
                  .model = model,
                  .sources = sources,
                  .gates = mha_tensor_contiguous(found->gates, MHA_F32, 2,
                                                 (int64_t[]){found->of.layers, model->heads}),
                  .progress = progress_begin(options->quiet)};
    CLI_TRY(choose(&p, rows, count));
    CLI_TRY(heads_folder_write(options->pictures, &p.folder, fill, &p));
    cli_note(options->quiet, "wrote %s: %" PRId64 " pictures and index.html", options->pictures,
             p.count);
    return CLI_OK;
}
