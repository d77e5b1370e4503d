"""Values of tensors that are one number, and the sizes that such functions are given."""

from __future__ import annotations

from typing import Any

from ..core import arguments as arg
from ..core import dtype as dt
from ..core.dtype import DType
from ..core.shape import Shape
from ..ir.node import Node
from ..ops import build as b
from ..ops import derived as d


def size_of(function: str, sizes: tuple[Any, ...], size: Any = None) -> Shape:
    """The shape that ``function`` was given; TypeError and RuntimeError in PyTorch's words.

    ``sizes`` were given by position, ``size`` by name.
    """
    if size is not None:
        if sizes:
            raise TypeError(f"{function}() got multiple values for argument 'size'")
        sizes = (size,)
    shape = arg.sizes(function, "size", sizes)
    if function == "zeros" and min(shape, default=0) < 0:
        raise RuntimeError("zeros: Dimension size must be non-negative.")
    return arg.bounded(shape)


def filled(function: str, shape: Shape, value: Any, dtype: DType | None) -> Node:
    """``value`` everywhere; the dtype is that of the number if None is given."""
    value = arg.number(function, "fill_value", 2, value)
    kind = dt.of_number(value) if dtype is None else dtype
    return b.expand(d.lift(value, kind), shape)
