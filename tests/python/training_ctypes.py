"""Transformers, their gradients, loss and optimizers with multihead_ctypes.py, only for tests and
measurements.

    model = training.Transformer(vocab_size=16, max_length=32, embed_dim=32, num_layers=2,
                                 num_heads=4, ff_dim=64, causal=True, norm="rms", ...)
    logits = model.forward(tokens)                       # i32 [B,T] -> f32 [B,T,V]
    loss, dlogits = training.cross_entropy(logits, targets)
    model.backward(dlogits)                              # model.gradient, by name model.gradients()
    model.adamw(1e-3, weight_decay=0.01); model.clear()
"""
import ctypes as C

import numpy as np

from multihead._abi import (Adamw, Parameter, Sgd, TransformerDesc, TransformerGradients, TransformerInit,
                            TransformerInput)
import multihead_ctypes as mha

FLAGS = {"causal": 1, "post_norm": 2, "embedding_norm": 4, "bias": 8, "cross": 16, "tied": 32,
         "no_output": 64}
NORMS = {"none": 0, "layer": 1, "rms": 2}
POSITIONS = {"none": 0, "learned": 1, "sinusoidal": 2, "rotary": 3}
FEED_FORWARD = {"gelu": 0, "relu": 1, "swiglu": 2}
MATRIX = 0


_library = mha.LIBRARY


def _ref(array):
    return None if array is None else C.byref(mha.tensor(array))


def _pointer(array):
    return None if array is None else C.pointer(mha.tensor(array))


def _floats(array, offset=0):
    return array.ctypes.data + 4 * offset


class Transformer:
    """mha_transformer with memory for one batch, its gradient and its optimizer's state. Keywords
    are the fields of mha_transformer_desc and the names of flags."""

    def __init__(self, context=None, max_tokens=2048, max_memory=0, norm="none", positions="none",
                 feed_forward="gelu", **fields):
        self.context = context or mha.default_context()
        flags = sum(FLAGS[name] for name in FLAGS if fields.pop(name, False))
        desc = TransformerDesc(flags=flags,
                               norm=NORMS[norm], positions=POSITIONS[positions],
                               feed_forward=FEED_FORWARD[feed_forward], **fields)
        self.handle, self.activations = C.c_void_p(), C.c_void_p()
        x = self.context.handle
        mha.check(_library.mha_transformer_create(x, C.byref(desc), C.byref(self.handle)))
        mha.check(_library.mha_activations_create(x, self.handle, C.c_int64(max_tokens),
                                                  C.c_int64(max_memory),
                                                  C.byref(self.activations)))
        self.desc = TransformerDesc()
        _library.mha_transformer_describe(self.handle, C.byref(self.desc))
        size = _library.mha_transformer_size(self.handle)
        self.data = np.ctypeslib.as_array(_library.mha_transformer_data(self.handle), (size,))
        self.gradient, self.m, self.v = (np.zeros(size, np.float32) for _ in range(3))
        self.table, self.steps, self.input = self._table(), 0, None
        self.runs = self._runs()
        self.width = self.desc.embed_dim if flags & FLAGS["no_output"] else self.desc.vocab_size

    def _table(self):
        table = []
        for i in range(_library.mha_transformer_parameters(self.handle)):
            parameter = Parameter()
            mha.check(_library.mha_transformer_parameter(self.handle, C.c_int64(i),
                                                         C.byref(parameter)))
            table.append(parameter)
        return table

    def _views(self, flat):
        return {p.name.decode(): flat[p.offset:p.offset + p.count].reshape(p.shape[:p.ndim])
                for p in self.table}

    def parameters(self):
        """{name: view}; call update() after a change."""
        return self._views(self.data)

    def gradients(self):
        return self._views(self.gradient)

    def initialise(self, seed, **fields):
        init = TransformerInit(seed=seed, **fields)
        mha.check(_library.mha_transformer_initialise(self.context.handle, self.handle,
                                                      C.byref(init)))

    def update(self):
        mha.check(_library.mha_transformer_update(self.context.handle, self.handle))

    def forward(self, tokens, lengths=None, memory=None, memory_lengths=None, gates=None,
                cross_gates=None, output=None):
        self.kept = (tokens, memory, gates, cross_gates)
        self.input = TransformerInput(
            tokens=_pointer(tokens),
            lengths=mha._int64s(lengths), memory=_pointer(memory),
            memory_lengths=mha._int64s(memory_lengths), gates=_pointer(gates),
            cross_gates=_pointer(cross_gates))
        if output is None:
            output = np.full((*tokens.shape, self.width), np.nan, np.float32)
        mha.check(_library.mha_transformer_forward(self.context.handle, self.handle,
                                                   C.byref(self.input), self.activations,
                                                   _ref(output), None, None))
        return output

    def backward(self, output_gradient, memory=None, gates=None, cross_gates=None):
        """Add to self.gradient and to the given arrays."""
        wanted = TransformerGradients(
            parameters=_floats(self.gradient),
            memory=_pointer(memory), gates=_pointer(gates), cross_gates=_pointer(cross_gates))
        mha.check(_library.mha_transformer_backward(self.context.handle, self.handle,
                                                    C.byref(self.input), self.activations,
                                                    _ref(output_gradient), C.byref(wanted)))

    def clear(self):
        self.gradient[:] = 0

    def norm(self):
        found = C.c_double()
        mha.check(_library.mha_gradient_norm(self.context.handle, C.c_int64(self.gradient.size),
                                             _floats(self.gradient), C.byref(found)))
        return found.value

    def _runs(self):
        """(offset, count, is matrix) of adjacent parameters of one kind. A step makes one call for
        each."""
        runs = []
        for p in self.table:
            matrix = p.kind == MATRIX
            if runs and runs[-1][2] == matrix:
                runs[-1][1] += p.count
            else:
                runs.append([p.offset, p.count, matrix])
        return runs

    def adamw(self, learning_rate, betas=(0.9, 0.999), weight_decay=0.0, scale=0.0):
        """One step, with weight decay only on matrices."""
        self.steps += 1
        for offset, count, matrix in self.runs:
            s = Adamw(learning_rate=learning_rate, beta1=betas[0],
                      beta2=betas[1], weight_decay=weight_decay if matrix else 0,
                      gradient_scale=scale, step=self.steps)
            mha.check(_library.mha_adamw_step(
                self.context.handle, C.byref(s), C.c_int64(count),
                *(_floats(x, offset) for x in (self.data, self.gradient, self.m, self.v))))
        self.update()

    def sgd(self, learning_rate, momentum=0.0, scale=0.0):
        s = Sgd(learning_rate=learning_rate, momentum=momentum,
                gradient_scale=scale)
        mha.check(_library.mha_sgd_step(
            self.context.handle, C.byref(s), C.c_int64(self.data.size),
            *(_floats(x) for x in (self.data, self.gradient, self.m))))
        self.update()

    def __del__(self):
        if getattr(self, "handle", None):
            _library.mha_activations_destroy(self.activations)
            _library.mha_transformer_destroy(self.handle)
            self.handle = None


def cross_entropy(logits, targets, context=None, into=None):
    """The mean loss of targets that are not -1, and its gradient with respect to the logits."""
    flat = logits.reshape(-1, logits.shape[-1])
    gradient = np.empty_like(logits) if into is None else into
    loss = C.c_double()
    mha.check(_library.mha_cross_entropy(
        (context or mha.default_context()).handle, _ref(flat), _ref(targets.reshape(-1)), None,
        C.byref(loss), None, _ref(gradient.reshape(flat.shape))))
    return loss.value, gradient
