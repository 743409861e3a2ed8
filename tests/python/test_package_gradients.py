"""The Python package: gradients of attention compared with the formula in float64, for random
problems.

test_package_random.py (hypothesis) has the problems and the float64 forward call. The reference
gradients are the formulas of backward.h in float64 for single pairs, and central differences of the
forward call check them. The bound of an element is that of docs/numerics.md 11 with simplified,
larger counts of roundings; u = 2^-24. The given o and lse are inputs, so the bound uses their
measured errors. MHA_TEST_LONG=1 tests 2,000 problems.
"""
import sys
import types

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import multihead
from test_package_random import (TYPES, U, buckets, compare, examples, laid_out, problems, reference, shaw_part,
                                 wide)

TINY = 2.0**-126
SMOOTH = ("bias", "alibi_slopes", "t5_table", "shaw_keys", "shaw_values", "sink_logits", "gates")


@st.composite
def losses(draw):
    """A problem, and the loss gradients with respect to o, lse, the weights and their average."""
    p = draw(problems())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (p.B, p.H, p.T, p.Dv)
    p.g = laid_out(rng, shape, draw(st.sampled_from(TYPES)),
                   draw(st.sampled_from(["plain", "swapped", "reversed", "apart"])))
    if draw(st.booleans()):  # one row for all queries, by strides of 0
        p.g = np.broadcast_to(p.g[:, :, :1], shape) if p.T else p.g
    some = lambda *shape: (  # noqa: E731
        rng.standard_normal(shape).astype(np.float32) if draw(st.integers(0, 2)) == 0 else None)
    p.lse_gradient = some(p.B, p.H, p.T)
    p.probabilities_gradient = some(p.B, p.H, p.T, p.S)
    p.average_probabilities_gradient = some(p.B, p.T, p.S)
    p.dropped = draw(st.booleans())
    p.path = draw(st.sampled_from(["auto", "tiled", "plain"]))
    if not p.positions:
        p.options.pop("q_offset", None)
    return p


# ---- The reference ----------------------------------------------------------------------------------


def summed(pairs, shape):
    """Sum over the broadcast axes of an input of this shape."""
    pairs = pairs.sum(tuple(range(pairs.ndim - len(shape))))
    return pairs.sum(tuple(i for i, n in enumerate(shape) if n == 1), keepdims=True)


def grouped(x, heads):
    """[B,Hk,...] of [B,H,...]: heads that share keys and values."""
    return x.reshape(x.shape[0], heads, x.shape[1] // heads, *x.shape[2:]).sum(2)


def by_row(table, row, pairs, vectors):
    """[rows,size]: for each row of a Shaw table, the sum of pairs times vectors [B,H,T,size]."""
    return np.stack([np.einsum("bhts,bhtd->d", np.where(row == i, pairs, 0), vectors)
                     for i in range(len(table))]) if len(table) else np.zeros(table.shape)


def shaw(table, distance):
    """The rows [B,1,T,S] of a table, and the vectors [B,1,T,S,size]."""
    n = len(table) // 2
    row = np.clip(distance, -n, n) + n
    return row, table.astype(np.float64)[row]


def share(p, r, kind, ds, dx, c, weight, gate, sink):
    """Gradients (kind `exact`), or their bounds, computed from magnitudes (kind `bound`)."""
    o, found = p.options, {}
    of = np.abs if kind == "bound" else lambda x: x
    scale = of(np.float64(o.get("scale", p.D**-0.5)))
    q, k, g = (of(x.astype(np.float64)) for x in (p.q, p.k, p.g))
    k = k.repeat(p.H // p.Hk, 1)
    gates = of(wide(o.get("gates", 1), (p.B, p.H)))[:, :, None, None]
    found["q"] = scale * (dx @ k)
    found["k"] = grouped(scale * (dx.swapaxes(2, 3) @ q), p.Hk)
    found["v"] = grouped((weight * gates).swapaxes(2, 3) @ g, p.Hk)
    if "shaw_keys" in o:
        row, vectors = shaw(of(o["shaw_keys"]), r.distance)
        found["q"] = found["q"] + scale * np.einsum("bhts,bgtsd->bhtd", dx, vectors)
        found["shaw_keys"] = scale * by_row(o["shaw_keys"], row, dx, q)
    if "shaw_values" in o:
        row, _ = shaw(o["shaw_values"], r.distance)
        found["shaw_values"] = by_row(o["shaw_values"], row, weight * gates, g)
    if "bias" in o:
        found["bias"] = summed(ds, o["bias"].shape)
    if "alibi_slopes" in o:
        sign = 1 if kind == "bound" else -1
        found["alibi_slopes"] = summed(sign * (ds * abs(r.distance)).sum((2, 3)),
                                       o["alibi_slopes"].shape)
    if "t5_table" in o:
        bucket = buckets(r.distance, 8, o.get("t5_max_distance", 128), o.get("t5_one_sided", False))
        found["t5_table"] = np.stack([np.where(bucket == i, ds, 0).sum((0, 2, 3)) for i in range(8)])
    if "sink_logits" in o:
        found["sink_logits"] = sink.sum((0, 2))
    if "gates" in o:
        found["gates"] = summed(gate.sum((2, 3)), o["gates"].shape)
    found["scale"] = (dx * c).sum()
    return found


def parts(p, r, factor):
    """The numbers of each pair in float64, such as c k x - delta and w."""
    o, x = p.options, types.SimpleNamespace(factor=factor)
    shape = (p.B, p.H, p.T, p.S)
    g = p.g.astype(np.float64)
    x.x, x.size = g @ r.values.swapaxes(2, 3), abs(g) @ abs(r.values).swapaxes(2, 3)
    if "shaw_values" in o:
        _, vectors = shaw(o["shaw_values"], r.distance)
        x.x = x.x + np.einsum("bhtd,bgtsd->bhts", g, vectors)
        x.size = x.size + np.einsum("bhtd,bgtsd->bhts", abs(g), abs(vectors))
    x.gates = wide(o.get("gates", 1), (p.B, p.H))[:, :, None, None]
    x.passed = x.gates * factor
    w = np.zeros(shape)
    if p.probabilities_gradient is not None:
        w = w + p.probabilities_gradient
    if p.average_probabilities_gradient is not None:
        w = w + p.average_probabilities_gradient[:, None] / p.H
    x.w = w * factor if p.dropped else w
    lse = 0 if p.lse_gradient is None else p.lse_gradient.astype(np.float64)[..., None]
    x.delta = (r.p * (x.passed * x.x + x.w)).sum(-1, keepdims=True) - lse
    x.inner = x.passed * x.x - x.delta
    x.ds = r.p * (x.inner + x.w)
    x.slope = 1 - np.tanh(r.raw / o["softcap"])**2 if o.get("softcap") else np.ones(shape)
    x.dx = x.ds * x.slope
    # The score before the scale; the scale's gradient is the sum of dx times this score.
    q, k = p.q.astype(np.float64), p.k.astype(np.float64).repeat(p.H // p.Hk, 1)
    x.c, x.c_size = q @ k.swapaxes(2, 3), abs(q) @ abs(k).swapaxes(2, 3)
    if "shaw_keys" in o:
        _, vectors = shaw(o["shaw_keys"], r.distance)
        x.c = x.c + np.einsum("bhtd,bgtsd->bhts", q, vectors)
        x.c_size = x.c_size + np.einsum("bhtd,bgtsd->bhts", abs(q), abs(vectors))
    x.sink = np.zeros(r.lse.shape)
    if "sink_logits" in o:
        x.sink = np.exp(o["sink_logits"].astype(np.float64)[:, None] - r.lse)
    return x


def exact_gradients(p, r, x):
    return share(p, r, "exact", x.ds, x.dx, x.c, r.p * x.factor, r.p * x.factor * x.x,
                 -x.sink * x.delta[..., 0])


def bounds(p, r, x, o, lse):
    """Bounds of docs/numerics.md 11. o and lse are the library's inputs."""
    seen = r.p > 0
    with np.errstate(invalid="ignore"):
        off = abs(lse.astype(np.float64) - r.lse)
        # The error of the given lse; in rows without keys both are -inf, and there are no pairs.
        lse_error = np.where(np.isfinite(r.lse), off, 0)[..., None]
        size = np.where(np.isfinite(r.lse), abs(r.lse), 0)[..., None]
        distance = np.where(seen, abs(r.biased - r.lse[..., None]), 0)
    # Softmax terms below 2^-126 may be flushed, and their relative error is then 1.
    relative = np.expm1(r.error + lse_error + 2 * U * size + U * distance + 4 * U)
    p_error = np.where(seen, r.p * relative + TINY, 0)
    p_most = r.p + p_error
    exact_o = (r.p * x.factor) @ r.values + (
        shaw_part(p, r, x.factor, lambda a: a) if "shaw_values" in p.options else 0)
    o_error = abs(o.astype(np.float64) - x.gates * exact_o)
    w_error = (abs(x.w) * (p_error + 2 * U * p_most)).sum(-1, keepdims=True)
    delta_error = ((abs(p.g.astype(np.float64)) * o_error).sum(-1, keepdims=True) + w_error
                   + 2 * U * abs(x.delta) + TINY)
    x_error = (p.Dv + 2) * U * x.size + TINY
    dp, passed = abs(x.passed * x.x), abs(x.passed)
    inner_error = passed * x_error + 3 * U * dp + delta_error + 2 * U * abs(x.inner)
    ds = (p_error * abs(x.inner) + p_most * inner_error + abs(x.w) * (p_error + 2 * U * p_most)
          + 6 * U * abs(x.ds) + np.where(seen, TINY, 0))
    slope_error = 0.0
    if p.options.get("softcap"):
        slope_error = 16 * U + 0.77 * r.raw_error / p.options["softcap"]
    # The maximum number of roundings of a term in chains over keys, over queries and heads of a
    # group, and over rows of a Shaw table.
    n = p.S + p.T * (p.H // p.Hk) + 32
    dx = ds * (x.slope + slope_error) + abs(x.ds) * slope_error + (n + 1) * U * abs(x.dx)
    weight = p_error * x.factor + n * U * p_most * x.factor
    gate = weight * (abs(x.x) + x_error) + p_most * x.factor * x_error
    sink = np.abs(x.sink)[..., None] * (
        np.expm1(lse_error + 2 * U) * abs(x.delta) + 2 * delta_error)
    found = share(p, r, "bound", ds, dx, abs(x.c), weight, gate, sink[..., 0])
    # The error of the score before the scale, for the gradient of the scale.
    found["scale"] += (abs(x.dx) * (p.D + 4) * U * x.c_size).sum()
    return found


# ---- Tests ------------------------------------------------------------------------------------------


def run(p):
    """o, lse and the gradients of the library, and the factor of dropout of each pair."""
    o = p.options
    names = ["lse", "probabilities"] if "dropout" in o else ["lse"]
    with_dropped = {"dropped_probabilities": True} if "dropout" in o else {}
    out, extra = multihead.attention(p.q, p.k, p.v, outputs=names, path=p.path, **with_dropped, **o)
    factor = np.ones((p.B, p.H, p.T, p.S))
    if "dropout" in o:
        rate = np.float32(o["dropout"]).astype(float)
        factor = np.where(extra.probabilities != 0, 1 / (1 - rate) if rate < 1 else 0.0, 0.0)
    wanted = ["q", "k", "v", "scale", *(name for name in SMOOTH if name in o)]
    given = {name: getattr(p, name) for name in ("lse_gradient", "probabilities_gradient",
                                                 "average_probabilities_gradient")}
    # dropped_probabilities has no effect without gradients of weights.
    weights = given["probabilities_gradient"] is not None or (
        given["average_probabilities_gradient"] is not None)
    p.dropped = p.dropped and weights
    found = multihead.attention_backward(p.q, p.k, p.v, out, extra.lse, p.g, wanted=wanted,
                                         dropped_probabilities=p.dropped, path=p.path, **given, **o)
    return out, extra.lse, {name: getattr(found, name) for name in wanted}, factor


@examples(30, 120, 2000)
@hypothesis.given(losses())
def test_backward(p):
    o, lse, found, factor = run(p)
    r = reference(p)
    x = parts(p, r, factor)
    exact, bound = exact_gradients(p, r, x), bounds(p, r, x, o, lse)
    # In a row without keys, lse is the sink's logit, so the sink's gradient is the gradient of lse.
    assert set(found) == set(exact) == set(bound)
    for name, gradient in found.items():
        assert gradient.dtype == np.float32 and gradient.shape == np.shape(exact[name]), name
        compare(f"d{name}", gradient, exact[name],
                bound[name] * (1 + 1e-6) + U * abs(exact[name]) + 2.0**-120 * (p.S + p.T + 1))


def loss_of(p, factor):
    """The loss in float64, by the forward call only."""
    r = reference(p)
    gates = wide(p.options.get("gates", 1), (p.B, p.H))[:, :, None, None]
    o = gates * ((r.p * factor) @ r.values + (
        shaw_part(p, r, factor, lambda a: a) if "shaw_values" in p.options else 0))
    loss = (o * p.g).sum()
    weights = r.p * factor if p.dropped else r.p
    if p.lse_gradient is not None:
        loss += np.where(np.isfinite(r.lse), r.lse * p.lse_gradient, 0).sum()
    if p.probabilities_gradient is not None:
        loss += (weights * p.probabilities_gradient).sum()
    if p.average_probabilities_gradient is not None:
        loss += (weights.mean(1) * p.average_probabilities_gradient).sum()
    return loss


def moved(p, name, by):
    """The problem with one input plus an array."""
    other = types.SimpleNamespace(**vars(p))
    other.options = dict(p.options)
    if name in "qkv":
        setattr(other, name, getattr(p, name) + by)
    elif name == "scale":
        other.options["scale"] = p.options.get("scale", p.D**-0.5) + by
    else:
        other.options[name] = p.options[name] + by
    return other


@examples(10, 40, 200)
@hypothesis.given(losses(), st.integers(0, 2**32 - 1))
def test_reference(p, seed):
    """The reference is the derivative of the float64 forward: central differences of fourth order.

    With a step of h = 2^-10, their error is h^4 f'''''/30, about 1e-13 of the loss, and roundings
    of 2^-53/h of the loss, 1e-13. The loss and its fifth derivatives are below 1e4 times the terms'
    sum in these problems."""
    rng = np.random.default_rng(seed)
    factor = np.ones((p.B, p.H, p.T, p.S))
    if "dropout" in p.options:
        factor = np.where(rng.random(factor.shape) < 0.7, 1 / 0.7, 0.0)
    for name in "qkvg":
        setattr(p, name, getattr(p, name).astype(np.float64))
    for name in SMOOTH:
        if name in p.options:
            p.options[name] = np.asarray(p.options[name]).astype(np.float64)
    r = reference(p)
    exact = exact_gradients(p, r, parts(p, r, factor))
    size = 1 + abs(loss_of(p, factor)) + sum(np.abs(g).sum() for g in exact.values())
    for name, gradient in exact.items():
        along = rng.standard_normal(np.shape(gradient))
        if name in p.options and name == "bias":
            along = np.where(np.isfinite(p.options["bias"]), along, 0)
        h = 2.0**-10
        at = lambda n: loss_of(moved(p, name, n * h * along), factor)  # noqa: E731
        slope = (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * h)
        assert abs(slope - (gradient * along).sum()) <= 1e-7 * size, name


@examples(10, 40, 300)
@hypothesis.given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 20)), min_size=1, max_size=4),
                  st.integers(1, 3), st.integers(1, 3), st.booleans(), st.integers(0, 2**32 - 1))
def test_ragged(lengths, heads, group, causal, seed):
    """Gradients of ragged sequences are bit-identical to those of separate sequences."""
    rng = np.random.default_rng(seed)
    queries, keys = np.array(lengths).T
    starts = [np.concatenate([[0], np.cumsum(n)]).tolist() for n in (queries, keys)]
    normal = lambda h, n, d: rng.standard_normal((1, h, n, d)).astype(np.float32)  # noqa: E731
    q, k, v, g = (normal(heads * group, sum(queries), 8), normal(heads, sum(keys), 8),
                  normal(heads, sum(keys), 5), normal(heads * group, sum(queries), 5))
    options = {"causal": causal, "window": (4, 0)} if causal else {"softcap": 2.0}

    def gradients(q, k, v, g, **more):
        o, extra = multihead.attention(q, k, v, outputs="lse", **more, **options)
        return multihead.attention_backward(q, k, v, o, extra.lse, g, **more, **options)

    whole = gradients(q, k, v, g, query_starts=starts[0], key_starts=starts[1])
    for i in range(len(lengths)):
        t, s = (slice(*n[i:i + 2]) for n in starts)
        alone = gradients(q[:, :, t], k[:, :, s], v[:, :, s], g[:, :, t])
        for name, at in (("q", t), ("k", s), ("v", s)):
            assert np.array_equal(getattr(whole, name)[:, :, at], getattr(alone, name)), name


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q"]))
