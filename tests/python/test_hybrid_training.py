"""Gradients of hybrids compared with torch: autograd in float64 of transformers' gated delta net of
Qwen 3.5 and Mamba-2 layer of Nemotron-H, of whole models with Mamba-2 layers, and of the formulas of
short convolutions and output gates."""
import ctypes as C

import numpy as np
import pytest
import torch
import transformers

import checkpoint_ctypes as ck
import training_ctypes as training
import transformer_torch as plain
from decoder_checks import Double, doubled, gradients_of_whole
from multihead._abi import LayerDesc
from test_hybrid_hf import KINDS, SIZES as HF_SIZES
from test_training_torch import batch, gradients_of, near

SIZES = {"vocab_size": 23, "max_length": 80, "embed_dim": 32, "num_layers": 3, "num_heads": 4, "kv_heads": 2,
         "head_dim": 8, "ff_dim": 40, "causal": True, "norm": "rms", "positions": "rotary", "feed_forward": "swiglu"}
DELTA = {"mixer": 1, "conv_kernel": 4, "key_dim": 6, "value_dim": 10}
GATED, CONVOLUTION = {"flags": 1 << 7}, {"mixer": 2, "conv_kernel": 3}
SPACE = {"mixer": 3, "conv_kernel": 4, "key_dim": 6, "value_dim": 10}
MODELS = {"gdn, gated attention, gdn": (DELTA, GATED, {**DELTA, "conv_kernel": 1, "key_dim": 9}),
          "convolution, gdn, convolution": (CONVOLUTION, DELTA, CONVOLUTION),
          "mamba2, gated attention, mamba2": (SPACE, GATED, {**SPACE, "conv_kernel": 1, "key_dim": 9,
                                                             "step_least": 0.02})}


class Delta:
    """transformers' layer as a function of the library's parameters."""

    def __init__(self, layer, desc):
        self.name, self.wide = f"layers.{layer}.delta_net", desc["value_dim"]
        self.module = transformers.models.qwen3_5.modeling_qwen3_5.Qwen3_5GatedDeltaNet(
            transformers.Qwen3_5TextConfig(
                hidden_size=SIZES["embed_dim"], num_hidden_layers=1, layer_types=["linear_attention"],
                linear_num_key_heads=SIZES["kv_heads"], linear_num_value_heads=SIZES["num_heads"],
                linear_key_head_dim=desc["key_dim"], linear_value_head_dim=self.wide,
                linear_conv_kernel_dim=desc["conv_kernel"], rms_norm_eps=1e-5), 0).double()

    def __call__(self, p, x, gates):
        def own(name):
            return p[f"{self.name}.{name}"]
        opened = own("o_proj.weight") * gates.repeat_interleave(self.wide)
        parameters = {"in_proj_qkv.weight": torch.cat([own(f"{kind}_proj.weight") for kind in "qkv"]),
                      "in_proj_z.weight": own("g_proj.weight"), "in_proj_b.weight": own("b_proj.weight"),
                      "in_proj_a.weight": own("a_proj.weight"), "conv1d.weight": own("conv.weight")[:, None],
                      "A_log": own("A_log"), "dt_bias": own("dt_bias"), "norm.weight": own("o_norm.weight"),
                      "out_proj.weight": opened}
        return torch.func.functional_call(self.module, parameters, (x,))


class Space:
    def __init__(self, layer, desc):
        self.name, self.wide = f"layers.{layer}.state_space", desc["value_dim"]
        self.module = transformers.models.nemotron_h.modeling_nemotron_h.NemotronHMamba2Mixer(
            transformers.NemotronHConfig(
                hidden_size=SIZES["embed_dim"], layers_block_type=["linear_attention"], n_groups=SIZES["kv_heads"],
                mamba_num_heads=SIZES["num_heads"], mamba_head_dim=self.wide, ssm_state_size=desc["key_dim"],
                conv_kernel=desc["conv_kernel"], layer_norm_epsilon=1e-5, time_step_min=desc.get("step_least", 0.)),
            0).double()

    def __call__(self, p, x, gates):
        def own(name):
            return p[f"{self.name}.{name}"]
        opened = own("o_proj.weight") * gates.repeat_interleave(self.wide)
        parameters = {"in_proj.weight": torch.cat([own(f"{kind}_proj.weight") for kind in "gvkqa"]),
                      "conv1d.weight": own("conv.weight")[:, None], "conv1d.bias": own("conv.bias"),
                      "A_log": own("A_log"), "dt_bias": own("dt_bias"), "D": own("D"),
                      "norm.weight": own("o_norm.weight"), "out_proj.weight": opened}
        return torch.func.functional_call(self.module, parameters, (x,))


class Convolution:
    def __init__(self, layer, desc):
        self.name, self.taps = f"layers.{layer}.short_conv", desc["conv_kernel"]

    def __call__(self, p, x, gates):
        b, c, y = (plain.linear(p, f"{self.name}.{kind}_proj", x) for kind in "bcx")
        padded = torch.nn.functional.pad((b * y).transpose(1, 2), (self.taps - 1, 0))
        mixed = torch.nn.functional.conv1d(padded, p[f"{self.name}.conv.weight"][:, None], groups=y.shape[-1])
        return plain.linear(p, f"{self.name}.o_proj", c * mixed.transpose(1, 2))


@pytest.fixture
def in_double(monkeypatch):
    for module in (transformers.models.qwen3_5.modeling_qwen3_5, transformers.models.nemotron_h.modeling_nemotron_h):
        monkeypatch.setattr(module, "torch", Double())
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


def make(layers, seed=1):
    descs = (LayerDesc * len(layers))(*(LayerDesc(**layer) for layer in layers))
    heads = [0 if layer.get("mixer") == 2 else SIZES["num_heads"] for layer in layers]
    kv = [min(n, SIZES["kv_heads"]) for n in heads]
    lists = [(C.c_int64 * len(layers))(*numbers) for numbers in (heads, kv)]
    model = training.Transformer(**SIZES, layers=descs, layer_heads=lists[0], layer_kv_heads=lists[1])
    model.initialise(seed, embedding_std=0.5)
    rng = np.random.default_rng(seed)
    for name, value in model.parameters().items():
        if value.ndim == 1 and "dt_bias" not in name:  # norms other than 1
            value += 0.2 * rng.standard_normal(value.shape, np.float32)
    model.update()
    return model


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("length", [12, 70])
def test_gradients_are_those_of_autograd(in_double, name, length):
    layers, rng = MODELS[name], np.random.default_rng(length)
    model = make(layers)
    mixers = {i: (Delta, Convolution, Space)[layer["mixer"] - 1](i, layer)
              for i, layer in enumerate(layers) if "mixer" in layer}
    tokens, lengths, targets = batch(rng, 3, length)
    gates = rng.uniform(0.5, 1.5, (3, SIZES["num_heads"])).astype(np.float32)
    loss, dlogits = training.cross_entropy(model.forward(tokens, lengths, gates=gates), targets)
    dgates = np.zeros_like(gates)
    model.backward(dlogits, gates=dgates)
    p = plain.leaves(model, torch.float64) | {
        "gates": torch.tensor(gates, dtype=torch.float64, requires_grad=True)}
    exact_loss = plain.loss(plain.forward(model, p, torch.tensor(tokens), lengths, gates=p["gates"], mixers=mixers),
                            torch.tensor(targets))
    assert abs(loss - exact_loss.item()) <= 1e-6 * exact_loss.item()
    exact = gradients_of(exact_loss, p)
    near("gates", dgates, exact["gates"].numpy(), float(exact["gates"].abs().max()))
    worst = max(near(name, ours, exact[name].numpy(), float(exact[name].abs().max()))
                for name, ours in model.gradients().items())
    print(f"  {name}, {length} tokens: worst gradient {worst:.1e} of its size")


WHOLE = [kind for kind in KINDS if kind.startswith(("bamba", "granite", "mamba2", "nemotron"))]
NAMES = (("backbone.", ""), ("model.", ""), ("embeddings.", "embed_tokens."), ("norm_f.", "norm."),
         ("final_layernorm.", "norm."), ("input_layernorm.", "self_attn_norm."), ("pre_ff_layernorm.", "mlp_norm."),
         ("post_attention_layernorm.", "mlp_norm."), ("feed_forward.", "mlp."), ("mamba.", "state_space."),
         ("conv1d.", "conv."), ("out_proj.", "o_proj."), ("state_space.norm.", "state_space.o_norm."),
         ("shared_mlp.output_linear.", "mlp.down_proj."))
FUSED = {"in_proj.weight": [f"{kind}_proj.weight" for kind in "gvkqa"],
         "shared_mlp.input_linear.weight": ["mlp.gate_proj.weight", "mlp.up_proj.weight"]}


def our_names(name, kinds):
    """Of the parameters whose rows transformers concatenates in one."""
    if "mixer" in name or name.endswith(".norm.weight") and "layers." in name:  # Mamba-2 and Nemotron-H
        kind = kinds[int(name.split("layers.")[1].split(".")[0])]
        name = name.replace("mixer.", {"mlp": "mlp.", "full_attention": "self_attn."}.get(kind, "mamba."))
        if "mamba" not in name:
            name = name.replace(".norm.", ".mlp_norm." if kind == "mlp" else ".self_attn_norm.")
    for theirs, ours in NAMES:
        name = name.replace(theirs, ours)
    for tail, parts in FUSED.items():
        if name.endswith(tail):
            return [name.removesuffix(tail) + part for part in parts]
    return [name]


@pytest.mark.parametrize("kind", WHOLE)
def test_gradients_of_whole_models(tmp_path, kind):
    """The error of all gradients is at most twice that of torch in float32. For one parameter, it is at most ten times
    as large, beside a part of the gradient's own size."""
    config, net, more = KINDS[kind]
    torch.manual_seed(17)
    net = getattr(transformers, net)(getattr(transformers, config)(**{**HF_SIZES, **more})).eval()
    with torch.no_grad():
        for name, p in net.named_parameters():
            if p.ndim > 1:
                p.normal_(0, .3 if "embed" in name else .5 if "conv" in name else .8 / p.shape[-1] ** .5)
            else:
                p += torch.randn_like(p) * .2
    net.save_pretrained(tmp_path)
    ids, targets = torch.randint(0, 97, (2, 2, 70))
    model = ck.Transformer(tmp_path)
    ours = model.parameters(model(ids.numpy(), targets.numpy()))
    rounded = gradients_of_whole(net, ids, targets)
    with doubled(net):
        exact = gradients_of_whole(net, ids, targets)
    worst, sums = 0, np.zeros(2)
    for name, wanted in exact.items():
        given = np.concatenate([ours.pop(part) for part in our_names(name, net.config.layer_types)])
        assert given.size == wanted.size, name
        error, theirs = (np.linalg.norm(x.reshape(-1) - wanted.reshape(-1)) for x in (given, rounded[name]))
        size, sums = np.linalg.norm(wanted), sums + np.square((error, theirs))
        assert error <= 10 * theirs + 2e-5 * size, name
        worst = max(worst, error / size if size else 0)
    assert not ours and sums[0] <= 4 * sums[1]
    print(f"  {kind}: error {(sums[0] / sums[1]) ** .5:.2f} times torch's, worst parameter {worst:.1e} of its size")
