/* The page about many heads: its data as JSON, and the template around it. */
#include "html.h"
#include "number.h"

#include <multihead/component.h>
#include <multihead/json.h>
#include <multihead/render_heads.h>

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_COLUMNS = 256, MOST_HEADS = 100000 };

/* ---- checks ---------------------------------------------------------------------------------- */

static mha_status check_list(const char *name, int64_t count, const void *list)
{
    if (count < 0)
        return mha_fail(MHA_ERR_ARGUMENT, "heads page: the count of %s is negative", name);
    if (count > 0 && !list) return mha_fail(MHA_ERR_NULL, "heads page: %s is NULL", name);
    return MHA_OK;
}

static mha_status check_place(const mha_heads_page *p, const mha_heads_place *place)
{
    MHA_TRY(check_list("the tokens of a place", place->token_count, place->tokens));
    if (place->column < 0 || place->column >= p->column_count || place->query < -1 ||
        place->query >= place->token_count || place->key < -1 || place->key >= place->token_count)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "heads page: a place of column %" PRId64 ", query %" PRId64 ", key %" PRId64
                        " of %" PRId64 " tokens is out of range",
                        place->column, place->query, place->key, place->token_count);
    return MHA_OK;
}

static mha_status check_card(const mha_heads_page *p, const mha_heads_card *c)
{
    MHA_TRY(check_list("roles", c->role_count, c->roles));
    MHA_TRY(check_list("places", c->place_count, c->places));
    MHA_TRY(check_list("lists", c->list_count, c->lists));
    MHA_TRY(check_list("arrows", c->arrow_count, c->arrows));
    MHA_TRY(check_list("lines", c->line_count, c->lines));
    if (c->layer < 0 || c->head < 0 || c->layer > INT32_MAX || c->head > INT32_MAX)
        return mha_fail(MHA_ERR_ARGUMENT, "heads page: L%" PRId64 "H%" PRId64 " is not a head",
                        c->layer, c->head);
    for (int64_t i = 0; i < c->place_count; i++) MHA_TRY(check_place(p, &c->places[i]));
    for (int64_t i = 0; i < c->list_count; i++) {
        MHA_TRY(check_list("the names of a list", c->lists[i].count, c->lists[i].names));
        MHA_TRY(check_list("the values of a list", c->lists[i].count, c->lists[i].values));
    }
    for (int64_t i = 0; i < c->line_count; i++) {
        MHA_TRY(check_list("the x of a line", c->lines[i].count, c->lines[i].x));
        MHA_TRY(check_list("the y of a line", c->lines[i].count, c->lines[i].y));
    }
    return MHA_OK;
}

static int by_head(const void *a, const void *b)
{
    const mha_heads_card *x = *(const mha_heads_card *const *)a,
                         *y = *(const mha_heads_card *const *)b;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    return (x->head > y->head) - (x->head < y->head);
}

static mha_status check_heads_differ(const mha_heads_page *p)
{
    const mha_heads_card **sorted = mhai_sink_alloc(p->head_count, sizeof *sorted);
    mha_status status = MHA_OK;
    if (!sorted) return mha_fail(MHA_ERR_NOMEM, "heads page: out of memory");
    for (int64_t i = 0; i < p->head_count; i++) sorted[i] = &p->heads[i];
    qsort(sorted, (size_t)p->head_count, sizeof *sorted, by_head);
    for (int64_t i = 1; i < p->head_count && status == MHA_OK; i++)
        if (by_head(&sorted[i - 1], &sorted[i]) == 0)
            status = mha_fail(MHA_ERR_ARGUMENT, "heads page: L%" PRId64 "H%" PRId64 " occurs twice",
                              sorted[i]->layer, sorted[i]->head);
    free(sorted);
    return status;
}

static mha_status check_columns(const mha_heads_page *p)
{
    for (int64_t i = 0; i < p->column_count; i++) {
        const char *name = p->columns[i].name;
        if (!name || !*name)
            return mha_fail(MHA_ERR_ARGUMENT, "heads page: column %" PRId64 " has no name", i);
        for (int64_t j = 0; j < i; j++)
            if (strcmp(name, p->columns[j].name) == 0)
                return mha_fail(MHA_ERR_ARGUMENT, "heads page: column '%s' occurs twice", name);
    }
    return MHA_OK;
}

static mha_status check(const mha_heads_page *given, mha_heads_page *p)
{
    if (!given) return mha_fail(MHA_ERR_NULL, "mha_render_heads_page: page is NULL");
    if (given->struct_size < sizeof *p || given->reserved)
        return mha_fail(given->reserved ? MHA_ERR_UNSUPPORTED : MHA_ERR_ARGUMENT,
                        "mha_heads_page: struct_size is %u, reserved %u; expected %zu and 0",
                        (unsigned)given->struct_size, (unsigned)given->reserved, sizeof *p);
    if (given->struct_size > sizeof *p)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_heads_page: struct_size is %u, this library's is %zu",
                        (unsigned)given->struct_size, sizeof *p);
    *p = *given;
    MHA_TRY(check_list("facts", p->fact_count, p->facts));
    MHA_TRY(check_list("columns", p->column_count, p->columns));
    MHA_TRY(check_list("heads", p->head_count, p->heads));
    MHA_TRY(check_list("values", p->column_count, p->values));
    if (p->column_count > MOST_COLUMNS || p->head_count > MOST_HEADS)
        return mha_fail(MHA_ERR_SIZE,
                        "heads page: %" PRId64 " columns and %" PRId64 " heads, at most %d and %d",
                        p->column_count, p->head_count, (int)MOST_COLUMNS, (int)MOST_HEADS);
    if (p->head_count < 1 || p->column_count < 1 || p->x < 0 || p->x >= p->column_count ||
        p->y < 0 || p->y >= p->column_count || p->first_head < -1 || p->first_head >= p->head_count)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "heads page: columns %" PRId64 " and %" PRId64 " of %" PRId64
                        ", head %" PRId64 " of %" PRId64 ": out of range",
                        p->x, p->y, p->column_count, p->first_head, p->head_count);
    MHA_TRY(check_columns(p));
    for (int64_t i = 0; i < p->head_count; i++) MHA_TRY(check_card(p, &p->heads[i]));
    return check_heads_differ(p);
}

/* ---- data ------------------------------------------------------------------------------------ */

/* Five digits exceed the resolution of a pixel. */
static double shorter(double value)
{
    if (!isfinite(value) || value == 0) return value;
    const double unit = pow(10, floor(log10(fabs(value))) - 4);
    return unit > 0 ? round(value / unit) * unit : value;
}

static void write_value(mha_json *json, const mha_heads_value *v)
{
    if (v->rows < 1) {
        mha_json_null(json, NULL);
        return;
    }
    mha_json_array(json, NULL);
    mha_json_number(json, NULL, v->value);
    mha_json_number(json, NULL, shorter(v->chance));
    mha_json_number(json, NULL, shorter(v->low));
    mha_json_number(json, NULL, shorter(v->high));
    mha_json_integer(json, NULL, v->rows);
    if (isfinite(v->deciles[0])) {
        mha_json_array(json, NULL);
        for (int i = 0; i < 11; i++) mha_json_number(json, NULL, shorter(v->deciles[i]));
        mha_json_end(json);
    }
    mha_json_end(json);
}

static void write_columns(mha_json *json, const mha_heads_page *p)
{
    mha_json_array(json, "columns");
    for (int64_t i = 0; i < p->column_count; i++) {
        const mha_heads_column *c = &p->columns[i];
        mha_json_object(json, NULL);
        mha_json_bool(json, "share", c->share);
        mha_json_text(json, "name", c->name);
        mha_json_text(json, "label", c->label ? c->label : c->name);
        mha_json_text(json, "text", c->text);
        mha_json_text(json, "unit", c->unit);
        mha_json_number(json, "luck", c->luck);
        mha_json_array(json, "values");
        for (int64_t h = 0; h < p->head_count; h++)
            write_value(json, &p->values[h * p->column_count + i]);
        mha_json_end(json);
        mha_json_end(json);
    }
    mha_json_end(json);
}

static void write_place(mha_json *json, const mha_heads_place *p)
{
    mha_json_integer(json, "column", p->column);
    mha_json_bool(json, "least", p->least);
    mha_json_integer(json, "query", p->query);
    mha_json_integer(json, "key", p->key);
    mha_json_number(json, "value", p->value);
    mha_json_text(json, "where", p->where);
    mha_json_texts(json, "tokens", p->token_count ? p->tokens : NULL, p->token_count);
}

static void write_list(mha_json *json, const mha_heads_list *l)
{
    mha_json_text(json, "title", l->title);
    mha_json_text(json, "text", l->text);
    mha_json_texts(json, "names", l->count ? l->names : NULL, l->count);
    mha_json_numbers(json, "values", l->values, l->count);
}

static void write_line(mha_json *json, const mha_heads_line *l)
{
    mha_json_text(json, "title", l->title);
    mha_json_text(json, "unit", l->unit);
    mha_json_numbers(json, "x", l->x, l->count);
    mha_json_numbers(json, "y", l->y, l->count);
}

/* Write the lists of a card, each as an array of objects. */
#define WRITE_EACH(json, name, count, write, item) \
    do {                                           \
        mha_json_array(json, name);                \
        for (int64_t i_ = 0; i_ < (count); i_++) { \
            mha_json_object(json, NULL);           \
            write(json, &(item)[i_]);              \
            mha_json_end(json);                    \
        }                                          \
        mha_json_end(json);                        \
    } while (0)

static void write_role(mha_json *json, const mha_heads_role *r)
{
    mha_json_text(json, "name", r->name);
    mha_json_text(json, "evidence", r->evidence);
}

static void write_arrow(mha_json *json, const mha_heads_arrow *a)
{
    mha_json_integer(json, "layer", a->layer);
    mha_json_integer(json, "head", a->head);
    mha_json_text(json, "kind", a->kind);
    mha_json_number(json, "value", a->value);
    mha_json_number(json, "chance", a->chance);
}

static void write_card(mha_json *json, const mha_heads_card *c)
{
    mha_json_integer(json, "layer", c->layer);
    mha_json_integer(json, "head", c->head);
    mha_json_text(json, "note", c->note);
    mha_json_text(json, "command", c->command);
    WRITE_EACH(json, "roles", c->role_count, write_role, c->roles);
    WRITE_EACH(json, "places", c->place_count, write_place, c->places);
    WRITE_EACH(json, "lists", c->list_count, write_list, c->lists);
    WRITE_EACH(json, "arrows", c->arrow_count, write_arrow, c->arrows);
    WRITE_EACH(json, "lines", c->line_count, write_line, c->lines);
}

static void write_data(mhai_writer *w, const mha_heads_page *p)
{
    const mha_sink sink = mhai_sink_of(w);
    mha_json json = {.sink = &sink, .compact = true};
    mha_json_object(&json, NULL);
    mha_json_integer(&json, "x", p->x);
    mha_json_integer(&json, "y", p->y);
    mha_json_integer(&json, "first", p->first_head);
    write_columns(&json, p);
    WRITE_EACH(&json, "heads", p->head_count, write_card, p->heads);
    mha_json_end(&json);
    w->status = mha_json_finish(&json);
}

/* ---- the page -------------------------------------------------------------------------------- */

static void write_title(mhai_writer *w, const mha_heads_page *p)
{
    mhai_sink_escaped(w, p->title && *p->title ? p->title : "Heads");
}

static void write_head(mhai_writer *w, const mha_heads_page *p)
{
    mhai_sink_text(w, "<h1><bdi>");
    write_title(w, p);
    mhai_sink_text(w, "</bdi></h1>\n");
    mhai_sink_element(w, "<p class=\"subtitle\" dir=\"auto\">", p->subtitle, "</p>\n");
    if (p->fact_count > 0) mhai_sink_text(w, "<dl class=\"facts\">\n");
    for (int64_t i = 0; i < p->fact_count; i++) {
        mhai_sink_text(w, "<div><dt>");
        mhai_sink_escaped(w, p->facts[i].name ? p->facts[i].name : "");
        mhai_sink_text(w, "</dt><dd><bdi>");
        mhai_sink_escaped(w, p->facts[i].value ? p->facts[i].value : "");
        mhai_sink_text(w, "</bdi></dd></div>\n");
    }
    if (p->fact_count > 0) mhai_sink_text(w, "</dl>\n");
}

/* The content without scripts. */
static void write_cell(mhai_writer *w, const mha_heads_value *v)
{
    char text[MHAI_NUMBER_BYTES];
    mhai_sink_text(w, "<td>");
    if (v->rows > 0 && isfinite(v->value)) {
        mhai_number_short(shorter(v->value), 5, text);
        mhai_sink_text(w, text);
    }
    mhai_sink_text(w, "</td>");
}

static void write_plain(mhai_writer *w, const mha_heads_page *p)
{
    mhai_sink_text(w, "<table><tr><th>Head</th><th>");
    mhai_sink_escaped(w, p->columns[p->x].name);
    mhai_sink_text(w, "</th><th>");
    mhai_sink_escaped(w, p->columns[p->y].name);
    mhai_sink_text(w, "</th></tr>\n");
    for (int64_t h = 0; h < p->head_count; h++) {
        mhai_sink_print(w, "<tr><td>L%" PRId64 "H%" PRId64 "</td>", p->heads[h].layer,
                        p->heads[h].head);
        write_cell(w, &p->values[h * p->column_count + p->x]);
        write_cell(w, &p->values[h * p->column_count + p->y]);
        mhai_sink_text(w, "</tr>\n");
    }
    mhai_sink_text(w, "</table>\n");
}

static void write_foot(mhai_writer *w, const mha_heads_page *p)
{
    mhai_sink_element(w, "<p class=\"producer\">", p->producer, "</p>\n");
}

static void write_style(mhai_writer *w, const mha_heads_page *p)
{
    (void)p;
    mhai_sink_bytes(w, mhai_html_style.bytes, mhai_html_style.size);
    mhai_sink_bytes(w, mhai_html_heads_style.bytes, mhai_html_heads_style.size);
}

static void write_script(mhai_writer *w, const mha_heads_page *p)
{
    (void)p;
    mhai_sink_bytes(w, mhai_html_heads_script.bytes, mhai_html_heads_script.size);
}

static mha_status fill(const void *p, const char *name, size_t length, mhai_writer *w)
{
    static const struct {
        const char *name;
        void (*write)(mhai_writer *w, const mha_heads_page *p);
    } places[] = {{"title", write_title}, {"head", write_head},   {"plain", write_plain},
                  {"data", write_data},   {"style", write_style}, {"script", write_script},
                  {"foot", write_foot}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (strlen(places[i].name) == length && !memcmp(places[i].name, name, length))
            places[i].write(w, p);
    return MHA_OK;
}

mha_status mha_render_heads_page(const mha_heads_page *given, const mha_sink *sink)
{
    mha_heads_page page;
    if (!sink || !sink->write) return mha_fail(MHA_ERR_NULL, "mha_render_heads_page: sink is NULL");
    MHA_TRY(check(given, &page));
    return mhai_html_fill(&mhai_html_heads_template, fill, &page, sink);
}
