/* What a description needs to be told of rows that are computed by themselves. */
#ifndef MHAI_ROW_SOURCE_H
#define MHAI_ROW_SOURCE_H

#include <multihead/attention.h>

/* Whether the positions of queries matter, so that a q_offset has a meaning. */
bool mhai_reads_positions(const mha_attention_desc *desc);

#endif
