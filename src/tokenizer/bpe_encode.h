/* BPE encoding: the functions of a tokenizer kind (tokenizer_parts.h). */
#ifndef MHAI_BPE_ENCODE_H
#define MHAI_BPE_ENCODE_H

#include "tokenizer/tokenizer_parts.h"

MHA_NODISCARD mha_status mhai_bpe_normalize(const mha_tokenizer *t, const char *text,
                                            mhai_vector *normalized);
MHA_NODISCARD mha_status mhai_bpe_encode(const mha_tokenizer *t, const char *text, size_t size,
                                         mhai_tokens *tokens);
MHA_NODISCARD mha_status mhai_bpe_words(const mha_tokenizer *t, const char *text, size_t size,
                                        mhai_vector *normalized, mhai_vector *words);

#endif
