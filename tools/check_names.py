#!/usr/bin/env python3
"""Check that every name in documents exists, and that every public name is documented.

    check_names.py BUILD_DIR

Names in *.md must exist: mha_... in the headers (`mha_module_*` is a prefix); MHA_... as a macro, a CMake option or an
environment variable; options of the program, in commands or between backquotes; modules and names of the Python
package. Documents must name every public header, environment variable, CMake option, model family, name exported by the
Python package, and option of its attention. tests/cli/help.py compares the manual with the help; check_style.py
requires a comment for every public function. Without a program in BUILD_DIR, options are not checked.
"""
import functools
import pathlib
import re
import subprocess
import sys

import check_links

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = ("include", "src", "cli", "bindings", "cmake", "tests", "bench", "tools", "script", "examples", ".ci")
# Options of other programs that pages mention between backquotes.
OF_OTHERS = {"--cache-type-k", "--functional", "--keep", "--map-by"}
# A page with one wrong name per line. "+" stands for "_", so that this file does not contain the names.
BAD = """call mha+nothing()
and mha+nomodule+*
with MHA+NOTHING
multihead.no+such+call(q)
multihead view MODEL --no-such-option
`heads MODEL --no-such-option`
`--no+such+option`""".replace("+", "_")


@functools.lru_cache
def text_of(*folders, pattern="*"):
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob(pattern))]
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in paths
                     if path.is_file() and "__pycache__" not in path.parts)


def words(pattern, text):
    return set(re.findall(pattern, text, re.M))


@functools.lru_cache
def options_of(program, command):
    """The options in the help of a subcommand; None if there is no such subcommand."""
    done = subprocess.run([program, *command.split(), "--help"], capture_output=True, text=True, check=False)
    return words(r"(?<![\w-])-{1,2}[a-zA-Z][\w-]*", done.stdout) if done.returncode == 0 else None


def commands_in(text):
    """(line, subcommand, options) of the program's commands, including `heads --sort X`. Continued lines are joined."""
    text = re.sub(r"\\\n", "  ", text)
    for match in re.finditer(r"(?:(?:^|[`\s/])multihead |`)([a-z]+)((?: [^\n`|;>#)]*)?)", text):
        yield text.count("\n", 0, match.start(1)) + 1, match[1], words(r"(?<= )--[a-z][\w-]*", match[2])


def unknown_options(program, documents):
    everywhere = text_of("script", "tools", "tests", "bench", ".ci") + text_of("cli", pattern="*.c")
    for name, text in documents:
        for line, command, options in commands_in(text):
            known = options and options_of(program, command)
            for option in sorted(options - known if known else ()):
                yield f"{name}:{line}: multihead {command} has no option {option}"
        for match in re.finditer(r"`(--[a-z][\w-]*)", text):
            if match[1] not in OF_OTHERS and match[1] not in everywhere and \
                    not re.search(rf'"{match[1][2:]}"', everywhere):
                yield f"{name}:{text.count(chr(10), 0, match.start()) + 1}: no program here has {match[1]}"


def unknown_names(documents):
    code = text_of(*SOURCES) + (ROOT / "CMakeLists.txt").read_text(encoding="utf-8") + \
        (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    known = words(r"\bMHA_\w+", code) | words(r"\bmhai?_\w+", text_of("include", "src", "bindings"))
    python = words(r"\b\w+", text_of("bindings/python/multihead", pattern="*.py"))
    for name, text in documents:
        for match in re.finditer(r"(?<![\w/-])(mhai?_\w+|MHA_[A-Z0-9_]+)(\*|\.\.\.)?", text):
            there = any(word.startswith(match[1]) for word in known) if match[2] else match[1] in known
            if not there:
                yield f"{name}:{text.count(chr(10), 0, match.start()) + 1}: nothing is named {match[1]}"
        for match in re.finditer(r"\bmultihead\.([a-zA-Z]\w+)(?:\.(\w+))?\(", text):
            if not {match[1], match[2] or match[1]} <= python:
                yield f"{name}:{text.count(chr(10), 0, match.start()) + 1}: the package has no {match[0]})"


def undocumented(documents):
    """(kind, name) of every public name that no document contains."""
    pages = dict(documents)
    everything = "\n".join(pages.values())
    library = pages["docs/library.md"]
    package = (ROOT / "bindings/python/multihead/__init__.py").read_text(encoding="utf-8")
    call = (ROOT / "bindings/python/multihead/_call.py").read_text(encoding="utf-8")
    options = call.split("class AttentionOptions")[1].split("# ----")[0]
    python = "\n".join(pages[f"docs/{name}.md"] for name in ("python", "python-models", "python-torch"))
    code = text_of("src", "cli", "bindings")
    cmake = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8") + text_of("cmake", "src", pattern="*.cmake")
    for path in sorted((ROOT / "include/multihead").glob("*.h")):
        if f"/{path.name})" not in library:
            yield "docs/library.md", path.name
    for variable in sorted(words(r'(?:getenv|environ(?:\.get)?|\w+_number|number_of)[(\[]"(MHA_\w+)"', code)):
        if not re.search(rf"\b{variable}\b", everything):
            yield "docs/program.md", f"the variable {variable}"
    for option in sorted(words(r"^ *(?:option|set)\((MHA_\w+) .*?(?:O[NF]+\)|CACHE)", cmake)):
        if not re.search(rf"\b{option}\b", pages["docs/library.md"]):
            yield "docs/library.md", f"the option of CMake {option}"
    for family in sorted(words(r'(?:\.model_type = |^SHAPE\(\w+, )"(\w+)"', text_of("src/model/arch", pattern="*.c"))):
        if f"`{family}`" not in pages["docs/model-folders.md"]:
            yield "docs/model-folders.md", f"the family {family}"
    for name in sorted(words(r'"(\w+)"', package.split("__all__")[1])):
        if not re.search(rf"\b{name}\b", python):
            yield "docs/python*.md", f"multihead.{name}"
    for name in re.findall(r"^    (\w+):", options, re.M):
        if not re.search(rf"`{name}`", pages["docs/python.md"]):
            yield "docs/python.md", f"the option {name} of multihead.attention"


def main():
    program = pathlib.Path(sys.argv[1]) / "multihead"
    checks = [unknown_names] + [functools.partial(unknown_options, str(program))] * program.exists()
    found = {int(error.split(":")[1]) for check in checks for error in check([("BAD", BAD)])}
    missed = set(range(1, 8 if program.exists() else 5)) - found
    documents = [(name, (ROOT / name).read_text(encoding="utf-8")) for name in check_links.documents()]
    errors = [f"self-test: line {line} of BAD is not found" for line in sorted(missed)]
    errors += [error for check in checks for error in check(documents)]
    errors += [f"{where} does not mention {what}" for where, what in undocumented(documents)]
    print("\n".join(errors) or f"{len(documents)} documents: every name exists, and what exists is named")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
