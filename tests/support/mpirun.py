"""Start programs on several ranks for tests, with mpirun of Open MPI or MPICH.

MPIEXEC names the launcher; the default is mpirun on the PATH. More ranks than cores are permitted,
and root is permitted in containers.
"""
import os
import shutil
import subprocess


def launcher():
    return os.environ.get("MPIEXEC") or shutil.which("mpirun") or ""


def missing():
    """The reason why ranks cannot be started, or an empty text."""
    return "" if launcher() and shutil.which(launcher()) else "no mpirun (Debian: openmpi-bin)"


def is_open_mpi():
    told = subprocess.run([launcher(), "--version"], capture_output=True, text=True)
    return "Open MPI" in told.stdout + told.stderr or "OpenRTE" in told.stdout


def command(count, program):
    more = ["--map-by", ":OVERSUBSCRIBE", "--quiet"] if is_open_mpi() else []
    return [launcher(), *more, "-n", str(count), *map(str, program)]


def environment(**more):
    return {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **more}


def run(count, program, **more):
    return subprocess.run(command(count, program), env=environment(**more), capture_output=True, text=True,
                          stdin=subprocess.DEVNULL)


def start(count, program, stdout=subprocess.PIPE, **more):
    """A running launcher; its children are in its session."""
    return subprocess.Popen(command(count, program), env=environment(**more), stdout=stdout,
                            stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL, start_new_session=True)
