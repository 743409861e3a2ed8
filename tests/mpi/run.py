"""The MPI transport: messages of all sizes, lost ranks and aborts (mpi_ranks.c); attention over
ranks, forward and backward, compared with one process (mpi_attention.c); decoding with a cache that
ranks share (mpi_decode.c).

The variables MPI_RANKS, MPI_ATTENTION and MPI_DECODE name the programs, MPIEXEC the launcher. MHA_TEST_LONG=1 adds a
message of more than 1 GiB. Only ctest limits the time.
"""
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import mpirun  # noqa: E402


def ranks(count, what):
    return mpirun.run(count, [os.environ["MPI_RANKS"], what])


def main():
    why = mpirun.missing()
    if why:
        print(f"skipped: {why}")
        return 77
    for count in (1, 2, 3, 5):
        done = ranks(count, "messages")
        assert done.returncode == 0, done
        assert sorted(done.stdout.split("\n")) == sorted(
            ["", *(f"rank {r} of {count}: messages" for r in range(count))]), done.stdout
    done = ranks(4, "silent")
    assert "rank 0 of 4" in done.stdout and "rank 1 of 4" in done.stdout, done
    done = ranks(2, "broken")
    assert "rank 0 of 2" in done.stdout, done
    done = ranks(2, "wrong")
    assert "rank 0 of 2" in done.stdout, done
    done = ranks(3, "abort")
    assert done.returncode != 0 and "rank 0 of 3" not in done.stdout, done
    if os.environ.get("MHA_TEST_LONG"):
        done = ranks(2, "large")
        assert done.returncode == 0 and done.stdout.count("large") == 2, done
    for count in (1, 2, 3, 5):
        done = mpirun.run(count, [os.environ["MPI_ATTENTION"], "bits"])
        assert done.returncode == 0 and done.stdout.count("the same bits") == 4, (count, done)
        done = mpirun.run(count, [os.environ["MPI_DECODE"], "bits"])
        assert done.returncode == 0 and done.stdout.count("the same bits") == 2, (count, done)
    print("mpi: messages of 1, 2, 3, 5 ranks; silent, wrong, broken and aborting ranks; attention and decoding over ranks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
