#!/usr/bin/env python3
"""What attention over hosts takes on paper if all heads stay: model.py [--hosts N...] [--links L...] [--speeds S...] [--folds F] [--plot FILE]

The same problem, hosts and links as run.py --keep-heads, in seconds where SimGrid takes minutes: blocks of 512 keys go from
host to host as src/distributed/ring.c sends them (buffers, order, one block at a time from a host), a host looks after messages
between two pieces of queries, and a block takes a link's latency and its bytes by the rate, on one sender's and one receiver's
side at a time. Prints a row for each combination.

  model.py --hosts 8 64 256 --links 100Gb --speeds 40 > table.md
  model.py --speeds 40 --plot docs/machines-scale.svg        efficiency against hosts, a line for each link
"""
import argparse
import bisect
import heapq
import math
import sys

import run

BLOCK, KV_HEADS, CHUNK = 512, 8, 112        # keys of a parcel; MHA_SPLIT_ROWS, at which pieces are cut
FEWEST_SLOTS, MOST_SLOTS = 6, 16            # src/distributed/ring.h
BYTES = BLOCK * KV_HEADS * 2 * run.HEAD_DIM * 4
COLORS = ("#d55e00", "#0072b2", "#009e73")


def cut_pieces(hosts, folds):
    """Of each host, as mha_split_pieces() cuts them."""
    chunks, parts = -(-run.TOKENS // CHUNK), 2 * folds * hosts
    cut = [min(run.TOKENS, chunks * i // parts * CHUNK) for i in range(parts + 1)]
    turns = [[i * hosts + (host if i % 2 == 0 else hosts - 1 - host) for i in range(2 * folds)] for host in range(hosts)]
    return [[(cut[k], cut[k + 1]) for k in own if cut[k] < cut[k + 1]] for own in turns]


def pairs(begin, end, first):
    """Of rows begin .. end - 1 with the keys of the block from `first` on, causal."""
    low, high, last = max(begin, first), min(end, first + BLOCK), first + BLOCK
    some = 0.5 * (high - low) * ((low + 1 - first) + (high - first)) if high > low else 0
    return some + BLOCK * max(0, end - max(begin, last))


class Model:
    """Events are: a block has arrived; a host has computed with a block; a host looks after its messages."""

    def __init__(self, hosts, link, speed, folds):
        rate, self.latency = run.LINKS[link]
        self.hosts, self.blocks = hosts, run.TOKENS // BLOCK
        self.seconds_a_pair = run.HEADS * 4 * run.HEAD_DIM / (speed * 1e12 * run.KERNELS)
        self.message = BYTES / rate
        self.slots = min(max(hosts, FEWEST_SLOTS), MOST_SLOTS)
        self.pieces = cut_pieces(hosts, folds)
        self.end_of_host = [max(end for _, end in own) for own in self.pieces]
        self.route()
        self.next, self.ahead, self.passed = [0] * hosts, [0] * hosts, [0] * hosts  # as in mhai_ring
        self.here = [set() for _ in range(hosts)]      # blocks that have arrived, or are a host's own
        self.asked = [set() for _ in range(hosts)]     # blocks that a host is ready to receive
        self.offered = [set() for _ in range(hosts)]   # blocks whose sender is ready
        self.leaving = [set() for _ in range(hosts)]
        self.out_free, self.in_free = [0.0] * hosts, [0.0] * hosts
        self.work = [None] * hosts                     # (begin, the times from it at which pieces are done)
        self.waiting, self.done = [False] * hosts, [0.0] * hosts
        self.events, self.count = [], 0

    def route(self):
        """The way of each block: from its owner past the hosts that need it, those first that send the next ones."""
        cuts = sorted((begin, host) for host, own in enumerate(self.pieces) for begin, _ in own)
        begins = [begin for begin, _ in cuts]
        self.owner = [cuts[bisect.bisect_right(begins, n * BLOCK) - 1][1] for n in range(self.blocks)]
        self.before, self.after = [None] * self.blocks, [None] * self.blocks
        turn = [self.blocks + host for host in range(self.hosts)]
        for n in reversed(range(self.blocks)):
            owner = self.owner[n]
            turn[owner] = n
            way = [owner] + sorted((host for host in range(self.hosts) if host != owner and self.needs(host, n)),
                                   key=turn.__getitem__)
            self.after[n] = dict(zip(way, way[1:]))
            self.before[n] = dict(zip(way[1:], way))

    def needs(self, host, n):
        return self.end_of_host[host] > n * BLOCK

    def concerns(self, host, n):
        return self.owner[n] == host or self.needs(host, n)

    def push(self, time, what, *more):
        self.count += 1
        heapq.heappush(self.events, (time, self.count, what, more))

    def send(self, time, host, to, n):
        end = max(time, self.out_free[host], self.in_free[to]) + self.message
        self.out_free[host] = self.in_free[to] = end
        self.push(end + self.latency, self.arrive, host, to, n)

    def arrive(self, time, host, to, n):
        self.here[to].add(n)
        self.leaving[host].discard(n)
        for each in (host, to):
            if self.work[each]:
                begin, ends = self.work[each]
                place = bisect.bisect_left(ends, time - begin)
                if place < len(ends) - 1:
                    self.push(begin + ends[place], self.look, each)
            else:
                self.push(time, self.look, each)

    def look(self, time, host):
        if self.waiting[host]:
            self.compute(time, host)
        else:
            self.poll(time, host)

    def poll(self, time, host):
        """start_ahead() and pass_on() of ring.c."""
        while self.ahead[host] < min(self.blocks, self.next[host] + self.slots - 1):
            n = self.ahead[host]
            if self.concerns(host, n):
                if n - self.slots in self.leaving[host]:
                    break
                if self.owner[n] == host:
                    self.here[host].add(n)
                elif n in self.offered[host]:
                    self.offered[host].discard(n)
                    self.send(time, self.before[n][host], host, n)
                else:
                    self.asked[host].add(n)
            self.ahead[host] += 1
        while self.passed[host] < self.ahead[host]:
            n = self.passed[host]
            if self.concerns(host, n):
                to = self.after[n].get(host)
                if n not in self.here[host] or (n >= self.next[host] and self.leaving[host]):
                    break
                if to is not None:
                    self.leaving[host].add(n)
                    if n in self.asked[to]:
                        self.asked[to].discard(n)
                        self.send(time, host, to, n)
                    else:
                        self.offered[to].add(n)
            self.passed[host] += 1

    def compute(self, time, host):
        """With the next block that is here, or wait for it."""
        self.work[host] = None
        while self.next[host] < self.blocks:
            n = self.next[host]
            if self.concerns(host, n):
                self.poll(time, host)
                self.waiting[host] = n not in self.here[host]
                if self.waiting[host]:
                    return
                self.here[host].discard(n - 2 * self.slots)
                ends, total = [], 0.0
                for begin, end in self.pieces[host]:
                    if end > n * BLOCK:
                        total += pairs(begin, end, n * BLOCK) * self.seconds_a_pair
                        ends.append(total)
                self.next[host] += 1
                self.poll(time, host)
                if ends:
                    self.work[host] = (time, ends)
                    self.push(time + total, self.compute, host)
                    return
            self.next[host] += 1 if self.next[host] == n else 0
        self.done[host] = max(self.done[host], time)
        self.poll(time, host)
        self.waiting[host] = True

    def run(self):
        """Seconds until all hosts have their rows."""
        for host in range(self.hosts):
            self.push(0.0, self.compute, host)
        while self.events:
            time, _, what, more = heapq.heappop(self.events)
            what(time, *more)
        return max(self.done)

    def alone(self):
        """Seconds of a host by itself, by the number of hosts."""
        return run.TOKENS * (run.TOKENS + 1) / 2 * self.seconds_a_pair / self.hosts


def draw(path, hosts, rows, speed, folds):
    """rows: {link: [efficiency of each number of hosts]}"""
    left, top, width, height = 56, 40, 420, 260
    span = max(math.log2(hosts[-1] / hosts[0]), 1)

    def at(i, value):
        return left + math.log2(hosts[i] / hosts[0]) / span * width, top + height * (1 - value)

    def text(x, y, what, anchor="middle", color="#222222"):
        return f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" text-anchor="{anchor}" fill="{color}">{what}</text>'

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 110} {top + height + 48}" '
           'font-family="sans-serif"><rect width="100%" height="100%" fill="#ffffff"/>',
           text(left, 20, f"Efficiency, {run.TOKENS:,} tokens, hosts of {speed:g} TFLOP/s, folds {folds}", "start")]
    for tenth in range(0, 11, 2):
        y = at(0, tenth / 10)[1]
        out += [f'<path d="M{left} {y:.1f}h{width}" stroke="#dddddd"/>', text(left - 8, y + 4, f"{tenth * 10} %", "end")]
    for i, count in enumerate(hosts):
        out.append(text(at(i, 0)[0], top + height + 18, f"{count:,}"))
    out.append(text(left + width / 2, top + height + 38, "hosts"))
    for color, (link, values) in zip(COLORS, rows.items()):
        points = [at(i, value) for i, value in enumerate(values)]
        out.append(f'<polyline fill="none" stroke="{color}" stroke-width="2" points="'
                   + " ".join(f"{x:.1f},{y:.1f}" for x, y in points) + '"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in points]
        out.append(text(points[-1][0] + 10, points[-1][1] + 4, link, "start", color))
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(out) + "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", nargs="+", type=int, default=[8, 64, 256, 1024])
    parser.add_argument("--links", nargs="+", choices=run.LINKS, default=list(run.LINKS))
    parser.add_argument("--speeds", nargs="+", type=float, default=[1, 10, 40], help="peak of a host, TFLOP/s")
    parser.add_argument("--folds", type=int, default=8, help="how often pieces go to and fro over the hosts")
    parser.add_argument("--plot", help="an SVG file of the efficiency, for one speed")
    options = parser.parse_args()
    if options.plot and len(options.speeds) != 1:
        parser.error("--plot takes one speed: --speeds 40")
    if min(options.hosts) < 1 or options.folds < 1 or min(options.speeds) <= 0:
        parser.error("hosts, folds and speeds are above 0")
    options.hosts.sort()
    print("| hosts | link | TFLOP/s | stream, s | efficiency | alone / hosts, s | link, s |\n|" + "---|" * 7, flush=True)
    for speed in options.speeds:
        rows = {}
        for link in options.links:
            for hosts in options.hosts:
                if sys.stderr.isatty():
                    print(f"\r{hosts} hosts, {link} ...\033[K\r", end="", file=sys.stderr, flush=True)
                model = Model(hosts, link, speed, options.folds)
                seconds = model.run()
                rows.setdefault(link, []).append(model.alone() / seconds)
                print(f"| {hosts:,} | {link} | {speed:g} | {seconds:.3f} | {rows[link][-1]:.1%} | {model.alone():.3f} "
                      f"| {model.message * model.blocks * (1 - 1 / hosts):.3f} |", flush=True)
        if options.plot:
            draw(options.plot, options.hosts, rows, speed, options.folds)


if __name__ == "__main__":
    main()
