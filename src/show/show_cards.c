/* The descriptions of heads for the cards, badges and table of a report. */
#include "show/show.h"

#include <multihead/component.h>

#include <ctype.h>
#include <math.h>
#include <string.h>

enum { DETAIL_BYTES = 1536, SENTENCE_BYTES = 512 };

/* The scores of a head that are shown (study.h), and the headings of their columns. */
static const struct {
    int64_t score;
    const char *column;
} shown[MHA_CARD_MEASURES] = {
    {MHA_MEASURE_PREVIOUS, "previous"},    {MHA_MEASURE_NEXT, "next"},
    {MHA_MEASURE_SELF, "itself"},          {MHA_MEASURE_FIRST, "first"},
    {MHA_MEASURE_SEPARATOR, "separators"}, {MHA_MEASURES, "duplicates"}, /* on random tokens */
    {MHA_MEASURES + 1, "induction"},       {MHA_MEASURE_CONFIDENCE, "confidence"},
    {MHA_MEASURE_EVENNESS, "evenness"},
};

/* The default target dominates if it has at least half of the weight. */
static const double leads = 0.5;

/* Default targets and general patterns are less informative than the strongest link. */
static bool is_specific(mha_role role)
{
    return role < MHA_ROLE_BLOCK && !mha_study_role_rests(role);
}

static bool is_told(const mha_head_role *role)
{
    const bool share = role->role == MHA_ROLE_SINK || role->role == MHA_ROLE_SEPARATOR;
    return !share || role->score.value >= leads;
}

/* Write a paragraph for each role: the head's pattern, then its default target. */
static mha_status describe(const mha_study_found *found, int64_t layer, int64_t head,
                           mha_room *room, mha_show_role *role)
{
    mha_head_role roles[MHA_STUDY_MOST_ROLES];
    const int64_t count = mha_study_roles(found, layer, head, roles);
    char *badge, *texts[2];
    MHA_TRY(mha_room_alloc(room, MHA_STUDY_NAME_BYTES, 1, &badge));
    for (int i = 0; i < 2; i++) MHA_TRY(mha_room_alloc(room, DETAIL_BYTES, 1, &texts[i]));
    for (int64_t i = 0; i < count; i++) {
        char *text = texts[!is_specific(roles[i].role)];
        const size_t used = strlen(text);
        if (!is_told(&roles[i]) || used + SENTENCE_BYTES > DETAIL_BYTES) continue;
        if (!*badge) mha_study_role_name(found, &roles[i], badge);
        mha_format(text + used, DETAIL_BYTES - used, "%s%s (%s).", used ? "\n" : "",
                   mha_role_describe(roles[i].role).text, roles[i].evidence);
        char *sentence = text + used + (used > 0);
        *sentence = (char)toupper((unsigned char)*sentence);
    }
    role->badge = *badge ? badge : NULL;
    role->does = texts[0];
    role->rests = texts[1];
    return MHA_OK;
}

static mha_status measure(const mha_study_found *found, int64_t layer, int64_t head,
                          char (*labels)[MHA_STUDY_NAME_BYTES], mha_room *room, mha_show_role *role)
{
    mha_measure *measures;
    MHA_TRY(MHA_ROOM_ALLOC(room, MHA_CARD_MEASURES, &measures));
    for (int i = 0; i < MHA_CARD_MEASURES; i++) {
        const mha_head_score s = mha_study_score(found, layer, head, shown[i].score);
        const bool even = shown[i].score == MHA_MEASURE_EVENNESS; /* its chance level is always 1 */
        measures[i] = (mha_measure){.name = labels[i],
                                    .value = s.rows ? s.value : (double)NAN,
                                    .chance = s.rows && !even ? s.chance : 0,
                                    .count = s.rows,
                                    .note = "rows"};
    }
    role->measures = measures;
    role->measure_count = MHA_CARD_MEASURES;
    return describe(found, layer, head, room, role);
}

mha_status mha_cards_make(const mha_study_found *found, mha_cards *cards)
{
    MHA_NEED("mha_cards_make", found, cards);
    *cards = (mha_cards){.layers = found->layers};
    mha_room *room = &cards->memory;
    for (int64_t l = 0; l < found->layers; l++)
        if (found->heads[l] > cards->heads) cards->heads = found->heads[l];
    char(*labels)[MHA_STUDY_NAME_BYTES];
    mha_status status = MHA_ROOM_ALLOC(room, MHA_CARD_MEASURES, &labels);
    for (int i = 0; i < MHA_CARD_MEASURES && status == MHA_OK; i++)
        mha_study_score_label(found, shown[i].score, labels[i]);
    if (status == MHA_OK)
        status = MHA_ROOM_ALLOC(room, cards->layers * cards->heads, &cards->roles);
    for (int64_t l = 0; l < found->layers; l++)
        for (int64_t h = 0; h < found->heads[l] && status == MHA_OK; h++)
            status = measure(found, l, h, labels, room, &cards->roles[l * cards->heads + h]);
    if (status != MHA_OK) mha_cards_free(cards);
    return status;
}

void mha_cards_free(mha_cards *cards)
{
    if (!cards) return;
    mha_room_release(&cards->memory, 0);
    *cards = (mha_cards){0};
}

mha_status mhai_cards_columns(const mha_cards *cards, const mha_maps *maps, mha_room *room,
                              mha_report *report)
{
    const int64_t all = maps->layers * maps->heads;
    mha_column *columns;
    double *values;
    char label[MHA_STUDY_NAME_BYTES], (*about)[2 * MHA_STUDY_NAME_BYTES];
    MHA_TRY(MHA_ROOM_ALLOC(room, MHA_CARD_MEASURES, &columns));
    MHA_TRY(MHA_ROOM_ALLOC(room, MHA_CARD_MEASURES, &about));
    MHA_TRY(MHA_ROOM_ALLOC(room, MHA_CARD_MEASURES * all, &values));
    for (int i = 0; i < MHA_CARD_MEASURES; i++, values += all) {
        int64_t count = 0;
        for (int64_t at = 0; at < all; at++) {
            const mha_show_role *role = mhai_card_of(cards, at / maps->heads, at % maps->heads);
            if (!maps->on || maps->on[at])
                values[count++] = role ? role->measures[i].value : (double)NAN;
        }
        mha_study_score_label(NULL, shown[i].score, label);
        mha_format(about[i], sizeof about[i], "%s: %s", label,
                   mha_study_score_text(shown[i].score));
        columns[i] = (mha_column){.name = shown[i].column, .about = about[i], .values = values};
    }
    report->columns = columns;
    report->column_count = MHA_CARD_MEASURES;
    return MHA_OK;
}

const mha_show_role *mhai_card_of(const mha_cards *cards, int64_t layer, int64_t head)
{
    if (!cards || layer >= cards->layers || head >= cards->heads) return NULL;
    const mha_show_role *role = &cards->roles[layer * cards->heads + head];
    return role->measures ? role : NULL;
}
