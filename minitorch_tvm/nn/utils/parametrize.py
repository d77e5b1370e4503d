"""Parameters that are computed from others: every read of one runs modules on its originals.

>>> import minitorch_tvm as mt
>>> class Symmetric(mt.nn.Module):
...     def forward(self, x):
...         return x.triu() + x.triu(1).T
>>> layer = register_parametrization(mt.nn.Linear(3, 3), "weight", Symmetric())
>>> mt.equal(layer.weight, layer.weight.T)
True
>>> list(layer.state_dict())
['bias', 'parametrizations.weight.original']
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from ...autograd import no_grad
from ...tensor import Tensor
from ..container import ModuleDict, ModuleList
from ..module import Module
from ..parameter import Parameter

__all__ = [
    "ParametrizationList",
    "cached",
    "is_parametrized",
    "register_parametrization",
    "remove_parametrizations",
    "transfer_parametrizations_and_params",
    "type_before_parametrizations",
]


_MAY_NOT = "The tensor returned by `right_inverse` may not change"


class _Cache:
    """What parametrized tensors are while :func:`cached` is entered, by module and name."""

    depth = 0
    values: dict[tuple[int, str], Tensor]


_CACHE = _Cache()
_CACHE.values = {}


@contextmanager
def cached() -> Iterator[None]:
    """Compute every parametrized tensor once only, when it is read first.

    >>> import minitorch_tvm as mt
    >>> layer = mt.nn.utils.parametrizations.weight_norm(mt.nn.Linear(3, 2))
    >>> with cached():
    ...     layer.weight is layer.weight
    True
    """
    _CACHE.depth += 1
    try:
        yield
    finally:
        _CACHE.depth -= 1
        if not _CACHE.depth:
            _CACHE.values = {}


def _keep(owner: Module, name: str, value: Tensor | None) -> None:
    if value is None or isinstance(value, Parameter):
        owner.register_parameter(name, value)
    else:
        owner.register_buffer(name, value)


def _same_kind(text: str, first: tuple[str, Tensor], second: tuple[str, Tensor]) -> None:
    """ValueError unless both tensors have the same dtype and shape."""
    for fact in ("dtype", "shape"):
        a, b = getattr(first[1], fact), getattr(second[1], fact)
        if a != b:
            raise ValueError(
                f"{text.format(fact=fact)}\n{first[0].format(fact=fact)}: {a}\n"
                f"{second[0].format(fact=fact)}: {b}"
            )


class ParametrizationList(ModuleList):
    """The modules that compute one tensor, and its ``original`` (or ``original0``, ...).

    The originals are what the modules' ``right_inverse`` methods make of the tensor, in reversed
    order, where there are any.  Unless ``unsafe``, the modules must keep shape and dtype.  Raises
    ValueError where they do not, and for what is no tensor.
    """

    def __init__(self, modules: Sequence[Module], original: Tensor, unsafe: bool = False) -> None:
        if len(modules) == 0:
            raise ValueError("ParametrizationList requires one or more modules.")
        super().__init__(modules)
        self.unsafe = unsafe
        before = original.detach()
        new: Any = original
        with no_grad():
            for module in reversed(list(self)):
                if hasattr(module, "right_inverse"):
                    with suppress(NotImplementedError):
                        new = module.right_inverse(new)
        if not isinstance(new, (Tensor, Sequence)):
            raise ValueError(
                "'right_inverse' must return a Tensor or a Sequence of tensors (list, tuple...). "
                f"Got {type(new).__name__}"
            )
        self.is_tensor = isinstance(new, Tensor)
        self.ntensors = 1 if isinstance(new, Tensor) else len(new)
        if isinstance(new, Tensor):
            _change(original, new, "When `right_inverse` outputs one tensor, it may not change")
            _keep(self, "original", original)
        else:
            for i, part in enumerate(new):
                if not isinstance(part, Tensor):
                    raise ValueError(
                        "'right_inverse' must return a Tensor or a Sequence of tensors (list, "
                        f"tuple...). Got element {i} of the sequence with type "
                        f"{type(part).__name__}."
                    )
                if isinstance(original, Parameter):
                    part = Parameter(part, original.requires_grad)
                _keep(self, f"original{i}", part.requires_grad_(original.requires_grad))
        if not unsafe:
            self._check(before)

    def _check(self, original: Tensor) -> None:
        result = self()
        if not isinstance(result, Tensor):
            raise ValueError(
                f"A parametrization must return a tensor. Got {type(result).__name__}."
            )
        _same_kind(
            "Registering a parametrization may not change the {fact} of the tensor, unless "
            "`unsafe` flag is enabled.",
            ("unparametrized {fact}", original),
            ("parametrized {fact}", result),
        )

    def originals(self) -> list[Tensor]:
        """What the tensor is computed from."""
        if self.is_tensor:
            return [self.original]
        return [getattr(self, f"original{i}") for i in range(self.ntensors)]

    def right_inverse(self, value: Tensor) -> None:
        """Change the originals so that the tensor becomes ``value``.

        Raises RuntimeError if one of the modules has no ``right_inverse``.
        """
        new: Any = value
        with no_grad():
            for module in reversed(list(self)):
                if not hasattr(module, "right_inverse"):
                    raise RuntimeError(
                        f"parametrization {type(module).__name__} does not implement right_inverse."
                    )
                new = module.right_inverse(new)
            if self.is_tensor:
                if not isinstance(new, Tensor):
                    raise ValueError(
                        f"`right_inverse` should return a tensor. Got {type(new).__name__}"
                    )
                _change(self.original, new, _MAY_NOT)
                return
            if not isinstance(new, Sequence) or len(new) != self.ntensors:
                got = len(new) if isinstance(new, Sequence) else type(new).__name__
                raise ValueError(
                    "'right_inverse' must return a sequence of tensors of length "
                    f"{self.ntensors}. Got {got}."
                )
            for original, part in zip(self.originals(), new, strict=True):
                _change(original, part, _MAY_NOT)

    def forward(self) -> Tensor:
        """The tensor."""
        first, *others = self
        value = first(*self.originals())
        for module in others:
            value = module(value)
        return value


def _change(original: Tensor, new: Tensor, text: str) -> None:
    """Give ``original``, which stays the same object, the value of ``new``."""
    if new.dtype is not original.dtype:
        raise ValueError(
            f"{text} the dtype.\noriginal.dtype: {original.dtype}\n"
            f"right_inverse(original).dtype: {new.dtype}"
        )
    if new is not original:
        original.data = new.detach().clone()


class _Computed:
    """The attribute of a class that stands for a parametrized tensor."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, module: Any, owner: type | None = None) -> Any:
        if module is None:
            return self
        if not _CACHE.depth:
            return module.parametrizations[self._name]()
        key = (id(module), self._name)
        if key not in _CACHE.values:
            _CACHE.values[key] = module.parametrizations[self._name]()
        return _CACHE.values[key]

    def __set__(self, module: Module, value: Tensor) -> None:
        module.parametrizations[self._name].right_inverse(value)


def _no_pickle(self: Module, protocol: Any = None) -> NoReturn:
    raise RuntimeError(
        "Serialization of parametrized modules is only supported through state_dict(). See:\n"
        "https://pytorch.org/tutorials/beginner/saving_loading_models.html"
        "#saving-loading-a-general-checkpoint-for-inference-and-or-resuming-training"
    )


def _deep_copy(self: Module, memo: dict[int, Any]) -> Module:
    copied = type(self).__new__(type(self))
    memo[id(self)] = copied
    copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
    return copied


@functools.cache
def _class_with(base: type, names: tuple[str, ...]) -> type:
    """A class like ``base`` with computed attributes ``names``, the same for all that ask."""
    entries: dict[str, Any] = {name: _Computed(name) for name in names}
    entries |= {"__reduce_ex__": _no_pickle, "__module__": __name__, "_before": base}
    if not hasattr(base, "__deepcopy__"):
        entries["__deepcopy__"] = _deep_copy
    return type(f"Parametrized{base.__name__}", (base,), entries)


def _set_class(module: Module, names: tuple[str, ...]) -> None:
    base = type_before_parametrizations(module)
    object.__setattr__(module, "__class__", _class_with(base, names) if names else base)
    module._changed()


def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """Have ``parametrization`` compute the parameter or buffer ``tensor_name`` of ``module``.

    The class of the module becomes one with a property of that name, which runs
    ``parametrization.forward`` on ``module.parametrizations.<name>.original``.  Assigning to it
    runs ``right_inverse``, if there is such a method, which is also what the original is made by
    at first; where it returns several tensors, these are ``original0``, ``original1`` and so on.
    Of several parametrizations each reads what the one before it returns.  Returns the module.

    Raises ValueError if there is no such tensor, and unless ``unsafe`` if shape or dtype change.
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        computed: Any = module.parametrizations
        if not unsafe:
            _check_another(parametrization, getattr(module, tensor_name), tensor_name)
        computed[tensor_name].append(parametrization)
        computed[tensor_name].unsafe |= unsafe
        module._changed()
    elif tensor_name in module._parameters or tensor_name in module._buffers:
        listed = ParametrizationList([parametrization], getattr(module, tensor_name), unsafe)
        listed.training = module.training
        delattr(module, tensor_name)
        if not is_parametrized(module):
            module.parametrizations = ModuleDict()
        computed = module.parametrizations
        computed[tensor_name] = listed
        _set_class(module, tuple(computed))
    else:
        raise ValueError(
            f"Module '{module}' does not have a parameter, a buffer, or a parametrized element "
            f"with name '{tensor_name}'"
        )
    return module


def _check_another(parametrization: Any, value: Tensor, name: str) -> None:
    """ValueError if a further parametrization of a tensor changes its shape or dtype."""
    result = parametrization(value)
    if not isinstance(result, Tensor):
        raise ValueError(f"A parametrization must return a tensor. Got {type(result).__name__}.")
    here = f"module.{name}.{{fact}}"
    _same_kind(
        "Registering a parametrization may not change the {fact} of the tensor, unless the "
        "`unsafe` flag is enabled.",
        (here, value),
        (f"parametrization(module.{name}).{{fact}}", result),
    )
    if not hasattr(parametrization, "right_inverse"):
        return
    try:
        original = parametrization.right_inverse(result)
    except NotImplementedError:
        return
    if not isinstance(original, Tensor):
        raise ValueError(
            f"parametrization.right_inverse must return a tensor. Got: {type(original).__name__}"
        )
    _same_kind(
        "The tensor returned by parametrization.right_inverse must have the same {fact} as "
        f"module.{name}, unless the `unsafe` flag is enabled.",
        (here, value),
        ("returned {fact}", original),
    )


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether ``module`` computes that tensor, or any if there is no name."""
    computed = getattr(module, "parametrizations", None)
    if not isinstance(computed, ModuleDict):
        return False
    return len(computed) > 0 if tensor_name is None else tensor_name in computed


def remove_parametrizations(
    module: Module, tensor_name: str, leave_parametrized: bool = True
) -> Module:
    """Make ``tensor_name`` a parameter or buffer again.

    It has the value that is computed, or with ``leave_parametrized=False`` that of the original.
    Returns the module.  Raises ValueError if it is not parametrized, and if it is to become an
    original of which there are several.
    """
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"Module {module} does not have a parametrization on {tensor_name}")
    computed: Any = module.parametrizations
    listed = computed[tensor_name]
    if listed.is_tensor:
        tensor = listed.original
        if leave_parametrized:
            with no_grad():
                tensor.data = getattr(module, tensor_name).detach().clone()
    elif leave_parametrized:
        tensor = getattr(module, tensor_name)
        tensor = Parameter(tensor.detach()) if tensor.requires_grad else tensor
    else:
        raise ValueError(
            "Cannot leave unparametrized (`leave_parametrized=False`) a tensor that is "
            "parametrized in terms of a sequence of tensors."
        )
    del computed[tensor_name]
    names = tuple(computed)
    _set_class(module, names)
    if not names:
        delattr(module, "parametrizations")
    _keep(module, tensor_name, tensor)
    return module


def type_before_parametrizations(module: Module) -> type:
    """The class of ``module``, or the one that it had before it was parametrized."""
    return getattr(type(module), "_before", type(module))


def transfer_parametrizations_and_params(
    from_module: Module, to_module: Module, tensor_name: str | None = None
) -> Module:
    """Give ``to_module`` the parametrizations of ``from_module``, all or those of one tensor.

    Both have the same modules and originals then.  Returns ``to_module``.
    """
    if not is_parametrized(from_module):
        return to_module
    computed: Any = from_module.parametrizations
    if tensor_name is not None and tensor_name not in computed:
        return to_module
    for name in [*computed] if tensor_name is None else [tensor_name]:
        listed = computed[name]
        if not hasattr(to_module, name):
            setattr(to_module, name, Parameter(getattr(from_module, name).detach()))
        for parametrization in listed:
            register_parametrization(to_module, name, parametrization, unsafe=listed.unsafe)
        theirs: Any = to_module.parametrizations
        for original, value in [*listed._parameters.items(), *listed._buffers.items()]:
            setattr(theirs[name], original, value)
    return to_module
