"""MultiheadAttention."""

from __future__ import annotations

import math
from typing import Any

from ..core import dtype as dt
from ..core.shape import Size
from ..ir.node import Node, apply
from ..ops import build as b
from ..ops import derived as d
from ..ops import network as net
from ..ops.composite import composite
from ..tensor import Tensor
from ..tensor.functions import cat
from . import functional as F
from . import init
from .functions import attention_with_weights
from .linear import Linear
from .module import Module
from .parameter import Parameter, new_parameter


class NonDynamicallyQuantizableLinear(Linear):
    """:class:`Linear` under the name that PyTorch prints for the output projection."""


class MultiheadAttention(Module):
    """Attention in ``num_heads`` subspaces of ``embed_dim / num_heads`` (Vaswani et al. 2017).

    ``in_proj_weight`` [3 embed_dim, embed_dim] makes queries, keys and values, ``out_proj`` joins
    the heads.  Inputs are [length, batch, embed_dim], with ``batch_first`` [batch, length,
    embed_dim], or [length, embed_dim].  Keys and values of other sizes ``kdim`` and ``vdim`` have
    weights of their own: ``q_proj_weight``, ``k_proj_weight`` and ``v_proj_weight``.
    ``add_bias_kv`` puts a learned key and value behind the others (``bias_k``, ``bias_v``), and
    ``add_zero_attn`` a zero, which no mask hides.  Raises AssertionError if the heads do not divide
    ``embed_dim``.

    >>> import minitorch_tvm as mt
    >>> layer, x = mt.nn.MultiheadAttention(8, 2, batch_first=True), mt.randn(3, 5, 8)
    >>> y, weights = layer(x, x, x)
    >>> y.shape, weights.shape
    (torch.Size([3, 5, 8]), torch.Size([3, 5, 5]))
    """

    in_proj_weight: Parameter | None
    in_proj_bias: Parameter | None
    bias_k: Parameter | None
    bias_v: Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if embed_dim <= 0 or num_heads <= 0:
            raise ValueError(
                "embed_dim and num_heads must be greater than 0, got "
                f"embed_dim={embed_dim} and num_heads={num_heads} instead"
            )
        if embed_dim % num_heads:
            raise AssertionError("embed_dim must be divisible by num_heads")
        self.embed_dim = embed_dim
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.add_zero_attn = add_zero_attn
        self._qkv_same_embed_dim = self.kdim == embed_dim and self.vdim == embed_dim
        own = {"q": embed_dim, "k": self.kdim, "v": self.vdim}
        if self._qkv_same_embed_dim:
            self.in_proj_weight = new_parameter((3 * embed_dim, embed_dim), device, dtype)
            for name in own:
                self.register_parameter(f"{name}_proj_weight", None)
        else:
            for name, size in own.items():
                weight = new_parameter((embed_dim, size), device, dtype)
                self.register_parameter(f"{name}_proj_weight", weight)
            self.register_parameter("in_proj_weight", None)
        if bias:
            self.in_proj_bias = new_parameter((3 * embed_dim,), device, dtype)
        else:
            self.register_parameter("in_proj_bias", None)
        self.out_proj = NonDynamicallyQuantizableLinear(
            embed_dim, embed_dim, bias=bias, device=device, dtype=dtype
        )
        for name in ("bias_k", "bias_v"):
            extra = new_parameter((1, 1, embed_dim), device, dtype) if add_bias_kv else None
            self.register_parameter(name, extra)
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            if (weight := getattr(self, name)) is not None:
                init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            assert self.out_proj.bias is not None
            init.zeros_(self.out_proj.bias)
        for extra in (self.bias_k, self.bias_v):
            if extra is not None:
                init.xavier_normal_(extra)

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
        """(output, weights): weights [batch, queries, keys] are means over the heads, or
        [batch, heads, queries, keys] unless ``average_attn_weights``; None without
        ``need_weights``.

        A bool mask is True where a key is left out (the reverse of
        ``scaled_dot_product_attention``); others are added.  ``key_padding_mask`` is
        [batch, keys], ``attn_mask`` [queries, keys] or [batch * heads, queries, keys].
        ``is_causal`` is a hint about ``attn_mask``.  Raises RuntimeError and AssertionError where
        shapes do not fit.
        """
        if query.ndim not in (2, 3):
            raise AssertionError(
                "query should be unbatched 2D or batched 3D tensor but received "
                f"{query.ndim}-D query tensor"
            )
        if is_causal and attn_mask is None:
            raise RuntimeError(
                "Need attn_mask if specifying the is_causal hint. You may use the Transformer "
                "module method `generate_square_subsequent_mask` to create this mask."
            )
        if query.shape[-1] != self.embed_dim:
            raise AssertionError(
                f"was expecting embedding dimension of {self.embed_dim}, but got {query.shape[-1]}"
            )
        single = query.ndim == 2
        if single:
            query, key, value = (t.unsqueeze(0) for t in (query, key, value))
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        self._check_keys(key, value)
        q, k, v = self._projected(query, key, value)
        mask = self._mask(q, k, key_padding_mask, attn_mask)
        if self.bias_k is not None or self.add_zero_attn:
            k, v, mask = self._with_more(k, v, mask)
        p = self.dropout if self.training else 0.0
        weights: Tensor | None = None
        if need_weights:
            heads, weights = attention_with_weights(q, k, v, mask, p)
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights.squeeze(0) if single else weights
        else:
            heads = F.scaled_dot_product_attention(q, k, v, mask, p)
        y = self.out_proj(Tensor._wrap(apply(_JOINED, heads.node)))
        if single:
            return y.squeeze(0), weights
        return y if self.batch_first else y.transpose(0, 1), weights

    def _check_keys(self, key: Tensor, value: Tensor) -> None:
        """AssertionError unless [n, length, size] are those of this layer, and of as many."""
        if self._qkv_same_embed_dim:
            if key.shape != value.shape:
                shapes = [Size((t.shape[1], t.shape[0], *t.shape[2:])) for t in (key, value)]
                raise AssertionError("key shape {} does not match value shape {}".format(*shapes))
            return
        if key.shape[:2] != value.shape[:2]:
            dims = [Size(t.shape[:2][::-1]) for t in (key, value)]
            raise AssertionError(
                "key's sequence and batch dims {} do not match value's {}".format(*dims)
            )
        for name, x, size in (("key", key, self.kdim), ("value", value, self.vdim)):
            if x.shape[-1] != size:
                raise AssertionError(
                    f"expecting {name} weights shape of {(self.embed_dim, x.shape[-1])}, but got "
                    f"{Size((self.embed_dim, size))}"
                )

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Queries, keys and values, [n, heads, length, head_dim]."""
        bias, e = self.in_proj_bias, self.embed_dim
        offset = None if bias is None else bias.node
        if query is key and key is value and self.in_proj_weight is not None:
            together = net.linear(query.node, self.in_proj_weight.node, offset)
            parts = [(together, i, 3) for i in range(3)]
        else:
            parts = []
            for i, x in enumerate((query, key, value)):
                own = None if offset is None else b.narrow(offset, 0, i * e, (i + 1) * e)
                parts.append((net.linear(x.node, self._weight(i), own), 0, 1))
        return [
            Tensor._wrap(apply(composite("Heads", _heads, i, count, self.num_heads), x))
            for x, i, count in parts
        ]

    def _weight(self, number: int) -> Node:
        """What makes queries, keys or values."""
        if self.in_proj_weight is None:
            found: Parameter = getattr(self, f"{'qkv'[number]}_proj_weight")
            return found.node
        e = self.embed_dim
        return b.narrow(self.in_proj_weight.node, 0, number * e, (number + 1) * e)

    def _with_more(
        self, k: Tensor, v: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys, values and their mask, with the learned and the zero ones behind."""
        n, heads, length, width = k.shape
        found = []
        for x, extra in ((k, self.bias_k), (v, self.bias_v)):
            parts = [x]
            if extra is not None:
                parts.append(extra.reshape(1, heads, 1, width).expand(n, heads, 1, width))
            if self.add_zero_attn:
                parts.append(x.new_zeros(n, heads, 1, width))
            found.append(cat(parts, 2))
        k, v = found
        return k, v, None if mask is None else F.pad(mask, (0, k.shape[2] - length))

    def _mask(
        self, q: Tensor, k: Tensor, padding: Tensor | None, mask: Tensor | None
    ) -> Tensor | None:
        """What is added to the scores [n, heads, queries, keys]; None without masks."""
        n, heads, queries, _ = q.shape
        keys = k.shape[2]
        parts: list[Node] = []
        if mask is not None:
            wanted = (queries, keys) if mask.ndim == 2 else (n * heads, queries, keys)
            if mask.ndim not in (2, 3):
                raise RuntimeError(f"attn_mask's dimension {mask.ndim} is not supported")
            if tuple(mask.shape) != wanted:
                raise RuntimeError(
                    f"The shape of the {mask.ndim}D attn_mask is {mask.shape}, but should be "
                    f"{wanted}."
                )
            shape = wanted if mask.ndim == 2 else (n, heads, queries, keys)
            parts.append(b.reshape(_additive(mask.node, q.dtype), shape))
        if padding is not None:
            if tuple(padding.shape) != (n, keys):
                raise AssertionError(
                    f"key_padding_mask of shape {tuple(padding.shape)} should be {(n, keys)}"
                )
            parts.append(b.reshape(_additive(padding.node, q.dtype), (n, 1, 1, keys)))
        if not parts:
            return None
        return Tensor._wrap(parts[0] if len(parts) == 1 else d.add(*parts))


def _heads(x: Node, number: int, count: int, heads: int) -> Node:
    """One of ``count`` parts of x [n, length, count * embed_dim], as [n, heads, length, width]."""
    n, length, e = *x.shape[:2], x.shape[2] // count
    part = b.narrow(x, 2, number * e, (number + 1) * e)
    return b.permute(b.reshape(part, (n, length, heads, e // heads)), (0, 2, 1, 3))


def _joined(x: Node) -> Node:
    """[n, heads, length, width] as [n, length, embed_dim]."""
    n, heads, length, width = x.shape
    return b.reshape(b.permute(x, (0, 2, 1, 3)), (n, length, heads * width))


_JOINED = composite("Joined", _joined)


def _additive(mask: Node, dtype: dt.DType) -> Node:
    """A bool mask as 0 and -inf."""
    if mask.dtype is not dt.bool_:
        return b.cast(mask, dtype)
    return b.where(mask, b.full((), -math.inf, dtype), b.full((), 0.0, dtype))
