/* The terminal that stdout leads to: its width, its colours, its characters, its background. */
#ifndef CLI_SCREEN_H
#define CLI_SCREEN_H

#include <multihead/render.h>

typedef enum screen_paper { PAPER_AUTO = 0, PAPER_LIGHT = 1, PAPER_DARK = 2 } screen_paper;

typedef enum screen_color { COLOR_AUTO = 0, COLOR_ALWAYS = 1, COLOR_NEVER = 2 } screen_color;

/* What the command line says about it: 0 for what it does not say. */
typedef struct screen_options {
    int64_t width;
    int color; /* screen_color */
    int ascii;
} screen_options;

/* Columns of the terminal that a descriptor leads to: what is given unless that is 0, else what the
 * terminal says, else COLUMNS, else 80. */
int32_t screen_width(int descriptor, int64_t given);

/* Width, colours, characters. */
mha_terminal screen_of(const screen_options *options);

/* Whether a line on stderr may be written over and over to show progress: stderr leads to a terminal
 * that understands it, and nobody asked for quiet. */
bool screen_shows_progress(bool quiet);

/* Whether to draw for a dark background, given a screen_paper. */
bool screen_dark(int paper);

#endif
