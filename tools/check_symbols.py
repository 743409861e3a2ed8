#!/usr/bin/env python3
"""Check the built libraries: names, exports, dependencies, machine instructions.

Usage: check_symbols.py BUILD_DIR

- Static libraries define mha_* and mhai_* only, each name once; shared ones export mha_* only.
- Exactly one library exports each MHA_API declaration; nothing else is exported.
- libmultihead needs libc, libm and threads only.
- Only AVX2_OBJECTS and AVX512_OBJECTS contain vector instructions beyond the x86-64 baseline, and only the latter
  512-bit ones. These objects call no shared inline functions, which could be linked into baseline code.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIBRARIES = ("multihead", "multihead-model", "multihead-render", "multihead-show", "multihead-circuits", "multihead-mpi")
SYSTEM = re.compile(r"^(libc|libm|libpthread|libgcc_s|ld-linux[\w-]*)\.so")
# Compilers insert calls of the memory functions.
ISA_MAY_CALL = {"memcpy", "memset", "memmove", "_GLOBAL_OFFSET_TABLE_"}
TABLES = "mhai_gguf_grid_"  # constant data that every instruction set reads
AVX2_OBJECTS = ("isa_avx2.", "int8_avx2.", "gguf_decode_avx2.")
AVX512_OBJECTS = ("isa_avx512.", "int8_avx512.", "int8_amx.", "gguf_decode_avx512.")


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def defined(path, *options):
    """(object, symbol) for every global symbol that a library defines."""
    for line in run("nm", "-A", "--defined-only", "-g", *options, str(path)).splitlines():
        where, symbol = line.rsplit(None, 1)
        yield where.split(":")[1] if ".a:" in where else path.name, symbol.split("@")[0]


def declared():
    names = set()
    for header in sorted((ROOT / "include/multihead").glob("*.h")):
        names.update(re.findall(r"^MHA_API\b[^;{]*?\b(mha_\w+)\s*\(", header.read_text(), re.M))
    return names


def check_names(build, found):
    exports, owners = {}, {}
    for library in found:
        for member, symbol in defined(build / f"lib{library}.a"):
            if not symbol.startswith(("mha_", "mhai_")):
                yield f"lib{library}.a: {member} defines {symbol}"
            if symbol in owners:
                yield f"lib{library}.a: {member} defines {symbol}, and so does {owners[symbol]}"
            owners[symbol] = f"{member} of lib{library}.a"
        for _, symbol in defined(build / f"lib{library}.so", "-D"):
            if not symbol.startswith("mha_"):
                yield f"lib{library}.so exports {symbol}"
            elif symbol in exports:
                yield f"lib{library}.so exports {symbol}, and so does lib{exports[symbol]}.so"
            exports[symbol] = library
    public = declared()
    for symbol in sorted(set(exports) - public):
        yield f"lib{exports[symbol]}.so exports {symbol}, which no header declares"
    if len(found) == len(LIBRARIES):
        for symbol in sorted(public - set(exports)):
            yield f"{symbol} is declared in a header and exported by no library"


def check_needs(build):
    for line in run("objdump", "-p", str(build / "libmultihead.so")).splitlines():
        fields = line.split()
        if fields[:1] == ["NEEDED"] and not SYSTEM.match(fields[1]):
            yield f"libmultihead.so needs {fields[1]}"


def check_isa_calls(build, library):
    member = ""
    for line in run("nm", "-u", str(build / f"lib{library}.a")).splitlines():
        if line.endswith(":"):
            member = line.rstrip(":")
        elif line.strip() and member.startswith(AVX2_OBJECTS + AVX512_OBJECTS):
            symbol = line.split()[-1]
            if symbol not in ISA_MAY_CALL and not symbol.startswith(TABLES):
                yield f"{member} calls {symbol}: code that old machines may share"


def check_instructions(build, library):
    """One report per object."""
    member, told = "", set()
    listing = subprocess.Popen(["objdump", "-d", "--no-show-raw-insn", str(build / f"lib{library}.a")],
                               stdout=subprocess.PIPE, text=True)
    for line in listing.stdout:
        if ":     file format" in line:
            member = line.split(":")[0]
            continue
        parts = line.rstrip("\n").split("\t")
        if len(parts) < 2 or member in told or member.startswith(AVX512_OBJECTS):
            continue
        code = parts[1]
        wide = "%zmm" in code or "{%k" in code
        vector = wide or "%ymm" in code or re.match(r"v[a-z]", code)
        if wide or (vector and not member.startswith(AVX2_OBJECTS)):
            told.add(member)
            yield f"lib{library}.a: {member} holds '{' '.join(code.split())}'"
    if listing.wait() != 0:
        yield f"objdump failed on lib{library}.a"


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    build = pathlib.Path(sys.argv[1])
    found = [name for name in LIBRARIES if (build / f"lib{name}.a").exists()]
    if not found or found[0] != "multihead":
        print(f"symbols: no libmultihead.a in {build}")
        return 1
    errors = [*check_names(build, found), *check_needs(build)]
    x86 = "x86-64" in run("objdump", "-f", str(build / "libmultihead.so"))
    if x86:
        for name in found:
            errors += check_isa_calls(build, name)
            errors += check_instructions(build, name)
    for line in errors:
        print(line)
    print(f"symbols: {len(found)} libraries, {len(errors)} errors"
          + ("" if x86 else "; not x86-64: instructions not looked at"))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
