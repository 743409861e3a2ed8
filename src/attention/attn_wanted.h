/* Checked outputs other than o and lse (mha_attention_outputs). */
#ifndef MHAI_ATTN_WANTED_H
#define MHAI_ATTN_WANTED_H

#include <multihead/attention.h>

/* Outputs with data NULL are not requested. A tensor with data but no elements is requested and
 * never written. */
typedef struct mhai_attn_wanted {
    mha_tensor average, scores;
    mha_tensor entropy, largest_weight, largest_key, first_token, diagonal, offset_mass;
    mha_tensor top_keys, top_weights, column_sums;
    mha_score_stage stage;
    bool dropped;         /* probabilities and average include dropout */
    const int64_t *heads; /* NULL: all */
    const int64_t *rows;  /* NULL: all */
    int64_t heads_count;  /* length of the head axis in probabilities and scores */
    int64_t rows_count;
    const int64_t *offsets;
    int64_t offsets_count;
} mhai_attn_wanted;

/* Whether there are elements to write. */
bool mhai_attn_wants(const mha_tensor *output);

/* Whether any statistic of single rows is requested. */
bool mhai_attn_wants_statistics(const mhai_attn_wanted *want);

#endif
