/* The table of heads for a terminal: one line per head, at most as wide as the terminal. */
#include "common/table.h"
#include "common/words.h"
#include "heads/heads.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    NAME_BYTES = MHA_STUDY_NAME_BYTES,
    LINE_BYTES = 1024,
    HEAD_WIDTH = 7,
    COLUMN_WIDTH = 6,
    ROLE_WIDTH = 34
};

/* Scores with a column of their own, the most informative first. */
#define SCORE(heading, score)                  \
    {                                          \
        heading, COLUMN_WIDTH, 2, TABLE_PLAIN, \
        {                                      \
            .name = score                      \
        }                                      \
    }
static const table_column scores[] = {
    {"prev", COLUMN_WIDTH - 1, 2, TABLE_PLAIN, {.name = "previous"}},
    SCORE("next", "next"),
    SCORE("self", "self"),
    SCORE("first", "first"),
    SCORE("sep", "separator"),
    SCORE("induc", "induction"),
    SCORE("dupl", "duplicate"),
    SCORE("even", "evenness"),
    SCORE("dist", "distance")};

static const table_column of_patches[] = {
    {"local", COLUMN_WIDTH - 1, 2, TABLE_PLAIN, {.name = "patch_local"}},
    SCORE("row", "same_row"),
    SCORE("col", "same_col"),
    SCORE("self", "self"),
    SCORE("cls", "cls"),
    SCORE("reg", "registers"),
    SCORE("even", "evenness"),
    SCORE("dist", "patch_distance"),
    SCORE("cos", "cosine")};

enum { SCORES = sizeof scores / sizeof *scores };
_Static_assert(sizeof of_patches == sizeof scores, "as many columns");

/* The same for cross-attention. */
static const table_column cross_scores[] = {SCORE("mono", "monotone"), SCORE("diag", "diagonal"),
                                            SCORE("first", "first"),   SCORE("last", "last"),
                                            SCORE("sep", "separator"), SCORE("conf", "confidence"),
                                            SCORE("even", "evenness")};

enum { CROSS_SCORES = sizeof cross_scores / sizeof *cross_scores };

/* The number of columns that fit beside the roles. */
static int columns_that_fit(int64_t width, int most)
{
    const int64_t room = (width - HEAD_WIDTH - ROLE_WIDTH) / COLUMN_WIDTH;
    return room < 0 ? 0 : room < most ? (int)room : most;
}

/* Write "previous token 0.94, amod 0.80 (0.62)": the deciding score and, for relations, its
 * baseline. */
static void list_roles(const mha_head_measures *texts, const heads_row *row, char *line)
{
    size_t used = 0;
    snprintf(line, LINE_BYTES, "-");
    for (int64_t i = 0; i < row->role_count && used + NAME_BYTES + 64 < LINE_BYTES; i++) {
        const mha_head_role *r = &row->roles[i].is;
        used += (size_t)snprintf(line + used, LINE_BYTES - used, "%s%s %.2f", i ? ", " : "",
                                 row->roles[i].name, r->score.value);
        if (r->role == MHA_ROLE_LINKS)
            used += (size_t)snprintf(
                line + used, LINE_BYTES - used, " (%.2f)",
                mha_head_measures_relation(texts, row->layer, row->head, r->relation, r->direction)
                    .baseline);
        if (r->role == MHA_ROLE_POSITIONAL || r->role == MHA_ROLE_DIAGONAL)
            used += (size_t)snprintf(line + used, LINE_BYTES - used, " at %+" PRId64, r->offset);
    }
}

static void print_title(const heads_found *found, int64_t width)
{
    char line[LINE_BYTES];
    const char *attention = heads_attention(found);
    size_t used = (size_t)snprintf(line, 400, "%s: %s%s", found->model->name,
                                   attention ? attention : "", attention ? ", " : "");
    if (used >= 400) used = 399; /* for very long names */
    if (found->of.texts)
        used +=
            (size_t)snprintf(line + used, LINE_BYTES - used, "%s %s%s, %s %stoken%s%s",
                             words_count(found->of.text_count).text,
                             found->images ? "image" : "text", words_s(found->of.text_count),
                             words_count(found->of.token_count).text, found->cross ? "source " : "",
                             words_s(found->of.token_count), found->of.random ? "; " : "");
    if (found->of.random)
        snprintf(line + used, LINE_BYTES - used,
                 "%" PRId64 " x %" PRId64 " random tokens, %" PRId64 " times over",
                 found->of.random_count, found->of.plan->how.block, found->of.plan->how.repeats);
    cli_print_wrapped("", line, width);
}

static void print_row(table *t, const mha_study_found *found, const table_column *shown,
                      const heads_row *row, int fit)
{
    char line[LINE_BYTES];
    table_text(t, "L%" PRId64 "H%" PRId64, row->layer, row->head);
    for (int i = 0; i < fit; i++) {
        const mha_head_score s = mha_study_score(
            found, row->layer, row->head, mha_study_score_find(found, shown[i].field.name, true));
        table_number(t, s.rows > 0 ? s.value : (double)NAN);
    }
    list_roles(found->texts, row, line);
    table_text(t, fit > 0 ? " %s" : "%s", line);
    table_end(t);
}

/* Print the evidence for each role in a sentence. */
static void print_details(const heads_row *row, int64_t width)
{
    char line[LINE_BYTES];
    for (int64_t i = 0; i < row->role_count; i++) {
        snprintf(line, sizeof line, "%s; %s", row->roles[i].is.evidence,
                 mha_role_describe(row->roles[i].is.role).text);
        cli_print_wrapped("  ", line, width);
    }
    if (row->role_count == 0) cli_print_wrapped("  ", "no role found", width);
}

void heads_print(const heads_options *options, const heads_found *found, const heads_row *rows,
                 int64_t count)
{
    const mha_terminal terminal = screen_of(&options->screen);
    const table_column *shown = found->images ? of_patches : found->cross ? cross_scores : scores;
    const int fit = columns_that_fit(terminal.columns, found->cross ? CROSS_SCORES : SCORES);
    table_column columns[SCORES + 2] = {{"head", -HEAD_WIDTH, 0, TABLE_PLAIN, {0}}};
    table t = {.columns = columns, .limit = terminal.columns, .ascii = terminal.ascii};
    memcpy(columns + 1, shown, (size_t)fit * sizeof *shown);
    columns[1 + fit] = (table_column){.heading = fit > 0 ? " roles" : "roles"};
    print_title(found, terminal.columns);
    cli_print("\n");
    table_head(&t, fit + 2);
    for (int64_t i = 0; i < count; i++) {
        print_row(&t, &found->of, shown, &rows[i], fit);
        if (options->details) print_details(&rows[i], terminal.columns);
    }
}
