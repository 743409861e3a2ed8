"""The Python package: linear attention, its state and its gradients."""
import numpy as np
import pytest

import multihead


def problem(seed=1, B=2, H=4, Hk=2, T=7, S=9, D=8, Dv=6):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape, np.float32)
            for shape in ((B, H, T, D), (B, Hk, S, D), (B, Hk, S, Dv))]


Q, K, V = problem()


def features(x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def test_linear_attention_against_its_formula():
    q, k, v = problem()
    state = (np.abs(problem(seed=2, T=8)[0][:, :2, :, :6]).copy(), np.ones((2, 2, 8), np.float32))
    q_, k_, v_ = (features(q.astype(float)), features(k.astype(float)), v.astype(float))
    kept = (np.arange(9) <= np.arange(7)[:, None] + 1)[None, None] & (
        np.arange(9) < np.array([9, 5])[:, None, None, None])
    w = np.where(kept, q_ @ k_.repeat(2, 1).swapaxes(2, 3), 0)
    s, z = (x.astype(float).repeat(2, 1) for x in state)
    exact = (w @ v_.repeat(2, 1) + q_ @ s) / (w.sum(-1) + (q_ @ z[..., None])[..., 0])[..., None]
    o, after = multihead.linear_attention(q, k, v, causal=True, q_offset=1, key_lengths=[9, 5],
                                          state=state, return_state=True)
    # The bound of attention.h is 2 (n + F + 10) u max |v|. The state's rows have the size of
    # values.
    assert np.abs(o - exact).max() < 2 * (9 + 8 + 10) * 2.0**-24 * max(np.abs(v).max(), np.abs(state[0]).max())
    same = multihead.linear_attention(q, k, v, causal=True, q_offset=1, key_lengths=[9, 5], state=state,
                                      feature_map=features, feature_dim=8)
    assert np.abs(same - o).max() < 1e-5
    again = [x.copy() for x in state]
    o2, found = multihead.linear_attention(q, k, v, causal=True, q_offset=1, key_lengths=[9, 5],
                                           state=again, return_state=again)
    assert found.s is again[0] and np.array_equal(found.s, after.s) and np.array_equal(o2, o)


def test_linear_attention_gradients():
    q, k, v = problem(B=1, T=9)
    g = np.ones((1, 4, 9, 6), np.float32)
    state = (np.ones((1, 2, 8, 6), np.float32), np.ones((1, 2, 8), np.float32))
    names = ("q", "k", "v", "state_s", "state_z")
    found = multihead.linear_attention_backward(q, k, v, g, causal=True, state=state, wanted=names)
    by_hand = multihead.linear_attention_backward(
        q, k, v, g, causal=True, state=state, wanted=names, feature_map=features, feature_dim=8,
        feature_map_gradient=lambda x, d: d * np.where(x > 0, 1, features(x)))
    given = dict(zip(names, (q, k, v, *state)))
    rng, step = np.random.default_rng(4), 2.0**-6

    def loss(**changed):
        x = given | changed
        return float(multihead.linear_attention(x["q"], x["k"], x["v"], causal=True,
                                                state=(x["state_s"], x["state_z"])).sum(dtype=float))

    for name in names:
        gradient = getattr(found, name)
        assert np.abs(gradient - getattr(by_hand, name)).max() < 1e-5 * (1 + np.abs(gradient).max())
        direction = np.sign(rng.standard_normal(gradient.shape)).astype(np.float32)
        slope = (loss(**{name: given[name] + step * direction})
                 - loss(**{name: given[name] - step * direction})) / 2 / step
        assert abs(slope - (gradient * direction).sum()) < 0.02 * (1 + np.abs(gradient).sum())


def test_wrong_linear_attention():
    for wrong, kind, says in (
            (dict(key_lengths=[1]), ValueError, "key_lengths: 1 numbers given, expected 2, for a batch of 2"),
            (dict(query_starts=[0, 7]), ValueError, "belong together"),
            (dict(q=Q[0]), ValueError, r"q: 3 dimensions, .*q\[None\] if yours are"),
            (dict(q=Q[..., ::-1]), ValueError, "q: the last axis has stride -1, .*ascontiguousarray"),
            (dict(out=np.empty((2, 4, 7, 5), np.float32)), ValueError, "out: dim 3 is 5, expected 6"),
            (dict(state=(Q, Q[0])), ValueError, "state_s|state"),
            (dict(feature_map=lambda x: 1 / 0), ZeroDivisionError, "zero"),
            (dict(feature_map=lambda x: x[:, :3], feature_dim=4), ValueError, "broadcast"),
            (dict(out=np.broadcast_to(np.float32(0), (2, 4, 7, 6))), ValueError, "out: .* read-only")):
        with pytest.raises(kind, match=says):
            multihead.linear_attention(**{"q": Q, "k": K, "v": V} | wrong)
    with pytest.raises(multihead.Unsupported, match="gradient"):
        multihead.linear_attention_backward(Q, K, V, np.ones((2, 4, 7, 6), np.float32),
                                            feature_map=features, feature_dim=8)
