"""The declarations of the Python package are those of the C headers, and the tests' layer works."""
import ctypes as C
import os
import shutil
import subprocess

import numpy as np
import pytest

import circuits_ctypes
from multihead import _abi
import multihead_ctypes as mha

# The package declares what it uses of each library.
HEADERS = ("multihead.h", "checkpoint.h", "gguf.h", "io.h", "model.h", "state.h", "tokenizer.h", "render.h",
           "circuits.h")
STRUCTS = (*_abi.STRUCTS, *circuits_ctypes.STRUCTS)
FUNCTIONS = _abi.FUNCTIONS | _abi.MODEL_FUNCTIONS | _abi.RENDER_FUNCTIONS


def constants():
    """{C name: value} of the enumerations."""
    return {prefix + name.upper(): value for prefix, values in _abi.ENUMERATIONS
            for name, value in values.items()}


def from_headers(tmp_path):
    """{"struct.field": (offset, size)} and {constant: value} as the compiler sees them; it also
    finds every function."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler")
    lines = [f"#include <multihead/{header}>" for header in HEADERS]
    lines += ["#include <stdio.h>", "int main(void) {"]
    for struct in STRUCTS:
        name = struct.c_name
        lines.append(f'printf("{name} 0 %zu\\n", sizeof({name}));')
        for field, *_ in struct._fields_:
            lines.append(f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), '
                         f'sizeof((({name} *)0)->{field}));')
    lines += [f'printf("{name} %d\\n", (int){name});' for name in constants()]
    lines += [f"(void)sizeof(&{name});" for name in FUNCTIONS]
    lines.append("return 0; }")
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    source.write_text("\n".join(lines))
    subprocess.run([*compiler.split(), "-std=c17", "-I", str(mha.ROOT / "include"), str(source),
                    "-o", str(program)], check=True)
    output = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in output.splitlines()]
    return ({row[0]: (int(row[1]), int(row[2])) for row in rows if len(row) == 3},
            {row[0]: int(row[1]) for row in rows if len(row) == 2})


def test_declarations(tmp_path):
    ours = {}
    for struct in STRUCTS:
        ours[struct.c_name] = (0, C.sizeof(struct))
        for field, kind in struct._fields_:
            ours[f"{struct.c_name}.{field}"] = (getattr(struct, field).offset, C.sizeof(kind))
    layouts, values = from_headers(tmp_path)
    assert ours == layouts
    assert constants() == values


def plain(q, k, v, keep):
    scores = np.where(keep, q.astype(np.float64) @ k.swapaxes(2, 3) / q.shape[3] ** 0.5, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def test_attention_of_strided_arrays():
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((2, length, 3, 16), np.float32).swapaxes(1, 2)
               for length in (5, 9, 9))
    keep = np.arange(9) <= np.arange(5)[:, None] + 4
    o, extra = mha.attention(q, k, v, causal=True, q_offset=4, outputs=("lse", "probabilities"))
    assert np.abs(o - plain(q, k, v, keep)).max() < 1e-5
    assert np.abs(extra["probabilities"].sum(-1) - 1).max() < 1e-5
    assert np.array_equal(o, mha.attention(q[:, :, ::-1], k, v, keep_mask=keep[::-1])[:, :, ::-1])
    assert mha.explain(q, k, v, path="plain").path == mha.PATHS["plain"]


def test_other_fields_by_name():
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, 2, 6, 8), np.float32) for _ in range(3))
    near = np.abs(np.arange(6) - np.arange(6)[:, None]) <= 1
    near[:, 0] = True
    gates = np.array([1, 0.5], np.float32)
    o = mha.attention(q, k, v, window=(1, 1), sink_keys=1, gates=gates)
    assert np.abs(o - plain(q, k, v, near) * gates[:, None, None]).max() < 1e-5


def test_errors_carry_the_library_s_line():
    x = np.zeros((1, 1, 2, 4), np.float32)
    with pytest.raises(mha.MultiheadError, match="k: dim 3 is 3, expected 4") as error:
        mha.attention(x, x[..., :3], x)
    assert error.value.status == 10
    with pytest.raises(mha.MultiheadError, match="embed_dim 10 is not a multiple"):
        mha.Module(10, 3)


def test_module_shapes():
    module = mha.Module(12, 4, kv_heads=2, key_dim=7, value_dim=5, value_head_dim=6)
    rng = np.random.default_rng(2)
    module.set("q_proj.weight", rng.standard_normal((12, 12)))
    names = ("probabilities", "average_probabilities", "q", "k", "v", "heads", "lse")
    out, extra = module(np.ones((2, 3, 12), np.float32), np.ones((2, 8, 7), np.float32),
                        np.ones((2, 8, 5), np.float32), outputs=names)
    assert out.shape == (2, 3, 12) and not out.any()  # out_proj is still zero
    assert extra["heads"].shape == (2, 4, 3, 6) and extra["k"].shape == (2, 2, 8, 3)
    assert np.allclose(extra["average_probabilities"], 1 / 8)
