"""multihead perplexity of a table from tokens to logits, whose losses Python computes; of a model
with attention, for which sizes of steps and pages must not matter and types of caches do; and
rejected input."""
import json
import math
import random
import re
import signal
import statistics
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403
from watch import watched  # noqa: E402

USAGE, NO_INPUT, BAD_INPUT, UNSUPPORTED = 2, 3, 4, 5
WORDS = ["<s>", "</s>", "red", "green", "blue", "teal"]
V, LENGTH = len(WORDS), 40
LOGITS = [[-9, -9, 2.0, 1.0, 0.5, -1.0], [0] * V, [-9, -2, 0.0, 3.0, 2.5, 1.0],
          [-9, -1, 1.5, 0.0, 1.0, 1.25], [-9, 4, 1.0, 1.0, 0.0, 3.0], [-9, -3, 2.0, 0.25, 0.5, 0.0]]
CACHES = ("f32", "f16", "bf16", "int8")
RNG = random.Random(11)


def matrix(rows, columns, size):
    return [[RNG.gauss(0, size) for _ in range(columns)] for _ in range(rows)]


def write_folder(name, logits, attention, begins=True, words=WORDS, **changes):
    folder, width = FOLDER / name, len(logits)
    folder.mkdir()
    config = dict(model_type="multihead", vocab_size=V, max_length=LENGTH, embed_dim=width,
                  num_layers=1, num_heads=1, ff_dim=0, norm="none", positions="none", causal=True)
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    write_matrices(folder, {
        "embed_tokens.weight": [[float(i == j) for j in range(width)] for i in range(V)],
        "lm_head.weight": [list(row) for row in zip(*logits)],
        **{f"layers.0.self_attn.{part}_proj.weight": attention(width) for part in "qkvo"}})
    return write_words(folder, words, begins)


def table(name, logits=LOGITS, **changes):
    """Attention is 0, so that the next token depends only on the last one."""
    return write_folder(name, logits, lambda width: [[0.0] * width] * width, **changes)


def attending(name, **changes):
    """Two heads of size 16 with rotated queries and keys, one key/value head, and large scores."""
    width = 32
    rows = {"q": width, "k": 16, "v": 16, "o": width}
    folder = write_folder(name, matrix(width, V, 1), lambda width: matrix(width, width, 0), **{
        **dict(embed_dim=width, num_heads=2, kv_heads=1, positions="rotary"), **changes})
    write_matrices(folder, {
        "embed_tokens.weight": matrix(V, width, 1), "lm_head.weight": matrix(V, width, 0.3),
        **{f"layers.0.self_attn.{part}_proj.weight":
           matrix(rows[part], width, 0.3) for part in "qkvo"}})
    return folder


def perplexity(model, text, *arguments, **keywords):
    path = FOLDER / "text.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return run("perplexity", model, "--text", path, *arguments, **keywords)


def measured(model, text, *arguments):
    result = perplexity(model, text, "--json", *arguments)
    return json.loads(result.out) if check_good(result, arguments) else None


def words(count, seed=3):
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS[2:]) for _ in range(count))


def losses_of(ids, context):
    """None for the first token of each context."""
    def loss(last, this):
        return math.log(math.fsum(map(math.exp, LOGITS[last]))) - LOGITS[last][this]
    return [None if i % context == 0 else loss(ids[i - 1], ids[i]) for i in range(len(ids))]


def near(a, b):
    return abs(a - b) <= 2e-7 * max(1, abs(a))  # logits are float32


def values(model):
    """Losses, mean, errors and tokens of texts of various lengths and contexts."""
    for count, options in ((1, []), (2, []), (LENGTH - 1, []), (LENGTH, []), (100, []), (100, ["--context", 7]),
                           (100, ["--context", 2]), (100, ["--context", 100 % LENGTH, "--chunk", 3]),
                           (48, ["--context", 7]), (100, ["--tokens", 2]), (100, ["--tokens", 33, "--chunk", 5]),
                           (60, ["--tokens", 1000, "--chunk", 1])):
        text, given = words(count), dict(zip(options[::2], options[1::2]))
        ids = [0, *map(WORDS.index, text.split())][:given.get("--tokens", None)]
        context = given.get("--context", LENGTH)
        wanted = losses_of(ids, context)
        told = [x for x in wanted if x is not None]
        mean = statistics.fmean(told)
        found = measured(model, text, *options)
        if not found:
            continue
        name = f"{count} words, {options}"
        check(found["tokens"] == len(ids) == len(found["losses"]) and found["predicted"] == len(told) and
              found["complete"] and found["context"] == context and
              found["contexts"] == math.ceil(len(ids) / context), f"{name}: {found}")
        check(all(a is b is None or near(a, b) for a, b in zip(found["losses"], wanted)), f"{name}: losses")
        check(near(found["loss"], mean) and near(found["perplexity"] / math.exp(mean), 1), f"{name}: mean")
        if len(told) == 1:
            check(found["loss_error"] is found["perplexity_error"] is None, f"{name}: errors of one token")
            continue
        error = statistics.stdev(told) / math.sqrt(len(told))
        check(abs(found["loss_error"] - error) < 1e-6 and
              abs(found["perplexity_error"] - error * math.exp(mean)) < 1e-5, f"{name}: errors")
    alike = measured(table("alike", [[0.5] * V] * V), words(20))
    check(near(alike["perplexity"], V) and abs(alike["loss_error"]) < 1e-6, f"uniform: {alike['perplexity']}")


def lines(model):
    """Readable output has the numbers of the JSON."""
    found, shown = measured(model, words(100)), perplexity(model, words(100)).out.decode()
    wanted = (f"perplexity  {found['perplexity']:.4f} +- {found['perplexity_error']:.4f}\n"
              f"loss        {found['loss']:.6f} +- {found['loss_error']:.6f} nats per token\n"
              f"tokens      101 in 3 contexts of 40, 98 predicted\ncache       f32, ")
    check(shown.startswith(wanted) and re.search(r" MB\nspeed       [0-9.]+ tokens/s\n$", shown), shown)
    one = perplexity(model, "red").out.decode()
    check(re.match(r"perplexity  [0-9.]+\nloss        [0-9.]+ nats per token\ntokens      2 in 1 context, "
                   "1 predicted\n", one), one)
    piped = run("perplexity", model, "--text", "-", stdin=words(100).encode())
    check(piped.lines[:4] == shown.splitlines()[:4], f"standard input: {piped.out!r}")
    code, output = on_terminal("perplexity", model, "--text", FOLDER / "text.txt", "--chunk", 4)
    check(code == 0 and re.search(rb"\r\x1b\[K\d+ of \d+ tokens, perplexity [0-9.]+ so far, [0-9.]+ (s|min|h), "
                                  rb"about [0-9.]+ (s|min|h) left", output), f"progress: {output!r}")
    quiet = on_terminal("perplexity", model, "--text", FOLDER / "text.txt", "-q")[1]
    check(b"left" not in quiet, f"quiet: {quiet!r}")


def caches():
    """Steps, pages and threads change nothing. Caches change the result within the error of their
    type."""
    model, text = attending("attends"), words(90)
    exact = measured(model, text)
    bytes_of = {}
    for cache in CACHES:
        found = measured(model, text, "--cache", cache)
        bytes_of[cache] = found["cache_bytes"]
        for options in (["--chunk", 1], ["--chunk", 7], ["--page", 1], ["--page", 16, "--chunk", 3],
                        ["--threads", 1], ["--context", LENGTH]):
            again = measured(model, text, "--cache", cache, *options)
            check(again["losses"] == found["losses"], f"{cache} {options}: {again['loss']}, {found['loss']}")
        most = max(abs(a - b) for a, b in zip(found["losses"], exact["losses"]) if a is not None)
        # A rounding with relative error u (for int8, half a step relative to a head's rms) changes
        # scores of a few units by a few u, and logits by a few more. The observed changes are 10 u,
        # and 17 u for int8.
        u = {"f32": 0, "f16": 2 ** -11, "bf16": 2 ** -8, "int8": 2 ** -7}[cache]
        check(u / 10 <= most <= 40 * u, f"{cache}: losses differ by {most}")
        check(found["cache"] == cache, f"{cache}: {found['cache']}")
    check(bytes_of["f32"] > 1.7 * bytes_of["f16"] and bytes_of["f16"] == bytes_of["bf16"] >
          1.4 * bytes_of["int8"], f"bytes: {bytes_of}")
    near_text = measured(model, text, "--context", 2)
    check(abs(near_text["loss"] - exact["loss"]) > 1e-3, "attention does something")
    faster = measured(model, text, "--compute", "bf16")
    check(faster["compute"] == "bf16" and 0 < abs(faster["loss"] - exact["loss"]) < 0.1, "bf16 arithmetic")


def windows():
    """A window that hides nothing changes nothing. A narrow one changes the result and needs less
    memory. With positions in the cache, a text may exceed the model's positions. Steps and pages
    never matter."""
    model, text = attending("windowed"), words(90)
    exact = measured(model, text)
    wide = measured(model, text, "--window", LENGTH)
    check(wide["losses"] == exact["losses"], "a window as wide as a context")
    for options in (["--window", 5], ["--window", 5, "--sinks", 0, "--cache", "int8"],
                    ["--window", 9, "--streaming"], ["--window", 3, "--sinks", 2, "--streaming"]):
        found = measured(model, text, "--chunk", 1, *options)
        for more in (["--chunk", 7, "--page", 3], ["--chunk", 30, "--threads", 1]):
            again = measured(model, text, *options, *more)
            check(again["losses"] == found["losses"], f"{options}, {more}: {again['loss']}, {found['loss']}")
        check(abs(found["loss"] - exact["loss"]) > 1e-3, f"{options}: the window hides something")
        check(found["contexts"] == (1 if "--streaming" in options else exact["contexts"]), f"{options}: {found}")
    small = measured(model, words(400), "--window", 5, "--streaming", "--chunk", 1, "--page", 16)
    check(small["predicted"] >= 400 and small["cache_bytes"] < 400 * 32 * 4 / 5,
          f"a long text in a small cache: {small['predicted']}, {small['cache_bytes']}")
    mixed = measured(model, text, "--cache", "int8-channel", "--chunk", 1)
    check(0 < abs(mixed["loss"] - exact["loss"]) < 0.05, f"int8-channel: {mixed['loss']}, {exact['loss']}")


def trained():
    """A trained model is better than chance, and accepts only words of the task."""
    check_good(run("train", "sentences", "-o", "sentences", "--layers", 1, "--heads", 2, "--embed", 16,
                   "--steps", 120, "--every", 60, "--tries", 1, "--no-report", "-q"), "train")
    drawn = run("train", "sentences", "--print", 30).out.decode()
    plain = " ".join(re.findall("^# text = (.*)$", drawn, re.M))
    vocabulary = json.loads((FOLDER / "sentences" / "tokenizer.json").read_text())["model"]["vocab"]
    found = measured("sentences", plain, "--context", 20)
    check(1 < found["perplexity"] < len(vocabulary) / 2, f"{found['perplexity']} of {len(vocabulary)} words")


def interrupted(model):
    """After Ctrl-C between two steps of a text, the program prints the partial result and reports
    that it is partial."""
    for number, form in ((signal.SIGINT, ["--json"]), (signal.SIGTERM, [])):
        result = perplexity(model, words(100), "--chunk", 1, "--threads", 1, *form,
                            **watched(look=50, signal=number))
        told = re.fullmatch(r"interrupted: (\d+) of 101 tokens were measured", " ".join(result.errors))
        if not check(result.code == -number and told, f"signal {number}: exit {result.code}, {result.errors}"):
            continue
        done = int(told[1])
        if form:
            found = json.loads(result.out)
            check(not found["complete"] and found["tokens"] == len(found["losses"]) == done,
                  f"signal {number}: {found['tokens']} tokens, {result.errors}")
        else:
            check(f"\ntokens      {done} of 101, interrupted, in " in result.out.decode(), f"{result.out!r}")


def refusals(model):
    none = FOLDER / "none"
    empty, text = FOLDER / "empty.txt", FOLDER / "some.txt"
    empty.write_text("")
    text.write_text(words(60))
    for arguments, code, parts in (
            (["--text", text], USAGE, ("MODEL is missing",)),
            ([model], USAGE, ("--text is missing",)),
            ([model, "red", "--text", text], USAGE, ("one argument too many", "--text FILE")),
            (["", "--text", text], USAGE, ("MODEL is missing",)),
            ([model, "--text", text, "--cache", "f8"], USAGE, ("bf16",)),
            ([model, "--text", text, "--chunk", 0], USAGE, ("--chunk",)),
            ([model, "--text", text, "--tokens", 1], USAGE, ("--tokens",)),
            ([model, "--text", text, "--context", 1], USAGE, ("--context",)),
            ([model, "--text", text, "--context", LENGTH + 1], USAGE, ("--context 41", "takes 40")),
            ([model, "--text", text, "--page", 0], USAGE, ("--page",)),
            ([model, "--text", text, "--pages", 2], USAGE, ("--page",)),
            ([model, "--text", text, "--window", 0], USAGE, ("--window",)),
            ([model, "--text", text, "--sinks", 2], USAGE, ("--sinks", "add --window")),
            ([model, "--text", text, "--streaming"], USAGE, ("--streaming", "requires --window")),
            ([model, "--text", text, "--cache", "int8-channel", "--page", 20], USAGE, ("a multiple of 16",)),
            ([model, "--text", text, "--compute", "int8"], UNSUPPORTED, ("stored in blocks",)),
            ([model, "--text", none], NO_INPUT, ("no such file",)),
            ([none, "--text", text], NO_INPUT, ("no such folder",)),
            ([model, "--text", empty], BAD_INPUT, ("empty.txt", "1 tokens", "at least 2")),
            ([table("mute", begins=False), "--text", empty], BAD_INPUT, ("0 tokens",)),
            ([MODEL, "--text", text], UNSUPPORTED, ("encoder",)),
            ([table("encoder", causal=False), "--text", text], UNSUPPORTED, ("encoder",)),
            ([table("bad", [[math.nan] * V] * V), "--text", text], BAD_INPUT, ("finite",))):
        check_error(run("perplexity", *arguments), code, *parts, command="perplexity", name=arguments)
    check_error(perplexity(FOLDER / "mute", "red"), BAD_INPUT, "1 tokens", command="perplexity")
    check_error(perplexity(model, b"red \xff"), BAD_INPUT, "byte 4", "UTF-8", command="perplexity")
    check_error(perplexity(model, "red zebra"), BAD_INPUT, "'zebra'", command="perplexity")


chosen = table("model")
values(chosen)
lines(chosen)
caches()
windows()
trained()
interrupted(chosen)
refusals(chosen)
finish()
