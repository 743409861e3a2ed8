/* multihead view of long texts: maps as the largest weights of blocks of tokens. */
#ifndef CLI_VIEW_POOL_H
#define CLI_VIEW_POOL_H

#include "common/progress.h"
#include "common/text_model.h"
#include "view/view.h"

/* Tokens of a block in each direction: 1 for texts whose maps can be kept whole, and where the
 * weights themselves are asked for. */
int64_t view_pool_cell(const view_options *options, const maps_picks *picks, int64_t tokens);

/* maps, whose tokens are known, as blocks of cell x cell tokens: what a run has to visit for them.
 * Not for encoder-decoders. */
cli_exit view_pool_begin(const text_model *model, int64_t cell, progress *shown,
                         attention_maps *maps, text_visit *visit);

#endif
