/* Texts over several ranks, each of which has a run of them: what they measure is merged in the order of
 * texts, so that numbers of texts are right, and sums of scores are integers, so that their bits are.
 * With --state that is done in rounds, after each of which rank 0 has, and may save, all texts up to there.
 * With --spread each has some layers instead, and all texts. */
#include "common/arena.h"
#include "common/launched.h"
#include "common/signals.h"
#include "heads/heads.h"
#include "heads/heads_state.h"

#include <multihead/component.h>
#include <multihead/head_state.h>

#include <stdlib.h>
#include <string.h>

const mha_transport *heads_ranks_dealt(const heads_found *found)
{
    return found->model->ranks ? NULL : ranks_transport();
}

/* What a text costs, nearly: a pass is linear in its tokens but for short ones. */
static double work_of(const int64_t *tokens, int64_t begin, int64_t end)
{
    double work = 0;
    for (int64_t i = begin; i < end; i++) work += 1 + (tokens ? (double)tokens[i] : 0);
    return work;
}

/* A text for each rank at first; then what the last round says takes `every` seconds, at most four times as
 * much as that. */
static int64_t end_of_next(const heads_round *last, const int64_t *tokens, int64_t count,
                           double every, int32_t size)
{
    const double times = 4 * last->seconds < every ? 4 : every / last->seconds;
    int64_t end = last->end + size;
    if (end >= count) return count;
    double work = work_of(tokens, last->end, end);
    while (end < count && work < times * last->work) work += work_of(tokens, end, end + 1), end++;
    return end;
}

cli_exit heads_ranks_round(const heads_found *found, heads_round *round, const int64_t *tokens,
                           int64_t count, double every)
{
    const mha_transport *t = heads_ranks_dealt(found);
    const int64_t begin = round->end;
    int64_t end = count;
    if (t && every >= 0) {
        if (ranks_first()) end = end_of_next(round, tokens, count, every, t->size);
        CLI_TRY(ranks_share(HEADS, &end, sizeof end));
    }
    *round = (heads_round){.begin = begin,
                           .end = end,
                           .first = t ? end : begin,
                           .last = t ? begin : end,
                           .work = work_of(tokens, begin, end),
                           .began = seconds_now()};
    double before = 0;
    for (int64_t i = begin; t && i < end; i++) {
        const double work = work_of(tokens, i, i + 1);
        const double owner = (before + work / 2) * t->size / round->work;
        if (owner < t->rank + 1) round->last = i + 1;
        if (owner >= t->rank && round->first == end) round->first = i;
        before += work;
    }
    return CLI_OK;
}

cli_exit heads_ranks_number(heads_found *found, int64_t number)
{
    if (!heads_ranks_dealt(found) || !found->of.corpus) return CLI_OK;
    return cli_check(HEADS, mha_head_corpus_number(found->of.corpus, number));
}

typedef struct sums {
    heads_found *found;
    mha_head_measures *measures;
    mha_head_corpus *corpus;
} sums;

/* What the others have measured, into rank 0's, one after the other: after a failure too all is received. */
static mha_status add_ranks(const mha_transport *t, const sums *to, const int64_t *all, void *bytes)
{
    mha_status status = MHA_OK;
    for (int32_t r = 1; r < t->size; r++) {
        const size_t size = (size_t)all[2 * r];
        MHA_TRY(mha_transport_receive(t, r, bytes, size));
        if (status == MHA_OK)
            status = heads_state_merge(to->found, bytes, size, to->measures, to->corpus);
        if (!to->found->spread)
            to->found->of.lost_links += all[2 * r + 1]; /* else all lost the same ones */
    }
    return status;
}

/* Sizes, and links that were left out, at rank 0, and room there for the largest. */
static mha_status gather_sizes(const mha_transport *t, const mha_buffer *own,
                               const heads_found *found, int64_t **all, void **bytes)
{
    const int64_t mine[2] = {(int64_t)own->size, found->of.lost_links};
    int64_t most = 0;
    *bytes = NULL;
    *all = calloc((size_t)t->size, 2 * sizeof **all);
    mha_status status =
        *all ? MHA_OK : mha_fail(MHA_ERR_NOMEM, "out of memory for the sizes of all ranks");
    MHA_TRY(mha_transport_agree(t, status));
    MHA_TRY(mha_transport_gather(t, 0, mine, sizeof mine, *all));
    for (int32_t r = 1; t->rank == 0 && r < t->size; r++)
        if ((*all)[2 * r] > most) most = (*all)[2 * r];
    *bytes = malloc((size_t)most + 1);
    if (!*bytes) status = mha_fail(MHA_ERR_NOMEM, "out of memory for what a rank has measured");
    return mha_transport_agree(t, status);
}

static mha_status gather(const mha_transport *t, const mha_buffer *own, const sums *to)
{
    int64_t *all;
    void *bytes;
    mha_status status = gather_sizes(t, own, to->found, &all, &bytes);
    if (status == MHA_OK) {
        status = t->rank == 0 ? add_ranks(t, to, all, bytes)
                              : mha_transport_send(t, 0, own->data, own->size);
        if (status != MHA_ERR_RANK) status = mha_transport_agree(t, status);
    }
    if (t->rank != 0) to->found->of.lost_links = 0;
    free(all);
    free(bytes);
    return status;
}

cli_exit heads_ranks_gather(heads_found *found, mha_head_measures *measures,
                            mha_head_corpus *corpus, cli_exit code)
{
    const mha_transport *t = found->spread ? found->model->ranks : heads_ranks_dealt(found);
    mha_buffer own = {0};
    if (!t || !measures) return code;
    const mha_sink sink = mha_buffer_sink(&own);
    if (code == CLI_OK && t->rank != 0)
        code = cli_check(HEADS, mha_head_state_write(measures, &sink));
    code = ranks_agree(HEADS, code);
    const sums to = {found, measures, corpus};
    if (code == CLI_OK) code = ranks_check(HEADS, gather(t, &own, &to));
    mha_buffer_free(&own);
    return code;
}
