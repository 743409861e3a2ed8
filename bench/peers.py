#!/usr/bin/env python3
"""Attention beside its peers on a CPU, in one run: torch, onnxruntime, OpenVINO, JAX, OpenBLAS.

    python3 bench/peers.py [--threads 1] [--seconds 10] [--out docs/peers] [PART ...]

PART chooses the rows whose name contains it. The first call makes build/peers, a virtual environment
with the peers, and goes on there; --here uses the Python that runs it. Ours is build/libmultihead.so.

Every peer computes the same row from the same numbers, and its result is compared with ours first.
Then all take turns, and a probe (a small attention, or 16 MB read) stands between the turns: a
turn counts if the probes before and after it took at most a twentieth longer than the third fastest
one. Printed are the medians of the turns that count (of all, marked ~, if fewer than five do), and
the fastest peer's median over ours. The process may use as many processors as --threads says.

--out writes NAME.md and NAME.svg.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = ("onnx", "onnxruntime", "openvino", "jax", "numpy")
QUIET = 5


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
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10, help="for a row")
    parser.add_argument("--out", metavar="NAME")
    parser.add_argument("--here", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    OPTIONS = parse()
    if not OPTIONS.here:
        enter_environment()
    # Before anything starts threads: all peers then have the same processors.
    processors = sorted(os.sched_getaffinity(0))[:OPTIONS.threads]
    os.sched_setaffinity(0, processors)
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(OPTIONS.threads)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

sys.path.insert(0, str(ROOT / "tests" / "python"))
import ctypes as C  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import backward_ctypes  # noqa: E402
import multihead_ctypes as mha  # noqa: E402


class Row:
    """A piece of work: its tensors, how ours computes it, and what each peer returns for it."""

    def __init__(self, kind, h, d, n, hk=None, keys=None, batch=1, mask=None, tokens=False):
        self.kind, self.h, self.d, self.n, self.batch, self.mask = kind, h, d, n, batch, mask
        self.hk, self.keys, self.tokens = hk or h, keys or n, tokens
        rng = np.random.default_rng(1)
        self.q = self.array(rng, self.h, self.n)
        self.k, self.v = (self.array(rng, self.hk, self.keys) for _ in range(2))
        self.name = (f"{kind} h{h}" + (f"/{self.hk}" if self.hk != h else "") + f" d{d} n{n}" +
                     (f" k{keys}" if keys else "") + (f" b{batch}" if batch > 1 else "") +
                     (f" {mask}" if mask else "") + (" bthd" if tokens else ""))
        self.memory_bound = kind == "decode"

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
    tensors = [C.byref(mha.tensor(x)) for x in (row.q, row.k, row.v, o)]

    def call():
        mha.check(mha.LIBRARY.mha_attention_forward(context.handle, C.byref(desc), *tensors, None))
        return o
    call.keep = (desc, o)
    return call


def ours_backward(row, context):
    o, extra = mha.attention(row.q, row.k, row.v, ("lse",), context, **row.description())
    g = np.random.default_rng(4).standard_normal(o.shape, np.float32)

    def call():
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

    def call():
        found = module(x, outputs=wanted, context=context)
        return found[0] if wanted else found
    return call


# ---- peers ---------------------------------------------------------------------------------------


def torch_attention(row, threads):
    q, k, v = (torch.from_numpy(np.ascontiguousarray(x) if not row.tokens else x)
               for x in (row.q, row.k, row.v))
    mask = row.dense()
    mask = None if mask is None else torch.from_numpy(np.ascontiguousarray(mask))

    def call():
        with torch.inference_mode():
            return F.scaled_dot_product_attention(q, k, v, mask, is_causal=row.mask == "causal",
                                                  enable_gqa=row.hk != row.h).numpy()
    return call


def torch_backward(row, threads):
    q, k, v = (torch.from_numpy(x.copy()).requires_grad_() for x in (row.q, row.k, row.v))
    o = F.scaled_dot_product_attention(q, k, v, is_causal=row.mask == "causal")
    g = torch.from_numpy(np.random.default_rng(4).standard_normal(o.shape, np.float32))

    def call():
        return torch.autograd.grad(o, (q, k, v), g, retain_graph=True)[0].numpy()
    return call


def torch_module(row, threads):
    x, w_in, w_out = module_weights(row)
    module = torch.nn.MultiheadAttention(row.h * row.d, row.h, batch_first=True).eval()
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.from_numpy(w_in))
        module.out_proj.weight.copy_(torch.from_numpy(w_out))
    x = torch.from_numpy(x)

    def call():
        with torch.inference_mode():
            return module(x, x, x, need_weights=row.mask == "weights")[0].numpy()
    return call


def onnx_session(threads, op, inputs, outputs, domain="com.microsoft", opset=1, **attributes):
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper
    f32 = TensorProto.FLOAT
    types = {np.dtype(np.float32): f32, np.dtype(np.int32): TensorProto.INT32}
    node = helper.make_node(op, list(inputs), list(outputs), domain=domain, **attributes)
    graph = helper.make_graph(
        [node], "row",
        [helper.make_tensor_value_info(n, types[a.dtype], a.shape) for n, a in inputs.items() if n],
        [helper.make_tensor_value_info(n, f32, None) for n in outputs])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21),
                                                    helper.make_opsetid(domain, opset)])
    model.ir_version = 10
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model.SerializeToString(), options,
                                        providers=["CPUExecutionProvider"])


def by_tokens(x):
    """[B,H,T,D] as [B,T,H*D]."""
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(x.shape[0], x.shape[2], -1)


def onnx_attention(row, threads):
    if row.mask not in (None, "causal") or row.hk != row.h:
        return None
    inputs = {"q": by_tokens(row.q), "k": by_tokens(row.k), "v": by_tokens(row.v)}
    session = onnx_session(threads, "MultiHeadAttention", inputs, ["o"], num_heads=row.h,
                           unidirectional=int(row.mask == "causal"))

    def call():
        o = session.run(None, inputs)[0]
        return o.reshape(row.batch, row.n, row.h, row.d).transpose(0, 2, 1, 3)
    return call


def onnx_decode(row, threads):
    """The new token's key and value are the last ones."""
    past = row.keys - 1
    inputs = {"q": by_tokens(row.q), "k": by_tokens(row.k[:, :, past:]),
              "v": by_tokens(row.v[:, :, past:]), "pk": np.ascontiguousarray(row.k[:, :, :past]),
              "pv": np.ascontiguousarray(row.v[:, :, :past]),
              "last": np.full(row.batch, past, np.int32), "all": np.full((), row.keys, np.int32)}
    session = onnx_session(threads, "GroupQueryAttention", inputs, ["o", "nk", "nv"],
                           num_heads=row.h, kv_num_heads=row.hk)

    def call():
        o = session.run(["o"], inputs)[0]
        return o.reshape(row.batch, 1, row.h, row.d).transpose(0, 2, 1, 3)
    return call


def openvino_attention(row, threads):
    import openvino
    from openvino import opset13 as ov
    arrays = [np.ascontiguousarray(x) for x in (row.q, row.k, row.v)]
    if row.hk != row.h or row.mask in ("window256", "blocks", "lengths"):
        return None
    mask = row.dense()
    if mask is not None:
        arrays.append(np.ascontiguousarray(mask))
    parameters = [ov.parameter(list(a.shape), openvino.Type.boolean if a.dtype == bool else
                               openvino.Type.f32) for a in arrays]
    node = ov.scaled_dot_product_attention(*parameters, causal=row.mask == "causal")
    model = openvino.Model([node], parameters, "row")
    compiled = openvino.Core().compile_model(model, "CPU", {
        "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()
    for i, a in enumerate(arrays):
        request.set_input_tensor(i, openvino.Tensor(a, shared_memory=True))

    def call():
        request.infer()
        return request.get_output_tensor(0).data
    call.keep = arrays  # OpenVINO only borrows them
    return call


def jax_arguments(row):
    import jax
    arrays = [jax.numpy.asarray(x.transpose(0, 2, 1, 3)) for x in (row.q, row.k, row.v)]
    options = dict(is_causal=row.mask == "causal")
    if row.mask == "window256":
        options.update(local_window_size=(255, 0))
    elif row.dense() is not None:
        mask = jax.numpy.asarray(row.dense())
        options.update({"bias" if row.mask == "bias" else "mask": mask})
    return jax, arrays, options


def jax_attention(row, threads):
    jax, arrays, options = jax_arguments(row)
    run = jax.jit(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, **options))
    return lambda: np.asarray(run(*arrays)).transpose(0, 2, 1, 3)


def jax_backward(row, threads):
    jax, arrays, options = jax_arguments(row)
    g = np.random.default_rng(4).standard_normal(row.q.shape, np.float32).transpose(0, 2, 1, 3)
    g = jax.numpy.asarray(g)
    attend = lambda q, k, v: jax.nn.dot_product_attention(q, k, v, **options)  # noqa: E731
    # The forward pass inside is part of what it takes: JAX keeps nothing between calls.
    run = jax.jit(lambda q, k, v: jax.vjp(attend, q, k, v)[1](g))
    return lambda: np.asarray(run(*arrays)[0]).transpose(0, 2, 1, 3)


# ---- products ------------------------------------------------------------------------------------


class Product:
    """x W^T, beside OpenBLAS (NumPy's) and torch."""

    def __init__(self, m, n, k):
        rng = np.random.default_rng(1)
        self.kind, self.name, self.memory_bound = "gemm", f"gemm {m}x{n}x{k}", m == 1
        self.x, self.w = rng.standard_normal((m, k), np.float32), rng.standard_normal((n, k), np.float32)


def ours_product(row, context):
    lib, handle = mha.LIBRARY, C.c_void_p()
    mha.check(lib.mha_linear_create(context.handle, C.byref(mha.tensor(row.w)), None,
                                    C.byref(handle)))
    y = np.empty((len(row.x), len(row.w)), np.float32)
    tensors = [C.byref(mha.tensor(a)) for a in (row.x, y)]

    def call():
        mha.check(lib.mha_linear_forward(context.handle, handle, 0, *tensors))
        return y
    return call


def numpy_product(row, threads):
    y = np.empty((len(row.x), len(row.w)), np.float32)
    w = row.w.T
    return lambda: np.matmul(row.x, w, out=y)


def torch_product(row, threads):
    x, w = torch.from_numpy(row.x), torch.from_numpy(row.w)
    y = torch.empty(len(row.x), len(row.w))
    return lambda: torch.mm(x, w.t(), out=y).numpy()


ATTENTION = {"torch": torch_attention, "onnxruntime": onnx_attention,
             "OpenVINO": openvino_attention, "JAX": jax_attention}
KINDS = {
    "forward": (ours_attention, ATTENTION),
    "decode": (ours_attention, dict(ATTENTION, onnxruntime=onnx_decode)),
    "backward": (ours_backward, {"torch": torch_backward, "JAX": jax_backward}),
    "module": (ours_module, {"torch": torch_module}),
    "gemm": (ours_product, {"OpenBLAS": numpy_product, "torch": torch_product}),
}


def rows():
    for h, d, n, batch in ((8, 64, 512, 1), (8, 64, 2048, 1), (8, 128, 2048, 1), (32, 128, 512, 1),
                           (12, 64, 128, 1), (12, 64, 128, 16), (8, 64, 10, 2)):
        yield lambda h=h, d=d, n=n, b=batch: Row("forward", h, d, n, batch=b)
    yield lambda: Row("forward", 8, 64, 2048, tokens=True)
    for d in (64, 128):
        yield lambda d=d: Row("forward", 8, d, 2048, mask="causal")
    for mask in ("lengths", "keep", "bias"):
        yield lambda mask=mask: Row("forward", 8, 64, 2048, mask=mask)
    yield lambda: Row("forward", 1, 64, 16384, mask="window256")
    yield lambda: Row("forward", 1, 64, 8192, mask="blocks")
    for h, hk in ((32, 8), (32, 32), (32, 1)):
        yield lambda h=h, hk=hk: Row("decode", h, 128, 1, hk=hk, keys=4096)
    for d in (64, 128):
        for n in (512, 2048):
            yield lambda d=d, n=n: Row("backward", 8, d, n)
    for h, d, n, batch in ((8, 64, 10, 2), (12, 64, 128, 1), (8, 64, 512, 1), (8, 64, 2048, 1),
                           (12, 64, 128, 32)):
        for mask in (None, "weights"):
            yield lambda h=h, d=d, n=n, b=batch, m=mask: Row("module", h, d, n, batch=b, mask=m)
    for m, n, k in ((512, 512, 512), (2048, 512, 512), (128, 768, 768), (512, 4096, 4096),
                    (16, 512, 512), (1, 512, 512), (1, 4096, 4096)):
        yield lambda m=m, n=n, k=k: Product(m, n, k)


# ---- measuring -----------------------------------------------------------------------------------


def make_probe(context, memory_bound):
    if memory_bound:
        memory = np.ones(4 << 20, np.float32)
        return lambda: memory.sum()
    return ours_attention(Row("probe", 8, 64, 256), context)


def timed(call, repeats=1):
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def measure(calls, probe, seconds):
    """{name: [(seconds, longer of its two probes)]}"""
    repeats = {}
    for name, call in calls.items():
        call()
        repeats[name] = max(1, int(2e-3 / (timed(call) + 1e-7)))
    found = {name: [] for name in calls}
    end = time.monotonic() + seconds
    before = timed(probe)
    while time.monotonic() < end or len(found["ours"]) < QUIET:
        for name, call in calls.items():
            took = timed(call, repeats[name])
            after = timed(probe)
            found[name].append((took, max(before, after)))
            before = after
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


def run_row(row, context, options):
    make_ours, peers = KINDS[row.kind]
    calls = {"ours": make_ours(row, context)}
    expected = calls["ours"]().copy()
    for name, make in peers.items():
        try:
            call = make(row, options.threads)
            result = None if call is None else call()
        except (RuntimeError, ImportError, NotImplementedError, ValueError) as problem:
            print(f"{row.name}: {name}: {str(problem).splitlines()[0][:100]}", file=sys.stderr)
            continue
        if result is not None:
            agree(row.name, name, expected, result)
            calls[name] = call
    return medians(measure(calls, make_probe(context, row.memory_bound), options.seconds))


# ---- what is said --------------------------------------------------------------------------------

PEERS = ("torch", "onnxruntime", "OpenVINO", "JAX", "OpenBLAS")


def cell(found, name):
    if name not in found:
        return "-"
    seconds, enough = found[name]
    return f"{'' if enough else '~'}{1e3 * seconds:.3g}"


def fastest(found):
    return min((name for name in found if name != "ours"), key=lambda name: found[name][0],
               default=None)


def line(name, found):
    peer = fastest(found)
    ratio = f"{found[peer][0] / found['ours'][0]:.2f} ({peer})" if peer else "-"
    return f"| {name} | {cell(found, 'ours')} | " + " | ".join(
        cell(found, p) for p in PEERS) + f" | {ratio} |"


def head():
    return (f"| row, milliseconds | ours | {' | '.join(PEERS)} | fastest peer / ours |\n"
            f"|---|---|{'---|' * len(PEERS)}---|")


def picture(results):
    """Bars: how many times as long the fastest peer takes."""
    step, left, wide = 22, 250, 420
    most = max([2.0] + [found[fastest(found)][0] / found["ours"][0]
                        for found in results.values() if fastest(found)])
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + wide + 130}" '
           f'height="{step * len(results) + 50}" font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="#fff"/>']
    for i, (name, found) in enumerate(results.items()):
        peer, y = fastest(found), 20 + step * i
        if not peer:
            continue
        ratio = found[peer][0] / found["ours"][0]
        out.append(f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{name}</text>'
                   f'<rect x="{left}" y="{y}" width="{wide * ratio / most:.1f}" height="15" '
                   f'fill="{"#2a6fbb" if ratio >= 1 else "#c2571a"}"/>'
                   f'<text x="{left + wide * ratio / most + 6:.1f}" y="{y + 12}">'
                   f'{ratio:.2f} {peer}</text>')
    x = left + wide / most
    out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="10" y2="{step * len(results) + 22}" '
               f'stroke="#555" stroke-dasharray="3 3"/><text x="{x:.1f}" '
               f'y="{step * len(results) + 38}" text-anchor="middle">as fast as ours</text></svg>')
    return "\n".join(out) + "\n"


def main(options):
    torch.set_num_threads(options.threads)
    context = mha.Context(num_threads=options.threads)
    results = {}
    print(head(), flush=True)
    for make in rows():
        row = make()
        if options.parts and not any(part in row.name for part in options.parts):
            continue
        results[row.name] = run_row(row, context, options)
        print(line(row.name, results[row.name]), flush=True)
    if options.out:
        import jax
        import onnxruntime
        import openvino
        versions = (f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}, OpenVINO "
                    f"{openvino.__version__.split('-')[0]}, JAX {jax.__version__}, NumPy "
                    f"{np.__version__}; {context.isa}, {options.threads} threads.")
        table = "\n".join([head(), *(line(n, f) for n, f in results.items())])
        pathlib.Path(options.out + ".md").write_text(f"{versions}\n\n{table}\n")
        pathlib.Path(options.out + ".svg").write_text(picture(results))


if __name__ == "__main__":
    main(OPTIONS)
