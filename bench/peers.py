#!/usr/bin/env python3
"""Attention beside its peers on a CPU, in one run: torch, onnxruntime, OpenVINO, JAX, OpenBLAS.

    python3 bench/peers.py [--threads 1,2] [--seconds 3] [--rows REGEX] [--out docs/peers]

The first call makes build/peers, a virtual environment with the peers, and goes on there; --here uses
the Python that runs it. Ours is build/libmultihead.so. Both numbers of threads take 20 minutes.

Every peer computes the same row from the same numbers, and its result is compared with ours first.
Then all take turns, and a probe (a small attention, or 16 MB read) stands between the turns: a
turn counts if the probes before and after it took at most a twentieth longer than the third fastest
one. Before each probe is a rest, since threads of some wait awake for their next call, and before
each turn calls that do not count. Printed are the medians of the turns that count (of all, marked ~,
if fewer than five do; slow rows have three turns), and the fastest peer's median over ours. Each
number of threads is a process of its own, which may use as many processors. What a decoding step or a
product of one row reads comes from memory: everybody's calls take turns with copies of it, 128 MB
together or more.

Each peer does the row in the best way that it has. Windows and blocks: torch's flex_attention as its
compiler makes it (the mask's blocks are not timed), onnxruntime's GroupQueryAttention with a window;
else a dense mask. Lengths: onnxruntime has them, the others take a dense mask. JAX's backward holds a
forward pass, since it keeps nothing between calls.

--out writes NAME.md and NAME.svg.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = ("onnx", "onnxruntime", "openvino", "jax", "numpy")
PEERS = ("torch", "torch flex", "onnxruntime", "OpenVINO", "JAX", "OpenBLAS")
QUIET = 5
REST, WARM = 0.05, 0.1  # seconds
COLD = 128 << 20


def enter_environment():
    place = ROOT / "build" / "peers"
    python = place / "bin" / "python"
    if not (place / "ready").exists():
        print(f"installing torch, {', '.join(PACKAGES)} into {place}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        for packages in (["torch==2.13.0"], PACKAGES):
            subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
        (place / "ready").touch()
    os.execv(python, [python, __file__, "--here", *sys.argv[1:]])


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1", help="one number, or several: 1,2")
    parser.add_argument("--seconds", type=float, default=3, help="for a row, at least")
    parser.add_argument("--rows", metavar="REGEX", default="", help="those whose name has a match")
    parser.add_argument("--out", metavar="NAME")
    parser.add_argument("--json", metavar="FILE", help="medians, and what they are of")
    parser.add_argument("--here", action="store_true")
    options = parser.parse_args()
    options.threads = [int(number) for number in options.threads.split(",")]
    return options


if __name__ == "__main__":
    OPTIONS = parse()
    if not OPTIONS.here:
        enter_environment()
    if len(OPTIONS.threads) == 1:
        # Before anything starts threads: all peers then have the same processors.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:OPTIONS.threads[0]])
        for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ[variable] = str(OPTIONS.threads[0])
        os.environ.setdefault("JAX_PLATFORMS", "cpu")

sys.path.insert(0, str(ROOT / "tests" / "python"))
import ctypes as C  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import backward_ctypes  # noqa: E402
import multihead_ctypes as mha  # noqa: E402


def copies_of(size):
    """How many copies of what a call reads are more than caches keep."""
    return max(2, -(-COLD // size))


class Row:
    """A piece of work: its tensors, how ours computes it, and what each peer returns for it."""

    def __init__(self, kind, h, d, n, hk=None, keys=None, batch=1, mask=None, tokens=False):
        self.kind, self.h, self.d, self.n, self.batch, self.mask = kind, h, d, n, batch, mask
        self.hk, self.keys, self.tokens = hk or h, keys or n, tokens
        self.name = self.name_of(kind, h, d, n, hk, keys, batch, mask, tokens)
        rng = np.random.default_rng(1)
        self.q = self.array(rng, self.h, self.n)
        self.k, self.v = (self.array(rng, self.hk, self.keys) for _ in range(2))
        self.memory_bound = kind == "decode"
        count = copies_of(self.k.nbytes + self.v.nbytes) if self.memory_bound else 1
        self.copies = [(self.q, self.k.copy() if i else self.k, self.v.copy() if i else self.v)
                       for i in range(count)]

    @classmethod
    def of(cls, *sizes, **more):
        """(name, how to make it)"""
        return cls.name_of(*sizes, **more), lambda: cls(*sizes, **more)

    @staticmethod
    def name_of(kind, h, d, n, hk=None, keys=None, batch=1, mask=None, tokens=False):
        return (f"{kind} h{h}" + (f"/{hk}" if hk not in (None, h) else "") + f" d{d} n{n}" +
                (f" k{keys}" if keys else "") + (f" b{batch}" if batch > 1 else "") +
                (f" {mask}" if mask else "") + (" bthd" if tokens else ""))

    def array(self, rng, heads, rows):
        shape = (self.batch, heads, rows, self.d)
        if self.tokens:  # as projections write it
            x = rng.standard_normal((self.batch, rows, heads, self.d), np.float32)
            return x.transpose(0, 2, 1, 3)
        return rng.standard_normal(shape, np.float32)

    def dense(self):
        """The mask as torch takes it, True or a number for each pair; None: none."""
        i = np.arange(self.n)
        if self.mask == "lengths":
            return np.broadcast_to(i < self.keys - 100, (1, 1, self.n, self.keys))
        if self.mask == "keep":
            return (np.arange(self.n * self.keys) % 7 != 0).reshape(1, 1, self.n, self.keys)
        if self.mask == "bias":
            return np.random.default_rng(2).standard_normal((1, 1, self.n, self.keys), np.float32)
        if self.mask == "window256":
            back = i[:, None] - i[None, :]
            return ((back >= 0) & (back < 256))[None, None]
        if self.mask == "blocks":
            return np.kron(self.blocks(), np.ones((64, 64), bool))[None, None]
        return None

    def blocks(self):
        kept = np.random.default_rng(3).random((self.n // 64, self.keys // 64)) < 0.2
        return kept | np.eye(*kept.shape, dtype=bool)

    def description(self):
        """The same for ours."""
        if self.mask == "causal":
            return dict(causal=True)
        if self.mask == "lengths":
            return dict(key_lengths=[self.keys - 100] * self.batch)
        if self.mask == "window256":
            return dict(causal=True, window=(255, 0))
        if self.mask == "blocks":
            return dict(keep_blocks=np.ascontiguousarray(self.blocks()[None, None]).view(np.uint8),
                        block_queries=64, block_keys=64)
        if self.mask in ("keep", "bias"):
            name = "keep_mask" if self.mask == "keep" else "bias"
            return {name: np.ascontiguousarray(self.dense())}
        return {}


# ---- ours ----------------------------------------------------------------------------------------


def ours_attention(row, context):
    desc = mha.attention_desc(**row.description())
    o = np.empty_like(row.q)
    copies = [[C.byref(mha.tensor(x)) for x in (*qkv, o)] for qkv in row.copies]

    def call(i):
        mha.check(mha.LIBRARY.mha_attention_forward(context.handle, C.byref(desc),
                                                    *copies[i % len(copies)], None))
        return o
    call.keep = (desc, o)
    return call


def ours_backward(row, context):
    o, extra = mha.attention(row.q, row.k, row.v, ("lse",), context, **row.description())
    g = np.random.default_rng(4).standard_normal(o.shape, np.float32)

    def call(_):
        found = backward_ctypes.attention_backward(row.q, row.k, row.v, o, extra["lse"], g,
                                                   context=context, **row.description())
        return found["q"] if isinstance(found, dict) else found[0]
    return call


def module_weights(row):
    rng = np.random.default_rng(5)
    width = row.h * row.d
    scale = np.float32(width ** -0.5)
    return (rng.standard_normal((row.batch, row.n, width), np.float32),
            rng.standard_normal((3 * width, width), np.float32) * scale,
            rng.standard_normal((width, width), np.float32) * scale)


def ours_module(row, context):
    x, w_in, w_out = module_weights(row)
    width = row.h * row.d
    module = mha.Module(width, row.h)
    module.load_state_dict({"in_proj_weight": w_in, "out_proj.weight": w_out,
                            "in_proj_bias": np.zeros(3 * width, np.float32),
                            "out_proj.bias": np.zeros(width, np.float32)})
    wanted = ("average_probabilities",) if row.mask == "weights" else ()

    def call(_):
        found = module(x, outputs=wanted, context=context)
        return found[0] if wanted else found
    return call


# ---- peers ---------------------------------------------------------------------------------------


def torch_attention(row, threads):
    copies = [[torch.from_numpy(x) for x in qkv] for qkv in row.copies]
    mask = row.dense()
    mask = None if mask is None else torch.from_numpy(np.ascontiguousarray(mask))

    def call(i):
        with torch.inference_mode():
            return F.scaled_dot_product_attention(*copies[i % len(copies)], mask,
                                                  is_causal=row.mask == "causal",
                                                  enable_gqa=row.hk != row.h).numpy()
    return call


def torch_flex(row, threads):
    """Attention that torch compiles for a mask, whose empty blocks it leaves out."""
    if row.mask not in ("window256", "blocks"):
        return None
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    side = 64 if row.mask == "blocks" else 128
    if row.mask == "blocks":
        kept = torch.from_numpy(row.blocks())

        def seen(b, h, i, j):
            return kept[i // side, j // side]
    else:
        def seen(b, h, i, j):
            return (i >= j) & (i - j < 256)
    blocks = create_block_mask(seen, None, None, row.n, row.keys, device="cpu", BLOCK_SIZE=side)
    attend = torch.compile(flex_attention)
    q, k, v = (torch.from_numpy(x) for x in (row.q, row.k, row.v))

    def call(_):
        with torch.inference_mode():
            return attend(q, k, v, block_mask=blocks).numpy()
    return call


def torch_backward(row, threads):
    q, k, v = (torch.from_numpy(x.copy()).requires_grad_() for x in (row.q, row.k, row.v))
    o = F.scaled_dot_product_attention(q, k, v, is_causal=row.mask == "causal")
    g = torch.from_numpy(np.random.default_rng(4).standard_normal(o.shape, np.float32))

    def call(_):
        return torch.autograd.grad(o, (q, k, v), g, retain_graph=True)[0].numpy()
    return call


def torch_module(row, threads):
    x, w_in, w_out = module_weights(row)
    module = torch.nn.MultiheadAttention(row.h * row.d, row.h, batch_first=True).eval()
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.from_numpy(w_in))
        module.out_proj.weight.copy_(torch.from_numpy(w_out))
    x = torch.from_numpy(x)

    def call(_):
        with torch.inference_mode():
            return module(x, x, x, need_weights=row.mask == "weights")[0].numpy()
    return call


def onnx_session(threads, op, inputs, outputs, names=None, **attributes):
    """names: the operator's inputs in order, "" for those that are left out."""
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper
    f32 = TensorProto.FLOAT
    types = {np.dtype(np.float32): f32, np.dtype(np.int32): TensorProto.INT32}
    domain = "com.microsoft"
    node = helper.make_node(op, names or list(inputs), outputs, domain=domain, **attributes)
    graph = helper.make_graph(
        [node], "row",
        [helper.make_tensor_value_info(n, types[a.dtype], a.shape) for n, a in inputs.items()],
        [helper.make_tensor_value_info(n, f32, None) for n in outputs])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21),
                                                    helper.make_opsetid(domain, 1)])
    model.ir_version = 10
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model.SerializeToString(), options,
                                        providers=["CPUExecutionProvider"])


def by_tokens(x):
    """[B,H,T,D] as [B,T,H*D]."""
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(x.shape[0], x.shape[2], -1)


def onnx_attention(row, threads):
    if row.mask == "window256":
        return onnx_grouped(row, threads, 0, local_window_size=256)
    if row.mask == "blocks" or row.hk != row.h:
        return None
    inputs = {"q": by_tokens(row.q), "k": by_tokens(row.k), "v": by_tokens(row.v)}
    names = list(inputs)
    if row.mask == "lengths":
        inputs["lengths"] = np.full(row.batch, row.keys - 100, np.int32)
        names += ["", "lengths"]
    elif row.mask in ("keep", "bias"):
        dense = row.dense()
        inputs["bias"] = dense if row.mask == "bias" else np.where(dense, 0, -np.inf).astype("f4")
        names += ["", "", "bias"]
    session = onnx_session(threads, "MultiHeadAttention", inputs, ["o"], names, num_heads=row.h,
                           unidirectional=int(row.mask == "causal"))

    def call(_):
        o = session.run(None, inputs)[0]
        return o.reshape(row.batch, row.n, row.h, row.d).transpose(0, 2, 1, 3)
    return call


def onnx_grouped(row, threads, past, **attributes):
    """Causal, and the last key and value are the new token's."""
    copies = [{"q": by_tokens(q), "k": by_tokens(k[:, :, past:]), "v": by_tokens(v[:, :, past:]),
               "pk": np.ascontiguousarray(k[:, :, :past]),
               "pv": np.ascontiguousarray(v[:, :, :past]),
               "last": np.full(row.batch, row.keys - 1, np.int32),
               "all": np.full((), row.keys, np.int32)} for q, k, v in row.copies]
    session = onnx_session(threads, "GroupQueryAttention", copies[0], ["o", "nk", "nv"],
                           num_heads=row.h, kv_num_heads=row.hk, **attributes)

    def call(i):
        o = session.run(["o"], copies[i % len(copies)])[0]
        return o.reshape(row.batch, row.n, row.h, row.d).transpose(0, 2, 1, 3)
    return call


def onnx_decode(row, threads):
    return onnx_grouped(row, threads, row.keys - 1)


def openvino_attention(row, threads):
    import openvino
    from openvino import opset13 as ov
    if row.hk != row.h:
        return None
    mask = row.dense()
    masks = [] if mask is None else [np.ascontiguousarray(mask)]
    copies = [[np.ascontiguousarray(x) for x in qkv] + masks for qkv in row.copies]
    parameters = [ov.parameter(list(a.shape), openvino.Type.boolean if a.dtype == bool else
                               openvino.Type.f32) for a in copies[0]]
    node = ov.scaled_dot_product_attention(*parameters, causal=row.mask == "causal")
    model = openvino.Model([node], parameters, "row")
    compiled = openvino.Core().compile_model(model, "CPU", {
        "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()
    tensors = [[openvino.Tensor(a, shared_memory=True) for a in arrays] for arrays in copies]

    def call(i):
        for place, tensor in enumerate(tensors[i % len(tensors)]):
            request.set_input_tensor(place, tensor)
        request.infer()
        return request.get_output_tensor(0).data
    call.keep = copies  # OpenVINO only borrows them
    return call


def jax_arguments(row):
    import jax
    copies = [[jax.numpy.asarray(x.transpose(0, 2, 1, 3)) for x in qkv] for qkv in row.copies]
    options = dict(is_causal=row.mask == "causal")
    if row.mask == "window256":
        options.update(local_window_size=(255, 0))
    elif row.mask == "lengths":
        options.update(key_value_seq_lengths=jax.numpy.full(row.batch, row.keys - 100))
    elif row.dense() is not None:
        mask = jax.numpy.asarray(row.dense())
        options.update({"bias" if row.mask == "bias" else "mask": mask})
    return jax, copies, options


def jax_attention(row, threads):
    jax, copies, options = jax_arguments(row)
    run = jax.jit(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, **options))
    return lambda i: np.asarray(run(*copies[i % len(copies)])).transpose(0, 2, 1, 3)


def jax_backward(row, threads):
    jax, (arrays,), options = jax_arguments(row)
    g = np.random.default_rng(4).standard_normal(row.q.shape, np.float32).transpose(0, 2, 1, 3)
    g = jax.numpy.asarray(g)
    attend = lambda q, k, v: jax.nn.dot_product_attention(q, k, v, **options)  # noqa: E731
    # The forward pass inside is part of what it takes: JAX keeps nothing between calls.
    run = jax.jit(lambda q, k, v: jax.vjp(attend, q, k, v)[1](g))
    return lambda _: np.asarray(run(*arrays)[0]).transpose(0, 2, 1, 3)


# ---- products ------------------------------------------------------------------------------------


class Product:
    """x W^T, beside OpenBLAS (NumPy's) and torch."""

    def __init__(self, m, n, k):
        rng = np.random.default_rng(1)
        self.kind, self.name, self.memory_bound = "gemm", f"gemm {m}x{n}x{k}", m == 1
        self.x, w = rng.standard_normal((m, k), np.float32), rng.standard_normal((n, k), np.float32)
        self.copies = [w.copy() for _ in range(copies_of(w.nbytes) if self.memory_bound else 1)]
        self.shape = (m, n)


def ours_product(row, context):
    lib, handles = mha.LIBRARY, []
    for w in row.copies:
        handles.append(C.c_void_p())
        mha.check(lib.mha_linear_create(context.handle, C.byref(mha.tensor(w)), None,
                                        C.byref(handles[-1])))
    y = np.empty(row.shape, np.float32)
    tensors = [C.byref(mha.tensor(a)) for a in (row.x, y)]

    def call(i):
        mha.check(lib.mha_linear_forward(context.handle, handles[i % len(handles)], 0, *tensors))
        return y
    return call


def numpy_product(row, threads):
    y, copies = np.empty(row.shape, np.float32), [w.T for w in row.copies]
    return lambda i: np.matmul(row.x, copies[i % len(copies)], out=y)


def torch_product(row, threads):
    x, copies = torch.from_numpy(row.x), [torch.from_numpy(w).t() for w in row.copies]
    y = torch.empty(row.shape)
    return lambda i: torch.mm(x, copies[i % len(copies)], out=y).numpy()


ATTENTION = {"torch": torch_attention, "torch flex": torch_flex, "onnxruntime": onnx_attention,
             "OpenVINO": openvino_attention, "JAX": jax_attention}
KINDS = {
    "forward": (ours_attention, ATTENTION),
    "decode": (ours_attention, dict(ATTENTION, onnxruntime=onnx_decode)),
    "backward": (ours_backward, {"torch": torch_backward, "JAX": jax_backward}),
    "module": (ours_module, {"torch": torch_module}),
    "gemm": (ours_product, {"OpenBLAS": numpy_product, "torch": torch_product}),
}


ROWS = [
    *(Row.of("forward", h, d, n, batch=batch) for h, d, n, batch in (
        (8, 64, 512, 1), (8, 64, 2048, 1), (8, 128, 2048, 1), (32, 128, 512, 1), (12, 64, 128, 1),
        (12, 64, 128, 16), (8, 64, 10, 2))),
    Row.of("forward", 8, 64, 2048, tokens=True),
    *(Row.of("forward", 8, d, 2048, mask="causal") for d in (64, 128)),
    *(Row.of("forward", 8, 64, 2048, mask=mask) for mask in ("lengths", "keep", "bias")),
    Row.of("forward", 1, 64, 16384, mask="window256"),
    Row.of("forward", 1, 64, 8192, mask="blocks"),
    *(Row.of("decode", 32, 128, 1, hk=hk, keys=4096) for hk in (8, 32, 1)),
    *(Row.of("backward", 8, d, n) for d in (64, 128) for n in (512, 2048)),
    *(Row.of("module", h, d, n, batch=batch, mask=mask) for h, d, n, batch in (
        (8, 64, 10, 2), (12, 64, 128, 1), (8, 64, 512, 1), (8, 64, 2048, 1), (12, 64, 128, 32))
      for mask in (None, "weights")),
    *((f"gemm {m}x{n}x{k}", lambda m=m, n=n, k=k: Product(m, n, k)) for m, n, k in (
        (512, 512, 512), (2048, 512, 512), (128, 768, 768), (512, 4096, 4096), (16, 512, 512),
        (1, 512, 512), (1, 4096, 4096))),
]


# ---- measuring -----------------------------------------------------------------------------------


def make_probe(context, memory_bound):
    if memory_bound:
        memory = np.ones(4 << 20, np.float32)
        return lambda _: memory.sum()
    return ours_attention(Row("probe", 8, 64, 256), context)


def timed(call, repeats=1, first=0):
    start = time.perf_counter()
    for i in range(repeats):
        call(first + i)
    return (time.perf_counter() - start) / repeats


def rested(probe):
    """A probe, once the threads that a call left behind have gone to sleep: some look for work for 20
    ms, at the cost of whoever comes next."""
    time.sleep(REST)
    return timed(probe)


def warm_up(call, turn):
    """As in a loop of such calls: its threads are awake, on processors of their own. After a rest the
    scheduler takes milliseconds to spread them."""
    begun = time.monotonic()
    while time.monotonic() - begun < WARM:
        call(turn)


def measure(calls, probe, seconds):
    """{name: [(seconds, longer of its two probes)]}"""
    repeats = {}
    for name, call in calls.items():
        call(0)
        repeats[name] = max(1, int(2e-3 / (timed(call, 1, 1) + 1e-7)))
    found, turn = {name: [] for name in calls}, 0
    begun = time.monotonic()
    before = rested(probe)
    while True:
        spent = time.monotonic() - begun
        if spent > seconds and turn >= (QUIET if spent < 4 * seconds else 3):
            break
        for name, call in calls.items():
            warm_up(call, turn)
            took = timed(call, repeats[name], turn * repeats[name] + 1)
            after = rested(probe)
            found[name].append((took, max(before, after)))
            before = after
        turn += 1
    return found


def medians(found):
    """{name: (seconds, whether enough turns were quiet)}"""
    probes = sorted(p for turns in found.values() for _, p in turns)
    level = 1.05 * probes[min(2, len(probes) - 1)]
    result = {}
    for name, turns in found.items():
        quiet = [t for t, p in turns if p <= level]
        enough = len(quiet) >= QUIET
        result[name] = (statistics.median(quiet if enough else [t for t, _ in turns]), enough)
    return result


def agree(name, peer, ours, theirs):
    error = np.abs(theirs - ours).max() / np.abs(ours).max()
    if not error < 1e-3:
        raise SystemExit(f"{name}: {peer} differs from ours by {error:.1e} of the largest value")


def run_row(row, context, threads, seconds):
    make_ours, peers = KINDS[row.kind]
    calls = {"ours": make_ours(row, context)}
    expected = calls["ours"](0).copy()
    for name, make in peers.items():
        try:
            call = make(row, threads)
            result = None if call is None else call(0)
        except (RuntimeError, ImportError, NotImplementedError, ValueError) as problem:
            print(f"   {name}: {str(problem).splitlines()[0][:100]}", file=sys.stderr)
            continue
        if result is not None:
            agree(row.name, name, expected, result)
            calls[name] = call
    return medians(measure(calls, make_probe(context, row.memory_bound), seconds))


def run(options):
    """{name of a row: medians} with one number of threads."""
    threads, = options.threads
    torch.set_num_threads(threads)
    context = mha.Context(num_threads=threads)
    chosen = [(name, make) for name, make in ROWS if re.search(options.rows, name)]
    results, begun = {}, time.monotonic()
    for number, (name, make) in enumerate(chosen, 1):
        results[name] = run_row(make(), context, threads, options.seconds)
        print(f"[{number} of {len(chosen)}, {time.monotonic() - begun:.0f} s, {threads} "
              f"thread{'s' if threads > 1 else ''}] {line(name, results[name])}",
              file=sys.stderr, flush=True)
    return {"isa": context.isa, "rows": results}


# ---- what is said --------------------------------------------------------------------------------


def cell(found, name):
    if name not in found:
        return "-"
    seconds, enough = found[name]
    return f"{'' if enough else '~'}{1e3 * seconds:.3g}"


def fastest(found):
    return min((name for name in found if name != "ours"), key=lambda name: found[name][0],
               default=None)


def ratio(found):
    peer = fastest(found)
    return found[peer][0] / found["ours"][0] if peer else None


def line(name, found):
    said = f"{ratio(found):.2f} ({fastest(found)})" if fastest(found) else "-"
    return f"| {name} | {cell(found, 'ours')} | " + " | ".join(
        cell(found, p) for p in PEERS) + f" | {said} |"


def table(results):
    return "\n".join([f"| row, milliseconds | ours | {' | '.join(PEERS)} | fastest peer / ours |",
                      f"|---|---|{'---|' * len(PEERS)}---|",
                      *(line(name, found) for name, found in results.items())])


STYLE = """<style>
text { font: 12px sans-serif; fill: #1f2328 } .faint { fill: #59636e } .paper { fill: #fff }
.grid { stroke: #d1d9e0 } .even { stroke: #59636e; stroke-dasharray: 3 3 } .link { stroke: #b6bfc9 }
.t0 { fill: #0969da; stroke: #0969da } .t1 { fill: #fff; stroke: #bc4c00 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .faint { fill: #9198a1 } .paper { fill: #0d1117 }
.grid { stroke: #30363d } .even { stroke: #9198a1 } .link { stroke: #4d555f }
.t0 { fill: #58a6ff; stroke: #58a6ff } .t1 { fill: #0d1117; stroke: #f0883e }
}
</style>"""


def picture(runs):
    """How many times as long as ours the fastest peer takes, on a logarithmic axis: a dot for each
    number of threads. runs: {threads: {row: medians}}"""
    names = list(dict.fromkeys(name for rows in runs.values() for name in rows
                               if ratio(rows[name])))
    step, left, wide, top, ticks = 20, 232, 460, 56, [0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50, 100]
    values = [ratio(rows[name]) for rows in runs.values() for name in rows if ratio(rows[name])]
    low, high = min([0.7, *values]) / 1.1, max([2.0, *values]) * 1.1

    def x(value):
        return left + wide * np.log(value / low) / np.log(high / low)

    bottom, width = top + step * len(names), left + wide + 180
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom + 34}" '
           f'viewBox="0 0 {width} {bottom + 34}">', STYLE,
           '<rect class="paper" width="100%" height="100%"/>',
           '<text x="12" y="20">The fastest peer\'s time / ours: right of 1 ours is faster</text>']
    for i, threads in enumerate(runs):
        out.append(f'<circle class="t{i}" cx="{left + 6 + 110 * i}" cy="36" r="4" stroke-width="2"/>'
                   f'<text x="{left + 16 + 110 * i}" y="40">{threads} '
                   f'thread{"s" if int(threads) > 1 else ""}</text>')
    for tick in (t for t in ticks if low <= t <= high):
        out.append(f'<path class="{"even" if tick == 1 else "grid"}" d="M{x(tick):.1f} {top - 6}V'
                   f'{bottom + 4}"/><text class="faint" x="{x(tick):.1f}" y="{bottom + 20}" '
                   f'text-anchor="middle">{tick:g}</text>')
    for number, name in enumerate(names):
        y = top + step * number + 8
        shown = [(i, rows[name]) for i, rows in enumerate(runs.values()) if ratio(rows.get(name, {}))]
        places = [x(ratio(found)) for _, found in shown]
        out.append(f'<text x="{left - 10}" y="{y + 4}" text-anchor="end">{name}</text>'
                   f'<path class="link" d="M{min(places):.1f} {y}H{max(places):.1f}"/>')
        out += [f'<circle class="t{i}" cx="{place:.1f}" cy="{y}" r="4" stroke-width="2"/>'
                for (i, _), place in reversed(list(zip(shown, places)))]
        said = dict.fromkeys(fastest(found) for _, found in shown)
        out.append(f'<text class="faint" x="{left + wide + 12}" y="{y + 4}">{", ".join(said)}</text>')
    return "\n".join(out) + "\n</svg>\n"


def versions(isa):
    import jax
    import onnxruntime
    import openvino
    return (f"torch {torch.__version__.split('+')[0]}, onnxruntime {onnxruntime.__version__}, "
            f"OpenVINO {openvino.__version__.split('-')[0]}, JAX {jax.__version__}, NumPy "
            f"{np.__version__}; ours on {isa}.")


def run_each(options):
    """{number of threads: what run() returns}, each in a process of its own."""
    found = {}
    for threads in options.threads:
        with tempfile.TemporaryDirectory(prefix="multihead-peers-") as place:
            path = pathlib.Path(place) / "found.json"
            subprocess.run([sys.executable, __file__, "--here", "--threads", str(threads),
                            "--seconds", str(options.seconds), "--rows", options.rows, "--json",
                            path], check=True)
            found.update(json.loads(path.read_text()))
    return found


def main(options):
    several = len(options.threads) > 1
    found = run_each(options) if several else {str(options.threads[0]): run(options)}
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(found))
        return
    said = [versions(next(iter(found.values()))["isa"])]
    for threads, results in found.items():
        said += [f"{threads} thread{'s' if int(threads) > 1 else ''}:", table(results["rows"])]
    text = "\n\n".join(said) + "\n"
    print(text, end="")
    if options.out:
        pathlib.Path(options.out + ".md").write_text(text)
        runs = {threads: results["rows"] for threads, results in found.items()}
        pathlib.Path(options.out + ".svg").write_text(picture(runs))


if __name__ == "__main__":
    main(OPTIONS)
