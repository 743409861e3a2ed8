/* The terminal's width, colours, characters and background. */
#define _DEFAULT_SOURCE /* TIOCGWINSZ */
#include "common/screen.h"

#include "common/args.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value ? value : "";
}

int32_t screen_width(int descriptor, int64_t given)
{
    enum { LEAST = 20, MOST = 10000 };
    struct winsize size;
    int64_t width = given;
    if (width == 0 && ioctl(descriptor, TIOCGWINSZ, &size) == 0) width = size.ws_col;
    const char *rest;
    if (width == 0 && !args_whole(variable("COLUMNS"), "", &width, &rest)) width = 0;
    if (width <= 0 || width > MOST) width = 80;
    return (int32_t)(width < LEAST ? LEAST : width);
}

/* In order of precedence: --color, NO_COLOR, TERM=dumb, CLICOLOR_FORCE or FORCE_COLOR, whether
 * stdout is a terminal. */
static bool want_color(const screen_options *options)
{
    if (options->color != COLOR_AUTO) return options->color == COLOR_ALWAYS;
    if (*variable("NO_COLOR") || !strcmp(variable("TERM"), "dumb")) return false;
    const char *const forces[] = {"CLICOLOR_FORCE", "FORCE_COLOR"};
    for (int i = 0; i < 2; i++)
        if (*variable(forces[i]) && strcmp(variable(forces[i]), "0") != 0) return true;
    return isatty(STDOUT_FILENO);
}

/* Only a locale that names an encoding other than UTF-8 disables characters outside ASCII: many
 * machines name none but display UTF-8. */
static bool is_ascii(const screen_options *options)
{
    if (options->ascii) return true;
    const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (int i = 0; i < 3; i++) {
        const char *value = variable(names[i]);
        if (!*value) continue;
        for (const char *c = value; *c; c++)
            if (!strncasecmp(c, "utf-8", 5) || !strncasecmp(c, "utf8", 4)) return false;
        return true;
    }
    return false;
}

mha_terminal screen_of(const screen_options *options)
{
    const char *depth = variable("COLORTERM");
    bool true_color = !strcmp(depth, "truecolor") || !strcmp(depth, "24bit");
    return (mha_terminal){.struct_size = sizeof(mha_terminal),
                          .columns = screen_width(STDOUT_FILENO, options->width),
                          .color = !want_color(options) ? MHA_TERMINAL_PLAIN
                                   : true_color         ? MHA_TERMINAL_TRUECOLOR
                                                        : MHA_TERMINAL_256,
                          .ascii = is_ascii(options)};
}

bool screen_shows_progress(bool quiet)
{
    const char *term = variable("TERM");
    return !quiet && *term && strcmp(term, "dumb") != 0 && isatty(STDERR_FILENO);
}

/* In order of precedence: --dark or --light; COLORFGBG, which several terminals set ("15;0" is
 * light on dark); dark, like most terminals. */
bool screen_dark(int paper)
{
    if (paper != PAPER_AUTO) return paper == PAPER_DARK;
    const char *background = strrchr(variable("COLORFGBG"), ';');
    return !background || (strcmp(background, ";15") != 0 && strcmp(background, ";7") != 0);
}
