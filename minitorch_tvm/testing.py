"""Comparisons for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .tensor import Tensor

_TOLERANCES = {"float16": (1e-3, 1e-5), "float32": (1.3e-6, 1e-5), "float64": (1e-7, 1e-7)}


def assert_close(
    actual: Any,
    expected: Any,
    *,
    allow_subclasses: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_device: bool = True,
    check_dtype: bool = True,
    check_layout: bool = True,
    check_stride: bool = False,
    msg: str | Callable[[str], str] | None = None,
) -> None:
    """Raise AssertionError unless |actual - expected| <= atol + rtol * |expected| everywhere.

    Takes tensors, arrays and numbers, and sequences and mappings of them; shapes and (unless
    ``check_dtype`` is False) dtypes must be equal.  Default tolerances are those of the dtype:
    1.3e-6 and 1e-5 for float32, 1e-7 both for float64 and Python numbers, 0 for integers.  ``msg``
    replaces the message, or makes another one of it.  Raises TypeError for inputs that cannot be
    compared and ValueError if only one tolerance is given.

    >>> import minitorch_tvm as mt
    >>> assert_close(mt.tensor([1.0, 2.0]), mt.tensor([1.0, 2.0 + 1e-6]))
    """
    if (rtol is None) is not (atol is None):
        missing = "rtol" if rtol is None else "atol"
        raise ValueError(
            f"Both 'rtol' and 'atol' must be either specified or omitted, but got no {missing}."
        )
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and value < 0:
            raise ValueError(f"'{name}' must be non-negative, but got {value}.")
    tolerances = None if rtol is None or atol is None else (rtol, atol)
    test = _Comparison(tolerances, equal_nan, check_dtype, check_stride, allow_subclasses)
    text = test.difference(actual, expected, "")
    if text is None:
        return
    if msg is not None:
        text = msg(text) if callable(msg) else msg
    raise AssertionError(text)


class _Comparison:
    def __init__(
        self,
        tolerances: tuple[float, float] | None,
        equal_nan: bool,
        check_dtype: bool,
        check_stride: bool,
        allow_subclasses: bool,
    ) -> None:
        self._tolerances, self._equal_nan = tolerances, equal_nan
        self._check_dtype, self._check_stride = check_dtype, check_stride
        self._allow_subclasses = allow_subclasses

    def difference(self, actual: Any, expected: Any, where: str) -> str | None:
        """What is different, if anything is."""
        if _all(Sequence, actual, expected) and not _any((str, bytes), actual, expected):
            if len(actual) != len(expected):
                return _at(
                    where,
                    f"The length of the sequences mismatch: {len(actual)} != {len(expected)}",
                )
            pairs = [
                (f"{where}[{i}]", *p) for i, p in enumerate(zip(actual, expected, strict=True))
            ]
            return self._first(pairs)
        if _all(Mapping, actual, expected):
            missing = sorted(expected.keys() - actual.keys(), key=str)
            further = sorted(actual.keys() - expected.keys(), key=str)
            if missing or further:
                text = "The keys of the mappings do not match:"
                text += f"\nMissing keys in the actual mapping: {missing}" * bool(missing)
                text += f"\nAdditional keys in the actual mapping: {further}" * bool(further)
                return _at(where, text)
            pairs = [(f"{where}[{key!r}]", actual[key], expected[key]) for key in actual]
            return self._first(pairs)
        found = self._compared(actual, expected)
        return None if found is None else _at(where, found)

    def _first(self, pairs: list[tuple[str, Any, Any]]) -> str | None:
        for where, actual, expected in pairs:
            found = self.difference(actual, expected, where)
            if found is not None:
                return found
        return None

    def _compared(self, actual: Any, expected: Any) -> str | None:
        if actual is None or expected is None:
            return None if actual is expected else f"None mismatch: {actual} is not {expected}"
        if _all(Tensor, actual, expected):
            same = type(actual) is type(expected)
            if self._allow_subclasses or same:
                return self._tensors(actual, expected)
        elif _all((np.ndarray, np.generic), actual, expected):
            return self._arrays(np.asarray(actual), np.asarray(expected))
        elif _all((bool, np.bool_), actual, expected):
            same = bool(actual) is bool(expected)
            return None if same else f"Booleans mismatch: {actual} is not {expected}"
        elif _all((int, float), actual, expected) and not _any(bool, actual, expected):
            if self._check_dtype and type(actual) is not type(expected):
                kinds = f"{type(actual)} != {type(expected)}"
                return f"The (d)types do not match: {kinds}."
            return self._arrays(np.asarray(actual), np.asarray(expected), number=True)
        raise TypeError(
            "No comparison pair was able to handle inputs of type "
            f"{type(actual)} and {type(expected)}."
        )

    def _tensors(self, actual: Tensor, expected: Tensor) -> str | None:
        facts: list[tuple[str, Any, Any]] = [("shape", actual.shape, expected.shape)]
        if self._check_dtype:
            facts.append(("dtype", actual.dtype, expected.dtype))
        for name, ours, theirs in facts:
            if ours != theirs:
                return f"The values for attribute '{name}' do not match: {ours} != {theirs}."
        if self._check_stride and actual.stride() != expected.stride():
            return (
                "The values for attribute 'stride()' do not match: "
                f"{actual.stride()} != {expected.stride()}."
            )
        return self._arrays(actual.detach().numpy(), expected.detach().numpy())

    def _arrays(
        self, actual: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], number: bool = False
    ) -> str | None:
        if actual.shape != expected.shape:
            shapes = f"{actual.shape} != {expected.shape}"
            return f"The values for attribute 'shape' do not match: {shapes}."
        if actual.dtype != expected.dtype:
            if self._check_dtype:
                kinds = f"{actual.dtype} != {expected.dtype}"
                return f"The values for attribute 'dtype' do not match: {kinds}."
            rtol, atol = self._of(actual, expected)
            common = np.promote_types(actual.dtype, expected.dtype)
            actual, expected = actual.astype(common), expected.astype(common)
        else:
            rtol, atol = self._of(actual)
        close = np.isclose(actual, expected, rtol, atol, self._equal_nan)
        if close.all():
            return None
        if number or not actual.ndim:
            return _of_numbers(actual.item(), expected.item(), rtol, atol)
        return _of_arrays(actual, expected, close, rtol, atol)

    def _of(self, *arrays: np.ndarray[Any, Any]) -> tuple[float, float]:
        if self._tolerances is not None:
            return self._tolerances
        known = [_TOLERANCES.get(a.dtype.name, (0.0, 0.0)) for a in arrays]
        return max(r for r, _ in known), max(a for _, a in known)


def _all(kinds: Any, *values: Any) -> bool:
    return all(isinstance(v, kinds) for v in values)


def _any(kinds: Any, *values: Any) -> bool:
    return any(isinstance(v, kinds) for v in values)


def _at(where: str, text: str) -> str:
    return f"{text}\n\nThe failure occurred for item {where}" if where else text


def _allowed(tolerance: float, exact: bool) -> str:
    return "" if exact else f" (up to {tolerance} allowed)"


def _of_numbers(actual: Any, expected: Any, rtol: float, atol: float) -> str:
    exact = rtol == atol == 0
    absolute = abs(actual - expected) if not isinstance(actual, bool) else 1
    relative = float("inf") if expected == 0 else abs(absolute / expected)
    return (
        f"Scalars are not {'equal' if exact else 'close'}!\n\n"
        f"Expected {expected} but got {actual}.\n"
        f"Absolute difference: {absolute}{_allowed(atol, exact)}\n"
        f"Relative difference: {relative}{_allowed(rtol, exact)}"
    )


def _of_arrays(
    actual: np.ndarray[Any, Any],
    expected: np.ndarray[Any, Any],
    close: np.ndarray[Any, Any],
    rtol: float,
    atol: float,
) -> str:
    exact = rtol == atol == 0
    wrong = int(close.size - close.sum())
    if actual.dtype.kind != "f":
        actual, expected = actual.astype(np.int64), expected.astype(np.int64)
    with np.errstate(all="ignore"):
        absolute = np.where(close, 0, np.abs(actual - expected))
        fine = np.float32 if actual.dtype.kind != "f" else actual.dtype.type
        relative = np.where(close, 0, np.abs(absolute.astype(fine) / expected.astype(fine)))
    lines = [
        f"Tensor-likes are not {'equal' if exact else 'close'}!\n",
        f"Mismatched elements: {wrong} / {close.size} ({wrong / close.size:.1%})",
    ]
    parts = (("absolute", absolute, atol), ("relative", relative, rtol))
    for name, found, tolerance in parts:
        place = np.unravel_index(int(np.argmax(found)), found.shape)
        index = tuple(int(i) for i in place)
        lines.append(
            f"Greatest {name} difference: {found[index].item()} at index {index}"
            + _allowed(tolerance, exact)
        )
    return "\n".join(lines)
