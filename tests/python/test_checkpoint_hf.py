"""Model folders that the library saves and Hugging Face transformers loads, and vice versa, have
the same numbers (at most twice the error of torch in float32 relative to float64) and the same
greedy tokens. Run with -s to see the errors. test_greedy() tests two or three configurations per
family, and all with MHA_TEST_LONG=1 (half a minute)."""
import contextlib
import copy
import json
import os
import re
import shlex
from unittest import mock

import numpy as np
import pytest
import torch
import transformers

import checkpoint_ctypes as ck
import multihead_ctypes as mha
from safetensors.torch import load_file, save_file
from shared import LONG, ROOT, rounds_like

VOCAB, LENGTH = 61, 32
WORDS = ["<pad>", "<s>", "</s>", "<unk>"] + [f"word{i}" for i in range(VOCAB - 4)]
SPECIAL = dict(pad_word="<pad>", bos_word="<s>", eos_word="</s>", unknown_word="<unk>")
LLAMA = dict(flags=ck.CAUSAL, vocab_size=VOCAB, max_length=LENGTH, embed_dim=32, num_layers=3,
             num_heads=4, ff_dim=56, norm=ck.NORM_RMS, positions=ck.ENCODING_ROTARY,
             feed_forward=ck.SWIGLU)
BERT = dict(flags=ck.POST_NORM | ck.EMBEDDING_NORM | ck.BIAS, vocab_size=VOCAB, max_length=LENGTH,
            embed_dim=32, num_layers=3, num_heads=4, ff_dim=56, norm=ck.NORM_LAYER,
            positions=ck.ENCODING_LEARNED, norm_epsilon=1e-12)


def some_ids(seed):
    return np.random.default_rng(seed).integers(0, VOCAB, (6, LENGTH))


@contextlib.contextmanager
def in_double():
    """Compute angles, norms and the softmax in float64, which transformers always computes in
    float32."""
    with mock.patch.object(torch, "float32", torch.float64), \
            mock.patch.object(torch, "float", torch.float64), \
            mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
        yield


def in_float64(model):
    """A copy for in_double()."""
    model = copy.deepcopy(model).double()
    with in_double():
        for module in list(model.modules()):
            for name, child in module.named_children():
                if type(child).__name__.endswith("RotaryEmbedding"):
                    setattr(module, name, type(child)(child.config))
    return model


def run_theirs(model, ids, double, **options):
    model = in_float64(model) if double else model.float()
    with in_double() if double else contextlib.nullcontext(), torch.no_grad():
        return model(torch.from_numpy(ids), **options)


def theirs(model, ids, double):
    """Logits, or last hidden states, computed in float64 or float32."""
    out = run_theirs(model, ids, double)
    return (out.logits if hasattr(out, "logits") else out.last_hidden_state).double().numpy()


def expect_same(ours, model, seed):
    ids = some_ids(seed)
    exact, single = (theirs(model, ids, double) for double in (True, False))
    mine = ours(ids)
    error, torchs = np.abs(mine - exact).max(), np.abs(single - exact).max()
    print(f"\n  error {error:.2e}, torch in float32 {torchs:.2e}, ratio {error / torchs:.2f}", end="")
    assert rounds_like(mine, single, exact)


def expect_same_maps(ours, model, seed):
    """Every head's attention, and the hidden states after the last norm."""
    ids = some_ids(seed)[:2]
    exact, single = (run_theirs(model, ids, double, output_attentions=True,
                                output_hidden_states=True) for double in (True, False))
    maps, hidden = ours.look(ids)
    pairs = [(maps[i], exact.attentions[i], single.attentions[i]) for i in range(len(maps))]
    for mine, wanted, theirs_ in pairs + [(hidden, exact.hidden_states[-1],
                                           single.hidden_states[-1])]:
        wanted, theirs_ = wanted.double().numpy(), theirs_.double().numpy()
        assert rounds_like(mine, theirs_, wanted) or np.abs(mine - wanted).max() <= 1e-7


def greedy(ours, prompt, count):
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(ours(np.array([ids]))[0, -1].argmax()))
    return ids


def randomise(model, seed):
    """Make every parameter random, because new models of transformers have biases 0 and norms 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise / parameter.shape[-1] ** 0.5 if parameter.dim() > 1
                            else 1 + 0.2 * noise)
    return model.eval()


@pytest.mark.parametrize("options", [
    {}, dict(kv_heads=2), dict(kv_heads=1, head_dim=6), dict(flags=ck.CAUSAL | ck.TIED),
    dict(flags=ck.CAUSAL | ck.BIAS, rope_base=5e5, norm_epsilon=1e-6)], ids=str)
def test_our_llama(tmp_path, options):
    ours = ck.Transformer(**{**LLAMA, **options})
    ours.randomise(3)
    ours.save(tmp_path / "model")
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", attn_implementation="eager", output_loading_info=True)
    assert type(model).__name__ == "LlamaForCausalLM"
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    expect_same(ours, model.eval(), 4)
    prompt = some_ids(5)[0, :5]
    generated = model.float().generate(torch.from_numpy(prompt)[None], do_sample=False,
                                       max_length=LENGTH, pad_token_id=0)
    assert generated[0].tolist() == greedy(ours, prompt, LENGTH - len(prompt))


def test_our_pruned_llama(tmp_path):
    """The same number of heads in every layer: an ordinary Llama folder."""
    whole = ck.Transformer(**{**LLAMA, "head_dim": 6})
    whole.randomise(3)
    keep = np.zeros((whole.desc.num_layers, whole.desc.num_heads))
    keep[0, [0, 3]] = keep[1:, [1, 2]] = 1
    ours = whole.pruned(keep)
    assert ours.desc.num_heads == 2 and not ours.desc.layer_heads
    ours.save(tmp_path / "model")
    expect_same(ours, transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", attn_implementation="eager").eval(), 4)


def test_our_words(tmp_path):
    ours = ck.Transformer(**LLAMA)
    ours.save(tmp_path, WORDS, **SPECIAL)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = tokenizer("word3  word50 <s> nothing\tword0\n</s>")["input_ids"]
    assert ids == [1, 7, 54, 1, 3, 4, 2]
    assert tokenizer.decode(ids) == "<s> word3 word50 <s> <unk> word0 </s>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "word3 word50 word0"
    assert len(tokenizer) == VOCAB and tokenizer.model_max_length == LENGTH
    assert (tokenizer.pad_token, tokenizer.bos_token, tokenizer.eos_token,
            tokenizer.unk_token) == ("<pad>", "<s>", "</s>", "<unk>")
    assert (model.config.pad_token_id, model.config.bos_token_id,
            model.config.eos_token_id) == (0, 1, 2)


TEXTS = ["", " ", "a", "The cat, it's 3.5 $ (or <so>)! ", "caf\u00e9\u3002\u00abword\u00bb\u2014x\u00a0y",
         "tabs\tand\nlines\r\n\n  two", "<s> and </s> <unk>", "`a^b|c~d+e=f", "\u2028\u2003z", "..."]


@pytest.mark.parametrize("splitting", [0, 1, 2], ids=["space", "punctuation", "characters"])
def test_our_splittings(tmp_path, splitting):
    """transformers generates the same tokens and the same decoded text."""
    pieces = sorted(set("".join(TEXTS)) - ({" "} if splitting < 2 else set()))
    pieces += ["The", "cat", "it", "or", "so", "and", "two", "word", "lines"]
    words = ["<pad>", "<s>", "</s>", "<unk>", *pieces]
    ours = ck.Transformer(**{**LLAMA, "vocab_size": len(words)})
    ours.save(tmp_path, words, splitting=splitting, **SPECIAL)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        if splitting == 2 and "<s>" in text:
            continue  # here, these tokens are characters
        assert ck.encode(tmp_path, text) == tokenizer(text)["input_ids"], repr(text)
    ids = tokenizer("and, so\n")["input_ids"]
    wanted = ["and, so", "and , so", "and, so\n"][splitting]
    if splitting:
        assert tokenizer.decode(ids, skip_special_tokens=True) == wanted


@pytest.mark.parametrize("options", [
    {}, dict(num_key_value_heads=2), dict(num_key_value_heads=1, head_dim=6),
    dict(tie_word_embeddings=True), dict(attention_bias=True), dict(mlp_bias=True),
    dict(attention_bias=True, mlp_bias=True, rms_norm_eps=1e-5, num_key_value_heads=2),
    dict(rope_parameters=dict(rope_type="default", rope_theta=5e5))], ids=str)
def test_their_llama(tmp_path, options):
    config = transformers.LlamaConfig(**{**dict(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=56, num_hidden_layers=3,
        num_attention_heads=4, max_position_embeddings=LENGTH, attn_implementation="eager"),
        **options})
    model = randomise(transformers.LlamaForCausalLM(config), 6)
    model.save_pretrained(tmp_path)
    ours = ck.Transformer(tmp_path)
    expect_same(ours, model, 7)
    prompt = some_ids(8)[0, :5]
    generated = model.float().generate(torch.from_numpy(prompt)[None], do_sample=False,
                                       max_length=LENGTH, pad_token_id=0, eos_token_id=None)
    assert generated[0].tolist() == greedy(ours, prompt, LENGTH - len(prompt))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits(tmp_path, dtype):
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=56, num_hidden_layers=3,
        num_attention_heads=4, max_position_embeddings=LENGTH)
    model = randomise(transformers.LlamaForCausalLM(config), 13)
    model.to(getattr(torch, dtype)).save_pretrained(tmp_path)
    wide = transformers.LlamaForCausalLM.from_pretrained(  # .to() also rounded the angles
        tmp_path, dtype=torch.float32, attn_implementation="eager")
    expect_same(ck.Transformer(tmp_path), wide, 14)


def test_older_config(tmp_path):
    """rope_theta in its place of transformers 4."""
    ours = ck.Transformer(**{**LLAMA, "rope_base": 5e5})
    ours.randomise(1)
    ours.save(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config["rope_parameters"], config["dtype"]
    path.write_text(json.dumps({**config, "rope_scaling": None}))
    again = ck.Transformer(tmp_path)
    assert again.desc.rope_base == 5e5
    assert np.array_equal(again(some_ids(2)), ours(some_ids(2)))


@pytest.mark.parametrize("feed_forward", [ck.GELU, ck.RELU])
@pytest.mark.parametrize("output", [0, ck.TIED, ck.NO_OUTPUT])
def test_our_bert(tmp_path, output, feed_forward):
    ours = ck.Transformer(**{**BERT, "flags": BERT["flags"] | output,
                             "feed_forward": feed_forward})
    ours.randomise(9)
    ours.save(tmp_path)
    model, report = transformers.AutoModel.from_pretrained(
        tmp_path, attn_implementation="eager", output_loading_info=True)
    assert type(model).__name__ == "BertModel"
    assert set(report["missing_keys"]) == {"pooler.dense.weight", "pooler.dense.bias"}
    assert set(report["unexpected_keys"]) == (set() if output else {"lm_head.weight"})
    hidden = ck.Transformer(**{**BERT, "flags": BERT["flags"] | ck.NO_OUTPUT,
                               "feed_forward": feed_forward})
    hidden.data[:] = ours.data[:hidden.data.size]
    hidden.update()
    expect_same(hidden, model.eval(), 10)


@pytest.mark.parametrize("act", ["gelu", "relu"])
def test_their_bert(tmp_path, act):
    config = transformers.BertConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=56, num_hidden_layers=3,
        num_attention_heads=4, max_position_embeddings=LENGTH, hidden_act=act,
        attn_implementation="eager")
    model = randomise(transformers.BertModel(config), 11)
    model.save_pretrained(tmp_path)
    expect_same(ck.Transformer(tmp_path), model, 12)


ENCODERS = {
    "distilbert": dict(dim=32, hidden_dim=56, n_layers=3, n_heads=4, activation="gelu"),
    "electra": dict(hidden_size=32, embedding_size=32, intermediate_size=56, num_hidden_layers=3,
                    num_attention_heads=4)}


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("head", [False, True])  # with a head, names have a prefix
def test_their_relatives_of_bert(tmp_path, kind, head):
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=VOCAB, max_position_embeddings=LENGTH, **ENCODERS[kind])
    make = transformers.AutoModelForMaskedLM if head else transformers.AutoModel
    model = randomise(make.from_config(config, attn_implementation="eager"), 13)
    model.save_pretrained(tmp_path)
    expect_same(ck.Transformer(tmp_path), model.base_model if head else model, 14)


def test_electra_with_projected_embeddings(tmp_path):
    config = transformers.ElectraConfig(vocab_size=VOCAB, hidden_size=32, embedding_size=16, intermediate_size=56,
                                        max_position_embeddings=LENGTH, num_attention_heads=4, num_hidden_layers=2)
    model = randomise(transformers.AutoModel.from_config(config, attn_implementation="eager"), 15)
    model.save_pretrained(tmp_path)
    expect_same(ck.Transformer(tmp_path), model, 16)


SIZES = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=56, num_hidden_layers=3,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LENGTH)
YARN = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=8)
LLAMA3 = dict(rope_type="llama3", rope_theta=1e4, factor=8.0, original_max_position_embeddings=8,
              low_freq_factor=1.0, high_freq_factor=4.0)
LINEAR = dict(rope_type="linear", rope_theta=5e5, factor=2.5)
MINISTRAL = {**YARN, "original_max_position_embeddings": 200, "mscale": 1.0, "mscale_all_dim": 1.0,
             "llama_4_scaling_beta": 0.1}
GPT2 = dict(vocab_size=VOCAB, n_embd=32, n_layer=3, n_head=4, n_positions=LENGTH)
# Random configurations of each family: odd sizes, grouped heads, windows shorter than the texts,
# rotations scaled beyond the training length, tied and untied weights.
FAMILIES = {
    "llama": [dict(rope_parameters=LINEAR), dict(rope_parameters=LLAMA3, head_dim=6),
              dict(rope_parameters=YARN), dict(rope_parameters={**YARN, "attention_factor": 0.8,
                                                                "beta_fast": 4.0, "beta_slow": 0.5}),
              dict(rope_parameters={**YARN, "mscale": 0.7, "mscale_all_dim": 0.3}),
              dict(rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, factor=2.0)),
              dict(rope_parameters={**YARN, "factor": 0.5, "beta_fast": 2.0, "beta_slow": 2.0}),
              dict(rope_parameters={**LLAMA3, "factor": 0.25}), dict(rope_parameters={**YARN, "truncate": False})],
    "mistral": [dict(sliding_window=5), dict(sliding_window=None, head_dim=10),
                dict(sliding_window=2, num_key_value_heads=1, tie_word_embeddings=True)],
    "qwen2": [dict(use_sliding_window=True, sliding_window=6, max_window_layers=1), {},
              dict(tie_word_embeddings=True, rope_parameters=YARN)],
    "qwen3": [dict(head_dim=6), dict(head_dim=16, attention_bias=True, tie_word_embeddings=True),
              dict(head_dim=8, use_sliding_window=True, sliding_window=4, max_window_layers=2)],
    "gemma": [dict(head_dim=6), dict(head_dim=16, num_key_value_heads=1),
              dict(head_dim=8, attention_bias=True)],
    "gemma2": [dict(head_dim=6, sliding_window=5), dict(head_dim=16, query_pre_attn_scalar=9,
                                                        attn_logit_softcapping=4.0,
                                                        final_logit_softcapping=3.0),
               dict(head_dim=8, attn_logit_softcapping=None, final_logit_softcapping=None,
                    sliding_window=3)],
    "gemma3_text": [dict(head_dim=6, sliding_window=5,
                         layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
                    dict(head_dim=8, num_hidden_layers=7, sliding_window=4),
                    dict(head_dim=16, sliding_window=4, query_pre_attn_scalar=10, rope_parameters={
                        "full_attention": {**LINEAR, "rope_theta": 1e6},
                        "sliding_attention": dict(rope_type="default", rope_theta=1e3)},
                        layer_types=["full_attention", "sliding_attention", "full_attention"])],
    "phi3": [{}, dict(num_key_value_heads=4, tie_word_embeddings=True), dict(sliding_window=6),
             dict(hidden_size=40, rope_parameters=dict(rope_type="default", rope_theta=1e4,
                                                       partial_rotary_factor=0.7))],
    "gpt2": [{}, dict(n_inner=40, activation_function="gelu"),
             dict(scale_attn_weights=False, tie_word_embeddings=False)],
    "gpt_neox": [dict(num_key_value_heads=4), dict(use_parallel_residual=False),
                 dict(attention_bias=False, hidden_act="gelu_new", tie_word_embeddings=True,
                      rope_parameters=dict(rope_type="default", rope_theta=1e3,
                                           partial_rotary_factor=1.0)),
                 dict(hidden_size=40, rope_parameters={**LINEAR, "partial_rotary_factor": 0.5}),
                 dict(hidden_size=40, rope_parameters={**LLAMA3, "partial_rotary_factor": 0.1})],
    "smollm3": [dict(no_rope_layer_interval=2), dict(no_rope_layers=[0, 1, 0], attention_bias=True, rope_parameters=YARN),
                dict(num_hidden_layers=5, mlp_bias=True, tie_word_embeddings=False, use_sliding_window=True,
                     sliding_window=4, layer_types=["full_attention"] * 3 + ["sliding_attention"] * 2)],
    "stablelm": [{}, dict(use_qkv_bias=True, num_key_value_heads=1, tie_word_embeddings=True,
                          rope_parameters={**LLAMA3, "partial_rotary_factor": 0.75}),
                 dict(hidden_size=40, num_key_value_heads=4, layer_norm_eps=1e-2,
                      rope_parameters={**LINEAR, "partial_rotary_factor": 1.0})],
    "granite": [dict(embedding_multiplier=3.0, residual_multiplier=0.4, attention_multiplier=0.2, logits_scaling=4.0),
                dict(logits_scaling=0.5, attention_multiplier=0.5, attention_bias=True, mlp_bias=True, rope_parameters=YARN),
                dict(residual_multiplier=1.5, attention_multiplier=0.25, tie_word_embeddings=True, num_key_value_heads=1)],
    "olmo2": [{}, dict(num_key_value_heads=1, attention_bias=True, tie_word_embeddings=True, rope_parameters=LLAMA3),
              dict(hidden_size=40, num_key_value_heads=4, rms_norm_eps=1e-2, rope_parameters=LINEAR)],
    "olmo3": [dict(num_hidden_layers=5, sliding_window=5),
              dict(sliding_window=4, layer_types=["full_attention", "sliding_attention", "full_attention"],
                   attention_bias=True, rope_parameters={"full_attention": YARN, "sliding_attention": dict(
                       rope_type="default", rope_theta=1e3)}),
              dict(num_key_value_heads=1, sliding_window=2, tie_word_embeddings=True, rms_norm_eps=1e-2)],
    "glm4": [dict(head_dim=8), dict(head_dim=16, attention_bias=False, tie_word_embeddings=True,
                                    rope_parameters={**YARN, "partial_rotary_factor": 0.75}),
             dict(head_dim=6, num_key_value_heads=1, rms_norm_eps=1e-2,
                  rope_parameters={**LINEAR, "partial_rotary_factor": 1.0})],
    "ministral": [dict(num_hidden_layers=4, head_dim=6, sliding_window=5, layer_types=["sliding_attention", "full_attention"] * 2),
                  dict(head_dim=10, sliding_window=3), dict(sliding_window=4, head_dim=8, tie_word_embeddings=True,
                                                            rope_parameters=LLAMA3)],
    "ministral3": [dict(head_dim=8, rope_parameters=MINISTRAL), dict(head_dim=16, sliding_window=6, rope_parameters={
                       **MINISTRAL, "factor": 2.0, "mscale": 0.6}),
                   dict(head_dim=6, num_key_value_heads=1, tie_word_embeddings=True, rms_norm_eps=1e-2,
                        rope_parameters={**MINISTRAL, "llama_4_scaling_beta": 0.0})],
    "cohere": [{}, dict(attention_bias=True, logit_scale=2.5, tie_word_embeddings=False, rope_parameters=YARN),
               dict(hidden_size=40, num_key_value_heads=1, layer_norm_eps=1e-2, rope_parameters=LINEAR)],
    "cohere2": [dict(num_hidden_layers=5, sliding_window=5),
                dict(sliding_window=4, attention_bias=True, logit_scale=1.5, rope_parameters=LLAMA3,
                     layer_types=["full_attention", "sliding_attention", "sliding_attention"]),
                dict(hidden_size=40, num_key_value_heads=4, sliding_window=2, layer_norm_eps=1e-2,
                     tie_word_embeddings=False, num_hidden_layers=4)]}


def their_family(kind, options, seed):
    own = {"bloom": dict(SIZES, n_layer=SIZES["num_hidden_layers"], n_head=SIZES["num_attention_heads"]),
           "mpt": dict(vocab_size=SIZES["vocab_size"], d_model=SIZES["hidden_size"], n_layers=SIZES["num_hidden_layers"],
                       n_heads=SIZES["num_attention_heads"], max_seq_len=SIZES["max_position_embeddings"])}
    sizes = GPT2 if kind in ("gpt2", "gpt_bigcode") else own.get(kind, SIZES)
    config = transformers.AutoConfig.for_model(kind, **{**sizes, "pad_token_id": 0, **options})
    return randomise(transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager"), seed)


@pytest.mark.gate(36)
@pytest.mark.parametrize("kind, options", [(kind, options) for kind, all_of in FAMILIES.items()
                                           for options in all_of], ids=str)
def test_their_families(tmp_path, kind, options):
    """Logits and maps are equal, and the library's own folders preserve all fields."""
    model = their_family(kind, options, 21)
    model.save_pretrained(tmp_path / "theirs")
    ours = ck.Transformer(tmp_path / "theirs")
    expect_same(ours, model, 22)
    expect_same_maps(ours, model, 22)
    ours.save(tmp_path / "ours")
    again = ck.Transformer(tmp_path / "ours")
    assert np.array_equal(again(some_ids(24)), ours(some_ids(24)))


# ---- greedy texts ---------------------------------------------------------------------------------

STEPS = 100  # far longer than windows and original lengths of scaled rotations


def enliven(model):
    """With random weights, generation converges to one token, which biases of norms or, with tied
    embeddings, the token itself determine. With biases around 0 and larger layers, the whole text
    matters."""
    gemma = model.config.model_type.startswith("gemma")  # norms multiply by 1 + w
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter -= 1
            elif any(part in name for part in ("q_norm", "k_norm", "post_")):
                parameter += 1 if gemma else parameter
            elif parameter.dim() > 1 and not any(part in name for part in ("emb", "wte", "lm_head")):
                parameter *= 2
    return model


def our_greedy(ours, prompt, cache):
    """STEPS tokens and the logits that selected them."""
    decode, ids, rows = ck.Decoder(ours) if cache else ours, list(prompt), []
    for _ in range(STEPS):
        new = ids[len(ids) - 1 if rows else 0:] if cache else ids
        rows.append(decode(np.array([new]))[0, -1])
        ids.append(int(rows[-1].argmax()))
    return ids, np.array(rows)


def their_greedy(model, prompt, cache):
    ids, rows, past = list(prompt), [], None
    with torch.no_grad():
        for _ in range(STEPS):
            new = ids[len(ids) - 1 if rows else 0:] if cache else ids
            out = model(torch.tensor([new]), past_key_values=past, use_cache=cache)
            past = out.past_key_values if cache else None
            rows.append(out.logits[0, -1].double().numpy())
            ids.append(int(rows[-1].argmax()))
    return ids, np.array(rows)


def lively_family(kind, options, folder):
    """A model whose text varies to its end, the library's copy of it, and that text."""
    positions = {"n_positions" if kind == "gpt2" else "max_position_embeddings": STEPS + 28}
    for seed in range(21, 41):
        model = enliven(their_family(kind, {**options, **positions}, seed))
        model.save_pretrained(folder / str(seed))
        ours = ck.Transformer(folder / str(seed))
        text, logits = our_greedy(ours, some_ids(23)[0, :5].tolist(), False)
        if len(set(text[-50:])) >= 5:
            return model, ours, text, logits
    raise AssertionError("every text settles on a few tokens")


# With windows, tests all kinds of scaling without a cache.
GREEDY = [(kind, options, LONG or kind == "llama" or i == 0) for kind, all_of in FAMILIES.items()
          for i, options in enumerate(all_of) if LONG or i < (3 if kind == "llama" else 2)]


@pytest.mark.gate(5)
@pytest.mark.parametrize("kind, options, whole", GREEDY, ids=str)
def test_greedy(tmp_path, kind, options, whole):
    """Compare with transformers, with and without a cache. The error of torch's logits relative to
    float64 is at most e (the largest of its runs, including one over the whole text), and the
    library's at most 2 e. So the tokens must agree while the two largest exact logits differ by 4
    e. The first tie ends the comparison."""
    model, ours, text, logits = lively_family(kind, options, tmp_path)
    again, same = our_greedy(ours, text[:5], True)
    assert again == text and np.array_equal(same, logits)
    e = 0
    for cache in (True, False)[:1 + whole]:
        wanted, single = their_greedy(model, text[:5], cache)
        ids = np.array([wanted[:-1]])
        exact, at_once = (theirs(model, ids, double)[0, 4:] for double in (True, False))
        e, largest = max(e, np.abs([single - exact, at_once - exact]).max()), np.sort(exact)[:, -2:]
        ties = np.flatnonzero(largest[:, 1] - largest[:, 0] <= 4 * e)
        count = ties[0] if ties.size else STEPS
        error = np.abs(logits[:count] - exact[:count]).max()
        print(f"\n  {'with' if cache else 'without'} cache: error {error:.2e}, torch {e:.2e}, ratio "
              f"{error / e:.2f}" + f", a tie after {count} tokens" * (count < STEPS), end="")
        assert text[:5 + count] == wanted[:5 + count] and count >= STEPS // 2
        assert error <= 2 * e


# ---- gradients ------------------------------------------------------------------------------------

def torch_gradients(model, ids, targets, folder, double):
    """Gradients in the order of the library's parameters: they are saved as weights, and the
    library loads them. They are scaled by 2^40, so that the 1 of Gemma's norms is lost in
    rounding."""
    model = in_float64(model) if double else copy.deepcopy(model)
    with in_double() if double else contextlib.nullcontext():
        logits = model(torch.from_numpy(ids), use_cache=False).logits.flatten(0, 1)
        torch.nn.functional.cross_entropy(logits, torch.from_numpy(targets).flatten()).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad * 2**40)
    model.float().save_pretrained(folder)
    placed = ck.Transformer(folder)
    return placed.data.astype(np.float64) / 2**40


GRADIENTS = [(kind, all_of[0]) for kind, all_of in FAMILIES.items()] + [
    ("gemma2", FAMILIES["gemma2"][1]), *(("gpt_neox", options) for options in FAMILIES["gpt_neox"][1:])]


@pytest.mark.gate(14)
@pytest.mark.parametrize("kind, options", GRADIENTS, ids=str)
def test_gradients(tmp_path, kind, options):
    """Gradients of every parameter compared with autograd in float64. A gradient's error relative
    to its largest number is at most twice torch's largest in float32. Without rotation, the exact
    gradient of a key's bias is 0 (the bias shifts all scores of a query equally), so its error is
    relative to the query's."""
    model, ids, targets = enliven(their_family(kind, options, 21)), some_ids(31), some_ids(32)
    ids[ids == 0] = 1  # the padding embedding has no gradient in torch
    model.save_pretrained(tmp_path / "weights")
    ours = ck.Transformer(tmp_path / "weights")
    exact, single = (ours.parameters(torch_gradients(model, ids, targets, tmp_path / name, double))
                     for name, double in (("exact", True), ("single", False)))
    sizes = {name: np.abs(exact[name.replace("k_proj.bias", "q_proj.bias")]).max() for name in exact}
    torchs = max(np.abs(single[name] - exact[name]).max() / sizes[name] for name in exact)
    found = ours.parameters(ours(ids, targets))
    errors = {name: np.abs(found[name] - exact[name]).max() / sizes[name] for name in exact}
    worst = max(errors, key=errors.get)
    print(f"\n  error {errors[worst]:.2e} of {worst}, torch {torchs:.2e}, ratio "
          f"{errors[worst] / torchs:.2f}", end="")
    assert errors[worst] <= 2 * torchs and min(sizes.values()) > 1e-6


@pytest.mark.parametrize("options", [{}, dict(pad_token_id=4), dict(type_vocab_size=1)], ids=str)
def test_their_roberta(tmp_path, options):
    config = transformers.RobertaConfig(**{**SIZES, "max_position_embeddings": LENGTH + 6,
                                           **options})
    model = randomise(transformers.AutoModel.from_config(config, attn_implementation="eager"), 25)
    model.save_pretrained(tmp_path)
    ours = ck.Transformer(tmp_path)
    assert ours.desc.max_length == LENGTH + 6 - config.pad_token_id - 1
    ids = some_ids(26)
    ids[:, [0, 7, 8, 20]] = config.pad_token_id  # a token without position
    exact, single = (theirs(model, ids, double) for double in (True, False))
    assert rounds_like(ours(ids), single, exact)


def test_older_gemma3(tmp_path):
    """The two bases in the form of transformers 4, and defaults that it omits."""
    layers = ["sliding_attention", "full_attention", "sliding_attention"]
    model = their_family("gemma3_text", dict(head_dim=6, sliding_window=5, layer_types=layers), 29)
    model.save_pretrained(tmp_path)
    path, ours = tmp_path / "config.json", ck.Transformer(tmp_path)
    config = json.loads(path.read_text())
    assert config.pop("rope_parameters")["full_attention"]["rope_theta"] == 1e6
    for said in ({}, dict(rope_theta=1e6, rope_local_base_freq=1e4, rope_scaling=None)):
        path.write_text(json.dumps({**config, **said}))
        assert np.array_equal(ck.Transformer(tmp_path)(some_ids(30)), ours(some_ids(30)))


def test_shards(tmp_path):
    """A model in several files, like larger models, and errors in the index."""
    model = their_family("qwen2", {}, 27)
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    one, many = ck.Transformer(tmp_path / "one"), ck.Transformer(tmp_path / "many")
    shards = sorted((tmp_path / "many").glob("model-*.safetensors"))
    assert len(shards) > 2 and np.array_equal(one.data, many.data)
    index = tmp_path / "many" / "model.safetensors.index.json"
    whole = index.read_text()
    for name, words in (("../one/model.safetensors", "not the name of a file"),
                        ("/etc/passwd", "not the name of a file"), ("..", "not the name"),
                        ("model-9.safetensors", "no such file, but")):
        wrong = json.loads(whole)
        wrong["weight_map"]["lm_head.weight"] = name
        index.write_text(json.dumps(wrong))
        with pytest.raises(mha.MultiheadError, match=words):
            ck.Transformer(tmp_path / "many")
    index.write_text(json.dumps({"weight_map": {}}))
    with pytest.raises(mha.MultiheadError, match="index.json: weight 'embed_tokens.weight' is missing"):
        ck.Transformer(tmp_path / "many")
    named = {path.name: path.name for path in shards}  # other names of weights: only the files matter
    index.write_text(json.dumps({"metadata": {"total_size": -1}, "weight_map": named}))
    assert np.array_equal(ck.Transformer(tmp_path / "many").data, one.data)
    copied = tmp_path / "many" / "copy.safetensors"
    copied.write_bytes(shards[0].read_bytes())
    index.write_text(json.dumps({"weight_map": {**named, "a": copied.name}}))
    with pytest.raises(mha.MultiheadError, match="both have the weight"):
        ck.Transformer(tmp_path / "many")
    index.write_text(json.dumps({"weight_map": {str(i): f"{i}.safetensors" for i in range(5000)}}))
    with pytest.raises(mha.MultiheadError, match="0.safetensors: no such file, but"):
        ck.Transformer(tmp_path / "many")
    copied.write_text("{}")
    with pytest.raises(mha.MultiheadError, match="copy.safetensors: 2 bytes are too short"):
        index.write_text(json.dumps({"weight_map": {"a": copied.name}}))
        ck.Transformer(tmp_path / "many")
    index.write_text(whole)
    shards[1].unlink()
    with pytest.raises(mha.MultiheadError, match="no such file, but .* names it"):
        ck.Transformer(tmp_path / "many")


@pytest.mark.parametrize("kind, options, words", [
    ("llama", dict(rope_parameters=dict(rope_type="longrope", rope_theta=1e4, factor=2.0,
                                        short_factor=[1.0] * 4, long_factor=[1.0] * 4,
                                        original_max_position_embeddings=8)),
     "rope_type 'longrope'"),
    ("llama", dict(rope_parameters={**YARN, "partial_rotary_factor": 0.5}), "rotates whole heads"),
    ("llama", dict(rope_parameters={**YARN, "attention_factor": 0.0}), "attention_factor"),
    ("gemma3_text", dict(attn_logit_softcapping=5.0), "attn_logit_softcapping"),
    ("gemma2", dict(hidden_activation="gelu"), "hidden_activation 'gelu'"),
    ("gpt2", dict(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx")],
    ids=str)
def test_refused(tmp_path, kind, options, words):
    their_family(kind, options, 28).save_pretrained(tmp_path)
    with pytest.raises(mha.MultiheadError, match=words):
        ck.Transformer(tmp_path)


@pytest.mark.parametrize("kind, options", [
    ("qwen2", dict(tie_word_embeddings=True)), ("gpt_neox", dict(num_key_value_heads=4)), ("gpt2", {})], ids=str)
def test_without_prefix(tmp_path, kind, options):
    """AutoModel.save_pretrained() omits the output. Tied models still have it; others have only
    hidden states."""
    model = their_family(kind, options, 45)
    model.save_pretrained(tmp_path / "whole")
    model.base_model.save_pretrained(tmp_path / "inner")
    whole, inner, ids = ck.Transformer(tmp_path / "whole"), ck.Transformer(tmp_path / "inner"), some_ids(46)
    tied = model.config.tie_word_embeddings
    assert bool(inner.desc.flags & ck.NO_OUTPUT) != tied
    assert np.array_equal(inner(ids), whole(ids) if tied else whole.look(ids)[1])


def test_output_beside_tied_embeddings(tmp_path):
    """Some files have both matrices. The output is tied only if they are the same tensor."""
    model = their_family("llama", dict(tie_word_embeddings=True), 47)
    model.save_pretrained(tmp_path)
    ours, weights = ck.Transformer(tmp_path)(some_ids(48)), load_file(tmp_path / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, tmp_path / "model.safetensors")
    assert np.array_equal(ck.Transformer(tmp_path)(some_ids(48)), ours)
    weights["lm_head.weight"][-1, -1] += 1
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(mha.MultiheadError, match="'tie_word_embeddings' is true, but .* 'lm_head.weight'"):
        ck.Transformer(tmp_path)


def test_leftover_scales(tmp_path):
    """Scales of MXFP4 are read with their blocks. Without blocks they are rejected."""
    their_family("llama", {}, 47).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.layers.0.mlp.down_proj_scales"] = torch.full((32, 2), 127, dtype=torch.uint8)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(mha.MultiheadError, match="has weight 'model.layers.0.mlp.down_proj_scales'"):
        ck.Transformer(tmp_path)


def test_scales_of_a_vector(tmp_path):
    their_family("llama", {}, 47).save_pretrained(tmp_path)
    weights, path = load_file(tmp_path / "model.safetensors"), tmp_path / "config.json"
    weights["model.norm.weight"] = weights["model.norm.weight"].to(torch.float8_e4m3fn)
    save_file(weights | {"model.norm.weight_scale_inv": torch.ones(1)}, tmp_path / "model.safetensors")
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": {"quant_method": "fp8"}}))
    with pytest.raises(mha.MultiheadError, match="'model.norm.weight' has scales and the shape .*, expected a matrix"):
        ck.Transformer(tmp_path)


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "two files"])
def test_the_line_that_converts_pickles(tmp_path, monkeypatch, kind):
    """The printed command of the message creates a folder with all weights."""
    model = (randomise(transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)), 49) if kind == "bert"
             else their_family("gpt2" if kind == "gpt2" else "llama", dict(tie_word_embeddings=kind == "llama"), 49))
    model.save_pretrained(tmp_path)
    ours, weights = ck.Transformer(tmp_path)(some_ids(50)), model.state_dict()
    (tmp_path / "model.safetensors").unlink()
    halves = [dict(list(weights.items())[part::2]) for part in range(2)]
    if kind == "two files":
        torch.save(halves[0], tmp_path / "pytorch_model-00001-of-00002.bin")
        torch.save(halves[1], tmp_path / "pytorch_model-00002-of-00002.bin")
        (tmp_path / "pytorch_model.bin.index.json").write_text("{}")
    else:
        torch.save(weights, tmp_path / "pytorch_model.bin")
    with pytest.raises(mha.MultiheadError, match="a pickle can run code") as error:
        ck.Transformer(tmp_path)
    python, option, code = shlex.split(str(error.value).split("in the folder: ")[1].split("'}")[0])
    assert (python, option) == ("python3", "-c")
    monkeypatch.chdir(tmp_path)
    exec(code, {})  # a separate process would take seconds to import torch
    assert np.array_equal(ck.Transformer(tmp_path)(some_ids(50)), ours)
    assert load_file(tmp_path / "model.safetensors").keys() == weights.keys()


def test_commands_of_messages():
    """Commands in messages of the model library are tested above, or are existing scripts."""
    text = "".join(re.sub(r'"\s*\n\s*"', "", path.read_text()) for path in (ROOT / "src/model").rglob("*.c"))
    assert len(re.findall(r"python3? -c|\bpip install", text)) == 1
    scripts = set(re.findall(r'"[^"\n]*?(tools/[\w-]+)', text))
    assert scripts and all(os.access(ROOT / script, os.X_OK) for script in scripts)


def test_odd_yarn(tmp_path):
    """Like in transformers, YaRN has no ramp for an odd width."""
    their_family("gpt_neox", dict(hidden_size=40), 33).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "rope_parameters": {**YARN, "partial_rotary_factor": 0.5}}))
    with pytest.raises(mha.MultiheadError, match="rotates an odd number, 5, .* rope_type 'yarn'"):
        ck.Transformer(tmp_path)
