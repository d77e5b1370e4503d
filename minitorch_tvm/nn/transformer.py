"""TransformerEncoderLayer and TransformerEncoder."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from ..tensor import Tensor
from . import functional as F
from .attention import MultiheadAttention
from .container import ModuleList
from .dropout import Dropout
from .linear import Linear
from .module import Module
from .normalization import LayerNorm

Activation = Callable[[Tensor], Tensor]


def _activation(activation: str | Activation) -> Activation:
    if not isinstance(activation, str):
        return activation
    if activation == "relu":
        return F.relu
    if activation == "gelu":
        return F.gelu
    raise RuntimeError(f"activation should be relu/gelu, not {activation}")


class TransformerEncoderLayer(Module):
    """Self-attention, then two linear layers; each is added to its input (Vaswani et al. 2017).

    Layer norms stand behind the sums, or with ``norm_first`` in front of the parts.  ``activation``
    is "relu", "gelu" or a function.  Inputs are [length, batch, d_model] (with ``batch_first``
    [batch, length, d_model]), or [length, d_model].

    >>> import minitorch_tvm as mt
    >>> layer = mt.nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    >>> layer(mt.zeros(3, 5, 8)).shape
    torch.Size([3, 5, 8])
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = F.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.self_attn = MultiheadAttention(
            d_model,
            nhead,
            dropout=dropout,
            bias=bias,
            batch_first=batch_first,
            device=device,
            dtype=dtype,
        )
        self.linear1 = Linear(d_model, dim_feedforward, bias, device, dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, device, dtype)
        self.norm_first = norm_first
        for name in ("norm1", "norm2"):
            norm = LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype)
            setattr(self, name, norm)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)
        self.activation = _activation(activation)

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Same shape as ``src``; masks are those of :class:`MultiheadAttention`."""
        masks = src_mask, src_key_padding_mask, is_causal
        if self.norm_first:
            x = src + self._attended(self.norm1(src), *masks)
            return x + self._fed(self.norm2(x))
        x = self.norm1(src + self._attended(src, *masks))
        return self.norm2(x + self._fed(x))

    def _attended(
        self, x: Tensor, mask: Tensor | None, padding: Tensor | None, is_causal: bool
    ) -> Tensor:
        y, _ = self.self_attn(
            x,
            x,
            x,
            attn_mask=mask,
            key_padding_mask=padding,
            need_weights=False,
            is_causal=is_causal,
        )
        return self.dropout1(y)

    def _fed(self, x: Tensor) -> Tensor:
        hidden = self.dropout(self.activation(self.linear1(x)))
        return self.dropout2(self.linear2(hidden))


class TransformerEncoder(Module):
    """``num_layers`` copies of ``encoder_layer`` one behind the other, then ``norm``.

    The copies start with equal weights.  ``enable_nested_tensor`` and ``mask_check`` change
    nothing.

    >>> import minitorch_tvm as mt
    >>> layer = mt.nn.TransformerEncoderLayer(8, 2, dim_feedforward=16)
    >>> mt.nn.TransformerEncoder(layer, 2)(mt.zeros(5, 3, 8)).shape
    torch.Size([5, 3, 8])
    """

    norm: Module | None

    def __init__(
        self,
        encoder_layer: TransformerEncoderLayer,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__()
        self.layers = ModuleList([copy.deepcopy(encoder_layer) for _ in range(num_layers)])
        self.num_layers = num_layers
        self.norm = norm
        self.enable_nested_tensor = enable_nested_tensor
        self.mask_check = mask_check

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        """Same shape as ``src``; every layer gets the masks."""
        x = src
        for layer in self.layers:
            x = layer(
                x,
                src_mask=mask,
                src_key_padding_mask=src_key_padding_mask,
                is_causal=bool(is_causal),
            )
        return x if self.norm is None else self.norm(x)
