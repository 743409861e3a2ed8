"""multihead.transformers: attn_implementation="multihead" compared with "eager", in tiny random
models.

The errors of logits and gradients in float32, relative to the same model in float64 with the
explicit formula ("exact" below), must be at most four times those of eager in float32, plus a
millionth of the largest number. Greedy tokens must be equal. Padding rows are not compared: a query
without visible keys has the result 0 in multihead and the mean of all values in eager.
"""
import copy
import sys
import types

import numpy as np
import pytest
import torch
import transformers

import multihead.transformers as ours
from shared import LONG

ours.register()


def exact_attention(module, query, key, value, attention_mask, scaling=None, softcap=None,
                    position_bias=None, s_aux=None, **others):
    """The formula, in the model's precision: eager attention rounds weights to float32."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = query @ key.mT * (query.shape[-1]**-0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if position_bias is not None:
        scores = scores + position_bias
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, -1e300)
    if s_aux is not None:
        sinks = s_aux[None, :, None, None].expand(*scores.shape[:3], 1)
        weights = torch.softmax(torch.cat([scores, sinks], -1), -1)[..., :-1]
    else:
        weights = torch.softmax(scores, -1)
    if attention_mask is not None:
        weights = weights * attention_mask
    return (weights @ value).transpose(1, 2).contiguous(), weights


def exact_mask(*arguments, **options):
    return ours.masking_utils.sdpa_mask(*arguments, **(options | {"allow_is_causal_skip": False}))


transformers.AttentionInterface.register("exact", exact_attention)
transformers.AttentionMaskInterface.register("exact", exact_mask)
COMMON = dict(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
              intermediate_size=48, max_position_embeddings=256, bos_token_id=None, eos_token_id=None,
              pad_token_id=0)
GROUPED = dict(num_key_value_heads=2, head_dim=8)


def make(name):
    """A random model without dropout, with weights large enough for heads to differ."""
    t = transformers
    models = {
        "bert": lambda: t.BertForMaskedLM(t.BertConfig(**COMMON, hidden_dropout_prob=0.0,
                                                       attention_probs_dropout_prob=0.0)),
        "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(
            vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=256, bos_token_id=None,
            eos_token_id=None, pad_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)),
        "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**COMMON, **GROUPED)),
        "gemma2": lambda: t.Gemma2ForCausalLM(t.Gemma2Config(
            **COMMON, **GROUPED, sliding_window=5, query_pre_attn_scalar=8,
            attn_logit_softcapping=3.0)),
        "t5": lambda: t.T5ForConditionalGeneration(t.T5Config(
            vocab_size=99, d_model=32, d_kv=8, num_layers=2, num_heads=4, d_ff=48, dropout_rate=0.0,
            decoder_start_token_id=0, eos_token_id=None)),
        "gpt_oss": lambda: t.GptOssForCausalLM(t.GptOssConfig(
            **COMMON, **GROUPED, sliding_window=5, num_local_experts=4, num_experts_per_tok=2,
            layer_types=["sliding_attention", "full_attention"])),
    }
    torch.manual_seed(1)
    model = models[name]()
    if name == "gpt_oss":
        model.set_experts_implementation("eager")  # the default does not support float64
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.dim() > 1 and name != "t5" else 1)
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) / 10)
    return model.eval()


MODELS = ["bert", "gpt2", "llama", "gemma2", "t5", "gpt_oss"]


def batch(name, padding="left"):
    """Three sequences of 12, 8 and 11 tokens."""
    made = torch.Generator().manual_seed(2)
    ids = torch.randint(3, 99, (3, 12), generator=made)
    keep = torch.ones_like(ids)
    for row, pad in ((1, 4), (2, 1)):
        keep[row, slice(0, pad) if padding == "left" else slice(12 - pad, 12)] = 0
    more = {"decoder_input_ids": torch.randint(3, 99, (3, 7), generator=made)} if name == "t5" else {}
    return {"input_ids": ids, "attention_mask": keep} | more


def results(model, inputs, implementation, dtype=torch.float32):
    """Logits of tokens, the gradients of a loss, and attentions."""
    model = copy.deepcopy(model).to(dtype)
    model.set_attn_implementation(implementation)
    out = model(**inputs, output_attentions=True)
    logits = out.logits
    if "decoder_input_ids" not in inputs:
        logits = logits * inputs["attention_mask"][..., None]
    logits.sin().sum().backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    maps = getattr(out, "attentions", None)
    if maps is None:
        maps = out.encoder_attentions + out.decoder_attentions + out.cross_attentions
    return found | {"logits": logits.detach()}, maps


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_gradients_and_attentions(name, padding):
    model, inputs = make(name), batch(name, padding)
    exact, exact_maps = results(model, inputs, "exact", torch.float64)
    single, _ = results(model, inputs, "eager")
    found, maps = results(model, inputs, "multihead")
    assert found.keys() == exact.keys() and "logits" in found
    for part, x in exact.items():
        error = (found[part].double() - x).abs().max().item()
        theirs = (single[part].double() - x).abs().max().item()
        limit = 4 * theirs + 1e-6 * x.abs().max().item()
        assert error <= limit, f"{part}: {error:.2g}, eager in f32 {theirs:.2g}"
    assert len(maps) == len(exact_maps) > 0
    for x, y in zip(maps, exact_maps):
        assert x.shape == y.shape
        assert x[0].sum(-1).min() > 0 and (x - y).abs().max() < 1e-4


@pytest.mark.gate(1)
@pytest.mark.parametrize("name", [name for name in MODELS if name != "bert"])
def test_greedy_tokens(name):
    """100 tokens with a growing cache, and some with a static cache, from a left-padded batch."""
    model, inputs = make(name), batch(name)
    inputs.pop("decoder_input_ids", None)
    with torch.no_grad():
        for cache, count in ((None, 100), ("static", 30)):
            more = {"cache_implementation": cache, "disable_compile": True} if cache else {}
            tokens = []
            for implementation in ("eager", "multihead"):
                model.set_attn_implementation(implementation)
                tokens.append(model.generate(**inputs, max_new_tokens=count, min_new_tokens=count,
                                             do_sample=False, **more))
            assert tokens[0].shape[1] >= count and torch.equal(*tokens), cache


def masks(monkeypatch, model, inputs, **more):
    """The options of each attention call. The creation of a dense mask raises an exception."""
    seen = []
    call = ours._attention.call

    def watched(*tensors, **options):
        seen.append({name for name, value in options.items() if value is not None})
        return call(*tensors, **options)

    monkeypatch.setattr(ours._attention, "call", watched)
    monkeypatch.setattr(ours.masking_utils, "sdpa_mask", lambda *a, **k: pytest.fail("a dense mask"))
    model.set_attn_implementation("multihead")
    with torch.no_grad():
        model.generate(**inputs, max_new_tokens=8, min_new_tokens=8, do_sample=False, **more)
    return seen


@pytest.mark.gate(2)
@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_masks_stay_symbolic(monkeypatch, name, cache):
    """Causal masks, windows, padding and caches need no array of queries by keys."""
    more = {"cache_implementation": cache, "disable_compile": True} if cache else {}
    seen = masks(monkeypatch, make(name), batch(name), **more)
    assert all("keep_mask" not in options and "bias" not in options for options in seen)
    assert all("causal" in options for options in seen)
    assert any("key_begins" in options for options in seen)  # a window may have moved past the padding
    assert any("window" in options for options in seen) == (name != "llama")
    monkeypatch.undo()
    gaps = batch(name)
    gaps["attention_mask"][0, 5] = 0  # not an interval: needs only one row of a mask
    model = make(name)
    tokens = []
    for implementation in ("eager", "multihead"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            tokens.append(model.generate(**gaps, max_new_tokens=20, do_sample=False))
    assert torch.equal(*tokens)


def test_packed_sequences_and_chunks():
    """Sequences packed into a row, by position_ids; and Llama 4's chunks, by its mask function."""
    model = make("llama")
    ids = torch.randint(3, 99, (1, 12), generator=torch.Generator().manual_seed(4))
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3]])
    model.set_attn_implementation("multihead")
    with torch.no_grad():
        packed = model(input_ids=ids, position_ids=positions, use_cache=False).logits
        for begin, end in ((0, 5), (5, 8), (8, 12)):
            alone = model(input_ids=ids[:, begin:end], use_cache=False).logits
            assert (packed[:, begin:end] - alone).abs().max() < 1e-5
    mu = ours.masking_utils
    function = mu.chunked_causal_mask_function(3, torch.tensor([0, 2]))
    for q_length, q_offset in ((9, 0), (2, 7)):
        mask = ours.attention_mask(2, q_length, 9, q_offset, 0, function)
        assert isinstance(mask, ours.Mask)
        q, k = torch.randn(2, 1, q_length, 8), torch.randn(2, 1, 9, 8)
        p = ours._attention.call(q, k, k, outputs=2, **mask.options)[1]
        assert torch.equal(p > 0, mask.dense())


def test_a_mask_is_a_tensor():
    """Models that index, invert or add to their mask get its elements."""
    mask = ours.attention_mask(2, 3, 5, 2, 0, attention_mask=torch.tensor([[1, 1, 1, 1, 1],
                                                                         [0, 0, 1, 1, 1]]).bool())
    dense = mask.dense()
    assert mask.shape == (2, 1, 3, 5) and mask.dtype == torch.bool and mask.dim() == 4
    for change in (lambda m: ~m, lambda m: m[:, :, :, :3], lambda m: m.to(torch.float32),
                   lambda m: torch.where(m, 0.0, -1.0), lambda m: m & m, copy.deepcopy,
                   lambda m: m.expand(2, 4, 3, 5)):
        assert type(change(mask)) is torch.Tensor and torch.equal(change(mask), change(dense))
    assert "key_begins" in repr(mask)


def test_own_masks_and_unknown_functions():
    """A user's 4-D mask, and mask functions without a symbolic form, are applied as arrays."""
    model, ids = make("llama"), batch("llama")["input_ids"]
    mask = torch.ones(3, 1, 12, 12, dtype=torch.bool).tril() & (torch.rand(3, 1, 12, 12) < 0.7)
    mask |= torch.eye(12, dtype=torch.bool)
    added = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
    with torch.no_grad():
        model.set_attn_implementation("eager")
        exact = model(input_ids=ids, attention_mask=added).logits
        model.set_attn_implementation("multihead")
        for given in (mask, added):
            assert (model(input_ids=ids, attention_mask=given).logits - exact).abs().max() < 1e-4
    function = ours.masking_utils.or_masks(ours.masking_utils.causal_mask_function,
                                           lambda b, h, q, k: k == 4)
    found = ours.attention_mask(1, 5, 5, mask_function=function, allow_is_causal_skip=False)
    assert type(found) is torch.Tensor and found[0, 0, :, 4].all()


def test_weights_only_when_asked_for(monkeypatch):
    model, inputs = make("bert"), batch("bert")
    model.set_attn_implementation("multihead")
    wanted = []
    call = ours._attention.call
    monkeypatch.setattr(ours._attention, "call", lambda *tensors, outputs=None, **options: (
        wanted.append(outputs), call(*tensors, outputs=outputs, **options))[1])
    with torch.no_grad():
        assert model(**inputs).attentions is None and not any(wanted)
        assert len(model(**inputs, output_attentions=True).attentions) == 2 and all(wanted[2:])


def test_fine_tuning():
    """Losses of AdamW's steps equal those with eager attention."""
    curves = {}
    for implementation, dtype in (("exact", torch.float64), ("eager", torch.float32),
                                  ("multihead", torch.float32)):
        model, inputs = make("llama").to(dtype).train(), batch("llama")
        model.set_attn_implementation(implementation)
        labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
        steps = torch.optim.AdamW(model.parameters(), 1e-3)
        losses = []
        for _ in range(40 if LONG else 12):
            loss = model(**inputs, labels=labels).loss
            loss.backward()
            steps.step()
            steps.zero_grad()
            losses.append(loss.item())
        curves[implementation, dtype] = np.array(losses)
    exact = curves["exact", torch.float64]
    theirs = np.abs(curves["eager", torch.float32] - exact).max()
    assert np.abs(curves["multihead", torch.float32] - exact).max() <= 4 * theirs + 1e-5 * exact[0]
    assert exact[-1] < 0.8 * exact[0]


def test_training_with_dropout_is_repeatable():
    model, inputs = make("bert").train(), batch("bert")
    model.set_attn_implementation("multihead")
    for layer in model.bert.encoder.layer:
        layer.attention.self.dropout.p = 0.5
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses.append(model(**inputs, labels=inputs["input_ids"]).loss.item())
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.gate(0)
def test_compile():
    """A whole model as one graph, forward and backward."""
    model, inputs = make("llama"), batch("llama", "right")
    model.set_attn_implementation("multihead")
    torch.compiler.reset()
    traced = torch.compile(model, fullgraph=True, backend="aot_eager")
    eager = model(**inputs, use_cache=False).logits
    found = traced(**inputs, use_cache=False).logits
    assert (found - eager).abs().max() <= 1e-5 * eager.abs().max()
    for x, y in zip(*(torch.autograd.grad(logits.sin().sum(), list(model.parameters()))
                      for logits in (eager, found))):
        assert (x - y).abs().max() <= 1e-4 * y.abs().max()


def test_paged_caches_are_refused():
    q = torch.randn(1, 2, 3, 8)
    with pytest.raises(NotImplementedError, match="continuous batching"):
        ours.attention_forward(torch.nn.Identity(), q, q, q, None, cache=object())


# ---- Arguments and masks, one by one ----------------------------------------------------------------

B, H, HK, S, D = 2, 4, 2, 11, 8
KEEP = torch.tensor([[1] * S, [0] * 3 + [1] * (S - 3)]).bool()


class Ready(transformers.PreTrainedConfig):
    """A configuration of models with SDPA support."""


class Eager(transformers.PreTrainedConfig):
    """A configuration of models without SDPA support."""


class EagerModel(transformers.PreTrainedModel):
    config_class, _supports_sdpa = Eager, False


def causal_mask(config, T, **more):
    return ours.attention_mask(B, T, S, S - T, 0, config=config(), **more)


WINDOW = transformers.masking_utils.sliding_window_causal_mask_function(4)
CHUNKS = transformers.masking_utils.chunked_causal_mask_function(5, torch.tensor([0, 3]))
MASKS = {  # for T queries at the last of S positions
    "none": lambda T: None,
    "causal": lambda T: causal_mask(Ready, T),
    "padded": lambda T: causal_mask(Ready, T, attention_mask=KEEP),
    "padded, added": lambda T: causal_mask(Eager, T, attention_mask=KEEP),
    "window": lambda T: causal_mask(Ready, T, attention_mask=KEEP, mask_function=WINDOW),
    "window, added": lambda T: causal_mask(Eager, T, mask_function=WINDOW),
    "chunks": lambda T: causal_mask(Ready, T, mask_function=CHUNKS),
    "dense": lambda T: causal_mask(Ready, T, attention_mask=KEEP, mask_function=WINDOW).dense(),
    "dense, added": lambda T: causal_mask(Eager, T, attention_mask=KEEP).dense(),
    "numbers": lambda T: torch.randn(B, 1, T, S, generator=torch.Generator().manual_seed(7)),
    "of one key": lambda T: ours.attention_mask(B, T, 1, S - 1, S - 1, config=Ready()),
    "of one query": lambda T: ours.attention_mask(B, 1, S, S - 1, 0, config=Ready(), mask_function=WINDOW),
    "of one sequence": lambda T: ours.attention_mask(1, T, S, S - T, 0, config=Ready(), attention_mask=KEEP[1:]),
}


def drawn(*shape, seed=3):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


ARGUMENTS = {
    "nothing": lambda T: {},
    "scaling": lambda T: {"scaling": 0.21},
    "softcap": lambda T: {"softcap": 1.7},
    "position_bias": lambda T: {"position_bias": drawn(1, H, T, S)},
    "s_aux": lambda T: {"s_aux": drawn(H)},
    "sinks of heads": lambda T: {"sinks": drawn(H)},
    "sinks of queries": lambda T: {"sinks": drawn(B, H, T, 1)},
    "indices": lambda T: {"indices": torch.stack([torch.randperm(
        S, generator=torch.Generator().manual_seed(i))[:6] for i in range(B * T)]).unflatten(0, (B, T)).int()},
    "sinks, bias, cap": lambda T: {"sinks": drawn(B, H, T, 1), "position_bias": drawn(B, H, T, S), "softcap": 2.5},
    "without effect": lambda T: {"sliding_window": 3, "position_ids": torch.arange(T)[None], "use_cache": True,
                                 "logits_to_keep": 1, "token_type_ids": torch.zeros(B, T), "is_causal": False},
}


def formula(query, key, value, mask, causal, scaling=None, softcap=None, position_bias=None, s_aux=None,
            sinks=None, indices=None, **others):
    """Like eager attention, but with 0 for a query without visible keys."""
    key, value = (x.repeat_interleave(H // HK, 1) for x in (key, value))
    scores = query @ key.mT * (D**-0.5 if scaling is None else scaling)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if position_bias is not None:
        scores = scores + position_bias
    if isinstance(mask, ours.Mask):
        mask = mask.dense()
    keep = torch.ones(query.shape[2], S, dtype=torch.bool)
    if causal:
        keep = keep.tril()
    if indices is not None:
        keep = keep & torch.zeros(B, query.shape[2], S).scatter(-1, indices.long(), 1).bool()[:, None]
    if mask is not None and mask.dtype is torch.bool:
        keep = keep & mask
    elif mask is not None:
        scores, keep = scores + mask.clamp(min=-1e4), keep & (mask > -1e30)
    scores = scores.masked_fill(~keep, -1e300)
    sinks = s_aux if sinks is None else sinks
    if sinks is not None:
        sinks = (sinks[:, None, None] if sinks.dim() == 1 else sinks).expand(B, H, query.shape[2], 1)
        scores = torch.cat([scores, sinks], -1)
    weights = scores.softmax(-1)[..., :S] * keep
    return (weights @ value).transpose(1, 2), weights


@pytest.mark.parametrize("T", [S, 3, 1])
def test_every_argument_with_every_mask(T):
    """Results, weights and gradients equal the formula in float64."""
    count, module = 0, torch.nn.Identity()
    for name, mask_of in MASKS.items():
        for argument, options_of in ARGUMENTS.items():
            mask, options = mask_of(T), options_of(T)
            inputs = {"query": drawn(B, H, T, D, seed=4), "key": drawn(B, HK, S, D, seed=5),
                      "value": drawn(B, HK, S, D, seed=6)}
            inputs |= {x: options.pop(x) for x in ("position_bias", "s_aux", "sinks") if x in options}
            causal = mask is None and T > 1 and options.get("is_causal", True)
            wide = {x: y.double().requires_grad_() for x, y in inputs.items()}
            inputs = {x: y.requires_grad_() for x, y in inputs.items()}
            found = ours.attention_forward(module, attention_mask=mask, output_attentions=True, **inputs, **options)
            exact = formula(mask=mask, causal=causal, **wide, **options)
            alone = ours.attention_forward(module, attention_mask=mask, **inputs, **options)
            assert alone[1] is None and (alone[0] - found[0]).abs().max() < 1e-6
            for part, x, y in zip(("out", "weights"), found, exact):
                assert x.shape == y.shape and (x - y).abs().max() < 4e-6, f"{argument}, {name}: {part}"
            for x, y, of in zip(torch.autograd.grad(found[0].sin().sum(), list(inputs.values()), allow_unused=True),
                                torch.autograd.grad(exact[0].sin().sum(), list(wide.values()), allow_unused=True),
                                inputs):
                assert x is None and y is None or (x - y).abs().max() < 3e-5, f"{argument}, {name}: d {of}"
            count += 1
    print(f"\n{T} queries: {len(ARGUMENTS)} arguments x {len(MASKS)} masks, {count} right")


def test_unknown_arguments_are_refused_by_name():
    """Rejects arguments other than None or False, unless they are known to have no effect."""
    q, module = drawn(1, 2, 3, 8), torch.nn.Identity()
    exact = ours.attention_forward(module, q, q, q, None)[0]
    for name in ("block_indices", "sink", "attn_logit_softcapping", "alibi", "bias", "head_mask", "window"):
        with pytest.raises(NotImplementedError, match=f"Identity passes {name}, which is not supported; use \"eager\""):
            ours.attention_forward(module, q, q, q, None, **{name: drawn(2)})
        for nothing in (None, False):
            assert torch.equal(ours.attention_forward(module, q, q, q, None, **{name: nothing})[0], exact)
    names = sorted(ours._WITHOUT_EFFECT - {"output_attentions", "is_causal"})
    assert torch.equal(ours.attention_forward(module, q, q, q, None, **dict.fromkeys(names, 1))[0], exact)
    print(f"\n{len(names)} names have no effect: {', '.join(names)}")


def test_a_mask_keeps_what_it_was_made_of():
    """A static cache increments its counter before a model may inspect its mask."""
    for config in (Ready, Eager):
        counter = torch.tensor(4)
        mask = ours.attention_mask(1, 2, 9, counter, 0, config=config())
        expected = mask.dense().clone()
        counter += 3
        assert torch.equal(mask.dense(), expected) and mask.options["q_offset"] == 4
        kept = expected if config is Ready else expected == 0
        assert kept[0, 0].sum(-1).tolist() == [5, 6]


def test_no_mask_is_what_a_model_means():
    """Attention is causal for layers that declare it in models with SDPA support; other layers see
    all keys."""
    q = drawn(1, 2, 5, 8)
    for config, causal in ((Ready, True), (Eager, False)):
        module = torch.nn.Identity()
        module.config = config()
        found = ours.attention_forward(module, q, q, q, None, output_attentions=True)[1]
        assert (found[0, 0, 0, 1] == 0) == causal
        module.is_causal = False
        assert ours.attention_forward(module, q, q, q, None, output_attentions=True)[1][0, 0, 0, 1] > 0


@pytest.mark.parametrize("how", ["imported", "defined"])
def test_models_of_later_are_looked_at(monkeypatch, how):
    config = type("LaterConfig", (transformers.PreTrainedConfig,), {"__module__": __name__})
    assert ours.attention_mask(1, 2, 2, config=config()).dtype is torch.bool
    if how == "imported":
        monkeypatch.setitem(sys.modules, "a_later_module", types.ModuleType("a_later_module"))
    base = EagerModel if how == "imported" else transformers.PreTrainedModel
    type("LaterModel", (base,), {"config_class": config})
    assert ours.attention_mask(1, 2, 2, config=config()).dtype is torch.float32
    assert ours.attention_mask(1, 2, 2, config=Ready()).dtype is torch.bool


@pytest.mark.gate(0)
@pytest.mark.parametrize("padded", [False, True])
def test_compiled_models_that_add_their_masks(padded):
    model = transformers.SplinterModel(transformers.SplinterConfig(**COMMON | {"pad_token_id": 0})).eval()
    ids = torch.randint(3, 99, (2, 9), generator=torch.Generator().manual_seed(1))
    keep = torch.ones_like(ids)
    keep[1, -3:] = 0
    given = {"input_ids": ids, "attention_mask": keep if padded else None}
    found = {}
    for name in ("eager", "multihead"):
        model.set_attn_implementation(name)
        torch.compiler.reset()
        with torch.no_grad():
            found[name] = torch.compile(model, backend="aot_eager")(**given).last_hidden_state[keep.bool()]
    assert (found["eager"] - found["multihead"]).abs().max() < 1e-4
