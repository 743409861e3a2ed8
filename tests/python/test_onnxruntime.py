"""mha_attention_forward() compared with onnxruntime's CPU operators for random inputs: the standard
Attention, as far as the CPU provider supports it, and onnxruntime's own MultiHeadAttention and
GroupQueryAttention.

Both compute in float32, so they may differ by the sum of two errors: the a-priori bound of
docs/numerics.md for the library, and three times that bound for onnxruntime, which covers two
square roots of the scale and less careful sums. Other tests compare the library with float64.
MHA_TEST_SEED repeats a run; MHA_TEST_LONG=1 tests all cases.
"""

import numpy as np
from onnx import TensorProto, helper
import onnxruntime as ort

import multihead_ctypes as mha
from shared import SEED, amount
from test_attention_torch import attention_error, ratio, score_error
import test_onnx as operator

TYPES = {"float32": TensorProto.FLOAT, "bool": TensorProto.BOOL, "int64": TensorProto.INT64,
         "int32": TensorProto.INT32}
TWO_SIDES = 4


def run(op, slots, inputs, outputs, domain, opset, attributes):
    """One node on the CPU provider. `slots` are the operator's inputs in order."""
    named = [name if name in inputs else "" for name in slots]
    while named[-1] == "":
        named.pop()
    node = helper.make_node(op, named, outputs, domain=domain, **attributes)
    graph = helper.make_graph(
        [node], "one", [helper.make_tensor_value_info(n, TYPES[inputs[n].dtype.name],
                                                      inputs[n].shape) for n in slots
                        if n in inputs],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs if n])
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(domain, 1)] if domain else []
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options,
                                   providers=["CPUExecutionProvider"])
    return session.run([n for n in outputs if n], inputs)


# ---- the standard operator ----------------------------------------------------------------------

CASES = amount(25, 80, 400)


def within_its_reach(inputs, attributes, opset):
    """Cases that onnxruntime 1.31's CPU provider supports: no windows, no scale of 0, and no masks
    that have one dimension, broadcast along queries or are short. For a single query, it ignores
    is_causal, which is correct only for one new key."""
    if "left_window_size" in attributes or attributes.get("scale") == 0:
        return False
    if attributes.get("softmax_precision") == 11:
        return False
    mask = inputs.get("attn_mask")
    heads = [attributes.get(n) or 0 for n in ("q_num_heads", "kv_num_heads")]
    _, _, _, T, S, P, _, _ = operator.onnx_shapes(inputs, *heads)
    if attributes.get("is_causal") and T == 1 and S > 1:
        return False
    return mask is None or (mask.ndim > 1 and mask.shape[-2:] == (T, P + S))


def compare_standard(text, ours, theirs, inputs, attributes):
    y_bound, qk_bound = operator.bounds(inputs, attributes)
    worst = 0.0
    for name, right in theirs.items():
        got = ours[name]
        if name.startswith("present"):
            assert np.array_equal(got, right), f"{text}: {name}"
            continue
        bound = y_bound
        if name == "qk_matmul_output":
            mode = attributes.get("qk_matmul_output_mode", 0)
            bound = qk_bound * (np.abs(right) + 1e-30) if mode == 3 else qk_bound
            seen = np.isfinite(got)  # for masked scores, mode 2 has the lowest float instead of -inf
            assert (seen | (right < -1e38)).all(), text
            got, right = np.where(seen, got, 0), np.where(seen, right, 0)
        found = ratio(got, right, TWO_SIDES * bound + 1e-30)
        assert found <= 1, f"{text}: {name}: {found}"
        worst = max(worst, found)
    return worst


def test_standard_attention():
    context, worst, done, number, passed_over = mha.default_context(), 0.0, 0, 0, 0
    print(f"\n  onnxruntime {ort.__version__}, seed {SEED}", end="")
    while done < CASES:
        inputs, attributes, opset, outputs = operator.draw(number, tag=3)
        number += 1
        if not within_its_reach(inputs, attributes, opset):
            passed_over += 1
            continue
        text = operator.describe(number - 1, inputs, attributes, opset)
        if "past_key" in inputs:  # the provider then requires the present outputs
            outputs = list(dict.fromkeys([*outputs, "present_key", "present_value"]))
        last = max(operator.ONNX_OUTPUTS.index(name) for name in outputs)
        theirs = run("Attention", operator.ONNX_INPUTS, inputs,
                     [n if n in outputs else "" for n in operator.ONNX_OUTPUTS[:last + 1]], "",
                     opset, attributes)
        theirs = dict(zip([n for n in operator.ONNX_OUTPUTS if n in outputs], theirs))
        ours = operator.onnx_attention(inputs, outputs, opset=opset, context=context, **attributes)
        worst = max(worst, compare_standard(text, ours, theirs, inputs, attributes))
        done += 1
    print(f": Attention: {done} cases, {passed_over} more are beyond its provider, largest "
          f"difference / bound {worst:.3f}")


# ---- its own operators --------------------------------------------------------------------------

MHA_SLOTS = ("query", "key", "value", "bias", "key_padding_mask", "attention_bias", "past_key",
             "past_value")
GQA_SLOTS = ("query", "key", "value", "past_key", "past_value", "seqlens_k",
             "total_sequence_length", "cos_cache", "sin_cache", "position_ids", "attention_bias",
             "head_sink")


def as_heads(x, heads):
    """[B,T,H*D] as a view [B,H,T,D]."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def difference(text, q, k, v, ours, theirs, keep, bias=0.0, scale=None, cap=0.0):
    """The largest difference divided by the bound; `theirs` is [B,T,H*Dv]."""
    B, H, T, D = q.shape
    k, v = (np.repeat(x.astype(np.float64), H // x.shape[1], 1) for x in (k, v))
    q, bias = q.astype(np.float64), np.broadcast_to(bias, (B, H, T, k.shape[2]))
    scale = D**-0.5 if scale is None else scale
    delta = score_error(q, k, scale, bias)
    if cap:
        delta = delta + 10.8 * 2.0**-24 * cap
    bound, _, _ = attention_error(delta, np.broadcast_to(keep, delta.shape), v)
    found = ratio(ours, as_heads(theirs, H), TWO_SIDES * np.broadcast_to(bound, ours.shape))
    assert found <= 1, f"{text}: {found}"
    return found


def test_multi_head_attention():
    """com.microsoft MultiHeadAttention: padding masks, biases, scale, causal."""
    worst, cases = 0.0, amount(12, 40, 200)
    for number in range(cases):
        rng = np.random.default_rng([SEED, 4, number])
        B, H, D, Dv, T, S = (int(rng.choice(n)) for n in (
            [1, 2, 3], [1, 2, 4], [4, 8, 32], [4, 8, 24], [1, 5, 33], [1, 7, 40]))
        attributes, keywords = {"num_heads": H}, {}
        if rng.random() < 0.3:
            attributes["unidirectional"] = 1
            keywords["causal"] = True
            S, Dv = T, D
        inputs = {n: rng.standard_normal((B, length, H * size), np.float32)
                  for n, length, size in (("query", T, D), ("key", S, D), ("value", S, Dv))}
        keep, bias = np.ones((B, 1, 1, S), bool), 0.0
        if rng.random() < 0.4 and "causal" not in keywords:
            lengths = rng.integers(1, S + 1, B)  # a row without keys would attend to all keys
            keep = (np.arange(S) < lengths[:, None])[:, None, None]
            inputs["key_padding_mask"] = keep[:, 0, 0].astype(np.int32)
            keywords["key_lengths"] = lengths
        if rng.random() < 0.4:
            bias = rng.standard_normal((rng.choice([1, B]), rng.choice([1, H]), T, S), np.float32)
            inputs["attention_bias"] = keywords["bias"] = bias
        if rng.random() < 0.4:
            attributes["scale"] = keywords["scale"] = float(np.float32(rng.choice([0.05, 0.5])))
        if "causal" in keywords:
            keep = np.tril(np.ones((T, S), bool))
        theirs, = run("MultiHeadAttention", MHA_SLOTS, inputs, ["out"], "com.microsoft", 21,
                      attributes)
        q, k, v = (as_heads(inputs[n], H) for n in ("query", "key", "value"))
        ours = mha.attention(q, k, v, **keywords)
        text = f"seed {SEED} case {number}: {q.shape} {v.shape} {attributes} {list(inputs)}"
        worst = max(worst, difference(text, q, k, v, ours, theirs, keep, bias,
                                      keywords.get("scale")))
    print(f"\n  MultiHeadAttention: {cases} cases, largest difference / bound {worst:.3f}")


def draw_group_query(rng):
    """Inputs, attributes, and the library's arguments: q, k, v, keep, keywords."""
    Hk, each, D = int(rng.integers(1, 4)), int(rng.choice([1, 2, 4])), int(rng.choice([8, 16, 64]))
    H, past = Hk * each, bool(rng.random() < 0.4)
    T = int(rng.choice([2, 9, 40]))
    B, P = int(rng.integers(1, 4)), 0
    if past:
        P = int(rng.integers(1, 50))
        B, T = (B, 1) if rng.random() < 0.5 else (1, T)
    inputs = {n: rng.standard_normal((B, T, heads * D), np.float32)
              for n, heads in (("query", H), ("key", Hk), ("value", Hk))}
    for name in ("past_key", "past_value"):
        inputs[name] = rng.standard_normal((B, Hk, P, D), np.float32)
    inputs["seqlens_k"] = np.full(B, P + T - 1, np.int32)
    inputs["total_sequence_length"] = np.array([P + T], np.int32)
    attributes, keywords = {"num_heads": H, "kv_num_heads": Hk}, {"causal": True, "q_offset": P}
    distance = np.arange(T)[:, None] + P - np.arange(P + T)
    keep = distance >= 0
    if rng.random() < 0.3:  # onnxruntime's window includes the query's own key
        attributes["local_window_size"] = window = int(rng.integers(1, 12))
        keywords["window"] = (window - 1, 0)
        keep &= distance < window
    if rng.random() < 0.3:
        attributes["softcap"] = keywords["softcap"] = float(np.float32(rng.choice([1.5, 20])))
    if rng.random() < 0.3:
        attributes["scale"] = keywords["scale"] = float(np.float32(rng.choice([0.05, 0.5])))
    if rng.random() < 0.3:
        inputs["head_sink"] = keywords["sink_logits"] = rng.standard_normal(H, np.float32)
    elif rng.random() < 0.3:
        attributes["smooth_softmax"] = 1
        keywords["sink_logits"] = np.zeros(H, np.float32)
    q, k, v = (as_heads(inputs[n], heads) for n, heads in (("query", H), ("key", Hk),
                                                           ("value", Hk)))
    k, v = (np.concatenate([inputs[n], x], 2) for n, x in (("past_key", k), ("past_value", v)))
    return inputs, attributes, q, k, v, keep, keywords


def test_group_query_attention():
    """com.microsoft GroupQueryAttention: prefill and decode, window, softcap, sinks, scale."""
    worst, cases = 0.0, amount(12, 40, 200)
    for number in range(cases):
        inputs, attributes, q, k, v, keep, keywords = draw_group_query(
            np.random.default_rng([SEED, 5, number]))
        outputs = run("GroupQueryAttention", GQA_SLOTS, inputs,
                      ["out", "present_key", "present_value"], "com.microsoft", 21, attributes)
        assert np.array_equal(outputs[1], k) and np.array_equal(outputs[2], v)
        ours = mha.attention(q, k, v, **keywords)
        text = f"seed {SEED} case {number}: {q.shape} {k.shape} {attributes} {list(inputs)}"
        worst = max(worst, difference(text, q, k, v, ours, outputs[0], keep,
                                      scale=keywords.get("scale"),
                                      cap=keywords.get("softcap", 0)))
    print(f"\n  GroupQueryAttention: {cases} cases, largest difference / bound {worst:.3f}")
