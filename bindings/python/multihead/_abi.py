"""The C interface as ctypes sees it: every struct, enumeration and function that Python uses.

This is the only place where they are written down. A struct has the name of its C type as c_name,
an enumeration the prefix of its C constants; tests/python/test_ctypes.py compares all of them with
the headers. To use more of the library, add it here.
"""
from __future__ import annotations

import ctypes as C
from typing import Any, ClassVar

MAX_DIMS = 6

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
                RESERVED, ("key_begins", Int64Pointer)]


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


class PytorchSdpaArgs(Struct):
    c_name = "mha_pytorch_sdpa_args"
    _fields_ = [SIZE, FLAGS, ("attn_mask", TensorPointer), ("scale", C.c_float),
                ("dropout_p", C.c_float), ("dropout_seed", C.c_uint64)]


class PytorchMhaArgs(Struct):
    c_name = "mha_pytorch_mha_args"
    _fields_ = [SIZE, FLAGS, *_tensors("query key value key_padding_mask attn_mask"),
                ("dropout", C.c_float), RESERVED, ("dropout_seed", C.c_uint64)]


class OnnxAttentionAttributes(Struct):
    c_name = "mha_onnx_attention_attributes"
    _fields_ = [SIZE, FLAGS, ("opset", C.c_int32), ("softmax_precision", C.c_int32),
                *_int64s("q_num_heads kv_num_heads left_window_size right_window_size"),
                ("scale", C.c_float), ("softcap", C.c_float), ("qk_matmul_output_mode", C.c_int)]


class OnnxAttentionInputs(Struct):
    c_name = "mha_onnx_attention_inputs"
    _fields_ = [SIZE, RESERVED,
                *_tensors("q k v attn_mask past_key past_value nonpad_kv_seqlen")]


class OnnxAttentionOutputs(Struct):
    c_name = "mha_onnx_attention_outputs"
    _fields_ = [SIZE, RESERVED, *_tensors("y present_key present_value qk_matmul_output")]


class TransformerDesc(Struct):
    c_name = "mha_transformer_desc"
    _fields_ = [SIZE, FLAGS, *_int64s("vocab_size max_length embed_dim num_layers num_heads "
                                      "kv_heads head_dim ff_dim memory_dim"),
                ("norm", C.c_int), ("positions", C.c_int), ("feed_forward", C.c_int),
                ("norm_epsilon", C.c_float), ("rope_base", C.c_float), RESERVED,
                ("layer_heads", Int64Pointer), ("layer_kv_heads", Int64Pointer),
                ("type_count", C.c_int64), ("layers", C.c_void_p), ("embed_scale", C.c_float),
                ("logit_softcap", C.c_float)]


class Parameter(Struct):
    c_name = "mha_parameter"
    _fields_ = [("name", C.c_char * 64), ("kind", C.c_int), *_int64s("layer offset count"),
                ("ndim", C.c_int), ("shape", C.c_int64 * 2)]


class TransformerInit(Struct):
    c_name = "mha_transformer_init"
    _fields_ = [SIZE, RESERVED, ("seed", C.c_uint64), ("embedding_std", C.c_double),
                ("position_std", C.c_double), ("head_grade", C.c_double)]


class TransformerInput(Struct):
    c_name = "mha_transformer_input"
    _fields_ = [SIZE, RESERVED, ("tokens", TensorPointer), ("lengths", Int64Pointer),
                ("memory", TensorPointer), ("memory_lengths", Int64Pointer),
                *_tensors("gates cross_gates"), ("dropout", C.c_float),
                ("dropout_seed", C.c_uint64), *_tensors("head_means token_types last_hidden"),
                ("outputs", C.c_void_p), ("after_layer", C.c_void_p),
                ("after_layer_user", C.c_void_p)]


class TransformerGradients(Struct):
    c_name = "mha_transformer_gradients"
    _fields_ = [SIZE, RESERVED, ("parameters", C.POINTER(C.c_float)),
                *_tensors("memory gates cross_gates heads")]


class AdamW(Struct):
    c_name = "mha_adamw"
    _fields_ = [SIZE, RESERVED, ("learning_rate", C.c_double), ("beta1", C.c_double),
                ("beta2", C.c_double), ("epsilon", C.c_double), ("weight_decay", C.c_double),
                ("gradient_scale", C.c_double), ("step", C.c_int64), ("rates", C.POINTER(C.c_float))]


class Sgd(Struct):
    c_name = "mha_sgd"
    _fields_ = [SIZE, RESERVED, ("learning_rate", C.c_double), ("momentum", C.c_double),
                ("weight_decay", C.c_double), ("gradient_scale", C.c_double)]


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
}
# libmultihead-model and libmultihead-render
MODEL_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {}
RENDER_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {}
