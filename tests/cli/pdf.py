"""PDF of view, heads --pictures and explain: one page of the SVG's size at 3/4 point per unit, with
embedded fonts and, according to pdftotext, the SVG's texts. Bytes are reproducible. Further tests
are for errors, and for failed allocations during the writing of fonts, which cairo reports as
success."""
import sys
import xml.etree.ElementTree

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403
from watch import SANITIZED, allocating  # noqa: E402

POPPLER = all(shutil.which(tool) for tool in ("pdfinfo", "pdffonts", "pdftotext"))


def tool(name, *arguments):
    return subprocess.run([name, *map(str, arguments)], check=True, capture_output=True).stdout.decode()


def compare(pdf, svg):
    """A PDF and an SVG of the same drawing."""
    data = pdf.read_bytes()
    check(data.startswith(b"%PDF-1.4") and b"Date" not in data and b"/FontFile" in data, f"{pdf.name}")
    if not POPPLER:
        return
    root = xml.etree.ElementTree.parse(svg).getroot()
    info = dict(line.split(":", 1) for line in tool("pdfinfo", pdf).splitlines())
    size = [float(word) for word in info["Page size"].split() if word[0].isdigit()]
    check(all(abs(a - 0.75 * float(root.get(b))) < 0.01 for a, b in zip(size, ("width", "height"))),
          f"{pdf.name}: {size}")
    check(info["Pages"].strip() == "1", f"{pdf.name}: {info['Pages']} pages")
    fonts = [line.split() for line in tool("pdffonts", pdf).splitlines()[2:]]
    check(fonts and all(line[-5:-2] == ["yes", "yes", "yes"] for line in fonts), f"{pdf.name}: {fonts}")
    read = "".join(tool("pdftotext", "-raw", pdf, "-").split())
    texts = {"".join(node.text.split()) for node in root.iter() if node.tag.endswith("}text") and node.text
             and not node.get("transform")}
    missing = [text for text in texts if text not in read]
    check(texts and not missing, f"{pdf.name}: {missing} of {len(texts)} in {read[:400]}")


def maps():
    words = "naïve Привет"  # missing glyphs share one box, read as the first one
    for name, arguments in (("one", [TEXT, "--head", "L1H0"]), ("dark", [words, "--dark", "--values", "always"]),
                            ("desk", [TEXT, "--desk", 0])):
        pdf, svg = FOLDER / f"{name}.pdf", FOLDER / f"{name}.svg"
        check_good(view(MODEL, *arguments, "--pdf", pdf, "--svg", svg), name)
        compare(pdf, svg)
    check(view(MODEL, TEXT, "--head", "L1H0", "--pdf", "-").out == (FOLDER / "one.pdf").read_bytes(),
          "the same bytes again, to stdout")
    check_error(view(MODEL, TEXT, "-o", "r.pdf"), 2, "use --pdf r.pdf")
    check_error(view(MODEL, TEXT, "--pdf", "none/r.pdf"), 6, "none/r.pdf")


def others():
    (FOLDER / "text.txt").write_text("The cat sat on the mat and the dog saw the cat by the river bank near it.")
    check_good(run("heads", MODEL, "--text", "text.txt", "--random", 0, "--pictures", "all", "--pdf", "--sort",
                   "previous"), "heads")
    drawn = sorted((FOLDER / "all").glob("*.pdf"))
    check(drawn and not list((FOLDER / "all").glob("*.png")), f"{drawn}")
    for path in drawn[:2]:
        compare(path, path.with_suffix(".svg"))
    check_good(run("explain", "--like", "gpt2", "--pdf", "e.pdf", "--svg", "e.svg"), "explain")
    compare(FOLDER / "e.pdf", FOLDER / "e.svg")
    odd = FOLDER / os.fsdecode("m\ufffe".encode() + b"\xff")  # the name becomes the title
    shutil.copytree(MODEL, odd)
    check_good(run("explain", odd, "--pdf", "e.pdf"), "a title with stray bytes")
    check_error(run("explain", "--like", "gpt2", "--pdf", "-", "--json"), 2, "only one of", command="explain")
    check_error(run("heads", MODEL, "--text", "text.txt", "--pdf"), 2, "--pdf requires --pictures", command="heads")


def short_of_memory():
    def explain(**settings):
        return run("explain", "--like", "gpt2", "--pdf", "m.pdf", **allocating(**settings))

    check_good(explain(count=FOLDER / "count"), "undisturbed")
    last = int((FOLDER / "count").read_text())
    for fail in (last - 200, last - 100, last - 40):
        (FOLDER / "m.pdf").write_bytes(b"older")
        result = explain(fail=fail)
        check(result.code == 7 and (FOLDER / "m.pdf").read_bytes() == b"older",
              f"allocation {fail} of {last}: exit {result.code}, {result.errors}")


maps()
others()
if not SANITIZED:
    short_of_memory()
if not POPPLER:
    print("no poppler-utils: sizes, fonts and texts were not read")
finish()
