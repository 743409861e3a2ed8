"""Padding masks as intervals of keys."""
from __future__ import annotations

from typing import Any

import torch


def padding(keep: torch.Tensor) -> dict[str, Any]:
    """Options of attention for the keys that bool [B,S] keeps: none if it keeps all keys, begin and
    end if each sequence keeps an interval, otherwise a mask of one row.

    Reads the mask, so it must not be called while torch.compile traces.
    """
    if torch.compiler.is_compiling():
        return {"keep_mask": keep[:, None, None, :]}
    if bool(keep.all()):
        return {}
    count = keep.sum(-1)
    bits = keep.to(torch.uint8)
    first = bits.argmax(-1)
    end = keep.shape[-1] - bits.flip(-1).argmax(-1)
    empty = count == 0
    first, end = first.masked_fill(empty, 0), end.masked_fill(empty, 0)
    if bool((end - first == count).all()):
        return {"key_begins": first, "key_lengths": end}
    return {"keep_mask": keep[:, None, None, :]}
