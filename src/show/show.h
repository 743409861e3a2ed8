/* Shared by the files that make figures. */
#ifndef MHAI_SHOW_H
#define MHAI_SHOW_H

#include <multihead/show.h>

/* Check the given options (NULL: the defaults) and copy them to own. */
MHA_NODISCARD mha_status mhai_show_options(const mha_show_options *given, mha_show_options *own);

/* The card of a head; NULL: none. */
const mha_show_role *mhai_card_of(const mha_cards *cards, int64_t layer, int64_t head);

/* Make the columns of a report's table, for the selected heads. */
MHA_NODISCARD mha_status mhai_cards_columns(const mha_cards *cards, const mha_maps *maps,
                                            mha_room *room, mha_report *report);

#endif
