"""A graph as the compiler sees it: topologically ordered, immutable, printable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..core import errors
from ..core.dtype import DType
from ..core.shape import Shape, numel
from .op import Kind, Op, Spec


# Not frozen, which takes three times as long to make; nothing changes one.
@dataclass(slots=True, unsafe_hash=True)
class Value:
    """One value: ``op`` applied to earlier values (by position in ``Graph.values``)."""

    op: Op
    inputs: tuple[int, ...]
    shape: Shape
    dtype: DType
    place: errors.Provenance | None = field(default=None, compare=False)

    @property
    def spec(self) -> Spec:
        """Shape and dtype."""
        return Spec(self.shape, self.dtype)

    @property
    def nbytes(self) -> int:
        """Size of the value in bytes."""
        return numel(self.shape) * self.dtype.itemsize

    @property
    def is_leaf(self) -> bool:
        """True for inputs and runtime scalars."""
        return self.op.kind is Kind.LEAF


@dataclass(frozen=True, slots=True)
class Graph:
    """Values in topological order, which of them are results, and which inputs they overwrite.

    ``donated`` maps an output's position in ``outputs`` to the leaf whose memory it takes over.
    ``unread`` are positions of outputs that nobody asks for: they decide like others how values are
    grouped into kernels, and so the bits of the rest, but are not stored.
    """

    values: tuple[Value, ...]
    outputs: tuple[int, ...]
    donated: tuple[tuple[int, int], ...] = ()
    unread: tuple[int, ...] = ()

    def leaves(self) -> list[int]:
        """Positions of inputs and scalars, in order."""
        return [i for i, v in enumerate(self.values) if v.is_leaf]

    def users(self) -> list[list[int]]:
        """For each value the positions of the values that read it (with repetition)."""
        users: list[list[int]] = [[] for _ in self.values]
        for i, v in enumerate(self.values):
            for x in v.inputs:
                users[x].append(i)
        return users

    def __str__(self) -> str:
        lines = []
        for i, v in enumerate(self.values):
            args = ", ".join(f"%{x}" for x in v.inputs)
            mark = " -> out" + str(self.outputs.index(i)) if i in self.outputs else ""
            lines.append(f"%{i} = {v.op}({args}) : {v.spec}{mark}")
        for out, source in self.donated:
            lines.append(f"out{out} overwrites %{source}")
        lines += [f"out{out} is not stored" for out in self.unread]
        return "\n".join(lines)


def verify(graph: Graph) -> None:
    """Check order, shapes and dtypes.  Raises AssertionError naming the first wrong value."""
    for i, v in enumerate(graph.values):
        if any(not 0 <= x < i for x in v.inputs):
            raise AssertionError(f"%{i} = {v.op} reads a later value")
        if v.is_leaf:
            continue
        spec = v.op.infer(*[graph.values[x].spec for x in v.inputs])
        if spec != v.spec:
            raise AssertionError(f"%{i} = {v.op}: recorded {v.spec}, inferred {spec}")
    for out in graph.outputs:
        if not 0 <= out < len(graph.values):
            raise AssertionError(f"output %{out} does not exist")
    for out, source in graph.donated:
        donor = graph.values[source]
        if not donor.is_leaf or donor.spec != graph.values[graph.outputs[out]].spec:
            raise AssertionError(f"output {out} cannot overwrite %{source}")


def prune(graph: Graph) -> tuple[Graph, dict[int, int]]:
    """Drop values that no output needs (leaves stay: they are the program's signature)."""
    needed = {*graph.outputs, *graph.leaves()}
    for i in range(len(graph.values) - 1, -1, -1):
        if i in needed:
            needed.update(graph.values[i].inputs)
    if len(needed) == len(graph.values):
        return graph, {i: i for i in needed}
    return rebuild(graph, lambda i: i in needed)


def rebuild(graph: Graph, keep: Callable[[int], bool]) -> tuple[Graph, dict[int, int]]:
    """The graph restricted to the values for which ``keep`` holds, and the renumbering."""
    number: dict[int, int] = {}
    values: list[Value] = []
    for i, v in enumerate(graph.values):
        if keep(i):
            number[i] = len(values)
            values.append(
                Value(v.op, tuple(number[x] for x in v.inputs), v.shape, v.dtype, v.place)
            )
    donated = tuple((o, number[s]) for o, s in graph.donated)
    return Graph(tuple(values), tuple(number[o] for o in graph.outputs), donated), number


def evaluate(
    graph: Graph, leaves: Sequence[object], run: Callable[[Op, list[object]], object]
) -> list[object]:
    """Run the graph op by op: ``run(op, inputs)`` gives each value."""
    env: list[object] = []
    given = iter(leaves)
    for v in graph.values:
        env.append(next(given) if v.is_leaf else run(v.op, [env[x] for x in v.inputs]))
    return [env[o] for o in graph.outputs]
