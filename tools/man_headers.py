#!/usr/bin/env python3
"""Write the man pages of the libraries: libmultihead(3), one page per public header, and for each function a link to
its header's page.

Usage: man_headers.py FOLDER VERSION

A page reproduces its header: comments with their layout, followed by declarations. The date is SOURCE_DATE_EPOCH, or
none.
"""
import datetime
import os
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "site"))
import headers  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIBRARIES = {"render": "multihead-render", "render_heads": "multihead-render", "render_picture": "multihead-render", "image": "multihead-model", "show": "multihead-show", "live": "multihead-show", "circuits": "multihead-circuits",
             "mpi": "multihead-mpi",
             **dict.fromkeys(("checkpoint", "gguf", "io", "model", "state", "question", "study", "tokenizer", "trial"),
                             "multihead-model")}
ESCAPES = str.maketrans({"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha",
                         "~": "\\(ti"})
OVERVIEW = """.SH NAME
libmultihead \\- multi\\-head attention in C
.SH SYNOPSIS
.nf
#include <multihead/multihead.h>
.PP
cc program.c $(pkg\\-config \\-\\-cflags \\-\\-libs multihead)
.fi
.SH DESCRIPTION
Attention with every common mask, score term and position encoding, forward and backward; modules,
transformers, caches and optimizers; what each head does. Each header has a page, which is also found
under the name of each of its functions.
.PP
.B libmultihead
computes and needs the C library only.
.B libmultihead\\-model
reads and writes model folders, GGUF files and tokenizers,
.B libmultihead\\-render
draws matrices,
.B libmultihead\\-circuits
decomposes the weights of heads, and
.B libmultihead\\-mpi
connects processes. pkg\\-config knows them by these names without \\(lqlib\\(rq, and CMake as
multihead::multihead, multihead::multihead_model, multihead::multihead_render,
multihead::multihead_circuits and multihead::multihead_mpi.
.PP
Beside the headers, docs/ in comments means share/doc/multihead/docs of the installation.
.SH HEADERS
"""


def roff(text):
    """Lines of text; \\& prevents a leading period from becoming a request."""
    return re.sub(r"^(?=\.)", r"\\&", text.translate(ESCAPES), flags=re.M)


def title(name, version):
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    day = datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc).date() if epoch else ""
    return (".\\\" Written by tools/man_headers.py.\n"
            f'.TH {roff(name)} 3 "{day}" "multihead {version}" "Library Functions"\n')


def code_of(text):
    return f".EX\n{roff(text)}\n.EE\n"


def block(text):
    """A comment with its layout."""
    return f".nf\n{roff(text)}\n.fi\n"


def summary(text):
    """The first sentence of a header up to a colon, as the description of its page."""
    first = re.split(r"(?<=\w)(?<!et al)\.(?: |$)|: ", headers.purpose(text))[0].rstrip(".:")
    return first[0].lower() + first[1:] if first[1:2].islower() else first


def page(name, text, functions):
    library = LIBRARIES.get(name, "multihead")
    pieces = [piece for piece in headers.parts(text)
              if not (piece[0] == "code" and piece[1].startswith("#include"))]
    names = ", ".join([f"multihead_{name}.h", *functions])
    out = [f".SH NAME\n{roff(names)} \\- {roff(summary(text))}\n"
           f".SH LIBRARY\nlib{roff(library)}, pkg\\-config {roff(library)}\n"
           f".SH SYNOPSIS\n.B #include <multihead/{name}.h>\n.SH DESCRIPTION\n"]
    for kind, piece in pieces:
        section = headers.SECTION.match(piece) if kind == "comment" else None
        if section:
            out.append(f".SH {roff(section.group(1).upper())}\n")
        else:
            out.append("" if out[-1].startswith(".SH") else ".PP\n")
            out.append(code_of(piece) if kind == "code" else block(piece))
    out.append(".SH SEE ALSO\n.BR libmultihead (3)\n")
    return "".join(out)


def main():
    folder, version = pathlib.Path(sys.argv[1]), sys.argv[2]
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.3"):
        old.unlink()
    overview = [title("LIBMULTIHEAD", version), OVERVIEW]
    for path in sorted((ROOT / "include/multihead").glob("*.h")):
        name, text = path.stem, path.read_text(encoding="utf-8")
        functions = list(dict.fromkeys(headers.DEFINES[0].findall(text)))
        own = f"multihead_{name}.h"
        (folder / f"{own}.3").write_text(title(own.upper(), version) + page(name, text, functions),
                                         encoding="utf-8")
        for function in functions:
            (folder / f"{function}.3").write_text(f".so man3/{own}.3\n", encoding="utf-8")
        overview.append(f".TP\n.BR {roff(own)} (3)\n{roff(summary(text))}\n")
    overview.append(".SH SEE ALSO\n.BR multihead (1)\n")
    (folder / "libmultihead.3").write_text("".join(overview), encoding="utf-8")


if __name__ == "__main__":
    main()
