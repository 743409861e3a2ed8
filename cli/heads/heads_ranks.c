/* Texts over several ranks, each of which has a run of them: what they measure is merged in the order of
 * texts, so that numbers of texts are right, and sums of scores are integers, so that their bits are.
 * With --spread each has some layers instead, and all texts. */
#include "common/arena.h"
#include "common/launched.h"
#include "heads/heads.h"
#include "heads/heads_state.h"

#include <multihead/component.h>
#include <multihead/head_state.h>

#include <stdlib.h>
#include <string.h>

/* The ranks that have texts of their own: none where they have layers of the model instead. */
static const mha_transport *dealt(const heads_found *found)
{
    return found->model->ranks ? NULL : ranks_transport();
}

bool heads_ranks_mine(const heads_found *found, int64_t number, int64_t count)
{
    const mha_transport *t = dealt(found);
    if (!t) return true;
    const int64_t most = count / t->size,
                  more = count % t->size; /* the first `more` have one more */
    const int64_t begin = most * t->rank + (t->rank < more ? t->rank : more);
    return number >= begin && number < begin + most + (t->rank < more);
}

cli_exit heads_ranks_number(heads_found *found, int64_t number)
{
    if (!dealt(found) || !found->corpus) return CLI_OK;
    return cli_check(HEADS, mha_head_corpus_number(found->corpus, number));
}

/* What rank `from` has measured, into rank 0's. */
static mha_status add_rank(const mha_transport *t, const heads_found *found, int32_t from,
                           int64_t size, mha_head_measures *measures, mha_head_corpus *corpus)
{
    void *bytes = malloc((size_t)size + 1);
    if (!bytes) return mha_fail(MHA_ERR_NOMEM, "out of memory for what a rank has measured");
    mha_status status = mha_transport_receive(t, from, bytes, (size_t)size);
    if (status == MHA_OK) status = heads_state_merge(found, bytes, (size_t)size, measures, corpus);
    free(bytes);
    return status;
}

/* Sizes, links that were left out, then the sums of one rank after the other. */
static mha_status gather(const mha_transport *t, mha_buffer *own, heads_found *found,
                         mha_head_measures *measures, mha_head_corpus *corpus)
{
    int64_t *all = calloc((size_t)t->size, 2 * sizeof *all);
    const int64_t mine[2] = {(int64_t)own->size, found->lost_links};
    mha_status status =
        all ? MHA_OK : mha_fail(MHA_ERR_NOMEM, "out of memory for the sizes of all ranks");
    status = mha_transport_agree(t, status);
    if (status == MHA_OK) status = mha_transport_gather(t, 0, mine, sizeof mine, all);
    if (status == MHA_OK && t->rank != 0) status = mha_transport_send(t, 0, own->data, own->size);
    for (int32_t r = 1; status == MHA_OK && t->rank == 0 && r < t->size; r++) {
        if (!found->spread) found->lost_links += all[2 * r + 1]; /* else all lost the same ones */
        status = add_rank(t, found, r, all[2 * r], measures, corpus);
    }
    free(all);
    return status;
}

cli_exit heads_ranks_gather(heads_found *found, mha_head_measures *measures,
                            mha_head_corpus *corpus, cli_exit code)
{
    const mha_transport *t = found->spread ? found->model->ranks : dealt(found);
    mha_buffer own = {0};
    if (!t || !measures) return code;
    const mha_sink sink = mha_buffer_sink(&own);
    if (code == CLI_OK && t->rank != 0)
        code = cli_check(HEADS, mha_head_state_write(measures, &sink));
    code = ranks_agree(HEADS, code);
    if (code == CLI_OK) code = ranks_check(HEADS, gather(t, &own, found, measures, corpus));
    mha_buffer_free(&own);
    return code;
}
