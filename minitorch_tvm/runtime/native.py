"""Linking native objects into the process."""

from __future__ import annotations

from typing import Any

from ..core.tvm_api import load_object


def link(code: bytes, entry: str) -> Any:
    """Link object code and return its entry function (called with one ``ctypes.c_void_p``)."""
    return load_object(code)[entry]
