"""The Python package: arrays of every kind, errors, gradients, plans, threads, forks, types."""
import doctest
import gc
import inspect
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
import threading
import traceback

import numpy as np
import pytest

import multihead
from multihead import _abi, _library, _tensor
from shared import HANGS, LIBRARY_DIR, ROOT


def problem(*types, seed=1, B=2, H=4, Hk=2, T=7, S=9, D=8, Dv=6):
    rng = np.random.default_rng(seed)
    types = types or (np.float32,)
    return [rng.standard_normal(shape).astype(types[i % len(types)])
            for i, shape in enumerate(((B, H, T, D), (B, Hk, S, D), (B, Hk, S, Dv)))]


def softmax_attention(q, k, v):
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.astype(np.float64) for x in (q, k.repeat(group, 1), v.repeat(group, 1)))
    weights = np.exp(q @ k.swapaxes(2, 3) / q.shape[3]**0.5)
    return weights / weights.sum(-1, keepdims=True) @ v


# ---- Arrays ---------------------------------------------------------------------------------------


class OnlyDlpack:
    """An array of another library, which supports only DLPack."""

    def __init__(self, array, version=None):
        self.array, self.live = array, 0

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_addresses_are_read_where_numpy_has_them():
    assert _tensor._address is _tensor._read_address or sys.implementation.name != "cpython"
    for array in (np.zeros((3, 4)), np.zeros((3, 4))[1:, 1:], np.zeros((0, 4)), np.zeros(())):
        assert _tensor.look(array, "x")[1] == array.ctypes.data


def test_other_threads_see_whole_structs_and_functions(monkeypatch):
    whole, kind = [], _abi._type
    library = _abi.Library(_library.library._name)

    def watch(text, argument=False):  # during their creation
        assert "mha_context_create" not in vars(library) and ("mha_figure" not in _abi._named or whole)
        return kind(text, argument)

    monkeypatch.setattr(_abi, "_named", {})
    monkeypatch.setattr(_abi, "_type", watch)
    assert _abi.Figure().struct_size == _abi.C.sizeof(_abi.Figure)
    whole.append("mha_figure")
    assert library.mha_context_create.argtypes


def test_nothing_is_copied():
    q, k, v = problem()
    wide = np.zeros((2, 7, 4, 6), np.float32)  # [B,T,H,Dv]
    out = wide.swapaxes(1, 2)
    assert multihead.attention(q, k, v, out=out) is out
    assert np.abs(wide.swapaxes(1, 2) - softmax_attention(q, k, v)).max() < 1e-5
    lse = np.empty((2, 4, 7), np.float32)
    _, found = multihead.attention(q, k, v, outputs={"lse": lse})
    assert found.lse is lse and np.array_equal(
        lse, multihead.attention(q, k, v, outputs="lse")[1].lse)


def test_readonly_inputs_views_and_subclasses():
    q, k, v = problem()
    expected = multihead.attention(q, k, v)
    for x in (q, k, v):
        x.flags.writeable = False
    assert np.array_equal(multihead.attention(q, k, v), expected)
    assert np.array_equal(multihead.attention(q[:, :, ::-1], k, v)[:, :, ::-1], expected)

    class Mine(np.ndarray):
        pass

    assert np.array_equal(multihead.attention(q.view(Mine), k, v), expected)
    broadcast = np.broadcast_to(q[:1, :1], q.shape)
    assert np.array_equal(multihead.attention(broadcast, k, v),
                          multihead.attention(np.ascontiguousarray(broadcast), k, v))


def test_dlpack_producers():
    arrays = problem()
    expected = multihead.attention(*arrays)
    found = multihead.attention(*map(OnlyDlpack, arrays))
    assert type(found) is np.ndarray and np.array_equal(found, expected)
    with pytest.raises(ValueError, match="out: the array is read-only"):
        multihead.attention(*arrays, out=OnlyDlpack(np.empty_like(expected)))
    with pytest.raises(TypeError, match="q: float64 is not .* convert it, e.g. to float32"):
        multihead.attention(OnlyDlpack(arrays[0].astype(float)), *arrays[1:])


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    arrays = problem()
    tensors = [torch.from_numpy(x) for x in arrays]
    o, extra = multihead.attention(*tensors, causal=True, outputs=("lse", "top_keys"))
    assert isinstance(o, torch.Tensor) and extra.top_keys.dtype is torch.int64
    assert np.array_equal(o.numpy(), multihead.attention(*arrays, causal=True))
    half = [x.bfloat16().transpose(1, 2).contiguous().transpose(1, 2) for x in tensors]
    o = multihead.attention(*half, keep_mask=torch.ones(7, 9, dtype=torch.bool).tril())
    assert o.dtype is torch.bfloat16
    expected = multihead.attention(*(x.float() for x in half), keep_mask=np.tri(7, 9, dtype=bool))
    assert torch.equal(o, expected.bfloat16())
    with pytest.raises(TypeError, match=r"q: torch.float64 is not .*e.g. q.to\(torch.float32\)"):
        multihead.attention(tensors[0].double(), *tensors[1:])
    with pytest.raises(TypeError, match=r"q: the tensor requires a gradient.*multihead.torch"):
        multihead.attention(tensors[0].requires_grad_(), *tensors[1:])
    with torch.no_grad():
        multihead.attention(*tensors)
    with pytest.raises(TypeError, match="q: a dense tensor in the CPU's memory is expected"):
        multihead.attention(tensors[0].detach().to("meta"), *tensors[1:])


def test_bfloat16_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    arrays = problem(ml_dtypes.bfloat16)
    o = multihead.attention(*arrays)
    assert o.dtype == ml_dtypes.bfloat16
    widened = multihead.attention(*(x.astype(np.float32) for x in arrays))
    assert np.array_equal(o, widened.astype(ml_dtypes.bfloat16))
    out = np.empty(o.shape, np.float32)
    assert np.array_equal(multihead.attention(*arrays, out=out), widened)


def test_lists_and_numbers_stand_for_small_arrays():
    q, k, v = problem()
    given = multihead.attention(q, k, v, gates=[1, 0.5, 2, 0], sink_logits=(0, 1, 2, 3),
                                keep_mask=[True] * 8 + [False], key_lengths=[9, 4],
                                scale=np.float32(0.25))
    arrays = multihead.attention(
        q, k, v, gates=np.float32([1, 0.5, 2, 0]), sink_logits=np.float32([0, 1, 2, 3]),
        keep_mask=np.arange(9) < 8, key_lengths=np.int32([9, 4]), scale=0.25)
    assert np.array_equal(given, arrays)


def test_ragged_batches_equal_their_sequences():
    q, k, v = problem(B=1, T=12, S=15)
    starts, ends = ([0, 5, 5, 12], [0, 4, 9, 15])
    o, extra = multihead.attention(q, k, v, query_starts=starts, key_starts=ends, causal=True,
                                   outputs=("probabilities", "column_sums"))
    assert extra.probabilities.shape == (1, 4, 12, 6) and extra.column_sums.shape == (1, 4, 15)
    for t0, t1, s0, s1 in zip(starts, starts[1:], ends, ends[1:]):
        one, single = multihead.attention(q[:, :, t0:t1], k[:, :, s0:s1], v[:, :, s0:s1],
                                          causal=True, outputs="probabilities")
        assert np.array_equal(o[:, :, t0:t1], one)
        assert np.array_equal(extra.probabilities[:, :, t0:t1, :s1 - s0], single.probabilities)


# ---- Errors ---------------------------------------------------------------------------------------

Q, K, V = problem()
WRONG = [  # arguments, built-in class of the exception, message
    (dict(q=Q.astype(np.float64)), TypeError, "q: float64 is not supported, expected float32.*astype"),
    (dict(v=V.astype(np.uint16)), TypeError, "v: uint16 is not supported.*ml_dtypes.bfloat16"),
    (dict(k=K.astype(">f4")), TypeError, "k: >f4 has the other byte order"),
    (dict(q=Q.tolist()), TypeError, "q: list is not an array"),
    (dict(q=np.ma.masked_array(Q)), TypeError, "q: MaskedArray is not an array"),
    (dict(q=Q[0]), ValueError, r"q: 3 dimensions, expected 4, .*: q\[None\] if yours are \[heads, length, size\], "
                               r"q\[:, None\] if \[batch, length, size\]$"),
    (dict(v=V[0, 0]), ValueError, r"v: 2 dimensions, .*: v\[None, None\] if yours are \[length, size\]$"),
    (dict(k=K[None]), ValueError, r"k: 5 dimensions, .*: reshape k$"),
    (dict(k=np.ones((2, 3, 9, 8), np.float32)), ValueError, "q has 4 heads, k has 3: "),
    (dict(v=V[:, :1]), ValueError, "v: dim 1 is 1, expected 2"),
    (dict(k=K[..., :5]), ValueError, "k: dim 3 is 5, expected 8"),
    (dict(q=Q[..., ::-1]), ValueError,
     r"q: the last axis has stride -1, it must be contiguous: pass numpy.ascontiguousarray\(q\)"),
    (dict(k=K[:, :, :, ::2], q=Q[:, :, :, :4]), ValueError, "k: the last axis has stride 2, "),
    (dict(out=np.empty((2, 4, 6, 7), np.float32).mT), ValueError,
     "out: the last axis has stride 7, it must be contiguous: pass an array whose last axis is contiguous"),
    (dict(q=np.ndarray((2, 4, 7, 8), np.float32, bytearray(2000), strides=(924, 231, 33, 4))), ValueError,
     "q: a stride of .* is not a whole number of elements of 4"),
    (dict(q=np.frombuffer(bytearray(4 * Q.size + 1), np.float32, offset=1).reshape(Q.shape)), ValueError,
     "q: the array's address is not a multiple"),
    (dict(out=Q), ValueError, "out: dim 3 is 8, expected 6"),
    (dict(out=Q[..., :6]), ValueError, "out.* overlap.*q|q.* overlap.*out"),
    (dict(out=np.broadcast_to(np.float32(0), (2, 4, 7, 6))), ValueError, "out: the array is read-only"),
    (dict(out=np.empty((2, 4, 7, 6))), TypeError, "out: float64 is not supported"),
    (dict(out=np.empty((2, 4, 7, 5), np.float32)), ValueError, "out: dim 3 is 5, expected 6"),
    (dict(outputs={"lse": np.empty((2, 4, 7))}), TypeError, "lse: float64 .*float32"),
    (dict(outputs="lsee"), ValueError, "outputs: 'lsee' is not one of lse, probabilities"),
    (dict(outputs="scores", score_stage="cooked"), ValueError, "score_stage: 'cooked' is not one of 'raw'"),
    (dict(outputs="top_keys", top=0), ValueError, "top: 0"),
    (dict(outputs="probabilities", heads=[4]), ValueError, r"heads\[0\] is 4"),
    (dict(outputs="probabilities", rows=[0.5]), TypeError, "rows: a sequence of whole numbers"),
    *((dict(outputs=outputs, **given), ValueError, f"{next(iter(given))} requires {needs} in outputs")
      for given, needs in ((dict(heads=[0]), "probabilities or scores"), (dict(rows=[0]), "probabilities or scores"),
                           (dict(offsets=[-1]), "offset_mass"), (dict(top=3), "top_keys or top_weights"),
                           (dict(score_stage="biased"), "scores"),
                           (dict(dropped_probabilities=True), "average_probabilities or probabilities"))
      for outputs in ((), "lse")),
    (dict(outputs="probabilities", dropped_probabilities="no"), TypeError, "dropped_probabilities: True or False"),
    (dict(causal="no"), TypeError, "causal: True or False is expected, not 'no'"),
    (dict(causal=2), TypeError, "causal: True or False is expected, not 2"),
    (dict(strict="yes"), TypeError, "strict: True or False"),
    (dict(scale="1"), TypeError, "scale: a number is expected, not '1'"),
    (dict(sink_keys=2), ValueError, "sink_keys, global_keys and global_queries require window$"),
    (dict(t5_one_sided=True), ValueError, "t5_max_distance and t5_one_sided require t5_table$"),
    (dict(need_weights=True), TypeError, 'did you mean outputs="probabilities"'),
    (dict(alibi=True), TypeError, "did you mean alibi_slopes"),
    (dict(key_lengths=3), TypeError, "key_lengths: a sequence of whole numbers is expected, not 3"),
    (dict(softcap=np.ones(2)), TypeError, "softcap: one number is expected"),
    (dict(casual=True), TypeError,
     r"'casual' is not an option of attention; did you mean causal\? The options are causal, scale"),
    (dict(casual=None), TypeError, "did you mean causal"),
    (dict(is_causal=True), TypeError, r"did you mean causal\?"),
    (dict(attn_mask=np.ones((7, 9), bool)), TypeError, r"did you mean keep_mask \(True keeps a key\), or bias for"),
    (dict(mask=np.ones((7, 9), bool)), TypeError, r"did you mean keep_mask \(True keeps a key\)"),
    (dict(dropout_p=0.1), TypeError, r"did you mean dropout\?"),
    (dict(zzz=1), TypeError, "'zzz' is not an option of attention. The options are causal, scale"),
    (dict(scale="big"), TypeError, "scale: a number is expected, not 'big'"),
    (dict(scale=[1, 2]), TypeError, "scale: a number is expected"),
    (dict(softcap=-1.0), ValueError, "softcap"),
    (dict(dropout=1.5), ValueError, "dropout"),
    (dict(dropout_seed=-1, dropout=0.1), ValueError, "dropout_seed: -1 is not in 0 .. "),
    (dict(q_offset=0.5, causal=True), TypeError, "q_offset: a whole number is expected"),
    (dict(q_offset=2**70, causal=True), ValueError, "q_offset: "),
    (dict(q_offset=3), ValueError, "q_offset"),
    (dict(key_lengths=[9]), ValueError, "key_lengths: 1 numbers given, expected 2, for a batch of 2"),
    (dict(key_lengths=[9, 10]), ValueError, r"key_lengths\[1\] is 10"),
    (dict(key_lengths=[9.0, 2.0]), TypeError, "key_lengths: a sequence of whole numbers"),
    (dict(key_lengths=[[9, 2]]), TypeError, "key_lengths: a sequence of whole numbers"),
    (dict(query_starts=[0, 7]), ValueError, "query_starts and key_starts belong together"),
    (dict(query_starts=[], key_starts=[]), ValueError, "at least one number"),
    (dict(query_starts=[0, 7], key_starts=[0, 9, 9]), ValueError, "key_starts: 3 numbers given, expected 2"),
    (dict(window=(1,)), TypeError, r"window: \(1,\) is not \(keys before, keys after\)"),
    (dict(window=3), TypeError, "window: .*keys before, keys after"),
    (dict(keep_mask=np.ones((7, 9), np.int64)), TypeError,
     r"keep_mask: int64 is not .* expected bool: convert it, e.g. keep_mask.astype\(bool\)"),
    (dict(keep_mask=np.zeros((7, 9), np.float32)), TypeError, "True keeps a key; numbers that are added .* bias="),
    (dict(keep_mask=np.ones((3, 9), bool)), ValueError, "keep_mask"),
    (dict(gates=np.ones(4)), TypeError, r"gates: float64 .*gates.astype\(numpy.float32\)"),
    (dict(query_documents=np.zeros((2, 7), np.int32)), ValueError, "key_documents"),
    (dict(keep_callback=3), TypeError, "keep_callback: int is not a function"),
    (dict(path="tile"), ValueError, "path: 'tile' is not one of 'auto', 'tiled', 'plain'"),
    (dict(compute="f16"), ValueError, "compute: 'f16' is not one of"),
    (dict(compute="int8"), ValueError, r"compute is 1 \(int8\), expected 0 \(f32\) or 2 \(bf16\)"),
    (dict(compute="bf16", path="plain"), NotImplementedError, "only compute f32 has a path plain"),
    (dict(context="avx2"), TypeError, "context: str is not a multihead.Context"),
]


@pytest.mark.parametrize("given,kind,says", WRONG, ids=lambda x: "")
def test_wrong_arguments(given, kind, says):
    arguments = dict(q=Q, k=K, v=V) | given
    for _ in range(2):  # the second call is not affected by the first
        with pytest.raises(kind, match=says) as caught:
            multihead.attention(**arguments)
        assert not re.search("mha_|MHA_", str(caught.value)), "a name of the C library"
    multihead.attention(Q, K, V)


def test_errors_are_of_two_classes_and_travel():
    with pytest.raises(multihead.Error) as caught:
        multihead.attention(Q, K[..., :5], V)
    error = caught.value
    assert isinstance(error, multihead.InvalidArgument) and error.status == 10
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.status == 10
    for ours, built_in in (("DTypeError", TypeError), ("FileError", OSError),
                           ("OutOfMemory", MemoryError), ("Unsupported", NotImplementedError),
                           ("CallbackError", RuntimeError)):
        assert issubclass(getattr(multihead, ours), (built_in,))
        again = pickle.loads(pickle.dumps(getattr(multihead, ours)("what", 7)))
        assert str(again) == "what" and again.status == 7


def test_errors_are_named_as_they_are_caught():
    """Errors are named multihead.Error, without the module that defines the class."""
    for name in ("Error", "InvalidArgument", "DTypeError", "FileError", "OutOfMemory", "Unsupported", "CallbackError"):
        of = getattr(multihead, name)
        assert "".join(traceback.format_exception_only(of("what"))) == f"multihead.{name}: what\n"
        assert issubclass(of, multihead.Error)


def test_nothing_is_written_on_an_error():
    out = np.full((2, 4, 7, 6), 5, np.float32)
    with pytest.raises(ValueError):
        multihead.attention(Q, K, V, out=out, key_lengths=[9, 10])
    assert (out == 5).all()


# ---- Callbacks ------------------------------------------------------------------------------------


def test_callbacks_see_positions_and_raise():
    seen = set()

    def causal(b, h, t, s):
        seen.add((b, h))
        return s <= t

    assert np.array_equal(multihead.attention(Q, K, V, keep_callback=causal),
                          multihead.attention(Q, K, V, causal=True))
    assert seen == {(b, h) for b in range(2) for h in range(4)}
    with pytest.raises(ZeroDivisionError):
        multihead.attention(Q, K, V, keep_callback=lambda b, h, t, s: 1 / 0)
    with pytest.raises(ValueError, match="broadcast"):
        multihead.attention(Q, K, V, keep_callback=lambda b, h, t, s: np.ones((3, 2)))


def test_a_callback_may_call_with_a_context_of_its_own():
    context, other = multihead.Context(threads=1), multihead.Context(threads=1)
    nested = lambda with_: lambda b, h, t, s: bool(  # noqa: E731
        multihead.attention(Q, K, V, context=with_).any()) | (s >= 0)
    expected = multihead.attention(Q, K, V)
    assert np.array_equal(multihead.attention(Q, K, V, keep_callback=nested(other),
                                              context=context), expected)
    with pytest.raises(RuntimeError, match="pass another one"):
        multihead.attention(Q, K, V, keep_callback=nested(context), context=context)


def in_another_process(program):
    """The output of a separate program, because it might hang or crash."""
    begin = ("import signal, sys, threading\nsys.path[:0] = %r\nimport numpy as np, multihead\n"
             "q, k, v = np.random.default_rng(1).standard_normal((3, 4, 8, 128, 16), np.float32)\n"
             "context = multihead.Context(threads=4)\n" % sys.path)
    done = subprocess.run([sys.executable, "-c", begin + program], capture_output=True, text=True,
                          timeout=HANGS, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


def test_a_callback_in_another_thread_cannot_wait_for_its_caller():
    assert "pass another one" in in_another_process("""
keep = lambda b, h, t, s: multihead.attention(q, k, v, context=context).any() | (s >= 0)
try:
    multihead.attention(q, k, v, context=context, keep_callback=keep)
except RuntimeError as error:
    print(error)
""")
    assert "pass another one" in in_another_process("""
features = lambda rows: multihead.attention(q, k, v, context=context).any() + rows**2
try:
    multihead.linear_attention(q, k, v, context=context, feature_map=features, feature_dim=16)
except RuntimeError as error:
    print(error)
""")


def test_an_interrupt_is_not_lost_between_callbacks():
    """The signal arrives while the main thread is in the library. Python handles it at the start of a callback, where
    an exception would be lost."""
    assert in_another_process("""
import os
main = threading.main_thread()

def handler(number, frame):
    seen.append(number)
    raise KeyboardInterrupt

def keep(b, h, t, s):
    if threading.current_thread() is not main and once.acquire(blocking=False):
        os.kill(os.getpid(), signal.SIGINT)
    return s <= t

signal.signal(signal.SIGINT, handler)
for _ in range(40):
    once, seen, raised = threading.Lock(), [], False
    try:
        multihead.attention(q, k, v, context=context, keep_callback=keep)
        while once.locked() and not seen:
            pass  # it has not come yet
    except KeyboardInterrupt:
        raised = True
    assert raised == bool(seen)
assert signal.getsignal(signal.SIGINT) is handler
print("done")
""") == "done\n"


# ---- Gradients and plans --------------------------------------------------------------------------


def test_gradients_against_differences():
    rng = np.random.default_rng(3)
    q, k, v = problem(B=1, T=5, S=6)
    given = {"bias": rng.standard_normal((1, 4, 5, 6), np.float32), "sink_logits": np.zeros(4, np.float32),
             "gates": np.float32([1, 2, 0.5, -1]), "softcap": 4.0, "causal": True, "q_offset": 1}
    g = rng.standard_normal((1, 4, 5, 6), np.float32)
    lse_g = rng.standard_normal((1, 4, 5), np.float32)

    def loss(**changed):
        o, extra = multihead.attention(**{"q": q, "k": k, "v": v, **given, **changed}, outputs="lse",
                                       path="plain")
        return float((o * g.astype(float)).sum() + (extra.lse * lse_g.astype(float)).sum())

    o, extra = multihead.attention(q, k, v, **given, outputs="lse")
    names = ("q", "k", "v", "bias", "sink_logits", "gates", "scale")
    found = multihead.attention_backward(q, k, v, o, extra.lse, g, wanted=names, lse_gradient=lse_g,
                                         **given)
    step = 2.0**-6  # errors are step^2 / 6 of the third derivative, and 1e-6 of o / step
    for name in ("q", "k", "v", "bias", "sink_logits", "gates"):
        x = {"q": q, "k": k, "v": v, **given}[name]
        gradient = getattr(found, name)
        assert gradient.shape == x.shape and gradient.dtype == np.float32
        direction = np.sign(rng.standard_normal(x.shape)).astype(np.float32)
        slope = (loss(**{name: x + step * direction}) - loss(**{name: x - step * direction})) / 2 / step
        assert abs(slope - (gradient * direction).sum()) < 0.02 * (1 + abs(gradient).sum())
    scale = 8**-0.5
    slope = (loss(scale=scale + step) - loss(scale=scale - step)) / 2 / step
    assert found.scale.shape == () and abs(slope - found.scale) < 0.02 * (1 + abs(slope))
    assert found.alibi_slopes is None

    into = {"q": np.full_like(q, 3)}
    multihead.attention_backward(q, k, v, o, extra.lse, g, wanted=into, accumulate=True,
                                 lse_gradient=lse_g, **given)
    assert np.abs(into["q"] - 3 - found.q).max() < 1e-5


def test_gradients_of_weights():
    q, k, v = problem(B=1)
    o, extra = multihead.attention(q, k, v, outputs=("lse", "probabilities"))
    zero, w = np.zeros_like(o), np.zeros_like(extra.probabilities)
    w[0, 1, 2, 3] = 1
    found = multihead.attention_backward(q, k, v, o, extra.lse, zero, probabilities_gradient=w)
    p = extra.probabilities[0, 1, 2].astype(float)
    dx = p * (np.arange(9) == 3) - p * p[3]  # of the softmax
    assert np.abs(found.q[0, 1, 2] - dx @ k[0, 0] * 8**-0.5).max() < 1e-6
    assert not found.v.any() and not found.q[0, 0].any()


def test_wrong_gradients():
    o, extra = multihead.attention(Q, K, V, outputs="lse")
    call = lambda **given: multihead.attention_backward(  # noqa: E731
        Q, K, V, o, extra.lse, np.ones_like(o), **given)
    for given, kind, says in ((dict(wanted="b"), ValueError, "wanted: 'b' is not one of q, k"),
                              (dict(wanted="bias"), ValueError, "wanted: bias is not an input"),
                              (dict(accumulate=True), ValueError, "accumulate: pass the arrays"),
                              (dict(wanted={"q": Q}), ValueError, "overlap"),
                              (dict(compute="bf16"), NotImplementedError, "bf16")):
        with pytest.raises(kind, match=says):
            call(**given)


def test_plans_are_readable():
    plan = multihead.explain(Q, K, V, causal=True, outputs=("lse", "probabilities"))
    assert plan.path == "tiled" and plan.threads == multihead.get_threads()
    assert plan.visible_pairs == 2 * 4 * sum(range(1, 8)) and plan.one_block is False
    assert "visible_pairs  224\n" in str(plan) and "need no matrix of all scores" in plan.reason
    assert multihead.explain(Q, K, V, path="plain").path == "plain"
    with pytest.raises(ValueError, match="k: dim 3"):
        multihead.explain(Q, K[..., :5], V)


# ---- Contexts, threads, processes -----------------------------------------------------------------


def test_contexts():
    context = multihead.Context(threads=2, isa="portable")
    assert context.threads == 2 and context.isa == "portable"
    assert repr(context) == "multihead.Context(threads=2, isa='portable')"
    assert np.abs(multihead.attention(Q, K, V, context=context)
                  - softmax_attention(Q, K, V)).max() < 1e-5
    for given, says in ((dict(threads=-1), "threads: -1"), (dict(threads=1.5), "threads: 1.5"),
                        (dict(isa="sse"), "isa: 'sse' is not one of 'auto', 'portable'")):
        with pytest.raises(ValueError, match=says):
            multihead.Context(**given)
    with pytest.raises(TypeError, match="belongs to its process"):
        pickle.dumps(context)
    missing = next(isa for isa in ("neon", "avx512", "avx2") if not multihead.isa_available(isa))
    with pytest.raises(multihead.Unsupported, match=f"isa: {missing}"):
        multihead.Context(isa=missing)


def test_set_threads_holds_for_every_thread():
    before, found = multihead.get_threads(), []
    try:
        multihead.set_threads(3)
        worker = threading.Thread(target=lambda: found.append(multihead.get_threads()))
        worker.start()
        worker.join()
        assert found == [3] and multihead.get_threads() == 3
    finally:
        multihead.set_threads(before)


def test_many_threads_at_once():
    """Threads with separate calls, and threads with one context, are bit-identical to one
    thread."""
    shared = multihead.Context(threads=2)
    problems = [problem(seed=seed, T=5 + seed, S=40) for seed in range(4)]
    expected = [multihead.attention(*p, causal=True) for p in problems]
    wrong = []

    def work(number):
        for i in range(40):
            p = (number + i) % 4
            found = multihead.attention(*problems[p], causal=True,
                                        context=shared if i % 2 else None)
            if not np.array_equal(found, expected[p]):
                wrong.append((number, i))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_contexts_of_finished_threads_are_freed():
    gc.collect()
    before = len(_library._contexts)
    for _ in range(5):
        worker = threading.Thread(target=lambda: multihead.attention(Q, K, V))
        worker.start()
        worker.join()
    gc.collect()
    assert len(_library._contexts) <= before


def test_the_gil_is_released():
    """A callback in another thread needs the GIL while the caller waits in the library."""
    callers = set()
    q, k, v = problem(B=4, T=64, S=1100)
    multihead.attention(q, k, v, context=multihead.Context(threads=4),
                        keep_callback=lambda *_: callers.add(threading.get_ident()) or True)
    assert callers  # otherwise the call would have deadlocked


def in_child(queue):
    queue.put([multihead.attention(Q, K, V, causal=True).tobytes(),
               multihead.attention(Q, K, V, causal=True, context=CONTEXT).tobytes(),
               multihead.attention(Q, K, V, causal=True, context=BUSY).tobytes()])


CONTEXT, BUSY = multihead.Context(threads=2), multihead.Context(threads=2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_fork():
    """A child process computes with its parent's contexts, including one in use by another thread."""
    expected = multihead.attention(Q, K, V, causal=True)
    multihead.attention(Q, K, V, context=CONTEXT)
    inside, finished = threading.Event(), threading.Event()

    def wait(b, h, t, s):
        inside.set()
        return finished.wait(HANGS) | (s >= 0)

    busy = threading.Thread(target=lambda: multihead.attention(Q, K, V, context=BUSY,
                                                               keep_callback=wait))
    busy.start()
    inside.wait()
    try:
        fork = multiprocessing.get_context("fork")
        queue = fork.Queue()
        child = fork.Process(target=in_child, args=(queue,))
        child.start()
        assert queue.get(timeout=HANGS) == [expected.tobytes()] * 3
        child.join()
        assert child.exitcode == 0
    finally:
        finished.set()
        busy.join()
    assert np.array_equal(multihead.attention(Q, K, V, causal=True), expected)


# ---- The package ----------------------------------------------------------------------------------


def test_prepared_calls_are_bounded():
    for length in range(1, 600):
        multihead.attention(Q[:, :, :1], K[:, :, :1], V[:, :, :1], scale=1 / length)
    assert len(_library.thread.calls) <= 256


def test_libraries_of_the_system():
    """A package without its own libraries, like Debian's, uses the libraries that the loader
    finds."""
    variables = {name: value for name, value in os.environ.items() if name != "MHA_LIBRARY_DIR"}
    variables["PYTHONPATH"] = str(ROOT / "bindings/python")
    script = "from multihead import _library as l; print(l.model_library(), l.render_library())"
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, capture_output=True, text=True, env=variables | {
        "LD_LIBRARY_PATH": str(LIBRARY_DIR.resolve())})
    assert "libmultihead-model.so.0" in found.stdout, found.stderr
    found = subprocess.run(command, capture_output=True, text=True, env=variables)
    if found.returncode:  # no installed library was found
        assert "install the package with pip, or set MHA_LIBRARY_DIR" in found.stderr


def test_the_program_does_not_run_itself(tmp_path, monkeypatch):
    monkeypatch.delenv("MHA_LIBRARY_DIR")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImportError):
        _library.program()
    command = tmp_path / "multihead"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    assert _library.program() == str(command)
    monkeypatch.setattr(sys, "argv", [str(command)])
    with pytest.raises(ImportError):
        _library.program()


def test_signatures_list_every_option():
    for function in (multihead.attention, multihead.attention_backward, multihead.explain):
        names = inspect.signature(function).parameters
        assert {*multihead.AttentionOptions.__annotations__} <= {*names}
        assert function.__doc__ and names["path"].default == "auto"
    text = multihead.attention.__doc__
    assert all(name in text for name in multihead.AttentionOptions.__annotations__)


def test_every_public_name_has_documentation():
    for name in multihead.__all__:
        assert inspect.getdoc(getattr(multihead, name)), name


def test_examples():
    """The examples of the page and of the docstrings run."""
    import page_examples
    assert page_examples.run(ROOT / "docs/python.md").failed == 0
    names = {name: getattr(multihead, name) for name in multihead.__all__}
    for name in multihead.__all__:
        o = multihead.attention(Q, K, V, causal=True)
        given = {**names, "q": Q, "k": K, "v": V, "o_gradient": np.ones_like(o)}
        for test in doctest.DocTestFinder(recurse=False).find(names[name], name, globs=given):
            assert doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")),
                         ids=lambda path: path.stem)
def test_programs_print_what_they_should(path):
    found = subprocess.run([sys.executable, path], capture_output=True, text=True, env=os.environ | {
        "PYTHONPATH": str(ROOT / "bindings/python")})
    assert found.stdout == path.with_suffix(".expected").read_text(), found.stderr


def test_version():
    text = (ROOT / "include/multihead/multihead.h").read_text()
    found = dict(re.findall(r"#define MHA_VERSION_(\w+) \"?([^\"\s]*)", text))
    assert multihead.__version__ == "{MAJOR}.{MINOR}.{PATCH}{SUFFIX}".format_map(found)


def test_types(tmp_path):
    """mypy --strict accepts the package and a correct program that uses it, and rejects wrong ones."""
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text("\n".join((
        "import multihead, numpy as np, numpy.typing as npt",
        "q: npt.NDArray[np.float32] = np.zeros((1, 1, 2, 4), np.float32)",
        "o: npt.NDArray[np.float32] = multihead.attention(q, q, q, causal=True, window=(1, 0))",
        "o, extra = multihead.attention(q, q, q, outputs=('lse',))",
        "print(extra.lse, multihead.explain(q, q, q).path)",
        "multihead.attention(q, q, q, casual=True)  # type: ignore[call-overload]",
        "multihead.attention(q, q, q, window=1)  # type: ignore[call-overload]")))
    root = ROOT
    package = sorted((root / "bindings/python/multihead").rglob("*.py"))
    found = subprocess.run([sys.executable, "-m", "mypy", "--config-file", root / "pyproject.toml",
                            "--cache-dir", LIBRARY_DIR / "mypy", program, *package],
                           capture_output=True, text=True, cwd=root)
    assert found.returncode == 0, found.stdout + found.stderr
