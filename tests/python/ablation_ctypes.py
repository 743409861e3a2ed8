"""ablation.h with ctypes, only for tests: texts with terms, sets of heads, and results as NumPy
arrays with the header's axes."""
import ctypes as C

import numpy as np

from multihead._abi import (AblationDesc, EffectData, EffectInterval, EffectTerm, EffectText, HeadSets, Patching,
                            PathReceiver)
import multihead_ctypes as mha

ZERO, MEAN, RESAMPLE = range(3)
OUTPUT, QUERY, KEY, VALUE = range(4)
DoublePointer = C.POINTER(C.c_double)


class Run:
    """Effects on a transformer, an object with context, handle and desc. `texts` has (tokens [B,T],
    lengths or None, [(factor, row, token, measure)])."""

    def __init__(self, model, texts, measures):
        self.model, self.texts, self.measures = model, texts, measures
        self.kept = [(mha.tensor(np.ascontiguousarray(tokens, np.int32)),
                      (EffectTerm * len(terms))(*[EffectTerm(*term) for term in terms]))
                     for tokens, _, terms in texts]
        self.tokens = [np.ascontiguousarray(tokens, np.int32) for tokens, *_ in texts]
        self.tensors = [mha.tensor(tokens) for tokens in self.tokens]
        self.structs = [EffectText(tokens=C.pointer(tensor), lengths=mha._int64s(lengths), terms=terms,
                             term_count=len(terms))
                        for tensor, (_, terms), (_, lengths, _) in zip(self.tensors, self.kept, texts)]
        self.pointers = (C.POINTER(EffectText) * len(texts))(*map(C.pointer, self.structs))
        self.data = EffectData(texts=len(texts), measures=measures, text=self.pointers)
        self.heads = model.desc.num_layers * model.desc.num_heads

    def _call(self, name, *arguments):
        mha.check(getattr(mha.LIBRARY, name)(self.model.context.handle, self.model.handle,
                                             *arguments))

    @staticmethod
    def _out(*shape):
        array = np.zeros(shape)
        return array, array.ctypes.data_as(DoublePointer)

    def means(self):
        d = self.model.desc
        array = np.zeros((d.num_layers, d.num_heads * d.head_dim), np.float32)
        self._call("mha_effect_means", C.byref(self.data), C.byref(mha.tensor(array)))
        return array

    def _ablation(self, kind, seed):
        self.mean_array = self.means() if kind == MEAN else None
        means = C.pointer(mha.tensor(self.mean_array)) if kind == MEAN else None
        return AblationDesc(kind=kind, seed=seed, means=means)

    def sets(self, kind, sets, seed=0):
        first = np.cumsum([0, *map(len, sets)])
        given = HeadSets(count=len(sets), first=mha._int64s(first),
                     heads=mha._int64s([head for heads in sets for head in heads]))
        whole, to_whole = self._out(len(self.texts), self.measures)
        without, to_without = self._out(len(sets), len(self.texts), self.measures)
        self._call("mha_effect_sets", C.byref(self._ablation(kind, seed)), C.byref(self.data),
                   C.byref(given), to_whole, to_without)
        return whole, without

    def gradients(self, kind, seed=0):
        found, to = self._out(self.heads, len(self.texts), self.measures)
        self._call("mha_effect_gradients", C.byref(self._ablation(kind, seed)), C.byref(self.data),
                   to)
        return found

    def direct(self):
        found, to = self._out(self.heads, len(self.texts), self.measures)
        self._call("mha_effect_direct", C.byref(self.data), to)
        return found

    def patching(self, source, part=OUTPUT, rows=None, receivers=None):
        """Patch the first text from the prompt `source`. With receivers, patch the paths to them,
        or to the logits for []. Returns (values of both prompts, values of each head)."""
        source = np.ascontiguousarray(source, np.int32)
        tensor = mha.tensor(source)
        mask = None if rows is None else (C.c_uint8 * len(rows))(*map(int, rows))
        ends = (PathReceiver * max(1, len(receivers or [])))(
            *[PathReceiver(layer=layer, head=head, part=kind) for layer, head, kind in receivers or []])
        desc = Patching(part=part, to=C.pointer(self.structs[0]), rows=C.cast(mask, C.c_void_p), receivers=ends if receivers else None,
                        receiver_count=len(receivers or []), measures=self.measures)
        setattr(desc, "from", C.pointer(tensor))
        to, to_to = self._out(self.measures)
        other, to_other = self._out(self.measures)
        values, to_values = self._out(self.heads, self.measures)
        name = "mha_activation_patching" if receivers is None else "mha_path_patching"
        self._call(name, C.byref(desc), to_to, to_other, to_values)
        return to, other, values

    def interval(self, values, seed=0, replicates=0):
        values = np.ascontiguousarray(values, np.float64)
        found = EffectInterval()
        mha.check(mha.LIBRARY.mha_effect_bootstrap(
            self.model.context.handle, values.ctypes.data_as(DoublePointer), C.c_int64(len(values)),
            C.c_int64(1), C.c_int64(replicates), C.c_uint64(seed), C.byref(found)))
        return found
