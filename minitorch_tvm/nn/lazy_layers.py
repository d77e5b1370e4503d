"""Layers that learn the number of their inputs from the first of them."""

from __future__ import annotations

from typing import Any, ClassVar

from ..core.shape import Size
from ..tensor import Tensor
from .conv import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    _Conv,
    _ConvTranspose,
    _Correlation,
)
from .linear import Linear
from .module import Module
from .normalization import BatchNorm1d, BatchNorm2d, BatchNorm3d, _BatchNorm
from .parameter import UninitializedBuffer, UninitializedParameter, is_lazy
from .spatial import Numbers


class _Lazy(Module):
    """Base: at the first call ``initialize_parameters`` is called, and the class changes."""

    cls_to_become: ClassVar[type[Module] | None] = None

    def _wait(self) -> None:
        """Have the first call tell what is missing."""
        self.register_forward_pre_hook(_Lazy._infer, with_kwargs=True)

    def has_uninitialized_params(self) -> bool:
        """Whether there are parameters or buffers that have no shape yet."""
        return any(map(is_lazy, (*self._parameters.values(), *self._buffers.values())))

    def initialize_parameters(self, input: Tensor) -> None:
        """Give the parameters the shapes that ``input`` asks for."""
        raise NotImplementedError

    def _infer(self, args: Any, kwargs: Any) -> None:
        self.initialize_parameters(*args, **kwargs)
        hooks = self._forward_pre_hooks
        for number in [n for n, hook in hooks.items() if hook.function is _Lazy._infer]:
            del hooks[number]
        if self.cls_to_become is not None:
            object.__setattr__(self, "__class__", self.cls_to_become)

    def _without_shape(self, names: tuple[str, ...], device: Any, dtype: Any) -> None:
        for name in names:
            self.register_parameter(name, UninitializedParameter(device=device, dtype=dtype))


class LazyLinear(_Lazy, Linear):
    """A :class:`Linear` whose ``in_features`` are the size of the first input's last dimension.

    Its parameters are :class:`UninitializedParameter` objects before; the same objects are given
    shape and numbers then, and the layer is a :class:`Linear`.

    >>> import minitorch_tvm as mt
    >>> layer = mt.nn.LazyLinear(2)
    >>> layer(mt.ones(5, 3)).shape, layer
    (torch.Size([5, 2]), Linear(in_features=3, out_features=2, bias=True))
    """

    cls_to_become = Linear

    def __init__(
        self, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(0, 0, False)
        self.out_features = out_features
        self._without_shape(("weight", "bias") if bias else ("weight",), device, dtype)
        self._wait()

    def reset_parameters(self) -> None:
        """Draw new weights, once it is known how many."""
        if self.in_features and not self.has_uninitialized_params():
            super().reset_parameters()

    def initialize_parameters(self, input: Tensor) -> None:
        """Give the parameters the shapes that ``input`` asks for."""
        self.in_features = input.shape[-1]
        if is_lazy(self.weight):
            _shaped(self.weight, (self.out_features, self.in_features))
            _shaped(self.bias, (self.out_features,))
            self.reset_parameters()


def _shaped(parameter: Any, shape: tuple[int, ...]) -> None:
    if is_lazy(parameter):
        parameter.materialize(shape)


class _LazyConv(_Lazy, _Conv):
    """What lazy convolutions share."""

    def _without_channels(self, out_channels: int, bias: bool, device: Any, dtype: Any) -> None:
        self.out_channels = out_channels
        self._without_shape(("weight", "bias") if bias else ("weight",), device, dtype)
        self._wait()

    def reset_parameters(self) -> None:
        """Draw new weights, once it is known how many."""
        if self.in_channels and not self.has_uninitialized_params():
            super().reset_parameters()

    def initialize_parameters(self, input: Tensor, *args: Any, **kwargs: Any) -> None:
        """Give the parameters the shapes that ``input`` asks for.

        Raises RuntimeError for another number of dimensions, ValueError for channels that cannot be
        divided into groups.
        """
        single = self._dims + 1
        if input.ndim not in (single, single + 1):
            raise RuntimeError(
                f"Expected {single}D (unbatched) or {single + 1}D (batched) input to "
                f"{self._get_name()}, but got input of size: {Size(input.shape)}"
            )
        channels = input.shape[-single]
        if channels % self.groups:
            raise ValueError("in_channels must be divisible by groups")
        self.in_channels = channels
        if not is_lazy(self.weight):
            return
        rows, columns = self.out_channels, channels // self.groups
        if self._transposed:
            rows, columns = channels, self.out_channels // self.groups
        _shaped(self.weight, (rows, columns, *self.kernel_size))
        _shaped(self.bias, (self.out_channels,))
        self.reset_parameters()


class _LazyCorrelation(_LazyConv, _Correlation):
    def __init__(
        self,
        out_channels: int,
        kernel_size: Numbers,
        stride: Numbers = 1,
        padding: Numbers = 0,
        dilation: Numbers = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        shape = 0, 0, kernel_size, stride, padding, dilation, groups
        super().__init__(*shape, False, padding_mode)
        self._without_channels(out_channels, bias, device, dtype)


class _LazyConvTranspose(_LazyConv, _ConvTranspose):
    def __init__(
        self,
        out_channels: int,
        kernel_size: Numbers,
        stride: Numbers = 1,
        padding: Numbers = 0,
        output_padding: Numbers = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Numbers = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        shape = 0, 0, kernel_size, stride, padding, output_padding, groups
        super().__init__(*shape, False, dilation, padding_mode)
        self._without_channels(out_channels, bias, device, dtype)


class LazyConv1d(_LazyCorrelation, Conv1d):
    """A :class:`Conv1d` whose ``in_channels`` are those of its first input."""

    cls_to_become = Conv1d


class LazyConv2d(_LazyCorrelation, Conv2d):
    """A :class:`Conv2d` whose ``in_channels`` are those of its first input.

    >>> import minitorch_tvm as mt
    >>> layer = mt.nn.LazyConv2d(8, 3)
    >>> layer(mt.ones(5, 1, 28, 28)).shape, layer
    (torch.Size([5, 8, 26, 26]), Conv2d(1, 8, kernel_size=(3, 3), stride=(1, 1)))
    """

    cls_to_become = Conv2d


class LazyConv3d(_LazyCorrelation, Conv3d):
    """A :class:`Conv3d` whose ``in_channels`` are those of its first input."""

    cls_to_become = Conv3d


class LazyConvTranspose1d(_LazyConvTranspose, ConvTranspose1d):
    """A :class:`ConvTranspose1d` whose ``in_channels`` are those of its first input."""

    cls_to_become = ConvTranspose1d


class LazyConvTranspose2d(_LazyConvTranspose, ConvTranspose2d):
    """A :class:`ConvTranspose2d` whose ``in_channels`` are those of its first input."""

    cls_to_become = ConvTranspose2d


class LazyConvTranspose3d(_LazyConvTranspose, ConvTranspose3d):
    """A :class:`ConvTranspose3d` whose ``in_channels`` are those of its first input."""

    cls_to_become = ConvTranspose3d


class _LazyBatchNorm(_Lazy, _BatchNorm):
    """What lazy batch normalisations share."""

    def __init__(
        self,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(0, eps, momentum, False, track_running_stats, device, dtype)
        self.affine = affine
        if affine:
            self._without_shape(("weight", "bias") if bias else ("weight",), device, dtype)
        if track_running_stats:
            self.running_mean = UninitializedBuffer(device=device, dtype=dtype)
            self.running_var = UninitializedBuffer(device=device, dtype=dtype)
        self._wait()

    def reset_parameters(self) -> None:
        """Reset the running statistics, set weights to one and biases to zero, if there are any."""
        if self.num_features and not self.has_uninitialized_params():
            super().reset_parameters()

    def initialize_parameters(self, input: Tensor) -> None:
        """Give parameters and buffers the shapes that ``input`` asks for."""
        if self.has_uninitialized_params():
            self.num_features = input.shape[1]
            for t in (self.weight, self.bias, self.running_mean, self.running_var):
                _shaped(t, (self.num_features,))
            self.reset_parameters()


class LazyBatchNorm1d(_LazyBatchNorm, BatchNorm1d):
    """A :class:`BatchNorm1d` whose ``num_features`` are those of its first input."""

    cls_to_become = BatchNorm1d


class LazyBatchNorm2d(_LazyBatchNorm, BatchNorm2d):
    """A :class:`BatchNorm2d` whose ``num_features`` are those of its first input.

    >>> import minitorch_tvm as mt
    >>> layer = mt.nn.LazyBatchNorm2d()
    >>> layer(mt.ones(5, 8, 7, 7)).shape, layer.running_mean.shape
    (torch.Size([5, 8, 7, 7]), torch.Size([8]))
    """

    cls_to_become = BatchNorm2d


class LazyBatchNorm3d(_LazyBatchNorm, BatchNorm3d):
    """A :class:`BatchNorm3d` whose ``num_features`` are those of its first input."""

    cls_to_become = BatchNorm3d
