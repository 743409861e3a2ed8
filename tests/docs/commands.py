#!/usr/bin/env python3
"""Run the commands of a page, and compare their output with the page.

    tests/docs/commands.py docs/lessons.md ...   run; exit 1 if a command or its output is wrong, 77
                                                 if all commands are skipped
    tests/docs/commands.py --update PAGE ...     write the output into the page instead
    tests/docs/commands.py --list PAGE ...       count commands, and report those that are not run
                                                 with the reasons

Commands are:

  * In a ```console block, each line that begins with "$ ". A backslash continues it on the next
    line. The lines up to the next command are its complete output, including stderr. A line "..."
    matches any number of lines, and "…" within a line matches any characters. Progress lines
    ("..., about 6 s left"), whose number depends on speed, are ignored. The exit status must be 0,
    unless a marker sets a different one.
  * A ```sh block, or an indented block that begins with one of PROGRAMS. The block is a script,
    which must end with exit status 0. Its output is not compared. A line with a word in brackets,
    such as "multihead view [options] MODEL", states usage and is not run.
  * A ```python block without ">>>", run with the package in bindings/python. (tests/python runs
    blocks with ">>>".)

The page runs without changes: no hidden text creates files or adds lines. A placeholder is declared
in the text, "`MODEL` stands for `PATH`", and replaced in the rest of the page.

Markers are HTML comments that control when a block runs and how it ends:

  <!-- commands: skip REASON -->       the next block is not run, because a test cannot run it
  <!-- commands: long REASON -->       the next block is run only if MHA_TEST_LONG is set
                                       (script/test --long)
  <!-- commands: needs NAME ... -->    the next block is run only if these exist: paths with a "/",
                                       and Python modules
  <!-- commands: exit 4 -->            the last command of the next block ends with this status
  <!-- commands: short "A=A B" -->     in the rest of the page, run command "A B" instead of A,
                                       with options that make it shorter, unless MHA_TEST_LONG is
                                       set; in `long` blocks, unless MHA_TEST_LONG=full

`skip-page`, `long-page` and `needs-page` apply to all blocks of the page.

figures.py compares figures in running text with the commands' output and with other pages.

The commands of a page run in order with bash, in one new folder with links to everything in the
project's root. So tools/x, include/ and build/libmultihead.a are found, and new files remain in the
folder. Files written to build/ or another folder of the project are created there. `multihead` is
the program named by the variable MULTIHEAD; python3 and pytest are those of build/venv, if it
exists. Later commands can use files of earlier ones.
"""
import contextlib
import difflib
import functools
import os
import pathlib
import re
import resource
import shlex
import subprocess
import sys
import tempfile

import figures

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build"
PROGRAM = pathlib.Path(os.environ.get("MULTIHEAD", BUILD / "multihead")).resolve()
LONG, FULL = bool(os.environ.get("MHA_TEST_LONG")), os.environ.get("MHA_TEST_LONG") == "full"
SECONDS = 6000 if LONG else 1200  # a command that takes longer hangs
SKIPPED = 77
# The environment of a user who has installed the page's requirements.
PATH = f"{BUILD / 'venv/bin'}:{os.environ['PATH']}" if (BUILD / "venv/bin").is_dir() else os.environ["PATH"]

# A line of usage, such as "multihead view [options] MODEL".
USAGE = re.compile(r"(?:build/)?multihead .*\[[\w-][^]]*\]")
# The first word of an indented block of commands.
PROGRAMS = re.compile(r"(?:[A-Z_]+=\S+ )*(?:multihead|cc|c\+\+|cmake|python3|pip|printf|pytest|sh|sudo|"
                      r"apt-get|(?:build|tools|script|tests|bench)/\S+|for \w+ in)(?=\s|$)")
PROGRESS = re.compile(r", [\d.]+ (?:s|min|h)(?:, about [\d.]+ (?:s|min|h) left)?$")
MARKER = re.compile(r"<!-- commands: ((?:skip|long|needs)(?:-page)?|exit|short) ([^\n]*?)-->")
STANDS = re.compile(r"`([^`\n]+)` stands for `([^`\n]+)`")


class Block:
    """A block of commands: lines[first:end], counted from 0."""

    def __init__(self, kind, first, end, lines):
        self.kind, self.first, self.end, self.lines = kind, first, end, lines
        self.skip, self.exit = None, 0

    def commands(self):
        """[(line, command, expected output)]; the output is None if it is not compared."""
        if self.kind == "python":
            lines = ["PYTHONPATH=bindings/python MHA_LIBRARY_DIR=build python3 - <<'END OF BLOCK'",
                     *self.lines, "END OF BLOCK"]
            return [(self.first, "\n".join(lines), None)]
        if self.kind != "console":
            return [(self.first, "\n".join(self.lines), None)]
        found = []
        for at, line in enumerate(self.lines):
            previous = found[-1] if found else None
            if previous and previous[1].endswith("\\") and not previous[2]:
                previous[1] += "\n" + line
            elif line.startswith("$ "):
                found.append([self.first + at, line[2:], []])
            elif previous:
                previous[2].append(line)
            else:
                raise SystemExit(f"line {self.first + 1}: a console block begins with '$ COMMAND'")
        return found


def blocks(text):
    """The blocks of commands of a page and, in their order, its markers as (line, kind, words)."""
    lines = text.split("\n")
    found, markers, at = [], [], 0
    while at < len(lines):
        fence = re.match(r"```(\w*)", lines[at])
        if fence:
            end = at + 1
            while end < len(lines) and not lines[end].startswith("```"):
                end += 1
            if fence.group(1) in ("sh", "console") or \
                    fence.group(1) == "python" and not any(">>>" in line for line in lines[at + 1:end]):
                found.append(Block(fence.group(1), at + 1, end, lines[at + 1:end]))
            at = end + 1
        elif lines[at].startswith("<!-- commands:"):
            marker = MARKER.fullmatch(lines[at].strip())
            if not marker:
                raise SystemExit(f"line {at + 1}: no such marker: {lines[at]}")
            if marker.group(1) == "short":
                shorter(at, marker.group(2))
            markers.append((at, marker.group(1), marker.group(2).strip()))
            at += 1
        elif PROGRAMS.match(lines[at][4:]) and lines[at].startswith("    ") and \
                (at == 0 or not lines[at - 1].strip()):
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            while not lines[end - 1].strip():
                end -= 1
            script = [line[4:] for line in lines[at:end] if not USAGE.match(line[4:])]
            if any(script):
                found.append(Block("indented", at, end, script))
            at = end
        else:
            markers += [(at, "let", pair.groups()) for pair in STANDS.finditer(lines[at])]
            at += 1
    return found, markers


def shorter(line, words):
    """[(command on the page, command to run)] of the marker `short`; both must run the same program."""
    pairs = [tuple(word.split("=", 1)) for word in shlex.split(words)]
    for pair in pairs:
        if len(pair) != 2 or pair[0].split()[0] != pair[1].split()[0] or re.search(r"[;&|<>`]|\$[\w({]", pair[1]):
            raise SystemExit(f"line {line + 1}: not other options of the same command: {words}")
    return pairs


def why_not(kind, words):
    """The reason why a marker excludes a block, or None."""
    if kind == "skip":
        return words
    if kind == "long":
        return None if LONG else f"only with MHA_TEST_LONG=1: {words}"
    missing = [name for name in words.split() if not is_there(name)]
    return f"{' and '.join(missing)} missing" if missing else None


@functools.lru_cache
def is_there(name):
    if "/" in name:
        return (ROOT / name).exists()
    command = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
    return subprocess.run(["python3", "-c", command], check=False, env={"PATH": PATH}).returncode == 0


def steps(text):
    """The actions in the order of the page: blocks, and ("let", (name, value))."""
    found, markers = blocks(text)
    of_page = [(kind.removesuffix("-page"), words) for _, kind, words in markers if kind.endswith("-page")]
    wanted, own, previous = [], [], -1
    for block in found:
        own += [(kind, words) for at, kind, words in markers
                if previous < at < block.first and not kind.endswith("-page")]
        values, previous = dict(own), block.first
        reasons = [why_not(kind, words) for kind, words in of_page + own if kind in ("skip", "long", "needs")]
        block.skip = next(filter(None, reasons), None)
        block.exit = int(values.get("exit", 0))
        for kind, words in own:
            if kind == "let":
                wanted.append((kind, words))
            elif kind == "short" and not (FULL or LONG and not any(k == "long" for k, _ in of_page + own)):
                wanted += [("let", pair) for pair in shorter(block.first, words)]
        wanted.append(block)
        own = []
    return wanted


def replace(command, names):
    for name, value in names.items():
        command = re.sub(rf"(?<![\w/.-]){re.escape(name)}(?![\w-])", lambda _: value, command)
    return command


def matches(shown, printed):
    """Whether the printed lines match the page's lines, with "..." and "…" as wildcards."""
    if not shown:
        return not printed
    if shown[0] == "..." and any(matches(shown[1:], printed[n:]) for n in range(len(printed) + 1)):
        return True
    pattern = ".*".join(map(re.escape, shown[0].split("…")))
    return bool(printed) and re.fullmatch(pattern, printed[0]) and matches(shown[1:], printed[1:])


class Folder:
    """The folder and environment for the commands of a page."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        programs = self.path / ".programs"
        programs.mkdir()
        (programs / "multihead").symlink_to(PROGRAM)
        for entry in ROOT.iterdir():
            if not entry.name.startswith(".") and entry.name != "build":
                (self.path / entry.name).symlink_to(entry)
        (self.path / "build").symlink_to(PROGRAM.parent)
        self.environment = {name: value for name, value in os.environ.items()
                            if name in ("TMPDIR", "CC", "MHA_ISA", "MHA_THREADS") or
                            name.endswith("SAN_OPTIONS")}
        self.environment.update(PATH=f"{programs}:{PATH}", HOME=str(self.path), LANG="C.UTF-8", TERM="dumb",
                                PYTHONUTF8="1", PYTHONDONTWRITEBYTECODE="1")

    def run(self, command):
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=self.path, check=False,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, env=self.environment, timeout=SECONDS)
        lines = [line.rstrip() for line in done.stdout.decode("utf-8", "replace").split("\n")
                 if not PROGRESS.search(line)]
        while lines and not lines[-1]:
            lines.pop()
        return done.returncode, lines


@contextlib.contextmanager
def what_is_installed_kept():
    """Keep the user's install manifest, so that files installed from the build can be uninstalled."""
    manifest = PROGRAM.parent / "install_manifest.txt"
    before = manifest.read_bytes() if manifest.exists() else None
    try:
        yield
    finally:
        if before is None:
            manifest.unlink(missing_ok=True)
        else:
            manifest.write_bytes(before)


class Page:
    def __init__(self, path):
        self.path = pathlib.Path(path).resolve()
        self.text = self.path.read_text(encoding="utf-8")
        self.names, self.ran, self.failures, self.edits, self.printed = {}, 0, [], [], []

    def fail(self, line, command, why, lines):
        where = os.path.relpath(self.path, ROOT)
        self.failures.append("\n".join([f"{where}:{line + 1}: {why}: {command}", *lines]))

    def run_block(self, folder, block, update):
        commands = block.commands()
        for n, (line, command, shown) in enumerate(commands):
            wanted = block.exit if n == len(commands) - 1 else 0
            status, printed = folder.run(replace(command, self.names))
            self.ran += 1
            self.printed += printed
            while shown and not shown[-1].strip():
                shown.pop()
            if status != wanted:
                self.fail(line, command, f"exit status {status}, not {wanted}", printed[-20:])
            elif shown is not None and not matches([s.rstrip() for s in shown], printed):
                start = line + 1 + command.count("\n")
                self.edits.append((start, start + len(shown), printed))
                if not update:
                    self.fail(line, command, "prints other lines",
                              difflib.unified_diff(shown, printed, "page", "printed", lineterm=""))

    def run(self, update=False):
        if "cmake --install" in self.text:
            with what_is_installed_kept():
                self.run_steps(update)
        else:
            self.run_steps(update)
        if update:
            self.write()
        else:
            kilobytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
            printed = "\n".join([*self.printed, f"memory of a command, at most {kilobytes / 1000:.0f} MB"])
            all_ran = not any("missing" in reason or "MHA_TEST_LONG" in reason for _, _, reason in self.skipped())
            for line, why in figures.wrong(os.path.relpath(self.path, ROOT), self.text, printed if all_ran else None, ROOT):
                self.fail(line, "a figure", why, [])

    def run_steps(self, update):
        with tempfile.TemporaryDirectory(prefix="multihead-docs-") as path:
            folder = Folder(path)
            for step in steps(self.text):
                if isinstance(step, Block):
                    if step.skip is None:
                        self.run_block(folder, step, update)
                else:
                    self.names.update([step[1]])

    def write(self):
        lines = self.text.split("\n")
        for start, end, printed in reversed(self.edits):
            lines[start:end] = printed
        self.path.write_text("\n".join(lines), encoding="utf-8")

    def skipped(self):
        return [(step.first + 1, next(filter(str.strip, step.lines)), step.skip) for step in steps(self.text)
                if isinstance(step, Block) and step.skip is not None]

    def count(self):
        return sum(len(step.commands()) for step in steps(self.text) if isinstance(step, Block))


def main(arguments):
    options = {a for a in arguments if a.startswith("--")}
    if options - {"--update", "--list"} or not set(arguments) - options:
        print(__doc__)
        return 2
    ran = failed = all_skipped = 0
    for path in (a for a in arguments if not a.startswith("--")):
        page = Page(path)
        if "--list" not in options:
            page.run("--update" in options)
        for failure in page.failures:
            print(failure)
        skipped = page.skipped()
        print(f"{path}: {page.count()} commands, {page.ran} run, {len(page.failures)} wrong, "
              f"{len(skipped)} blocks skipped")
        for line, command, reason in skipped:
            print(f"  line {line} is skipped: {reason}: {command}")
        ran += page.ran
        failed += len(page.failures)
        all_skipped |= len(skipped) > 0 and page.ran == 0
    return 1 if failed else SKIPPED if all_skipped and not ran and "--list" not in options else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
