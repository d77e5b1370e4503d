"""Checks of what users pass: types, integers, dimensions and sizes, refused in PyTorch's words.

A check of integers returns them in the form the rest of the package works with: plain ints.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from .dtype import DType
from .errors import called
from .shape import Shape, numel

Dims = int | Sequence[int] | None

# PyTorch answers a first argument of a wrong kind with the forms that it has.
_DIM_FORMS = (
    "(*, dtype dtype = None)",
    "(tuple of ints dim, bool keepdim = False, *, dtype dtype)",
)
_SPREAD_FORMS = (
    "(tuple of ints dim, bool unbiased = True, bool keepdim = False)",
    "(tuple of ints dim = None, *, Number correction = None, bool keepdim = False)",
    "(bool unbiased = True)",
)
_TRUTH_FORMS = ("()", "(tuple of ints dim = None, bool keepdim = False)")
_EXTREME_FORMS = ("()", "(Tensor other)", "(int dim, bool keepdim = False)")
_FORMS = {
    "sum": _DIM_FORMS,
    "mean": _DIM_FORMS,
    "var": _SPREAD_FORMS,
    "std": _SPREAD_FORMS,
    "any": _TRUTH_FORMS,
    "all": _TRUTH_FORMS,
    "max": _EXTREME_FORMS,
    "min": _EXTREME_FORMS,
    "squeeze": ("()", "(int dim)", "(tuple of ints dim)"),
}


_MOST_ELEMENTS = 1 << 60  # of 8 bytes: more than 64 bits can address


def wrong_kind(
    function: str, argument: str, position: int | None, wanted: str, value: object
) -> TypeError:
    """The error for an argument of another type than ``wanted``; None is the place of a name.

    >>> print(wrong_kind("exp", "input", 1, "Tensor", 3))
    exp(): argument 'input' (position 1) must be Tensor, not int
    """
    where = _named(function, argument, position)
    return TypeError(f"{where} must be {wanted}, not {kind_of(value)}")


def kind_of(value: object) -> str:
    """The name of a value's type as PyTorch tells it: with its module, if that is not Python's own.

    >>> import numpy as np
    >>> kind_of(1.5), kind_of(np.float32(1.5))
    ('float', 'numpy.float32')
    """
    kind = type(value)
    if isinstance(value, DType):
        return "torch.dtype"
    if isinstance(value, (np.generic, np.ndarray)):
        return f"{kind.__module__}.{kind.__name__}"
    return kind.__name__


def _named(function: str, argument: str, position: int | None) -> str:
    """An argument as PyTorch names it: as one of what the user called.

    That may be the free function of the method that checks, which has the tensor as an argument,
    the method's form in place, or what begins with its name (``select_scatter``).
    """
    if position is None:
        return f"{function}(): argument '{argument}'"
    code = called()
    if code is not None and f"{code.co_name}_".startswith(f"{function}_"):
        count = code.co_argcount
        names = code.co_varnames[: count + code.co_kwonlyargcount]
        if argument in names and names[0] in ("self", "input"):
            place = names.index(argument)
            if place >= count:
                return f"{code.co_name}(): argument '{argument}'"
            function, position = code.co_name, place + (names[0] == "input")
    return f"{function}(): argument '{argument}' (position {position})"


def unsupported(kernel: str, dtype: DType) -> NotImplementedError:
    """The error for a dtype that PyTorch's ``kernel`` does not compute with.

    >>> from minitorch_tvm.core.dtype import int64
    >>> print(unsupported("mse_cpu", int64))
    "mse_cpu" not implemented for 'Long'
    """
    return NotImplementedError(f"\"{kernel}\" not implemented for '{dtype.torch_name}'")


def uncastable(result: DType, output: DType) -> RuntimeError:
    """The error for a result that is written to a tensor of a lesser kind of numbers.

    >>> from minitorch_tvm.core.dtype import float32, int64
    >>> print(uncastable(float32, int64))
    result type Float can't be cast to the desired output type Long
    """
    return RuntimeError(
        f"result type {result.torch_name} can't be cast to the desired output type "
        f"{output.torch_name}"
    )


def floating(dtype: DType, kernel: str) -> None:
    """NotImplementedError, naming PyTorch's ``kernel``, unless ``dtype`` is floating point."""
    if not dtype.is_floating_point:
        raise unsupported(kernel, dtype)


def no_such_form(function: str, given: Sequence[object], forms: Sequence[str]) -> TypeError:
    """The error for arguments that fit none of a function's forms.

    >>> print(no_such_form("f", ["a", 1], ["(Tensor x)"]))
    f() received an invalid combination of arguments - got (str, int), but expected one of:
     * (Tensor x)
    """
    got = ", ".join(map(kind_of, given))
    return TypeError(
        f"{function}() received an invalid combination of arguments - got ({got}), but expected "
        "one of:" + "".join(f"\n * {form}" for form in forms)
    )


def _index(value: Any) -> int | None:
    """``value`` as an int; None if it is none (a bool is not)."""
    if type(value) is int:
        return value
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def integer(function: str, argument: str, position: int | None, value: Any) -> int:
    """``value`` as an int; TypeError for anything else.

    >>> integer("softmax", "dim", 1, 1.5)
    Traceback (most recent call last):
    TypeError: softmax(): argument 'dim' (position 1) must be int, not float
    """
    number = _index(value)
    if number is None:
        if function in _FORMS:
            raise no_such_form(function, [value], _FORMS[function])
        raise wrong_kind(function, argument, position, "int", value)
    return number


def number(
    function: str, argument: str, position: int | None, value: Any, wanted: str = "Number"
) -> int | float:
    """``value`` as a Python number, also one of numpy; TypeError for anything else.

    A tensor without dimensions is one, too (and is evaluated), unless it requires grad.  If a
    "float" is ``wanted``, that is what it becomes; else OverflowError for an int beyond 64 bits.

    >>> number("renorm", "maxnorm", 3, "a")
    Traceback (most recent call last):
    TypeError: renorm(): argument 'maxnorm' (position 3) must be Number, not str
    """
    if type(value) is float:  # the usual case first
        return value
    given = value
    if not isinstance(value, (int, float)):
        if (
            getattr(value, "shape", None) == ()
            and not isinstance(value, np.ndarray)
            and not getattr(value, "requires_grad", False)
        ):
            value = value.item()
        if not isinstance(value, (int, float)):
            raise wrong_kind(function, argument, position, wanted, given)
    if wanted == "float":
        return float(value)
    if isinstance(value, int):
        in_64_bits(value)
    return value


def flag(function: str, argument: str, position: int | None, value: Any) -> bool:
    """``value`` itself; TypeError unless it is True or False.

    >>> flag("topk", "largest", 4, 1)
    Traceback (most recent call last):
    TypeError: topk(): argument 'largest' (position 4) must be bool, not int
    """
    if value is not True and value is not False:
        raise wrong_kind(function, argument, position, "bool", value)
    return value


def text(function: str, argument: str, position: int | None, value: Any) -> str:
    """``value`` itself; TypeError unless it is a str."""
    if not isinstance(value, str):
        raise wrong_kind(function, argument, position, "str", value)
    return value


def several(function: str, argument: str, position: int, values: Any) -> tuple[int, ...]:
    """A tuple or list as ints; TypeError, naming the place, if an element is none."""
    if not isinstance(values, (tuple, list)):
        raise wrong_kind(function, argument, position, "tuple of ints", values)
    if all([type(value) is int for value in values]):  # noqa: C419  a list is faster
        return tuple(values)
    numbers = []
    for place, value in enumerate(values):
        number = _index(value)
        if number is None:
            kind = type(value).__name__
            raise TypeError(
                f"{function}(): argument '{argument}' failed to unpack the object at pos "
                f'{place + 1} with error "type must be tuple of ints,but got {kind}"'
                if place
                else f"{_named(function, argument, position)} must be tuple of ints, but found "
                f"element of type {kind} at pos 0"
            )
        numbers.append(number)
    return tuple(numbers)


def in_64_bits(number: int) -> None:
    """OverflowError for an int that neither a signed nor an unsigned one of 64 bits can hold.

    >>> in_64_bits(2**64)
    Traceback (most recent call last):
    OverflowError: int too big to convert
    """
    if number >= 1 << 64:
        raise OverflowError("int too big to convert")
    if number < -(1 << 63):
        raise OverflowError("can't convert negative int to unsigned")


def one_or_several(
    function: str, argument: str, position: int, value: Any
) -> int | tuple[int, ...]:
    """An int or a tuple of ints; TypeError for anything else."""
    number = None if isinstance(value, (tuple, list)) else _index(value)
    return several(function, argument, position, value) if number is None else number


def dims(
    function: str, value: Any, position: int = 1, keepdim: Any = False
) -> int | tuple[int, ...] | None:
    """The ``dim`` of a reduction: None, an int, or several; TypeError for anything else.

    ``keepdim``, the argument behind it, is checked as well.

    >>> dims("amax", (0, -1))
    (0, -1)
    """
    if keepdim is not True and keepdim is not False:
        if function in ("any", "all"):
            raise no_such_form(function, [value, keepdim], _FORMS[function])
        raise wrong_kind(function, "keepdim", position + 1, "bool", keepdim)
    if value is None or type(value) is int:
        return value
    if function in _FORMS and not isinstance(value, (tuple, list)):
        return integer(function, "dim", position, value)
    return one_or_several(function, "dim", position, value)


def spread(
    function: str, dim: Any, unbiased: Any, correction: Any, keepdim: Any
) -> tuple[int | tuple[int, ...] | None, float]:
    """The ``dim`` and ``correction`` of a variance; ``unbiased`` may stand alone, in their place.

    ``keepdim`` is checked as well.

    >>> spread("var", False, None, None, False), spread("var", 1, True, None, False)
    ((None, 0), (1, 1))
    """
    if isinstance(dim, bool) and unbiased is None and correction is None:
        dim, unbiased = None, dim
    if unbiased is None:
        if type(correction) is not int:
            correction = (
                1 if correction is None else number(function, "correction", None, correction)
            )
        return dims(function, dim, 1, keepdim), correction
    if not isinstance(unbiased, bool) or correction is not None:
        given = [dim, unbiased, correction] if correction is not None else [dim, unbiased]
        raise no_such_form(function, given, _SPREAD_FORMS)
    return dims(function, dim, 2, keepdim), 1 if unbiased else 0


def sizes(function: str, argument: str, given: tuple[Any, ...]) -> tuple[int, ...]:
    """The sizes of ``f(2, 3)`` or ``f((2, 3))``; TypeError if one is no int, or none is given.

    >>> sizes("zeros", "size", ((2, 3),))
    (2, 3)
    """
    if len(given) != 1:
        if not given:
            raise TypeError(f'{function}() missing 1 required positional arguments: "{argument}"')
        return several(function, argument, 1, given)
    number = one_or_several(function, argument, 1, given[0])
    return number if isinstance(number, tuple) else (number,)


def bounded(shape: Shape) -> Shape:
    """``shape`` itself; RuntimeError if it is negative or no memory could hold it.

    >>> bounded((2, -3))
    Traceback (most recent call last):
    RuntimeError: Trying to create tensor with negative dimension -3: [2, -3]
    """
    for n in shape:
        if n < 0:
            raise RuntimeError(
                f"Trying to create tensor with negative dimension {n}: {list(shape)}"
            )
    if numel(shape) >= _MOST_ELEMENTS:
        raise RuntimeError(f"Storage size calculation overflowed with sizes={list(shape)}")
    return shape


def no_indices(function: str, return_indices: bool) -> None:
    """ValueError for a pooling that is to return where its elements are from."""
    if return_indices:
        raise ValueError(f"{function}: return_indices=True is not supported")
