"""The page about all heads (multihead heads -o) in headless Chromium, at three sizes: every
interaction, the address, forbidden actions, and pages of 270 and 1,000 heads."""
import json
import random
import re
import subprocess

from playwright import sync_api
import pytest

from shared import MINILM, PROGRAM, TINY

pytestmark = pytest.mark.gate(4)
SIZES = [(360, 740), (900, 900), (1600, 1000)]
expect = sync_api.expect


def data_of(text):
    return re.search(r'(<script type="application/json" id="data">)(.*?)(</script>)', text, re.S)


@pytest.fixture(scope="module")
def written(folder):
    """The program's page of a small model."""
    path, text = folder / "heads.html", folder / "texts.txt"
    text.write_text("The cat sat on the mat near the river. The dog saw the cat.\n"
                    "The bank by the river was flooded, and the cat sat on the bank.\n" * 4)
    subprocess.run([PROGRAM, "heads", TINY, "--text", text, "-o", path, "--quiet"],
                   check=True, capture_output=True)
    return path


def many(written, path, heads, columns=30):
    """A page with the given number of heads, derived from the program's page."""
    rng = random.Random(heads)
    page = written.read_text()
    found = data_of(page)
    data = json.loads(found.group(2))
    cards = []
    for h in range(heads):
        card = dict(data["heads"][h % len(data["heads"])], layer=h // 10, head=h % 10)
        card["roles"] = [{"name": rng.choice(["induction", "sink"]), "evidence": "0.9"}] if h % 3 else []
        cards.append(card)
    numbers = lambda: [round(rng.random(), 5), 0.05, 0.2, 0.4, 1000, [round(i / 10, 2) for i in range(11)]]  # noqa: E731
    data["heads"] = cards
    data["columns"] = [{"share": True, "name": f"score {c}", "label": f"score {c}", "text": "a score", "unit": None, "luck": 0.5,
                        "values": [numbers() for _ in range(heads)]} for c in range(columns)]
    for card in cards:
        for place in card["places"]:
            place["column"] %= columns
    data["first"], data["x"], data["y"] = 0, 0, 1
    path.write_text(page[:found.start(2)] + json.dumps(data) + page[found.end(2):])
    return path


@pytest.fixture(scope="module")
def large(written, folder):
    return many(written, folder / "large.html", 270)


def chosen(page):
    return page.locator(".hcard h2").all_text_contents()


@pytest.mark.parametrize("size", SIZES)
def test_page_of_the_program(written, open_page, size):
    page = open_page(written, *size)
    data = json.loads(data_of(written.read_text()).group(2))
    assert page.locator("#layers [role=gridcell]").count() == len(data["heads"]) == 6
    assert page.locator("#scatter circle").count() <= 6
    assert page.locator("#table tbody tr").count() == 6
    assert len(chosen(page)) == 1
    first = data["heads"][data["first"]]
    assert chosen(page) == [f"L{first['layer']}H{first['head']}"]
    names = page.locator(".hcard .measure button").all_text_contents()
    assert len(names) == len([c for c in data["columns"] if c["values"][data["first"]]])
    assert "induction on repeated random tokens" in names and not any("_" in name for name in names)
    # Only scrolling elements are wider than the window.
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    # The longest title of the vertical axis ends inside the plot.
    upright = page.locator("#y").input_value()
    page.locator("#y").select_option(page.locator("#y").evaluate("""box => [...box.options]
        .reduce((a, b) => b.text.length > a.text.length ? b : a).value"""))
    assert page.locator("#scatter svg").evaluate("""svg => [...svg.querySelectorAll(".label")].every(
        text => text.getBoundingClientRect().bottom <= svg.getBoundingClientRect().bottom)"""), "titles of axes are cut"
    page.locator("#y").select_option(upright)
    values = page.locator(".hcard .measure .number").all_text_contents()
    shown = float(values[names.index("entropy")])
    entropy = next(c for c in data["columns"] if c["name"] == "entropy")["values"][data["first"]][0]
    assert abs(shown - entropy) <= 0.005 * max(1, entropy)


@pytest.mark.parametrize("size", SIZES)
def test_choosing_and_pointing(large, open_page, size):
    page = open_page(large, *size)
    page.locator("#layers [data-head='57']").click()
    assert chosen(page) == ["L5H7"]
    page.locator("#layers [data-head='101']").click(modifiers=["Control"])
    page.locator("#scatter circle[data-head='3']").dispatch_event("click", {"shiftKey": True, "bubbles": True})
    assert chosen(page) == ["L5H7", "L10H1", "L0H3"]
    page.locator(".hcard[data-head='101'] header button").click()
    assert chosen(page) == ["L5H7", "L0H3"]
    page.locator("#layers [data-head='12']").hover()
    assert page.locator(".lit").evaluate_all("all => all.map(e => e.dataset.head)").count("12") >= 2
    expect(page.locator("#here")).to_contain_text("L1H2")
    page.locator("#table tbody tr").first.click()
    assert len(chosen(page)) == 1


def test_axes_table_and_roles(large, open_page):
    page = open_page(large, *SIZES[2])
    data = json.loads(data_of(large.read_text()).group(2))
    page.select_option("#x", label="score 4")
    page.select_option("#y", label="score 5")
    dots = page.locator("#scatter circle").evaluate_all("all => all.map(c => [+c.dataset.head, +c.getAttribute('cx'), +c.getAttribute('cy')])")
    by_x = [h for h, x, _ in sorted(dots, key=lambda d: d[1])]
    value = lambda c, h: data["columns"][c]["values"][h][0]  # noqa: E731
    assert all(value(4, a) <= value(4, b) + 1e-3 for a, b in zip(by_x, by_x[1:]))
    by_y = [h for h, _, y in sorted(dots, key=lambda d: -d[2])]
    assert all(value(5, a) <= value(5, b) + 1e-3 for a, b in zip(by_y, by_y[1:]))
    assert page.locator("#scatter .luck").count() == 2
    ticks = [float(t) for t in page.locator("#scatter .tick").all_text_contents()]
    assert ticks and all(abs(t * 10 - round(t * 10)) < 1e-9 for t in ticks), ticks  # round numbers
    boxes = page.locator("#scatter .name").evaluate_all("all => all.map(e => { const b = e.getBBox(); return [b.x, b.y, b.width]; })")
    assert len(boxes) > 3 and not any(abs(a[1] - b[1]) < 9 and a[0] < b[0] + b[2] and b[0] < a[0] + a[2]
                                      for i, a in enumerate(boxes) for b in boxes[:i]), boxes
    page.get_by_role("button", name="score 9", exact=True).first.click()  # shows the definition
    expect(page.locator(".measure .about")).to_contain_text("permutation null (95th percentile) 0.500")
    page.locator("#table th button", has_text=re.compile(r"^score 9$")).click()
    assert page.locator("#table th[aria-sort=descending]").inner_text().strip().startswith("score 9")
    order = page.locator("#table tbody tr").evaluate_all("all => all.map(r => +r.dataset.head)")
    assert order == sorted(range(270), key=lambda h: (-value(9, h), h))[:len(order)]
    page.locator("#table th[aria-sort] button").click()
    order = page.locator("#table tbody tr").evaluate_all("all => all.map(r => +r.dataset.head)")
    assert order == sorted(range(270), key=lambda h: (value(9, h), h))[:len(order)]
    page.locator("#more").click()
    assert page.locator("#table tbody tr").count() == 270
    page.get_by_role("button", name=re.compile("^induction")).click()
    with_role = {h for h, card in enumerate(data["heads"]) if any(r["name"] == "induction" for r in card["roles"])}
    assert page.locator("#table tbody tr").count() == len(with_role)
    assert page.locator("#layers button:not(.off)").count() == len(with_role)
    page.locator("#filter").fill("L3")
    assert page.locator("#table tbody tr").count() == len([h for h in with_role if h // 10 == 3])


@pytest.mark.parametrize("size", [(390, 844), (1280, 900)])
def test_names_beside_dots(large, folder, open_page, size):
    """With many heads, a name covers no dot, text or line, and omitted names are counted."""
    text = large.read_text()
    found = data_of(text)
    data = json.loads(found.group(2))
    rng = random.Random(4)
    for c, high in ((0, 0.02), (1, 0.1)):
        data["columns"][c]["luck"] = None if c else 0.015
        for h, value in enumerate(data["columns"][c]["values"]):
            value[0] = high * rng.random() if h else 1 - c / 2
    path = folder / "crowded.html"
    path.write_text(text[:found.start(2)] + json.dumps(data) + text[found.end(2):])
    page = open_page(path, *size)
    names, dots, leaders = (page.locator(f"#scatter {kind}").evaluate_all(of) for kind, of in (
        (":is(.name, .luck-text)", "all => all.map(e => { const b = e.getBBox(); return [b.x, b.y + 1, b.x + b.width, b.y + b.height - 1]; })"),
        ("circle", "all => all.map(e => [+e.getAttribute('cx'), +e.getAttribute('cy'), e.getAttribute('r') - 1])"),
        (".leader", "all => all.map(e => ['x1', 'y1', 'x2', 'y2'].map(a => +e.getAttribute(a)))")))
    inside = lambda box, x, y, by: box[0] - by < x < box[2] + by and box[1] - by < y < box[3] + by  # noqa: E731
    assert len(dots) == 270 and page.locator(".name").count() >= 2
    assert not any(inside(box, *dot) for box in names for dot in dots)
    assert not any(a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for i, a in enumerate(names) for b in names[:i])
    assert not any(inside(box, x1 + part * (x2 - x1), y1 + part * (y2 - y1), -1) for box in names for x1, y1, x2, y2 in leaders
                   for part in (0.2, 0.4, 0.6, 0.8))
    assert page.locator(".name[data-name='0']").count() == 1  # the name of the chosen head
    left = page.evaluate("namedHeads().size") - page.locator(".name").count()
    said = page.locator("#unnamed").inner_text()
    assert left and said.startswith("One " if left == 1 else f"{left} "), (left, said)
    # On a phone, the plots precede the controls, and the controls precede the cards.
    order = [page.locator(part).bounding_box()["y"] for part in ("#scatter", "#x", "#cards", "#table")]
    assert order == sorted(order) or size[0] > 560, order


@pytest.mark.skipif(not MINILM.exists(), reason="needs all-MiniLM-L6-v2: tools/get-minilm")
def test_opens_on_what_stands_out(folder):
    """An encoder has no induction on random tokens. The page initially shows L5H11, whose "it"
    attends to "animal"."""
    path = folder / "minilm.html"
    subprocess.run([PROGRAM, "heads", MINILM, "--example", "all", "-o", path, "--quiet"], check=True)
    data = json.loads(data_of(path.read_text()).group(2))
    assert [data["columns"][data[axis]]["name"] for axis in "xy"] == ["induction", "previous"]
    assert (data["heads"][data["first"]]["layer"], data["heads"][data["first"]]["head"]) == (5, 11)


def test_keyboard(large, open_page):
    page = open_page(large, *SIZES[1])
    page.locator("#layers [tabindex='0']").focus()
    for key, head in (("ArrowRight", 1), ("ArrowDown", 11), ("End", 19), ("ArrowUp", 9), ("Home", 0)):
        page.keyboard.press(key)
        assert page.evaluate("+document.activeElement.dataset.head") == head
    assert page.locator("#layers [tabindex='0']").count() == 1
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert chosen(page) == ["L0H1"]
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "filter"


def test_address(large, open_page):
    page = open_page(large, *SIZES[2])
    page.select_option("#x", label="score 7")
    page.select_option("#colour", label="score 8")
    page.locator("#layers [data-head='57']").click()
    page.locator("#layers [data-head='58']").click(modifiers=["Control"])
    page.get_by_role("button", name=re.compile("^sink")).click()
    page.locator("#filter").fill("l5")
    address = page.evaluate("location.hash")
    seen = [chosen(page), page.input_value("#x"), page.input_value("#colour"), page.locator("#table tbody tr").count()]
    page.goto("about:blank")
    page.goto(large.as_uri() + address)
    page.wait_for_selector(".hcard")
    assert seen == [chosen(page), page.input_value("#x"), page.input_value("#colour"), page.locator("#table tbody tr").count()]
    assert page.get_by_role("button", name=re.compile("^sink")).get_attribute("aria-pressed") == "true"
    page.evaluate("location.hash = '#x=nothing&heads=L99H99,L0H2&roles=%ff,none&sort=-%&filter=%&y'")
    expect(page.locator(".hcard h2")).to_have_text(["L0H2"])
    assert page.input_value("#x") == seen[1]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_themes(large, open_page, scheme):
    page = open_page(large, *SIZES[2], color_scheme=scheme)
    paper = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(paper)
    page.keyboard.press("d")
    assert page.evaluate(paper) != before
    page.locator("#theme").click()
    assert page.evaluate(paper) == before


def test_without_scripts(written, open_page):
    page = open_page(written, *SIZES[0], java_script_enabled=False)
    assert page.locator("noscript table tr, table tr").count() >= 7


def test_a_thousand_heads(written, folder, open_page):
    path = many(written, folder / "thousand.html", 1000, columns=12)
    page = open_page(path, *SIZES[2])
    assert page.locator("#layers [role=gridcell]").count() == 1000
    assert page.locator("#scatter circle").count() == 1000
    assert page.locator(".hcard").count() == 1  # cards are created on demand
    assert page.locator("#table tbody tr").count() < 100


def test_size(large):
    assert large.stat().st_size < 10_000_000


def test_effects(folder, open_page):
    """Results of ablate are axes of the scatter plot, and on the card with interval and
    definition."""
    model, path = folder / "induction", folder / "effects.html"
    subprocess.run([PROGRAM, "train", "induction", "--steps", "4", "--every", "2", "--tries", "1", "--quiet", "-o", model],
                   check=True, capture_output=True)
    subprocess.run([PROGRAM, "ablate", model, "--random", "3", "--with", "zero", "--heads", "2", "--pairs", "2",
                    "-o", path, "--quiet"], check=True, capture_output=True)
    data = json.loads(data_of(path.read_text()).group(2))
    effects = {c["name"]: c["values"] for c in data["columns"]}
    measured = [h for h, value in enumerate(effects["effect_repeats"]) if value]
    assert 0 < len(measured) < len(data["heads"]) and all(effects["estimate_repeats"])
    page = open_page(path, *SIZES[2])
    page.select_option("#x", label="estimated effect on loss on repeated random tokens")
    page.select_option("#y", label="effect on loss on repeated random tokens")
    dots = page.locator("#scatter circle").evaluate_all("all => all.map(c => [+c.dataset.head, +c.getAttribute('cx'), +c.getAttribute('cy')])")
    assert sorted(h for h, _, _ in dots) == measured  # heads without a measurement are not drawn
    by_x = [h for h, _, _ in sorted(dots, key=lambda d: d[1])]
    assert by_x == sorted(measured, key=lambda h: effects["estimate_repeats"][h][0])
    by_y = [h for h, _, _ in sorted(dots, key=lambda d: -d[2])]
    assert by_y == sorted(measured, key=lambda h: effects["effect_repeats"][h][0])
    page.locator(f"#layers [data-head='{measured[0]}']").click()
    card = page.locator(".hcard")
    assert card.locator("h3").all_text_contents()[:2] == ["Pairs: interaction in loss on repeated random tokens", "Scores"]
    card.get_by_role("button", name="effect on loss on repeated random tokens", exact=True).click()
    expect(card.locator(".measure .about")).to_contain_text("change by zero ablation of the head")
    expect(card.locator(".measure .about")).to_contain_text("95 %")
    other = next(h for h in range(len(data["heads"])) if h not in measured)
    page.locator(f"#layers [data-head='{other}']").click()
    names = page.locator(".hcard .measure button").all_text_contents()
    assert "estimated effect on loss on repeated random tokens" in names and "effect on repeats" not in names
    page.reload()
    assert page.locator("#x").evaluate("e => e.selectedOptions[0].textContent") == "estimated effect on loss on repeated random tokens"
