"""Parametrizations that are there: weight_norm and spectral_norm."""

from __future__ import annotations

from typing import Any, TypeVar

from ...autograd import no_grad
from ...tensor import Tensor
from ..module import Module
from ..similarity import normalize
from .norm_hooks import (
    as_matrix,
    check_iterations,
    iterate,
    largest,
    norm_except,
    of_length,
    output_dim,
    unit,
)
from .parametrize import register_parametrization

__all__ = ["spectral_norm", "weight_norm"]

_Layer = TypeVar("_Layer", bound=Module)


class _WeightNorm(Module):
    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return of_length(weight_v, weight_g, self.dim)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return norm_except(weight, self.dim), weight


class _SpectralNorm(Module):
    _u: Tensor
    _v: Tensor

    def __init__(
        self, weight: Tensor, n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12
    ) -> None:
        super().__init__()
        rank = weight.ndim
        if dim >= rank or dim < -rank:
            raise IndexError(
                f"Dimension out of range (expected to be in range of [-{rank}, {rank - 1}] but "
                f"got {dim})"
            )
        check_iterations(n_power_iterations)
        self.dim = dim if dim >= 0 else dim + rank
        self.eps = eps
        if rank > 1:
            self.n_power_iterations = n_power_iterations
            with no_grad():
                matrix = as_matrix(weight, self.dim)
                for name, size in zip(("_u", "_v"), matrix.shape, strict=True):
                    self.register_buffer(name, unit(size, weight, eps))
                self._iterate(matrix, 15)

    def _iterate(self, matrix: Tensor, count: int) -> None:
        iterate(matrix, self._u, self._v, count, self.eps, v_first=False)

    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim == 1:
            return normalize(weight, dim=0, eps=self.eps)
        matrix = as_matrix(weight, self.dim)
        if self.training:
            self._iterate(matrix, self.n_power_iterations)
        return weight / largest(matrix, self._u, self._v)

    def right_inverse(self, value: Tensor) -> Tensor:
        return value


def weight_norm(module: _Layer, name: str = "weight", dim: int | None = 0) -> _Layer:
    """Compute ``name`` as g * v / |v|, where g is a parameter ``original0`` and v ``original1``.

    The norm is that of each entry of ``dim``, or of everything if ``dim`` is None.  What a layer
    with ``nn.utils.weight_norm`` has saved can be loaded, too.  Returns the module.  Salimans and
    Kingma, "Weight normalization", 2016.

    >>> import minitorch_tvm as mt
    >>> layer = weight_norm(mt.nn.Linear(3, 2))
    >>> layer.parametrizations.weight.original0.shape
    torch.Size([2, 1])
    """
    register_parametrization(module, name, _WeightNorm(dim), unsafe=True)

    def older(module: Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
        """Find what a layer with the older kind of weight norm has saved."""
        if f"{prefix}{name}_g" in state_dict and f"{prefix}{name}_v" in state_dict:
            for i, end in enumerate(("_g", "_v")):
                key = f"{prefix}parametrizations.{name}.original{i}"
                state_dict[key] = state_dict.pop(prefix + name + end)

    module.register_load_state_dict_pre_hook(older)
    return module


def spectral_norm(
    module: _Layer,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> _Layer:
    """Divide ``name`` by its largest singular value whenever it is read.

    The singular vectors are estimated in the buffers ``_u`` and ``_v`` of the parametrization, by
    15 power iterations at first and ``n_power_iterations`` at every read in training mode.  Rows
    of the matrix are entries of ``dim``: 1 for transposed convolutions, else 0.  A vector is
    divided by its length.  Returns the module.  Raises ValueError if there is no such tensor, and
    for less than one iteration.  Miyato et al., "Spectral normalization for generative adversarial
    networks", 2018.

    >>> import minitorch_tvm as mt
    >>> layer = spectral_norm(mt.nn.Linear(2, 2, bias=False))
    >>> layer.weight = mt.tensor([[3.0, 0.0], [0.0, 2.0]])
    >>> for _ in range(50):
    ...     weight = layer.weight
    >>> weight.detach()
    tensor([[1.0000, 0.0000],
            [0.0000, 0.6667]])
    """
    weight: Any = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    place = output_dim(module) if dim is None else dim
    register_parametrization(module, name, _SpectralNorm(weight, n_power_iterations, place, eps))
    return module
