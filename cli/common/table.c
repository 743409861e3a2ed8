/* See table.h. */
#include "common/table.h"

#include "common/print.h"
#include "common/words.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

/* The column of the next cell. */
static const table_column *column_of(const table *t)
{
    const table_column *c = t->next ? t->next : t->columns;
    while (!c->heading) c++;
    return c;
}

static void put(table *t, const char *text)
{
    const table_column *column = column_of(t);
    const bool left = column->width < 0;
    const int64_t idle = (left ? -column->width : column->width) - mha_text_columns(text);
    const int spaces = idle > 0 ? (int)idle : 0;
    const bool touches = t->used > 0 && t->line[t->used - 1] != ' ' && (left || spaces == 0) &&
                         *text && *text != ' '; /* a cell may be wider than its column */
    const int more =
        snprintf(t->line + t->used, sizeof t->line - t->used, "%s%*s%s%*s", touches ? " " : "",
                 left ? 0 : spaces, "", text, left ? spaces : 0, "");
    if (more > 0) t->used += (size_t)more;
    if (t->used >= sizeof t->line) t->used = sizeof t->line - 1;
    t->next = column + 1;
}

void table_text(table *t, const char *format, ...)
{
    char text[TABLE_LINE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    put(t, text);
}

void table_number(table *t, double value)
{
    if (isnan(value))
        put(t, "-");
    else
        table_text(t, "%.*f", column_of(t)->decimals, value);
}

void table_integer(table *t, int64_t value)
{
    const table_unit unit = column_of(t)->unit;
    if (unit == TABLE_PLAIN)
        table_text(t, "%" PRId64, value);
    else
        put(t, unit == TABLE_COUNT ? words_count(value).text : words_bytes((double)value).text);
}

void table_end(table *t)
{
    if (t->limit > 0)
        cli_print_cut(t->line, t->limit, t->ascii);
    else
        cli_print("%s", t->line);
    cli_print("\n");
    t->next = NULL;
    t->used = 0;
    t->line[0] = '\0';
}

void table_head(table *t, int count)
{
    for (int i = 0; i < count; i++)
        if (t->columns[i].heading) put(t, t->columns[i].heading);
    table_end(t);
}

void table_fields(table *t, int count, const void *row)
{
    const table_column *c = t->next ? t->next : t->columns;
    for (const table_column *end = c + count; c < end; c++) {
        const void *at = (const char *)row + c->field.offset;
        if (!c->heading) continue;
        switch (c->field.type) {
        case MHA_JSON_TEXT: put(t, *(const char *const *)at); break;
        case MHA_JSON_CHARS: put(t, at); break;
        case MHA_JSON_NUMBER: table_number(t, *(const double *)at); break;
        default: table_integer(t, *(const int64_t *)at);
        }
    }
}

void table_json(const table_column *columns, int count, mha_json *json, const void *row)
{
    for (int i = 0; i < count; i++)
        if (columns[i].field.name)
            mha_json_fields(json, (const mha_json_field[]){columns[i].field, {0}}, row);
}
