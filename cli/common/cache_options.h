/* Cache options of the subcommands that decode. */
#ifndef CLI_CACHE_OPTIONS_H
#define CLI_CACHE_OPTIONS_H

#include "common/exits.h"
#include "common/option_rows.h"

#include <multihead/transformer.h>

typedef struct cache_options {
    int type; /* index in cache_names */
    int64_t page, window, sinks;
    int streaming;
} cache_options;

extern const char *const cache_names[];

/* The cache type of one of the names. */
void cache_types(int name, mha_dtype *type, mha_kv_scales *scales);

/* Rows for a struct that has cache_options as `field`. `keeps` completes the help of --page: the
 * property that the option does not change. */
#define CACHE_ROWS(type_, field_, keeps)                                                           \
    ROW_CHOICE("cache", type_, field_.type, cache_names,                                           \
               "set the type of cached keys and values; default f32;\n"                            \
               "int8 takes a quarter of the memory; int8-channel,\n"                               \
               "with one scale per channel, suits keys whose\n"                                    \
               "channels differ in magnitude"),                                                    \
        ROW_NUMBER("page", type_, field_.page, 1, INT64_C(1) << 31,                                \
                   "set the positions per page of the cache; default:\n"                           \
                   "all, or 32 with --window. The " keeps " is the same"),                         \
        ROW_NUMBER("window", type_, field_.window, 1, INT64_C(1) << 31,                            \
                   "let a token see the last N tokens, including itself;\n"                        \
                   "discard older ones; default: all"),                                            \
        ROW_NUMBER("sinks", type_, field_.sinks, 0, INT64_C(1) << 31,                              \
                   "with --window: keep the first N tokens visible;\n"                             \
                   "default 4"),                                                                   \
        ROW_FLAG(0, "streaming", type_, field_.streaming, 1,                                       \
                 "with --window: count positions in the cache, as in\nStreamingLLM; the text may " \
                 "then exceed the model's\nnumber of positions")

/* Copy the options into a decoder's description; sinks are 4 unless given. */
#define CACHE_DEFAULTS \
    {                  \
        .sinks = -1    \
    }
int64_t cache_sinks(const cache_options *options);
cli_exit cache_fill(const cache_options *options, mha_decoder_desc *desc);

#endif
