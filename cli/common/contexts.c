/* See contexts.h. */
#include "common/contexts.h"

#include "common/arena.h"

ARENA_RELEASE(destroy, mha_context_destroy)

cli_exit context_make(mha_isa isa, int64_t threads, mha_context **context)
{
    const mha_context_desc desc = {
        .struct_size = sizeof desc, .isa = isa, .num_threads = (int32_t)threads};
    CLI_TRY(cli_check(mha_context_create(&desc, context)));
    return arena_keep(*context, destroy);
}
