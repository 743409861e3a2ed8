"""multihead run: every option compared with the formula in Python, forms of arrays, outputs, the
blackboard, and every error.
"""
import math
import os
import pty
import random
import re
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403
from watch import interrupted_at_each_operation  # noqa: E402

USAGE, NO_INPUT, BAD_INPUT, UNSUPPORTED, NO_OUTPUT = 2, 3, 4, 5, 6
B, H, HK, T, S, D, DV = 2, 4, 2, 5, 7, 8, 6
INF = float("inf")
random.seed(20)


# ---- arrays -------------------------------------------------------------------------------------


def product(shape):
    return math.prod(shape)


class Array:
    """Numbers with a shape, and the file that contains them."""

    def __init__(self, shape, values, name=None, dtype="<f4"):
        self.shape, self.values = tuple(shape), list(values)
        if name:
            write_npy(FOLDER / name, shape, values, dtype)

    def __getitem__(self, index):
        """Broadcasting: missing leading axes, and axes of length 1, accept any index."""
        index = index[len(index) - len(self.shape):]
        at = 0
        for length, i in zip(self.shape, index):
            at = at * length + (0 if length == 1 else i)
        return self.values[at]


def load(name):
    shape, _, values = read_npy((FOLDER / name).read_bytes())
    return Array(shape, values)


def numbers(shape, name=None, size=2.0):
    """Multiples of 1/64, exact in float32 and float16, so that the formula has the same inputs."""
    values = [random.randint(-int(64 * size), int(64 * size)) / 64 for _ in range(product(shape))]
    return Array(shape, values, name)


def booleans(shape, name, share=0.7):
    return Array(shape, [random.random() < share for _ in range(product(shape))], name, "|b1")


Q = numbers((B, H, T, D), "q.npy")
K = numbers((B, HK, S, D), "k.npy")
V = numbers((B, HK, S, DV), "v.npy")
INPUTS = ["--q", "q.npy", "--k", "k.npy", "--v", "v.npy"]


# ---- the formula --------------------------------------------------------------------------------


def nothing(*_):
    return 0.0


def reference(q=Q, k=K, v=V, see=lambda b, h, t, s: True, bias=nothing, scale=None, softcap=0,
              sink=None, gate=lambda b, h: 1.0, key_shift=None, value_shift=None):
    """The formula of attention.h; key_shift and value_shift return Shaw's rows for (t, s)."""
    (batch, heads, rows, size), width = q.shape, v.shape[3]
    columns, group = k.shape[2], heads // k.shape[1]
    scale = 1 / math.sqrt(size) if scale is None else scale
    out = {name: [] for name in ("o", "p", "lse", "raw", "capped", "biased")}
    for b in range(batch):
        for h in range(heads):
            for t in range(rows):
                raw = [scale * sum(q[b, h, t, d] * (k[b, h // group, s, d] +
                                                    (key_shift(t, s)[d] if key_shift else 0))
                                   for d in range(size)) for s in range(columns)]
                capped = [softcap * math.tanh(x / softcap) if softcap else x for x in raw]
                biased = [x + bias(b, h, t, s) if see(b, h, t, s) else -INF
                          for s, x in enumerate(capped)]
                extra = [sink[h]] if sink else []
                most = max(biased + extra)
                total = sum(math.exp(x - most) for x in biased + extra) if most > -INF else 0
                p = [math.exp(x - most) / total if total else 0.0 for x in biased]
                out["lse"].append(most + math.log(total) if total else -INF)
                out["raw"] += raw
                out["capped"] += capped
                out["biased"] += biased
                out["p"] += p
                out["o"] += [gate(b, h) * sum(p[s] * (v[b, h // group, s, d] +
                                                      (value_shift(t, s)[d] if value_shift else 0))
                                              for s in range(columns)) for d in range(width)]
    return out


def close(found, expected, tolerance=2e-5):
    """The tolerance of float32 for at most eight terms of size 2: a hundred times the rounding of
    one term."""
    if len(found) != len(expected):
        return False
    return all(a == e or abs(a - e) <= tolerance * (1 + abs(e)) for a, e in zip(found, expected))


def compute(*arguments, command=("run",), **keywords):
    return run(*command, *arguments, **keywords)


def compare(arguments, expected, inputs=None):
    """Check that o, weights, lse and scores of a run equal the expected ones on both paths."""
    name = " ".join(map(str, arguments))
    for path in ("auto", "plain"):
        result = compute(*(inputs or INPUTS), *arguments, "--path", path, "--out", "o.npy", "--lse",
                         "l.npy", "--probabilities", "p.npy", "--scores", "s.npy", "-q")
        if not check(result.code == 0 and not result.err and not result.out,
                     f"{name}: exit {result.code}, {result.errors}"):
            return
        for file, what in (("o", "o"), ("l", "lse"), ("p", "p"), ("s", "biased")):
            check(close(load(f"{file}.npy").values, expected[what]), f"{name}, {path}: {what}")


# ---- every option -------------------------------------------------------------------------------


def masks():
    compare([], reference())
    compare(["--causal"], reference(see=lambda b, h, t, s: s <= t))
    compare(["--causal", "--offset", "2"], reference(see=lambda b, h, t, s: s <= t + 2))
    compare(["--causal", "--offset=-2"], reference(see=lambda b, h, t, s: s <= t - 2))
    offsets = (1, -1)
    compare(["--causal", "--offsets", "1,-1"], reference(see=lambda b, h, t, s: s <= t + offsets[b]))
    lengths = Array((B,), (3, 6), "lengths.npy", "<i8")
    for given in ("3,6", "lengths.npy"):
        compare(["--lengths", given], reference(see=lambda b, h, t, s: s < lengths[(b,)]))
    compare(["--begins", "2,5"], reference(see=lambda b, h, t, s: s >= (2, 5)[b]))
    compare(["--begins", "2,4", "--window", "0,0", "--sink-keys", "1"],
            reference(see=lambda b, h, t, s: s >= (2, 4)[b] and (s == t or s == (2, 4)[b])))
    compare(["--window", "1,2"], reference(see=lambda b, h, t, s: t - 1 <= s <= t + 2))
    compare(["--window", "2,-1"], reference(see=lambda b, h, t, s: t - 2 <= s))
    global_keys = booleans((B, S), "gk.npy", 0.3)
    compare(["--window", "0,0", "--sink-keys", "1", "--global-keys", "gk.npy",
                                  "--global-queries", "0,0,0,1,0"],
            reference(see=lambda b, h, t, s: s == t or s < 1 or global_keys[b, s] or t == 3))
    compare(["--query-documents", "0,0,1,1,2", "--key-documents", "0,0,0,1,1,2,2"],
            reference(see=lambda b, h, t, s: (0, 0, 1, 1, 2)[t] == (0, 0, 0, 1, 1, 2, 2)[s]))
    blocks = booleans((H, 3, 2), "blocks.npy")
    compare(["--keep-blocks", "blocks.npy", "--block-size", "2x4"],
            reference(see=lambda b, h, t, s: blocks[h, t // 2, s // 4]))
    counts = Array((T, S), [random.choice((0, 0, 1, 2, -1)) for _ in range(T * S)], "counts.npy", "<i8")
    compare(["--keep-mask", "counts.npy"], reference(see=lambda b, h, t, s: counts[t, s] != 0))
    for shape in ((T, S), (B, 1, T, S), (H, 1, S), (B, H, T, S), (S,)):
        keep = booleans(shape, "keep.npy")
        compare(["--keep-mask", "keep.npy", "--causal", "--offset", "3"],
                reference(see=lambda b, h, t, s: keep[b, h, t, s] and s <= t + 3))


def scores():
    compare(["--scale", "0.3"], reference(scale=0.3))
    compare(["--scale", "0"], reference(scale=0.0))
    compare(["--softcap", "1.5"], reference(softcap=1.5))
    bias = numbers((H, T, S), "bias.npy")
    compare(["--bias", "bias.npy"], reference(bias=lambda b, h, t, s: bias[h, t, s]))
    slopes = (2.0 ** -2, 2.0 ** -4, 2.0 ** -6, 2.0 ** -8)
    compare(["--alibi", "--causal"],
            reference(see=lambda b, h, t, s: s <= t,
                      bias=lambda b, h, t, s: -slopes[h] * abs(t - s)))
    compare(["--alibi-slopes", "1,0.5,0.25,-1"],
            reference(bias=lambda b, h, t, s: -(1, 0.5, 0.25, -1)[h] * abs(t - s)))
    table = numbers((8, H), "t5.npy")  # two-sided: 4 buckets per side, 2 of them exact

    def bucket(distance):
        far = abs(distance)
        near = far if far < 2 else min(3, 2 + int(math.log(far / 2) / math.log(16 / 2) * 2))
        return near + (4 if distance > 0 else 0)
    compare(["--t5-table", "t5.npy", "--t5-max-distance", "16"],
            reference(bias=lambda b, h, t, s: table[bucket(s - t), h]))

    def one_sided(distance):  # 8 buckets, 4 of them exact
        far = max(-distance, 0)
        return far if far < 4 else min(7, 4 + int(math.log(far / 4) / math.log(16 / 4) * 4))
    compare(["--t5-table", "t5.npy", "--t5-max-distance", "16", "--t5-one-sided"],
            reference(bias=lambda b, h, t, s: table[one_sided(s - t), h]))
    on_keys, on_values = numbers((5, D), "sk.npy"), numbers((5, DV), "sv.npy")

    def row(array, width):
        return lambda t, s: [array[max(-2, min(2, s - t)) + 2, d] for d in range(width)]
    compare(["--shaw-keys", "sk.npy", "--shaw-values", "sv.npy"],
            reference(key_shift=row(on_keys, D), value_shift=row(on_values, DV)))
    compare(["--sink-logits", "0.5,-1,2,-inf"], reference(sink=(0.5, -1, 2, -INF)))
    compare(["--gates", "1,0,-2,0.5"], reference(gate=lambda b, h: (1, 0, -2, 0.5)[h]))
    keep = booleans((T, S), "keep.npy")
    compare(["--causal", "--offset", "1", "--lengths", "7,4", "--keep-mask", "keep.npy",
                        "--bias", "bias.npy", "--alibi", "--softcap", "2", "--gates", "1,2,3,4",
                        "--sink-logits", "0,0,1,1", "--scale", "-0.5"],
            reference(see=lambda b, h, t, s: s <= t + 1 and s < (7, 4)[b] and keep[t, s],
                      bias=lambda b, h, t, s: bias[h, t, s] - slopes[h] * abs(t + 1 - s),
                      softcap=2, scale=-0.5, sink=(0, 0, 1, 1), gate=lambda b, h: h + 1.0))


def company():
    """Combinations of several random options. MHA_SEED=n selects others."""
    seed = int(os.environ.get("MHA_SEED", "1"))
    draw = random.Random(seed)
    keep = booleans((H, T, S), "ck.npy", 0.8)
    blocks = booleans((B, 1, 2, 3), "cb.npy", 0.8)
    bias = numbers((B, 1, T, S), "cbias.npy")
    slopes = (0.5, 0.25, 0, -0.125)
    documents = [0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1, 0]
    masks_of = {
        "--lengths 7,4": lambda i, b, h, t, s: s < (7, 4)[b],
        "--keep-mask ck.npy": lambda i, b, h, t, s: keep[h, t, s],
        "--keep-blocks cb.npy --block-size 3x3": lambda i, b, h, t, s: blocks[b, 0, t // 3, s // 3],
        "--query-documents 0,0,1,1,1 --key-documents 0,0,0,1,1,1,0":
            lambda i, b, h, t, s: documents[0][t] == documents[1][s],
        "--causal": lambda i, b, h, t, s: s <= i,
        "--window 2,0 --sink-keys 1": lambda i, b, h, t, s: i - 2 <= s <= i or s < 1,
    }
    biases = {"--bias cbias.npy": lambda i, b, h, t, s: bias[b, 0, t, s],
              "--alibi-slopes 0.5,0.25,0,-0.125": lambda i, b, h, t, s: -slopes[h] * abs(s - i)}
    others = {"--softcap 3": {"softcap": 3}, "--scale 0.7": {"scale": 0.7},
              "--gates 1,0.5,0,-1": {"gate": lambda b, h: (1, 0.5, 0, -1)[h]},
              "--sink-logits 1,-1,0,-inf": {"sink": (1, -1, 0, -INF)}}
    for _ in range(40):
        some = [draw.sample(list(pool), draw.randint(0, min(3, len(pool))))
                for pool in (masks_of, biases, others)]
        reads = any(word in name for name in some[0] + some[1]
                    for word in ("--causal", "--window", "--alibi"))
        offset = draw.randint(-2, 3) if reads else 0
        arguments = " ".join(sum(some, [])).split() + (["--offset", offset] if offset else [])
        more = {key: value for name in some[2] for key, value in others[name].items()}
        compare(arguments,
                reference(see=lambda b, h, t, s: all(masks_of[m](t + offset, b, h, t, s)
                                                     for m in some[0]),
                          bias=lambda b, h, t, s: sum(biases[m](t + offset, b, h, t, s)
                                                      for m in some[1]), **more))


def dropout():
    arguments = [*INPUTS, "--dropout", "0.5", "--seed", "3", "-q", "--out", "o.npy",
                 "--probabilities", "p.npy"]
    check_good(compute(*arguments), "dropout")
    first, p = load("o.npy").values, load("p.npy").values
    check(close(p, reference()["p"]), "weights are those before dropout")
    check_good(compute(*arguments, "--after-dropout", "--threads", "1"), "after dropout")
    dropped = load("p.npy")
    check(load("o.npy").values == first, "the same seed gives the same bits, whatever is asked for")
    check(all(d == 0 or abs(d - 2 * a) <= 1e-5 for d, a in zip(dropped.values, p)) and
          0.3 < dropped.values.count(0.0) / len(p) < 0.7, "dropped is 0 or p / 0.5")
    expected = [sum(dropped[b, h, t, s] * V[b, h // 2, s, d] for s in range(S))
                for b in range(B) for h in range(H) for t in range(T) for d in range(DV)]
    check(close(first, expected), "o is made of the dropped weights")
    check_good(compute(*arguments[:-4], "--seed", "4", "--out", "o.npy"), "another seed")
    check(load("o.npy").values != first, "another seed gives another o")


def turned(x, position, pairing="interleaved", size=None, base=10000.0, factor=1.0):
    """RoPE of a complete array."""
    batch, heads, rows, width = x.shape
    size = size or width
    values = list(x.values)
    for b in range(batch):
        for h in range(heads):
            for t in range(rows):
                at = ((b * heads + h) * rows + t) * width
                for i in range(size // 2):
                    j, k = (2 * i, 2 * i + 1) if pairing == "interleaved" else (i, i + size // 2)
                    angle = position(b, t) / factor * base ** (-2 * i / size)
                    u, w = x.values[at + j], x.values[at + k]
                    values[at + j] = u * math.cos(angle) - w * math.sin(angle)
                    values[at + k] = u * math.sin(angle) + w * math.cos(angle)
    return Array(x.shape, values)


def rope():
    cases = [
        (["--rope"], lambda b, t: t, lambda b, s: s, {}),
        (["--rope", "--offset", "3"], lambda b, t: t + 3, lambda b, s: s, {}),
        (["--rope", "--offsets", "3,-1"], lambda b, t: t + (3, -1)[b], lambda b, s: s, {}),
        (["--rope", "--rope-pairing", "halves", "--rope-dim", "6", "--rope-base", "100",
          "--rope-scale", "2"], lambda b, t: t, lambda b, s: s,
         {"pairing": "halves", "size": 6, "base": 100.0, "factor": 2.0}),
        (["--rope", "--positions", "9,1,4,0,2", "--key-positions", "3,3,3,1,0,7,5"],
         lambda b, t: (9, 1, 4, 0, 2)[t], lambda b, s: (3, 3, 3, 1, 0, 7, 5)[s], {}),
    ]
    for arguments, of_q, of_k, details in cases:
        compare(arguments, reference(q=turned(Q, of_q, **details), k=turned(K, of_k, **details)))


    k = numbers((B, H, T, D), "same-k.npy")
    compare(["--rope", "--positions", "5,2,8,1,1"],
            reference(k=turned(k, lambda b, s: (5, 2, 8, 1, 1)[s]), v=k,
                      q=turned(Q, lambda b, t: (5, 2, 8, 1, 1)[t])),
            ["--q", "q.npy", "--k", "same-k.npy", "--v", "same-k.npy"])


def linear():
    def phi(x):
        return x + 1 if x > 0 else math.exp(x)

    for arguments, see in (([], lambda b, t, s: True), (["--causal"], lambda b, t, s: s <= t),
                           (["--causal", "--offset", "1", "--lengths", "7,2"],
                            lambda b, t, s: s <= t + 1 and s < (7, 2)[b])):
        expected = []
        for b in range(B):
            for h in range(H):
                for t in range(T):
                    w = [sum(phi(Q[b, h, t, d]) * phi(K[b, h // 2, s, d]) for d in range(D))
                         if see(b, t, s) else 0.0 for s in range(S)]
                    expected += [sum(w[s] * V[b, h // 2, s, d] for s in range(S)) / sum(w)
                                 for d in range(DV)]
        result = compute(*INPUTS, "--linear", *arguments, "--out", "o.npy", "-q")
        check_good(result, f"linear {arguments}")
        check(close(load("o.npy").values, expected), f"linear {arguments}: o")


def types():
    """With f16 and bf16, results are computed from the rounded numbers, and o is rounded to the
    type."""
    def bfloat(x):
        bits = struct.unpack("<I", struct.pack("<f", x))[0]
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
        return struct.unpack("<f", struct.pack("<I", bits))[0]

    def half(x):
        return struct.unpack("<e", struct.pack("<e", x))[0]

    arrays = {name: Array(shape, [random.gauss(0, 1) for _ in range(product(shape))])
              for name, shape in (("q", (H, T, D)), ("k", (HK, S, D)), ("v", (HK, S, DV)))}
    for dtype, rounded, saved in (("f16", half, "<f2"), ("bf16", bfloat, "<f4")):
        for name, array in arrays.items():
            write_npy(FOLDER / f"t{name}.npy", array.shape, array.values)
            write_npy(FOLDER / f"r{name}.npy", array.shape, list(map(rounded, array.values)))
        files = [[word for name in "qkv" for word in (f"--{name}", f"{first}{name}.npy")]
                 for first in "tr"]
        check_good(compute(*files[0], "--dtype", dtype, "--causal", "--out", "o.npy", "-q"), dtype)
        check_good(compute(*files[1], "--causal", "--out", "r.npy", "-q"), f"{dtype} rounded before")
        check(load("o.npy").values == list(map(rounded, load("r.npy").values)), f"--dtype {dtype}")
        check(saved.encode() in (FOLDER / "o.npy").read_bytes()[:128], f"{dtype}: the file's type")
        check_good(compute(*files[0], "--dtype", dtype, "--rope", "--trace", "-q"), f"{dtype}, traced")
        check(f"o {'float16' if dtype == 'f16' else 'float32'}" in
              compute(*files[0], "--dtype", dtype).lines[0], f"{dtype}, printed")
        check_good(compute(*files[0], "--dtype", dtype, "--linear", "-q"), f"{dtype}, linear")
        check_good(compute(*files[0], "--dtype", dtype, "--alibi", "--bias", "0.5", "-q"), f"{dtype}, a bias")


def norms():
    def normed(x, kind):
        values = []
        for at in range(0, len(x.values), D):
            row = x.values[at:at + D]
            squares = sum(value * value for value in row)
            size = math.sqrt(squares / D + 0.01) if kind == "rms" else max(math.sqrt(squares), 0.01)
            values += [value / size for value in row]
        return Array(x.shape, values)

    for kind in ("rms", "l2"):
        compare(["--qk-norm", kind, "--qk-epsilon", "0.01"], reference(q=normed(Q, kind), k=normed(K, kind)))


def packed():
    """Sequences packed without padding give the results of separate sequences."""
    lengths_q, lengths_k = (2, 0, 3), (3, 1, 4)
    q, k, v = numbers((H, 5, D), "pq.npy"), numbers((HK, 8, D), "pk.npy"), numbers((HK, 8, D), "pv.npy")
    for extra in (["--causal"], ["--rope"], ["--linear", "--causal"],
                  ["--causal", "--offsets", "1,0,2", "--rope"]):
        check_good(compute("--q", "pq.npy", "--k", "pk.npy", "--v", "pv.npy", "--query-starts",
                           "0,2,2,5", "--key-starts", "0,3,4,8", *extra, "--out", "o.npy", "-q"),
                   f"packed {extra}")
        whole = load("o.npy")
        check(whole.shape == (H, 5, D), f"packed: {whole.shape}")
        for i in (0, 2):
            first_q, first_k = sum(lengths_q[:i]), sum(lengths_k[:i])
            for name, array, first, count in (("q", q, first_q, lengths_q[i]),
                                              ("k", k, first_k, lengths_k[i]),
                                              ("v", v, first_k, lengths_k[i])):
                write_npy(FOLDER / f"one-{name}.npy", (array.shape[0], count, D),
                     [array[h, first + t, d] for h in range(array.shape[0]) for t in range(count)
                      for d in range(D)])
            alone = [a.split(",")[i] if "," in a else "--offset" if a == "--offsets" else a
                     for a in extra]
            check_good(compute("--q", "one-q.npy", "--k", "one-k.npy", "--v", "one-v.npy", *alone,
                               "--out", "one.npy", "-q"), f"alone {alone}")
            one = load("one.npy")
            check(all(one[h, t, d] == whole[h, first_q + t, d] for h in range(H)
                      for t in range(lengths_q[i]) for d in range(D)), f"packed {extra}: sequence {i}")


# ---- outputs ------------------------------------------------------------------------------------


def outputs():
    expected = reference(see=lambda b, h, t, s: s <= t + 1, softcap=2)
    arguments = [*INPUTS, "--causal", "--offset", "1", "--softcap", "2", "-q"]
    p = Array((B, H, T, S), expected["p"])
    rows = [(b, h, t) for b in range(B) for h in range(H) for t in range(T)]
    weights = {row: [p[(*row, s)] for s in range(S)] for row in rows}
    order = {row: sorted(range(S), key=lambda s, r=row: -weights[r][s])[:2] for row in rows}
    wanted = {
        "average": ((B, T, S), [sum(p[b, h, t, s] for h in range(H)) / H for b in range(B)
                                for t in range(T) for s in range(S)]),
        "entropy": ((B, H, T), [-sum(x * math.log(x) for x in weights[r] if x) for r in rows]),
        "largest-weight": ((B, H, T), [max(weights[r]) for r in rows]),
        "largest-key": ((B, H, T), [weights[r].index(max(weights[r])) for r in rows]),
        "first-token": ((B, H, T), [weights[r][0] for r in rows]),
        "diagonal": ((B, H, T), [weights[r][r[2] + 1] for r in rows]),
        "offset-mass": ((B, H, T, 2), [weights[r][r[2] + 1 + n] if r[2] + 1 + n < S else 0.0
                                       for r in rows for n in (-1, 1)]),
        "top-keys": ((B, H, T, 2), [s for r in rows for s in order[r]]),
        "top-weights": ((B, H, T, 2), [weights[r][s] for r in rows for s in order[r]]),
        "column-sums": ((B, H, S), [sum(p[b, h, t, s] for t in range(T)) for b in range(B)
                                    for h in range(H) for s in range(S)]),
    }
    files = [word for name in wanted for word in (f"--{name}", f"{name}.npy")]
    check_good(compute(*arguments, *files, "--mass-offsets=-1,1", "--top", "2"), "all outputs")
    for name, (shape, values) in wanted.items():
        found = load(f"{name}.npy")
        check(found.shape == shape, f"{name}: {found.shape}")
        check(close(found.values, values), f"{name}: its numbers")
    check_good(compute(*arguments, "--top-keys", "top.npy"), "keys of the top alone")
    check(load("top.npy").shape == (B, H, T, 5), "--top is 5")
    for stage in ("raw", "capped", "biased"):
        check_good(compute(*arguments, "--scores", "s.npy", "--score-stage", stage, "--pick-heads",
                           "3,0-1", "--pick-rows", "4,2"), stage)
        all_scores, some = Array((B, H, T, S), expected[stage]), load("s.npy")
        picked = [all_scores[b, h, t, s] for b in range(B) for h in (3, 0, 1) for t in (4, 2)
                  for s in range(S)]
        check(some.shape == (B, 3, 2, S) and close(some.values, picked), f"picked scores, {stage}")
    write_npy(FOLDER / "heads.npy", (2,), (2, 2), "<i8")
    check_good(compute(*arguments, "--probabilities", "p.npy", "--pick-heads", "heads.npy"), "file")
    check(load("p.npy").shape == (B, 2, T, S), "heads from a file")


def shapes():
    """The same problem gives the same numbers in every file format."""
    def swap(array):  # [B,H,T,D] -> [B,T,H,D]
        b, h, t, d = array.shape
        return [array[i, j, n, m] for i in range(b) for n in range(t) for j in range(h)
                for m in range(d)]

    check_good(compute(*INPUTS, "--causal", "--out", "o.npy", "-q"), "four axes")
    base = load("o.npy")
    for name, array in (("q", Q), ("k", K), ("v", V)):
        b, h, t, d = array.shape
        write_npy(FOLDER / f"{name}-bthd.npy", (b, t, h, d), swap(array))
        write_npy(FOLDER / f"{name}-flat.npy", (b, t, h * d), swap(array))
        write_npy(FOLDER / f"{name}-one.npy", (h, t, d), array.values[:h * t * d])
        write_npy(FOLDER / f"{name}-flat1.npy", (t, h * d), swap(array)[:h * t * d])
        write_npy(FOLDER / f"{name}-thd.npy", (t, h, d), swap(array)[:h * t * d])
        write_npy(FOLDER / f"{name}-two.npy", (t, d), array.values[:t * d])
    swapped, first = swap(base), base.values[:H * T * DV]
    first_swapped = swapped[:H * T * DV]
    heads = ["--heads", H, "--kv-heads", HK]
    cases = [
        ("bthd", ["--layout", "bthd"], (B, T, H, DV), swapped, (B, H, T)),
        ("flat", heads, (B, T, H * DV), swapped, (B, H, T)),
        ("one", [], (H, T, DV), first, (H, T)),
        ("flat1", heads, (T, H * DV), first_swapped, (H, T)),
        ("thd", ["--layout", "bthd"], (T, H, DV), first_swapped, (H, T)),
        ("two", [], (T, DV), first[:T * DV], (T,)),
    ]
    for name, arguments, shape, values, lse in cases:
        check_good(compute("--q", f"q-{name}.npy", "--k", f"k-{name}.npy", "--v", f"v-{name}.npy",
                           "--causal", *arguments, "--out", "o.npy", "--lse", "l.npy",
                           "--average", "a.npy", "-q"), name)
        found = load("o.npy")
        check(found.shape == shape and found.values == values, f"{name}: o {found.shape}")
        check(load("l.npy").shape == lse, f"{name}: lse {load('l.npy').shape}")
        check(len(load("a.npy").shape) == 2 + (len(lse) == 3), f"{name}: average")
    same = numbers((T, 8), "x.npy")
    check_good(compute("--x", "x.npy", "--heads", "2", "--out", "o.npy", "-q"), "--x")
    check_good(compute("--q", "x.npy", "--k", "x.npy", "--v", "x.npy", "--heads", "2", "--out",
                       "o2.npy", "-q"), "--x as three")
    check((FOLDER / "o.npy").read_bytes() == (FOLDER / "o2.npy").read_bytes(), "--x is all three")
    # Element types, Fortran order, safetensors: the numbers are exact in all of them.
    whole = [round(64 * value) for value in same.values]
    integers = Array(same.shape, whole, "int.npy", "<i8")
    scaled = ["--scale", str(1 / 8 / 4096)]
    Array(same.shape, integers.values, "f4.npy")
    columns = [same[t, d] for d in range(8) for t in range(T)]
    write_npy(FOLDER / "fortran.npy", same.shape, columns, fortran=True)
    write_npy(FOLDER / "f8.npy", same.shape, same.values, "<f8")
    write_npy(FOLDER / "f2.npy", same.shape, same.values, "<f2")
    raw = {"F32": struct.pack(f"<{T * 8}f", *same.values), "BF16": b"".join(
        struct.pack("<f", value)[2:] for value in same.values)}
    for kind, data in raw.items():
        header = {name: {"dtype": kind, "shape": list(same.shape),
                         "data_offsets": [i * len(data), (i + 1) * len(data)]}
                  for i, name in enumerate(("a", "b"))}
        (FOLDER / f"{kind}.safetensors").write_bytes(safetensors_bytes(header, data + data))
    check_good(compute("--x", "x.npy", "--out", "o.npy", "-q"), "x")
    expected = load("o.npy").values
    for name in ("f8.npy", "f2.npy", "fortran.npy", "F32.safetensors:b", "./x.npy"):
        result = compute("--x", name, "--out", "o2.npy")
        check_good(result, name)
        check(load("o2.npy").values == expected, f"{name}: the same numbers")
        check(("float64" in result.err.decode()) == (name == "f8.npy"), f"{name}: {result.errors}")
    check_good(compute("--x", "BF16.safetensors:a", "--out", "o2.npy", "-q"), "bf16")
    cut = Array(same.shape, [struct.unpack("<f", b"\0\0" + struct.pack("<f", x)[2:])[0]
                             for x in same.values], "cut.npy")
    check_good(compute("--x", "cut.npy", "--out", "o.npy", "-q"), "cut to bf16")
    check(cut.values and load("o2.npy").values == load("o.npy").values, "bf16 is a float cut short")
    check_good(compute("--x", "int.npy", *scaled, "--out", "o.npy", "-q"), "integers")
    check_good(compute("--x", "f4.npy", *scaled, "--out", "o2.npy", "-q"), "their floats")
    check(load("o2.npy").values == load("o.npy").values, "integers are taken as numbers")
    # Empty arrays are no error.
    write_npy(FOLDER / "none.npy", (H, 0, D), ())
    check_good(compute("--x", "none.npy", "--causal", "--out", "o.npy"), "no tokens")
    check(load("o.npy").shape == (H, 0, D), "no tokens: an empty o")
    check_good(compute("--q", "none.npy", "--k", "k-one.npy", "--v", "v-one.npy", "--trace"),
               "no queries, traced")


def said():
    """stderr reports the computation; stdout has the result or the requested data."""
    result = compute("--x", "x.npy", "--causal")
    check(result.code == 0 and result.lines[0] == "o float32 [5, 8]" and len(result.lines) == 6,
          f"the result is printed: {result.lines}")
    check("1 head, 5 queries, 5 keys, head size 8" in result.errors[0] and
          result.errors[1].startswith("path tiled ("), f"what ran: {result.errors}")
    found = [float(x) for line in result.lines[1:] for x in line.strip(" []").split()]
    compute("--x", "x.npy", "--causal", "--out", "o.npy")
    check(all(abs(a - b) <= 5.1e-5 for a, b in zip(found, load("o.npy").values)), "printed numbers")
    result = compute("--x", "x.npy", "--path", "plain", "--out", "o.npy")
    check(not result.out and "path plain (plain was requested)" in result.err.decode() and
          "wrote o.npy: float32 [5, 8]" in result.errors, f"a file: {result.errors}")
    result = compute("--x", "x.npy", "--compute", "bf16", "--out", "ob.npy")
    check("(bf16 arithmetic" in result.err.decode(), f"bf16: {result.errors}")
    apart = [abs(a - b) for a, b in zip(load("ob.npy").values, load("o.npy").values)]
    check(0 < max(apart) < 0.05, f"bf16 is off by {max(apart)}")
    check(compute("--x", "x.npy", "-q").errors == [], "--quiet")
    numbers((3, 40, 12), "long.npy")
    shown = compute("--x", "long.npy").lines
    check("..." in shown[1] and max(map(len, shown)) <= 80 and len(shown) < 30,
          f"long results are cut: {shown}")
    data = compute("--x", "x.npy", "--out", "-", "-q")
    compute("--x", "x.npy", "--out", "o.npy", "-q")
    check(data.out == (FOLDER / "o.npy").read_bytes(), "--out - is the file on stdout")
    for threads in (1, 2, 3):
        check(compute("--x", "x.npy", "--out", "-", "-q", "--threads", threads).out == data.out,
              "the same bytes for any number of threads")
    told = json.loads(compute(*INPUTS, "--causal", "--lse", "l.npy", "--out", "o\"\u00e9.npy",
                              "--json", "-", "-q").out)
    check(told["format"] == "multihead-run" and told["version"] == 1 and
          told["kind"] == "softmax" and told["path"] == "tiled" and
          told["inputs"]["k"] == {"file": "k.npy", "shape": [B, HK, S, D]} and
          told["visible_pairs"] == B * H * 15 and
          told["outputs"] == [{"output": "out", "file": "o\"\u00e9.npy", "dtype": "float32",
                               "shape": [B, H, T, DV]},
                              {"output": "lse", "file": "l.npy", "dtype": "float32",
                               "shape": [B, H, T]}], f"--json: {told}")
    linear_told = json.loads(compute(*INPUTS, "--linear", "--json", "-", "-q").out)
    check(linear_told["kind"] == "linear" and linear_told["outputs"] == [], f"{linear_told}")
    check("isa" in told and told["isa"] == json.loads(compute(
        *INPUTS, "--json", "-", "-q", "--isa", told["isa"]).out)["isa"], "--isa")
    check(json.loads(compute(*INPUTS, "--json", "-", "-q", "--isa", "portable").out)["isa"] ==
          "portable", "--isa portable")


# ---- the blackboard -----------------------------------------------------------------------------

BOARD = """\
Attention step by step: o = softmax(q k^T * scale) v
1 head, 3 queries, 3 keys, head size 4, values of 4

Head 0

 1. Queries q [3, 4], keys k [3, 4] and values v [3, 4]: a row for each token
    q0  0  2  0  0
    q1  1  1  0  0
    q2  0  0  2  2

    k0  2  0  0  0
    k1  0  2  0  0
    k2  0  0  2  2

    v0   1   0   0  10
    v1   0   1   0  20
    v2   0   0   1  30

 2. Scores: each query times each key, q.k   [3, 3]
        k0  k1  k2
    q0   0   4   0
    q1   2   2   0
    q2   0   0   8
    q1.k0 = 1*2 + 1*0 + 0*0 + 0*0 = 2

 3. Scaled: times 1 / sqrt(4) = 0.5   [3, 3]
        k0  k1  k2
    q0   0   2   0
    q1   1   1   0
    q2   0   0   4

 4. Masked, a dot is hidden (causal: keys after the query's position)   [3, 3]
        k0  k1  k2
    q0   0   .   .
    q1   1   1   .
    q2   0   0   4

 5. Softmax: e^score divided by the row's sum; each row sums to 1   [3, 3]
           k0     k1     k2   |   sum
    q0  1.000      .      .   | 1.000
    q1  0.500  0.500      .   | 1.000
    q2  0.018  0.018  0.965   | 1.000
    q1 to k0: e^1 / (e^1 + e^1) = 0.5

 6. Output o: each row's weights times the values   [3, 4]
    o0   1.000   0.000   0.000  10.000
    o1   0.500   0.500   0.000  15.000
    o2   0.018   0.018   0.965  29.470
    o1 = 0.5 v0 + 0.5 v1
"""


def table(lines, title):
    """Rows of numbers under a title, without names."""
    start = next(i for i, line in enumerate(lines) if title in line) + 2
    rows = []
    for line in lines[start:]:
        cells = re.findall(r"(?<!\S)(?:[-+.\de]+|nan|inf)(?!\S)", line.split("|")[0])
        if not re.match(r"\s+[qo]\d+  ", line):
            break
        rows.append([-INF if cell == "." else float(cell) for cell in cells])
    return rows


def blackboard():
    result = compute("--example", "--causal")
    check(result.code == 0 and result.out.decode() == BOARD, f"the example:\n{result.out.decode()}")
    check(compute("--example", "--causal", "--threads", "1", "--isa", "portable").out == result.out,
          "the example does not depend on the machine")
    # Every step in one run, compared with the formula.
    arguments = [*INPUTS, "--causal", "--offset", "1", "--softcap", "2", "--alibi", "--dropout",
                 "0.4", "--trace", "--trace-head", "3", "--trace-sequence", "1", "--trace-row",
                 "0,2-3"]
    slope = 2.0 ** -8
    expected = reference(see=lambda b, h, t, s: s <= t + 1, softcap=2,
                         bias=lambda b, h, t, s: -slope * abs(t + 1 - s))
    result = compute(*arguments)
    check_good(result, "trace")
    for title, what, factor in (("q.k", "raw", math.sqrt(D)), ("Scaled", "raw", 1),
                                ("Capped", "capped", 1), ("Masked", "biased", 1),
                                ("Softmax", "p", 1)):
        every = Array((B, H, T, S), expected[what])
        found = table(result.lines, title)
        check(len(found) == 3, f"trace, {title}: {found}")
        for row, t in zip(found, (0, 2, 3)):
            for s, number in enumerate(row):
                exact = every[1, 3, t, s] * factor
                hidden = title == "Softmax" and number == -INF and s > t + 1
                check(hidden or number == exact or abs(number - exact) <= 6e-4,
                      f"trace, {title}, q{t}.k{s}: {number} for {exact}")
    text = result.out.decode()
    for part in ("Head 3, with key/value head 1", "Sequence 1 of 2", "1 of 4 heads", "3 of 5 queries",
                 "key position t + 1", "Dropout", "divided by 0.6", "ALiBi"):
        check(part in text, f"trace says {part!r}")
    result = compute(*INPUTS, "--bias", "bias.npy", "--lengths", "3,3", "--window", "1,1", "--trace")
    check(all(-INF not in row for row in table(result.lines, "Biased")) and
          any(-INF in row for row in table(result.lines, "Masked")), "biases come before the mask")
    # Steps that are printed and steps that are not.
    text = compute(*INPUTS, "--trace").out.decode()
    check(all(f"\nHead {h}," in text for h in range(H)), "all four heads are shown")
    check("Masked" not in text and "Capped" not in text and "Biased" not in text, "no idle steps")
    for option, part in ((["--rope"], "RoPE"), (["--bias", "bias.npy"], "plus the bias"),
                         (["--sink-logits", "0,0,0,0"], "of the sink"),
                         (["--gates", "1,1,1,1"], "times the gate"),
                         (["--shaw-values", "sv.npy"], "Shaw"),
                         (["--t5-table", "t5.npy"], "T5"), (["--lengths", "3,3"], "padding")):
        result = compute(*INPUTS, "--trace", *option)
        check(result.code == 0 and part in result.out.decode(), f"trace {option}: {result.errors}")
    long = compute("--x", "long.npy", "--trace")
    check(long.code == 0 and "16 of 40 queries, 16 of 40 keys" in long.out.decode() and
          "..." in long.out.decode() and "q16" not in long.out.decode(), "long ones are cut")
    check("q39" in compute("--x", "long.npy", "--trace", "--trace-limit", "40").out.decode(), "limit")
    keys = compute("--x", "long.npy", "--trace", "--trace-row", "39", "--trace-key", "30-39")
    check("k39" in keys.out.decode() and "| 1.000" in keys.out.decode(), "chosen keys, whole sums")
    ragged = compute("--q", "pq.npy", "--k", "pk.npy", "--v", "pv.npy", "--query-starts", "0,2,2,5",
                     "--key-starts", "0,3,4,8", "--trace", "--trace-sequence", "2", "--trace-head",
                     "0", "--probabilities", "p.npy", "-q")
    check_good(ragged, "packed, traced")
    p = load("p.npy")
    found = table(ragged.lines, "Softmax")
    pq, pv = load("pq.npy"), load("pv.npy")
    vectors = [[float(x) for x in line.split()[1:]] for line in ragged.lines
               if re.match(r"    [qv]\d( +[-.\d]+)+$", line)]
    known = [[array[0, first + t, d] for d in range(D)] for array, first, count in
             ((pq, 2, 3), (pv, 4, 4)) for t in range(count)]
    check(all(any(close(row, there, 6e-4) for there in vectors) for row in known),
          f"packed, traced: vectors of the sequence: {vectors}")
    check(len(found) == 3 and all(abs(found[t][s] - p[0, 2 + t, s]) <= 6e-4
                                  for t in range(3) for s in range(4)), f"packed, traced: {found}")
    both = compute("--example", "--out", "o.npy", "--trace")
    check(both.code == 0 and both.out and load("o.npy").shape == (3, 4), "--example with a file")
    check(not compute("--example", "--out", "o.npy").out, "a file is enough")
    check_good(compute("--example", "--heads", "2"), "the example with two heads")
    one = compute("--example", "--heads", "2", "--trace-head", "1")
    check(one.code == 0 and b"Head 0" not in one.out, f"the example is traced anyway: {one.errors}")
    nan = Array((3, 4), [float("nan")] + [1.0] * 11, "nan.npy")
    check(nan.shape and compute("--x", "nan.npy", "--trace").code == 0, "NaN, traced")
    check_good(compute("--x", "nan.npy"), "NaN, printed")
    huge = Array((3, 4), [3e38] * 12, "huge.npy")
    printed = compute("--x", "huge.npy").out
    check(huge.shape and b"nan" in printed and b"-nan" not in printed, f"a NaN that is made: {printed}")


# ---- errors --------------------------------------------------------------------------------------


def wrong_lines():
    one = ["--x", "x.npy"]
    cases = [
        ([], "no arrays", "--example"),
        (["q.npy"], "'q.npy' is one argument too many", "--q FILE"),
        (["--q", "q.npy"], "--k FILE.npy is missing", "--x"),
        ([*one, "--q", "q.npy"], "omit --x or --q"),
        (["--example", "--x", "x.npy"], "--example has its own arrays"),
        ([*one, "--kv-heads", "2"], "--kv-heads requires --heads"),
        ([*one, "--heads", "4", "--kv-heads", "2"], "--kv-heads 2", "4 heads", "--q, --k and --v"),
        ([*one, "--output", "o.npy"], "did you mean '--out'"),
        ([*one, "--module"], "--module requires --heads"),
        ([*one, "--memory", "k.npy"], "--memory requires --module"),
        ([*one, "--sinusoidal"], "--sinusoidal requires --module"),
        ([*INPUTS, "--module", "--heads", "2"], "omit --q"),
        ([*one, "--module", "--heads", "2", "--dtype", "f16"], "--dtype and --module exclude each other"),
        (["--x", "random:5x8", "--module", "--heads", "4", "--kv-heads", "3"], "--kv-heads 3", "4 query"),
        (["--x", "random:5xT"], "random:5xT", "random:4x8"),
        (["--x", "random:"], "random:4x8"),
        (["--x", "random:0x8"], "random:4x8"),
        (["--x", "random:2x2x2x2x2"], "up to four axes"),
        (["--x", "random:5x8", "--lengths", "random:1"], "whole numbers, such as 3,5"),
        ([*one, "--cache", "f32"], "--cache requires --trace"),
        ([*one, "--trace", "--cache", "f32", "--lengths", "3"], "--lengths conflicts with --cache"),
        (["--example", "--module", "--memory", "example", "--cache", "f32"], "--memory conflicts"),
        ([*one, "--trace", "--cache", "f64"], "f32, f16, bf16, int8"),
        ([*INPUTS, "--mask", "keep.npy"], "did you mean '--keep-mask'"),
        ([*one, "-o", "o.safetensors"], "must end in .npy"),
        (["--x", "-"], "not read from a pipe"),
        ([*one, "--keep-blocks", "1", "--block-size", "0x2"], "queries 0 and keys 2 must be positive"),
        ([*one, "--window", "3"], "--window 3", "4,0"),
        ([*one, "--window", "3,x"], "--window 3,x"),
        ([*one, "--window", "99999999999999999999,0"], "--window 9999", "4,0"),
        ([*one, "--window=-3,0"], "keys before -3"),
        ([*one, "--causal", "--window", "3,1"], "keys after is 1"),
        ([*one, "--sink-keys", "1"], "--sink-keys, --global-keys and --global-queries require --window"),
        ([*one, "--offset", "3"], "--offset requires", "--causal"),
        ([*one, "--offset", "3", "--offsets", "3"], "--offset and --offsets exclude each other"),
        ([*one, "--alibi", "--alibi-slopes", "1"], "exclude each other"),
        ([*one, "--keep-blocks", "b.npy"], "--block-size"),
        ([*one, "--block-size", "2x2"], "--keep-blocks"),
        ([*one, "--keep-blocks", "blocks.npy", "--block-size", "2,2"], "64x64"),
        ([*one, "--t5-one-sided"], "--t5-table"),
        ([*one, "--seed", "3"], "--dropout X, --module or a random array"),
        ([*one, "--rope-dim", "4"], "requires --rope"),
        ([*one, "--rope", "--rope-dim", "3"], "--rope-dim is 3", "even"),
        ([*one, "--rope", "--rope-dim", "10"], "--rope-dim is 10", "head size 8"),
        ([*one, "--rope", "--rope-base", "0.5"], "--rope-base is 0.5"),
        ([*one, "--positions", "1,2"], "requires --rope"),
        ([*one, "--key-starts", "0,5"], "--query-starts"),
        ([*one, "--key-documents", "0,0"], "--query-documents"),
        ([*one, "--documents", "0", "--query-documents", "0", "--key-documents", "0"], "--documents"),
        ([*one, "--scale", "big"], "--scale big", "0.125"),
        ([*one, "--scale", "nan"], "--scale nan"),
        ([*one, "--scale", "1e300"], "1e+300", "float32"),
        ([*one, "--dropout", "1.5"], "--dropout is 1.5", "0..1"),
        ([*one, "--softcap=-1"], "--softcap is -1"),
        ([*one, "--linear", "--softcap", "3"], "--softcap conflicts with --linear"),
        ([*one, "--linear", "--trace"], "--trace conflicts with --linear"),
        ([*one, "--linear", "--lse", "l.npy"], "--lse conflicts with --linear"),
        ([*one, "--pick-heads", "0"], "--pick-heads requires", "--probabilities"),
        ([*one, "--scores", "s.npy", "--pick-heads", "1"], "there is no head 1"),
        ([*one, "--scores", "s.npy", "--pick-rows", "2-9"], "there is no row 9", "0 to 4"),
        ([*one, "--scores", "s.npy", "--pick-rows", "2-"], "0,2-4"),
        ([*one, "--score-stage", "raw"], "--scores FILE"),
        ([*one, "--scores", "s.npy", "--score-stage", "row"], "biased, raw, capped"),
        ([*one, "--after-dropout"], "--probabilities"),
        ([*one, "--top", "3"], "--top-keys"),
        ([*one, "--mass-offsets", "1"], "--offset-mass"),
        ([*one, "--trace-row", "1"], "--trace"),
        ([*one, "--trace", "--trace-row", "5"], "there is no query 5", "0 to 4"),
        ([*one, "--trace", "--trace-key", "5"], "there is no key 5"),
        ([*one, "--trace", "--trace-head", "1"], "there is no head 1"),
        ([*one, "--trace", "--trace-sequence", "1"], "no sequence 1"),
        ([*one, "--out", "a.npy", "--lse", "./a.npy"], "--out and --lse both write './a.npy'"),
        ([*one, "--out", "-", "--json", "-"], "both write to stdout"),
        ([*one, "--out", "-", "--trace"], "--trace and --out both write to stdout"),
        ([*one, "--out", "./x.npy"], "the file of --x"),
        ([*one, "--keep-mask", "keep.npy", "--lse", "keep.npy"], "the file of --keep-mask"),
        ([*one, "--qk-epsilon", "1"], "--qk-norm"),
        ([*one, "--qk-norm", "rms", "--qk-epsilon=-1"], "--qk-epsilon is -1"),
        ([*one, "--dtype", "f8"], "auto, f32, f16, bf16"),
        ([*one, "--path", "fast"], "auto, tiled, plain"),
        ([*one, "--isa", "sse9"], "avx2"),
        ([*one, "--threads", "0"], "1 to 1024"),
        ([*one, "--caual"], "did you mean '--causal'"),
        ([*one, "--prob", "p.npy"], "did you mean '--probabilities'"),
        (["--x", "F32.safetensors"], "which of its tensors?", "a, b"),
        ([*INPUTS, "--lengths", "3,9"], "entry 1 is 9", "0..7"),
    ]
    for arguments, *parts in cases:
        if arguments:
            check_error(compute(*arguments), USAGE, *parts, command="run", name=arguments)
    result = compute()
    check(result.code == USAGE and not result.out and b"Examples:" in result.err, "no arguments")


def wrong_files():
    one = ["--x", "x.npy"]
    write_npy(FOLDER / "odd.npy", (3, 5), [True] * 15, "|b1")
    write_npy(FOLDER / "float-mask.npy", (T, T), [0.0] * T * T)
    write_npy(FOLDER / "flat1d.npy", (40,), [0.0] * 40)
    write_npy(FOLDER / "huge.npy", (T, 8), [1e300] * T * 8, "<f8")
    write_npy(FOLDER / "five.npy", (1, 1, 1, T, 8), [0.0] * T * 8)
    write_npy(FOLDER / "three-heads.npy", (B, 3, S, D), [0.0] * B * 3 * S * D)
    write_npy(FOLDER / "empty-heads.npy", (B, 0, T, D), [])
    write_npy(FOLDER / "far.npy", (T,), [0, 0, 0, 0, 1 << 40], "<i8")
    (FOLDER / "text.npy").write_text("1 2 3\n")
    (FOLDER / "cut-short.npy").write_bytes((FOLDER / "x.npy").read_bytes()[:-3])
    cases = [
        (["--x", "nowhere.npy"], NO_INPUT, "nowhere.npy", "no such file"),
        (["--x", FOLDER], NO_INPUT, str(FOLDER)),
        (["--x", "text.npy"], BAD_INPUT, "text.npy", "not a .npy file"),
        (["--x", "cut-short.npy"], BAD_INPUT, "cut-short.npy"),
        (["--x", "flat1d.npy"], BAD_INPUT, "flat1d.npy (--x)", "[40]", "[T,D]"),
        (["--x", "five.npy"], BAD_INPUT, "[1, 1, 1, 5, 8]"),
        (["--x", "k.npy", "--heads", "2"], BAD_INPUT, "[B,T,H*D]", "omit --heads"),
        (["--x", "x.npy", "--heads", "3"], BAD_INPUT, "last axis is 8", "3 heads do not divide"),
        (["--x", "x.npy", "--module", "--heads", "3"], BAD_INPUT, "--heads 3", "8 numbers of a token"),
        (["--x", "q.npy", "--module", "--heads", "2"], BAD_INPUT, "q.npy (--x)", "[B,T,E]"),
        (["--example", "--module", "--memory", "random:3x5"], BAD_INPUT, "random:3x5 (--memory)", "5"),
        (["--x", "huge.npy"], BAD_INPUT, "huge.npy", "1e+300", "float32"),
        (["--x", "F32.safetensors:c"], BAD_INPUT, "no tensor 'c'", "a, b"),
        (["--x", "none.safetensors:a"], NO_INPUT, "none.safetensors"),
        (["--q", "q.npy", "--k", "v.npy", "--v", "v.npy"], BAD_INPUT, "v.npy (--k", "[2, 2, 7, 6]",
         "dim 3 is 6, expected 8, since q is [2, 4, 5, 8]"),
        (["--q", "q.npy", "--k", "k.npy", "--v", "q.npy"], BAD_INPUT, "q.npy (--v", "dim 1 is 4"),
        (["--q", "q.npy", "--k", "three-heads.npy", "--v", "three-heads.npy"], BAD_INPUT,
         "4 heads", "3", "multiple", "--kv-heads"),
        ([*INPUTS, "--lengths", "3"], BAD_INPUT, "--lengths", "1 number, expected 2"),
        ([*INPUTS, "--lengths", "keep.npy"], BAD_INPUT, "keep.npy", "[5, 7]", "one axis"),
        ([*INPUTS, "--lengths", "q.npy"], BAD_INPUT, "q.npy (--lengths)", "f32", "whole numbers"),
        ([*INPUTS, "--keep-mask", "odd.npy"], BAD_INPUT, "--keep-mask odd.npy", "dim 0 is 3",
         "1 or 5", "it is [B,H,T,S]"),
        ([*one, "--keep-mask", "float-mask.npy"], BAD_INPUT, "float-mask.npy (--keep-mask)", "f32",
         "booleans", "--bias"),
        ([*one, "--bias", "flat1d.npy"], BAD_INPUT, "--bias flat1d.npy", "40"),
        ([*one, "--documents", "0,1,2"], BAD_INPUT, "--documents 0,1,2", "dim 0 is 3"),
        ([*one, "--documents", "far.npy"], BAD_INPUT, "far.npy", "32 bits"),
        ([*one, "--gates", "inf"], BAD_INPUT, "--gates inf: entry 0,0 is not finite"),
        ([*one, "--sink-logits", "inf"], BAD_INPUT, "--sink-logits inf", "2^127"),
        ([*one, "--shaw-keys", "k.npy"], BAD_INPUT, "--shaw-keys k.npy", "expected 2"),
        ([*one, "--t5-table", "x.npy"], BAD_INPUT, "--t5-table x.npy"),
        ([*one, "--query-starts", "0"], BAD_INPUT, "0,3,8"),
        ([*one, "--query-starts", "0,3,5", "--key-starts", "0,5"], BAD_INPUT, "--query-starts: 3",
         "--key-starts: 2"),
        ([*one, "--query-starts", "0,3,6"], USAGE, "--query-starts 0,3,6", "runs from 0 to 6"),
        ([*one, "--query-starts", "0,4,3,5"], USAGE, "--query-starts", "must not decrease"),
        ([*one, "--query-starts", "0,9,5", "--rope"], USAGE, "--query-starts"),
        ([*one, "--rope", "--positions", "1,2"], BAD_INPUT, "1,2 (--positions)", "[2]", "[5] or [1, 5]"),
        ([*INPUTS, "--rope", "--key-positions", "1,2"], BAD_INPUT, "(--key-positions)", "[7] or [2, 7]"),
    ]
    for arguments, code, *parts in cases:
        check_error(compute(*arguments, "-q"), code, *parts, command="run", name=arguments)
    check_good(compute("--q", "empty-heads.npy", "--k", "empty-heads.npy", "--v", "empty-heads.npy",
                       "--alibi", "-q"), "no heads")
    wide = [0.0] * 2 * 300
    write_npy(FOLDER / "wide.npy", (2, 300), wide)
    check_error(compute("--x", "wide.npy", "--strict"), UNSUPPORTED, "256", "omit --strict",
                command="run")
    check("path plain (a head size above 256" in compute("--x", "wide.npy").err.decode(), "explained")


def wrong_places():
    one = ["--x", "x.npy", "-q"]
    older = FOLDER / "older.npy"
    older.write_bytes(b"as it was")
    for option in ("--out", "--lse", "--probabilities", "--top-keys", "--json"):
        check_error(compute(*one, "--diagonal", older, option, "no-such-folder/x"), NO_OUTPUT,
                    "no-such-folder/x", "no such folder", command="run", name=option)
        check_error(compute(*one, "--diagonal", older, option, FOLDER), NO_OUTPUT, str(FOLDER),
                    command="run", name=option)
        check_error(compute(*one, option, "/dev/full"), NO_OUTPUT, "/dev/full", "space",
                    command="run", name=option)
    check_error(compute(*one, "--out", older, "--lengths", "9"), USAGE, "--lengths", command="run")
    check(older.read_bytes() == b"as it was", "a failed run changed an older file")
    with open("/dev/full", "wb") as full:
        for arguments in (one, ["--example"], [*one, "--out", "-"], [*one, "--json", "-"],
                          ["--help"]):
            result = compute(*arguments, stdout=full)
            result.out = b""
            check(result.code == NO_OUTPUT and len(result.errors) == 1 and
                  "stdout" in result.errors[0], f"full stdout {arguments}: {result.errors}")
    read, write = os.pipe()
    os.close(read)
    done = compute("--example", stdout=write)
    os.close(write)
    check(done.code == NO_OUTPUT and done.err == b"", f"closed pipe: {done.code} {done.err!r}")
    parent, child = pty.openpty()
    done = compute(*one, "--out", "-", stdout=child)
    os.close(child)
    os.close(parent)
    check(done.code == USAGE and b"terminal" in done.err, "no binary data on a terminal")
    target = FOLDER / "limited.npy"
    target.write_bytes(b"older")
    numbers((4, 300, 8), "large.npy")
    done = subprocess.run(["sh", "-c", 'ulimit -f 1; exec "$0" "$@"', PROGRAM, "run", "--x",
                           "large.npy", "-q", "--out", target], capture_output=True, check=False,
                          env=environment(), cwd=FOLDER)
    check(done.returncode == NO_OUTPUT and target.read_bytes() == b"older" and not leftovers(),
          f"a limited file: {done.returncode} {done.stderr!r}")
    odd = compute("--x", "x\u202e\x1b.npy")
    check(odd.code == NO_INPUT and b"\x1b" not in odd.err and "\\u202e" in odd.err.decode(),
          f"names are escaped: {odd.err!r}")


def help_text():
    text = run("help", "run").out.decode()
    check(text.startswith("multihead run: ") and max(map(len, text.splitlines())) <= 80, "help")
    check(run("run", "--x", "a", "--linear", "--help").out.decode() == text, "--help anywhere")


masks()
scores()
company()
dropout()
rope()
linear()
types()
norms()
packed()
outputs()
shapes()
said()
blackboard()
wrong_lines()
wrong_files()
wrong_places()
interrupted_at_each_operation(FOLDER / "kept.npy", "run", "--x", "large.npy", "--probabilities", "kept.npy", "-q")
help_text()
finish()
