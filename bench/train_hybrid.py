#!/usr/bin/env python3
"""Train two layers of gated delta nets on facts that change, with torch and transformers.

    bench/train_hybrid.py FOLDER [--steps 300]

A text is a list of facts and questions: SET key value, GET key value. Keys are set again and again; the value
after GET is the latest one, and only these tokens are learned. FOLDER gets the model (a Qwen3-Next without
attention, whose decays begin near 1) and ids.txt, 16 texts of 63 tokens that it has not seen.
"""
import argparse
import pathlib

import torch
import transformers

SET, GET, KEYS, VALUES, FACTS = 0, 1, 8, 16, 21


def make_texts(count, generator):
    def draw(*high_and_shape):
        return torch.randint(*high_and_shape, generator=generator)
    keys, values = draw(KEYS, (count, FACTS)), draw(VALUES, (count, FACTS))
    asked = draw(2, (count, FACTS)) == 1
    known = torch.full((count, KEYS), -1)
    rows = torch.arange(count)
    for i in range(FACTS):
        old = known[rows, keys[:, i]]
        asked[:, i] &= old >= 0
        values[:, i] = torch.where(asked[:, i], old, values[:, i])
        known[rows, keys[:, i]] = values[:, i]
    ids = torch.stack([torch.where(asked, GET, SET), 2 + keys, 2 + KEYS + values], -1).flatten(1)
    learned = torch.stack([asked & False, asked & False, asked], -1).flatten(1)
    return ids, learned


def accuracy(net, ids, learned):
    with torch.no_grad():
        guess = net(ids).logits[:, :-1].argmax(-1)
    return (guess == ids[:, 1:])[learned[:, 1:]].float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(1)
    net = transformers.Qwen3NextForCausalLM(transformers.Qwen3NextConfig(
        vocab_size=2 + KEYS + VALUES, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        layer_types=["linear_attention", "linear_attention"], num_experts=0,
        num_attention_heads=4, num_key_value_heads=4, head_dim=16, linear_num_key_heads=4,
        linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16, max_position_embeddings=128,
        use_cache=False,
        pad_token_id=None, bos_token_id=None, eos_token_id=None))
    for layer in net.model.layers:
        step = torch.empty(4).uniform_(-7, -2).exp()
        layer.linear_attn.dt_bias.data = step + (-torch.expm1(-step)).log()  # its softplus is the step
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, options.steps)
    test = make_texts(16, torch.Generator().manual_seed(2))
    for step in range(options.steps):
        ids, learned = make_texts(32, generator)
        logits = net(ids).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits[learned[:, 1:]], ids[:, 1:][learned[:, 1:]])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1)
        optimizer.step()
        schedule.step()
        if step % 50 == 49:
            print(f"step {step + 1}: loss {loss.item():.3f}, accuracy {accuracy(net, *test):.3f}", flush=True)
            net.save_pretrained(options.folder)
    (options.folder / "ids.txt").write_text("\n".join(" ".join(map(str, row)) for row in test[0].tolist()) + "\n")


if __name__ == "__main__":
    main()
