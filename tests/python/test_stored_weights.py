"""Weights in mapped files are bit-identical to weights in an array, in every family's order:
transposed, fused, interleaved, 16-bit and in blocks; also in pieces of rows and columns.
"""
import gguf
import numpy as np
import pytest
import torch

import checkpoint_ctypes as ck
import multihead_ctypes as mha
from test_checkpoint_hf import some_ids, their_family
from test_gguf import BLOCKS
from test_gguf_models import KINDS, OPTIONS, Model, write

pytest.importorskip("transformers")
NO_TOKENIZER, ARRAY = 1, 3  # both flags include NO_TOKENIZER
WIDE = {"llama": dict(hidden_size=1056, intermediate_size=70),
        "gpt2": dict(n_embd=1056, n_inner=1100),
        "gpt_neox": dict(hidden_size=1056, intermediate_size=70, num_key_value_heads=4),
        "phi3": dict(hidden_size=1056, intermediate_size=1100)}


def expect_same(path, ids):
    stored, array = Model(path), Model(path, ARRAY)
    assert not mha.LIBRARY.mha_transformer_data(stored.handle)
    assert mha.LIBRARY.mha_transformer_data(array.handle)
    assert np.array_equal(stored(ids), array(ids))
    few = ids[:1, :3]  # few tokens read weights in place
    assert np.array_equal(stored(few), array(few))


@pytest.mark.gate(8)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("kind", KINDS)
def test_families(tmp_path, kind, dtype):
    their_family(kind, OPTIONS[kind], 41).to(getattr(torch, dtype)).save_pretrained(tmp_path)
    expect_same(tmp_path, some_ids(42))


@pytest.mark.gate(1)
@pytest.mark.parametrize("kind", WIDE)
def test_pieces_of_wide_matrices(tmp_path, kind):
    their_family(kind, WIDE[kind], 43).to(torch.bfloat16).save_pretrained(tmp_path)
    expect_same(tmp_path, some_ids(44))


def test_pieces_of_wide_pairs(tmp_path):
    """Rows of Llama's Q and K are interleaved in a GGUF file."""
    write(tmp_path / "model.gguf", their_family("llama", WIDE["llama"], 45).to(torch.float16))
    expect_same(tmp_path / "model.gguf", some_ids(46))
    again = ck.Transformer(tmp_path / "model.gguf")  # mha_checkpoint_load()
    assert np.array_equal(again(some_ids(46)), Model(tmp_path / "model.gguf")(some_ids(46)))


def blocks_like(matrix, kind, draw):
    """Random blocks whose elements are of moderate size. Both ends of a block, where types have their scales, are small
    f16, E4M3 or E8M0 numbers."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = draw.integers(0, 256, (matrix.shape[0], matrix.shape[1] // elements, size), dtype=np.uint8)
    ends = (slice(0, 4), slice(-4, None)) if size > 18 else (slice(0, 2),)
    for end in ends:
        blocks[..., end].view(np.uint16)[:] = draw.integers(0x1400, 0x1800, blocks[..., end].view(np.uint16).shape)
    if kind.name == "IQ1_M":  # the upper bits of four words
        blocks[..., -8:].view(np.uint16)[:] &= 0xFFF
        blocks[..., -1] |= 0x10
    if kind.name == "MXFP4":
        blocks[..., 0] = draw.integers(112, 122, blocks.shape[:2])
    return blocks.reshape(matrix.shape[0], -1)


@pytest.mark.parametrize("kind", BLOCKS, ids=lambda kind: kind.name)
def test_blocks(tmp_path, kind):
    """A model of random blocks equals a model of their elements, decoded by the package gguf."""
    model = their_family("llama", dict(hidden_size=256, intermediate_size=512, num_hidden_layers=1), 47)
    for name, decoded in ("blocks", False), ("floats", True):
        draw = np.random.default_rng(kind)

        def encode(matrix):
            blocks = blocks_like(matrix, kind, draw)
            return (None, gguf.quants.dequantize(blocks, kind)) if decoded else (kind, blocks)
        write(tmp_path / f"{name}.gguf", model, encode=encode)
    ids = some_ids(48)
    expect_same(tmp_path / "blocks.gguf", ids)
    found = Model(tmp_path / "blocks.gguf")(ids)
    assert np.isfinite(found).all() and found.std() > 0
    assert np.array_equal(found, Model(tmp_path / "floats.gguf")(ids))
