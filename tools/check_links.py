#!/usr/bin/env python3
"""Check that the links of documents exist.

Fails on: a relative link of an .md file whose target is missing, or whose anchor is not a heading of its target; a page
of docs/ that docs/start.md does not list; a C program in a page that is not identical to a file of examples/, which the
tests run; a block after <!-- part of FILE --> that FILE does not contain; a row of the tables of docs/features.md with
a wrong number of cells, or without links to test files whose text is the name of a test,
followed by names of further tests in backquotes. A test is a function passed to RUN_TESTS or
cmocka in a C file, a test_ function of pytest, or a function of a script in tests/cli.

With --site DIR it checks the HTML pages there instead (script/site): every href and src of the site
resolves to a file, and every anchor to an id.
"""
import html.parser
import pathlib
import re
import subprocess
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
FEATURES = "docs/features.md"
START = "docs/start.md"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.*?)(?: +#+)? *$", re.M)
PROOF = re.compile(r"\[(`\w+`)\]\((\.\./tests/[^)]+)\)((?:,? *`\w+`)*)")


def documents():
    """Tracked and new .md files; without git, all of them."""
    git = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT,
                         capture_output=True, text=True, check=False)
    names = git.stdout.split() if git.returncode == 0 else [
        str(path.relative_to(ROOT)) for path in ROOT.rglob("*.md")
        if not path.relative_to(ROOT).parts[0].startswith("build")]
    return sorted(name for name in names if not name.startswith("tests/golden/"))


class Anchors:
    """The ids that GitHub gives to the headings of a page, in order."""

    def __init__(self):
        self.used = {}

    def add(self, heading):
        slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        count = self.used.get(slug)
        self.used[slug] = 0 if count is None else count + 1
        name = slug if count is None else f"{slug}-{count + 1}"
        self.used.setdefault(name, 0)
        return name


def without_code(text):
    """Fenced blocks as empty lines."""
    return re.sub(r"^( *```).*?^\1 *$", lambda m: "\n" * m.group(0).count("\n"), text,
                  flags=re.M | re.S)


def anchors_of(text):
    anchors = Anchors()
    return {anchors.add(re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading))
            for heading in HEADING.findall(without_code(text))}


def dead_links(name, text):
    for number, line in enumerate(without_code(text).split("\n"), 1):
        for link in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", link):
                continue
            target, _, anchor = link.partition("#")
            path = (ROOT / name).parent / target if target else ROOT / name
            if not path.exists():
                yield f"{name}:{number}: there is no {link}"
            elif anchor and path.suffix == ".md" and anchor not in anchors_of(
                    path.read_text(encoding="utf-8")):
                yield f"{name}:{number}: {link}: no heading has this anchor"


def unlisted(names, text):
    listed = {link.split("#")[0] for link in LINK.findall(without_code(text))}
    for name in names:
        if name.startswith("docs/") and name != START and name[len("docs/"):] not in listed:
            yield f"{START}: {name} is not in the list of all pages"


def other_programs(name, text):
    examples = [path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("*.c")]
    for code in re.findall(r"^```c\n(.*?)^```$", text, re.M | re.S):
        if "int main(" in code and code not in examples:
            first = code.split("\n")[0]
            yield f"{name}: the program that begins with '{first}' is no file of examples/"
    for file, code in re.findall(r"^<!-- part of (\S+) -->\n+```c\n(.*?)^```$", text, re.M | re.S):
        if code not in (ROOT / file).read_text(encoding="utf-8"):
            yield f"{name}: {file} does not contain the code that begins with '{code.split(chr(10))[0]}'"


class Page(html.parser.HTMLParser):
    """The links and the ids of an HTML page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.ids = [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("href", "src"):
                self.links.append((self.getpos()[0], value or ""))
            elif name == "id":
                self.ids.append(value)


def site_errors(folder):
    folder = pathlib.Path(folder).resolve()
    pages = {path: Page(path) for path in sorted(folder.rglob("*.html"))}
    if not pages:
        yield f"{folder}: no page"
    for path, page in pages.items():
        name = path.relative_to(folder)
        for twice in sorted({i for i in page.ids if page.ids.count(i) > 1}):
            yield f"{name}: two elements have the id {twice}"
        for number, link in page.links:
            if re.match(r"(https?|mailto):", link):
                continue
            parts = urllib.parse.urlsplit(link)
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            anchor = urllib.parse.unquote(parts.fragment)
            if parts.scheme or folder not in target.parents or not target.is_file():
                yield f"{name}:{number}: there is no {link}"
            elif anchor and anchor not in pages[target].ids:
                yield f"{name}:{number}: {link}: no element has this id"


def tests_of(path):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".c":
        return set(re.findall(r"\b(?:cmocka_unit_test\w*|TEST)\((\w+)", text))
    tests = "test_" if path.name.startswith("test_") else ""  # pytest, or a script
    return set(re.findall(rf"^\s*def ({tests}\w+)", text, re.M))


def unproved(text):
    """Rows of the tables that have the wrong form, or whose claim names no existing test."""
    proofs, columns, ours = 0, None, False
    for number, line in enumerate(text.split("\n"), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and columns is None:
            ours = len(cells) > 1 and cells[1] == "tests"
        columns = (columns or len(cells)) if line.startswith("|") else None
        if columns not in (None, len(cells)):
            yield f"{FEATURES}:{number}: '{cells[0]}': {len(cells)} cells, not {columns}"
        if not ours or not line.startswith("| ") or cells[1:2] in (["tests"], ["–"]):
            continue
        found = PROOF.findall(cells[1])
        if not found or not cells[1].startswith("[`"):
            yield f"{FEATURES}:{number}: '{cells[0]}': neither – nor [`test`](../tests/...)"
        for first, target, names in found:
            path = (ROOT / FEATURES).parent / target
            if not path.is_file():
                continue  # a dead link, already reported
            names = re.findall(r"`(\w+)`", first + names)
            for missing in sorted(set(names) - tests_of(path)):
                yield f"{FEATURES}:{number}: {target} has no test {missing}"
            proofs += len(names)
    if proofs == 0:
        yield f"{FEATURES}: no proof found; has the table changed its form?"


def main():
    if sys.argv[1:2] == ["--site"] and len(sys.argv) == 3:
        errors = list(site_errors(sys.argv[2]))
        print(*errors, f"links: {sys.argv[2]}, {len(errors)} errors", sep="\n")
        return 1 if errors else 0
    names, errors = documents(), []
    for name in names:
        text = (ROOT / name).read_text(encoding="utf-8")
        errors += [*dead_links(name, text), *other_programs(name, text)]
    errors += unlisted(names, (ROOT / START).read_text(encoding="utf-8"))
    errors += unproved((ROOT / FEATURES).read_text(encoding="utf-8"))
    for line in errors:
        print(line)
    print(f"links: {len(names)} documents, {len(errors)} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
