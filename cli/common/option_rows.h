/* Rows of option tables (args.h): the field is named by its struct, so that one table may fill
 * structs within structs. */
#ifndef CLI_OPTION_ROWS_H
#define CLI_OPTION_ROWS_H

#include "common/args.h"

#define ROW_HEADING(title)                  \
    {                                       \
        .kind = ARGS_HEADING, .name = title \
    }
#define ROW_FLAG(letter_, name_, type_, field_, value_, help_)                               \
    {                                                                                        \
        .kind = ARGS_FLAG, .letter = letter_, .name = name_, .help = help_, .least = value_, \
        .field = offsetof(type_, field_)                                                     \
    }
#define ROW_TEXT(name_, type_, field_, value_, help_)                     \
    {                                                                     \
        .kind = ARGS_TEXT, .name = name_, .value = value_, .help = help_, \
        .field = offsetof(type_, field_)                                  \
    }
#define ROW_NUMBER(name_, type_, field_, least_, most_, help_)                            \
    {                                                                                     \
        .kind = ARGS_NUMBER, .name = name_, .value = "N", .help = help_, .least = least_, \
        .most = most_, .field = offsetof(type_, field_)                                   \
    }
#define ROW_CHOICE(name_, type_, field_, choices_, help_)                       \
    {                                                                           \
        .kind = ARGS_CHOICE, .name = name_, .choices = choices_, .help = help_, \
        .field = offsetof(type_, field_)                                        \
    }

#endif
