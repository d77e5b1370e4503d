"""Linking native objects into the process."""

from __future__ import annotations

from typing import Any

from ..core.tvm_api import load_objects


def link(*code: bytes, entry: str) -> Any:
    """Link object files and return their entry function (called with one ``ctypes.c_void_p``)."""
    return load_objects(code)[entry]
