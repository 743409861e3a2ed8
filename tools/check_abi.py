#!/usr/bin/env python3
"""Compare the binary interface with the lists in abi/.

Usage: check_abi.py BUILD_DIR [--update]

abi/LIBRARY.abi lists every exported function with its type, every public struct with its size and the offset of each
field, the type of every callback, and every enumerator with its value and the name of its enumeration (flags have
none), each with the version that introduced it. Programs remain compatible with libraries of the same SONAME as long as
no entry is removed or changed; a struct that begins with struct_size may get fields at its end (base.h). After a build,
--update records additions and intended changes. The Python package declares the interface from
these lists (bindings/python/multihead/_abi.py).

Exits with 77 (skipped) without gcc, whose -aux-info prints the types of functions.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import check_layers
from check_symbols import LIBRARIES, ROOT, defined

HEADERS = ROOT / "include/multihead"
LISTS = ROOT / "abi"
# The key of a list's line, by which versions of an entry are matched.
ENTRY = re.compile(r"(\S+) ((?:function|struct|field|callback|value) \S+)(.*)")
STRUCT = re.compile(r"typedef struct (mha_\w+) \{(.*?)\} \1;", re.S)
ENUM = re.compile(r"enum (?:mha_\w+ )?\{(.*?)\} ?(mha_\w+)?;", re.S)
CALLBACK = re.compile(r"typedef ([^;{}()]+)\(\*(mha_\w+)\)\(([^;()]*)\);")
FUNCTION = re.compile(r"^/\* \S*?(\w+)\.h:.*?\*/ extern (.*?)(mha_\w+) (\(.*\));$", re.M)


def run(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, check=True, **more).stdout


def version():
    text = (HEADERS / "multihead.h").read_text()
    return ".".join(re.findall(r"#define MHA_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text))


def library_of(header):
    if header.startswith("render"):
        return "multihead-render"
    if header in check_layers.SHOW:
        return "multihead-show"
    if header in check_layers.CIRCUITS:
        return "multihead-circuits"
    if header in check_layers.MPI:
        return "multihead-mpi"
    return "multihead-model" if header in check_layers.MODEL else "multihead"


def compile_flags():
    return ["-std=c17", f"-I{ROOT / 'include'}", "-x", "c"]


def includes():
    return "".join(f"#include <multihead/{path.name}>\n" for path in sorted(HEADERS.glob("*.h")))


def texts():
    """(header, its text after the preprocessor)."""
    found, header = {}, None
    for line in run("gcc", *compile_flags(), "-E", "-", input=includes()).splitlines():
        if line.startswith("# "):
            match = re.search(r'include/multihead/(\w+)\.h"', line)
            header = match and match.group(1)
        elif header:
            found[header] = found.get(header, "") + line + "\n"
    return found


def fields(body):
    """(name, type) for each field of a struct."""
    for line in re.sub(r"\s+", " ", body).split(";"):
        if not line.strip():
            continue
        pointer = re.search(r"\(\*(\w+)\)", line)
        names = line.strip().split(",") if not pointer else [line.strip()]
        base = re.match(r"(?:const )?(?:struct )?\w+", names[0]).group(0)
        for number, text in enumerate(names):
            name = pointer.group(1) if pointer else re.search(r"(\w+)\s*(?:\[.*\])?$", text).group(1)
            kind = re.sub(rf"\b{name}\b", "", text if number == 0 else f"{base} {text.strip()}")
            yield name, " ".join(kind.split())


def without_names(parameters):
    """The types of "const float *rows, int64_t count"."""
    kinds = [re.sub(r"(?<=[ *])\w+$", "", " ".join(text.split())).strip() for text in parameters.split(",")]
    return ", ".join(kinds)


def measure(probes):
    """The values of C expressions, computed by the compiler."""
    lines = "".join(f'printf("%lld\\n", (long long)({probe}));\n' for probe in probes)
    source = f"{includes()}#include <stddef.h>\n#include <stdio.h>\nint main(void) {{\n{lines}}}\n"
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/probe"
        run("gcc", *compile_flags(), "-", "-o", program, input=source)
        return run(program).split()


def types():
    """Measure (library, "struct NAME ..." and so on)."""
    rows, probes = [], []
    for header, text in texts().items():
        for name, body in STRUCT.findall(text):
            rows.append((header, f"struct {name}", "bytes"))
            probes.append(f"sizeof({name})")
            for field, kind in fields(body):
                rows.append((header, f"field {name}.{field}", kind))
                probes.append(f"offsetof({name}, {field})")
        for result, name, parameters in CALLBACK.findall(text):
            rows.append((header, f"callback {name}", f"{result.strip()} ({without_names(parameters)})"))
            probes.append(f"sizeof({name})")
        for body, enumeration in ENUM.findall(text):
            for name in re.findall(r"\b(MHA_\w+)\b(?= *[=,}]|\s*$)", body + "\n", re.M):
                rows.append((header, f"value {name}", enumeration))
                probes.append(name)
    values = measure(probes)
    constants = {entry.removeprefix("value "): int(value) for (_, entry, _), value in zip(rows, values)}
    for (header, entry, kind), value in zip(rows, values):
        kind = re.sub(r"\[(.+?)\]", lambda size: f"[{eval(size[1].replace('/', '//'), constants)}]", kind)
        yield library_of(header), entry, kind if entry.startswith("callback") else f"{value} {kind}".strip()


def functions(build):
    """(library, "function NAME", its type), where the library is the one that exports the
    function."""
    with tempfile.TemporaryDirectory() as folder:
        run("gcc", *compile_flags(), "-aux-info", f"{folder}/aux", "-fsyntax-only", "-",
            input=includes())
        listed = pathlib.Path(f"{folder}/aux").read_text()
    kinds = {name: f"{result}{arguments}" for _, result, name, arguments in FUNCTION.findall(listed)}
    for library in LIBRARIES:
        shared = build / f"lib{library}.so"
        for _, name in defined(shared, "-D") if shared.exists() else ():
            yield library, f"function {name}", kinds.get(name, "not declared")


def current(build):
    """{library: {entry: value}} in the order of the headers, functions by name before them."""
    lists = {name: {} for name in LIBRARIES if (build / f"lib{name}.so").exists()}
    for library, entry, value in [*sorted(functions(build)), *types()]:
        if library in lists:
            lists[library][entry] = value
    return lists


def read(library):
    """{entry: (value, version)} of a list."""
    path = LISTS / f"lib{library}.abi"
    lines = path.read_text().splitlines() if path.exists() else ()
    matches = [ENTRY.match(line) for line in lines if not line.startswith("#")]
    return {match.group(2): (match.group(3).strip(), match.group(1)) for match in matches if match}


def may_grow(entry, old, new):
    """True if the struct records its size, so that fields may be added."""
    name = entry.removeprefix("struct ")
    return (entry.startswith("struct ") and f"field {name}.struct_size" in new
            and int(new[entry].split()[0]) >= int(old.split()[0]))


def compare(library, old, new):
    """(incompatible, sentence) for each difference."""
    for entry, (value, since) in old.items():
        if entry not in new:
            yield True, f"{entry} of {since} is gone"
        elif new[entry] != value:
            yield (not may_grow(entry, value, new),
                   f"{entry} of {since} was '{value}' and is '{new[entry]}'")
    for entry in new:
        if entry not in old:
            yield False, f"{entry} is new"


def write(library, old, new):
    lines = [f"# The binary interface of lib{library}: version, entry, value. Written by\n"
             "# tools/check_abi.py BUILD_DIR --update; docs/stability.md has the rules.\n"]
    for entry, value in new.items():
        kept = entry in old and (old[entry][0] == value or entry.startswith("struct "))
        lines.append(f"{old[entry][1] if kept else version()} {entry} {value}\n")
    LISTS.mkdir(exist_ok=True)
    (LISTS / f"lib{library}.abi").write_text("".join(lines))


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--update"]):
        print(__doc__, file=sys.stderr)
        return 2
    if not shutil.which("gcc"):
        print("skipped: no gcc")
        return 77
    build, bad, count = pathlib.Path(sys.argv[1]), 0, 0
    for library, new in current(build).items():
        old = read(library)
        count += len(new)
        if sys.argv[2:]:
            write(library, old, new)
            continue
        for breaks, sentence in compare(library, old, new):
            bad += 1
            print(f"abi/lib{library}.abi: {sentence}: " + (
                "programs that were built with it break. Restore it, or raise the SONAME "
                "(docs/stability.md) and run" if breaks else "fine; to list it, run")
                + f" tools/check_abi.py {sys.argv[1]} --update")
    print(f"abi: {count} entries, " + ("written" if sys.argv[2:] else f"{bad} differences"))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
