"""Start a program on several ranks without MPI: processes of this machine, with a socket pair
between every two. tests/mpi/socket_ranks.c sends messages over these sockets. The variable
SOCKET_RANKS names that library.

No rank is killed, and there are no time limits. Ranks that lost their peers must exit by
themselves.
"""
import os
import socket
import subprocess
import tempfile


class Done:
    """The results of finished ranks: returncode like mpirun's (128 + the signal that killed a rank,
    or else the first nonzero exit status), the codes of all ranks, the MiB of memory of each rank,
    messages {rank: number}."""

    def __init__(self, statuses, usages, texts):
        self.codes = [os.waitstatus_to_exitcode(status) for status in statuses]
        self.peaks = [usage.ru_maxrss >> 10 for usage in usages]
        self.stdout, stderr, counts = texts
        self.stderr = "\n".join(line for line in stderr.splitlines() if line.strip())
        self.messages = {int(rank): int(count) for rank, count in map(str.split, counts.splitlines())}
        killed = [128 - code for code in self.codes if code < 0]
        self.returncode = next(iter(killed + [code for code in self.codes if code]), 0)

    def __repr__(self):
        return f"exit {self.codes}: {self.stdout[-2000:]!r} {self.stderr[-2000:]!r}"


def run(count, program, signalled=None, **more):
    """Run a program on `count` ranks and wait until all have exited; more: environment variables.

    signalled: (rank, k, signal): the rank raises the signal at its k-th message."""
    environment = {**os.environ, "MHA_MPI_LIBRARY": os.environ["SOCKET_RANKS"], "OMPI_COMM_WORLD_SIZE": str(count)}
    if signalled:
        environment["MHA_TEST_RANKS_SIGNAL"] = "{}:{}:{:d}".format(*signalled)
    ends = [[None] * count for _ in range(count)]
    for low in range(count):
        for high in range(low + 1, count):
            ends[low][high], ends[high][low] = socket.socketpair()
    files = [tempfile.TemporaryFile() for _ in range(3)]  # stdout, stderr, numbers of messages
    started = []
    for rank, row in enumerate(ends):
        sockets = [end.fileno() if end else -1 for end in row]
        started.append(subprocess.Popen(
            [*map(str, program)], stdin=subprocess.DEVNULL, stdout=files[0], stderr=files[1],
            pass_fds=[number for number in sockets if number >= 0] + [files[2].fileno()],
            env={**environment, "OMPI_COMM_WORLD_RANK": str(rank), "MHA_TEST_RANKS_COUNTS": str(files[2].fileno()),
                 "MHA_TEST_RANKS_SOCKETS": ",".join(map(str, sockets)), **more}))
        for end in filter(None, row):
            end.close()
    ended = [os.wait4(process.pid, 0) for process in started]
    for process, (_, status, _) in zip(started, ended):
        process.returncode = os.waitstatus_to_exitcode(status)
    texts = []
    for file in files:
        file.seek(0)
        texts.append(file.read().decode("utf-8", "replace"))
        file.close()
    return Done([status for _, status, _ in ended], [usage for _, _, usage in ended], texts)
