"""``checkpoint``: PyTorch's way to spend time instead of memory, as far as it means anything."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..autograd import no_grad
from ..core import errors
from ..tensor import Tensor

_OPTIONS = ("context_fn", "debug", "determinism_check", "early_stop")


def checkpoint(
    function: Callable[..., Any], *args: Any, use_reentrant: bool | None = None, **kwargs: Any
) -> Any:
    """``function(*args, **kwargs)``; results and gradients are PyTorch's.

    Nothing is run twice: forward and backward are one program, whose compiler decides what is kept
    and what is computed again, and which would merge a second run with the first.  Random numbers
    are therefore those of the one run, with ``preserve_rng_state`` or without.

    With ``use_reentrant=True`` results require no grad where no argument does, and arguments by
    name raise ValueError, as in PyTorch, which also warns where ``use_reentrant`` is left out.
    ``determinism_check``, ``debug``, ``context_fn`` and ``early_stop`` concern the second run.

    >>> import minitorch_tvm as mt
    >>> x = mt.ones(2, requires_grad=True)
    >>> y = mt.utils.checkpoint.checkpoint(lambda t: t.exp() * 2, x, use_reentrant=False)
    >>> y.sum().backward()
    >>> x.grad
    tensor([5.4366, 5.4366])
    """
    if use_reentrant is None:
        _warn_of_default("checkpoint")
        use_reentrant = True
    kwargs.pop("preserve_rng_state", None)
    options = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}
    if not use_reentrant:
        return function(*args, **kwargs)
    if kwargs:
        raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
    if options.get("debug") or "context_fn" in options:
        raise ValueError(
            "Passing `context_fn` or `debug` is only supported when use_reentrant=False."
        )
    if any(isinstance(a, Tensor) and a.requires_grad for a in args):
        return function(*args)
    errors.warn("None of the inputs have requires_grad=True. Gradients will be None")
    with no_grad():
        return function(*args)


def checkpoint_sequential(
    functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, **kwargs: Any
) -> Any:
    """Call ``functions`` (a Sequential, or a list of modules or functions) in turn.

    All but the last of ``segments`` parts go through :func:`checkpoint`.

    >>> import minitorch_tvm as mt
    >>> model = mt.nn.Sequential(mt.nn.ReLU(), mt.nn.Softplus(), mt.nn.Tanh())
    >>> x = mt.tensor([0.5], requires_grad=True)
    >>> y = mt.utils.checkpoint.checkpoint_sequential(model, 2, x, use_reentrant=False)
    >>> bool(y == model(x))
    True
    """
    if use_reentrant is None:
        _warn_of_default("checkpoint_sequential")
        use_reentrant = True
    preserve = kwargs.pop("preserve_rng_state", True)
    if kwargs:
        raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
    layers = list(functions.children()) if hasattr(functions, "children") else list(functions)
    size = len(layers) // segments
    starts = range(0, size * (segments - 1), size)
    for start in starts:
        part = functools.partial(_in_turn, layers[start : start + size])
        input = checkpoint(part, input, use_reentrant=use_reentrant, preserve_rng_state=preserve)
    return _in_turn(layers[size * (segments - 1) :], input)


def _in_turn(layers: list[Callable[[Any], Any]], x: Any) -> Any:
    for layer in layers:
        x = layer(x)
    return x


def _warn_of_default(name: str) -> None:
    errors.warn(
        f"{name}: the use_reentrant parameter should be passed explicitly. use_reentrant=False is "
        "recommended; it is True where it is left out."
    )
