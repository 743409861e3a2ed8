#!/usr/bin/env python3
"""Check the direction of includes: which folder may include which (docs/architecture.md).

Prints each offending include and exits with 1; exits with 0 when the layers hold.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = {"io", "tokenizer", "model", "state", "checkpoint"}
# The headers of the compute library: all that are no companion's.
PUBLIC = {path.stem for path in (ROOT / "include/multihead").glob("*.h")} - MODEL - {"render"}
# folder: (internal folders it may include, public headers it may include)
ALLOWED = {
    "src/base": ({"base"}, {"base", "component", "sink"}),
    "src/kernels": ({"kernels", "base"}, {"base"}),
    "src/attention": ({"attention", "kernels", "base"},
                      {"attention", "backward", "linear_attention", "merge", "patterns",
                       "position", "base", "component"}),
    "src/nn": ({"nn", "kernels", "base"}, {"nn", "optimizer", "base", "component"}),
    "src/module": ({"module", "nn", "kernels", "base"},
                   {"module", "module_backward", "attention", "backward", "base", "cache",
                    "component", "nn", "position"}),
    "src/transformer": ({"transformer", "nn", "base"},
                        {"nn", "transformer", "attention", "backward", "cache", "position", "base",
                         "component"}),
    "src/analysis": ({"analysis", "transformer", "nn", "base"}, PUBLIC),
    "src/presets": ({"presets", "base"}, {"presets", "attention", "module", "base", "component"}),
    "src/io": ({"io"}, {"io", "tokenizer", "base", "component", "sink"}),
    "src/render": ({"render"}, {"render", "base", "component", "sink"}),
    "src/model": ({"model", "io"}, PUBLIC | MODEL),
    "cli": ({"cli"}, PUBLIC | MODEL | {"render"}),
    "examples": (set(), PUBLIC | MODEL | {"render"}),
    "tests/unit": ({"support", "reference"}, PUBLIC | MODEL | {"render"}),
    "tests/support": ({"support"}, PUBLIC),
    "tests/fuzz": ({"fuzz", "support"}, PUBLIC | MODEL | {"render"}),
    "tests/reference": ({"reference", "support"}, PUBLIC),
}
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


found = list(offences())
print("\n".join(found) if found else "layers: every include goes the right way")
sys.exit(1 if found else 0)
