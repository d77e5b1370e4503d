"""Linking native objects into the process."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from ..core.tvm_api import load_object


def link(code: bytes, entry: str) -> Any:
    """Link object code and return its entry function (called with one ``ctypes.c_void_p``)."""
    descriptor, path = tempfile.mkstemp(suffix=".o", prefix="mtvm")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(code)
        return load_object(path)[entry]
    finally:
        os.unlink(path)
