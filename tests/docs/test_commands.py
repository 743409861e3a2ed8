"""Tests that commands.py and figures.py report the errors of a page, and nothing else."""
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import commands  # noqa: E402
import figures  # noqa: E402

failures = []


def page(text, update=False):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "page.md"
        path.write_text(text, encoding="utf-8")
        made = commands.Page(path)
        made.run(update)
        made.after = path.read_text(encoding="utf-8")
    return made


def expect(name, text, ran, *wrong):
    """Check the number of commands run, with one failure for each text in `wrong`."""
    made = page(text)
    good = made.ran == ran and len(made.failures) == len(wrong) and \
        all(part in failure for part, failure in zip(wrong, made.failures))
    if not good:
        failures.append(f"{name}: {made.ran} run, {made.failures}")


def console(*lines):
    return "\n".join(["# Page", "", "```console", *lines, "```", ""])


expect("as shown", console("$ echo one", "one", "$ echo two >&2", "two"), 2)
expect("another line", console("$ echo one", "two"), 1, "prints other lines: echo one")
expect("a line too few", console("$ echo one; echo two", "one"), 1, "+two")
expect("a line too many", console("$ echo one", "one", "two"), 1, "-two")
expect("nothing shown", console("$ echo one"), 1, "+one")
expect("any lines", console("$ seq 9", "1", "...", "9"), 1)
expect("any lines, wrong end", console("$ seq 9", "1", "...", "8"), 1, "prints other")
expect("any characters", console("$ echo took 17 ms", "took … ms"), 1)
expect("progress", console("$ echo line 3, 20 s, about 6 s left >&2; echo one", "one"), 1)
expect("a pattern is text", console("$ echo axb", "a.b"), 1, "prints other")
expect("continued", console("$ echo one \\", "    two", "one two"), 1)
expect("status", console("$ exit 3"), 1, "exit status 3, not 0")
expect("status that is shown",
       "# P\n\n<!-- commands: exit 3 -->\n" + console("$ exit 3").split("\n", 2)[2], 1)
expect("a marker is for one block", "# P\n\n<!-- commands: exit 3 -->\n```sh\nexit 3\n```\n\n"
       "```sh\nexit 3\n```\n", 2, "exit status 3, not 0")
expect("skipped", "# P\n\n<!-- commands: skip network -->\n```sh\nexit 3\n```\n\n```sh\ntrue\n```\n", 1)
expect("a page skipped", "# P\n<!-- commands: skip-page all -->\n\n```sh\nexit 3\n```\n\n    cc --none\n", 0)
expect("what a page needs is there",
       "<!-- commands: needs-page ./tests ./README.md json -->\n```sh\ntrue\n```\n", 1)
expect("what a page needs is missing",
       "<!-- commands: needs-page ./tests ./none.md -->\n```sh\ntrue\n```\n```sh\ntrue\n```\n", 0)
expect("what a block needs is missing",
       "<!-- commands: needs ./none.md -->\n```sh\nexit 3\n```\n```sh\ntrue\n```\n", 1)
expect("a module is missing", "<!-- commands: needs no_such_module -->\n```sh\nexit 3\n```\n", 0)
LONG = "<!-- commands: long minutes -->\n```sh\nexit 3\n```\n\n```sh\ntrue\n```\n"
for commands.LONG, ran, wrong in ((False, 1, ()), (True, 2, ("exit status 3",))):
    expect(f"long blocks, {commands.LONG}", LONG, ran, *wrong)
    expect(f"long pages, {commands.LONG}", LONG.replace("long", "long-page"), 2 * commands.LONG, *wrong)
expect("python", "```python\nimport multihead\nname = 'one'\nif name:\n    print(name)\n\n"
       "assert name != 'one'\n```\n", 1, "exit status 1")
expect("python of other tests", "<!-- commands: exit 3 -->\n```python\n>>> 1 / 0\n```\n```sh\nexit 3\n```\n", 1)
expect("usage", "Text:\n\n    multihead view [options] MODEL\n    multihead train TASK [--no]\n", 0)
expect("usage and examples", "Text:\n\n    multihead view [options] MODEL\n\n    multihead nothing\n", 1,
       "exit status 2")
expect("indented formula", "Text:\n\n    o = softmax(q k^T) v\n", 0)
expect("other languages", "```c\nreturn 1;\n```\n\n```\n$ exit 1\n```\n", 0)
expect("names", "Here `MODEL` stands for `a/b`.\n" + console("$ echo MODEL MODELS", "a/b MODELS"), 1)
expect("names, from there on", console("$ echo MODEL", "MODEL") + "`MODEL` stands for `a/b`.\n", 1)
SHORT = '<!-- commands: short "echo 9=echo 9 1" -->\n' + console("$ echo 9", "9")
for commands.LONG, wrong in ((True, ()), (False, ("+9 1",))):
    expect(f"shorter, {commands.LONG}", SHORT, 1, *wrong)
# Hidden text creates no files, names or other commands.
for hidden in ("first\necho text > new.txt\n", "first echo text > new.txt ", "first-page true ", "let MODEL=a/b ",
               "python\nimport numpy\n", "skip reason\ntrue\n", 'short "echo 9=true" ', 'short "echo=echo 1; true" ',
               'short "echo 9" ', 'short "echo=echo $(true)" '):
    try:
        expect(hidden, f"<!-- commands: {hidden}-->\n" + console("$ echo 9", "9"), -1)
    except SystemExit:
        pass
expect("files stay", console("$ echo 1 > one", "$ cat one", "1"), 2)
expect("the project's files", console("$ ls include", "multihead"), 1)

wrong = console("$ echo one", "two", "three", "$ echo four", "four", "$ seq 3")
right = console("$ echo one", "one", "$ echo four", "four", "$ seq 3", "1", "2", "3")
if page(wrong, update=True).after != right:
    failures.append("--update does not write what is printed")

# Each figure in the running text of README.md is compared with a source, and no two pages differ.
for of in sorted({row[0] for row in figures.FIGURES}):
    for line, why in figures.wrong(of, (commands.ROOT / of).read_text(encoding="utf-8"), None, commands.ROOT):
        failures.append(f"{of}:{line + 1}: {why}")
PRINTS = """
L18H6   0.14     -  0.01  0.99  0.01  0.90 induction 0.90, first token 0.99
L17H4   0.14     -  0.01  0.98  0.00  0.84 induction 0.84, first token 0.98
L3H4    0.14     -  0.01  0.98  0.00  0.84 previous 0.84
head      weight  rank  arrives  rank   effect  rank
L18H6     0.9115    #1   0.9679    #1   0.3928    #6
memory of a command, at most 158 MB"""
README = (commands.ROOT / "README.md").read_text(encoding="utf-8").replace("`heads` finds nine", "`heads` finds two")
for old, new, count in (("", "", 0), ("finds two", "finds three", 1), ("L18H6 (0.90)", "L18H6 (0.91)", 1),
                        ("0.91 of its", "0.92 of its", 1), ("falls by 0.39", "falls by 0.4", 1),
                        ("than 200 MB", "than 158 MB", 1), ("12.8 %", "11.8 %", 1),
                        ("fetches 84", "fetches 91", 1), ("## Read on", "## Read on\n\nIn 17 steps.", 1),
                        ("0.9 MB", "1.2 MB", 1), ("among 270", "among 72", 1), ("among 270", "of 270", 2)):
    found = list(figures.wrong("README.md", README.replace(old, new), PRINTS, commands.ROOT))
    if len(found) != count:
        failures.append(f"figures: '{new}' for '{old}': {found}")

# Figures below a marker: each is a number of the source, after rounding, or a hundredth of one.
TABLE = "<!-- figures: {} -->\n\n| L1H2 | {} |\n| 2 | {} |\n\nThe end: 99.\n"
for source, one, two, count in (("printed", "0.40", "1,250", 0), ("printed", "0.41", "1,250", 1), ("printed", "40 %", "7", 0),
                                ("printed", "40", "7", 1), ("printed", "0.4", "8", 1), ("not times", "0.5", "8", 0),
                                ("tests/docs/test_commands.py", "0.41", "1,250", 0), ("README.md", "0.123", "7", 2)):
    found = list(figures.wrong("page.md", TABLE.format(source, one, two), "took 0.402, 1250 of 7", commands.ROOT))
    if len(found) != count:
        failures.append(f"figures: {source} {one} {two}: {found}")
if list(figures.wrong("page.md", TABLE.format("printed", "3", "4"), None, commands.ROOT)):
    failures.append("figures: compared with what was not run")

for failure in failures:
    print("FAILED:", failure)
print(f"{len(failures)} failed")
sys.exit(1 if failures else 0)
