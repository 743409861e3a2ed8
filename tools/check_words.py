#!/usr/bin/env python3
"""Check that documents, comments and messages avoid words that a native engineer would not write.

Each rule is a pattern and what to write instead. Prints `file:line: 'what': write ...` and fails if
anything was found. A blank of a pattern also matches a line break and the asterisk of a comment.
With --self-test, the good and the bad line of every rule are checked as well.
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


def compiled(pattern):
    return re.compile(pattern.replace(" ", r"(?:[ \t]+|[ \t]*\n[ \t]*(?:\*|//|#|>)?[ \t]*)"), re.M)


def needed(pattern):
    """A word that every match contains, "" if none is known: most files lack it, and are not searched."""
    while re.search(r"\([^()]*\)\??", pattern):
        pattern = re.sub(r"\([^()]*\)\??", " ", pattern)
    if "|" in pattern:
        return ""
    return max(re.findall(r"[A-Za-z']+", re.sub(r"\\\w|\[[^]]*\]|\w\?|\{.*?\}", " ", pattern)), key=len, default="")


PATTERNS = [(needed(rule[0]), compiled(rule[0]), rule[1]) for rule in RULES]


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


def check(name, text):
    found = []
    for word, pattern, instead in PATTERNS:
        for match in pattern.finditer(text) if word in text else ():
            what = re.sub(r"\s*\n[\s*#/>]*", " ", match.group(0))
            found.append((text.count("\n", 0, match.start()) + 1, what, instead))
    return [f"{name}:{line}: '{what}': write {instead}" for line, what, instead in sorted(found)]


def self_test():
    """Every rule finds its bad line, also across two lines of a comment; no rule finds a good one."""
    for pattern, _, bad, good in RULES:
        for line in (bad, " * " + bad.replace(" ", "\n * ")):
            if needed(pattern) not in line or not compiled(pattern).search(line):
                yield f"the rule {pattern} does not find {line!r}"
        yield from (f"a rule finds the good line: {text}" for text in check("self-test", good))


def main():
    errors = list(self_test())
    count = 0
    for name, path in names():
        count += 1
        errors += check(name, path.read_text(encoding="utf-8", errors="replace"))
    print("\n".join(errors) or f"{count} files: no word on the list of {len(RULES)} rules")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
