#!/usr/bin/env python3
"""Compare multihead.torch and multihead.transformers with torch's own attention.

    MHA_LIBRARY_DIR=build build/venv/bin/python bench/torch_models.py [--seconds 5] [--threads N] [PART ...]

Parts: call (an operator's overhead in a call with 10 tokens), bert (MiniLM's sizes), llama (SmolLM2-135M's sizes); all
by default. Weights are random. The implementations alternate, one call each. Prints the median time of a call, and the
median and quartiles of the ratios of neighbouring calls.
"""
import argparse
import os
import pathlib
import platform
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bindings/python"))
os.environ.setdefault("MHA_LIBRARY_DIR", str(ROOT / "build"))
import numpy as np  # noqa: E402
import torch  # noqa: E402


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def turns(functions, seconds):
    """{name: times}, one call of each alternately, until time is up."""
    times = {name: [] for name in functions}
    for function in functions.values():
        function()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(times.values()))) < 3:
        for name, function in functions.items():
            begin = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - begin)
    return {name: np.array(values) for name, values in times.items()}


def report(title, times, unit, of):
    """Lines of a table: medians, and the ratios to each of the others."""
    scale = {"us": 1e6, "ms": 1e3}[unit]
    base = times[of]
    print(f"{title}: {of} {np.median(base) * scale:.4g} {unit}")
    for name, values in times.items():
        if name != of:
            low, middle, high = np.percentile(values / base, [25, 50, 75])
            print(f"    {name:16} {np.median(values) * scale:10.4g} {unit}   "
                  f"{name} / {of}: {middle:.2f} ({low:.2f} to {high:.2f})")


def call(seconds):
    """A call with 10 tokens, and the C function with prepared arguments."""
    import ctypes as C

    from multihead import _library
    from multihead.torch import _operator, scaled_dot_product_attention

    theirs = torch.nn.functional.scaled_dot_product_attention
    q, k, v = (torch.randn(1, 4, 10, 16) for _ in range(3))
    kept = _operator.forward(q, k, v)
    made = next(x for x in _library.thread.calls.values() if isinstance(x, _operator._Forward))
    _library.thread.calls.clear()  # so that no other call writes its addresses there
    made.prepared.slots[-1].value = kept[0].data_ptr()
    function = C.CDLL(_library.library._name).mha_attention_forward
    handle = _operator._context().handle

    def repeated(function, count=50):
        def run():
            for _ in range(count):
                function()
        return run

    with torch.no_grad():
        times = turns({"ours": repeated(lambda: scaled_dot_product_attention(q, k, v)),
                       "operator": repeated(lambda: _operator.attention(q, k, v)),
                       "torch": repeated(lambda: theirs(q, k, v)),
                       "C": repeated(lambda: function(handle, *made.arguments))}, seconds)
    least = {name: values.min() / 50 * 1e6 for name, values in times.items()}
    print("10 tokens, forward, least time in us:", {n: round(float(x), 1) for n, x in least.items()})
    print(f"    beyond C: {least['ours'] - least['C']:.1f}, "
          f"the operator alone {least['operator'] - least['C']:.1f}")
    q.requires_grad_()
    g = torch.randn(1, 4, 10, 16)
    times = turns({name: repeated(lambda f=f: torch.autograd.grad(f(q, k, v), q, g))
                   for name, f in (("ours", scaled_dot_product_attention), ("torch", theirs))}, seconds)
    print("10 tokens, forward and backward, least time in us:",
          {n: round(float(x.min() / 50 * 1e6), 1) for n, x in times.items()})


def model_turns(title, model, inputs, names, seconds):
    """Inference and a training step of one model with each attention."""
    def under(name, step):
        def run():
            model.set_attn_implementation(name)
            step()
        return run

    def forward():
        with torch.no_grad():
            model(**inputs)

    def train():
        model(**inputs).last_hidden_state.square().mean().backward()

    model.eval()
    report(f"{title}, forward", turns({n: under(n, forward) for n in names}, seconds), "ms", names[0])
    model.train()
    report(f"{title}, forward and backward", turns({n: under(n, train) for n in names}, seconds), "ms",
           names[0])


def bert(seconds):
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12,
                                     intermediate_size=1536)
    model = transformers.BertModel(config)
    for batch, length in ((8, 128), (2, 512)):
        keep = torch.ones(batch, length, dtype=torch.long)
        keep[0, length // 2:] = 0
        inputs = {"input_ids": torch.randint(0, 30000, (batch, length)), "attention_mask": keep}
        model_turns(f"BERT of MiniLM's sizes, {batch} x {length}, padded", model, inputs,
                    ["multihead", "sdpa", "eager"], seconds)


def llama(seconds):
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(hidden_size=576, num_hidden_layers=6, num_attention_heads=9,
                                      num_key_value_heads=3, intermediate_size=1536, vocab_size=4096)
    model = transformers.LlamaModel(config)
    ids = torch.randint(0, 4096, (1, 1024))
    model_turns("Llama of SmolLM2-135M's sizes, 6 of its layers, 1 x 1024", model,
                {"input_ids": ids, "use_cache": False}, ["multihead", "sdpa", "eager"], seconds)


PARTS = {"call": call, "bert": bert, "llama": llama}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART",
                        help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument("--seconds", type=float, default=5, help="for each comparison (default: 5)")
    parser.add_argument("--threads", type=int, default=1, help="of torch, and so of ours (default: 1)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    import multihead.transformers
    multihead.transformers.register()
    print(f"{processor()}, {arguments.threads} threads, load {os.getloadavg()[0]:.1f}, "
          f"torch {torch.__version__}")
    for part in arguments.parts or PARTS:
        PARTS[part](arguments.seconds)
