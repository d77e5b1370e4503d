"""Linking native objects into the process."""

from __future__ import annotations

from typing import Any

from ..core.tvm_api import load_objects


def link(*code: bytes) -> Any:
    """Link object files; returns what has their functions, by name."""
    return load_objects(code)
