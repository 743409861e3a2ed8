"""multihead run --trace: modules, positions and caches on the blackboard. Every printed matrix is
compared with simple arithmetic on the previous ones. (run.py tests the heads.)
"""
import math
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403

INF = float("inf")
TOKENS = [[1, 0, 1, 0], [0, 2, 0, 1], [1, 1, 0, 0]]
MEMORY = [[2, 0, 0, 1], [0, 1, 1, 0]]
WEIGHTS = {"q": [[1, 0, 0, 1], [0, 1, 1, 0], [1, 1, 0, 0], [0, 0, 1, -1]],
           "k": [[0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 1, 1], [1, 0, -1, 0]],
           "v": [[0, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, -1]],
           "o": [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, -1, 0], [0, 1, 0, -1]]}
ROUNDED = 6e-4  # three decimals, and float32


def compute(*arguments):
    return run("run", *arguments)


def matrices(lines):
    """{(section, title): {letter: rows}} of a trace; the title follows the section's number."""
    found, section, title = {}, "", ""
    for line in lines:
        heading = re.match(r" \d+\. (.*?)(   \[[\d, ]+\])?$", line)
        row = re.match(r" {4,}([a-z])(\d+)  +([^|]*)(\||$)", line)
        if heading:
            title = heading.group(1)
        elif line and not line.startswith(" "):
            section = line
        elif row and not re.search(r"=|k\d", row.group(3)):  # no formula, no names of columns
            numbers = [-INF if cell == "." else float(cell) for cell in row.group(3).split()]
            found.setdefault((section, title), {}).setdefault(row.group(1), []).append(numbers)
    return found


def times(x, w):
    """x w^T, for lists of rows."""
    return [[sum(a * b for a, b in zip(row, out)) for out in w] for row in x]


def near(found, exact, name):
    good = found is not None and len(found) == len(exact) and all(
        len(a) == len(b) and all(p == q or abs(p - q) <= ROUNDED for p, q in zip(a, b))
        for a, b in zip(found, exact))
    return check(good, f"{name}: {found}, not {exact}")


def softmax(row):
    top = max(row)
    powers = [math.exp(x - top) for x in row]
    return [p / sum(powers) for p in powers]


def find(board, section, start):
    return next((tables for (s, title), tables in board.items()
                 if s.startswith(section) and title.startswith(start)), {})


def check_module(board, x, memory, weights, heads, kv_heads, causal, name):
    """Every matrix of a module's trace, from its tokens and weights."""
    size = len(x[0]) // heads
    letter = "x" if memory is x else "m"
    shared = {"q": weights["q"], "k": weights["k"][:kv_heads * size], "v": weights["v"][:kv_heads * size]}
    made = {of: times(x if of == "q" else memory, w) for of, w in shared.items()}
    for of, word in (("q", "Queries"), ("k", "Keys"), ("v", "Values")):
        part = find(board, "Projections", word)
        near(part.get("w"), shared[of], f"{name}: W_{of}")
        near(part.get(of), made[of], f"{name}: {of} = {letter} W_{of}^T")
    concat = [[] for _ in x]
    for h in range(heads):
        hk, section = h // (heads // kv_heads), f"Head {h}"
        q = [row[h * size:(h + 1) * size] for row in made["q"]]
        k, v = ([row[hk * size:(hk + 1) * size] for row in made[of]] for of in "kv")
        raw = times(q, k)
        scores = [[a / math.sqrt(size) if not causal or s <= t else -INF for s, a in enumerate(row)]
                  for t, row in enumerate(raw)]
        p = [softmax(row) for row in scores]
        near(find(board, section, "Queries").get("q"), q, f"{name}, {section}: q")
        near(find(board, section, "Queries").get("v"), v, f"{name}, {section}: v")
        near(find(board, section, "Scores").get("q"), raw, f"{name}, {section}: q.k")
        near(find(board, section, "Masked" if causal else "Scaled").get("q"), scores,
             f"{name}, {section}: scores")
        shown = [[-INF if s > t and causal else a for s, a in enumerate(row)]
                 for t, row in enumerate(p)]
        near(find(board, section, "Softmax").get("q"), shown, f"{name}, {section}: weights")
        o = times(p, list(map(list, zip(*v))))
        near(find(board, section, "Output").get("o"), o, f"{name}, {section}: o")
        for t, row in enumerate(o):
            concat[t] += row
    near(find(board, "All heads", "Concatenated").get("c"), concat, f"{name}: concat")
    y = times(concat, weights["o"])
    near(find(board, "All heads", "Output y").get("w"), weights["o"], f"{name}: W_o")
    near(find(board, "All heads", "Output y").get("y"), y, f"{name}: y")
    return y


def modules():
    for heads, kv_heads, causal, cross in ((2, 2, 0, 0), (2, 1, 1, 0), (4, 2, 0, 1), (1, 1, 1, 0),
                                           (4, 1, 0, 0)):
        arguments = ["--example", "--module", "--heads", heads, "--kv-heads", kv_heads]
        arguments += ["--causal"] * causal + ["--memory", "example"] * cross
        name = " ".join(map(str, arguments))
        result = compute(*arguments)
        check_good(result, name)
        y = check_module(matrices(result.lines), TOKENS, MEMORY if cross else TOKENS, WEIGHTS, heads,
                         kv_heads, causal, name)
        check_good(compute(*arguments, "--out", "y.npy", "-q"), f"{name}, --out")
        shape, _, saved = read_npy((FOLDER / "y.npy").read_bytes())
        check(shape == (3, 4) and all(abs(a - b) <= 2e-5 for a, b in zip(saved, sum(y, []))),
              f"{name}: y is saved")
    check(compute("--example", "--module").out == compute("--example", "--module", "--heads", 2).out,
          "two heads are the example's default")
    # Random tokens and weights are printed completely, so that the arithmetic can be checked.
    seeds = []
    for seed in (0, 5):
        result = compute("--x", "random:5x16", "--module", "--heads", 4, "--kv-heads", 2, "--trace",
                         "--seed", seed, "--causal")
        check_good(result, f"random module, seed {seed}")
        board = matrices(result.lines)
        x = find(board, "Projections", "Tokens").get("x")
        weights = {of: find(board, section, word).get("w") for of, section, word in
                   (("q", "Proj", "Queries"), ("k", "Proj", "Keys"), ("v", "Proj", "Values"),
                    ("o", "All", "Output y"))}
        check(all(2 * n == int(2 * n) and abs(n) <= 2 for row in x for n in row), f"halves: {x}")
        check_module(board, x, x, weights, 4, 2, True, f"seed {seed}")
        seeds.append((x, weights))
        check(weights["q"] != weights["o"], "each weight has its own numbers")
    check(seeds[0] != seeds[1], "--seed draws others")
    batch = compute("--x", "random:3x5x8", "--module", "--heads", 2, "--out", "y.npy", "-q")
    check(batch.code == 0 and read_npy((FOLDER / "y.npy").read_bytes())[0] == (3, 5, 8), f"a batch: {batch.errors}")
    printed = compute("--x", "random:5x8", "--module", "--heads", 2, "-q").out.decode()
    check(printed.startswith("out float32 [5, 8]"), f"printed: {printed}")


def positions():
    result = compute("--example", "--module", "--sinusoidal")
    board = matrices(result.lines)
    encoding = [[(math.cos if e % 2 else math.sin)(t / 10000 ** (e // 2 * 2 / 4)) for e in range(4)]
                for t in range(3)]
    near(find(board, "Projections", "Positions").get("p"), encoding, "sinusoidal")
    x = [[a + b for a, b in zip(*rows)] for rows in zip(TOKENS, encoding)]
    near(find(board, "Projections", "Their sum").get("x"), x, "x + p")
    check_module(board, x, x, WEIGHTS, 2, 2, False, "sinusoidal")
    case = ["--x", "random:6x4", "--trace"]
    board = matrices(compute(*case, "--alibi", "--heads", 2, "--causal", "--trace-head", 1).lines)
    near(find(board, "Head 1", "ALiBi").get("q"),
         [[-(2.0 ** -8) * abs(s - t) for s in range(6)] for t in range(6)], "ALiBi")
    board = matrices(compute(*case, "--t5-table", "random:8xH", "--t5-max-distance", 5).lines)
    part = find(board, "Head 0", "T5")

    def bucket(d):  # 4 per side: buckets for 0 and 1, then logarithmic up to distance 5
        far = min(3, 2 + int(math.log(max(abs(d), 2) / 2) / math.log(5 / 2) * 2))
        return (4 if d > 0 else 0) + (abs(d) if abs(d) < 2 else far)

    near(part.get("q"), [[bucket(s - t) for s in range(6)] for t in range(6)], "T5's buckets")
    scaled, biased = (find(board, "Head 0", word).get("q") for word in ("Scaled", "Biased"))
    entries = [row[0] for row in part["b"]]
    check(len(entries) == 8 and all(
        abs(biased[t][s] - scaled[t][s] - entries[bucket(s - t)]) <= 2 * ROUNDED
        for t in range(6) for s in range(6)), f"T5 is added: {entries}")
    board = matrices(compute(*case, "--shaw-keys", "random:5xD").lines)
    part, vectors = find(board, "Head 0", "Shaw"), find(board, "Head 0", "Queries")
    row = [[min(max(s - t, -2), 2) + 2 for s in range(6)] for t in range(6)]
    near(part.get("q"), row, "Shaw's rows")
    near(find(board, "Head 0", "Scores").get("q"),
         [[sum(a * (b + c) for a, b, c in zip(vectors["q"][t], vectors["k"][s], part["a"][row[t][s]]))
           for s in range(6)] for t in range(6)], "Shaw's scores")
    result = compute(*case, "--rope", "--trace-row", "3")
    line = next(line for line in result.lines if "elements 0 and 1, by" in line)
    x, y = find(matrices(result.lines), "Head 0", "Queries")["q"][0][:2]
    found = [float(n) for n in re.findall(r"= (-?[\d.]+)", line)]
    near([found], [[x * math.cos(3) - y * math.sin(3), x * math.sin(3) + y * math.cos(3)]], line)
    check("0 and 1: 1, 2 and 3: 0.01" in result.out.decode(), "the angles of RoPE")


def deltas():
    """The states, maps and outputs of --delta follow from the printed q, k and v."""
    result = compute("--example", "--delta", "--trace")
    check_good(result, "--delta")
    board = matrices(result.lines)
    part = {title.split()[0].rstrip(":"): rows for (_, title), rows in board.items()}
    q, k, v = (part["Queries"][letter] for letter in "qkv")
    found = re.findall(r"Token \d: a = ([\d.]+), b = ([\d.]+)", result.out.decode())
    decay, strength = ([float(x) for x in list_] for list_ in zip(*found))
    tokens, states, state, outputs = range(4), [], [[0, 0], [0, 0]], []
    for t in tokens:
        state = [[decay[t] * x for x in row] for row in state]
        u = [strength[t] * (v[t][c] - sum(k[t][d] * state[d][c] for d in (0, 1))) for c in (0, 1)]
        state = [[state[d][c] + k[t][d] * u[c] for c in (0, 1)] for d in (0, 1)]
        states += state
        outputs.append([sum(q[t][d] * state[d][c] for d in (0, 1)) for c in (0, 1)])
    near(part["Delta"]["s"], states, "states of --delta")
    near(part["Output"]["o"], outputs, "outputs of --delta")
    near([[sum(m * v[j][c] for j, m in enumerate(row) if m > -INF) for c in (0, 1)] for row in part["The"]["q"]],
         outputs, "M v of --delta")
    for title, gated in (("Linear", 0), ("Gated", 1)):
        near(part[title]["q"], [[-INF if j > t else sum(q[t][d] * k[j][d] for d in (0, 1)) *
                                 math.prod(decay[j + 1:t + 1]) ** gated for j in tokens] for t in tokens], title)
    for options, error in ((["--example", "--delta", "--causal"], "--causal conflicts with --delta"),
                           (["--delta"], "--delta requires --example")):
        bad = compute(*options)
        check(bad.code == 2 and error in bad.err.decode(), f"{options}: {bad.err}")


def caches():
    arguments = ["--x", "random:5x8", "--heads", 4, "--module", "--kv-heads", 2, "--trace", "--rope"]
    whole = matrices(compute(*arguments, "--causal").lines)
    result = compute(*arguments, "--cache", "f32")
    check_good(result, "cache")
    text = result.out.decode()
    check("2 key/value heads * (2 + 2) numbers * 4 bytes = 32 bytes." in text, "bytes per position")
    for t in range(5):
        check(f"bit-identical to row {t} of the full pass, in every head" in text,
              f"row {t} has the same bits")
        check(f"the cache holds {32 * (t + 1)} bytes" in text, f"bytes after token {t}")
    cached = matrices(result.lines[next(i for i, line in enumerate(result.lines)
                                        if line.startswith("Decoding")):])
    for h in range(4):
        for t in range(5):
            part = next(tables for (_, title), tables in cached.items()
                        if title.startswith(f"Token {t}, head {h}:"))
            scores, weights = (find(whole, f"Head {h}", word)["q"][t][:t + 1]
                               for word in ("Masked", "Softmax"))
            near(part["q"], [scores, weights], f"token {t}, head {h}: scores and weights")
            near(part["o"], [find(whole, f"Head {h}", "Output")["o"][t]], f"token {t}, head {h}: o")
            # contents of the cache: the rotated keys so far
            near(part["k"], find(whole, f"Head {h}", "RoPE")["k"][:t + 1], f"token {t}: keys")
    shown = compute(*arguments, "--cache", "f32", "--trace-row", "4,1", "--trace-head", "2")
    tokens = re.findall(r"\d+\. Token (\d), head (\d)", shown.out.decode())
    check(tokens == [("1", "2"), ("4", "2")], f"chosen steps: {tokens}")
    for kind, bytes_ in (("f16", 2), ("int8", 1)):
        text = compute("--x", "random:5x7", "--trace", "--cache", kind, "--scale", "0.3").out.decode()
        check(f"(7 + 7) numbers * {bytes_} byte" in text, f"{kind}: bytes")
        rounds = "the cache rounds k and v" in text
        check(rounds == (kind == "int8"), f"{kind} holds halves exactly, int8 does not: {rounds}")
    check_good(compute("--example", "--cache", "bf16", "--alibi", "--window", "1,0", "--softcap", "5"),
               "a window, biases")


modules()
positions()
deltas()
caches()
finish()
