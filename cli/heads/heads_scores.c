/* The selection and order of the heads of a table. */
#include "common/arena.h"
#include "heads/heads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = MHA_STUDY_NAME_BYTES };

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
    mha_head_role roles[MHA_STUDY_MOST_ROLES];
    char name[NAME_BYTES];
    if (options->roles.count == 0) return true;
    const int64_t count = mha_study_roles(&found->of, layer, head, roles);
    for (int i = 0; i < options->roles.count; i++) {
        const char *wanted = options->roles.items[i];
        if (count == 0 && !strcmp(wanted, "none")) return true;
        for (int64_t r = 0; r < count; r++) {
            mha_study_role_name(&found->of, &roles[r], name);
            if (same_name(wanted, name) || same_name(wanted, mha_role_describe(roles[r].role).name))
                return true;
        }
    }
    return false;
}

static bool is_role(const heads_found *found, const char *wanted)
{
    bool known =
        !strcmp(wanted, "none") || mha_study_score_find(&found->of, wanted, false) >= MHA_MEASURES;
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
        const char *near = mha_nearest_name(wanted, names, MHA_ROLES);
        return cli_fail(CLI_USAGE,
                        "--role %s: no such role%s%s%s; docs/heads.md lists them; a relation of "
                        "--conllu and 'none' also count as roles",
                        wanted, near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    }
    return CLI_OK;
}

/* Sort by the first role, and within a role by its score. */
static double role_key(const heads_found *found, int64_t layer, int64_t head)
{
    mha_head_role roles[MHA_STUDY_MOST_ROLES];
    if (mha_study_roles(&found->of, layer, head, roles) == 0) return -1;
    double strength = roles[0].score.corrected;
    strength = strength > 0 ? (strength < 1 ? strength : 1) : 0;
    const double rest = mha_study_role_rests(roles[0].role) ? 0 : 2 * MHA_ROLES;
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

static cli_exit find_sort(const heads_options *options, const heads_found *found, int64_t *score)
{
    *score = -1;
    const bool plain =
        !options->sort || !strcmp(options->sort, "layer") || !strcmp(options->sort, "role");
    if (!plain) *score = mha_study_score_find(&found->of, options->sort, true);
    if (!plain && *score < 0)
        return cli_fail(CLI_USAGE,
                        "--sort %s: no such score; expected layer, role, a column of --csv or a "
                        "relation of --conllu",
                        options->sort);
    if (options->min.given && *score < 0)
        return cli_fail(CLI_USAGE, "--min requires --sort and the name of a score");
    return CLI_OK;
}

cli_exit heads_choose(const heads_options *options, const heads_found *found, heads_row **rows,
                      int64_t *count)
{
    maps_picks picks = {0};
    int64_t score;
    CLI_TRY(find_sort(options, found, &score));
    CLI_TRY(check_roles(options, found));
    CLI_TRY(maps_pick(&options->layers, &options->heads, found->of.layers, found->model->heads,
                      &picks));
    CLI_TRY(ARENA_ALLOC(found->count, rows));
    *count = 0;
    const bool by_role = options->sort && !strcmp(options->sort, "role");
    for (int64_t l = 0; l < found->of.layers; l++)
        for (int64_t h = 0; h < found->of.heads[l]; h++) {
            heads_row row = {.layer = l, .head = h};
            if (score >= 0) row.key = mha_study_score(&found->of, l, h, score).value;
            if (by_role) row.key = role_key(found, l, h);
            if (!picks.on[l * picks.heads + h] || !has_role(options, found, l, h)) continue;
            if (options->min.given && !(row.key >= options->min.value)) continue;
            (*rows)[(*count)++] = row;
        }
    heads_sort(*rows, *count);
    return CLI_OK;
}
