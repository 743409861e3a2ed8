/* Command lines: options from a table, and the help text from the same table.
 *
 *   --name value   --name=value   -n value       in any order, before or after other arguments
 *   --             ends the options; later arguments are plain even if they begin with -
 *   -              is a plain argument
 *
 * Names are never abbreviated: a new option must not change what an old script means.
 */
#ifndef CLI_ARGS_H
#define CLI_ARGS_H

#include "common/exits.h"

#include <multihead/io.h>

#include <stddef.h>

enum { ARGS_MOST_TEXTS = 64, ARGS_MOST_OPTIONS = 128 };

/* A number with a fraction. */
typedef struct args_real {
    double value;
    bool given;
} args_real;

/* Values of an option that may be repeated, or the plain arguments. */
typedef struct args_texts {
    const char *items[ARGS_MOST_TEXTS];
    int count;
} args_texts;

typedef enum args_kind {
    ARGS_HEADING, /* not an option: `name` is a title in the help */
    ARGS_FLAG,    /* int: becomes `least` */
    ARGS_TEXT,    /* const char *, NULL before; may be given once */
    ARGS_TEXTS,   /* args_texts; may be given repeatedly */
    ARGS_NUMBER,  /* int64_t in least .. most */
    ARGS_REAL,    /* args_real; finite */
    ARGS_CHOICE   /* int: the index in `choices` */
} args_kind;

typedef struct args_option {
    args_kind kind;
    char letter;                /* 0: none */
    const char *name;           /* without the dashes */
    const char *value;          /* name of the value in the help; NULL for flags and choices */
    size_t field;               /* offset in the struct that args_parse() fills */
    const char *help;           /* lines are divided by \n */
    const char *const *choices; /* NULL at its end */
    int64_t least, most;
    const char *needs;    /* "--scores FILE or --lse FILE": requires one of these */
    const char *excludes; /* "--csv --json": cannot be combined with these */
    const char *ending; /* ending of an output file: ".svg"; endings of other formats are errors */
    const char *why;    /* reason for the exclusion, printed in the message; may be NULL */
    unsigned marks;     /* for use by the subcommand */
} args_option;

/* An option that has moved: "ablate", "multihead ablate --with". */
typedef struct args_moved {
    const char *option, *now;
} args_moved;

typedef struct args_page {
    const char *usage;    /* the text after "multihead ", lines separated by \n */
    const char *examples; /* command lines, separated by \n */
    const char *notes;    /* paragraphs after the options, or NULL */
    const args_option *options;
    size_t option_count;
    const args_moved *moved; /* [moved_count] */
    size_t moved_count;
    /* Arguments other than options: "MODEL [TEXT]"; "": none; NULL: any number. `spare` is the
     * advice printed for an extra argument. */
    const char *takes, *spare;
    bool bare;                  /* a call without arguments is valid */
    const char *(*word)(int i); /* allowed words, NULL after the last; none: the argument is a
                                   file */
} args_page;

/* Initialise the members for an array of options. */
#define ARGS_OPTIONS(table) .options = (table), .option_count = sizeof(table) / sizeof *(table)

/* Parse a number that has digits only and is at most about 2^40; advance *at past it. */
bool args_digits(const char **at, int64_t *number);

/* Parse a decimal number at the beginning of text, up to one of the characters in ends or the end
 * of the text. Blanks and a plus sign are rejected. *rest is the end of the number. Returns false
 * if there is no number or it is out of range. */
bool args_whole(const char *text, const char *ends, int64_t *number, const char **rest);
bool args_decimal(const char *text, const char *ends, double *number, const char **rest);

/* The arguments other than options, and the options that were given. */
typedef struct args_line {
    args_texts plain;
    bool given[ARGS_MOST_OPTIONS]; /* by the option's index on the page, whatever its value */
} args_line;

/* Parse arguments into fields (zeroed or holding defaults) and line (zeroed). page->takes limits
 * the number of plain arguments. Errors are printed. */
cli_exit args_parse(const args_page *page, int count, char *const *arguments, void *fields,
                    args_line *line);

/* Mark an option as given, because others imply it. */
void args_imply(const args_page *page, const char *name, args_line *line);

/* Report an option that lacks one that it needs, or that is combined with one that it excludes. */
cli_exit args_check(const args_page *page, const args_line *line);

/* Print help of a subcommand if it is requested or needed; sets *done if help was printed. The whole page goes
 * to stdout if -h or --help precedes any "--". Usage and examples go to stderr, with CLI_USAGE,
 * if a call without arguments is not valid. */
cli_exit args_help(const char *command, const char *summary, const args_page *page, int count,
                   char *const *arguments, bool *done);

#endif
