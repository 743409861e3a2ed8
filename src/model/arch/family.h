/* What a family of models is: how config.json says what a transformer is, and what its weights are
 * called. A family is a file beside this one and a line in the list of family.c; nothing else knows
 * families. */
#ifndef MHAI_FAMILY_H
#define MHAI_FAMILY_H

#include "model/model_config.h"

#include <multihead/model.h>
#include <multihead/transformer.h>

/* Far beyond every published model, and small enough that no product of two overflows. Positions
 * have a bound of their own, since no weight of the file vouches for them when they are rotary. */
enum {
    MHAI_MOST_LAYERS = 4096,
    MHAI_MOST_WIDTH = 1 << 20,
    MHAI_MOST_ENTRIES = INT32_MAX,
    MHAI_MOST_POSITIONS = 1 << 20
};

/* A weight's name in a file: longer than every name that a family makes. */
enum { MHAI_WEIGHT_NAME = 128 };

/* What a family calls its sizes. */
typedef struct mhai_shape_keys {
    const char *embed, *layers, *heads, *positions, *kv_heads, *causal;
} mhai_shape_keys;

extern const mhai_shape_keys mhai_usual_keys;

/* What config.json says. */
typedef struct mhai_family_plan {
    mha_transformer_desc desc;
    int64_t *head_lists;    /* what desc.layer_heads points to; NULL: none. To be freed */
    mha_layer_desc *layers; /* likewise desc.layers */
} mhai_family_plan;

typedef struct mhai_family {
    const char *model_type; /* as config.json has it */

    /* The shape of its attention, for mha_model_read_shape(). */
    const mhai_shape_keys *keys;
    uint32_t shape;       /* MHA_MODEL_SHAPE_... */
    const char *bias_key; /* the field that decides about biases; NULL: shape does */
    bool grouped;         /* num_key_value_heads, head_dim and sliding_window are read */

    /* A transformer of it. read NULL: only the shape is known. */
    const char *layers; /* in front of a layer's number */
    const char *prefix; /* may stand in front of every name in files of others, or not; "": no */
    const char *const (*names)[2]; /* {ours, theirs} without ".weight"; ends with {NULL, NULL} */
    bool old_norms;                /* files may call a norm's weight and bias gamma and beta */
    bool (*fits)(const mha_transformer_desc *desc);                /* can be saved as it */
    bool (*write)(const mha_transformer_desc *desc, json_t *root); /* false: no memory */
    mha_status (*read)(const mhai_config *config, mhai_family_plan *plan);
    /* A weight that is left alone; NULL: all but those of layers, such as poolers and heads. */
    bool (*ignores)(const mhai_family_plan *plan, const char *name);
} mhai_family;

/* The family that config.json names. */
MHA_NODISCARD mha_status mhai_family_find(const mhai_config *config, const mhai_family **family);

/* Refuse one of which only the shape is known. */
MHA_NODISCARD mha_status mhai_family_check_loads(const mhai_config *config,
                                                 const mhai_family *family);

/* The family that a transformer is saved as; there always is one. */
const mhai_family *mhai_family_of(const mha_transformer_desc *desc);

bool mhai_family_ignores(const mhai_family *family, const mhai_family_plan *plan, const char *name);

/* What a family calls one of our parameters. */
void mhai_family_name(const mhai_family *family, const char *ours, char theirs[MHAI_WEIGHT_NAME]);

/* What bert.c and its relatives share: every description of an encoder of that kind. */
extern const char *const mhai_bert_names[][2];
MHA_NODISCARD mha_status mhai_bert_read(const mhai_config *config, mhai_family_plan *plan);
void mhai_bert_describe(mha_feed_forward activation, mha_transformer_desc *d);

/* The fields that llama and bert call alike. */
bool mhai_write_sizes(const mha_transformer_desc *d, json_t *root);

/* The sizes of a transformer, by what a family calls them. */
MHA_NODISCARD mha_status mhai_read_sizes(const mhai_config *config, const mhai_family *family,
                                         const char *inner, mha_transformer_desc *d);
extern const mhai_family mhai_family_llama, mhai_family_bert, mhai_family_distilbert;

/* All layers alike, plain ones, in sequence: what llama and bert can say. */
bool mhai_desc_is_usual(const mha_transformer_desc *d);

static inline bool mhai_desc_has(const mha_transformer_desc *d, uint32_t flag)
{
    return (d->flags & flag) != 0;
}

#endif
