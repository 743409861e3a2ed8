/* Scores by number and name, roles, and which heads a table has in which order. */
#include "common/arena.h"
#include "heads/heads.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What repeated random tokens are for. */
static const mha_head_measure on_random[] = {MHA_MEASURE_DUPLICATE, MHA_MEASURE_INDUCTION,
                                             MHA_MEASURE_INDUCTION_MEAN};

enum { ON_RANDOM = sizeof on_random / sizeof *on_random, NAME_BYTES = 96 };

/* ---- scores -------------------------------------------------------------------------------- */

int64_t heads_score_count(const heads_found *found)
{
    return MHA_MEASURES + ON_RANDOM + 2 * found->relation_count;
}

void heads_score_name(const heads_found *found, int64_t score, char *name, size_t size)
{
    const int64_t relation = score - MHA_MEASURES - ON_RANDOM;
    if (score < MHA_MEASURES)
        snprintf(name, size, "%s", mha_measure_describe((mha_head_measure)score).name);
    else if (relation < 0)
        snprintf(name, size, "random_%s",
                 mha_measure_describe(on_random[score - MHA_MEASURES]).name);
    else
        snprintf(name, size, "%s%s", found->relations[relation / 2], relation % 2 ? "-back" : "");
}

const char *heads_score_text(int64_t score)
{
    const int64_t relation = score - MHA_MEASURES - ON_RANDOM;
    if (score < MHA_MEASURES) return mha_measure_describe((mha_head_measure)score).text;
    if (relation < 0) return mha_measure_describe(on_random[score - MHA_MEASURES]).text;
    return "share of links where the largest weight is on the partner";
}

mha_head_score heads_score(const heads_found *found, int64_t layer, int64_t head, int64_t score)
{
    const int64_t relation = score - MHA_MEASURES - ON_RANDOM;
    const mha_head_score none = {0};
    if (score < MHA_MEASURES)
        return found->texts
                   ? mha_head_measures_score(found->texts, layer, head, (mha_head_measure)score)
                   : none;
    if (relation < 0)
        return found->random ? mha_head_measures_score(found->random, layer, head,
                                                       on_random[score - MHA_MEASURES])
                             : none;
    return mha_head_measures_relation(found->texts, layer, head, relation / 2, (int)(relation % 2))
        .accuracy;
}

int64_t heads_score_find(const heads_found *found, const char *name)
{
    char known[NAME_BYTES];
    for (int64_t i = 0; i < heads_score_count(found); i++) {
        heads_score_name(found, i, known, sizeof known);
        if (!strcmp(name, known)) return i;
    }
    return -1;
}

/* ---- roles --------------------------------------------------------------------------------- */

static bool told_by_random(mha_role role)
{
    return role == MHA_ROLE_DUPLICATE || role == MHA_ROLE_INDUCTION;
}

bool heads_is_rest(mha_role role)
{
    return role == MHA_ROLE_SINK || role == MHA_ROLE_SEPARATOR || role == MHA_ROLE_BROAD;
}

static double margin(const heads_found *found, int64_t layer, int64_t head,
                     const mha_head_role *role)
{
    return role->score.value -
           mha_head_measures_relation(found->texts, layer, head, role->relation, role->direction)
               .baseline;
}

/* The order of the list, but relations by what they are above their baselines, and rests last. */
static bool comes_first(const heads_found *found, int64_t layer, int64_t head,
                        const mha_head_role *a, const mha_head_role *b)
{
    if (heads_is_rest(a->role) != heads_is_rest(b->role)) return heads_is_rest(b->role);
    if (a->role != b->role) return a->role < b->role;
    return a->role == MHA_ROLE_LINKS &&
           margin(found, layer, head, a) > margin(found, layer, head, b);
}

static void sort_roles(const heads_found *found, int64_t layer, int64_t head, mha_head_role *roles,
                       int64_t count)
{
    for (int64_t i = 1; i < count; i++) { /* a few: by insertion */
        const mha_head_role moved = roles[i];
        int64_t at = i;
        for (; at > 0 && comes_first(found, layer, head, &moved, &roles[at - 1]); at--)
            roles[at] = roles[at - 1];
        roles[at] = moved;
    }
}

int64_t heads_roles(const heads_found *found, int64_t layer, int64_t head,
                    mha_head_role roles[HEADS_MOST_ROLES])
{
    mha_head_role some[HEADS_MOST_ROLES];
    int64_t count = 0, kept = 0;
    if (found->texts)
        count = mha_head_measures_roles(found->texts, layer, head, roles, HEADS_MOST_ROLES);
    if (count > HEADS_MOST_ROLES) count = HEADS_MOST_ROLES;
    for (int64_t i = 0; i < count; i++) /* texts repeat words for many reasons */
        if (!found->random || !told_by_random(roles[i].role)) roles[kept++] = roles[i];
    count = found->random
                ? mha_head_measures_roles(found->random, layer, head, some, HEADS_MOST_ROLES)
                : 0;
    for (int64_t i = 0; i < count && i < HEADS_MOST_ROLES && kept < HEADS_MOST_ROLES; i++)
        if (told_by_random(some[i].role)) roles[kept++] = some[i];
    sort_roles(found, layer, head, roles, kept);
    return kept;
}

void heads_role_name(const heads_found *found, const mha_head_role *role, char *name, size_t size)
{
    if (role->role == MHA_ROLE_LINKS && role->relation < found->relation_count)
        snprintf(name, size, "%s%s", found->relations[role->relation],
                 role->direction == MHA_LINK_BACKWARD ? "-back" : "");
    else
        snprintf(name, size, "%s", mha_role_describe(role->role).name);
}

/* ---- which heads, in which order ----------------------------------------------------------- */

/* "previous-token" is "previous token". */
static bool same_name(const char *given, const char *name)
{
    for (; *given && *name; given++, name++)
        if (*given != *name && !(*given == '-' && *name == ' ')) return false;
    return !*given && !*name;
}

/* A role by its name, a relation's, or "none". */
static bool has_role(const heads_options *options, const heads_found *found, int64_t layer,
                     int64_t head)
{
    mha_head_role roles[HEADS_MOST_ROLES];
    char name[NAME_BYTES];
    if (options->roles.count == 0) return true;
    const int64_t count = heads_roles(found, layer, head, roles);
    for (int i = 0; i < options->roles.count; i++) {
        const char *wanted = options->roles.items[i];
        if (count == 0 && !strcmp(wanted, "none")) return true;
        for (int64_t r = 0; r < count; r++) {
            heads_role_name(found, &roles[r], name, sizeof name);
            if (same_name(wanted, name) || same_name(wanted, mha_role_describe(roles[r].role).name))
                return true;
        }
    }
    return false;
}

static bool is_role(const heads_found *found, const char *wanted)
{
    bool known = !strcmp(wanted, "none") || heads_score_find(found, wanted) >= MHA_MEASURES;
    for (int r = 0; r < MHA_ROLES; r++)
        known |= same_name(wanted, mha_role_describe((mha_role)r).name);
    return known;
}

static cli_exit check_roles(const heads_options *options, const heads_found *found)
{
    const char *names[MHA_ROLES];
    for (int r = 0; r < MHA_ROLES; r++) names[r] = mha_role_describe((mha_role)r).name;
    for (int i = 0; i < options->roles.count; i++) {
        const char *wanted = options->roles.items[i];
        if (is_role(found, wanted)) continue;
        const char *near = args_nearest(wanted, names, MHA_ROLES);
        return cli_fail(CLI_USAGE, HEADS,
                        "--role %s: no such role%s%s%s; docs/heads.md lists them; a relation of "
                        "--conllu and 'none' also count as roles",
                        wanted, near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    }
    return CLI_OK;
}

/* By the first role of each, and among those with the same one by its score. */
static double role_key(const heads_found *found, int64_t layer, int64_t head)
{
    mha_head_role roles[HEADS_MOST_ROLES];
    if (heads_roles(found, layer, head, roles) == 0) return -1;
    double strength = roles[0].score.corrected;
    strength = strength > 0 ? (strength < 1 ? strength : 1) : 0;
    const double rest = heads_is_rest(roles[0].role) ? 0 : 2 * MHA_ROLES;
    return rest + 2 * (MHA_ROLES - (double)roles[0].role) + strength;
}

static int by_key(const void *a, const void *b)
{
    const heads_row *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? 1 : -1;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    return x->head < y->head ? -1 : x->head > y->head;
}

void heads_sort(heads_row *rows, int64_t count)
{
    if (count > 0) qsort(rows, (size_t)count, sizeof *rows, by_key);
}

int64_t heads_score_find_told(const heads_found *found, const char *name)
{
    char random[NAME_BYTES];
    snprintf(random, sizeof random, "random_%s", name);
    const int64_t score = found->random ? heads_score_find(found, random) : -1;
    return score >= 0 ? score : heads_score_find(found, name);
}

static cli_exit find_sort(const heads_options *options, const heads_found *found, int64_t *score)
{
    *score = -1;
    const bool plain =
        !options->sort || !strcmp(options->sort, "layer") || !strcmp(options->sort, "role");
    if (!plain) *score = heads_score_find_told(found, options->sort);
    if (!plain && *score < 0)
        return cli_fail(CLI_USAGE, HEADS,
                        "--sort %s: no such score; expected layer, role, a column of --csv or a "
                        "relation of --conllu",
                        options->sort);
    if (options->min.given && *score < 0)
        return cli_fail(CLI_USAGE, HEADS, "--min requires --sort and the name of a score");
    return CLI_OK;
}

cli_exit heads_choose(const heads_options *options, const heads_found *found, heads_row **rows,
                      int64_t *count)
{
    maps_picks picks = {0};
    int64_t score;
    CLI_TRY(find_sort(options, found, &score));
    CLI_TRY(check_roles(options, found));
    CLI_TRY(maps_pick(HEADS, &options->layers, &options->heads, found->layers, found->model->heads,
                      &picks));
    CLI_TRY(ARENA_ALLOC(HEADS, found->count, rows));
    *count = 0;
    const bool by_role = options->sort && !strcmp(options->sort, "role");
    for (int64_t l = 0; l < found->layers; l++)
        for (int64_t h = 0; h < found->heads[l]; h++) {
            heads_row row = {.layer = l, .head = h};
            if (score >= 0) row.key = heads_score(found, l, h, score).value;
            if (by_role) row.key = role_key(found, l, h);
            if (!picks.on[l * picks.heads + h] || !has_role(options, found, l, h)) continue;
            if (options->min.given && !(row.key >= options->min.value)) continue;
            (*rows)[(*count)++] = row;
        }
    heads_sort(*rows, *count);
    return CLI_OK;
}
