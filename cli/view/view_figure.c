/* From maps to a figure: which heads, which tokens, what is hidden and what that hides. */
#include "common/arena.h"
#include "view/view.h"
#include "view/view_roles.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- Ranges ---------------------------------------------------------------------------------- */

cli_exit view_check_range(const view_options *options, mha_range *range, double *lo, double *hi)
{
    const char *text = options->range;
    *range = MHA_RANGE_SHARED;
    if (!text || !strcmp(text, "shared")) return CLI_OK;
    if (!strcmp(text, "head")) {
        *range = MHA_RANGE_PANEL;
        return CLI_OK;
    }
    const char *rest;
    if (!args_decimal(text, ":", lo, &rest) || !*rest || !args_decimal(rest + 1, "", hi, &rest) ||
        *lo >= *hi)
        return cli_fail(CLI_USAGE, VIEW,
                        "--range %s: expected shared, head or LO:HI, two numbers with LO below HI",
                        text);
    *range = MHA_RANGE_FIXED;
    return CLI_OK;
}

/* The weight of an even row of n tokens, 1 / n, is fewer than 4 of 256 steps above black beyond 64.
 */
mha_scale view_scale(const view_options *options, int64_t cols)
{
    enum { LONG = 64 };
    if (options->scale > 0) return (mha_scale)(options->scale - 1);
    return cols > LONG ? MHA_SCALE_SQRT : MHA_SCALE_LINEAR;
}

/* ---- Hiding ---------------------------------------------------------------------------------- */

/* The tokens of an axis that stay. */
typedef struct kept_axis {
    const maps_tokens *tokens;
    int64_t *at; /* [count] indices into tokens */
    int64_t count;
    const char **labels; /* [count] */
} kept_axis;

/* One name in a list "special,the,##ing". A list that is "," alone names the comma. */
static bool next_name(const char **at, const char **name, size_t *length)
{
    if (!**at) return false;
    *name = *at;
    *length = strcmp(*at, ",") ? strcspn(*at, ",") : 1;
    *at += *length;
    if (**at == ',') ++*at;
    return true;
}

static bool is_named(const maps_token *token, const char *name, size_t length)
{
    bool special = length == 7 && !strncmp(name, "special", 7);
    if (special) return token->special;
    return strlen(token->text) == length && !strncmp(token->text, name, length);
}

static bool is_hidden(const view_options *options, const maps_token *token)
{
    const char *name;
    size_t length;
    for (int i = 0; i < options->hide.count; i++)
        for (const char *at = options->hide.items[i]; next_name(&at, &name, &length);)
            if (is_named(token, name, length)) return true;
    return false;
}

static cli_exit make_axis(const view_options *options, const maps_tokens *tokens, kept_axis *axis)
{
    *axis = (struct kept_axis){.tokens = tokens};
    CLI_TRY(ARENA_ALLOC(options->command, tokens->count, &axis->at));
    CLI_TRY(ARENA_ALLOC(options->command, tokens->count, &axis->labels));
    for (int64_t i = 0; i < tokens->count; i++) {
        if (is_hidden(options, &tokens->items[i])) continue;
        const maps_token *token = &tokens->items[i];
        axis->labels[axis->count] = token->label ? token->label : token->text;
        axis->at[axis->count++] = i;
    }
    if (axis->count > 0) return CLI_OK;
    return cli_fail(CLI_USAGE, options->command,
                    "--hide: all %" PRId64 " tokens are hidden; hide fewer", tokens->count);
}

void view_warn_of_idle_names(const view_options *options, const attention_maps *maps)
{
    const char *name;
    size_t length;
    for (int i = 0; i < options->hide.count; i++)
        for (const char *at = options->hide.items[i]; next_name(&at, &name, &length);) {
            bool found = false;
            for (int64_t t = 0; t < maps->rows.count; t++)
                found = found || is_named(&maps->rows.items[t], name, length);
            for (int64_t s = 0; s < maps->cols.count; s++)
                found = found || is_named(&maps->cols.items[s], name, length);
            if (!found)
                cli_warn(options->command,
                         "--hide: no token is '%.*s'; write tokens as the picture labels them",
                         (int)length, name);
        }
}

/* ---- Panels ---------------------------------------------------------------------------------- */

enum { NAME_BYTES = 48, NOTE_BYTES = 40 };

typedef struct panel_text {
    char name[NAME_BYTES], note[NOTE_BYTES];
} panel_text;

/* Everything that making panels needs. */
typedef struct panel_maker {
    const view_options *options;
    const attention_maps *maps;
    kept_axis rows, cols;
    mha_panel *panels;
    panel_text *texts;
    const view_role **roles; /* [panels]; NULL: none */
    float *values;           /* [panels, rows, cols] where tokens are hidden, else NULL */
    float *twins;            /* likewise */
    float *queries, *keys;   /* likewise, of the rows and columns that stay */
    uint8_t *masked;         /* [rows, cols] cells that no query can see; NULL: none */
    int64_t count;
    bool grouped;      /* by layer; not where each has one head only, whose name says it */
    double hidden_sum; /* over panels, of the mean hidden mass of their rows */
} panel_maker;

/* Copy the cells that stay; returns the mean over rows of the weight that goes. */
static double copy_cells(const panel_maker *maker, const float *map, bool renormalise, float *out)
{
    double hidden = 0;
    for (int64_t t = 0; t < maker->rows.count; t++) {
        const float *row = map + maker->rows.at[t] * maker->maps->cols.count;
        float *to = out + t * maker->cols.count;
        double all = 0, kept = 0;
        for (int64_t s = 0; s < maker->maps->cols.count; s++) all += row[s];
        for (int64_t s = 0; s < maker->cols.count; s++) kept += to[s] = row[maker->cols.at[s]];
        hidden += all - kept;
        for (int64_t s = 0; s < maker->cols.count && renormalise && kept > 0; s++)
            to[s] = (float)(to[s] / kept);
    }
    return hidden / (double)maker->rows.count;
}

/* Of a contrast: the largest change between tokens that both texts have. */
static mha_link largest_change(const panel_maker *maker, const mha_panel *panel)
{
    mha_link best = {.row = -1, .col = -1};
    for (int64_t t = 0; t < maker->rows.count; t++)
        for (int64_t s = 0; s < maker->cols.count; s++) {
            const maps_token *row = &maker->maps->rows.items[maker->rows.at[t]];
            const double change = (double)panel->values[t * maker->cols.count + s];
            if (row->label || row->special || !(fabs(change) > best.score) || !isfinite(change) ||
                maker->maps->cols.items[maker->cols.at[s]].special)
                continue;
            best = (mha_link){t, s, change, .score = fabs(change)};
        }
    return best;
}

/* "“it” looks at “animal” with 0.67; the mean of these heads is 0.06." Or its largest change. */
static int write_link(const panel_maker *maker, const mha_link *link, char *out, size_t size)
{
    const char *from = maker->rows.labels[link->row], *to = maker->cols.labels[link->col];
    if (maker->maps->contrast)
        return snprintf(out, size,
                        "Its largest change is %+.2f: \xE2\x80\x9C%s\xE2\x80\x9D looks %s at "
                        "\xE2\x80\x9C%s\xE2\x80\x9D in the first text.",
                        link->value, from, link->value < 0 ? "less" : "more", to);
    const int length = snprintf(out, size,
                                "\xE2\x80\x9C%s\xE2\x80\x9D looks at \xE2\x80\x9C%s"
                                "\xE2\x80\x9D: %.2f",
                                from, to, link->value);
    const size_t used = out ? (size_t)length : 0;
    return length + (maker->count > 1
                         ? snprintf(out ? out + used : NULL, size - used,
                                    ", where the heads shown have %.2f on average.", link->mean)
                         : snprintf(out ? out + used : NULL, size - used, "."));
}

/* What a head does, its link, where it rests: what is most specific comes first. */
static cli_exit write_detail(const panel_maker *maker, int64_t i, const mha_link *link)
{
    const double telling = 0.1; /* more than others, or more than is worth a line beside a role */
    const view_role none = {0}, *role = maker->roles[i] ? maker->roles[i] : &none;
    const bool idle = *role->badge && maker->count > 1 && link->value - link->mean < telling;
    const size_t room = link->row < 0 || idle ? 0 : (size_t)write_link(maker, link, NULL, 0);
    const char *parts[] = {role->does, NULL, role->rests};
    char *sentence, *detail;
    CLI_TRY(ARENA_ALLOC(maker->options->command, (int64_t)room + 1, &sentence));
    if (room) write_link(maker, link, sentence, room + 1);
    parts[1] = sentence;
    CLI_TRY(ARENA_ALLOC(maker->options->command,
                        (int64_t)(strlen(parts[0]) + room + strlen(parts[2]) + 3), &detail));
    for (int k = 0; k < 3; k++) {
        if (*detail && *parts[k]) strcat(detail, "\n");
        strcat(detail, parts[k]);
    }
    maker->panels[i].detail = *detail ? detail : NULL;
    return CLI_OK;
}

static void copy_rows(const kept_axis *axis, const float *from, int64_t channels, float *to)
{
    for (int64_t i = 0; i < axis->count; i++)
        memcpy(to + i * channels, from + axis->at[i] * channels, (size_t)channels * sizeof *to);
}

static void take_neurons(const panel_maker *maker, int64_t layer, int64_t head, mha_panel *panel)
{
    const attention_maps *maps = maker->maps;
    const int64_t channels = maps->channels;
    if (!maps->queries || !maps->queries[layer]) return;
    const float *queries = maps->queries[layer] + head * maps->rows.count * channels;
    const float *keys = maps->keys[layer] + head * maps->cols.count * channels;
    panel->channels = channels;
    panel->score_scale = maps->score_scales[layer];
    panel->queries = queries;
    panel->keys = keys;
    if (!maker->queries) return;
    float *own_queries = maker->queries + maker->count * maker->rows.count * channels;
    float *own_keys = maker->keys + maker->count * maker->cols.count * channels;
    copy_rows(&maker->rows, queries, channels, own_queries);
    copy_rows(&maker->cols, keys, channels, own_keys);
    panel->queries = own_queries;
    panel->keys = own_keys;
}

static void make_panel(panel_maker *maker, int64_t layer, int64_t head, int64_t group)
{
    mha_panel *panel = &maker->panels[maker->count];
    panel_text *text = &maker->texts[maker->count];
    const float *map =
        maker->maps->layer[layer] + head * maker->maps->rows.count * maker->maps->cols.count;
    *panel =
        (mha_panel){.values = map, .name = text->name, .group = group, .masked = maker->masked};
    snprintf(text->name, sizeof text->name, "L%" PRId64 "H%" PRId64, layer, head);
    if (maker->maps->twin)
        panel->twin =
            maker->maps->twin[layer] + head * maker->maps->rows.count * maker->maps->cols.count;
    if (maker->values) {
        float *cells = maker->values + maker->count * maker->rows.count * maker->cols.count;
        double hidden = copy_cells(maker, map, maker->options->renormalise, cells);
        maker->hidden_sum += hidden;
        if (maker->twins) {
            float *twin = maker->twins + maker->count * maker->rows.count * maker->cols.count;
            copy_cells(maker, panel->twin, false, twin);
            panel->twin = twin;
        }
        panel->values = cells;
        if (!maker->maps->contrast) {
            snprintf(text->note, sizeof text->note, "hidden: %.0f %%", 100 * hidden);
            panel->note = text->note;
        }
    }
    take_neurons(maker, layer, head, panel);
    maker->roles[maker->count] = view_roles_dress(maker->options->roles, layer, head, panel);
    maker->count++;
}

/* In a causal map what lies behind a token. */
static cli_exit make_mask(panel_maker *maker)
{
    const int64_t rows = maker->rows.count, cols = maker->cols.count;
    if (!maker->maps->causal) return CLI_OK;
    CLI_TRY(ARENA_ALLOC(maker->options->command, rows * cols, &maker->masked));
    for (int64_t t = 0; t < rows; t++)
        for (int64_t s = 0; s < cols; s++)
            maker->masked[t * cols + s] = maker->cols.at[s] > maker->rows.at[t];
    return CLI_OK;
}

static cli_exit make_panels(const maps_picks *picks, panel_maker *maker)
{
    const char *command = maker->options->command;
    const attention_maps *maps = maker->maps;
    int64_t cells = maker->rows.count * maker->cols.count;
    bool hides = maker->rows.count < maps->rows.count || maker->cols.count < maps->cols.count;
    CLI_TRY(ARENA_ALLOC(command, picks->count, &maker->panels));
    CLI_TRY(ARENA_ALLOC(command, picks->count, &maker->texts));
    CLI_TRY(ARENA_ALLOC(command, picks->count, &maker->roles));
    if (hides) CLI_TRY(ARENA_ALLOC(command, picks->count * cells, &maker->values));
    if (hides && maps->twin) CLI_TRY(ARENA_ALLOC(command, picks->count * cells, &maker->twins));
    if (hides && maps->queries) {
        const int64_t each = picks->count * maps->channels;
        CLI_TRY(ARENA_ALLOC(command, each * maker->rows.count, &maker->queries));
        CLI_TRY(ARENA_ALLOC(command, each * maker->cols.count, &maker->keys));
    }
    int64_t group = 0;
    for (int64_t l = 0; l < picks->layers; l++)
        maker->grouped = maker->grouped || maps_picks_in_layer(picks, l) > 1;
    for (int64_t l = 0; l < picks->layers; l++) {
        if (maps_picks_in_layer(picks, l) == 0) continue;
        for (int64_t h = 0; h < picks->heads; h++)
            if (picks->on[l * picks->heads + h]) make_panel(maker, l, h, group);
        if (maker->grouped) group++;
    }
    return CLI_OK;
}

/* ---- Texts around the panels ----------------------------------------------------------------- */

enum { SUBTITLE_BYTES = 1200, FOOTNOTE_BYTES = 500 };

/* Append at most `most` characters of text, with an ellipsis for the rest; white space at its end
 * goes, line ends in it become spaces. */
static void append_elided(char *out, size_t size, const char *text, size_t bytes, int most)
{
    while (bytes > 0 && strchr(" \n\r\t", text[bytes - 1])) bytes--;
    size_t used = strlen(out), at = 0;
    for (int characters = 0; at < bytes && characters < most; characters++) {
        size_t length = 1;
        while (at + length < bytes && ((unsigned char)text[at + length] & 0xC0) == 0x80) length++;
        if (used + length + 4 > size) break;
        for (size_t i = 0; i < length; i++) {
            char c = text[at + i];
            out[used++] = c == '\n' || c == '\r' || c == '\t' || c == '\0' ? ' ' : c;
        }
        at += length;
    }
    snprintf(out + used, size - used, "%s", at < bytes ? "\xE2\x80\xA6" : "");
}

bool view_join_texts(const attention_maps *maps, int most, char *out, size_t size)
{
    out[0] = '\0';
    if (!maps->text[0]) return false;
    append_elided(out, size / 2, maps->text[0], maps->text_bytes[0], most);
    if (maps->text[1]) {
        append_elided(out, size, maps->contrast ? " less" : " |", maps->contrast ? 5 : 2, 5);
        strcat(out, " "); /* half of the room is left */
        append_elided(out, size, maps->text[1], maps->text_bytes[1], most);
    }
    return true;
}

/* Append the hidden tokens of an axis that `out` does not name yet, while there is room. */
static void append_hidden(const view_options *options, const maps_tokens *tokens, char *out)
{
    enum { ROOM = FOOTNOTE_BYTES - 160 };
    for (int64_t i = 0; i < tokens->count; i++) {
        const char *text = tokens->items[i].text;
        if (!is_hidden(options, &tokens->items[i])) continue;
        bool again = false;
        for (int64_t j = 0; j < i && !again; j++) again = !strcmp(tokens->items[j].text, text);
        size_t used = strlen(out);
        if (again || used + 8 > ROOM) continue;
        out[used] = ' ';
        out[used + 1] = '\0';
        append_elided(out, ROOM, text, strlen(text), 40);
    }
}

/* The remark, then what was hidden and what it held. */
static const char *make_footnote(const panel_maker *maker, const char *remark, char *out)
{
    const attention_maps *maps = maker->maps;
    if (remark) append_elided(out, FOOTNOTE_BYTES / 2, remark, strlen(remark), FOOTNOTE_BYTES);
    if (maps->cell > 1) {
        const size_t at = strlen(out);
        snprintf(out + at, FOOTNOTE_BYTES - at,
                 "%sa cell is the largest weight of %" PRId64 " x %" PRId64 " tokens, of %" PRId64,
                 remark ? "; " : "", maps->cell, maps->cell, maps->tokens.count);
    }
    if (!maker->values) return *out ? out : NULL;
    size_t used = strlen(out);
    snprintf(out + used, FOOTNOTE_BYTES - used, "%shidden:", remark ? "; " : "");
    append_hidden(maker->options, &maps->rows, out);
    if (maps->cols.items != maps->rows.items) append_hidden(maker->options, &maps->cols, out);
    if (maps->contrast) return out;
    used = strlen(out);
    snprintf(out + used, FOOTNOTE_BYTES - used,
             "; hidden keys hold %.1f %% of the weight of the rows shown (mean over heads)%s",
             100 * maker->hidden_sum / (double)maker->count,
             maker->options->renormalise ? "; each row is divided by what is left of it" : "");
    return out;
}

static cli_exit name_groups(const char *command, const maps_picks *picks, mha_figure *figure)
{
    const char **names;
    char *texts;
    CLI_TRY(ARENA_ALLOC(command, picks->layers, &names));
    CLI_TRY(arena_alloc(command, picks->layers, NAME_BYTES, &texts));
    int64_t count = 0;
    for (int64_t l = 0; l < picks->layers; l++) {
        if (maps_picks_in_layer(picks, l) == 0) continue;
        char *text = texts + count * NAME_BYTES;
        snprintf(text, NAME_BYTES, "layer %" PRId64, l);
        names[count++] = text;
    }
    figure->group_names = names;
    figure->group_count = count;
    return CLI_OK;
}

static cli_exit list_tokens(const char *command, const attention_maps *maps, view_figure *out)
{
    const char **labels;
    if (maps->cell <= 1) return CLI_OK;
    CLI_TRY(ARENA_ALLOC(command, maps->tokens.count, &labels));
    for (int64_t i = 0; i < maps->tokens.count; i++) labels[i] = maps->tokens.items[i].text;
    out->tokens = labels;
    return CLI_OK;
}

/* Where the second text begins; 0: there is one. */
static int64_t second_text(const kept_axis *axis)
{
    for (int64_t i = 0; i < axis->count; i++)
        if (axis->tokens->items[axis->at[i]].sequence == 1) return i;
    return 0;
}

/* Where a token is in a figure; -1: hidden. */
static int64_t place_of(const kept_axis *axis, int64_t token)
{
    for (int64_t i = 0; i < axis->count; i++)
        if (axis->at[i] == token) return i;
    return -1;
}

/* The texts of the special tokens, each once; a model has five or so. */
static void add_special(const maps_tokens *tokens, view_figure *out)
{
    const int most = sizeof out->special / sizeof *out->special;
    for (int64_t i = 0; i < tokens->count && out->special_count < most; i++) {
        bool known = !tokens->items[i].special;
        for (int j = 0; j < out->special_count; j++)
            known |= !strcmp(out->special[j], tokens->items[i].text);
        if (!known) out->special[out->special_count++] = tokens->items[i].text;
    }
}

/* The cell that was asked for takes the place of a map's link, unless it is hidden. */
static void ask_cell(const panel_maker *maker, mha_link *link, int64_t panel)
{
    const int64_t cell = maker->maps->cell > 1 ? maker->maps->cell : 1;
    const int64_t row = place_of(&maker->rows, maker->options->first_row / cell);
    const int64_t col = place_of(&maker->cols, maker->options->first_col / cell);
    if (row < 0 || col < 0) return;
    const int64_t at = row * maker->cols.count + col;
    *link = (mha_link){.row = row, .col = col, .value = (double)maker->panels[panel].values[at]};
    for (int64_t i = 0; i < maker->count; i++)
        link->mean += fabs((double)maker->panels[i].values[at]) / (double)maker->count;
}

/* What each head says most, in words too, and what a report opens on. */
static cli_exit find_links(const panel_maker *maker, view_figure *out)
{
    const view_options *options = maker->options;
    const attention_maps *maps = maker->maps;
    const mha_report report = {.struct_size = sizeof report,
                               .same_labels = maps->rows.items == maps->cols.items,
                               .special = out->special,
                               .special_count = out->special_count};
    mha_link *links;
    CLI_TRY(ARENA_ALLOC(options->command, maker->count + 1, &links));
    CLI_TRY(cli_check(options->command,
                      mha_figure_links(&out->figure, &report, links, &out->first_panel)));
    for (int64_t i = 0; i < maker->count && maps->contrast; i++) {
        links[i] = largest_change(maker, &maker->panels[i]);
        if (i == 0 || links[i].score > links[out->first_panel].score) out->first_panel = i;
    }
    if (options->first_panel >= 0) out->first_panel = options->first_panel;
    if (options->first_cell) ask_cell(maker, &links[out->first_panel], out->first_panel);
    for (int64_t i = 0; i < maker->count; i++) CLI_TRY(write_detail(maker, i, &links[i]));
    out->links = links;
    out->first_row = links[out->first_panel].row;
    out->first_col = links[out->first_panel].col;
    return CLI_OK;
}

cli_exit view_figure_make(const view_options *options, const attention_maps *maps,
                          const maps_picks *picks, const char *remark, view_figure *out)
{
    panel_maker maker = {.options = options, .maps = maps};
    char *subtitle, *footnote;
    mha_figure *figure = &out->figure;
    *out = (view_figure){0};
    *figure = (mha_figure){.struct_size = sizeof *figure,
                           .panel_size = sizeof(mha_panel),
                           .title = maps->name,
                           .row_axis = "query (looking)",
                           .col_axis = "key (looked at)",
                           .cmap = maps->contrast && options->cmap == MHA_CMAP_VIRIDIS
                                       ? MHA_CMAP_DIVERGING
                                       : (mha_cmap)options->cmap,
                           .scale = view_scale(options, maps->cols.count),
                           .dark = options->paper == PAPER_DARK,
                           .print_values = (mha_values)options->values,
                           .value_name = maps->contrast       ? "difference"
                                         : maps->architecture ? "weight"
                                                              : "value"};
    CLI_TRY(view_check_range(options, &figure->range, &figure->lo, &figure->hi));
    CLI_TRY(make_axis(options, &maps->rows, &maker.rows));
    CLI_TRY(make_axis(options, &maps->cols, &maker.cols));
    CLI_TRY(make_mask(&maker));
    CLI_TRY(make_panels(picks, &maker));
    if (maker.grouped) CLI_TRY(name_groups(options->command, picks, figure));
    CLI_TRY(ARENA_ALLOC(options->command, SUBTITLE_BYTES, &subtitle));
    CLI_TRY(ARENA_ALLOC(options->command, FOOTNOTE_BYTES, &footnote));
    CLI_TRY(list_tokens(options->command, maps, out));
    figure->rows = maker.rows.count;
    figure->cols = maker.cols.count;
    figure->row_labels = maker.rows.labels;
    figure->col_labels = maker.cols.labels;
    figure->panels = maker.panels;
    figure->panel_count = maker.count;
    if (view_join_texts(maps, maps->text[1] ? 70 : 140, subtitle, SUBTITLE_BYTES))
        figure->subtitle = subtitle;
    out->second_row = second_text(&maker.rows);
    out->second_col = second_text(&maker.cols);
    figure->footnote = make_footnote(&maker, remark, footnote);
    add_special(&maps->rows, out);
    add_special(&maps->cols, out);
    return find_links(&maker, out);
}
