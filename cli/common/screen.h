/* The terminal of stdout: its width, colours, characters and background. */
#ifndef CLI_SCREEN_H
#define CLI_SCREEN_H

#include <multihead/render.h>

typedef enum screen_paper { PAPER_AUTO = 0, PAPER_LIGHT = 1, PAPER_DARK = 2 } screen_paper;

typedef enum screen_color { COLOR_AUTO = 0, COLOR_ALWAYS = 1, COLOR_NEVER = 2 } screen_color;

/* Options of the command line; 0: not given. */
typedef struct screen_options {
    int64_t width;
    int color; /* screen_color */
    int ascii;
} screen_options;

/* Columns of a descriptor's terminal. In order of precedence: `given` unless 0, the terminal's own
 * width, COLUMNS, 80. */
int32_t screen_width(int descriptor, int64_t given);

/* Width, colours, characters. */
mha_terminal screen_of(const screen_options *options);

/* Whether progress may overwrite a line on stderr: stderr is a terminal that supports it, and
 * --quiet is not given. */
bool screen_shows_progress(bool quiet);

/* Whether to draw for a dark background, given a screen_paper. */
bool screen_dark(int paper);

#endif
