/* The selection and order of the heads of a table. */
#include "common/arena.h"
#include "heads/heads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- which heads, in which order ----------------------------------------------------------- */

/* "previous-token" names the role "previous token". */
static bool same_name(const char *given, const char *name)
{
    for (; *given && *name; given++, name++)
        if (*given != *name && !(*given == '-' && *name == ' ')) return false;
    return !*given && !*name;
}

static cli_exit take_roles(const mha_study_found *found, heads_row *row)
{
    mha_head_role roles[MHA_STUDY_MOST_ROLES];
    row->role_count = mha_study_roles(found, row->layer, row->head, roles);
    CLI_TRY(ARENA_ALLOC(row->role_count, &row->roles));
    for (int64_t r = 0; r < row->role_count; r++) {
        row->roles[r].is = roles[r];
        mha_study_role_name(found, &roles[r], row->roles[r].name);
    }
    return CLI_OK;
}

/* Whether a head has a role, given by its name, the name of a relation, or "none". */
static bool has_role(const args_texts *wanted, const heads_row *row)
{
    bool has = wanted->count == 0;
    for (int i = 0; i < wanted->count; i++) {
        has |= row->role_count == 0 && !strcmp(wanted->items[i], "none");
        for (int64_t r = 0; r < row->role_count; r++)
            has |= same_name(wanted->items[i], row->roles[r].name) ||
                   same_name(wanted->items[i], mha_role_describe(row->roles[r].is.role).name);
    }
    return has;
}

static bool is_role(const mha_study_found *found, const char *wanted)
{
    bool known =
        !strcmp(wanted, "none") || mha_study_score_find(found, wanted, false) >= MHA_MEASURES;
    for (int r = 0; r < MHA_ROLES; r++)
        known |= same_name(wanted, mha_role_describe((mha_role)r).name);
    return known;
}

static cli_exit check_roles(const heads_options *options, const mha_study_found *found)
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
static double role_key(const heads_row *row)
{
    if (row->role_count == 0) return -1;
    const mha_head_role *first = &row->roles[0].is;
    double strength = first->score.corrected;
    strength = strength > 0 ? (strength < 1 ? strength : 1) : 0;
    const double rest = mha_study_role_rests(first->role) ? 0 : 2 * MHA_ROLES;
    return rest + 2 * (MHA_ROLES - (double)first->role) + strength;
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

/* The score that a name may mean: one that begins with it, as the headings of the table do. */
static const char *near_score(const char *wanted)
{
    const char *names[MHA_MEASURES];
    for (int n = 0; n < MHA_MEASURES; n++) {
        names[n] = mha_measure_describe((mha_head_measure)n).name;
        if (!strncmp(names[n], wanted, strlen(wanted))) return names[n];
    }
    return mha_nearest_name(wanted, names, MHA_MEASURES);
}

static cli_exit find_sort(const heads_options *options, const mha_study_found *found,
                          int64_t *score)
{
    *score = -1;
    const bool plain =
        !options->sort || !strcmp(options->sort, "layer") || !strcmp(options->sort, "role");
    if (!plain) *score = mha_study_score_find(found, options->sort, true);
    if (!plain && *score < 0) {
        const char *near = near_score(options->sort);
        return cli_fail(
            CLI_USAGE,
            "--sort %s: no such score%s%s%s; expected layer, role, a column of --csv or a "
            "relation of --conllu",
            options->sort, near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    }
    if (options->min.given && *score < 0)
        return cli_fail(CLI_USAGE, "--min requires --sort and the name of a score");
    return CLI_OK;
}

cli_exit heads_choose(const heads_options *options, const heads_found *found, heads_row **rows,
                      int64_t *count)
{
    maps_picks picks = {0};
    int64_t score;
    CLI_TRY(find_sort(options, &found->of, &score));
    CLI_TRY(check_roles(options, &found->of));
    CLI_TRY(maps_pick(&options->layers, &options->heads, found->of.layers, found->model->heads,
                      &picks));
    CLI_TRY(ARENA_ALLOC(found->count, rows));
    *count = 0;
    const bool by_role = options->sort && !strcmp(options->sort, "role");
    for (int64_t l = 0; l < found->of.layers; l++)
        for (int64_t h = 0; h < found->of.heads[l]; h++) {
            heads_row row = {.layer = l, .head = h};
            if (!picks.on[l * picks.heads + h]) continue;
            CLI_TRY(take_roles(&found->of, &row));
            if (score >= 0) row.key = mha_study_score(&found->of, l, h, score).value;
            if (by_role) row.key = role_key(&row);
            if (!has_role(&options->roles, &row)) continue;
            if (options->min.given && !(row.key >= options->min.value)) continue;
            (*rows)[(*count)++] = row;
        }
    heads_sort(*rows, *count);
    return CLI_OK;
}
