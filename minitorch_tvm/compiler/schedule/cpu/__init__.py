"""CPU schedules, in order: the first rule that applies to a kernel makes its loops."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...loops import Stage
from ...lower import KernelCode
from ...streams import closed
from ...target import CpuTarget
from . import deferred, gemm_tiling
from .deferred import Rule
from .elementwise import elementwise
from .generic import generic
from .product import product
from .reduction import reduction
from .rows import rows
from .transpose import transpose

RULES: tuple[Rule, ...] = (
    rows,  # reductions along rows, and what is computed with them
    transpose,  # no anchor, and something is read along another dimension
    elementwise,  # no anchor
    product,  # Matmul of floating point
    deferred.convolution,  # the three convolutions
    reduction,  # one reduction over whole dimensions: long rows, columns
    deferred.scatter,  # gradients of gathers
    deferred.scan,  # running sums
    deferred.leader,  # running extremes
    deferred.paths,  # of labels through frames
    deferred.sort,
    deferred.attention,  # of many positions
    deferred.recurrence,  # layers that go on from step to step
    deferred.factor,  # triangular factors of matrices
    deferred.orthogonal,  # those with orthonormal columns
    deferred.spectra,  # eigenvalues and singular values
    deferred.window,  # pooling: few terms per element, written out
    generic,  # anything else: one accumulator per element
)


def forget() -> None:
    """Schedule as if nothing had been compiled."""
    gemm_tiling.forget()


def schedule(code: KernelCode, cpu: CpuTarget) -> tuple[str, list[Stage]]:
    """The name of the rule that applied, and its stages."""
    for rule in RULES:
        stages = closed(partial(rule, code, cpu))
        if stages is not None:
            return rule.__name__, stages
    raise AssertionError(f"no schedule for {code.kernel.name(code.graph)}")
