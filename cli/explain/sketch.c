/* See sketch.h. */
#include "explain/sketch.h"

#include <stdarg.h>
#include <stdio.h>

const char *sketch_text(sketch *s, const char *format, ...)
{
    if (s->text_count == SKETCH_MOST) return "";
    char *text = s->texts[s->text_count++];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, SKETCH_TEXT, format, arguments);
    va_end(arguments);
    return text;
}

mha_mark *sketch_add(sketch *s, mha_mark_kind kind, mha_ink ink, double x, double y)
{
    mha_mark *mark = &s->marks[s->count < SKETCH_MOST ? s->count++ : SKETCH_MOST - 1];
    *mark = (mha_mark){.kind = kind, .ink = ink, .x = x, .y = y};
    return mark;
}

mha_mark *sketch_box(sketch *s, mha_ink ink, const double at[4], const char *text,
                     const char *detail)
{
    mha_mark *mark = sketch_add(s, MHA_MARK_BOX, ink, at[0], at[1]);
    mark->width = at[2];
    mark->height = at[3];
    mark->text = text;
    mark->detail = detail;
    mark->flags = MHA_MARK_BOLD;
    return mark;
}

mha_mark *sketch_line(sketch *s, mha_ink ink, const double from_to[4], uint32_t flags)
{
    mha_mark *mark = sketch_add(s, MHA_MARK_LINE, ink, from_to[0], from_to[1]);
    mark->width = from_to[2] - from_to[0];
    mark->height = from_to[3] - from_to[1];
    mark->flags = flags;
    return mark;
}

mha_mark *sketch_words(sketch *s, mha_ink ink, double x, double y, uint32_t flags, const char *text)
{
    mha_mark *mark = sketch_add(s, MHA_MARK_TEXT, ink, x, y);
    mark->flags = flags;
    mark->text = text;
    return mark;
}
