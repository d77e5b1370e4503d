"""Programs of a watched function run again: flat code over tables made once.

A call of a small function costs little more than what is done here, so whatever was decided when
the function was watched is decided no more: places are sorted by kind, tensors stand in the tables
themselves, and what must still be looked at is looked at once.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence, Set
from sys import getrefcount
from typing import Any, NamedTuple

from . import lazy
from .core.bounds import Bounds
from .core.dtype import DType
from .core.events import EVENTS
from .core.shape import Shape, numel
from .ir.node import leaf
from .ir.tape import Promise
from .plans import Key
from .runtime.executor import count
from .runtime.memory import Buffer
from .runtime.positions import require_inside
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
    """One program: its structure, its executor, and where its inputs and outputs are."""

    key: Key | None
    executor: Any
    inputs: tuple[Place, ...]
    donors: tuple[int, ...]  # per output: position among the inputs, or -1
    scalars: tuple[Place | float, ...]
    outputs: tuple[Output, ...]
    unread: tuple[int, ...] = ()  # of these, what nobody gets
    unstored: tuple[int, ...] = ()  # of these, what has no memory

    def lean(self, wanted: Set[int]) -> Run:
        """The same where only tensors, gradients and those that are ``wanted`` get outputs."""
        unread = tuple(i for i, o in enumerate(self.outputs) if not o.places and i not in wanted)
        if not unread:
            return self
        assert self.key is not None
        executor = lazy.without(self.key, self.executor, unread)
        unstored = executor.program.graph.unread
        return self._replace(executor=executor, unread=unread, unstored=unstored)


class State(NamedTuple):
    """A tensor that outlives the call, as it was when the call was watched."""

    tensor: Tensor
    spec_id: int
    requires_grad: bool


_COUNTS = EVENTS.counts

Made = list[list[Buffer]]
"""The outputs of the runs of a call so far."""
Prepared = tuple[list[Buffer], list[Buffer], list[int] | None, bool, "_Gradients"]
"""Inputs of a run, what it writes, where these are if all inputs are aligned, whether tensors of
the state get new nodes, and what stands for gradients."""
Prepare = Callable[[Sequence[Buffer], Made], Prepared | None]
Step = tuple[Prepare, Callable[[Prepared, list[Any]], list[Buffer]]]

_SMALL = 4096
"""Bytes; results up to that size are kept, to be written over once nobody else has them."""
_SMALL_UNREAD = 1 << 16
"""Bytes; what nobody gets keeps its memory up to that size, and takes some from the pool beyond."""


def _no_program(prepared: Prepared, values: list[Any]) -> list[Buffer]:
    count("captured_calls")
    return []


def steps(
    runs: Sequence[Run],
    state: Sequence[State],
    guards: Sequence[tuple[Place, Bounds]],
    returned: Set[Place],
) -> list[Step]:
    """How to run each program: what prepares it, and what runs it then with an effect's numbers.

    The first of them may find that a tensor is not what it was; it returns None, and nothing has
    been done.  ``guards`` are bounds of positions that runs compute.  The caller is given what is
    ``returned``.
    """
    if not runs:  # but what the function returns may depend on the state
        nothing = Run(None, None, (), (), (), ())
        replaced, turns = _Replaced(nothing, [], set()), _Turns(nothing, [])
        return [(_preparation(nothing, state, replaced, turns, [], every=True), _no_program)]
    found = []
    tensors = [s.tensor for s in state]
    for number, run in enumerate(runs):
        tests = [(p.entry, bounds) for p, bounds in guards if p.number == number]
        spare = _small_results(run)
        results = {
            i
            for i, output in enumerate(run.outputs)
            if Place("run", number, i) in returned or not returned.isdisjoint(output.places)
        }
        replaced = _Replaced(run, tensors, results)
        turns = _Turns(run, tensors)
        prepare = _preparation(run, state, replaced, turns, spare, every=number == 0)
        last = number == len(runs) - 1
        found.append((prepare, _running(run, tensors, replaced, turns, tests, spare, last)))
    return found


_Owned = list[tuple[int, Output, list[Tensor]]]
"""Numbers of outputs, and the tensors that get them as gradients."""


class _Gradients(Promise):
    """Gradients that a program has computed, in memory that it writes again next time.

    Once somebody has asked for one they are tensors, and the memory belongs to these.
    """

    __slots__ = ("_outputs", "addresses", "asked", "targets")

    def __init__(self, outputs: _Owned, targets: list[Any], addresses: list[int]) -> None:
        self._outputs = outputs
        self.targets, self.addresses = targets, addresses
        """Of the run that computes them: what it writes, and where that and its inputs are."""
        self.asked = False

    def settle(self) -> None:
        """Make tensors of them.  (Again, where another thread has handed them over meanwhile.)"""
        self.asked = True
        for number, output, owners in self._outputs:
            for owner in owners:
                if owner._gradient is self:
                    owner._gradient = tensor_of(self.targets[number], output)


class _Replaced:
    """The gradients that a run computes anew, and those of the last time.

    Without those that the caller gets as results: that is another tensor on the same memory.
    Gradients that are dropped in the call nobody gets: they, too, are written where they were.
    """

    def __init__(self, run: Run, tensors: Sequence[Tensor], results: set[int]) -> None:
        self.outputs: _Owned = []
        for i, output in enumerate(run.outputs):
            new = output.places and all(map(_is_new_gradient, output.places))
            if new and run.donors[i] < 0 and i not in results:
                numbers = [p.number for p in output.places]
                self.outputs.append((i, output, [tensors[n] for n in numbers]))
        self.kept = {
            i: Buffer(run.outputs[i].nbytes)
            for i in run.unread
            if run.donors[i] < 0 and run.outputs[i].nbytes <= _SMALL_UNREAD
            if i not in run.unstored
        }
        """What nobody gets is written to the same memory at every call."""
        self.numbers = [*self.kept, *(i for i, _, _ in self.outputs)]
        self._sizes = len(run.inputs), len(run.outputs)
        self.owners = [tensor for _, _, owners in self.outputs for tensor in owners]
        # What a call takes out no other thread finds, too; it is given back with the gradients.
        self._last: deque[weakref.ref[_Gradients]] = deque(maxlen=1)
        self._none = None if self.outputs else self._made()

    def _made(self) -> _Gradients:
        inputs, outputs = self._sizes
        targets: list[Any] = [None] * outputs
        addresses = [0] * (inputs + outputs)
        for i, buffer in self.kept.items():
            targets[i], addresses[inputs + i] = buffer, buffer.address
        for i, output, _ in self.outputs:
            buffer = targets[i] = Buffer(output.nbytes)
            addresses[inputs + i] = buffer.address
        return _Gradients(self.outputs, targets, addresses)

    def again(self) -> _Gradients:
        """What stands for them, with memory."""
        if self._none is not None:
            return self._none
        try:
            found = self._last.pop()()
        except IndexError:
            found = None
        return self._made() if found is None or found.asked else found

    def give(self, promise: _Gradients) -> None:
        """Hand the gradients over."""
        if self._none is None:
            for owner in self.owners:
                owner._gradient = promise
            self._last.append(weakref.ref(promise))


def _is_new_gradient(place: Place) -> bool:
    return place.kind == "gradient" and not place.entry


class _Turns:
    """Tensors of the state that a run changes, but cannot write over: two blocks take turns."""

    def __init__(self, run: Run, tensors: Sequence[Tensor]) -> None:
        self.outputs: list[tuple[int, Tensor]] = []
        self.of_inputs: dict[int, int] = {}
        """By position among the inputs: the output that takes its place."""
        for i, donor in enumerate(run.donors):
            if donor >= 0 and not run.executor.overwrites[i] and _is_update(run, i):
                self.outputs.append((i, tensors[run.inputs[donor].number]))
                self.of_inputs[donor] = i
        self.free: dict[int, Any] = {}
        """Blocks that nobody has, by output."""


def _is_update(run: Run, output: int) -> bool:
    """True if that becomes the value of the tensor that its donor is of, and nothing else."""
    place, *more = run.outputs[output].places or (None,)
    donor = run.donors[output]
    return donor >= 0 and not more and place == run.inputs[donor] and place.kind == "tensor"


def _small_results(run: Run) -> list[tuple[int, deque[Buffer]]]:
    """Numbers of the outputs that nothing but the caller gets, and room for the last two of each:
    one is usually still held while the next is computed."""
    return [
        (i, deque(maxlen=2))
        for i, output in enumerate(run.outputs)
        if not output.places and run.donors[i] < 0 and output.nbytes <= _SMALL
        if i not in run.unread
    ]


def _preparation(
    run: Run,
    state: Sequence[State],
    replaced: _Replaced,
    turns: _Turns,
    results: Sequence[tuple[int, deque[Buffer]]],
    every: bool,
) -> Prepare:
    """``every``: look at all tensors of the state, also at those that this run does not read."""
    inputs = list(enumerate(run.inputs))
    arguments = [(i, p.number) for i, p in inputs if p.kind == "argument"]
    computed = [(i, p.number, p.entry) for i, p in inputs if p.kind == "run"]
    # By position among the inputs: the output that may be written over it.
    taken = {d: o for o, d in enumerate(run.donors) if d >= 0 and run.executor.overwrites[o]}
    kept = [
        (i, *state[p.number], taken.get(i, -1), turns.of_inputs.get(i, -1))
        for i, p in inputs
        if p.kind == "tensor"
    ]
    gradients = [
        (i, state[p.number].tensor, taken.get(i, -1)) for i, p in inputs if p.kind == "gradient"
    ]
    read = {p.number for _, p in inputs if p.kind == "tensor"}
    others = [s for n, s in enumerate(state) if n not in read] if every else []
    views = [s.tensor for n, s in enumerate(state) if s.tensor._base is not None]
    blank: list[Any] = [None] * len(inputs)
    sizes = [output.nbytes for output in run.outputs]
    over = {output for i, output in taken.items() if run.inputs[i].kind in ("tensor", "gradient")}
    over.update(replaced.numbers, turns.of_inputs.values(), (i for i, _ in results))
    over.update(run.unstored)
    fresh = [i for i in range(len(sizes)) if i not in over]
    others_move = any(
        p.kind == "tensor" and not _is_update(run, i)
        for i, output in enumerate(run.outputs)
        for p in output.places
    )
    unused = turns.free
    first = len(inputs)

    def prepare(given: Sequence[Buffer], made: Made) -> Prepared | None:
        for view in views:
            _ = view.node  # now it follows its base
        for tensor, spec_id, requires_grad in others:
            node = tensor._node
            if node.spec_id != spec_id or node.requires_grad != requires_grad or node.pending:
                return None
        for _, tensor, _ in gradients:
            if tensor._grad is None:
                return None
        buffers, promise, aligned, moved = blank.copy(), replaced.again(), True, others_move
        targets, addresses = promise.targets.copy(), promise.addresses.copy()
        for i, number in arguments:
            buffer = buffers[i] = given[number]
            addresses[i] = buffer.address
            aligned = aligned and buffer.aligned
        for i, number, entry in computed:
            buffer = buffers[i] = made[number][entry]
            addresses[i] = buffer.address
        for i, tensor, spec_id, requires_grad, output, turn in kept:
            node = tensor._node
            buffer = buffers[i] = node.buffer
            if node.spec_id != spec_id or node.requires_grad != requires_grad or buffer is None:
                return None
            address = addresses[i] = buffer.address
            if output < 0 and turn < 0:
                aligned = aligned and buffer.aligned
                continue
            # Nobody but the tensor holds its old value.  Known references: the tensor's, the local
            # and getrefcount's; the node's, the list's, the local and getrefcount's.
            if getrefcount(node) <= 3 and getrefcount(buffer) <= 4 and buffer.array is None:
                if output >= 0:
                    targets[output], addresses[first + output] = buffer, address
                    continue
                buffer = unused.pop(turn, None) or Buffer(sizes[turn])
            else:
                moved = True
                aligned = aligned and buffer.aligned
                buffer = Buffer(sizes[max(output, turn)])
            targets[max(output, turn)] = buffer
            addresses[first + max(output, turn)] = buffer.address
        for i, tensor, output in gradients:
            gradient = gradient_of(tensor)
            node = gradient.node if gradient._base is not None else gradient._node
            buffer = buffers[i] = node.buffer
            if buffer is None:
                return None
            addresses[i] = buffer.address
            aligned = aligned and buffer.aligned
            if output >= 0:
                if getrefcount(node) > 3 or getrefcount(buffer) > 4 or buffer.array is not None:
                    buffer = Buffer(sizes[output])
                targets[output], addresses[first + output] = buffer, buffer.address
        for output, before in results:
            buffer = targets[output] = _taken(before) or Buffer(sizes[output])
            addresses[first + output] = buffer.address
        for output in fresh:
            buffer = targets[output] = Buffer(sizes[output])
            addresses[first + output] = buffer.address
        return buffers, targets, addresses if aligned else None, moved, promise

    return prepare


def _running(
    run: Run,
    tensors: Sequence[Tensor],
    replaced: _Replaced,
    turns: _Turns,
    guards: Sequence[tuple[int, Bounds]],
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
    tests = [(bounds, i, run.outputs[i]) for i, bounds in guards]

    changes = [tensor for _, tensor, _ in changed]
    in_turn, unused = turns.outputs, turns.free

    def execute(prepared: Prepared, values: list[Any]) -> list[Buffer]:
        scalars = constants
        if numbers:
            scalars = constants.copy()
            for i, number, entry in numbers:
                scalars[i] = values[number][entry]
        buffers, targets, addresses, moved, promise = prepared

        def hand_over(results: list[Buffer]) -> None:
            """Give tensors and gradients their new values."""
            if moved:
                for i, tensor, output in changed:
                    if results[i] is not tensor._node.buffer:
                        _replace(tensor, results[i], output)
            else:
                for i, tensor in in_turn:
                    node = tensor._node
                    before, node.buffer = node.buffer, results[i]
                    # Known references: the local, getrefcount's, and that of the inputs.
                    if getrefcount(before) <= 3:
                        unused[i] = before
            for tensor in changes:
                tensor._version += 1
            for i, owner, output in accumulated:
                gradient = gradient_of(owner)
                if results[i] is not gradient._node.buffer:
                    _replace(gradient, results[i], output)
                gradient._version += 1
            replaced.give(promise)
            for i, owner, output in given:
                owner._gradient = tensor_of(results[i], output)
            if last:
                _COUNTS["captured_calls"] += 1  # changes under the lock of running programs only

        results: list[Buffer] = executor.run(buffers, scalars, targets, hand_over, addresses)
        for i, kept in spare:
            kept.append(results[i])
        for bounds, i, output in tests:
            require_inside(bounds, results[i], output.shape, output.dtype)
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
    if old.buffer is not None and old.buffer.shared:
        # The user's own array, as PyTorch's from_numpy promises.
        target = old.buffer.numpy(old.shape, old.dtype)
        target[...] = result.numpy(output.shape, output.dtype)
        return
    new = leaf(result, output.shape, output.dtype, output.spec_id)
    if old.grad_leaf:
        tensor._mark_leaf(new, old)
    tensor._node = new
