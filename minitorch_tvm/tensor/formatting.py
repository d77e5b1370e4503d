"""How tensors print: PyTorch's layout, formatted by numpy after one evaluation."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core import dtype as dt
from ..core.record import record

if TYPE_CHECKING:
    from .core import TensorBase


@record
class PrintOptions:
    """What :func:`set_printoptions` sets."""

    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


_options = PrintOptions()


def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Change how tensors print (digits, elements before summarising, items kept, line width)."""
    global _options
    changes: dict[str, Any] = {
        "precision": precision,
        "threshold": threshold,
        "edgeitems": edgeitems,
        "linewidth": linewidth,
    }
    _options = replace(
        _options, sci_mode=sci_mode, **{k: v for k, v in changes.items() if v is not None}
    )


class _Formatter:
    """Formats elements of one tensor to a common width."""

    def __init__(self, shown: np.ndarray[Any, Any]) -> None:
        self.floating = shown.dtype.kind == "f"
        self.integral = True
        self.scientific = False
        self.width = 1
        flat = shown.reshape(-1)
        if not self.floating:
            self.width = max((len(str(v)) for v in flat.tolist()), default=1)
            return
        # As in PyTorch, zeros, infinities and NaN have no say in the format or the width.
        regular = flat[np.isfinite(flat) & (flat != 0)]
        if not regular.size:
            return
        size = np.abs(regular.astype(np.float64))
        low, high = float(size.min()), float(size.max())
        self.integral = bool((size == np.ceil(size)).all())
        self.scientific = high / low > 1000 or high > 1e8 or low < 1e-4
        if _options.sci_mode is not None:
            self.scientific = _options.sci_mode
        self.width = max(len(self._text(v)) for v in regular.tolist())

    def _text(self, value: Any) -> str:
        if not self.floating:
            return str(value)
        if not math.isfinite(value):
            return f"{value}"
        if self.scientific:
            return f"{value:.{_options.precision}e}"
        if self.integral:
            return f"{value:.0f}."
        return f"{value:.{_options.precision}f}"

    def __call__(self, value: Any) -> str:
        return self._text(value).rjust(self.width)


def _shown(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The elements that a summarised print displays."""
    edge = _options.edgeitems
    for axis, n in enumerate(array.shape):
        if n > 2 * edge:
            keep = [*range(edge), *range(n - edge, n)]
            array = np.take(array, keep, axis)
    return array


def _lines(array: np.ndarray[Any, Any], one: _Formatter, indent: int, summarise: bool) -> str:
    edge = _options.edgeitems
    if array.ndim == 0:
        return one(array.item())
    if array.ndim == 1:
        values = array.tolist()
        per_line = max(1, (_options.linewidth - indent) // (one.width + 2))
        if summarise and len(values) > 2 * edge:
            texts = [*map(one, values[:edge]), " ...", *map(one, values[-edge:])]
        else:
            texts = [one(v) for v in values]
        rows = [texts[i : i + per_line] for i in range(0, len(texts), per_line)] or [[]]
        return "[" + (",\n" + " " * (indent + 1)).join(", ".join(row) for row in rows) + "]"
    if summarise and array.shape[0] > 2 * edge:
        parts = [_lines(a, one, indent + 1, summarise) for a in array[:edge]]
        parts.append("...")
        parts += [_lines(a, one, indent + 1, summarise) for a in array[-edge:]]
    else:
        parts = [_lines(a, one, indent + 1, summarise) for a in array]
    gap = "," + "\n" * (array.ndim - 1) + " " * (indent + 1)
    return "[" + gap.join(parts) + "]"


def render(tensor: TensorBase) -> str:
    """The text of ``repr(tensor)``; evaluates, records nothing."""
    head = "tensor("
    array = tensor._array("repr")
    suffixes = []
    default = tensor.dtype in (dt.float32, dt.int64, dt.bool_)
    if array.size == 0:
        body = "[]"
        if array.ndim != 1:
            suffixes.append(f"size={tuple(array.shape)}")
        default = tensor.dtype is dt.float32
    else:
        summarise = array.size > _options.threshold
        shown = _shown(array) if summarise else array
        body = _lines(array, _Formatter(shown), len(head), summarise)
    if not default:
        suffixes.append(f"dtype={tensor.dtype}")
    if tensor.grad_fn is not None:
        suffixes.append(f"grad_fn={tensor.grad_fn}")
    elif tensor.requires_grad:
        suffixes.append("requires_grad=True")
    text = head + body
    used = len(text) - text.rfind("\n") + 1  # of the last line, with a comma and a space
    for suffix in suffixes:
        if used + len(suffix) + 2 > _options.linewidth:
            text += ",\n" + " " * len(head) + suffix
            used = len(head) + len(suffix)
        else:
            text += ", " + suffix
            used += len(suffix) + 2
    return text + ")"
