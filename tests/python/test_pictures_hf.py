"""Vision transformers and CLIP's tower of texts, against transformers in float64: hidden states and maps, positions
of other sizes, rejected folders; and the patches of images, against transformers' processors."""
import ctypes as C
import io
import json
import struct
import subprocess
import zlib

import numpy as np
import pytest
import torch
import transformers

import checkpoint_ctypes as ck
import multihead
import multihead_ctypes as mha
from multihead import _tensor
from multihead._abi import (Batch, Image, ModelInfo, ModelOptions, ModelOutputs, Picture, Tensor, Tokens)
from multihead._library import model_library
from shared import HANGS, PROGRAM, rounds_like
from test_checkpoint_hf import randomise, run_theirs

LIBRARY = model_library()
NO_TOKENIZER, IMAGES = 1, 8  # MHA_MODEL_
SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
WIDE = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40}
KINDS = {  # name of the classes, fields, size of the images, prefix tokens
    "vit": ("ViT", dict(SMALL, image_size=16, patch_size=4), 16, 1),
    "vit, no biases": ("ViT", dict(WIDE, image_size=15, patch_size=3, qkv_bias=False, hidden_act="relu"), 15, 1),
    "vit, remainder": ("ViT", dict(SMALL, image_size=18, patch_size=4, hidden_act="gelu_new"), 18, 1),
    "dinov2": ("Dinov2", dict(SMALL, image_size=16, patch_size=4, mlp_ratio=2), 16, 1),
    "dinov2, SwiGLU": ("Dinov2", dict(WIDE, image_size=20, patch_size=4, mlp_ratio=3, use_swiglu_ffn=True), 20, 1),
    "dinov2, larger": ("Dinov2", dict(SMALL, image_size=12, patch_size=4, mlp_ratio=2), 28, 1),
    "dinov2, smaller": ("Dinov2", dict(SMALL, image_size=36, patch_size=4, mlp_ratio=2), 16, 1),
    "registers": ("Dinov2WithRegisters", dict(SMALL, image_size=16, patch_size=4, mlp_ratio=2,
                                              num_register_tokens=3), 16, 4),
    "registers, larger": ("Dinov2WithRegisters", dict(WIDE, image_size=12, patch_size=4, mlp_ratio=2,
                                                      num_register_tokens=1, use_swiglu_ffn=True), 24, 2),
    "registers, smaller": ("Dinov2WithRegisters", dict(SMALL, image_size=36, patch_size=4, mlp_ratio=2,
                                                       num_register_tokens=2), 20, 3),
    "dinov3": ("DINOv3ViT", dict(SMALL, image_size=16, patch_size=4, num_register_tokens=3), 16, 4),
    "dinov3, gated": ("DINOv3ViT", dict(WIDE, image_size=16, patch_size=4, num_register_tokens=0, hidden_act="silu",
                                        use_gated_mlp=True, key_bias=True, rope_theta=50.0), 16, 1),
    "dinov3, larger": ("DINOv3ViT", dict(SMALL, image_size=16, patch_size=4, num_register_tokens=1), 28, 2),
    "clip": ("CLIPVision", dict(SMALL, image_size=16, patch_size=4), 16, 1),
    "clip, gelu": ("CLIPVision", dict(WIDE, image_size=14, patch_size=7, hidden_act="gelu"), 14, 1),
    "clip, epsilon": ("CLIPVision", dict(SMALL, image_size=20, patch_size=5, layer_norm_eps=1e-3), 20, 1),
    "siglip": ("SiglipVision", dict(SMALL, image_size=16, patch_size=4), 16, 0),
    "siglip, no head": ("SiglipVision", dict(WIDE, image_size=12, patch_size=3, vision_use_head=False), 12, 0),
    "siglip, quick": ("SiglipVision", dict(SMALL, image_size=21, patch_size=7, hidden_act="quick_gelu"), 21, 0)}


class Model:
    def __init__(self, folder, flags=0):
        self.context, self.handle = mha.Context(num_threads=1), C.c_void_p()
        how = ModelOptions(flags=flags)
        mha.check(LIBRARY.mha_model_load(self.context.handle, str(folder).encode(), C.byref(how),
                                         C.byref(self.handle)))
        self.info = ModelInfo()
        mha.check(LIBRARY.mha_model_describe(self.handle, C.byref(self.info)))

    def __del__(self):
        LIBRARY.mha_model_destroy(self.handle)

    def run(self, ids, features=None):
        """Hidden states x_0 .. x_L, the last one after the norm, and maps [L,B,H,T,T]."""
        (B, T), info = ids.shape, self.info
        ids = np.ascontiguousarray(ids, np.int32)
        hidden = np.zeros((info.layers + 2, B, T, info.hidden_size), np.float32)
        maps = np.zeros((info.layers, B, info.heads, T, T), np.float32)
        views = [mha.tensor(x) for x in hidden]
        tensors = [mha.tensor(x) for x in maps]
        wants = [mha.ModuleOutputs(probabilities=C.pointer(x)) for x in tensors]
        outputs = ModelOutputs(
            last_hidden=C.pointer(views[-1]), hidden=(C.POINTER(Tensor) * len(views))(*map(C.pointer, views)),
            attention=(C.POINTER(mha.ModuleOutputs) * len(wants))(*map(C.pointer, wants)))
        batch = Batch(batch=B, length=T, ids=ids.ctypes.data,
                      features=features.ctypes.data if features is not None else None)
        mha.check(LIBRARY.mha_model_forward(self.context.handle, self.handle, C.byref(batch), C.byref(outputs)))
        return hidden, maps

    def picture(self, pixels):
        """The features [T,F] and the pixels that the model sees, of an image [H,W,3]."""
        pixels = np.ascontiguousarray(pixels)
        image = Image(width=pixels.shape[1], height=pixels.shape[0], pixels=pixels.ctypes.data)
        made = Picture()
        mha.check(LIBRARY.mha_model_read_image(self.handle, C.byref(image), C.byref(made)))
        size = made.first + made.rows * made.cols
        features = _tensor.numbers(made.features, size * made.feature_dim, np.float32).reshape(size, -1).copy()
        seen = _tensor.numbers(made.pixels, made.rows * made.cols * made.feature_dim, np.uint8)
        seen = seen.reshape(made.rows * made.patch, made.cols * made.patch, 3).copy()
        LIBRARY.mha_picture_free(C.byref(made))
        return features, seen


def patches(pixels, size, first):
    """Features [B,T,3 P P] of pixels [B,3,H,W], for `first` other tokens."""
    batch, rows, cols = len(pixels), pixels.shape[2] // size, pixels.shape[3] // size
    cut = pixels[:, :, :rows * size, :cols * size].reshape(batch, 3, rows, size, cols, size)
    found = cut.transpose(0, 2, 4, 1, 3, 5).reshape(batch, rows * cols, 3 * size * size)
    return np.ascontiguousarray(np.concatenate([np.zeros((batch, first, found.shape[2]), np.float32), found], 1))


def make(kind, seed):
    name, fields, size, first = KINDS[kind]
    config = getattr(transformers, name + "Config")(**fields)
    config._attn_implementation = "eager"
    return randomise(getattr(transformers, name + "Model")(config), seed), size, first


def save(model, folder, size):
    model.save_pretrained(folder)
    if size != model.config.image_size:
        settings = {"image_processor_type": "BitImageProcessor", "crop_size": {"height": size, "width": size}}
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))


def theirs(model, pixels, double):
    found = run_theirs(model, pixels.astype(np.float64 if double else np.float32), double,
                       output_hidden_states=True, output_attentions=True)
    last = found.hidden_states[-1]
    norm = next(getattr(model, name) for name in ("layernorm", "post_layernorm", "norm") if hasattr(model, name))
    with torch.no_grad():  # CLIP applies it to CLS alone
        last = (norm.double() if double else norm.float())(last)
    return [x.double().numpy() for x in (*found.hidden_states, last)], [x.double().numpy() for x in found.attentions]


@pytest.mark.parametrize("kind", KINDS)
def test_images(tmp_path, kind):
    model, size, first = make(kind, 51)
    save(model, tmp_path, size)
    pixels = np.random.default_rng(5).standard_normal((2, 3, size, size)).astype(np.float32)
    exact, exact_maps = theirs(model, pixels, True)
    single, single_maps = theirs(model, pixels, False)
    features = patches(pixels, model.config.patch_size, first)
    ids = np.zeros(features.shape[:2], np.int32)
    ids[:, :first] = 1 + np.arange(first)
    ours = Model(tmp_path)
    assert (ours.info.patch_rows, ours.info.patch_first) == (size // model.config.patch_size, first)
    hidden, maps = ours.run(ids, features)
    for i, (own, other, true) in enumerate(zip(hidden, single, exact, strict=True)):
        assert rounds_like(own, other, true), i
    for own, other, true in zip(maps, single_maps, exact_maps, strict=True):
        assert rounds_like(own, other, true)
    copy = ck.Transformer(tmp_path)
    copy.save(tmp_path / "own")
    hidden_of_copy = Model(tmp_path / "own", NO_TOKENIZER).run(ids, features)[0]
    assert rounds_like(hidden_of_copy[-1], single[-1], exact[-1])


def text_config(**more):
    return dict(SMALL, vocab_size=99, max_position_embeddings=20, bos_token_id=1, eos_token_id=2, **more)


@pytest.mark.parametrize("more", [{}, {"hidden_act": "gelu"}, {"num_attention_heads": 8, "layer_norm_eps": 1e-3}], ids=str)
def test_clip_text(tmp_path, more):
    config = transformers.CLIPTextConfig(**{**text_config(), **more})
    config._attn_implementation = "eager"
    model = randomise(transformers.CLIPTextModel(config), 52)
    model.save_pretrained(tmp_path)
    ids = np.random.default_rng(6).integers(3, 99, (2, 20))
    hidden, maps = Model(tmp_path, NO_TOKENIZER).run(ids)
    found = {}
    for double in True, False:
        outputs = run_theirs(model, ids, double, output_hidden_states=True, output_attentions=True)
        found[double] = [x.double().numpy() for x in (*outputs.hidden_states, outputs.last_hidden_state)]
        found[double, "maps"] = [x.double().numpy() for x in outputs.attentions]
    for own, other, exact in zip([*hidden, *maps], found[False] + found[False, "maps"],
                                 found[True] + found[True, "maps"], strict=True):
        assert rounds_like(own, other, exact)


def test_two_towers(tmp_path):
    """A whole CLIP folder: the text by default, images on request. SigLIP: images."""
    model = randomise(transformers.CLIPModel(transformers.CLIPConfig(
        text_config=text_config(), vision_config=dict(SMALL, image_size=16, patch_size=4))), 53)
    model.save_pretrained(tmp_path / "whole")
    model.text_model.save_pretrained(tmp_path / "text")
    model.vision_model.save_pretrained(tmp_path / "images")
    ids = np.random.default_rng(6).integers(3, 99, (2, 20))
    whole, alone = (Model(tmp_path / name, NO_TOKENIZER).run(ids)[0] for name in ("whole", "text"))
    assert np.array_equal(whole, alone)
    features = np.random.default_rng(7).standard_normal((1, 17, 48)).astype(np.float32)
    ids = np.array([[1, *[0] * 16]])
    whole, alone = (Model(tmp_path / name, IMAGES).run(ids, features)[0] for name in ("whole", "images"))
    assert np.array_equal(whole, alone)
    siglip = transformers.SiglipConfig(text_config=dict(SMALL, vocab_size=99), vision_config=dict(SMALL, image_size=16))
    transformers.SiglipModel(siglip).save_pretrained(tmp_path / "siglip")
    path = tmp_path / "siglip/config.json"
    config = json.loads(path.read_text())
    config["vision_config"] = {**SMALL, "model_type": "siglip_vision_model", "image_size": 16}  # the rest by default
    path.write_text(json.dumps(config))
    assert Model(tmp_path / "siglip").info.patch_rows == 1


@pytest.mark.parametrize("change, error", [
    ({"text_config_dict": {"num_attention_heads": 2}},
     "'num_attention_heads' differs in 'text_config' and 'text_config_dict'"),
    ({"text_config_dict": {"num_attention_heads": 4, "hidden_act": "gelu"}}, "'hidden_act' differs"),
    ({"text_config_dict": {"num_attention_heads": 4}}, "'layer_norm_eps' differs"),
    ({"text_config_dict": {"num_attention_heads": 4, "layer_norm_eps": 1e-3}}, None),
    ({"vision_config_dict": {"num_attention_heads": 2}}, None),  # of the other tower
    ({"text_config": {"model_type": "x"}}, "'model_type' of text_config is 'x', expected 'clip_text_model'")], ids=str)
def test_copies_of_the_parts_of_clip(tmp_path, change, error):
    """transformers prefers the copies, and takes its defaults for fields that they lack."""
    config = transformers.CLIPConfig(text_config=text_config(layer_norm_eps=1e-3),
                                     vision_config=dict(SMALL, image_size=16, patch_size=4))
    transformers.CLIPModel(config).save_pretrained(tmp_path)
    made = json.loads((tmp_path / "config.json").read_text())
    for name, fields in change.items():
        made[name] = {**made.get(name, {}), **fields}
    (tmp_path / "config.json").write_text(json.dumps(made))
    if not error:
        assert Model(tmp_path, NO_TOKENIZER).info.patch_rows == 0
        return
    with pytest.raises(mha.MultiheadError, match=error):
        Model(tmp_path, NO_TOKENIZER)


def test_names_of_classifiers(tmp_path):
    model = randomise(transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL, image_size=16)), 54)
    model.save_pretrained(tmp_path / "whole")
    model.vit.save_pretrained(tmp_path / "alone")
    features, ids = np.ones((1, 2, 768), np.float32), np.array([[1, 0]])
    whole, alone = (Model(tmp_path / name).run(ids, features)[0] for name in ("whole", "alone"))
    assert np.array_equal(whole, alone)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder of each kind."""
    found = {}
    for kind in "vit", "registers", "clip", "dinov3":
        found[kind] = tmp_path_factory.mktemp(kind)
        model, size, _ = make(kind, 55)
        save(model, found[kind], size)
    return found


def changed(folder, tmp_path, name, change):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    old = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
    new = {key: value for key, value in {**old, **change}.items() if value != "gone"}
    (tmp_path / name).write_text(json.dumps(new))
    return tmp_path


@pytest.mark.parametrize("kind, change, words", [
    ("vit", dict(patch_size=0), "'patch_size' is 0, expected 1"),
    ("vit", dict(patch_size=[4, 4]), "'patch_size' is not a whole number"),
    ("vit", dict(patch_size=17), "'patch_size' is 17"),
    ("vit", dict(patch_size=2), r"has shape \[32, 3, 4, 4\], config.json requires \[32, 3, 2, 2\]"),
    ("vit", dict(image_size=1 << 20), "at most 1024 patches in a row of image_size 1048576"),
    ("vit", dict(image_size=20), r"position_embeddings' has shape \[1, 17, 32\], config.json requires \[26, 32\]"),
    ("vit", dict(num_channels=1), "'num_channels' is 1"),
    ("vit", dict(hidden_size=1 << 40), "'hidden_size' is 1099511627776"),
    ("vit", dict(num_attention_heads=5), "'hidden_size' is 32, not a multiple of num_attention_heads 5"),
    ("vit", dict(hidden_act="tanh"), "hidden_act 'tanh' is not supported"),
    ("vit", dict(layer_norm_eps=-1), "'layer_norm_eps'"),
    ("vit", dict(qkv_bias=3), "'qkv_bias' is neither true nor false"),
    ("vit", dict(qkv_bias=False), "'qkv_bias' is not true, but the weights have 'encoder.layer.0.attention.attention"),
    ("vit", dict(num_hidden_layers=1 << 13), "'num_hidden_layers' is 8192"),
    ("registers", dict(num_register_tokens=1 << 20), "'num_register_tokens' is 1048576"),
    ("registers", dict(num_register_tokens=2), r"register_tokens' has shape \[1, 3, 32\], config.json requires \[2, 32\]"),
    ("registers", dict(mlp_ratio=1e9), r"'mlp_ratio' is 1e\+09"),
    ("registers", dict(mlp_ratio="x"), "'mlp_ratio' is not a number"),
    ("registers", dict(use_swiglu_ffn=True), "'encoder.layer.0.mlp"),
    ("dinov3", dict(num_attention_heads=16), "'num_attention_heads' is 16, so that heads have 2 elements"),
    ("dinov3", dict(rope_theta=0), "'rope_theta' is 0"),
    ("dinov3", dict(value_bias=False), "'value_bias' is false, expected true"),
    ("dinov3", dict(key_bias=True), r"'layer.0.attention.k_proj.bias' is missing"),
    ("dinov3", dict(use_gated_mlp=True), "holds 24400 numbers, config.json describes at least 25472"),
    ("clip", dict(image_size=16.5), "'image_size' is not a whole number")], ids=str)
def test_refused(tmp_path, folders, kind, change, words):
    folder = changed(folders[kind], tmp_path, "config.json", change)
    with pytest.raises(mha.MultiheadError, match=words):
        Model(folder)


def test_resized_images_have_a_limit(tmp_path, folders):
    name, fields = PROCESSORS["registers"]
    getattr(transformers, name + "Pil")(**fields).save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "preprocessor_config.json").read_text())
    model = Model(changed(folders["registers"], tmp_path, "preprocessor_config.json", settings))
    with pytest.raises(mha.MultiheadError, match="image of 1 x 2000 pixels becomes 30 x 60000 as the model resizes it"):
        model.picture(np.zeros((2000, 1, 3), np.uint8))


@pytest.mark.parametrize("arguments", [("circuits",), ("ablate", "x"), ("serve", "--port", "0"), ("page", "-o", "a.html"),
                                       ("heads", "x"), ("view", "x")], ids=str)
def test_the_program_refuses_images_for_texts(tmp_path, folders, arguments):
    done = subprocess.run([PROGRAM, arguments[0], folders["vit"], *arguments[1:]], capture_output=True, text=True,
                          check=False, timeout=HANGS, cwd=tmp_path)
    wanted = f"multihead: {arguments[0]}: {folders['vit']}: the model reads images, not texts; give --image FILE to view or heads"
    assert (done.returncode, done.stderr.strip()) == (5, wanted)


def pillow():
    return pytest.importorskip("PIL.Image")


# ---- processors ----------------------------------------------------------------------------------

PROCESSORS = {
    "vit": ("ViTImageProcessor", {"size": {"height": 16, "width": 16}}),
    "vit, no biases": ("ViTImageProcessor", {"size": {"height": 15, "width": 15}, "resample": 3, "image_mean": [0.4, 0.5, 0.6]}),
    "registers": ("BitImageProcessor", {"size": {"shortest_edge": 30}, "crop_size": {"height": 26, "width": 21}}),
    "dinov2": ("BitImageProcessor", {"size": {"shortest_edge": 15}, "crop_size": {"height": 24, "width": 24},
                                     "do_normalize": False}),
    "clip": ("CLIPImageProcessor", {"size": {"shortest_edge": 19}, "crop_size": {"height": 16, "width": 16},
                                    "rescale_factor": 0.01}),
    "siglip": ("SiglipImageProcessor", {"size": {"height": 16, "width": 16}, "do_rescale": False})}


def rows_first(resize):
    """Pillow's resize in its usual order. Pillow 13 begins with columns for some sizes."""
    def both(image, size, *more, **options):
        return resize(resize(image, (size[0], image.height), *more, **options), size, *more, **options)
    return both


@pytest.mark.parametrize("kind", PROCESSORS)
def test_processors(tmp_path, kind, monkeypatch):
    """The same bits as the processors with Pillow."""
    image = pillow().Image
    monkeypatch.setattr(image, "resize", rows_first(image.resize))
    name, fields = PROCESSORS[kind]
    model, _, first = make(kind, 56)
    model.save_pretrained(tmp_path)
    processor = getattr(transformers, name + "Pil")(**fields)
    processor.save_pretrained(tmp_path)
    ours, rng = Model(tmp_path), np.random.default_rng(8)
    for height, width in (16, 16), (40, 23), (7, 90), (200, 133), (1, 1), (30, 45), (24, 24), (15, 200):
        pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
        if width > 2 * height:
            pixels = np.where(pixels < 128, 0, 255).astype(np.uint8)
        if height == 1:
            continue  # transformers takes it for another order of axes
        wanted = processor(pixels, return_tensors="np", input_data_format="channels_last")["pixel_values"]
        found, seen = ours.picture(pixels)
        assert np.array_equal(found, patches(wanted.astype(np.float32), model.config.patch_size, first)[0]), (height, width)
        assert seen.shape[:2] == (ours.info.patch_rows * model.config.patch_size,
                                  ours.info.patch_cols * model.config.patch_size)


def test_processor_of_floats(tmp_path):
    """DINOv3's resizes numbers. Two passes of sums, rounded to float32, then a division by std: 2^-24 (2 + 4 / 0.22)."""
    model, _, first = make("dinov3", 57)
    model.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(
        {"image_processor_type": "DINOv3ViTImageProcessorFast", "size": {"height": 28, "width": 20}}))
    ours, rng = Model(tmp_path), np.random.default_rng(11)
    mean, std = np.array([0.485, 0.456, 0.406])[:, None, None], np.array([0.229, 0.224, 0.225])[:, None, None]
    for height, width in (28, 20), (90, 61), (9, 200), (28, 64):
        pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
        exact = torch.nn.functional.interpolate(torch.from_numpy(pixels.transpose(2, 0, 1)[None] / 255.), (28, 20),
                                                mode="bilinear", antialias=True).numpy()
        wanted = patches((exact - mean) / std, 4, first)[0]
        found, seen = ours.picture(pixels)
        assert np.abs(found - wanted).max() <= 2e-6 and seen.shape == (28, 20, 3)


@pytest.mark.parametrize("change, words", [
    (dict(size={"height": 18, "width": 16}), "images of 18 x 16 pixels, but the model has positions for image_size 16"),
    (dict(size={"height": 16}), "'width' is missing"),
    (dict(size="16"), "'size' is neither a number nor an object"),
    (dict(size=0), "'size' is 0"),
    (dict(size={"shortest_edge": 16}), "'size' gives images of any size"),
    (dict(do_center_crop=True, crop_size={"height": 1 << 40, "width": 16}), "'height' is 1099511627776"),
    (dict(resample=1), r"'resample' is 1, only 2 \(bilinear\) and 3"),
    (dict(image_std=[1, 1, 0]), "'image_std' is not a list of three numbers of 1e-6 or more"),
    (dict(image_mean=[1, 1]), "'image_mean' is not a list of three numbers"),
    (dict(image_processor_type="OwlViTImageProcessor"), "'image_processor_type' is 'OwlViTImageProcessor'"),
    (dict(do_pad=True), "'do_pad' is set"),
    (dict(rescale_factor=-1), "'rescale_factor' is -1")], ids=str)
def test_refused_processors(tmp_path, folders, change, words):
    folder = changed(folders["vit"], tmp_path, "preprocessor_config.json", change)
    with pytest.raises(mha.MultiheadError, match=words):
        Model(folder)


# ---- the Python package --------------------------------------------------------------------------

@pytest.mark.parametrize("kind", ["vit", "registers, larger", "dinov3", "clip", "siglip"])
def test_package(tmp_path, kind):
    """A path and its pixels, against transformers in float64; positions, measures and scores of heads."""
    model, size, first = make(kind, 61)
    save(model, tmp_path, size)
    path = tmp_path / "image.png"
    drawn().save(path)
    ours = multihead.Model(tmp_path)
    patches_ = ours.patches(path)
    rows = size // model.config.patch_size
    assert ours.sees and patches_.grid.rows == patches_.grid.cols == rows and len(patches_) == first + rows * rows
    names = ["[CLS]"] * (first > 0) + [f"[REG{n}]" for n in range(first - 1)]
    assert patches_.texts == names + [f"{n // rows},{n % rows}" for n in range(rows * rows)]
    assert patches_.special.tolist() == [True] * first + [False] * rows * rows
    assert patches_.grid.cls == (0 if first else None) and list(patches_.grid.register_positions) == list(range(1, first))
    assert patches_.texts[patches_.grid.position(1, 2)] == "1,2"
    size = model.config.patch_size
    pixels = patches_.features[first:].reshape(rows, rows, 3, size, size).transpose(2, 0, 3, 1, 4).reshape(1, 3, rows * size, -1)
    (exact, exact_maps), (single, single_maps) = theirs(model, pixels, True), theirs(model, pixels, False)
    found = ours.attention(multihead.read_image(path))
    assert all(rounds_like(*three) for three in zip(found.probabilities, [m[0] for m in single_maps], [m[0] for m in exact_maps],
                                                    strict=True))
    states = ours.hidden_states(path)
    assert all(rounds_like(*three) for three in zip(states, [x[0] for x in single[:-1]], [x[0] for x in exact[:-1]], strict=True))
    measures, chance = found.grid_measures()
    weights = found.stack()[..., first:, :]
    assert np.allclose(measures["registers"], weights[..., 1:first].sum(-1).mean(-1) if first else 0, atol=1e-6)
    assert np.allclose(measures["cls"], weights[..., 0].mean(-1) if first else 0, atol=1e-6)
    assert np.allclose(chance["cls"], 1 / len(patches_) if first else 0)
    scores = ours.heads(path)
    assert np.allclose(scores["same_row"], measures["same_row"], rtol=0, atol=1e-9) and scores.texts == 1
    view = multihead.image_view(ours, path, query=(0, 1), layers=[1], html_action="return")
    view.save(tmp_path / "page.html")
    view.save(tmp_path / "maps.png")
    assert "2 maps" in repr(view) or "4 maps" in repr(view)
    assert '"L1H0"' in (tmp_path / "page.html").read_text() and "srcdoc" in view.data and "<svg" in view.svg()


def test_refused_by_the_package(folders, tmp_path):
    drawn().save(tmp_path / "image.png")
    model, pixels = multihead.Model(folders["vit"]), np.asarray(drawn())
    for call, words in [
            (lambda: model.attention(pixels.astype(np.float32)), r"image: float32 \[74, 44, 3\], expected a path, or pixels"),
            (lambda: model.attention(pixels[..., 0]), r"image: uint8 \[74, 44\]"), (lambda: model.heads([]), "there is no image"),
            (lambda: model.heads(pixels, random=2), "random: it has no effect on the heads of a model that sees"),
            (lambda: model.heads(pixels, truncate=True), "truncate: it has no effect"),
            (lambda: model.attention([1, 2]), r"image: int64 \[2\]"),
            (lambda: model.attention(multihead.Tokens(np.zeros(1, np.int32), ["a"], np.zeros(1, bool), np.zeros(1, np.int32), [None])),
             "the model reads images"),
            (lambda: multihead.image_view(model, pixels, query="REG0"), "query: 'REG0' is none of"),
            (lambda: multihead.image_view(model, pixels, query=(9, 0)), "patch 9,0 is not in 0,0 to 3,3"),
            (lambda: multihead.image_view(model, pixels, layers=[3]), r"layers: \[3\] are not all in 0 .. 2")]:
        with pytest.raises((ValueError, IndexError), match=words):
            call()
    with pytest.raises(multihead.FileError, match="missing.png"):
        model.attention(tmp_path / "missing.png")


def test_clip_from_python(tmp_path):
    config = transformers.CLIPConfig(text_config=text_config(), vision_config=dict(SMALL, image_size=16, patch_size=4))
    transformers.CLIPModel(config).save_pretrained(tmp_path)
    assert multihead.Model(tmp_path, images=True).heads(np.asarray(drawn())).tokens == 17


# ---- files ---------------------------------------------------------------------------------------

def read(data):
    image = Image()
    mha.check(LIBRARY.mha_image_read(data, len(data), C.byref(image)))
    pixels = _tensor.numbers(image.pixels, image.width * image.height * 3, np.uint8)
    pixels = pixels.reshape(image.height, image.width, 3).copy()
    LIBRARY.mha_image_free(C.byref(image))
    return pixels


def encoded(image, form, **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def drawn(seed=9, size=(37, 22)):
    Pil = pillow()
    grid = np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)
    return Pil.fromarray(grid).resize((size[1] * 2, size[0] * 2), Pil.Resampling.BICUBIC)


def test_files():
    """PNG and JPEG of every kind that has one meaning, as Pillow reads them."""
    Pil, image = pillow(), drawn()
    with_alpha = image.copy()
    with_alpha.putalpha(Pil.fromarray(np.arange(image.width * image.height, dtype=np.uint8).reshape(image.size[::-1])))
    for other in image, image.convert("L"), image.convert("P"), image.convert("1"), with_alpha, image.convert("LA"):
        data = encoded(other, "PNG")
        assert np.array_equal(read(data), np.array(Pil.open(io.BytesIO(data)).convert("RGB"))), other.mode
    for options in {}, {"quality": 95, "subsampling": 0}, {"progressive": True}, {"quality": 30, "subsampling": 2}:
        for other in image, image.convert("L"):
            data = encoded(other, "JPEG", **options)
            assert np.array_equal(read(data), np.array(Pil.open(io.BytesIO(data)).convert("RGB"))), options
    for options in {}, {"progressive": True}:
        data = encoded(image.convert("CMYK"), "JPEG", **options)
        assert np.array_equal(read(data), np.array(Pil.open(io.BytesIO(data)).convert("RGB")))
    wide = np.random.default_rng(3).integers(0, 1 << 16, (5, 7), np.uint16)  # which Pillow clips at 255
    assert np.array_equal(read(encoded(Pil.fromarray(wide), "PNG"))[..., 1], wide >> 8)


def test_kinds_of_png():
    Pil, rng = pillow(), np.random.default_rng(11)
    palette = chunk(b"PLTE", rng.bytes(3 * 16))
    for colour, depth, channels in [(0, 1, 1), (0, 2, 1), (0, 4, 1), (2, 16, 3), (3, 1, 1), (3, 2, 1), (3, 4, 1), (4, 8, 2),
                                    (4, 16, 2), (6, 16, 4)]:
        rows = b"".join(b"\0" + rng.bytes((13 * channels * depth + 7) // 8) for _ in range(5))
        clear = {0: chunk(b"tRNS", b"\0\1"), 2: chunk(b"tRNS", rng.bytes(6)), 3: chunk(b"tRNS", rng.bytes(2))}.get(colour, b"")
        for more in {b"", clear}:
            data = png(13, 5, rows, depth, colour, more=palette * (colour == 3) + more)
            assert np.array_equal(read(data), np.array(Pil.open(io.BytesIO(data)).convert("RGB"))), (colour, depth, more)


def exif(orientation, big, kind=3, first=8, more=(), size=None):
    """A TIFF file with tags 0x10f, then 0x112, then `more`, at offset `first`."""
    end = ">" if big else "<"
    value = struct.pack(end + ("I" if kind == 4 else "HH"), *[orientation, 9][:1 if kind == 4 else 2])
    tags = [(0x10F, 3, 1, bytes(4)), (0x112, kind, 1, value), *more]
    data = (b"MM\0*" if big else b"II*\0") + struct.pack(end + "I", first) + bytes(first - 8)
    data += struct.pack(end + "H", len(tags)) + b"".join(struct.pack(end + "HHI", *tag[:3]) + tag[3] for tag in tags)
    return b"Exif\0\0" + (data + bytes(4))[:size]


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_orientation(form):
    """As ImageOps.exif_transpose(), and damaged EXIF is ignored."""
    Pil, ImageOps, image = pillow(), pytest.importorskip("PIL.ImageOps"), drawn()
    for orientation in range(10):
        for options in dict(big=True), dict(big=False), dict(big=True, kind=4), dict(big=False, first=20):
            data = encoded(image, form, exif=exif(orientation, **options))
            theirs = ImageOps.exif_transpose(Pil.open(io.BytesIO(data))).convert("RGB")
            assert np.array_equal(read(data), np.array(theirs)), (orientation, options)
            assert (read(data).shape[0] > read(data).shape[1]) == (not 5 <= orientation <= 8)
    damaged = [exif(6, True, size=n) for n in range(33)] + [exif(6, False)[:10] + b"\xff" * 4 + bytes(20),
                                                            b"Exif\0\0", exif(6, True, kind=7)]
    for block in damaged:
        data = encoded(image, form, exif=block)
        assert np.array_equal(read(data), read(encoded(image, form))), block


def chunk(kind, data, crc=None):
    body = kind + data
    return len(data).to_bytes(4) + body + (zlib.crc32(body) if crc is None else crc).to_bytes(4)


def png(width, height, rows, depth=8, colour=2, crc=None, more=b""):
    head = width.to_bytes(4) + height.to_bytes(4) + bytes([depth, colour, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + more + chunk(b"IDAT", zlib.compress(rows), crc) + chunk(b"IEND", b"")


def test_hostile_files():
    pillow()
    rows = b"".join(b"\0" + bytes(range(9)) for _ in range(2))
    assert read(png(3, 2, rows)).tolist() == [[[0, 1, 2], [3, 4, 5], [6, 7, 8]]] * 2
    for data, words in [
            (b"", "neither a PNG nor a JPEG"), (b"GIF89a", "neither"), (png(3, 2, rows)[:20], "truncated"),
            (png(3, 2, rows)[:-20], "damaged PNG"), (png(3, 2, rows[:-1]), "damaged PNG|truncated"),
            (png(3, 2, rows, crc=1), "CRC"), (png(1 << 30, 1, rows), "1073741824 x 1 pixels, expected 1..32768"),
            (png(30000, 30000, rows), "30000 x 30000 pixels"), (png(3, 0, rows), "damaged PNG"),
            (png(3, 2, rows, depth=3), "damaged PNG"), (png(3, 2, b"\7" * 20), "damaged PNG")]:
        with pytest.raises(mha.MultiheadError, match=words):
            read(data)
    jpeg = encoded(drawn(), "JPEG")
    for data, words in [
            (jpeg[:2] + b"\xff", "damaged JPEG"), (jpeg[:len(jpeg) // 2], "damaged JPEG"), (jpeg[:-2], "damaged JPEG"),
            (jpeg.replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"), "damaged JPEG")]:
        with pytest.raises(mha.MultiheadError, match=words):
            read(data)
    at = jpeg.index(b"\xff\xc0") + 5  # height and width
    with pytest.raises(mha.MultiheadError, match="32768 x 32769 pixels"):
        read(jpeg[:at] + b"\x80\1\x80\0" + jpeg[at + 4:])
    rng = np.random.default_rng(10)
    for data in encoded(drawn(), "PNG"), jpeg, encoded(drawn(), "JPEG", progressive=True):
        for _ in range(60):
            broken = bytearray(data)
            for at in rng.integers(0, len(data), 3):
                broken[at] = rng.integers(256)
            try:
                read(bytes(broken))
            except mha.MultiheadError as error:
                assert str(error)
