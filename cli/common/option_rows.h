/* Rows of option tables (args.h). A row names the struct and its field, so that one table may fill
 * nested structs. */
#ifndef CLI_OPTION_ROWS_H
#define CLI_OPTION_ROWS_H

#include "common/args.h"

#define ROW_HEADING(title)                  \
    {                                       \
        .kind = ARGS_HEADING, .name = title \
    }
/* More fields may follow the help: .needs = "--svg FILE". */
#define ROW_FLAG(letter_, name_, type_, field_, value_, ...)                  \
    {                                                                         \
        .kind = ARGS_FLAG, .letter = letter_, .name = name_, .least = value_, \
        .field = offsetof(type_, field_), .help = __VA_ARGS__                 \
    }
#define ROW_TEXT(name_, type_, field_, value_, ...)                                          \
    {                                                                                        \
        .kind = ARGS_TEXT, .name = name_, .value = value_, .field = offsetof(type_, field_), \
        .help = __VA_ARGS__                                                                  \
    }
#define ROW_TEXTS(letter_, name_, type_, field_, value_, ...)                  \
    {                                                                          \
        .kind = ARGS_TEXTS, .letter = letter_, .name = name_, .value = value_, \
        .field = offsetof(type_, field_), .help = __VA_ARGS__                  \
    }
#define ROW_OUTPUT(type_, field_, value_, ...)                               \
    {                                                                        \
        .kind = ARGS_TEXT, .letter = 'o', .name = "output", .value = value_, \
        .field = offsetof(type_, field_), .help = __VA_ARGS__                \
    }
#define ROW_HELP                                                                    \
    {                                                                               \
        .kind = ARGS_FLAG, .letter = 'h', .name = "help", .help = "print this text" \
    }
#define ROW_NUMBER(name_, type_, field_, least_, most_, ...)                              \
    {                                                                                     \
        .kind = ARGS_NUMBER, .name = name_, .value = "N", .least = least_, .most = most_, \
        .field = offsetof(type_, field_), .help = __VA_ARGS__                             \
    }
#define ROW_REAL(name_, type_, field_, ...)                                               \
    {                                                                                     \
        .kind = ARGS_REAL, .name = name_, .value = "X", .field = offsetof(type_, field_), \
        .help = __VA_ARGS__                                                               \
    }
#define ROW_CHOICE(name_, type_, field_, choices_, ...)                                            \
    {                                                                                              \
        .kind = ARGS_CHOICE, .name = name_, .choices = choices_, .field = offsetof(type_, field_), \
        .help = __VA_ARGS__                                                                        \
    }

#define ROW_THREADS(type_) \
    ROW_NUMBER("threads", type_, threads, 1, 1024, "use N threads; default: all available CPUs")
#define ROW_QUIET(type_, ...) ROW_FLAG('q', "quiet", type_, quiet, 1, __VA_ARGS__)

#endif
