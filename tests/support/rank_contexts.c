#include "support/rank_contexts.h"
#include "support/expect.h"

#include "support/suite.h"

static mha_context *contexts[MOST_MACHINES][MOST_RANKS];

mha_context *rank_contexts_of(const machine *m, int at, int rank)
{
    const mha_context_desc desc = {
        .struct_size = sizeof desc, .num_threads = 1 + rank % 2, .isa = m->isa};
    if (!contexts[at][rank]) expect_ok(mha_context_create(&desc, &contexts[at][rank]));
    return contexts[at][rank];
}

int rank_contexts_destroy(void **state)
{
    (void)state;
    for (int i = 0; i < MOST_MACHINES * MOST_RANKS; i++) {
        mha_context **context = &contexts[i / MOST_RANKS][i % MOST_RANKS];
        mha_context_destroy(*context);
        *context = NULL; /* the next suite of the program creates its own */
    }
    return 0;
}
