"""Schedules that a model without their ops does not import.

Their modules are half of all, and a first call waits for each.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from ....ops.attention import ATTENTION
from ....ops.conv import ConvBase
from ....ops.factors import FACTORS
from ....ops.orthogonal import ORTHOGONAL, SPECTRA
from ....ops.recurrent import STEPWISE
from ...loops import Stage
from ...lower import KernelCode
from ...target import CpuTarget

Rule = Callable[[KernelCode, CpuTarget], list[Stage] | None]


def _deferred(name: str, *ops: type[Any]) -> Rule:
    """The function of that name in the module of that name, for kernels of such ops."""

    def rule(code: KernelCode, cpu: CpuTarget) -> list[Stage] | None:
        if code.kernel.anchor is None or not isinstance(code.anchor.op, ops):
            return None
        make: Rule = getattr(importlib.import_module(f"{__package__}.{name}"), name)
        return make(code, cpu)

    rule.__name__ = name
    rule.__doc__ = f"See :mod:`.{name}`."
    return rule


convolution = _deferred("convolution", ConvBase)
attention = _deferred("attention", *ATTENTION)
recurrence = _deferred("recurrence", *STEPWISE)
factor = _deferred("factor", *FACTORS)
orthogonal = _deferred("orthogonal", *ORTHOGONAL)
spectra = _deferred("spectra", *SPECTRA)
