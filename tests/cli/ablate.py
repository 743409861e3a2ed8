"""multihead ablate on a handmade induction pair: the loss without each head, the pair's interaction, tasks with
corrupted prompts, patched heads and paths; tables, JSON, bad input. test_ablation_torch.py compares the numbers with
torch.
"""
import json
import math
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403

USAGE, NO_INPUT, BAD_INPUT, UNSUPPORTED = 2, 3, 4, 5
V, LENGTH = 30, 128
WORDS = ["<s>", *(f"w{i}" for i in range(1, V))]
WIDTH, PAIR, IDLE = 3 * V + LENGTH, ("L0H0", "L1H1"), ("L0H1", "L1H0")


def make_pair(name="pair"):
    """A model with attention only. The stream has token, previous token, answer and position in
    separate dimensions. L0H0 copies the previous token, and L1H1 copies the token that followed an
    earlier copy of its own. The other heads attend uniformly and write little."""
    folder = FOLDER / name
    folder.mkdir()
    D = LENGTH
    (folder / "config.json").write_text(json.dumps(dict(
        model_type="multihead", vocab_size=V, max_length=LENGTH, embed_dim=WIDTH, num_layers=2,
        num_heads=2, head_dim=D, ff_dim=0, norm="none", positions="learned", causal=True)))

    def zeros(rows, columns):
        return [[0.0] * columns for _ in range(rows)]

    tokens, positions, out = zeros(V, WIDTH), zeros(LENGTH, WIDTH), zeros(V, WIDTH)
    q, k, v = ([zeros(2 * D, WIDTH) for _ in range(2)] for _ in range(3))
    o = [zeros(WIDTH, 2 * D) for _ in range(2)]
    sharp = 30 * math.sqrt(D)
    for i in range(LENGTH):
        positions[i][3 * V + i] = 1
        if i:
            q[0][i - 1][3 * V + i] = sharp
        k[0][i][3 * V + i] = 1
    for i in range(V):
        tokens[i][i] = 1
        v[0][i][i] = v[0][D + i][i] = v[1][i][i] = v[1][D + i][i] = 1
        o[0][V + i][i] = 1
        q[1][D + i][i], k[1][D + i][V + i] = sharp, 1
        o[1][2 * V + i][D + i] = 30
        o[0][i][D + i] = o[1][i][i] = 0.01
        out[i][2 * V + i] = 1
    matrices = {"embed_tokens.weight": tokens, "embed_positions.weight": positions, "lm_head.weight": out}
    for layer in range(2):
        for part, rows in zip("qkvo", (q, k, v, o)):
            matrices[f"layers.{layer}.self_attn.{part}_proj.weight"] = rows[layer]
    write_matrices(folder, matrices)
    first = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                                                      {"Sequence": {"id": "A", "type_id": 0}}]}
    (folder / "tokenizer.json").write_text(json.dumps(
        {"pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": first,
         "model": {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(WORDS)},
                   "unk_token": "<unk>"}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 10 ** 30}))
    return folder


DEMO = make_pair()
TEXTS = ["w1 w2 w3 w4 w5 w1 w2 w3 w4", "w7 w8 w9 w7 w8 w9 w7 w8", "w20 w21 w22 w23 w20 w21"]


def ablate(*arguments, **keywords):
    return run("ablate", *arguments, **keywords)


def bad(code, *parts, arguments, **keywords):
    check_error(ablate(*arguments, **keywords), code, *parts, command="ablate", name=str(arguments))


def written(name, text):
    path = FOLDER / name
    path.write_text(text)
    return path


def effects(*arguments):
    result = ablate(DEMO, *arguments, "--json", "-q")
    check(result.code == 0, f"{arguments}: {result.errors}")
    found = json.loads(result.out)
    found["by_name"] = {row["head"]: row for row in found["heads"]}
    return found


def either_is_death():
    chance = math.log(V)
    for kind in ("zero", "mean", "resample"):
        found = effects("--random", 3, "--with", kind)
        check(found["ablation"] == kind and list(found["measures"]) == ["repeats"], f"{kind}: measures")
        check(found["measures"]["repeats"]["whole"]["mean"] < 1e-3, f"{kind}: the whole model knows repeats")
        for name in PAIR:
            effect = found["by_name"][name].get("effect", {}).get("repeats")
            check(effect and effect["mean"] > 0.8 * chance, f"{kind}: {name} is needed, {effect}")
            check(effect["low"] <= effect["mean"] <= effect["high"] and effect["texts"] == 3, "interval")
        for name in IDLE:
            effect = found["by_name"][name].get("effect", {}).get("repeats")
            check(not effect or abs(effect["mean"]) < 1e-3, f"{kind}: {name} is idle, {effect}")
    found = effects("--random", 3, "--with", "zero")
    pair = next(p for p in found["pairs"] if set(p["heads"]) == set(PAIR))
    check(abs(pair["effect"]["repeats"]["mean"] - chance) < 1e-2, "the pair: chance is left")
    single = sum(found["by_name"][name]["effect"]["repeats"]["mean"] for name in PAIR)
    check(abs(pair["interaction"]["repeats"]["mean"] - (pair["effect"]["repeats"]["mean"] - single)) < 1e-6,
          "interaction is both less each")
    direct = {name: found["by_name"][name]["direct"]["repeats"]["mean"] for name in (*PAIR, *IDLE)}
    check(direct["L1H1"] > 20 and all(abs(direct[n]) < 0.1 for n in direct if n != "L1H1"),
          f"only L1H1 writes what the output reads: {direct}")


def page():
    """The page's columns equal --json: estimates of all heads, and effects of the measured ones."""
    path = FOLDER / "effects.html"
    some = ["--random", 3, "--with", "zero", "--heads", 2]
    result = ablate(DEMO, *some, "-o", path, "--json", "-q")
    check(result.code == 0, f"-o: {result.errors}")
    text = path.read_text()
    data = json.loads(re.search(r'type="application/json"[^>]*>(.*?)</script>', text, re.S)[1])
    names = [(card["layer"], card["head"]) for card in data["heads"]]
    columns = {column["name"]: column for column in data["columns"]}
    found = json.loads(result.out)["heads"]
    check("effect_repeats" in columns and "estimate_repeats" in columns, f"{list(columns)}")
    measured = 0
    for name, key in (("estimate_repeats", "estimate"), ("effect_repeats", "effect")):
        column = columns[name]
        check("zero ablation" in column["text"] and "ablation.md" in column["text"], column["text"])
        check(len(column["values"]) == len(found) == 4, "all heads")
        for head in found:
            value = column["values"][names.index((head["layer"], head["number"]))]
            told = head.get(key)
            measured += key == "effect" and told is not None
            if told is None:
                check(value is None, f"{name} {head['head']}: {value}, not measured")
                continue
            told = told["repeats"]
            for i, part in ((0, "mean"), (2, "low"), (3, "high")):
                check(abs(value[i] - told[part]) <= 2e-4 * abs(told[part]) + 1e-9, f"{name} {value} {told}")
            check(value[1] is None and value[4] == 3, f"no chance, three texts: {value}")
    check(0 < measured < 4, f"{measured} heads measured")
    check(data["x"] < 4 and all("_repeats" in column["name"] or "_loss" in column["name"] for column in data["columns"][:2]),
          "effects come before scores")
    # The page initially shows the largest effect. Cards list pairs, also for a head without an
    # effect of its own.
    largest = max((h for h in found if "effect" in h), key=lambda h: abs(h["effect"]["repeats"]["mean"]))
    check(names[data["first"]] == (largest["layer"], largest["number"]), f"{names[data['first']]}, wanted {largest['head']}")
    measured = {h["head"] for h in found if "effect" in h}
    with_pairs = {f"L{card['layer']}H{card['head']}" for card in data["heads"]
                  if any("interaction" in one["title"] for one in card["lists"])}
    check(with_pairs == measured != set(), f"pairs on the cards of {with_pairs}, measured {measured}")
    told = ablate(DEMO, *some, "-o", path)
    check(not told.out and b"in a browser" in told.err, f"no table beside a page: {told.out}, {told.err}")
    ablate(DEMO, "--random", 3, "--with", "zero", "-o", path, "-q")
    cards = json.loads(re.search(r'type="application/json"[^>]*>(.*?)</script>', path.read_text(), re.S)[1])["heads"]
    lists = [one for card in cards if f"L{card['layer']}H{card['head']}" == PAIR[0] for one in card["lists"]
             if "interaction" in one["title"]]
    check(lists and PAIR[1] in lists[0]["names"], f"the card has its pairs: {lists}")


def tables():
    path = written("texts.txt", "\n".join(TEXTS) + "\n")
    some = [DEMO, "--text", path, "--random", 2, "--with", "mean"]
    result = ablate(*some, "--width", 120)
    text = result.out.decode()
    check(result.code == 0 and "mean ablation" in text and "without both" in text, text[:300])
    rows = [line.split() for line in text.splitlines() if line.startswith("L") and "(" in line]
    check([row for row in rows if row[0] in PAIR], "the pair is in the table")
    check(any("552 tokens" in line for line in result.errors), "says what in-context learning needs")
    check(any("passes over all tokens" in line for line in result.errors), "says the work first")
    check(any("this takes" in line for line in result.errors), "says the time first")
    check(ablate(*some, "--width", 120, "-q").errors == [], "--quiet")
    for threads in (1, 3):
        check(ablate(*some, "--width", 120, "--threads", threads).out == result.out, f"{threads} threads")
    for width in (20, 40, 80, 133):
        wide = ablate(*some, "--width", width)
        widest = max(len(line) for line in wide.lines)
        check(wide.code == 0 and widest <= width, f"{width} columns: {widest}")
    picked = effects("--random", 3, "--with", "zero", "--head", "L1H1,L0H0", "--pairs", 2)
    check({name for name, row in picked["by_name"].items() if row.get("effect")} == {"L0H0", "L1H1"},
          f"--head: {picked['by_name']}")
    check(len(picked["pairs"]) == 1, "the pair of the named heads")
    check_error(ablate(*some, "--head", "L0H0", "--heads", 2), USAGE, "exclude each other", command="ablate")
    none = ablate(*some, "--heads", 0, "--width", 120)
    check(none.code == 0 and "without both" not in none.out.decode(), "--heads 0")
    few = effects("--text", path, "--random", 0, "--with", "zero", "--max-texts", 2, "--pairs", 0)
    check(few["measures"]["loss"]["whole"]["texts"] == 2 and few["pairs"] == [], "--max-texts, --pairs")


def defaults():
    """With only a text, ablation replaces heads by means on it and on random tokens. The page reads
    scores from a state and measures nothing."""
    text, state, pages = written("one.txt", TEXTS[0] + "\n"), FOLDER / "one.state", [FOLDER / f"{n}.html" for n in "abc"]
    check(ablate(DEMO, TEXTS[0], "--json").out == ablate(DEMO, "--text", text, "--with", "mean", "--random", 10, "--heads", 40,
          "--pairs", 12, "--max-texts", 10, "--json").out, "what the defaults are")
    check_good(run("heads", DEMO, "--text", text, "--state", state), "heads --state")
    for path, more in zip(pages, ([], ["--state", state])):
        check_good(ablate(DEMO, "--text", text, "-o", path, *more), f"{more}")
    check(pages[0].read_bytes() == pages[1].read_bytes(), "the page of a state")
    check_good(ablate(DEMO, "--state", state, "-o", pages[2]), "a state without its texts")
    check('"effect_repeats"' in pages[2].read_text() and '"previous"' in pages[2].read_text(), "effects and scores")


def perplexity_agrees():
    path = written("one.txt", TEXTS[0] + "\n")
    loss = effects("--text", path, "--random", 0, "--with", "zero")["measures"]["loss"]["whole"]["mean"]
    result = run("perplexity", DEMO, "--text", path, "--json", "-q")
    if result.code == 0:
        other = json.loads(result.out)
        check(abs(math.log(other["perplexity"]) - loss) < 1e-4, f"{loss} {other}")
    else:
        check(False, f"perplexity: {result.errors}")


def tasks():
    tabs = "# prompt, right, wrong, corrupted\nw1 w2 w3 w1\t w2\t w3\tw3 w2 w1 w1\n" \
           "w4 w5 w6 w4\t w5\t w6\tw5 w4 w6 w4\n\n"
    lines = [line.split("\t") for line in tabs.splitlines() if line and line[0] != "#"]
    names = ("prompt", "right", "wrong", "corrupted")
    objects = "".join(json.dumps(dict(zip(names, line))) + "\n" for line in lines)
    some = ["--with", "zero"]
    found = effects("--task", written("task.tsv", tabs), *some)
    check(found["measures"]["task"]["whole"]["mean"] > 20, "the pair answers")
    check(list(found["measures"]) == ["task"], f"random tokens only where they are asked for: {list(found['measures'])}")
    again = effects("--task", written("task.jsonl", objects), *some)
    check(found == again, "TSV and JSON lines are the same")
    for name in PAIR:
        check(found["by_name"][name]["effect"]["task"]["mean"] < -20, f"{name} answers the task")
        check(found["by_name"][name]["restored"]["mean"] > 0.3, f"{name} restores the answer")
    for name in IDLE:
        check(abs(found["by_name"][name]["restored"]["mean"]) < 0.01, f"{name} restores nothing")
    # L0H0 acts only through the keys of L1H1, and only L1H1 reaches the logits directly.
    expected = {"L1H1.k": {"L0H0"}, "L1H1.q": set(), "L1H1.v": set(), "logits": {"L1H1"},
                "L1H1.q,L1H1.k": {"L0H0"}, "L1H0.k": set()}
    for to, heads_of in expected.items():
        found = effects("--task", FOLDER / "task.tsv", *some, "--paths", to)
        check(found["paths_to"] == to, to)
        moved = {row["head"] for row in found["heads"] if abs(row["paths"]["mean"]) > 1}
        check(moved == heads_of, f"paths to {to}: {moved}")
    longer = written("longer.tsv", "w1 w2 w3 w4 w1\t w2 w3\t w2 w4\n")
    found = effects("--task", longer, *some)
    check(found["measures"]["task"]["whole"]["mean"] > 20, "continuations of two tokens")
    check("restored" not in found["heads"][0], "no corrupted prompts, nothing patched")
    table = ablate(DEMO, "--task", FOLDER / "task.tsv", *some, "--paths", "logits").out.decode()
    check("restored share of task" in table and "change of task by paths" in table, "patched heads")


def bad_input():
    path = written("texts.txt", "\n".join(TEXTS) + "\n")
    task = FOLDER / "task.tsv"
    some = [DEMO, "--text", path]
    bad(USAGE, "one of zero, mean, resample", arguments=[*some, "--with", "none"])
    bad(USAGE, "--paths requires --task", arguments=[*some, "--paths", "logits"])
    bad(USAGE, "--state requires --output FILE.html or --npy FOLDER", arguments=[*some, "--state", "x.state"])
    bad(USAGE, "both write to stdout", arguments=[*some, "-o", "-", "--json"])
    bad(USAGE, "nothing to measure on", arguments=[DEMO, "--random", 0])
    bad(USAGE, "give at least two",
        arguments=[DEMO, TEXTS[0], "--random", 0, "--with", "resample"])
    bad(UNSUPPORTED, "does not predict the next token", arguments=[MODEL, "the cat"])
    base = [DEMO, "--task"]
    for wrong in ("", "L1H1", "L1H1.x", "L1H9.k", "L7H0.k", "l1h1.k", "L1H1.k,", "L1H1.kk"):
        bad(USAGE, "--paths", arguments=[*base, task, "--paths", wrong])
    bad(NO_INPUT, "nowhere", arguments=[*base, FOLDER / "nowhere"])
    for text, parts in (("", ["has no prompts"]),
                        ("w1 w2\t w3\n", ["line 1", "wrong is missing"]),
                        ("# x\nw1\t w2\t w3\tw4\t w5\n", ["line 2", "more than four"]),
                        ("{\"prompt\": 3}\n", ["line 1", "prompt must be a string"]),
                        ("{nonsense\n", ["line 1"]),
                        ("w1 w2\tw3\t w4\n", ["line 1", "w2w3"]),
                        ("w1 w2\t w3\t w4\tw5 w6 w7\n", ["line 1", "equal numbers"])):
        bad(BAD_INPUT, *parts, arguments=[*base, written("bad.tsv", text)])
    no_corrupted = written("plain.tsv", "w1 w2 w1\t w2\t w3\n")
    bad(USAGE, "no corrupted prompts", arguments=[*base, no_corrupted, "--paths", "logits"])
    hostile = written("hostile.tsv", "w1\t\x1b[31mw2\t w3\n")
    result = ablate(*base, hostile)
    check(result.code == BAD_INPUT and b"\x1b" not in result.err, "a terminal is not obeyed")


either_is_death()
page()
tables()
defaults()
perplexity_agrees()
tasks()
bad_input()
finish()
