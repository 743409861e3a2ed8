/* Settings that a descriptor needs if its rows are computed independently. */
#ifndef MHAI_ROW_SOURCE_H
#define MHAI_ROW_SOURCE_H

#include <multihead/attention.h>

/* Whether positions of queries matter, so that q_offset has an effect. */
bool mhai_reads_positions(const mha_attention_desc *desc);

#endif
