"""The public headers as pages: comments become text, declarations remain code.

A header is a sequence of comments that begin in the first column, each followed by declarations. A comment and the
declaration below it form an entry, whose heading is the declared name. A header of any other form is shown as comments
and code in order.
"""
import html
import re

COMMENT = re.compile(r"^/\*.*?\*/\n?", re.M | re.S)
# Lines for the compiler only.
BOILERPLATE = re.compile(r"^#ifdef __cplusplus\n(?:extern \"C\" \{|\})\n#endif\n|"
                         r"^#ifndef (MULTIHEAD_\w+)\n#define \1\n|^#endif\n\Z", re.M)
SECTION = re.compile(r"-{2,} (.*?) -{2,}")
FIELDS = "Memory|Errors|Threads|Since|Accuracy|Bits|Range|Cost"
SHORT = re.compile(r"(.*?) Memory (.*?) Errors (.*?) Threads (.*?) Since (\S+)", re.S)
LABEL = re.compile(r"^(\S[^:]{0,30}?) {2,}(\S.*)$")
# Names that a declaration defines: functions and types, which head an entry, then macros and constants.
DEFINES = (re.compile(r"^MHA_API\b[^;{]*?\b(mha_\w+)\(", re.M),
           re.compile(r"^typedef (?:struct|enum|union) (mha_\w+)", re.M),
           re.compile(r"^typedef [^;{}]*\(\*(mha_\w+)\)\(", re.M),
           re.compile(r"^#define (MHA_\w+)", re.M),
           re.compile(r"\b(MHA_[A-Z0-9_]+) = "),
           re.compile(r"\bX\((MHA_\w+), "))


def defined(code):
    """The names that code defines, headings of entries first."""
    names = [name for pattern in DEFINES for name in pattern.findall(code)]
    return list(dict.fromkeys(names))


def parts(text):
    """("comment" or "code", text) in order; code is split at empty lines outside braces."""
    at = 0
    for match in [*COMMENT.finditer(text), None]:
        code = BOILERPLATE.sub("", text[at:match.start() if match else len(text)])
        for block in blocks(code):
            yield "code", block
        if match:
            yield "comment", bare(match.group(0))
            at = match.end()


def blocks(code):
    """Split at empty lines outside braces."""
    block, depth = [], 0
    for line in code.split("\n"):
        depth += line.count("{") - line.count("}")
        if line.strip() or depth > 0:
            block.append(line)
        elif block:
            yield "\n".join(block)
            block = []
    if block:
        yield "\n".join(block)


def bare(comment):
    """The text of a comment, without its stars and the licence."""
    comment = re.sub(r"^/\*+ multihead: (.)", lambda m: f"/* {m[1].upper()}", comment)
    lines = re.sub(r"^/\*+ ?|\s*\*+/\s*$", "", comment).split("\n")
    lines = [lines[0].rstrip()] + [re.sub(r"^ \* ?", "", line).rstrip() for line in lines[1:]]
    return "\n".join(line for line in lines if not line.startswith("SPDX-")).strip("\n")


def fields(text):
    """Split "none.   Errors  none." at the names of fields."""
    first, *rest = re.split(rf" {{2,}}({FIELDS}) {{2,}}", text)
    return [first] + list(zip(rest[::2], rest[1::2]))


class Prose:
    """Paragraphs, lists, fields ("Errors   none") and indented lines of a comment as HTML."""

    def __init__(self, inline):
        self.inline, self.out, self.kind, self.items = inline, [], None, []

    def flush(self):
        if self.kind == "p":
            self.paragraph(" ".join(self.items))
        elif self.kind == "pre":
            while self.items and not self.items[-1]:
                self.items.pop()
            indent = min(len(line) - len(line.lstrip()) for line in self.items if line)
            text = "\n".join(line[indent:] for line in self.items)
            self.out.append(f"<pre><code>{self.inline(text)}</code></pre>")
        elif self.kind == "ul":
            rows = "".join(f"<li>{self.inline(item)}</li>\n" for item in self.items)
            self.out.append(f"<ul>\n{rows}</ul>")
        elif self.kind == "dl":
            self.definitions(self.items)
        self.kind, self.items = None, []

    def paragraph(self, text):
        """Short comments have their fields in one line: "Destroy it. Memory frees all. Errors ..."."""
        short = SHORT.fullmatch(text)
        self.out.append(f"<p>{self.inline(short.group(1) if short else text)}</p>")
        if short:
            self.definitions(zip(("Memory", "Errors", "Threads", "Since"), short.groups()[1:]))

    def definitions(self, items):
        rows = "".join(f"<dt>{self.inline(label)}</dt><dd>{self.inline(text)}</dd>\n"
                       for label, text in items)
        self.out.append(f"<dl>\n{rows}</dl>")

    def begin(self, kind):
        if self.kind != kind:
            self.flush()
            self.kind = kind

    def define(self, label, text):
        self.begin("dl")
        first, *rest = fields(text)
        self.items.append((label, first))
        self.items += rest

    def line(self, line):
        indented = line.startswith(" ")
        label = LABEL.match(line)
        if line.lstrip().startswith("- "):
            self.begin("ul")
            self.items.append(line.lstrip()[2:])
        elif label and not indented:
            self.define(label.group(1), label.group(2))
        elif indented and self.kind == "ul":
            self.items[-1] += " " + line.strip()
        elif indented and self.kind == "dl":
            name, text = self.items.pop()
            self.define(name, f"{text} {line.strip()}")
        elif indented:
            self.begin("pre")
            self.items.append(line)
        else:
            self.begin("p")
            self.items.append(line)

    def html(self, text):
        for line in text.split("\n"):
            if line:
                self.line(line)
            elif self.kind == "pre":
                self.items.append("")
            else:
                self.flush()
        self.flush()
        return "\n".join(self.out)


def coloured(code, inline):
    """Code with its comments marked."""
    pieces = re.split(r"(/\*.*?\*/)", code, flags=re.S)
    return "".join(f"<i>{inline(piece)}</i>" if piece.startswith("/*") else inline(piece)
                   for piece in pieces)


def purpose(text):
    """The first paragraph of a header."""
    first = next((piece for kind, piece in parts(text) if kind == "comment"), "")
    return first.split("\n\n")[0].replace("\n", " ")


def page(text, inline, slug):
    """The HTML of a header.

    inline(text) escapes text and links the names in it; slug(name) makes an anchor of a heading.
    """
    pieces = list(parts(text))
    out, seen = [], set()

    def entry(comment, code):
        names = [name for name in defined(code) if name not in seen]
        seen.update(names)
        heads = [name for name in names if name.startswith("mha_")] or names
        if heads and (heads[0].startswith("mha_") or code.startswith("#define")):
            out.append(f'<h3 id="{heads[0]}"><code>{html.escape(heads[0])}</code></h3>')
            names.remove(heads[0])
        out.extend(f'<span id="{name}"></span>' for name in names)
        if comment:
            out.append(Prose(inline).html(comment))
        if code:
            out.append(f"<pre><code>{coloured(code, inline)}</code></pre>")

    comment = None
    for kind, piece in pieces:
        section = SECTION.match(piece) if kind == "comment" else None
        if kind == "code":
            entry(comment, piece)
            comment = None
            continue
        if comment:
            entry(comment, "")
        comment = piece
        if section:
            out.append(f'<h2 id="{slug(section.group(1))}">{inline(section.group(1))}</h2>')
            comment = None
    if comment:
        entry(comment, "")
    return "\n".join(out)
