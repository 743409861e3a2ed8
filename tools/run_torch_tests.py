#!/usr/bin/env python3
"""Run PyTorch's own tests of its attention module against multihead.torch.

Usage: run_torch_tests.py FILE [--functional] [arguments of unittest]

FILE is test/nn/test_multihead_attention.py of a checkout of PyTorch; it is not part of this repository.
Replaces torch.nn.MultiheadAttention before FILE imports it, and nothing else. --functional also replaces
torch.nn.functional.multi_head_attention_forward by this library's function with nan_rows=True,
because FILE expects NaN for a query that sees no key. docs/python-torch.md has the results.

Needs torch, its test requirement expecttest, and the package multihead (for a build: PYTHONPATH=bindings/python,
MHA_LIBRARY_DIR=build).
"""
import runpy
import sys

import torch
import multihead.torch


def with_nan_rows(forward):
    """A function without global names, which torch.compile can trace even though __main__ is then FILE."""
    def replacement(*arguments, **keywords):
        return forward(*arguments, nan_rows=True, **keywords)
    return replacement


def main():
    arguments = sys.argv[1:]
    functional = "--functional" in arguments
    if functional:
        arguments.remove("--functional")
    if not arguments:
        sys.exit(__doc__)
    torch.nn.MultiheadAttention = multihead.torch.MultiheadAttention
    if functional:
        torch.nn.functional.multi_head_attention_forward = with_nan_rows(
            multihead.torch.multi_head_attention_forward)
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
