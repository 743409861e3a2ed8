#!/usr/bin/env python3
"""Check that the built files are hardened (cmake/settings.cmake, MHA_HARDENING).

Usage: check_hardening.py BUILD_DIR

- The program and the shared libraries: RELRO, BIND_NOW, a non-executable stack, calls of __stack_chk_fail and of
  checked functions such as __memcpy_chk; the program is PIE. No library path has an empty element, which would make the
  loader search the current folder.
- On x86-64 every object compiled from this tree has endbr64 at branch targets and is marked for IBT
  and SHSTK. A linked file has the mark only if the C library's crti.o has it, which depends on the
  system.
"""
import pathlib
import re
import subprocess
import sys

FILES = ("multihead", "libmultihead.so", "libmultihead-model.so", "libmultihead-render.so",
         "libmultihead-show.so", "libmultihead-circuits.so", "libmultihead-mpi.so")
# Functions that FORTIFY always replaces; memcpy and others only where the size of the target is known.
HAVE_CHECKED = {"snprintf", "vsnprintf", "fprintf", "vfprintf"}


def readelf(*arguments):
    return subprocess.run(("readelf", "-W", *map(str, arguments)), capture_output=True, text=True,
                          check=True).stdout


def check_linked(path):
    headers, dynamic = readelf("-lh", path), readelf("-d", path)
    stack = re.search(r"GNU_STACK.* (R?W?E?) +0x", headers)
    if "GNU_RELRO" not in headers:
        yield "no RELRO"
    if not stack or "E" in stack[1]:
        yield "its stack can be executed"
    if not re.search(r"\(FLAGS_1\).*\bNOW\b", dynamic):
        yield "no BIND_NOW"
    for found in re.findall(r"\(R(?:UN)?PATH\).*\[(.*)\]", dynamic):
        if "" in found.split(":"):
            yield f"its path for libraries, '{found}', has an empty element, which is the current folder"
    if path.suffix != ".so" and not re.search(r"\(FLAGS_1\).*\bPIE\b", dynamic):
        yield "not position-independent"
    needed = set(re.findall(r"UND (\w+)", readelf("--dyn-syms", path)))
    if "__stack_chk_fail" not in needed:
        yield "no stack protector"
    if needed & HAVE_CHECKED and not any(name.endswith("_chk") for name in needed):
        yield "no checked functions: FORTIFY is off"


def check_objects(path):
    """The objects of an archive that lack the CET note; reports name the first."""
    marks, member = {}, ""
    for line in readelf("-n", path).splitlines():
        if line.startswith("File: "):
            member = line[6:]
            marks[member] = ""
        elif "x86 feature:" in line:
            marks[member] += line
    bare = [name for name, mark in marks.items() if not ("IBT" in mark and "SHSTK" in mark)]
    if bare:
        yield f"{len(bare)} objects are not marked for IBT and SHSTK, such as {bare[0]}"


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    build = pathlib.Path(sys.argv[1])
    found = [build / name for name in FILES if (build / name).exists()]
    errors = [f"{path.name}: {error}" for path in found for error in check_linked(path)]
    if not found:
        errors.append(f"nothing built in {build}")
    elif "X86-64" in readelf("-h", found[0]):
        for archive in sorted(build.glob("libmultihead*.a")):
            errors += [f"{archive.name}: {error}" for error in check_objects(archive)]
    for line in errors:
        print(line)
    print(f"hardening: {len(found)} files, {len(errors)} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
