"""Compare figures in the running text of pages with their sources.

A row of FIGURES: the page; its words, as a pattern with a group for each figure, whose blanks also match line breaks;
the source; a pattern with the same number of groups that finds the figures there; and the tolerance. Sources:

  PRINTED    output of the page's commands, compared if all of them are run
  a file     its text, so that two pages cannot disagree, nor a page with the output that it shows
  None       no source; the pattern is replaced by the reason

Tolerance: a number, or BELOW: less than the page says.

For pages in WHOLE, every figure in running text must be in a row.
"""
import re

PRINTED, BELOW = "PRINTED", "below"
WORDS = {word: n for n, word in enumerate("no one two three four five six seven eight nine ten".split())}
WHOLE = ("README.md",)
FIGURES = [
    ("README.md", r"On Debian (\d+) or", "docs/dependencies.md", r"Debian (\d+)", 0),
    ("README.md", r"falls from over (\d+) % to ([\d.]+) %", "docs/training.md",
     r"\| 0 \| 1 \| 250 \| 9 \| (\d+)\.\d / 100 % \|[^|]*\| ([\d.]+) %", 0),
    ("README.md", r"\*\*([\d.]+) to ([\d.]+)\*\* \| times torch's", "docs/library.md",
     r"largest error\s+is ([\d.]+)\s+to ([\d.]+)\s+of", 0),
    ("README.md", r"all-MiniLM-L6-v2, (\d+) tokens", "docs/library.md", r"with (\d+)\s+tokens\s+the\s+largest error", 0),
    ("README.md", r"\*\*(\d+) %\*\* \| of the peak", "docs/speed.md", r"\| forward h8 d64 n2048 \| (\d+)/", 0),
    ("README.md", r"forward over ([\d,]+) tokens; ([\d.]+) to ([\d.]+) times as fast as the fastest of torch",
     "docs/speed.md", r"attention over ([\d,]+) tokens and is ([\d.]+)\s+to ([\d.]+) times as fast", 0),
    ("README.md", r"\*\*([\d.]+) MB\*\* \| of memory beyond the tensors, for full attention over 65,536 keys",
     "docs/long-sequences.md", r"\| full \| 65,536 \| [\d.]+ \| [\d.]+ \| ([\d.]+) \|", 0),
    ("README.md", r"fetches (\d+) MB; needs python3-venv", "tools/get-minilm", r"size='(\d+) MB'", 0),
    ("README.md", r"SmolLM2-135M, fetches (\d+) MB", "tools/get-smollm2", r"size='(\d+) MB'", 0),
    ("script/demo", r"fetches (\d+) MB", "tools/get-minilm", r"size='(\d+) MB'", 0),
    ("docs/tutorial-induction.md", r"fetches: (\d+) MB", "tools/get-smollm2", r"size='(\d+) MB'", 0),
    ("docs/researcher.md", r"# (\d+) MB", "tools/get-smollm2", r"size='(\d+) MB'", 0),
    ("docs/textbook.md", r"512 parameters[^`]*`(\d+) parameters, (\d+) of", "examples/parameters.expected",
     r"width +512,.*: +(\d+) parameters, (\d+) of", 0),
    ("docs/textbook.md", r"768, 12 heads[^`]*`(\d+) parameters, (\d+) of", "examples/parameters.expected",
     r"width +768,.*: +(\d+) parameters, (\d+) of", 0),
    ("docs/textbook.md", r"4096, 32 heads[^`]*`(\d+) parameters, (\d+) of", "examples/parameters.expected",
     r"width +4096,.*: +(\d+) parameters, (\d+) of", 0),
    ("docs/researcher.md", r"puts ([\d.]+) of its weight on the token that", "docs/researcher.md",
     r"\nL18H6 .* induction ([\d.]+)", 0),
    ("docs/researcher.md", r"attends to the first token \(([\d.]+)\)", "docs/researcher.md",
     r"\nL18H6 .*, first token ([\d.]+)", 0),
    ("docs/researcher.md", r'of "d" falls by ([\d.]*\d)', "docs/researcher.md", r"\nL18H6 .* ([\d.]+) +#\d+\n", 0.005),
    ("docs/researcher.md", r"larger effect \(([\d.]+)\)", "docs/researcher.md", r"\nL1H5 .* ([\d.]+) +#\d+\n", 0.005),
    ("docs/researcher.md", r'"was", falls by only ([\d.]*\d)', "docs/researcher.md", r"\nL13H8 .* ([\d.]+) +#\d+\n", 0.005),
    ("docs/tutorial-induction.md", r"puts ([\d.]+) of its attention", "docs/tutorial-induction.md",
     r"\nL18H6 .* induction ([\d.]+)", 0),
    ("docs/tutorial-induction.md", r"L17H4 falls from ([\d.]+) to", "docs/tutorial-induction.md",
     r"\nL17H4 .* induction ([\d.]+)", 0),
    ("docs/tutorial-induction.md", r"L18H6 keeps ([\d.]+), because", "docs/tutorial-induction.md",
     r"--without L16H0\n[^`]*\nL18H6 .* induction ([\d.]+)", 0),
    ("docs/ablation.md", r"rises by ([\d.]+) nats", "docs/ablation.md", r"\nL18H6 +\+([\d.]+)", 0.05),
    ("README.md", r"strongest is L18H6 \(([\d.]+)\)", PRINTED, r"\nL18H6 .* induction ([\d.]+)", 0),
    ("README.md", r"`heads` finds (\w+) induction heads", PRINTED, r"((?:\nL\d+H\d+ .* induction .*)+)", 0),
    ("README.md", r'puts ([\d.]+) of its weight', PRINTED, r"\nL18H6 +([\d.]+) +#", 0.005),
    ("README.md", r"prediction falls by ([\d.]*\d)", PRINTED, r"\nL18H6 +[\d.]+ +#\d+ +[\d.]+ +#\d+ +([\d.]+)", 0.005),
    ("README.md", r"heads among (\d+);", "docs/researcher.md", r"Which of the (\d+) heads", 0),
    ("README.md", r"takes less than (\d+) MB of memory", PRINTED, r"memory of a command, at most (\d+) MB", BELOW),
    ("README.md", r"Training usually takes less than (half a minute)", None, "a time: training.md has a table", None),
    ("README.md", r"that need torch, (\d+) GB", None, "of the disk: of packages of others", None),
    ("README.md", r"in float(32), both against float(64)", None, "names of types", None),
    ("README.md", r"of one Zen (4) core", None, "a name", None),
    ("README.md", r"full attention over (65,536) keys", None, "the row that is compared above", None),
    ("README.md", r"maps of a small BERT's (72) heads", "docs/heads-minilm.md", r"\b(72) heads", 0),
]


def number(text):
    if "\n" in text:
        return len(text.strip().split("\n"))
    return float(WORDS.get(text, text.replace(",", "")))


def differ(said, found, how):
    """True if the page's figure and the one found differ by more than the tolerance."""
    said, found = [[number(text) for text in texts] for texts in (said, found)]
    if how == BELOW:
        return not found[0] < said[0]
    return len(said) != len(found) or any(abs(a - b) > how for a, b in zip(said, found))


def prose(text):
    """The text without numbers outside sentences: blocks, comments, code, link targets, and names that contain a digit
    (L18H6, int8, AVX2) become blanks."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group(0))
    for pattern in (r"<!--.*?-->", r"^```.*?^```", r"`[^`]*`", r"\]\([^)]*\)", r"<img[^>]*>", r"\b[A-Za-z][\w-]*\d(?:[\w.-]*\w)?"):
        text = re.sub(pattern, blank, text, flags=re.S | re.M)
    return text


def wrong(page, text, printed, root):
    """(line from 0, error) for each wrong figure; printed: None if not all commands of the page were run."""
    spans = []
    for of, words, source, pattern, how in FIGURES:
        if of != page:
            continue
        match = re.search(words.replace(" ", r"\s+"), text)
        if not match:
            yield 0, f"figures.py: the page does not say '{words}'"
            continue
        spans += [match.span(group) for group in range(1, match.re.groups + 1)]
        if source is None or source == PRINTED and printed is None:
            continue
        there = re.search(pattern, "\n" + printed if source == PRINTED else (root / source).read_text(encoding="utf-8"))
        line = text[:match.start()].count("\n")
        if not there:
            yield line, f"figures.py: {source} does not have '{pattern}'"
        elif differ(match.groups(), there.groups(), how):
            yield line, f"the page says {' '.join(match.groups())}, {source} {' '.join(there.groups()).strip()}"
    if page in WHOLE:
        for figure in re.finditer(r"\d[\d,.]*\d|\d", prose(text)):
            if not any(begin <= figure.start() and figure.end() <= end for begin, end in spans):
                yield text[:figure.start()].count("\n"), f"figures.py has no row for {figure.group(0)}"
