"""The executable plan: what the compiler hands to the runtime, and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Sequence
from dataclasses import field
from pathlib import Path
from typing import Protocol

from ..core import errors
from ..core.record import record
from .graph import Graph
from .op import Kind

STEPS_SLOT = 0
ARENA_SLOT = 1
SCALAR_SLOT = 2
FIRST_SLOT = 3
SCALAR_STRIDE = 8
"""Bytes between runtime scalars."""
WITHIN = "within"
"""The function of every program's code that tests positions (see :mod:`..compiler.within`)."""


@record(sealed=True)
class Output:
    """One result: its size, and the leaf whose memory it may take over."""

    nbytes: int  # 0 for what is not stored
    donor: int | None = None  # position among the leaves that are buffers


@record(sealed=True)
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


@record(sealed=True)
class Placement:
    """Where an intermediate lives in the arena, and during which kernels (inclusive)."""

    value: int  # graph value, or -1 for a kernel's scratch
    offset: int
    nbytes: int
    first: int
    last: int


@record(sealed=True)
class Clocks:
    """Where the entry adds up times: int64 ns of each worker and step, of all launches, and their
    number, from a byte of the steps on."""

    offset: int
    workers: int
    kernels: tuple[tuple[int, ...], ...]  # that each step has stages of


@record(sealed=True)
class Program:
    """Native code for one graph and how to call it.

    The pointer table has a copy of ``steps`` first, behind which the entry keeps its own state,
    then the arena, the scalars, the input buffers in order, and the outputs in order.
    """

    graph: Graph
    code: tuple[bytes, ...]  # object files that make one library
    entry: str
    steps: bytes  # what the entry reads
    steps_nbytes: int  # with the memory behind it that the entry writes
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
    target: str = ""  # the processor that the code is for
    validated: bool = False  # every kernel is compared with the reference after each run
    clocks: Clocks | None = None  # if times are measured
    # Kept alive for the compiler, which makes no kernel twice as long as a program has it.
    shared: tuple[object, ...] = field(default=(), compare=False, repr=False)
    # The compiler's text on what of the code later processes may use, and the names it goes by.
    made: bytes = field(default=b"", compare=False, repr=False)
    names: tuple[str, ...] = field(default=(), compare=False, repr=False)

    @property
    def slots(self) -> int:
        """Length of the pointer table."""
        return FIRST_SLOT + self.inputs + len(self.outputs)

    def unstored(self, outputs: Sequence[int]) -> tuple[int, ...]:
        """Those of the outputs that could as well not be stored, were there nobody to read them.

        Such is a product or a convolution, its weights' gradient for instance, that only the kernel
        which computes it uses, for other results.  (What arithmetic gave last might have other
        bits: a multiplication that nothing else needs is contracted with the next addition.)  Told
        from the kernels, for a program from disk has no fused graph.
        """
        graph = self.graph
        users = graph.users()
        computing: dict[int, list[KernelInfo]] = {}  # a value may be computed by several kernels
        for k in self.kernels:
            for m in k.values:
                computing.setdefault(m, []).append(k)

        def is_used_elsewhere(v: int, kernel: KernelInfo) -> bool:
            waiting, seen = [v], {v}
            while waiting:
                for user in users[waiting.pop()]:
                    kernels = computing.get(user, [])
                    if any(k is not kernel for k in kernels):
                        return True
                    if not kernels and user not in seen:
                        seen.add(user)
                        waiting.append(user)
            return False

        found = []
        for output in outputs:
            v = graph.outputs[output]
            kernel = next((k for k in self.kernels if v in k.outputs), None)
            if (
                kernel is not None
                and len(kernel.outputs) > 1
                and graph.values[v].op.kind is Kind.COMPLEX
                and not is_used_elsewhere(v, kernel)
            ):
                found.append(output)
        return tuple(found)

    def summary(self) -> str:
        """One line: the sizes of the program."""
        stages = sum(k.stages for k in self.kernels)
        return f"{len(self.graph.values)} nodes, {len(self.kernels)} kernels, {stages} stages"

    def report(self) -> str:
        """Memory, compile time and a row per kernel, as text of several lines."""
        bound = self.lower_bound
        over = f" ({self.arena_bytes / bound:.2f} x lower bound)" if bound else ""
        seconds = ", ".join(f"{name} {s:.3f}" for name, s in self.seconds.items())
        lines = [
            f"  arena: {self.arena_bytes:,} bytes planned{over}, naive "
            f"sum {self.naive_bytes:,}, lower bound {bound:,}",
            f"  compile seconds: {sum(self.seconds.values()):.3f} ({seconds})",
        ]
        rows: list[tuple[str, ...]] = [
            ("kernel", "rule", "stages", "nodes", "MFLOP", "MB", "recorded at")
        ]
        rows += [self._row(k) for k in self.kernels]
        return "\n".join([*lines, *in_columns(rows, range(2, 6))])

    def where(self, k: KernelInfo) -> str:
        """The user's line that recorded a kernel's first value, or nothing."""
        place = self.graph.values[k.values[0]].place
        if place is None:
            return ""
        file, line = errors.line_of(place)
        return f"{Path(file).name}:{line}"

    def _row(self, k: KernelInfo) -> tuple[str, ...]:
        return (
            k.name,
            k.rule,
            str(k.stages),
            str(len(k.values)),
            f"{k.flops / 1e6:.2f}",
            f"{k.bytes_moved / 1e6:.3f}",
            self.where(k),
        )


@record(sealed=True)
class Found:
    """Of an earlier process's program: its code, and what the compiler wrote on it."""

    code: tuple[bytes, ...]
    made: bytes


class Library(Protocol):
    """Programs of earlier processes."""

    def has(self, name: str) -> bool:
        """Whether a program goes by that name."""

    def find(self, name: str) -> Found | None:
        """One that does; always the same object for one."""


def host_name(isa: str) -> str:
    """What all programs for the machine go by, with a setting of instructions."""
    return hashlib.sha256(f"host {isa}".encode()).hexdigest()


def in_columns(rows: Sequence[tuple[str, ...]], right: Container[int]) -> list[str]:
    """Lines of a table, some of whose columns are flush ``right``."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(f"  {'  '.join(cells)}".rstrip())
    return lines
