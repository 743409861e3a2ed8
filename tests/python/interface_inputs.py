"""Inputs for the models of interface_models.py: texts, images, sounds and series, chosen by the parameter names of
forward() and the fields of the configuration. All have two examples."""
import inspect

import torch

TOKENS = 99
IMAGE_TOKEN = 98


def field(config, *names, default=None):
    """The first field of the list that is in a configuration or one of its parts."""
    parts = [getattr(config, part, None) for part in (
        "vision_config", "backbone_config", "audio_config", "encoder_config", "video_config", "text_config")]
    for part in [config, *parts]:
        for name in names:
            if (found := getattr(part, name, None)) is not None:
                return found
    return default


def pair(value):
    """(height, width) of a size."""
    if isinstance(value, dict):
        return value["height"], value["width"]
    return tuple(value)[-2:] if isinstance(value, (list, tuple)) else (value, value)


def random(shape, generator):
    """Numbers of variance 1, equal in float32 and float64, independent of the default dtype."""
    return torch.randint(-2**20, 2**20, tuple(shape), generator=generator) * (3**0.5 / 2**20)


class Draw:
    """Reproducible random numbers for a model, and the sizes of its configuration."""

    def __init__(self, config):
        self.config, self.generator = config, torch.Generator().manual_seed(2)
        self.channels = field(config, "in_channels", "num_channels", "in_chans", "channels", default=3)
        self.patch = pair(field(config, "patch_size", default=14))
        self.bins = field(config, "input_dim", "num_mel_bins", "input_feat_per_channel", "feature_size", "input_feat_size",
                          "feature_projection_input_dim", "mel_bins", "input_size", default=128)
        merge = field(config, "spatial_merge_size", "merge_size", "merge_kernel_size", "downsample_factor", default=2)
        merge = min(max(2, pair(merge)[0]), 4)
        self.grid = (1, 2 * merge, 4 * merge)  # time, height, width in patches

    def normal(self, *shape):
        return random(shape, self.generator)

    def ids(self, *shape):
        return torch.randint(3, TOKENS - 1, shape, generator=self.generator)

    def image(self, *before):
        size = pair(field(self.config, "image_size", "img_size", "input_size", default=64))
        return self.normal(2, *before, self.channels, *size)

    def frames(self):
        """The frames of a video."""
        return self.image(field(self.config, "frames_per_clip", "num_frames", default=4))

    def patches(self, flat=True, depth=True):
        """The patches of two images of the grid's size, concatenated."""
        t, h, w = self.grid
        deep = field(self.config, "temporal_patch_size", default=1) if depth else 1
        shape = self.channels * deep, *self.patch
        return self.normal(2 * t * h * w, shape[0] * shape[1] * shape[2]) if flat else self.normal(2 * t * h * w, *shape)

    def texts_with_image(self, count):
        ids = self.ids(2, count + 8)
        ids[:, 2:2 + count] = IMAGE_TOKEN
        return ids


MAKERS = {
    "input_ids": lambda d: d.ids(2, 12),
    "decoder_input_ids": lambda d: d.ids(2, 7),
    "qformer_input_ids": lambda d: d.ids(2, 6),
    "pixel_values": Draw.image,
    "pixel_values_videos": Draw.frames,
    "input_values": lambda d: d.normal(2, 4000),
    "input_features": lambda d: d.normal(2, 128, d.bins),
    "input_features_mask": lambda d: torch.ones(2, 128, dtype=torch.long),
    "hidden_states": Draw.patches,
    "inputs_embeds": lambda d: d.normal(2, 12, d.config.hidden_size),
    "query_embeds": lambda d: d.normal(2, 12, d.config.hidden_size),
    "grid_thw": lambda d: torch.tensor([d.grid] * 2),
    "image_grid_thw": lambda d: torch.tensor([d.grid] * 2),
    "merge_sizes": lambda d: torch.tensor([2, 2]),
    "past_values": lambda d: d.normal(2, d.config.context_length),
    "past_values_padding": lambda d: torch.zeros(2, d.config.context_length, dtype=torch.long),
    "freq": lambda d: torch.zeros(2, 1, dtype=torch.long),
    "latents": lambda d: d.normal(2, d.config.hidden_size, 16),
}


def pixtral_like(d):
    return {"pixel_values": d.patches(), "grid_thw": MAKERS["grid_thw"](d)}


def two_frames(d):
    return {"pixel_values": torch.cat([d.patches()] * 2, -1)}


def side_by_side(d):
    t, h, w = d.grid
    return {"pixel_values": d.normal(1, 3, d.patch[0], 2 * h * w * d.patch[0]), "target_sizes": torch.tensor([[h, w]] * 2)}


def bins_first(d):
    return {"input_features": d.normal(2, d.bins, 2 * field(d.config, "max_source_positions", default=64))}


def image_by_patches(d):
    t, h, w = d.grid
    return {"pixel_values": d.normal(2, h * w, d.channels * d.patch[0] * d.patch[1]),
            "pixel_attention_mask": torch.ones(2, h * w, dtype=torch.long),
            "spatial_shapes": torch.tensor([[h, w]] * 2)}


def text_with_image(d):
    return {"input_ids": d.texts_with_image(d.config.num_query_tokens)}


def kosmos2(d):
    ids = d.texts_with_image(d.config.latent_query_num)
    return {"input_ids": ids, "image_embeds_position_mask": ids == IMAGE_TOKEN}


def decisions(d):
    c = d.config
    return {"states": d.normal(2, 9, c.state_dim), "actions": d.normal(2, 9, c.act_dim), "rewards": d.normal(2, 9, 1),
            "returns_to_go": d.normal(2, 9, 1), "timesteps": torch.arange(9).repeat(2, 1),
            "attention_mask": torch.ones(2, 9, dtype=torch.long)}


def series(d):
    """Past and future values, with the features of their times."""
    before = d.config.context_length + max(d.config.lags_sequence)
    times = d.config.num_time_features
    return {"past_values": d.normal(2, before), "past_time_features": d.normal(2, before, times),
            "past_observed_mask": torch.ones(2, before), "future_values": d.normal(2, d.config.prediction_length),
            "future_time_features": d.normal(2, d.config.prediction_length, times)}


def positions(d):
    """Patches with the positions (x, y) of each."""
    h, w = 6, 6
    at = torch.stack(torch.meshgrid(torch.arange(w), torch.arange(h), indexing="xy"), -1).reshape(1, -1, 2)
    return {"pixel_values": d.normal(2, h * w, 3 * d.patch[0]**2).sigmoid(), "pixel_position_ids": at.repeat(2, 1, 1)}


IMAGES = dict.fromkeys(("AltCLIPModel", "Aimv2Model", "CLIPModel", "CLIPSegModel", "ChineseCLIPModel", "MetaClip2Model",
                        "SiglipModel", "OwlViTModel", "Owlv2Model", "Tipsv2Model"), lambda d: {"pixel_values": d.image()})

# Families whose inputs do not follow from names, by the module of the class or the class.
FAMILIES = IMAGES | {
    "Siglip2Model": image_by_patches, "XCLIPModel": lambda d: {"pixel_values": d.frames()},
    "ClapModel": lambda d: {"input_features": d.normal(2, 1, 64, 64)},
    "UdopModel": lambda d: {"bbox": (d.ids(2, 12, 4) / 100).sort(-1).values},
    "audio_spectrogram_transformer": lambda d: {"input_values": d.normal(2, d.config.max_length, d.config.num_mel_bins)},
    "blip_2": text_with_image, "instructblip": text_with_image,
    "Blip2QFormerModel": lambda d: {"query_embeds": d.normal(2, 12, d.config.hidden_size),
                                    "encoder_hidden_states": d.normal(2, 9, d.config.encoder_hidden_size)},
    "instructblipvideo": lambda d: {"pixel_values": d.image(4), "input_ids": d.texts_with_image(4 * d.config.num_query_tokens)},
    "kosmos2": kosmos2,
    "cosmos3_edge": pixtral_like, "hunyuan_vl": pixtral_like, "lfm3_vl": pixtral_like, "muse_glimmer": two_frames,
    "muse_spark": two_frames, "glm_image": pixtral_like, "video_llama_3": pixtral_like,
    "kimi_k25": lambda d: {"pixel_values": d.patches(flat=False)},
    "inkling2": lambda d: {"pixel_values": d.normal(64, 2 * d.patch[0], 2 * d.patch[0], 3),
                           "image_grid_thw": torch.tensor([[1, 4, 8]] * 2)},
    "minicpm_ocr": side_by_side, "minicpmv4_7": side_by_side, "minicpmv4_6": side_by_side,
    "fun_asr_nano": lambda d: {"input_features": d.normal(2, 64, 560), "input_features_mask": torch.ones(2, 64)},
    "granite_speech5": lambda d: {"input_features": d.normal(2, 64, 320)},
    "siglip2": image_by_patches,
    "decision_transformer": decisions, "informer": series, "time_series_transformer": series,
    "patchtst": lambda d: {"past_values": d.normal(2, d.config.context_length, d.config.num_input_channels)},
    "patchtsmixer": lambda d: {"past_values": d.normal(2, d.config.context_length, d.config.num_input_channels)},
    "gemma3n": lambda d: {"audio_mel": d.normal(2, 128, d.bins),
                          "audio_mel_mask": torch.zeros(2, 128, dtype=torch.bool)},
    "Gemma4VisionModel": positions,
    "glmasr": bins_first, "qwen2_audio": bins_first, "voxtral": bins_first, "voxtral_realtime": bins_first,
    "audioflamingo3": lambda d: bins_first(d) | {"input_features_mask": torch.ones(2, 128, dtype=torch.long)},
    "moss_transcribe_diarize": bins_first,
    "qwen3_asr": lambda d: {"input_features": d.normal(2, d.bins, 4 * d.config.n_window),
                            "input_features_mask": torch.ones(2, 4 * d.config.n_window, dtype=torch.long)},
    "lightglue": lambda d: {"pixel_values": d.image(2)}, "efficientloftr": lambda d: {"pixel_values": d.image(2)},
    "videomae": lambda d: {"pixel_values": d.frames()}, "vivit": lambda d: {"pixel_values": d.frames()},
    "muse_glimmer_assistant": lambda d: {
        "noise_embeds": d.normal(2, d.config.block_size, d.config.hidden_size),
        "context_hidden_states": d.normal(2, 9, d.config.hidden_size * len(d.config.target_layer_ids))},
    "pocket_tts_audio_tokenizer": lambda d: {"input_values": d.normal(2, 1, 4000)},
}
def made(model):
    """{parameter: input} of forward(): required parameters, its main input, text ids, and FAMILIES."""
    draw = Draw(model.config)
    cls = type(model)
    parameters = inspect.signature(cls.forward).parameters
    given = FAMILIES.get(cls.__name__) or FAMILIES.get(cls.__module__.split(".")[-2])
    given = {name: x for name, x in (given(draw) if given else {}).items() if name in parameters}
    names = [name for name, p in parameters.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    for name in [*names[1:], model.main_input_name, "decoder_input_ids", "input_ids"]:
        if name in parameters and name not in given:
            given[name] = MAKERS[name](draw)
    return given


def mask(model, given):
    """(name, shape) of the mask of padding that forward() takes, or None."""
    parameters = inspect.signature(type(model).forward).parameters
    if "pixel_mask" in parameters and "pixel_values" in given:
        shape = given["pixel_values"].shape
        return "pixel_mask", (shape[0], *shape[-2:])
    for name in ("attention_mask", "input_features_mask", "padding_mask"):
        for of in ("input_ids", "input_features", "input_values", "inputs_embeds"):
            if name in parameters and of in given:
                return name, tuple(given[of].shape[:2])
    return None
