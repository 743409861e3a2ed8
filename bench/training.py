#!/usr/bin/env python3
"""Compare training steps with torch: forward, loss, backward, clipping, AdamW.

    python3 bench/training.py [--threads 1,2] [--seconds 20] [CASE ...]

demo    the model of script/demo: Llama style, width 64, 2 layers, 4 heads, ff 128, 130 words,
        batches of 32 sentences of 30
block   one block of width 512, 8 heads, ff 2048, GELU, on 8 sequences of 512

Library and environment are those of bench/peers.py. The two alternate after every few steps in one process, after a
warm-up turn. Prints medians over turns with quartiles, of wall time and processor time, and the ratio torch / ours. Use
--only ours for profiling. torch uses its fastest features: joined projections, F.scaled_dot_product_attention,
F.rms_norm, fused AdamW.
"""
import argparse
import os
import statistics
import time

import common

CASES = {
    "demo": dict(vocab_size=130, max_length=30, embed_dim=64, num_layers=2, num_heads=4,
                 ff_dim=128, causal=True, norm="rms", positions="rotary", feed_forward="swiglu",
                 batch=32, length=30),
    "block": dict(vocab_size=64, max_length=512, embed_dim=512, num_layers=1, num_heads=8,
                  ff_dim=2048, causal=True, bias=True, norm="layer", positions="learned",
                  feed_forward="gelu", batch=8, length=512),
}
BETAS, RATE, DECAY = (0.9, 0.98), 1e-3, 0.01


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="default: " + ", ".join(CASES))
    parser.add_argument("--threads", type=common.thread_counts, metavar="N,...",
                        default="1,2" if len(os.sched_getaffinity(0)) > 1 else "1")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--only", choices=("ours", "torch"))
    parser.add_argument("--here", action="store_true", help="use the Python that runs this script")
    options = parser.parse_args()
    for case in options.cases:
        if case not in CASES:
            parser.error(f"'{case}' is none of the cases {', '.join(CASES)}")
    return options


if __name__ == "__main__":
    OPTIONS = parse()
    common.start(OPTIONS.here, "numpy", "torch")

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import multihead_ctypes as mha  # noqa: E402
import training_ctypes as training  # noqa: E402


class Ours:
    def __init__(self, case, threads, tokens, targets):
        fields = {name: x for name, x in case.items() if name not in ("batch", "length")}
        self.context = mha.Context(num_threads=threads)
        self.model = training.Transformer(context=self.context, max_tokens=tokens.size, **fields)
        self.model.initialise(1)
        self.tokens, self.targets = tokens, targets
        self.logits = np.empty((*tokens.shape, case["vocab_size"]), np.float32)

    def step(self):
        m = self.model
        m.forward(self.tokens, output=self.logits)
        loss, _ = training.cross_entropy(self.logits, self.targets, self.context, self.logits)
        m.backward(self.logits)
        m.adamw(RATE, BETAS, DECAY, min(1.0, 1.0 / m.norm()))
        m.clear()
        return loss


class Torch:
    def __init__(self, case, threads, tokens, targets, model):
        self.case, self.threads = case, threads
        self.tokens = torch.tensor(tokens).long()
        self.targets = torch.tensor(targets).long().view(-1)
        p = {name: torch.tensor(x) for name, x in model.parameters().items()}
        for i in range(case["num_layers"]):  # joined, torch's fastest form
            for joined, parts in ((f"layers.{i}.self_attn.qkv", "self_attn.{}_proj:q k v"),
                                  (f"layers.{i}.mlp.in", "mlp.{}_proj:gate up")):
                pattern, names = parts.split(":")
                for kind in ("weight", "bias"):
                    keys = [f"layers.{i}.{pattern.format(n)}.{kind}" for n in names.split()]
                    found = [p.pop(key) for key in keys if key in p]
                    if found:
                        p[f"{joined}.{kind}"] = torch.cat(found)
        self.p = {name: x.clone().requires_grad_() for name, x in p.items()}
        matrices = [x for name, x in self.p.items() if x.ndim == 2 and "embed" not in name]
        others = [x for x in self.p.values() if not any(x is m for m in matrices)]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}],
            lr=RATE, betas=BETAS, fused=True)
        half = case["embed_dim"] // case["num_heads"] // 2
        angles = torch.arange(case["length"])[:, None] * 1e4 ** (-torch.arange(half) / half)
        self.cos = torch.cat([angles.cos()] * 2, 1)
        self.sin = torch.cat([-angles.sin(), angles.sin()], 1)

    def norm(self, name, x):
        if self.case["norm"] == "rms":
            return F.rms_norm(x, x.shape[-1:], self.p[f"{name}.weight"], 1e-5)
        return F.layer_norm(x, x.shape[-1:], self.p[f"{name}.weight"], self.p[f"{name}.bias"])

    def linear(self, name, x):
        return F.linear(x, self.p[f"{name}.weight"], self.p.get(f"{name}.bias"))

    def turn(self, x):
        return x * self.cos + torch.roll(x, x.shape[-1] // 2, -1) * self.sin

    def forward(self):
        case, p = self.case, self.p
        B, T = self.tokens.shape
        x = F.embedding(self.tokens, p["embed_tokens.weight"])
        if case["positions"] == "learned":
            x = x + p["embed_positions.weight"]
        for i in range(case["num_layers"]):
            layer = f"layers.{i}"
            qkv = self.linear(f"{layer}.self_attn.qkv", self.norm(f"{layer}.self_attn_norm", x))
            q, k, v = qkv.view(B, T, 3, case["num_heads"], -1).permute(2, 0, 3, 1, 4)
            if case["positions"] == "rotary":
                q, k = self.turn(q), self.turn(k)
            heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            heads = heads.transpose(1, 2).reshape(B, T, -1)
            x = x + self.linear(f"{layer}.self_attn.o_proj", heads)
            up = self.linear(f"{layer}.mlp.in", self.norm(f"{layer}.mlp_norm", x))
            if case["feed_forward"] == "swiglu":
                gate, up = up.chunk(2, -1)
                up = F.silu(gate) * up
            else:
                up = F.gelu(up)
            x = x + self.linear(f"{layer}.mlp.down_proj", up)
        return F.linear(self.norm("norm", x), p["lm_head.weight"])

    def step(self):
        torch.set_num_threads(self.threads)
        self.optimizer.zero_grad(set_to_none=True)
        logits = self.forward()
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), self.targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(self.p.values()), 1.0)
        self.optimizer.step()
        return loss.item()


def measure(runners, seconds, steps):
    """{name: [(wall, processor) milliseconds per step, for each turn]}"""
    found = {name: [] for name in runners}
    end = time.monotonic() + seconds
    turn = 0
    while turn < 4 or time.monotonic() < end:
        for name, runner in runners.items():
            runner.step()  # warms caches and threads
            wall, processor = time.perf_counter(), time.process_time()
            for _ in range(steps):
                runner.step()
            if turn > 0:
                found[name].append(((time.perf_counter() - wall) / steps * 1e3,
                                    (time.process_time() - processor) / steps * 1e3))
        turn += 1
    return found


def spread(values):
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def run(name, threads, seconds, only):
    case = CASES[name]
    rng = np.random.default_rng(1)
    shape = (case["batch"], case["length"])
    tokens, targets = (rng.integers(0, case["vocab_size"], shape, np.int32) for _ in range(2))
    ours = Ours(case, threads, tokens, targets)
    runners = {"ours": ours, "torch": Torch(case, threads, tokens, targets, ours.model)}
    losses = [runner.step() for runner in runners.values()]
    assert abs(losses[0] / losses[1] - 1) < 1e-5, losses
    if only:
        runners = {only: runners[only]}
    found = measure(runners, seconds, 10 if name == "demo" else 1)
    cells = [spread([turn[i] for turn in turns]) for i in (0, 1) for turns in found.values()]
    for i in (0, 1):
        if not only:
            ratios = [b[i] / a[i] for a, b in zip(found["ours"], found["torch"])]
            cells.append(spread(ratios))
    print(f"| {name} | {threads} | " + " | ".join(cells) + " |", flush=True)


def main(options):
    context = mha.Context()
    measured = {**common.processor(), "isa": context.isa, "date": common.today()}
    print(common.heading(measured, f"torch {torch.__version__.split('+')[0]}") + "\n")
    print("| case | threads | ours, wall ms | torch | ours, processor ms | torch | torch / ours, wall"
          " | processor |\n|---|---|---|---|---|---|---|---|")
    for name in options.cases or CASES:
        for threads in options.threads:
            run(name, threads, options.seconds, options.only)


if __name__ == "__main__":
    main(OPTIONS)
