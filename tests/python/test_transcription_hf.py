"""Transcripts of Whisper, compared with transformers in float64: windows, timestamps, times of tokens and words, settings
of generation_config.json. The models are random; the sounds are computed here."""
import contextlib
import ctypes
import functools
import json
import os
import pty
import re
import subprocess

import numpy as np
import pytest
import torch
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

import multihead
from shared import PROGRAM
from test_audio_hf import RATE, ROWS, SIZES, save, sound
from test_towers_hf import VOCAB, write_tokenizer

SILENT = VOCAB + 3  # <|notimestamps|>, after two languages and <|transcribe|>; 26 timestamps follow
FIRST = SILENT + 1
HEADS = [[0, 1], [1, 3], [2, 0], [2, 5]]
KINDS = {
    "language": ({}, {"lang_to_id": {"<|aa|>": VOCAB, "<|bb|>": VOCAB + 1}, "task_to_id": {"transcribe": VOCAB + 2},
                      "forced_decoder_ids": [[1, None], [2, VOCAB + 2]]}),
    "late start": ({"median_filter_width": 3}, {"max_initial_timestamp_index": 4, "forced_decoder_ids": [[1, SILENT]]}),
    "wide median": ({"median_filter_width": 13, "decoder_attention_heads": 8, "d_model": 32},
                    {"lang_to_id": {"<|aa|>": VOCAB, "<|bb|>": VOCAB + 1}, "task_to_id": {"transcribe": VOCAB + 2},
                     "language": "<|bb|>", "task": "transcribe"})}


def net_of(kind):
    fields, settings = KINDS[kind]
    torch.manual_seed(11)
    net = WhisperForConditionalGeneration(WhisperConfig(**{**SIZES, "vocab_size": FIRST + ROWS + 1, **fields})).eval()
    net.config._attn_implementation = "eager"
    with torch.no_grad():
        for name, p in net.named_parameters():
            if p.ndim > 1:
                p.normal_(0, 1.5 if "decoder.embed_p" in name else .4 if "embed" in name else 1.2 / p[0].numel() ** .5)
            elif "norm" in name or "bias" in name:
                p += torch.randn_like(p) * .2
        if kind != "late start":
            net.model.decoder.embed_tokens.weight[FIRST:] *= 1.4  # so that timestamps follow text
    given = {"alignment_heads": HEADS, "no_timestamps_token_id": SILENT, "suppress_tokens": SIZES["suppress_tokens"],
             "begin_suppress_tokens": SIZES["begin_suppress_tokens"], "max_length": 80, "is_multilingual": True}
    for name, value in {**given, **settings}.items():
        setattr(net.generation_config, name, value)
    return net


def write(kind, folder):
    net = net_of(kind)
    net.save_pretrained(folder)
    write_tokenizer(folder)
    return net.double(), multihead.Model(folder), folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return functools.cache(lambda kind: write(kind, tmp_path_factory.mktemp("whisper")))


@pytest.fixture(scope="module")
def one(made):
    return made("language")


def theirs_of(net, samples, stamps):
    extract = WhisperFeatureExtractor(80, chunk_length=1)
    extract.n_samples = 2 * ROWS * 160
    given = {"truncation": False, "padding": "longest"} if stamps else {"padding": "max_length"}
    found = extract(samples, sampling_rate=RATE, return_tensors="pt", return_attention_mask=True,
                    max_length=2 * ROWS * 160, **given)
    return net.generate(found.input_features.double(), attention_mask=found.attention_mask, return_timestamps=stamps,
                        return_token_timestamps=True, return_segments=True, temperature=0.0,
                        condition_on_prev_tokens=False)["segments"][0]


@pytest.mark.parametrize("kind, count, stamps", [("late start", 6400, False), ("late start", 8000, True), ("late start", 16000, True),
                                                 ("language", 22400, True), ("wide median", 8000, True), ("wide median", 11200, True)])
def test_tokens_segments_and_times_are_those_of_transformers(made, kind, count, stamps):
    net, model, _ = made(kind)
    samples = sound(count, 5)
    theirs, ours = theirs_of(net, samples, stamps), model.transcribe(samples, word_timestamps=True, timestamps=stamps)
    assert [s["tokens"].tolist() for s in theirs] == [s.tokens for s in ours.segments] and len(ours.tokens) > 9
    times = np.concatenate([s["token_timestamps"].numpy() for s in theirs])
    assert np.abs(times - ours.times).max() < 1e-5  # theirs are float32
    if stamps:
        for mine, other in zip(ours.segments, theirs):
            assert abs(mine.start - float(other["start"])) + abs(mine.end - float(other["end"])) < 1e-9
    assert ours.heads == model.alignment_heads == [tuple(pair) for pair in HEADS]
    assert ours.scores.shape == (model.layers, model.num_heads)
    assert count < 9000 or len({round(s.start * 2) for s in ours.segments}) > 1  # several windows
    assert model.transcribe(samples, timestamps=stamps).tokens == ours.tokens


def test_words_join_tokens_and_their_times(one):
    _, model, _ = one
    found = model.transcribe(sound(20000, 8), word_timestamps=True)
    spelled = re.sub(r"\s", "", found.text)
    assert "".join(word.text for word in found.words) == spelled and len(found.words) > 1
    at = 0
    for word in found.words:
        while found.tokens[at:at + len(word.tokens)] != word.tokens:
            at += 1
        assert word.end == found.times[at + len(word.tokens) - 1] and word.start <= word.end
        assert at == 0 or word.start == found.times[at - 1] or found.tokens[at - 1] >= FIRST
        assert all(token < FIRST for token in word.tokens) and word.text.strip() == word.text != ""
        at += len(word.tokens)


def test_own_heads_follow_scores(one, tmp_path):
    net, model, _ = one
    del net.generation_config.alignment_heads
    net.float().save_pretrained(tmp_path)
    net.double().generation_config.alignment_heads = HEADS
    write_tokenizer(tmp_path)
    bare = multihead.Model(tmp_path)
    found = bare.transcribe(sound(8000), word_timestamps=True)
    best = np.argsort(-found.scores, axis=None, kind="stable")[:6]
    assert bare.alignment_heads == [] and found.heads == sorted(divmod(int(i), bare.num_heads) for i in best)
    again = model.transcribe(sound(8000), word_timestamps=True, heads=found.heads)
    assert again.times.tolist() == found.times.tolist() and again.words == found.words


def test_the_program_prints_the_same(one, tmp_path):
    _, model, folder = one
    samples = save(tmp_path / "a.wav", sound(20000, 2), 2).astype(np.float32)
    run = lambda *more: subprocess.run([PROGRAM, "generate", folder, "--audio", tmp_path / "a.wav", *more],
                                       capture_output=True, text=True, check=False)
    assert run().stdout == model.transcribe(samples).text + "\n"
    found = model.transcribe(samples, word_timestamps=True)
    done = run("--word-timestamps", "--stats")
    assert done.stdout == "".join(f"{w.start:8.2f} {w.end:8.2f}  {w.text}\n" for w in found.words)
    marks = re.findall(r"^  L(\d)H(\d) +(-?[\d.]+)  (\*?)(\+?)$", done.stderr, re.M)
    assert len(marks) == found.scores.size and [m[:2] for m in sorted(marks) if m[3]] == [
        (str(layer), str(head)) for layer, head in HEADS]
    values = [float(m[2]) for m in marks]
    assert values == sorted(values, reverse=True) and abs(values[0] - found.scores.max()) < 1e-3
    few = model.transcribe(samples, max_tokens=7)
    done = run("--max-tokens", "7", "--ids")
    assert [int(i) for i in done.stdout.split()] == few.tokens and few.full and "may be incomplete" in done.stderr


def cells(maps, rows=16):
    """The columns of the audio, and the sum of those after it."""
    return np.concatenate([maps[..., :rows], maps[..., rows:].sum(-1, keepdims=True)], -1)


def test_view_shows_the_attention_to_audio(one, tmp_path):
    """5120 samples are 16 rows of 25; the rest is one column of silence."""
    _, model, folder = one
    samples = save(tmp_path / "a.wav", sound(5120, 3), 2).astype(np.float32)
    run = lambda *more: subprocess.run([PROGRAM, "view", *more, "--audio", tmp_path / "a.wav", "-q", "--npy",
                                        tmp_path / "a.npy", "--json", tmp_path / "a.json", "-o", tmp_path / "a.html"],
                                       capture_output=True, text=True, check=False)
    text = "!the cat"
    ids = model.tokenize(text)
    seen = model.attention(ids, source=samples, outputs=("probabilities", "cross_probabilities"))
    done = run(folder, text)
    assert done.returncode == 0, done.stderr
    maps, found = np.load(tmp_path / "a.npy"), json.loads((tmp_path / "a.json").read_text())
    assert np.abs(maps - cells(np.stack(seen.cross_probabilities))).max() < 1e-6 and abs(maps.sum(-1) - 1).max() < 1e-5
    assert re.findall(r'"track_rows":(\d+)', (tmp_path / "a.html").read_text()) == ["80"]
    labels = json.dumps(found)
    assert '"0.00"' in labels and '"0.30"' in labels and '"silence"' in labels and '"0.32"' not in labels
    assert run(folder, text, "--self").returncode == 0
    assert np.array_equal(np.load(tmp_path / "a.npy"), np.stack(seen.probabilities))
    assert '"track"' not in (tmp_path / "a.html").read_text()
    assert run(folder / "encoder").returncode == 0
    own = cells(np.stack(model.encoder.attention(samples).probabilities))
    own = np.concatenate([own[..., :16, :], own[..., 16:, :].mean(-2, keepdims=True)], -2)
    assert np.abs(np.load(tmp_path / "a.npy") - own).max() < 1e-6
    assert run(folder).returncode == 0
    written = model.transcribe(samples)
    rows = np.load(tmp_path / "a.npy").shape[2]
    assert written.tokens and rows - len(written.tokens) in (1, 2, 3, 4)  # the prompt
    for more, error in (((folder / "encoder", "a"), "takes no text"), ((folder, "a", "b"), "--audio takes one text"),
                        ((folder, ""), "the text is empty; omit it"), ((folder,), "maps show at most 0.5 s")):
        if more == (folder,):
            save(tmp_path / "a.wav", sound(9000), 2)
        done = run(*more)
        assert done.returncode in (2, 4) and error in done.stderr and done.stderr.count("\n") == 1


def warp(p, width):
    columns = np.zeros(p.shape[1], np.int64)
    with multihead._library.default_context() as handle:
        multihead._library.check(multihead._library.model_library().mha_warp_rows(
            handle, ctypes.byref(multihead._tensor.tensor(p)), width, columns.ctypes.data_as(multihead._abi.Int64Pointer)))
    return columns.tolist()


def paths(rows, cols):
    """All lists of cells from (0,0) to (rows-1,cols-1) by steps (1,1), (1,0) and (0,1)."""
    if rows == 1 and cols == 1:
        return [[(0, 0)]]
    before = [(rows - a, cols - b) for a, b in ((1, 1), (1, 0), (0, 1)) if rows > a and cols > b]
    return [path + [(rows - 1, cols - 1)] for a, b in before for path in paths(a, b)]


@pytest.mark.parametrize("heads, rows, cols, width", [(1, 4, 5, 1), (2, 5, 4, 3), (3, 3, 6, 5), (2, 3, 3, 7), (1, 1, 6, 3), (2, 5, 1, 3)])
def test_the_path_is_the_best_of_all(heads, rows, cols, width):
    for seed in range(10):
        p = np.random.default_rng(seed).random((heads, rows, cols), np.float32)
        exact, half = p.astype(np.float64), width // 2
        spread = exact.std(1, keepdims=True)
        z = np.divide(exact - exact.mean(1, keepdims=True), spread, out=np.zeros_like(exact), where=spread > 0)
        if cols > half:
            wide = np.pad(z, ((0, 0), (0, 0), (half, half)), "reflect")
            z = np.median(np.stack([wide[..., i:i + cols] for i in range(width)]), 0)
        sums = z.mean(0)
        best = max(paths(rows, cols), key=lambda path: sum(sums[cell] for cell in path))
        found = warp(p, width)
        firsts = [min(col for row, col in best if row == t) for t in range(rows)]
        assert found == firsts or rows == 1 and found == [0]  # a single row has no deviation
    for wrong, error in ((np.full_like(p, np.nan), "p of head 0 at row 0 is not finite"), (p[0], r"expected f32 \[heads")):
        with pytest.raises(multihead.Error, match=error):
            warp(wrong, width)
    with pytest.raises(multihead.Error, match="width is 4, expected an odd number"):
        warp(p, 4)


@pytest.mark.parametrize("fields, error", [
    ({"alignment_heads": 3}, "'alignment_heads' is not a list"), ({"alignment_heads": [[0, 0, 0]]}, "entry 0 is not [layer, head]"),
    ({"alignment_heads": [[0, 0], [3, 0]]}, "'alignment_heads' is not a number from 0 to 2"),
    ({"alignment_heads": [[0, -1]]}, "'alignment_heads' is not a number from 0 to 5"),
    ({"no_timestamps_token_id": 10**9}, "'no_timestamps_token_id' is not a number"),
    ({"no_timestamps_token_id": "x"}, "'no_timestamps_token_id' is not a number"),
    ({"max_initial_timestamp_index": -1}, "'max_initial_timestamp_index' is not a number"),
    ({"median_filter_width": 6}, "'median_filter_width' is 6, expected an odd number"),
    ({"median_filter_width": 10**6}, "'median_filter_width' is not a number from 1 to 1001"),
    ({"lang_to_id": [1]}, "'lang_to_id' is not a table"), ({"lang_to_id": {"<|aa|>": -5}}, "'lang_to_id' is not a number"),
    ({"forced_decoder_ids": [[2, 1]]}, "entry 0 is not [1, token]"), ({"forced_decoder_ids": [[1, -1]]}, "'forced_decoder_ids' is not a number"),
    ({"forced_decoder_ids": [[1, 1]] * 9}, "'forced_decoder_ids' is not a list of at most 6 pairs"),
    ({"language": "klingon"}, "'language' is 'klingon', which 'lang_to_id' does not list"),
    ({"task": "sing"}, "'task' is 'sing', which 'task_to_id' does not list")], ids=str)
def test_wrong_settings_are_named(tmp_path, fields, error):
    net_of("late start").save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with pytest.raises(multihead.Error, match=re.escape(error)):
        multihead.Model(tmp_path)


def on_terminal(command):
    """What the command writes on a terminal."""
    parent, child = pty.openpty()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=child, stderr=child):
        os.close(child)
        pieces = []
        with contextlib.suppress(OSError):  # at the end
            while pieces[-1:] != [b""]:
                pieces.append(os.read(parent, 65536))
    os.close(parent)
    return b"".join(pieces).decode()


def test_progress_erases_no_text(one, tmp_path):
    _, model, folder = one
    save(tmp_path / "a.wav", sound(22400, 5), 2)
    found = model.transcribe(tmp_path / "a.wav")
    assert len({round(s.start * 2) for s in found.segments}) > 1  # several windows
    assert f"\x1b[K{found.text}\r\n" in on_terminal([PROGRAM, "generate", folder, "--audio", tmp_path / "a.wav"])


@pytest.mark.parametrize("more", [(), ("--word-timestamps",)], ids=str)
def test_one_message_for_an_output_that_fails(one, tmp_path, more):
    _, _, folder = one
    save(tmp_path / "a.wav", sound(22400, 5), 2)
    command = [PROGRAM, "generate", folder, "--audio", tmp_path / "a.wav", "-q", *more]
    with open("/dev/full", "wb") as full:
        assert subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False).stderr.count(b"\n") == 1
    closed, out = os.pipe()
    os.close(closed)
    done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, check=False)
    os.close(out)
    assert done.returncode == 6 and not done.stderr


def test_bad_arguments(one, tmp_path):
    _, model, folder = one
    for arguments, error in (({"heads": [(0, 99)]}, "heads[0]: head 99"), ({"heads": [(9, 0)]}, "heads[0]: layer 9"),
                             ({"prompt": [3] * 80}, "80 tokens, which leave no position")):
        with pytest.raises(multihead.Error, match=re.escape(error)):
            model.transcribe(sound(900), word_timestamps=True, **arguments)
    with pytest.raises(ValueError, match="samples: there are none"):
        model.transcribe([])
    with pytest.raises(ValueError, match="heads: they have no effect without word_timestamps"):
        model.transcribe(sound(8000), heads=[(0, 0)])
    with pytest.raises(ValueError, match="token 5000"):
        model.transcribe(sound(900), prompt=[5000])
    with pytest.raises(multihead.Error, match=r"samples\[2\] is not finite"):
        model.transcribe(np.array([0, 0, np.nan], np.float32))
    assert model.transcribe(np.zeros(1, np.float32), timestamps=True, word_timestamps=True).times.max() == 0
    (tmp_path / "short").mkdir()
    config = json.loads((folder / "generation_config.json").read_text())
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / "short" / name).symlink_to(folder / name)
    (tmp_path / "short/generation_config.json").write_text(json.dumps(config | {"no_timestamps_token_id": None}))
    with pytest.raises(multihead.Error, match="longer than a window needs timestamps.*; give shorter audio"):
        multihead.Model(tmp_path / "short").transcribe(sound(9000))
