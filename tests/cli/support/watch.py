"""Run a program that gets a signal at a counted event, whose file operations are logged or whose
clock is replaced: see watch.c. Unlike times, counts of events are the same on every machine."""
import os
import pathlib
import shutil
import signal
import subprocess

from harness import FOLDER, HANGS, PROGRAM, check, check_good, environment, leftovers, run

LIBRARIES = pathlib.Path(PROGRAM).parent / "tests"
SANITIZED = os.environ.get("MHA_SANITIZE", "") != ""


def watched(**settings):
    """Additions to a program's environment: watched(file=7), watched(look=30, signal=SIGINT),
    watched(log=path), watched(clock=path)."""
    sanitizer = os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
    return {"LD_PRELOAD": str(LIBRARIES / "libcli_watch.so"), "ASAN_OPTIONS": sanitizer.strip(":"),
            **{f"WATCH_{name.upper()}": str(int(value) if name == "signal" else value)
               for name, value in settings.items()}}


def allocating(**settings):
    """The same for allocations (memory.c), except with sanitizers, which replace allocations:
    allocating(fail=7), allocating(signal=7, number=SIGINT), allocating(count=path)."""
    number = settings.pop("number", None)
    return {"LD_PRELOAD": str(LIBRARIES / "libcli_memory.so"),
            **({"WATCH_SIGNAL": str(int(number))} if number else {}),
            **{f"MEMORY_{name.upper()}": str(value) for name, value in settings.items()}}


def beside_older(folder, names, older, *arguments, **changes):
    """Run a command in a new folder that contains only these files, with the text `older` in each."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(older)
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, cwd=folder, stdin=subprocess.DEVNULL,
                          env=environment(**changes), timeout=HANGS)


def set_clock(path, seconds):
    """The clock of a program that runs with watched(clock=path)."""
    new = path.with_suffix(".new")
    new.write_bytes(seconds.to_bytes(8, "little"))
    new.rename(path)


def operations(log):
    """The operations in order, as tuples. Written bytes are the last element of their tuple. Clears
    the log for the next program."""
    data = log.read_bytes() if log.exists() else b""
    log.unlink(missing_ok=True)
    at, found = 0, []
    while at < len(data):
        end = data.index(b"\n", at)
        kind, *fields = data[at:end].decode().split("\t")
        at = end + 1
        if kind == "write":
            count = int(fields.pop())
            fields = [fields[0], int(fields[1]), data[at:at + count]]
            at += count
        found.append((kind, *fields))
    return found


def interrupted_at_each_operation(target, *arguments):
    """Send Ctrl-C before each file operation of this command. The target must then be the older
    file or the complete new one, without leftover files."""
    log = FOLDER / "log"
    check_good(run(*arguments, **watched(log=log)), "undisturbed")
    whole, count = target.read_bytes(), len(operations(log))
    check(count > 4, f"{count} operations")
    for number in range(1, count + 1):
        target.write_bytes(b"older")
        code = run(*arguments, **watched(file=number, signal=signal.SIGINT)).code
        check(target.read_bytes() in (b"older", whole) and code == -signal.SIGINT and not leftovers(),
              f"interrupted at operation {number} of {count}: exit {code}, {leftovers()}")
