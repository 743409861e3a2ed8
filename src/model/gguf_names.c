/* See gguf_names.h. The names are those of llama.cpp's converters. */
#include "model/gguf_names.h"

#define COMMON                                                                                     \
    MHAI_NAME("embed_tokens", "token_embd"), MHAI_NAME("embed_types", "token_types"),              \
        MHAI_NAME("embed_norm", "token_embd_norm"), MHAI_NAME("embed_positions", "position_embd"), \
        MHAI_NAME("norm", "output_norm"), MHAI_NAME("lm_head", "output"),                          \
        MHAI_NAME("self_attn_norm", "attn_norm"),                                                  \
        MHAI_NAME("self_attn_post_norm", "post_attention_norm"),                                   \
        MHAI_NAME("mlp_norm", "ffn_norm"), MHAI_NAME("mlp_post_norm", "post_ffw_norm"),            \
        MHAI_NAME("self_attn.o_proj", "attn_output"),                                              \
        MHAI_NAME("self_attn.q_norm", "attn_q_norm"),                                              \
        MHAI_NAME("self_attn.k_norm", "attn_k_norm"), MHAI_NAME("mlp.down_proj", "ffn_down")
#define GATED MHAI_NAME("mlp.gate_proj", "ffn_gate"), MHAI_NAME("mlp.up_proj", "ffn_up")
#define EXPERTS                                                                               \
    MHAI_NAME("mlp.router", "ffn_gate_inp"), MHAI_NAME("mlp.score_bias", "exp_probs_b.bias"), \
        MHAI_NAME("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),                            \
        MHAI_NAME("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),                           \
        MHAI_NAME("mlp.shared_expert.up_proj", "ffn_up_shexp"),                               \
        MHAI_NAME("mlp.shared_expert.down_proj", "ffn_down_shexp"),                           \
        {"mlp.experts.*.gate_proj", "ffn_gate_exps", MHAI_EXPERT, 0},                         \
        {"mlp.experts.*.up_proj", "ffn_up_exps", MHAI_EXPERT, 0},                             \
        {"mlp.experts.*.gate_proj", "ffn_gate_up_exps", MHAI_EXPERT_PAIR, 0},                 \
        {"mlp.experts.*.up_proj", "ffn_gate_up_exps", MHAI_EXPERT_PAIR, 1},                   \
    {                                                                                         \
        "mlp.experts.*.down_proj", "ffn_down_exps", MHAI_EXPERT, 0                            \
    }
#define QKV                                                                           \
    MHAI_NAME("self_attn.q_proj", "attn_q"), MHAI_NAME("self_attn.k_proj", "attn_k"), \
        MHAI_NAME("self_attn.v_proj", "attn_v")
/* Some files store rotated pairs next to each other. */
#define PAIRED_QKV                                           \
    {"self_attn.q_proj", "attn_q", MHAI_PAIRED_ROWS, 0},     \
        {"self_attn.k_proj", "attn_k", MHAI_PAIRED_ROWS, 0}, \
        MHAI_NAME("self_attn.v_proj", "attn_v")
#define FUSED                                            \
    {"self_attn.q_proj", "attn_qkv", MHAI_FUSED, 0},     \
        {"self_attn.k_proj", "attn_qkv", MHAI_FUSED, 1}, \
    {                                                    \
        "self_attn.v_proj", "attn_qkv", MHAI_FUSED, 2    \
    }
#define END MHAI_NAME(NULL, NULL)

const mhai_weight_name mhai_gguf_plain_names[] = {COMMON, EXPERTS, GATED, QKV, END};
const mhai_weight_name mhai_gguf_llama_names[] = {COMMON, EXPERTS, GATED, PAIRED_QKV, END};
/* These files call the last norm a norm of embeddings. */
const mhai_weight_name mhai_gguf_lfm2_names[] = {
    MHAI_NAME("norm", "token_embd_norm"),
    COMMON,
    EXPERTS,
    GATED,
    QKV,
    {"short_conv.b_proj", "shortconv.in_proj", MHAI_FUSED, 0},
    {"short_conv.c_proj", "shortconv.in_proj", MHAI_FUSED, 1},
    {"short_conv.x_proj", "shortconv.in_proj", MHAI_FUSED, 2},
    MHAI_NAME("short_conv.conv", "shortconv.conv"),
    MHAI_NAME("short_conv.o_proj", "shortconv.out_proj"),
    END};
#define DELTA_NET                                                                              \
    MHAI_NAME("mlp_norm", "post_attention_norm"), COMMON, GATED, EXPERTS,                      \
        {"self_attn.q_proj", "attn_q", MHAI_FUSED_GATE, 0},                                    \
        {"self_attn.g_proj", "attn_q", MHAI_FUSED_GATE, 1},                                    \
        MHAI_NAME("self_attn.k_proj", "attn_k"), MHAI_NAME("self_attn.v_proj", "attn_v"),      \
        {"delta_net.q_proj", "attn_qkv", MHAI_FUSED, 0},                                       \
        {"delta_net.k_proj", "attn_qkv", MHAI_FUSED, 1},                                       \
        {"delta_net.v_proj", "attn_qkv", MHAI_FUSED, 2},                                       \
        MHAI_NAME("delta_net.g_proj", "attn_gate"), MHAI_NAME("delta_net.conv", "ssm_conv1d"), \
        MHAI_NAME("delta_net.o_norm", "ssm_norm"), MHAI_NAME("delta_net.o_proj", "ssm_out"),   \
        {"delta_net.A_log", "ssm_a", MHAI_MINUS_EXP, 0},                                       \
        MHAI_NAME("delta_net.dt_bias", "ssm_dt.bias")
const mhai_weight_name mhai_gguf_qwen35_names[] = {DELTA_NET,
                                                   MHAI_NAME("delta_net.b_proj", "ssm_beta"),
                                                   MHAI_NAME("delta_net.a_proj", "ssm_alpha"), END};
/* Older files keep the projections of each key head together. */
const mhai_weight_name mhai_gguf_next_names[] = {
    DELTA_NET,
    {"delta_net.q_proj", "ssm_in", MHAI_FUSED_GROUPS, 0},
    {"delta_net.k_proj", "ssm_in", MHAI_FUSED_GROUPS, 1},
    {"delta_net.v_proj", "ssm_in", MHAI_FUSED_GROUPS, 2},
    {"delta_net.g_proj", "ssm_in", MHAI_FUSED_GROUPS, 3},
    {"delta_net.b_proj", "ssm_ba", MHAI_FUSED_GROUPS, 0},
    {"delta_net.a_proj", "ssm_ba", MHAI_FUSED_GROUPS, 1},
    END};
const mhai_weight_name mhai_gguf_gpt_oss_names[] = {
    MHAI_NAME("mlp_norm", "post_attention_norm"),      COMMON, EXPERTS, GATED, QKV,
    MHAI_NAME("self_attn.sinks", "attn_sinks.weight"), END};
/* Layers of Nemotron-H have one norm. */
const mhai_weight_name mhai_gguf_space_names[] = {COMMON,
                                                  MHAI_NAME("mlp_norm", "attn_norm"),
                                                  EXPERTS,
                                                  GATED,
                                                  PAIRED_QKV,
                                                  {"state_space.g_proj", "ssm_in", MHAI_FUSED, 0},
                                                  {"state_space.v_proj", "ssm_in", MHAI_FUSED, 1},
                                                  {"state_space.k_proj", "ssm_in", MHAI_FUSED, 2},
                                                  {"state_space.q_proj", "ssm_in", MHAI_FUSED, 3},
                                                  {"state_space.a_proj", "ssm_in", MHAI_FUSED, 4},
                                                  MHAI_NAME("state_space.conv", "ssm_conv1d"),
                                                  MHAI_NAME("state_space.o_norm", "ssm_norm"),
                                                  MHAI_NAME("state_space.o_proj", "ssm_out"),
                                                  {"state_space.A_log", "ssm_a", MHAI_MINUS_EXP, 0},
                                                  MHAI_NAME("state_space.D", "ssm_d"),
                                                  MHAI_NAME("state_space.dt_bias", "ssm_dt.bias"),
                                                  END};
const mhai_weight_name mhai_gguf_fused_names[] = {COMMON, GATED, FUSED, END};
const mhai_weight_name mhai_gguf_alibi_names[] = {
    COMMON, GATED, FUSED, {"self_attn.alibi_slopes", "", MHAI_SLOPES, 0}, END};
const mhai_weight_name mhai_gguf_falcon_names[] = {MHAI_NAME("self_attn_norm", "attn_norm_2"),
                                                   MHAI_NAME("mlp_norm", "attn_norm"),
                                                   COMMON,
                                                   GATED,
                                                   FUSED,
                                                   END};
const mhai_weight_name mhai_gguf_olmo_names[] = {MHAI_NAME("embed_tokens", "token_embd"),
                                                 MHAI_NAME("lm_head", "output"),
                                                 MHAI_NAME("self_attn.o_proj", "attn_output"),
                                                 MHAI_NAME("mlp.down_proj", "ffn_down"),
                                                 GATED,
                                                 PAIRED_QKV,
                                                 {"self_attn_norm", "", MHAI_ONES, 0},
                                                 {"mlp_norm", "", MHAI_ONES, 0},
                                                 {"norm", "", MHAI_ONES, 0},
                                                 END};
const mhai_weight_name mhai_gguf_phi3_names[] = {COMMON,
                                                 FUSED,
                                                 {"mlp.gate_proj", "ffn_up", MHAI_FUSED, 0},
                                                 {"mlp.up_proj", "ffn_up", MHAI_FUSED, 1},
                                                 END};

const mhai_weight_name mhai_gguf_glm4_names[] = {COMMON,
                                                 QKV,
                                                 {"mlp.gate_proj", "ffn_up", MHAI_FUSED, 0},
                                                 {"mlp.up_proj", "ffn_up", MHAI_FUSED, 1},
                                                 END};

const mhai_weight_name mhai_gguf_latent_names[] = {
    COMMON,
    EXPERTS,
    GATED,
    {"self_attn.q_proj", "attn_q", MHAI_LAST_FIRST, 0},
    {"self_attn.q_b_proj", "attn_q_b", MHAI_LAST_FIRST, 0},
    MHAI_NAME("self_attn.q_a_proj", "attn_q_a"),
    MHAI_NAME("self_attn.q_a_norm", "attn_q_a_norm"),
    MHAI_NAME("self_attn.kv_a_proj", "attn_kv_a_mqa"),
    MHAI_NAME("self_attn.kv_a_norm", "attn_kv_a_norm"),
    {"self_attn.k_b_proj", "attn_k_b", MHAI_HEADS_TURNED, 0},
    {"self_attn.k_b_proj", "attn_kv_b", MHAI_FUSED_HEADS, 0},
    {"self_attn.v_b_proj", "attn_v_b", MHAI_HEADS, 0},
    {"self_attn.v_b_proj", "attn_kv_b", MHAI_FUSED_HEADS, 1},
    END};

/* BERT's norms follow their layers. */
const mhai_weight_name mhai_gguf_bert_names[] = {MHAI_NAME("self_attn_norm", "attn_output_norm"),
                                                 MHAI_NAME("mlp_norm", "layer_output_norm"),
                                                 COMMON,
                                                 GATED,
                                                 QKV,
                                                 FUSED,
                                                 END};

#define TOWER(tower)                                                                           \
    MHAI_NAME("norm", tower ".output_norm"), MHAI_NAME("self_attn.o_proj", "attn_o"),          \
        MHAI_NAME("self_attn.relative_attention_bias", "/" tower ".blk.0.attn_rel_b"), COMMON, \
        GATED, QKV
const mhai_weight_name mhai_gguf_t5_encoder_names[] = {TOWER("enc"), END};
const mhai_weight_name mhai_gguf_t5_names[] = {TOWER("dec"),
                                               MHAI_NAME("cross_attn_norm", "cross_attn_norm"),
                                               MHAI_NAME("cross_attn.q_proj", "cross_attn_q"),
                                               MHAI_NAME("cross_attn.k_proj", "cross_attn_k"),
                                               MHAI_NAME("cross_attn.v_proj", "cross_attn_v"),
                                               MHAI_NAME("cross_attn.o_proj", "cross_attn_o"),
                                               END};
