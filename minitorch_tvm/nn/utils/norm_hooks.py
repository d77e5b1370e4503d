"""Weights that are computed before every call of a layer: weight_norm and spectral_norm as hooks.

:mod:`.parametrizations` has both in the form that PyTorch recommends now.
"""

from __future__ import annotations

from typing import Any, TypeVar

from ...autograd import no_grad
from ...core.errors import warn
from ...core.shape import wrap_dim
from ...tensor import Tensor
from ..conv import _ConvTranspose
from ..module import Module
from ..parameter import Parameter
from ..similarity import normalize

_Layer = TypeVar("_Layer", bound=Module)


def norm_except(v: Tensor, dim: int) -> Tensor:
    """The length of each entry of ``dim``, in a shape that broadcasts; of all of ``v`` for -1."""
    if dim == -1:
        return v.norm()
    place = wrap_dim(dim, v.ndim)
    others = [i for i in range(v.ndim) if i != place]
    return v.norm(2, others, keepdim=True) if others else v.abs()


def of_length(v: Tensor, g: Tensor, dim: int) -> Tensor:
    """``v`` with lengths ``g``."""
    return v * (g / norm_except(v, dim))


def as_matrix(weight: Tensor, dim: int) -> Tensor:
    """``weight`` with a row for each entry of ``dim``."""
    rows = weight.movedim(dim, 0) if dim else weight
    return rows.reshape(rows.shape[0], -1)


def unit(size: int, like: Tensor, eps: float) -> Tensor:
    """A random vector of length 1."""
    return normalize(like.new_empty(size).normal_(), dim=0, eps=eps)


def largest(matrix: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """The largest singular value, by its vectors, which later iterations may write over."""
    return u.clone().dot(matrix.mv(v.clone()))


def iterate(matrix: Tensor, u: Tensor, v: Tensor, count: int, eps: float, v_first: bool) -> None:
    """Improve estimates of the first singular vectors by so many power iterations, in place."""
    with no_grad():
        left, right = u, v
        for _ in range(count):
            if v_first:
                right = normalize(matrix.t().mv(left), dim=0, eps=eps)
            left = normalize(matrix.mv(right), dim=0, eps=eps)
            if not v_first:
                right = normalize(matrix.t().mv(left), dim=0, eps=eps)
        u.copy_(left)
        v.copy_(right)


def check_iterations(count: int) -> None:
    """ValueError unless there are some."""
    if count <= 0:
        raise ValueError(
            f"Expected n_power_iterations to be positive, but got n_power_iterations={count}"
        )


def output_dim(module: Module) -> int:
    """Which dimension of a layer's weight stands for its outputs."""
    return 1 if isinstance(module, _ConvTranspose) else 0


class WeightNorm:
    """The hook of :func:`weight_norm`."""

    def __init__(self, name: str, dim: int) -> None:
        self.name = name
        self.dim = dim

    def compute_weight(self, module: Module) -> Tensor:
        """The weight that the layer shall have."""
        name = self.name
        return of_length(getattr(module, name + "_v"), getattr(module, name + "_g"), self.dim)

    def remove(self, module: Module) -> None:
        """Make the weight a parameter again."""
        with no_grad():
            weight = self.compute_weight(module)
        for name in (self.name, self.name + "_g", self.name + "_v"):
            delattr(module, name)
        setattr(module, self.name, Parameter(weight))

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self.name, self.compute_weight(module))


class SpectralNorm:
    """The hook of :func:`spectral_norm`."""

    def __init__(self, name: str, n_power_iterations: int, dim: int, eps: float) -> None:
        check_iterations(n_power_iterations)
        self.name = name
        self.n_power_iterations = n_power_iterations
        self.dim = dim
        self.eps = eps

    def compute_weight(self, module: Module, do_power_iteration: bool) -> Tensor:
        """The weight that the layer shall have, perhaps after better estimates of its vectors."""
        weight, u, v = (getattr(module, self.name + end) for end in ("_orig", "_u", "_v"))
        matrix = as_matrix(weight, self.dim)
        if do_power_iteration:
            iterate(matrix, u, v, self.n_power_iterations, self.eps, v_first=True)
        return weight / largest(matrix, u, v)

    def remove(self, module: Module) -> None:
        """Make the weight a parameter again."""
        with no_grad():
            weight = self.compute_weight(module, do_power_iteration=False)
        for name in (self.name, self.name + "_u", self.name + "_v", self.name + "_orig"):
            delattr(module, name)
        module.register_parameter(self.name, Parameter(weight))

    def __call__(self, module: Module, inputs: Any) -> None:
        weight = self.compute_weight(module, do_power_iteration=module.training)
        setattr(module, self.name, weight)


def weight_norm(module: _Layer, name: str = "weight", dim: int | None = 0) -> _Layer:
    """Compute ``name`` as g * v / |v| before every call: ``name_g`` and ``name_v`` are parameters.

    The norm is that of each entry of ``dim``, or of everything if ``dim`` is None.  Returns the
    module; warns, as PyTorch does, that :func:`.parametrizations.weight_norm` is newer, which
    ``mt.compile`` can repeat as well.  Raises RuntimeError if the parameter has such a norm.
    Salimans and Kingma, "Weight normalization", 2016.

    >>> import minitorch_tvm as mt, warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     layer = weight_norm(mt.nn.Linear(3, 2))
    >>> {name: tuple(value.shape) for name, value in layer.state_dict().items()}
    {'bias': (2,), 'weight_g': (2, 1), 'weight_v': (2, 3)}
    """
    warn(
        "`torch.nn.utils.weight_norm` is deprecated in favor of "
        "`torch.nn.utils.parametrizations.weight_norm`.",
        FutureWarning,
    )
    if _hook(module, WeightNorm, name) is not None:
        raise RuntimeError(f"Cannot register two weight_norm hooks on the same parameter {name}")
    hook = WeightNorm(name, -1 if dim is None else dim)
    weight = getattr(module, name)
    del module._parameters[name]
    with no_grad():
        lengths = norm_except(weight, hook.dim)
    module.register_parameter(name + "_g", Parameter(lengths))
    module.register_parameter(name + "_v", Parameter(weight.detach()))
    hook(module, ())
    module.register_forward_pre_hook(hook)
    return module


def remove_weight_norm(module: _Layer, name: str = "weight") -> _Layer:
    """Undo :func:`weight_norm`: ``name`` is a parameter with the value that it has.

    Raises ValueError if there is nothing to undo.
    """
    _removed(module, WeightNorm, name, "weight_norm")
    return module


def spectral_norm(
    module: _Layer,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> _Layer:
    """Divide ``name`` by its largest singular value before every call.

    The parameter is called ``name_orig``; the singular vectors are estimated in the buffers
    ``name_u`` and ``name_v``, by so many power iterations at every call in training mode.  Rows of
    the matrix are entries of ``dim``: 1 for transposed convolutions, else 0.  Returns the module.
    Raises RuntimeError if the parameter has such a norm, ValueError for less than one iteration.
    Miyato et al., "Spectral normalization for generative adversarial networks", 2018.

    >>> import minitorch_tvm as mt
    >>> list(spectral_norm(mt.nn.Linear(3, 2)).state_dict())
    ['bias', 'weight_orig', 'weight_u', 'weight_v']
    """
    if _hook(module, SpectralNorm, name) is not None:
        raise RuntimeError(f"Cannot register two spectral_norm hooks on the same parameter {name}")
    hook = SpectralNorm(name, n_power_iterations, output_dim(module) if dim is None else dim, eps)
    weight = module._parameters[name]
    if weight is None:
        raise ValueError(f"`SpectralNorm` cannot be applied as parameter `{name}` is None")
    with no_grad():
        rows, columns = as_matrix(weight, hook.dim).shape
        u, v = (unit(size, weight, eps) for size in (rows, columns))
    delattr(module, name)
    module.register_parameter(name + "_orig", weight)
    setattr(module, name, weight.detach())
    module.register_buffer(name + "_u", u)
    module.register_buffer(name + "_v", v)
    module.register_forward_pre_hook(hook)
    return module


def remove_spectral_norm(module: _Layer, name: str = "weight") -> _Layer:
    """Undo :func:`spectral_norm`: ``name`` is a parameter, divided by its largest singular value.

    Raises ValueError if there is nothing to undo.
    """
    _removed(module, SpectralNorm, name, "spectral_norm")
    return module


def _hook(module: Module, kind: type, name: str) -> int | None:
    """The number of a module's hook of this kind for the parameter ``name``."""
    for number, hook in module._forward_pre_hooks.items():
        if isinstance(hook.function, kind) and getattr(hook.function, "name", None) == name:
            return number
    return None


def _removed(module: Module, kind: type, name: str, function: str) -> None:
    number = _hook(module, kind, name)
    if number is None:
        raise ValueError(f"{function} of '{name}' not found in {module}")
    hook: Any = module._forward_pre_hooks.pop(number).function
    hook.remove(module)
