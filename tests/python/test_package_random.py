"""The Python package: attention compared with the formula in float64, for random problems
(hypothesis). The problems have every input, output, element type and layout that the package
supports. The bound of a row is that of attention.h with the terms of docs/numerics.md 3, simplified
to a larger bound; u = 2^-24. MHA_TEST_LONG=1 tests 2,000 problems.
"""
import sys
import types

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import multihead
from shared import LIBRARY_DIR, LONG, amount

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

hypothesis.configuration.set_hypothesis_home_dir(LIBRARY_DIR / "hypothesis")
U = 2.0**-24
TYPES = [np.dtype(np.float32), np.dtype(np.float16)] + (
    [np.dtype(ml_dtypes.bfloat16)] if ml_dtypes else [])
# Half an ulp of an output: relative, and absolute for subnormal values (mha_tensor_convert).
ROUNDING = {"float32": (0, 0), "float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, 2.0**-134)}


def examples(*counts):
    """The number of problems in the gate, the deep form and the full run. The first two use the
    same problems."""
    return hypothesis.settings(max_examples=amount(*counts), deadline=None, derandomize=not LONG, print_blob=True,
                               suppress_health_check=list(hypothesis.HealthCheck))


def laid_out(rng, shape, dtype, way):
    """A random array in one of several memory layouts, with a contiguous last axis."""
    x = rng.standard_normal(shape).astype(np.float32).astype(dtype)
    if way == "swapped":  # [B,T,H,D] in memory
        return np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)
    if way == "reversed":
        return np.ascontiguousarray(x[:, :, ::-1])[:, :, ::-1]
    if way == "apart":  # rows are part of a larger array
        wide = np.full((*shape[:3], shape[3] + 3), np.nan, dtype)
        wide[..., 2:-1] = x
        return wide[..., 2:-1]
    return x


@st.composite
def problems(draw):
    flag = lambda: draw(st.integers(0, 3)) == 0  # noqa: E731
    size = lambda most: draw(st.integers(1, most))  # noqa: E731
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    B, Hk, group = draw(st.integers(0, 3)), size(3), size(3)
    T, S = draw(st.integers(0, 12)), draw(st.one_of(st.integers(0, 24), st.integers(500, 560)))
    H, D, Dv = Hk * group, size(20), size(20)
    ways = st.sampled_from(["plain", "swapped", "reversed", "apart"])
    kinds = st.sampled_from(TYPES)
    p = types.SimpleNamespace(B=B, H=H, Hk=Hk, T=T, S=S, D=D, Dv=Dv, options={})
    p.q, p.k, p.v = (laid_out(rng, shape, draw(kinds), draw(ways)) for shape in
                     ((B, H, T, D), (B, Hk, S, D), (B, Hk, S, Dv)))
    o = p.options

    def broadcast(*shape):
        return tuple(1 if flag() else n for n in shape)[draw(st.integers(0, len(shape) - 1)):]

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    for name, made in (
            ("causal", lambda: True),
            ("scale", lambda: draw(st.sampled_from([0.0, 0.3, -0.7]))),
            ("key_lengths", lambda: rng.integers(0, S + 1, B)),
            ("key_begins", lambda: rng.integers(0, S + 1, B).tolist()),
            ("keep_mask", lambda: rng.random(broadcast(B, H, T, S)) < 0.7),
            ("bias", lambda: np.where(rng.random(shape := broadcast(B, H, T, S)) < 0.1, -np.inf,
                                      rng.standard_normal(shape)).astype(draw(kinds))),
            ("window", lambda: (draw(st.integers(-1, 5)),
                                0 if "causal" in o else draw(st.integers(-1, 5)))),
            ("documents", lambda: [rng.integers(0, 2, broadcast(B, n)).astype(np.int32)
                                   for n in (T, S)]),
            ("keep_blocks", lambda: None),
            ("keep_callback", lambda: lambda b, h, t, s: (t + s + b + h) % 3 != 0),
            ("softcap", lambda: 2.5),
            ("dropout", lambda: draw(st.sampled_from([0.3, 1.0]))),
            ("alibi_slopes", lambda: abs(normal(*broadcast(B, H)))),
            ("t5_table", lambda: normal(8, H)),
            ("shaw_keys", lambda: normal(5, D)),
            ("shaw_values", lambda: normal(7, Dv)),
            ("sink_logits", lambda: normal(H)),
            ("gates", lambda: normal(*broadcast(B, H)))):
        if not flag():
            continue
        o[name] = made()
    if "window" in o and flag():
        o |= {"sink_keys": draw(st.integers(0, 3)), "global_keys": rng.random(broadcast(B, S)) < 0.2,
              "global_queries": rng.random(broadcast(B, T)) < 0.2}
    if "documents" in o:
        o["query_documents"], o["key_documents"] = o.pop("documents")
    if "keep_blocks" in o:
        o |= {"block_queries": 3, "block_keys": 4,
              "keep_blocks": rng.random((B, H, -(-T // 3), -(-S // 4))) < 0.7}
    if "t5_table" in o and flag():
        o |= {"t5_max_distance": 16, "t5_one_sided": True}
    if "dropout" in o:
        o["dropout_seed"] = draw(st.integers(0, 2**64 - 1))
    p.positions = {"causal", "window", "alibi_slopes", "t5_table", "shaw_keys", "shaw_values"} & {*o}
    if p.positions and flag():
        o["q_offset"] = draw(st.integers(-4, 20))
    elif p.positions and flag():
        o["q_offset"] = rng.integers(-4, 20, B)
    p.names = draw(st.lists(st.sampled_from(multihead._attention.OUTPUTS), unique=True))
    p.request = {"top": draw(st.integers(1, 4)), "offsets": [0, -1, 30],
                 "score_stage": draw(st.sampled_from(["raw", "capped", "biased"]))}
    if flag():
        p.request |= {"heads": rng.integers(0, H, 3), "rows": rng.integers(0, max(T, 1), 2 if T else 0)}
    return p


def buckets(distance, count, most, one_sided):
    """T5's bucket of s - i."""
    first = 0
    if one_sided:
        away = np.maximum(-distance, 0)
    else:
        count //= 2
        first, away = np.where(distance > 0, count, 0), abs(distance)
    exact = count // 2
    with np.errstate(divide="ignore"):
        steps = np.log(away / exact) / np.log(most / exact) * (count - exact)
    far = exact + np.minimum(np.floor(np.where(away > 0, steps, 0) + 1e-10), count - exact - 1)
    return (first + np.where(away < exact, away, far)).astype(int)


def wide(x, shape):
    return np.broadcast_to(np.asarray(x).astype(np.float64), shape)


def reference(p):
    """Results in float64, and `error`, the bounds of the scores' errors."""
    o, shape = p.options, (p.B, p.H, p.T, p.S)
    q, k, v = (x.astype(np.float64) for x in (p.q, p.k, p.v))
    k, v = k.repeat(p.H // p.Hk, 1), v.repeat(p.H // p.Hk, 1)
    i = np.zeros((p.B, 1, p.T, 1), int) + np.arange(p.T)[:, None]
    i = i + np.reshape(o.get("q_offset", 0), (-1, 1, 1, 1))
    s = np.arange(p.S)
    distance = np.broadcast_to(s - i, (p.B, 1, p.T, p.S))
    scale = o.get("scale", p.D**-0.5)
    r = types.SimpleNamespace(distance=distance)
    raw, size = q @ k.swapaxes(2, 3), abs(q) @ abs(k).swapaxes(2, 3)
    if "shaw_keys" in o:
        row = np.clip(distance, -2, 2) + 2
        raw = raw + np.take_along_axis(q @ o["shaw_keys"].astype(float).T, row, 3) if raw.size else raw
        size = size + np.take_along_axis(abs(q) @ abs(o["shaw_keys"].astype(float)).T, row,
                                         3) if size.size else size
    r.raw = scale * raw
    # Section 3.1: a chain over D, the scale and, with Shaw, the sum of two terms.
    error = (p.D + 4) * U * abs(scale) * size + 2 * U * abs(r.raw)
    r.capped, r.raw_error = r.raw, error
    if o.get("softcap"):
        r.capped = o["softcap"] * np.tanh(r.raw / o["softcap"])
        error = error + 11 * U * abs(r.capped)
    r.capped_error = error
    terms = [r.capped]
    if "bias" in o:
        terms.append(wide(o["bias"], shape))
    if "alibi_slopes" in o:
        slopes = wide(o["alibi_slopes"], (p.B, p.H))[:, :, None, None]
        terms.append(-slopes * abs(distance))
    if "t5_table" in o:
        bucket = buckets(distance, 8, o.get("t5_max_distance", 128), o.get("t5_one_sided", False))
        terms.append(np.stack([o["t5_table"].astype(float)[bucket[:, 0], h]
                               for h in range(p.H)], 1))
    score, keep = 0, masks(p, shape, distance)
    for term in terms:
        score = score + term
        finite = np.where(np.isfinite(term), abs(term), 0)
        error = error + 4 * U * (finite + np.where(np.isfinite(score), abs(score), 0))
    r.biased = np.where(keep, score, -np.inf)
    keep = keep & np.isfinite(r.biased)
    r.keep, r.error = keep, np.where(keep, error, 0)
    sink = wide(o["sink_logits"], (p.H,))[:, None, None] if "sink_logits" in o else -np.inf
    top = np.maximum(r.biased.max(-1, initial=-np.inf, keepdims=True), wide(sink, (p.B, p.H, p.T, 1)))
    safe = np.where(np.isfinite(top), top, 0)
    weights = np.exp(r.biased - safe)
    total = weights.sum(-1, keepdims=True) + np.exp(sink - safe)
    r.p = np.divide(weights, total, out=np.zeros(shape), where=total > 0)
    with np.errstate(divide="ignore"):
        r.lse = (np.log(total) + safe)[..., 0]
    r.values, r.v = v, abs(v).max(2, initial=0)[:, :, None]
    return r


def masks(p, shape, distance):
    o, keep = p.options, np.ones(shape, bool)
    s, rows = np.arange(p.S), (p.B, 1, 1, 1)
    begins = np.reshape(o.get("key_begins", np.zeros(p.B, int)), rows)
    if o.get("causal"):
        keep &= distance <= 0
    if "key_lengths" in o:
        keep &= s < np.reshape(o["key_lengths"], rows)
    keep &= s >= begins
    if "window" in o:
        left, right = o["window"]
        seen = ((left < 0) | (distance >= -left)) & ((right < 0) | (distance <= right))
        seen = seen | (s < begins + o.get("sink_keys", 0))
        if "global_keys" in o:
            seen = seen | np.broadcast_to(o["global_keys"], (p.B, p.S))[:, None, None]
            seen = seen | np.broadcast_to(o["global_queries"], (p.B, p.T))[:, None, :, None]
        keep &= seen
    if "query_documents" in o:
        keep &= (np.broadcast_to(o["query_documents"], (p.B, p.T))[:, None, :, None]
                 == np.broadcast_to(o["key_documents"], (p.B, p.S))[:, None, None])
    if "keep_blocks" in o:
        blocks = o["keep_blocks"].repeat(3, 2).repeat(4, 3)
        keep &= blocks[:, :, :p.T, :p.S]
    if "keep_mask" in o:
        keep &= np.broadcast_to(o["keep_mask"], shape)
    if "keep_callback" in o:
        b, h, t = (np.arange(n) for n in shape[:3])
        keep &= o["keep_callback"](b[:, None, None, None], h[:, None, None], t[:, None], s)
    return keep


def compare(what, ours, exact, bound):
    with np.errstate(invalid="ignore"):
        off = abs(ours.astype(np.float64) - exact)
    same = (ours == exact) | (np.isnan(ours) & np.isnan(exact))  # infinities
    worst = np.where(same, 0, off - bound)
    assert (worst <= 0).all(), f"{what}: {worst.max()} above the bound {np.max(bound)}"


def check_outputs(p, r, x, d, weight_error):
    """The requested outputs."""
    request = p.request
    heads, rows = request.get("heads", slice(None)), request.get("rows", slice(None))
    pick = lambda a: a[:, heads][:, :, rows]  # noqa: E731
    p_error = r.p * weight_error + 2.0**-126
    if x.lse is not None:
        compare("lse", x.lse, r.lse, d[..., 0] + (p.S / 51 + 20) * U + 2 * U * abs(
            np.where(np.isfinite(r.lse), r.lse, 0)))
    if x.probabilities is not None:
        compare("probabilities", x.probabilities, pick(r.p), pick(p_error))
    if x.average_probabilities is not None:
        compare("average", x.average_probabilities, r.p.mean(1), p_error.mean(1) + (p.H + 2) * U)
    if x.scores is not None:
        stage = request["score_stage"]
        error = {"raw": r.raw_error, "capped": r.capped_error, "biased": r.error}[stage]
        compare(stage, x.scores, pick(getattr(r, stage)), pick(error) + 2.0**-126)
    if x.column_sums is not None:
        compare("column_sums", x.column_sums, r.p.sum(2), p_error.sum(2) + U * r.p.sum(2))
    if x.entropy is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = np.where(r.p > 0, -r.p * np.log(r.p), 0)
        # |d(p log p)| <= (|p log p| + p) e, and each p below 2^-126 adds less than 2^-118.
        compare("entropy", x.entropy, terms.sum(-1), ((terms + r.p) * (weight_error + 8 * U)).sum(-1)
                + p.S * U * terms.sum(-1) + p.S * 2.0**-118)
    if x.largest_weight is not None:
        compare("largest_weight", x.largest_weight, r.p.max(-1, initial=0), p_error.max(-1, initial=0))
    if x.largest_key is not None and p.S:
        at = np.take_along_axis(r.p, np.maximum(x.largest_key, 0)[..., None], 3)[..., 0]
        compare("largest_key", at, r.p.max(-1), 2 * p_error.max(-1))
    for name, distance in (("diagonal", 0), ("offset_mass", request["offsets"])):
        if getattr(x, name) is not None and p.S:
            hit = lambda n: (r.distance == n)  # noqa: E731
            if name == "diagonal":
                compare(name, x.diagonal, (r.p * hit(0)).sum(-1), (p_error * hit(0)).sum(-1))
                continue
            for n, offset in enumerate(distance):
                compare(name, x.offset_mass[..., n], (r.p * hit(offset)).sum(-1),
                        (p_error * hit(offset)).sum(-1))
    if x.first_token is not None and p.S:
        first = np.broadcast_to(np.reshape(np.asarray(p.options.get("key_begins", [0] * p.B), int),
                                           (p.B, 1, 1, 1)), (p.B, p.H, p.T, 1))
        mass = lambda a: np.where(first < p.S, np.take_along_axis(  # noqa: E731
            a, np.minimum(first, p.S - 1), 3), 0)[..., 0]
        compare("first_token", x.first_token, mass(r.p), mass(p_error))
    if x.top_keys is not None and p.S:
        found = np.where(x.top_keys >= 0, np.take_along_axis(r.p, np.maximum(x.top_keys, 0), 3), 0)
        width = min(request["top"], p.S)
        best = -np.sort(-r.p, -1)[..., :width]
        compare("top_weights", x.top_weights[..., :width], best, 2 * p_error.max(-1, keepdims=True))
        compare("top_keys", found[..., :width], best, 2 * p_error.max(-1, keepdims=True))
        assert (x.top_keys[..., width:] == -1).all()


@examples(30, 120, 2000)
@hypothesis.given(problems())
def test_forward(p):
    names = {"probabilities"} if "dropout" in p.options else {*p.names}
    request = dict(p.request)
    if "dropout" in p.options:
        request = {"dropped_probabilities": True}
    options = dict(p.options)
    if "q_offset" in options and not p.positions:
        del options["q_offset"]
    # The options of an output are an error without the output.
    for name, owners in (("offsets", {"offset_mass"}), ("heads", {"probabilities", "scores"}),
                         ("rows", {"probabilities", "scores"}), ("score_stage", {"scores"}),
                         ("top", {"top_keys", "top_weights"})):
        if not owners & names:
            request.pop(name, None)
    o, x = multihead.attention(p.q, p.k, p.v, outputs=sorted(names) or ["lse"], **request, **options)
    r = reference(p)
    # The relative error of a weight is twice the largest error of its row's scores plus the terms
    # of 3.2 to 3.4 for the exponential, the sums and the division.
    d = r.error.max(-1, initial=0, keepdims=True)
    sink = p.options.get("sink_logits")
    if sink is not None:
        d = np.maximum(d, 2 * U * abs(sink.astype(float))[:, None, None])
    spread = np.where(r.keep, abs(r.biased), 0).max(-1, initial=0, keepdims=True)
    weight_error = np.expm1(2 * d + 4 * U * spread) + (p.S / 51 + 600) * U
    kept = 1.0
    if "dropout" in p.options:
        rate = np.float32(p.options["dropout"]).astype(float)
        factor = 1 / (1 - rate) if rate < 1 else 0.0
        kept = np.where(x.probabilities != 0, factor, 0.0)
        compare("dropped", x.probabilities, r.p * kept, r.p * kept * (weight_error + 2 * U) + 2.0**-120)
    else:
        check_outputs(p, r, x, d, weight_error)
    values = lambda v, table: (r.p * kept) @ v + (  # noqa: E731
        shaw_part(p, r, kept, table) if "shaw_values" in p.options else 0)
    exact = values(r.values, lambda a: a)
    size = (r.p * kept) @ abs(r.values) + (
        shaw_part(p, r, kept, abs) if "shaw_values" in p.options else 0)
    most = np.max(kept, initial=0) * (r.v + (abs(p.options["shaw_values"]).max()
                                             if "shaw_values" in p.options else 0))
    gates = wide(p.options.get("gates", 1), (p.B, p.H))[:, :, None, None]
    bound = (np.expm1(2 * d + 4 * U * spread) * size + (p.S / 51 + 600) * U * most) * abs(gates)
    relative, absolute = ROUNDING[o.dtype.name]
    exact = exact * gates
    bound = bound + relative * (abs(exact) + bound) + absolute + 2.0**-120 * (p.S + 1)
    assert o.shape == exact.shape and o.dtype == p.q.dtype
    compare("o", o, exact, bound)


def shaw_part(p, r, kept, of):
    table = of(p.options["shaw_values"].astype(float))
    n = len(table) // 2
    rows = np.clip(r.distance, -n, n) + n
    weights = r.p * kept
    return np.stack([np.where(rows == i, weights, 0).sum(-1) for i in range(len(table))], -1) @ table


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q"]))
