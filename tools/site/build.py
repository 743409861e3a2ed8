#!/usr/bin/env python3
"""Build the documentation as plain HTML: every .md file, the public headers, the options of each subcommand, and the
targets of their links. The first page runs a model (docs/explorer.md) if script/page and
script/demo built its parts.

    build.py [--output DIR]     default: build/site

The site has the folders of the repository. A link to a source file opens a page with its text. A
link to a folder opens a list of its files. Navigation follows the list "All pages" of
docs/start.md. search.js finds sections by their words. Needs the Markdown parser markdown-it-py
(Debian: python3-markdown-it), and the program: $MULTIHEAD, default build/multihead. Output is
reproducible.
"""
import argparse
import html
import json
import os
import pathlib
import re
import shutil
import string
import subprocess
import sys

from markdown_it import MarkdownIt

TOOLS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOOLS))
import check_links  # noqa: E402
import headers  # noqa: E402
import options  # noqa: E402

ROOT = check_links.ROOT
HEADERS = "include/multihead"
MANUAL = "docs/program.md"
# The output of script/page and script/demo.
MODULE, MODEL = ROOT / "build/page/explorer.wasm.gz", ROOT / "build/demo/sentences/model.safetensors"
EXPLORER = "explorer.html"
IMAGES = (".png", ".svg", ".jpg", ".gif")
NAME = re.compile(r"\b(?:mha_[a-z0-9_]+|MHA_[A-Z0-9_]+)\b(?:\(\))?")
WORD = re.compile(r"\w{2,}")
SOURCE = re.compile(r"\b((?:docs/)[\w-]+\.md)\b")


def tracked():
    """The files of the repository that git does not ignore; without git, all except build folders."""
    git = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT,
                         capture_output=True, text=True, check=False)
    if git.returncode == 0:
        names = git.stdout.split("\n")[:-1]
        return sorted(name for name in names if (ROOT / name).is_file())
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()
                  and not path.relative_to(ROOT).parts[0].startswith(("build", ".git")))


def version():
    text = (ROOT / HEADERS / "multihead.h").read_text(encoding="utf-8")
    return ".".join(re.search(rf"MHA_VERSION_{part} (\d+)", text).group(1)
                    for part in ("MAJOR", "MINOR", "PATCH"))


class Site:
    def __init__(self, output):
        self.output = output
        self.files = tracked()
        self.version = version()
        self.template = string.Template(
            (pathlib.Path(__file__).parent / "page.html").read_text(encoding="utf-8"))
        self.markdown = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
        self.names = {}  # an identifier: the header that defines it
        for path in self.headers():
            for name in headers.defined((ROOT / path).read_text(encoding="utf-8")):
                self.names.setdefault(name, path)
        self.commands = options.subcommands()
        self.wanted, self.done = [], set()
        self.explorer = MODULE.exists() and MODEL.exists()
        self.index = []  # of the search: [URL, name of the page, name of the section, its text]
        self.menu = self.groups()

    def headers(self):
        return [name for name in self.files
                if name.startswith(HEADERS + "/") and name.endswith(".h")]

    # ---- Paths and links -------------------------------------------------------------------------

    def page_of(self, path):
        """The page of a file or folder of the repository, relative to the site."""
        if path == "README.md":
            return "index.html"
        if (ROOT / path).is_dir():
            readme = f"{path}/README.md"
            return self.page_of(readme) if readme in self.files else f"{path}/index.html"
        if path.endswith(".md") or path in self.headers():
            return str(pathlib.PurePosixPath(path).with_suffix(".html"))
        return path if path.endswith(IMAGES) else path + ".html"

    def link(self, page, path, anchor=""):
        """A link from a page to the page of a path, which is then built too."""
        if path not in self.done:
            self.wanted.append(path)
        target = os.path.relpath(self.page_of(path), os.path.dirname(page) or ".")
        return target + (f"#{anchor}" if anchor else "")

    def resolve(self, page, source, link):
        """Convert a link of a source file to a link of its page."""
        if re.match(r"[a-z]+:|#", link):
            return link
        target, _, anchor = link.partition("#")
        path = os.path.normpath(os.path.join(os.path.dirname(source), target))
        return self.link(page, path, anchor) if (ROOT / path).exists() else link

    def inline(self, page):
        """A function that escapes text of a header and links the names and documents in it."""
        def name(match):
            word = match.group(0)
            return self.named(page, word.removesuffix("()"), word)

        def convert(text):
            text = NAME.sub(name, html.escape(text, quote=False))
            text = SOURCE.sub(lambda m: f'<a href="{self.link(page, m[1])}">{m[1]}</a>'
                              if m[1] in self.files else m[1], text)
            return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", text)
        return convert

    def named(self, page, name, text):
        if name not in self.names:
            return text
        return f'<a href="{self.link(page, self.names[name], name)}">{text}</a>'

    # ---- Pages -----------------------------------------------------------------------------------

    def write(self, page, title, main, source, sections=()):
        path = self.output / page
        path.parent.mkdir(parents=True, exist_ok=True)
        root = "../" * page.count("/")
        text = self.template.substitute(
            title=html.escape(title), main=main, root=root, version=self.version,
            source=html.escape(source), nav=self.navigation(page, sections))
        path.write_text(text, encoding="utf-8")

    def navigation(self, page, sections):
        """The page that runs a model, and the groups of docs/start.md with the sections of the
        current page."""
        out = []
        if self.explorer:
            to = os.path.relpath(EXPLORER, os.path.dirname(page) or ".")
            out.append(f'<ul>\n<li><a href="{to}">Attention in your browser</a></li>\n</ul>')
        for group, links in self.menu:
            out.append(f"<h2>{html.escape(group)}</h2>\n<ul>")
            for text, path in links:
                current = self.page_of(path) == page
                if path == HEADERS and page.startswith(HEADERS):
                    inner = "".join(self.item(page, os.path.basename(name), name)
                                    for name in self.headers())
                elif path == MANUAL and page.startswith("docs/program/"):
                    inner = "".join(f'<li><a href="{name}.html">{name}</a></li>' for name, _ in self.commands)
                else:
                    inner = "".join(f'<li><a href="#{anchor}">{name}</a></li>'
                                    for anchor, name in sections if current)
                out.append(self.item(page, text, path, f"<ul>{inner}</ul>" if inner else ""))
            out.append("</ul>")
        return "\n".join(out)

    def item(self, page, text, path, inner=""):
        current = " aria-current=page" if self.page_of(path) == page else ""
        return (f'<li><a href="{self.link(page, path)}"{current}>{html.escape(text)}</a>'
                f'{inner}</li>')

    def groups(self):
        """[(heading, [(text, path)])]: under "All pages", the first link of each item by heading."""
        tokens = self.markdown.parse((ROOT / check_links.START).read_text(encoding="utf-8"))
        groups, inside, heading = [], False, ""
        for token in tokens:
            if token.type == "heading_open":
                heading = token.tag
            elif token.type == "inline" and heading:
                inside = (inside or token.content == "All pages") and heading != "h1"
                if inside and heading == "h3":
                    groups.append((token.content, []))
                heading = ""
            elif token.type == "inline" and inside and groups:
                at = [child.type for child in token.children].index("link_open")
                path = os.path.normpath(os.path.join("docs", token.children[at].attrGet("href")))
                groups[-1][1].append((token.children[at + 1].content, path))
        return groups

    def document(self, source):
        page = self.page_of(source)
        tokens = self.markdown.parse((ROOT / source).read_text(encoding="utf-8"))
        anchors, sections, title = check_links.Anchors(), [], None
        first = len(self.index)
        for token, following in zip(tokens, [*tokens[1:], None]):
            if token.type == "heading_open":
                text = "".join(child.content for child in following.children)
                anchor = anchors.add(text)
                token.attrSet("id", anchor)
                title = title or text
                if token.tag == "h2":
                    sections.append((anchor, html.escape(text)))
                self.index.append([f"{page}#{anchor}", title, text, ""])
            elif token.type in ("inline", "fence", "code_block") and len(self.index) > first:
                self.index[-1][3] += " " + token.content
        main = self.rendered(page, source, tokens)
        if source == MANUAL:
            main = re.sub(r'(<h2 id="multihead-(\w+)">.*</h2>)', r'\1\n<p><a href="program/\2.html">All options</a></p>', main)
        self.write(page, f"{title} · multihead" if title != "multihead" else title, main, source,
                   sections)

    def rendered(self, page, source, tokens):
        """Markdown as HTML, with links converted to the site's."""
        for token in tokens:
            for child in [token, *(token.children or [])]:
                for name in ("href", "src"):
                    if child.attrGet(name):
                        child.attrSet(name, self.resolve(page, source, child.attrGet(name)))
                if child.type in ("html_inline", "html_block"):
                    child.content = re.sub(r"<!--.*?-->", "", child.content, flags=re.S)
                    child.content = re.sub(
                        r'(src|href)="([^"]*)"',
                        lambda m: f'{m[1]}="{self.resolve(page, source, m[2])}"', child.content)
        main = self.markdown.renderer.render(tokens, self.markdown.options, {})
        main = main.replace("<table>", '<div class="table"><table>').replace(
            "</table>", "</table></div>")
        return re.sub(r"(?<!\">)<code>(mha_\w+|MHA_\w+)(\(\))?</code>", lambda m: self.named(
            page, m[1], m[0]), main)

    def notebook(self, source):
        """The cells of a notebook, which is stored without output."""
        page, main = self.page_of(source), []
        for cell in json.loads((ROOT / source).read_text(encoding="utf-8"))["cells"]:
            text = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                main.append(self.rendered(page, source, self.markdown.parse(text)))
            else:
                main.append(f"<pre><code>{html.escape(text)}</code></pre>")
        self.write(page, f"{os.path.basename(source)} · multihead", "\n".join(main), source)

    def subcommand(self, name, purpose):
        page = f"docs/program/{name}.html"
        main, found = options.page(name)
        self.index.append([page, f"multihead {name}", name, purpose])
        self.index += [[f"{page}#{anchor}", f"multihead {name}", option, what] for anchor, option, what in found]
        self.write(page, f"multihead {name} · multihead", main, MANUAL)

    def header(self, source):
        page = self.page_of(source)
        main = headers.page((ROOT / source).read_text(encoding="utf-8"), self.inline(page),
                            check_links.Anchors().add)
        name = os.path.basename(source)
        text = (ROOT / source).read_text(encoding="utf-8")
        self.index.append([page, name, name, headers.purpose(text)])
        self.index += [[f"{page}#{call}", name, call, ""] for call, of in self.names.items() if of == source]
        self.write(page, f"{name} · multihead", f"<h1>{name}</h1>\n{main}", source)

    def header_index(self):
        page, out = f"{HEADERS}/index.html", ["<h1>The public headers</h1>"]
        for source in self.headers():
            names = [name for name, path in self.names.items() if path == source]
            calls = [name for name in names if name.startswith("mha_")]
            out.append(f'<h2><a href="{self.link(page, source)}">{os.path.basename(source)}</a></h2>')
            purpose = headers.purpose((ROOT / source).read_text(encoding="utf-8"))
            out.append(f"<p>{self.inline(page)(purpose)}</p>\n<p>" + ", ".join(
                f"<code>{self.named(page, name, name)}</code>" for name in calls) + "</p>")
        self.write(page, "Headers · multihead", "\n".join(out), HEADERS)

    def folder(self, source):
        page = self.page_of(source)
        inside = [name for name in self.files if os.path.dirname(name) == source]
        rows = "\n".join(f'<li><a href="{self.link(page, name)}">{os.path.basename(name)}</a></li>'
                         for name in inside)
        self.write(page, f"{source} · multihead", f"<h1>{source}</h1>\n<ul>\n{rows}\n</ul>", source)

    def source(self, source):
        text = (ROOT / source).read_text(encoding="utf-8", errors="replace")
        self.write(self.page_of(source), f"{source} · multihead",
                   f"<h1>{source}</h1>\n<pre><code>{html.escape(text)}</code></pre>", source)

    def build_one(self, path):
        if path == HEADERS:
            self.header_index()
        elif (ROOT / path).is_dir():
            readme = f"{path}/README.md"
            self.wanted.append(readme) if readme in self.files else self.folder(path)
        elif path.endswith(".md"):
            self.document(path)
        elif path.endswith(".ipynb"):
            self.notebook(path)
        elif path in self.headers():
            self.header(path)
        elif path.endswith(IMAGES):
            target = self.output / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, target)
        else:
            self.source(path)

    def build(self):
        self.wanted = [name for name in self.files if name.endswith(".md")
                       and not name.startswith("tests/golden/")]
        self.wanted += [HEADERS, *self.headers()]
        while self.wanted:
            path = self.wanted.pop()
            if path not in self.done:
                self.done.add(path)
                self.build_one(path)
        for name, purpose in self.commands:
            self.subcommand(name, purpose)
        if self.explorer:
            subprocess.run([options.PROGRAM, "page", MODEL.parent, "-q", "--module", MODULE, "-o", self.output / EXPLORER],
                           check=True)
        for name in ("site.css", "search.js"):
            shutil.copyfile(pathlib.Path(__file__).parent / name, self.output / name)
        self.write_index()

    def write_index(self):
        """Each section with its distinct words. Manuals come first and win ties."""
        sections = [{"url": url, "page": page, "name": name, "text": " ".join(sorted(set(WORD.findall(text.lower()))))}
                    for url, page, name, text in sorted(self.index, key=lambda s: (not s[0].startswith("docs/"), s))]
        lines = ",\n".join(json.dumps(section, ensure_ascii=False) for section in sections)
        (self.output / "search-index.js").write_text(f"window.siteIndex = [\n{lines}\n];\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "build/site", metavar="DIR")
    output = parser.parse_args().output
    if output.exists() and any(output.iterdir()) and not (output / "site.css").exists():
        sys.exit(f"error: {output} is not empty and holds no site: name a new or empty folder")
    if not os.access(options.PROGRAM, os.X_OK):
        sys.exit(f"error: there is no program {options.PROGRAM}: script/site builds it, or name one with MULTIHEAD")
    shutil.rmtree(output, ignore_errors=True)
    Site(output).build()
    errors = list(check_links.site_errors(output))
    print(*errors, sep="\n", end="\n" if errors else "")
    print(f"site: {len(list(output.rglob('*.html')))} pages in {output}, {len(errors)} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
