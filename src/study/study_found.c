/* Scores by number and name, and the roles of heads. */
#include "study/study.h"

#include <stdio.h>
#include <string.h>

/* The measures taken on repeated random tokens. */
static const mha_head_measure on_random[] = {MHA_MEASURE_DUPLICATE, MHA_MEASURE_INDUCTION,
                                             MHA_MEASURE_INDUCTION_MEAN};

enum { ON_RANDOM = sizeof on_random / sizeof *on_random };

/* ---- scores ---------------------------------------------------------------------------------- */

int64_t mha_study_score_count(const mha_study_found *found)
{
    return MHA_MEASURES + ON_RANDOM + 2 * found->relation_count;
}

void mha_study_score_name(const mha_study_found *found, int64_t score,
                          char name[MHA_STUDY_NAME_BYTES])
{
    const int64_t relation = score - MHA_MEASURES - ON_RANDOM;
    const mha_head_measure measure = score < MHA_MEASURES || relation >= 0
                                         ? (mha_head_measure)score
                                         : on_random[relation + ON_RANDOM];
    if (relation >= 0)
        snprintf(name, MHA_STUDY_NAME_BYTES, "%s%s", found->relations[relation / 2],
                 relation % 2 ? "-back" : "");
    else
        snprintf(name, MHA_STUDY_NAME_BYTES, "%s%s", score < MHA_MEASURES ? "" : "random_",
                 mha_measure_describe(measure).name);
}

void mha_study_score_label(const mha_study_found *found, int64_t score,
                           char label[MHA_STUDY_NAME_BYTES])
{
    const int64_t relation = score - MHA_MEASURES - ON_RANDOM;
    if (relation >= 0)
        snprintf(label, MHA_STUDY_NAME_BYTES, "%s%s", found->relations[relation / 2],
                 relation % 2 ? ", reversed" : "");
    else if (score >= MHA_MEASURES)
        snprintf(label, MHA_STUDY_NAME_BYTES, "%s on repeated random tokens",
                 mha_measure_describe(on_random[score - MHA_MEASURES]).label);
    else
        snprintf(label, MHA_STUDY_NAME_BYTES, "%s",
                 mha_measure_describe((mha_head_measure)score).label);
}

const char *mha_study_score_text(int64_t score)
{
    const int64_t relation = score - MHA_MEASURES - ON_RANDOM;
    if (relation >= 0) return "share of links where the largest weight is on the partner";
    if (score >= MHA_MEASURES) return mha_measure_describe(on_random[score - MHA_MEASURES]).text;
    return mha_measure_describe((mha_head_measure)score).text;
}

mha_head_score mha_study_score(const mha_study_found *found, int64_t layer, int64_t head,
                               int64_t score)
{
    const int64_t relation = score - MHA_MEASURES - ON_RANDOM;
    const bool random = score >= MHA_MEASURES && relation < 0;
    const mha_head_measures *from = random ? found->random : found->texts;
    if (!from || score < 0) return (mha_head_score){0};
    if (relation >= 0)
        return mha_head_measures_relation(from, layer, head, relation / 2, (int)(relation % 2))
            .accuracy;
    return mha_head_measures_score(
        from, layer, head, random ? on_random[score - MHA_MEASURES] : (mha_head_measure)score);
}

int64_t mha_study_score_find(const mha_study_found *found, const char *name, bool prefer_random)
{
    char known[MHA_STUDY_NAME_BYTES];
    int64_t at = -1;
    for (int64_t i = 0; i < mha_study_score_count(found); i++) {
        mha_study_score_name(found, i, known);
        if (at < 0 && !strcmp(name, known)) at = i;
        const bool random =
            prefer_random && found->random && i >= MHA_MEASURES && !strncmp(known, "random_", 7);
        if (random && !strcmp(name, known + 7)) return i;
    }
    return at;
}

/* ---- roles ----------------------------------------------------------------------------------- */

static bool decided_on_random(mha_role role)
{
    return role == MHA_ROLE_DUPLICATE || role == MHA_ROLE_INDUCTION;
}

bool mha_study_role_rests(mha_role role)
{
    return role == MHA_ROLE_SINK || role == MHA_ROLE_SEPARATOR || role == MHA_ROLE_BROAD ||
           role == MHA_ROLE_CLS || role == MHA_ROLE_REGISTERS;
}

static double margin(const mha_study_found *found, int64_t layer, int64_t head,
                     const mha_head_role *role)
{
    return role->score.value -
           mha_head_measures_relation(found->texts, layer, head, role->relation, role->direction)
               .baseline;
}

static bool comes_first(const mha_study_found *found, int64_t layer, int64_t head,
                        const mha_head_role *a, const mha_head_role *b)
{
    const bool rests = mha_study_role_rests(b->role);
    if (mha_study_role_rests(a->role) != rests) return rests;
    if (a->role != b->role) return a->role < b->role;
    return a->role == MHA_ROLE_LINKS &&
           margin(found, layer, head, a) > margin(found, layer, head, b);
}

static void sort_roles(const mha_study_found *found, int64_t layer, int64_t head,
                       mha_head_role *roles, int64_t count)
{
    for (int64_t i = 1; i < count; i++) { /* insertion sort: a few roles */
        const mha_head_role moved = roles[i];
        int64_t at = i;
        for (; at > 0 && comes_first(found, layer, head, &moved, &roles[at - 1]); at--)
            roles[at] = roles[at - 1];
        roles[at] = moved;
    }
}

/* Append to count roles the roles that random tokens determine, or the other ones. */
static int64_t add_roles(const mha_head_measures *measures, int64_t layer, int64_t head,
                         bool random, bool all, mha_head_role *roles, int64_t count)
{
    mha_head_role some[MHA_STUDY_MOST_ROLES];
    int64_t had = 0;
    if (measures) had = mha_head_measures_roles(measures, layer, head, some, MHA_STUDY_MOST_ROLES);
    for (int64_t i = 0; i < had && i < MHA_STUDY_MOST_ROLES && count < MHA_STUDY_MOST_ROLES; i++)
        if (all || decided_on_random(some[i].role) == random) roles[count++] = some[i];
    return count;
}

int64_t mha_study_roles(const mha_study_found *found, int64_t layer, int64_t head,
                        mha_head_role roles[MHA_STUDY_MOST_ROLES])
{
    int64_t count = add_roles(found->texts, layer, head, false, !found->random, roles, 0);
    count = add_roles(found->random, layer, head, true, false, roles, count);
    sort_roles(found, layer, head, roles, count);
    return count;
}

void mha_study_role_name(const mha_study_found *found, const mha_head_role *role,
                         char name[MHA_STUDY_NAME_BYTES])
{
    if (role->role == MHA_ROLE_LINKS && role->relation < found->relation_count)
        snprintf(name, MHA_STUDY_NAME_BYTES, "%s%s", found->relations[role->relation],
                 role->direction == MHA_LINK_BACKWARD ? "-back" : "");
    else
        snprintf(name, MHA_STUDY_NAME_BYTES, "%s", mha_role_describe(role->role).name);
}
