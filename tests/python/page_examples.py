#!/usr/bin/env python3
"""Run the Python examples of a page: the lines after >>> in its ```python blocks, in one session
per page.

    page_examples.py docs/python.md ...

A line `<!-- python: needs MODULE or/PATH ... -->` before a block skips it if one is missing; paths are relative to the
current folder. Prints the examples run and skipped; exits with 1 if the output differs from the page. Needs only the
requirements of the examples, so that it also runs in an environment with only the package.
"""
import doctest
import importlib.util
import os
import pathlib
import re
import sys

BLOCK = re.compile(r"^(?:<!-- python: needs ([\w. /-]+) -->\n+)?```python\n(.*?)^```$", re.M | re.S)


def missing(modules):
    return [name for name in modules.split()
            if not (os.path.exists(name) if "/" in name else importlib.util.find_spec(name))]


def run(path):
    """(examples that failed, examples run) of a page."""
    text, parser = pathlib.Path(path).read_text(encoding="utf-8"), doctest.DocTestParser()
    runner, session = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS), {"__name__": "page"}
    for match in BLOCK.finditer(text):
        if ">>>" not in match[2]:
            continue
        line = text.count("\n", 0, match.start(2))
        if gone := missing(match[1] or ""):
            print(f"{path}:{line}: skipped, {', '.join(gone)} is missing")
            continue
        test = parser.get_doctest(match[2], session, str(path), str(path), line)
        runner.run(test, clear_globs=False)
        session = test.globs
    return runner.summarize(verbose=False)


if __name__ == "__main__":
    failed = 0
    for page in sys.argv[1:]:
        result = run(page)
        print(f"{page}: {result.attempted} examples, {result.failed} failed")
        failed += result.failed or not result.attempted
    sys.exit(1 if failed else 0)
