"""BERT with relative keys, which transformers 5 no longer computes: hidden states and maps against the formulas of
Shaw et al. 2018 (section 3.2) and Huang et al. 2020 (equation 13), written in NumPy."""
import json

import numpy as np
import pytest
from safetensors.numpy import save_file

import checkpoint_ctypes as ck
import multihead_ctypes as mha
from shared import rounds_like

H, D, E, F, L, MOST, VOCAB = 3, 5, 15, 20, 2, 9, 30
CONFIG = dict(model_type="bert", vocab_size=VOCAB, hidden_size=E, intermediate_size=F, num_hidden_layers=L,
              num_attention_heads=H, max_position_embeddings=MOST, type_vocab_size=2, hidden_act="relu",
              layer_norm_eps=1e-6)


def weights(seed):
    random = np.random.default_rng(seed)
    shapes = {"embeddings.word_embeddings.weight": (VOCAB, E), "embeddings.token_type_embeddings.weight": (2, E),
              "embeddings.position_embeddings.weight": (MOST, E)}  # in published files, and unused
    norms = ["embeddings.LayerNorm"]
    for i in range(L):
        at = f"encoder.layer.{i}."
        for name, rows, columns in (*((f"attention.self.{x}", E, E) for x in ("query", "key", "value")),
                                    ("attention.output.dense", E, E), ("intermediate.dense", F, E),
                                    ("output.dense", E, F)):
            shapes |= {f"{at}{name}.weight": (rows, columns), f"{at}{name}.bias": (rows,)}
        shapes[f"{at}attention.self.distance_embedding.weight"] = 2 * MOST - 1, D
        norms += [f"{at}attention.output.LayerNorm", f"{at}output.LayerNorm"]
    shapes |= {f"{name}.{part}": (E,) for name in norms for part in ("weight", "bias")}
    return {name: random.normal(size=shape).astype(np.float32) * (0.4 if len(shape) == 2 else 1)
            for name, shape in shapes.items()}


def encode(w, ids, kind, dtype):
    """(hidden states [B,T,E], maps [L,B,H,T,T]) of token type 0, in arithmetic of dtype."""
    w = {name: array.astype(dtype) for name, array in w.items()}
    linear = lambda x, name: x @ w[f"{name}.weight"].T + w[f"{name}.bias"]
    heads = lambda x: x.reshape(*ids.shape, H, D).transpose(0, 2, 1, 3)
    T = ids.shape[1]
    distances = np.arange(T)[:, None] - np.arange(T)[None] + MOST - 1

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + dtype(CONFIG["layer_norm_eps"]))
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    x = norm(w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0],
             "embeddings.LayerNorm")
    maps = []
    for i in range(L):
        at = f"encoder.layer.{i}."
        q, k, v = (heads(linear(x, f"{at}attention.self.{name}")) for name in ("query", "key", "value"))
        a = w[f"{at}attention.self.distance_embedding.weight"][distances]
        scores = q @ k.swapaxes(-1, -2) + np.einsum("bhid,ijd->bhij", q, a)
        if kind == "relative_key_query":
            scores = scores + np.einsum("bhjd,ijd->bhij", k, a)
        scores = scores / dtype(D ** 0.5)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        maps.append(p / p.sum(-1, keepdims=True))
        mixed = (maps[-1] @ v).transpose(0, 2, 1, 3).reshape(*ids.shape, E)
        x = norm(x + linear(mixed, f"{at}attention.output.dense"), f"{at}attention.output.LayerNorm")
        inner = np.maximum(linear(x, f"{at}intermediate.dense"), 0)
        x = norm(x + linear(inner, f"{at}output.dense"), f"{at}output.LayerNorm")
    return x, np.array(maps)


def write(folder, w, **change):
    save_file(w, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**CONFIG, **change}))


@pytest.mark.parametrize("kind", ["relative_key", "relative_key_query"])
@pytest.mark.parametrize("T", [1, MOST])
def test_relative_keys(tmp_path, kind, T):
    w, ids = weights(3), np.random.default_rng(4).integers(0, VOCAB, (3, T))
    write(tmp_path, w, position_embedding_type=kind)
    ours = ck.Transformer(tmp_path)
    exact, single = (encode(w, ids, kind, dtype) for dtype in (np.float64, np.float32))
    maps, hidden = ours.look(ids)
    assert rounds_like(ours(ids), single[0], exact[0]) and rounds_like(hidden, single[0], exact[0])
    assert T == 1 or rounds_like(np.array(maps), single[1], exact[1])
    assert T == 1 or np.abs(exact[1] - encode(w, ids, "relative_key" if "query" in kind else "relative_key_query",
                                              np.float64)[1]).max() > 0.01


def test_refused(tmp_path):
    w = weights(5)
    for change, words in ((dict(position_embedding_type="relative"), "position_embedding_type"),
                          (dict(position_embedding_type="relative_key", max_position_embeddings=8), "distance_embedding"),
                          (dict(model_type="electra", position_embedding_type="relative_key"), "position_embedding_type")):
        write(tmp_path, w, **change)
        with pytest.raises(mha.MultiheadError, match=words):
            ck.Transformer(tmp_path)
