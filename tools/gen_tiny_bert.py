#!/usr/bin/env python3
"""Make tests/golden/tiny-bert: a small BERT folder with random weights, and its expected results.

Needs torch, transformers, safetensors and numpy. The weights and the vocabulary are our own. The
seed is fixed, so the same versions of the packages give the same files. golden.safetensors holds,
for each text n,

    n.text, n.pair        [bytes]       UTF-8; pair if given
    n.ids, n.type_ids     [T]           output of transformers' own BERT tokenizer
    n.attention           [L,H,T,T]     torch in float64, eager attention (not for the longest)
    n.hidden              [L+1,T,E]     likewise (for the longest only the last, as [1,T,E])
    n.attention_error     [L]           largest absolute error of torch in float32, same inputs
    n.hidden_error        [L+1]         likewise
"""
import argparse
import json
import pathlib
import string

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
import transformers

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "tiny-bert"

WORDS = """
a about across after again air all also always an and animal answer any are around as ask at away
back bank be because bed been before big bird black blue boat book both box boy bright bring but by
call came can car carry cat chair child city clean cold come could cross cup dark day deep did do
does dog door down drink dry each earth eat end every eye fall far fast field find fire first fish
flew flood floor flower fly food for found free friend from garden gave girl give go gold good grass
great green had hand has have he head hear heart heavy help her here high hill him his hold home
horse hot hour house how if in into is it its just keep king kind know land large last late left
letter light like line little live long look lost made man many map mat may me men might milk money
moon more morning most mother mountain move much music must my name near never new next night no not
now of off old on once one only open or other our out over own page paper paris part people pilot
place plan plane plant play put queen quick quiet rain ran read red rest rice right river road rock
room run sad sail said salt same sand sat saw say school sea see set she ship short side sing sit
sky sleep slow small snow so some song soon south stand star stay still stone stop story street
strong sun table take tall tell than that the their them then there these they thing think this
three through time tired to today too top tower town train tree true turn two under up us very voice
wait walk wall want warm was water way we well went were what wheel when where white who why wide
will wind window winter with woman wood word work world would write year yellow yes you young
"""
PIECES = """
able ed en er es est ful ing ion ish ist ive less ly ment ness ous s th tion ty un y
"""


def vocabulary():
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens += list(string.punctuation) + list(string.digits) + list(string.ascii_lowercase)
    tokens += ["##" + c for c in string.digits + string.ascii_lowercase]
    tokens += ["##" + piece for piece in PIECES.split()] + WORDS.split()
    return list(dict.fromkeys(tokens))  # single letters are also words


def make_config(vocab):
    return transformers.BertConfig(
        vocab_size=vocab, hidden_size=36, num_hidden_layers=2, num_attention_heads=3,
        intermediate_size=80, max_position_embeddings=128, type_vocab_size=2, hidden_act="gelu",
        layer_norm_eps=1e-12, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        pad_token_id=0)


def make_model(config):
    """Make weights large enough for maps far from uniform, without trivial biases or norms, so that
    every mistake changes the result."""
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    generator = torch.Generator().manual_seed(20261120)
    for name, value in model.named_parameters():
        draw = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        if "LayerNorm.weight" in name:
            draw = 1 + 0.2 * draw
        elif name.endswith("bias"):
            draw = 0.2 * draw
        elif "query" in name or "key" in name:
            draw = 1.3 * draw / value.shape[1] ** 0.5
        elif value.ndim == 2 and "embeddings" not in name:
            draw = draw / value.shape[1] ** 0.5
        value.data = draw.to(torch.float32)
    return model


def save_folder(model, config, tokens):
    kept = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
            "vocab_size", "max_position_embeddings", "type_vocab_size", "hidden_act",
            "layer_norm_eps", "hidden_dropout_prob", "attention_probs_dropout_prob", "pad_token_id")
    fields = {"architectures": ["BertModel"], "model_type": "bert"}
    fields |= {name: getattr(config, name) for name in kept}
    fields["position_embedding_type"] = "absolute"
    (FOLDER / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
    (FOLDER / "vocab.txt").write_text("\n".join(tokens) + "\n")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 128,
                "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]",
                "cls_token": "[CLS]", "mask_token": "[MASK]", "tokenize_chinese_chars": True,
                "strip_accents": None}
    (FOLDER / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    weights = {name: value.contiguous() for name, value in model.named_parameters()}
    safetensors.torch.save_file(weights, FOLDER / "model.safetensors", metadata={"format": "pt"})


TEXTS = [
    ("The animal didn't cross the street because it was too tired.", None),
    ("The bank by the river was flooded.", None),
    ("Hello", None),
    ("", None),
    ("Who flew the plane to Paris?", "The pilot flew the plane to Paris."),
    ("Quick zephyrs blow, vexing daft Jim: 3.14159 (or 42%)!", None),
    (" ".join(WORDS.split()[:120]), None),
]


def run(folder, dtype, ids, type_ids):
    model = transformers.BertModel.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", add_pooling_layer=False).eval()
    with torch.no_grad():
        out = model(torch.tensor([ids]), token_type_ids=torch.tensor([type_ids]),
                    output_attentions=True, output_hidden_states=True)
    stack = lambda parts: torch.cat(parts).to(torch.float64).numpy()
    return stack(out.attentions), stack(out.hidden_states)


def worst(a, b):
    return np.abs(a - b).reshape(len(a), -1).max(axis=1)


def make_golden():
    tokenizer = transformers.BertTokenizerFast.from_pretrained(FOLDER)
    arrays = {}
    for n, (text, pair) in enumerate(TEXTS):
        encoded = tokenizer(text, pair)
        ids, type_ids = encoded["input_ids"], encoded["token_type_ids"]
        assert tokenizer.unk_token_id not in ids and len(ids) <= 128, (text, len(ids))
        attention, hidden = run(FOLDER, torch.float64, ids, type_ids)
        attention32, hidden32 = run(FOLDER, torch.float32, ids, type_ids)
        arrays[f"{n}.text"] = np.frombuffer(text.encode(), dtype=np.uint8)
        if pair is not None:
            arrays[f"{n}.pair"] = np.frombuffer(pair.encode(), dtype=np.uint8)
        arrays[f"{n}.ids"] = np.array(ids, dtype=np.int32)
        arrays[f"{n}.type_ids"] = np.array(type_ids, dtype=np.int32)
        arrays[f"{n}.attention_error"] = worst(attention, attention32)
        arrays[f"{n}.hidden_error"] = worst(hidden, hidden32)
        if len(ids) <= 64:
            arrays[f"{n}.attention"] = attention
        arrays[f"{n}.hidden"] = hidden if len(ids) <= 64 else hidden[-1:]
        print(n, len(ids), arrays[f"{n}.attention_error"], arrays[f"{n}.hidden_error"])
    safetensors.numpy.save_file(arrays, FOLDER / "golden.safetensors")


def main():
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    FOLDER.mkdir(parents=True, exist_ok=True)
    tokens = vocabulary()
    config = make_config(len(tokens))
    save_folder(make_model(config), config, tokens)
    make_golden()
    for path in sorted(FOLDER.iterdir()):
        print(path.stat().st_size, path.name)


if __name__ == "__main__":
    main()
