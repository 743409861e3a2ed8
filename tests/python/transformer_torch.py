"""The formulas of include/multihead/transformer.h in basic torch operations, for any dtype.

A model is a namespace of settings (the fields of mha_transformer_desc, with all defaults) and a
dict of parameters with the names of mha_transformer_parameter(). It does not use torch.nn, so it
does not depend on the computations of torch's modules.
"""
import torch

import training_ctypes as training


def norm(model, p, name, x):
    d = model.desc
    if d.norm == training.NORMS["none"]:
        return x
    weight = p[f"{name}.weight"]
    if d.norm == training.NORMS["rms"]:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + d.norm_epsilon) * weight
    x = x - x.mean(-1, keepdim=True)
    return (x / torch.sqrt((x * x).mean(-1, keepdim=True) + d.norm_epsilon) * weight
            + p[f"{name}.bias"])


def linear(p, name, x):
    y = x @ p[f"{name}.weight"].T
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def turn(x, base):
    """RoPE with pairs of halves: elements i and i + D/2 are rotated by the angle t base^(-2i/D)."""
    half = x.shape[-1] // 2
    rates = base ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def attention(model, p, name, x, source, keep, rotary, gates, hook=None):
    d = model.desc
    B, T, S = x.shape[0], x.shape[1], source.shape[1]

    def split(projection, y, heads, length):
        return linear(p, f"{name}.{projection}", y).view(B, length, heads,
                                                         d.head_dim).transpose(1, 2)

    q = split("q_proj", x, d.num_heads, T)
    k, v = (split(kind, source, d.kv_heads, S) for kind in ("k_proj", "v_proj"))
    if rotary:
        q, k = turn(q, d.rope_base), turn(k, d.rope_base)
    if hook:
        q, k, v = (hook(name, part, y) for part, y in (("q", q), ("k", k), ("v", v)))
    group = d.num_heads // d.kv_heads
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = (q @ k.transpose(2, 3) / d.head_dim ** 0.5).masked_fill(~keep, -torch.inf)
    heads = torch.softmax(scores, -1) @ v
    if gates is not None:
        heads = heads * gates[:, None, None]
    if f"{name}.g_proj.weight" in p:
        heads = heads * torch.sigmoid(split("g_proj", x, d.num_heads, T))
    if hook:
        heads = hook(name, "z", heads)
    return linear(p, f"{name}.o_proj", heads.transpose(1, 2).reshape(B, T, -1))


def feed_forward(model, p, name, x):
    kind = model.desc.feed_forward
    up = linear(p, f"{name}.up_proj", x)
    if kind == training.FEED_FORWARD["swiglu"]:
        gate = linear(p, f"{name}.gate_proj", x)
        up = gate * torch.sigmoid(gate) * up
    elif kind == training.FEED_FORWARD["gelu"]:
        up = up * 0.5 * (1 + torch.erf(up * 0.5 ** 0.5))
    else:
        up = torch.relu(up)
    return linear(p, f"{name}.down_proj", up)


def seen(lengths, B, keys):
    """[B,1,1,keys] of bool."""
    if lengths is None:
        return torch.ones(B, 1, 1, keys, dtype=torch.bool)
    return (torch.arange(keys) < torch.tensor(lengths)[:, None])[:, None, None]


def forward(model, p, tokens, lengths=None, memory=None, memory_lengths=None, gates=None,
            cross_gates=None, hook=None, mixers=None):
    """Logits or, with no_output, the last x. `mixers` is {layer: f(p, x, gates)}, which replace
    attention. hook(name of the attention, "q", "k", "v" or "z", [B,H,T,D]) returns a replacement;
    it is also called with ("stream", "end", x) after the last layer."""
    d = model.desc
    B, T = tokens.shape
    has = {name: bool(d.flags & bit) for name, bit in training.FLAGS.items()}
    x = p["embed_tokens.weight"][tokens]
    if d.positions == training.POSITIONS["learned"]:
        x = x + p["embed_positions.weight"][:T]
    if has["embedding_norm"]:
        x = norm(model, p, "embed_norm", x)
    keep = seen(lengths, B, T)
    if has["causal"]:
        keep = keep & (torch.arange(T) <= torch.arange(T)[:, None])

    def step(name, x, function):
        if has["post_norm"]:
            return norm(model, p, name, x + function(x))
        return x + function(norm(model, p, name, x))

    for i in range(d.num_layers):
        layer = f"layers.{i}"
        own = None if gates is None else gates[i]
        x = step(f"{layer}.self_attn_norm", x, lambda y: mixers[i](p, y, own) if i in (mixers or ()) else attention(
            model, p, f"{layer}.self_attn", y, y, keep, d.positions == training.POSITIONS["rotary"], own, hook))
        if has["cross"]:
            x = step(f"{layer}.cross_attn_norm", x, lambda y: attention(
                model, p, f"{layer}.cross_attn", y, memory,
                seen(memory_lengths, B, memory.shape[1]), False,
                None if cross_gates is None else cross_gates[i]))
        if d.ff_dim:
            x = step(f"{layer}.mlp_norm", x,
                     lambda y: feed_forward(model, p, f"{layer}.mlp", y))
    if hook:
        x = hook("stream", "end", x)
    if not has["post_norm"]:
        x = norm(model, p, "norm", x)
    if has["no_output"]:
        return x
    return x @ p["embed_tokens.weight" if has["tied"] else "lm_head.weight"].T


def leaves(model, dtype):
    """The model's current parameters, as leaves of autograd."""
    return {name: torch.tensor(value, dtype=dtype, requires_grad=True)
            for name, value in model.parameters().items()}


def loss(logits, targets):
    """The mean cross-entropy of targets that are not -1."""
    flat, at = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
    counts = at >= 0
    flat, at = flat[counts], at[counts].long()
    return (torch.logsumexp(flat, -1) - flat[torch.arange(len(at)), at]).mean()
