"""Attention compared with the ONNX operator's test cases and reference. onnx_attention() below maps
the operator's arguments to the descriptor by the table of docs/coming-from.md.

onnx's reference implementation computes the exact values in float64. Bounds of every element are
the a-priori ones of docs/numerics.md. The installed package generates the node cases, which are
also compared with their stored outputs. MHA_TEST_SEED repeats a run; MHA_TEST_LONG=1 tests all
cases instead of a random sample.
"""
import importlib
import warnings

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case import node
from onnx.reference.ops.op_attention import _compute_attention

import multihead_ctypes as mha
from shared import DEEP, SEED, amount
from test_attention_torch import U, attention_error, ratio, score_error

ONNX_INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
ONNX_OUTPUTS = ("Y", "present_key", "present_value", "qk_matmul_output")
ROUNDING = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}  # of results
SMALLEST = {"float32": 0.0, "float16": 2.0**-25, "bfloat16": 0.0}


def wide(array):
    """Floating arrays as float64."""
    return None if array is None or array.dtype == np.bool_ else (
        array if array.dtype == np.int64 else array.astype(np.float64))


def reference(inputs, **attributes):
    """onnx's reference in float64: Y, present_key, present_value, qk_matmul_output."""
    given = {n: x if x.dtype == np.bool_ else wide(x) for n, x in inputs.items()}
    if "attn_mask" in given:  # the reference's causal mask has the mask's number of queries
        mask = given["attn_mask"]
        T = inputs["Q"].shape[-2]
        given["attn_mask"] = np.array(np.broadcast_to(mask, (*mask.shape[:-2], T, mask.shape[-1])))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = dict(zip(ONNX_OUTPUTS, _compute_attention(
            **given, _validate_attention25=False, **attributes)))
        if attributes.get("qk_matmul_output_mode", 0) == 0 and attributes.get("softcap"):
            # The operator defines raw scores, but the reference caps them.
            attributes = {**attributes, "softcap": 0.0}
            results["qk_matmul_output"] = _compute_attention(
                **given, _validate_attention25=False, **attributes)[3]
    return results


# ---- the operator on the descriptor ---------------------------------------------------------------

def as_heads(x, heads):
    return x if x.ndim == 4 else x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def onnx_shapes(inputs, q_heads, kv_heads):
    """B, H, Hk, T, S, P, D, Dv of the operator's inputs."""
    q, k, v = (as_heads(inputs[n], heads) for n, heads in (("Q", q_heads), ("K", kv_heads), ("V", kv_heads)))
    past = inputs["past_key"].shape[2] if "past_key" in inputs else 0
    return (*q.shape[:2], k.shape[1], q.shape[2], k.shape[2], past, q.shape[3], v.shape[3])


def patterns(array):
    """bfloat16 arrays as uint16, because NumPy lacks the type."""
    return array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array


def onnx_attention(inputs, outputs=("Y",), opset=25, context=None, softmax_precision=0, is_causal=0,
                   left_window_size=-1, right_window_size=-1, qk_matmul_output_mode=0, q_num_heads=0,
                   kv_num_heads=0, **same):
    """The operator: arguments are arrays with the operator's names, and the result is a dict of the
    named outputs."""
    _, _, _, T, S, P, _, _ = onnx_shapes(inputs, q_num_heads, kv_num_heads)
    q, k, v = (as_heads(inputs[n], heads) for n, heads in (
        ("Q", q_num_heads), ("K", kv_num_heads), ("V", kv_num_heads)))
    if P:
        k, v = (np.concatenate([inputs[n], x], 2) for n, x in (("past_key", k), ("past_value", v)))
    same |= {"path": "plain"} if softmax_precision == 11 else {}  # the plain path is double
    if "nonpad_kv_seqlen" in inputs:
        same |= {"key_lengths": inputs["nonpad_kv_seqlen"]}
    if is_causal or left_window_size >= 0 or right_window_size >= 0:
        same |= {"q_offset": same["key_lengths"] - T if "key_lengths" in same else P, "causal": is_causal,
                 "window": (left_window_size, 0 if is_causal else right_window_size)}
    mask = inputs.get("attn_mask")
    if mask is not None:
        if opset >= 24 and mask.shape[-1] < P + S:  # keys beyond the mask are hidden
            fill = False if mask.dtype == np.bool_ else -np.inf
            mask = np.concatenate([mask, np.full((*mask.shape[:-1], P + S - mask.shape[-1]), fill, mask.dtype)], -1)
        same |= {"keep_mask" if mask.dtype == np.bool_ else "bias": patterns(mask)}
    scores = "probabilities" if qk_matmul_output_mode == 3 else "scores"
    found = mha.attention(*(patterns(x) for x in (q, k, v)), context=context, o_type=patterns(q).dtype.type,
                          outputs=(scores,) if "qk_matmul_output" in outputs else (),
                          score_stage=("raw", "capped", "biased", "raw")[qk_matmul_output_mode], **same)
    y, extra = found if isinstance(found, tuple) else (found, {})
    y = y.view(q.dtype)
    if inputs["Q"].ndim == 3:
        y = y.swapaxes(1, 2).reshape(*inputs["Q"].shape[:2], -1)
    results = {"Y": y, "present_key": k, "present_value": v, "qk_matmul_output": extra.get(scores)}
    return {name: results[name] for name in outputs}


# ---- bounds -------------------------------------------------------------------------------------

def visible(inputs, attributes, full, past):
    """(keep, bias) [B,H,T,S]: visible keys, and their additive term."""
    B, H, T, S = full
    keep, bias = np.ones(full, bool), np.zeros(full)
    mask = inputs.get("attn_mask")
    if mask is not None:
        masked = False if mask.dtype == np.bool_ else -np.inf
        mask = np.concatenate([mask, np.full((*mask.shape[:-1], S - mask.shape[-1]), masked,
                                             mask.dtype)], -1)
        if mask.dtype == np.bool_:
            keep &= mask
        else:
            keep &= mask > -np.inf
            bias += np.where(mask > -np.inf, mask, 0)
    lengths = inputs.get("nonpad_kv_seqlen")
    offsets = np.full(B, past) if lengths is None else lengths - T
    distance = np.arange(S) - (np.arange(T)[:, None] + offsets[:, None, None])
    distance = np.broadcast_to(distance[:, None], full)
    if lengths is not None:
        keep &= np.arange(S) < lengths[:, None, None, None]
    if attributes.get("is_causal"):
        keep &= distance <= 0
    if attributes.get("left_window_size", -1) >= 0:
        keep &= -distance <= attributes["left_window_size"]
    if attributes.get("right_window_size", -1) >= 0:
        keep &= distance <= attributes["right_window_size"]
    return keep, bias


def bounds(inputs, attributes):
    """Bounds of Y and of qk_matmul_output for its mode, by docs/numerics.md 3.8 and 3.10."""
    q_heads, kv_heads = (attributes.get(n) or 0 for n in ("q_num_heads", "kv_num_heads"))
    B, H, Hk, T, S, P, D, Dv = onnx_shapes(inputs, q_heads, kv_heads)
    q, k, v = (as_heads(wide(inputs[n]), heads) for n, heads in (("Q", H), ("K", Hk), ("V", Hk)))
    if P:
        k = np.concatenate([wide(inputs["past_key"]), k], 2)
        v = np.concatenate([wide(inputs["past_value"]), v], 2)
    k, v = (np.repeat(x, H // Hk, 1) for x in (k, v))
    scale = D**-0.5 if attributes.get("scale") is None else attributes["scale"]
    keep, bias = visible(inputs, attributes, (B, H, T, P + S), P)
    with np.errstate(all="ignore"):
        q, k, v = (np.nan_to_num(x, nan=0, posinf=0, neginf=0) for x in (q, k, v))
        score = scale * (q @ k.swapaxes(-1, -2))
        raw = score_error(q, k, scale, 0 * bias) + 4 * U * np.abs(score)
        cap = attributes.get("softcap") or 0
        delta = score_error(q, k, scale, bias)
        if cap:
            score = cap * np.tanh(score / cap)
            delta = delta + 10.8 * U * np.abs(score)
        score = score + bias
        y, p, _ = attention_error(delta, keep, v)
        top = np.max(np.where(keep, score, -np.inf), -1, initial=-np.inf, keepdims=True)
        distance = np.where(keep, top - score, 0)
    capped = delta + 4 * U * np.abs(score)
    y = np.broadcast_to(y, (B, H, T, Dv))
    if inputs["Q"].ndim == 3:
        y = y.swapaxes(1, 2).reshape(B, T, H * Dv)
    mode = attributes.get("qk_matmul_output_mode", 0)
    return y, [raw, capped, capped, p + U * distance][mode] * 1.01


def compare(name, results, exact, inputs, attributes):
    """The largest error / bound over all outputs."""
    y_bound, qk_bound = bounds(inputs, attributes)
    worst = 0.0
    for output, got in results.items():
        right = exact[output]
        assert got.shape == right.shape, f"{name}: {output} is {got.shape}, not {right.shape}"
        if output.startswith("present"):
            assert np.array_equal(wide(got), right, equal_nan=True), f"{name}: {output}"
            continue
        if output == "Y":
            bound = y_bound + np.abs(right) * ROUNDING[got.dtype.name] + SMALLEST[got.dtype.name]
        elif attributes.get("qk_matmul_output_mode", 0) == 3:
            bound = right * qk_bound + 1e-37
        else:
            bound = qk_bound
        found = ratio(got, right, bound)
        assert found <= 1, f"{name}: {output}: error / bound {found}"
        worst = max(worst, found)
    return worst


# ---- the operator's node cases ------------------------------------------------------------------

def node_cases():
    """The result of collect_testcases("Attention"), without the import of all operators, which
    takes seven seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        node._TargetOpType = "Attention"
        importlib.import_module("onnx.backend.test.case.node.attention")
    # Other tests of the process import other operators, and onnx keeps all cases in one list
    return [case for case in node._NodeTestCases if "expanded" not in case.name and
            [entry.op_type for entry in case.model.graph.node] == ["Attention"]]


def arrays_of(protos):
    return [numpy_helper.to_array(p) if isinstance(p, onnx.TensorProto) else p for p in protos]


def run_case(case, context):
    """The inputs, attributes, results and stored outputs of one case."""
    node, = case.model.graph.node
    opset, = [entry.version for entry in case.model.opset_import if entry.domain == ""]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    (given, stored), = case.data_sets
    given = dict(zip([i.name for i in case.model.graph.input], arrays_of(given)))
    stored = dict(zip([o.name for o in case.model.graph.output], arrays_of(stored)))
    inputs = {slot: given[name] for slot, name in zip(ONNX_INPUTS, node.input) if name}
    wanted = {slot: stored[name] for slot, name in zip(ONNX_OUTPUTS, node.output) if name}
    results = onnx_attention(inputs, list(wanted), opset=opset, context=context,
                                     **attributes)
    return inputs, attributes, results, wanted


def test_node_cases(contexts):
    """Every case of the installed package, on each instruction set."""
    cases, worst, types = node_cases(), 0.0, {}
    assert len(cases) >= 93  # onnx 1.23
    for case in cases:
        for context in contexts:
            inputs, attributes, results, stored = run_case(case, context)
            worst = max(worst, compare(case.name, results, reference(inputs, **attributes), inputs,
                                       attributes))
            for name, right in stored.items():
                got, right = wide(results[name]), wide(right)
                close = 1e-2 if inputs["Q"].dtype != np.float32 else case.rtol
                assert np.allclose(got, right, rtol=close, atol=max(case.atol, close**2),
                                   equal_nan=True), f"{case.name}: {name}"
        name = inputs["Q"].dtype.name
        types[name] = types.get(name, 0) + 1
    print(f"\n  onnx {onnx.__version__}: {len(cases)} node cases {types}, none left out, largest "
          f"error / bound {worst:.3f}")
    assert worst > 0.001


# ---- at random ----------------------------------------------------------------------------------

CASES = amount(100, 400, 2000)


def draw(number, tag=1):
    """Inputs, attributes, opset and outputs."""
    rng = np.random.default_rng([SEED, tag, number])
    Hk, each = int(rng.integers(1, 4)), int(rng.choice([1, 1, 2, 3]))
    B, H = int(rng.integers(1, 4)), Hk * each
    T, S = (int(rng.choice([1, 2, 5, 17, 40])) for _ in range(2))
    if rng.random() < 0.05:
        S = int(rng.choice([520, 1100]))
    D, Dv = (int(rng.choice([1, 8, 24, 64])) for _ in range(2))
    opset, flat = int(rng.integers(23, 26)), rng.random() < 0.4
    attributes, normal = {}, lambda *shape: rng.standard_normal(shape, np.float32)
    if flat:
        inputs = {"Q": normal(B, T, H * D), "K": normal(B, S, Hk * D), "V": normal(B, S, Hk * Dv)}
        attributes.update(q_num_heads=H, kv_num_heads=Hk)
    else:
        inputs = {"Q": normal(B, H, T, D), "K": normal(B, Hk, S, D), "V": normal(B, Hk, S, Dv)}
    P, outputs = 0, ["Y"]
    if rng.random() < 0.3:
        P = int(rng.integers(0, 20))
        inputs.update(past_key=normal(B, Hk, P, D), past_value=normal(B, Hk, P, Dv))
    elif opset >= 24 and rng.random() < 0.4:
        inputs["nonpad_kv_seqlen"] = rng.integers(0, S + 1, B)
    if "nonpad_kv_seqlen" not in inputs and rng.random() < 0.5:
        outputs += ["present_key", "present_value"]
    draw_mask(rng, inputs, opset, (B, H, T, P + S))
    draw_attributes(rng, attributes, opset)
    if rng.random() < 0.5:
        outputs.append("qk_matmul_output")
        attributes["qk_matmul_output_mode"] = int(rng.integers(4))
    return inputs, attributes, opset, outputs


def draw_mask(rng, inputs, opset, full):
    kind = rng.choice(["none", "bool", "float"])
    if kind == "none":
        return
    shape = list(full[rng.integers(4):])
    shape[:-1] = [1 if rng.random() < 0.3 else n for n in shape[:-1]]
    if opset >= 24 and rng.random() < 0.3:
        least = int(max(inputs.get("nonpad_kv_seqlen", [0])))
        shape[-1] = int(rng.integers(least, full[3] + 1))
    keep = rng.random(shape) < 0.7
    if len(shape) > 1 and rng.random() < 0.3:
        keep[..., 0, :] = False
    inputs["attn_mask"] = keep if kind == "bool" else np.where(
        keep, rng.standard_normal(shape), -np.inf).astype(np.float32)


def draw_attributes(rng, attributes, opset):
    if rng.random() < 0.4:
        attributes["is_causal"] = 1
    if rng.random() < 0.3:
        attributes["scale"] = float(np.float32(rng.choice([0, 0.02, 0.5, 1])))
    if rng.random() < 0.3:
        attributes["softcap"] = float(np.float32(rng.choice([0.5, 2, 30])))
    if rng.random() < 0.2:
        attributes["softmax_precision"] = int(rng.choice([1, 11]))
    if opset == 25 and rng.random() < 0.5:
        attributes["left_window_size"] = int(rng.choice([-1, 0, 2, 9]))
        attributes["right_window_size"] = int(rng.choice([-1, 0, 1, 5]))


def describe(number, inputs, attributes, opset):
    shapes = {n: (x.dtype.name, x.shape) for n, x in inputs.items()}
    return f"seed {SEED} case {number}: opset {opset} {shapes} {attributes}"


def test_by_chance(contexts):
    worst, modes = 0.0, set()
    print(f"\n  seed {SEED}, {CASES} cases", end="")
    for number in range(CASES):
        inputs, attributes, opset, outputs = draw(number)
        name = describe(number, inputs, attributes, opset)
        results = onnx_attention(inputs, outputs, opset=opset,
                                         context=contexts[number % len(contexts)], **attributes)
        worst = max(worst, compare(name, results, reference(inputs, **attributes), inputs,
                                   attributes))
        modes.add((opset, attributes.get("qk_matmul_output_mode")))
    print(f", largest error / bound {worst:.3f}")
    assert worst > 0.001 and (len(modes) == 15 or not DEEP)
