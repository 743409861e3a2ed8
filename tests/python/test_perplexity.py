"""multihead perplexity on SmolLM2 (tools/get-smollm2) against the float32 logits of transformers, with keys
and values in caches of every type."""
import json
import math
import os
import pathlib
import subprocess

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("gguf")
pytest.importorskip("accelerate")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("MULTIHEAD", ROOT / "build" / "multihead"))
SMOLLM2 = [*(ROOT / "build/models").glob("*[sS]mol*/*.gguf"), *(ROOT / "build/models").glob("*[sS]mol*.gguf")]
TEXT = ROOT / "docs/numerics.md"
TOKENS = 256
# How far the mean loss, and the loss of any token, may be from those of transformers: three times what was
# measured or more; means of other texts would vary as far.
BOUNDS = {"f32": (1e-6, 1e-4), "f16": (3e-4, 0.05), "bf16": (2e-3, 0.15), "int8": (1e-2, 1),
          "int8-channel": (1e-2, 1)}

pytestmark = [pytest.mark.skipif(not SMOLLM2, reason="tools/get-smollm2 was not run"),
              pytest.mark.skipif(not PROGRAM.exists(), reason="no program")]


@pytest.fixture(scope="module")
def theirs():
    where = dict(pretrained_model_name_or_path=SMOLLM2[0].parent, gguf_file=SMOLLM2[0].name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    ids = tokenizer(TEXT.read_text(), return_tensors="pt").input_ids[:, :TOKENS]
    return transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32), ids


def losses_of(model, ids, context, window=TOKENS, sinks=0):
    """Losses of tokens 2 .. n of each context, under a window and its sinks."""
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
    command = [PROGRAM, "perplexity", SMOLLM2[0], "--text", TEXT, "--tokens", str(TOKENS), "--json", *arguments]
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
