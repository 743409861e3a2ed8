"""Multi-head attention for torch: torch's functions and modules with the library's additional options."""
from ._attention import AttentionOptions, scaled_dot_product_attention
from ._module import MultiheadAttention, multi_head_attention_forward

__all__ = ["AttentionOptions", "MultiheadAttention", "multi_head_attention_forward",
           "scaled_dot_product_attention"]
