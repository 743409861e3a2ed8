#!/usr/bin/env python3
"""Write reactions with gold links from the atoms of the product to those of the reactants: CoNLL-U on stdout. With two
folders, convert RXNMapper's model (tools/get-rxnmapper) into a folder that multihead reads; needs torch.

    tools/reactions.py build/models/rxnmapper rxnmapper
    tools/reactions.py > reactions.conllu
    multihead heads rxnmapper --conllu reactions.conllu --random 0 --sort map

Reactions are SMILES. The numbers are set by hand: the reactants' atom, counted from 1, for each atom of the product, by
the textbook's mechanism. Of equivalent atoms, such as the two ortho carbons of a ring, the first is named first.
"""
import json
import pathlib
import re
import shutil
import sys

REACTIONS = {
    "CC(=O)Cl.NCc1ccccc1>>CC(=O)NCc1ccccc1": [1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12],
    "OC(=O)c1ccccc1.CCO>>CCOC(=O)c1ccccc1": [10, 11, 12, 2, 3, 4, 5, 6, 7, 8, 9],
    "CCBr.Oc1ccc(C)cc1>>CCOc1ccc(C)cc1": [1, 2, 4, 5, 6, 7, 8, 9, 10, 11],
    "Brc1ccc(OC)cc1.OB(O)c1ccccc1>>COc1ccc(-c2ccccc2)cc1": [7, 6, 5, 4, 3, 2, 13, 14, 15, 16, 17, 18, 9, 8],
    "CC(C)S.Fc1cccnc1F>>CC(C)Sc1ncccc1F": [1, 2, 3, 4, 11, 10, 9, 8, 7, 6, 5],
    "CS(=O)(=O)Cl.Nc1ccc(F)cc1>>CS(=O)(=O)Nc1ccc(F)cc1": [1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13],
    "O=C=NC1CCCCC1.NCCO>>O=C(NCCO)NC1CCCCC1": [1, 2, 10, 11, 12, 13, 3, 4, 5, 6, 7, 8, 9],
    "COC(=O)c1ccc(Cl)cc1.[Li+].[OH-]>>OC(=O)c1ccc(Cl)cc1": [13, 3, 4, 5, 6, 7, 8, 9, 10, 11],
    "O=Cc1ccco1.NCC1CC1>>C(NCC1CC1)c1ccco1": [2, 8, 9, 10, 11, 12, 3, 4, 5, 6, 7],
    "N#Cc1ccc(Br)cc1.C1CNCCN1>>N#Cc1ccc(N2CCNCC2)cc1": [1, 2, 3, 4, 5, 6, 15, 10, 11, 12, 13, 14, 8, 9],
}
TOKEN = re.compile(r"\[[^\]]+\]|Br|Cl|>>|%\d\d|.")


def conllu():
    for reaction, atoms in REACTIONS.items():
        tokens = TOKEN.findall(reaction)
        arrow = tokens.index(">>")
        places = [i for i, token in enumerate(tokens) if token[0] == "[" or token.isalpha()]
        reactants, product = ([i for i in places if (i < arrow) == before] for before in (True, False))
        heads = dict(zip(product, (reactants[atom - 1] + 1 for atom in atoms), strict=True))
        yield f"# text = {reaction}\n"
        for i, token in enumerate(tokens):
            head, name = heads.get(i, 0), "map" if i in heads else "_"
            yield f"{i + 1}\t{token}\t_\t_\t_\t_\t{head}\t{name}\t_\tSpaceAfter=No\n"
        yield "\n"


def tokenizer(words):
    """Of equal scores the fewest tokens have the largest sum: "Cl" before "C", "l"."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    single = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
              {"SpecialToken": {"id": "[SEP]", "type_id": 0}}]
    pair = [{"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": "[SEP]", "type_id": 1}}]
    return {"added_tokens": [{"id": words.index(name), "content": name, "special": True} for name in names],
            "post_processor": {"type": "TemplateProcessing", "single": single, "pair": single + pair, "special_tokens": {
                name: {"id": name, "ids": [words.index(name)], "tokens": [name]} for name in ("[CLS]", "[SEP]")}},
            "model": {"type": "Unigram", "unk_id": words.index("[UNK]"), "vocab": [[word, -1.0] for word in words]}}


def convert(package, folder):
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    weights = torch.load(package / "pytorch_model.bin", weights_only=True, map_location="cpu")
    save_file({name: weight.clone() for name, weight in weights.items()}, folder / "model.safetensors")
    shutil.copy(package / "config.json", folder)
    words = (package / "vocab.txt").read_text().splitlines()
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(words)))
    (folder / "tokenizer_config.json").write_text(json.dumps({"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        convert(*map(pathlib.Path, sys.argv[1:]))
    elif len(sys.argv) == 1:
        sys.stdout.writelines(conllu())
    else:
        sys.exit(__doc__)
