"""The text parts of models with images, against transformers in float64: names of weights in both generations of
folders, fields of the text beside those of images, and rejected folders."""
import copy
import json

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import checkpoint_ctypes as ck
import interface_models
import multihead_ctypes as mha
from shared import rounds_like
from test_checkpoint_hf import in_double, randomise, some_ids
from test_float8 import FP8, quantised

MINISTRAL = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 40, "mscale": 1.0,
             "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
KINDS = {"gemma3": ("Gemma3", {}), "mistral3": ("Mistral3", {"sliding_window": 5}),
         "mistral3, ministral": ("Mistral3", {"rope_parameters": MINISTRAL}), "gemma4": ("Gemma4", {}),
         "gemma4_unified": ("Gemma4Unified", {}),
         "qwen2_vl": ("Qwen2VL", {}), "qwen2_5_vl": ("Qwen2_5_VL", {}), "qwen3_vl": ("Qwen3VL", {})}


IMAGES = ("visual.", "vision_tower.", "multi_modal_projector.", "audio_tower.", "embed_vision.", "embed_audio.",
          "vision_embedder.")
# Beginnings of names, as saved by transformers 4 and 5.
NEW = {"text": "model.language_model.", "output": "lm_head.", "images": "model."}
OLD = {"text": "language_model.model.", "output": "language_model.lm_head.", "images": ""}
OLDER = {"text": "model.", "output": "lm_head.", "images": ""}


def renamed(name, names):
    for old in NEW, OLD, OLDER:
        for part, begin in old.items():
            rest = name.removeprefix(begin)
            images = rest.startswith(IMAGES)
            if name.startswith(begin) and (part == "images") == images and not rest.startswith("language_model."):
                return names[part] + rest
    raise AssertionError(name)


def make(kind, tied, seed):
    name, more = KINDS[kind]
    config = interface_models.tiny_config(getattr(transformers, name + "Config"))
    if kind == "mistral3, ministral":
        fields = {name: value for name, value in config.text_config.to_dict().items() if name != "model_type"}
        config.text_config = transformers.Ministral3Config(**{**fields, "max_position_embeddings": 64, **more})
    else:
        for key, value in more.items():
            setattr(config.text_config, key, value)
    config.tie_word_embeddings = config.text_config.tie_word_embeddings = tied
    config._attn_implementation = "eager"
    return randomise(getattr(transformers, name + "ForConditionalGeneration")(config), seed)


def logits(model, ids, double):
    if double:
        model = copy.deepcopy(model).double()
        text = model.model.language_model
        with in_double():
            text.rotary_emb = type(text.rotary_emb)(text.config)
            with torch.no_grad():
                return model(torch.from_numpy(ids)).logits.numpy()
    with torch.no_grad():
        return model(torch.from_numpy(ids)).logits.double().numpy()


def ids_of(model):
    return np.random.default_rng(4).integers(5, model.config.text_config.vocab_size - 5, (2, 32))


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", KINDS)
def test_text_parts(tmp_path, kind, tied):
    model = make(kind, tied, 31)
    model.save_pretrained(tmp_path)
    ours, ids = ck.Transformer(tmp_path), ids_of(model)
    exact, single = (logits(model, ids, double) for double in (True, False))
    found = ours(ids)
    assert rounds_like(found, single, exact)
    ours.save(tmp_path / "own")
    assert np.array_equal(ck.Transformer(tmp_path / "own")(ids), found)

    weights = load_file(tmp_path / "model.safetensors")
    for names in OLDER if kind.startswith("qwen") else OLD, NEW:
        save_file({renamed(name, names): x for name, x in weights.items()}, tmp_path / "model.safetensors")
        assert np.array_equal(ck.Transformer(tmp_path)(ids), found)


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl"])
def test_fields_beside_those_of_images(tmp_path, kind):
    """As in published folders, with the older name of the rotation."""
    model = make(kind, False, 32)
    model.save_pretrained(tmp_path)
    ids, path = ids_of(model), tmp_path / "config.json"
    found, config = ck.Transformer(tmp_path)(ids), json.loads(path.read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    flat = {**config, **text, "model_type": kind, "rope_theta": rope["rope_theta"],
            "rope_scaling": {"type": "mrope", "mrope_section": rope["mrope_section"]}}
    path.write_text(json.dumps(flat))
    assert np.array_equal(ck.Transformer(tmp_path)(ids), found)


@pytest.mark.parametrize("change, words", [
    (dict(text_config=None), "'text_config' is not a JSON object"),
    (dict(text_config={"model_type": "gemma"}), "'model_type' of text_config is 'gemma', expected 'mistral'"),
    (dict(tie_word_embeddings=True), "'tie_word_embeddings' is true and in text_config false"),
    (dict(quantization_config={"bits": 4}), "'quantization_config'")], ids=str)
def test_refused(tmp_path, change, words):
    make("mistral3", False, 33).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(mha.MultiheadError, match=words):
        ck.Transformer(tmp_path)


@pytest.mark.parametrize("names", [OLD, NEW], ids=["old", "new"])
def test_output_beside_tied_embeddings(tmp_path, names):
    model = make("mistral3", True, 36)
    model.save_pretrained(tmp_path)
    path, ids = tmp_path / "model.safetensors", ids_of(model)
    found = ck.Transformer(tmp_path)(ids)
    weights = {renamed(name, names): x for name, x in load_file(path).items()}
    output = names["output"] + "weight"
    weights[output] = weights[names["text"] + "embed_tokens.weight"].clone()
    save_file(weights, path)
    assert np.array_equal(ck.Transformer(tmp_path)(ids), found)
    weights[output][-1, -1] += 1
    save_file(weights, path)
    with pytest.raises(mha.MultiheadError, match="'tie_word_embeddings' is true, but"):
        ck.Transformer(tmp_path)


@pytest.mark.parametrize("fields", [("config", "text_config"), ("text_config",), ("config",)], ids=str)
def test_quantization_of_the_text_part(tmp_path, fields):
    """The field of config.json itself precedes that of text_config."""
    model = make("mistral3", False, 35)
    stored, plain = quantised(model, (8, 16), "_scale_inv")
    for name, weights in ("plain", plain), ("stored", stored):
        model.save_pretrained(tmp_path / name)
        save_file(weights, tmp_path / name / "model.safetensors")
    path = tmp_path / "stored/config.json"
    config = json.loads(path.read_text())
    if "text_config" in fields:
        config["text_config"]["quantization_config"] = {**FP8, "weight_block_size": [8, 8] if "config" in fields else [8, 16]}
    if "config" in fields:
        config["quantization_config"] = FP8
    path.write_text(json.dumps(config))
    ids = ids_of(model)
    assert np.array_equal(ck.Transformer(tmp_path / "stored")(ids), ck.Transformer(tmp_path / "plain")(ids))


def test_long_texts_of_ministral_are_refused(tmp_path):
    """Queries are scaled beyond the original length."""
    make("mistral3, ministral", False, 34).save_pretrained(tmp_path)
    ours = ck.Transformer(tmp_path)
    assert ours.desc.max_length == 40
    ours(some_ids(1)[:1].repeat(2, 1)[:, :40])
    with pytest.raises(mha.MultiheadError, match="this transformer takes at most 40"):
        ours(some_ids(1)[:1].repeat(2, 1)[:, :41])
