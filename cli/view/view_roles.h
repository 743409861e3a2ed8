/* What each head does, for the cards, badges and table of a report: measured on the text that is
 * drawn and on repeated random tokens, by a study (study.h), as 'multihead heads' measures. */
#ifndef CLI_VIEW_ROLES_H
#define CLI_VIEW_ROLES_H

#include "common/text_model.h"
#include "view/view.h"

enum {
    VIEW_ROLES_MEASURES = 9, /* bars of a card, and columns of the table */
    VIEW_ROLES_NAME = MHA_STUDY_NAME_BYTES,
    VIEW_ROLES_DETAIL = 1536
};

/* Of one head. */
typedef struct view_role {
    char badge[VIEW_ROLES_NAME]; /* all may be empty */
    char does[VIEW_ROLES_DETAIL], rests[VIEW_ROLES_DETAIL];
    mha_measure measures[VIEW_ROLES_MEASURES];
} view_role;

struct view_roles {
    int64_t layers, heads; /* 0: not measured */
    view_role *items;      /* [layers, heads] */
    double *columns;       /* [VIEW_ROLES_MEASURES, heads of a report] */
    char labels[VIEW_ROLES_MEASURES][VIEW_ROLES_NAME];
    char about[VIEW_ROLES_MEASURES][2 * VIEW_ROLES_NAME]; /* label and definition */
};

/* Whether a report of a model is wanted that looks at one text. */
bool view_roles_wanted(const view_options *options, const attention_maps *maps);

/* Measure, and give visit what it asks for in the same run of the text. *roles is left empty where
 * weights are not finite: visit may then lack layers. */
cli_exit view_roles_make(const view_options *options, const text_model *model,
                         const mha_tokens *tokens, const text_visit *visit, view_roles *roles);

/* Columns for the heads that are on; returns how many. */
int64_t view_roles_columns(const view_roles *roles, const maps_picks *picks,
                           mha_column columns[VIEW_ROLES_MEASURES]);

#endif
