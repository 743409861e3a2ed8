#!/usr/bin/env python3
"""Measure Python's overhead in a call of attention with 10 tokens.

    MHA_LIBRARY_DIR=build python3 bench/python_call.py [--seconds 2]

The same call runs alternately from Python and through prepared ctypes, which takes C's time plus about 0.5 us. Prints
the minimum time of each in microseconds and the difference.
"""
import argparse
import os
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bindings/python"))
os.environ.setdefault("MHA_LIBRARY_DIR", str(ROOT / "build"))
import numpy as np  # noqa: E402

import multihead  # noqa: E402
from multihead import _library  # noqa: E402

RUN = 50  # calls per reading of the clock, for a resolution below 1 ns


def prepared(call):
    """The library's part of a call with prepared arguments, and its output arrays."""
    kept = call()
    _, made = _library.thread.calls.popitem()
    function = _library.library["mha_attention_forward"]
    handle = _library.default_context().handle
    return lambda: (function(handle, *made.arguments), kept)


def measure(functions, seconds):
    best, end = [float("inf")] * len(functions), time.perf_counter() + seconds
    while time.perf_counter() < end:
        for i, function in enumerate(functions):
            begin = time.perf_counter()
            for _ in range(RUN):
                function()
            best[i] = min(best[i], (time.perf_counter() - begin) / RUN)
    return [1e6 * value for value in best]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2, help="for each row (default: 2)")
    seconds = parser.parse_args().seconds
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 4, 10, 16), np.float32) for _ in range(3))
    out, mask, lengths = np.empty_like(q), np.tri(10, dtype=bool), np.array([9])
    calls = {
        "attention(q, k, v)": lambda: multihead.attention(q, k, v),
        "  causal=True": lambda: multihead.attention(q, k, v, causal=True),
        "  out=o": lambda: multihead.attention(q, k, v, out=out),
        "  keep_mask, key_lengths": lambda: multihead.attention(q, k, v, keep_mask=mask,
                                                                key_lengths=lengths),
        "  outputs='lse'": lambda: multihead.attention(q, k, v, outputs="lse"),
    }
    try:
        import torch
    except ImportError:
        pass
    else:
        tensors = [torch.from_numpy(x) for x in (q, k, v)]
        calls["attention of torch tensors"] = lambda: multihead.attention(*tensors)
    multihead.set_threads(1)
    print(f"{'us per call, least':28} {'Python':>8} {'C':>8} {'beyond C':>9}")
    for name, call in calls.items():
        python, c = measure([call, prepared(call)], seconds)
        print(f"{name:28} {python:8.2f} {c:8.2f} {python - c:9.2f}")


if __name__ == "__main__":
    main()
