"""What functions return that give values and where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .tensor import Tensor


class ValuesIndices(NamedTuple):
    """Result of ``max(dim)``, ``min(dim)``, ``sort``, ``topk`` and the like."""

    values: Tensor
    indices: Tensor


class MinMax(NamedTuple):
    """Result of ``aminmax``."""

    min: Tensor
    max: Tensor
