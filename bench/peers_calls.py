"""The cases of bench/peers.py: problems, with the calls of multihead and of each peer."""
import ctypes as C
import random
import time

import numpy as np
import torch
import torch.nn.functional as F

import backward_ctypes
import multihead_ctypes as mha

COLD = 128 << 20


def copies_of(size):
    """The number of copies of a call's inputs that exceeds the caches."""
    return max(2, -(-COLD // size))


class Row:
    """A piece of work: its tensors, our call and each peer's call."""

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
        """(name, constructor)"""
        return cls.name_of(*sizes, **more), lambda: cls(*sizes, **more)

    @staticmethod
    def name_of(kind, h, d, n, hk=None, keys=None, batch=1, mask=None, tokens=False):
        return (f"{kind} h{h}" + (f"/{hk}" if hk not in (None, h) else "") + f" d{d} n{n}" +
                (f" k{keys}" if keys else "") + (f" b{batch}" if batch > 1 else "") +
                (f" {mask}" if mask else "") + (" bthd" if tokens else ""))

    def array(self, rng, heads, rows):
        shape = (self.batch, heads, rows, self.d)
        if self.tokens:  # the layout of projections
            x = rng.standard_normal((self.batch, rows, heads, self.d), np.float32)
            return x.transpose(0, 2, 1, 3)
        return rng.standard_normal(shape, np.float32)

    def repeated(self):
        """(q, k, v) with a key/value head for each query head, for peers without grouped heads."""
        count = self.h // self.hk
        return [(q, k.repeat(count, 1), v.repeat(count, 1)) if count > 1 else (q, k, v)
                for q, k, v in self.copies]

    def dense(self):
        """The mask for torch, True or a number for each pair; None: no mask."""
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
        """The mask as options of multihead."""
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


# ---- multihead -----------------------------------------------------------------------------------


PLAIN = C.CDLL(mha.LIBRARY._name)  # without types of arguments, a call takes 0.4 us less


def ours_attention(row, context):
    desc = mha.attention_desc(**row.description())
    o = np.empty_like(row.q)
    copies = [(context.handle, C.byref(desc), *(C.byref(mha.tensor(x)) for x in (*qkv, o)), None)
              for qkv in row.copies]
    run, check = PLAIN.mha_attention_forward, mha.check

    def call(i):
        check(run(*copies[i % len(copies)]))
        return o
    call.keep = (desc, o)
    return call


def ours_backward(row, context):
    o, extra = mha.attention(row.q, row.k, row.v, ("lse",), context, **row.description())
    g = np.random.default_rng(4).standard_normal(o.shape, np.float32)

    run, found = backward_ctypes.prepared_backward(row.q, row.k, row.v, o, extra["lse"], g, context=context,
                                                   **row.description())

    def call(_):
        run()
        return found["q"]
    call.keep = (o, extra, g)
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

    run, out, extra = module.prepared(x, outputs=wanted, context=context)

    def call(_):
        run()
        return out
    call.keep = (module, x, extra)
    return call


# ---- peers ---------------------------------------------------------------------------------------


def fastest_of(calls):
    """The fastest of a peer's methods, by the shortest of three calls."""
    def shortest(call):
        taken = []
        for _ in range(4):
            begun = time.perf_counter()
            call(0)
            taken.append(time.perf_counter() - begun)
        return min(taken[1:])
    return calls[0] if len(calls) == 1 else min(calls, key=shortest)


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
    """Attention compiled by torch for a mask, skipping empty blocks."""
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
    """outputs: their names, or {name: dtype} if not all are f32; names: the operator's inputs in order,
    "" for omitted ones."""
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper
    types = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16,
             "int32": TensorProto.INT32, "int8": TensorProto.INT8}
    outputs = outputs if isinstance(outputs, dict) else dict.fromkeys(outputs, np.float32)
    domain = "com.microsoft"
    node = helper.make_node(op, names or list(inputs), list(outputs), domain=domain, **attributes)
    graph = helper.make_graph(
        [node], "row",
        [helper.make_tensor_value_info(n, types[a.dtype.name], a.shape) for n, a in inputs.items()],
        [helper.make_tensor_value_info(n, types[np.dtype(d).name], None) for n, d in outputs.items()])
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
    """Causal: GroupQueryAttention is often twice as fast as MultiHeadAttention."""
    if row.mask == "blocks":
        return None
    if row.mask == "window256":
        return onnx_grouped(row, threads, 0, local_window_size=256)
    ways = [onnx_heads(row, threads)]
    if row.mask == "causal" and row.d % 8 == 0:  # the only supported sizes
        ways.append(onnx_grouped(row, threads, 0))
    return fastest_of(ways)


def onnx_heads(row, threads):
    inputs = dict(zip("qkv", map(by_tokens, row.repeated()[0])))
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
    """Causal; the last key and value are the new token's."""
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
    if row.memory_bound and row.hk != row.h:
        return None
    mask = row.dense()
    masks = [] if mask is None else [np.ascontiguousarray(mask)]
    copies = [[np.ascontiguousarray(x) for x in qkv] + masks for qkv in row.repeated()]
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
    call.keep = copies  # OpenVINO borrows them
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
    # Includes a forward pass: JAX stores nothing between calls.
    run = jax.jit(lambda q, k, v: jax.vjp(attend, q, k, v)[1](g))
    return lambda _: np.asarray(run(*arrays)[0]).transpose(0, 2, 1, 3)


# ---- products ------------------------------------------------------------------------------------


class Product:
    """x W^T, compared with OpenBLAS (in NumPy) and torch."""

    @classmethod
    def of(cls, m, n, k):
        """(name, constructor)"""
        return f"gemm {m}x{n}x{k}", lambda: cls(m, n, k)

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
    copies = [(context.handle, handle, 0, *tensors) for handle in handles]
    run, check = PLAIN.mha_linear_forward, mha.check

    def call(i):
        check(run(*copies[i % len(copies)]))
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
    *(Product.of(*sizes) for sizes in (
        (512, 512, 512), (2048, 512, 512), (128, 768, 768), (512, 4096, 4096), (16, 512, 512),
        (1, 512, 512), (1, 4096, 4096))),
]


# ---- random shapes -------------------------------------------------------------------------------

# Limits: half a second for ours, and 0.8 GB for the scores of a peer that stores them.
MOST_OPERATIONS, MOST_SCORES = 3e10, 2e8


class Draw:
    """Sizes from random numbers."""

    def __init__(self, seed):
        self.number = random.Random(seed).random

    def chance(self, share):
        return self.number() < share

    def even(self, first, last):
        return first + int(self.number() * (last + 1 - first))

    def logarithmic(self, first, last):
        return min(last, int(first * ((last + 1) / first) ** self.number()))

    def length(self):
        return self.even(1, 3000) if self.chance(0.5) else self.logarithmic(1, 3000)


def fits(row, operations):
    scores = row.get("batch", 1) * row["h"] * row["n"] * row.get("keys", row["n"])
    return scores <= MOST_SCORES and operations * scores * row["d"] <= MOST_OPERATIONS


def drawn_forward(draw):
    row = {"kind": "forward", "h": draw.even(1, 40), "d": draw.logarithmic(8, 256), "n": draw.length()}
    if draw.chance(0.5):
        row["batch"] = draw.even(2, 8)
    if draw.chance(1 / 3) and row["h"] > 1:
        divisors = [x for x in range(1, row["h"]) if row["h"] % x == 0]
        row["hk"] = divisors[draw.even(0, len(divisors) - 1)]
    if draw.chance(0.5):
        row["mask"] = "causal"
    elif draw.chance(1 / 3):
        row["keys"] = draw.length()
    return Row.of(**row) if fits(row, 4) else None


def drawn_backward(draw):
    row = {"kind": "backward", "h": draw.even(1, 40), "d": draw.logarithmic(8, 256),
           "n": max(2, draw.length())}  # with one key, the gradient of q is 0
    if draw.chance(0.5):
        row["batch"] = draw.even(2, 8)
    if draw.chance(0.5):
        row["mask"] = "causal"
    return Row.of(**row) if fits(row, 10) else None


def drawn_module(draw):
    row = {"kind": "module", "h": draw.even(1, 24), "d": draw.logarithmic(8, 128), "n": draw.length()}
    if draw.chance(0.5):
        row["batch"] = draw.even(2, 8)
    if draw.chance(1 / 3):
        row["mask"] = "weights"
    width = row["h"] * row["d"]
    products = 8 * row.get("batch", 1) * row["n"] * width ** 2
    return Row.of(**row) if fits(row, 4) and products <= MOST_OPERATIONS else None


def drawn_product(draw):
    rows, columns, inner = draw.logarithmic(1, 3000), draw.logarithmic(8, 8192), draw.logarithmic(8, 8192)
    return Product.of(rows, columns, inner) if 2 * rows * columns * inner <= MOST_OPERATIONS else None


DRAWN = {"forward": drawn_forward, "backward": drawn_backward, "module": drawn_module, "gemm": drawn_product}


def draw(seed, count, kinds):
    """`count` rows of each kind with random shapes, the same for the same seed."""
    rows = {}
    for kind in kinds:
        source = Draw(seed if kind == "forward" else f"{kind} {seed}")
        most = len(rows) + count
        while len(rows) < most:
            row = DRAWN[kind](source)
            if row:
                rows[row[0]] = row[1]
    return list(rows.items())
