/* Roles: scores that reach their thresholds, and the sentence that states the evidence. */
#include "analysis/head_measures.h"
#include <multihead/component.h>

#include <string.h>

/* Minimum distance above chance for every threshold. In a row of two keys, half of the mass is not
 * evidence. */
static const double above_chance = 0.1;

enum { VALUE = 0, CORRECTED = 1 };

static const mha_role_info infos[MHA_ROLES] = {
#define ROLE_INFO(id, name, measure, threshold, which, rows, text, source) \
    {name, text, source, MHA_MEASURE_##measure, threshold, which == CORRECTED, rows},
    MHA_ROLE_LIST(ROLE_INFO)
#undef ROLE_INFO
};

mha_role_info mha_role_describe(mha_role role)
{
    if ((unsigned)role >= MHA_ROLES)
        return (mha_role_info){"?", "?", "?", MHA_MEASURES, 0, false, 0};
    return infos[role];
}

/* ---- choice ---------------------------------------------------------------------------------- */

typedef struct role_search {
    const mha_head_measures *m;
    int64_t layer, head;
    bool has[MHA_ROLES];
    mha_head_role *roles;
    int64_t most, count;
} role_search;

static bool reaches(const mha_role_info *info, const mha_head_score *score)
{
    if (score->rows < info->least_rows) return false;
    if (mha_measure_describe(info->measure).kind == MHA_KIND_SHARE &&
        score->value - score->chance < above_chance)
        return false;
    return (info->corrected ? score->corrected : score->value) >= info->threshold;
}

/* Whether a more specific role of the head implies this one. */
static bool is_told(const role_search *x, mha_role role)
{
    const bool *has = x->has;
    const bool neighbour = has[MHA_ROLE_PREVIOUS] || has[MHA_ROLE_NEXT] || has[MHA_ROLE_SELF];
    switch (role) {
    case MHA_ROLE_DIAGONAL: return neighbour;
    case MHA_ROLE_LOCAL: return neighbour || has[MHA_ROLE_DIAGONAL];
    case MHA_ROLE_VERTICAL:
        return has[MHA_ROLE_SINK] || has[MHA_ROLE_SEPARATOR] || has[MHA_ROLE_CLS] ||
               has[MHA_ROLE_REGISTERS];
    case MHA_ROLE_PATCHES:
    case MHA_ROLE_ROW:
    case MHA_ROLE_COLUMN: return has[MHA_ROLE_SELF];
    case MHA_ROLE_CUT: return has[MHA_ROLE_BLOCK];
    case MHA_ROLE_MONOTONE: return has[MHA_ROLE_DIAGONAL];
    default: return false;
    }
}

/* ---- evidence -------------------------------------------------------------------------------- */

static void tell(mha_head_role *role)
{
    const mha_role_info *info = &infos[role->role];
    const mha_measure_kind kind = mha_measure_describe(info->measure).kind;
    const mha_head_score *s = &role->score;
    const char *unit = role->role == MHA_ROLE_RARE ? "texts" : "rows";
    char where[32] = "", chance[32] = "";
    if (role->role == MHA_ROLE_POSITIONAL || role->role == MHA_ROLE_DIAGONAL)
        mha_format(where, sizeof where, " at offset %+lld", (long long)role->offset);
    if (kind == MHA_KIND_SHARE) mha_format(chance, sizeof chance, ", chance %.2f", s->chance);
    mha_format(role->evidence, sizeof role->evidence, "%s%s %.2f%s, %lld %s", info->name, where,
               s->value, chance, (long long)s->rows, unit);
}

static void tell_link(const role_search *x, mha_head_role *role, const mha_head_relation *r)
{
    const bool back = role->direction == MHA_LINK_BACKWARD;
    mha_format(role->evidence, sizeof role->evidence,
               "%.64s%s %.2f, best offset %+lld %.2f, chance %.2f, %lld links",
               x->m->names[role->relation], back ? " (reverse)" : "", r->accuracy.value,
               (long long)r->baseline_offset, r->baseline, r->accuracy.chance,
               (long long)r->accuracy.rows);
}

/* ---- search ---------------------------------------------------------------------------------- */

static mha_head_role *next(role_search *x, mha_head_role *spare)
{
    x->count++;
    return x->count <= x->most ? &x->roles[x->count - 1] : spare;
}

static void search_links(role_search *x)
{
    const mha_role_info *info = &infos[MHA_ROLE_LINKS];
    mha_head_role spare;
    for (int64_t r = 0; r < x->m->relations; r++)
        for (int direction = 0; direction < 2; direction++) {
            const mha_head_relation found =
                mha_head_measures_relation(x->m, x->layer, x->head, r, direction);
            /* rounding may move 10 of 100 points slightly below the threshold */
            if (found.accuracy.rows < info->least_rows ||
                found.accuracy.value - found.baseline < info->threshold - 1e-12)
                continue;
            mha_head_role *role = next(x, &spare);
            *role = (mha_head_role){.role = MHA_ROLE_LINKS,
                                    .relation = r,
                                    .direction = direction,
                                    .score = found.accuracy};
            tell_link(x, role, &found);
        }
}

static mha_head_score score_of(const role_search *x, mha_role role)
{
    return mha_head_measures_score(x->m, x->layer, x->head, infos[role].measure);
}

static void add_role(role_search *x, mha_role which)
{
    mha_head_role spare;
    const mha_head_details details = mha_head_measures_details(x->m, x->layer, x->head);
    mha_head_role *role = next(x, &spare);
    *role = (mha_head_role){.role = which, .score = score_of(x, which)};
    if (which == MHA_ROLE_DIAGONAL) role->offset = details.diagonal_offset;
    if (which == MHA_ROLE_POSITIONAL) role->offset = details.positional_offset;
    tell(role);
}

int64_t mha_head_measures_roles(const mha_head_measures *m, int64_t layer, int64_t head,
                                mha_head_role *roles, int64_t most)
{
    role_search x = {
        .m = m, .layer = layer, .head = head, .roles = roles, .most = roles ? most : 0};
    if (!m) return 0;
    for (int role = 0; role < MHA_ROLES; role++) {
        const mha_head_score score = score_of(&x, (mha_role)role);
        x.has[role] = role != MHA_ROLE_LINKS && reaches(&infos[role], &score);
    }
    for (int role = 0; role < MHA_ROLES; role++) {
        if (role == MHA_ROLE_LINKS)
            search_links(&x);
        else if (x.has[role] && !is_told(&x, (mha_role)role))
            add_role(&x, (mha_role)role);
    }
    return x.count;
}
