"""Multi-head attention in C, from Python."""
from ._attention import AttentionOutputs, AttentionPlan, attention, explain
from ._backward import AttentionGradients, attention_backward
from ._call import AttentionOptions
from ._library import (CallbackError, Context, DTypeError, Error, FileError, InvalidArgument,
                       OutOfMemory, Unsupported, get_threads, isa_available, set_threads, version)

__version__ = version()

__all__ = ["AttentionGradients", "AttentionOptions", "AttentionOutputs", "AttentionPlan",
           "CallbackError", "Context", "DTypeError", "Error", "FileError", "InvalidArgument",
           "OutOfMemory", "Unsupported", "attention", "attention_backward", "explain", "get_threads",
           "isa_available", "set_threads"]
