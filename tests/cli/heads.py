"""multihead heads: the table, its orders and filters, CSV and JSON, gold links from CoNLL-U, and errors of bad input.
The scores themselves are tested elsewhere (test_heads*.c, test_heads_torch.py).
"""
import csv
import io
import json
import random
import re
import signal
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403
from watch import watched  # noqa: E402

USAGE, NO_INPUT, BAD_INPUT, UNSUPPORTED = 2, 3, 4, 5
LAYERS, HEADS = 2, 3
LINES = "The cat sat on the mat.\n\nThe dog saw the cat near the river bank. It sat.\r\n"
GOLD = """# text = The old cat saw it.
1\tThe\t_\t_\t_\t_\t3\tdet\t_\t_
2\told\t_\t_\t_\t_\t3\tamod\t_\t_
3\tcat\t_\t_\t_\t_\t4\tnsubj\t_\t_
4\tsaw\t_\t_\t_\t_\t0\troot\t_\t_
5\tit\t_\t_\t_\t_\t4\tobj\t_\tCoref=3|SpaceAfter=No
6\t.\t_\t_\t_\t_\t4\tpunct\t_\t_

1-2\tdidn't\t_\t_\t_\t_\t_\t_\t_\t_
1\tdid\t_\t_\t_\t_\t3\taux\t_\t_
2\tn't\t_\t_\t_\t_\t3\tadvmod\t_\t_
3\tsit\t_\t_\t_\t_\t0\troot\t_\t_
3.1\tempty\t_\t_\t_\t_\t_\t_\t_\t_
4\tmats\t_\t_\t_\t_\t3\tobj\t_\t_
"""


def heads(*arguments, **keywords):
    return run("heads", *arguments, **keywords)


def few(*arguments, **keywords):
    """Scores of the model, with two random sequences."""
    return heads(MODEL, "--random", 2, *arguments, **keywords)


def bad(code, *parts, arguments, **keywords):
    check_error(heads(*arguments, **keywords), code, *parts, command="heads", name=str(arguments))


def written(name, text):
    path = FOLDER / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def names(result):
    return [line.split()[0] for line in result.lines if re.match(r"L\d+H\d+ ", line)]


def table():
    path = written("lines.txt", LINES)
    result = few("--text", path)
    check_good(result, "heads")
    text = result.out.decode()
    check(text.startswith("tiny-bert: 2 texts, "), f"the title: {text[:80]}")
    check(names(result) == [f"L{l}H{h}" for l in range(LAYERS) for h in range(HEADS)], text)
    check(len(result.errors) == 1 and "--details" in result.errors[0], f"{result.errors}")
    check(few("--text", path, "-q").errors == [], "--quiet")
    check(few("--text", "-", stdin=LINES.encode()).out == result.out, "stdin")
    one = few("--text", path, "--whole").out.decode()
    check(one.startswith("tiny-bert: 1 text, "), f"--whole: {one[:60]}")
    check(names(few("the cat", "--head", "1.2", "--head", "L0H1")) == ["L0H1", "L1H2"],
          "--head")
    check(names(few("the cat", "-l", "1")) == ["L1H0", "L1H1", "L1H2"], "--layer")
    details = few("--text", path, "--details")
    check(len(details.lines) > len(result.lines), "--details")
    for threads in (1, 2, 5):
        check(few("--text", path, "--threads", threads).out == result.out,
              f"--threads {threads}")
    check(heads(MODEL).code == 0, "random tokens alone")
    check(heads(MODEL, "--example", "all").out.startswith(b"tiny-bert: 5 texts"), "--example all")


def widths():
    path = written("lines.txt", LINES)
    gold = written("gold.conllu", GOLD)
    for width in (20, 40, 80, 133):
        for more in ([], ["--details"], ["--ascii"], ["--clusters", "0.3"]):
            result = few("--text", path, "--conllu", gold, "--width", width, *more)
            widest = max(len(line) for line in result.lines)
            check(result.code == 0 and widest <= width, f"{width} columns: {widest} {more}")
            check("--ascii" not in more or result.out.isascii(), "--ascii")
    plain = few("--text", path)
    for changes in ({"NO_COLOR": "1"}, {"TERM": "dumb"}, {"TERM": None}, {"CLICOLOR_FORCE": "1"}):
        result = few("--text", path, **changes)
        check(result.code == 0 and result.out == plain.out, f"{changes}")
    check(b"\x1b" not in plain.out + plain.err, "no escape sequences in a pipe")


def orders():
    path = written("lines.txt", LINES)
    everything = json.loads(few("--text", path, "--json").out)["heads"]
    for score in ("entropy", "previous", "sink", "random_duplicate"):
        result = few("--text", path, "--sort", score, "--csv")
        values = [float(row[score]) for row in csv.DictReader(io.StringIO(result.out.decode()))]
        check(values == sorted(values, reverse=True) and len(values) == LAYERS * HEADS, score)
        least = values[2]
        if score == "random_duplicate":  # the table has this column under the short name
            told = few("--text", path, "--sort", "duplicate", "--csv")
            check(told.out == result.out, "--sort duplicate is that of random tokens")
        kept = few("--text", path, "--sort", score, "--csv", "--min", f"{least:.9g}")
        check(2 <= len(kept.lines) - 1 <= 4, f"--min: {len(kept.lines)}")
    with_roles = [h["name"] for h in everything if h["roles"]]
    without = names(few("--text", path, "--role", "none"))
    check(sorted(with_roles + without) == [h["name"] for h in everything], "--role none")
    for head in everything:
        for role in head["roles"]:
            found = names(few("--text", path, "--role", role["role"].replace(" ", "-")))
            check(head["name"] in found, f"--role {role['role']}: {found}")
    check(few("the cat", "--random", "0", "--role", "block").lines[-1].startswith("head"),
          "nothing found is an empty table")


def json_and_csv():
    gold = written("gold.conllu", GOLD)
    result = heads(MODEL, "--conllu", gold, "--json")
    check_good(result, "--json")
    found = json.loads(result.out)
    check(found["format"] == "multihead-heads" and found["texts"] == 2, "format")
    # The text has the multiword tokens instead of their parts.
    text = written("plain.txt", "The old cat saw it.\ndidn't sit mats\n")
    plain = json.loads(heads(MODEL, "--text", text, "--json").out)
    check(found["tokens"] == plain["tokens"], f"tokens: {found['tokens']}, {plain['tokens']}")
    check(found["source"] == {"name": "tiny-bert", "architecture": "bert", "layers": LAYERS,
                              "heads": LAYERS * HEADS}, f"{found['source']}")
    check([(h["layer"], h["head"]) for h in found["heads"]] ==
          [(l, h) for l in range(LAYERS) for h in range(HEADS)], "every head")
    for head in found["heads"]:
        check({"layer", "head", "name", "roles", "scores", "relations"} <= set(head), "fields")
        for name, score in head["scores"].items():
            check(score is None or (set(score) == {"value", "chance", "corrected", "rows"} and
                                    score["rows"] > 0), f"{name}: {score}")
        for role in head["roles"]:
            check(role["evidence"] and role["score"]["rows"] > 0, f"{role}")
        relations = head["relations"]
        check(list(relations) == ["det", "amod", "nsubj", "obj", "coref", "aux", "advmod"],
              f"{list(relations)}")
        # aux and advmod are in one word: both links are from "didn't" to "sit".
        rows = {name: relations[name]["forward"]["accuracy"]["rows"] for name in relations}
        check(rows == dict.fromkeys(relations, 1) | {"obj": 2}, f"links: {rows}")
        check(relations["coref"]["forward"]["baseline_offset"] == -2, "coref leads two words back")
        check(relations["det"]["backward"]["baseline_offset"] == -2, "backward")
    rows = list(csv.DictReader(io.StringIO(heads(MODEL, "--conllu", gold, "--csv").out.decode())))
    check(len(rows) == LAYERS * HEADS, "--csv")
    for row, head in zip(rows, found["heads"]):
        for name, score in head["scores"].items():
            check(row[name] == "" if score is None else
                  float(row[name]) == score["value"] and int(row[name + "_rows"]) == score["rows"],
                  f"csv and json: {name}")
        for name, both in head["relations"].items():
            check(float(row[name + "-back"]) == both["backward"]["accuracy"]["value"], name)
    again = heads(MODEL, "--conllu", gold, "--json", "--threads", "1")
    check(again.out == result.out, "the same bytes again")


def corpora():
    """The page and --corpus; test_head_corpus.py and test_heads_page.py test their contents."""
    path, page = written("lines.txt", LINES * 5), FOLDER / "heads.html"
    result = few("--text", path, "-o", page, "--corpus", "--json")
    check_good(result, "-o and --json")
    found, text = json.loads(result.out), page.read_text()
    check(set(found["luck"]) == set(found["measures"]), f"luck: {found['luck']}")
    head = found["heads"][0]
    check({"distributions", "reads", "writes", "places", "positions", "first_token"} <= set(head), f"{set(head)}")
    check(head["distributions"]["self"]["mean"] == head["scores"]["self"]["value"], "the mean is the score")
    check("http" not in text and '"name":"entropy"' in text, "the page")
    same = FOLDER / "same.html"
    told = few("--text", path, "-o", same, "--threads", "3")
    check(not told.out and b"in a browser" in told.err, f"no table beside a page: {told.out}, {told.err}")
    check(same.read_bytes() == page.read_bytes(), "the same bytes for any number of threads")
    cut = heads(MODEL, "--text", written("long.txt", LINES * 20), "--whole", "--cut", "16", "--json", "--random", "0")
    check_good(cut, "--cut")
    found = json.loads(cut.out)
    check(found["texts"] > 15 and found["tokens"] <= 16 * found["texts"], f"--cut: {found['texts']}, {found['tokens']}")
    page.unlink()
    piped = few("--text", path, "-o", "-", "-q")
    check(piped.out == same.read_bytes(), "-o - writes the page alone")
    check_good(heads(MODEL, "-o", page, "--random", "2"), "a page of random tokens alone")
    check("random_induction" in page.read_text(), "it has their scores")
    page.unlink()
    for also in ("--json", "--details"):
        bad(USAGE, f"-o - and {also} both write to stdout", arguments=(MODEL, "--text", path, "-o", "-", also))
    bad(USAGE, "--corpus requires", arguments=(MODEL, "--text", path, "--corpus"))
    bad(6, str(FOLDER / "none"), arguments=(MODEL, "--text", path, "-o", FOLDER / "none/heads.html"))
    bad(BAD_INPUT, "no head matches the selection", arguments=(MODEL, "--text", path, "-o", page, "--role", "semantic",
                                                      "--min", "0.99", "--sort", "self"))
    bad(BAD_INPUT, "long.txt", "UTF-8", arguments=(MODEL, "--text", written("long.txt", b"good \xff"), "--whole",
                                                   "--cut", "16"))
    check(not page.exists(), "no page is left")


def without():
    """The removal of a head changes later layers, but not earlier ones."""
    path = written("lines.txt", LINES)
    found = json.loads(heads(MODEL, "--text", path, "--json", "--random", "0").out)
    whole = {head["name"]: head["scores"] for head in found["heads"]}
    result = heads(MODEL, "--text", path, "--json", "--random", "0", "--without", "L0H1,0.2")
    check_good(result, "--without")
    less = json.loads(result.out)
    check(less["without"] == ["L0H1", "L0H2"], f"without: {less['without']}")
    for head in less["heads"]:
        same = head["scores"] == whole[head["name"]]
        check(same == (head["layer"] == 0), f"{head['name']}: {'the same' if same else 'other'} scores")
    late = json.loads(heads(MODEL, "--text", path, "--json", "--random", "0", "--without", "L1H0").out)
    check(all(head["scores"] == whole[head["name"]] for head in late["heads"]), "the last layer's change nothing before it")
    bad(USAGE, "L9H9", arguments=(MODEL, "--text", path, "--without", "L9H9"))
    bad(USAGE, "no model to run", arguments=("--attention", path, "--without", "L0H0"))


def moved():
    """Options that moved to other subcommands are rejected."""
    for option, now in (("ablate", "ablate --with"), ("ablate-heads", "ablate --heads"), ("pairs", "ablate --pairs"),
                        ("ablate-texts", "ablate --max-texts"), ("task", "ablate --task"), ("paths", "ablate --paths"),
                        ("circuits", "circuits"), ("offset", "circuits --offset"),
                        ("composition", "circuits --composition")):
        bad(USAGE, f"--{option} is now 'multihead {now}'", arguments=(MODEL, "a text", f"--{option}", "zero"))


def interrupted():
    """After Ctrl-C, the command prints the result and the number of measured texts."""
    path = written("many.txt", LINES * 20)
    result = heads(MODEL, "--text", path, "--json", "--threads", 1, **watched(look=40, signal=signal.SIGINT))
    told = re.fullmatch(r"interrupted: (\d+) of 40 texts were measured", " ".join(result.errors))
    check(result.code == -signal.SIGINT and told, f"exit {result.code}, {result.errors}")
    check(told and json.loads(result.out)["texts"] == int(told[1]) > 0, "as many texts as it says")


def clusters():
    """Distances between the heads of a layer do not depend on other options."""
    path = written("lines.txt", LINES)
    found = json.loads(few("--text", path, "--clusters", "0.2", "--json").out)
    check(found["cut"] == 0.2 and len(found["distances"]) == LAYERS, "distances")
    for layer in found["distances"]:
        for name in ("maps", "cosine", "cka"):
            matrix = layer[name]
            check(all(abs(matrix[g][h] - matrix[h][g]) < 1e-12 for g in range(HEADS)
                      for h in range(HEADS)), f"{name} is symmetric")
            check(all(abs(matrix[h][h] - (name != "maps")) < 1e-6 for h in range(HEADS)),
                  f"{name} of a head and itself: {matrix}")
        for g in range(HEADS):
            for h in range(HEADS):
                check(0 <= layer["maps"][g][h] <= 1, "maps from 0 to 1")
    everything = json.loads(few("--text", path, "--clusters", "1", "--json").out)
    check(all(layer["clusters"] == [0] * HEADS for layer in everything["distances"]), "one cluster")
    nothing = json.loads(few("--text", path, "--clusters", "0", "--json").out)
    check(all(layer["clusters"] == list(range(HEADS)) for layer in nothing["distances"]),
          "each its own")
    plain = json.loads(few("--text", path, "--json").out)
    check(plain["heads"] == found["heads"], "scores do not depend on --clusters")
    bad(USAGE, "--clusters 2: expected", arguments=[MODEL, "a", "--clusters", "2"])
    bad(USAGE, "--clusters requires texts", arguments=[MODEL, "--clusters", "0.2"])
    bad(USAGE, "--clusters and --csv", arguments=[MODEL, "a", "--clusters", "0.2", "--csv"])


def reports():
    """view -o reports the same for each head as `heads` on the same text."""
    text = "The cat sat on the mat and the dog saw the cat ."
    check_good(view(MODEL, text, "-o", FOLDER / "roles.html"), "view -o")
    page = (FOLDER / "roles.html").read_text()
    data = json.loads(re.search(r'type="application/json"[^>]*>(.*?)</script>', page, re.S)[1])
    found = json.loads(heads(MODEL, text, "--random", "4", "--json").out)["heads"]
    check(len(data["panels"]) == len(found) and data["columns"], "panels and a table")
    for panel, head in zip(data["panels"], found):
        badge = head["roles"][0]["name"] if head["roles"] else None
        if badge in ("first token", "separator", "broad") and "attends to \u201c" in panel["detail"]:
            badge = None  # the link has more information
        check(panel["badge"] == badge, f"{panel['name']}: badge {panel['badge']}, not {badge}")
        for role in head["roles"]:
            check(role["evidence"] in panel["detail"], f"{panel['name']}: {role['evidence']}")
    damaged = copy_model("damaged")
    header, weights = read_safetensors(damaged / "model.safetensors")
    begin = header["encoder.layer.0.attention.self.query.weight"]["data_offsets"][0]
    weights = weights[:begin] + b"\xff\xff\xff\xff" + weights[begin + 4:]
    (damaged / "model.safetensors").write_bytes(safetensors_bytes(header, weights))
    result = view(damaged, text, "-o", FOLDER / "nan.html")
    check(result.code == 0 and "NaN" in result.errors[0] and len(result.errors) == 3,
          f"weights that are not numbers: {result.errors}")
    bad(BAD_INPUT, "not finite", arguments=[damaged, text, "--random", "0"])


def trained_models():
    """The words of a task's gold links are in the model's vocabulary."""
    folder = FOLDER / "ioi"
    check(run("train", "ioi", "--steps", "3", "--no-report", "-q", "-o", folder).code == 0, "train")
    printed = run("train", "ioi", "--print", "40")
    check_good(printed, "train --print")
    check(printed.out.count(b"\tanswer\t") == 40, "a link in each")
    gold = written("ioi.conllu", printed.out)
    found = json.loads(heads(folder, "--conllu", gold, "--json").out)
    for head in found["heads"]:
        check(head["relations"]["answer"]["forward"]["accuracy"]["rows"] == 40, "all links counted")
        check(head["scores"]["next"] is None, "no causal row sees the next token")
    if LONG:  # after a minute of training, gold links identify the head that resolves "it"
        check(run("train", "sentences", "--no-report", "-q", "-o", FOLDER / "demo").code == 0, "demo")
        gold = written("demo.conllu", run("train", "sentences", "--print", "200").out)
        best = json.loads(heads(FOLDER / "demo", "--conllu", gold, "--sort", "answer",
                                "--json").out)["heads"][0]
        answer = best["relations"]["answer"]["forward"]
        check(answer["accuracy"]["value"] >= 0.9 and answer["baseline"] < 0.3, f"{answer}")
        check("answer" in [role["name"] for role in best["roles"]], f"{best['roles']}")
    refused = run("train", "reverse", "--print", "4")
    check_error(refused, UNSUPPORTED, "two texts", command="train")
    bad(BAD_INPUT, "line 3", "not one of the model's", arguments=[folder, "--text",
        written("unknown.txt", "Ada Bob\n\nnonsense Ada\n")])


def maps_from_elsewhere():
    """Scores of maps that view writes equal the model's, except two scores that need more than
    weights and tokens. Further tests are for all shapes and types, and for rejected input."""
    maps, half, stacked = (FOLDER / f"{name}.npy" for name in ("maps", "half", "stacked"))
    sentence = "The cat sat. The dog sat."
    check_good(run("view", MODEL, sentence, "--npy", maps, "--json", FOLDER / "maps.json"), "maps")
    told = json.loads((FOLDER / "maps.json").read_text())["tokens"]
    tokens = written("tokens.json", json.dumps([t["token"] for t in told]))
    arguments = ["--attention", maps, "--tokens", tokens]
    model = list(csv.DictReader(io.StringIO(
        heads(MODEL, sentence, "--random", 0, "--csv").out.decode())))
    found = list(csv.DictReader(io.StringIO(heads(*arguments, "--csv").out.decode())))
    check(len(found) == LAYERS * HEADS, f"{len(found)} heads")
    unknown = re.compile("(rare|rarest|rarest_two|cosine)(_|$)")
    for mine, theirs in zip(found, model):
        different = [name for name in theirs
                     if name != "roles" and not unknown.match(name) and mine[name] != theirs[name]]
        check(not different, f"L{mine['layer']}H{mine['head']}: {different}")
    check(any(row["duplicate_rows"] != "0" for row in found), "tokens make duplicates known")

    shape, _, values = read_npy(maps.read_bytes())
    check(shape[:2] == (LAYERS, HEADS), f"the shape of the maps: {shape}")
    write_npy(stacked, (LAYERS, 1, *shape[1:]), values, dtype="<f8")
    check(heads("--attention", stacked, "--csv").out == heads("--attention", maps, "--csv").out,
          "a batch of one, in float64")
    twice = json.loads(heads("--attention", maps, "--attention", stacked, "--json").out)
    check(twice["texts"] == 2 and twice["tokens"] == 2 * len(told), "two files are two texts")
    write_npy(half, (2, 2), [0, 1, 1, 0], dtype="<f2")
    check("1 text, 2 tokens" in heads("--attention", half).lines[0], "one map of float16")
    write_npy(half, (3, 3), [1, 0, 0, 1, 0, 0, 0, 1, 0], dtype="<f4")
    row = next(csv.DictReader(io.StringIO(heads("--attention", half, "--csv").out.decode())))
    check(float(row["previous"]) == 1 and row["next_rows"] == "0", f"a causal map: {row['previous']}")
    check(heads("--attention", half).errors == ["next: --details for the evidence"], "what is next")

    for name, shape, values, code, parts in (
            ("wide", (2, 3), [0.5] * 6, UNSUPPORTED, ("2 rows and 3 columns",)),
            ("scores", (2, 2), [3, 1, 1, 2], BAD_INPUT, ("scores.npy", "after softmax")),
            ("negative", (2, 2), [1, 0, -1, 2], BAD_INPUT, ("after softmax",)),
            ("batch", (2, 2, 2, 2, 2), [0.5] * 32, BAD_INPUT, ("5 dimensions", "separately")),
            ("line", (4,), [0.25] * 4, BAD_INPUT, ("1 dimensions",))):
        write_npy(FOLDER / f"{name}.npy", shape, values)
        bad(code, *parts, arguments=["--attention", FOLDER / f"{name}.npy"])
    few = written("few.txt", "a\nb\n")
    bad(BAD_INPUT, "2 tokens", arguments=["--attention", maps, "--tokens", few])
    bad(BAD_INPUT, "of one model", arguments=["--attention", maps, "--attention", half])
    bad(NO_INPUT, "none.npy", arguments=["--attention", "none.npy"])
    bad(USAGE, "a model or maps", arguments=[MODEL, "--attention", maps])
    bad(USAGE, "requires --attention", arguments=[MODEL, "--tokens", few])
    bad(USAGE, "one --tokens per --attention", arguments=["--attention", maps, "--attention", half, "--tokens", few])
    for option in (["--text", few], ["--random", 3], ["--clusters", 0.2], ["--truncate"], ["--words"]):
        bad(USAGE, "no model to run", arguments=["--attention", maps, *option])


def bad_input():
    bad(USAGE, "docs/heads.md lists them", arguments=[MODEL, TEXT, "--role", "bogus"])
    bad(USAGE, "MODEL is missing", arguments=["--text", "x"])
    bad(USAGE, "nothing to measure on", arguments=[MODEL, "--random", "0"])
    bad(USAGE, "--csv and --json", arguments=[MODEL, "--csv", "--json"])
    for also in (["--json"], ["--csv"], ["--text", "x"], ["--without", "L0H0"]):
        bad(USAGE, f"--words and {also[0]} exclude each other", arguments=[MODEL, "--words", *also])
    bad(USAGE, "--whole", arguments=[MODEL, "--whole"])
    bad(USAGE, "--predict", arguments=[MODEL, "--predict"])
    bad(USAGE, "no such score; expected", arguments=[MODEL, "a", "--sort", "beauty"])
    for heading, score in (("prev", "previous"), ("sep", "separator"), ("induc", "induction"), ("previuos", "previous")):
        bad(USAGE, f"no such score; did you mean '{score}'?", arguments=[MODEL, "a", "--sort", heading])
    bad(USAGE, "--min requires", arguments=[MODEL, "a", "--min", "0.5"])
    bad(USAGE, "did you mean 'previous token'", arguments=[MODEL, "a", "--role", "previos token"])
    bad(USAGE, "--head", arguments=[MODEL, "a", "--head", "9.9"])
    bad(NO_INPUT, "no-such-folder", arguments=["no-such-folder", "a"])
    bad(NO_INPUT, "nowhere", arguments=[MODEL, "--text", "nowhere.txt"])
    bad(NO_INPUT, "nowhere", arguments=[MODEL, "--conllu", "nowhere.conllu"])
    bad(BAD_INPUT, "holds no text", arguments=[MODEL, "--text", written("blank.txt", " \n\t\n")])
    bad(BAD_INPUT, "line 2", "UTF-8", arguments=[MODEL, "--text",
                                                 written("latin.txt", b"fine\ncaf\xe9\n")])
    bad(BAD_INPUT, "line 1", "too many tokens, the limit is 128", arguments=[
        MODEL, "--text", written("long.txt", "the " * 400)])
    check(heads(MODEL, "--text", FOLDER / "long.txt", "--truncate").code == 0, "--truncate")
    bad(BAD_INPUT, "the text is empty", arguments=[MODEL, ""])


def word(number, form="cat", head="0", relation="root", misc="_"):
    return "\t".join([str(number), form, "_", "_", "_", "_", str(head), relation, "_", misc]) + "\n"


def bad_conllu():
    """Each file is rejected with its line number."""
    cases = {
        "nine columns": ("1\ta\t_\t_\t_\t_\t0\troot\t_\n", "line 1", "ten columns"),
        "eleven columns": ("1\ta\t_\t_\t_\t_\t0\troot\t_\t_\t_\n", "line 1", "ten columns"),
        "spaces": ("1 a _ _ _ _ 0 root _ _\n", "line 1", "ten columns"),
        "begins at 2": (word(2), "line 1", "1, 2, 3"),
        "a gap": (word(1) + word(3), "line 2", "1, 2, 3"),
        "twice": (word(1) + word(1), "line 2", "1, 2, 3"),
        "negative": (word(-1), "line 1", "ID"),
        "huge": (word("99999999999999999999"), "line 1", "1, 2, 3"),
        "head beyond": (word(1) + word(2, head=3, relation="obj"), "line 2", "beyond"),
        "head no number": (word(1, head="x", relation="obj"), "line 1", "HEAD"),
        "head negative": (word(1, head="-1", relation="obj"), "line 1", "HEAD"),
        "coref beyond": (word(1, misc="Coref=9"), "line 1", "beyond"),
        "coref zero": (word(1, misc="Coref=0"), "line 1", "Coref"),
        "coref text": (word(1, misc="A=b|Coref=it"), "line 1", "Coref"),
        "no form": (word(1, form=""), "line 1", "FORM"),
        "odd relation": (word(1, relation="a\x1b[31m"), "line 1", "DEPREL"),
        "long relation": (word(1, relation="a" * 65), "line 1", "DEPREL"),
        "range backwards": (word("2-1"), "line 1", "3-4"),
        "range too late": (word(1) + word("1-2"), "line 2", "3-4"),
        "range in range": (word("1-3") + word("2-3"), "line 2", "3-4"),
        "range unfinished": (word("1-3") + word(1) + "\n", "line 3", "missing"),
        "not UTF-8": (word(1).encode() + b"2\tcaf\xe9\n", "line 2", "UTF-8"),
        "zero byte": (word(1).encode() + b"# \0\n", "line 2", "zero byte"),
        "empty": ("", "holds no sentence"),
        "comments alone": ("# a\n\n# b\n", "holds no sentence"),
        "many relations": ("".join(word(i, head=1, relation=f"r{i}") for i in range(1, 300)),
                           "line 25", "256"),
    }
    for name, (text, *parts) in cases.items():
        bad(BAD_INPUT, *parts, arguments=[MODEL, "--conllu", written("bad.conllu", text)])
    fine = {"no last line end": word(1, "the") + word(2, "cat").rstrip("\n"),
            "CRLF": word(1, "the").replace("\n", "\r\n") + "\r\n",
            "a link to itself": word(1, "the") + word(2, "cat", head=2, relation="dep"),
            "odd words": word(1, "\u200b") + word(2, "cat", head=1, relation="dep"),
            "misc without value": word(1, "the", misc="SpaceAfter|X=|=y|=")}
    for name, text in fine.items():
        result = few("--conllu", written("odd.conllu", text), "-q")
        check(result.code == 0, f"{name}: exit {result.code}, {result.errors}")


def damaged_conllu():
    """Any changed byte gives a result or an error of one line."""
    source = random.Random(1)
    data = GOLD.encode()
    for _ in range(40):
        copy = bytearray(data)
        for _ in range(source.randint(1, 4)):
            at = source.randrange(len(copy))
            if source.random() < 0.3:
                del copy[at:at + source.randint(1, 9)]
            else:
                copy[at] = source.choice(b"\t\n\r\0-.=|019_ \xff") if source.random() < 0.7 \
                    else source.randrange(256)
        result = heads(MODEL, "--conllu", written("damaged.conllu", bytes(copy)), "--random", "0",
                       "-q")
        check(result.code in (0, BAD_INPUT) and len(result.errors) <= 1,
              f"{bytes(copy)!r}: exit {result.code}, {result.errors}")


table()
widths()
orders()
json_and_csv()
clusters()
corpora()
without()
moved()
interrupted()
reports()
trained_models()
maps_from_elsewhere()
bad_input()
bad_conllu()
damaged_conllu()
check(heads().code == USAGE, "no arguments: short help")
finish()
