#!/usr/bin/env python3
"""multihead help: the topics, and man pages and completions from the same table as --help. Shells and
checkers that are missing are named, and their checks left out."""
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
EPOCH = {"SOURCE_DATE_EPOCH": "1790000000"}  # 2026-09-21
COMMANDS = re.findall(r"^  (\w+) +\S", run("help").out.decode().split("Subcommands:")[1]
                      .split("Options:")[0], re.M)


def have(*names):
    missing = [name for name in names if not shutil.which(name)]
    if missing:
        print(f"left out: no {' '.join(missing)}")
    return not missing


PAGES = {"serve": "serve.md", "page": "explorer.md"}  # of subcommands that have their own


def options_of(command):
    return re.findall(r"^ {2,6}(?:-\w, )?(--[a-z][\w-]*)", run(command, "--help").out.decode(), re.M)


def topics():
    manual = (ROOT / "docs" / "program.md").read_text()
    check(len(COMMANDS) == 16, f"all subcommands are listed: {COMMANDS}")
    for command in COMMANDS:
        text = run(command, "--help").out
        check(run("help", command).out == text, f"help {command}")
        # A command to be copied is not broken into lines.
        lines = [line for line in text.decode().splitlines() if not line.startswith("  multihead ")]
        check(max(map(len, lines)) <= 80, f"help {command} fits 80 columns")
        section = manual.split(f"\n## `multihead {command}`")[-1].split("\n## ")[0] if command not in PAGES else \
            (ROOT / "docs" / PAGES[command]).read_text()
        for option in set(re.findall(r"--[a-z][a-z0-9-]+", text.decode())) - {"--help"}:
            check(option in section, f"the manual does not mention {command} {option}")
    check(b"  7  out of memory" in run("help", "exit-codes").out, "exit codes")
    check(run("--help").out == run("help").out, "--help is the overview")
    check_error(run("help", "view", "heads"), USAGE, "one topic", command="help")
    check_error(run("help", "view", "--format", "zsh"), USAGE, "leave 'view'", command="help")
    check_error(run("help", "vew", "--format", "man"), USAGE, "mean 'view'", command=None)
    check_error(run("help", "--format", "html"), USAGE, "one of text, man, bash", command="help")


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


# What a shell offers after these words; None: files.
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
            continue  # fish has its own idea of = and --
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
man_pages()
bash()
zsh()
fish()
finish()
