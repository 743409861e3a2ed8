#!/usr/bin/env python3
"""Check the direction of includes (docs/architecture.md), that no includes are circular, and that the names in that
page's table of src/ match the files.

Prints each offending include or name. Exit status 1 if there is one, otherwise 0.
"""
import fnmatch
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = {"gguf", "image", "io", "tokenizer", "model", "state", "checkpoint", "question", "study", "trial"}
RENDER = {"render", "render_heads", "render_live", "render_picture"}
SHOW = {"show", "live"}
CIRCUITS = {"circuits"}
MPI = {"mpi"}
# The headers of the compute library, without those of its companions.
PUBLIC = {path.stem for path in (ROOT / "include/multihead").glob("*.h")} - MODEL - RENDER - SHOW - CIRCUITS - MPI
# folder: (internal folders it may include, public headers it may include)
ALLOWED = {
    "src/base": ({"base"}, {"base", "component", "json", "sink"}),
    "src/ranks": ({"ranks", "base"}, {"transport", "base", "component"}),
    "src/kernels": ({"kernels", "base"}, {"base"}),
    "src/attention": ({"attention", "kernels", "base"},
                      {"attention", "backward", "linear_attention", "merge", "patterns",
                       "position", "recurrent", "base", "component"}),
    "src/distributed": ({"distributed", "cache", "attention", "nn", "ranks", "base"},
                        {"distributed", "transport", "attention", "backward", "nn", "base", "component"}),
    "src/nn": ({"nn", "kernels", "base"}, {"nn", "optimizer", "base", "component"}),
    "src/cache": ({"cache", "attention", "kernels", "base"}, {"cache", "attention", "base", "component"}),
    "src/attend": ({"attend", "cache", "base"},
                   {"attention", "base", "cache", "component", "nn", "position"}),
    "src/module": ({"module", "attend", "cache", "nn", "kernels", "base"},
                   {"module", "module_backward", "attention", "backward", "base", "cache",
                    "component", "nn", "position"}),
    "src/transformer": ({"transformer", "attend", "cache", "nn", "ranks", "base"},
                        {"nn", "optimizer", "transformer", "training", "sampling", "attention",
                         "backward", "cache", "position", "recurrent", "transport", "base",
                         "component"}),
    "src/analysis": ({"analysis", "transformer", "nn", "base"}, PUBLIC),
    "src/image": ({"image", "io"}, {"image", "io", "base", "component"}),
    "src/io": ({"io"}, {"gguf", "io", "base", "component", "sink"}),
    "src/tokenizer": ({"tokenizer", "io"}, {"tokenizer", "io", "base", "component"}),
    "src/render": ({"render"}, RENDER | {"base", "component", "json", "sink"}),
    "src/show": ({"show"}, PUBLIC | MODEL | RENDER | SHOW),
    "src/circuits": ({"circuits"}, {"circuits", "base", "component", "transformer", "nn", "position"}),
    "src/mpi": ({"mpi"}, {"mpi", "transport", "base", "component"}),
    "src/study": ({"study"}, PUBLIC | MODEL),
    "src/model": ({"model", "image", "io", "tokenizer"}, PUBLIC | MODEL),
    "examples": (set(), PUBLIC | MODEL | RENDER | SHOW | CIRCUITS | MPI),
    "tests/unit": ({"unit", "support", "reference"}, PUBLIC | MODEL | RENDER | SHOW | CIRCUITS | MPI),
    "tests/support": ({"support"}, PUBLIC),
    "tests/fuzz": ({"fuzz", "support", "serve", "common"}, PUBLIC | MODEL | RENDER | SHOW | CIRCUITS),
    "tests/reference": ({"reference", "support"}, PUBLIC | {"gguf"}),
}
# The folders of the program, bottom up. Each may include itself, common and the folders named here.
PROGRAM = PUBLIC | MODEL | RENDER | SHOW | CIRCUITS | MPI
ROOMS = {"common": (), "ablate": ("heads",), "bench": (), "circuits": ("heads",), "count": (), "explain": (),
         "generate": (), "heads": (), "help": (), "perplexity": (), "run": (), "selftest": (), "view": (),
         "train": ("view",), "prune": ("train",), "serve": (), "page": ()}
ALLOWED.update({f"cli/{room}": ({room, "common", *seen}, PROGRAM) for room, seen in ROOMS.items()})
INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<multihead/([^>]+)\.h>)')


def offences():
    for folder, (internal, public) in ALLOWED.items():
        for path in sorted((ROOT / folder).rglob("*.[ch]")):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                local, header = match.groups()
                if header is not None:
                    bad = header not in public
                else:
                    target = local.split("/")[0] if "/" in local else folder.split("/")[-1]
                    beside = (path.parent / local).exists()
                    bad = not beside and target not in internal
                if bad:
                    yield f"{path.relative_to(ROOT)}:{number}: {folder} may not include {local or header}"


def circles():
    """Each circle of includes among the files of src and cli, once."""
    files = {path: re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.M)
             for top in ("src", "cli") for path in (ROOT / top).rglob("*") if path.is_file()}
    graph = {path: [to for name in names for to in (path.parent / name, ROOT / "src" / name,
                                                   ROOT / "cli" / name)
                    if to in files] for path, names in files.items()}
    done = set()

    def walk(path, way):
        if path in way:
            names = [str(step.relative_to(ROOT)) for step in way[way.index(path):]]
            yield "a circle of includes: " + " -> ".join([*names, names[0]])
        elif path not in done:
            for to in graph[path]:
                yield from walk(to, [*way, path])
            done.add(path)

    for path in graph:
        yield from walk(path, [])


def table():
    """Folders of src/ without a row, files that no name of their row matches, and names that match no file."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = {folder: re.findall(r"`([\w.*]+)`", names)
            for folder, names in re.findall(r"^\| `(src/\w+)/` \| ([^|]*)\|", page, re.M)}
    for path in sorted(path for path in (ROOT / "src").iterdir() if path.is_dir()):
        folder, names = f"src/{path.name}", rows.pop(f"src/{path.name}", [])
        files = [name for name in path.iterdir() if name.suffix in (".c", ".inc") or name.is_dir()]
        for name in files:
            if not any(fnmatch.fnmatch(at, pattern) for pattern in names for at in (name.name, name.stem)):
                yield f"docs/architecture.md: {folder} does not mention {name.name}"
        inside = [at for name in path.rglob("*") for at in (name.name, name.stem)]
        yield from (f"docs/architecture.md: {folder} has no {pattern}" for pattern in names
                    if not fnmatch.filter(inside, pattern))
    yield from (f"docs/architecture.md: there is no {folder}" for folder in rows)


def main():
    rooms = {path.name for path in (ROOT / "cli").iterdir() if path.is_dir()}
    found = [*offences(), *circles(), *table(),
             *(f"cli/{room}: not in ROOMS of {__file__}" for room in rooms - {*ROOMS})]
    print("\n".join(found) if found else "layers: every include has a permitted direction")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
