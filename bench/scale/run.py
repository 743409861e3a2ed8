#!/usr/bin/env python3
"""Simulate attention over hosts with SimGrid: run.py [--hosts N...]

Builds scale.c with smpicc (Debian: libsimgrid-dev) and build/libmultihead.a. Runs it for each number of hosts (default
8 and 64; 64 hosts take half a minute per row, 256 take three minutes), each link and each speed of hosts. A row has the
seconds and the efficiency of mha_distributed_forward(), those of a rotating ring, the bytes received and the scratch of
a rank, and two lower bounds: the time of a host's computation, and the time of its bytes on the link.

  run.py --speeds 40 --links 100Gb --hosts 64 > table.md
  run.py --timeline FILE --links 10Gb --speeds 40 --hosts 8   timeline of each host
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOKENS = 1 << 20
HEADS, HEAD_DIM = 32, 128
# Payload bytes per second, and one-way latency in seconds. Ethernet with 1,500-byte frames carries 1,448 bytes of TCP
# in 1,538 on the wire, 94 %. 15 us: TCP in the kernel; 2 us: RDMA (RoCE, InfiniBand); 450 GB/s per direction: a GPU
# with NVLink 4, 1 us through its switch. All are vendors' figures, not measured here.
LINKS = {"10Gb": (10e9 / 8 * 0.94, 15e-6), "100Gb": (100e9 / 8 * 0.94, 2e-6), "NVLink": (450e9, 1e-6)}
# Share of the peak. docs/speed.md: a full tile with heads of 128 reaches at least 72 %, including packing and softmax.
KERNELS = 0.75
SIMULATOR = ("--cfg=network/model:CM02", "--cfg=network/latency-factor:1", "--cfg=network/bandwidth-factor:1",
             "--cfg=network/crosstraffic:0", "--cfg=smpi/simulate-computation:no", "--cfg=smpi/test:0",
             "--cfg=smpi/shared-malloc-blocksize:67108864", "--cfg=contexts/stack-size:256",
             "--log=root.thres:error")
PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="hosts" prefix="h" suffix="" radical="0-{last}" speed="{speed}f" bw="{rate}Bps" lat="{latency}s"
           sharing_policy="SPLITDUPLEX"/>
</platform>
"""


def command(*words):
    done = subprocess.run([*map(str, words)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words[:3]))} ...: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def build(folder):
    flags = ("-std=gnu17", "-O2", "-Wall", "-Wextra", f"-I{ROOT}/include", f"-I{ROOT}/src")
    objects = []
    for source, more in (("src/mpi/mpi_start.c", ()), ("src/mpi/mpi_messages.c", ("-DMPI_Test=scale_test",)),
                         ("bench/scale/scale.c", ()), ("bench/scale/replaced.c", ())):
        objects.append(folder / (pathlib.Path(source).stem + ".o"))
        command("smpicc", *flags, *more, "-c", ROOT / source, "-o", objects[-1])
    command("smpicc", "-o", folder / "scale", *objects, ROOT / "build/libmultihead.a", "-lm", "-lpthread",
            "-Wl,--wrap=mha_scratch_alloc,--wrap=mhai_attn_forward,--wrap=mhai_copy_rows")


def simulate(folder, hosts, link, speed, schedule, folds, *timeline):
    """Seconds, bytes received by a rank, bytes of its scratch."""
    rate, latency = LINKS[link]
    (folder / "hosts").write_text("".join(f"h{i}\n" for i in range(hosts)))
    # A route has two links: the sender's and the receiver's.
    (folder / "platform.xml").write_text(PLATFORM.format(last=hosts - 1, speed=speed * 1e12 * KERNELS, rate=rate,
                                                         latency=latency / 2))
    out = command("smpirun", "-no-privatize", "-platform", folder / "platform.xml", "-hostfile", folder / "hosts",
                  "-np", hosts, *SIMULATOR, folder / "scale", schedule, TOKENS, folds, *timeline)
    return map(float, out.split())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", nargs="+", type=int, default=[8, 64])
    parser.add_argument("--links", nargs="+", choices=LINKS, default=list(LINKS))
    parser.add_argument("--speeds", nargs="+", type=int, default=[1, 10, 40], help="peak of a host, TFLOP/s")
    parser.add_argument("--folds", type=int, default=8, help="how often pieces go to and fro over the ranks")
    parser.add_argument("--timeline", help="a file for the timeline of the hosts")
    options = parser.parse_args()
    pairs = TOKENS * (TOKENS + 1) / 2
    print(f"{TOKENS:,} tokens, folds {options.folds}, kernels at {KERNELS:.0%} of the peak\n")
    print("| hosts | link | TFLOP/s | forward, s | efficiency | ring, s | efficiency | GB received | MB of scratch "
          "| alone / hosts, s | link, s |\n|" + "---|" * 11, flush=True)
    with tempfile.TemporaryDirectory(prefix="mha-scale-") as name:
        folder = pathlib.Path(name)
        build(folder)
        for hosts in options.hosts:
            for link in options.links:
                for speed in options.speeds:
                    ideal = pairs * HEADS * 4 * HEAD_DIM / (speed * 1e12 * KERNELS) / hosts
                    more = [options.timeline] if options.timeline else []
                    forward, received, scratch = simulate(folder, hosts, link, speed, "ordered", options.folds, *more)
                    ring, _, _ = simulate(folder, hosts, link, speed, "ring", 1)
                    print(f"| {hosts:,} | {link} | {speed} | {forward:.3f} | {ideal / forward:.1%} | {ring:.3f} "
                          f"| {ideal / ring:.1%} | {received / 1e9:.2f} | {scratch / 1e6:.0f} | {ideal:.3f} "
                          f"| {received / LINKS[link][0]:.3f} |", flush=True)


if __name__ == "__main__":
    main()
