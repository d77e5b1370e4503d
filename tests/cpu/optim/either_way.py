"""Programs that are run in two ways and must look the same."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from minitorch_tvm.ir.node import MODE


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and np.array_equal(a, b, equal_nan=True)
    return bool(a == b)


def compare(
    run: Callable[[list[Any]], list[Any]],
    program: list[Callable[..., Any]],
    other: Callable[[], AbstractContextManager[None]],
) -> None:
    """What ``run`` sees of ``program`` is the same inside ``other``."""
    MODE.trace.restart()
    got = run(program)
    with other():
        MODE.trace.restart()
        wanted = run(program)
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted, strict=True):
        assert _same(a, b), ([f.__name__ for f in program], a, b)
