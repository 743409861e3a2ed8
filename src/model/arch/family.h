/* A family of models defines how config.json describes a transformer and how its weights are named.
 * Each family is one file in this folder and one entry of the list below; no other code
 * depends on a family. */
#ifndef MHAI_FAMILY_H
#define MHAI_FAMILY_H

#include "model/model_config.h"
#include "model/picture.h"
#include "model/quantization.h"

#include <multihead/component.h>
#include <multihead/model.h>
#include <multihead/transformer.h>

/* Far above every published model, and small enough that products of two cannot overflow. Positions
 * have a separate bound, because no weight confirms the number of rotary positions. */
enum {
    MHAI_MOST_LAYERS = 4096,
    MHAI_MOST_WIDTH = 1 << 20,
    MHAI_MOST_ENTRIES = INT32_MAX,
    MHAI_MOST_POSITIONS = 1 << 20
};

/* Longer than every weight name of any family. */
enum { MHAI_WEIGHT_NAME = 128 };

/* A family's names for its sizes. */
typedef struct mhai_shape_keys {
    const char *embed, *layers, *heads, *positions, *kv_heads,
        *causal; /* positions NULL: any number */
} mhai_shape_keys;

extern const mhai_shape_keys mhai_usual_keys, mhai_gpt_keys; /* gpt_keys: of GPT-2 */

/* The conversion of a weight of a file to a parameter. stored.c compares forms: those from
 * MHAI_FUSED to MHAI_FUSED_GROUPS are a part of a weight, those from MHAI_EXPERT on a part of a table
 * of experts, those from MHAI_EXPERT_MIXED on may have alternating rows. */
typedef enum mhai_weight_form {
    MHAI_AS_IS = 0,
    MHAI_TRANSPOSED, /* [inputs, outputs] */
    MHAI_PLUS_ONE,   /* a norm's weight, stored minus 1 */
    /* Rows of q, k and v, or of gate and up, concatenated. */
    MHAI_FUSED,
    MHAI_FUSED_TRANSPOSED,
    MHAI_FUSED_HEADS,  /* for each head of k: the heads of q that share it, k and v */
    MHAI_FUSED_GATE,   /* for each head: its q and output gate */
    MHAI_FUSED_GROUPS, /* for each head of q of a gated delta net: its q, k, v and g, or its b and
                        * a */
    MHAI_CONVOLUTION,  /* [channels, 1, kernel] */
    /* Of vision transformers: [channels, patch, patch] of each row; the bias of patches, CLS and
     * registers; the positions of CLS and patches, without those of registers, at the image's size */
    MHAI_PATCHES,
    MHAI_SPECIAL_ROWS,
    MHAI_POSITION_ROWS,
    MHAI_KEY_BIAS,     /* zeros if mhai_picture.no_key_bias */
    MHAI_LAYER_SCALED, /* multiplied, row by row, by layer_scale1 or 2 (its part) of its layer */
    MHAI_CONVOLUTIONS, /* like MHAI_CONVOLUTION, in three weights; the row names that of q */
    MHAI_LAST_ROWS,    /* last rows of a longer table */
    /* Of a layer's input: rows or columns of a matrix of all layers */
    MHAI_LAYER_ROWS,
    MHAI_LAYER_COLUMNS,
    MHAI_KEYS_AS_VALUES, /* W_k of layers whose values are the keys before their norm and rotation */
    MHAI_ONE_ROW,        /* a vector, stored as [1, n] */
    MHAI_FOUR_AXES,      /* a vector, stored as [1, 1, n, 1] */
    /* In no file: */
    MHAI_ZEROS,
    MHAI_ONES,
    MHAI_SLOPES,       /* ALiBi's; part 1: divided by sqrt(D) */
    MHAI_PAIRED_ROWS,  /* rows 2 k and 2 k + 1 of each head, which rotate as a pair */
    MHAI_LAST_FIRST,   /* of each head, the rows that rotate after the others */
    MHAI_MINUS_EXP,    /* stored as -exp() of the parameter */
    MHAI_HEADS,        /* [heads, rows of a head, columns] */
    MHAI_HEADS_TURNED, /* [heads, columns, rows of a head] */
    MHAI_EXPERT,       /* one part of a table of all experts, [experts, rows, columns] */
    MHAI_EXPERT_PAIR,  /* like MHAI_EXPERT, with gate and up of each expert concatenated */
    /* Likewise, with alternating rows of gate and up of each expert in tables whose name has
     * "gate_up": */
    MHAI_EXPERT_MIXED,
    MHAI_EXPERT_TURNED, /* [experts, columns, rows] */
    MHAI_EXPERT_MXFP4   /* blocks [experts, rows, columns / 32, 16], and scales beside them */
} mhai_weight_form;

/* The library's name and the family's name of a parameter. Either both omit the tail (".weight",
 * ".bias") or both are complete. A family's name that begins with "/" has no layer's number before
 * it. An asterisk stands for the number of an expert. part: 0 for the first part of a fused weight,
 * then 1, 2. If several rows have the same library name, the first row whose weight is in the file
 * applies. If the file has none of these weights, the library's name applies. */
typedef struct mhai_weight_name {
    const char *ours, *theirs;
    mhai_weight_form form;
    int part;
} mhai_weight_name;
#define MHAI_NAME(ours, theirs)         \
    {                                   \
        (ours), (theirs), MHAI_AS_IS, 0 \
    }

/* The contents of config.json. */
typedef struct mhai_family_plan {
    mha_transformer_desc desc;
    int64_t first_position; /* rows before the table of positions that no token uses */
    int64_t bins;           /* of an audio encoder: num_mel_bins */
    bool keys_as_values;    /* in layers without a window */
    bool sinusoids;         /* a file without that table implies sines, followed by cosines */
    int64_t *head_lists;    /* owns the array of desc.layer_heads; NULL: none */
    mha_layer_desc *layers; /* owns the array of desc.layers */
    float *rope_factors;    /* owns the array of desc.rope_factors */
    mhai_quantization quantization;
    mhai_picture picture;
} mhai_family_plan;

/* The fields of a rotation in config.json outside its objects, and the defaults. */
typedef struct mhai_rope_kind {
    const char *layers;      /* its type of layers in rope_parameters; NULL: all */
    const char *base, *part; /* the names of rope_theta (NULL: none) and partial_rotary_factor */
    double usual_base, usual_part;
    bool scales; /* rope_scaling applies to it */
} mhai_rope_kind;

typedef struct mhai_family {
    const char *model_type; /* as in config.json */
    const char *text_type;  /* of a multimodal model: model_type of text_config, the only part that
                             * is read; NULL: config.json describes a text model */
    bool images;            /* of a multimodal model, it reads vision_config */
    const struct mhai_family *encoder; /* of a folder with two towers, whose decoder this family
                                        * describes: the family of its encoder, which is not in
                                        * the list; NULL: the model has one tower */
    bool towers;                       /* whether this family describes one of two towers */
    bool flat;                         /* the fields of text_config may be in config.json itself */

    /* The shape of the attention, for mha_model_read_shape(). */
    const mhai_shape_keys *keys;
    const char *head_dim; /* the name of head_dim, which is required; NULL: that name */
    const char *kinds;    /* another name of layer_types, whose length is the number of layers */
    const char *pattern;  /* likewise, a text with a letter for each layer; NULL: none */
    uint32_t shape;       /* MHA_MODEL_SHAPE_... */
    /* Reads the number of key/value heads of a family that is not grouped; NULL: each head has its
     * own. */
    mha_status (*read_kv)(const mhai_config *config, int64_t heads, int64_t *kv_heads);
    const char *bias_key;   /* the field that sets the biases; NULL: shape sets them */
    bool biases_qkv;        /* whether only q, k and v have biases */
    int64_t usual_head_dim; /* the default of head_dim; 0: the width divided by the heads */
    bool grouped;           /* num_key_value_heads, head_dim and sliding_window are read */
    bool latent; /* latent attention: head_dim follows from the sizes of a head's parts */

    /* Describe the transformer. */
    bool llama;   /* mhai_family_read() describes a Llama before read(), and its rotation after */
    bool whole;   /* num_key_value_heads is required: its default in transformers is not one per
                     * head */
    bool own_act; /* read() reads the activation; otherwise it is SiLU, gated */
    const char *act, *act_key;  /* the default of an activation without a gate, and its name; NULL:
                                 * hidden_act */
    const char *norm_key;       /* the epsilon of layer norms, "": 1e-5; NULL: RMS norms */
    const char *ff_bias_key;    /* the field that sets biases of feed-forward layers, whose default
                                 * is in flags; NULL: none */
    uint32_t flags;             /* of mha_transformer_desc, besides those of attention's biases */
    uint32_t layer_flags;       /* of each mha_layer_desc */
    const char *const *refused; /* fields that must be unset, ended by NULL; NULL: none */
    double epsilon;             /* the default of that of norms; 0: 1e-5, for RMS norms 1e-6 */
    const char *layers;         /* before a layer's number */
    bool shared;                /* all layers have the same weights; `layers` has no number */
    const char *prefix;      /* optional prefix of all names in other programs' files; "": none */
    const char *text_prefix; /* other prefix; NULL: none */
    bool text_part;          /* names may have the prefixes of a multimodal model's text part, and
                              * weights of its other parts are ignored */
    const mhai_weight_name *names; /* ends with an entry whose name is NULL; missing entries have
                                    * this library's names */
    const char *inner;             /* a name that overrides intermediate_size; NULL: none */
    bool wide;                     /* the default of intermediate_size is 4 times the width */
    const mhai_rope_kind *rope;    /* NULL: the usual names, 1e4, whole heads */
    const mhai_rope_kind *ropes;   /* NULL, or two in its place, with an object for each type of
                                    * layers in rope_parameters: without a window and with one */
    bool fixed_rope;               /* read() describes the rotation */
    bool partial;  /* only part of each head may rotate; elsewhere transformers ignores the
                     * setting */
    bool even;     /* likewise; transformers rotates odd numbers of elements wrongly, or fails */
    bool mxfp4;    /* experts may be in blocks of MXFP4, as quantization_config then says */
    bool lengths;  /* the rotation may depend on the length of a text (longrope), as in Phi 3 */
    bool longrope; /* likewise, but its border is max_position_embeddings by default */
    bool proportional; /* likewise, rope_type may be proportional, as in Gemma 4 */
    bool own_layers;   /* read() reads per_layer_config */
    bool both_ways;    /* read() reads use_bidirectional_attention */
    bool may_tie;      /* whether the output is the token table depends on the weights */
    bool tied;         /* the output is the token table unless config.json says otherwise */
    bool old_norms;    /* files may call a norm's weight and bias gamma and beta */
    bool (*fits)(const mha_transformer_desc *desc);                /* a transformer can be saved as
                                                                    * this family */
    bool (*write)(const mha_transformer_desc *desc, json_t *root); /* false: no memory */
    mha_status (*read)(const mhai_config *config, mhai_family_plan *plan); /* NULL: nothing else */
    /* Whether a weight is ignored. NULL: ignore all weights outside layers, such as poolers and
     * output layers. */
    bool (*ignores)(const mhai_family_plan *plan, const char *name);
} mhai_family;

/* A transformer is saved as the first family that can describe it. The last family can describe
 * every transformer. */
/* clang-format off */
#define MHAI_FAMILY_LIST(X)                                                                       \
    X(bert) X(roberta) X(electra) X(distilbert) X(xlm_roberta) X(albert) X(mpnet) X(modernbert)   \
    X(nomic_bert) X(nomic_bert_old) X(deberta) X(deberta_v2) X(gpt2) X(gpt_bigcode) X(gpt_neo)    \
    X(gptj) X(phi) X(opt) X(biogpt) X(bloom) X(mpt) X(falcon) X(gpt_neox) X(llama) X(mistral)     \
    X(mixtral) X(qwen2) X(qwen2_moe) X(qwen3) X(gemma) X(gemma2) X(gemma3) X(phi3) X(qwen3_next)  \
    X(qwen3_5) X(qwen3_5_whole) X(lfm2) X(qwen3_moe) X(qwen3_5_moe) X(qwen3_5_moe_whole) X(olmoe) \
    X(lfm2_moe) X(smollm3) X(stablelm) X(glm) X(glm4) X(glm4_moe) X(dots1) X(minimax_m2)          \
    X(ernie4_5_moe) X(arcee) X(seed_oss) X(internlm3) X(helium) X(ernie4_5) X(cwm) X(nemotron)    \
    X(jais2) X(starcoder2) X(olmo) X(exaone4) X(granite_swa) X(olmo2) X(olmo3) X(olmo_hybrid)     \
    X(bamba) X(granitemoehybrid) X(granite) X(granitemoe) X(granitemoeshared) X(mamba2)           \
    X(nemotron_h) X(cohere) X(cohere2) X(gemma4) X(gemma4_whole) X(gemma4_unified)                \
    X(gemma4_unified_whole) X(bart) X(marian) X(t5) X(mt5) X(whisper) X(gemma3_whole)             \
    X(ministral) X(ministral3) X(mistral3) X(mistral3_later) X(qwen2_vl) X(qwen2_vl_text)         \
    X(qwen2_5_vl) X(qwen2_5_vl_text) X(qwen3_vl) X(qwen3_vl_text) X(gpt_oss) X(deepseek_v2)       \
    X(deepseek_v3) X(glm4_moe_lite) X(minicpm3) X(youtu) X(kimi_linear) X(vit) X(dinov2)          \
    X(dinov2_with_registers) X(clip_vision_model) X(clip_text_model) X(clip_images) X(clip)       \
    X(siglip_vision_model) X(siglip_images) X(dinov3_vit) X(multihead)
/* clang-format on */
#define MHAI_FAMILY_EXTERN(name) extern const mhai_family mhai_family_##name;
MHAI_FAMILY_LIST(MHAI_FAMILY_EXTERN)

/* Find the family that config.json names. images: of a model of several parts, prefer the one that
 * reads images. */
MHA_NODISCARD mha_status mhai_family_find(const mhai_config *config, bool images,
                                          const mhai_family **family);

/* For a multimodal model, continue with its text_config or vision_config. Reject fields of the top
 * level that affect the text and differ from text_config. */
MHA_NODISCARD mha_status mhai_family_enter(const mhai_family *family, mhai_config *config);

/* Read config.json with this family (decoder.c). */
MHA_NODISCARD mha_status mhai_family_read(const mhai_family *family, const mhai_config *config,
                                          mhai_family_plan *plan);

/* The family that a transformer is saved as; never NULL. */
const mhai_family *mhai_family_of(const mha_transformer_desc *desc);

bool mhai_family_ignores(const mhai_family *family, const mhai_family_plan *plan, const char *name);

/* Find the next row of the table of names for a parameter, after the row `last` (NULL: from the
 * beginning). Returns NULL if there is none; our own name then applies. */
const mhai_weight_name *mhai_family_next_name(const mhai_family *family, const char *ours,
                                              const mhai_weight_name *last,
                                              char theirs[MHAI_WEIGHT_NAME]);
static inline const mhai_weight_name *mhai_family_name(const mhai_family *family, const char *ours,
                                                       char theirs[MHAI_WEIGHT_NAME])
{
    return mhai_family_next_name(family, ours, NULL, theirs);
}

/* Shared by vision transformers (vision.c): their defaults. */
typedef struct mhai_vision {
    int64_t patch, usual_registers;
    bool cls, registers;     /* has CLS; num_register_tokens is read */
    bool own_inner, own_act; /* intermediate_size, hidden_act are not read */
    const char *act;
    double epsilon;
    mhai_sizes sizes;
    mhai_filter filter;
    bool edges;               /* mhai_processor.edges */
    const double *mean, *std; /* NULL: 0.5 */
} mhai_vision;
extern const mhai_shape_keys mhai_vision_keys;
extern const double mhai_imagenet_mean[3], mhai_imagenet_std[3], mhai_clip_mean[3],
    mhai_clip_std[3];
MHA_NODISCARD mha_status mhai_read_vision(const mhai_config *config, const mhai_vision *vision,
                                          mhai_family_plan *plan);

/* Read an activation without a gate. */
MHA_NODISCARD mha_status mhai_read_activation(const mhai_config *config, const char *key,
                                              const char *usual, mha_feed_forward *kind);

/* ViT's names of q, k and v. */
#define MHAI_VIT_NAMES                                            \
    MHAI_NAME("self_attn.q_proj", "attention.attention.query"),   \
        MHAI_NAME("self_attn.k_proj", "attention.attention.key"), \
        MHAI_NAME("self_attn.v_proj", "attention.attention.value")

/* Shared by bert.c and its relatives: describe an encoder of BERT's kind. */
extern const mhai_weight_name mhai_bert_names[];
MHA_NODISCARD mha_status mhai_bert_read(const mhai_config *config, mhai_family_plan *plan);
void mhai_bert_describe(mha_feed_forward activation, mha_transformer_desc *d);

/* Shared by DeBERTa 1 to 3 (deberta.c), without logarithmic buckets. */
#define MHAI_DEBERTA_NAMES                                              \
    MHAI_NAME("embed_tokens", "embeddings.word_embeddings"),            \
        MHAI_NAME("embed_positions", "embeddings.position_embeddings"), \
        MHAI_NAME("embed_types", "embeddings.token_type_embeddings"),   \
        MHAI_NAME("embed_norm", "embeddings.LayerNorm"),                \
        MHAI_NAME("embed_relative", "encoder.rel_embeddings"),          \
        MHAI_NAME("relative_norm", "encoder.LayerNorm"),                \
        MHAI_NAME("self_attn.o_proj", "attention.output.dense"),        \
        MHAI_NAME("self_attn_norm", "attention.output.LayerNorm"),      \
        MHAI_NAME("mlp.up_proj", "intermediate.dense"),                 \
        MHAI_NAME("mlp.down_proj", "output.dense"), MHAI_NAME("mlp_norm", "output.LayerNorm")
#define MHAI_DEBERTA_FILES(type)                                                              \
    .model_type = type, .keys = &mhai_usual_keys,                                             \
    .shape = MHA_MODEL_SHAPE_QKV_BIAS | MHA_MODEL_SHAPE_OUT_BIAS, .layers = "encoder.layer.", \
    .prefix = "deberta.", .names = names, .old_norms = true
MHA_NODISCARD mha_status mhai_read_deberta(const mhai_config *config, mhai_family_plan *plan);

/* Begin positions after that of the padding token, which all padding has. */
MHA_NODISCARD mha_status mhai_skip_padding(const mhai_config *config, int64_t padding,
                                           mhai_family_plan *plan);

/* Shared by BART and Whisper (bart.c): names in a layer, and those of cross-attention. The function
 * reads the sizes of the decoder and tie_word_embeddings. */
#define MHAI_BART_LAYER_NAMES                                                                 \
    MHAI_NAME("self_attn.o_proj", "self_attn.out_proj"),                                      \
        MHAI_NAME("self_attn_norm", "self_attn_layer_norm"), MHAI_NAME("mlp.up_proj", "fc1"), \
        MHAI_NAME("mlp.down_proj", "fc2"), MHAI_NAME("mlp_norm", "final_layer_norm")
#define MHAI_BART_CROSS_NAMES                                    \
    MHAI_NAME("cross_attn.q_proj", "encoder_attn.q_proj"),       \
        MHAI_NAME("cross_attn.k_proj", "encoder_attn.k_proj"),   \
        MHAI_NAME("cross_attn.v_proj", "encoder_attn.v_proj"),   \
        MHAI_NAME("cross_attn.o_proj", "encoder_attn.out_proj"), \
        MHAI_NAME("cross_attn_norm", "encoder_attn_layer_norm")
MHA_NODISCARD mha_status mhai_bart_read_decoder(const mhai_config *config, mha_transformer_desc *d);

/* Write the fields that have the same names in llama and bert. */
bool mhai_write_sizes(const mha_transformer_desc *d, json_t *root);

/* A family's name of a size, or the usual name if that alone is present. */
const char *mhai_size_key(const mhai_config *config, const char *own, const char *usual);

/* Read the number of layers: that of the list of kinds or of the pattern, if there is one. */
MHA_NODISCARD mha_status mhai_read_layer_count(const mhai_config *config, const mhai_family *family,
                                               int64_t *count);

/* Read the sizes of a transformer by a family's names. */
MHA_NODISCARD mha_status mhai_read_sizes(const mhai_config *config, const mhai_family *family,
                                         const char *inner, mha_transformer_desc *d);

/* Read layer_heads and layer_kv_heads of this library's folders and of GGUF files. */
MHA_NODISCARD mha_status mhai_read_heads(const mhai_config *config, mhai_family_plan *plan);

/* Shared by GPT-2, GPT-J and their relatives. */
#define MHAI_GPT_NAMES                                                      \
    MHAI_NAME("embed_tokens", "wte"), MHAI_NAME("embed_positions", "wpe"),  \
        MHAI_NAME("self_attn_norm", "ln_1"), MHAI_NAME("mlp_norm", "ln_2"), \
        MHAI_NAME("norm", "ln_f")
#define MHAI_GPT_LINEAR(o_proj, form)                                                  \
    {"self_attn.o_proj", (o_proj), (form), 0}, {"mlp.up_proj", "mlp.c_fc", (form), 0}, \
    {                                                                                  \
        "mlp.down_proj", "mlp.c_proj", (form), 0                                       \
    }
#define MHAI_GPT_FILES(keys_, names_, biases, flags_)                                            \
    .llama = true, .keys = (keys_), .shape = MHA_MODEL_SHAPE_CAUSAL | (biases), .layers = "h.",  \
    .prefix = "transformer.", .names = (names_), .wide = true, .norm_key = "layer_norm_epsilon", \
    .act_key = "activation_function", .flags = MHA_TRANSFORMER_FF_BIAS | (flags_),               \
    .ignores = mhai_decoder_ignores

/* Set the scale of all scores to 1. */
MHA_NODISCARD mha_status mhai_leave_unscaled(mhai_family_plan *plan);

/* Shared by decoders (decoder.c). Llama's names of weights: */
#define MHAI_LLAMA_NAMES                            \
    MHAI_NAME("self_attn_norm", "input_layernorm"), \
        MHAI_NAME("mlp_norm", "post_attention_layernorm")

/* Entries of a family whose files have Llama's layout. biases: those it always has. */
#define MHAI_LLAMA_FILES(names_, biases)                                                 \
    .llama = true, .keys = &mhai_usual_keys, .shape = MHA_MODEL_SHAPE_CAUSAL | (biases), \
    .grouped = true, .layers = "layers.", .prefix = "model.", .names = names_,           \
    .ignores = mhai_decoder_ignores
extern const mhai_weight_name mhai_llama_names[]; /* MHAI_LLAMA_NAMES alone */

/* Falcon's and BLOOM's names in a layer, beside those of its norms. */
#define MHAI_FALCON_NAMES                                                            \
    {"self_attn.q_proj", "self_attention.query_key_value", MHAI_FUSED_HEADS, 0},     \
        {"self_attn.k_proj", "self_attention.query_key_value", MHAI_FUSED_HEADS, 1}, \
        {"self_attn.v_proj", "self_attention.query_key_value", MHAI_FUSED_HEADS, 2}, \
        MHAI_NAME("self_attn.o_proj", "self_attention.dense"),                       \
        MHAI_NAME("mlp.up_proj", "mlp.dense_h_to_4h"),                               \
        MHAI_NAME("mlp.down_proj", "mlp.dense_4h_to_h"), MHAI_NAME("norm", "ln_f")

/* Likewise if the folder may be that of a multimodal model. */
#define MHAI_TEXT_FILES(names_, biases) MHAI_LLAMA_FILES(names_, biases), .text_part = true

/* Require SiLU. */
MHA_NODISCARD mha_status mhai_read_silu(const mhai_config *config);

/* Shared by Qwen and Qwen-VL (qwen.c). last: the default of max_window_layers. */
MHA_NODISCARD mha_status mhai_read_qwen(const mhai_config *config, int64_t last,
                                        mhai_family_plan *plan);
MHA_NODISCARD mha_status mhai_read_qwen3(const mhai_config *config, mhai_family_plan *plan);

/* Read a boolean field that sets flags of mha_transformer_desc. */
MHA_NODISCARD mha_status mhai_read_flag(const mhai_config *config, const char *key, bool usual,
                                        uint32_t flags, mhai_family_plan *plan);
MHA_NODISCARD mha_status mhai_read_attention_bias(const mhai_config *config,
                                                  mhai_family_plan *plan);

/* Require head_dim, if present, to be the width divided by the heads, for families in which
 * transformers partly ignores it. */
MHA_NODISCARD mha_status mhai_check_head_dim(const mhai_config *config,
                                             const mha_transformer_desc *d);

/* Reject a config.json without a rotation, for families whose default is scaled. */
MHA_NODISCARD mha_status mhai_require_rope(const mhai_config *config);

extern const mhai_rope_kind mhai_half_rope; /* the usual names; half of each head rotates */

/* Read a number of the rotation from rope_scaling or rope_parameters. mhai_read_rope() rejects
 * values that differ. */
MHA_NODISCARD mha_status mhai_rope_number(const mhai_config *config, const char *key,
                                          double fallback, double *value);

/* Read the rotation from config.json into every layer that rotates. */
MHA_NODISCARD mha_status mhai_read_rope(const mhai_config *config, mhai_family_plan *plan);

static inline bool mhai_slides(const mhai_family_plan *plan, int64_t layer)
{
    return plan->layers[layer].flags & MHA_LAYER_WINDOW;
}

/* Read two rotations, for layers without a window and with one. */
MHA_NODISCARD mha_status mhai_read_ropes(const mhai_config *config, const mhai_rope_kind kinds[2],
                                         mhai_family_plan *plan);

/* Read the sizes and numbers of heads of layers with and without a window or, as transformers saves
 * them, of each layer. Call it after the windows are read (layers.c). */
MHA_NODISCARD mha_status mhai_read_kinds_of_heads(const mhai_config *config,
                                                  mhai_family_plan *plan);

/* Let the last num_kv_shared_layers layers use the keys and values of the last layer before them of the
 * same kind. */
MHA_NODISCARD mha_status mhai_share_keys(const mhai_config *config, mhai_family_plan *plan);

/* Copy the rotation fields of mha_layer_desc from one layer to another. */
void mhai_set_rotation(mha_layer_desc *layer, const mha_layer_desc *rope);

/* Read the windows of layers. Layers with a window are those that layer_types names
 * sliding_attention; without that list, layers from `first` on whose number plus 1 is not a
 * multiple of `period` (0: all layers from `first` on). usual: the window if sliding_window is
 * absent; null means no window. */
MHA_NODISCARD mha_status mhai_read_windows(const mhai_config *config, int64_t usual, int64_t first,
                                           int64_t period, mhai_family_plan *plan);

/* The kinds of layers of a family that has attention and another mixer (hybrid.c); those of
 * MHAI_FEEDS are feed-forward layers alone. */
enum { MHAI_ATTENDS, MHAI_MIXES, MHAI_FEEDS, MHAI_KINDS };

/* layer_types names the kind of each layer; without that list, `usual` chooses it, or every layer
 * has the mixer if that is NULL. `attention` omits its epsilon. */
typedef struct mhai_mixing {
    const char *types[MHAI_KINDS][3]; /* in layer_types; NULL ends the names of a kind */
    mha_status (*usual)(const mhai_config *config, int64_t layer, int *kind);
    mha_layer_desc mixer, attention;
    int64_t heads, kv_heads;
    const char *list; /* another name of layer_types; NULL: none */
} mhai_mixing;
MHA_NODISCARD mha_status mhai_read_mixing(const mhai_config *config, const mhai_mixing *mixing,
                                          mhai_family_plan *plan);

/* A family's fields of Mamba-2 layers; NULL: it has none of that name. */
typedef struct mhai_space_keys {
    const char *heads, *groups, *state, *kernel, *size;
    const char *expand; /* heads * size is this number times the width */
    const char *conv_bias, *proj_bias;
    const char *limit;                             /* of steps */
    int64_t usual_groups, usual_state, usual_size; /* usual_size 0: the quotient */
} mhai_space_keys;

/* The same for Mamba-2 as the mixer. The caller sets `usual`, `list`, `attention` and the mixer's
 * flags of *mixing. */
MHA_NODISCARD mha_status mhai_read_state_spaces(const mhai_config *config,
                                                const mhai_space_keys *keys, mhai_mixing *mixing,
                                                mhai_family_plan *plan);

/* The names of Bamba and Granite. */
extern const mhai_space_keys mhai_mamba_keys;

/* transformers' names of the weights of such layers, after the name of a mixer. */
#define MHAI_STATE_SPACE_NAMES(mixer)                                             \
    {"state_space.g_proj", mixer ".in_proj", MHAI_FUSED, 0},                      \
        {"state_space.v_proj", mixer ".in_proj", MHAI_FUSED, 1},                  \
        {"state_space.k_proj", mixer ".in_proj", MHAI_FUSED, 2},                  \
        {"state_space.q_proj", mixer ".in_proj", MHAI_FUSED, 3},                  \
        {"state_space.a_proj", mixer ".in_proj", MHAI_FUSED, 4},                  \
        {"state_space.conv.weight", mixer ".conv1d.weight", MHAI_CONVOLUTION, 0}, \
        MHAI_NAME("state_space.conv", mixer ".conv1d"),                           \
        MHAI_NAME("state_space.o_norm", mixer ".norm"),                           \
        MHAI_NAME("state_space.o_proj", mixer ".out_proj"),                       \
        MHAI_NAME("state_space", mixer) /* A_log, dt_bias and D */

/* Read a softcap, which null turns off. usual: that of an absent field; 0: none. */
MHA_NODISCARD mha_status mhai_read_softcap(const mhai_config *config, const char *key, float usual,
                                           float *softcap);

/* Read Granite's multipliers of embeddings, residuals, scores and logits. Call it after the layers
 * are described. */
MHA_NODISCARD mha_status mhai_read_multipliers(const mhai_config *config, mhai_family_plan *plan);

/* Read `count` numbers above 0 from a list in config.json. */
MHA_NODISCARD mha_status mhai_read_factors(const mhai_config *config, const char *key,
                                           int64_t count, float *factors);

/* Whether a list of layers in config.json, which may be absent, names a layer. */
MHA_NODISCARD mha_status mhai_config_lists(const mhai_config *config, const char *key,
                                           int64_t layer, bool *listed);

/* The fields of routed experts in config.json (experts.c). NULL: the family has no such field. */
typedef struct mhai_experts_kind {
    const char *count, *alias; /* the number of experts, and another name for it */
    const char *used;          /* the number that each token uses; NULL: num_experts_per_tok */
    const char *inner;         /* the width of an expert; NULL: that of dense layers */
    const char *shared;        /* the width of the shared expert */
    const char *shared_count;  /* likewise, as a multiple of the width of an expert */
    const char *groups, *groups_used;
    const char *normalises; /* whether weights are divided by their sum */
    const char *scale;
    const char *first; /* the number of dense layers before them */
    const char *types; /* instead, the list of the kinds of layers, dense or sparse */
    float sum_epsilon;
    uint32_t flags; /* flags of mha_experts_desc */
    bool usual;     /* the default of `normalises` */
    bool may_lack;  /* the number of experts may be 0 */
    int64_t usual_first;
    bool steps; /* decoder_sparse_step and mlp_only_layers are read */
} mhai_experts_kind;

/* Read the experts into all layers that have some. Call it after the layers' mixers are read. */
MHA_NODISCARD mha_status mhai_read_experts(const mhai_config *config, const mhai_experts_kind *kind,
                                           mhai_family_plan *plan);

/* Names of experts in folders: each in its own tensors with our names, or in tables of all. */
#define MHAI_EXPERT_NAMES                                                                    \
    MHAI_NAME("mlp.router", "mlp.gate"),                                                     \
        {"mlp.experts.*.gate_proj.weight", "mlp.experts.gate_up_proj", MHAI_EXPERT_PAIR, 0}, \
        {"mlp.experts.*.up_proj.weight", "mlp.experts.gate_up_proj", MHAI_EXPERT_PAIR, 1},   \
    {                                                                                        \
        "mlp.experts.*.down_proj.weight", "mlp.experts.down_proj", MHAI_EXPERT, 0            \
    }

/* Granite's names of experts, of the one that every token uses (or of a dense layer, in hybrids
 * without others), and in old files. */
#define MHAI_GRANITE_EXPERT_NAMES                                                                 \
    MHAI_NAME("mlp.router", "block_sparse_moe.router"),                                           \
        MHAI_NAME("mlp.router", "block_sparse_moe.router.layer"),                                 \
        {"mlp.experts.*.gate_proj.weight", "block_sparse_moe.experts.gate_up_proj",               \
         MHAI_EXPERT_PAIR, 0},                                                                    \
        {"mlp.experts.*.up_proj.weight", "block_sparse_moe.experts.gate_up_proj",                 \
         MHAI_EXPERT_PAIR, 1},                                                                    \
        {"mlp.experts.*.down_proj.weight", "block_sparse_moe.experts.down_proj", MHAI_EXPERT, 0}, \
        {"mlp.experts.*.gate_proj", "block_sparse_moe.input_linear", MHAI_EXPERT_PAIR, 0},        \
        {"mlp.experts.*.up_proj", "block_sparse_moe.input_linear", MHAI_EXPERT_PAIR, 1},          \
        {"mlp.experts.*.down_proj", "block_sparse_moe.output_linear", MHAI_EXPERT, 0},            \
        {"mlp.shared_expert.gate_proj", "shared_mlp.input_linear", MHAI_FUSED, 0},                \
        {"mlp.shared_expert.up_proj", "shared_mlp.input_linear", MHAI_FUSED, 1},                  \
        MHAI_NAME("mlp.shared_expert.down_proj", "shared_mlp.output_linear"),                     \
        {"mlp.gate_proj", "shared_mlp.input_linear", MHAI_FUSED, 0},                              \
        {"mlp.up_proj", "shared_mlp.input_linear", MHAI_FUSED, 1},                                \
        MHAI_NAME("mlp.down_proj", "shared_mlp.output_linear")

/* Read Granite's experts into all layers. may_lack: their number may be 0; shared: the width of the
 * expert that every token uses. */
MHA_NODISCARD mha_status mhai_read_granite_experts(const mhai_config *config, bool may_lack,
                                                   int64_t shared, mhai_family_plan *plan);

/* Shared by families with latent attention (latent.c). mhai_read_latent() describes the attention of
 * all layers. value_dim: the default of v_head_dim; 0: it is required. */
#define MHAI_LATENT_NAMES                                                           \
    MHAI_LLAMA_NAMES, {"self_attn.q_proj", "self_attn.q_proj", MHAI_LAST_FIRST, 0}, \
        {"self_attn.q_b_proj", "self_attn.q_b_proj", MHAI_LAST_FIRST, 0},           \
        MHAI_NAME("self_attn.q_a_norm", "self_attn.q_a_layernorm"),                 \
        MHAI_NAME("self_attn.kv_a_proj", "self_attn.kv_a_proj_with_mqa"),           \
        MHAI_NAME("self_attn.kv_a_norm", "self_attn.kv_a_layernorm"),               \
        {"self_attn.k_b_proj", "self_attn.kv_b_proj", MHAI_FUSED_HEADS, 0},         \
    {                                                                               \
        "self_attn.v_b_proj", "self_attn.kv_b_proj", MHAI_FUSED_HEADS, 1            \
    }
#define MHAI_SHARED_EXPERT_NAMES                                                        \
    MHAI_EXPERT_NAMES, MHAI_NAME("mlp.score_bias", "mlp.gate.e_score_correction_bias"), \
        MHAI_NAME("mlp.shared_expert.gate_proj", "mlp.shared_experts.gate_proj"),       \
        MHAI_NAME("mlp.shared_expert.up_proj", "mlp.shared_experts.up_proj"),           \
        MHAI_NAME("mlp.shared_expert.down_proj", "mlp.shared_experts.down_proj")
#define MHAI_DEEPSEEK_NAMES MHAI_LATENT_NAMES, MHAI_SHARED_EXPERT_NAMES
#define MHAI_LATENT_FILES(names_)                                                              \
    .llama = true, .keys = &mhai_usual_keys, .shape = MHA_MODEL_SHAPE_CAUSAL, .grouped = true, \
    .latent = true, .layers = "layers.", .prefix = "model.", .names = names_,                  \
    .ignores = mhai_latent_ignores
MHA_NODISCARD mha_status mhai_read_latent(const mhai_config *config, int64_t value_dim,
                                          mhai_family_plan *plan);
bool mhai_latent_ignores(const mhai_family_plan *plan, const char *name);

/* Shared by Qwen3-Next and Qwen 3.5 (delta_net.c), whose attention and nets are equal. The last
 * name is that of A_log and dt_bias. */
#define MHAI_DELTA_NAMES                                                                         \
    {"norm", "norm", MHAI_PLUS_ONE, 0}, {"self_attn_norm", "input_layernorm", MHAI_PLUS_ONE, 0}, \
        {"mlp_norm", "post_attention_layernorm", MHAI_PLUS_ONE, 0},                              \
        {"self_attn.q_norm", "self_attn.q_norm", MHAI_PLUS_ONE, 0},                              \
        {"self_attn.k_norm", "self_attn.k_norm", MHAI_PLUS_ONE, 0},                              \
        {"self_attn.q_proj", "self_attn.q_proj", MHAI_FUSED_GATE, 0},                            \
        {"self_attn.g_proj", "self_attn.q_proj", MHAI_FUSED_GATE, 1},                            \
        {"delta_net.conv", "linear_attn.conv1d", MHAI_CONVOLUTION, 0},                           \
        MHAI_NAME("delta_net.o_norm", "linear_attn.norm"),                                       \
        MHAI_NAME("delta_net.o_proj", "linear_attn.out_proj"),                                   \
        MHAI_NAME("delta_net", "linear_attn")
#define MHAI_DELTA_FILES(names_)                                             \
    MHAI_TEXT_FILES(names_, 0), .whole = true, .bias_key = "attention_bias", \
                                .usual_head_dim = 256, .rope = &mhai_delta_rope, .partial = true
extern const mhai_rope_kind mhai_delta_rope;
MHA_NODISCARD mha_status mhai_read_delta(const mhai_config *config, mhai_family_plan *plan);

/* Shared by LFM2 and LFM2-MoE (lfm2.c): everything but the feed-forward layers and the rotation. */
#define MHAI_LFM2_NAMES                                                                         \
    MHAI_NAME("norm", "embedding_norm"), MHAI_NAME("self_attn_norm", "operator_norm"),          \
        MHAI_NAME("mlp_norm", "ffn_norm"), MHAI_NAME("self_attn.o_proj", "self_attn.out_proj"), \
        MHAI_NAME("self_attn.q_norm", "self_attn.q_layernorm"),                                 \
        MHAI_NAME("self_attn.k_norm", "self_attn.k_layernorm"),                                 \
        {"short_conv.b_proj", "conv.in_proj", MHAI_FUSED, 0},                                   \
        {"short_conv.c_proj", "conv.in_proj", MHAI_FUSED, 1},                                   \
        {"short_conv.x_proj", "conv.in_proj", MHAI_FUSED, 2},                                   \
        {"short_conv.conv", "conv.conv", MHAI_CONVOLUTION, 0},                                  \
        MHAI_NAME("short_conv.o_proj", "conv.out_proj"),                                        \
        MHAI_NAME("mlp.gate_proj", "feed_forward.w1"),                                          \
        MHAI_NAME("mlp.up_proj", "feed_forward.w3"), MHAI_NAME("mlp.down_proj", "feed_forward.w2")
extern const mhai_rope_kind mhai_lfm2_rope;
MHA_NODISCARD mha_status mhai_read_lfm2(const mhai_config *config, mhai_family_plan *plan);

/* Return plan->layers, allocated if necessary. */
MHA_NODISCARD mha_status mhai_plan_layers(mhai_family_plan *plan);

/* Set flags of every layer. */
MHA_NODISCARD mha_status mhai_flag_layers(mhai_family_plan *plan, uint32_t flags);

/* Whether a weight is a table that old files store beside the weights, or of keys or values of a layer
 * that uses those of an earlier one. */
bool mhai_decoder_ignores(const mhai_family_plan *plan, const char *name);

/* Whether all layers are equal, plain and sequential, as llama and bert require. */
bool mhai_desc_is_usual(const mha_transformer_desc *d);

/* Whether weights of this form are in no file. */
static inline bool mhai_form_is_made(mhai_weight_form form)
{
    return form >= MHAI_ZEROS && form <= MHAI_SLOPES;
}

static inline bool mhai_desc_has(const mha_transformer_desc *d, uint32_t flag)
{
    return (d->flags & flag) != 0;
}

#endif
