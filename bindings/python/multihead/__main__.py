"""Runs the program: `multihead ...` or `python -m multihead ...`."""
from __future__ import annotations

import os
import pathlib
import sys

from ._library import font, program


def main() -> None:
    """Replace this process by the packaged program."""
    path = program()
    if (carried := font()) is not None:
        os.environ["MHA_FONT"] = carried
    sys.stdout.flush()
    os.execv(path, [pathlib.Path(path).name, *sys.argv[1:]])


if __name__ == "__main__":
    main()
