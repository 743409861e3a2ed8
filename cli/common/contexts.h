/* Contexts of the library, from options. */
#ifndef CLI_CONTEXTS_H
#define CLI_CONTEXTS_H

#include "common/exits.h"

#include <multihead/base.h>

/* Freed when the subcommand ends. isa and threads 0: the defaults. Errors are printed. */
cli_exit context_make(mha_isa isa, int64_t threads, mha_context **context);

#endif
