/* Help beyond a subcommand's own --help: the overview, man pages and completions, all from the pages
 * of commands.h. Everything goes to stdout. */
#ifndef CLI_HELP_HELP_H
#define CLI_HELP_HELP_H

#include "common/commands.h"

/* The environment: name, what it does. */
#define HELP_ENVIRONMENT_LIST(X)                                                  \
    X("MHA_THREADS", "threads where --threads is not given; default: all CPUs")   \
    X("MHA_ISA", "best instruction set to use: portable, neon, avx2 or avx512")   \
    X("MHA_L2_KIB", "size of a core's L2 cache, where it is not what is found")   \
    X("MHA_FONT", "font file of PNG images; default DejaVu Sans")                 \
    X("NO_COLOR", "if set, no colours in the terminal; --color takes precedence") \
    X("COLUMNS", "terminal width where the terminal does not tell; default 80")

/* Examples of the overview, lines divided by \n. */
extern const char help_examples[];

/* The overview that `multihead --help` prints. */
void help_overview(FILE *file);

/* multihead-NAME(1) of a subcommand; multihead(1) for NULL. */
void help_man(const cli_command *command);

void help_bash(void);
void help_zsh(void);
void help_fish(void);

/* What completions know of an option's value: 'c' one of its choices, 'f' a file, 'x' anything else,
 * 0 no value. */
char help_value_kind(const args_option *option);

/* The line of text at *text, its length, and *text steps over it; NULL after the last. */
const char *help_line(const char **text, int *length);

/* What an option does, in one line: its help up to the first semicolon or colon. */
void help_short(const args_option *option, char *line, size_t size);

#endif
