"""Damaged and malicious model files in the Python package. multihead.Model must raise an exception
of the package with a message of one line that names the file, or the file must be usable. It must
not crash, hang, or use more memory than for a small file. Every file is opened in a child process,
which prints its name first, so that a crash fails the test and names the file. The child has ten
minutes for work of a few seconds; the limit only ends hangs. MHA_TEST_LONG=1 damages more bytes.
"""
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys

import pytest

from shared import HANGS, ROOT, SEED, TINY, amount
sys.path.insert(0, str(ROOT / "tests/fuzz"))
import seeds  # writes small GGUF files

FILES = ("config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt")
MOST_MIB = 512  # of the child in total; Python with NumPy and the libraries takes about 60

CHILD = """
import faulthandler, json, os, re, sys
faulthandler.enable()
import multihead
for path in sys.stdin.read().split("\\0"):
    print(json.dumps({"opens": path}), flush=True)
    model = None
    try:
        model = multihead.Model(path)
        model.attention("the a")
        if model.predicts:
            model.generate("a", max_tokens=2)
        print(json.dumps({"works": True}))
    except multihead.Error as error:
        print(json.dumps({"error": str(error), "opened": model is not None, "builtin": isinstance(
            error, (ValueError, TypeError, OSError, NotImplementedError, MemoryError))}))
peak = re.search("VmHWM:\\\\s*(\\\\d+)", open("/proc/self/status").read())  # ru_maxrss begins with the parent's
print(json.dumps({"mib": int(peak[1]) // 1024}))
"""


def opened(paths):
    """The result for each path."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "bindings/python")}
    try:
        done = subprocess.run([sys.executable, "-c", CHILD], input="\0".join(map(str, paths)),
                              capture_output=True, text=True, timeout=HANGS, check=False,
                              env=environment)
    except subprocess.TimeoutExpired as late:
        lines = (late.stdout or b"").decode().splitlines()
        pytest.fail(f"hangs: {lines[-1] if lines else 'the import'}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode:
        name = signal.Signals(-done.returncode).name if done.returncode < 0 else done.returncode
        pytest.fail(f"ends with {name} after {lines[-1:]}: {done.stderr[-2000:]}")
    assert lines[-1]["mib"] < MOST_MIB, f"{lines[-1]['mib']} MiB"
    assert [line["opens"] for line in lines[:-1:2]] == list(map(str, paths))
    return lines[1:-1:2]


def judge(cases, may_load=()):
    """`cases` is {name: path}. Each must fail with a line that names the file when it is opened.
    Files in `may_load` may open, and their use then succeeds or fails with one line."""
    for (name, path), found in zip(cases.items(), opened(cases.values()), strict=True):
        if "works" in found or found["opened"]:
            assert name in may_load, f"{name}: opens as if nothing were wrong"
        if "works" in found:
            continue
        error = found["error"]
        assert found["builtin"], (name, error)
        assert "\n" not in error and error.isprintable(), (name, error)
        # Errors about a text or about results need not name the file.
        assert found["opened"] or pathlib.Path(path).name in error, f"{name}: {error!r}: which file?"


def folder(tmp_path, name, **files):
    """A copy of tiny-bert with some files replaced, or omitted for None. In names, _ represents the
    dot."""
    made = tmp_path / name.replace("/", " ")[:80]
    made.mkdir()
    for file in FILES:
        content = files.get(file.replace(".", "_"), b"")
        if content is None:
            continue
        if content:
            (made / file).write_bytes(content)
        elif file.replace(".", "_") in files:
            (made / file).write_bytes(b"")
        else:
            os.link(TINY / file, made / file) if made.stat().st_dev == TINY.stat().st_dev else (
                shutil.copy(TINY / file, made / file))
    return made


def small_gguf(**changes):
    """A model of one layer with finite weights."""
    return seeds.gguf_model(fill=seeds.as_floats, **changes)


def weights():
    """The header and the data of tiny-bert's weights."""
    content = (TINY / "model.safetensors").read_bytes()
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8:8 + size]), content[8 + size:]


def packed(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


# ---- Folders ----------------------------------------------------------------------------------------


def test_whole_ones_open(tmp_path):
    """The files that other tests damage are usable without the damage."""
    model = tmp_path / "whole.gguf"
    model.write_bytes(small_gguf())
    assert opened([folder(tmp_path, "whole"), model]) == [{"works": True}] * 2


def test_truncated_weights(tmp_path):
    content = (TINY / "model.safetensors").read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    draw = random.Random(1)
    cuts = sorted({*range(12), *range(header - 3, header + 3), len(content) - 1, len(content) - 4,
                   *(draw.randrange(header) for _ in range(40)),
                   *(draw.randrange(header, len(content)) for _ in range(20))})
    judge({f"cut at {cut}": folder(tmp_path, f"cut at {cut}", model_safetensors=content[:cut])
           for cut in cuts})


def test_truncated_texts(tmp_path):
    cases, may_load = {}, set()
    for file in ("config.json", "tokenizer_config.json", "vocab.txt"):
        content = (TINY / file).read_bytes()
        for cut in sorted({0, 1, 2, len(content) // 3, len(content) // 2, len(content) - 2}):
            name = f"{file} cut at {cut}"
            cases[name] = folder(tmp_path, name, **{file.replace(".", "_"): content[:cut]})
            if file == "vocab.txt" and cut:
                may_load.add(name)
    judge(cases, may_load)


def edited(change):
    header, data = weights()
    done = change(header)
    return packed(header if done is None else done, data)


def one(**fields):
    """A change of one tensor's fields. A field is omitted for None."""
    def change(header):
        tensor = header["embeddings.word_embeddings.weight"]
        tensor |= fields
        for name in [name for name, value in tensor.items() if value is None]:
            del tensor[name]
    return change


def renamed(header):
    header["word.weight"] = header.pop("embeddings.word_embeddings.weight")


def nested(_):
    return b"[" * 100000


HEADERS = {
    "an element type that does not exist": one(dtype="F99"),
    "an element type that is a number": one(dtype=7),
    "no element type": one(dtype=None),
    "whole numbers for weights": one(dtype="I32"),
    "elements twice as large": one(dtype="F64"),
    "sizes that overflow": one(shape=[2**32, 2**32]),
    "huge sizes": one(shape=[2**62, 32]),
    "sizes beyond 64 bits": one(shape=[2**70, 32]),
    "a negative size": one(shape=[-1, 32]),
    "a fraction for a size": one(shape=[1.5, 32]),
    "no sizes": one(shape=None),
    "sizes that are text": one(shape="32"),
    "more dimensions than any tensor has": one(shape=[1] * 100),
    "offsets beyond the end": one(data_offsets=[2**40, 2**40 + 16]),
    "offsets beyond 64 bits": one(data_offsets=[0, 2**64]),
    "offsets the wrong way round": one(data_offsets=[4096, 0]),
    "negative offsets": one(data_offsets=[-4096, 0]),
    "one offset": one(data_offsets=[0]),
    "no offsets": one(data_offsets=None),
    "a tensor by another name": renamed,
    "a header of text": lambda _: b"hello",
    "a header that is a list": lambda _: b"[]",
    "an empty header": lambda _: b"",
    "an object without an end": lambda h: json.dumps(h).encode()[:-1],
    "bad UTF-8": lambda h: json.dumps(h).encode().replace(b"word_embeddings", b"word_\xff\xfedings"),
    "a NUL": lambda h: json.dumps(h).encode().replace(b"word_emb", b"word\0emb"),
    "100,000 brackets": nested,
    "100,000 objects": lambda _: b'{"a":' * 100000,
    "an escape that is not one": lambda h: json.dumps(h).encode().replace(b"word_", b"word\\q"),
    "half a surrogate pair": lambda h: json.dumps(h).encode().replace(b"word_", b"\\ud800"),
}


def test_headers(tmp_path):
    cases = {name: folder(tmp_path, name, model_safetensors=edited(change))
             for name, change in HEADERS.items()}
    header, data = weights()
    whole = packed(header, data)
    for size in (0, 1, len(whole) - 8, len(whole), 2**31, 2**63 - 1, 2**63, 2**64 - 1):
        name = f"a header of {size} bytes"
        cases[name] = folder(tmp_path, name, model_safetensors=struct.pack("<Q", size) + whole[8:])
    judge(cases)


def test_settings(tmp_path):
    """Every number of config.json is replaced by an invalid one, or the text is not JSON."""
    whole = json.loads((TINY / "config.json").read_text())
    cases, may_load = {}, set()
    values = {"minus one": "-1", "zero": "0", "2^31": str(2**31), "2^63": str(2**63), "text": '"many"',
              "1e400": "1e400", "a list": "[]", "NaN": "NaN", "half": "0.5", "null": "null"}
    for field in [name for name, value in whole.items() if isinstance(value, (int, float))]:
        for what, value in values.items():
            name = f"{field} is {what}"
            text = json.dumps({**whole, field: "@"}).replace('"@"', value)
            cases[name] = folder(tmp_path, name, config_json=text.encode())
            # Sizes must match the weights. The following fields are unused, or accept any small
            # number.
            if field in ("hidden_dropout_prob", "attention_probs_dropout_prob", "pad_token_id") or (
                    field == "layer_norm_eps" and what in ("half", "null")):
                may_load.add(name)
    for name, text in (("no settings", b"{}"), ("no JSON", b"hello"), ("a list", b"[1]"),
                       ("bad UTF-8 in settings", b'{"model_type": "\xff\xfe"}'), ("a NUL", b"\0" * 50),
                       ("another family", b'{"model_type": "no such family"}'),
                       ("a family that is a number", b'{"model_type": 5}'),
                       ("brackets", b"[" * 100000), ("a name of a megabyte",
                                                     b'{"model_type": "' + b"x" * 2**20 + b'"}')):
        cases[name] = folder(tmp_path, name, config_json=text)
    judge(cases, may_load)


def test_words(tmp_path):
    whole = (TINY / "vocab.txt").read_bytes()
    cases = {}
    for name, content in (("no words", b""), ("bad UTF-8", whole.replace(b"the", b"t\xffe")),
                          ("no [UNK]", whole.replace(b"[UNK]", b"[UNQ]")),
                          ("a word twice", whole + b"[CLS]\n"), ("zeros", b"\0" * 5000),
                          ("a word of a megabyte", b"x" * 2**20)):
        cases[name] = folder(tmp_path, f"words {name}", vocab_txt=content)
    for name, content in (("no JSON", b"hello"), ("bad UTF-8", b'{"do_lower_case": "\xff"}'),
                          ("brackets", b"[" * 100000), ("a number for a flag", b'{"do_lower_case": 3}')):
        cases[f"settings {name}"] = folder(tmp_path, f"settings {name}", tokenizer_config_json=content)
    judge(cases)


def test_what_is_no_model(tmp_path):
    cases = {"nothing": tmp_path / "nothing", "an empty folder": tmp_path / "empty"}
    cases["an empty folder"].mkdir()
    for file in ("config.json", "model.safetensors", "vocab.txt"):
        name = f"no {file}"
        cases[name] = folder(tmp_path, name, **{file.replace(".", "_"): None})
        name = f"a folder for {file}"
        cases[name] = folder(tmp_path, name, **{file.replace(".", "_"): None})
        (cases[name] / file).mkdir()
        name = f"a pipe for {file}"
        cases[name] = folder(tmp_path, name, **{file.replace(".", "_"): None})
        os.mkfifo(cases[name] / file)
        name = f"a loop for {file}"
        cases[name] = folder(tmp_path, name, **{file.replace(".", "_"): None})
        (cases[name] / file).symlink_to(file)
    for name in ("empty.gguf", "text.gguf", "text"):
        cases[name] = tmp_path / name
        cases[name].write_bytes(b"" if "empty" in name else b"hello " * 100)
    cases["a pipe"] = tmp_path / "pipe.gguf"
    os.mkfifo(cases["a pipe"])
    cases["a name with a line break"] = tmp_path / "no\nsuch"
    found = opened(cases.values())
    assert all("error" in outcome for outcome in found), found
    cases.pop("a name with a line break")  # the message escapes this name
    judge(cases)


# ---- GGUF -------------------------------------------------------------------------------------------


def written(tmp_path, contents):
    cases = {}
    for number, (name, content) in enumerate(contents.items()):
        cases[name] = tmp_path / f"hostile-{number}.gguf"
        cases[name].write_bytes(content)
    return cases


def test_truncated_gguf(tmp_path):
    whole = small_gguf()
    judge(written(tmp_path, {f"cut at {cut}": whole[:cut] for cut in range(len(whole) - 1)
                             if cut < 64 or cut % 7 == 0}))


def with_key(key, kind, value):
    """gguf_model() with a value of a different kind or size for the same key."""
    whole = small_gguf()
    at = whole.index(seeds.gguf_string(key)) + len(seeds.gguf_string(key))
    # Later data is not moved and therefore read at a wrong place, which is part of the damage.
    new = seeds.gguf_value(kind, value)
    return whole[:at] + new + whole[at + len(new):]


def test_gguf_headers(tmp_path):
    whole = small_gguf()
    at = lambda text: whole.index(text.encode())  # noqa: E731
    put = lambda place, bytes_: whole[:place] + bytes_ + whole[place + len(bytes_):]  # noqa: E731
    tensor = at("token_embd.weight") + len("token_embd.weight")
    contents = {"another magic number": b"GGUX" + whole[4:]}
    for version in (0, 1, 4, 2**32 - 1):
        contents[f"version {version}"] = put(4, struct.pack("<I", version))
    for count in (2**20, 2**32, 2**63 - 1, 2**64 - 1):
        contents[f"{count} tensors"] = put(8, struct.pack("<Q", count))
        contents[f"{count} keys"] = put(16, struct.pack("<Q", count))
        contents[f"a key of {count} bytes"] = put(24, struct.pack("<Q", count))
        tokens = at("tokenizer.ggml.tokens") + len("tokenizer.ggml.tokens")
        contents[f"{count} tokens"] = put(tokens + 8, struct.pack("<Q", count))
        contents[f"a token of {count} bytes"] = put(tokens + 16, struct.pack("<Q", count))
        contents[f"a tensor of {count} rows"] = put(tensor + 12, struct.pack("<Q", count))
        contents[f"a tensor at {count}"] = put(tensor + 24, struct.pack("<Q", count))
    for dims in (0, 5, 255, 2**32 - 1):
        contents[f"{dims} dimensions"] = put(tensor, struct.pack("<I", dims))
    for kind in (4, 99, 2**31):
        contents[f"element type {kind}"] = put(tensor + 20, struct.pack("<I", kind))
    contents["an unaligned tensor"] = put(tensor + 24, struct.pack("<Q", 1))
    contents["a kind of value that does not exist"] = put(
        at("general.architecture") + 20, struct.pack("<I", 99))
    contents["bad UTF-8 in the architecture"] = put(at("general.architecture") + 32, b"\xff\xfe")
    contents["bad UTF-8 in a key"] = put(at("general.architecture"), b"\xff\xfe")
    contents["bad UTF-8 in a tensor's name"] = put(at("token_embd.weight"), b"\xff\xfe")
    contents["arrays of arrays"] = put(at("tokenizer.ggml.tokens") + len("tokenizer.ggml.tokens"),
                                       struct.pack("<II", 9, 9) * 20)
    judge(written(tmp_path, contents))


def test_gguf_settings(tmp_path):
    """Meaningless values of the correct kind."""
    contents, may_load = {}, set()
    for key in ("block_count", "context_length", "embedding_length", "feed_forward_length",
                "attention.head_count", "attention.head_count_kv", "attention.key_length",
                "rope.dimension_count"):
        for value in (0, 3, 2**31 - 1, 2**31, 2**32 - 1):
            contents[f"{key} {value}"] = small_gguf(**{key: value})
            if (key, value) == ("context_length", 3):  # fewer than the default: shorter texts
                may_load.add(f"{key} {value}")
    for alignment in (0, 3, 2**31, 2**32 - 1):
        contents[f"alignment {alignment}"] = seeds.gguf(
            (), [("general.architecture", "string", "llama"), ("general.alignment", "u32", alignment)])
    contents["another architecture"] = small_gguf(kind="no such one")
    contents["no keys"] = seeds.gguf()
    contents["a token number beyond the tokens"] = with_key("tokenizer.ggml.bos_token_id", "u32", 99)
    contents["a negative token type"] = whole = small_gguf()
    at = whole.index(b"tokenizer.ggml.token_type") + len("tokenizer.ggml.token_type") + 16
    contents["a negative token type"] = whole[:at] + b"\xff" * 4 + whole[at + 4:]
    contents["a merge of unknown tokens"] = whole.replace("\u0120 b".encode(), "\u0120 x".encode())
    contents["a merge without a space"] = whole.replace("\u0120 b".encode(), "\u0120bb".encode())
    contents["tokens that are the same"] = whole.replace(
        seeds.gguf_string("b"), seeds.gguf_string("a"))
    contents["a NUL in a token"] = whole.replace(seeds.gguf_string("b"), seeds.gguf_string("\0"))
    judge(written(tmp_path, contents), may_load | {"a negative token type", "a merge of unknown tokens",
                                                   "tokens that are the same", "a NUL in a token"})


# ---- Damage at random -------------------------------------------------------------------------------


def damaged(content, most, draw):
    content = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(most)
        content[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, content[at] ^ 1 << draw.randrange(8)))
    return bytes(content)


def test_damaged_bytes(tmp_path):
    """Each file is rejected with a line that names it, or it is usable."""
    draw, count = random.Random(f"{SEED} damaged"), amount(40, 150, 2000)
    gguf, safe = small_gguf(), (TINY / "model.safetensors").read_bytes()
    most = 8 + int.from_bytes(safe[:8], "little")
    cases = written(tmp_path, {f"GGUF {i}": damaged(gguf, len(gguf), draw) for i in range(count)})
    for i in range(count // 3):
        for file, content, end in (("model.safetensors", safe, most),
                                   *((name, (TINY / name).read_bytes(), (TINY / name).stat().st_size)
                                     for name in FILES if name != "model.safetensors")):
            cases[f"{file} {i}"] = folder(tmp_path, f"{file} {i}", **{
                file.replace(".", "_"): damaged(content, end, draw)})
    judge(cases, may_load=cases)
