#!/usr/bin/env python3
"""Check that documents point at what exists.

Fails on: a relative link of an .md file whose target is missing; a row of the tables of
docs/features.md with a cell too many or too few; a "yes" of ours there that does not link to a test
file and name a test of it in backquotes right behind the link. A test is a function that a C file
gives to RUN_TESTS or to cmocka, a test_ function of pytest, or a function of a script in tests/cli.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FEATURES = "docs/features.md"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PROOF = re.compile(r"\[[^\]]+\]\((\.\./tests/[^)]+)\)((?:,? *`\w+`)*)")


def documents():
    """Tracked and new .md files; all of them where there is no git."""
    git = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT,
                         capture_output=True, text=True, check=False)
    names = git.stdout.split() if git.returncode == 0 else [
        str(path.relative_to(ROOT)) for path in ROOT.rglob("*.md")
        if not path.relative_to(ROOT).parts[0].startswith("build")]
    return sorted(name for name in names if not name.startswith("tests/golden/"))


def dead_links(name, text):
    text = re.sub(r"^```.*?^```$", lambda m: "\n" * m.group(0).count("\n"), text,
                  flags=re.M | re.S)
    for number, line in enumerate(text.split("\n"), 1):
        for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:|#", target):
                continue
            if not ((ROOT / name).parent / target.split("#")[0]).exists():
                yield f"{name}:{number}: there is no {target}"


def tests_of(path):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".c":
        return set(re.findall(r"\b(?:cmocka_unit_test\w*|TEST)\((\w+)", text))
    tests = "test_" if path.name.startswith("test_") else ""  # pytest, or a script
    return set(re.findall(rf"^\s*def ({tests}\w+)", text, re.M))


def unproved(text):
    """Rows of the tables that are misshapen, or whose claim of ours names no test that exists."""
    proofs, columns, ours = 0, None, False
    for number, line in enumerate(text.split("\n"), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and columns is None:
            ours = len(cells) > 1 and cells[1] == "multihead"
        columns = (columns or len(cells)) if line.startswith("|") else None
        if columns not in (None, len(cells)):
            yield f"{FEATURES}:{number}: '{cells[0]}': {len(cells)} cells, not {columns}"
        if not ours or not line.startswith("| ") or cells[1:2] in (["multihead"], ["–"]):
            continue
        found = PROOF.findall(cells[1])
        if not found or not cells[1].startswith("[yes]"):
            yield f"{FEATURES}:{number}: '{cells[0]}': neither – nor [yes](../tests/...) `test`"
        for target, names in found:
            path = (ROOT / FEATURES).parent / target
            if not path.is_file():
                continue  # a dead link, told already
            names = re.findall(r"`(\w+)`", names)
            if not names:
                yield f"{FEATURES}:{number}: '{cells[0]}': which test of {target}?"
            for missing in sorted(set(names) - tests_of(path)):
                yield f"{FEATURES}:{number}: {target} has no test {missing}"
            proofs += len(names)
    if proofs == 0:
        yield f"{FEATURES}: no proof found; has the table changed its form?"


def main():
    names, errors = documents(), []
    for name in names:
        errors += dead_links(name, (ROOT / name).read_text(encoding="utf-8"))
    errors += unproved((ROOT / FEATURES).read_text(encoding="utf-8"))
    for line in errors:
        print(line)
    print(f"links: {len(names)} documents, {len(errors)} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
