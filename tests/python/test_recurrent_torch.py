"""Recurrent layers compared with the recurrence in torch, and their gradients with autograd."""
import ctypes as C

import numpy as np
import pytest

import multihead_ctypes as mha
from multihead._abi import RecurrentDesc, RecurrentGradients

torch = pytest.importorskip("torch")
B, H, T, D, DV = 2, 4, 70, 8, 6
DELTA = 1


def recurrence(q, k, v, log_decay, strength, skip, initial, delta):
    """Outputs [B,H,T,DV] and the final state, in the type of the inputs."""
    s, out = initial, []
    q, k = (x.repeat_interleave(H // x.shape[1], 1) for x in (q, k))
    for t in range(T):
        a = log_decay[:, :, t].exp()
        s = s * (a[..., None] if a.ndim == 3 else a[..., None, None])
        old = torch.einsum("bhdc,bhd->bhc", s, k[:, :, t]) if delta else 0
        u = strength[:, :, t, None] * (v[:, :, t] - old)
        s = s + k[:, :, t, :, None] * u[:, :, None]
        out.append(torch.einsum("bhdc,bhd->bhc", s, q[:, :, t]) / D ** 0.5 + skip[:, :, 0, None] * v[:, :, t])
    return torch.stack(out, 2), s


def pointer(x):
    return C.pointer(mha.tensor(x))


@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("delta", [False, True])
def test_gradients_are_those_of_autograd(channels, delta):
    r = np.random.default_rng(7)
    shapes = {"q": (B, 2, T, D), "k": (B, 2, T, D), "v": (B, H, T, DV),
              "log_decay": (B, H, T, D) if channels else (B, H, T), "strength": (B, H, T),
              "skip": (1, H, 1), "initial": (B, H, D, DV)}
    x = {name: r.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    x["k"] /= np.linalg.norm(x["k"], axis=-1, keepdims=True)
    x["log_decay"] = -np.abs(x["log_decay"]) / 4
    x["strength"] = r.random(shapes["strength"], np.float32) * 2
    g = {"o": r.standard_normal((B, H, T, DV)).astype(np.float32),
         "state": r.standard_normal(shapes["initial"]).astype(np.float32)}

    inputs = {name: torch.tensor(value, dtype=torch.float64, requires_grad=True)
              for name, value in x.items()}
    o, s = recurrence(*inputs.values(), delta)
    ((o * torch.tensor(g["o"])).sum() + (s * torch.tensor(g["state"])).sum()).backward()

    found = {name: np.full(shape, np.nan, np.float32) for name, shape in shapes.items()}
    desc = RecurrentDesc(C.sizeof(RecurrentDesc), DELTA * delta, log_decay=pointer(x["log_decay"]),
                         strength=pointer(x["strength"]), skip=pointer(x["skip"]))
    gradients = RecurrentGradients(C.sizeof(RecurrentGradients), 0, state=pointer(g["state"]),
                                   **{name: pointer(value) for name, value in found.items()})
    mha.check(mha.LIBRARY.mha_recurrent_backward(
        mha.default_context().handle, C.byref(desc), pointer(x["q"]), pointer(x["k"]), pointer(x["v"]),
        pointer(x["initial"]), pointer(g["o"]), C.byref(gradients)))
    for name, value in found.items():
        exact = inputs[name].grad.numpy()
        assert np.abs(value - exact).max() <= 2e-6 * np.abs(exact).max(), name
