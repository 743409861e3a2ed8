/* The attention that a subcommand describes, with sizes from the command line, a published model or a
 * model folder. Options override single sizes. */
#ifndef CLI_CONFIG_H
#define CLI_CONFIG_H

#include "common/counts.h"
#include "common/exits.h"
#include "common/option_rows.h"

/* 0 and NULL: not given. */
typedef struct config_options {
    const char *like, *model; /* --like NAME; the folder */
    const char *window;       /* "W" or "L,R" */
    int64_t embed, heads, kv_heads, head_dim, layers, length, batch;
    int causal; /* 1: yes, 2: no */
    int bias;   /* 1: yes, 2: no */
} config_options;

enum { CONFIG_MOST_HEADS = 1 << 20 };
#define CONFIG_MOST (INT64_C(1) << 40)

/* Rows of an option table for a struct type with a config_options named config. */
#define CONFIG_ROWS(type)                                                                      \
    ROW_TEXT("like", type, config.like, "NAME",                                                \
             "use the sizes of a published model: gpt2, llama-2-70b,\n...; --like list shows " \
             "them all"),                                                                      \
        ROW_NUMBER("embed", type, config.embed, 1, CONFIG_MOST, "width E of the model"),       \
        ROW_NUMBER("heads", type, config.heads, 1, CONFIG_MOST_HEADS, "query heads H"),        \
        ROW_NUMBER("kv-heads", type, config.kv_heads, 1, CONFIG_MOST_HEADS,                    \
                   "key/value heads; default: as many as query heads"),                        \
        ROW_NUMBER("head-dim", type, config.head_dim, 1, CONFIG_MOST,                          \
                   "head size D; default: E / H")

/* The configuration, with every default filled in. */
typedef struct config {
    char name[192];     /* "gpt2", a folder's name, or "512 wide, 8 heads" */
    const char *source; /* the publication, or NULL */
    const char *note;   /* or NULL */
    double published;   /* parameters of the whole model; 0: unknown */
    bool causal, encoder;
    counts_shape shape;
} config;

/* Errors are printed. */
cli_exit config_resolve(const config_options *options, config *out);

/* Print the table of --like list on stdout. */
void config_print_models(void);

/* Parse a window option: the numbers of keys before and after a query's own. causal selects the
 * meaning of "W". */
cli_exit config_window(const char *text, bool causal, int64_t *left, int64_t *right);

#endif
