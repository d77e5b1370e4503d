"""Batch and instance normalisation of one to three dimensions, LayerNorm, RMSNorm, GroupNorm."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..autograd import no_grad
from ..core import dtype as dt
from ..ir.node import Node, apply
from ..ops import build as b
from ..ops.composite import composite
from ..tensor import Tensor, tensor
from ..tensor.host import set_value
from . import functional as F
from . import init
from .module import Module
from .parameter import Parameter, new_parameter


class _Affine(Module):
    """Base: a scale ``weight`` and a shift ``bias``, either of which may be missing."""

    weight: Parameter | None
    bias: Parameter | None

    def _add_affine(
        self, shape: tuple[int, ...], weight: bool, bias: bool, device: Any, dtype: Any
    ) -> None:
        for name, there in (("weight", weight), ("bias", bias)):
            parameter = new_parameter(shape, device, dtype) if there else None
            self.register_parameter(name, parameter)

    def reset_parameters(self) -> None:
        """Set weights to one and biases to zero."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)


def _one_more(count: Node) -> Node:
    return b.add(count, b.full_like(count, 1))


_ONE_MORE = composite("OneMore", _one_more)


class _OfChannels(_Affine):
    """Base of what normalises channels."""

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, "
            f"affine={self.affine}, bias={self.bias is not None}, "
            f"track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_OfChannels):
    """What the batch normalisations share; subclasses say which ranks they take."""

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    _ranks: tuple[int, ...] = ()

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        self._add_affine((num_features,), affine, affine and bias, device, dtype)
        kind = dt.float32 if dtype is None else dt.as_dtype(dtype)
        statistics: dict[str, Tensor | None] = {
            "running_mean": None,
            "running_var": None,
            "num_batches_tracked": None,
        }
        if track_running_stats:
            statistics = {
                "running_mean": tensor(np.zeros(num_features), kind, device),
                "running_var": tensor(np.ones(num_features), kind, device),
                "num_batches_tracked": tensor(0, dt.int64, device),
            }
        for name, value in statistics.items():
            self.register_buffer(name, value)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Set the running mean to zero, the running variance to one, the count to zero."""
        for t, value in (
            (self.running_mean, 0.0),
            (self.running_var, 1.0),
            (self.num_batches_tracked, 0),
        ):
            if t is not None:
                set_value(t, np.full(tuple(t.shape), value))

    def reset_parameters(self) -> None:
        """Reset the running statistics, set weights to one and biases to zero."""
        self.reset_running_stats()
        super().reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        if input.ndim not in self._ranks:
            wanted = " or ".join(f"{n}D" for n in self._ranks)
            raise ValueError(f"expected {wanted} input (got {input.ndim}D input)")
        factor: float | Node = 0.0 if self.momentum is None else self.momentum
        batches = self.num_batches_tracked if self.training and self.track_running_stats else None
        if batches is not None:
            with no_grad():
                batches._assign(apply(_ONE_MORE, batches.node), "add_")
                if self.momentum is None:  # the average over all batches so far
                    count = b.cast(batches.node, dt.float64)
                    factor = b.div(b.full_like(count, 1.0), count)
        own = self.running_mean is None and self.running_var is None
        tracked = not self.training or self.track_running_stats
        return F.batch_norm(
            input,
            self.running_mean if tracked else None,
            self.running_var if tracked else None,
            self.weight,
            self.bias,
            self.training or own,
            factor,
            self.eps,
        )


class BatchNorm1d(_BatchNorm):
    """Normalise each channel of [n, c] or [n, c, l] by its mean and variance over the batch.

    In training the batch's statistics are used, and the buffers ``running_mean`` and
    ``running_var`` move towards them by the fraction ``momentum`` (None: they become the average
    over all batches, counted in ``num_batches_tracked``); in evaluation the buffers are used.  With
    ``track_running_stats=False`` there are none and every batch uses its own.  Raises ValueError
    for inputs of other ranks, and in training for one value per channel.

    >>> import minitorch_tvm as mt
    >>> layer = mt.nn.BatchNorm1d(1, eps=1e-12)
    >>> layer(mt.tensor([[1.0], [3.0]])).tolist()
    [[-1.0], [1.0]]
    >>> layer.running_var
    tensor([1.1000])
    """

    _ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Normalise each channel of [n, c, h, w]; see :class:`BatchNorm1d`.

    >>> import minitorch_tvm as mt
    >>> mt.nn.BatchNorm2d(3)(mt.randn(2, 3, 4, 4)).shape
    torch.Size([2, 3, 4, 4])
    """

    _ranks = (4,)


class BatchNorm3d(_BatchNorm):
    """Normalise each channel of [n, c, d, h, w]; see :class:`BatchNorm1d`.

    >>> import minitorch_tvm as mt
    >>> mt.nn.BatchNorm3d(3)(mt.randn(2, 3, 4, 4, 4)).shape
    torch.Size([2, 3, 4, 4, 4])
    """

    _ranks = (5,)


class LayerNorm(_Affine):
    """Normalise over the last dimensions, whose sizes are ``normalized_shape``.

    ``weight`` and ``bias``, of that shape, start as one and zero.

    >>> import minitorch_tvm as mt
    >>> mt.nn.LayerNorm(2, eps=0.0)(mt.tensor([1.0, 3.0])).tolist()
    [-1.0, 1.0]
    """

    _plain = ("normalized_shape", "eps"), ("weight", "bias")

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape: tuple[int, ...] = (
            (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        )
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        affine = elementwise_affine
        self._add_affine(self.normalized_shape, affine, affine and bias, device, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, "
            f"elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}"
        )


class GroupNorm(_Affine):
    """Normalise each of ``num_groups`` blocks of the channels of [n, num_channels, ...].

    ``weight`` and ``bias`` [num_channels] start as one and zero.  Raises ValueError if the groups
    are not of one size.

    >>> import minitorch_tvm as mt
    >>> mt.nn.GroupNorm(2, 4)(mt.randn(2, 4, 3)).shape
    torch.Size([2, 4, 3])
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if num_channels % num_groups:
            raise ValueError(
                f"num_channels ({num_channels}) must be divisible by num_groups ({num_groups})"
            )
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        self._add_affine((num_channels,), affine, affine and bias, device, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )


class RMSNorm(Module):
    """Divide by the root mean square over the last dimensions, which are ``normalized_shape``.

    ``weight`` (of that shape; none without ``elementwise_affine``) scales the result.  See
    :func:`functional.rms_norm`.

    >>> import minitorch_tvm as mt
    >>> mt.nn.RMSNorm(2)(mt.tensor([3.0, -3.0])).tolist()
    [1.0, -1.0]
    """

    weight: Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if isinstance(normalized_shape, Sequence):
            shape = tuple(normalized_shape)
        else:
            shape = (normalized_shape,)
        self.normalized_shape = shape
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        own = new_parameter(shape, device, dtype) if elementwise_affine else None
        self.register_parameter("weight", own)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weight to one."""
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


class _InstanceNorm(_OfChannels):
    """What the instance normalisations share; subclasses say which ranks they take."""

    _ranks: tuple[int, int] = (2, 3)

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if track_running_stats:
            raise NotImplementedError(
                f"{self._get_name()}: track_running_stats=True is not supported"
            )
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        self._add_affine((num_features,), affine, affine and bias, device, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        single, batch = self._ranks
        if input.ndim not in self._ranks:
            raise ValueError(f"expected {single}D or {batch}D input (got {input.ndim}D input)")
        axis = input.ndim - single
        if input.shape[axis] != self.num_features:
            if self.affine:
                raise ValueError(
                    f"expected input's size at dim={axis} to match num_features "
                    f"({self.num_features}), but got: {input.shape[axis]}."
                )
            warnings.warn(
                f"input's size at dim={axis} does not match num_features. You can silence this "
                "warning by not passing in num_features, which is not used because affine=False",
                stacklevel=2,
            )
        batched = input if axis else input.unsqueeze(0)
        rest = self.weight, self.bias, True, self.momentum, self.eps
        y = F.instance_norm(batched, None, None, *rest)
        return y if axis else y.squeeze(0)


class InstanceNorm1d(_InstanceNorm):
    """Normalise each channel of each sample of [n, c, l] (or [c, l]) by itself.

    With ``affine``, ``weight`` and ``bias`` [c] scale and shift the channels.  Raises ValueError
    for inputs of other ranks and for one value per channel; NotImplementedError for
    ``track_running_stats=True``.
    """

    _ranks = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """Normalise each channel of each sample of [n, c, h, w] (or [c, h, w]) by itself.

    See :class:`InstanceNorm1d`.

    >>> import minitorch_tvm as mt
    >>> mt.nn.InstanceNorm2d(1, eps=0.0)(mt.tensor([[[[1.0, 3.0]]]]))
    tensor([[[[-1.,  1.]]]])
    """

    _ranks = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    """Normalise each channel of each sample of [n, c, d, h, w] (or [c, d, h, w]) by itself.

    See :class:`InstanceNorm1d`.
    """

    _ranks = (4, 5)
