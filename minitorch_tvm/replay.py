"""Programs of a watched function run again: flat code over tables made once.

A call of a small function costs little more than what is done here, so whatever was decided when
the function was watched is decided no more: places are sorted by kind, tensors stand in the tables
themselves, and what must still be looked at is looked at once.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any, NamedTuple

from .core.dtype import DType
from .core.events import EVENTS
from .core.shape import Shape, numel
from .ir.node import leaf
from .ir.tape import Promise
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
Prepared = tuple[list[Buffer], list[Buffer | None], "_Gradients"]
"""Inputs of a run, per output the buffer to write over, if any, and what stands for gradients."""
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
    returned: Sequence[Place],
) -> list[Step]:
    """How to run each program: what prepares it, and what runs it then with an effect's numbers.

    The first of them may find that a tensor is not what it was; it returns None, and nothing has
    been done.  ``guards`` test outputs of runs.  The caller is given what is ``returned``.
    """
    if not runs:  # but what the function returns may depend on the state
        nothing = Run(None, (), (), (), ())
        replaced = _Replaced(nothing, [], set(), set())
        return [(_preparation(nothing, state, replaced, [], every=True), _no_program)]
    found = []
    tensors = [s.tensor for s in state]
    for number, run in enumerate(runs):
        tests = [(p.entry, test) for p, test in guards if p.number == number]
        spare = _small_results(run)
        results = {p.entry for p in returned if p.kind == "run" and p.number == number}
        replaced = _Replaced(run, tensors, read_gradients, results)
        prepare = _preparation(run, state, replaced, spare, every=number == 0)
        last = number == len(runs) - 1
        found.append((prepare, _running(run, tensors, replaced, tests, spare, last)))
    return found


class _Gradients(Promise):
    """Gradients that a program has computed, in memory that it writes again next time.

    Nobody has asked for one: otherwise they are tensors, and the memory belongs to these.
    """

    __slots__ = ("_of", "buffers")

    def __init__(self, of: _Replaced, buffers: list[Buffer]) -> None:
        self._of = of
        self.buffers: list[Buffer] | None = buffers

    def settle(self) -> None:
        """Make tensors of them."""
        buffers, self.buffers = self.buffers, None
        if buffers is not None:
            for (_, output, owners), buffer in zip(self._of.outputs, buffers, strict=True):
                for owner in owners:
                    if owner._gradient is self:
                        owner._gradient = tensor_of(buffer, output)


class _Replaced:
    """The gradients that a run computes anew, and those of the last time.

    Without those that the caller gets as results: that is another tensor on the same memory.
    """

    def __init__(
        self, run: Run, tensors: Sequence[Tensor], read: set[int], results: set[int]
    ) -> None:
        self.outputs: list[tuple[int, Output, list[Tensor]]] = []
        """Their numbers, and the tensors that get them."""
        self._read = False
        for i, output in enumerate(run.outputs):
            new = output.places and all(map(_is_new_gradient, output.places))
            if new and run.donors[i] < 0 and i not in results:
                numbers = [p.number for p in output.places]
                self.outputs.append((i, output, [tensors[n] for n in numbers]))
                self._read = self._read or not read.isdisjoint(numbers)
        self.numbers = [i for i, _, _ in self.outputs]
        self.owners = [tensor for _, _, owners in self.outputs for tensor in owners]
        self._last: weakref.ref[_Gradients] | None = None

    def again(self) -> tuple[_Gradients, list[Buffer]]:
        """What stands for them, and their memory."""
        found = None if self._last is None else self._last()
        buffers = None if found is None else found.buffers
        if found is None or buffers is None or self._read:
            buffers = [
                (None if self._read else _free(owners[0], output.nbytes)) or Buffer(output.nbytes)
                for _, output, owners in self.outputs
            ]
            found = _Gradients(self, buffers)
            self._last = weakref.ref(found)
        return found, buffers


def _is_new_gradient(place: Place) -> bool:
    return place.kind == "gradient" and not place.entry


def _free(owner: Tensor, nbytes: int) -> Buffer | None:
    """The memory of the gradient that there is, if it is as large and nobody else has it."""
    old = owner._gradient
    # Known references: the tensor's, the local and getrefcount's.
    if type(old) is not Tensor or getrefcount(old) > 3:
        return None
    node = old._node
    # The node's, the local and getrefcount's.
    if getrefcount(node) > 3 or node.pending:
        return None
    buffer: Buffer = node.buffer
    free = getrefcount(buffer) <= 3 and buffer.nbytes == nbytes and buffer.array is None
    return buffer if free else None


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
    replaced: _Replaced,
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
    numbers = replaced.numbers
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
        promise, memory = replaced.again()
        for output, buffer in zip(numbers, memory, strict=True):
            targets[output] = buffer
        return buffers, targets, promise

    return prepare


def _running(
    run: Run,
    tensors: Sequence[Tensor],
    replaced: _Replaced,
    guards: Sequence[tuple[int, Test]],
    spare: Sequence[tuple[int, deque[Buffer]]],
    last: bool,
) -> Callable[[Prepared, list[Any]], list[Buffer]]:
    executor = run.executor
    constants = [0.0 if isinstance(s, Place) else s for s in run.scalars]
    numbers = [(i, s.number, s.entry) for i, s in enumerate(run.scalars) if isinstance(s, Place)]
    changed, accumulated, given = [], [], []
    for i, output in enumerate(run.outputs):
        for kind, number, accumulates in output.places:
            if kind == "tensor":
                changed.append((i, tensors[number], output))
            elif accumulates:
                accumulated.append((i, tensors[number], output))
            elif i not in replaced.numbers:
                given.append((i, tensors[number], output))
    tests = [(i, test, run.outputs[i]) for i, test in guards]

    owners = replaced.owners

    def execute(prepared: Prepared, values: list[Any]) -> list[Buffer]:
        scalars = constants
        if numbers:
            scalars = constants.copy()
            for i, number, entry in numbers:
                scalars[i] = values[number][entry]
        buffers, targets, promise = prepared

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
            if promise.buffers is not None:
                for owner in owners:
                    owner._gradient = promise
            else:  # another thread has asked for one meanwhile
                for i, output, tensors in replaced.outputs:
                    for owner in tensors:
                        owner._gradient = tensor_of(results[i], output)
            for i, owner, output in given:
                owner._gradient = tensor_of(results[i], output)
            if last:
                _COUNTS["captured_calls"] += 1  # changes under the lock of running programs only

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
