"""Multi-head attention in C, from Python: attention and its gradients, models and their heads.

    import multihead
    o = multihead.attention(q, k, v, causal=True)            # NumPy, torch or DLPack arrays

`help(multihead.attention)` has the formula and every option; docs/python.md is the manual.
"""
from ._audio import log_mel, read_audio
from ._attention import AttentionOutputs, AttentionPlan, attention, explain
from ._backward import AttentionGradients, attention_backward
from ._call import AttentionOptions
from ._decoder import Decoder
from ._heads import MEASURES, HeadScores, Measure, Role
from ._image_views import ImageView, image_view
from ._images import Grid, Patches, read_image
from ._library import (CallbackError, Context, DTypeError, Error, FileError, InvalidArgument,
                       OutOfMemory, Unsupported, get_threads, isa_available, set_threads, version)
from ._linear import (LinearAttentionGradients, LinearAttentionState, linear_attention,
                      linear_attention_backward)
from ._model import Experts, Model, ModelAttention
from ._tokens import Tokens
from ._transcript import Segment, Transcript, Word
from ._views import View, head_view, heatmap, model_view, neuron_view

__version__ = version()

__all__ = [
    "MEASURES", "AttentionGradients", "AttentionOptions", "AttentionOutputs", "AttentionPlan",
    "CallbackError", "Context", "DTypeError", "Decoder", "Error", "Experts", "FileError", "Grid", "HeadScores",
    "ImageView", "InvalidArgument", "LinearAttentionGradients", "LinearAttentionState", "Measure", "Model",
    "ModelAttention", "OutOfMemory", "Patches", "Role", "Segment", "Tokens", "Transcript", "Unsupported", "View", "Word",
    "attention", "attention_backward", "explain", "get_threads", "head_view", "heatmap", "image_view", "isa_available",
    "linear_attention", "linear_attention_backward", "log_mel", "model_view", "neuron_view", "read_audio", "read_image",
    "set_threads"]
