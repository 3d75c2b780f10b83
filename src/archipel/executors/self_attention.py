"""Self-attention with a cheaper backward pass."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from archipel.kernels.products import linear


class SelfAttention(nn.MultiheadAttention):
    """Attention of a sequence to itself, with torch's bits but for large products.

    Torch takes queries, keys and values from one tensor by indexing, so the backward pass expands each of the three
    gradients to the full size with zeros and adds them up. Here they are concatenated.
    """

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        """Replace a module, with its parameters and settings."""
        nn.Module.__init__(self)
        self.__dict__.update(attention.__dict__)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        alone = query is key is value and query.dim() == 3 and key_padding_mask is None
        masked = attn_mask is not None and not is_causal
        if not alone or masked or need_weights or (is_causal and attn_mask is None) or not self.training:
            return super().forward(
                query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            )
        x = query.transpose(0, 1) if self.batch_first else query
        length, batch, width = x.shape
        joined = linear(x, self.in_proj_weight, self.in_proj_bias)
        # [place, example, which of the three, head, number]
        parts = joined.view(length, batch, 3, self.num_heads, self.head_dim).permute(2, 1, 3, 0, 4)
        queries, keys, values = parts.unbind()
        attended = functional.scaled_dot_product_attention(queries, keys, values, None, self.dropout, is_causal)
        rows = attended.permute(2, 0, 1, 3).reshape(length * batch, width)
        out = linear(rows, self.out_proj.weight, self.out_proj.bias).view(length, batch, width)
        return (out.transpose(0, 1) if self.batch_first else out), None


def suits(module: nn.MultiheadAttention) -> bool:
    """Return whether queries, keys and values come from one product without added biases or zeros."""
    return module._qkv_same_embed_dim and module.bias_k is None and not module.add_zero_attn
