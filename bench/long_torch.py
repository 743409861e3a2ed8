#!/usr/bin/env python3
"""The cases of bench/long.c that torch supports, measured in the same way: scaled_dot_product_attention of one head
of 64 in float32, full, causal, and with a window of 512 as a boolean mask.

    python3 bench/long_torch.py [LENGTH ...]        needs torch and Linux

Each case runs in a separate process with one thread. Prints processor seconds, the best of up to ten calls within about
four seconds, and peak resident memory beyond q, k, v and o.
"""
import argparse
import subprocess
import sys
import time

import common

D, WINDOW, LENGTHS = 64, 512, (1024, 4096, 16384, 65536)


def status_kb(name):
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))


def measure(kind, n):
    import torch
    import torch.nn.functional as F
    torch.set_num_threads(1)
    torch.manual_seed(1)
    q, k, v, o = (torch.rand(1, 1, n, D) - 0.5 for _ in range(4))

    def run():
        mask = None
        if kind == "window of 512":
            row = torch.arange(n)
            mask = (row[:, None] >= row) & (row[:, None] - row < WINDOW)
        o.copy_(F.scaled_dot_product_attention(q, k, v, mask, is_causal=kind == "causal"))

    with torch.inference_mode():
        F.scaled_dot_product_attention(q[:, :, :8], k[:, :, :8], v[:, :, :8])  # a first call loads libraries
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
        before, begun, best = status_kb("VmRSS:"), time.process_time(), 1e9
        for _ in range(10):
            start = time.process_time()
            run()
            best = min(best, time.process_time() - start)
            if time.process_time() - begun > 4:
                break
    print(f"| {kind} | {n} | {best:.4g} | {(status_kb('VmHWM:') - before) / 1024:.1f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lengths", nargs="*", type=int, default=LENGTHS, metavar="LENGTH")
    parser.add_argument("--kind", help=argparse.SUPPRESS)  # one case, in this process
    options = parser.parse_args()
    common.need_torch()
    if options.kind:
        measure(options.kind, options.lengths[0])
        return
    print("| kind | n | seconds | beyond q, k, v, o: MB |\n|---|---|---|---|", flush=True)
    for kind in ("full", "causal", "window of 512"):
        for n in options.lengths:
            if subprocess.run([sys.executable, __file__, "--kind", kind, str(n)], check=False).returncode:
                print(f"| {kind} | {n} | failed | |", flush=True)


if __name__ == "__main__":
    common.run_main(main)
