/* The settings that a description needs if its rows are computed independently. */
#ifndef MHAI_ROW_SOURCE_H
#define MHAI_ROW_SOURCE_H

#include <multihead/attention.h>

/* Whether the positions of queries matter, so that a q_offset has a meaning. */
bool mhai_reads_positions(const mha_attention_desc *desc);

#endif
