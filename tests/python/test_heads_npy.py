"""heads --npy: every number of the arrays equals --json, and the folder is complete or absent."""
import json
import re
import subprocess

import numpy as np
import pytest

from shared import PROGRAM, TINY, interrupt

GOLD = """1\tThe\t_\t_\t_\t_\t2\tdet\t_\t_
2\tcat\t_\t_\t_\t_\t3\tnsubj:pass\t_\t_
3\tsat\t_\t_\t_\t_\t0\troot\t_\t_

1\tdogs\t_\t_\t_\t_\t2\tnsubj:pass\t_\t_
2\tsaw\t_\t_\t_\t_\t0\troot\t_\t_
3\tit\t_\t_\t_\t_\t2\tdet\t_\t_
"""


def program(*arguments, check=True):
    return subprocess.run([PROGRAM, *map(str, arguments)], check=check, capture_output=True)


def heads(*arguments, check=True):
    return program("heads", *arguments, check=check)


def loaded(folder):
    """The index, and each array by name and part."""
    index = json.loads((folder / "index.json").read_text())
    assert index["format"] == "multihead-heads-arrays" and index["version"] == 1
    assert {e["file"] for e in index["arrays"]} | {"index.json"} == {p.name for p in folder.iterdir()}
    arrays = {}
    for entry in index["arrays"]:
        array = np.load(folder / entry["file"], allow_pickle=False)
        assert list(array.shape) == entry["shape"] and str(array.dtype) == entry["dtype"]
        assert len(entry["axes"]) == array.ndim and entry["definition"]
        assert (entry["name"], entry["part"]) not in arrays
        arrays[entry["name"], entry["part"]] = array
    return index, arrays


def same(number, told):
    """JSON has nine digits; its missing values are NaN."""
    return np.isnan(number) if told is None else abs(number - told) <= 1e-8 * abs(told) + 1e-300


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("npy") / "texts.txt"
    path.write_text("The cat sat on the mat near the river. The dog saw the cat.\n"
                    "The bank by the river was flooded, and the cat sat on the bank.\n" * 3)
    return path


def test_scores_and_distributions(texts, tmp_path):
    told = json.loads(heads(TINY, "--text", texts, "--json", "--corpus", "--npy",
                            tmp_path / "arrays").stdout)
    index, arrays = loaded(tmp_path / "arrays")
    assert index["texts"] == told["texts"] == 6 and index["luck"] == told["luck"]
    compared = 0
    for head in told["heads"]:
        at = head["layer"], head["head"]
        for name, score in head["scores"].items():
            if (name, "value") not in arrays:
                assert score is None
                continue
            for part in ("value", "chance"):
                assert same(arrays[name, part][at], score and score[part]), (name, part, at)
            assert arrays[name, "rows"][at] == (score["rows"] if score else 0)
            compared += score is not None
        for name, d in head["distributions"].items():
            for part in ("low", "high"):
                assert same(arrays[name, part][at], d[part]), (name, part, at)
            assert all(map(same, arrays[name, "deciles"][at], d["deciles"]))
        for bin_at, b in enumerate(head["positions"]):
            assert arrays["positions", "rows"][at][bin_at] == b["rows"]
            for part in ("entropy", "distance"):
                if b["rows"]:
                    assert same(arrays["positions", part][at][bin_at], b[part])
        for part in ("mass", "moved"):
            assert same(arrays["first_token", part][at], head["first_token"][part])
    assert compared > 100


def test_links_effects_and_circuits(texts, tmp_path):
    gold = tmp_path / "gold.conllu"
    gold.write_text(GOLD)
    told = json.loads(heads(TINY, "--conllu", gold, "--json", "--head", "L1H2", "--npy", tmp_path / "links").stdout)
    index, arrays = loaded(tmp_path / "links")
    assert arrays["nsubj:pass", "value"].shape == (2, 3)  # all heads, for any selection
    for name, relation in told["heads"][0]["relations"].items():
        assert same(arrays[name, "value"][1, 2], relation["forward"]["accuracy"] and
                    relation["forward"]["accuracy"]["value"])
    model = tmp_path / "induction"
    subprocess.run([PROGRAM, "train", "induction", "--steps", "4", "--every", "2", "--tries", "1", "--quiet", "-o", model],
                   check=True, capture_output=True)
    told = json.loads(program("ablate", model, "--random", 3, "--with", "zero", "--heads", 2, "--json", "--npy",
                              tmp_path / "effects").stdout)["heads"]
    _, arrays = loaded(tmp_path / "effects")
    for head in told:
        at = head["layer"], head["number"]
        for key in ("estimate", "effect"):
            found = head.get(key, {}).get("repeats")
            for part, member in (("value", "mean"), ("low", "low"), ("high", "high")):
                assert same(arrays[f"{key}_repeats", part][at], found and found[member])
    told = json.loads(program("circuits", TINY, "--composition", "--json", "--npy", tmp_path / "circuits").stdout)
    index, arrays = loaded(tmp_path / "circuits")
    assert index["composition_chance"] == told["composition_chance"]
    compared = 0
    for head in told["heads"]:
        at = head["layer"], head["head"]
        for name in {"copying", "matching"} & set(head):  # none without LAPACK
            assert same(arrays[name, "value"][at], head[name])
        for kind in "qkv":
            for writer in head["composition"][kind]:
                layer, number = map(int, re.findall(r"\d+", writer["head"]))
                got = arrays[f"composition_{kind}", "value"][(*at, layer, number)]
                assert abs(got - writer["value"]) < 1e-6
                compared += 1
    assert compared == 27


def test_whole_or_absent(texts, tmp_path):
    def refused(code, *parts, arguments):
        result = heads(*arguments, check=False)
        assert result.returncode == code and not result.stdout, result
        assert all(part in result.stderr.decode() for part in parts), result.stderr

    some = [TINY, "--text", texts, "--npy"]
    (tmp_path / "there").mkdir()
    refused(2, "exists", arguments=[*some, tmp_path / "there"])
    refused(6, "no such folder", arguments=[*some, tmp_path / "none" / "x"])
    refused(2, "no model to run", arguments=["--attention", "x.npy", "--npy", tmp_path / "x"])
    assert [p.name for p in tmp_path.iterdir()] == ["there"]
    # With a limit of 4 KB per file, the first large array fails, and no file is left.
    limited = subprocess.run(["bash", "-c", 'ulimit -f 4; trap "" XFSZ; exec "$@"', "-", PROGRAM, "heads", *map(str, some),
                              tmp_path / "full"], capture_output=True, check=False)
    assert limited.returncode == 6 and b"cannot write" in limited.stderr, limited
    assert [p.name for p in tmp_path.iterdir()] == ["there"]
    for event in ("", "some.part-*", "some.part-*/*", "some.part-*/index.json", "some"):
        interrupt([PROGRAM, "heads", *some, tmp_path / "some"], tmp_path, event)
        names = [p.name for p in tmp_path.iterdir() if p.name != "there"]
        assert names in ([], ["some"]), names
        if names:
            loaded(tmp_path / "some")
            for path in (tmp_path / "some").iterdir():
                path.unlink()
            (tmp_path / "some").rmdir()
