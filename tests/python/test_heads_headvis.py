"""heads --headvis: the folder for HeadVis fulfils the contracts of its data_pipeline.py, has the
weights of transformers, and is complete or absent."""
import collections
import json
import random
import subprocess

import numpy as np
import pytest
import torch
import transformers

from shared import PROGRAM, TINY, interrupt

WORDS = "the cat dog sat on a mat and saw it by river bank .".split()


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    place = tmp_path_factory.mktemp("headvis")
    draw = random.Random(3)
    lines = [" ".join(draw.choices(WORDS, k=draw.randint(3, 20))) for _ in range(64)]
    (place / "texts.txt").write_text("\n".join(lines) + "\n")
    told = subprocess.run([PROGRAM, "heads", TINY, "--text", place / "texts.txt", "--random", "2", "--json", "--headvis",
                           place / "data"], check=True, capture_output=True).stdout
    tokenizer = transformers.BertTokenizerFast.from_pretrained(TINY)
    model = transformers.BertModel.from_pretrained(TINY, attn_implementation="eager").double().eval()
    maps, tokens = [], []
    for line in lines:
        given = tokenizer(line, return_tensors="pt")
        with torch.no_grad():
            maps.append(torch.stack(model(**given, output_attentions=True).attentions)[:, 0].numpy())
        tokens.append(given["input_ids"][0].tolist())
    return place, json.loads(told), maps, tokens


def most(row):
    """The largest weight without the diagonal, the first row and the first column."""
    m = row.copy()
    np.fill_diagonal(m, 0)
    m[0] = m[:, 0] = 0
    return m.max()


def test_config_and_scatter(case):
    place, told, _, _ = case
    config = json.loads((place / "data/config.json").read_text())
    assert config["heads"] == [[l, h] for l in range(2) for h in range(3)]
    assert (config["n_layers"], config["n_heads"], config["n_intervals"]) == (2, 3, 10)
    assert config["head_data_pattern"] == "L{layer}H{head}.json" and config["has_umap"] is False
    assert set(config["metric_descriptions"]) == set(config["metrics"])
    rows = json.loads((place / "data/scatter_data.json").read_text())
    for row, head in zip(rows, told["heads"], strict=True):
        assert (row["layer"], row["head"]) == (head["layer"], head["head"])
        assert list(row)[2:] == config["metrics"]
        for name in config["metrics"]:
            if name in head["scores"]:
                assert row[name] == head["scores"][name]["value"]
    assert "random_induction" in config["metrics"] and "previous" in config["metrics"]
    for name in ("server_config.json", "attributions/manifest.json"):
        assert json.loads((place / "data" / name).read_text()) == {}


def test_sequences(case):
    place, _, maps, tokens = case
    config = json.loads((place / "data/config.json").read_text())
    for layer, head in config["heads"]:
        data = json.loads((place / f"data/heads/L{layer}H{head}.json").read_text())
        largest = np.array([most(m[layer, head]) for m in maps])
        order = np.argsort(largest, kind="stable")
        assert collections.Counter(s["interval"] for s in data["sequences"]) == {i: 5 for i in range(1, 11)}
        key, query, distances = collections.Counter(), collections.Counter(), np.zeros(19, int)
        for s in data["sequences"]:
            number, n = s["sequence_id"], s["seq_len"]
            m = maps[number][layer, head]
            assert n == len(m) == len(s["tokens"])
            assert abs(s["max_activation"] - largest[number]) < 1.01e-4
            place_of = int(np.where(order == number)[0][0])
            low, high = ((s["interval"] - 1) * 64 // 10, s["interval"] * 64 // 10)
            # up to rounding, so the order of texts may differ
            assert low <= place_of < high or abs(largest[number] - largest[order[min(max(place_of, low), high - 1)]]) < 1e-6
            sparse = np.zeros(n * n)
            assert len(set(s["attention_indices"])) == len(s["attention_indices"]) == len(s["attention_values"])
            sparse[s["attention_indices"]] = s["attention_values"]
            sparse = sparse.reshape(n, n)
            kept = sparse > 0
            assert np.abs(sparse - m)[kept].max() < 1e-4
            for i in range(n):  # the eight largest that are at least 0.005
                wanted = np.sort(m[i][m[i] >= 0.005 + 1e-6])[::-1][:8]
                assert np.allclose(np.sort(sparse[i][kept[i]])[::-1][:len(wanted)], wanted, atol=1e-4)
                assert kept[i].sum() <= 8
            for q, k in zip(*np.nonzero(kept)):
                key[tokens[number][k]] += m[q, k]
                query[tokens[number][q]] += m[q, k]
                distances[0 if q == k else int(np.log2(abs(q - k))) + 1] += 1
        histogram = data["qk_distance_histogram"]
        assert histogram["bin_values"] == distances.tolist()
        assert len(histogram["bin_edges"]) == 20 and histogram["bin_edges"][:5] == [0, 1, 2, 4, 8]
        assert sum(data["histogram"]["bin_values"]) == 64 == len(maps)
        assert abs(data["statistics"]["mean_max_activation"] - largest.mean()) < 1e-4
        special = {101, 102}
        for name, mass in (("top_key_tokens", key), ("top_query_tokens", query)):
            rows = {row["token"]: row["weight"] for row in data[name]}
            assert abs(sum(rows.values()) - 1) < 2e-2 and len(rows) == len(data[name])
            tokenizer = transformers.BertTokenizerFast.from_pretrained(TINY)
            special = set(tokenizer.all_special_ids)
            for token, weight in mass.items():
                if token not in special:
                    assert abs(rows[tokenizer.convert_ids_to_tokens(token)] - weight / mass.total()) < 2e-3


def test_whole_or_absent(case, tmp_path):
    place, _, _, _ = case
    some = [PROGRAM, "heads", TINY, "--text", place / "texts.txt", "--random", "0"]

    def refused(code, part, *arguments):
        result = subprocess.run([*some, *arguments], capture_output=True, check=False)
        assert result.returncode == code and part in result.stderr, result

    refused(2, b"exists", "--headvis", place / "data")
    refused(6, b"no such folder", "--headvis", tmp_path / "none/x")
    one = tmp_path / "one"
    subprocess.run([*some, "--head", "L1H2", "--headvis", one, "-q"], check=True, capture_output=True)
    assert [p.name for p in (one / "heads").iterdir()] == ["L1H2.json"]
    limited = subprocess.run(["bash", "-c", 'ulimit -f 8; trap "" XFSZ; exec "$@"', "-", *map(str, some), "--headvis",
                              str(tmp_path / "full")], capture_output=True, check=False)
    assert limited.returncode == 6 and b"cannot write" in limited.stderr, limited
    assert [p.name for p in tmp_path.iterdir()] == ["one"]
    for event in ("", "some.part-*", "some.part-*/*", "some.part-*/*/*"):
        interrupt([*some, "--headvis", tmp_path / "some"], tmp_path, event)
        names = sorted(p.name for p in tmp_path.iterdir())
        assert names in (["one"], ["one", "some"]), names
        if len(names) == 2:
            assert (tmp_path / "some/config.json").exists()
            break
