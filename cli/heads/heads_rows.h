/* Options that 'heads', 'ablate' and 'circuits' share, for structs that begin with heads_options. As in
 * option_rows.h, further fields of an option may follow its help. */
#ifndef CLI_HEADS_ROWS_H
#define CLI_HEADS_ROWS_H

#include "common/option_rows.h"
#include "heads/heads.h"

#define HEADS_ROWS_OF_TEXTS                                                                     \
    ROW_TEXT("text", heads_options, text_file, "FILE", "read texts, one per line; - is stdin"), \
        ROW_FLAG(0, "whole", heads_options, whole, 1, "treat --text FILE as one long text",     \
                 .needs = "--text FILE"),                                                       \
        ROW_NUMBER(                                                                             \
            "cut", heads_options, cut, 8, INT64_C(1) << 40,                                     \
            "cut texts, such as books, into pieces of N tokens,\neach measured as one text"),   \
        ROW_TEXT("example", heads_options, example, "NAME",                                     \
                 "use a built-in sentence: animal, bank, cat, river,\npilot, 1 to 5, or all"),  \
        ROW_NUMBER("max-tokens", heads_options, max_tokens, 3, INT64_C(1) << 40,                \
                   "limit tokens per text; default: the model's limit"),                        \
        ROW_FLAG(0, "truncate", heads_options, truncate, 1,                                     \
                 "truncate longer texts instead of failing"),                                   \
        ROW_NUMBER("random", heads_options, random, 0, 10000,                                   \
                   "measure N sequences of repeated random tokens, for\ninduction and "         \
                   "duplicates; default 10; 0: none")
#define HEADS_ROWS_OF_CHOICE(sort_help_, ...)                                                    \
    ROW_TEXTS('l', "layer", heads_options, layers, "LIST",                                       \
              "select layers, counted from 0: 3 or 0,2-4"),                                      \
        ROW_TEXTS(0, "head", heads_options, heads, "LIST",                                       \
                  "select heads of every selected layer, or with their\nlayer: L4H11"),          \
        ROW_TEXTS(0, "role", heads_options, roles, "NAME",                                       \
                  "show only heads with this role: previous-token,\nnsubj, none, ...; may be "   \
                  "repeated",                                                                    \
                  __VA_ARGS__),                                                                  \
        ROW_TEXT("sort", heads_options, sort, "BY", sort_help_),                                 \
        ROW_REAL("min", heads_options, min, "show only heads with a --sort score of at least X", \
                 .needs = "--sort BY")
#define HEADS_ROWS_OF_STATE(...)                                                                   \
    ROW_TEXT("state", heads_options, state, "FILE",                                                \
             "save the scores to FILE; a later run, on any number of\nranks, resumes from it. On " \
             "one rank, Ctrl-C also saves",                                                        \
             __VA_ARGS__),                                                                         \
        ROW_NUMBER("save-every", heads_options, save_every, 0, 1000000,                            \
                   "save every N seconds; default 60; 0: after each text",                         \
                   .needs = "--state FILE")
#define HEADS_ROWS_AT_END       \
    ROW_THREADS(heads_options), \
        ROW_QUIET(heads_options, "print no notes on stderr, only warnings and errors"), ROW_HELP
#define HEADS_ROWS_OF_TERMINAL                                  \
    ROW_NUMBER("width", heads_options, screen.width, 20, 10000, \
               "set the terminal width in columns"),            \
        ROW_FLAG(0, "ascii", heads_options, screen.ascii, 1, "use only ASCII in the table")

#endif
