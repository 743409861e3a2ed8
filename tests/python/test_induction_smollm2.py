"""The induction heads of SmolLM2 (tools/get-smollm2) on repeated random tokens: multihead's scores,
compared with transformers' attention (eager and float32, like its GGUF models), for each row by the
definition of Olsson et al. 2022. Every head must agree within 1e-4, and the ten best heads must
have the same order, except for heads whose scores differ by less."""
import ctypes as C
import json
import subprocess

import numpy as np
import pytest
import torch

import multihead
from multihead import _abi, _library
from shared import PROGRAM, SMOLLM2, needs

needs(SMOLLM2, "is missing: tools/get-smollm2 fetches it")
pytestmark = pytest.mark.gate(0)
SEQUENCES, BLOCK, REPEATS, TOLERANCE = 4, 25, 4, 1e-4


def sequences():
    """The program's random tokens, the input of both computations."""
    model = multihead.Model(SMOLLM2)
    plan = _abi.RandomTokens()
    _library.check(model._library.mha_random_tokens_plan(model._handle, C.byref(plan)))
    pool = np.ctypeslib.as_array(C.cast(plan.pool, C.POINTER(C.c_int32)), (plan.pool_count,)).copy()
    drawn, special = np.zeros(BLOCK * REPEATS + 2, np.int32), np.zeros(BLOCK * REPEATS + 2, np.uint8)
    for sequence in range(SEQUENCES):
        how, count = _abi.RepeatedTokens(block=BLOCK, repeats=REPEATS, first=-1, last=-1, seed=1,
                                         sequence=sequence), C.c_int64()
        _library.check(_library.library.mha_head_pass_repeated(
            C.byref(how), len(pool), pool.ctypes.data, drawn.ctypes.data, special.ctypes.data,
            C.byref(count)))
        yield drawn[:count.value].astype(np.int64).copy()


def induction(tokens, maps):
    """[heads] sums over rows of the weight on tokens that followed earlier occurrences of the row's
    token, and the number of rows with both one of these keys and another key."""
    total, rows = np.zeros(len(maps)), 0
    for i, token in enumerate(tokens):
        followers = [j + 1 for j in range(i) if tokens[j] == token and tokens[j + 1] != token]
        if followers and len(followers) < i + 1:
            total += maps[:, i, followers].astype(np.float64).sum(1)
            rows += 1
    return total, rows


@pytest.fixture(scope="module")
def reference(smollm2):
    scores, rows = 0, 0
    for tokens in sequences():
        assert len(set(tokens[:BLOCK])) == BLOCK and (tokens[:BLOCK] == tokens[BLOCK:2 * BLOCK]).all()
        with torch.no_grad():
            maps = smollm2(torch.from_numpy(tokens)[None], output_attentions=True).attentions
        found = [induction(tokens, layer[0].numpy()) for layer in maps]
        scores = scores + np.array([total for total, _ in found])
        rows += found[0][1]
    return scores / rows, rows


def test_ten_best(reference):
    scores, rows = reference
    done = subprocess.run([PROGRAM, "heads", SMOLLM2, "--random", str(SEQUENCES), "--json", "--quiet"],
                          capture_output=True, text=True, check=True)
    ours = np.zeros(scores.shape)
    for head in json.loads(done.stdout)["heads"]:
        score = head["scores"]["random_induction"]
        assert score["rows"] == rows == SEQUENCES * BLOCK * (REPEATS - 1)
        ours[head["layer"], head["head"]] = score["value"]
    print(f"largest difference {np.abs(ours - scores).max():.2e}")
    assert np.abs(ours - scores).max() < TOLERANCE
    flat = scores.ravel()
    best, theirs = np.argsort(-ours.ravel())[:10], np.argsort(-flat)[:10]
    print("best: " + ", ".join(f"L{h // 9}H{h % 9} {flat[h]:.3f}" for h in theirs))
    for a, b in zip(best, theirs):
        assert a == b or abs(flat[a] - flat[b]) < 2 * TOLERANCE
