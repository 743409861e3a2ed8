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

/* How a weight of a file becomes ours. */
typedef enum mhai_weight_form {
    MHAI_AS_IS = 0,
    MHAI_TRANSPOSED, /* [inputs, outputs] */
    MHAI_PLUS_ONE,   /* what a norm multiplies with, less 1 */
    /* Rows of q, k and v, or of gate and up, one part after the other. */
    MHAI_FUSED,
    MHAI_FUSED_TRANSPOSED,
    MHAI_FUSED_HEADS,  /* head by head: its q, its k, its v */
    MHAI_FUSED_GATE,   /* head by head: its q, its output gate */
    MHAI_FUSED_GROUPS, /* of a gated delta net, by heads of q: its q, k, v, g, or its b, a */
    MHAI_CONVOLUTION,  /* [channels, 1, kernel] */
    MHAI_LAST_ROWS,    /* of a longer table */
    MHAI_PAIRED_ROWS   /* of a rotation that pairs neighbours: 2 k and 2 k + 1 of each head */
} mhai_weight_form;

/* What a family calls a parameter, without ".weight". part: 0 the first of a fused weight, 1 .. */
typedef struct mhai_weight_name {
    const char *ours, *theirs;
    mhai_weight_form form;
    int part;
} mhai_weight_name;
#define MHAI_NAME(ours, theirs)         \
    {                                   \
        (ours), (theirs), MHAI_AS_IS, 0 \
    }

/* What config.json says. */
typedef struct mhai_family_plan {
    mha_transformer_desc desc;
    int64_t first_position; /* rows in front of the table of positions that no token uses */
    int64_t *head_lists;    /* what desc.layer_heads points to; NULL: none. To be freed */
    mha_layer_desc *layers; /* likewise desc.layers */
} mhai_family_plan;

/* Where config.json says a rotation, beside objects of its own, and what holds without. */
typedef struct mhai_rope_kind {
    const char *layers;      /* the type of layers it is of, as rope_parameters has it; NULL: all */
    const char *base, *part; /* what config.json calls rope_theta and partial_rotary_factor */
    double usual_base, usual_part;
    bool scales; /* rope_scaling is about it */
} mhai_rope_kind;

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
    const mhai_weight_name *names; /* ends with one of NULL; what it lacks is called as by us */
    const mhai_rope_kind *rope;    /* NULL: the usual names, 1e4, whole heads */
    bool partial;   /* a part of each head may rotate; transformers ignores it elsewhere */
    bool tied;      /* the output is the table of tokens unless config.json says otherwise */
    bool old_norms; /* files may call a norm's weight and bias gamma and beta */
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

/* What a family calls one of our parameters, and its row of names; NULL: it has none. */
const mhai_weight_name *mhai_family_name(const mhai_family *family, const char *ours,
                                         char theirs[MHAI_WEIGHT_NAME]);

/* What bert.c and its relatives share: every description of an encoder of that kind. */
extern const mhai_weight_name mhai_bert_names[];
MHA_NODISCARD mha_status mhai_bert_read(const mhai_config *config, mhai_family_plan *plan);
void mhai_bert_describe(mha_feed_forward activation, mha_transformer_desc *d);

/* The fields that llama and bert call alike. */
bool mhai_write_sizes(const mha_transformer_desc *d, json_t *root);

/* The sizes of a transformer, by what a family calls them. */
MHA_NODISCARD mha_status mhai_read_sizes(const mhai_config *config, const mhai_family *family,
                                         const char *inner, mha_transformer_desc *d);
extern const mhai_family mhai_family_llama, mhai_family_bert, mhai_family_distilbert;

/* Heads by layer: layer_heads and layer_kv_heads of our own folders and of GGUF files. */
MHA_NODISCARD mha_status mhai_read_heads(const mhai_config *config, mhai_family_plan *plan);

/* What decoders share (decoder.c). The names of Llama's weights: */
#define MHAI_LLAMA_NAMES                            \
    MHAI_NAME("self_attn_norm", "input_layernorm"), \
        MHAI_NAME("mlp_norm", "post_attention_layernorm")

/* Members of a family whose files are laid out as Llama's. */
#define MHAI_LLAMA_FILES(names_)                                                        \
    .keys = &mhai_usual_keys, .grouped = true, .layers = "layers.", .prefix = "model.", \
    .names = names_, .ignores = mhai_decoder_ignores

/* Llama's description: causal, pre-norm with RMS norms, rotary positions, SwiGLU; sizes, epsilon,
 * tied embeddings. With `whole` num_key_value_heads is required: for these families transformers has
 * another default than one for each head. */
MHA_NODISCARD mha_status mhai_read_decoder(const mhai_config *config, const mhai_family *family,
                                           bool whole, mhai_family_plan *plan);

/* hidden_act must be SiLU, which SwiGLU has. */
MHA_NODISCARD mha_status mhai_read_silu(const mhai_config *config);

/* What config.json says about rotation, into every layer. */
MHA_NODISCARD mha_status mhai_read_rope(const mhai_config *config, mhai_family_plan *plan);

/* Give a layer the rotation of another: the fields of mha_layer_desc that are about it. */
void mhai_set_rotation(mha_layer_desc *layer, const mha_layer_desc *rope);

/* The same with an object for each type of layer in rope_parameters, or a base for layers with a
 * window (Gemma 3). After mhai_read_windows(). */
MHA_NODISCARD mha_status mhai_read_ropes(const mhai_config *config, mhai_family_plan *plan);

/* Layers with a window: those that layer_types calls sliding_attention; without that list, layers
 * from `first` on whose number plus 1 is no multiple of `period` (0: all of them). usual: the window
 * where sliding_window is absent; null means none. */
MHA_NODISCARD mha_status mhai_read_windows(const mhai_config *config, int64_t usual, int64_t first,
                                           int64_t period, mhai_family_plan *plan);

/* plan->layers, made if they are not there. */
MHA_NODISCARD mha_status mhai_plan_layers(mhai_family_plan *plan);

/* Tables that old files hold beside weights, and an output that is the embeddings. */
bool mhai_decoder_ignores(const mhai_family_plan *plan, const char *name);

/* All layers alike, plain ones, in sequence: what llama and bert can say. */
bool mhai_desc_is_usual(const mha_transformer_desc *d);

static inline bool mhai_desc_has(const mha_transformer_desc *d, uint32_t flag)
{
    return (d->flags & flag) != 0;
}

#endif
