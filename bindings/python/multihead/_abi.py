"""The C interface as ctypes sees it: every struct, enumeration and function that Python uses.

This is the only place where they are written down. A struct has the name of its C type as c_name,
an enumeration the prefix of its C constants; tests/python/test_ctypes.py compares all of them with
the headers. To use more of the library, add it here.
"""
from __future__ import annotations

import ctypes as C
from typing import Any, ClassVar

MAX_DIMS = 6
SONAME_VERSION = 0  # of lib*.so.0, the interface that is described here

# ---- Enumerations: {name: value}, the C constant is the prefix and the name in upper case --------

ENUMERATIONS: list[tuple[str, dict[str, int]]] = []


def _enumeration(prefix: str, **values: int) -> dict[str, int]:
    ENUMERATIONS.append((prefix, values))
    return values


STATUS = _enumeration(
    "MHA_", ok=0, err_null=1, err_argument=2, err_overlap=3, err_shape=10, err_dtype=11,
    err_stride=12, err_file=20, err_format=21, err_write=22, err_utf8=23, err_model=24,
    err_numeric=30, err_nomem=40, err_size=41, err_unsupported=50, err_callback=60)
DTYPES = _enumeration("MHA_", f32=0, f64=1, f16=2, bf16=3, i8=4, u8=5, i32=6, i64=7)
ISAS = _enumeration("MHA_ISA_", auto=0, portable=1, neon=2, avx2=3, avx512=4)
COMPUTE = _enumeration("MHA_COMPUTE_", f32=0, int8=1, bf16=2)
PATHS = _enumeration("MHA_PATH_", auto=0, tiled=1, plain=2)
SCORE_STAGES = _enumeration("MHA_SCORES_", raw=0, capped=1, biased=2)
ATTENTION_FLAGS = _enumeration("MHA_ATTENTION_", causal=1, scale_given=2, strict=4, window=8,
                               t5_one_sided=16)
OUTPUT_FLAGS = _enumeration("MHA_OUTPUT_", dropped_probabilities=1)
PLAN_FLAGS = _enumeration("MHA_PLAN_", keys_in_place=1, keys_shared=2, one_block=4)
GRADIENT_FLAGS = _enumeration("MHA_GRADIENTS_", accumulate=1, dropped_probabilities=2)
LINEAR_FLAGS = _enumeration("MHA_LINEAR_ATTENTION_", causal=1)
MODULE_FLAGS = _enumeration("MHA_MODULE_", no_qkv_bias=1, no_out_bias=2, bias_kv=4, zero_attn=8,
                            sinks=16, rope=32, qk_norm=64)
KV_SCALES = _enumeration("MHA_KV_SCALES_", position=0, channel=1)
TRANSFORMER_FLAGS = _enumeration(
    "MHA_TRANSFORMER_", causal=1, post_norm=2, embedding_norm=4, bias=8, cross=16, tied=32,
    no_output=64, qkv_bias=128, out_bias=256, ff_bias=512, branch_norm=1024, parallel=2048)
DECODER_FLAGS = _enumeration("MHA_DECODER_", windows=1, streaming=2)
HEADS_FLAGS = _enumeration("MHA_HEADS_", causal=1, window=2, cross=4, query_predicts=8)
TOKENS_FLAGS = _enumeration("MHA_TOKENS_", truncate=1, plain=2, prompt=4)
CMAPS = _enumeration("MHA_CMAP_", viridis=0, blues=1, greys=2, cividis=3, magma=4, plasma=5,
                     diverging=6)
RANGES = _enumeration("MHA_RANGE_", shared=0, panel=1, fixed=2)
SCALES = _enumeration("MHA_SCALE_", linear=0, sqrt=1, log=2, rank=3)
VALUES = _enumeration("MHA_VALUES_", auto=0, always=1, never=2)
VIEWS = _enumeration("MHA_VIEW_", map=0, lines=1, model=2, neurons=3)
MEASURE_KINDS = _enumeration("MHA_KIND_", share=0, plain=1, nats=2, tokens=3, correlation=4)

# ---- Structs -------------------------------------------------------------------------------------

STRUCTS: list[type[Struct]] = []


class Struct(C.Structure):
    """A struct of the headers; struct_size, where there is one, is set."""

    c_name: ClassVar[str]

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        STRUCTS.append(cls)

    def __init__(self, *values: Any, **fields: Any) -> None:
        if not values and self._fields_[0][0] == "struct_size":
            fields.setdefault("struct_size", C.sizeof(self))
        super().__init__(*values, **fields)


class Tensor(Struct):
    c_name = "mha_tensor"
    _fields_ = [("data", C.c_void_p), ("dtype", C.c_int), ("ndim", C.c_int32),
                ("shape", C.c_int64 * MAX_DIMS), ("stride", C.c_int64 * MAX_DIMS)]


TensorPointer = C.POINTER(Tensor)
Int64Pointer = C.POINTER(C.c_int64)


def _tensors(names: str) -> list[tuple[str, Any]]:
    return [(name, TensorPointer) for name in names.split()]


def _int64s(names: str) -> list[tuple[str, Any]]:
    return [(name, C.c_int64) for name in names.split()]


SIZE = ("struct_size", C.c_uint32)
FLAGS = ("flags", C.c_uint32)
RESERVED = ("reserved", C.c_uint32)


class Allocator(Struct):
    c_name = "mha_allocator"
    _fields_ = [("alloc", C.c_void_p), ("release", C.c_void_p), ("user", C.c_void_p)]


class ContextDesc(Struct):
    c_name = "mha_context_desc"
    _fields_ = [SIZE, ("num_threads", C.c_int32), ("isa", C.c_int), ("allocator", Allocator),
                ("parallel_for", C.c_void_p), ("parallel_for_user", C.c_void_p)]


class AttentionDesc(Struct):
    c_name = "mha_attention_desc"
    _fields_ = [SIZE, FLAGS, ("path", C.c_int), ("scale", C.c_float), ("q_offset", C.c_int64),
                ("q_offsets", Int64Pointer), ("key_lengths", Int64Pointer),
                *_tensors("keep_mask bias"), *_int64s("left_keys right_keys sink_keys"),
                *_tensors("global_keys global_queries query_documents key_documents keep_blocks"),
                *_int64s("block_queries block_keys"), ("keep_callback", C.c_void_p),
                ("keep_callback_user", C.c_void_p), ("softcap", C.c_float), ("dropout", C.c_float),
                *_tensors("alibi_slopes t5_table"), ("t5_max_distance", C.c_int64),
                *_tensors("shaw_keys shaw_values sink_logits gates"),
                ("dropout_seed", C.c_uint64), ("query_starts", Int64Pointer),
                ("key_starts", Int64Pointer), ("sequences", C.c_int64), ("compute", C.c_int),
                RESERVED, ("key_begins", Int64Pointer), ("first_head", C.c_int64)]


# mha_keep_fn: user, b, h, query, queries, key, keys, keep, keep_stride
KEEP_FUNCTION = C.CFUNCTYPE(None, C.c_void_p, *[C.c_int64] * 6, C.c_void_p, C.c_int64)


class AttentionOutputs(Struct):
    c_name = "mha_attention_outputs"
    _fields_ = [SIZE, FLAGS, *_tensors("lse probabilities average_probabilities scores"),
                ("score_stage", C.c_int), RESERVED, ("heads", Int64Pointer),
                ("rows", Int64Pointer), *_int64s("heads_count rows_count"),
                *_tensors("entropy largest_weight largest_key first_token diagonal offset_mass"),
                ("offsets", Int64Pointer), ("offsets_count", C.c_int64),
                *_tensors("top_keys top_weights column_sums")]


class AttentionPlan(Struct):
    c_name = "mha_attention_plan"
    _fields_ = [("path", C.c_int), ("isa", C.c_int), ("reason", C.c_char_p),
                *_int64s("key_block row_block work_items visible_pairs"), ("flops", C.c_double),
                ("bytes", C.c_double), ("scratch_bytes", C.c_size_t), ("compute", C.c_int), FLAGS]


class AttentionGradients(Struct):
    c_name = "mha_attention_gradients"
    _fields_ = [SIZE, FLAGS, *_tensors("q k v bias alibi_slopes t5_table shaw_keys shaw_values "
                                       "sink_logits gates scale lse_gradient "
                                       "probabilities_gradient average_probabilities_gradient")]


class AttentionPart(Struct):
    c_name = "mha_attention_part"
    _fields_ = _tensors("o lse")


class LinearAttentionDesc(Struct):
    c_name = "mha_linear_attention_desc"
    _fields_ = [SIZE, FLAGS, ("feature_map", C.c_void_p), ("feature_map_user", C.c_void_p),
                *_int64s("feature_dim q_offset"), ("q_offsets", Int64Pointer),
                ("key_lengths", Int64Pointer), *_tensors("state_s state_z"),
                ("query_starts", Int64Pointer), ("key_starts", Int64Pointer),
                ("sequences", C.c_int64)]


# mha_feature_map_fn: user, rows, count, head_dim, features, feature_dim
FEATURE_MAP = C.CFUNCTYPE(None, C.c_void_p, C.c_void_p, C.c_int64, C.c_int64, C.c_void_p, C.c_int64)
# mha_feature_map_gradient_fn: likewise, with the features' gradients, and the rows' last
FEATURE_MAP_GRADIENT = C.CFUNCTYPE(None, C.c_void_p, C.c_void_p, C.c_int64, C.c_int64, C.c_void_p,
                                   C.c_int64, C.c_void_p)


class LinearAttentionOutputs(Struct):
    c_name = "mha_linear_attention_outputs"
    _fields_ = [SIZE, RESERVED, *_tensors("state_s state_z")]


class LinearAttentionGradients(Struct):
    c_name = "mha_linear_attention_gradients"
    _fields_ = [SIZE, FLAGS, *_tensors("q k v state_s state_z"),
                ("feature_map_gradient", C.c_void_p)]


class KvCacheDesc(Struct):
    c_name = "mha_kv_cache_desc"
    _fields_ = [SIZE, FLAGS, *_int64s("batch kv_heads capacity head_dim value_head_dim"),
                ("type", C.c_int), RESERVED,
                *_int64s("page_size pages window sink_keys max_append"), ("key_scales", C.c_int),
                ("reserved2", C.c_uint32)]


class ModuleDesc(Struct):
    c_name = "mha_module_desc"
    _fields_ = [SIZE, FLAGS, *_int64s("embed_dim num_heads kv_heads head_dim value_head_dim "
                                      "key_dim value_dim"),
                ("rope_pairing", C.c_int), ("qk_norm", C.c_int), ("rotary_dim", C.c_int64),
                ("rope_base", C.c_double), ("rope_factor", C.c_double),
                ("qk_norm_epsilon", C.c_float), RESERVED]


class ModuleOutputs(Struct):
    c_name = "mha_module_outputs"
    _fields_ = [SIZE, RESERVED, *_tensors("probabilities average_probabilities q k v heads lse"),
                ("attention", C.POINTER(AttentionOutputs))]


class Positions(Struct):
    c_name = "mha_positions"
    _fields_ = [("start", C.c_int64), ("starts", Int64Pointer), ("ids", TensorPointer)]


class ModuleCall(Struct):
    c_name = "mha_module_call"
    _fields_ = [SIZE, RESERVED, ("attention", C.POINTER(AttentionDesc)),
                *_tensors("query key value out"), ("outputs", C.POINTER(ModuleOutputs)),
                ("query_positions", C.c_void_p), ("key_positions", C.c_void_p),
                ("cache", C.c_void_p), ("counts", Int64Pointer)]


class ModuleParameter(Struct):
    c_name = "mha_module_parameter"
    _fields_ = [("name", C.c_char_p), ("ndim", C.c_int32), ("shape", C.c_int64 * MAX_DIMS)]


class ModuleGradients(Struct):
    c_name = "mha_module_gradients"
    _fields_ = [SIZE, FLAGS, *_tensors("query key value"),
                ("parameters", C.POINTER(TensorPointer)), ("parameters_count", C.c_int64),
                ("attention", C.POINTER(AttentionGradients))]


class LayerDesc(Struct):
    c_name = "mha_layer_desc"
    _fields_ = [SIZE, FLAGS, ("scale", C.c_float), ("softcap", C.c_float),
                *_int64s("left_keys right_keys sink_keys"), ("qk_norm", C.c_int),
                ("qk_norm_epsilon", C.c_float), *_int64s("t5_buckets t5_max_distance rotary_dim"),
                ("rope_base", C.c_float), ("rope_factor", C.c_float), ("rope_scaling", C.c_int),
                ("rope_low", C.c_float), ("rope_high", C.c_float), ("rope_amplitude", C.c_float),
                ("rope_original_length", C.c_int64)]


class TransformerDesc(Struct):
    c_name = "mha_transformer_desc"
    _fields_ = [SIZE, FLAGS, *_int64s("vocab_size max_length embed_dim num_layers num_heads "
                                      "kv_heads head_dim ff_dim memory_dim"),
                ("norm", C.c_int), ("positions", C.c_int), ("feed_forward", C.c_int),
                ("norm_epsilon", C.c_float), ("rope_base", C.c_float), ("padding_token", C.c_int32),
                ("layer_heads", Int64Pointer), ("layer_kv_heads", Int64Pointer),
                ("type_count", C.c_int64), ("layers", C.POINTER(LayerDesc)),
                ("embed_scale", C.c_float), ("logit_softcap", C.c_float)]


class Parameter(Struct):
    c_name = "mha_parameter"
    _fields_ = [("name", C.c_char * 64), ("kind", C.c_int), *_int64s("layer offset count"),
                ("ndim", C.c_int), ("shape", C.c_int64 * 2)]


class TransformerInit(Struct):
    c_name = "mha_transformer_init"
    _fields_ = [SIZE, RESERVED, ("seed", C.c_uint64), ("embedding_std", C.c_double),
                ("position_std", C.c_double), ("head_grade", C.c_double)]


class HeadPatch(Struct):
    c_name = "mha_head_patch"
    _fields_ = [SIZE, ("part", C.c_int), *_int64s("layer head"), ("values", TensorPointer),
                ("rows", C.c_void_p)]


class TransformerInput(Struct):
    c_name = "mha_transformer_input"
    _fields_ = [SIZE, FLAGS, ("tokens", TensorPointer), ("lengths", Int64Pointer),
                ("memory", TensorPointer), ("memory_lengths", Int64Pointer),
                *_tensors("gates cross_gates"), ("dropout", C.c_float),
                ("dropout_seed", C.c_uint64), *_tensors("head_means token_types last_hidden"),
                ("outputs", C.c_void_p), ("after_layer", C.c_void_p),
                ("after_layer_user", C.c_void_p), ("patches", C.POINTER(HeadPatch)),
                *_int64s("patch_count first_layer"), ("stream", TensorPointer)]


class TransformerGradients(Struct):
    c_name = "mha_transformer_gradients"
    _fields_ = [SIZE, RESERVED, ("parameters", C.POINTER(C.c_float)),
                *_tensors("memory gates cross_gates heads head_outputs")]


class AdamW(Struct):
    c_name = "mha_adamw"
    _fields_ = [SIZE, RESERVED, ("learning_rate", C.c_double), ("beta1", C.c_double),
                ("beta2", C.c_double), ("epsilon", C.c_double), ("weight_decay", C.c_double),
                ("gradient_scale", C.c_double), ("step", C.c_int64), ("rates", C.POINTER(C.c_float))]


class Sgd(Struct):
    c_name = "mha_sgd"
    _fields_ = [SIZE, RESERVED, ("learning_rate", C.c_double), ("momentum", C.c_double),
                ("weight_decay", C.c_double), ("gradient_scale", C.c_double)]


class DecoderDesc(Struct):
    c_name = "mha_decoder_desc"
    _fields_ = [SIZE, FLAGS, *_int64s("batch capacity max_step"), ("cache_type", C.c_int),
                ("reserved2", C.c_uint32),
                *_int64s("page_size pages window sink_keys memory_capacity"),
                ("key_scales", C.c_int), ("reserved3", C.c_uint32)]


class Sampling(Struct):
    c_name = "mha_sampling"
    _fields_ = [SIZE, RESERVED, ("temperature", C.c_double), ("top_k", C.c_int64),
                ("top_p", C.c_double), ("min_p", C.c_double), ("seed", C.c_uint64)]


class RepeatedTokens(Struct):
    c_name = "mha_repeated_tokens"
    _fields_ = [SIZE, RESERVED, *_int64s("block repeats"), ("first", C.c_int32),
                ("last", C.c_int32), ("seed", C.c_uint64), ("sequence", C.c_uint64)]


class MeasureInfo(Struct):
    c_name = "mha_measure_info"
    _fields_ = [("name", C.c_char_p), ("text", C.c_char_p), ("kind", C.c_int)]


class HeadScore(Struct):
    c_name = "mha_head_score"
    _fields_ = [("value", C.c_double), ("chance", C.c_double), ("corrected", C.c_double),
                ("rows", C.c_int64)]


class RoleInfo(Struct):
    c_name = "mha_role_info"
    _fields_ = [("name", C.c_char_p), ("text", C.c_char_p), ("source", C.c_char_p),
                ("measure", C.c_int), ("threshold", C.c_double), ("corrected", C.c_bool),
                ("least_rows", C.c_int64)]


class HeadRole(Struct):
    c_name = "mha_head_role"
    _fields_ = [("role", C.c_int), *_int64s("offset relation"), ("direction", C.c_int),
                ("score", HeadScore), ("evidence", C.c_char * 192)]


class ModelOptions(Struct):
    c_name = "mha_model_options"
    _fields_ = [SIZE, FLAGS, ("compute", C.c_int), RESERVED, ("transport", C.c_void_p)]


class ModelInfo(Struct):
    c_name = "mha_model_info"
    _fields_ = [SIZE, RESERVED, ("architecture", C.c_char_p),
                *_int64s("layers heads kv_heads hidden_size head_dim intermediate_size "
                         "max_positions vocab_size type_vocab_size parameters")]


class Batch(Struct):
    c_name = "mha_batch"
    _fields_ = [SIZE, RESERVED, *_int64s("batch length"), ("ids", C.c_void_p),
                ("type_ids", C.c_void_p), ("lengths", Int64Pointer)]


class ModelOutputs(Struct):
    c_name = "mha_model_outputs"
    _fields_ = [SIZE, RESERVED, ("last_hidden", TensorPointer),
                ("hidden", C.POINTER(TensorPointer)),
                ("attention", C.POINTER(C.POINTER(ModuleOutputs))), ("after_layer", C.c_void_p),
                ("after_layer_user", C.c_void_p)]


class TokensOptions(Struct):
    c_name = "mha_tokens_options"
    _fields_ = [SIZE, FLAGS, ("max_tokens", C.c_int64), ("advise_long", C.c_char_p),
                ("advise_words", C.c_char_p)]


class TokensRead(Struct):
    c_name = "mha_tokens"
    _fields_ = [SIZE, RESERVED, ("count", C.c_int64), ("ids", C.POINTER(C.c_int32)),
                ("types", C.POINTER(C.c_int32)), ("begin", Int64Pointer), ("end", Int64Pointer),
                ("sequence", C.POINTER(C.c_int8)), ("special", C.POINTER(C.c_uint8)),
                ("separators", C.POINTER(C.c_uint8)), ("sentences", Int64Pointer),
                ("labels", C.POINTER(C.c_char_p)), ("dropped", C.c_int64 * 2),
                ("memory", C.c_void_p)]


class StudyDesc(Struct):
    c_name = "mha_study_desc"
    _fields_ = [SIZE, FLAGS, ("gates", TensorPointer), ("relations", C.POINTER(C.c_char_p)),
                ("relation_count", C.c_int64), ("progress", C.c_void_p),
                ("progress_user", C.c_void_p)]


class StudyFound(Struct):
    c_name = "mha_study_found"
    _fields_ = [SIZE, RESERVED, ("layers", C.c_int64), ("heads", Int64Pointer),
                ("texts", C.c_void_p), ("random", C.c_void_p),
                ("relations", C.POINTER(C.c_char_p)), ("relation_count", C.c_int64),
                *_int64s("text_count token_count random_count random_block random_repeats "
                         "lost_links"),
                ("corpus", C.c_void_p), ("distances", C.c_void_p)]


class Buffer(Struct):
    c_name = "mha_buffer"
    _fields_ = [("data", C.c_void_p), ("size", C.c_size_t), ("capacity", C.c_size_t)]


class Sink(Struct):
    c_name = "mha_sink"
    _fields_ = [("write", C.c_void_p), ("user", C.c_void_p)]


Texts = C.POINTER(C.c_char_p)
Doubles = C.POINTER(C.c_double)


class RenderedMeasure(Struct):
    c_name = "mha_measure"
    _fields_ = [("name", C.c_char_p), ("value", C.c_double), ("chance", C.c_double),
                ("most", C.c_double), ("count", C.c_int64), ("note", C.c_char_p)]


class Panel(Struct):
    c_name = "mha_panel"
    _fields_ = [("values", C.c_void_p), ("row_stride", C.c_int64), ("name", C.c_char_p),
                ("note", C.c_char_p), ("detail", C.c_char_p), ("group", C.c_int64),
                ("masked", C.c_void_p), ("mask_stride", C.c_int64), ("badge", C.c_char_p),
                ("measures", C.POINTER(RenderedMeasure)), ("measure_count", C.c_int64),
                ("twin", C.c_void_p), ("twin_stride", C.c_int64), ("queries", C.c_void_p),
                ("keys", C.c_void_p), ("channels", C.c_int64), ("mark", C.POINTER(C.c_int64)),
                ("score_scale", C.c_double)]


class Figure(Struct):
    c_name = "mha_figure"
    _fields_ = [SIZE, ("panel_size", C.c_uint32), ("title", C.c_char_p), ("subtitle", C.c_char_p),
                ("footnote", C.c_char_p), ("row_axis", C.c_char_p), ("col_axis", C.c_char_p),
                *_int64s("rows cols"), ("row_labels", Texts), ("col_labels", Texts),
                ("panels", C.POINTER(Panel)), ("panel_count", C.c_int64), ("group_names", Texts),
                *_int64s("group_count columns"), ("cmap", C.c_int), ("range", C.c_int),
                ("lo", C.c_double), ("hi", C.c_double), ("scale", C.c_int), ("dark", C.c_bool),
                ("print_values", C.c_int), ("pixel_ratio", C.c_double), ("font_file", C.c_char_p),
                ("value_name", C.c_char_p)]


class Series(Struct):
    c_name = "mha_series"
    _fields_ = [("name", C.c_char_p), ("x", Doubles), ("y", Doubles), ("count", C.c_int64),
                ("baseline", C.c_bool)]


class Curve(Struct):
    c_name = "mha_curve"
    _fields_ = [("title", C.c_char_p), ("caption", C.c_char_p), ("x_axis", C.c_char_p),
                ("y_axis", C.c_char_p), ("series", C.POINTER(Series)), ("series_count", C.c_int64),
                ("timeline", C.c_bool)]


class Frame(Struct):
    c_name = "mha_frame"
    _fields_ = [("label", C.c_char_p), ("at", C.c_double), ("maps", C.POINTER(C.c_void_p))]


class Column(Struct):
    c_name = "mha_column"
    _fields_ = [("name", C.c_char_p), ("about", C.c_char_p), ("values", Doubles),
                ("ascending", C.c_bool)]


class Report(Struct):
    c_name = "mha_report"
    _fields_ = [SIZE, ("text", C.c_char_p), ("facts", C.c_void_p), ("fact_count", C.c_int64),
                ("producer", C.c_char_p), ("same_labels", C.c_bool), ("most_bytes", C.c_int64),
                ("special", Texts), *_int64s("special_count first_panel"),
                ("curve_size", C.c_uint32), ("curves", C.POINTER(Curve)), ("curve_count", C.c_int64),
                ("columns", C.POINTER(Column)), ("column_count", C.c_int64),
                ("frames", C.POINTER(Frame)), ("frame_count", C.c_int64), ("twin_name", C.c_char_p), ("twin_value", C.c_char_p),
                ("cell_tokens", C.c_int64), ("tokens", Texts), ("token_count", C.c_int64),
                ("guide", C.c_char_p), ("first_cell", C.c_bool),
                *_int64s("first_row first_col"), ("view", C.c_int), ("only_view", C.c_bool),
                ("line_panels", Int64Pointer), *_int64s("line_panel_count second_row second_col")]


class InsetPage(Struct):
    c_name = "mha_inset_page"
    _fields_ = [("name", C.c_char_p), ("figure", C.POINTER(Figure)), ("report", C.POINTER(Report))]


class Inset(Struct):
    c_name = "mha_inset"
    _fields_ = [SIZE, ("page_size", C.c_uint32), ("pages", C.POINTER(InsetPage)),
                *_int64s("page_count width height"), ("whole_file", C.c_bool)]


# ---- Functions: {name: (result, arguments)}. Handles are void pointers. --------------------------

_STATUS, _HANDLE, _INT64 = C.c_int, C.c_void_p, C.c_int64
_NEW_HANDLE = C.POINTER(C.c_void_p)

# libmultihead
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "mha_version": (C.c_char_p, []),
    "mha_error_detail": (C.c_char_p, []),
    "mha_isa_available": (C.c_bool, [C.c_int]),
    "mha_tensor_convert": (_STATUS, [TensorPointer] * 2),
    "mha_context_create": (_STATUS, [C.POINTER(ContextDesc), _NEW_HANDLE]),
    "mha_context_destroy": (None, [_HANDLE]),
    "mha_context_isa": (C.c_int, [_HANDLE]),
    "mha_context_threads": (C.c_int, [_HANDLE]),
    "mha_attention_forward": (_STATUS, [_HANDLE, C.POINTER(AttentionDesc), *[TensorPointer] * 4,
                                        C.POINTER(AttentionOutputs)]),
    "mha_attention_explain": (_STATUS, [_HANDLE, C.POINTER(AttentionDesc), *[TensorPointer] * 4,
                                        C.POINTER(AttentionOutputs), C.POINTER(AttentionPlan)]),
    "mha_attention_backward": (_STATUS, [_HANDLE, C.POINTER(AttentionDesc), *[TensorPointer] * 6,
                                         C.POINTER(AttentionGradients)]),
    "mha_attention_merge": (_STATUS, [_HANDLE, C.POINTER(AttentionPart), _INT64,
                                      TensorPointer, TensorPointer]),
    "mha_linear_attention_forward": (_STATUS, [_HANDLE, C.POINTER(LinearAttentionDesc),
                                               *[TensorPointer] * 4,
                                               C.POINTER(LinearAttentionOutputs)]),
    "mha_linear_attention_backward": (_STATUS, [_HANDLE, C.POINTER(LinearAttentionDesc),
                                                *[TensorPointer] * 4,
                                                C.POINTER(LinearAttentionGradients)]),
    "mha_module_parameter_at": (C.c_bool, [_HANDLE, _INT64, C.POINTER(ModuleParameter)]),
    "mha_module_parameter_count": (_INT64, [_HANDLE]),
    "mha_module_destroy": (None, [_HANDLE]),
    "mha_kv_cache_lengths": (Int64Pointer, [_HANDLE]),
    "mha_kv_cache_destroy": (None, [_HANDLE]),
    "mha_transformer_size": (_INT64, [_HANDLE]),
    "mha_transformer_parameters": (_INT64, [_HANDLE]),
    "mha_transformer_data": (C.POINTER(C.c_float), [_HANDLE]),
    "mha_transformer_destroy": (None, [_HANDLE]),
    "mha_activations_destroy": (None, [_HANDLE]),
    "mha_decoder_destroy": (None, [_HANDLE]),
    "mha_transformer_describe": (None, [_HANDLE, C.POINTER(TransformerDesc)]),
    "mha_transformer_forward": (_STATUS, [_HANDLE, _HANDLE, C.POINTER(TransformerInput), _HANDLE,
                                          *[TensorPointer] * 3]),
    "mha_decoder_create": (_STATUS, [_HANDLE, _HANDLE, C.POINTER(DecoderDesc), _NEW_HANDLE]),
    "mha_decoder_lengths": (Int64Pointer, [_HANDLE]),
    "mha_decoder_length": (_INT64, [_HANDLE]),
    "mha_decoder_cache_bytes": (C.c_size_t, [_HANDLE]),
    "mha_decoder_truncate_sequence": (_STATUS, [_HANDLE, _INT64, _INT64]),
    "mha_decoder_truncate": (_STATUS, [_HANDLE, _INT64]),
    "mha_decoder_fork": (_STATUS, [_HANDLE, _INT64, _INT64, _INT64]),
    "mha_decoder_step_rows": (_STATUS, [_HANDLE, _HANDLE, TensorPointer, Int64Pointer,
                                        Int64Pointer, TensorPointer]),
    "mha_buffer_sink": (Sink, [C.POINTER(Buffer)]),
    "mha_buffer_free": (None, [C.POINTER(Buffer)]),
    "mha_file_create": (_STATUS, [C.c_char_p, _NEW_HANDLE]),
    "mha_file_sink": (C.POINTER(Sink), [_HANDLE]),
    "mha_file_finish": (_STATUS, [_HANDLE, _STATUS]),
    "mha_sample_token": (_STATUS, [_HANDLE, C.POINTER(Sampling), C.c_uint64, C.c_void_p, _INT64,
                                   C.POINTER(C.c_int32)]),
    "mha_measure_describe": (MeasureInfo, [C.c_int]),
    "mha_role_describe": (RoleInfo, [C.c_int]),
    "mha_head_pass_repeated": (_STATUS, [C.POINTER(RepeatedTokens), _INT64, C.c_void_p, C.c_void_p,
                                         C.c_void_p, Int64Pointer]),
}
# libmultihead-model and libmultihead-render
MODEL_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "mha_model_load": (_STATUS, [_HANDLE, C.c_char_p, C.POINTER(ModelOptions), _NEW_HANDLE]),
    "mha_model_destroy": (None, [_HANDLE]),
    "mha_model_describe": (_STATUS, [_HANDLE, C.POINTER(ModelInfo)]),
    "mha_model_vocabulary": (_HANDLE, [_HANDLE]),
    "mha_model_end_tokens": (_INT64, [_HANDLE, C.POINTER(C.POINTER(C.c_int32))]),
    "mha_model_transformer": (_HANDLE, [_HANDLE]),
    "mha_model_encoder": (_HANDLE, [_HANDLE]),
    "mha_model_forward": (_STATUS, [_HANDLE, _HANDLE, C.POINTER(Batch), C.POINTER(ModelOutputs)]),
    "mha_tokens_read": (_STATUS, [_HANDLE, C.POINTER(TokensOptions), C.c_char_p, C.c_size_t,
                                  C.c_char_p, C.c_size_t, C.POINTER(TokensRead)]),
    "mha_tokens_free": (None, [C.POINTER(TokensRead)]),
    "mha_token_count": (_INT64, [_HANDLE]),
    "mha_token_label": (C.c_size_t, [_HANDLE, C.c_int32, C.c_char_p, C.c_size_t]),
    "mha_token_is_word": (C.c_bool, [_HANDLE, C.c_int32]),
    "mha_text_writer_create": (_STATUS, [_HANDLE, C.POINTER(C.c_char_p), _INT64, _NEW_HANDLE]),
    "mha_text_writer_destroy": (None, [_HANDLE]),
    "mha_text_writer_add": (_STATUS, [_HANDLE, C.c_int32, C.POINTER(C.c_void_p),
                                      C.POINTER(C.c_size_t), C.POINTER(C.c_bool)]),
    "mha_text_writer_end": (_STATUS, [_HANDLE, C.POINTER(C.c_void_p), C.POINTER(C.c_size_t)]),
    "mha_study_create": (_STATUS, [_HANDLE, _HANDLE, C.POINTER(StudyDesc), _NEW_HANDLE]),
    "mha_study_destroy": (None, [_HANDLE]),
    "mha_study_measure": (_STATUS, [_HANDLE, C.POINTER(TokensRead), _INT64, C.c_void_p, _INT64]),
    "mha_study_results": (C.POINTER(StudyFound), [_HANDLE]),
    "mha_study_score_count": (_INT64, [C.POINTER(StudyFound)]),
    "mha_study_score_name": (None, [C.POINTER(StudyFound), _INT64, C.c_char_p]),
    "mha_study_score": (HeadScore, [C.POINTER(StudyFound), _INT64, _INT64, _INT64]),
    "mha_study_roles": (_INT64, [C.POINTER(StudyFound), _INT64, _INT64, C.POINTER(HeadRole)]),
    "mha_utf8_span": (C.c_size_t, [C.c_char_p, C.c_size_t, C.POINTER(C.c_size_t)]),
}
RENDER_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "mha_render_svg": (_STATUS, [C.POINTER(Figure), C.POINTER(Sink)]),
    "mha_render_png": (_STATUS, [C.POINTER(Figure), C.POINTER(Sink)]),
    "mha_render_html": (_STATUS, [C.POINTER(Figure), C.POINTER(Report), C.POINTER(Sink)]),
    "mha_render_inset": (_STATUS, [C.POINTER(Inset), C.POINTER(Sink)]),
    "mha_cmap_color": (None, [C.c_int, C.c_bool, C.c_double, C.c_char_p]),
    "mha_text_piece": (_INT64, [C.c_char_p, C.c_char_p, C.c_size_t]),
}
