/* Inside the model layer: what a model is, and what an architecture has to provide. A new one is a
 * new file with these functions and a line in the table of model_load.c. */
#ifndef MHAI_ARCH_H
#define MHAI_ARCH_H

#include "model/model_config.h"
#include "model/model_weights.h"

#include <multihead/model.h>

/* A forward pass whose arguments have been checked. */
typedef struct mhai_pass {
    mha_context *context;
    int64_t B, T;
    const int32_t *ids, *type_ids; /* [B,T]; type_ids may be NULL */
    const int64_t *lengths;        /* [B], may be NULL */
    mha_model_outputs want;
} mhai_pass;

typedef struct mhai_arch {
    const char *model_type; /* as config.json has it */
    /* Read config and weights into model->body and model->info; model->body is destroyed by the
     * caller, also if this fails. */
    mha_status (*load)(mha_context *context, const mhai_config *config, mhai_weights *weights,
                       mha_model *model);
    mha_status (*forward)(const mha_model *model, const mhai_pass *pass);
    void (*destroy)(void *body); /* NULL is fine */
} mhai_arch;

extern const mhai_arch mhai_arch_bert;

struct mha_model {
    mha_allocator allocator;
    const mhai_arch *arch;
    mha_model_info info;
    mha_tokenizer *tokenizer; /* NULL: loaded without */
    void *body;               /* the architecture's */
};

/* folder/name; the caller frees it. NULL: no memory. */
char *mhai_model_join(const char *folder, const char *name);

/* Whether a folder is one, with config.json and model.safetensors in it. */
MHA_NODISCARD mha_status mhai_model_check_folder(const char *folder);

#endif
