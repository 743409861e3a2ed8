"""multihead view --image: an object is outlined by a head that looks for its colour, in numbers, in pictures and on the
page in headless Chromium; rejected files and options."""
import base64
import json
import re
import subprocess

from playwright import sync_api
import numpy as np
import pytest

from html_report import wait_for_frames
import picture_models
from shared import PROGRAM, TINY

expect = sync_api.expect
PIXELS, MASK = picture_models.scene()


def view(*arguments, code=0):
    done = subprocess.run([PROGRAM, "view", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    pytest.importorskip("PIL.Image").fromarray(PIXELS).save(folder / "scene.png")
    for name, registers in ("vit", 0), ("registers", 4):
        picture_models.outliner(registers).save_pretrained(folder / name)
        settings = {"image_processor_type": "ViTImageProcessor", "size": {"height": 128, "width": 128}}
        (folder / name / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def test_numbers(models):
    """CLS attends to the patches of the disc, in both towers and both layers."""
    for name, first in ("vit", 1), ("registers", 5):
        view(models / name, "--image", models / "scene.png", "--npy", models / "maps.npy", "--json", models / "maps.json")
        maps = np.load(models / "maps.npy")
        assert maps.shape == (2, 4, first + 256, first + 256)
        for layer in maps:
            cls = layer[0, 0, first:].reshape(16, 16)
            assert ((cls > cls.max() / 2) == MASK).mean() > 0.97 and cls[MASK].sum() > 0.95
            inside = layer[1, first:][MASK.ravel()][:, first:].mean(0).reshape(16, 16)
            assert inside[MASK].sum() > 0.9
            assert layer[2, first:, :first].sum(1).min() > 0.9  # on CLS and registers
        data = json.loads((models / "maps.json").read_text())
        labels = [token["token"] for token in data["tokens"]]
        assert data["image"] == {"rows": 16, "cols": 16, "first": first, "registers": first - 1}
        measures = [head["measures"] for head in data["layers"][1]["heads"]]
        assert measures[3]["same_row"] == pytest.approx(1 / 16) and measures[2]["cls"] + measures[2]["registers"] > 0.9
        assert measures[1]["local"] > measures[3]["local"] and measures[3]["distance"] == pytest.approx(8.326, abs=1e-3)
        assert labels[first:first + 17][::16] == ["0,0", "1,0"] and labels[0] == "[CLS]"


def test_pictures(models):
    Pil = pytest.importorskip("PIL.Image")
    view(models / "vit", "--image", models / "scene.png", "--head", "L1H0", "--png", models / "one.png",
         "--svg", models / "one.svg", "--pdf", models / "one.pdf")
    assert "data:image/png" in (models / "one.svg").read_text()
    found = np.asarray(Pil.open(models / "one.png").convert("RGB")).reshape(-1, 3)
    inside, outside = (np.abs(found.astype(int) - colour).max(1) < 40 for colour in ((240, 165, 40), (60, 30, 135)))
    assert inside.sum() > 0.1 * len(found) * MASK.mean() and outside.sum() > inside.sum()
    text = view(models / "vit", "--image", models / "scene.png", "--head", "1.0", "--ascii", "--color", "never")
    rows = [line.split("|")[1] for line in text.splitlines() if line.count("|") == 2]
    both = view(models / "vit", "--image", models / "scene.png", "--head", "1.0,1.1", "--ascii", "--color", "never")
    numbers = [line.split("|")[0].strip() for line in both.splitlines() if line.count("|") == 4]
    assert numbers == [str(row) for row in range(16)]
    assert [row.count("@") / 2 for row in rows] == pytest.approx(MASK.sum(1).tolist(), abs=2)
    mean = view(models / "vit", "--image", models / "scene.png", "--query", "mean", "--ascii", "--head", "0.3")
    assert "all patches (mean)" in mean


def test_sums_of_a_page(models):
    """Sums over patches are exact: those of 8-bit cells could exceed 1."""
    view(models / "registers", "--image", models / "scene.png", "-o", models / "sums.html", "--npy", models / "sums.npy")
    text = (models / "sums.html").read_text()
    data = json.loads(text[text.index('{"rows"'):].split("</script>")[0])
    maps, first = np.load(models / "sums.npy"), len(data["labels"])
    found = [np.frombuffer(base64.b64decode(map["on_patches"]), np.float32) for map in data["maps"]]
    assert np.allclose(found, maps[..., first:].sum(-1).reshape(-1, maps.shape[-1]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [(1200, 900), (420, 800)])
def test_page(models, browser, size):
    path = models / "page.html"
    view(models / "registers", "--image", models / "scene.png", "-o", path)
    page, errors = browser.new_page(viewport={"width": size[0], "height": size[1]}), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    page.on("request", lambda request: errors.append(request.url) if not request.url.startswith(("file:", "data:")) else None)
    page.goto(path.as_uri())
    expect(page.locator("#maps button")).to_have_count(5)  # four heads and the rollout
    expect(page.locator("#maps button").nth(4)).to_contain_text("rollout to layer 0")
    expect(page.locator("#readout")).to_contain_text("[CLS] attends most to row")
    page.locator("#maps button").nth(1).click()
    expect(page.locator("#name")).to_have_text("L0H1")
    large = page.locator("#large")
    box = large.bounding_box()
    large.click(position={"x": box["width"] * 9.5 / 16, "y": box["height"] * 6.5 / 16})
    expect(page.locator("#readout")).to_contain_text("row 6, column 9 attends most to")
    wait_for_frames(page)
    # The middle of each patch is brighter where it belongs to the disc.
    shades = page.evaluate("""() => {
        const canvas = document.getElementById("large"), zoom = canvas.width / 16;
        const context = canvas.getContext("2d");
        const {data, width} = context.getImageData(0, 0, canvas.width, canvas.height);
        return [...Array(256).keys()].map(i => data[4 * (Math.floor((Math.floor(i / 16) + 0.5) * zoom) * width +
            Math.floor((i % 16 + 0.5) * zoom)) + 1]);
    }""")
    assert ((np.array(shades).reshape(16, 16) > 110) == MASK).mean() > 0.95
    expect(page.locator("#specials button")).to_have_count(5)
    page.locator("#specials button").nth(2).click()
    expect(page.locator("#readout")).to_contain_text("[REG1] attends most to")
    large.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#readout")).to_contain_text("row 0, column 1 attends")
    page.locator("#group").select_option("1")
    expect(page.locator("#name")).to_have_text("L1H0")
    expect(page.locator("#measures dt")).to_have_text([
        "mean distance in patches", "on itself and its neighbours", "on its own row", "on its own column", "on CLS",
        "on registers"])
    expect(page.locator("#range")).to_contain_text(f"yellow {100 / MASK.sum():.1f} %, the largest weight in this map; square-")
    page.locator("#own").check()
    expect(page.locator("#range")).to_contain_text("yellow 0.4 %, the largest weight of this query on a patch")
    page.locator("#mix").fill("90")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert errors == []
    page.close()


def heads(*arguments, code=0):
    done = subprocess.run([PROGRAM, "heads", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_heads(models, tmp_path, browser):
    """Scores over images are the means of those of view; the page shows them."""
    Pil = pytest.importorskip("PIL.Image")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/notes.txt").write_text("no image")
    paths = [tmp_path / "photos/a.PNG", tmp_path / "photos/b.jpeg"]
    for path, pixels in zip(paths, (PIXELS[::-1].copy(), np.roll(PIXELS, 20, 1))):
        Pil.fromarray(pixels).save(path)
    model, names = models / "registers", ("patch_distance", "patch_local", "same_row", "same_col", "cls", "registers")
    found = json.loads(heads(model, "--image", tmp_path / "photos", models / "scene.png", "--json"))
    assert found["images"] == 3 and found["tokens"] == 3 * 261 and "texts" not in found
    views = [json.loads(view(model, "--image", path, "--json", "-")) for path in (*paths, models / "scene.png")]
    for head in found["heads"]:
        wanted = np.mean([[*data["layers"][head["layer"]]["heads"][head["head"]]["measures"].values()] for data in views], 0)
        assert np.allclose([head["scores"][name]["value"] for name in names], wanted, rtol=0, atol=1e-9)
        assert all(head["scores"][name] is None for name in ("previous", "first", "duplicate", "near", "diagonal", "cut"))
        assert {score["rows"] for score in head["scores"].values() if score} == {3 * 256}
    roles = [[role["role"] for role in head["roles"]] for head in found["heads"][:4]]
    assert roles == [["broad"], ["semantic"], ["registers"], ["broad"]]
    table = heads(model, "--image", *paths, "--sort", "registers", "--state", tmp_path / "state")
    assert table.startswith("registers: 2 images, 522 tokens") and " local   row   col  self   cls   reg" in table
    assert table == heads(model, "--image", *paths, "--sort", "registers", "--state", tmp_path / "state")
    assert "text 2 differs" in heads(model, "--image", paths[0], paths[0], "--state", tmp_path / "state", code=2)
    heads(model, "--image", tmp_path / "photos", "-o", tmp_path / "heads.html")
    page, errors = browser.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((tmp_path / "heads.html").as_uri())
    expect(page.locator("body")).to_contain_text(re.compile(r"images\s*2"))
    expect(page.locator("body")).to_contain_text("photos/a.PNG")
    expect(page.locator("body")).to_contain_text("distance in patches")
    assert errors == []
    page.close()


@pytest.mark.parametrize("arguments, code, words", [
    (["vit", "--image", "missing.png"], 3, "missing.png"),
    (["vit", "--image", "registers"], 3, "--image registers: the folder has no .png, .jpg or .jpeg file"),
    (["vit", "--image", "scene.png", "--random", "2"], 2, "images have patches, not words"),
    ([TINY, "--image", "scene.png"], 5, "reads texts, not images; give a text")], ids=str)
def test_heads_refused(models, arguments, code, words):
    done = subprocess.run([PROGRAM, "heads", *map(str, arguments)], cwd=models, capture_output=True, text=True)
    assert done.returncode == code
    assert words in done.stderr


@pytest.mark.parametrize("arguments, code, words", [
    (["--image", "scene.png", "text"], 2, "--image takes no text: omit 'text'"),
    (["--image", "missing.png"], 3, "missing.png"),
    (["--image", "vit/config.json"], 4, "neither a PNG nor a JPEG file"),
    (["--image", "scene.png", "--query", "16,0"], 2, "--query 16,0: no such token; patches are 0,0 to 15,15"),
    (["--query", "CLS", "text"], 2, "--query"),
    (["text"], 5, "the model reads images, not texts; give --image FILE to view or heads")], ids=str)
def test_refused(models, arguments, code, words):
    done = subprocess.run([PROGRAM, "view", "vit", *arguments], cwd=models, capture_output=True, text=True)
    assert done.returncode == code
    assert words in done.stderr and "Error" not in done.stderr


@pytest.mark.parametrize("arguments", [["heads", "--example", "all"], ["heads", "--words"], ["serve"],
                                       ["page", "-o", "x.html"]], ids=str)
def test_commands_that_read_texts(models, arguments):
    done = subprocess.run([PROGRAM, *arguments, "vit"], cwd=models, capture_output=True, text=True, timeout=60)
    assert done.returncode == 5
    assert "vit: the model reads images, not texts; give --image FILE to view or heads" in done.stderr


def test_model_of_texts(models):
    assert "reads texts, not images; give a text" in view(TINY, "--image", models / "scene.png", code=5)
