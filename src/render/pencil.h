/* Coloured text for terminals: escape sequences only where the colour changes, none without colour.
 */
#ifndef MHAI_RENDER_PENCIL_H
#define MHAI_RENDER_PENCIL_H

#include "canvas.h"
#include "sink.h"

typedef struct mhai_pencil {
    mhai_writer writer;
    mha_terminal_color mode;
    bool styled, has_front, has_back; /* the current state of the terminal */
    mhai_color front, back;
    int64_t spaces; /* written before the next text, dropped at the end of a line */
} mhai_pencil;

void mhai_pencil_open(mhai_pencil *pencil, const mha_sink *sink, mha_terminal_color mode);

/* Write text in the terminal's own colours. */
void mhai_pencil_text(mhai_pencil *pencil, const char *text);
void mhai_pencil_bold(mhai_pencil *pencil, const char *text);

/* Write text in these colours; NULL: the terminal's own. */
void mhai_pencil_paint(mhai_pencil *pencil, const char *text, const mhai_color *front,
                       const mhai_color *back);

/* Write spaces in the terminal's own colours. Lines never end in spaces. */
void mhai_pencil_spaces(mhai_pencil *pencil, int64_t count);
void mhai_pencil_line(mhai_pencil *pencil); /* end of a line */

#endif
