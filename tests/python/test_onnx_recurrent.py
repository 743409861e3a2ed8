"""Recurrent layers and short convolutions compared with the node cases of ONNX's LinearAttention
and CausalConvWithState, which the installed package generates. onnx_linear() and onnx_convolution()
map the operators to the library.

Outputs differ from the stored ones, computed in float32, by at most 1e-5 of the largest, and by a
rounding to float16 if that is the type. Each case is also run in steps, and the state has the bits
of one call.
"""
import ctypes as C
import importlib
from unittest import mock

import numpy as np
import pytest

import multihead
import multihead_ctypes as mha
from multihead import _abi

MOST = {"float32": 1e-5, "float16": 2e-3}
DELTA, SILU = 1, 1


def node_cases(operator):
    """{name: (attributes, {input: array}, outputs)}. Skips the test if this onnx lacks the
    operator."""
    try:
        module = importlib.import_module(f"onnx.backend.test.case.node.{operator}")
    except ImportError:
        return {}
    found = {}

    def keep(node, inputs, outputs, name, **_):
        names = [n for n in node.input if n]
        attributes = {a.name: getattr(a, {1: "f", 2: "i", 3: "s"}[a.type]) for a in node.attribute}
        found[name] = attributes, dict(zip(names, inputs)), outputs

    np.random.seed(1)
    with mock.patch.object(module, "expect", keep):
        for kind in vars(module).values():
            for name in dir(kind) if isinstance(kind, type) else ():
                if name.startswith("export"):
                    getattr(kind, name)()
    return found


LINEAR, CONVOLUTION = node_cases("linear_attention"), node_cases("causal_conv_with_state")


def call(name, *arguments):
    with multihead.Context(threads=2) as handle:
        mha.check(getattr(mha.LIBRARY, name)(handle, *arguments))


def ref(array):
    return C.byref(mha.tensor(array)) if array is not None else None


def heads(x, count):
    return np.ascontiguousarray(x.reshape(*x.shape[:2], count, -1).swapaxes(1, 2))


def onnx_linear(x, steps, update_rule=b"gated_delta", q_num_heads=0, kv_num_heads=0, scale=0.0, chunk_size=0):
    """The operator, with `steps` tokens per call. chunk_size is a hint that changes no result."""
    del chunk_size
    group = q_num_heads // kv_num_heads
    q, k, v = heads(x["query"], q_num_heads), heads(x["key"], kv_num_heads), heads(x["value"], kv_num_heads)
    B, H, T, D = q.shape
    decay, beta = x.get("decay"), x.get("beta")
    if decay is not None:
        decay = heads(decay.astype(np.float32), kv_num_heads).repeat(group, 1)
        decay = decay[..., 0] if decay.shape[-1] == 1 and D > 1 else decay
    if beta is not None:
        beta = heads(beta.astype(np.float32), beta.shape[-1])[..., 0]
        beta = beta.repeat(H // beta.shape[1], 1)
    state, present = C.c_void_p(), np.zeros((B, H, D, v.shape[3]), np.float32)
    size = _abi.named("mha_recurrent_state_desc")(batch=B, heads=H, head_dim=D, value_dim=v.shape[3])
    o = np.zeros((B, H, T, v.shape[3]), q.dtype)
    library = mha.LIBRARY
    with multihead.Context(threads=2) as handle:
        size.struct_size = C.sizeof(size)
        mha.check(library.mha_recurrent_state_create(handle, C.byref(size), C.byref(state)))
        if "past_state" in x:
            past = x["past_state"].astype(np.float32).repeat(group, 1)
            mha.check(library.mha_recurrent_state_write(state, ref(past)))
        for t in range(0, T, steps):
            part = slice(t, min(T, t + steps))
            d, b = (None if a is None else a[:, :, part] for a in (decay, beta))
            desc = _abi.named("mha_recurrent_desc")(
                flags=DELTA if b"delta" in update_rule else 0, scale=scale,
                log_decay=mha._pointer(d), strength=mha._pointer(b))
            desc.struct_size = C.sizeof(desc)
            mha.check(library.mha_recurrent_forward(
                handle, C.byref(desc), ref(q[:, :, part]), ref(k[:, :, part]), ref(v[:, :, part]), state,
                ref(o[:, :, part])))
        mha.check(library.mha_recurrent_state_read(state, ref(present)))
        library.mha_recurrent_state_destroy(state)
    assert (present.reshape(B, kv_num_heads, group, D, -1) == present[:, ::group, None]).all()
    return o.swapaxes(1, 2).reshape(B, T, -1), present[:, ::group]


def onnx_convolution(x, steps, activation=b"none"):
    """The operator in float32 for any type, with `steps` tokens per call."""
    given = {n: a.astype(np.float32) for n, a in x.items()}
    inputs, weight = np.ascontiguousarray(given["input"].swapaxes(1, 2)), given["weight"][:, 0]
    B, T, channels = inputs.shape
    state = np.zeros((B, weight.shape[1] - 1, channels), np.float32)
    if "past_state" in given:
        state[:] = given["past_state"].swapaxes(1, 2)
    y = np.zeros_like(inputs)
    for t in range(0, T, steps):
        call("mha_short_convolution", SILU if activation in (b"silu", b"swish") else 0, ref(inputs[:, t:t + steps]),
             ref(weight), ref(given.get("bias")), ref(state), ref(y[:, t:t + steps]))
    return y.swapaxes(1, 2), state.swapaxes(1, 2)


def check(run, case):
    attributes, inputs, expected = case
    whole = run(inputs, 1 << 20, **attributes)
    for got, step, want in zip(whole, run(inputs, 1, **attributes), expected):
        most = MOST[want.dtype.name] * max(1, np.abs(want, dtype=np.float64).max(initial=0))
        assert got.shape == want.shape and np.abs(got.astype(np.float64) - want).max(initial=0) <= most
        assert np.array_equal(got, step)


@pytest.mark.skipif(not LINEAR, reason="this onnx has no LinearAttention")
def test_every_node_case_is_known():
    assert len(LINEAR) >= 14 and len(CONVOLUTION) >= 13


@pytest.mark.parametrize("name", LINEAR)
def test_linear_attention(name):
    check(onnx_linear, LINEAR[name])


@pytest.mark.parametrize("name", CONVOLUTION)
def test_causal_convolution(name):
    check(onnx_convolution, CONVOLUTION[name])
