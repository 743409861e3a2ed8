"""The Python package: gradients of attention against the formulas in float64, on random problems
(hypothesis; those of test_package_random.py, dropout, masks, tables, sinks and element types included).

The bounds are those of docs/numerics.md 11, simplified to larger ones; u = 2^-24. MHA_TEST_LONG=1 takes
2,000 problems.
"""
import os
import sys

import pytest

np = pytest.importorskip("numpy")
hypothesis = pytest.importorskip("hypothesis")
from hypothesis import strategies as st  # noqa: E402
from test_package_random import ROUNDING, U, buckets, compare, problems, reference, wide  # noqa: E402
import multihead  # noqa: E402

LONG = os.environ.get("MHA_TEST_LONG", "0") not in ("", "0")


def summed_to(x, shape):
    """x summed over the axes along which `shape` has 1 or lacks them."""
    x = x.sum(tuple(range(x.ndim - len(shape))))
    return x.sum(tuple(i for i, n in enumerate(shape) if n == 1 and x.shape[i] != 1), keepdims=True)


class Pairs:
    """ds and what follows from it for each pair of query and key: exact, and what it may be wrong by."""

    def __init__(self, p, r, g, o, factor, g_lse, weights):
        o_options = p.options
        shape = (p.B, p.H, p.T, p.S)
        gates = wide(o_options.get("gates", 1), (p.B, p.H))[:, :, None, None]
        g = g.astype(np.float64) * gates
        d = r.error.max(-1, initial=0, keepdims=True)
        sinks = o_options.get("sink_logits")
        if sinks is not None:
            d = np.maximum(d, 2 * U * abs(sinks.astype(float))[:, None, None])
        lse = np.where(np.isfinite(r.lse), r.lse, 0)[..., None]
        spread = np.where(r.keep, abs(r.biased), 0)
        # The score, lse, which is rounded, their difference and the exponential.
        lse_error = d + (p.S / 51 + 20) * U + 2 * U * abs(lse)
        eps = np.expm1(np.where(r.keep, r.error, 0) + lse_error + 4 * U * abs(lse) + 2 * U * spread + 8 * U)
        eps = np.where(r.p < 2.0**-120, eps + 1, eps)  # such weights may be 0
        weight = np.expm1(2 * d + 4 * U * spread.max(-1, initial=0, keepdims=True)) + (p.S / 51 + 600) * U
        x, x_size = g @ r.values.swapaxes(2, 3), abs(g) @ abs(r.values).swapaxes(2, 3)
        o_exact = (r.p * factor) @ r.values
        o_size = (r.p * factor) @ abs(r.values)
        if "shaw_values" in o_options:
            table = o_options["shaw_values"].astype(float)
            at = np.clip(r.distance, -(len(table) // 2), len(table) // 2) + len(table) // 2
            rows = np.broadcast_to(table[at], (*shape, p.Dv))
            x = x + np.einsum("bhtd,bhtsd->bhts", g, rows)
            x_size = x_size + np.einsum("bhtd,bhtsd->bhts", abs(g), abs(rows))
            o_exact = o_exact + np.einsum("bhts,bhtsd->bhtd", r.p * factor, rows)
            o_size = o_size + np.einsum("bhts,bhtsd->bhtd", r.p * factor, abs(rows))
            self.shaw_values = at
        relative, absolute = ROUNDING[o.dtype.name]
        biggest = np.max(factor, initial=0) * (r.v + (abs(table).max() if "shaw_values" in o_options else 0))
        o_error = np.expm1(2 * d + 4 * U * spread.max(-1, initial=0, keepdims=True)) * o_size \
            + (p.S / 51 + 600) * U * biggest
        # The library reads o as the caller kept it: gated and rounded to its type. It divides the
        # gate out by taking o_gradient as it is: delta = o_gradient . o.
        o_error = abs(gates) * o_error
        o_error = o_error + relative * (abs(gates * o_exact) + o_error) + absolute
        raw_g = abs(self.undo(g, gates, p))
        delta = (g * o_exact).sum(-1, keepdims=True)
        delta_error = (raw_g * o_error).sum(-1, keepdims=True) + 2 * U * abs(delta)
        extra = np.zeros(shape)
        if weights is not None:
            extra = weights.astype(np.float64)
        inner = (r.p * extra).sum(-1, keepdims=True)
        delta_error = delta_error + (r.p * abs(extra) * (weight + 4 * U)).sum(-1, keepdims=True) \
            + U * abs(inner)
        total = factor * x + extra - delta - inner
        if g_lse is not None:
            total = total + g_lse[..., None].astype(np.float64)
            delta_error = delta_error + 2 * U * abs(g_lse)[..., None]
        x_error = factor * (p.Dv + 6) * U * x_size
        self.p, self.eps, self.factor, self.g = r.p, eps, factor, g
        self.delta, self.delta_error = delta + inner, delta_error
        if g_lse is not None:
            self.delta = self.delta - g_lse[..., None]
        self.ds = r.p * total
        size = abs(factor * x) + abs(extra) + abs(self.delta)
        self.ds_error = r.p * (eps * abs(total) + (1 + eps) * (
            x_error + delta_error + 6 * U * size + abs(extra) * (eps + weight + 4 * U)))
        slope, slope_error = 1, 0
        if o_options.get("softcap"):
            cap = o_options["softcap"]
            slope = 1 - np.tanh(r.raw / cap) ** 2
            slope_error = 16 * U + 0.77 * r.raw_error / cap
        self.dx = self.ds * slope
        self.dx_error = self.ds_error * slope + abs(self.ds) * slope_error \
            + self.ds_error * slope_error + U * abs(self.dx)
        self.o_exact, self.o_error = o_exact, o_error

    @staticmethod
    def undo(g, gates, p):
        return np.divide(g, gates, out=np.zeros((p.B, p.H, p.T, p.Dv)), where=gates != 0)


def check_gradients(p, r, x, o_gradient, found):
    o, D = p.options, p.D
    scale = o.get("scale", D**-0.5)
    group = p.H // p.Hk
    q = p.q.astype(np.float64)
    k = p.k.astype(np.float64).repeat(group, 1)
    shaw = 0
    if "shaw_keys" in o:
        table = o["shaw_keys"].astype(float)
        at = np.clip(r.distance, -2, 2) + 2
        shaw = np.broadcast_to(table[at], (p.B, p.H, p.T, p.S, D))

    def of_heads(a):  # sums over the heads of a group
        return a.reshape(p.B, p.Hk, group, *a.shape[2:]).sum(2)

    n_q = min(p.S, 256) + p.S / 256 + 8 + (p.S + 8 if "shaw_keys" in o else 0)
    n_k = min(p.T, 112) + group * (p.T / 112 + 1) + 8
    dx, dx_error = x.dx, x.dx_error
    tiny = 2.0**-118 * (p.S + p.T + 1) * (1 + abs(scale))
    if found.q is not None:
        exact = scale * (dx @ k)
        bound = abs(scale) * ((dx_error + n_q * U * abs(dx)) @ abs(k))
        if "shaw_keys" in o:
            exact = exact + scale * np.einsum("bhts,bhtsd->bhtd", dx, shaw)
            bound = bound + abs(scale) * np.einsum("bhts,bhtsd->bhtd", dx_error + n_q * U * abs(dx), abs(shaw))
        compare("q", found.q, exact, bound + 4 * U * abs(exact) + tiny)
    if found.k is not None:
        exact = of_heads(scale * dx.swapaxes(2, 3) @ q)
        bound = of_heads(abs(scale) * (dx_error + n_k * U * abs(dx)).swapaxes(2, 3) @ abs(q))
        compare("k", found.k, exact, bound + 4 * U * abs(exact) + tiny)
    pk = x.p * x.factor
    if found.v is not None:
        exact = of_heads(pk.swapaxes(2, 3) @ x.g)
        bound = of_heads((pk * (x.eps + (n_k + 4) * U)).swapaxes(2, 3) @ abs(x.g))
        compare("v", found.v, exact, bound + 4 * U * abs(exact) + tiny)
    rounded = lambda exact, bound: bound + 2 * U * abs(exact) + tiny  # noqa: E731, of sums in double
    if found.bias is not None:
        shape = o["bias"].shape
        exact, bound = (summed_to(a, shape) for a in (x.ds, x.ds_error))
        compare("bias", found.bias, exact, rounded(exact, bound))
    if found.alibi_slopes is not None:
        far, shape = abs(r.distance), o["alibi_slopes"].shape
        exact = summed_to(-(x.ds * far).sum((2, 3)), shape)
        bound = summed_to(((x.ds_error + 4 * U * abs(x.ds)) * far).sum((2, 3)), shape)
        compare("alibi_slopes", found.alibi_slopes, exact, rounded(exact, bound))
    if found.t5_table is not None:
        bucket = np.broadcast_to(buckets(r.distance, 8, o.get("t5_max_distance", 128),
                                         o.get("t5_one_sided", False)), x.ds.shape)
        exact, bound = (np.stack([(a * (bucket == b)).sum((0, 2, 3)) for b in range(8)])
                        for a in (x.ds, x.ds_error + 4 * U * abs(x.ds)))
        compare("t5_table", found.t5_table, exact, rounded(exact, bound))
    if found.shaw_keys is not None:
        at = np.broadcast_to(np.clip(r.distance, -2, 2) + 2, dx.shape)
        n = p.B * p.H * p.T * U + (p.S + p.T + 16) * U
        exact, bound = (np.stack([np.einsum("bhts,bhtd->d", a * (at == row), b) for row in range(5)])
                        for a, b in ((scale * dx, q), (abs(scale) * (dx_error + n * abs(dx)), abs(q))))
        compare("shaw_keys", found.shaw_keys, exact, rounded(exact, bound))
    if found.shaw_values is not None:
        at = np.broadcast_to(x.shaw_values, pk.shape)
        n = p.B * p.H * p.T * U + (p.S + p.T + 16) * U
        rows = range(len(o["shaw_values"]))
        exact, bound = (np.stack([np.einsum("bhts,bhtd->d", a * (at == row), b) for row in rows])
                        for a, b in ((pk, x.g), (pk * (x.eps + n), abs(x.g))))
        compare("shaw_values", found.shaw_values, exact, rounded(exact, bound))
    if found.sink_logits is not None:
        weight = np.exp(o["sink_logits"].astype(float)[:, None, None]
                        - np.where(np.isfinite(r.lse), r.lse, np.inf)[..., None])
        eps = x.eps.max(-1, initial=0, keepdims=True)
        eps = np.where(eps >= 1, 1, eps) + 4 * U * abs(o["sink_logits"].astype(float))[:, None, None] + 16 * U
        exact = -(weight * x.delta).sum((0, 2, 3))
        bound = (weight * (eps * abs(x.delta) + (1 + eps) * x.delta_error)).sum((0, 2, 3))
        compare("sink_logits", found.sink_logits, exact, rounded(exact, bound))
    if found.gates is not None:
        shape = o["gates"].shape
        terms = o_gradient.astype(np.float64) * x.o_exact
        exact = summed_to(terms.sum((2, 3)), shape)
        # The numerator is made again from the weights, in f32.
        size = np.einsum("bhtd,bhts,bhsd->bht", abs(o_gradient.astype(float)), pk * (x.eps + (p.S + p.Dv + 16) * U),
                         abs(r.values))
        if "shaw_values" in o:
            rows = abs(o["shaw_values"].astype(float))[x.shaw_values]
            size = size + np.einsum("bhtd,bhts,bhtsd->bht", abs(o_gradient.astype(float)),
                                    pk * (x.eps + (p.S + p.Dv + 16) * U), np.broadcast_to(rows, (*pk.shape, p.Dv)))
        compare("gates", found.gates, exact, rounded(exact, summed_to(size.sum(2), shape)))
    if found.scale is not None and scale:
        raw = r.raw / scale
        exact = (dx * raw).sum()
        bound = (dx_error * abs(raw) + abs(dx) * (r.raw_error / abs(scale) + 8 * U * abs(raw))).sum()
        compare("scale", np.asarray(found.scale), exact, rounded(exact, bound))


@hypothesis.settings(max_examples=2000 if LONG else 300, deadline=None, derandomize=not LONG,
                     print_blob=True, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(problems(), st.data())
def test_gradients(p, data):
    options = dict(p.options)
    if "q_offset" in options and not p.positions:
        del options["q_offset"]
    p.options = options
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    names = ["q", "k", "v", "scale"] + [n for n in ("bias", "alibi_slopes", "t5_table", "shaw_keys",
                                                     "shaw_values", "sink_logits", "gates") if n in options]
    wanted = data.draw(st.one_of(st.just(names), st.lists(st.sampled_from(names), unique=True, min_size=1)))
    dropout = "dropout" in options
    outputs = ["lse", "probabilities"] if dropout else ["lse"]
    o, extra = multihead.attention(p.q, p.k, p.v, outputs=outputs, **options,
                                   **({"dropped_probabilities": True} if dropout else {}))
    factor = np.ones((p.B, p.H, p.T, p.S))
    if dropout:
        rate = np.float32(options["dropout"]).astype(float)
        factor = np.where(extra.probabilities != 0, 1 / (1 - rate) if rate < 1 else 0.0, 0.0)
    g = rng.standard_normal(o.shape).astype(np.float32)
    more = {}
    if data.draw(st.booleans()):
        more["lse_gradient"] = rng.standard_normal((p.B, p.H, p.T)).astype(np.float32)
    if not dropout and data.draw(st.booleans()):
        more["probabilities_gradient"] = rng.standard_normal((p.B, p.H, p.T, p.S)).astype(np.float32)
    found = multihead.attention_backward(p.q, p.k, p.v, o, extra.lse, g, wanted=wanted, **more, **options)
    r = reference(p)
    g_lse = more.get("lse_gradient")
    if g_lse is not None:  # a row that sees nothing has no lse to change
        g_lse = np.where(np.isfinite(r.lse), g_lse, 0)
    x = Pairs(p, r, g, o, factor, g_lse, more.get("probabilities_gradient"))
    for name in names:
        assert (getattr(found, name) is None) == (name not in wanted)
    check_gradients(p, r, x, g, found)


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q"]))
