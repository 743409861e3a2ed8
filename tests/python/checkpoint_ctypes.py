"""Transformers and their folders with ctypes: create, set, save, load, run."""
import ctypes as C

import numpy as np

from multihead._abi import CheckpointSettings, DecoderDesc, Parameter, TransformerDesc
from multihead._abi import TransformerInit as Init
from multihead._abi import TransformerInput as Input
from multihead._library import model_library
import multihead_ctypes as mha
from shared import MODEL_LIBRARY, needs
import training_ctypes as training

CAUSAL, POST_NORM, EMBEDDING_NORM, BIAS, CROSS, TIED, NO_OUTPUT = (1 << i for i in range(7))
NORM_NONE, NORM_LAYER, NORM_RMS = range(3)
ENCODING_NONE, ENCODING_LEARNED, ENCODING_SINUSOIDAL, ENCODING_ROTARY = range(4)
GELU, RELU, SWIGLU = range(3)


needs(MODEL_LIBRARY)
LIBRARY = model_library()


class Transformer:
    """A transformer created from fields of mha_transformer_desc, or loaded from a folder."""

    def __init__(self, folder=None, **fields):
        self.context = mha.Context(num_threads=1)
        self.handle = C.c_void_p()
        if folder is not None:
            mha.check(LIBRARY.mha_checkpoint_load(self.context.handle, str(folder).encode(),
                                                    C.byref(self.handle)))
        else:
            desc = TransformerDesc(**fields)
            mha.check(mha.LIBRARY.mha_transformer_create(self.context.handle, C.byref(desc),
                                                     C.byref(self.handle)))
        self.desc = TransformerDesc()
        mha.LIBRARY.mha_transformer_describe(self.handle, C.byref(self.desc))

    def __del__(self):
        if getattr(self, "handle", None):
            mha.LIBRARY.mha_transformer_destroy(self.handle)

    @property
    def data(self):
        """A view of every parameter; call update() after a change."""
        return np.ctypeslib.as_array(mha.LIBRARY.mha_transformer_data(self.handle),
                                     (mha.LIBRARY.mha_transformer_size(self.handle),))

    def update(self):
        mha.check(mha.LIBRARY.mha_transformer_update(self.context.handle, self.handle))

    def randomise(self, seed):
        """Initial parameters of training without special values: norms other than 1."""
        init = Init(seed=seed, embedding_std=1, position_std=1)
        mha.check(mha.LIBRARY.mha_transformer_initialise(self.context.handle, self.handle,
                                                     C.byref(init)))
        self.data[:] += 0.1 * np.random.default_rng(seed).standard_normal(self.data.size,
                                                                          np.float32)
        self.update()

    def parameters(self, data=None):
        """{name: view} of the parameters, or of an array of the same size."""
        data = self.data if data is None else data
        found = {}
        for i in range(mha.LIBRARY.mha_transformer_parameters(self.handle)):
            p = Parameter()
            mha.check(mha.LIBRARY.mha_transformer_parameter(self.handle, C.c_int64(i), C.byref(p)))
            found[p.name.decode()] = data[p.offset:p.offset + p.count].reshape(
                list(p.shape[:p.ndim]))
        return found

    def save(self, folder, words=None, splitting=0, **special):
        """special: bos_word="<s>", ..."""
        words = [word.encode() for word in words or []]
        array = (C.c_char_p * max(1, len(words)))(*words)
        settings = CheckpointSettings(words=array if words else None,
                                      word_count=len(words), splitting=splitting,
                                      **{name: word.encode() for name, word in special.items()})
        mha.check(LIBRARY.mha_checkpoint_save(str(folder).encode(), self.handle,
                                                C.byref(settings)))

    def pruned(self, keep):
        """A smaller transformer with the heads whose keep [L,H] is 1."""
        keep = mha.tensor(np.ascontiguousarray(keep, np.float32))
        made = Transformer.__new__(Transformer)
        made.context, made.handle, made.desc = self.context, C.c_void_p(), TransformerDesc()
        mha.check(mha.LIBRARY.mha_transformer_prune(self.context.handle, self.handle,
                                                    C.byref(keep), C.byref(made.handle)))
        mha.LIBRARY.mha_transformer_describe(made.handle, C.byref(made.desc))
        return made

    def look(self, ids):
        """Probabilities [L,B,H,T,T], and the last hidden states [B,T,E]."""
        d, (batch, length) = self.desc, ids.shape
        maps = np.zeros((d.num_layers, batch, d.num_heads, length, length), np.float32)
        hidden = np.zeros((batch, length, d.embed_dim), np.float32)
        ids = np.ascontiguousarray(ids, np.int32)  # lives as long as its tensor
        tokens, last = mha.tensor(ids), mha.tensor(hidden)
        given = Input(tokens=C.pointer(tokens),
                      last_hidden=C.pointer(last))
        mha.check(mha.LIBRARY.mha_transformer_forward(
            self.context.handle, self.handle, C.byref(given), None, None,
            C.byref(mha.tensor(maps)), None))
        return maps, hidden

    def __call__(self, ids, targets=None):
        """Logits (or the last hidden states) of int ids [B,T]. With targets [B,T], the gradients of
        the mean cross-entropy, concatenated in the order of the parameters."""
        ids = np.ascontiguousarray(ids, np.int32)
        width = self.desc.embed_dim if self.desc.flags & NO_OUTPUT else self.desc.vocab_size
        output = np.zeros((*ids.shape, width), np.float32)
        tokens, out = mha.tensor(ids), mha.tensor(output)
        activations = C.c_void_p()
        mha.check(mha.LIBRARY.mha_activations_create(
            self.context.handle, self.handle, C.c_int64(ids.size), C.c_int64(0),
            C.byref(activations)))
        try:
            given = Input(tokens=C.pointer(tokens))
            mha.check(mha.LIBRARY.mha_transformer_forward(
                self.context.handle, self.handle, C.byref(given), activations, C.byref(out), None,
                None))
            if targets is None:
                return output
            _, slope = training.cross_entropy(output, np.ascontiguousarray(targets, np.int32))
            gradient = np.zeros(mha.LIBRARY.mha_transformer_size(self.handle), np.float32)
            wanted = training.TransformerGradients(
                parameters=gradient.ctypes.data)
            mha.check(mha.LIBRARY.mha_transformer_backward(
                self.context.handle, self.handle, C.byref(given), activations,
                C.byref(mha.tensor(slope)), C.byref(wanted)))
            return gradient
        finally:
            mha.LIBRARY.mha_activations_destroy(activations)


class Decoder:
    """A transformer with a cache."""

    def __init__(self, transformer, **fields):
        self.of, self.handle = transformer, C.c_void_p()
        desc = DecoderDesc(**fields)
        mha.check(mha.LIBRARY.mha_decoder_create(transformer.context.handle, transformer.handle,
                                                 C.byref(desc), C.byref(self.handle)))

    def __del__(self):
        mha.LIBRARY.mha_decoder_destroy(self.handle)

    def __call__(self, ids, counts=None):
        """Logits of the next int ids [B,n]. Sequence b takes counts[b] of them."""
        ids = np.ascontiguousarray(ids, np.int32)
        output = np.zeros((*ids.shape, self.of.desc.vocab_size), np.float32)
        counts = None if counts is None else (C.c_int64 * len(ids))(*counts)
        mha.check(mha.LIBRARY.mha_decoder_step_rows(
            self.of.context.handle, self.handle, C.byref(mha.tensor(ids)), None, counts,
            C.byref(mha.tensor(output))))
        return output

    def truncate(self, length):
        mha.check(mha.LIBRARY.mha_decoder_truncate(self.handle, C.c_int64(length)))


def encode(folder, text):
    """The tokens of a text by mha_vocabulary_encode()."""
    vocabulary, count, text = C.c_void_p(), C.c_int64(), text.encode()
    ids = (C.c_int32 * (len(text) + 1))()
    mha.check(LIBRARY.mha_vocabulary_load(str(folder).encode(), C.byref(vocabulary)))
    try:
        mha.check(LIBRARY.mha_vocabulary_encode(
            vocabulary, text, C.c_size_t(len(text)), ids, C.c_int64(len(ids)), C.byref(count)))
    finally:
        LIBRARY.mha_vocabulary_destroy(vocabulary)
    return list(ids)[:count.value]
