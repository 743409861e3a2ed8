"""multihead.Model has the program's tokens, maps, scores, roles and texts."""
import concurrent.futures
import ctypes
import ctypes.util
import json
import re
import subprocess

import numpy as np
import pytest

import multihead
from shared import DEEP, MINILM, PROGRAM, ROOT, SEED, SMOLLM2, TINY

TEXTS = ["The animal didn't cross the street because it was too tired.",
         "The king didn't cross the river because it was too icy."]


def program(*arguments):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


REAL = ["MiniLM", "SmolLM2"]  # one of them in the gate


@pytest.fixture(scope="module", params=["tiny-bert", "trained", *(REAL if DEEP else [REAL[SEED % 2]])])
def folder(request):
    found = {"tiny-bert": TINY, "MiniLM": MINILM, "SmolLM2": SMOLLM2}.get(request.param)
    if found is None:
        found = request.getfixturevalue(request.param)
    if not found.exists():
        pytest.skip(f"{found} is not there: tools/get-minilm and tools/get-smollm2 fetch them")
    return found


@pytest.fixture(scope="module")
def model(folder):
    return multihead.Model(folder)


def test_attention_is_that_of_the_program(folder, model, tmp_path):
    program("view", folder, TEXTS[0], "--npy", tmp_path / "maps.npy", "--quiet")
    found = model.attention(TEXTS[0])
    maps = np.load(tmp_path / "maps.npy")
    assert np.array_equal(found.stack().reshape(maps.shape), maps)
    assert np.array_equal(found[1, 1], found.probabilities[1][1])
    assert np.abs(found.stack().sum(-1) - 1).max() < 1e-5


def test_outputs_follow_the_formula(model):
    found = model.attention(TEXTS[1], layers=[1, 0], outputs=(
        "probabilities", "average_probabilities", "q", "k", "v", "heads", "lse"))
    assert found.layers == [1, 0]
    for at in range(2):
        p, v = found.probabilities[at], found.v[at]
        group = len(p) // len(v)
        mixed = p @ v.repeat(group, 0)
        # n products and sums in f32, with weights that sum to 1
        assert np.abs(mixed - found.heads[at]).max() <= 2 ** -22 * len(found.tokens) * np.abs(v).max()
        assert np.abs(p.mean(0) - found.average_probabilities[at]).max() < 2 ** -22
        size = found.q[at].shape[2]
        scores = found.q[at] @ found.k[at].repeat(group, 0).swapaxes(1, 2) / size ** 0.5
        kept = p > 0
        difference = np.where(kept, np.exp(scores - found.lse[at][..., None]) - p, 0)
        bound = 2 ** -20 * (size + np.abs(scores).max())
        assert np.abs(difference).max() <= bound


def test_scores_and_roles_are_those_of_the_program(folder, model, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    told = json.loads(program("heads", folder, "--text", tmp_path / "texts.txt", "--random", 3, "--json"))
    found = model.heads(TEXTS, random=3)
    assert found.texts == told["texts"] and found.tokens == told["tokens"]
    for head in told["heads"]:
        at = head["layer"], head["head"]
        for name, score in head["scores"].items():
            ours = (found[name][at], found.chance(name)[at], found.corrected(name)[at])
            if score is None or not score.get("rows"):
                assert np.isnan(ours).all() and found.rows(name)[at] == 0
                continue
            assert found.rows(name)[at] == score["rows"]
            # the program prints nine digits
            assert np.allclose(ours, [score["value"], score["chance"], score["corrected"]],
                               rtol=1e-8, atol=1e-9), (at, name)
        assert [str(role) for role in found.roles[at[0]][at[1]]] == \
            [role["name"].replace("-", " ") if isinstance(role, dict) else role
             for role in head["roles"]]
    best = found.best("previous", 3)
    assert best == sorted(best, key=lambda head: -head[2]) and len(best) == 3
    assert len(found.table()) == len(told["heads"]) and "<table>" in found._repr_html_()


def test_a_report_says_so_too(folder, model, tmp_path):
    """`view` measures its text and four random sequences with the same study."""
    program("view", folder, TEXTS[0], "-o", tmp_path / "report.html", "--quiet")
    data = re.search('id="data">(.*?)</script>', (tmp_path / "report.html").read_text(), re.S)
    found, names = model.heads(TEXTS[0], random=4), {
        "previous token": "previous", "separators": "separator", "evenness": "evenness",
        "duplicate tokens on repeated random tokens": "random_duplicate", "confidence": "confidence",
        "induction on repeated random tokens": "random_induction"}
    for panel in json.loads(data[1])["panels"]:
        at = tuple(map(int, re.findall(r"\d+", panel["name"])))
        for score in panel["measures"]:
            if score["name"] in names and score["value"] is not None:
                assert np.isclose(score["value"], found[names[score["name"]]][at], rtol=1e-8, atol=1e-9)
        assert panel.get("badge") in {None, *(role.name for role in found.roles[at[0]][at[1]])}


def test_measures_are_the_library_s():
    assert len(multihead.MEASURES) == 39 and multihead.MEASURES["entropy"].kind == "nats"


def written_by_program(folder, model, prompt, *options):
    """The program's tokens of a prompt. Special words are not part of a text."""
    told = program("generate", folder, prompt, *options, "--quiet").rstrip("\n")
    if model._library.mha_model_vocabulary(model._handle):
        told = " ".join(word for word in told.split(" ") if word != "<s>")
    assert told.startswith(prompt)
    return told[len(prompt):].strip()


def causal(model):
    if not model.predicts:
        pytest.skip("an encoder generates no text")


@pytest.mark.gate(4)
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "top_p": 0.9, "seed": 7},
                                      {"temperature": 1.2, "top_k": 9, "min_p": 0.02, "seed": 3},
                                      {"top_p": 0.9}, {"top_k": 9, "seed": 5}, {"min_p": 0.1},
                                      {"temperature": 0, "top_p": 0.5}])
def test_generates_the_program_s_text(folder, model, sampling):
    causal(model)
    prompt = "the animal didn't cross the street because it was too"
    options = [x for name, value in sampling.items() for x in (f"--{name.replace('_', '-')}", value)]
    written = model.generate(prompt, max_tokens=10, **sampling)
    assert written.strip() == written_by_program(folder, model, prompt, "--max-tokens", 10, *options)
    assert "".join(model.stream(prompt, max_tokens=10, **sampling)) == written


def test_stops_before_a_text(model):
    causal(model)
    if model._library.mha_model_vocabulary(model._handle):
        pytest.skip("whole words")
    whole = model.generate("Once upon a time", max_tokens=12)
    stop = whole[5:8]
    assert model.generate("Once upon a time", max_tokens=12, stop=stop) == whole[:whole.find(stop)]


@pytest.mark.parametrize("cache", [{}, {"page": 3}, {"batch": 2}])
def test_steps_have_the_bits_of_the_whole(model, cache):
    causal(model)
    ids = model.tokenize("the animal didn't cross the street").ids
    whole = model.logits(ids)
    decoder = model.decoder(capacity=len(ids) + 1, **cache)
    rows = decoder.batch
    first = decoder.step(np.tile(ids[:2], (rows, 1)))
    rest = decoder.step(np.tile(ids[2:], (rows, 1)))
    for row in range(rows):
        assert np.array_equal(np.concatenate([first[row], rest[row]]), whole)
    assert decoder.lengths == [len(ids)] * rows and decoder.cache_bytes > 0
    decoder.truncate(2)
    if rows == 2:
        decoder.fork(0, 1, 1)
        assert decoder.lengths == [2, 1]
        decoder.step([[int(ids[2])], [int(ids[1])]], counts=[1, 0])
        assert decoder.lengths == [3, 1]


@pytest.mark.gate(4)
@pytest.mark.parametrize("cache", [{"type": "int8"}, {"type": "bf16", "page": 16},
                                   {"window": 8, "sinks": 2}, {"window": 8, "streaming": True}])
def test_caches_of_every_kind_generate(folder, model, cache):
    causal(model)
    flags = {"type": "--cache", "page": "--page", "window": "--window", "sinks": "--sinks"}
    options = [x for name, value in cache.items()
               for x in (["--streaming"] if name == "streaming" else [flags[name], value])]
    prompt = "the animal didn't cross the street because it was too"
    assert model.generate(prompt, max_tokens=6, **cache).strip() == \
        written_by_program(folder, model, prompt, "--max-tokens", 6, *options)


def test_what_is_too_long_changes_nothing(model):
    causal(model)
    ids = model.tokenize("the animal didn't cross the street").ids
    decoder = model.decoder(capacity=len(ids))
    decoder.prefill(ids[:2])
    with pytest.raises(ValueError, match=f"{len(ids)} after 2 are more than the capacity of {len(ids)}"):
        decoder.prefill(ids)
    assert decoder.lengths == [2]
    with pytest.raises(ValueError, match=f"the model takes {model.max_positions}; shorten it"):
        model.generate([int(ids[1])] * (model.max_positions + 1))


def test_tokens_know_their_places(model):
    text = "the animal didn't cross the street"
    tokens = model.tokenize(text)
    for label, span, special in zip(tokens.texts, tokens.spans, tokens.special):
        assert (span is None) == bool(special)
        if span is not None and label != "[UNK]":
            assert text[span[0]:span[1]].strip() == label.removeprefix("##")
    assert len(tokens) == len(tokens.ids) and repr(tokens).startswith(f"<{len(tokens)} tokens: ")


def test_spans_count_characters():
    model = multihead.Model(TINY)
    text = "na\u00efve caf\u00e9 \U0001F642 now"
    for label, span in zip(model.tokenize(text).texts, model.tokenize(text).spans):
        assert span is None or label == "[UNK]" or len(text[slice(*span)]) == \
            len(label.removeprefix("##"))


def test_words_as_people_type_them(trained):
    model = multihead.Model(trained)
    tokens = model.tokenize(TEXTS[0])
    assert tokens.texts[1:3] == ["the", "animal"] and tokens.texts[-2:] == ["tired", "."]
    assert TEXTS[0][slice(*tokens.spans[-2])] == "tired"
    with pytest.raises(ValueError, match="Zebra"):
        model.tokenize("The Zebra slept.")


def test_threads_share_a_model(model):
    expected = model.attention(TEXTS[1]).stack()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: model.attention(TEXTS[1]).stack(), range(8)):
            assert np.array_equal(found, expected)


def test_errors_say_what_is_wrong(model, tmp_path):
    with pytest.raises(multihead.FileError, match="no such folder or file"):
        multihead.Model(tmp_path / "nothing")
    with pytest.raises(OSError):
        multihead.Model(tmp_path)
    with pytest.raises(ValueError, match="compute"):
        multihead.Model(tmp_path, compute="int4")
    with pytest.raises(ValueError, match="layers: 99"):
        model.attention("the", layers=[99])
    with pytest.raises(ValueError, match="'maps' is not one of probabilities"):
        model.attention("the", outputs="maps")
    with pytest.raises(ValueError, match="token -1 is not in"):
        model.attention([-1, 2])
    with pytest.raises(TypeError, match="a str is expected"):
        model.tokenize(3)
    with pytest.raises(ValueError, match="the limit is 1"):
        model.tokenize("the street", max_tokens=1)
    assert len(model.tokenize("the street the street", max_tokens=3, truncate=True)) == 3
    with pytest.raises(ValueError, match="surrogate"):
        model.tokenize("\ud800")
    with pytest.raises(KeyError, match="'nothing' is not one of"):
        model.heads([], random=1)["nothing"]
    with pytest.raises(ValueError, match="there is none"):
        model.heads([], random=0)
    for wrong, error in ((2**64, ValueError), (1.5, TypeError)):  # not truncated
        for name in ("random", "max_tokens"):
            with pytest.raises(error, match=f"^{name}: "):
                model.heads(TEXTS[0], **{name: wrong})
    tokens = model.tokenize("the street")
    for given, of in (({"max_tokens": 9}, tokens), ({"truncate": True}, [1, 2]), ({"pair": "the"}, tokens)):
        with pytest.raises(TypeError, match="only together with a text"):
            model.attention(of, **given)
    for wrong in (None, b"the", bytearray(b"the")):
        with pytest.raises(TypeError, match="a str or token ids are expected"):
            model.attention(wrong)
    for given, match in (({"layers": 1}, "layers: a sequence"), ({"truncate": "no"}, "truncate: True or False")):
        with pytest.raises(TypeError, match=match):
            model.attention("the street", **given)
    if not model.predicts:
        for call in (model.generate, lambda: model.logits("the"), model.decoder):
            with pytest.raises(NotImplementedError, match="does not predict"):
                call()
    else:
        for wrong, match in (({"temperature": -1}, "temperature"), ({"top_p": 0}, "top_p"),
                             ({"max_tokens": -1}, "max_tokens"), ({"type": "int4"}, "type"),
                             ({"sinks": 3}, "sink"), ({"seed": 3}, "seed has no effect without temperature"),
                             ({"stop": ["a", ""]}, "stop: a text is empty")):
            with pytest.raises(ValueError, match=match):
                model.generate("the", **wrong)
        for wrong in ({"temperature": "1"}, {"top_p": "1"}, {"top_k": 1.5}, {"max_tokens": None}):
            with pytest.raises(TypeError, match=f"{next(iter(wrong))}: a (whole )?number is expected"):
                model.generate("the", **wrong)
        with pytest.raises(TypeError, match="prompt: a str or token ids"):
            model.generate(b"the")
        for wrong, meant in (("max_new_tokens", "max_tokens"), ("temprature", "temperature"), ("windows", "window")):
            with pytest.raises(TypeError, match=f"'{wrong}' is not an option of generate; did you mean {meant}?"):
                model.generate("the", **{wrong: 1})


def test_the_page_is_right(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build").symlink_to(ROOT / "build")
    if not MINILM.exists() or not SMOLLM2.exists():
        pytest.skip("tools/get-minilm and tools/get-smollm2 fetch the models of the page")
    import page_examples
    assert page_examples.run(ROOT / "docs/python-models.md").failed == 0


# ---- Invalid arguments ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bert():
    return multihead.Model(TINY)


@pytest.mark.parametrize("ids, error, text", [
    (np.zeros((2, 5), int), ValueError, r"\[T\], not \[2, 5\]"),
    ([1.5, 2], TypeError, "a whole number is expected, not"), (["5"], TypeError, "whole number"),
    (5, ValueError, "token ids of one text")])
def test_token_ids_are_whole_numbers_of_one_text(bert, ids, error, text):
    with pytest.raises(error, match=text):
        bert.attention(ids)


def test_a_batch_of_one_is_a_text(bert):
    assert np.array_equal(bert.attention([[5, 6, 7]]).stack(), bert.attention([5, 6, 7]).stack())


def test_tokens_that_do_not_fit_together_are_refused():
    """The library reads as many segments as there are ids."""
    parts = dict(ids=np.ones(30, np.int32), texts=["a"] * 30, special=np.zeros(30, bool),
                 segments=np.zeros(30, np.int32), spans=[None] * 30)
    assert len(multihead.Tokens(**parts)) == 30
    for name in list(parts)[1:]:
        with pytest.raises(ValueError, match=f"{name}: 1 for 30 tokens"):
            multihead.Tokens(**parts | {name: parts[name][:1]})
    with pytest.raises(ValueError, match="ids: whole numbers"):
        multihead.Tokens(**parts | {"ids": np.ones(30)})
    for name in ("ids", "segments"):
        with pytest.raises(ValueError, match=f"{name}: a number is beyond 32 bits"):
            multihead.Tokens(**parts | {name: np.full(30, 2**40)})


def test_a_path_is_not_cut_at_a_nul():
    with pytest.raises(ValueError, match="has a NUL"):
        multihead.Model(f"{ROOT}/tests/golden/tiny-bert\0/other")


def test_a_nul_is_a_character_of_a_text():
    """Like transformers, uncased BERT removes the character and reads the others."""
    model = multihead.Model(TINY)
    for text in ("the\0 cat", "the cat\0", "\0the cat"):
        assert np.array_equal(model.tokenize(text).ids, model.tokenize("the cat").ids)
        assert np.array_equal(model.attention(text).stack(), model.attention("the cat").stack())


def test_jansson_s_allocators_are_the_host_s_after_a_call():
    """jansson has one pair of allocation functions per process. The library uses the host's and
    does not replace them."""
    name = ctypes.util.find_library("jansson")
    if name is None:
        pytest.skip("jansson is not a shared library here")
    jansson, libc = ctypes.CDLL(name), ctypes.CDLL(None)
    take, drop = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t), ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
    taken = []
    own = take(lambda size: taken.append(size) or libc.malloc(size)), drop(lambda memory: libc.free(memory))

    def pair():
        found = ctypes.c_void_p(), ctypes.c_void_p()
        jansson.json_get_alloc_funcs(*map(ctypes.byref, found))
        return [f.value for f in found]

    before = pair()
    jansson.json_set_alloc_funcs(*own)
    try:
        multihead.Model(TINY)
        with pytest.raises(multihead.Error):
            multihead.Model(TINY / "config.json")
        assert pair() == [ctypes.cast(f, ctypes.c_void_p).value for f in own]
    finally:
        jansson.json_set_alloc_funcs(*map(ctypes.c_void_p, before))
    assert pair() == before and taken


def test_a_decoder_refuses_what_is_no_token(trained):
    decoder = multihead.Model(trained).decoder()
    for tokens in ([1.5, 2.5], np.array([2**32 + 1, 2**32 + 2]), [-1, 1], [[1, 2]], []):
        with pytest.raises(ValueError, match="tokens: "):
            decoder.prefill(tokens)
    assert decoder.lengths == [0]
    with pytest.raises(ValueError, match="batch: 0"):
        multihead.Model(trained).decoder(batch=0)


def test_threads_of_one_decoder_wait_for_each_other(trained):
    decoder = multihead.Model(trained).decoder(batch=1)
    steps = decoder.model.max_positions
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: decoder.step([1]), range(steps)))
    assert decoder.lengths == [steps]
    expected = multihead.Model(trained).logits([1] * steps)[-1]
    decoder.truncate(steps - 1)
    assert np.array_equal(decoder.step([1])[0], expected)


def test_heads_that_are_left_out(trained, tmp_path):
    """Scores equal those of the program's --without, and logits equal those of a model with zero
    columns in W_O."""
    model = multihead.Model(trained)
    text = tmp_path / "text.txt"
    text.write_text(TEXTS[0] + "\n")
    found = model.heads(TEXTS[0], random=0, without=["L0H1", (0, 3)])
    theirs = json.loads(program("heads", trained, "--text", text, "--random", 0, "--json", "--without", "L0H1,0.3", "-q"))
    whole = model.heads(TEXTS[0], random=0)
    for head in theirs["heads"]:
        at = head["layer"], head["head"]
        assert float(f"{found['entropy'][at]:.9g}") == head["scores"]["entropy"]["value"]  # nine digits
        assert (found["entropy"][at] == whole["entropy"][at]) == (head["layer"] == 0)
    less, all_of_them = model.logits(TEXTS[0], without="1.2"), model.logits(TEXTS[0])
    assert np.array_equal(model.logits(TEXTS[0], without=[]), all_of_them) and not np.array_equal(less, all_of_them)
    none = model.logits(TEXTS[0], without=[(layer, h) for layer in range(2) for h in range(4)])
    assert not np.array_equal(none, less)
    for wrong in ("H1", "L0", (0,), "L2H0", (0, 4), (-1, 0), "L0H1,L0H2"):
        with pytest.raises(ValueError, match="without"):
            model.logits(TEXTS[0], without=[wrong])
