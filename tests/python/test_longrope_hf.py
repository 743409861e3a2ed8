"""Phi 3 for long texts, whose rotation depends on the length of the text (longrope), against transformers in float64:
texts that grow across the border with and without a cache, decoders, folders and GGUF files, and rejected models."""
import json

import numpy as np
import pytest
import torch

import checkpoint_ctypes as ck
import multihead_ctypes as mha
from shared import rounds_like
from test_checkpoint_hf import enliven, expect_same, expect_same_maps, greedy, some_ids, their_family, theirs
from test_gguf_models import Model, write

BORDER, LONGEST, STEPS = 16, 80, 50
GENERATOR = np.random.default_rng(5)
SHORT, LONG = (GENERATOR.uniform(*span, 12).round(3).tolist() for span in ((1, 1.5), (2, 12)))


def settings(pairs, **more):
    return dict(max_position_embeddings=LONGEST, original_max_position_embeddings=BORDER, rope_parameters=dict(
        rope_type="longrope", rope_theta=1e4, short_factor=SHORT[:pairs], long_factor=LONG[:pairs], **more))


KINDS = {"whole heads": settings(4), "part of each head, window": {
             **settings(3, partial_rotary_factor=0.75), "sliding_window": 7, "tie_word_embeddings": True},
         "factors": {**settings(5, factor=3.0), "hidden_size": 40, "num_key_value_heads": 1},
         "amplitude": settings(4, attention_factor=0.8, factor=8.0)}


@pytest.fixture(scope="module", params=KINDS)
def made(request, tmp_path_factory):
    """A model whose text varies to its end, and our copy."""
    folder = tmp_path_factory.mktemp("longrope")
    for seed in range(51, 71):
        model = enliven(their_family("phi3", KINDS[request.param], seed))
        model.save_pretrained(folder / str(seed))
        ours = ck.Transformer(folder / str(seed))
        text = greedy(ours, some_ids(23)[0, :5].tolist(), STEPS)
        if len(set(text[-30:])) >= 5:
            return model, ours, text, folder / str(seed)
    raise AssertionError("every text settles on a few tokens")


def rows_of(ours, text):
    """The logits after each token of a growing text."""
    return np.array([ours(np.array([text[:n]]))[0, -1] for n in range(1, len(text) + 1)])


@pytest.mark.parametrize("length", [BORDER - 1, BORDER, BORDER + 1, 32])
def test_logits_around_the_border(made, length):
    """Below and above the border; our own folders preserve both rotations."""
    model, ours, _, folder = made
    ids = some_ids(24)[:, :length]
    exact, single = (theirs(model, ids, double) for double in (True, False))
    assert rounds_like(ours(ids), single, exact)
    ours.save(folder / "own")
    assert np.array_equal(ck.Transformer(folder / "own")(ids), ours(ids))


def test_maps(made):
    expect_same(made[1], made[0], 25)
    expect_same_maps(made[1], made[0], 26)


def test_texts_that_grow_across_the_border(made):
    """transformers computes its cache again there. Tokens agree until the first tie."""
    model, ours, text, _ = made
    exact, single = (np.array([theirs(model, np.array([text[:n]]), double)[0, -1] for n in range(5, len(text))])
                     for double in (True, False))
    found = rows_of(ours, text)[4:-1]
    assert rounds_like(found, single, exact)
    order, errors = np.sort(exact)[:, -2:], [np.abs(x - exact).max() for x in (found, single)]
    ties = np.flatnonzero(order[:, 1] - order[:, 0] <= 2 * max(errors))
    count = ties[0] if ties.size else STEPS
    assert count > 2 * BORDER
    for cache in True, False:
        ids = model.generate(torch.tensor([text[:5]]), do_sample=False, max_new_tokens=STEPS, use_cache=cache,
                             pad_token_id=0, eos_token_id=None)[0].tolist()
        assert ids[:5 + count] == text[:5 + count]


def test_decoders_compute_earlier_keys_again(made):
    """Steps of one token and of several, a small max_step, and a text that becomes shorter again."""
    _, ours, text, _ = made
    wanted = rows_of(ours, text)
    for size, most in ((1, 1), (1, 0), (3, 4), (BORDER, 0), (BORDER + 5, 0)):
        decode = ck.Decoder(ours, max_step=most)
        for at in range(0, len(text), size):
            part = text[at:at + size]
            assert np.array_equal(decode(np.array([part]))[0, -1], wanted[at + len(part) - 1])
    decode.truncate(BORDER - 4)
    for at in range(BORDER - 4, BORDER + 4):
        assert np.array_equal(decode(np.array([text[at:at + 1]]))[0, -1], wanted[at])


def test_sequences_of_a_batch_have_their_own_rotation(made):
    _, ours, text, _ = made
    decode, wanted = ck.Decoder(ours, batch=2), rows_of(ours, text)
    firsts = np.array([BORDER - 3, 4])
    ids = np.array([text[:n] + [0] * (firsts.max() - n) for n in firsts])
    decode(ids, counts=firsts)
    for i in range(8):
        found = decode(np.array([text[n + i:n + i + 1] for n in firsts]))
        assert all(np.array_equal(found[b, -1], wanted[n + i]) for b, n in enumerate(firsts))


def test_streams_are_refused(made):
    with pytest.raises(mha.MultiheadError, match="rotations that do not depend on the length"):
        ck.Decoder(made[1], flags=2, window=8)


@pytest.mark.parametrize("kind, options", [("phi3", KINDS["whole heads"]), ("phi3", KINDS["amplitude"])], ids=str)
def test_gguf(tmp_path, kind, options):
    """Factors are tensors, as converters write them."""
    model = their_family(kind, options, 61)
    model.save_pretrained(tmp_path / "folder")
    rope = model.config.rope_parameters
    more = {f"rope_factors_{name}.weight": np.array(rope[f"{name}_factor"], np.float32) for name in ("short", "long")}
    write(tmp_path / "model.gguf", model, extra=more, **{
        "rope.scaling.original_context_length": BORDER, "rope.scaling.attn_factor": rope.get("attention_factor")})
    folder, file = Model(tmp_path / "folder"), Model(tmp_path / "model.gguf")
    for length in BORDER, 32:
        ids = some_ids(62)[:, :length]
        wanted = folder(ids)
        assert np.abs(file(ids) - wanted).max() <= 1e-5 * np.abs(wanted).max()  # attn_factor is a float32


@pytest.mark.parametrize("change, words", [
    (dict(short_factor=SHORT[:3]), "'short_factor' is not a list of 4 numbers"),
    (dict(long_factor=None), "'long_factor' is not a list of 4 numbers"),
    (dict(long_factor=[1.0, 2.0, 0.0, 1.0]), "'long_factor' holds a value that is not a number above 0, for pair 2"),
    (dict(short_factor=[1.0, "x", 1.0, 1.0]), "'short_factor' holds .* pair 1"),
    (dict(original_max_position_embeddings=20), "original_max_position_embeddings"),
    (dict(attention_factor=0.0), "'attention_factor' is 0")], ids=str)
def test_refused(tmp_path, change, words):
    their_family("phi3", KINDS["whole heads"], 63).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["rope_parameters"].update(change)
    path.write_text(json.dumps(config))
    with pytest.raises(mha.MultiheadError, match=words):
        ck.Transformer(tmp_path)
