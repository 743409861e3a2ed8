"""Ranks on separate machines: two network namespaces, each with its own host name, address and temporary folder, joined
by one link. Open MPI starts ranks in both and can use only TCP.

 - messages, attention, training and scores of heads over the link: bit-identical to one process
 - the same over a link of RATE, by tc's tbf
 - the link is cut during a training: all ranks exit by the deadline, reachable ranks name the lost one, files are
   complete, and the resumed training is bit-identical to an uninterrupted one

Needs root, ip and tc (iproute2), and Open MPI; the test is skipped with the kernel's message if it denies namespaces.
The variables MPI_RANKS, MPI_ATTENTION and MULTIHEAD name the programs, MPIEXEC the launcher.
"""
import hashlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))
import mpirun  # noqa: E402

SIDES = ("a", "b")
ADDRESSES = {"a": "10.77.0.1", "b": "10.77.0.2"}
NETWORK = "10.77.0.0/24"
RATE = "200mbit"
DEADLINE = 10
# Number of TCP retransmissions: 13 s in total. mpirun asks the daemon on the other side of the cut
# link to end its ranks, and waits for the same time. The kernel's default of 15 retransmissions
# would take a quarter of an hour.
REPEATS = 5
TRAIN = ("train", "sentences", "--threads", "1", "--no-report", "--every", "5", "--tries", "1")


def runs(process):
    """The program of a process; None if it has exited."""
    try:
        return os.readlink(f"/proc/{process}/exe")
    except OSError:
        return None


class Machines:
    """Two namespaces, their link and their processes."""

    def __init__(self, folder):
        self.folder = folder
        self.names = {side: f"mha{os.getpid()}{side}" for side in SIDES}

    def make(self):
        """The kernel's error message, or an empty string."""
        a, b = self.names.values()
        steps = [f"ip netns add {a}", f"ip netns add {b}", f"ip link add mha netns {a} type veth peer name mha netns {b}"]
        for side, name in self.names.items():
            (self.folder / side).mkdir()
            steps += [f"ip -n {name} address add {ADDRESSES[side]}/24 dev mha", f"ip -n {name} link set lo up",
                      f"ip -n {name} link set mha up", f"ip netns exec {name} sysctl -qw net.ipv4.tcp_retries2={REPEATS}"]
        steps.append(f"ip netns exec {a} unshare --uts hostname side-a")  # or prints the reason
        for step in steps:
            done = subprocess.run(step.split(), capture_output=True, text=True)
            if done.returncode:
                return f"{step}: {done.stderr.strip()}"
        for side in SIDES:
            self.write(f"enter-{side}", f"""#!/bin/sh
                exec ip netns exec {self.names[side]} unshare --uts sh -c '
                hostname side-{side}; export TMPDIR={self.folder}/{side}; exec "$@"' sh "$@"\n""")
        # Replaces ssh: HOST COMMAND...
        self.write("agent", f'#!/bin/sh\nshift\nexec {self.folder}/enter-b sh -c "$*"\n')
        return ""

    def write(self, name, text):
        path = self.folder / name
        path.write_text(re.sub(r"\n +", "\n", text))
        path.chmod(0o755)

    def link(self, state):
        subprocess.run(["ip", "-n", self.names["a"], "link", "set", "mha", state], check=True)

    def shape(self, rate):
        """Limit the rate in both directions. Return tc's message if the kernel has no token bucket
        filter."""
        for name in self.names.values():
            done = subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", "mha", "root", "tbf", "rate", rate, "burst",
                                   "64kb", "latency", "50ms"], capture_output=True, text=True)
            if done.returncode:
                return done.stderr.strip()
        return ""

    def unshape(self):
        for name in self.names.values():
            subprocess.run(["tc", "-n", name, "qdisc", "del", "dev", "mha", "root"], check=True)

    def bytes_sent(self):
        path = "/sys/class/net/mha/statistics/tx_bytes"
        return int(subprocess.run([self.folder / "enter-a", "cat", path], capture_output=True, text=True,
                                  check=True).stdout)

    def processes(self, side, program=""):
        """Processes of one side, by id; if `program` is given, only those that run it."""
        told = subprocess.run(["ip", "netns", "pids", self.names[side]], capture_output=True, text=True).stdout
        return [int(number) for number in told.split()
                if not program or runs(number) == os.path.realpath(program)]

    def kill(self):
        for side in SIDES:
            for number in self.processes(side):
                try:
                    os.kill(number, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def command(self, count, program):
        hosts = ",".join(f"{address}:{count}" for address in ADDRESSES.values())
        return [self.folder / "enter-a", mpirun.launcher(), "--quiet", "--host", hosts, "--map-by",
                "node:OVERSUBSCRIBE", "-n", count, "-x", "MHA_MPI_DEADLINE", "--mca", "pml", "ob1", "--mca", "btl",
                "tcp,self", "--mca", "btl_tcp_if_include", NETWORK, "--mca", "oob_tcp_if_include", NETWORK, "--mca",
                "plm_rsh_agent", self.folder / "agent", *program]

    def start(self, count, *program, deadline=300):
        return subprocess.Popen([*map(str, self.command(count, program))], text=True, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env=mpirun.environment(MHA_MPI_DEADLINE=str(deadline)))

    def run(self, count, *program):
        running = self.start(count, *program)
        out, errors = running.communicate()
        return subprocess.CompletedProcess(running.args, running.returncode, out, errors)

    def remove(self):
        self.kill()
        for name in self.names.values():
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def bits(folder):
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def alone(program, folder, *more):
    subprocess.run([*map(str, (program, *TRAIN, *more, "-o", folder))], capture_output=True, check=True)


def both_take_part(machines):
    done = machines.run(2, "hostname")
    assert sorted(done.stdout.split()) == ["side-a", "side-b"], done


def same_bits(machines, program, folder, name):
    """Run every rank test with so many ranks that messages cross the link in both directions."""
    before, begun = machines.bytes_sent(), time.monotonic()
    done = machines.run(4, os.environ["MPI_RANKS"], "messages")
    assert done.returncode == 0 and done.stdout.count("messages") == 4, done
    done = machines.run(4, os.environ["MPI_ATTENTION"], "bits")
    assert done.returncode == 0 and done.stdout.count("the same bits") == 4, done
    done = machines.run(3, program, *TRAIN, "--steps", "30", "-o", folder / name)
    assert done.returncode == 0 and bits(folder / name) == bits(folder / "whole"), done
    text = folder / "texts.txt"
    text.write_text("the cat sat on a mat\nand it was too tired to cross\n" * 40)
    heads = (program, "heads", ROOT / "tests" / "golden" / "tiny-bert", "--text", text, "--json", "--threads", "1", "-q")
    one = subprocess.run([*map(str, heads)], capture_output=True, text=True)
    done = machines.run(3, *heads)
    assert done.returncode == one.returncode == 0 and done.stdout == one.stdout, (one, done)
    sent = machines.bytes_sent() - before
    assert sent > 10e6, f"{name}: {sent} bytes went over the link"
    return f"{name}: {sent / 1e6:.0f} MB one way, {time.monotonic() - begun:.1f} s"


def wait_for(what):
    """ctest's time limit covers conditions that never occur."""
    while not what():
        time.sleep(0.05)


def cut(machines, program, folder, deadline=DEADLINE):
    """Cut the link during a training."""
    running = machines.start(4, program, *TRAIN, "--steps", "100000", "-o", folder / "cut", deadline=deadline)
    said = []
    reader = threading.Thread(target=lambda: said.extend(running.stderr), daemon=True)
    reader.start()
    wait_for(lambda: any("step " in line for line in said) or running.poll() is not None)
    ranks = [len(machines.processes(side, program)) for side in SIDES]
    if ranks != [2, 2]:  # on a slow machine, the deadline can pass without a cut
        running.wait()
        reader.join()
        assert any("is lost: " in line for line in said), said
        wait_for(lambda: not any(machines.processes(side) for side in SIDES))
        return cut(machines, program, folder, 2 * deadline)
    machines.link("down")
    begun = time.monotonic()
    wait_for(lambda: not any(machines.processes(side, program) for side in SIDES))
    gone = time.monotonic() - begun
    assert running.wait() != 0
    wait_for(lambda: not any(machines.processes(side) for side in SIDES))
    ended = time.monotonic() - begun
    reader.join()
    machines.link("up")
    # Ranks 0 and 2 are on this side; mpirun may end either before it can report.
    lines = [line.strip() for line in said if line.startswith("multihead: ")]
    heard = [re.match(r"multihead: train: rank ([02]): rank [0-3] is lost: ", line) for line in lines]
    assert lines and all(heard) and len({match[1] for match in heard}) == len(lines), said
    assert any(re.search("rank [13] is lost", line) for line in lines), said
    found = sorted(path.name for path in (folder / "cut").iterdir())
    assert found == ["training.safetensors"], found
    reached = int(re.findall(r"step (\d+)/", "".join(said))[-1])
    return (f"cut after step {reached}: ranks gone after {gone:.1f} s, mpirun and its daemon after {ended:.1f} s "
            f"(deadline {deadline} s); {lines[0]}", reached)


def resumed(machines, program, folder, reached):
    """Resume on both sides after the cut, for a few steps more than before."""
    steps = ("--steps", reached + 10)
    wait_for(lambda: machines.run(2, "hostname").returncode == 0)  # address resolution is retried after a while
    done = machines.run(3, program, *TRAIN, *steps, "-o", folder / "cut")
    assert done.returncode == 0, done
    alone(program, folder / "never", *steps)
    assert bits(folder / "cut") == bits(folder / "never"), "after the cut: other bits"
    return f"resumed: the bits of {reached + 10} steps of one process"


def checks(machines, program, folder):
    alone(program, folder / "whole", "--steps", 30)
    both_take_part(machines)
    yield same_bits(machines, program, folder, "unshaped")
    refused = machines.shape(RATE)
    if refused:
        yield f"no link of {RATE}: tc says: {refused}"
    else:
        yield same_bits(machines, program, folder, RATE)
        machines.unshape()
    line, reached = cut(machines, program, folder)
    yield line
    yield resumed(machines, program, folder, reached)


def missing():
    if mpirun.missing():
        return mpirun.missing()
    if not mpirun.is_open_mpi():
        return f"{mpirun.launcher()} is not Open MPI's"
    return ", ".join(f"no {name} (Debian: iproute2)" for name in ("ip", "tc") if not shutil.which(name))


def main():
    why = missing()
    if why:
        print(f"skipped: {why}")
        return 77
    with tempfile.TemporaryDirectory(prefix="mha-apart-") as name:
        folder = pathlib.Path(name)
        machines = Machines(folder)
        try:
            why = machines.make()
            if why:
                print(f"skipped: {why}")
                return 77
            for line in checks(machines, os.environ["MULTIHEAD"], folder):
                print(line, flush=True)
        finally:
            machines.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
