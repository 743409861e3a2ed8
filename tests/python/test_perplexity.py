"""multihead perplexity of SmolLM2 (tools/get-smollm2) compared with the float32 logits of
transformers, with keys and values in caches of every type."""
import json
import math
import subprocess

import pytest
import torch
import transformers

from shared import PROGRAM, ROOT, SMOLLM2, needs

needs(PROGRAM)
needs(SMOLLM2, "is missing: tools/get-smollm2 fetches it")
pytestmark = pytest.mark.gate(0)
TEXT = ROOT / "examples/harbour.txt"
TOKENS = 256
# Tolerances of the mean loss and of a token's loss: at least three times the measured difference
# from transformers, because other texts would differ.
BOUNDS = {"f32": (1e-6, 1e-4), "f16": (3e-4, 0.05), "bf16": (2e-3, 0.15), "int8": (1e-2, 1),
          "int8-channel": (1e-2, 1)}


@pytest.fixture(scope="module")
def theirs(smollm2):
    tokenizer = transformers.AutoTokenizer.from_pretrained(SMOLLM2.parent, gguf_file=SMOLLM2.name)
    return smollm2, tokenizer(TEXT.read_text(), return_tensors="pt").input_ids[:, :TOKENS]


def losses_of(model, ids, context, window=TOKENS, sinks=0):
    """Losses of tokens 2 .. n of each context, with a window and its sinks."""
    losses = []
    with torch.no_grad():
        for part in ids.split(context, dim=1):
            query, key = torch.meshgrid(*[torch.arange(part.shape[1])] * 2, indexing="ij")
            seen = (key <= query) & ((key > query - window) | (key < sinks))
            mask = torch.zeros(seen.shape).masked_fill(~seen, -math.inf)[None, None]
            logits = model(part, attention_mask=mask).logits[0, :-1].double()
            losses += [None, *torch.nn.functional.cross_entropy(logits, part[0, 1:], reduction="none").tolist()]
    return losses


def measured(*arguments):
    command = [PROGRAM, "perplexity", SMOLLM2, "--text", TEXT, "--tokens", str(TOKENS), "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("context", [TOKENS, 100])
def test_smollm2(theirs, context):
    wanted = losses_of(*theirs, context)
    told = [x for x in wanted if x is not None]
    for cache, (of_mean, of_token) in BOUNDS.items():
        found = measured("--cache", cache, "--context", str(context))
        assert [x is None for x in found["losses"]] == [x is None for x in wanted]
        most = max(abs(a - b) for a, b in zip(found["losses"], wanted) if b is not None)
        distance = found["loss"] - math.fsum(told) / len(told)
        print(f"{cache}, contexts of {context}: perplexity {found['perplexity']:.4f}, loss {distance:+.2e}, "
              f"of a token at most {most:.2e} from transformers")
        assert abs(distance) <= of_mean and most <= of_token
        assert abs(found["perplexity"] / math.exp(found["loss"]) - 1) < 1e-7


@pytest.mark.parametrize("window, sinks", [(64, 4), (50, 0)])
def test_windows(theirs, window, sinks):
    wanted = losses_of(*theirs, TOKENS, window, sinks)
    found = measured("--window", str(window), "--sinks", str(sinks), "--chunk", "37")["losses"]
    assert found[0] is None and max(abs(a - b) for a, b in zip(found[1:], wanted[1:])) < BOUNDS["f32"][1]
