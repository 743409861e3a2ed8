"""Tiny random models of every text family of transformers that uses its attention interface.

A default configuration is made small field by field, by the names of the fields; whatever does not
come out small or does not run is left out with the reason.
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

KINDS = {"causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
         "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
         "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
         "plain": modeling_auto.MODEL_MAPPING_NAMES}
WIDTH, HEADS, SIZE, TOKENS, MOST = 32, 4, 8, 99, 4_000_000


def classes():
    """{class: (family, kind)}: every class of KINDS, the plain one only of families that have no other."""
    found = {}
    for kind, names in KINDS.items():
        others = {family for family, _ in found.values()} if kind == "plain" else set()
        for family, name in names.items():
            if family not in others:
                found.setdefault(name if isinstance(name, str) else name[0], (family, kind))
    return dict(sorted(found.items()))


# What names do not say.
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
EXTRA = {
    "bamba": {"attn_layer_indices": [1]},
    "cohere_compass_text": {"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "esm": {"pad_token_id": 0, "mask_token_id": 3},
    "falcon_h1": {"mamba_d_ssm": 64},
    "glm5_next_text": {"index_topk": 6, "index_kpool": 2},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "hrm_text": {"num_layers_per_stack": 1, "num_hidden_layers": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
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
    """Why a class is not tried."""


# ---- Small configurations ---------------------------------------------------------------------------

# The first pattern that fits the whole name of a field gives its value; None in the configuration stays.
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
     r"|projection_dim|^dim|_dim|_size)(_per_layer_input)?", WIDTH),
]]
KEPT = re.compile(r".*(kernel|stride|group_size|patch|image|conv_size|block_size|bucket_size|chunk_size|type_vocab|chunk|"
                  r"num_buckets|max_distance|pooling|scale|factor|theta|_eps|token|batch|pixel|grid|spatial|temporal).*")


def small(name, value):
    """A field's value in a small model."""
    if value is None and name in ("vocab_size", "head_dim", "num_key_value_heads"):
        value = 0  # to be derived from others, which not every class does
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
    """The kinds of layers in a list, each once, or a single one twice."""
    kinds = list(dict.fromkeys(types))
    return kinds if len(kinds) > 1 else kinds * 2


@functools.cache
def source(name):
    """The text of a module, "" where there is none."""
    found = importlib.util.find_spec(name)
    return pathlib.Path(found.origin).read_text() if found else ""


def rope(config, given, size):
    """Rotary settings; sections for the axes of images, where there are any, fill half of a head."""
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
    for name, value in fields.items():
        if isinstance(value, dict) and name.endswith("config"):
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
        made |= EXTRA.get(default.model_type, {})
        made.pop("model_type", None)
        made.pop("transformers_version", None)
        return kind(**made)


# ---- Models -----------------------------------------------------------------------------------------


def make(name):
    """(kind, model) of a class, float32, without dropout, its weights large enough for heads to differ."""
    kind = classes()[name][1]
    cls = getattr(transformers, name, None)
    if cls is None:
        raise LeftOut("transformers does not have the class")
    if not issubclass(cls, transformers.PreTrainedModel):
        raise LeftOut("not a model of transformers")
    if cls.main_input_name != "input_ids":
        raise LeftOut(f"reads {cls.main_input_name}, not input_ids")
    if "input_ids" not in inspect.signature(cls.forward).parameters:
        raise LeftOut("does not read input_ids")
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
        model.set_experts_implementation("eager")  # the other has no float64
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=min(0.5, 1.5 * parameter.shape[-1]**-0.5))
            else:
                parameter.add_(torch.randn_like(parameter) / 10)
    if "decoder_input_ids" in inspect.signature(cls.forward).parameters:
        kind = "seq2seq"
    return "causal" if kind == "seq2seq" and not config.is_encoder_decoder else kind, model


# ---- Runs -------------------------------------------------------------------------------------------


class Double(torch.overrides.TorchFunctionMode):
    """float64 wherever code says float32, as in softmax(..., dtype=torch.float32)."""

    def __torch_function__(self, function, types, arguments=(), options=None):
        if function is torch.Tensor.float:
            function = torch.Tensor.double

        def wide(x):
            return torch.float64 if x is torch.float32 else x

        return function(*map(wide, arguments), **{name: wide(x) for name, x in (options or {}).items()})


class Forced(transformers.LogitsProcessor):
    """Every run generates the same tokens."""

    def __init__(self, tokens, begin):
        self.tokens, self.begin = tokens, begin

    def __call__(self, ids, scores):
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self.tokens[ids.shape[1] - self.begin]] = 0
        return forced


def batch(kind, padding):
    """Two texts of 12 tokens, or of 12 and 8."""
    made = torch.Generator().manual_seed(2)
    ids = torch.randint(3, TOKENS, (2, 12), generator=made)
    given = {"input_ids": ids}
    if padding:
        given["attention_mask"] = torch.ones_like(ids)
        given["attention_mask"][1, slice(0, 4) if padding == "left" else slice(8, 12)] = 0
    if kind == "seq2seq":
        given["decoder_input_ids"] = torch.randint(3, TOKENS, (2, 7), generator=made)
    return given


def whole(padding):
    """A mode: all tokens at once. Rows of padding are left out."""
    def run(kind, model):
        given = batch(kind, padding)
        out = model(**given)
        found = next(out[name] for name in ("logits", "last_hidden_state", "pooler_output") if name in out)
        return found if kind == "seq2seq" or not padding else found[given["attention_mask"].bool()]
    return run


def generated(cache):
    """A mode: logits of four tokens after a prompt, with a cache."""
    def run(kind, model):
        if kind not in ("causal", "seq2seq"):
            raise LeftOut("generates nothing")
        given = batch(kind, "left" if kind == "causal" else "right")
        given.pop("decoder_input_ids", None)
        begin = given["input_ids"].shape[1] if kind == "causal" else 1
        more = {"cache_implementation": cache, "disable_compile": True} if cache else {}
        if kind == "seq2seq":
            more["decoder_start_token_id"] = 1
        out = model.generate(**given, max_new_tokens=4, min_new_tokens=4, do_sample=False, use_cache=True,
                             output_logits=True, return_dict_in_generate=True,
                             logits_processor=[Forced([5, 17, 44, 8, 23], begin)], **more)
        return torch.stack(out.logits)
    return run


MODES = {"plain": whole(None), "left": whole("left"), "right": whole("right"), "generate": generated(None),
         "static": generated("static")}


def run(kind, model, mode, implementation, dtype=torch.float32):
    model.to(dtype).set_attn_implementation(implementation)
    with torch.no_grad(), Double() if dtype is torch.float64 else contextlib.nullcontext():
        return MODES[mode](kind, model).double()


def examine(name, modes=MODES):
    """{mode: (verdict, text)} of a class: "right", "wrong", "refused", or "not run"."""
    try:
        kind, model = make(name)
    except LeftOut as reason:
        return {"": ("left out", str(reason))}
    except Exception as error:
        return {"": ("not made", f"{type(error).__name__}: {str(error).splitlines()[0][:140]}")}
    state, found = model.state_dict(), {}
    state = {name: x.clone() for name, x in state.items()}
    for mode in modes:
        try:
            single = run(kind, model, mode, "eager")
            exact = run(kind, model, mode, "eager", torch.float64)
        except LeftOut:
            continue
        except Exception as error:
            found[mode] = ("not run", f"{type(error).__name__}: {str(error).splitlines()[:1]!r:.140}")
            model.float().load_state_dict(state)
            continue
        try:
            ours = run(kind, model, mode, "multihead")
        except NotImplementedError as error:
            found[mode] = ("refused", str(error))
            continue
        except Exception as error:
            found[mode] = ("wrong", f"{type(error).__name__}: {str(error)[:200]}")
            continue
        if not (single.isfinite().all() and exact.isfinite().all()):
            found[mode] = ("not run", "eager gives numbers that are not finite")
            continue
        error, theirs = ((x - exact).abs().max().item() / exact.abs().max().item() for x in (ours, single))
        verdict = "right" if error <= 2 * theirs + 1e-6 else "wrong"
        found[mode] = (verdict, f"{error:.1e} {theirs:.1e}")
    return found
