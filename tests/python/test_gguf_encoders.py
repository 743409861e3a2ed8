"""GGUF files of encoders, of T5 and of MiniCPM3, written by the package gguf with its names of tensors and the rules of
llama.cpp's converters: the bits of the folder, and rejected metadata. The models are random."""
import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import multihead
import multihead_ctypes as mha
from test_encoders_hf import LENGTH, their_model
from test_experts_hf import make_net, save
from test_gguf_models import Model
from test_latent_hf import LATENT
from test_towers_hf import net_of, write_tokenizer

gguf = pytest.importorskip("gguf")
ARCH, SUFFIXES = gguf.MODEL_ARCH, (".weight", ".bias")

ENCODERS = {
    "bert": (ARCH.BERT, [{}, dict(type_vocab_size=3, layer_norm_eps=1e-2)]),
    "distilbert": (ARCH.BERT, [dict(n_layers=3, dim=32, n_heads=4, hidden_dim=56)]),
    "roberta": (ARCH.BERT, [{}]),
    "nomic_bert": (ARCH.NOMIC_BERT, [{}, dict(head_dim=8, rope_parameters=dict(rope_type="default", rope_theta=50.0))]),
    "modernbert": (ARCH.MODERN_BERT, [dict(num_hidden_layers=7, local_attention=8), dict(
        local_attention=4, norm_bias=True, attention_bias=True, mlp_bias=True, num_hidden_layers=4, norm_eps=1e-2)]),
    "gemma3_text": (ARCH.GEMMA_EMBEDDING, [dict(use_bidirectional_attention=True, head_dim=8, num_key_value_heads=2,
                                                num_hidden_layers=7, sliding_window=6, query_pre_attn_scalar=8)])}


def write_file(path, arch, keys, state, bid=16):
    """A file of the tensors of a folder. `state` has those that the converter keeps, in its form."""
    name, names = gguf.MODEL_ARCH_NAMES[arch], gguf.get_tensor_name_map(arch, bid)
    writer = gguf.GGUFWriter(path, name)
    add = {bool: writer.add_bool, str: writer.add_string, float: writer.add_float32, int: writer.add_uint32,
           list: writer.add_array}
    for key, value in keys.items():
        if value is not None:
            add[type(value)](key.removeprefix("/") if key.startswith("/") else f"{name}.{key}", value)
    for tensor, data in state.items():
        writer.add_tensor(names.get_name(tensor, try_suffixes=SUFFIXES) or tensor, np.ascontiguousarray(data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def encoder_keys(own, arch):
    get = lambda *names: next((value for n in names if (value := getattr(own, n, None)) is not None), None)
    keys = {"block_count": own.num_hidden_layers, "context_length": own.max_position_embeddings,
            "embedding_length": own.hidden_size, "attention.head_count": own.num_attention_heads,
            "feed_forward_length": get("intermediate_size", "hidden_dim")}
    if arch == ARCH.GEMMA_EMBEDDING:
        return {**keys, "attention.head_count_kv": own.num_key_value_heads, "attention.key_length": own.head_dim,
                "attention.layer_norm_rms_epsilon": own.rms_norm_eps, "attention.sliding_window": 6,
                "rope.freq_base": 1e6}
    keys |= {"attention.causal": False, "attention.layer_norm_epsilon": float(get("layer_norm_eps", "norm_eps") or 1e-12)}
    if arch == ARCH.NOMIC_BERT:
        keys |= {"rope.freq_base": own.rope_parameters["rope_theta"], "attention.key_length": get("head_dim")}
    if arch == ARCH.MODERN_BERT:
        ropes = own.rope_parameters
        keys |= {"attention.sliding_window": own.local_attention, "attention.sliding_window_pattern": 3,
                 "rope.freq_base": float(ropes["full_attention"]["rope_theta"]),
                 "rope.freq_base_swa": float(ropes["sliding_attention"]["rope_theta"])}
    return keys


def encoder_file(tmp_path, kind, options, **changes):
    model = their_model(kind, options, 51)
    model.save_pretrained(tmp_path / "folder")
    if kind == "gemma3_text":  # transformers saves the halved window
        config = tmp_path / "folder" / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "sliding_window": 6}))
    arch, own = ENCODERS[kind][0], model.config
    keys, state = encoder_keys(own, arch), load_file(tmp_path / "folder/model.safetensors")
    state = {name: data for name, data in state.items() if "pooler" not in name and "position_ids" not in name}
    if kind == "roberta":
        state["embeddings.position_embeddings.weight"] = state["embeddings.position_embeddings.weight"][2:]
        keys["context_length"] -= 2
    if kind == "gemma3_text":
        state = {f"model.{name}": data + ("norm" in name) for name, data in state.items()}
        state["dense_2.weight"] = np.zeros((8, own.hidden_size), np.float32)
    return write_file(tmp_path / "model.gguf", arch, {**keys, **changes}, state)


@pytest.mark.parametrize("kind, options", [(kind, each) for kind, (_, all_of) in ENCODERS.items() for each in all_of], ids=str)
def test_encoders_have_the_bits_of_the_folder(tmp_path, kind, options):
    ids = np.random.default_rng(5).integers(3, 60, (2, LENGTH))
    path = encoder_file(tmp_path, kind, options)
    assert np.array_equal(Model(path)(ids), Model(tmp_path / "folder")(ids))


@pytest.mark.parametrize("kind, key, value, error", [
    ("bert", "attention.causal", True, "'bert.attention.causal' is true, which is not supported"),
    ("bert", "context_length", 7, "position_embd.weight' has shape"),
    ("modernbert", "attention.sliding_window", 1, "'modern-bert.attention.sliding_window'"),
    ("modernbert", "attention.sliding_window_pattern", [True], "one for each layer"),
    ("nomic_bert", "attention.key_length", 10, "shape|describes at least")])
def test_hostile_keys_of_encoders_are_refused(tmp_path, kind, key, value, error):
    with pytest.raises(mha.MultiheadError, match=error):
        Model(encoder_file(tmp_path, kind, ENCODERS[kind][1][0], **{key: value}))


PIECES = {"tokens": ["<pad>", "</s>", "<unk>", "▁", *map(chr, range(33, 126))], "scores": [-1.0] * 97,
          "token_type": [3, 3, 2] + [1] * 94, "model": "t5", "eos_token_id": 1, "padding_token_id": 0}


def t5_file(path, net, arch=ARCH.T5, **changes):
    own = net.config
    keys = {"block_count": own.num_layers, "context_length": 512, "embedding_length": own.d_model,
            "feed_forward_length": own.d_ff, "attention.head_count": own.num_heads, "attention.key_length": own.d_kv,
            "attention.value_length": own.d_kv, "attention.layer_norm_epsilon": own.layer_norm_epsilon,
            "attention.layer_norm_rms_epsilon": own.layer_norm_epsilon,
            "attention.relative_buckets_count": own.relative_attention_num_buckets}
    if arch == ARCH.T5:
        keys |= {"decoder_block_count": own.num_decoder_layers, "decoder_start_token_id": own.decoder_start_token_id}
    keys |= {f"/tokenizer.ggml.{key}": value for key, value in PIECES.items()}
    state = {name: data.numpy() for name, data in net.state_dict().items() if "embed_tokens" not in name}
    if net.lm_head.weight is net.shared.weight:
        del state["lm_head.weight"]
    if arch == ARCH.T5ENCODER:
        state = {name: data for name, data in state.items() if name.startswith(("shared", "encoder"))}
    return write_file(path, arch, {**keys, **changes}, state)


@pytest.mark.parametrize("kind, tied", [("t5", True), ("t5, flan", True), ("t5, flan", False)])
def test_t5_has_the_bits_of_the_folder(tmp_path, kind, tied):
    net = net_of(kind)
    if not tied:
        net.lm_head.weight = torch.nn.Parameter(torch.randn(97, 48))
    net.save_pretrained(tmp_path / "folder")
    write_tokenizer(tmp_path / "folder")
    own = multihead.Model(tmp_path / "folder"), multihead.Model(t5_file(tmp_path / "t5.gguf", net))
    source, target = list(range(3, 60)), [0, 5, 9, 33, 21]
    folder, file = (model.logits(target, source=source) for model in own)
    assert np.array_equal(file, folder)
    assert own[1].start_tokens == own[0].start_tokens
    encoder = Model(t5_file(tmp_path / "encoder.gguf", net, ARCH.T5ENCODER))
    assert np.array_equal(encoder(np.array([source]))[0], own[0]._encode(source)[1][0])


@pytest.mark.parametrize("key, value, error", [
    ("decoder_block_count", 4, "dec.blk.3|describes at least"), ("decoder_block_count", 0, "'t5.decoder_block_count' is 0"),
    ("attention.relative_buckets_count", 31, "attn_rel_b.weight' has shape"),
    ("attention.key_length", 0, "'t5.attention.key_length' is 0"), ("decoder_start_token_id", 97, "'t5.decoder_start_token_id' is 97, expected a token of 0..96")])
def test_hostile_keys_of_t5_are_refused(tmp_path, key, value, error):
    with pytest.raises(mha.MultiheadError, match=error):
        multihead.Model(t5_file(tmp_path / "t5.gguf", net_of("t5"), **{key: value}))


def minicpm3_file(path, net, factors=None, **changes):
    own = net.config
    keys = {"block_count": own.num_hidden_layers, "context_length": own.max_position_embeddings,
            "embedding_length": own.hidden_size, "feed_forward_length": own.intermediate_size,
            "attention.head_count": own.num_attention_heads, "attention.head_count_kv": own.num_key_value_heads,
            "attention.layer_norm_rms_epsilon": own.rms_norm_eps, "attention.q_lora_rank": own.q_lora_rank,
            "attention.kv_lora_rank": own.kv_lora_rank, "attention.key_length": own.qk_nope_head_dim + own.qk_rope_head_dim,
            "rope.dimension_count": own.qk_rope_head_dim}
    state = {name: data.numpy() for name, data in net.state_dict().items()
             if not (own.tie_word_embeddings and name == "lm_head.weight")}
    for name, row in (factors or {}).items():
        state[f"rope_factors_{name}.weight"] = np.array(row, np.float32)
    return write_file(path, ARCH.MINICPM3, {**keys, **changes}, state)


@pytest.mark.parametrize("factors", [None, {"short": [1., 1.25, 1.5, 1.75], "long": [2., 3., 5., 9.]}])
def test_minicpm3_has_the_bits_of_the_folder(tmp_path, factors):
    fields = {**LATENT, "hidden_size": 64, "v_head_dim": 16, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}
    if factors:
        fields |= {"max_position_embeddings": 60, "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 60,
            **{f"{name}_factor": row for name, row in factors.items()}}}
    net = make_net("MiniCPM3", fields)
    ids = torch.randint(0, 97, (1, 55)).numpy()
    save(net, tmp_path)
    assert np.array_equal(Model(minicpm3_file(tmp_path / "m.gguf", net, factors))(ids), Model(tmp_path)(ids))
