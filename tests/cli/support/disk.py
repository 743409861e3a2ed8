"""A program whose files are slow, whose files kill it, or whose files are watched: see disk.c."""
import os
import subprocess

from harness import FOLDER, ROOT

_built = []


def disk(**settings):
    """What to add to a program's environment: disk(delay=2000), disk(kill=7), disk(log=path)."""
    if not _built:
        library = FOLDER / "disk.so"
        subprocess.run([os.environ.get("CC", "cc"), "-O1", "-shared", "-fPIC", "-o", library,
                        ROOT / "tests" / "cli" / "support" / "disk.c"], check=True)
        _built.append(str(library))
    sanitizer = os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
    return {"LD_PRELOAD": _built[0], "ASAN_OPTIONS": sanitizer.strip(":"),
            **{f"DISK_{name.upper()}": str(value) for name, value in settings.items()}}


def operations(log):
    """What was done, in order, as tuples; bytes that were written stand at the end of theirs."""
    data = log.read_bytes()
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
