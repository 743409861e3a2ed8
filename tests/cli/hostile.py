"""Output of a subcommand never controls a terminal, whatever texts, tokens, tasks, relations and
names of folders and files contain. It has no control byte of either set, no direction mark, no
invalid UTF-8, and no line break from a name. The test fails if it lacks a subcommand of --help.
Data on stdout is parsed: JSON must contain the same texts, and SVG must be valid XML."""
import csv
import io
import json
import os
import re
import sys
import xml.etree.ElementTree as ElementTree

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403

USAGE, NO_INPUT, BAD_INPUT, UNSUPPORTED, NO_OUTPUT = 2, 3, 4, 5, 6
# A title, a cleared screen, DEL, CSI as a byte and as U+009B, direction marks, separators, a tag,
# and a line that imitates the program's.
EVIL_TEXT = "e\x1b]0;pwn\x07\x1b[2J\x7f\x9b31m\u202e\u2066\u061c\u2028\ufeff\ufffe\U000e0041\nFORGED\r\t"
EVIL = b"\x9b31m\xff" + EVIL_TEXT.encode()
WORD = "a\x1b[2J\x07\x7f\x9b\u202e\u2066\u200b\ufeff\U000e0041"  # without white space
WORDS = ["<s>", "</s>", "red", "green", WORD, "=1+1"]
FORBIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e"
                       "\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e0fff]")
CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")
OURS = re.compile(rb"\x1b\[[0-9;]*[mK]|\r")  # colours, a redrawn progress line


def causal_model(name):
    """A transformer of two layers with the vocabulary WORDS. It predicts the next word of the
    vocabulary."""
    folder = FOLDER / os.fsdecode(name)
    folder.mkdir()
    size, layers = len(WORDS), 2
    (folder / "config.json").write_text(json.dumps(dict(
        model_type="multihead", vocab_size=size, max_length=24, embed_dim=size, num_layers=layers,
        num_heads=2, ff_dim=0, norm="none", positions="none", causal=True)))
    header, data = {}, b""

    def add(key, rows):
        nonlocal data
        flat = [x for row in rows for x in row]
        header[key] = {"dtype": "F32", "shape": [len(rows), len(rows[0])],
                       "data_offsets": [len(data), len(data) + 4 * len(flat)]}
        data += struct.pack(f"<{len(flat)}f", *flat)
    small = [[0.1 * ((3 * i + 5 * j) % 7 - 3) for j in range(size)] for i in range(size)]
    add("embed_tokens.weight", [[float(i == j) for j in range(size)] for i in range(size)])
    add("lm_head.weight", [[3.0 * (j == (i - 1 if i > 2 else 5)) * (i > 1) for j in range(size)]
                           for i in range(size)])
    for layer in range(layers):
        for part in "qkvo":
            add(f"layers.{layer}.self_attn.{part}_proj.weight", small)
    (folder / "model.safetensors").write_bytes(safetensors_bytes(header, data))
    first = {"type": "TemplateProcessing",
             "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                        {"Sequence": {"id": "A", "type_id": 0}}]}
    (folder / "tokenizer.json").write_text(json.dumps(
        {"pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": first,
         "model": {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(WORDS)},
                   "unk_token": "<unk>"}}))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"eos_token": "</s>", "model_max_length": 10 ** 30}))
    return folder


def make_files():
    """Every kind of input, with hostile names and contents."""
    files = {"causal": causal_model(b"c" + EVIL), "bert": copy_model(os.fsdecode(b"b" + EVIL))}

    def path(kind):
        return FOLDER / os.fsdecode(kind.encode() + EVIL)
    files["q.npy"], files["k.npy"], files["maps.npy"] = map(path, ("q.npy", "k.npy", "maps.npy"))
    write_npy(files["q.npy"], (1, 1, 2, 2), [1, 2, 3, 4])
    write_npy(files["k.npy"], (1, 1, 2, 3), [1, 2, 3, 4, 5, 6])
    write_npy(files["maps.npy"], (1, 2, 2), [1, 0, 0.5, 0.5])
    files["tokens.json"] = FOLDER / "tokens.json"
    files["tokens.json"].write_text(json.dumps([EVIL_TEXT, WORD]))
    files["tokens.txt"] = path("tokens.txt")
    files["tokens.txt"].write_bytes((WORD + "\n" + "=1+1\x1bc\n").encode())
    files["text"] = path("text")
    files["text"].write_text(f"red {WORD} green =1+1\ngreen red {WORD} red\nred =1+1 green {WORD}\n")
    files["odd"] = path("odd")
    files["odd"].write_text(EVIL_TEXT)
    files["bytes"] = path("bytes")
    files["bytes"].write_bytes(EVIL)
    files["arrays"] = path(".safetensors")
    files["arrays"] = files["arrays"].with_name(files["arrays"].name + ".safetensors")
    files["arrays"].write_bytes(safetensors_bytes(
        {EVIL_TEXT: {"dtype": "F32", "shape": [1, 1, 1, 1], "data_offsets": [0, 4]}}, b"\0\0\0\0"))
    files["links"] = path("links")
    files["links"].write_text("".join(
        f"{i}\t{word}\t_\t_\t_\t_\t{head}\t{relation}\t_\t_\n" for i, word, head, relation in
        [(1, "red", 2, "-obj"), (2, WORD, 0, "root"), (3, "=1+1", 2, "-1")]) + "\n")
    files["config"] = copy_model(os.fsdecode(b"d" + EVIL))
    change_config(files["config"], model_type=EVIL_TEXT)
    files["broken"] = copy_model(os.fsdecode(b"f" + EVIL), without=("config.json",))
    files["old.json"] = path("old.json")
    files["old.json"].write_text(json.dumps({"machine": {"cpu": EVIL_TEXT}, "rows": [
        {"name": EVIL_TEXT, "work": WORD}]}))
    files["out"] = path("out")
    return files


def table(f):
    """For each subcommand: (arguments, exit code, kind of output)."""
    text = f"red {WORD} green =1+1"
    causal, bert = f["causal"], f["bert"]
    some = ["--steps", 4, "--every", 4, "--tries", 1, "--layers", 1, "--heads", 2, "--embed", 16]
    return {
        "view": [
            ([causal, text], 0, "text"), ([causal, text, "--color", "always"], 0, "colours"),
            ([causal, text, "--values", "always", "--ascii"], 0, "text"),
            ([causal, text, "--desk", 1], 0, "text"), ([causal, text, "--desk", 1, "--json", "-"], 0, "json"),
            ([causal, text, "--from", WORD, "--to", "red"], 0, "text"),
            ([causal, text, "--from", WORD, "--to", "red", "--json", "-"], 0, "json"),
            ([causal, text, "--from", WORD + "x", "--to", "red"], None, "text"),
            ([causal, text, "--contrast", f"green {WORD} green =1+1"], 0, "text"),
            ([causal, text, "--json", "-"], 0, "json"), ([causal, text, "--svg", "-"], 0, "svg"),
            ([causal, text, "-o", "-"], 0, "html"), ([causal, text, "--hide", WORD], 0, "text"),
            ([causal, text, "--hide", WORD + "x"], None, "text"),
            ([bert, EVIL_TEXT], 0, "text"), ([bert, EVIL_TEXT, "second" + EVIL_TEXT], 0, "text"),
            ([bert, EVIL_TEXT, "--desk", 1], 0, "text"), ([bert, EVIL_TEXT, "--json", "-"], 0, "json"),
            ([bert, EVIL_TEXT, "--svg", "-"], 0, "svg"), ([bert, EVIL_TEXT, "-o", "-"], 0, "html"),
            ([bert, "--image", f["bytes"]], BAD_INPUT, "text"), ([bert, "--image", f["odd"]], BAD_INPUT, "text"),
            ([bert, EVIL], BAD_INPUT, "text"), ([bert, "--text-file", f["odd"]], 0, "text"),
            ([bert, "--text-file", f["bytes"]], BAD_INPUT, "text"),
            (["--attention", f["maps.npy"], "--tokens", f["tokens.json"]], 0, "text"),
            (["--attention", f["maps.npy"], "--tokens", f["tokens.txt"]], 0, "text"),
            (["--attention", f["maps.npy"], "--tokens", f["tokens.json"], "--json", "-"], 0, "json"),
            (["--attention", f["maps.npy"], "--tokens", f["tokens.json"], "--svg", "-"], 0, "svg"),
            (["--attention", f["maps.npy"], "--tokens", f["text"]], None, "text"),
            (["--attention", f["odd"]], None, "text"), ([f["config"], "a"], UNSUPPORTED, "text"),
            ([f["broken"], "a"], None, "text"), ([FOLDER / os.fsdecode(EVIL), "a"], NO_INPUT, "text"),
            ([causal, text, "--svg", FOLDER / os.fsdecode(b"s" + EVIL)], 0, "text"),
            ([causal, text, "--example", EVIL_TEXT], USAGE, "text"), ([causal, text, EVIL], None, "text"),
            ([causal, text, "--layer", EVIL_TEXT], USAGE, "text"), (["-" + EVIL_TEXT], USAGE, "text"),
            (["--sort=" + EVIL_TEXT, causal, text], USAGE, "text"), (["--" + EVIL_TEXT], USAGE, "text")],
        "heads": [
            ([causal, "--text", f["text"], "--random", 0], 0, "text"),
            ([causal, "--text", f["text"], "--random", 0, "--details", "--clusters", 0.5], 0, "text"),
            ([causal, "--text", f["text"], "--random", 0, "--csv"], 0, "csv"),
            ([causal, "--text", f["text"], "--random", 0, "--json"], 0, "json"),
            ([causal, "--conllu", f["links"], "--random", 0, "--details"], 0, "text"),
            ([causal, "--conllu", f["links"], "--random", 0, "--csv"], 0, "csv"),
            ([causal, "--conllu", f["links"], "--random", 0, "--json"], 0, "json"),
            ([bert, EVIL_TEXT, "--random", 0, "--width", 30], 0, "text"),
            ([bert, "--text", f["bytes"]], BAD_INPUT, "text"), ([bert, "--conllu", f["odd"]], BAD_INPUT, "text"),
            ([causal, "--text", f["text"], "--role", EVIL_TEXT], USAGE, "text"),
            ([causal, "--text", f["text"], "--sort", EVIL], None, "text"),
            ([causal, "--words"], 0, "text"), ([bert, "--words"], 0, "text"),
            ([causal, "--text", f["text"], "--random", 0, "--state", FOLDER / os.fsdecode(b"k" + EVIL)], 0, "text"),
            ([causal, "--text", f["text"], "--state", f["odd"]], None, "text"),
            ([causal, "--text", f["text"], "--state", FOLDER / os.fsdecode(EVIL) / "s"], NO_OUTPUT, "text"),
            (["--attention", f["maps.npy"], "--tokens", f["tokens.json"], "--details"], 0, "text"),
            (["--attention", f["maps.npy"], "--tokens", f["text"]], BAD_INPUT, "text"),
            (["--attention", f["q.npy"]], BAD_INPUT, "text"), (["--attention", f["odd"]], None, "text")],
        "ablate": [
            ([causal, "--text", f["text"], "--random", 0, "--heads", 4, "--pairs", 2], 0, "text"),
            ([causal, "--text", f["text"], "--random", 0, "--heads", 4, "--json"], 0, "json"),
            ([causal, "--text", f["text"], "--random", 0, "--heads", 4, "-o", "-"], 0, "html"),
            ([causal, "--text", f["bytes"]], BAD_INPUT, "text"), ([causal, "--task", f["text"]], BAD_INPUT, "text"),
            ([causal, "--task", f["odd"], "--paths", EVIL_TEXT], None, "text"), ([causal, text, "--with", EVIL], USAGE, "text"),
            ([bert, EVIL_TEXT], UNSUPPORTED, "text")],
        "circuits": [
            ([causal, "--details", "--composition"], None, "text"), ([causal, "--composition", "--json"], 0, "json"),
            ([bert], None, "text"), ([causal, "--composition", "-o", "-"], 0, "html"),
            ([causal, "--offset", EVIL_TEXT], USAGE, "text"), ([causal, "--state", f["odd"]], None, "text"),
            ([causal, "--sort", EVIL], USAGE, "text"), ([causal, EVIL], USAGE, "text")],
        "serve": [
            (["--address", EVIL_TEXT, causal], USAGE, "text"), ([f["odd"]], None, "text"),
            ([FOLDER / os.fsdecode(EVIL)], NO_INPUT, "text"), ([causal, "red", EVIL], USAGE, "text"),
            (["--port", EVIL_TEXT, causal], USAGE, "text")],
        "page": [
            ([f["odd"]], None, "text"), ([FOLDER / os.fsdecode(EVIL)], NO_INPUT, "text"),
            ([causal, "red", EVIL], USAGE, "text"), ([causal, EVIL_TEXT], None, "text"),
            ([causal, "--module", f["odd"], "-o", "-"], BAD_INPUT, "text"),
            ([causal, "--module", FOLDER / os.fsdecode(EVIL)], NO_INPUT, "text")],
        "count": [
            ([causal], 0, "text"), ([bert], 0, "text"), ([bert, "--json"], 0, "json"),
            ([f["config"]], UNSUPPORTED, "text"), (["--like", EVIL_TEXT], USAGE, "text"),
            ([bert, "--length", EVIL], USAGE, "text")],
        "run": [
            (["--x", f["q.npy"]], 0, "text"), (["--x", f["q.npy"], "--trace"], 0, "text"),
            (["--x", f["q.npy"], "--json", "-"], 0, "json"),
            (["--q", f["q.npy"], "--k", f["k.npy"], "--v", f["k.npy"]], BAD_INPUT, "text"),
            (["--x", f["odd"]], None, "text"), (["--x", f["arrays"]], None, "text"),
            (["--x", str(f["arrays"]) + ":" + WORD], None, "text"),
            (["--x", f["q.npy"], "--out", FOLDER / os.fsdecode(EVIL) / "o.npy"], None, "text"),
            (["--x", f["q.npy"], "--lengths", EVIL_TEXT], None, "text")],
        "explain": [
            ([bert], 0, "text"), ([bert, "--json"], 0, "json"), ([bert, "--svg", "-"], 0, "svg"),
            (["--q", f["q.npy"]], 0, "text"), (["--q", f["q.npy"], "--json"], 0, "json"),
            (["--q", f["q.npy"], "--svg", "-"], 0, "svg"), (["--q", f["odd"]], None, "text"),
            ([f["config"]], UNSUPPORTED, "text"), ([bert, "--blocks", EVIL_TEXT], USAGE, "text")],
        "train": [
            ([EVIL_TEXT], USAGE, "text"), (["--text", f["text"], *some, "--no-report"], None, "text"),
            (["sentences", *some, "-o", FOLDER / os.fsdecode(b"t" + EVIL)], 0, "text"),
            (["--text", f["bytes"]], BAD_INPUT, "text"), (["sentences", "--print", 2], 0, "tabs"),
            (["sentences", "--seed", EVIL], USAGE, "text")],
        "prune": [
            ([causal, "--text", f["text"]], 0, "text"), ([causal, "--text", f["text"], "--csv", "-"], 0, "csv"),
            ([causal, "--text", f["text"], "--json", "-"], 0, "json"),
            ([causal, "--text", f["text"], "--svg", "-"], 0, "svg"),
            ([causal, "--text", f["text"], "--html", "-"], 0, "html"),
            ([causal, "--text", f["text"], "--fraction", 0.5, "-o", f["out"]], 0, "text"),
            ([causal, "--text", f["bytes"]], BAD_INPUT, "text"),
            ([causal, "--task", EVIL_TEXT], USAGE, "text"), ([causal, "--measure", EVIL], USAGE, "text")],
        "generate": [
            ([causal, f"red {WORD}", "--max-tokens", 6], 0, "text"), ([causal, "--max-tokens", 6], 0, "text"),
            ([causal, EVIL], None, "text"), ([causal, WORD + "x"], None, "text"),
            ([causal, "--ids", EVIL_TEXT], None, "text"), ([bert, "a"], UNSUPPORTED, "text")],
        "perplexity": [
            ([causal, "--text", f["text"]], 0, "text"), ([causal, "--text", f["text"], "--json"], 0, "json"),
            ([causal, "--text", f["odd"]], None, "text"), ([causal, "--text", f["bytes"]], BAD_INPUT, "text"),
            ([causal, "--text", FOLDER / os.fsdecode(EVIL)], NO_INPUT, "text"),
            ([causal, "--text", f["text"], "--cache", EVIL_TEXT], USAGE, "text"),
            ([bert, "--text", f["text"]], UNSUPPORTED, "text")],
        "bench": [
            (["gemm", "--rows", 8, "--outputs", 8, "--inputs", 8, "--samples", 1, "--seconds", 0.01,
              "--patience", 0.01, "--compare", f["old.json"]], None, "text"),
            (["gemm", "--compare", f["bytes"]], None, "text"), ([EVIL_TEXT], USAGE, "text"),
            (["gemm", "--rows", EVIL], USAGE, "text")],
        "selftest": [(["--problems", 1], 0, "text"), ([EVIL_TEXT], USAGE, "text")],
        "help": [([EVIL_TEXT], USAGE, "text"), (["-" + EVIL_TEXT], None, "text"), (["view"], 0, "text")],
    }


def clean(data, what, name, tabs=False):
    """No byte of output, readable text or data, controls a terminal."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        check(False, f"{name}: not UTF-8: {error.reason} at {data[max(0, error.start - 40):error.end]!r}")
        return
    if tabs:
        text = text.replace("\t", " ")
    found = (CONTROLS if what in ("svg", "html") else FORBIDDEN).search(text)
    check(not found, f"{name}: {text[max(0, found.start() - 60):found.end() + 20]!r}" if found else "")
    if what in ("text", "colours"):
        check(not re.search("^FORGED", text, re.M), f"{name}: a name makes a line")


def read_back(out, what, name):
    if what == "json":
        json.loads(out)
    elif what == "svg":
        ElementTree.fromstring(out)
    elif what == "csv":
        rows = list(csv.reader(io.StringIO(out.decode(), newline="")))
        check(len({len(row) for row in rows}) == 1, f"{name}: cells in a line")
        check(not any(re.match(r"[=+@\t\r]|-(?![\d.])", cell) for row in rows for cell in row),
              f"{name}: formulas: {rows[0]}")
    elif what == "html":
        page = out.decode()
        data = page.split('<script type="application/json" id="data">')[1].split("</script")[0]
        json.loads(data)


def short(arguments):
    return " ".join(repr(str_or_bytes(a))[:40] for a in arguments)


def in_a_pipe(command, arguments, code, what):
    name = f"{command} {short(arguments)}"
    result = run(command, *arguments, COLUMNS="1000")  # so that no line is wrapped
    check(result.code == code if code is not None else result.code in (0, 2, 3, 4, 5, 6),
          f"{name}: exit {result.code}, {result.err[-300:]!r}")
    out = OURS.sub(b"", result.out) if what == "colours" else result.out
    clean(out, what, name, tabs=what == "tabs")
    clean(result.err, "text", f"{name}, stderr")
    if result.code == 0:
        try:
            read_back(out, what, name)
        except (ValueError, ElementTree.ParseError) as error:
            check(False, f"{name}: not {what}: {error}")
    return result.out + result.err


def on_a_terminal(command, arguments, what):
    """Progress and colours appear only on a terminal; both streams are one pseudo-terminal."""
    code, output = on_terminal(command, *arguments, COLUMNS="1000")
    check(code in (0, 2, 3, 4, 5, 6), f"{command} on a terminal: {code}")
    clean(OURS.sub(b"", output), what, f"{command} {short(arguments)}, on a terminal", what == "tabs")


def texts_come_back(f):
    """Parsed JSON has every original text."""
    found = json.loads(run("view", "--attention", f["maps.npy"], "--tokens", f["tokens.json"],
                           "--json", "-").out)
    check([token["token"] for token in found["tokens"]] == [EVIL_TEXT, WORD], "JSON: the tokens")
    found = json.loads(run("view", f["bert"], EVIL_TEXT, "--json", "-").out)
    check(EVIL_TEXT in walk(found), "JSON: the text")
    page = run("view", f["bert"], EVIL_TEXT, "-o", "-").out.decode()
    data = page.split('<script type="application/json" id="data">')[1].split("</script")[0]
    check(json.loads(data)["panels"] != [], "HTML: the data")


def every_character_in_xml(f):
    """A title with every character up to U+00FF and with characters that XML 1.0 forbids. The
    parser reads the same characters, and U+FFFD for controls and noncharacters."""
    bmp = "".join(map(chr, range(1, 256))).replace("/", "")
    names = [bmp[:80], bmp[80:160], bmp[160:], "\ud7ff\ue000\ufdd0\ufffd\ufffe\uffff\U0001fffe\U0010ffff",
             b"\xed\xa0\x80\xed\xbf\xbf\xf4\x90\x80\x80\xc0\x80\xff&<>\"']]>"]
    sentence = FOLDER / "sentence.txt"
    sentence.write_text("red green\n")
    for raw in (os.fsencode(name) if isinstance(name, str) else name for name in names):
        shown = re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]", "\ufffd",
                       raw.decode("utf-8", "surrogateescape"))
        shown = re.sub("[\udc80-\udcff]", "\ufffd", shown).replace("\r\n", "\n").replace("\r", "\n")
        for command, target, rest in (("view", "bert", ["a", "--svg", "-"]), ("explain", "bert", ["--svg", "-"]),
                                      ("prune", "causal", ["--text", sentence, "--svg", "-"])):
            link = FOLDER / command / os.fsdecode(raw)
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(f[target])
            result = run(command, link, *rest)
            if not check(result.code == 0, f"{command}, {raw[:20]!r}: {result.err[-200:]!r}"):
                continue
            try:
                root = ElementTree.fromstring(result.out)
            except ElementTree.ParseError as error:
                check(False, f"{command} --svg, {raw[:20]!r}: {error}")
                continue
            texts = [element.text or "" for element in root.iter()]
            if command == "view":
                check(shown in texts, f"view --svg: the title of {raw[:20]!r}")


def walk(value):
    if isinstance(value, dict):
        for item in value.values():
            yield from walk(item)
    elif isinstance(value, list):
        for item in value:
            yield from walk(item)
    else:
        yield value


def environment_variables(f):
    for name in ("MHA_ISA", "MHA_THREADS", "COLUMNS", "COLORFGBG", "COLORTERM", "TERM", "LANG"):
        result = run("run", "--x", f["q.npy"], **{name: EVIL_TEXT})
        clean(result.out, "text", f"{name}, stdout")
        clean(result.err, "text", f"{name}, stderr")


def main():
    help_text = run("--help").out.decode()
    listed = re.findall(r"^  (\S+)", help_text.split("Subcommands:\n")[1].split("\n\n")[0], re.M)
    files = make_files()
    rows = table(files)
    check(len(listed) > 8 and set(listed) == set(rows),
          f"subcommands without a row here, or rows without one: {set(listed) ^ set(rows)}")
    for command, cases in rows.items():
        said = b"".join(in_a_pipe(command, *case) for case in cases)
        check(rb"\x1b" in said, f"{command}: nothing hostile was printed, so nothing was tested")
        for arguments, _, what in cases[:3]:
            on_a_terminal(command, arguments, what)
    clean(run(EVIL_TEXT).err, "text", "an unknown subcommand")
    clean(run("-" + EVIL_TEXT).err, "text", "an unknown option")
    texts_come_back(files)
    every_character_in_xml(files)
    environment_variables(files)
    finish()


main()
