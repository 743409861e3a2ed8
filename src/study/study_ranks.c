/* Texts over several ranks: each rank measures a run of texts. Results are merged in rank order.
 * Sums of scores are integers, so they are bit-identical to those of one process. With a state,
 * texts are measured in rounds. After each round, rank 0 has the results of all texts so far. Ranks
 * may instead divide the layers. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "study/study_parts.h"

#include <multihead/head_state.h>

#include <stdlib.h>
#include <time.h>

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

const mha_transport *mhai_study_dealt(const mha_study *s)
{
    return s->desc.flags & MHA_STUDY_OWN_LAYERS ? NULL : s->desc.ranks;
}

mha_status mhai_study_agree(const mha_study *s, mha_status status)
{
    return s->desc.ranks ? mha_transport_agree(s->desc.ranks, status) : status;
}

bool mhai_study_mine(const mha_study *s)
{
    const int64_t at = s->random ? s->found.random_count : s->found.text_count;
    return !mhai_study_dealt(s) || (at >= s->round.first && at < s->round.last);
}

/* ---- dividing -------------------------------------------------------------------------------- */

/* Approximate: except for long texts, the time of a pass is linear in the number of tokens. */
static double work_of(const mha_study *s, int64_t begin, int64_t end)
{
    double work = 0;
    for (int64_t i = begin; i < end; i++) work += 1 + (s->random ? 0 : (double)s->lengths[i]);
    return work;
}

/* The first round has one text per rank. A later round has as many texts as fit in the requested
 * time at the speed of the last round, but at most four times the work of that round. */
static int64_t end_of_next(const mha_study *s, int64_t count)
{
    const mhai_round *last = &s->round;
    const double every = s->state.every;
    const double times = 4 * last->seconds < every ? 4 : every / last->seconds;
    int64_t end = last->end + s->desc.ranks->size;
    if (end >= count) return count;
    double work = work_of(s, last->end, end);
    while (end < count && work < times * last->work) work += work_of(s, end, end + 1), end++;
    return end;
}

static mha_status begin_round(mha_study *s, int64_t count, mha_status status)
{
    const mha_transport *t = mhai_study_dealt(s);
    const int64_t begin = s->round.end;
    int64_t end = count;
    if (t && s->desc.state) {
        if (t->rank == 0) end = end_of_next(s, count);
        MHA_TRY(mha_transport_agree(t, status));
        MHA_TRY(mha_transport_broadcast(t, 0, &end, sizeof end));
    }
    s->round = (mhai_round){.end = end,
                            .first = end,
                            .last = begin,
                            .work = work_of(s, begin, end),
                            .began = seconds_now(),
                            .open = true};
    double before = 0;
    for (int64_t i = begin; t && i < end; i++) {
        const double work = work_of(s, i, i + 1);
        const double owner = (before + work / 2) * t->size / s->round.work;
        if (owner < t->rank + 1) s->round.last = i + 1;
        if (owner >= t->rank && s->round.first == end) s->round.first = i;
        before += work;
    }
    return MHA_OK;
}

/* ---- merging --------------------------------------------------------------------------------- */

static mha_status merge(mha_study *s, const void *bytes, size_t size)
{
    const bool layers = s->desc.flags & MHA_STUDY_OWN_LAYERS;
    mha_head_measures *m = NULL, *to = s->random ? s->found.random : s->found.texts;
    mha_head_corpus *c = NULL;
    mha_status status = mha_head_state_read(s->context, bytes, size, NULL, &m, &c);
    if (status == MHA_OK)
        status = layers ? mha_head_measures_merge_layers(to, m) : mha_head_measures_merge(to, m);
    if (status == MHA_OK && c)
        status = layers ? mha_head_corpus_merge_layers(s->found.corpus, c)
                        : mha_head_corpus_merge(s->found.corpus, c);
    mha_head_corpus_destroy(c);
    mha_head_measures_destroy(m);
    return status;
}

/* Merge the other ranks' results into rank 0's, one after the other. After a failure, the remaining
 * results are still received. */
static mha_status add_ranks(mha_study *s, const int64_t *all, void *bytes)
{
    const mha_transport *t = s->desc.ranks;
    mha_status status = MHA_OK;
    for (int32_t r = 1; r < t->size; r++) {
        const size_t size = (size_t)all[2 * r];
        MHA_TRY(mha_transport_receive(t, r, bytes, size));
        if (status == MHA_OK) status = merge(s, bytes, size);
        if (mhai_study_dealt(s) && !s->random)
            s->found.lost_links += all[2 * r + 1]; /* otherwise every rank lost the same links */
    }
    return status;
}

/* Gather the sizes and lost links of all ranks on rank 0, with room for the largest result
 * there. */
static mha_status gather_sizes(const mha_study *s, const mha_buffer *own, int64_t **all,
                               void **bytes)
{
    const mha_transport *t = s->desc.ranks;
    const int64_t mine[2] = {(int64_t)own->size, s->found.lost_links};
    int64_t most = 0;
    *all = calloc((size_t)t->size, 2 * sizeof **all);
    MHA_TRY(mha_transport_agree(t, *all ? MHA_OK : MHA_NO_MEMORY("the sizes of all ranks")));
    MHA_TRY(mha_transport_gather(t, 0, mine, sizeof mine, *all));
    for (int32_t r = 1; t->rank == 0 && r < t->size; r++)
        if ((*all)[2 * r] > most) most = (*all)[2 * r];
    *bytes = malloc((size_t)most + 1);
    return mha_transport_agree(t, *bytes ? MHA_OK : MHA_NO_MEMORY("the results of a rank"));
}

static mha_status gather(mha_study *s)
{
    const mha_transport *t = s->desc.ranks;
    int64_t *all = NULL;
    void *bytes = NULL;
    mha_buffer own = {0};
    const mha_sink sink = mha_buffer_sink(&own);
    mha_status status =
        t->rank == 0 ? MHA_OK
                     : mha_head_state_write(s->random ? s->found.random : s->found.texts, &sink);
    status = mha_transport_agree(t, status);
    if (status == MHA_OK) status = gather_sizes(s, &own, &all, &bytes);
    if (status == MHA_OK) {
        status =
            t->rank == 0 ? add_ranks(s, all, bytes) : mha_transport_send(t, 0, own.data, own.size);
        status = mha_transport_agree(t, status);
    }
    free(all);
    free(bytes);
    mha_buffer_free(&own);
    return status;
}

mha_status mhai_study_round(mha_study *s)
{
    const int64_t at = s->random ? s->found.random_count : s->found.text_count;
    const int64_t count = s->random ? s->sequences : s->counted;
    mha_status status = MHA_OK;
    if (at < s->round.end) return MHA_OK;
    if (s->round.open && s->desc.ranks) {
        s->round.seconds = seconds_now() - s->round.began;
        MHA_TRY(gather(s));
        if (s->desc.ranks->rank > 0 && at < count)
            status = mhai_study_renew(s);
        else if (s->desc.ranks->rank == 0 && s->state.save)
            s->state.save(s->state.save_user);
    }
    s->round.open = false;
    return at < count ? begin_round(s, count, status) : MHA_OK;
}
