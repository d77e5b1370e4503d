"""numpy's names for arguments, which PyTorch's functions take as well as their own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])

_NAMES = {"axis": "dim", "keepdims": "keepdim"}


def numpy_names(function: _Function) -> _Function:
    """``function``, whose ``dim`` and ``keepdim`` may be given as ``axis`` and ``keepdims``.

    This costs 0.15 us per call, 0.4 if there are keywords.

    >>> @numpy_names
    ... def f(x, dim, keepdim=False):
    ...     return dim, keepdim
    >>> f(0, axis=1, keepdims=True)
    (1, True)
    """
    code = cast(Any, function).__code__
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    names = frozenset(other for other, name in _NAMES.items() if name in arguments)

    @functools.wraps(function)
    def either(*args: Any, **kwargs: Any) -> Any:
        if kwargs and not names.isdisjoint(kwargs):
            for other in names.intersection(kwargs):
                if _NAMES[other] in kwargs:
                    raise TypeError(
                        f"{function.__name__}() got an unexpected keyword argument '{other}'"
                    )
                kwargs[_NAMES[other]] = kwargs.pop(other)
        return function(*args, **kwargs)

    return cast(_Function, either)
