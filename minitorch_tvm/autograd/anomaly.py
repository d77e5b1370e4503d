"""Finding the operation whose gradient is the first to have a NaN."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import lazy
from ..core import config, errors
from ..core.arguments import flag
from ..ir.node import Node


class set_detect_anomaly:
    """Switch anomaly detection on or off at once; as a context manager, for a block.

    While it is on, ``backward()`` evaluates what every operation hands on (unless ``check_nan`` is
    off), and raises RuntimeError for the first NaN, behind a warning that shows the line which
    recorded the operation.  Functions of ``mt.compile`` run at every call then.

    >>> import minitorch_tvm as mt
    >>> with set_detect_anomaly(True):
    ...     mt.ones(1, requires_grad=True).log().sum().backward()
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        flag("set_anomaly_enabled", "enabled", 1, mode)
        flag("set_anomaly_enabled", "check_nan", 2, check_nan)
        self._before = config.CONFIG.anomaly, config.CONFIG.check_nan
        config.change(anomaly=mode, check_nan=check_nan)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        anomaly, check_nan = self._before
        config.change(anomaly=anomaly, check_nan=check_nan)


class detect_anomaly:
    """A context manager in which anomalies are detected, see :class:`set_detect_anomaly`.

    It warns that this takes time.
    """

    def __init__(self, check_nan: bool = True) -> None:
        self._check_nan = check_nan
        errors.warn(
            "Anomaly Detection has been enabled. This mode will increase the runtime and should "
            "only be enabled for debugging."
        )

    def __enter__(self) -> None:
        self._switch = set_detect_anomaly(True, self._check_nan)

    def __exit__(self, *error: object) -> None:
        self._switch.__exit__(*error)


def detects_nan() -> bool:
    """Whether gradients are to be looked at."""
    return config.CONFIG.anomaly and config.CONFIG.check_nan


def refuse_nan(node: Node, gradients: Sequence[Any]) -> None:
    """RuntimeError if one of the gradients that ``node`` hands on has a NaN."""
    name = node.op.grad_name
    if node.call is not None:  # of a user's function
        name, gradients = node.call.title, gradients[node.call.saved :]
    for i, g in enumerate(gradients):
        if g is None or not g.dtype.is_floating_point:
            continue
        lazy.evaluate([g], "anomaly")
        if g.buffer is None or not np.isnan(g.buffer.numpy(g.shape, g.dtype)).any():
            continue
        error = RuntimeError(f"Function '{name}' returned nan values in its {i}th output.")
        if node.place is not None:
            file, line = errors.line_of(node.place)
            errors.warn(
                f"Error detected in {name}. Traceback of forward call that caused the error:\n"
                f'  File "{file}", line {line}, in {node.place[0].co_name}\n'
                f"    {linecache.getline(file, line).strip()}"
            )
            error.add_note(f"recorded at {errors.describe(node.place)}")
        raise error
