/* See sketch.h. */
#include "explain/sketch.h"

#include <stdarg.h>
#include <stdio.h>

static MHA_PRINTF(2, 0) const char *keep(sketch *s, const char *format, va_list arguments)
{
    if (s->text_count == SKETCH_MOST) return "";
    char *text = s->texts[s->text_count++];
    vsnprintf(text, SKETCH_TEXT, format, arguments);
    return text;
}

const char *sketch_text(sketch *s, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const char *text = keep(s, format, arguments);
    va_end(arguments);
    return text;
}

mha_mark *sketch_add(sketch *s, mha_mark_kind kind, mha_ink ink, double x, double y, double width,
                     double height)
{
    mha_mark *mark = &s->marks[s->count < SKETCH_MOST ? s->count++ : SKETCH_MOST - 1];
    *mark = (mha_mark){.kind = kind, .ink = ink, .x = x, .y = y, .width = width, .height = height};
    return mark;
}

mha_mark *sketch_box(sketch *s, mha_ink ink, double x, double y, double width, double height,
                     const char *text, const char *detail)
{
    mha_mark *mark = sketch_add(s, MHA_MARK_BOX, ink, x, y, width, height);
    mark->text = text;
    mark->detail = detail;
    mark->flags = MHA_MARK_BOLD;
    return mark;
}

mha_mark *sketch_line(sketch *s, mha_ink ink, double x, double y, double to_x, double to_y,
                      uint32_t flags)
{
    mha_mark *mark = sketch_add(s, MHA_MARK_LINE, ink, x, y, to_x - x, to_y - y);
    mark->flags = flags;
    return mark;
}

void sketch_words(sketch *s, mha_ink ink, double x, double y, uint32_t flags, double size,
                  const char *format, ...)
{
    mha_mark *mark = sketch_add(s, MHA_MARK_TEXT, ink, x, y, 0, 0);
    va_list arguments;
    va_start(arguments, format);
    mark->text = keep(s, format, arguments);
    va_end(arguments);
    mark->flags = flags;
    mark->size = size;
}
