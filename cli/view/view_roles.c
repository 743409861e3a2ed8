/* See view_roles.h. */
#include "view/view_roles.h"

#include "common/arena.h"
#include "common/progress.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { RANDOM_SEQUENCES = 4 };

/* The scores that are shown of a head, by name, and the heading of their column. */
static const struct {
    const char *score, *column;
} shown[VIEW_ROLES_MEASURES] = {
    {"previous", "previous"},
    {"next", "next"},
    {"self", "itself"},
    {"first", "first"},
    {"separator", "separators"},
    {"random_duplicate", "duplicates"},
    {"random_induction", "induction"},
    {"confidence", "confidence"},
    {"evenness", "evenness"},
};

/* ---- measuring ----------------------------------------------------------------------------- */

bool view_roles_wanted(const view_options *options, const attention_maps *maps)
{
    return options->html && options->model && maps->text[0] && !maps->text[1] && !maps->contrast &&
           maps->rows.labels == maps->cols.labels;
}

/* Half of the weight: a head that rests does at least as much of it as of all else. */
static const double leads = 0.5;

/* Rests and general patterns say less than the strongest link. */
static bool is_specific(mha_role role)
{
    return role < MHA_ROLE_BLOCK && !mha_study_role_rests(role);
}

static bool is_told(const mha_head_role *role)
{
    const bool share = role->role == MHA_ROLE_SINK || role->role == MHA_ROLE_SEPARATOR;
    return !share || role->score.value >= leads;
}

/* A paragraph for each role: what the head does, then where it rests. */
static void describe(const mha_study_found *found, int64_t layer, int64_t head, view_role *role)
{
    mha_head_role roles[MHA_STUDY_MOST_ROLES];
    const int64_t count = mha_study_roles(found, layer, head, roles);
    for (int64_t i = 0; i < count; i++) {
        char *text = is_specific(roles[i].role) ? role->does : role->rests;
        const size_t used = strlen(text);
        if (!is_told(&roles[i]) || used + 512 > VIEW_ROLES_DETAIL) continue;
        if (!*role->badge) mha_study_role_name(found, &roles[i], role->badge);
        snprintf(text + used, VIEW_ROLES_DETAIL - used, "%s%s (%s).", used ? "\n" : "",
                 mha_role_describe(roles[i].role).text, roles[i].evidence);
        char *sentence = text + used + (used > 0);
        *sentence = (char)toupper((unsigned char)*sentence);
    }
}

static void measure_head(const mha_study_found *found, int64_t layer, int64_t head,
                         const view_roles *roles, view_role *role)
{
    describe(found, layer, head, role);
    for (int i = 0; i < VIEW_ROLES_MEASURES; i++) {
        const int64_t score = mha_study_score_find(found, shown[i].score, false);
        const mha_head_score s = mha_study_score(found, layer, head, score);
        const bool even = !strcmp(shown[i].score, "evenness"); /* its chance is always 1 */
        role->measures[i] = (mha_measure){.name = roles->labels[i],
                                          .value = s.rows ? s.value : (double)NAN,
                                          .chance = s.rows && !even ? s.chance : 0,
                                          .count = s.rows,
                                          .note = "rows"};
    }
}

static void fill(const mha_study_found *found, int64_t heads, view_roles *roles)
{
    roles->layers = found->layers;
    roles->heads = heads;
    for (int i = 0; i < VIEW_ROLES_MEASURES; i++) {
        const int64_t score = mha_study_score_find(found, shown[i].score, false);
        mha_study_score_label(found, score, roles->labels[i]);
        snprintf(roles->about[i], sizeof roles->about[i], "%s: %s", roles->labels[i],
                 mha_study_score_text(score));
    }
    for (int64_t l = 0; l < found->layers; l++)
        for (int64_t h = 0; h < found->heads[l]; h++)
            measure_head(found, l, h, roles, &roles->items[l * heads + h]);
}

/* Texts, then random tokens, on a line of their own each. */
typedef struct measuring {
    progress shown;
    bool quiet, random;
} measuring;

static mha_status show_progress(void *user, const mha_study_progress *at)
{
    measuring *m = user;
    if (at->random && !m->random) m->shown = progress_begin(m->quiet);
    m->random = at->random;
    text_show_study(&m->shown, at);
    return MHA_OK;
}

ARENA_RELEASE(destroy_study, mha_study_destroy)

cli_exit view_roles_make(const view_options *options, const text_model *model,
                         const mha_tokens *tokens, const text_visit *visit, view_roles *roles)
{
    measuring m = {.shown = progress_begin(options->quiet), .quiet = options->quiet};
    const mha_study_desc how = {
        .struct_size = sizeof how, .progress = show_progress, .progress_user = &m};
    const mha_transformer_input run = {.struct_size = sizeof run,
                                       .outputs = visit->outputs,
                                       .after_layer = visit->after_layer,
                                       .after_layer_user = visit->user};
    const mha_study_visit besides = {.struct_size = sizeof besides, .run = &run};
    const mha_study_visit *visits[] = {&besides};
    const int64_t all = model->layers * model->heads;
    mha_study *study;
    CLI_TRY(ARENA_ALLOC(VIEW, all, &roles->items));
    CLI_TRY(ARENA_ALLOC(VIEW, VIEW_ROLES_MEASURES * all, &roles->columns));
    CLI_TRY(cli_check(VIEW, mha_study_create(model->context, model->model, &how, &study)));
    CLI_TRY(arena_keep(VIEW, study, destroy_study));
    const mha_status status = mha_study_measure(study, tokens, 1, visits, RANDOM_SEQUENCES);
    progress_clear(&m.shown);
    if (status == MHA_OK) fill(mha_study_results(study), model->heads, roles);
    arena_drop(study);
    /* Weights that are not finite cannot be measured; view warns of them. */
    return status == MHA_ERR_NUMERIC ? CLI_OK : cli_check(VIEW, status);
}

/* ---- drawing ------------------------------------------------------------------------------- */

int64_t view_roles_columns(const view_roles *roles, const maps_picks *picks,
                           mha_column columns[VIEW_ROLES_MEASURES])
{
    if (!roles || roles->layers == 0) return 0;
    for (int i = 0; i < VIEW_ROLES_MEASURES; i++) {
        double *values = roles->columns + i * roles->layers * roles->heads;
        int64_t count = 0;
        for (int64_t at = 0; at < picks->layers * picks->heads; at++)
            if (picks->on[at]) values[count++] = roles->items[at].measures[i].value;
        columns[i] =
            (mha_column){.name = shown[i].column, .about = roles->about[i], .values = values};
    }
    return VIEW_ROLES_MEASURES;
}
