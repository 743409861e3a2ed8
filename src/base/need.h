/* Checks of required pointers. */
#ifndef MHAI_BASE_NEED_H
#define MHAI_BASE_NEED_H

#include <multihead/component.h>

/* Report MHA_ERR_NULL as "function: name is NULL", where name is entry
 * `index` of the list `names`. */
mha_status mhai_need_fail(const char *function, const char *names, size_t index);

/* Return that error for the first of these variables that is NULL.
 * MHAI_NEED_AS uses the given names. */
#define MHAI_NEED(function, ...) MHAI_NEED_AS(function, #__VA_ARGS__, __VA_ARGS__)
#define MHAI_NEED_AS(function, names, ...)                                    \
    do {                                                                      \
        const void *const need_[] = {__VA_ARGS__};                            \
        for (size_t at_ = 0; at_ < sizeof need_ / sizeof *need_; at_++)       \
            if (!need_[at_]) return mhai_need_fail((function), (names), at_); \
    } while (0)

#endif
