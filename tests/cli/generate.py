"""multihead generate on a handmade model whose next token depends only on the last one, so that
every draw is predictable; a Llama; and rejected input."""
import contextlib
import ctypes
import json
import math
import os
import random
import re
import signal
import struct
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403

USAGE, NO_INPUT, BAD_INPUT, UNSUPPORTED, NO_OUTPUT = 2, 3, 4, 5, 6
WORDS = ["<s>", "</s>", "red", "green", "blue", "caf\u00e9"]
V, LENGTH = len(WORDS), 12
# LOGITS[last][next]
LOGITS = [[-9, -9, 2.0, 1.0, 0.5, -1.0],
          [0] * V,
          [-9, -2, 0.0, 3.0, 2.5, 1.0],
          [-9, -1, 1.5, 0.0, 1.0, 1.25],
          [-9, 4, 1.0, 1.0, 0.0, 3.0],
          [-9, -3, 2.0, 0.25, 0.5, 0.0]]


def make(name, logits=LOGITS, words=WORDS, begins=True, **changes):
    """A transformer of one layer whose attention is 0, and which is a table from tokens to
    logits."""
    folder = FOLDER / name
    folder.mkdir()
    config = dict(model_type="multihead", vocab_size=V, max_length=LENGTH, embed_dim=V,
                  num_layers=1, num_heads=1, ff_dim=0, norm="none", positions="none", causal=True)
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    zero = [[0.0] * V for _ in range(V)]
    same = [[float(i == j) for j in range(V)] for i in range(V)]
    write_matrices(folder, {
        "embed_tokens.weight": same, "lm_head.weight": [list(row) for row in zip(*logits)],
        **{f"layers.0.self_attn.{part}_proj.weight": zero for part in "qkvo"}})
    return write_words(folder, words, begins)


def uniform(seed, step):
    mask = (1 << 64) - 1
    z = (seed * 0xD1342543DE82EF95 + (step + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return ((z ^ (z >> 31)) >> 11) * 2.0 ** -53


def predict(ids, most, temperature=0.0, top_k=V, top_p=1.0, seed=0, logits=LOGITS, min_p=0.0):
    ids = list(ids)
    for step in range(most):
        row = logits[ids[-1]]
        order = sorted(range(V), key=lambda i: (-row[i], i))
        if temperature == 0:
            chosen = order[0]
        else:
            order = order[:top_k]
            weights = [math.exp((row[i] - row[order[0]]) / temperature) for i in order]
            kept = next((n for n in range(1, len(order) + 1)
                         if math.fsum(weights[:n]) >= top_p * math.fsum(weights)), len(order))
            while kept > 1 and weights[kept - 1] < min_p * weights[0]:
                kept -= 1
            at = uniform(seed, step) * math.fsum(weights[:kept])
            chosen = next(i for n, i in enumerate(order, 1) if at < math.fsum(weights[:n]))
        if chosen == 1:
            break
        ids.append(chosen)
        if len(ids) > LENGTH:
            break
    return " ".join(WORDS[i] for i in ids)


def generate(*arguments, **keywords):
    return run("generate", *arguments, **keywords)


def expect(wanted, *arguments):
    result = generate(*arguments)
    check_good(result, arguments)
    check(result.out.decode() == wanted + "\n", f"{arguments}: {result.out!r}, wanted {wanted!r}")
    return result


def greedy(folder):
    expect("<s> red green red green", folder, "--max-tokens", 4)
    expect("<s> blue", folder, "blue")  # ends
    expect("<s> caf\u00e9 red green red", folder, " caf\u00e9 ", "--max-tokens", 3)
    expect("<s> green", folder, "green", "--max-tokens", 0)
    expect(predict([0, 2], 5), folder, "red", "--temperature", 0, "--max-tokens", 5)
    result = expect(predict([0], LENGTH), folder)
    check(any("12 positions" in line for line in result.errors), f"note: {result.errors}")
    check(not generate(folder, "-q").err, "quiet")
    both = subprocess.run([PROGRAM, "generate", str(folder)], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, env=environment(), check=False).stdout
    check(b"\nthe model's 12 positions" in both, f"the text's line ends before a note: {both!r}")
    full = " ".join(["red"] * (LENGTH - 1))
    expect(f"<s> {full} green", folder, full)


def by_chance(folder):
    seen = set()
    for seed in range(40):
        wanted = predict([0, 2], 8, 1.0, seed=seed)
        seen.add(wanted)
        expect(wanted, folder, "red", "--temperature", 1, "--seed", seed, "--max-tokens", 8)
    check(len(seen) > 20, f"{len(seen)} different texts of 40 seeds")
    for seed in range(12):
        options = ["--max-tokens", 6, "--seed", seed]
        expect(predict([0, 2], 6, 1.0, top_k=2, seed=seed), folder, "red", "--top-k", 2, *options)
        expect(predict([0, 2], 6, 1.0, top_p=0.6, seed=seed), folder, "red", "--top-p", 0.6,
               *options)
        expect(predict([0, 2], 6, 1.0, min_p=0.3, seed=seed), folder, "red", "--min-p", 0.3,
               *options)
        expect(predict([0, 3], 6, 2.5, 3, 0.8, seed), folder, "green", "--temperature", 2.5,
               "--top-k", 3, "--top-p", 0.8, *options)
    # With equal probabilities, the first half of the tokens has half of the mass.
    alike = [[0.0] * V for _ in range(V)]
    even = make("even", logits=alike)
    for seed in range(12):
        expect(predict([0, 2], 6, 1.0, top_p=0.5, seed=seed, logits=alike), even, "red",
               "--top-p", 0.5, "--max-tokens", 6, "--seed", seed)
    expect(predict([0, 2], 4), folder, "red", "--top-k", 1, "--max-tokens", 4)
    one = generate(folder, "--temperature", 3, "--threads", 1).out
    check(one == generate(folder, "--temperature", 3, "--threads", 2).out, "threads")


def numbers(folder):
    expect("2 3 2 3", folder, "--ids", "2", "--max-tokens", 3)
    expect("4 1 0 2", folder, "--ids", " 4\n", "--max-tokens", 3)  # ids have no end token
    (folder / "tokenizer.json").unlink()
    expect("2 3", folder, "--ids", "2", "--max-tokens", 1)
    check_error(generate(folder, "red"), NO_INPUT, "tokenizer.json", "--ids", command="generate")
    for text, part in (("6", "0 to 5"), ("3 -1", "'-1'"), ("2 x", "'x'"), ("2,3", "'2,3'")):
        check_error(generate(folder, "--ids", text), USAGE, part, command="generate")
    check_error(generate(folder, "--ids"), USAGE, "to start from", command="generate")


def streaming(folder):
    """Words are streamed: the reader reads two and closes the pipe."""
    process = subprocess.Popen([PROGRAM, "generate", str(folder), "--temperature", "1"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    process.stdout.read(3)
    process.stdout.close()
    code, err = process.wait(HANGS), process.stderr.read()
    process.stderr.close()
    check(code in (0, NO_OUTPUT) and not err.strip().startswith(b"multihead: generate: error"),
          f"closed pipe: {code}, {err!r}")
    if os.path.exists("/dev/full"):
        with open("/dev/full", "wb") as full:
            result = generate(folder, stdout=full)
        check(result.code == NO_OUTPUT and len(result.errors) == 1 and
              "No space left" in result.errors[0], f"full: {result.errors}")


def refusals(folder):
    for arguments, code, parts in (
            (["--quiet"], USAGE, ("MODEL is missing",)),
            (["demo", "--seed", 0], USAGE, ("--seed requires --temperature",)),
            ([folder, "a", "b"], USAGE, ("'b'", "quotes")),
            ([folder, "--temperature", -1], USAGE, ("--temperature",)),
            ([folder, "--temperature", "nan"], USAGE, ("--temperature",)),
            ([folder, "--top-p", 0], USAGE, ("--top-p",)),
            ([folder, "--top-p", 1.5], USAGE, ("--top-p",)),
            ([folder, "--min-p", 1.5], USAGE, ("--min-p",)),
            ([folder, "--stop", "x"], USAGE, ("--stop", "whole words")),
            ([folder, "--chat", "red"], UNSUPPORTED, ("--chat",)),
            ([folder, "--top-k", 0], USAGE, ("--top-k",)),
            # Errors that do not depend on the model are reported before it is opened.
            (["none", "--stop", ""], USAGE, ("--stop: its value is empty",)),
            (["none", "--temperature", ""], USAGE, ("--temperature: its value is empty",)),
            (["none", "2", "--ids", "--stop", "x"], USAGE, ("--stop", "--ids", "--max-tokens")),
            (["none", "2", "--ids", "--chat"], USAGE, ("--chat", "--ids")),
            (["none", "--chat"], USAGE, ("--chat", "TEXT", "missing")),
            (["", "red"], USAGE, ("MODEL is missing",)),
            ([folder, "--top-q", 0], USAGE, ("--top-k",)),
            ([folder, "zebra"], BAD_INPUT, ("'zebra'", "6 words")),
            ([folder, b"\xff"], BAD_INPUT, ("byte 0", "type it as UTF-8")),
            ([folder, "red " * LENGTH], BAD_INPUT, ("takes 12",)),
            ([FOLDER / "none"], NO_INPUT, ("no such folder",)),
            ([MODEL, "a"], UNSUPPORTED, ("encoder",)),
            ([make("encoder", causal=False), "red"], UNSUPPORTED, ("encoder",)),
            ([make("mute", begins=False)], USAGE, ("give TEXT",)),
            ([make("more", words=WORDS + ["x"]), "red"], BAD_INPUT, ("7 tokens",)),
            ([make("alien", model_type="rwkv"), "red"], UNSUPPORTED, ("'rwkv'",)),
            ([make("bad", logits=[[math.nan] * V] * V), "red"], None, ("finite",))):
        result = generate(*arguments)
        if code is None:  # the prompt is already on stdout
            check(result.code == BAD_INPUT and parts[0] in " ".join(result.errors), "not finite")
        else:
            check_error(result, code, *parts, command="generate")
    shown = make("steers", words=WORDS[:2] + ["a\x1b[2J\u009bb"] + WORDS[3:])
    check(generate(shown, "--max-tokens", 1).out == rb"<s> a\x1b[2J\u009bb" + b"\n",
          "words steer no terminal")


def padded_vocabulary():
    """A model with more tokens than its tokenizer. The extra tokens have the largest logits after
    "a", but are never generated because they have no text."""
    folder = make("padded", logits=[[0] * V, [0] * V, [0, 0, 0, 8, 0, 9], [0, 0, 0, 0, 8, 9],
                                    [0, 8, 0, 0, 0, 9], [0] * V])
    vocab = ["<s>", "</s>", "a", "b", "c"]
    (folder / "tokenizer.json").write_text(json.dumps({
        "added_tokens": [], "normalizer": None, "post_processor": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                          "use_regex": True},
        "model": {"type": "BPE", "vocab": {word: i for i, word in enumerate(vocab)}, "merges": []}}))
    expect("abc", folder, "a")
    expect("abc", folder, "a", "--top-k", 1)


def ends():
    """Greedy output is red green blue </s>. Any end token that a file names stops it, also with
    ids."""
    for name, config, generation, text in (
            ("no-end", {}, None, "red green caf\u00e9 red"), ("one-end", {"eos_token_id": 5}, None, "red green"),
            ("list-of-ends", {"eos_token_id": [4, 3]}, {}, "red"),
            ("later-ends", {"eos_token_id": 4}, {"eos_token_id": [99, -1, 5]}, "red green"),
            ("null-end", {"eos_token_id": None}, {"eos_token_id": None}, "red green caf\u00e9 red")):
        folder = make(name, logits=[LOGITS[0], LOGITS[1], LOGITS[2], [0, 0, 0, 0, 1, 2], LOGITS[4], LOGITS[5]], begins=False,
                      **config)
        if generation is not None:
            (folder / "generation_config.json").write_text(json.dumps(generation))
        expect(text, folder, "red", "--max-tokens", 3)
        expect(" ".join(str(WORDS.index(word)) for word in text.split()), folder, "2", "--ids", "--max-tokens", 3)
    listed = generate(folder.parent / "later-ends", "red", "--stats").err.decode().splitlines()[:3]
    check(listed == ["ends at token 4 blue", "ends at token 5 caf\u00e9", "ends at token 1 </s>"], f"{listed}")
    for wrong in ("</s>", [1, "x"], {"a": 1}, 1.5, list(range(1025))):
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": wrong}))
        check_error(generate(folder, "red"), BAD_INPUT, "generation_config.json: 'eos_token_id'", command="generate")


def write_bytes(folder):
    """A byte-level tokenizer of "a", the two bytes of "\u00e9", and "b"."""
    added = [dict(id=i, content=word, single_word=False, lstrip=False, rstrip=False,
                  normalized=False, special=True) for i, word in ((0, "<|im_start|>"),
                                                                  (1, "<|im_end|>"))]
    vocab = ["<|im_start|>", "<|im_end|>", "a", "\u00c3", "\u00a9", "b"]
    (folder / "tokenizer.json").write_text(json.dumps({
        "added_tokens": added, "normalizer": None, "post_processor": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                          "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                    "use_regex": True},
        "model": {"type": "BPE", "vocab": {word: i for i, word in enumerate(vocab)}, "merges": []}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))


def byte_pairs():
    """A byte-level BPE model that generates "a", "\u00e9" in two tokens, "b", and the end."""
    folder = make("bytes", logits=[[0, 0, 9, 0, 0, 0], [0] * V, [0, 0, 0, 9, 0, 0],
                                   [0, 0, 0, 0, 9, 0], [0, 0, 0, 0, 0, 9], [0, 9, 0, 0, 0, 0]])
    write_bytes(folder)
    expect("a\u00e9b", folder, "a")
    expect("a\ufffd", folder, "a", "--max-tokens", 1)  # half a character
    expect("a\u00e9", folder, "a", "--stop", "b")
    expect("a", folder, "a", "--stop", "\u00e9b", "--stop", "zz")
    expect("a\u00e9b", folder, "a", "--stop", "ba")  # "b" may begin the stop text
    check_error(generate(folder, b"a\xff"), BAD_INPUT, "byte 1", "type it as UTF-8", command="generate")
    result = generate(folder, "a", "--stats")
    check(re.search(rb"prompt: 1 tokens in .* generated: 3 in .* cache: \d tokens", result.err),
          f"stats: {result.err!r}")
    for kind in ("f32", "f16", "bf16", "int8"):
        expect("a\u00e9b", folder, "a", "--cache", kind)
        expect("a\u00e9b", folder, "a", "--cache", kind, "--page", 1)
    rooms = [float(re.search(rb"room ([0-9.]+) MB", generate(
        folder, "a", "--stats", "--max-tokens", 3, "--cache", kind).err)[1]) for kind in ("f32", "f16")]
    check(0 <= rooms[1] <= rooms[0], f"rooms: {rooms}")
    check_error(generate(folder, "a", "--cache", "f8"), USAGE, "bf16", command="generate")
    for window in (["--window", 1], ["--window", 2, "--sinks", 0, "--page", 1, "--cache", "int8"]):
        expect("a\u00e9b", folder, "a", *window)
    check_error(generate(folder, "a", "--sinks", 1), USAGE, "add --window", command="generate")
    told = generate(folder)
    check(told.code == USAGE and b"give TEXT" in told.err, f"nothing to begin with: {told.err!r}")


def interrupted():
    """Ctrl-C during an endless text. The text is longer than a pipe's buffer, so that it cannot be
    complete before the signal. The output ends with a whole character and a line end."""
    length = 200000
    folder = make("endless", logits=[[0, 0, 9, 0, 0, 0], [0] * V, [0, 0, 0, 9, 0, 0],
                                     [0, 0, 0, 0, 9, 0], [0, 0, 0, 9, 0, 0], [0] * V],
                  max_length=length)
    write_bytes(folder)
    for number in (signal.SIGINT, signal.SIGTERM):
        with subprocess.Popen([PROGRAM, "generate", folder, "a", "--max-tokens", str(length), "--stats"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                              env=environment()) as process:
            begun = b""
            while len(begun) < 20 and (more := process.stdout.read(20)):
                begun += more
            process.send_signal(number)
            rest, err = process.communicate(timeout=HANGS)
        text = (begun + rest).decode("utf-8", "replace")
        # A shell reports 130 and 143.
        check(process.returncode == -number, f"signal {number}: exit {process.returncode}, {err!r}")
        check(re.fullmatch("a\u00e9{10,}\ufffd?\n", text) and len(begun + rest) < length,
              f"signal {number}: {len(text)} characters, to {(begun + rest)[-24:]!r}")
        check(re.fullmatch(rb"ends at token 1 .*\nprompt: 1 tokens .*; generated: \d+ in .*\n", err),
              f"signal {number}: {err!r}")


def quantised():
    """A GGUF file of a one-layer Llama with Q8_0 matrices. The number of outputs of some is not a
    multiple of 32."""
    width, vocabulary, rng = 64, 40, random.Random(5)
    q8_0, f32 = 8, 0
    keys = {"general.architecture": "llama", "llama.context_length": 32, "llama.block_count": 1,
            "llama.embedding_length": width, "llama.feed_forward_length": 96,
            "llama.attention.head_count": 2, "llama.vocab_size": vocabulary,
            "llama.attention.layer_norm_rms_epsilon": 1e-5}
    matrices = {"token_embd": (vocabulary, width), "output": (vocabulary, width),
                "blk.0.ffn_gate": (96, width), "blk.0.ffn_up": (96, width),
                "blk.0.ffn_down": (width, 96),
                **{f"blk.0.attn_{part}": (width, width) for part in ("q", "k", "v", "output")}}
    norms = ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")

    def text(word):
        return struct.pack("<Q", len(word)) + word.encode()

    head = b"GGUF" + struct.pack("<IQQ", 3, len(matrices) + len(norms), len(keys))
    for key, value in keys.items():
        kind = {str: 8, int: 4, float: 6}[type(value)]
        head += text(key) + struct.pack("<I", kind)
        head += text(value) if kind == 8 else struct.pack("<I" if kind == 4 else "<f", value)
    data = b""
    for name, (rows, columns) in matrices.items():
        head += text(f"{name}.weight") + struct.pack("<IQQIQ", 2, columns, rows, q8_0, len(data))
        for _ in range(rows * columns // 32):
            data += struct.pack("<e32b", 0.002, *(rng.randint(-127, 127) for _ in range(32)))
        data += bytes(-len(data) % 32)
    for name in norms:
        head += text(f"{name}.weight") + struct.pack("<IQIQ", 1, width, f32, len(data))
        data += struct.pack(f"<{width}f", *[1.0] * width)
    path = FOLDER / "quantised.gguf"
    path.write_bytes(head + bytes(-len(head) % 32) + data)
    return path


def opened_once():
    """The program opens a GGUF file once for weights and tokenizer. (This file has no tokenizer,
    which is detected in the same way.) inotify merges equal unread events, so the test reads them
    immediately."""
    path, libc, events = quantised(), ctypes.CDLL(None), b""
    if not hasattr(libc, "inotify_init1"):
        return
    on_open, nonblocking, event_bytes = 0x20, 0o4000, 16  # inotify(7)
    watch = libc.inotify_init1(nonblocking)
    libc.inotify_add_watch(watch, bytes(path), on_open)
    process = subprocess.Popen([PROGRAM, "generate", path, "text"], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    done = False
    while not done:
        done = process.poll() is not None
        with contextlib.suppress(BlockingIOError):
            events += os.read(watch, 4096)
    os.close(watch)
    check(len(events) == event_bytes, f"a GGUF file is opened {len(events) // event_bytes} times")


def in_other_arithmetics():
    path, model = quantised(), make("dense")
    wanted = ("--ids", "--max-tokens", "12")
    for compute in ("int8", "bf16", "tiles", "f32"):
        runs = [generate("--compute", compute, *wanted, "--threads", threads, path, "3 1 4 1 5")
                for threads in "123"]
        for result in runs:
            check_good(result, "blocks of Q8_0")
            check(len(result.out.split()) == 17, f"{result.out}")
            check(result.out == runs[0].out, f"{compute}: threads change the text")
    check_good(generate("--compute", "bf16", *wanted, model, "3 1 4 1 5"), "f32 in bf16 arithmetic")
    for wanted in ((model,), ("--ids", model, "1")):
        check_error(generate("--compute", "int8", *wanted), UNSUPPORTED, "stored in blocks",
                    "or f32 arithmetic", command="generate")
    check_error(generate("--compute", "int4", path), USAGE, "expected one of f32, int8, bf16, tiles",
                command="generate")


model = make("model")
greedy(model)
by_chance(model)
streaming(model)
refusals(model)
numbers(model)
padded_vocabulary()
ends()
byte_pairs()
interrupted()
opened_once()
in_other_arithmetics()
check(generate().code == USAGE and b"Examples:" in generate().err, "without arguments")
finish()
