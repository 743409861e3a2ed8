/* Names of weights in GGUF files (gguf_names.c), as in mhai_family.names. */
#ifndef MHAI_GGUF_NAMES_H
#define MHAI_GGUF_NAMES_H

#include "model/arch/family.h"

extern const mhai_weight_name mhai_gguf_plain_names[], mhai_gguf_llama_names[],
    mhai_gguf_lfm2_names[], mhai_gguf_qwen35_names[], mhai_gguf_next_names[],
    mhai_gguf_gpt_oss_names[], mhai_gguf_space_names[], mhai_gguf_fused_names[],
    mhai_gguf_phi3_names[], mhai_gguf_glm4_names[], mhai_gguf_latent_names[],
    mhai_gguf_bert_names[], mhai_gguf_alibi_names[], mhai_gguf_falcon_names[],
    mhai_gguf_olmo_names[], mhai_gguf_t5_names[], mhai_gguf_t5_encoder_names[];

#endif
