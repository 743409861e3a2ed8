#!/usr/bin/env python3
"""multihead help: the topics; man pages and completions from the table of --help; and
docs/program.md, which must contain every subcommand and environment variable, and no unknown
option. Missing shells and checkers are named, and their checks are skipped."""
import os
import pty
import re
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403

USAGE = 2
OF_LAUNCHERS = {"PMIX_RANK", "SLURM_STEP_NUM_TASKS"}
EPOCH = {"SOURCE_DATE_EPOCH": "1790000000"}  # 2026-09-21
COMMANDS = re.findall(r"^  (\w+) +\S", run("help").out.decode().split("Subcommands:")[1]
                      .split("Options:")[0], re.M)


def have(*names):
    missing = [name for name in names if not shutil.which(name)]
    if missing:
        print(f"left out: no {' '.join(missing)}")
    return not missing


def options_of(command):
    table = re.split(r"\nExamples:\n.*?\n\n", run(command, "--help").out.decode(), maxsplit=1, flags=re.S)[-1]
    return re.findall(r"^ {2,6}(?:-\w, )?(--[a-z][\w-]*)", table, re.M)


MANUAL = (ROOT / "docs" / "program.md").read_text()
ALL_OPTIONS = {option for command in COMMANDS for option in options_of(command)}


def section_of(command):
    return MANUAL.split(f"\n## `multihead {command}`\n")[-1].split("\n## ")[0]


def environment_variables():
    """The sources, the help and the manual have the same variables."""
    read = {name for path in [*ROOT.glob("cli/**/*.c"), *ROOT.glob("src/**/*.c")]
            for name in re.findall(r'(?:getenv|variable|mhai_setting\w*)\("(\w+)"', path.read_text())}
    told = set(re.findall(r"^  ([A-Z]\w+)  ", run("help").out.decode().split("Environment:")[1], re.M))
    table = MANUAL.split("\n## Environment variables\n")[1].split("\n## ")[0]
    written = {name for row in re.findall(r"^\| (`[A-Z].*?) \|", table, re.M) for name in re.findall(r"`(\w+)`", row)}
    check(read - OF_LAUNCHERS <= told, f"help lacks variables that are read: {read - OF_LAUNCHERS - told}")
    check(told == written, f"docs/program.md and the help differ in variables: {told ^ written}")


def topics():
    check(len(COMMANDS) == 16, f"all subcommands are listed: {COMMANDS}")
    for command in COMMANDS:
        text = run(command, "--help").out
        check(run("help", command).out == text, f"help {command}")
        # A command that users copy is not wrapped.
        lines = [line for line in text.decode().splitlines() if not line.startswith("  multihead ")]
        check(max(map(len, lines)) <= 80, f"help {command} fits 80 columns")
        table = re.split(r"\nExamples:\n.*?\n\n", text.decode(), maxsplit=1, flags=re.S)[-1]
        blocks = re.findall(r"^ {2,6}(?:-\w, )?--[a-z].*(?:\n {26}.*)*", table, re.M)
        for block in blocks:
            check(re.search(r"(?:  |\n {26})\S", block[8:]), f"{command}: an option without a word of help: {block}")
        check(len(blocks) == len(options_of(command)), f"{command}: {len(blocks)} options")
        check(f"\n## `multihead {command}`\n" in MANUAL, f"docs/program.md has a section on {command}")
        unknown = set(re.findall(r"(?<![\w-])--[a-z0-9][\w-]+", section_of(command))) - ALL_OPTIONS
        check(not unknown, f"docs/program.md, {command}: {unknown}, which no subcommand has")
    check(b"  7  out of memory" in run("help", "exit-codes").out, "exit codes")
    scores_are_those_of_the_page()
    check(run("--help").out == run("help").out, "--help is the overview")
    check_error(run("help", "view", "heads"), USAGE, "one topic", command="help")
    check_error(run("help", "view", "--format", "zsh"), USAGE, "omit 'view'", command="help")
    check_error(run("help", "vew", "--format", "man"), USAGE, "mean 'view'", command=None)
    check_error(run("help", "--format", "html"), USAGE, "one of text, man, bash", command="help")


def scores_are_those_of_the_page():
    """`help scores` lists the library's scores and roles, with the same names, labels, thresholds and sources as
    docs/heads.md."""
    page = (ROOT / "docs" / "heads.md").read_text()
    scores, roles = run("help", "scores").out.decode().split("Roles, by")
    told = [(label, name, source) for name, label, source in
            re.findall(r"^  ([a-z_]+) +(\S.*) \(([^()]*)\)$", scores, re.M)]
    shown = re.findall(r"^\| (.+?) \| `([a-z_]+)` \|.*\| ([^|]*) \|$", page.split("## Roles")[0], re.M)
    check(len(told) == 39 and told == shown, f"scores of help and docs/heads.md: {set(told) ^ set(shown)}")
    told = [(role.strip(), score, threshold, source) for role, score, threshold, source in
            re.findall(r"^  (\S.{14})  (\w+) (.*?) \((.*)\)$", roles, re.M)]
    shown = re.findall(r"^\| (.+?) \| `?(\w+)`? \| (.*?) \| ([^|]*) \|$",
                       page.split("## Roles")[1].split("\n## ")[0], re.M)
    check(len(told) == 24 and told == shown, f"roles of help and docs/heads.md: {set(told) ^ set(shown)}")


def page_of(topic):
    result = run("help", *topic, "--format", "man", **EPOCH)
    check_good(result, f"man page {topic}")
    return result.out.decode()


def man_pages():
    for topic in [[], *([command] for command in COMMANDS)]:
        page, name = page_of(topic), "-".join(["multihead", *topic])
        path = FOLDER / f"{name}.1"
        path.write_text(page)
        check('"2026-09-21"' in page and "SEE ALSO" in page, f"{name}: date and end")
        for option in options_of(topic[0]) if topic else ("--help", "--version"):
            check(option.replace("-", "\\-") in page, f"{name}(1) has {option}")
        if shutil.which("mandoc"):
            lint = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", path],
                                  capture_output=True, text=True, check=False)
            check(not lint.stdout + lint.stderr, f"mandoc of {name}: {lint.stdout}")
        if shutil.which("man") and shutil.which("groff"):
            shown = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", path],
                                   capture_output=True, text=True, check=False,
                                   env={**os.environ, "MANPAGER": "cat", "MANWIDTH": "80"})
            check(not shown.stderr and name in shown.stdout, f"man {name}: {shown.stderr}")
    have("mandoc", "man", "groff")
    check(b'1 "" "multihead' in run("help", "--format", "man", SOURCE_DATE_EPOCH="").out,
          "without a date of the sources none is invented")


def write_completions(shell):
    result = run("help", "--format", shell)
    check_good(result, shell)
    path = FOLDER / f"completions.{shell}"
    path.write_bytes(result.out)
    for command in COMMANDS:
        for option in options_of(command):
            name = option if shell != "fish" else f"-l {option[2:]} "
            check(name in result.out.decode() + " ", f"{shell} knows {command} {option}")
    return path


# Completions that a shell offers after these words, or None for files.
OFFERS = (("", [*COMMANDS, "--help", "--version"]),
          ("view --sort ", ["weight", "arrives", "effect"]),
          ("view --sort = e", ["effect"]),
          ("view --sort = ", ["weight", "arrives", "effect"]),
          ("view --so", ["--sort"]),
          ("view --layer ", []),
          ("train re", ["reverse"]),
          ("bench ", ["forward", "backward", "decode", "module", "gemm", "all"]),
          ("help exit", ["exit-codes"]),
          ("view -o tiny-b", ["tiny-bert"]),
          ("view tiny-b", ["tiny-bert"]),
          ("view -- --so", []))


def bash():
    path = write_completions("bash")
    if not have("bash"):
        return
    for words, offered in OFFERS:
        script = ('source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _multihead; '
                  'printf "%s\\n" "${COMPREPLY[@]}"')
        told = subprocess.run(["bash", "-c", script, "bash", path, "multihead", *words.split(" ")],
                              capture_output=True, text=True, check=False, cwd=MODEL.parent)
        check(told.stdout.split() == offered and not told.stderr,
              f"bash completes '{words}' to {told.stdout.split()}, not {offered}: {told.stderr}")


def fish():
    path = write_completions("fish")
    if not have("fish"):
        return
    for words, offered in OFFERS:
        if " = " in words or words.startswith("view --"):
            continue  # fish handles = and -- differently
        script = "source $argv[1]; complete -C $argv[2]"
        told = subprocess.run(["fish", "--no-config", "-c", script, path, f"multihead {words}"],
                              capture_output=True, text=True, check=False, cwd=MODEL.parent)
        names = {line.split("\t")[0].rstrip("/") for line in told.stdout.splitlines()}
        if words:
            check(names == {*offered}, f"fish completes '{words}' to {names}, not {offered}")
        else:
            check({*COMMANDS} <= names, f"fish completes the subcommands: {names}")


def zsh():
    path = write_completions("zsh")
    if not have("zsh"):
        return
    child, descriptor = pty.fork()
    if child == 0:
        os.chdir(MODEL.parent)
        os.environ.update(TERM="dumb", PS1="> ")
        os.execvp("zsh", ["zsh", "-f", "-i"])
    heard = b""
    lines = (f"autoload -Uz compinit; compinit -u -D; source {path}", 'multihead() { print "[$*]" }')
    os.write(descriptor, "".join(line + "\n" for line in lines).encode())
    for typed, meant in (("bench backw\t", "bench backward"), ("tra\tre\t", "train reverse"),
                         ("view --sort=arr\t", "view --sort=arrives"),
                         ("view tiny-ber\t", "view tiny-bert"), ("help exit\t", "help exit-codes")):
        os.write(descriptor, f"multihead {typed}\n".encode())
        answer = re.compile(rb"\n\[([^\]]*)\]\r")
        while not answer.search(heard):
            heard += os.read(descriptor, 4096)
        told = answer.search(heard).group(1).decode().strip()
        check(told == meant, f"zsh completes '{typed}' to '{told}', not '{meant}'")
        heard = heard[answer.search(heard).end():]
    os.write(descriptor, b"exit\n")
    os.close(descriptor)
    os.waitpid(child, 0)


topics()
environment_variables()
man_pages()
bash()
zsh()
fish()
finish()
