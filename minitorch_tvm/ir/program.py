"""The executable plan: what the compiler hands to the runtime, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field

from .graph import Graph

ARENA_SLOT = 0
SCALAR_SLOT = 1
FIRST_SLOT = 2
SCALAR_STRIDE = 8
"""Bytes between runtime scalars."""


@dataclass(frozen=True)
class Output:
    """One result: its size, and the leaf whose memory it may take over."""

    nbytes: int
    donor: int | None = None  # position among the leaves that are buffers


@dataclass(frozen=True)
class KernelInfo:
    """What is known of one kernel, for reports and the validator."""

    name: str
    values: tuple[int, ...]  # the graph values computed here
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    stages: int
    flops: int
    bytes_moved: int
    rule: str


@dataclass(frozen=True)
class Placement:
    """Where an intermediate lives in the arena, and during which kernels (inclusive)."""

    value: int  # graph value, or -1 for a kernel's scratch
    offset: int
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Program:
    """Native code for one graph and how to call it.

    The pointer table has the arena first, then the scalars, the input buffers in order, and the
    outputs in order.
    """

    graph: Graph
    code: bytes
    entry: str
    scalar_format: str
    scalars: int
    inputs: int
    outputs: tuple[Output, ...]
    arena_bytes: int
    naive_bytes: int
    lower_bound: int
    kernels: tuple[KernelInfo, ...]
    placements: tuple[Placement, ...]
    stage_functions: int
    seconds: dict[str, float] = field(compare=False)

    @property
    def slots(self) -> int:
        """Length of the pointer table."""
        return FIRST_SLOT + self.inputs + len(self.outputs)
