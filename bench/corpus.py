#!/usr/bin/env python3
"""Tokens per second of `multihead heads --json` over a text, compared with torch computing means of a few of its
scores.

  bench/corpus.py MODEL.gguf TEXT [--cut 256] [--pieces 10] [--threads 2] [--rounds 5] [--program PATH]

torch: the model in f32 as opened by transformers, with eager attention returning weights. For every head it computes
means over rows: the mass on the previous, next, current and first token, on earlier occurrences of the token and on the
tokens after them; entropy, largest weight and distance. The program computes all its scores (28), with intervals,
deciles and places. Loading the model is not timed. The two alternate; prints the median, minimum and maximum over
rounds.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time


def program(options, text, pieces):
    """Seconds of a run over the first pieces of a text."""
    command = [options.program, "heads", options.model, "--text", text, "--whole", "--cut", options.cut, "--random", 0,
               "--threads", options.threads, "--corpus", "--json", "-q"]
    begun = time.perf_counter()
    done = subprocess.run(list(map(str, command)), capture_output=True, check=True)
    return time.perf_counter() - begun, json.loads(done.stdout)["tokens"]


def torch_scores(torch, ids, weights):
    n = ids.shape[0]
    rows = torch.arange(n)
    same = (ids[:, None] == ids[None, :]) & (rows[None, :] < rows[:, None])
    after = torch.zeros_like(same)
    after[:, 1:] = same[:, :-1]
    after &= rows[None, :] <= rows[:, None]
    distance = (rows[:, None] - rows[None, :]).clamp(min=0).float()
    found = []
    for layer in weights:
        p = layer[0]
        log = torch.where(p > 0, p.log(), torch.zeros_like(p))
        found.append(torch.stack([
            p.diagonal(-1, 1, 2).mean(-1), p.diagonal(1, 1, 2).mean(-1), p.diagonal(0, 1, 2).mean(-1),
            p[:, :, 0].mean(-1), -(p * log).sum(-1).mean(-1), p.max(-1).values.mean(-1),
            (p * distance).sum(-1).mean(-1), (p * same).sum(-1).mean(-1), (p * after).sum(-1).mean(-1)]))
    return torch.stack(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--cut", type=int, default=256)
    parser.add_argument("--pieces", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--program", default="build/multihead")
    options = parser.parse_args()
    import torch
    import transformers
    torch.set_num_threads(options.threads)
    path = pathlib.Path(options.model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    net = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32,
                                                            attn_implementation="eager").eval()
    whole = pathlib.Path(options.text).read_text(errors="replace")
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        short, longer = pathlib.Path(folder, "short.txt"), pathlib.Path(folder, "long.txt")
        ids = tokenizer(whole[:8 * options.cut * options.pieces], return_tensors="pt").input_ids[0]
        short.write_text(tokenizer.decode(ids[:options.cut]))
        longer.write_text(tokenizer.decode(ids[:options.cut * (options.pieces + 1)]))
        ours, theirs = [], []
        for _ in range(options.rounds):
            a, b = program(options, short, 1), program(options, longer, options.pieces + 1)
            ours.append((b[1] - a[1]) / (b[0] - a[0]))
            begun = time.perf_counter()
            for i in range(options.pieces):
                piece = ids[i * options.cut:(i + 1) * options.cut]
                torch_scores(torch, piece, net(piece[None], output_attentions=True).attentions)
            theirs.append(options.pieces * options.cut / (time.perf_counter() - begun))
    for name, rates in (("multihead, 28 scores, intervals, places", ours), ("torch, 9 means", theirs)):
        print(f"{name}: {statistics.median(rates):.0f} tokens/s ({min(rates):.0f} to {max(rates):.0f})")
    print(f"{statistics.median(ours) / statistics.median(theirs):.2f} times torch")


if __name__ == "__main__":
    main()
