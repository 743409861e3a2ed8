"""Checks of decoders with a vocabulary of 97 tokens against the random model of transformers from which they were read."""
import contextlib
import importlib
from unittest import mock

import numpy as np
import torch

import multihead
import transformer_torch as plain
from shared import rounds_like


class Double:
    """A substitute for torch, for code that always computes parts in float32."""
    float = float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@contextlib.contextmanager
def doubled(net):
    """The model in float64, with every part of its module."""
    try:
        with mock.patch.object(importlib.import_module(type(net).__module__), "torch", Double()), \
                mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
            yield net.double()
    finally:
        net.float()


def in_double(net, ids):
    with doubled(net), torch.no_grad():
        return net(ids).logits[0].numpy()


def gradients_of_whole(net, ids, targets):
    net.zero_grad()
    plain.loss(net(ids, use_cache=False).logits, targets).backward()
    return {name: p.grad.numpy().copy() for name, p in net.named_parameters()}


def check_logits(net, model, length=150):
    torch.manual_seed(1)
    ids = torch.randint(0, 97, (1, length))
    with torch.no_grad():
        rounded = net(ids).logits[0].numpy()
    assert rounds_like(model.logits(ids[0].tolist()), rounded, in_double(net, ids))


def check_bits(model, steps):
    """Calls with 1 and 3 threads and decoders with these (size of steps, latent) have the same bits. Returns the last
    decoder."""
    ids = torch.randint(0, 97, (2, 150)).tolist()
    whole = [model.logits(row) for row in ids]
    threads = multihead.get_threads()
    for count in (1, 3):
        multihead.set_threads(count)
        assert np.array_equal(model.logits(ids[0]), whole[0])
    multihead.set_threads(threads)
    for size, latent in steps:
        decoder = model.decoder(batch=2, latent=latent)
        for at in range(0, 150, size):
            got = decoder.step([row[at:at + size] for row in ids], [len(row[at:at + size]) for row in ids])
            for b in range(2):
                assert np.array_equal(got[b], whole[b][at:at + size])
    return decoder


def check_greedy(net, model):
    ids = torch.randint(0, 97, (1, 9))
    decoder, ours = model.decoder(), []
    logits = decoder.prefill(ids[0].tolist())
    for _ in range(50):
        ours.append(int(logits.argmax()))
        logits = decoder.step([ours[-1]])[0]
    whole = ids[0].tolist() + ours
    with torch.no_grad():
        theirs = net(torch.tensor([whole])).logits[0].argmax(-1)
    assert theirs[8:-1].tolist() == ours == model.logits(whole)[8:-1].argmax(-1).tolist()


def check_without_head(net, model, layer, out):
    """Head 1 of a layer disabled: its columns of the output projection `out` are 0."""
    ids, D = torch.randint(0, 97, (1, 40)), out.in_features // model.heads_of_layers[layer]
    with torch.no_grad():
        kept = out.weight.clone()
        out.weight[:, D:2 * D] = 0
        theirs = net(ids).logits[0].numpy()
        out.weight.copy_(kept)
    ours = model.logits(ids[0].tolist(), without=[f"L{layer}H1"])
    assert np.linalg.norm(ours - theirs) < 1e-4 * np.linalg.norm(theirs)


def check_gradients(net, trained, as_ours):
    """The error of all gradients is at most twice that of torch in float32. as_ours(net, name, x) returns {our names:
    parts} of a parameter of transformers."""
    ids, targets = torch.randint(0, 97, (2, 2, 70))
    ours = trained.parameters(trained(ids.numpy(), targets.numpy()))
    rounded = gradients_of_whole(net, ids, targets)
    with doubled(net):
        exact, sums = gradients_of_whole(net, ids, targets), np.zeros(2)
    for name, wanted in exact.items():
        theirs = as_ours(net, name, torch.tensor(rounded[name]))
        for part, right in as_ours(net, name, torch.tensor(wanted)).items():
            errors = [np.linalg.norm(np.asarray(x).reshape(-1) - right.numpy().reshape(-1))
                      for x in (ours.pop(part), theirs[part])]
            assert errors[0] <= 10 * errors[1] + 1e-4 * np.linalg.norm(right), part
            sums += np.square(errors)
    assert not any(np.any(x) for x in ours.values())  # constants, such as slopes
    assert sums[0] <= 4 * sums[1]
