/* Make a figure and its report from maps: selected heads, shown tokens, and the weight on hidden
 * tokens. */
#include "show/show.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static bool is_contrast(const mha_maps *maps)
{
    return maps->flags & MHA_MAPS_CONTRAST;
}

/* Whether maps are differences, or those of gated delta nets. */
static bool is_signed(const mha_maps *maps)
{
    const int64_t cells = maps->heads * maps->rows.count * maps->cols.count;
    if (is_contrast(maps)) return true;
    for (int64_t l = 0; l < maps->layers; l++)
        for (int64_t i = 0; maps->layer && maps->layer[l] && i < cells; i++)
            if (maps->layer[l][i] < 0) return true;
    return false;
}

/* Maps beyond FULL_BYTES are pooled to the number of 8-bit cells that fit in a report of 10 MB. */
static const double FULL_BYTES = 256e6, POOLED_CELLS = 7e6;

int64_t mha_show_cell(int64_t heads, int64_t tokens)
{
    const double n = (double)tokens, maps = (double)heads;
    int64_t cell = 2;
    if (maps * n * n * sizeof(float) <= FULL_BYTES) return 1;
    while (cell < tokens && maps * ceil(n / (double)cell) * ceil(n / (double)cell) > POOLED_CELLS)
        cell++;
    return cell;
}

/* ---- Hiding ---------------------------------------------------------------------------------- */

/* The tokens of an axis that are shown. */
typedef struct kept_axis {
    const mha_tokens *tokens;
    int64_t *at; /* [count] indices into tokens */
    int64_t count;
    const char **labels; /* [count] */
} kept_axis;

/* Take one name from a list "special,the,##ing". The list "," names the comma. */
static bool next_name(const char **at, const char **name, size_t *length)
{
    if (!**at) return false;
    *name = *at;
    *length = strcmp(*at, ",") ? strcspn(*at, ",") : 1;
    *at += *length;
    if (**at == ',') ++*at;
    return true;
}

static bool is_special(const mha_tokens *axis, int64_t i)
{
    return axis->special && axis->special[i];
}

static bool is_named(const mha_tokens *axis, int64_t i, const char *name, size_t length)
{
    const char *label = axis->labels[i];
    if (length == 7 && !strncmp(name, "special", 7)) return is_special(axis, i);
    return strlen(label) == length && !strncmp(label, name, length);
}

static bool is_hidden(const mha_show_options *options, const mha_tokens *axis, int64_t i)
{
    const char *name;
    size_t length;
    for (int64_t k = 0; k < options->hide_count; k++)
        for (const char *at = options->hide[k]; next_name(&at, &name, &length);)
            if (is_named(axis, i, name, length)) return true;
    return false;
}

static mha_status make_axis(const mha_show_options *options, const mha_tokens *tokens,
                            const char *const *shown, mha_room *room, kept_axis *axis)
{
    *axis = (kept_axis){.tokens = tokens};
    MHA_TRY(MHA_ROOM_ALLOC(room, tokens->count, &axis->at));
    MHA_TRY(MHA_ROOM_ALLOC(room, tokens->count, &axis->labels));
    for (int64_t i = 0; i < tokens->count; i++) {
        if (is_hidden(options, tokens, i)) continue;
        axis->labels[axis->count] = shown && shown[i] ? shown[i] : tokens->labels[i];
        axis->at[axis->count++] = i;
    }
    if (axis->count > 0) return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT, "--hide: all %" PRId64 " tokens are hidden; hide fewer",
                    tokens->count);
}

static bool has_name(const mha_tokens *axis, const char *name, size_t length)
{
    int64_t i = 0;
    while (i < axis->count && !is_named(axis, i, name, length)) i++;
    return i < axis->count;
}

const char *mha_show_idle(const mha_maps *maps, const char *hide, size_t *bytes)
{
    const char *name;
    if (*hide == ',' && hide[1]) hide++;
    while (next_name(&hide, &name, bytes))
        if (!has_name(&maps->rows, name, *bytes) && !has_name(&maps->cols, name, *bytes))
            return name;
    return NULL;
}

/* ---- Panels ---------------------------------------------------------------------------------- */

enum { NAME_BYTES = 48, NOTE_BYTES = 40 };

typedef struct panel_text {
    char name[NAME_BYTES], note[NOTE_BYTES];
} panel_text;

/* The state shared by all panels. */
typedef struct panel_maker {
    const mha_show_options *options;
    const mha_maps *maps;
    mha_room *room;
    kept_axis rows, cols;
    mha_panel *panels;
    panel_text *texts;
    const mha_show_role **roles; /* [panels]; NULL: none */
    float *values;               /* [panels, rows, cols] if tokens are hidden; or NULL */
    float *twins;                /* likewise */
    float *queries, *keys;       /* likewise, of the shown rows and columns */
    uint8_t *masked;             /* [rows, cols] cells that no query can see; NULL: none */
    int64_t count;
    bool grouped;      /* by layer, unless each layer has a single head */
    double hidden_sum; /* over panels, of the mean hidden mass of their rows */
} panel_maker;

/* Copy the shown cells. Returns the mean over rows of the weight on hidden columns. */
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

/* The largest change between tokens of both texts, for a contrast. */
static mha_link largest_change(const panel_maker *maker, const mha_panel *panel)
{
    const mha_maps *maps = maker->maps;
    mha_link best = {.row = -1, .col = -1};
    for (int64_t t = 0; t < maker->rows.count; t++)
        for (int64_t s = 0; s < maker->cols.count; s++) {
            const int64_t row = maker->rows.at[t];
            const double change = (double)panel->values[t * maker->cols.count + s];
            if ((maps->shown && maps->shown[row]) || is_special(&maps->rows, row) ||
                is_special(&maps->cols, maker->cols.at[s]) || !(fabs(change) > best.score) ||
                !isfinite(change))
                continue;
            best = (mha_link){t, s, change, .score = fabs(change)};
        }
    return best;
}

/* Write "“it” attends to “animal”: 0.67 (mean of the heads shown: 0.06).", or the largest
 * change. */
static int write_link(const panel_maker *maker, const mha_link *link, char *out, size_t size)
{
    const char *from = maker->rows.labels[link->row], *to = maker->cols.labels[link->col];
    if (is_contrast(maker->maps))
        return mha_format(out, size,
                          "Its largest change is %+.2f: \xE2\x80\x9C%s\xE2\x80\x9D attends %s to "
                          "\xE2\x80\x9C%s\xE2\x80\x9D in the first text.",
                          link->value, from, link->value < 0 ? "less" : "more", to);
    const int length = mha_format(out, size,
                                  "\xE2\x80\x9C%s\xE2\x80\x9D attends to \xE2\x80\x9C%s"
                                  "\xE2\x80\x9D: %.2f",
                                  from, to, link->value);
    const size_t used = out ? (size_t)length : 0;
    return length + (maker->count > 1 ? mha_format(out ? out + used : NULL, size - used,
                                                   " (mean of the heads shown: %.2f).", link->mean)
                                      : mha_format(out ? out + used : NULL, size - used, "."));
}

static bool rests(const char *badge)
{
    for (int role = 0; badge && role < MHA_ROLES; role++)
        if (mha_study_role_rests((mha_role)role) &&
            strcmp(badge, mha_role_describe((mha_role)role).name) == 0)
            return true;
    return false;
}

/* Write the role of a head, its link, and its default target, most specific first. */
static mha_status write_detail(const panel_maker *maker, int64_t i, const mha_link *link)
{
    const double telling = 0.1; /* minimum excess over other heads for a line next to a role */
    const mha_show_role none = {0}, *role = maker->roles[i] ? maker->roles[i] : &none;
    const bool idle = role->badge && maker->count > 1 && link->value - link->mean < telling;
    const size_t room = link->row < 0 || idle ? 0 : (size_t)write_link(maker, link, NULL, 0);
    const char *parts[] = {role->does ? role->does : "", NULL, role->rests ? role->rests : ""};
    char *sentence, *detail;
    MHA_TRY(MHA_ROOM_ALLOC(maker->room, (int64_t)room + 1, &sentence));
    if (room) write_link(maker, link, sentence, room + 1);
    parts[1] = sentence;
    if (room && rests(role->badge)) maker->panels[i].badge = NULL; /* the link is more specific */
    MHA_TRY(MHA_ROOM_ALLOC(maker->room, (int64_t)(strlen(parts[0]) + room + strlen(parts[2]) + 3),
                           &detail));
    for (int k = 0; k < 3; k++) {
        if (*detail && *parts[k]) strcat(detail, "\n");
        strcat(detail, parts[k]);
    }
    maker->panels[i].detail = *detail ? detail : NULL;
    return MHA_OK;
}

static void copy_rows(const kept_axis *axis, const float *from, int64_t channels, float *to)
{
    for (int64_t i = 0; i < axis->count; i++)
        memcpy(to + i * channels, from + axis->at[i] * channels, (size_t)channels * sizeof *to);
}

static void take_neurons(const panel_maker *maker, int64_t layer, int64_t head, mha_panel *panel)
{
    const mha_maps *maps = maker->maps;
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

/* Set the badge and the bars of a panel, if they are known. */
static void dress(panel_maker *maker, int64_t layer, int64_t head, mha_panel *panel)
{
    const mha_show_role *role = mhai_card_of(maker->options->cards, layer, head);
    if (!role) return;
    maker->roles[maker->count] = role;
    panel->badge = role->badge;
    panel->measures = role->measures;
    panel->measure_count = role->measure_count;
}

static void make_panel(panel_maker *maker, int64_t layer, int64_t head, int64_t group)
{
    mha_panel *panel = &maker->panels[maker->count];
    panel_text *text = &maker->texts[maker->count];
    const float *map =
        maker->maps->layer[layer] + head * maker->maps->rows.count * maker->maps->cols.count;
    *panel =
        (mha_panel){.values = map, .name = text->name, .group = group, .masked = maker->masked};
    mha_format(text->name, sizeof text->name, "L%" PRId64 "H%" PRId64, layer, head);
    if (maker->maps->twin && maker->maps->twin[layer])
        panel->twin =
            maker->maps->twin[layer] + head * maker->maps->rows.count * maker->maps->cols.count;
    if (maker->values) {
        float *cells = maker->values + maker->count * maker->rows.count * maker->cols.count;
        double hidden =
            copy_cells(maker, map, (maker->options->flags & MHA_SHOW_RENORMALISE), cells);
        maker->hidden_sum += hidden;
        if (maker->twins && panel->twin) {
            float *twin = maker->twins + maker->count * maker->rows.count * maker->cols.count;
            copy_cells(maker, panel->twin, false, twin);
            panel->twin = twin;
        }
        panel->values = cells;
        if (!is_contrast(maker->maps)) {
            mha_format(text->note, sizeof text->note, "hidden: %.0f %%", 100 * hidden);
            panel->note = text->note;
        }
    }
    take_neurons(maker, layer, head, panel);
    dress(maker, layer, head, panel);
    maker->count++;
}

/* Mask the columns after each token of a causal map. */
static mha_status make_mask(panel_maker *maker)
{
    const int64_t rows = maker->rows.count, cols = maker->cols.count;
    if (!(maker->maps->flags & MHA_MAPS_CAUSAL)) return MHA_OK;
    MHA_TRY(MHA_ROOM_ALLOC(maker->room, rows * cols, &maker->masked));
    for (int64_t t = 0; t < rows; t++)
        for (int64_t s = 0; s < cols; s++)
            maker->masked[t * cols + s] = maker->cols.at[s] > maker->rows.at[t];
    return MHA_OK;
}

static mha_status take_memory(panel_maker *maker)
{
    const mha_maps *maps = maker->maps;
    const int64_t cells = maker->rows.count * maker->cols.count;
    const bool hides = maker->rows.count < maps->rows.count || maker->cols.count < maps->cols.count;
    int64_t count = 0;
    for (int64_t l = 0; l < maps->layers; l++) count += mha_maps_count(maps, l);
    MHA_TRY(MHA_ROOM_ALLOC(maker->room, count, &maker->panels));
    MHA_TRY(MHA_ROOM_ALLOC(maker->room, count, &maker->texts));
    MHA_TRY(MHA_ROOM_ALLOC(maker->room, count, &maker->roles));
    if (hides) MHA_TRY(MHA_ROOM_ALLOC(maker->room, count * cells, &maker->values));
    if (hides && maps->twin) MHA_TRY(MHA_ROOM_ALLOC(maker->room, count * cells, &maker->twins));
    if (!hides || !maps->queries) return MHA_OK;
    const int64_t each = count * maps->channels;
    MHA_TRY(MHA_ROOM_ALLOC(maker->room, each * maker->rows.count, &maker->queries));
    return MHA_ROOM_ALLOC(maker->room, each * maker->cols.count, &maker->keys);
}

static void make_panels(panel_maker *maker)
{
    const mha_maps *maps = maker->maps;
    int64_t group = 0;
    for (int64_t l = 0; l < maps->layers; l++)
        maker->grouped = maker->grouped || mha_maps_count(maps, l) > 1;
    for (int64_t l = 0; l < maps->layers; l++) {
        if (mha_maps_count(maps, l) == 0) continue;
        for (int64_t h = 0; h < maps->heads; h++)
            if (!maps->on || maps->on[l * maps->heads + h]) make_panel(maker, l, h, group);
        if (maker->grouped) group++;
    }
}

/* ---- Texts around the panels ----------------------------------------------------------------- */

enum { SUBTITLE_BYTES = 1200, FOOTNOTE_BYTES = 500 };

/* Append at most `most` characters of text, with an ellipsis if truncated. Trailing white space is
 * removed, line breaks become spaces. */
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
    mha_format(out + used, size - used, "%s", at < bytes ? "\xE2\x80\xA6" : "");
}

bool mha_show_texts(const mha_maps *maps, int most, char *out, size_t size)
{
    const char *attention = mha_maps_attention(maps);
    out[0] = '\0';
    if (!maps->text[0]) return false;
    if (attention) mha_format(out, size, "%s; source: ", attention);
    append_elided(out, size / 2, maps->text[0], maps->text_bytes[0], most);
    if (maps->text[1]) {
        const size_t used = strlen(out);
        mha_format(out + used, size - used,
                   is_contrast(maps) ? " less "
                   : attention       ? " | target: "
                                     : " | ");
        append_elided(out, size, maps->text[1], maps->text_bytes[1], most);
    }
    return true;
}

/* Append the hidden tokens of an axis that `out` does not contain yet, as far as they fit. */
static void append_hidden(const mha_show_options *options, const mha_tokens *tokens, char *out)
{
    enum { ROOM = FOOTNOTE_BYTES - 160 };
    for (int64_t i = 0; i < tokens->count; i++) {
        const char *text = tokens->labels[i];
        if (!is_hidden(options, tokens, i)) continue;
        bool again = false;
        for (int64_t j = 0; j < i && !again; j++) again = !strcmp(tokens->labels[j], text);
        size_t used = strlen(out);
        if (again || used + 8 > ROOM) continue;
        out[used] = ' ';
        out[used + 1] = '\0';
        append_elided(out, ROOM, text, strlen(text), 40);
    }
}

/* Write the remark, then the hidden tokens and their weight. */
static const char *make_footnote(const panel_maker *maker, char *out)
{
    const char *remark = maker->options->remark;
    const mha_maps *maps = maker->maps;
    if (remark) append_elided(out, FOOTNOTE_BYTES / 2, remark, strlen(remark), FOOTNOTE_BYTES);
    if (maps->cell > 1) {
        const size_t at = strlen(out);
        mha_format(out + at, FOOTNOTE_BYTES - at,
                   "%sa cell is the largest weight of %" PRId64 " x %" PRId64
                   " tokens, of %" PRId64,
                   remark ? "; " : "", maps->cell, maps->cell, maps->tokens.count);
    }
    if (!maker->values) return *out ? out : NULL;
    size_t used = strlen(out);
    mha_format(out + used, FOOTNOTE_BYTES - used, "%shidden:", remark ? "; " : "");
    append_hidden(maker->options, &maps->rows, out);
    if (!(maps->flags & MHA_MAPS_SAME)) append_hidden(maker->options, &maps->cols, out);
    if (is_contrast(maps)) return out;
    used = strlen(out);
    mha_format(out + used, FOOTNOTE_BYTES - used,
               "; hidden keys hold %.1f %% of the weight of the rows shown (mean over heads)%s",
               100 * maker->hidden_sum / (double)maker->count,
               (maker->options->flags & MHA_SHOW_RENORMALISE)
                   ? "; each row is divided by its remaining weight"
                   : "");
    return out;
}

static mha_status name_groups(const panel_maker *maker, mha_figure *figure)
{
    const char **names;
    char *texts;
    MHA_TRY(MHA_ROOM_ALLOC(maker->room, maker->maps->layers, &names));
    MHA_TRY(mha_room_alloc(maker->room, maker->maps->layers, NAME_BYTES, &texts));
    int64_t count = 0;
    for (int64_t l = 0; l < maker->maps->layers; l++) {
        if (mha_maps_count(maker->maps, l) == 0) continue;
        char *text = texts + count * NAME_BYTES;
        mha_format(text, NAME_BYTES, "layer %" PRId64, l);
        names[count++] = text;
    }
    figure->group_names = names;
    figure->group_count = count;
    return MHA_OK;
}

/* The first token of the second text; 0: there is only one text. */
static int64_t second_text(const kept_axis *axis)
{
    for (int64_t i = 0; i < axis->count; i++)
        if (axis->tokens->sequence && axis->tokens->sequence[axis->at[i]] == 1) return i;
    return 0;
}

/* The index of a token in the figure; -1: hidden. */
static int64_t place_of(const kept_axis *axis, int64_t token)
{
    for (int64_t i = 0; i < axis->count; i++)
        if (axis->at[i] == token) return i;
    return -1;
}

/* The distinct labels of special tokens; a model has about five. */
enum { MOST_SPECIAL = 16 };

static int64_t add_special(const mha_tokens *tokens, const char **special, int64_t count)
{
    for (int64_t i = 0; i < tokens->count && count < MOST_SPECIAL; i++) {
        bool known = !is_special(tokens, i);
        for (int64_t j = 0; j < count; j++) known |= !strcmp(special[j], tokens->labels[i]);
        if (!known) special[count++] = tokens->labels[i];
    }
    return count;
}

/* Replace a map's link by the requested cell, unless it is hidden. */
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

/* Find the strongest link of each head, describe it in a sentence, and choose the panel on which a
 * report opens. */
static mha_status find_links(const panel_maker *maker, mha_show *show)
{
    const mha_show_options *options = maker->options;
    mha_report *report = &show->report;
    int64_t first = 0;
    mha_link *links;
    MHA_TRY(MHA_ROOM_ALLOC(maker->room, maker->count + 1, &links));
    MHA_TRY(mha_figure_links(&show->figure, report, links, &first));
    for (int64_t i = 0; i < maker->count && is_contrast(maker->maps); i++) {
        links[i] = largest_change(maker, &maker->panels[i]);
        if (i == 0 || links[i].score > links[first].score) first = i;
    }
    if (options->flags & MHA_SHOW_FIRST_PANEL) first = options->first_panel;
    if (first < 0 || (first > 0 && first >= maker->count))
        return mha_fail(MHA_ERR_ARGUMENT, "show: first_panel is %" PRId64 ", expected 0..%" PRId64,
                        first, maker->count - 1);
    if (options->flags & MHA_SHOW_FIRST_CELL && maker->count > 0)
        ask_cell(maker, &links[first], first);
    for (int64_t i = 0; i < maker->count; i++) MHA_TRY(write_detail(maker, i, &links[i]));
    show->links = links;
    report->first_panel = first;
    report->first_row = links[first].row;
    report->first_col = links[first].col;
    report->first_cell = report->first_row >= 0 && report->first_col >= 0;
    return MHA_OK;
}

/* ---- Figure and report ----------------------------------------------------------------------- */

static mha_status make_figure(panel_maker *maker, mha_figure *figure)
{
    const mha_maps *maps = maker->maps;
    const mha_show_options *options = maker->options;
    enum { LONG = 64 }; /* a uniform row of this many columns is 4 of 256 steps above black */
    const bool cross = maps->flags & MHA_MAPS_CROSS, towers = mha_maps_attention(maps);
    const bool sound = maps->track && maps->flags & MHA_MAPS_SAME;
    char *subtitle, *footnote;
    *figure = (mha_figure){.struct_size = sizeof *figure,
                           .panel_size = sizeof(mha_panel),
                           .title = maps->name,
                           .row_axis = sound    ? "time attending (s)"
                                       : towers ? "target (attending)"
                                                : "query (attending)",
                           .col_axis = maps->track ? "time attended to (s)"
                                       : cross     ? "source (attended to)"
                                       : towers    ? "target (attended to)"
                                                   : "key (attended to)",
                           .cmap = options->cmap == MHA_CMAP_VIRIDIS && is_signed(maps)
                                       ? MHA_CMAP_DIVERGING
                                       : options->cmap,
                           .range = options->range,
                           .lo = options->lo,
                           .hi = options->hi,
                           .scale = options->flags & MHA_SHOW_SCALE ? options->scale
                                    : maps->cols.count > LONG       ? MHA_SCALE_SQRT
                                                                    : MHA_SCALE_LINEAR,
                           .dark = options->flags & MHA_SHOW_DARK,
                           .print_values = options->values,
                           .value_name = is_contrast(maps) ? "difference"
                                         : maps->kind      ? "weight"
                                                           : "value",
                           .rows = maker->rows.count,
                           .cols = maker->cols.count,
                           .row_labels = maker->rows.labels,
                           .col_labels = maker->cols.labels,
                           .panels = maker->panels,
                           .panel_count = maker->count};
    if (maker->grouped) MHA_TRY(name_groups(maker, figure));
    MHA_TRY(MHA_ROOM_ALLOC(maker->room, SUBTITLE_BYTES, &subtitle));
    MHA_TRY(MHA_ROOM_ALLOC(maker->room, FOOTNOTE_BYTES, &footnote));
    if (mha_show_texts(maps, maps->text[1] ? 70 : 140, subtitle, SUBTITLE_BYTES))
        figure->subtitle = subtitle;
    figure->footnote = make_footnote(maker, footnote);
    return MHA_OK;
}

static const char guide[] = "Each square is a head. Rows are queries, columns are keys; brighter "
                            "cells have larger weights.";
static const char guide_cross[] =
    "Each square is a head. Rows are tokens of the target, columns are "
    "tokens of the source; brighter cells have larger weights.";
static const char guide_audio[] =
    "Each square is a head. Rows are tokens of the text, columns are times "
    "of the audio; brighter cells have larger weights.";
static const char guide_times[] = "Each square is a head. Rows and columns are times of the audio; "
                                  "brighter cells have larger weights.";
static const char guide_contrast[] = "Each square is a head. Rows are queries, columns are keys; "
                                     "red: a larger weight in the first text "
                                     "than in the second, blue: a smaller one.";

static const char *guide_of(const mha_maps *maps)
{
    const bool cross = maps->flags & MHA_MAPS_CROSS;
    if (is_contrast(maps)) return guide_contrast;
    if (maps->track) return cross ? guide_audio : guide_times;
    return cross ? guide_cross : guide;
}

/* A layer's experts for the rows that are shown. */
static mha_status take_choice(const panel_maker *maker, int64_t layer, mha_choice *choice)
{
    const mha_layer_routes *from = &maker->maps->routes.layer[layer];
    const int64_t used = from->used, rows = maker->rows.count;
    int32_t *numbers;
    float *weights;
    char *name;
    MHA_TRY(mha_room_alloc(maker->room, 32, 1, &name));
    MHA_TRY(MHA_ROOM_ALLOC(maker->room, rows * used, &numbers));
    MHA_TRY(MHA_ROOM_ALLOC(maker->room, rows * used, &weights));
    mha_format(name, 32, "layer %" PRId64, layer);
    for (int64_t i = 0; i < rows * used; i++) {
        const int64_t at = maker->rows.at[i / used] * used + i % used;
        numbers[i] = from->experts[at];
        weights[i] = from->weights[at];
    }
    *choice = (mha_choice){name, from->count, used, numbers, weights};
    return MHA_OK;
}

/* Add the experts of each token, or the fact that they are not shown. */
static mha_status add_experts(const panel_maker *maker, mha_fact *facts, mha_report *report)
{
    const int64_t most = 200000; /* about 2 MB of the file */
    const mha_routes *routes = &maker->maps->routes;
    const bool pooled = maker->maps->cell > 1;
    int64_t numbers = 0;
    mha_choice *choices;
    for (int64_t l = 0; l < routes->layers; l++) numbers += routes->tokens * routes->layer[l].used;
    if (numbers == 0) return MHA_OK;
    if (pooled || numbers > most) {
        facts[report->fact_count++] =
            (mha_fact){"experts", pooled ? "not shown for blocks of tokens; use view --experts"
                                         : "more than 200000, not shown; use view --experts"};
        return MHA_OK;
    }
    MHA_TRY(MHA_ROOM_ALLOC(maker->room, routes->layers, &choices));
    report->choices = choices;
    report->choice_title = "Experts";
    for (int64_t l = 0; l < routes->layers; l++)
        if (routes->layer[l].count > 0)
            MHA_TRY(take_choice(maker, l, &choices[report->choice_count++]));
    return MHA_OK;
}

/* Which attention of an encoder-decoder, and the tokens of the source. */
static mha_status add_towers(const panel_maker *maker, mha_fact *facts, mha_report *report)
{
    const mha_maps *maps = maker->maps;
    char *count;
    if (!mha_maps_attention(maps)) return MHA_OK;
    facts[report->fact_count++] = (mha_fact){"attention", mha_maps_attention(maps)};
    if (!(maps->flags & MHA_MAPS_CROSS)) return MHA_OK;
    MHA_TRY(mha_room_alloc(maker->room, 32, 1, &count));
    mha_format(count, 32, "%" PRId64, maps->cols.count);
    facts[report->fact_count++] =
        (mha_fact){maps->track ? "cells of time" : "source tokens", count};
    return MHA_OK;
}

static mha_status make_report(const panel_maker *maker, mha_report *report)
{
    enum { FACTS = 4, MORE_FACTS = 3, NUMBER_BYTES = 64, TEXT_BYTES = 1 << 14 };
    const mha_maps *maps = maker->maps;
    const int64_t tokens = maps->cell > 1 ? maps->tokens.count : maps->rows.count;
    mha_fact *facts;
    char *size, *count, *text, *producer;
    const char **special;
    MHA_TRY(MHA_ROOM_ALLOC(maker->room, FACTS + MORE_FACTS, &facts));
    MHA_TRY(MHA_ROOM_ALLOC(maker->room, NUMBER_BYTES, &size));
    MHA_TRY(MHA_ROOM_ALLOC(maker->room, NUMBER_BYTES, &count));
    MHA_TRY(MHA_ROOM_ALLOC(maker->room, TEXT_BYTES, &text));
    MHA_TRY(MHA_ROOM_ALLOC(maker->room, NUMBER_BYTES, &producer));
    mha_format(producer, NUMBER_BYTES, "multihead %s", mha_version());
    MHA_TRY(MHA_ROOM_ALLOC(maker->room, MOST_SPECIAL, &special));
    mha_format(size, NUMBER_BYTES, "%" PRId64 " x %" PRId64, maps->layers, maps->heads);
    mha_format(count, NUMBER_BYTES, "%" PRId64, tokens);
    facts[0] = (mha_fact){"model", maps->name};
    facts[1] = (mha_fact){"kind", maps->kind ? maps->kind : "array"};
    facts[2] = (mha_fact){"layers x heads", size};
    facts[3] = (mha_fact){mha_maps_attention(maps) ? "target tokens"
                          : maps->track            ? "cells of time"
                                                   : "tokens",
                          count};
    *report = (mha_report){.struct_size = sizeof *report,
                           .text = mha_show_texts(maps, 2000, text, TEXT_BYTES) ? text : NULL,
                           .facts = facts,
                           .fact_count = FACTS,
                           .producer = producer,
                           .same_labels = maps->flags & MHA_MAPS_SAME,
                           .special = special,
                           .second_row = second_text(&maker->rows),
                           .second_col = second_text(&maker->cols),
                           .guide = guide_of(maps),
                           .twin_name = "norm-based",
                           .twin_value = "norm"};
    report->special_count = add_special(&maps->rows, special, 0);
    report->special_count = add_special(&maps->cols, special, report->special_count);
    MHA_TRY(add_towers(maker, facts, report));
    MHA_TRY(add_experts(maker, facts, report));
    if (maps->cell <= 1) return MHA_OK;
    report->cell_tokens = maps->cell;
    report->tokens = maps->tokens.labels;
    report->token_count = maps->tokens.count;
    return MHA_OK;
}

/* The spectrogram of the shown columns. */
static mha_status take_track(const panel_maker *maker, mha_report *report)
{
    const mha_maps *maps = maker->maps;
    const int64_t wide = maker->cols.count;
    uint8_t *track;
    if (!maps->track) return MHA_OK;
    MHA_TRY(MHA_ROOM_ALLOC(maker->room, maps->track_rows * wide, &track));
    for (int64_t i = 0; i < maps->track_rows * wide; i++)
        track[i] = maps->track[i / wide * maps->cols.count + maker->cols.at[i % wide]];
    report->track = track;
    report->track_rows = maps->track_rows;
    report->track_name = "log-mel spectrogram";
    return MHA_OK;
}

static mha_status make(panel_maker *maker, mha_show *show)
{
    const mha_maps *maps = maker->maps;
    MHA_TRY(make_axis(maker->options, &maps->rows, maps->shown, maker->room, &maker->rows));
    MHA_TRY(make_axis(maker->options, &maps->cols, maps->shown, maker->room, &maker->cols));
    MHA_TRY(make_mask(maker));
    MHA_TRY(take_memory(maker));
    make_panels(maker);
    MHA_TRY(make_figure(maker, &show->figure));
    MHA_TRY(make_report(maker, &show->report));
    MHA_TRY(take_track(maker, &show->report));
    if (maker->options->cards)
        MHA_TRY(mhai_cards_columns(maker->options->cards, maps, maker->room, &show->report));
    MHA_TRY(find_links(maker, show));
    show->page = show->figure;
    show->page.subtitle = NULL;
    return MHA_OK;
}

mha_status mhai_show_options(const mha_show_options *given, mha_show_options *own)
{
    const uint32_t known = MHA_SHOW_DARK | MHA_SHOW_RENORMALISE | MHA_SHOW_SCALE |
                           MHA_SHOW_FIRST_PANEL | MHA_SHOW_FIRST_CELL | MHA_SHOW_MEAN;
    MHA_TRY(mha_struct_read("mha_show_options", own, sizeof *own, sizeof *own, given,
                            given ? given->struct_size : 0));
    if (!(own->flags & ~known)) return MHA_OK;
    return mha_fail(MHA_ERR_UNSUPPORTED, "show: flags has unknown bits");
}

mha_status mha_show_make(const mha_maps *maps, const mha_show_options *given, mha_show *show)
{
    mha_show_options options;
    MHA_NEED("show", maps, show);
    *show = (mha_show){0};
    MHA_TRY(mha_struct_check_size("mha_maps", maps->struct_size, sizeof *maps));
    MHA_TRY(mhai_show_options(given, &options));
    if (maps->flags & ~(uint32_t)(MHA_MAPS_CAUSAL | MHA_MAPS_SAME | MHA_MAPS_CONTRAST |
                                  MHA_MAPS_CROSS | MHA_MAPS_DECODER))
        return mha_fail(MHA_ERR_UNSUPPORTED, "show: flags has unknown bits");
    panel_maker maker = {.options = &options, .maps = maps, .room = &show->memory};
    const mha_status status = make(&maker, show);
    if (status != MHA_OK) mha_show_free(show);
    return status;
}

void mha_show_free(mha_show *show)
{
    if (!show) return;
    mha_room_release(&show->memory, 0);
    *show = (mha_show){0};
}
