"""The program: `multihead ...` or `python -m multihead ...`."""
from __future__ import annotations

import os
import pathlib
import sys

from ._library import program


def main() -> None:
    """Become the program that the package carries."""
    path = program()
    sys.stdout.flush()
    os.execv(path, [pathlib.Path(path).name, *sys.argv[1:]])


if __name__ == "__main__":
    main()
