"""multihead view in ordinary use: printed and written output is reproducible.
"""
import base64
import math
import os
import pty
import re
import struct
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403
from watch import interrupted_at_each_operation  # noqa: E402

LAYERS, HEADS = 2, 3
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def has_color(result):
    return b"\x1b[" in result.out


def terminal_picture():
    result = view(MODEL, TEXT)
    check_good(result, "view")
    text = result.out.decode()
    for part in ("tiny-bert", TEXT, "L0H", "L1H", "[CLS]", "[SEP]", "cat", "query (attending)",
                 "key (attended to)", "2 of 6 heads"):
        check(part in text, f"the picture must say {part!r}")
    check(len(result.errors) == 1 and "-o report.html" in result.errors[0],
          f"a next command: {result.errors}")
    check(view(MODEL, TEXT, "-q").errors == [], "--quiet must say nothing")
    check(view(MODEL, TEXT, "--layer", "1").out.decode().count("L1H") == HEADS, "--layer 1")
    for chosen in ("L1H2", "1.2", "l1h2"):
        names = set(re.findall(r"L\dH\d", view(MODEL, TEXT, "--head", chosen).out.decode()))
        check(names == {"L1H2"}, f"--head {chosen}: {names}")
    names = re.findall(r"L\dH\d", view(MODEL, TEXT, "--layer=0-1", "--head", "0,2").out.decode())
    check(names == ["L0H0", "L0H2", "L1H0", "L1H2"], f"lists: {names}")
    names = re.findall(r"L\dH\d", view("-l", "1", MODEL, TEXT, "--head=1").out.decode())
    check(names == ["L1H1"], f"options before arguments: {names}")
    names = re.findall(r"L\dH\d", view(MODEL, TEXT, "--head", "L0H1", "--head", "1.2").out.decode())
    check(names == ["L0H1", "L1H2"], f"--head twice: {names}")


def colors_by_rule():
    """The precedence is --color, then NO_COLOR, TERM=dumb, CLICOLOR_FORCE or FORCE_COLOR, then the
    terminal."""
    cases = [
        ([], {}, False),
        (["--color", "always"], {}, True),
        (["--color", "always"], {"NO_COLOR": "1", "TERM": "dumb"}, True),
        (["--color", "never"], {"CLICOLOR_FORCE": "1"}, False),
        ([], {"CLICOLOR_FORCE": "1"}, True),
        ([], {"FORCE_COLOR": "1"}, True),
        ([], {"FORCE_COLOR": "0"}, False),
        ([], {"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, False),
        ([], {"CLICOLOR_FORCE": "1", "NO_COLOR": ""}, True),
        ([], {"CLICOLOR_FORCE": "1", "TERM": "dumb"}, False),
    ]
    for arguments, changes, wanted in cases:
        result = view(MODEL, TEXT, *arguments, **changes)
        check(result.code == 0 and has_color(result) == wanted, f"color: {arguments} {changes}")
    deep = view(MODEL, TEXT, "--color=always", COLORTERM="truecolor").out
    check(b"48;2;" in deep and b"48;5;" not in deep, "COLORTERM=truecolor gives 24 bits")
    flat = view(MODEL, TEXT, "--color=always").out
    check(b"48;5;" in flat and b"48;2;" not in flat, "without COLORTERM: 256 colours")


def widths():
    text = "L\u00e9a saw \u6771\u4eac and the cafe\u0301 near the \U0001f600 river bank, didn't she? " * 2
    for width in (20, 40, 80, 133):
        for arguments in ([], ["--layer", "0"], ["--head", "L1H2"], ["--hide", "special"],
                          ["--color", "always"], ["--color", "always", "--head", "0.0"]):
            for words in (TEXT, text):
                result = view(MODEL, words, "--width", width, *arguments)
                widest = max(map(columns, result.lines), default=0)
                check(result.code == 0 and widest <= width,
                      f"width {width} {arguments}: {widest} columns, {result.errors}")
    check(max(map(columns, view(MODEL, TEXT, COLUMNS="40").lines)) <= 40, "COLUMNS=40")
    check(max(map(columns, view(MODEL, TEXT, COLUMNS="junk").lines)) <= 80, "COLUMNS=junk")
    plain = view(MODEL, text, "--ascii").out
    check(plain.isascii(), "--ascii must print ASCII only")
    check(view(MODEL, text, LANG="C").out.isascii(), "LANG=C must print ASCII only")
    check(not view(MODEL, text, LANG=None).out.isascii(), "no locale at all: UTF-8")


def on_a_terminal():
    """Output on a pseudo-terminal of 44 columns has colours and its width, and progress is
    erased."""
    code, output = on_terminal("view", MODEL, TEXT, columns=44, COLUMNS="200")
    check(code == 0, "on a terminal")
    check(b"\x1b[48;5;" in output, "colours on a terminal")
    shown = [line.split("\x1b[K")[-1] for line in output.decode().replace("\r\n", "\n").split("\n")]
    picture = [line for line in shown if not line.startswith("next:")]
    check(max(map(columns, picture)) <= 44, "a terminal's width counts more than COLUMNS")
    result = view(MODEL, "-", stdin=b"the cat")
    check("[CLS]" in result.out.decode() and "cat" in result.out.decode(), "text from stdin")
    parent, child = pty.openpty()
    done = subprocess.run([PROGRAM, "view", MODEL, "-"], stdin=child, capture_output=True,
                          check=False, env=environment(), timeout=HANGS)
    os.close(child)
    os.close(parent)
    check(done.returncode == 2 and b"stdin" in done.stderr, "must not wait for a terminal's text")


def check_json(data, layers, heads, rows, cols, name):
    for layer in data["layers"]:
        check([head["head"] for head in layer["heads"]] == heads, f"{name}: heads")
        for head in layer["heads"]:
            check(head["name"] == f"L{layer['layer']}H{head['head']}", f"{name}: names")
            weights = head["weights"]
            check(len(weights) == rows and all(len(row) == cols for row in weights), f"{name}: shape")
            for row in weights:
                check(all(w >= 0 for w in row) and abs(math.fsum(row) - 1) < 1e-5,
                      f"{name}: a row sums to {math.fsum(row)}")
    check([layer["layer"] for layer in data["layers"]] == layers, f"{name}: layers")


def data_outputs():
    result = view(MODEL, "Who flew?", "The pilot \"flew\".", "--json", "-")
    check_good(result, "json")
    data = json.loads(result.out)
    check(data["format"] == "multihead-view" and data["version"] == 1, "json: format")
    check(data["texts"] == ["Who flew?", 'The pilot "flew".'], f"json: texts {data['texts']}")
    tokens = data["tokens"]
    words = [token["token"] for token in tokens]
    check(words[0] == "[CLS]" and words[-1] == "[SEP]" and words.count("[SEP]") == 2,
          f"json: tokens {words}")
    check([t["special"] for t in tokens] == [w in ("[CLS]", "[SEP]") for w in words], "json: special")
    types = [token["type"] for token in tokens]
    check(types == sorted(types) and set(types) == {0, 1}, f"json: types {types}")
    for token in tokens:
        if token["special"]:
            check(token["begin"] is None and token["text"] is None, "json: special tokens")
            continue
        piece = data["texts"][token["text"]].encode()[token["begin"]:token["end"]].decode().lower()
        check(piece == token["token"].removeprefix("##"), f"json: {piece!r} is {token['token']!r}")
    check_json(data, [0, 1], [0, 1, 2], len(tokens), len(tokens), "json")
    result = view(MODEL, TEXT, "--json", "-", "--head", "0.1,1.0", "--layer", "0-1")
    check(result.code == 2, "located heads with --layer")
    some = json.loads(view(MODEL, TEXT, "--json", "-", "--head", "0.1,1.0").out)
    check([[h["head"] for h in layer["heads"]] for layer in some["layers"]] == [[1], [0]],
          "json: chosen heads")

    result = view(MODEL, TEXT, "--npy", "all.npy", "--json", "all.json")
    check_good(result, "npy")
    check([line.split(":")[0] for line in result.errors[:2]] == ["wrote all.json", "wrote all.npy"],
          f"what was written: {result.errors}")
    check(not result.out, "no picture beside files")
    shape, dtype, values = read_npy((FOLDER / "all.npy").read_bytes())
    data = json.loads((FOLDER / "all.json").read_text())
    flat = [w for l in data["layers"] for h in l["heads"] for row in h["weights"] for w in row]
    check(shape == (LAYERS, HEADS, 8, 8) and dtype == "<f4", f"npy: {shape} {dtype}")
    same = [struct.pack("<f", w) for w in flat] == [struct.pack("<f", v) for v in values]
    check(same, "npy and json must hold the same floats")
    piped = view(MODEL, TEXT, "--npy", "-", "-q").out
    check(piped == (FOLDER / "all.npy").read_bytes(), "--npy - gives what the file holds")
    shape, _, _ = read_npy(view(MODEL, TEXT, "--npy", "-", "--layer", "1", "--head", "0,2").out)
    check(shape == (1, 2, 8, 8), f"npy of some heads: {shape}")
    # Outputs that cannot be written are detected before any is written.
    uneven = ["--head", "0.0,0.1,1.0", "-o", "no.html", "--json", "no.json", "--npy", "no.npy"]
    check_error(view(MODEL, TEXT, *uneven), 2, "--npy", "same heads of every layer")
    check_error(view(MODEL, TEXT, "--from", "cat", "--to", "mat", *uneven), 2, "--npy")
    check_error(view(MODEL, TEXT, "--json", "no.json", "--npy", "nowhere/no.npy"), 6,
                "nowhere/no.npy", "no such folder")
    check(not list(FOLDER.glob("no.*")), f"a failing call wrote {list(FOLDER.glob('no.*'))}")


def pictures():
    result = view(MODEL, TEXT, "-o", "r.html", "--svg", "r.svg", "--png", "r.png", "--terminal")
    check_good(result, "pictures")
    check(len(result.errors) == 4 and "r.html" in result.errors[-1], f"notes: {result.errors}")
    check(b"tiny-bert" in result.out, "--terminal draws beside files")
    html = (FOLDER / "r.html").read_text()
    check(html.startswith("<!DOCTYPE html>") or html.startswith("<!doctype html>"), "html")
    for bad in ("http:", "https:", "import ", "fetch("):
        check(bad not in html.replace("http://www.w3.org/", ""), f"html: {bad}")
    check((FOLDER / "r.svg").read_text().lstrip().startswith("<"), "svg")
    check((FOLDER / "r.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n"), "png")
    check(view(MODEL, TEXT, "--svg", "-").out == (FOLDER / "r.svg").read_bytes(), "--svg -")
    check(view(MODEL, TEXT, "--png", "-").out == (FOLDER / "r.png").read_bytes(), "--png -")
    first = (FOLDER / "r.svg").read_bytes()
    for change in (["--cmap", "blues"], ["--dark"], ["--range", "head"], ["--range", "0:0.5"],
                   ["--scale", "log"], ["--values", "never"], ["--hide", "special"]):
        other = view(MODEL, TEXT, "--svg", "-", *change)
        check(other.code == 0 and other.out != first, f"{change} must change the picture")


def hiding():
    text = view(MODEL, TEXT, "--head", "L1H0", "--hide", "special,mat").out.decode()
    picture, footnote = text.split("hidden: [CLS]")
    check(not [t for t in ("[CLS]", "[SEP]", "mat") if t in picture.replace(TEXT, "")],
          "hidden tokens must leave the picture")
    found = re.search(r"^ mat \[SEP\]; .* hold ([0-9.]+) %", " ".join(footnote.split("\n")))
    data = json.loads(view(MODEL, TEXT, "--json", "-", "--head", "L1H0", "--hide", "special").out)
    weights = data["layers"][0]["heads"][0]["weights"]
    check(len(weights) == 8, "data stays whole where tokens are hidden")
    names = [token["token"] for token in data["tokens"]]
    keep = [i for i, name in enumerate(names) if name not in ("[CLS]", "[SEP]", "mat")]
    mass = sum(1 - sum(weights[i][j] for j in keep) for i in keep) / len(keep)
    check(found and abs(float(found[1]) - 100 * mass) < 0.06, f"hidden mass: {found} {mass}")
    text = view(MODEL, TEXT, "--hide", "special", "--renormalise", "--range", "0:1").out.decode()
    check("divided by its remaining weight" in " ".join(text.split()), "--renormalise says so")
    result = view(MODEL, "cat, the", "--hide", ",", "--head", "0.0", "--width", "80")
    check(not [line for line in result.lines if re.match(r"\s*,\s+\|", line)], "--hide , hides the comma")
    result = view(MODEL, TEXT, "--hide", "dog")
    check(result.code == 0 and "no token is 'dog'" in result.errors[0], "an idle name is a warning")


def same_bytes():
    arguments = [MODEL, TEXT, "-q", "-o", "a.html", "--svg", "a.svg", "--png", "a.png",
                 "--json", "a.json", "--npy", "a.npy"]
    names = [argument for argument in map(str, arguments) if argument.startswith("a.")]

    def bytes_of(*more, **changes):
        check_good(view(*arguments, *more, **changes), f"{more} {changes}")
        return {name: (FOLDER / name).read_bytes() for name in names}

    first = bytes_of()
    check(bytes_of() == first, "two runs must give the same bytes")
    for threads in (1, 3, 8):
        check(bytes_of("--threads", threads) == first, f"{threads} threads must not change a byte")
    report = run("selftest", "--problems", "1").out.decode()
    if "avx2 " in report and "avx512" in report and not os.environ.get("MHA_ISA"):
        check(bytes_of(MHA_ISA="avx2") == bytes_of(MHA_ISA="avx512"), "avx2 and avx512 must agree")
    else:
        print("skipped: avx2 against avx512 (not both here, or MHA_ISA is set)")


def long_texts():
    result = view(MODEL, "-", "--truncate", "--json", "-", stdin=b"the cat " * 5000)
    check(result.code == 0 and len(json.loads(result.out)["tokens"]) == 128, "--truncate")
    check(result.errors[:1] == ["truncated: the last 9874 of 10002 tokens are omitted"],
          f"truncation is said: {result.errors}")
    result = view(MODEL, TEXT, "--max-tokens", "5", "--truncate", "--json", "-", "-q")
    check(len(json.loads(result.out)["tokens"]) == 5 and result.errors == [], "--max-tokens")
    result = view(MODEL, "-", "--truncate", stdin=b"the cat " * 5000)
    check(result.code == 0 and "128 x 128" in result.out.decode(), "a long text in the terminal")
    (FOLDER / "text.txt").write_bytes(b"The cat\x00 sat.\r\n")
    data = json.loads(view(MODEL, "--text-file", "text.txt", "--json", "-").out)
    check(data["texts"] == ["The cat\x00 sat.\r\n"], "--text-file, with a zero byte in it")
    data = json.loads(view(MODEL, "--example", "1", "the answer", "--json", "-").out)
    check(data["texts"][0].startswith("The animal") and data["texts"][1] == "the answer", "--example 1")
    for name, word in (("bank", "bank"), ("cat", "cat"), ("river", "river"), ("pilot", "pilot"),
                       ("5", "pilot")):
        check(word in json.loads(view(MODEL, "--example", name, "--json", "-").out)["texts"][0], name)
    check(json.loads(view(MODEL, "--json", "-", "--", "--layer").out)["texts"] == ["--layer"], "--")


def arrays():
    (FOLDER / "rows.txt").write_text("the\ncat\n")
    (FOLDER / "keys.json").write_text('["le", "ch\\u0061t", "\\ud83d\\ude00 ", "\u00e9\\n"]')
    base = ["--attention", "maps.npy", "--tokens", "rows.txt", "--key-tokens", "keys.json"]
    weights = [0.25, 0.25, 0.5, 0, 0, 0, 0, 1]
    for dtype in ("<f4", "<f8", "<f2"):
        for shape in ((2, 4), (1, 2, 4), (1, 1, 2, 4), (2, 3, 2, 4)):
            count = math.prod(shape) // 8
            write_npy(FOLDER / "maps.npy", shape, weights * count, dtype)
            result = view(*base, "--json", "-")
            check(result.code == 0 and not [e for e in result.errors if "warning" in e],
                  f"array {shape} {dtype}: {result.errors}")
            data = json.loads(result.out)
            check(data["layers"][-1]["heads"][-1]["weights"] == [weights[:4], weights[4:]],
                  f"array {shape} {dtype}")
            check([t["token"] for t in data["key_tokens"]] == ["le", "chat", "\U0001f600 ", "\u00e9\n"],
                  "tokens from JSON")
    text = view(*base, "--head", "1.2", "--width", "60").out.decode()
    check("L1H2" in text and "2 x 4" in text and "chat" in text, "rows and columns of two lengths")
    write_npy(FOLDER / "maps.npy", (2, 4), [0.25, 0.25, 0.25, 0.25, 0.5, 0.2, 0.2, 0.03])
    warning = view(*base).errors[0]
    check("row 1 of L0H0 sums to 0.93" in warning and "before the softmax" in warning, warning)
    write_npy(FOLDER / "maps.npy", (2, 4), [-1.5, 2, 0, 0, 0, 0, 0, 1])
    check("--cmap diverging" in view(*base).errors[0], "negative values: a hint")
    result = view(*base, "--cmap", "diverging")
    check(result.code == 0 and "warning" not in result.errors[0], f"diverging: {result.errors}")
    check_error(view(*base, "--scale", "log", "-q", "--svg", "log.svg", "--cmap", "diverging"), 2,
                "log", "negative")
    write_npy(FOLDER / "maps.npy", (2, 4), [math.nan, 0.5, 0.5, math.inf, 0, 0, 0, 1])
    result = view(*base, "--json", "-")
    check(json.loads(result.out)["layers"][0]["heads"][0]["weights"][0] == [None, 0.5, 0.5, None],
          "NaN and infinity are null")
    check("2 values are NaN or infinite" in result.errors[0], f"{result.errors}")
    write_npy(FOLDER / "maps.npy", (2, 4), [0.0] * 8)
    check(not [e for e in view(*base).errors if "warning" in e], "rows of zeros saw nothing: fine")


def report_data(*arguments):
    result = view(*arguments, "-o", "-")
    check(result.code == 0, f"report of {arguments}: {result.errors}")
    text = result.out.decode()
    return json.loads(text.split('id="data">')[1].split("</script>")[0])


def floats(part):
    raw = base64.b64decode(part["data"])
    return struct.unpack(f"<{len(raw) // 4}f", raw)


def neurons():
    """Weights are softmax(scale q . k): the report's queries and keys match its maps."""
    data = report_data(MODEL, TEXT, "--neurons", "--head", "L1H2,L0H1")
    count, panels = data["rows"], data["panels"]
    check(len(panels) == 2 and data["neuron_bits"] == 32, "two heads, exact")
    for panel in panels:
        width = panel["channels"]
        q, k, weights = (floats(panel[name]) if name else floats(panel)
                         for name in ("queries", "keys", None))
        scale = panel["score_scale"]
        for t in range(count):
            scores = [scale * sum(q[t * width + d] * k[s * width + d] for d in range(width))
                      for s in range(count)]
            parts = [math.exp(score - max(scores)) for score in scores]
            # Scores are at most 10 in f32. Their error, 1e-5, bounds the error of a weight.
            check(all(abs(part / sum(parts) - weights[t * count + s]) < 1e-5
                      for s, part in enumerate(parts)), f"{panel['name']}: row {t}")
    hidden = report_data(MODEL, TEXT, "--neurons", "--head", "L0H1", "--hide", "special")
    kept, width = hidden["panels"][0], panels[0]["channels"]
    check(floats(kept["queries"]) == floats(panels[0]["queries"])[width:-width],
          "hidden tokens have no queries")
    check("queries" not in report_data(MODEL, TEXT)["panels"][0], "only where they are asked for")
    check_error(view(MODEL, TEXT, "--neurons"), 2, "--neurons requires --output")
    check_error(view(MODEL, TEXT, "--neurons", "-o", "r.html", "--contrast", TEXT), 2, "--contrast")


def first_impression():
    """The initial selection of a report, its scale and its labels."""
    data = report_data(MODEL, TEXT, "--contrast", TEXT.replace("cat", "the"))
    names = [label.split("/") for label in data["row_labels"]]
    changed = [[abs(v) if len(names[i // data["cols"]]) == 1
                and names[i // data["cols"]][0][0] != "[" and names[i % data["cols"]][0][0] != "["
                else 0 for i, v in enumerate(floats(panel))] for panel in data["panels"]]
    most = max(map(max, changed))
    at = data["first_row"] * data["cols"] + data["first_col"]
    check(most > 0 and changed[data["first_panel"]][at] == most, "a contrast opens on what changes most")
    data = report_data(MODEL, TEXT, "--from", "cat", "--to", "mat")
    labels = data["row_labels"]
    check([labels[data["first_row"]], labels[data["first_col"]]] == ["cat", "mat"],
          "--from and --to open on their words")
    tokens = ["\u0120the", "caf\u00c3\u00a9", "\u2581on", "##ing", "cat"] * 13
    weights = [0.01] * (65 * 65)
    weights[0] = 1.0  # a causal model's first token attends to itself
    weights[65 * 6 + 2] = 0.5
    for count, scale in ((64, "linear"), (65, "sqrt")):
        cells = [weights[65 * t + s] for t in range(count) for s in range(count)]
        write_npy(FOLDER / "maps.npy", (count, count), cells)
        (FOLDER / "pieces.json").write_text(json.dumps(tokens[:count]))
        base = ["--attention", "maps.npy", "--tokens", "pieces.json"]
        data = report_data(*base)
        check(data["scale"] == scale, f"{count} tokens: {data['scale']}")
        check(data["row_labels"][:5] == ["the", "caf\u00e9", "on", "##ing", "cat"], "pieces are shown")
        check(data["panels"][0]["link"] == [6, 2] and data["panels"][0]["detail"] ==
              "\u201ccaf\u00e9\u201d attends to \u201con\u201d: 0.50.", data["panels"][0]["detail"])
        check(report_data(*base, "--scale", "rank")["scale"] == "rank", "--scale counts more")
    check("Each square is a head" in data["guide"], "a report says how to read it")


def redirected():
    """Output to /dev/stdout continues at stdout's position, with > and >>, between other output."""
    picture = view(MODEL, TEXT, "--svg", "-").out
    path, old = FOLDER / "redirected", b"older, and longer than head"
    for name in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"):
        for mode in ("wb", "ab"):
            path.write_bytes(old)
            with open(path, mode, buffering=0) as file:
                file.write(b"head")
                check_good(view(MODEL, TEXT, "--svg", name, "-q", stdout=file), name)
                file.write(b"tail")
            check(path.read_bytes() == (old if mode == "ab" else b"") + b"head" + picture + b"tail",
                  f"{name}, {mode}: {path.read_bytes()[:60]!r}")
    check(leftovers() == [], f"redirected: {leftovers()}")


def help_everywhere():
    for arguments in (["--help"], ["-h"], ["help"]):
        result = run(*arguments)
        check(result.code == 0 and b"Subcommands:" in result.out and not result.err, f"{arguments}")
    for arguments in (["view", "--help"], ["view", "-h"], ["help", "view"],
                      ["view", "nowhere", "text", "--nonsense", "--help", "--layer"]):
        result = run(*arguments)
        lines = result.lines
        check(result.code == 0 and not result.err, f"{arguments}: {result.errors}")
        check(lines[0].startswith("multihead view: "), "the summary comes first")
        check(lines.index("Examples:") < lines.index("Which heads:"), "examples before options")
    check(run("help", "help").out.startswith(b"multihead help: "), "help has a page too")
    check(b"--problems" in run("selftest", "--help").out, "selftest --help")
    check(view("--", "--help").code != 0, "behind -- there are no options")
    result = run()
    check(result.code == 2 and not result.out and b"Usage:" in result.err, "no arguments")
    result = view()
    check(result.code == 2 and not result.out and b"Examples:" in result.err, "view without arguments")
    check(re.fullmatch(rb"multihead \d+\.\d+\.\d+\n", run("--version").out), "--version")
    codes = run("help", "exit-codes").out.decode()
    check([int(line.split()[0]) for line in codes.splitlines()[1:]] == list(range(9)), "exit codes")
    manual = (ROOT / "docs" / "program.md").read_text()
    for line in codes.splitlines()[1:]:
        number, text = line.split(None, 1)
        check(f"| {number} | {text} |" in manual, f"docs/program.md: exit code {number}")


def selftest():
    result = run("selftest", "--problems", "6", "--seed", "3")
    check(result.code == 0 and result.lines[-1] == "all checks pass", f"selftest: {result.lines}")
    check(any(line.split()[0] == "portable" for line in result.lines if line.split()), "portable")
    check(any(line.strip().startswith("bf16 arithmetic: same bits") for line in result.lines),
          f"selftest: {result.lines}")
    check(result.out == run("selftest", "--problems", "6", "--seed", "3").out, "selftest repeats")


terminal_picture()
colors_by_rule()
widths()
on_a_terminal()
data_outputs()
pictures()
hiding()
same_bytes()
long_texts()
arrays()
neurons()
first_impression()
interrupted_at_each_operation(FOLDER / "int.json", "view", MODEL, "the cat " * 30, "--json", "int.json", "-q")
redirected()
help_everywhere()
selftest()
finish()
