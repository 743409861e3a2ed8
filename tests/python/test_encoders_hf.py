"""Encoders of other families than BERT compared with transformers in float64: hidden states, maps and gradients of
random configurations, with and without a head's prefix, the library's own folders, and rejected models."""
import contextlib
import copy
import json

import numpy as np
import pytest
import torch
import transformers

import checkpoint_ctypes as ck
import multihead_ctypes as mha
from shared import rounds_like
from test_checkpoint_hf import LENGTH, VOCAB, expect_same_maps, in_double, in_float64, randomise, some_ids

SIZES = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=56, num_hidden_layers=3, num_attention_heads=4,
             max_position_embeddings=LENGTH + 2, pad_token_id=1, bos_token_id=0, eos_token_id=2)
LINEAR = dict(rope_type="linear", rope_theta=5e3, factor=2.5)
DEBERTA = dict(relative_attention=True, pos_att_type=["p2c", "c2p"])
FAMILIES = {
    "xlm-roberta": [{}, dict(hidden_act="relu", type_vocab_size=1, layer_norm_eps=1e-2), dict(num_attention_heads=2)],
    "albert": [dict(embedding_size=12), dict(embedding_size=40, hidden_act="gelu", num_hidden_layers=6),
               dict(embedding_size=8, hidden_act="relu", type_vocab_size=3, layer_norm_eps=1e-2)],
    "mpnet": [{}, dict(num_attention_heads=2, hidden_act="relu"), dict(hidden_size=40, layer_norm_eps=1e-2)],
    "modernbert": [dict(num_hidden_layers=5, local_attention=8), dict(
        local_attention=5, norm_bias=True, attention_bias=True, mlp_bias=True,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], rope_parameters=dict(
            full_attention=LINEAR, sliding_attention=dict(rope_type="default", rope_theta=50.0))),
        dict(hidden_size=40, norm_eps=1e-2, local_attention=2, hidden_activation="silu")],
    "nomic_bert": [{}, dict(head_dim=6, type_vocab_size=1), dict(layer_norm_eps=1e-2, rope_parameters=LINEAR)],
    "deberta-v2": [dict(DEBERTA, norm_rel_ebd="layer_norm", share_att_key=True, position_buckets=8,
                        position_biased_input=False), dict(DEBERTA, position_buckets=6, max_relative_positions=16,
                                                           num_attention_heads=2, norm_rel_ebd="layer_norm"),
                   dict(relative_attention=True, pos_att_type="c2p", type_vocab_size=2, max_relative_positions=10,
                        hidden_act="gelu_new")],
    "deberta": [dict(DEBERTA, position_biased_input=False), dict(pos_att_type=["c2p"]),
                dict(relative_attention=True, pos_att_type="p2c", type_vocab_size=3, max_relative_positions=9,
                     layer_norm_eps=1e-2)],
    "gemma3_text": [dict(use_bidirectional_attention=True, head_dim=8, num_key_value_heads=2, **more) for more in (
        dict(num_hidden_layers=7, sliding_window=6), dict(sliding_window=9, layer_types=[
            "sliding_attention", "full_attention", "sliding_attention"]), dict(sliding_window=2))]}
CASES = [(kind, options) for kind, all_of in FAMILIES.items() for options in all_of]


def their_model(kind, options, seed, head=False):
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **options})
    make = transformers.AutoModelForMaskedLM if head else transformers.AutoModel
    return randomise(make.from_config(config, attn_implementation="eager"), seed)


def ids_of(seed):
    ids = some_ids(seed)
    ids[ids == 1] = 3  # padding, which transformers masks in no call here
    return ids


def hidden_of(model, ids, double):
    model = in_float64(model) if double else model.float()
    with torch.no_grad():
        if not double:
            return model(torch.from_numpy(ids)).last_hidden_state.double().numpy()
        with in_double():
            return model(torch.from_numpy(ids)).last_hidden_state.numpy()


@pytest.mark.gate(9)
@pytest.mark.parametrize("kind, options", CASES, ids=str)
def test_hidden_states_and_maps(tmp_path, kind, options):
    model, ids = their_model(kind, options, 41), ids_of(42)
    model.save_pretrained(tmp_path / "theirs")
    ours = ck.Transformer(tmp_path / "theirs")
    if kind != "gemma3_text":  # which has tied logits
        exact, single = (hidden_of(model, ids, double) for double in (True, False))
        assert rounds_like(ours(ids), single, exact)
    expect_same_maps(ours, model, 43)
    ours.save(tmp_path / "ours")
    assert np.array_equal(ck.Transformer(tmp_path / "ours")(ids), ours(ids))


@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind != "gemma3_text"])
def test_with_a_head(tmp_path, kind):
    """Names have the family's prefix, and the head's weights are ignored."""
    model, ids = their_model(kind, FAMILIES[kind][0], 44, head=True), ids_of(45)
    model.save_pretrained(tmp_path)
    exact, single = (hidden_of(model.base_model, ids, double) for double in (True, False))
    assert rounds_like(ck.Transformer(tmp_path)(ids), single, exact)


def test_layers_of_albert_are_one(tmp_path):
    """Our folder has a copy for each layer."""
    model = their_model("albert", dict(embedding_size=12), 46)
    model.save_pretrained(tmp_path)
    parameters = ck.Transformer(tmp_path).parameters()
    shared = [name for name in parameters if name.startswith("layers.0.")]
    assert len(shared) == 16 and all(np.array_equal(parameters[name], parameters[name.replace(".0.", ".2.", 1)])
                                     for name in shared)


OLD_NOMIC = {"activation_function": "swiglu", "causal": False, "fused_bias_fc": True, "layer_norm_epsilon": 1e-12,
             "mlp_fc1_bias": False, "mlp_fc2_bias": False, "model_type": "nomic_bert", "n_embd": 32, "n_head": 4,
             "n_inner": 56, "n_layer": 3, "n_positions": LENGTH + 2, "parallel_block": False, "prenorm": False,
             "qkv_proj_bias": False, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
             "rotary_emb_scale_base": None, "rotary_scaling_factor": None, "scale_attn_weights": True,
             "type_vocab_size": 2, "use_rms_norm": False, "vocab_size": VOCAB}


def test_old_names_of_nomic_bert(tmp_path):
    """Published folders have names that the code beside them reads."""
    their_model("nomic_bert", {}, 48).save_pretrained(tmp_path)
    wanted = ck.Transformer(tmp_path)(ids_of(49))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(OLD_NOMIC))
    assert np.array_equal(ck.Transformer(tmp_path)(ids_of(49)), wanted)
    for change, error in ((dict(rotary_emb_fraction=.5), "'rotary_emb_fraction' is not 1"),
                          (dict(rotary_emb_fraction=None), "'rotary_emb_fraction' is not 1"),
                          (dict(scale_attn_weights=False), "'scale_attn_weights' is false"),
                          *((dict([(key, True)]), f"'{key}'") for key, value in OLD_NOMIC.items() if value is False),
                          (dict(activation_function="gelu"), "activation_function 'gelu' is not"),
                          (dict(rotary_scaling_factor=2), "'rotary_scaling_factor'"), (dict(n_inner=None), "'n_inner' is missing"),
                          (dict(n_layer=2), "layers.2."), (dict(rotary_emb_scale_base=4.0), "'rotary_emb_scale_base'")):
        path.write_text(json.dumps({**OLD_NOMIC, **change}))
        with pytest.raises(mha.MultiheadError, match=error):
            ck.Transformer(tmp_path)


REFUSED = {
    "albert": [(dict(num_hidden_groups=3), "num_hidden_groups' is 3"), (dict(inner_group_num=2), "inner_group_num' is 2"),
               (dict(embedding_size=32), "the same width"), (dict(num_hidden_layers=65), "at most 64 copies"),
               (dict(embedding_size=11), r"expected|requires|shape")],
    "mpnet": [(dict(relative_attention_num_buckets=16), "relative_attention_num_buckets"),
              (dict(max_position_embeddings=2), "leaves no position")],
    "modernbert": [(dict(local_attention=1), "local_attention"), (dict(hidden_activation="relu"), "hidden_activation"),
                   (dict(layer_types=["full_attention"]), "layer_types")],
    "nomic_bert": [(dict(hidden_act="gelu"), "hidden_act")],
    "deberta-v2": [(dict(conv_kernel_size=3), "conv_kernel_size' is 3"), (dict(embedding_size=16), "embedding_size"),
                   (dict(attention_head_size=16), "attention_head_size"), (dict(position_buckets=1), "position_buckets"),
                   (dict(max_relative_positions=5), "position_buckets' is 8"), (dict(norm_rel_ebd="x"), "norm_rel_ebd"),
                   *((dict(pos_att_type=value), "pos_att_type") for value in (
                       "p2p", ["c2p", "c2p"], "", 3, ["c2p", None], ["c2p", "p2c", "p2p"], ["c2p|p2c"])),
                   (dict(position_buckets=9), "expected|requires|shape")],
    "deberta": [(dict(talking_head=True), "talking_head")],
    "gemma3_text": [(dict(use_bidirectional_attention=3), "use_bidirectional_attention")]}


@pytest.mark.parametrize("kind, change, words", [(kind, *case) for kind, cases in REFUSED.items() for case in cases], ids=str)
def test_refused(tmp_path, kind, change, words):
    their_model(kind, FAMILIES[kind][0], 47).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(mha.MultiheadError, match=words):
        ck.Transformer(tmp_path)


# ---- gradients ------------------------------------------------------------------------------------
def torch_gradients(model, ids, targets, folder, double):
    """As in test_checkpoint_hf.py, of the cross-entropy of hidden states taken as logits."""
    model = in_float64(model) if double else model.float()
    model.zero_grad()
    with in_double() if double else contextlib.nullcontext():
        rows = model(torch.from_numpy(ids)).last_hidden_state.flatten(0, 1)
        torch.nn.functional.cross_entropy(rows, torch.from_numpy(targets).flatten()).backward()
    copied = copy.deepcopy(model).float()
    with torch.no_grad():
        for mine, theirs in zip(copied.parameters(), model.parameters()):
            mine.copy_(torch.zeros_like(theirs) if theirs.grad is None else theirs.grad * 2**40)
    copied.save_pretrained(folder)
    placed = ck.Transformer(folder)
    return placed.parameters(placed.data.astype(np.float64) / 2**40)


@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind != "gemma3_text"])
def test_gradients(tmp_path, kind):
    """Layers that share a weight have a gradient each; torch has their sum. DeBERTa projects positions separately."""
    model, ids = their_model(kind, FAMILIES[kind][kind == "deberta-v2"], 48), ids_of(49)
    targets = np.random.default_rng(50).integers(0, 32, ids.shape)
    model.save_pretrained(tmp_path / "weights")
    ours = ck.Transformer(tmp_path / "weights")
    exact, single = (torch_gradients(model, ids, targets, tmp_path / name, double)
                     for name, double in (("exact", True), ("single", False)))
    found = ours.parameters(ours(ids, targets))
    shared = [name for name in found if name.startswith("layers.") and (
        kind == "albert" or "relative_attention_bias" in name)]
    for name in shared[:len(shared) // 3]:
        found[name] = sum(found[name.replace(".0.", f".{i}.", 1)].astype(np.float64) for i in range(3))
    absent = ("self_attn.k_proj.bias", "position_k_proj.bias") if kind == "deberta" else ()  # always 0 there
    sizes = {name: np.abs(exact[name.replace("k_proj.bias", "q_proj.bias")]).max()
             for name in exact if name not in shared[len(shared) // 3:] and not name.endswith(absent)}
    assert min(sizes.values()) > 1e-7
    assert rounds_like(*(np.concatenate([np.ravel(x[name] / sizes[name]) for name in sizes])
                         for x in (found, single, exact)))
