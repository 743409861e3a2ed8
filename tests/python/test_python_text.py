"""The text of tokens, in pieces and as a whole: the C library, Model.detokenize, Model.stream and
`multihead generate` are compared with tokenizers' decode and Python's UTF-8 decoder."""
import ctypes
import json
import random
import subprocess

import numpy as np
import pytest

from multihead import Model, _library
from multihead._tokens import Writer
from shared import PROGRAM, amount

BYTES = [*range(33, 127), *range(161, 173), *range(174, 256)]
LETTER = {b: chr(b) for b in BYTES} | {
    b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in BYTES)}
# The limits of each byte's range in a character, and characters of two to four bytes.
EDGES = bytes.fromhex("417f80 8f90 9fa0 bf c0c1 c2df e0e1 ecedeeef f0f1f3f4 f5ff c3a9 e697a5 f09f9982")


def in_pieces(data, cuts):
    """The C library's text of bytes in pieces."""
    shown, rest, broken = "", b"", ctypes.c_size_t()
    span = _library.model_library().mha_utf8_span
    for begin, end in zip([0, *cuts], [*cuts, len(data)]):
        rest += data[begin:end]
        while True:
            whole = span(rest, len(rest), ctypes.byref(broken))
            if end == len(data) and not broken.value:
                broken.value = len(rest) - whole
            shown += rest[:whole].decode() + "\ufffd" * (broken.value > 0)
            rest = rest[whole + broken.value:]
            if not broken.value:
                break
    return shown


def test_utf8_is_python_s():
    """Every pair of bytes, and random bytes, split anywhere, equal bytes.decode("utf-8",
    "replace")."""
    rng, count = random.Random(1), amount(4000, 40000, 400000)
    texts = [bytes((a, b)) for a in range(128, 256) for b in EDGES]
    texts += [bytes(rng.choices(EDGES, k=rng.randrange(12))) for _ in range(count)]
    for data in texts:
        cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(4)))
        assert in_pieces(data, cuts) == data.decode("utf-8", "replace"), (data, cuts)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model that generates its tokens in a random order, its tokenizer, and that order. The
    tokens are all bytes, pairs of bytes that may be parts of characters, and a special token."""
    tokenizers, numpy = pytest.importorskip("tokenizers"), pytest.importorskip("safetensors.numpy")
    rng, folder = random.Random(2), tmp_path_factory.mktemp("bytes")
    pairs = list(dict.fromkeys((LETTER[rng.choice(EDGES)], LETTER[rng.choice(EDGES)]) for _ in range(120)))
    vocab = {c: i for i, c in enumerate([*LETTER.values(), *("".join(pair) for pair in pairs)])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=pairs))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    size = len(vocab) + 1
    # Without characters that the program escapes: controls, including those that begin with C2.
    plain = [i for name, i in vocab.items() if not {*name} & {LETTER[b] for b in (*range(32), 127, 0xC2)}]
    order = rng.sample([*plain, size - 1], len(plain) + 1)
    after = np.zeros((size, size), np.float32)
    after[order[1:] + order[:1], order] = 1
    one = np.ones(size, np.float32)
    weights = {"model.embed_tokens.weight": np.eye(size, dtype=np.float32), "lm_head.weight": after,
               "model.norm.weight": one}
    layer = {"input_layernorm": one, "post_attention_layernorm": one, "mlp.gate_proj": (8, size),
             "mlp.up_proj": (8, size), "mlp.down_proj": (size, 8), "self_attn.o_proj": (size, 8),
             **{f"self_attn.{x}_proj": (8, size) for x in "qkv"}}
    for name, x in layer.items():
        weights[f"model.layers.0.{name}.weight"] = np.zeros(x, np.float32) if isinstance(x, tuple) else x
    numpy.save_file(weights, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps({
        "model_type": "llama", "vocab_size": size, "hidden_size": size, "num_hidden_layers": 1,
        "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 8,
        "hidden_act": "silu", "max_position_embeddings": 2 * size, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False}))
    return Model(folder), tokenizer, order


def test_tokens_are_read_as_tokenizers_reads_them(model):
    ours, theirs, order = model
    rng = random.Random(3)
    for _ in range(amount(300, 3000, 30000)):
        ids = rng.choices(order, k=rng.randrange(1, 20))
        text = theirs.decode(ids)
        writer = Writer(ours._handle)
        assert "".join([*map(writer.add, ids), writer.end()]) == ours.detokenize(ids) == text


@pytest.mark.gate(2)
@pytest.mark.parametrize("start", "aQz!7~")
def test_what_is_generated_is_read_so_too(model, start):
    """The text as a whole, in pieces, from the program, and up to a stop text."""
    ours, theirs, order = model
    at, count = order.index(theirs.token_to_id(start)), 80
    ids = [order[(at + i) % len(order)] for i in range(count + 1)]
    text = theirs.decode(ids[1:])
    assert ours.generate(start, max_tokens=count) == text and text.count("\ufffd") > 9
    assert "".join(ours.stream(start, max_tokens=count)) == text
    done = subprocess.run([PROGRAM, "generate", ours.path, start, "--max-tokens", str(count), "-q"],
                          capture_output=True, check=True)
    assert done.stdout.decode() == f"{start}{text}\n"
    stop = [c for c in text if c > "~" and c != "\ufffd"][-1]
    assert ours.generate(start, max_tokens=count, stop=stop) == text[:text.index(stop)]
