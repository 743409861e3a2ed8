#!/usr/bin/env python3
"""Check style beyond clang-format: text hygiene, forbidden words, the form of public comments.

Fails on: tabs, trailing blanks, carriage returns, a missing or doubled final newline; words and hosts that must not be
in the tree; a public function whose comment lacks one of the words Memory, Errors, Threads, Since; a library source
that prints, exits or aborts; a source of the program that bypasses cli/common/print.c; a call of a libm function whose
bits depend on the machine, in code that computes results; two sources with the same name; a script ("#!") that is not
executable; a C program in a document that is not identical to a file in examples/ (which the tests run). Lists, without
failing: functions longer than 80 lines.
"""
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXT = {".css", ".js", ".html", ".c", ".h", ".inc", ".py", ".sh", ".md", ".txt", ".cmake", ".in", ".map", ".expected", ""}
# Golden data is generated and kept unchanged; its texts may contain anything.
SKIP = ("tests/golden/",)
# Brackets keep the forbidden words themselves out of this file.
FORBIDDEN = [
    (re.compile(r"\b(TO[D]O|FIX[M]E|X[X]X)\b"), "unfinished business: do it or write an issue"),
    (re.compile(r"(?<![\w.$}])/(wor[k]|far[m]|roo[t]|home)/"), "a path of somebody's machine"),
    (re.compile(r"(?<![\w.$}])/tm[p]/(?!mha|multihead)\w"), "a path of somebody's machine"),
    (re.compile(r"\b(pyp[i]|pythonhoste[d]|debia[n]|huggingfac[e]|hf-mirro[r])\.(org|co|com)\b"),
     "the name of a package or model host: the clients know theirs"),
]
HEADINGS = ("Memory", "Errors", "Threads", "Since")
BANNED_CALL = re.compile(r"(?<![\w.>])(printf|puts|putchar|perror|exit|_Exit|abort|system)\s*\(")
LIBRARY = ("src/",)
# All output passes one function, which escapes control characters in names.
PRINTING = re.compile(r"(?<![\w.>])(v?f?printf|f?puts|f?putc|putchar|fwrite|perror|v?dprintf|write)\s*\(")
PRINTS = ("cli/common/print.c", "cli/common/files.c")
# C libraries select variants of these by the processor; exact functions such as sqrt, fma and floor are allowed.
MACHINE_DEPENDENT = re.compile(
    r"(?<![\w.>])((?:a?(?:sin|cos|tan)h?|atan2|sincos|exp(?:2|10|m1)?|log(?:2|10|1p)?|pow|cbrt|hypot|erfc?"
    r"|[lt]gamma|j[01n]|y[01n])[fl]?)\s*\(")
DRAWS = ("src/render/", "cli/bench/bench_roofline.c")
LONG = 80


def tracked_files():
    """Every tracked or new file; without git, all files."""
    git = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT,
                         capture_output=True, text=True, check=False)
    names = git.stdout.splitlines() if git.returncode == 0 else [
        str(path.relative_to(ROOT)) for path in ROOT.rglob("*")
        if not any(part.startswith("build") for part in path.relative_to(ROOT).parts)]
    for name in sorted(names):
        path = ROOT / name
        if path.is_file() and path.suffix in TEXT and not name.startswith(SKIP):
            yield name, path


def check_text(name, text):
    for number, line in enumerate(text.split("\n"), 1):
        where = f"{name}:{number}"
        if "\t" in line:
            yield f"{where}: tab"
        if "\r" in line:
            yield f"{where}: carriage return"
        elif line != line.rstrip():
            yield f"{where}: blanks at the end of the line"
        for pattern, reason in FORBIDDEN:
            if match := pattern.search(line):
                yield f"{where}: '{match.group(0)}': {reason}"
    if text and (not text.endswith("\n") or text.endswith("\n\n")):
        yield f"{name}: must end with exactly one newline"


def strip_comments(text):
    """Blank out comments and string contents, keeping every line where it is."""
    pattern = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.S)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)


def check_public_comments(name, text):
    """Check that a /** comment with all headings directly precedes each MHA_API declaration."""
    for match in re.finditer(r"^MHA_API\b[^;{]*?\b(mha_\w+)\s*\(", text, re.M):
        before = text[:match.start()].rstrip()
        start = before.rfind("/**")
        comment = before[start:] if start >= 0 and before.endswith("*/") else ""
        if comment.count("*/") != 1:
            yield f"{name}: {match.group(1)}: no /** comment directly before it"
            continue
        missing = [word for word in HEADINGS if not re.search(rf"\b{word}\b", comment)]
        if missing:
            yield f"{name}: {match.group(1)}: comment lacks {', '.join(missing)}"


def check_calls(name, text):
    for number, line in enumerate(strip_comments(text).split("\n"), 1):
        if match := BANNED_CALL.search(line):
            yield f"{name}:{number}: a library must not call {match.group(1)}()"


def check_math(name, text):
    for number, line in enumerate(strip_comments(text).split("\n"), 1):
        if match := MACHINE_DEPENDENT.search(line):
            yield f"{name}:{number}: {match.group(1)}() of libm has other bits on other machines: call " \
                  "src/base/math.h, in cli/ component.h"


def check_printing(name, text):
    for number, line in enumerate(strip_comments(text).split("\n"), 1):
        if match := PRINTING.search(line):
            yield f"{name}:{number}: {match.group(1)}() in cli/: what people read goes through " \
                  "cli_print() (print.h), data through files.h"


def long_functions(name, text):
    """Functions, found by braces in column 0, where .clang-format puts them."""
    opened = None
    lines = strip_comments(text).split("\n")
    for number, line in enumerate(lines, 1):
        if line == "{":
            opened = number
        elif line.startswith("}") and opened is not None:
            if number - opened > LONG:
                yield f"{name}:{opened}: function of {number - opened} lines"
            opened = None


def check_programs(name, text):
    examples = {path.read_text().strip() for path in (ROOT / "examples").glob("*.c")}
    for match in re.finditer(r"^```c\n(.*?)^```$", text, re.M | re.S):
        if "int main(" in match.group(1) and match.group(1).strip() not in examples:
            line = text.count("\n", 0, match.start()) + 1
            yield f"{name}:{line}: this program is not a file in examples/"


def same_names(names):
    seen = {}
    for name in names:
        base = name.rsplit("/", 1)[-1]
        if name.startswith(("src/", "cli/")) and name.endswith((".c", ".h")) and base != "main.c":
            if base in seen:
                yield f"{name}: same file name as {seen[base]}"
            seen.setdefault(base, name)


def main():
    errors, notes, names = [], [], []
    for name, path in tracked_files():
        names.append(name)
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            if path.suffix:
                errors.append(f"{name}: not UTF-8 ({error.reason} at byte {error.start})")
            continue
        errors += check_text(name, text)
        if text.startswith("#!") and not os.access(path, os.X_OK):
            errors.append(f"{name}: begins with #! but cannot be executed: chmod +x {name}")
        if name.endswith(".md"):
            errors += check_programs(name, text)
        if name.startswith("include/") and name.endswith(".h"):
            errors += check_public_comments(name, text)
        if name.startswith(LIBRARY) and name.endswith((".c", ".h")):
            errors += check_calls(name, text)
        if name.startswith(("src/", "cli/")) and name.endswith((".c", ".h", ".inc")) and not name.startswith(DRAWS):
            errors += check_math(name, text)
        if name.startswith("cli/") and name.endswith((".c", ".h")) and name not in PRINTS:
            errors += check_printing(name, text)
        if name.endswith((".c", ".h")):
            notes += long_functions(name, text)
    errors += same_names(names)
    for line in notes:
        print(f"note: {line}")
    for line in errors:
        print(line)
    print(f"style: {len(names)} files, {len(errors)} errors, {len(notes)} notes")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
