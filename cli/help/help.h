/* Help beyond a subcommand's own --help: the overview, man pages and completions, all from the pages
 * of commands.h. Everything goes to stdout. */
#ifndef CLI_HELP_HELP_H
#define CLI_HELP_HELP_H

#include "common/commands.h"

/* An environment variable: its name and its effect. */
#define HELP_ENVIRONMENT_LIST(X)                                                     \
    X("MHA_THREADS", "threads if --threads is not given; default: all CPUs")         \
    X("MHA_ISA", "best instruction set to use: portable, neon, avx2, avx512 or amx") \
    X("MHA_L2_KIB", "size of a core's L2 cache; default: the detected size")         \
    X("MHA_FONT", "font file of PNG images; default DejaVu Sans")                    \
    X("MHA_MPI_LIBRARY", "libmultihead-mpi to load; none: ignore the launcher")      \
    X("MHA_MPI_DEADLINE", "seconds until a silent rank counts as lost; default 300") \
    X("NO_COLOR", "if set, no colours in the terminal; --color overrides it")        \
    X("CLICOLOR_FORCE", "if set and not 0, colours even without a terminal")         \
    X("FORCE_COLOR", "the same")                                                     \
    X("TERM", "dumb: no colours and no progress line")                               \
    X("COLORTERM", "truecolor or 24bit: 24-bit colours instead of 256")              \
    X("COLORFGBG", "colours of text and background; default: a dark background")     \
    X("COLUMNS", "terminal width if the terminal reports none; default 80")          \
    X("LC_ALL", "an encoding other than UTF-8 implies --ascii")                      \
    X("LC_CTYPE", "the same if LC_ALL is not set")                                   \
    X("LANG", "the same if neither is set")                                          \
    X("SOURCE_DATE_EPOCH", "date of man pages, in seconds since 1970; default: none")

/* Examples of the overview, lines divided by \n. */
extern const char help_examples[];

/* The overview that `multihead --help` prints. */
void help_overview(FILE *file);

/* multihead-NAME(1) of a subcommand; multihead(1) for NULL. */
void help_man(const cli_command *command);

void help_bash(void);
void help_zsh(void);
void help_fish(void);

/* The kind of an option's value for completions: 'c' one of its choices, 'f' a file, 'x' anything
 * else, 0 no value. */
char help_value_kind(const args_option *option);

/* Return the line at *text and its length, and advance *text past it; NULL after the last. */
const char *help_line(const char **text, int *length);

/* The purpose of an option in one line, taken from its help up to the first semicolon or colon. */
void help_short(const args_option *option, char *line, size_t size);

#endif
