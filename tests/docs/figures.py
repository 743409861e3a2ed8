"""Compare figures in the running text of pages with their sources.

A row of FIGURES has the page; its words, as a pattern with a group for each figure, whose spaces
also match line breaks; the source; a pattern with the same number of groups that finds the figures
in the source; and the tolerance. Sources are:

  PRINTED    output of the page's commands, compared if all of them are run
  a file     its text, so that two pages cannot disagree, and a page cannot disagree with the output
             that it shows
  None       no source; the pattern is replaced by the reason

The tolerance is a number, or BELOW: the source has less than the page.

A marker compares all figures of the next paragraph, list or table of a page:

  <!-- figures: SOURCE ... -->    each is, after rounding, a number of a source: `printed` (the
                                  output of the page's commands) or a file; before " %", also a
                                  share times 100
  <!-- figures: not REASON -->    not compared: measured times, facts about other programs

In pages of WHOLE, every figure in running text must be in a row or below a marker, except 0, 1, 2,
years of citations, and the numbers of headings and lists.
"""
import re

PRINTED, BELOW = "PRINTED", "below"
WORDS = {word: n for n, word in enumerate("no one two three four five six seven eight nine ten".split())}
WHOLE = ("README.md", "docs/attribution.md", "docs/heads-minilm.md", "docs/lessons.md", "docs/researcher.md",
         "docs/tutorial-induction.md")
ROLES = ("previous token", "next token", "self", "first token", "separator", "duplicate token", "induction", "rare word",
         "syntactic", "semantic", "positional", "block", "broad", "horizontal", "diagonal", "local", "vertical", "two blocks")
FIGURES = [
    ("README.md", r"On Debian (\d+) or", "docs/dependencies.md", r"Debian (\d+)", 0),
    ("README.md", r"falls from over (\d+) % to ([\d.]+) %", "docs/training.md",
     r"\| 0 \| 1 \| 250 \| 9 \| (\d+)\.\d / 100 % \|[^|]*\| ([\d.]+) %", 0),
    ("README.md", r"\*\*([\d.]+) to ([\d.]+)\*\* \| times torch's largest float32 error", "docs/library.md",
     r"in float64\s+is ([\d.]+)\s+to ([\d.]+)\s+times torch's", 0),
    ("README.md", r"all-MiniLM-L6-v2, (\d+) tokens", "docs/library.md", r"with (\d+)\s+tokens,\s+the\s+largest error", 0),
    ("README.md", r"\*\*(\d+) %\*\* \| of the peak", "docs/speed.md", r"\| forward h8 d64 n2048 \| (\d+)/", 0),
    ("README.md", r"forward over ([\d,]+) tokens; ([\d.]+) to ([\d.]+) times as fast as the fastest of torch",
     "docs/speed.md", r"attention over ([\d,]+) tokens and is ([\d.]+)\s+to\s+([\d.]+) times as fast", 0),
    ("README.md", r"\*\*([\d.]+) MB\*\* \| of memory beyond the tensors, for full attention over 65,536 keys",
     "docs/long-sequences.md", r"\| full \| 65,536 \| [\d.]+ \| [\d.]+ \| ([\d.]+) \|", 0),
    ("README.md", r"fetches (\d+) MB; needs python3-venv", "tools/get-minilm", r"size='(\d+) MB'", 0),
    ("README.md", r"SmolLM2-135M, fetches (\d+) MB", "tools/get-smollm2", r"size='(\d+) MB'", 0),
    ("script/demo", r"fetches (\d+) MB", "tools/get-minilm", r"size='(\d+) MB'", 0),
    ("docs/tutorial-induction.md", r"fetches: (\d+) MB", "tools/get-smollm2", r"size='(\d+) MB'", 0),
    ("docs/researcher.md", r"# (\d+) MB", "tools/get-smollm2", r"size='(\d+) MB'", 0),
    ("docs/researcher.md", r"L10H5 maps (\d+) %", "tests/python/test_heads_rxnmapper.py", r"== (\d+)  # docs", 0),
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
    *(("docs/training.md", rf"\| {seed} \| (\d+) \| (\d+) \| \d+ \| ([\d.]+) / ([\d.]+) % \|[^|]*\| ([\d.]+) %", PRINTED,
       rf"(?s)^(?:.*?Goal reached after ){{{seed + 1}}}(?=\d+ steps of try (\d+))(\d+) steps.*?"
       r"Right on held-out.*?tired ([\d.]+) %, wide ([\d.]+) %.*?without it ([\d.]+) %", 0) for seed in (0, 1)),
    ("docs/ablation.md", r"bootstrap, ([\d,]+) resamples", "src/analysis/effect_texts.c", r"REPLICATES = (\d+)", 0),
    ("docs/ablation.md", r"The best (\d+): exactly", "cli/ablate/cmd_ablate.c", r"exactly; default (\d+)", 0),
    ("docs/ablation.md", r"pairs of the best (\d+)\*\*", "cli/ablate/cmd_ablate.c", r"best N heads; default (\d+)", 0),
    ("docs/ablation.md", r"are used \(default (\d+)\)", "cli/ablate/cmd_ablate.c", r"spaced; default (\d+)", 0),
    ("docs/traps.md", r"weights of ([\d.]+) and reads", "tests/unit/test_traps.c", r"(0\.333)", 0),
    ("docs/heads.md", r"over at least (\d+) rows", "include/multihead/heads.h", r'X\(PREVIOUS, [^)]*VALUE, (\d+)', 0),
    ("docs/heads.md", r"syntactic: (\d+) texts or links", "include/multihead/heads.h", r'X\(LINKS, [^)]*VALUE, (\d+)', 0),
    ("docs/heads.md", r"at least (0\.\d+) above chance", "src/analysis/head_roles.c", r"above_chance = ([\d.]+)", 0),
    ("docs/heads.md", r"<= (\d+) \(`near_tokens`\)", "src/analysis/head_measures.c", r"NEAR_TOKENS = (\d+)", 0),
    ("docs/heads.md", r"of -(\d+) \.\. (\d+) \(`farthest_offset`\)", "src/analysis/head_measures.c",
     r"(?=.*FARTHEST_OFFSET = (\d+)).*FARTHEST_OFFSET = (\d+)", 0),
    ("docs/heads.md", r"rank at least (\d+) \(`rare_rank`\)", "src/analysis/head_measures.c", r"RARE_RANK = (\d+)", 0),
    ("docs/heads.md", r"1 if evenness > ([\d.]+)", "src/analysis/head_row.c", r"BROAD, evenness > ([\d.]+)", 0),
    *(("docs/heads.md", rf"\| {role} \| `?\w+`? \| (?:corrected )?(0\.\d+)", "include/multihead/heads.h",
       rf'"{role}", \w+,\s+([\d.]+)', 0) for role in ROLES),
    ("docs/heads-corpus.md", r"interval: (\d+) bootstrap", "src/analysis/head_corpus.c", r" REPLICATES = (\d+)", 0),
    ("docs/heads-corpus.md", r"from (\d+) bins: accurate to 1/(\d+) of a share, 1/(\d+) nat, ([\d.]+) %",
     "include/multihead/head_corpus.h", r"(?s)(?=.*BINS = (\d+)).*one bin: 1 / (\d+) for.*1 / (\d+) nats, ([\d.]+) %", 0),
    ("docs/heads-corpus.md", r"fewer than (\d+) visible keys", "include/multihead/head_corpus.h", r"PLACE_KEYS = (\d+)", 0),
    ("docs/heads-corpus.md", r"shows (\d+) tokens and marks", "cli/heads/heads_pictures.c", r"WINDOW = (\d+)", 0),
    ("docs/heads-corpus.md", r"At most (\d+) texts are read", "cli/heads/heads_headvis.c", r"MOST_TEXTS = (\d+)", 0),
    ("docs/heads-corpus.md", r"`deciles` \| \[layers, heads, (\d+)\]", "include/multihead/head_corpus.h", r"deciles\[(\d+)\]", 0),
    ("docs/heads-corpus.md", r"`rows` \| \[layers, heads, (\d+)\]", "include/multihead/head_corpus.h", r"POSITIONS = (\d+)", 0),
    ("docs/report.md", r"is at most (\d+) MB\. Values", "src/render/html_check.c", r"MOST_BYTES = (\d+)000000\b", 0),
    ("docs/serve.md", r"with (\d+) heads, maps of more than (\d+) tokens", "src/show/live_maps.c",
     r"cells as (\d+) maps of (\d+) x", 0),
    ("docs/report.md", r"its ([\d,]+) strongest lines", "src/render/page/lines.js", r"MOST_LINES = (\d+)", 0),
    ("docs/serve.md", r"default (\d+), with a source", "src/show/live.c", r"DEFAULT_TOKENS = (\d+)", 0),
    ("docs/serve.md", r"exact up to ([\d,]+) tokens", "src/show/live_maps.c", r"LARGE_SIDE = (\d+)", 0),
    ("docs/serve.md", r"token of (\d+) random bits", "cli/serve/serve_http.h", r"digits of (\d+) random bits", 0),
    ("docs/explorer.md", r"at most (\d+) MB; base 85", "cli/page/cmd_page.c", r"MOST_BYTES = (\d+) << 20", 0),
    ("docs/explorer.md", r"text \| (\d+) tokens", "src/show/live.c", r"DEFAULT_TOKENS = (\d+)", 0),
    ("docs/model-folders.md", r"yes \| at most (\d+) MB", "src/model/checkpoint_like.c", r"most_config_bytes = (\d+)u << 20", 0),
    ("docs/tokenizer.md", r"except WordPiece.s \| (\d+) \|", "src/tokenizer/bpe.h", r"BPE_STEPS = (\d+)", 0),
    ("docs/tokenizer.md", r"unigram piece \| (\d+) bytes", "src/tokenizer/tokenizer_parts.h", r"ADDED_BYTES = (\d+)", 0),
    ("docs/tokenizer.md", r"exceeds (\d+) characters", "src/tokenizer/tokenizer_parts.h", r"WORD_CHARS = (\d+)", 0),
    ("docs/features.md", r"\| (\d+) scores with chance", "include/multihead/heads.h",
     r"define MHA_MEASURE_LIST\(X\)((?:.*\n)*?)\n", 0),
    ("README.md", r"strongest is L18H6 \(([\d.]+)\)", PRINTED, r"\nL18H6 .* induction ([\d.]+)", 0),
    ("README.md", r"`heads` finds (\w+) induction heads", PRINTED, r"((?:\nL\d+H\d+ .* induction .*)+)", 0),
    ("README.md", r'puts ([\d.]+) of its weight', PRINTED, r"\nL18H6 +([\d.]+) +#", 0.005),
    ("README.md", r'of "d" falls by ([\d.]*\d)', PRINTED, r"\nL18H6 +[\d.]+ +#\d+ +[\d.]+ +#\d+ +([\d.]+)", 0.005),
    ("README.md", r"heads among (\d+);", "docs/researcher.md", r"Which of the (\d+) heads", 0),
    ("README.md", r"takes less than (\d+) MB of memory", PRINTED, r"memory of a command, at most (\d+) MB", BELOW),
    ("README.md", r"Training usually takes less than (half a minute)", None, "a time: training.md has a table", None),
    ("README.md", r"that need torch \((\d+) GB", None, "of the disk: of packages of others", None),
    ("README.md", r"largest float(32) error, both against float(64)", None, "names of types", None),
    ("README.md", r"of one Zen (5) core", None, "a name", None),
    ("README.md", r"full attention over (65,536) keys", None, "the row that is compared above", None),
    ("README.md", r"maps of a small BERT's (72) heads", "docs/heads-minilm.md", r"\b(72) heads", 0),
]


def number(text):
    if "\n" in text:
        return len(re.findall(r"^ *X\(", text, re.M)) or len(text.strip().split("\n"))
    return float(WORDS.get(text, text.replace(",", "")))


def differ(said, found, how):
    """Whether the page's figure and the source's differ by more than the tolerance."""
    said, found = [[number(text) for text in texts] for texts in (said, found)]
    if how == BELOW:
        return not found[0] < said[0]
    return len(said) != len(found) or any(abs(a - b) > how for a, b in zip(said, found))


SMALL = ("0", "1", "2")  # indices, and parts of formulas
FIGURE = re.compile(r"\d[\d,.]*\d|\d")
MARKER = re.compile(r"<!-- figures: ([^\n]*?) -->\s*\n((?:[^\n]+\n)+)")


def prose(text):
    """The text without numbers outside sentences. Blocks, comments, code, link targets, citations,
    versions and addresses, numbers of headings and lists, and names that contain a digit (L18H6,
    int8, AVX2) become spaces."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group(0))
    for pattern in (r"<!--.*?-->", r"^```.*?^```", r"(?<=\n\n) {4}[^\n]*\n(?: {4}[^\n]*\n|\n(?= {4}))*", r"`[^`]*`",
                    r"\]\([^)]*\)", r"<img[^>]*>", r"\b[A-Za-z][\w-]*\d(?:[\w.-]*\w)?",
                    r"\d+(?:\.\d+){2,}", r"^(?:#+|\*\*)? ?\d+\.(?= )",
                    r"\b[A-Z]\w+\.?(?: et al\.)?,? \(?(?:19|20)\d\d\b(?:, (?:section )?\d[.\d]*)?"):
        text = re.sub(pattern, blank, text, flags=re.S | re.M)
    return text


def is_in(figure, share, numbers):
    """Whether a number rounds to the figure or, for shares, to a hundredth of it."""
    said, half = number(figure), 0.5000001 * 10.0 ** -len(figure.partition(".")[2])
    return any(abs(n - said) <= half or share and abs(100 * n - said) <= half for n in numbers)


def marked(text, printed, root):
    """(begin, end, [(position, error), ...]) of each block below a marker."""
    plain = prose(text)
    for match in MARKER.finditer(text):
        begin, end = match.span(2)
        sources, errors = match.group(1).split(), []
        if sources[0] != "not" and (printed is not None or "printed" not in sources):
            texts = [printed if of == "printed" else (root / of).read_text(encoding="utf-8") for of in sources]
            numbers = {number(n.replace("'", "")) for n in re.findall(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?", "\n".join(texts))}
            for figure in FIGURE.finditer(plain, begin, end):
                if figure.group(0) not in SMALL and not is_in(figure.group(0), plain[figure.end():figure.end() + 2] == " %", numbers):
                    errors.append((figure.start(), f"{figure.group(0)} is not in {match.group(1)}"))
        yield begin, end, errors


def wrong(page, text, printed, root):
    """(line from 0, error) for each wrong figure. `printed` is None if not all commands of the page
    were run."""
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
    for begin, end, errors in marked(text, printed, root):
        spans.append((begin, end))
        for at, error in errors:
            yield text[:at].count("\n"), error
    if page in WHOLE:
        for figure in FIGURE.finditer(prose(text)):
            if figure.group(0) not in SMALL and \
                    not any(begin <= figure.start() and figure.end() <= end for begin, end in spans):
                yield text[:figure.start()].count("\n"), f"figures.py has no row for {figure.group(0)}"
