"""RXNMapper (tools/get-rxnmapper), an ALBERT: hidden states and maps of reactions compared with transformers, and the
head that maps the atoms of products to those of reactants, which its authors found by hand (layer 10, head 5, in
Schwaller et al. 2021), found by our scores with and without gold links."""
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers

import checkpoint_ctypes as ck
from shared import PROGRAM, ROOT, needs, rounds_like
from test_checkpoint_hf import in_double, in_float64
from tokenizer_ctypes import Ours

sys.path.append(str(ROOT / "tools"))
import reactions  # noqa: E402

PACKAGE = ROOT / "build/models/rxnmapper"
needs(PACKAGE / "pytorch_model.bin", "is missing: tools/get-rxnmapper fetches it")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("rxnmapper")
    reactions.convert(PACKAGE, made)
    (made / "gold.conllu").write_text("".join(reactions.conllu()))
    return made


def heads(folder, *options):
    said = subprocess.run([PROGRAM, "heads", folder, "--random", "0", "--json", *options], check=True,
                          capture_output=True, text=True)
    return json.loads(said.stdout)["heads"]


def test_tokens(folder):
    words = (PACKAGE / "vocab.txt").read_text().splitlines()
    tokens = Ours(folder)
    for reaction in reactions.REACTIONS:
        wanted = ["[CLS]", *reactions.TOKEN.findall(reaction), "[SEP]"]
        assert [words[i] for i in tokens.encode(reaction)["ids"]] == wanted


def test_hidden_states_and_maps(folder):
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    ours, tokens = ck.Transformer(folder), Ours(folder)
    for reaction in list(reactions.REACTIONS)[:2]:
        ids = tokens.encode(reaction)["ids"].astype(np.int64)[None]
        with torch.no_grad():
            single = model(torch.from_numpy(ids), output_attentions=True)
            with in_double():
                exact = in_float64(model)(torch.from_numpy(ids), output_attentions=True)
        maps, hidden = ours.look(ids)
        pairs = [(hidden, single.last_hidden_state, exact.last_hidden_state),
                 *zip(maps, single.attentions, exact.attentions)]
        assert all(rounds_like(mine, theirs.double().numpy(), wanted.numpy()) for mine, theirs, wanted in pairs)


def test_gold_links_find_the_head(folder):
    """Layers share their weights, so head 5 maps atoms in many of them."""
    found = {h["name"]: h["relations"]["map"]["forward"] for h in heads(folder, "--conllu", folder / "gold.conllu")}
    share = {name: r["accuracy"]["value"] for name, r in found.items()}
    assert round(100 * share["L10H5"]) == 91  # docs/researcher.md
    assert all(r["accuracy"]["rows"] == 117 and r["baseline"] < 0.2 for r in found.values())
    assert {name for name in share if share[name] > 0.8} >= {f"L{i}H5" for i in range(4, 12)}
    assert max(share[name] for name in share if not name.endswith("H5")) < 0.5


def test_roles_find_it_without_links(folder):
    """An atom of the product is like the atom that it was: a duplicate token."""
    found = {h["name"] for h in heads(folder, *reactions.REACTIONS)
             if "duplicate token" in [role["name"] for role in h["roles"]]}
    assert "L10H5" in found and all(name.endswith("H5") for name in found)
