"""Tiny random models of every family of transformers that uses its attention interface.

Field names determine the small values of a default configuration. A class that remains large or
does not run is skipped with the reason.
"""
import contextlib
import functools
import importlib.util
import inspect
import pathlib
import re
import warnings

import torch
import transformers
from transformers.models.auto import modeling_auto

import interface_inputs

KINDS = {"causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
         "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
         "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
         "plain": modeling_auto.MODEL_MAPPING_NAMES}
WIDTH, HEADS, SIZE, TOKENS, MOST = 32, 4, 8, 99, 4_000_000


def classes():
    """{class: (family, kind)} for every class of KINDS. A family's plain class is included only if
    it has no other."""
    found = {}
    for kind, names in KINDS.items():
        others = {family for family, _ in found.values()} if kind == "plain" else set()
        for family, name in names.items():
            if family not in others:
                found.setdefault(name if isinstance(name, str) else name[0], (family, kind))
    return dict(sorted(found.items()))


# Exceptions that the names do not show.
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
RESNET = {"backbone_config": transformers.ResNetConfig(
    embedding_size=8, hidden_sizes=[8, 16, 32, 64], depths=[1] * 4, out_features=["stage2", "stage3", "stage4"]),
    "use_timm_backbone": False, "backbone": None, "use_pretrained_backbone": False}
HIERA = {"embed_dim_per_stage": [32, 64, 128, 256], "global_attention_blocks": [4]}
SERIES = {"prediction_length": 4, "context_length": 12, "num_time_features": 2, "input_size": 1}
EXTRA = {
    "bamba": {"attn_layer_indices": [1]},
    "cohere_compass_text": {"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}},
    "blip-2": {"image_token_index": interface_inputs.IMAGE_TOKEN},
    "instructblip": {"image_token_index": interface_inputs.IMAGE_TOKEN},
    "instructblipvideo": {"video_token_index": interface_inputs.IMAGE_TOKEN},
    "conditional_detr": RESNET, "deformable_detr": RESNET, "detr": RESNET,
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "esm": {"pad_token_id": 0, "mask_token_id": 3},
    "falcon_h1": {"mamba_d_ssm": 64},
    "glm5_next_text": {"index_topk": 6, "index_kpool": 2},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "hrm_text": {"num_layers_per_stack": 1, "num_hidden_layers": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "hgnet_v2": {"stem_channels": [3, 8, 8]},
    "informer": SERIES, "time_series_transformer": SERIES,
    "mimi": {"upsample_groups": 32}, "mimi_decoder": {"upsample_groups": 32}, "mimi_encoder": {"upsample_groups": 32},
    "pocket_tts_audio_tokenizer": {"upsample_groups": 32}, "pocket_tts_audio_tokenizer_decoder": {"upsample_groups": 32},
    "mlcd_vision_model": {"num_key_value_groups": 1},
    "moonshine": {"encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "qwen2_5_vl_vision": {"window_size": 56}, "exaone4_5_vision": {"window_size": 56},
    "muse_glimmer_vision": {"window_size": 56}, "muse_spark_vision": {"window_size": 56},
    "sam_vision_model": {"num_pos_feats": 16}, "sam_hq_vision_model": {"num_pos_feats": 16},
    "sam2_hiera_det_model": HIERA, "sam2_vision_model": {"backbone_channel_list": HIERA["embed_dim_per_stage"][::-1]},
    "swin": {"image_size": 96, "window_size": 3},
    "mamba2": {"head_dim": 16},
    "minimax_m3_vl_text": {"layer_types": ["full_attention", "minimax_m3_sparse"], "index_block_size": 4,
                           "index_topk_blocks": 1, "index_n_heads": 2},
    "mistral4": {"head_dim": 16},
    "neomme": {"head_dim": 16},
    "qwen4_exp_text": {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 4,
                       "indexer_compress_ratio": 2},
    "xmod": {"default_language": "en_XX"},
    "zamba2": {"n_mamba_heads": 4},
    "zaya": {"num_experts_per_tok": 1},
}


class LeftOut(Exception):
    """The reason why a class is skipped."""


# ---- Small configurations ---------------------------------------------------------------------------

# The first pattern that matches the full name of a field determines its value. None in a
# configuration is kept.
SIZES = [(re.compile(pattern), value) for pattern, value in [
    (r".*vocab_size(_per_layer_input)?|.*num_embeddings|padding_idx_vocab", TOKENS),
    (r".*(pdrop|dropout|dropout_(rate|prob|p)|drop_rate|layerdrop|drop_path|jitter|noise).*", 0.0),
    (r"(num|n)_(key_value|kv)_heads?|.*num_(key_value|kv)_heads|multi_query_group_num|num_key_value_groups|n_kv_heads?"
     r"|num_global_key_value_heads|swa_num_key_value_heads", 2),
    (r".*(qk_nope_head_dim|qk_rope_head_dim|v_head_dim|head_dim|head_size|d_kv|kv_channels|attention_head_size"
     r"|qk_head_dim|head_width|dim_head)", SIZE),
    (r".*(num|n)_(attention_|attn_|self_attention_|query_|linear_key_|linear_value_|linear_|index_|indexer_)?heads?"
     r"|.*attention_heads|index_n_heads|n_heads?|linear_num_(key|value)_heads|lin_num_heads|num_attention_heads_.*", HEADS),
    (r"attn_layer_period|expert_layer_period", 2),
    (r"attn_layer_offset|first_k_dense_replace|num_dense_layers|moe_layer_start_index|num_nextn_predict_layers|num_mtp_layers|mtp_.*layers"
     r"|num_hash_layers|n_hash_layers", 1),
    (r"num_kv_shared_layers", 0),
    (r".*(num|n|encoder|decoder|d|hidden)_.*layers?|n_layers?|num_layers|layers|encoder_layers|decoder_layers|num_blocks"
     r"|num_hidden_groups", 2),
    (r".*(experts?_per_tok(en)?|num_experts_per_tok|top_?k|moe_k|moe_topk|num_selected_experts|router_topk"
     r"|experts_top_k|top_k_experts)", 2),
    (r"n_group|topk_group|num_expert_groups?|n_groups|n_shared_experts|num_shared_experts|moe_num_shared_experts"
     r"|moe_intermediate_size_factor|mamba_n_groups|num_zero_experts|zero_expert_num", 1),
    (r".*(num|n)_.*experts|.*experts_num|moe_num_experts", 4),
    (r".*_rank|.*lora_dim|.*rank_.*", 8),
    (r".*(max_position|n_positions|max_seq|max_sequence|seq_length|max_target_position|max_source_position|context_length"
     r"|n_ctx|max_2d_position|max_length|position_buckets|train_seq).*", 64),
    (r"(.*_)?(sliding_window|local_window|window_size|local_attention|attention_window|sliding_window_size)(_size)?"
     r"|index_topk|index_top_k|attention_chunk_size", 6),
    (r".*(intermediate|ffn|d_ff|d_inner|n_inner|inner|mlp|feed_?forward|ff_|hidden_dim|expert_hidden|dim_ff).*(size|dim|hidden)?",
     48),
    (r".*(hidden_size|d_model|n_embd|embed_dim|embedding_size|embedding_dim|emb_dim|embed_proj_dim|hidden|width|model_dim"
     r"|projection_dim|^dim|_dim|_size|output_channels)(_per_layer_input)?", WIDTH),
]]
KEPT = re.compile(r".*(kernel|stride|group_size|patch|image|conv_size|block_size|bucket_size|chunk_size|type_vocab|chunk|"
                  r"num_buckets|max_distance|pooling|scale|factor|theta|_eps|token|batch|pixel|grid|spatial|temporal|tubelet|pos_emb).*")


WIDTHS = re.compile(r".*(hidden_sizes|channels|dims?|widths|embed_dim_per_stage|hidden_channels|_sizes)")
DERIVED = {"out_features", "out_indices", "stage_names", "num_feat_extract_layers", "image_embedding_size", "feature_size"}


def widths(name, value):
    """The widths of stages in a field, or []."""
    fits = isinstance(value, (list, tuple)) and value and all(type(x) is int for x in value) and WIDTHS.fullmatch(name)
    return list(value) if fits else []


def image_size(value, patch):
    """Four patches per side, and a multiple of the convolutions' strides."""
    def side(x):
        return max(4 * patch, 32) if isinstance(x, int) and x > 32 else x
    if isinstance(value, dict):
        return {name: side(x) for name, x in value.items()}
    return [side(x) for x in value] if isinstance(value, (list, tuple)) else side(value)


def small(name, value):
    """A field's value in a small model."""
    if isinstance(value, (list, tuple)) and value and all(type(x) is int for x in value):
        if re.fullmatch(r"depths|blocks_per_stage|.*num_(attention_)?heads(_per_stage)?", name):
            return [min(2, x) for x in value]
    if value is None and name in ("vocab_size", "head_dim", "num_key_value_heads"):
        value = 0  # some classes derive it from other fields
    elif not value or isinstance(value, (bool, str, list, tuple, dict)):
        return value
    if name == "type_vocab_size":
        return 2
    if KEPT.fullmatch(name) and not re.search("vocab_size|head|expert", name):
        return value
    for pattern, fitting in SIZES:
        if pattern.fullmatch(name):
            return fitting if isinstance(fitting, float) or isinstance(value, int) else value
    return value


def kinds_of(types):
    """The distinct kinds of layers in a list; a single kind is repeated."""
    kinds = list(dict.fromkeys(types))
    return kinds if len(kinds) > 1 else kinds * 2


@functools.cache
def source(name):
    """The source of a module, or ""."""
    found = importlib.util.find_spec(name)
    return pathlib.Path(found.origin).read_text() if found else ""


def rope(config, given, size):
    """Rotary settings. Sections for image axes, if any, fill half of a head."""
    name = type(config).__module__.replace(".configuration_", ".modeling_")
    if "mrope_section" not in source(name) or any(isinstance(v, dict) for v in (given or {}).values()):
        return given
    given = given or {"rope_type": "default", "rope_theta": 10000.0}
    half = int(size * given.get("partial_rotary_factor", 1.0)) // 2
    return {**given, "mrope_section": [half // 4, max(half // 4, 1), half - half // 4 - max(half // 4, 1)]}


def changes(config):
    """{field: value} of a small configuration of one level."""
    fields = {name: value for name, value in config.to_dict().items() if not name.startswith("_")}
    old = fields.get("num_hidden_layers")
    types = fields.get("layer_types") or fields.get("layers_block_type") or [None]
    count, made = max(2, len(dict.fromkeys(types))), {}
    widest = max((max(widths(name, value)) for name, value in fields.items() if widths(name, value)), default=1)
    for name, value in fields.items():
        if isinstance(value, dict) and name.endswith("config") or name in DERIVED:
            continue
        strings = isinstance(value, (list, tuple)) and value and isinstance(value[0], str)
        if strings and "type" in name:
            made[name] = kinds_of(value) if value is types or len(value) != old else list(value)[:count]
        elif isinstance(value, (list, tuple)) and isinstance(old, int) and len(value) == old:
            made[name] = list(value)[:count]
        elif name.endswith("token_id") and value is not None:
            at = {"pad_token_id": 0, "decoder_start_token_id": 1, "bos_token_id": 1}.get(name, 2)
            made[name] = [at] if isinstance(value, (list, tuple)) else at
        elif name in ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers",
                      "decoder_layers") and isinstance(value, int):
            made[name] = count
        elif widths(name, value) and max(value) > 2 * WIDTH:
            same = len(set(value)) == 1 and len(value) < 5
            made[name] = [WIDTH if same else x if x <= 8 else max(8, x * 2 * WIDTH // widest) for x in value]
        elif name in ("image_size", "img_size") and value:
            patch = fields.get("patch_size") or 8
            made[name] = image_size(value, patch if isinstance(patch, int) else max(patch))
        else:
            made[name] = small(name, value)
    heads = fields.get("num_attention_heads")
    if heads and fields.get("num_key_value_heads", 0) in (None, heads):
        made["num_key_value_heads"] = HEADS
    if "qk_nope_head_dim" in fields and "qk_head_dim" in fields:
        made["qk_head_dim"] = 2 * SIZE
    if "rope_parameters" in fields:
        made["rope_parameters"] = rope(config, fields["rope_parameters"], made.get("head_dim", SIZE))
    for name in ("mamba_d_head", "mamba_headdim", "mamba_head_dim"):  # expand * WIDTH = HEADS * this
        if name in fields:
            made[name] = 2 * WIDTH // HEADS
    return made


def tiny_config(kind):
    """A small configuration of a class of configurations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        default = kind()
        made = changes(default)
        for name, sub in vars(default).items():
            if isinstance(sub, transformers.PreTrainedConfig):
                made[name] = tiny_config(type(sub))
                if (taken := getattr(sub, "out_indices", None)) and hasattr(made[name], "stage_names"):
                    stages = len(made[name].stage_names)
                    made[name].out_indices = [i for i in taken if i < stages] or [stages - 1]
        made |= EXTRA.get(default.model_type, {})
        made.pop("model_type", None)
        made.pop("transformers_version", None)
        return kind(**made)


# ---- Models -----------------------------------------------------------------------------------------


def make(name):
    """(kind, model) of a class in float32, without dropout, with weights large enough for heads to differ."""
    kind = classes()[name][1]
    cls = getattr(transformers, name, None)
    if cls is None:
        raise LeftOut("transformers does not have the class")
    if not issubclass(cls, transformers.PreTrainedModel):
        raise LeftOut("not a model of transformers")
    if not (cls._supports_attention_backend or cls._can_set_attn_implementation()):
        raise LeftOut("does not use the attention interface")
    config = tiny_config(cls.config_class)
    config._attn_implementation = "eager"
    with torch.device("meta"):
        count = sum(p.numel() for p in cls(config).parameters())
    if count > MOST:
        raise LeftOut(f"has {count:,} parameters")
    torch.manual_seed(1)
    model = cls(config).eval().float()
    with contextlib.suppress(ValueError):
        model.set_experts_implementation("eager")  # the default does not support float64
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=min(0.5, 1.5 * parameter.shape[-1]**-0.5))
            else:
                parameter.add_(torch.randn_like(parameter) / 10)
        for layer in model.modules():
            if isinstance(layer, torch.nn.modules.conv._ConvNd):
                layer.weight.mul_((layer.weight.shape[-1] / layer.weight[0].numel())**0.5)
    if "decoder_input_ids" in inspect.signature(cls.forward).parameters:
        kind = "seq2seq"
    return "causal" if kind == "seq2seq" and not config.is_encoder_decoder else kind, model


# ---- Runs -------------------------------------------------------------------------------------------


class Double(torch.overrides.TorchFunctionMode):
    """Replace float32 in code by float64, for example in softmax(..., dtype=torch.float32)."""

    def __torch_function__(self, function, types, arguments=(), options=None):
        if function is torch.Tensor.float:
            function = torch.Tensor.double

        def wide(x):
            return torch.float64 if x is torch.float32 else x

        return function(*map(wide, arguments), **{name: wide(x) for name, x in (options or {}).items()})


class Forced(transformers.LogitsProcessor):
    """Make every run generate the same tokens."""

    def __init__(self, tokens, begin):
        self.tokens, self.begin = tokens, begin

    def __call__(self, ids, scores):
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self.tokens[ids.shape[1] - self.begin]] = 0
        return forced


TEXTS = {"input_ids", "decoder_input_ids", "attention_mask"}


def batch(kind, model, padding):
    """The inputs of a model: two texts of 12 tokens, or of 12 and 8. Images and sounds lack the last third of the
    second example if the model takes a mask for them."""
    given = interface_inputs.made(model)
    if kind != "seq2seq" and given.keys() <= TEXTS:
        given.pop("decoder_input_ids", None)
    if padding:
        if not (found := interface_inputs.mask(model, given)):
            raise LeftOut("takes no mask of padding")
        name, shape = found
        given[name] = torch.ones(shape, dtype=torch.long)
        hidden = shape[-1] // 3
        given[name][1, ..., :hidden] = 0 if padding == "left" else 1
        given[name][1, ..., shape[-1] - hidden:] = 0 if padding == "right" else 1
    return {name: x.to(model.dtype) if x.is_floating_point() else x for name, x in given.items()}


def numbers(out):
    """The floating tensors of an output, except those of single layers and caches."""
    named = out.items() if isinstance(out, dict) else enumerate(out) if isinstance(out, tuple) else [(0, out)]
    found = [x for name, x in named if isinstance(x, torch.Tensor) and x.is_floating_point() and x.numel()
             and name != "loss" and "attentions" not in str(name)]
    if not found:
        raise LeftOut("its output has no numbers")
    return found


def whole(padding):
    """A mode: all tokens in one call. Padding rows are skipped, and all rows that may be padding
    for images and sounds."""
    def run(kind, model):
        given = batch(kind, model, padding)
        found = numbers(model(**given))
        if not padding:
            return found
        if kind == "seq2seq":
            length = given["decoder_input_ids"].shape[1]
            rows = [x for x in found if x.dim() == 3 and x.shape[1] == length]
            if not rows:
                raise LeftOut("which rows are padding is not known")
            return rows
        if padding == "left" and not given.keys() <= TEXTS:
            raise LeftOut("which rows see nothing is not known")
        if given.keys() <= TEXTS:
            keep = given["attention_mask"].bool()
            rows = [x[keep] for x in found if x.shape[:2] == keep.shape]
            if not rows:
                raise LeftOut("its output is pooled")
            return rows
        return [x[:, :x.shape[1] // 2] if x.dim() == 3 else x for x in found]
    return run


def gradients(kind, model):
    """A mode: the gradient of a random sum of the outputs, for each parameter."""
    given = batch(kind, model, None)
    with torch.enable_grad():
        made = torch.Generator().manual_seed(3)
        loss = sum((x.double() * interface_inputs.random(x.shape, made)).sum() / x.numel()**0.5
                   for x in numbers(model(**given)) if x.requires_grad)
        if not isinstance(loss, torch.Tensor):
            raise LeftOut("its output has no gradient")
        used = [p for p in model.parameters() if p.requires_grad]
        found = torch.autograd.grad(loss, used, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(used, found)]


def generated(cache):
    """A mode: logits of four tokens after a prompt, with a cache."""
    def run(kind, model):
        if kind not in ("causal", "seq2seq") or not hasattr(model, "generate"):
            raise LeftOut("generates nothing")
        given = batch(kind, model, "left" if kind == "causal" else "right")
        if "input_ids" not in given:
            raise LeftOut("generates from no text")
        given.pop("decoder_input_ids", None)
        begin = given["input_ids"].shape[1] if kind == "causal" else 1
        more = {"cache_implementation": cache, "disable_compile": True} if cache else {}
        if kind == "seq2seq":
            more["decoder_start_token_id"] = 1
        out = model.generate(**given, max_new_tokens=4, min_new_tokens=4, do_sample=False, use_cache=True,
                             output_logits=True, return_dict_in_generate=True,
                             logits_processor=[Forced([5, 17, 44, 8, 23], begin)], **more)
        return [torch.stack(out.logits)]
    return run


MODES = {"plain": whole(None), "left": whole("left"), "right": whole("right"), "generate": generated(None),
         "static": generated("static"), "gradient": gradients}
calls = 0
"""Number of calls of the implementation under test, counted by the test."""


def run(kind, model, mode, implementation, dtype=torch.float32):
    model.to(dtype).set_attn_implementation(implementation)
    torch.manual_seed(4)  # some models draw random masks
    with torch.no_grad(), Double() if dtype is torch.float64 else contextlib.nullcontext():
        if dtype is torch.float64:
            torch.set_default_dtype(dtype)
        try:
            return [x.detach().double() for x in MODES[mode](kind, model)]
        finally:
            torch.set_default_dtype(torch.float32)


def largest_error(found, exact):
    """The largest error of arrays, each relative to its largest number."""
    return max((a - b).abs().max().item() / max(b.abs().max().item(), 1e-30) for a, b in zip(found, exact))


def total_error(found, exact):
    """The error of all arrays as one vector, because the gradient of a single parameter may cancel
    or be one number."""
    norm = torch.linalg.vector_norm
    return (norm(torch.stack([norm(a - b) for a, b in zip(found, exact)])) /
            norm(torch.stack([norm(b) for b in exact]))).item()


def worst_gradient(found, exact):
    """The error of the worst parameter, relative to its gradient or a hundredth of the largest one."""
    norm = torch.linalg.vector_norm
    most = max(norm(b).item() for b in exact)
    return max(norm(a - b).item() / max(norm(b).item(), most / 100) for a, b in zip(found, exact))


def judge(model):
    """"eager", or "sdpa" for models that invert their mask. They expect a bool mask, and would hide
    the visible keys of an additive one."""
    inverts = "masked_fill_(attention_mask.logical_not()"
    return "sdpa" if any(inverts in source(name) for name in {type(m).__module__ for m in model.modules()}) else "eager"


def examine(name, modes=MODES):
    """{mode: (verdict, text)} of a class: "right", "wrong", "refused", "not judged", or "not run"."""
    global calls
    try:
        kind, model = make(name)
    except LeftOut as reason:
        return {"": ("left out", str(reason))}
    except Exception as fault:
        return {"": ("not made", reason_of(fault))}
    state, found, left, most = model.state_dict(), {}, "", 0
    state = {name: x.clone() for name, x in state.items()}
    for mode in modes:
        try:
            single = run(kind, model, mode, judge(model))
            exact = run(kind, model, mode, judge(model), torch.float64)
        except LeftOut as reason:
            left = str(reason)
            continue
        except Exception as fault:
            found[mode] = ("not run", reason_of(fault))
            model.float().load_state_dict(state)
            continue
        calls = 0
        try:
            ours = run(kind, model, mode, "multihead")
        except NotImplementedError as fault:
            found[mode] = ("refused", str(fault))
            continue
        except Exception as fault:
            found[mode] = ("wrong", f"{type(fault).__name__}: {str(fault)[:200]}")
            continue
        if not calls:
            return {"": ("left out", "has no attention that uses the interface")}
        if not all(x.isfinite().all() for x in (*single, *exact)):
            found[mode] = ("not run", "eager gives numbers that are not finite")
            continue
        error = total_error if mode == "gradient" else largest_error
        own, theirs = error(ours, exact), error(single, exact)
        # Eager's error in a single mode may be small by chance.
        most = theirs = theirs if mode == "gradient" else max(most, theirs)
        verdict = "right" if own <= 2 * theirs + 1e-6 else "wrong"
        if mode == "gradient" and worst_gradient(ours, exact) > 1e-4 + 10 * worst_gradient(single, exact):
            verdict = "wrong"
        if theirs > 0.01:
            verdict = "not judged"  # float32 and float64 choose differently somewhere
        found[mode] = (verdict, f"{own:.1e} {theirs:.1e}")
    return found or {"": ("left out", left)}


def reason_of(fault):
    return f"{type(fault).__name__}: {(str(fault).strip().splitlines() or ['a package is missing'])[0]:.140}"
