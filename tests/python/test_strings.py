"""The texts of the pages (src/render/page/strings): every translation has every text with the same
placeholders, and the pages use all texts."""
import ast
import re

import pytest

from shared import ROOT

PAGE = ROOT / "src/render/page"
TEXT = re.compile(r'^    "([^"]+)":\s+((?:"(?:[^"\\]|\\.)*"(?:\s*\+\s*)?)+)', re.M)
VALUE = re.compile(r"\{([^{}|]*)((?:\|[^{}|]*)*)\}")
WORDS = {"language"}  # t() does not read it


def read(path):
    """The texts by name, in order. A text is one string literal or a sum of several."""
    pairs = TEXT.findall(path.read_text())
    assert len(pairs) == len(dict(pairs)), f"{path.name} has a name twice"
    return {name: ast.literal_eval("(" + re.sub(r'"\s*\+\s*"', '" "', text) + ")") for name, text in pairs}


def first_arguments(source):
    """The names in calls of t() and tNodes(), without comparisons."""
    for call in re.finditer(r"\b(?:t|tNodes)\(", source):
        depth, at = 0, call.end()
        while depth > 0 or source[at] not in ",)":
            depth += (source[at] in "([{") - (source[at] in ")]}")
            at += 1
        yield re.sub(r'[!=]== "[^"]*"', "", source[call.end():at])


ENGLISH = read(PAGE / "strings/en.js")
SOURCES = "\n".join(path.read_text() for path in sorted(PAGE.iterdir()) if path.suffix in (".js", ".html"))
ASKED = list(first_arguments(SOURCES))
USED = {name for asked in ASKED for name in re.findall(r'"([^"]+)"', asked)} \
    | set(re.findall(r'\bdata-t(?:-\w+)?="([^"]+)"', SOURCES))
# Constructed names: `scale.${kind}`.
MADE = [re.compile(re.sub(r"\\\$\\\{.*?\\\}", ".+", re.escape(made)))
        for asked in ASKED for made in re.findall(r"`([^`]+)`", asked)] + [re.compile(r"given\..+")]


@pytest.mark.parametrize("path", sorted((PAGE / "strings").iterdir()), ids=lambda path: path.stem)
def test_a_translation_has_every_text(path):
    texts = read(path)
    assert list(texts) == list(ENGLISH), "the names and their order are those of en.js"
    for name, text in texts.items():
        own, english = ({found[0] for found in VALUE.findall(one)} for one in (text, ENGLISH[name]))
        forms = {found[0] for found in VALUE.findall(ENGLISH[name]) if found[1]}
        assert text.strip() and english - forms <= own <= english, f"{name}: {own}, expected {english}"


def test_every_text_is_used():
    assert [name for name in ENGLISH if name not in USED | WORDS and
            not any(made.fullmatch(name) for made in MADE)] == []


def test_every_text_that_is_used_exists():
    assert USED - ENGLISH.keys() == set()
