#!/usr/bin/env python3
"""The cases of bench/long_backward.c in torch, measured in the same way: scaled_dot_product_attention of one head of 64
in float32, forward and backward; then with dropout and the gradient of a T5 table, whose terms torch takes as an n x n
mask.

    python3 bench/long_backward_torch.py [--most GIGABYTES] [LENGTH ...]      needs torch and Linux

Each case runs once, in a separate process with one thread. Prints processor seconds, and peak resident memory beyond q,
k, v, o and their gradients. The mask takes as little memory as torch allows: a row of 2n - 1 terms by distance, viewed
as an n x n matrix and copied, without a matrix of buckets. A case fails if it needs more than --most GB (8) of address
space beyond torch itself.
"""
import argparse
import resource
import subprocess
import sys
import time

import common

D, BUCKETS, FAR, LENGTHS = 64, 32, 128, (1024, 2048, 4096, 8192, 16384, 32768)


def status_kb(name):
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))


def buckets_by_distance(n):
    """T5's buckets of key - query from -(n-1) to n-1, as in transformers."""
    import torch
    rel = torch.arange(1 - n, n)
    half, exact = BUCKETS // 2, BUCKETS // 4
    far = exact + (torch.log(rel.abs().clamp(min=1) / exact) / torch.log(torch.tensor(FAR / exact))
                   * (half - exact)).long()
    near = torch.where(rel.abs() < exact, rel.abs(), far.clamp(max=half - 1))
    return near + half * (rel > 0)


def measure(kind, n, most):
    import torch
    import torch.nn.functional as F
    torch.set_num_threads(1)
    torch.manual_seed(1)
    q, k, v, g = (torch.rand(1, 1, n, D) - 0.5 for _ in range(4))
    o = torch.zeros(1, 1, n, D)
    for x in (q, k, v):
        x.requires_grad_()
        x.grad = torch.zeros_like(x)
    table = (torch.arange(BUCKETS) % 7 / 8).requires_grad_()
    buckets = buckets_by_distance(n)

    def run(q, k, v, g, o):
        mask, dropout = None, 0.0
        if kind != "plain":
            by_distance, dropout = table[buckets], 0.1
            length = q.shape[2]
            middle = by_distance[n - length:n + length - 1]
            # Row i of the result begins at distance -i.
            mask = torch.as_strided(middle, (length, length), (1, 1),
                                    middle.storage_offset()).flip(0)[None, None]
        result = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=dropout)
        o.copy_(result.detach())
        result.backward(g)

    few = [x.detach()[:, :, :8].clone() for x in (q, k, v, g, o)]
    for x in few[:3]:
        x.requires_grad_()
    run(*few)  # a first call loads libraries
    limit = status_kb("VmSize:") * 1024 + int(most * 2 ** 30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")
    before, start = status_kb("VmRSS:"), time.process_time()
    try:
        run(q, k, v, g, o)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        print(f"| {kind} | {n} | failed | more than {most:g} GB |", flush=True)
        return
    seconds = time.process_time() - start
    print(f"| {kind} | {n} | {seconds:.3g} | {(status_kb('VmHWM:') - before) / 1024:.1f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lengths", nargs="*", type=int, default=LENGTHS, metavar="LENGTH")
    parser.add_argument("--most", type=float, default=8)
    parser.add_argument("--kind", help=argparse.SUPPRESS)  # one case, in this process
    options = parser.parse_args()
    common.need_torch()
    if options.kind:
        measure(options.kind, options.lengths[0], options.most)
        return
    print("| kind | n | seconds | beyond the arguments: MB |\n|---|---|---|---|", flush=True)
    for kind in ("plain", "dropout, T5 table"):
        for n in options.lengths:
            subprocess.run([sys.executable, __file__, str(n), "--kind", kind, "--most",
                            str(options.most)], check=False)


if __name__ == "__main__":
    common.run_main(main)
