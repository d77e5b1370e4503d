"""Schedules that a model without their ops does not import.

Their modules are half of all, and a first call waits for each.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from ....ops.attention import ATTENTION
from ....ops.conv import ConvBase
from ....ops.ctc import Paths
from ....ops.factors import FACTORS
from ....ops.gather import ScatterAdd
from ....ops.orthogonal import ORTHOGONAL, SPECTRA
from ....ops.picking import LastPosition
from ....ops.pool import PoolBase
from ....ops.recurrent import STEPWISE
from ....ops.scan import ArgSort, Leader, Scan
from ...loops import Stage
from ...lower import KernelCode
from ...target import CpuTarget

Rule = Callable[[KernelCode, CpuTarget], list[Stage] | None]


def _deferred(name: str, *ops: type[Any], module: str = "") -> Rule:
    """The function of that name in the module of that name, or another, for kernels of such ops."""

    def rule(code: KernelCode, cpu: CpuTarget) -> list[Stage] | None:
        if code.kernel.anchor is None or not isinstance(code.anchor.op, ops):
            return None
        make: Rule = getattr(importlib.import_module(f"{__package__}.{module or name}"), name)
        return make(code, cpu)

    rule.__name__ = name
    rule.__doc__ = f"See :mod:`.{module or name}`."
    return rule


scatter = _deferred("scatter", ScatterAdd, LastPosition)
scan = _deferred("scan", Scan)
leader = _deferred("leader", Leader, module="scan")
paths = _deferred("paths", Paths, module="scan")
sort = _deferred("sort", ArgSort)
window = _deferred("window", PoolBase)
convolution = _deferred("convolution", ConvBase)
attention = _deferred("attention", *ATTENTION)
recurrence = _deferred("recurrence", *STEPWISE)
factor = _deferred("factor", *FACTORS)
orthogonal = _deferred("orthogonal", *ORTHOGONAL)
spectra = _deferred("spectra", *SPECTRA)
