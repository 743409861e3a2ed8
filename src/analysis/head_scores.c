/* Functions that return scores from the sums of mha_head_measures. */
#include "analysis/head_measures.h"

#include <stdlib.h>

/* ---- the list of scores ---------------------------------------------------------------------- */

static const mha_measure_info infos[MHA_MEASURES] = {
#define MEASURE_INFO(id, name, kind, label, text, source) \
    {name, text, MHA_KIND_##kind, label, source},
    MHA_MEASURE_LIST(MEASURE_INFO)
#undef MEASURE_INFO
};

mha_measure_info mha_measure_describe(mha_head_measure measure)
{
    if ((unsigned)measure >= MHA_MEASURES)
        return (mha_measure_info){"?", "?", MHA_KIND_PLAIN, "?", "?"};
    return infos[measure];
}

/* ---- one head -------------------------------------------------------------------------------- */

/* Results of a head without sums. */
static const mha_head_offset no_offset;
static const mha_head_relation no_relation;

static const mhai_head_kept *head_of(const mha_head_measures *m, int64_t layer, int64_t head)
{
    if (!m || layer < 0 || layer >= m->layers || head < 0) return NULL;
    if (head >= m->first_head[layer + 1] - m->first_head[layer]) return NULL;
    return &m->kept[m->first_head[layer] + head];
}

static mha_head_score share_of(double value, double chance, int64_t rows)
{
    mha_head_score score = {0};
    if (rows == 0) return score;
    score.value = value / (double)rows;
    score.chance = chance / (double)rows;
    score.corrected = score.chance < 1 ? (score.value - score.chance) / (1 - score.chance) : 0;
    score.rows = rows;
    return score;
}

/* The offset with the best corrected score. It must have at least half as many rows as the most
 * frequent offset, because in short texts a far offset has only a cell or two. Ties go to the
 * nearest offset, and at equal distance to the negative one. */
static int64_t best_offset(const mha_head_measures *m, const mhai_head_kept *kept, bool largest)
{
    int64_t most = 0, best = 0;
    double best_score = -2;
    for (int64_t n = 0; n <= 2 * m->offsets; n++)
        if (kept->at[n].rows > most) most = kept->at[n].rows;
    for (int64_t n = 0; n <= 2 * m->offsets; n++) {
        const int64_t offset = n % 2 ? -(n + 1) / 2 : n / 2; /* 0, -1, 1, -2, ... */
        const mhai_head_at *at = &kept->at[offset + m->offsets];
        if (at->rows == 0 || 2 * at->rows < most) continue;
        const double value = largest ? (double)at->largest : at->mass;
        const double score = share_of(value, at->chance, at->rows).corrected;
        if (score > best_score) best_score = score, best = offset;
    }
    return best;
}

mha_head_offset mha_head_measures_offset(const mha_head_measures *m, int64_t layer, int64_t head,
                                         int64_t offset)
{
    const mhai_head_kept *kept = head_of(m, layer, head);
    if (!kept || offset < -m->offsets || offset > m->offsets) return no_offset;
    const mhai_head_at *at = &kept->at[offset + m->offsets];
    return (mha_head_offset){share_of(at->mass, at->chance, at->rows),
                             share_of((double)at->largest, at->chance, at->rows)};
}

mha_head_score mha_head_measures_score(const mha_head_measures *m, int64_t layer, int64_t head,
                                       mha_head_measure measure)
{
    const mhai_head_kept *kept = head_of(m, layer, head);
    if (!kept || (unsigned)measure >= MHA_MEASURES) return (mha_head_score){0};
    if (measure == MHA_MEASURE_DIAGONAL)
        return mha_head_measures_offset(m, layer, head, best_offset(m, kept, false)).mass;
    if (measure == MHA_MEASURE_POSITIONAL)
        return mha_head_measures_offset(m, layer, head, best_offset(m, kept, true)).largest;
    const mhai_head_sum *sum = &kept->sum[measure];
    mha_head_score score = share_of(sum->value, sum->chance, sum->rows);
    if (infos[measure].kind != MHA_KIND_SHARE) score.corrected = score.value;
    return score;
}

mha_head_details mha_head_measures_details(const mha_head_measures *m, int64_t layer, int64_t head)
{
    const mhai_head_kept *kept = head_of(m, layer, head);
    if (!kept) return (mha_head_details){0};
    mha_head_details details = kept->details;
    details.diagonal_offset = best_offset(m, kept, false);
    details.positional_offset = best_offset(m, kept, true);
    return details;
}

/* ---- links ----------------------------------------------------------------------------------- */

/* Find the most frequent offset; ties go to the nearest. */
static void find_baseline(const mha_head_measures *m, int64_t layer, int64_t slot,
                          mha_head_relation *relation)
{
    const int64_t width = 2 * MHAI_HEAD_FAR_LINK + 1;
    slot += layer * 2 * m->relations;
    const int64_t *counts = m->link_offsets + slot * width;
    int64_t best = 0;
    for (int64_t o = -MHAI_HEAD_FAR_LINK; o <= MHAI_HEAD_FAR_LINK; o++) {
        const int64_t count = counts[o + MHAI_HEAD_FAR_LINK];
        if (count > best ||
            (count == best && best > 0 && llabs(o) < llabs(relation->baseline_offset)))
            best = count, relation->baseline_offset = o;
    }
    if (m->link_count[slot] > 0) relation->baseline = (double)best / (double)m->link_count[slot];
}

mha_head_relation mha_head_measures_relation(const mha_head_measures *m, int64_t layer,
                                             int64_t head, int64_t relation, int direction)
{
    const mhai_head_kept *kept = head_of(m, layer, head);
    mha_head_relation result = no_relation;
    if (!kept || relation < 0 || relation >= m->relations || (direction != 0 && direction != 1))
        return result;
    const int64_t slot = 2 * relation + direction;
    const mhai_head_link_sum *sum = &kept->links[slot];
    result.accuracy = share_of((double)sum->hits, sum->chance, sum->links);
    result.mass = share_of(sum->mass, sum->share, sum->links);
    find_baseline(m, layer, slot, &result);
    return result;
}
