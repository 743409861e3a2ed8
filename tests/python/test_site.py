"""The documentation site: it builds, its links resolve, and it fits a phone.

Needs markdown-it-py; the last test also needs playwright and a Chromium ($MHA_CHROMIUM, or chromium
on the PATH).
"""
import html
import re
import subprocess
import sys

import pytest

from shared import PROGRAM, ROOT, SEED, amount, needs
sys.path.insert(0, str(ROOT / "tools"))
import check_links

needs(PROGRAM)
pytest.importorskip("markdown_it")
BUILD = ROOT / "tools/site/build.py"

PHONE = 360  # CSS pixels: the narrowest screens in use


def build(folder):
    return subprocess.run([sys.executable, BUILD, "--output", folder], capture_output=True, text=True,
                          check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    result = build(folder)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


def shown(page, tag):
    """The text of a page without tags."""
    return html.unescape(re.sub(r"<[^>]+>", tag, page))


def test_pages_and_links(site):
    assert list(check_links.site_errors(site)) == []
    for source in check_links.documents():
        page = site / ("index.html" if source == "README.md" else source.replace(".md", ".html"))
        assert page.is_file(), source
    for image in (ROOT / "docs").glob("*.png"):
        copy = site / "docs" / image.name
        assert not copy.exists() or copy.read_bytes() == image.read_bytes()


def test_every_page_leads_to_every_other(site):
    listed = {path for page in ("docs/start.html", "docs/gguf.html")
              for path in re.findall(r'href="([\w./-]+)"', (site / page).read_text())}
    for path in (ROOT / "docs").glob("*.md"):
        assert path.with_suffix(".html").name in listed, path.name


def test_headers_are_whole(site):
    """Every public function of every header has an anchor, and its page has every line of code."""
    for path in (ROOT / "include/multihead").glob("*.h"):
        text = path.read_text(encoding="utf-8")
        page = (site / "include/multihead" / f"{path.stem}.html").read_text(encoding="utf-8")
        calls = re.findall(r"^MHA_API[^;]*?\b(mha_\w+)\(", text, re.M)
        assert calls or path.stem in ("component", "multihead")
        for name in calls:
            assert f'<h3 id="{name}">' in page, f"{path.name}: {name}"
        code, page_code = re.sub(r"/\*.*?\*/", "\n", text, flags=re.S), shown(page, "")
        for line in filter(None, map(str.strip, code.split("\n"))):
            if not line.startswith("#") and line not in ('extern "C" {', "}"):
                assert line.rstrip("\\ ") in page_code, f"{path.name}: {line}"
        comments = " ".join(re.findall(r"/\*+(.*?)\*/", text, re.S)).lower()
        plain = set(re.findall(r"\w+", comments)) - {"spdx", "license", "identifier", "mit"}
        assert plain <= set(re.findall(r"\w+", shown(page, " ").lower())), path.name


def test_options_are_whole(site):
    """Every subcommand has a page with each line of its help, and an anchor for each option."""
    overview = subprocess.run([PROGRAM, "help"], capture_output=True, text=True, check=True).stdout
    for name in re.findall(r"^  (\w+) +\S", overview.split("Subcommands:")[1].split("Options:")[0], re.M):
        text = subprocess.run([PROGRAM, "help", name], capture_output=True, text=True, check=True).stdout
        page = (site / f"docs/program/{name}.html").read_text(encoding="utf-8")
        assert f'href="program/{name}.html"' in (site / "docs/program.html").read_text(encoding="utf-8")
        words = " ".join(shown(page, " ").split())
        for line in filter(None, (" ".join(line.split()).rstrip(":") for line in text.split("\n"))):
            assert line in words or " ".join(line.split()[2:]) in words, f"{name}: {line}"
        for option in re.findall(r"^ {2,6}(?:-\w, )?--([a-z][\w-]*)(?= |$)", re.split(r"\nExamples:\n.*?\n\n", text, maxsplit=1, flags=re.S)[1], re.M):
            assert f'id="{option}"' in page, f"{name}: --{option}"


@pytest.mark.gate(0)
def test_same_bytes(site, tmp_path):
    assert build(tmp_path / "again").returncode == 0
    for path in site.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "again" / path.relative_to(site)).read_bytes()


def test_no_other_script_and_no_network(site):
    """Only the page that computes has scripts of its own."""
    for path in site.rglob("*.html"):
        text = re.sub(r'<script src="(?:\.\./)*search\.js" ', "", path.read_text(encoding="utf-8"))
        script = "" if path == site / "explorer.html" else "<script|"
        assert not re.search(script + r"<iframe|<link[^>]+https?:|<img[^>]+https?:", text), path.name


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "letter.txt").write_text("mine")
    result = build(tmp_path)
    assert result.returncode != 0 and "is not empty" in result.stderr
    assert (tmp_path / "letter.txt").read_text() == "mine"


@pytest.mark.parametrize("link, error", [
    ('<a href="nowhere.html">', "there is no nowhere.html"),
    ('<a href="#nowhere">', "no element has this id"),
    ('<a href="b.html#nowhere">', "no element has this id"),
    ('<a href="../outside.html">', "there is no ../outside.html"),
    ('<img src="lost.png">', "there is no lost.png"),
    ('<p id="x"><p id="x">', "two elements have the id x"),
])
def test_planted_dead_links_of_the_site(tmp_path, link, error):
    (tmp_path / "outside.html").write_text("")
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "a.html").write_text(f'<a href="b.html#here">{link}')
    (folder / "b.html").write_text('<p id="here">')
    (found,) = check_links.site_errors(folder)
    assert error in found


@pytest.mark.parametrize("text, error", [
    ("[x](nowhere.md)", "there is no nowhere.md"),
    ("[x](library.md#nowhere)", "no heading has this anchor"),
    ("[x](#nowhere)", "no heading has this anchor"),
    ("```\n# code\n```\n[x](#code)", "no heading has this anchor"),
])
def test_planted_dead_links_of_documents(text, error):
    path = ROOT / check_links.START
    (found,) = check_links.dead_links(check_links.START, text)
    assert error in found and path.exists()


def test_planted_program():
    text = "```c\n" + (ROOT / "examples/merge.c").read_text(encoding="utf-8") + "```\n"
    assert list(check_links.other_programs("x.md", text)) == []
    assert list(check_links.other_programs("x.md", "```c\nf(x);\n```\n")) == []
    (found,) = check_links.other_programs("x.md", text.replace("int main(void)", "int main(void )"))
    assert "no file of examples/" in found


def test_anchors_are_those_of_github():
    text = "# A `code`, and *more*: x_y\n## Two words\n## Two words\n### [Linked](x.md) (a/b)\n"
    assert check_links.anchors_of(text) == {
        "a-code-and-more-x_y", "two-words", "two-words-1", "linked-ab"}


def test_fits_a_phone(site, new_page):
    wide, page = [], new_page(PHONE, 800)
    # Source code is in scrolling boxes, which are all equal.
    own = [path for path in sorted(site.rglob("*.html"))
           if path.relative_to(site).parts[0] not in ("tests", "src", "cli")]
    for path in own[SEED % (step := amount(8, 1, 1))::step]:
        page.goto(path.as_uri())
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > PHONE:
            wide.append(f"{path.relative_to(site)}: {width} px")
    assert wide == []


def test_search(site, new_page):
    """In a page in a folder, opened from disk, the search finds a section and opens it."""
    page = new_page(PHONE, 800)
    for typed, name, url in (("relative posit shaw", None, "docs/"),
                             ("mha_tensor_bthd", "mha_tensor_bthd", "include/multihead/base.html#mha_tensor_bthd"),
                             ("two HEADS circuit", "Tutorial: two heads, one circuit", "docs/tutorial-induction.html#"),
                             ("sliding-win", None, ""), ("xyzzy heads", "Nothing found.", None)):
        page.goto((site / "docs/lessons.html").as_uri())
        page.get_by_label("Search all pages").fill(typed)
        page.wait_for_selector("search li")
        assert name is None or page.locator("search li").first.inner_text().startswith(name), typed
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
        if url is not None:
            page.keyboard.press("Enter")
            page.wait_for_url(lambda at: "lessons.html" not in at and url in at)


def test_formulas_fit(site, new_page):
    """Boxes with formulas (indented, without commands) fit in 1,280 pixels; boxes with output scroll."""
    page = new_page(1280, 800)
    page.goto((site / "docs/lessons.html").as_uri())
    cut = page.evaluate("""[...document.querySelectorAll("pre:not(:has(code[class]))")]
        .filter(e => e.scrollWidth > e.clientWidth).map(e => e.textContent.slice(0, 60))""")
    assert cut == [] and page.locator("pre").count() > 20
