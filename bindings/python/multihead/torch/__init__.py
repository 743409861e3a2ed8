"""Multi-head attention for torch: its functions and modules, with everything the library adds."""
from ._attention import AttentionOptions, scaled_dot_product_attention

__all__ = ["AttentionOptions", "scaled_dot_product_attention"]
