"""multihead/presets.h over ctypes, for tests only: on top of multihead_ctypes.

    import presets_ctypes as presets
    out = presets.pytorch_sdpa(query, key, value, attn_mask=mask, is_causal=False, scale=None)
    results = presets.onnx_attention({"Q": q, "K": k, "V": v}, ["Y"], opset=25, is_causal=1)
"""
import ctypes as C

import numpy as np

from multihead._abi import (OnnxAttentionAttributes, OnnxAttentionInputs, OnnxAttentionOutputs,
                            PytorchMhaArgs, PytorchSdpaArgs)
import multihead_ctypes as mha

BF16 = 3
SDPA_IS_CAUSAL, SDPA_SCALE_GIVEN, SDPA_ENABLE_GQA = 1, 2, 4


BATCH_FIRST, IS_CAUSAL, PER_HEAD, TRAINING = 1, 2, 4, 8


ONNX_IS_CAUSAL, ONNX_SCALE_GIVEN, ONNX_WINDOW = 1, 2, 4


ONNX_INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
ONNX_OUTPUTS = ("Y", "present_key", "present_value", "qk_matmul_output")


def view(array):
    """A pointer to the tensor of an array, booleans as u8; None stays None."""
    if array is None:
        return None
    stand_in = {"bool": np.uint8, "bfloat16": np.float16}.get(array.dtype.name)
    tensor = mha.tensor(array if stand_in is None else array.view(stand_in))
    if array.dtype.name == "bfloat16":
        tensor.dtype = BF16
    if array.size == 0 and array.ndim:
        tensor.stride[array.ndim - 1] = 1  # NumPy's strides of nothing are 0
    return C.pointer(tensor)


def broadcast_leading(arrays, own):
    """The shape that the axes before the last `own` of all arrays broadcast to."""
    return np.broadcast_shapes(*[a.shape[:-own] for a in arrays])


def pytorch_sdpa(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
                 enable_gqa=False, dropout_seed=0, context=None):
    """F.scaled_dot_product_attention of arrays."""
    flags = SDPA_IS_CAUSAL * bool(is_causal) | SDPA_SCALE_GIVEN * (scale is not None)
    flags |= SDPA_ENABLE_GQA * bool(enable_gqa)
    args = PytorchSdpaArgs(C.sizeof(PytorchSdpaArgs), flags, view(attn_mask), scale or 0.0,
                           dropout_p, dropout_seed)
    if enable_gqa:
        lead = broadcast_leading((query, key, value), 3) + (query.shape[-3],)
    else:
        lead = broadcast_leading((query, key, value), 2)
    out = np.full((*lead, query.shape[-2], value.shape[-1]), np.nan, query.dtype)
    mha.check(mha.LIBRARY.mha_pytorch_sdpa_forward(
        (context or mha.default_context()).handle, C.byref(args), view(query), view(key),
        view(value), view(out)))
    return out


def pytorch_mha(module, query, key, value, key_padding_mask=None, need_weights=True,
                attn_mask=None, average_attn_weights=True, is_causal=False, batch_first=False,
                dropout=0.0, training=False, dropout_seed=0, context=None):
    """nn.MultiheadAttention.forward with the parameters of a mha.Module: (out, weights or None)."""
    flags = BATCH_FIRST * bool(batch_first) | IS_CAUSAL * bool(is_causal)
    flags |= PER_HEAD * (not average_attn_weights) | TRAINING * bool(training)
    args = PytorchMhaArgs(C.sizeof(PytorchMhaArgs), flags, view(query), view(key), view(value),
                          view(key_padding_mask), view(attn_mask), dropout, 0, dropout_seed)
    lone, first = query.ndim == 2, 0 if batch_first else 1
    B = () if lone else (query.shape[first],)
    T, S = (x.shape[0] if lone else x.shape[1 - first] for x in (query, key))
    heads = () if average_attn_weights else (module.desc.num_heads,)
    out = np.full(query.shape, np.nan, np.float32)
    weights = None
    if need_weights:
        weights = np.full((*B, *heads, T, S + module.extra_keys), np.nan, np.float32)
    mha.check(mha.LIBRARY.mha_pytorch_mha_forward(
        (context or module.context).handle, module.handle, C.byref(args), view(out),
        view(weights)))
    return out, weights


def onnx_shapes(inputs, q_num_heads=0, kv_num_heads=0):
    """B, H, Hk, T, S, P, D, Dv of the operator's inputs."""
    q, k, v, past = (inputs.get(name) for name in ("Q", "K", "V", "past_key"))
    P = 0 if past is None else past.shape[2]
    if q.ndim == 4:
        return (*q.shape[:2], k.shape[1], q.shape[2], k.shape[2], P, q.shape[3], v.shape[3])
    return (q.shape[0], q_num_heads, kv_num_heads, q.shape[1], k.shape[1], P,
            q.shape[2] // q_num_heads, v.shape[2] // kv_num_heads)


def onnx_attention(inputs, outputs=("Y",), opset=25, context=None, **attributes):
    """The operator: arrays by the operator's names in, a dict of the named outputs back."""
    flags = ONNX_IS_CAUSAL * bool(attributes.pop("is_causal", 0))
    flags |= ONNX_SCALE_GIVEN * (attributes.get("scale") is not None)
    flags |= ONNX_WINDOW * ("left_window_size" in attributes or "right_window_size" in attributes)
    sides = [attributes.pop(f"{side}_window_size", -1) for side in ("left", "right")]
    if not flags & ONNX_WINDOW:
        sides = [0, 0]
    struct = OnnxAttentionAttributes(C.sizeof(OnnxAttentionAttributes), flags, opset)
    struct.left_window_size, struct.right_window_size = sides
    for name, value in attributes.items():
        setattr(struct, name, value or 0)
    heads = [attributes.get(name) or 0 for name in ("q_num_heads", "kv_num_heads")]
    B, H, Hk, T, S, P, D, Dv = onnx_shapes(inputs, *heads)
    kind = inputs["Q"].dtype
    shapes = {"Y": (B, H, T, Dv) if inputs["Q"].ndim == 4 else (B, T, H * Dv),
              "present_key": (B, Hk, P + S, D), "present_value": (B, Hk, P + S, Dv),
              "qk_matmul_output": (B, H, T, P + S)}
    made = {name: np.full(shapes[name], np.nan,
                          np.float32 if name == "qk_matmul_output" else kind) for name in outputs}
    given = OnnxAttentionInputs(C.sizeof(OnnxAttentionInputs), 0,
                                *[view(inputs.get(name)) for name in ONNX_INPUTS])
    wanted = OnnxAttentionOutputs(C.sizeof(OnnxAttentionOutputs), 0,
                                  *[view(made.get(name)) for name in ONNX_OUTPUTS])
    mha.check(mha.LIBRARY.mha_onnx_attention((context or mha.default_context()).handle,
                                             C.byref(struct), C.byref(given), C.byref(wanted)))
    return made
