#!/usr/bin/env python3
"""Check that documents, comments and messages avoid words that a native engineer would not write.

    tools/check_words.py                  fail on RULES anywhere, and on DIALECT in new lines
    tools/check_words.py --list FILE ...  list every line of these files that matches either

Each rule is a pattern and what to write instead. Prints `file:line: 'words': write ...`. A blank of a pattern also
matches a line break and the asterisk of a comment. The good and the bad line of every rule are checked first.

New lines are those that differ from the merge base with main, or on main from its parent, and all lines of files
that git does not track. Without git there are none.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUFFIXES = {".md", ".h", ".c", ".inc", ".py", ".sh", ".css", ".js", ""}
# Golden data stays as it was produced; this file quotes what it forbids.
SKIP = ("tests/golden/", "tools/check_words.py", "LICENSE")
# Files that are being rewritten; to be checked when that is done.
PENDING = ()

# What "by chance" may not follow; "half are right by chance" is the term.
DRAWN = (r"orders?|directions?|matrices|tensors?|layouts?|offsets?|shapes?|parameters?|texts?|"
         r"transformers?|modules?|descriptors?|problems|parts|others|batch|rows|draw|drawn|vary|"
         r"greedy or|a type")
THING = (r"line|row|object|map|cell|file|column|byte|token|number|panel|store|load|field|score|test|"
         r"task|header|card|bar|table|badge")
# pattern, what to write instead, a bad line, a good line
RULES = [
    (r"\bfore(?:tells?|told|telling)\b", "predict", "it foretells a word", "it predicts a word"),
    (r"\blikeliest\b", "most likely, or argmax", "the likeliest token", "the most likely token"),
    (r"\brivals?\b", "peer, other implementation", "a rival's operator", "a peer's operator"),
    (rf"\b(?:{DRAWN})(?: \w+)?,? by chance\b", "random, at random",
     "five orders by chance", "right by chance: 25 %"),
    (rf"\b(?:five|four|all|every one) by chance\b", "random", "beside five by chance", "five random"),
    (r"\b[Ss]ay [a-z]\w*\(\)", "call x()", "say mha_close()", "call mha_close()"),
    (r"\b(?:has|have|had) spoken\b", "the error is already reported",
     "it has spoken", "the error is already reported"),
    (r"\bspeaks? (?:of|up)\b", "mention, name, report", "it speaks of fields", "it names fields"),
    (r"\bknows? best\b", "decides", "the host knows best", "the host decides"),
    (r"\bwhat stands between\b", "what is between, where the rest goes",
     "what stands between", "what is between"),
    (r"\bwhose turn\b", "name what is next", "whose turn it is", "the next worker"),
    (r"\b(?:take|takes|took|taken) the (?:\w+ )?ways?\b(?: of)?", "use the ... path",
     "take the way of one block", "use the one-block path"),
    (r"\bwakes? elsewhere\b", "wake on another CPU", "workers wake elsewhere", "another CPU"),
    (r"\bwhoever (?:calls|asks)\b", "the caller", "whoever calls speaks", "the caller names"),
    (r"\bin (?:any|random|good) company\b", "in combination", "alone and in any company",
     "alone and in combination"),
    (r"\bcheck_company\b", "check_option_conflicts",
     "static int check_company(void)", "static int check_option_conflicts(void)"),
    (r"\bturn_halves\b", "rope_halves", "turn_halves(t)", "rope_halves(t)"),
    (r"\bmhai_attn_alone\b", "runs_single_threaded", "mhai_attn_alone()", "runs_single_threaded()"),
    (r"\bbehind (?:the diagonal|it come|its? end|the (?:end|last|text|name|length)\b)", "after, beyond",
     "keys behind the last query", "keys after the last query"),
    (rf"\b(?:a|one) (?:{THING}) (?:a|an|each) (?:head|token|layer|row|sample|look|query|key|step|piece|"
     r"instruction set)\b", "one ... per ...", "one line a head", "one line per head"),
    (r"\bmend(?:s|ed|ing)?\b", "fix", "how to mend it", "how to fix it"),
    (r"\bgoes? on with\b", "continue", "it goes on with a text", "it continues a text"),
    (r"\bby heads? alone\b|\bby (?:it|them)sel(?:f|ves) alone\b", "only", "by itself alone", "only"),
    (r"\bsays? (?:nothing|something) of\b", "does not mention",
     "it says nothing of it", "it does not mention it"),
    (r"\bis said so\b|\bwhich is said\b|\bis said, too\b", "reported", "which is said", "reported"),
    (r"\bno(?:body| one) knows\b.{0,3}$", "unknown", "nobody knows", "unknown"),
    (r"\bheld against\b", "compared with", "held against the peak", "compared with the peak"),
    (r"\bhas it not\b|\bit has not, so\b", "omits", "beyond that it has not, so", "omits it"),
    (r"\bas long and as much\b", "in proportion", "takes as long and as much", "in proportion"),
    (r"\bto be had\b", "available", "no memory is to be had", "no memory is available"),
    (r"\bnobody (?:else )?(?:uses|may|sets|steps|changes|frees|reads|updates|asks)\b",
     "no other thread may be ..., nothing ..., it is not ...",
     "Threads nobody uses it", "Threads no other thread may be using it"),
    (r"\bNULL: not wanted\b", "NULL: not requested", "NULL: not wanted", "NULL: not requested"),
    (r"\b[Mm]emory as said\b", "name it", "Memory as said", "Memory frees it"),
    (r"\bare no (?:whole|text|words?|numbers?)\b|\b(?:that|which|alignment|this|\') is no (?:power of two|GGUF|text|word)\b",
     "is not (a) ...", "a token that is no text", "a token that is not text"),
    (r"\b(?:bits|bytes|elements) an? (?:block|element|merge|number|row|token|word)\b", "per",
     "8 bytes a number", "8 bytes per number"),
    (r"\b(?:is|are) handed back\b", "returned", "its status is handed back", "it is returned"),
    (r"\b[Oo]thers than\b", "anything but", "others than f32", "anything but f32"),
    (r"\bwhat the sink gave\b", "returned", "or what the sink gave", "what the sink returned"),
]

# Patterns of the dialect, which may be right English in rare cases: they fail in new lines only.
DIALECT = [
    (r"(?:^|(?<=[.:*|]\s))What (?:is|are|was|has|have|takes|goes|stays|stands|fails|comes|differs|cannot|does not|"
     r"it|they|no)\b[^?\n]*[.;:,]", "name the subject: the rows that ...",
     "What is kept stays in memory.", "The rows that the cache keeps stay in memory."),
    (r"(?<!one\s)(?<!two\s)(?<!three\s)(?<!most\s)(?<!all\s)(?<!none\s)(?<!some\s)(?<!each\s)(?<!half\s)\bof which\b",
     "two sentences, the second with its noun", "tokens, of which the first is special", "The first token is special."),
    (r"\b(?:[Ii]t|[Tt]hat|[Tt]his) was (?:about )?\d", "previously N, or only the new figure",
     "it was 79 %", "previously 79 %"),
    (r"\b(?:is|are|was|were|be|been) told\b", "receives, or: X reports ... to ...",
     "every rank is told", "every rank receives the error"),
    (r"\bcom(?:es?|ing) by\b", "is streamed, arrives", "keys that come by", "streamed keys"),
    (r"\bto and fro\b", "in alternating order", "rows go to and fro", "rows alternate"),
    (r"\bby luck\b", "by chance, under the permutation null", "the best by luck", "the best by chance"),
    (r"\bcomes? home\b", "return to their owner", "sums come home", "sums return to their owner"),
    (r"\b[Nn]obody\b", "no thread, no caller, or the passive", "nobody waits", "no thread waits"),
    (r"\bof no (?:more |further )?use\b", "is not needed, must not be used again", "is of no more use", "is not needed"),
    (r"\b(?:bits|result|output|rows?) of the whole\b", "bit-identical to the full pass",
     "it has the bits of the whole", "it is bit-identical to the full pass"),
    (r"\bgo(?:es|ing)? on\b(?! (?:a|the|top|to the|page))", "continue, resume", "training goes on", "training resumes"),
    (r"\b(?:how|more|less) sure\b", "the confidence interval", "how sure a mean is", "the interval of a mean"),
    (r"\bhow far (?:it|they|he) (?:is|are)\b", "progress", "it says how far it is", "it reports progress"),
    (r"\bbut for\b", "except", "the same, but for int8", "the same, except int8"),
    (r"\bfor ever\b", "cannot deadlock; without limit", "waits for ever", "waits without limit"),
    (r"\b(?:takes?|in) turns?\b", "alternate", "they take turns", "they alternate"),
    (r"\b(?:is|are|be|was|were) refused\b", "rejected", "such a file is refused", "such a file is rejected"),
    (r"\b(?:itself|themselves|it|they) among them\b", "including", "rows, itself among them", "rows, including its own"),
    (r"\bas (?:it|they) lies?\b", "in place, in the file's order", "rows as they lie", "rows in place"),
    (r"\band the like\b", "name them", "norms and the like", "norms and biases"),
    (r"\b(?:head|row|query|token|word)s? (?:that )?looks? at\b", "attends to",
     "the head looks at the noun", "the head attends to the noun"),
    (r"\bknows? (?:nothing|not) of\b", "does not depend on", "render knows nothing of it", "render does not depend on it"),
    (r", and so (?:do|does|is|are|has|have|did|will|can)\b", "also, likewise",
     "rows round, and so do sums", "rows round; sums also round"),
    (r"\b(?:is|are) (?:there )?no more\b", "no longer exists", "the file is no more", "the file no longer exists"),
    (r"\b(?:in|by) (?:its|their) (?:own )?ways?\b", "name the method", "each in its own way", "each by its fastest kernel"),
    (r"\bmuch the same\b|\bno other than\b|\bnone other than\b", "similar, only", "is much the same", "is similar"),
]


def compiled(pattern):
    return re.compile(pattern.replace(" ", r"(?:[ \t]+|[ \t]*\n[ \t]*(?:\*|//|#|>)?[ \t]*)"), re.M)


def needed(pattern):
    """A word that every match contains, "" if none is known: most files lack it, and are not searched."""
    while re.search(r"\([^()]*\)\??", pattern):
        pattern = re.sub(r"\([^()]*\)\??", " ", pattern)
    if "|" in pattern:
        return ""
    return max(re.findall(r"[A-Za-z']+", re.sub(r"\\\w|\[[^]]*\]|\w\?|\{.*?\}", " ", pattern)), key=len, default="")


def prepared(rules):
    return [(needed(rule[0]), compiled(rule[0]), rule[1]) for rule in rules]


PATTERNS, DIALECT_PATTERNS = prepared(RULES), prepared(DIALECT)


def git(*arguments):
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def new_lines():
    """{name: numbers of new lines}, None in place of the numbers: all."""
    head = git("rev-parse", "HEAD").strip()
    main = next(filter(None, (git("rev-parse", "-q", "--verify", name).strip() for name in ("main", "origin/main"))), head)
    base = git("rev-parse", "-q", "--verify", "HEAD^1") if main == head else git("merge-base", "HEAD", main)
    base = base.strip() or head
    found, name = {untracked: None for untracked in git("ls-files", "-o", "--exclude-standard").splitlines()}, None
    for line in git("diff", "-U0", "--no-color", "--no-ext-diff", base).splitlines() if base else ():
        if line.startswith("+++ "):
            name = line[6:]
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            found.setdefault(name, set()).update(range(first, first + count))
    return found


def names():
    git = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT,
                         capture_output=True, text=True, check=False)
    found = git.stdout.splitlines() if git.returncode == 0 else [
        str(path.relative_to(ROOT)) for path in ROOT.rglob("*")
        if not path.relative_to(ROOT).parts[0].startswith(("build", ".git"))]
    for name in sorted(found):
        path = ROOT / name
        if path.is_file() and path.suffix in SUFFIXES and not name.startswith(SKIP + PENDING):
            yield name, path


def check(name, text, patterns, among=None):
    """Matches of the patterns; of those that begin or end in the lines `among`, unless that is None."""
    found = []
    for word, pattern, instead in patterns:
        for match in pattern.finditer(text) if word in text else ():
            what = re.sub(r"\s*\n[\s*#/>]*", " ", match.group(0))
            lines = [text.count("\n", 0, at) + 1 for at in (match.start(), match.end())]
            if among is None or among.intersection(lines):
                found.append((lines[0], what, instead))
    return [f"{name}:{line}: '{what}': write {instead}" for line, what, instead in sorted(found)]


def self_test():
    """Every rule finds its bad line, also across two lines of a comment; no rule finds a good one."""
    for pattern, _, bad, good in RULES + DIALECT:
        for line in (bad, " * " + bad.replace(" ", "\n * ")) if " " not in pattern or "^" not in pattern else (bad,):
            if needed(pattern) not in line or not compiled(pattern).search(line):
                yield f"the rule {pattern} does not find {line!r}"
        yield from (f"a rule finds the good line: {text}" for text in
                    check("self-test", good, PATTERNS + DIALECT_PATTERNS))


def main(arguments):
    errors = list(self_test())
    if arguments[:1] == ["--list"] and len(arguments) > 1:
        for name in arguments[1:]:
            text = pathlib.Path(name).read_text(encoding="utf-8", errors="replace")
            errors += check(name, text, PATTERNS + DIALECT_PATTERNS)
        print("\n".join(errors))
        return 0
    if arguments[:1] and arguments[0].startswith("-"):
        sys.exit(__doc__.strip())
    count, new = 0, new_lines()
    for name, path in names():
        count += 1
        text = path.read_text(encoding="utf-8", errors="replace")
        errors += check(name, text, PATTERNS)
        if name in new:
            errors += check(name, text, DIALECT_PATTERNS, new[name])
    print("\n".join(errors) or f"{count} files: no word on the list of {len(RULES)} rules; "
          f"no pattern of the dialect's {len(DIALECT)} in {len(new)} files with new lines")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
