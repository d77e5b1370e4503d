"""Programs of a watched function run again: flat code over tables made once.

A call of a small function costs little more than what is done here, so whatever was decided when
the function was watched is decided no more: places are sorted by kind, tensors stand in the tables
themselves, and what must still be looked at is looked at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any, NamedTuple

from .core.dtype import DType
from .core.events import EVENTS
from .core.shape import Shape, numel
from .ir.node import leaf
from .runtime.executor import count
from .runtime.memory import Buffer
from .tensor import Tensor


class Place(NamedTuple):
    """Where a value comes from or goes to.

    ``kind`` is argument, tensor, gradient (of a tensor; entry 1 if there was one before, which is
    changed), run (its entry-th output) or effect (the entry-th number it returns); ``number`` says
    which.
    """

    kind: str
    number: int
    entry: int = 0


class Output(NamedTuple):
    """A result of a program: what it is and the tensors and gradients that become it."""

    shape: Shape
    dtype: DType
    spec_id: int
    places: tuple[Place, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return numel(self.shape) * self.dtype.itemsize


class Run(NamedTuple):
    """One program: its executor, and where its inputs and outputs are."""

    executor: Any
    inputs: tuple[Place, ...]
    donors: tuple[int, ...]  # per output: position among the inputs, or -1
    scalars: tuple[Place | float, ...]
    outputs: tuple[Output, ...]


class State(NamedTuple):
    """A tensor that outlives the call, as it was when the call was watched."""

    tensor: Tensor
    spec_id: int
    requires_grad: bool


_COUNTS = EVENTS.counts

Test = Callable[[Any], None]
Made = list[list[Buffer]]
"""The outputs of the runs of a call so far."""
Prepared = tuple[list[Buffer], list[Buffer | None]]
"""Inputs of a run and, per output, the buffer to write over, if any."""
Prepare = Callable[[Sequence[Buffer], Made], Prepared | None]
Step = tuple[Prepare, Callable[[Prepared, list[Any]], list[Buffer]]]

_SMALL = 4096
"""Bytes; results up to that size are kept, to be written over once nobody else has them."""


def _no_program(prepared: Prepared, values: list[Any]) -> list[Buffer]:
    count("captured_calls")
    return []


def steps(
    runs: Sequence[Run],
    state: Sequence[State],
    read_gradients: set[int],
    guards: Sequence[tuple[Place, Test]],
) -> list[Step]:
    """How to run each program: what prepares it, and what runs it then with an effect's numbers.

    The first of them may find that a tensor is not what it was; it returns None, and nothing has
    been done.  ``guards`` test outputs of runs.
    """
    if not runs:  # but what the function returns may depend on the state
        nothing = Run(None, (), (), (), ())
        return [(_preparation(nothing, state, read_gradients, [], every=True), _no_program)]
    found = []
    for number, run in enumerate(runs):
        tests = [(p.entry, test) for p, test in guards if p.number == number]
        spare = _small_results(run)
        prepare = _preparation(run, state, read_gradients, spare, every=number == 0)
        last = number == len(runs) - 1
        found.append((prepare, _running(run, [s.tensor for s in state], tests, spare, last)))
    return found


def _small_results(run: Run) -> list[tuple[int, deque[Buffer]]]:
    """Numbers of the outputs that nothing but the caller gets, and room for the last two of each:
    one is usually still held while the next is computed."""
    return [
        (i, deque(maxlen=2))
        for i, output in enumerate(run.outputs)
        if not output.places and run.donors[i] < 0 and output.nbytes <= _SMALL
    ]


def _preparation(
    run: Run,
    state: Sequence[State],
    read_gradients: set[int],
    results: Sequence[tuple[int, deque[Buffer]]],
    every: bool,
) -> Prepare:
    """``every``: look at all tensors of the state, also at those that this run does not read."""
    inputs = list(enumerate(run.inputs))
    arguments = [(i, p.number) for i, p in inputs if p.kind == "argument"]
    computed = [(i, p.number, p.entry) for i, p in inputs if p.kind == "run"]
    taken = {
        d: output for output, d in enumerate(run.donors) if run.executor.overwrites[output]
    }  # by position among the inputs: the output that may be written over it
    kept = [(i, *state[p.number], taken.get(i, -1)) for i, p in inputs if p.kind == "tensor"]
    gradients = [
        (i, state[p.number].tensor, taken.get(i, -1)) for i, p in inputs if p.kind == "gradient"
    ]
    read = {p.number for _, p in inputs if p.kind == "tensor"}
    others = [s for n, s in enumerate(state) if n not in read] if every else []
    views = [s.tensor for n, s in enumerate(state) if s.tensor._base is not None]
    # What nothing reads may be written over.
    spare = [
        (i, state[p.number].tensor, output.nbytes)
        for i, output in enumerate(run.outputs)
        for p in output.places
        if p.kind == "gradient" and not p.entry and p.number not in read_gradients
    ]
    blank: list[Any] = [None] * len(inputs)
    fresh: list[Buffer | None] = [None] * len(run.outputs)

    def prepare(given: Sequence[Buffer], made: Made) -> Prepared | None:
        buffers, targets = blank.copy(), fresh.copy()
        for view in views:
            _ = view.node  # now it follows its base
        for tensor, spec_id, requires_grad in others:
            node = tensor._node
            if node.spec_id != spec_id or node.requires_grad != requires_grad or node.pending:
                return None
        for i, number in arguments:
            buffers[i] = given[number]
        for i, number, entry in computed:
            buffers[i] = made[number][entry]
        for i, tensor, spec_id, requires_grad, output in kept:
            node = tensor._node
            buffer = buffers[i] = node.buffer
            if node.spec_id != spec_id or node.requires_grad != requires_grad or buffer is None:
                return None
            # Nobody but the tensor holds its old value.  Known references: the tensor's, the local
            # and getrefcount's; the node's, the list's, the local and getrefcount's.
            if (
                output >= 0
                and getrefcount(node) <= 3
                and getrefcount(buffer) <= 4
                and buffer.array is None
            ):
                targets[output] = buffer
        for i, tensor, output in gradients:
            gradient = tensor._grad
            if gradient is None:
                return None
            node = gradient.node if gradient._base is not None else gradient._node
            buffer = buffers[i] = node.buffer
            if buffer is None:
                return None
            if (
                output >= 0
                and getrefcount(node) <= 3
                and getrefcount(buffer) <= 4
                and buffer.array is None
            ):
                targets[output] = buffer
        for output, before in results:
            targets[output] = _taken(before)
        for output, tensor, nbytes in spare:
            old = tensor._gradient
            # Known references: the tensor's, the local and getrefcount's.
            if type(old) is not Tensor or getrefcount(old) > 3:
                continue
            node = old._node
            if getrefcount(node) > 3 or node.pending:
                continue
            buffer = node.buffer
            # Known references: the node's, the local and getrefcount's.
            if getrefcount(buffer) <= 3 and buffer.nbytes == nbytes and buffer.array is None:
                targets[output] = buffer
        return buffers, targets

    return prepare


def _running(
    run: Run,
    tensors: Sequence[Tensor],
    guards: Sequence[tuple[int, Test]],
    spare: Sequence[tuple[int, deque[Buffer]]],
    last: bool,
) -> Callable[[Prepared, list[Any]], list[Buffer]]:
    executor = run.executor
    constants = [0.0 if isinstance(s, Place) else s for s in run.scalars]
    numbers = [(i, s.number, s.entry) for i, s in enumerate(run.scalars) if isinstance(s, Place)]
    changed, accumulated, replaced = [], [], []
    for i, output in enumerate(run.outputs):
        for kind, number, accumulates in output.places:
            if kind == "tensor":
                changed.append((i, tensors[number], output))
            elif accumulates:
                accumulated.append((i, tensors[number], output))
            else:
                replaced.append((i, tensors[number], output))
    tests = [(i, test, run.outputs[i]) for i, test in guards]

    def hand_over(results: list[Buffer]) -> None:
        """Give tensors and gradients their new values."""
        for i, tensor, output in changed:
            if results[i] is not tensor._node.buffer:
                _replace(tensor, results[i], output)
            tensor._version += 1
        for i, owner, output in accumulated:
            gradient = gradient_of(owner)
            if results[i] is not gradient._node.buffer:
                _replace(gradient, results[i], output)
            gradient._version += 1
        for i, owner, output in replaced:
            old = owner._gradient
            if type(old) is not Tensor or old._node.buffer is not results[i]:
                owner._gradient = tensor_of(results[i], output)
        if last:
            _COUNTS["captured_calls"] += 1  # changes under the lock of running programs only

    def execute(prepared: Prepared, values: list[Any]) -> list[Buffer]:
        scalars = constants
        if numbers:
            scalars = constants.copy()
            for i, number, entry in numbers:
                scalars[i] = values[number][entry]
        buffers, targets = prepared
        results: list[Buffer] = executor.run(buffers, scalars, targets, hand_over)
        for i, kept in spare:
            kept.append(results[i])
        for i, test, output in tests:
            test(results[i].numpy(output.shape, output.dtype))
        return results

    return execute


def _taken(results: deque[Buffer]) -> Buffer | None:
    """The older of the last results, if nobody has it any more."""
    try:  # what is taken out no other thread finds free as well
        buffer = results.popleft()
    except IndexError:
        return None
    # Known references: the local and getrefcount's.
    return buffer if getrefcount(buffer) <= 2 else None


def gradient_of(owner: Tensor) -> Tensor:
    """The gradient of a tensor that has one."""
    assert owner._grad is not None
    return owner._grad


def tensor_of(buffer: Buffer, output: Output) -> Tensor:
    """A tensor that is what a program wrote."""
    shape, dtype, spec_id, _ = output
    return Tensor._wrap(leaf(buffer, shape, dtype, spec_id))


def _replace(tensor: Tensor, result: Buffer, output: Output) -> None:
    """Give a tensor a new value."""
    old = tensor._node
    if old.buffer.shared:
        # The user's own array, as PyTorch's from_numpy promises.
        target = old.buffer.numpy(old.shape, old.dtype)
        target[...] = result.numpy(output.shape, output.dtype)
        return
    new = leaf(result, output.shape, output.dtype, output.spec_id)
    if old.grad_leaf:
        tensor._mark_leaf(new, old)
    tensor._node = new
