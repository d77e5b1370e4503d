"""numpy's names for arguments, which PyTorch's functions take as well as their own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])

_NAMES = {"axis": "dim", "keepdims": "keepdim"}


def numpy_names(function: _Function) -> _Function:
    """``function``, whose ``dim`` and ``keepdim`` may be given as ``axis`` and ``keepdims``.

    This costs a tenth of a microsecond per call, two if there are keywords.  What is called more
    often than the rest has these arguments itself: see :func:`meant`.

    >>> @numpy_names
    ... def f(x, dim, keepdim=False):
    ...     return dim, keepdim
    >>> f(0, axis=1, keepdims=True)
    (1, True)
    """
    code = cast(Any, function).__code__
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    known = {other: name for other, name in _NAMES.items() if name in arguments}

    @functools.wraps(function)
    def either(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            for other in known:
                if other in kwargs:
                    if known[other] in kwargs:
                        raise _unexpected(function.__name__, other)
                    kwargs[known[other]] = kwargs.pop(other)
        return function(*args, **kwargs)

    return cast(_Function, either)


def meant(function: str, dim: Any, axis: Any, default: Any = None) -> Any:
    """The ``dim`` of a function that has been given an ``axis``; TypeError if it has both.

    >>> meant("sum", None, 1)
    1
    >>> meant("sum", 0, 1)
    Traceback (most recent call last):
    TypeError: sum() got an unexpected keyword argument 'axis'
    """
    if dim is not default:
        raise _unexpected(function, "axis")
    return axis


def meant_to(function: str, dim: Any, keepdim: Any, axis: Any, keepdims: Any) -> tuple[Any, Any]:
    """``dim`` and ``keepdim`` of a reduction, one of which at least has numpy's name.

    Raises TypeError for one that has been given by both.

    >>> meant_to("sum", 1, False, None, True)
    (1, True)
    """
    if axis is not None:
        dim = meant(function, dim, axis)
    if keepdims is not None:
        if keepdim is not False:
            raise _unexpected(function, "keepdims")
        keepdim = keepdims
    return dim, keepdim


def _unexpected(function: str, argument: str) -> TypeError:
    return TypeError(f"{function}() got an unexpected keyword argument '{argument}'")
