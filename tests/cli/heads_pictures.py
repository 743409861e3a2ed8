"""multihead heads --pictures: each top place has a picture with the tokens, marks and weights of
--json and 'view'. Further tests are for the selection of heads and measures, and for errors before
any work. The folder is complete or absent."""
import re
import signal
import sys
import xml.etree.ElementTree

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403
from watch import operations, watched  # noqa: E402

USAGE, BAD_INPUT, NO_OUTPUT = 2, 4, 6
TEXT_FILE = FOLDER / "some <b>.txt"
SENTENCES = ["The cat sat on the mat and the dog saw the cat by the river bank near the old tree.",
             "A dog sat on a mat and it saw the bank. The old cat saw the dog and sat on it by a tree."]
PLACED = ["previous", "next", "self", "duplicate", "induction", "distance", "entropy", "confidence"]
MARK = "#e5004c"


def heads(*arguments, **keywords):
    return run("heads", MODEL, "--text", TEXT_FILE, "--random", 0, *arguments, **keywords)


def drawn(folder, *arguments):
    done = heads("--pictures", folder, *arguments)
    if check_good(done, f"{arguments}"):
        check(f"wrote {folder}: {len(list((FOLDER / folder).glob('*.svg')))} pictures and index.html" in
              " ".join(done.errors), f"{done.errors}")
    return FOLDER / folder


def texts(path):
    """The texts of a picture, and the marked texts."""
    found = [node for node in xml.etree.ElementTree.parse(path).iter() if node.tag.endswith("text")]
    return ([node.text for node in found],
            [node.text for node in found if (node.get("fill") or "").lower() == MARK])


def same_as_json():
    """Every place of --json that requires a picture has one, with its tokens and weight."""
    folder = drawn("all", "--head", "L1H2")
    found = json.loads(heads("--json", "--corpus").out)
    head = next(one for one in found["heads"] if one["name"] == "L1H2")
    expected = {}
    for measure in PLACED:
        for rank, place in enumerate(head["places"].get(measure, [])[:3], 1):
            if place["value"] > 0:
                expected[f"L1H2-{measure}-{rank}.svg"] = place
    check({path.name for path in folder.iterdir()} == {*expected, "index.html"}, f"{sorted(expected)}")
    check(len(expected) >= 10, f"{len(expected)} places")
    page = (folder / "index.html").read_text()
    check("some <b>" not in page and "some &#60;b&#62;.txt" in page, "the file's name is escaped")
    for name, place in expected.items():
        maps = json.loads(view(MODEL, SENTENCES[place["text"]], "--head", "L1H2", "--json", "-").out)
        tokens = [token["token"] for token in maps["tokens"]]
        row = maps["layers"][0]["heads"][0]["weights"][place["row"]]
        said, marked = texts(folder / name)
        check(marked == [tokens[place["row"]], tokens[place["key"]]] or
              marked == [tokens[place["key"]], tokens[place["row"]]], f"{name}: {marked} {place}")
        check(abs(max(row) - row[place["key"]]) < 1e-6, f"{name}: the key is the strongest")
        line = (f"line {place['text'] + 1}, token {place['row']}, “{tokens[place['row']]}” attends most to token "
                f"{place['key']}, “{tokens[place['key']]}”: {row[place['key']]:.2f}")
        check(any(line in (text or "") for text in said), f"{name}: {line}: {said[:3]}")
        check(line in page, f"the page has {line}")
        check(f'src="{name}"' in page, f"the page shows {name}")


def which():
    folder = drawn("best")
    csv = [line.split(",") for line in heads("--csv").lines]
    names = {}
    for path in folder.glob("*.svg"):
        head, measure, rank = re.fullmatch(r"(L\dH\d)-([a-z]+)-([123])\.svg", path.name).groups()
        names.setdefault(measure, set()).add(head)
    check(len(names) >= 6, f"{names}")
    for measure, found in names.items():
        column = csv[0].index(measure)
        best = max(csv[1:], key=lambda line: float(line[column]))
        check(found == {f"L{best[0]}H{best[1]}"}, f"{measure}: {found} is not the best, {best[:2]}")
    folder = drawn("sorted", "--sort", "previous", "--layer", "1", "--png")
    check({path.name.split("-")[1] for path in folder.iterdir() if "-" in path.name} == {"previous"}, "--sort")
    for path in folder.glob("*.svg"):
        check(path.with_suffix(".png").read_bytes()[:4] == b"\x89PNG", "--png")
    check(heads("--state", "pictures.state").code == 0, "a state")
    again = drawn("state", "--state", "pictures.state")
    check({path.name: path.read_bytes() for path in again.iterdir()} ==
          {path.name: path.read_bytes() for path in (FOLDER / "best").iterdir()}, "a state draws the same")


def long_text():
    """A distant key has separate columns."""
    (FOLDER / "long.txt").write_text(" ".join([SENTENCES[0]] * 4))
    done = run("heads", MODEL, "--text", "long.txt", "--whole", "--random", 0, "--pictures", "long",
               "--head", "L0H0,L1H1,L1H0")
    check_good(done, "a long text")
    far = 0
    for path in (FOLDER / "long").glob("*.svg"):
        said, marked = texts(path)
        line = next(text for text in said if text and "the columns shown hold" in text)
        first, last, count, share = map(int, re.findall(r"\d+", line))
        check(last - first + 1 == 48 and last < count and 0 <= share <= 100, f"{path.name}: {line}")
        row, key = map(int, re.search(r"token (\d+),.*to token (\d+),", " ".join(t or "" for t in said)).groups())
        check(first <= row <= last and len(marked) == 2, f"{path.name}: {row} {key} {line}")
        gap = not first <= key <= last
        far += gap
        check(gap or "…" not in said, f"{path.name}: a gap for a near key")
    print(f"{far} far keys")


def errors():
    (FOLDER / "there").mkdir()
    for code, arguments, says in (
            (USAGE, [MODEL, "--text", TEXT_FILE, "--pictures", "there"], "exists; name a new folder"),
            (USAGE, [MODEL, "--pictures", "new"], "requires texts"),
            (USAGE, [MODEL, "--text", TEXT_FILE, "--png"], "requires --pictures"),
            (NO_OUTPUT, [MODEL, "--text", TEXT_FILE, "--pictures", "none/new"], "none"),
            (BAD_INPUT, [MODEL, "cat", "--pictures", "new"], "at least 8 tokens")):
        check_error(run("heads", *arguments), code, says, command="heads")
        check(not (FOLDER / "new").exists() and not list(FOLDER.glob("*.part-*")), f"{arguments}: nothing is left")


def stopped():
    """After a signal at any file operation, the folder is absent or complete."""
    chance, log = seeded(), FOLDER / "log"
    drawing = ("--pictures", "stopped", "--head", "L1H2")
    check_good(heads(*drawing, **watched(log=log)), "whole")
    count = len(operations(log))
    for number in range(1, count + 1) if LONG else [1, *chance.sample(range(2, count), 3), count]:
        shutil.rmtree(FOLDER / "stopped", ignore_errors=True)
        code = heads(*drawing, **watched(file=number, signal=signal.SIGINT)).code
        left = [path.name for path in FOLDER.glob("stopped*")]
        check(code == -signal.SIGINT and left in ([], ["stopped"]), f"{number}: {code}: {left}")
        check(not left or (FOLDER / "stopped" / "index.html").exists(), f"{number}: whole")


def main():
    TEXT_FILE.write_text("\n".join(SENTENCES) + "\n")
    same_as_json()
    which()
    long_text()
    errors()
    stopped()
    finish()


main()
