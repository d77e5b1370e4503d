"""Switches that programs set and that change nothing here, and PyTorch's names of layouts."""

from __future__ import annotations

from typing import Any, Final

from . import errors

_STATE = {"deterministic": False, "warn_only": False, "precision": "highest"}
_PRECISIONS = ("highest", "high", "medium")


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Noted, and nothing else: results are the same bits in every run anyway."""
    for place, given in (("'mode' (position 1)", mode), ("'warn_only'", warn_only)):
        if not isinstance(given, bool):
            raise TypeError(
                f"_set_deterministic_algorithms(): argument {place} must be bool, not "
                f"{type(given).__name__}"
            )
    _STATE.update(deterministic=mode, warn_only=warn_only)


def are_deterministic_algorithms_enabled() -> bool:
    """What :func:`use_deterministic_algorithms` was told last; False before."""
    return bool(_STATE["deterministic"])


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """What :func:`use_deterministic_algorithms` was told of warnings last; False before."""
    return bool(_STATE["warn_only"])


def set_float32_matmul_precision(precision: str) -> None:
    """Noted, and nothing else: "highest", "high" or "medium"; warns of another word.

    Products of float32 are as exact as PyTorch's "highest" in any case.
    """
    if precision in _PRECISIONS:
        _STATE["precision"] = precision
    else:
        errors.warn(f"{precision} is not one of 'highest', 'high', or 'medium': nothing is changed")


def get_float32_matmul_precision() -> str:
    """What :func:`set_float32_matmul_precision` was told last; "highest" before.

    >>> get_float32_matmul_precision()
    'highest'
    """
    return str(_STATE["precision"])


class memory_format:
    """How PyTorch lays out dimensions.  Here elements are stored row by row in any case."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"mt.{self._name}"

    def __reduce__(self) -> str:
        return self._name


contiguous_format: Final = memory_format("contiguous_format")
preserve_format: Final = memory_format("preserve_format")
channels_last: Final = memory_format("channels_last")


def check_format(function: str, given: Any, rank: int | None = None) -> None:
    """Raise unless ``given`` is a layout that a tensor of so many dimensions can have, or None."""
    if given is None:
        return
    if not isinstance(given, memory_format):
        raise TypeError(
            f"{function}(): argument 'memory_format' must be torch.memory_format, not "
            f"{type(given).__name__}"
        )
    if given is channels_last and rank not in (None, 4):
        raise RuntimeError("required rank 4 tensor to use channels_last format")
