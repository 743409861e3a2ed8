"""`multihead view --from --to` compared with the same definitions in PyTorch: weights from eager
attention, norm-based shares from explicit vectors, and the rotation of the hidden state without a
head, from a run in which the head's slice is 0 before the output projection. The models are the
tiny BERT, and the real model of MHA_MODEL_DIR (default build/models/all-MiniLM-L6-v2) if it exists.
"""
import json
import subprocess

import pytest
import torch
import transformers

from shared import MINILM, PROGRAM, TINY, needs

CASES = [(TINY, "The cat didn't sit on the mat", "didn't", "mat"),
         (MINILM, "The animal didn't cross the street because it was too tired.", "it", "animal")]

needs(PROGRAM)




class Bert:
    """A BERT in float64 with removable heads."""

    def __init__(self, folder):
        self.model = transformers.BertModel.from_pretrained(
            folder, attn_implementation="eager", add_pooling_layer=False).double().eval()
        self.size = self.model.config.hidden_size // self.model.config.num_attention_heads
        self.values, self.gone = {}, None
        for number, layer in enumerate(self.model.encoder.layer):
            layer.attention.self.value.register_forward_hook(
                lambda _, __, out, number=number: self.values.__setitem__(number, out[0]))
            layer.attention.output.dense.register_forward_pre_hook(
                lambda _, inputs, number=number: self.take_out(number, inputs))

    def take_out(self, number, inputs):
        if self.gone is None or self.gone[0] != number:
            return None
        changed = inputs[0].clone()
        changed[..., self.gone[1] * self.size:(self.gone[1] + 1) * self.size] = 0
        return (changed,)

    def __call__(self, ids, gone=None):
        self.gone = gone
        with torch.no_grad():
            return self.model(input_ids=torch.tensor([ids]), output_attentions=True)


@pytest.mark.parametrize("folder, text, from_, to", CASES)
def test_three_measures(folder, text, from_, to):
    if not folder.exists():
        pytest.skip(f"{folder} is missing")
    done = subprocess.run([PROGRAM, "view", folder, text, "--from", from_, "--to", to, "--json", "-"],
                          capture_output=True, check=True)
    data = json.loads(done.stdout)
    rows, columns = data["from"]["tokens"], data["to"]["tokens"]
    vocabulary = {word: i for i, word in
                  enumerate((folder / "vocab.txt").read_text(encoding="utf-8").splitlines())}
    bert = Bert(folder)
    ids = [vocabulary[token] for token in data["tokens"]]
    whole = bert(ids)
    hidden = whole.last_hidden_state[0]
    values = dict(bert.values)
    worst = {"weight": 0, "share": 0, "effect": 0}
    for head in data["heads"]:
        number, h, size = head["layer"], head["head"], bert.size
        alpha = whole.attentions[number][0, h]
        output = bert.model.encoder.layer[number].attention.output.dense.weight.detach()
        written = values[number][:, h * size:(h + 1) * size] @ output[:, h * size:(h + 1) * size].T
        norms = (alpha[:, :, None] * written[None]).norm(dim=-1)
        without = bert(ids, (number, h)).last_hidden_state[0]
        turned = 1 - torch.cosine_similarity(hidden, without, dim=-1)
        wanted = {"weight": alpha[rows][:, columns].sum(1).mean(),
                  "share": (norms[rows][:, columns].sum(1) / norms[rows].sum(1)).mean(),
                  "effect": turned[rows].mean()}
        for name, value in wanted.items():
            worst[name] = max(worst[name], abs(head[name] - float(value)))
    print(folder.name, from_, to, worst)
    # Errors of float32 relative to float64: about 1e-6 for weights, like in test_model_hf.py, and
    # about 2^-22 for 1 - cosine of two hidden states.
    assert all(value < 1e-5 for value in worst.values()), worst
