"""libmultihead-circuits compared with the definitions in NumPy, which decomposes E x E and V x V
matrices directly in float64. The test has all heads of tiny models of several families, and some
heads of SmolLM2 and MiniLM, which transformers loads. The relative tolerance is 1e-4. Singular
vectors must agree within 5e-3 times (largest value / distance to the next one), because close
values determine only their span."""
import ctypes as C
import functools

import numpy as np
import pytest

import circuits_ctypes as circuits
import multihead_ctypes as mha
from shared import MINILM, SMOLLM2, needs
import training_ctypes as training

pytestmark = pytest.mark.skipif(circuits.library() is None, reason="built without MHA_CIRCUITS")
TOLERANCE, VECTORS = 1e-4, 5e-3
QK_NORM, NO_ROPE, INTERLEAVED = 4, 32, 64
LINEAR, LLAMA3, YARN = 0, 1, 2
BRANCH_NORM, QKV_BIAS, PARALLEL = 1 << 10, 1 << 7, 1 << 11


# ---- the definitions ------------------------------------------------------------------------------------

def frequencies(dim, base=10000.0, factor=1.0, scaling=LINEAR, low=1.0, high=4.0, length=0, **_):
    f = base ** (-2 * np.arange(dim // 2) / dim)
    if scaling == LINEAR:
        return f / factor
    if scaling == LLAMA3:
        turns = length * f / (2 * np.pi)
        slow = np.clip((high - turns) / (high - low), 0, 1)
    else:
        def pair(turns):
            return dim * np.log(length / (turns * 2 * np.pi)) / (2 * np.log(base))
        first, last = (np.clip(x, 0, dim - 1) for x in (np.floor(pair(high)), np.ceil(pair(low))))
        slow = np.clip((np.arange(dim // 2) - first) / max(last - first, 1e-3), 0, 1)
    return f / factor * slow + f * (1 - slow)


def rotation(D, offsets, rope):
    """[D,D], the mean rotation of a key over its offsets before the query."""
    if rope is None:
        return np.eye(D)
    dim = rope.get("dim") or D
    angles = -np.array(offsets)[:, None] * frequencies(dim, **{k: v for k, v in rope.items() if k != "dim"})
    cosines, sines, R = np.cos(angles).mean(0), np.sin(angles).mean(0), np.eye(D)
    for i in range(dim // 2):
        a, b = (2 * i, 2 * i + 1) if rope.get("interleaved") else (i, i + dim // 2)
        R[a, a] = R[b, b] = cosines[i]
        R[a, b], R[b, a] = -sines[i], sines[i]
    R[:dim, :dim] *= rope.get("amplitude", 1.0) ** 2
    return R


def centring(E, layer_norm):
    return np.eye(E) - np.ones((E, E)) / E if layer_norm else np.eye(E)


class Model:
    """Weights in float64 for the definitions. norm: "layer", "rms" or "none"."""

    def __init__(self, p, norm, pre_norm, H, Hk, D, ropes, epsilon=1e-5, embed_scale=1.0, tied=False,
                 residual_scale=1.0, logit_scale=1.0):
        self.p = {name: np.asarray(array, np.float64) for name, array in p.items()}
        self.layer_norm, self.norm, self.pre_norm = norm == "layer", norm, pre_norm and norm != "none"
        self.H, self.Hk, self.D, self.ropes, self.epsilon = H, Hk, D, ropes, epsilon
        self.E = self.p["embed_tokens.weight"].shape[1]
        self.embed_scale, self.tied = embed_scale, tied
        self.residual_scale, self.logit_scale = residual_scale, logit_scale

    def part(self, layer, name):
        return self.p.get(f"layers.{layer}.{name}.weight")

    def reading(self, layer):
        """The preceding norm of an already normalised vector."""
        if not self.pre_norm:
            return np.eye(self.E)
        return np.diag(self.part(layer, "self_attn_norm")) @ centring(self.E, self.layer_norm)

    def rows(self, layer, name, head, scale=None):
        w = self.part(layer, f"self_attn.{name}_proj")[head * self.D:(head + 1) * self.D]
        gain = self.part(layer, f"self_attn.{scale}") if scale else None
        return (w if gain is None else gain[:, None] * w) @ self.reading(layer)

    def qk(self, layer, head, offsets):
        R = rotation(self.D, offsets, self.ropes[layer])
        return (self.rows(layer, "q", head, "q_norm").T @ R
                @ self.rows(layer, "k", head // (self.H // self.Hk), "k_norm"))

    def ov(self, layer, head):
        w = self.part(layer, "self_attn.o_proj")[:, head * self.D:(head + 1) * self.D]
        gain = self.part(layer, "self_attn_post_norm")
        if gain is not None:
            w = gain[:, None] * (centring(self.E, self.layer_norm) @ w)
        return self.residual_scale * w @ self.rows(layer, "v", head // (self.H // self.Hk))

    def deviation(self, x):
        x = x - x.mean(1, keepdims=True) if self.layer_norm else x
        return np.sqrt((x * x).mean(1, keepdims=True) + self.epsilon)

    @functools.lru_cache(maxsize=None)
    def embedding(self, normed):
        x = self.p["embed_tokens.weight"] * self.embed_scale
        gain = self.p.get("embed_norm.weight")
        if gain is not None:
            size = self.deviation(x) if normed else 1
            x = (x @ centring(self.E, self.layer_norm)) * gain / size
        return x / self.deviation(x) if normed and self.pre_norm else x

    @functools.lru_cache(maxsize=None)
    def output(self, normed):
        w = self.p["embed_tokens.weight"] if self.tied else self.p.get("lm_head.weight")
        if w is None:
            return self.embedding(normed)
        if self.pre_norm:
            w = w * self.p["norm.weight"] @ centring(self.E, self.layer_norm)
        return self.logit_scale * w

    @functools.lru_cache(maxsize=None)
    def products(self, normed):
        """T^T U and T^T T, [E,E]."""
        T = self.embedding(normed)
        return T.T @ self.output(normed), T.T @ T


def score(values):
    sizes = np.abs(values).sum()
    return values.sum().real / sizes if sizes else 0.0


def eigenvalue_score(left, M, right, product):
    """Eigenvalues of left M right^T [V,V] or, if it is too large, the equal eigenvalues of M
    product [E,E], where product = right^T left."""
    return score(np.linalg.eigvals(left @ M @ right.T if product is None else M @ product))


# ---- comparisons ----------------------------------------------------------------------------------------

def check_values(got, wanted):
    np.testing.assert_allclose(got, wanted[:len(got)], rtol=TOLERANCE, atol=1e-6 * wanted[0])


def check_vectors(M, values, left, right, decomposed):
    """u^T M v = s for each pair, and u equals NumPy's up to a common sign."""
    u, s, vt = decomposed
    for k in range(len(left)):
        assert abs(left[k] @ M @ right[k] - values[k]) < TOLERANCE * s[0]
        assert abs(np.linalg.norm(left[k]) - 1) < 1e-6 and abs(np.linalg.norm(right[k]) - 1) < 1e-6
        apart = min([abs(s[k] - s[j]) for j in (k - 1, k + 1) if 0 <= j < len(s)])
        if apart < 1e-3 * s[0]:
            continue
        sign = np.sign(u[:, k] @ left[k])
        bound = VECTORS * min(1.0, 1e-3 * s[0] / apart)
        assert np.linalg.norm(sign * u[:, k] - left[k]) < bound + 1e-6
        assert np.linalg.norm(sign * vt[k] - right[k]) < bound + 1e-6
        assert left[k][np.argmax(np.abs(left[k]))] > 0


def check_head(model, found, layer, head, offsets, normed, whole):
    K = found["queries"].shape[2]
    for M, values, left, right in (
            (model.qk(layer, head, offsets), "qk_values", "queries", "keys"),
            (model.ov(layer, head), "ov_values", "writes", "reads")):
        values = found[values][layer, head]
        decomposed = np.linalg.svd(M)
        check_values(values[:min(model.D, model.E)], decomposed[1])
        assert (values[model.E:] == 0).all()
        check_vectors(M, values, found[left][layer, head].astype(float), found[right][layer, head].astype(float),
                      decomposed)
    T, U = model.embedding(normed), model.output(normed)
    copies, matches = (None, None) if whole else model.products(normed)
    assert abs(found["copying"][layer, head]
               - eigenvalue_score(U, model.ov(layer, head), T, copies)) < TOLERANCE
    assert abs(found["matching"][layer, head]
               - eigenvalue_score(T, model.qk(layer, head, offsets), T, matches)) < TOLERANCE
    assert K > 0


def check_tokens(model, net, directions, side, normed, context=None):
    table = model.embedding(normed) if side == "embedding" else model.output(normed)
    most = min(10, len(table))
    ids, values = circuits.tokens(net, directions, most, side, context, circuits.NORMED_TOKENS if normed else 0)
    for direction, own_ids, own in zip(directions, ids, values):
        each = table @ direction.astype(float)
        bound = TOLERANCE * np.abs(each).max()
        for end, sign in ((0, 1), (1, -1)):
            assert np.abs(each[own_ids[end]] - own[end]).max() < bound
            assert np.abs(np.sort(-sign * each)[:most] + sign * own[end]).max() < bound


# ---- tiny models ----------------------------------------------------------------------------------------

COMMON = dict(vocab_size=37, max_length=64, embed_dim=24, num_layers=2, num_heads=4, ff_dim=16)
FAMILIES = {
    "llama": dict(norm="rms", positions="rotary", kv_heads=2, causal=True, feed_forward="swiglu"),
    "llama 3": dict(norm="rms", positions="rotary", kv_heads=1, causal=True, tied=True,
                    rope=dict(scaling=LLAMA3, factor=8.0, low=1.0, high=4.0, length=16, base=50.0)),
    "yarn": dict(norm="rms", positions="rotary", causal=True, head_dim=8,
                 rope=dict(scaling=YARN, factor=4.0, low=1.0, high=32.0, length=32, base=100.0, amplitude=1.25)),
    "linear scaling": dict(norm="rms", positions="rotary", causal=True, rope=dict(factor=2.0, base=20.0)),
    "gpt-2": dict(norm="layer", positions="learned", causal=True, tied=True, bias=True),
    "gpt-neox": dict(norm="layer", positions="rotary", causal=True, bias=True, flags=PARALLEL, head_dim=8,
                     rope=dict(dim=4)),
    "gpt-j": dict(norm="layer", positions="rotary", causal=True, flags=PARALLEL, rope=dict(interleaved=True)),
    "bert": dict(norm="layer", positions="learned", post_norm=True, embedding_norm=True, bias=True, no_output=True),
    "qwen 3": dict(norm="rms", positions="rotary", causal=True, kv_heads=2, head_dim=8, qk_norm=True, rope={}),
    "gemma 2": dict(norm="rms", positions="rotary", causal=True, kv_heads=2, tied=True, embed_scale=24 ** 0.5,
                    flags=BRANCH_NORM),
    "granite": dict(norm="rms", positions="rotary", causal=True, kv_heads=2, tied=True, embed_scale=3.0,
                    residual_scale=0.5, logit_scale=0.3),
    "branch layer norm": dict(norm="layer", positions="none", flags=BRANCH_NORM, embedding_norm=True),
    "no norm": dict(norm="none", positions="sinusoidal", causal=True),
    "wide heads": dict(norm="rms", positions="rotary", causal=True, head_dim=32),
}


def make_family(name, seed):
    fields = {**COMMON, **FAMILIES[name]}
    rope, qk_norm, more = fields.pop("rope", None), fields.pop("qk_norm", False), fields.pop("flags", 0)
    said = rope
    if fields["positions"] == "rotary" and rope is None:
        rope = {}
    layers = (circuits.LayerDesc * fields["num_layers"])()
    if said is not None:
        for layer in layers:
            layer.struct_size = C.sizeof(circuits.LayerDesc)
            layer.flags = (QK_NORM if qk_norm else 0) | (INTERLEAVED if rope.get("interleaved") else 0)
            layer.rotary_dim, layer.rope_base = rope.get("dim", 0), rope.get("base", 0)
            layer.rope_factor, layer.rope_scaling = rope.get("factor", 0), rope.get("scaling", 0)
            if layer.rope_scaling:
                layer.rope_low, layer.rope_high = rope["low"], rope["high"]
                layer.rope_original_length, layer.rope_amplitude = rope["length"], rope.get("amplitude", 0)
        fields["layers"] = layers
    training.FLAGS["more"] = more
    net = training.Transformer(more=bool(more), **fields)
    net.initialise(seed, embedding_std=1.0)
    rng = np.random.default_rng(seed)
    net.data += rng.normal(scale=0.2, size=net.data.shape).astype(np.float32)
    net.update()
    d = net.desc
    model = Model(net.parameters(), fields["norm"], not fields.get("post_norm"), d.num_heads, d.kv_heads, d.head_dim,
                  [rope] * d.num_layers, d.norm_epsilon, fields.get("embed_scale", 1.0), fields.get("tied", False),
                  fields.get("residual_scale", 1.0), fields.get("logit_scale", 1.0))
    return net, model


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_families(family, normed):
    net, model = make_family(family, 7)
    flags = circuits.NORMED_TOKENS if normed else 0
    for first, last in ((0, 0), (3, 3), (0, 40), (-5, -1)):
        found = circuits.circuits(net.handle, net.desc, first_offset=first, last_offset=last, directions=4, flags=flags)
        for layer in range(net.desc.num_layers):
            for head in range(net.desc.num_heads):
                check_head(model, found, layer, head, range(first, last + 1), normed, True)
    for side, name in (("embedding", "keys"), ("unembedding", "writes")):
        check_tokens(model, net.handle, found[name][1].reshape(-1, net.desc.embed_dim), side, normed)


# ---- real models ----------------------------------------------------------------------------------------

def hugging_face(names, state):
    return {ours.format(l): state[theirs.format(l)] for ours, theirs in names.items()
            for l in range(100) if theirs.format(l) in state}


LLAMA = {"embed_tokens.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight",
         "layers.{0}.self_attn_norm.weight": "model.layers.{0}.input_layernorm.weight",
         **{f"layers.{{0}}.self_attn.{x}_proj.weight": f"model.layers.{{0}}.self_attn.{x}_proj.weight" for x in "qkvo"}}
BERT = {"embed_tokens.weight": "embeddings.word_embeddings.weight", "embed_norm.weight": "embeddings.LayerNorm.weight",
        "layers.{0}.self_attn.o_proj.weight": "encoder.layer.{0}.attention.output.dense.weight",
        **{f"layers.{{0}}.self_attn.{x[0]}_proj.weight": f"encoder.layer.{{0}}.attention.self.{x}.weight"
           for x in ("query", "key", "value")}}


def open_model(path):
    """The program's model and its transformer's description."""
    import multihead
    model = multihead.Model(path)
    return model, C.c_void_p(model._net), model._desc


def check_real(net, desc, model, heads, offsets):
    chosen = np.zeros((desc.num_layers, desc.num_heads), np.uint8)
    for layer, head in heads:
        chosen[layer, head] = 1
    for first, last in offsets:
        found = circuits.circuits(net, desc, first_offset=first, last_offset=last, directions=4, heads=chosen)
        assert np.isfinite(found["copying"]).sum() == len(heads)
        for layer, head in heads:
            check_head(model, found, layer, head, range(first, last + 1), False, False)
    layer, head = heads[0]
    for side, name in (("embedding", "reads"), ("unembedding", "writes"), ("embedding", "queries")):
        check_tokens(model, net, found[name][layer, head], side, False)


@pytest.mark.gate(0)
def test_smollm2(smollm2):
    config, state = smollm2.config, {k: v.numpy() for k, v in smollm2.state_dict().items()}
    owner, net, desc = open_model(SMOLLM2)
    base = getattr(config, "rope_theta", None) or config.rope_parameters["rope_theta"]
    model = Model(hugging_face(LLAMA, state), "rms", True, config.num_attention_heads, config.num_key_value_heads,
                  config.hidden_size // config.num_attention_heads, [{"base": base}] * config.num_hidden_layers,
                  config.rms_norm_eps, tied=True)
    check_real(net, desc, model, [(16, 0), (17, 8)], ((1, 1), (0, 63)))
    assert owner


def test_minilm():
    transformers = pytest.importorskip("transformers")
    needs(MINILM, "is missing: tools/get-minilm fetches it")
    reference = transformers.AutoModel.from_pretrained(MINILM)
    config, state = reference.config, {k: v.numpy() for k, v in reference.state_dict().items()}
    owner, net, desc = open_model(MINILM)
    H = config.num_attention_heads
    model = Model(hugging_face(BERT, state), "layer", False, H, H, config.hidden_size // H,
                  [None] * config.num_hidden_layers, config.layer_norm_eps)
    check_real(net, desc, model, [(0, 3), (5, 0)], ((0, 0),))
    assert owner


def test_structs_are_sized():
    """A struct of a different size is rejected, and not read beyond its end."""
    net, _ = make_family("gpt-2", 1)
    asked, out = circuits.CircuitsDesc(struct_size=12), circuits.Circuits()
    with pytest.raises(mha.MultiheadError, match="struct_size"):
        mha.check(circuits.library().mha_transformer_circuits(net.context.handle, net.handle, C.byref(asked),
                                                              C.byref(out)))
