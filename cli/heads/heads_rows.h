/* Options that 'heads', 'ablate' and 'circuits' share, for structs that begin with heads_options. Rows
 * and HEADS_ROWS take more of an option behind the help, as those of option_rows.h. */
#ifndef CLI_HEADS_ROWS_H
#define CLI_HEADS_ROWS_H

#include "common/option_rows.h"
#include "heads/heads.h"

#define HEADS_ROWS_OF_TEXTS                                                                       \
    ROW_TEXT("text", heads_options, text_file, "FILE", "texts, one per line; - is stdin"),        \
        ROW_FLAG(0, "whole", heads_options, whole, 1, "--text FILE is one long text",             \
                 .needs = "--text FILE"),                                                         \
        ROW_NUMBER("cut", heads_options, cut, 8, INT64_C(1) << 40,                                \
                   "cut texts into pieces of N tokens, each a text of its\nown: for books"),      \
        ROW_TEXT("example", heads_options, example, "NAME",                                       \
                 "a built-in sentence: animal, bank, cat, river,\npilot, 1 to 5, or all"),        \
        ROW_NUMBER("max-tokens", heads_options, max_tokens, 3, INT64_C(1) << 40,                  \
                   "per text; default: the model's limit"),                                       \
        ROW_FLAG(0, "truncate", heads_options, truncate, 1, "cut longer texts instead"),          \
        ROW_NUMBER("random", heads_options, random, 0, 10000,                                     \
                   "sequences of repeated random tokens, for induction\nand duplicates; default " \
                   "10, 0 for none")
#define HEADS_ROWS_OF_CHOICE(sort_help_, ...)                                                     \
    ROW_TEXTS('l', "layer", heads_options, layers, "LIST", "layers, counted from 0: 3 or 0,2-4"), \
        ROW_TEXTS(0, "head", heads_options, heads, "LIST",                                        \
                  "heads of these layers, or with their layer: L4H11"),                           \
        ROW_TEXTS(0, "role", heads_options, roles, "NAME",                                        \
                  "only heads with this role: previous-token, nsubj,\nnone, ...; may be "         \
                  "repeated",                                                                     \
                  __VA_ARGS__),                                                                   \
        ROW_TEXT("sort", heads_options, sort, "BY", sort_help_),                                  \
        ROW_REAL("min", heads_options, min, "only heads whose score (of --sort) is at least X",   \
                 .needs = "--sort BY")
#define HEADS_ROWS_OF_STATE(...)                                                                \
    ROW_TEXT("state", heads_options, state, "FILE",                                             \
             "keep the scores there: a second run, on any number of\nranks, continues; Ctrl-C " \
             "saves (not on several ranks)",                                                    \
             __VA_ARGS__),                                                                      \
        ROW_NUMBER("save-every", heads_options, save_every, 0, 1000000,                         \
                   "seconds between two times; default 60; 0: after each\ntext",                \
                   .needs = "--state FILE")
#define HEADS_ROWS_AT_END                                         \
    ROW_THREADS(heads_options),                                   \
        ROW_FLAG('q', "quiet", heads_options, quiet, 1,           \
                 "no notes on stderr, only warnings and errors"), \
        ROW_HELP
#define HEADS_ROWS_OF_TERMINAL                                                                \
    ROW_NUMBER("width", heads_options, screen.width, 20, 10000, "terminal width in columns"), \
        ROW_FLAG(0, "ascii", heads_options, screen.ascii, 1, "use only ASCII in the table")

#endif
