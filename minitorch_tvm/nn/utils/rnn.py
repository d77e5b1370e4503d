"""Sequences of different lengths, padded or packed: all first steps, then all second ones, ..."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...core.arguments import flag, kind_of, number
from ...core.dtype import bool_, int64
from ...ir.node import MODE, Node
from ...ops import build as b
from ...ops import derived as d
from ...ops.gather import take
from ...tensor import Tensor
from ...tensor.core import leaf_of, node_of
from ...tensor.creation import tensor
from ...tensor.functions import stack


class _Packed(NamedTuple):
    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


class PackedSequence(_Packed):
    """What :func:`pack_padded_sequence` and :func:`pack_sequence` make, and recurrent layers take.

    ``data`` [sum of lengths, ...] holds the steps of sequences that are sorted by length, the
    longest first: all first steps, then all second ones; ``batch_sizes`` tells how many sequences
    have each.  ``sorted_indices`` tell which sequence of the caller's each is, None if they were
    sorted.
    """

    __slots__ = ()

    def __new__(
        cls,
        data: Tensor,
        batch_sizes: Tensor | None = None,
        sorted_indices: Tensor | None = None,
        unsorted_indices: Tensor | None = None,
    ) -> PackedSequence:
        if batch_sizes is None:
            if not isinstance(data, (list, tuple)) or len(data) != 2:
                raise AssertionError("Expected data to be a list or tuple of length 2")
            data, batch_sizes = data
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def _with(self, data: Tensor) -> PackedSequence:
        return self if data is self.data else type(self)(data, *self[1:])

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """With ``data.to(...)``."""
        return self._with(self.data.to(*args, **kwargs))

    def cpu(self) -> PackedSequence:
        """This: there is only the CPU."""
        return self

    def cuda(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """Raises AssertionError: there is only the CPU."""
        return self._with(self.data.cuda(*args, **kwargs))

    def double(self) -> PackedSequence:
        """With float64 data."""
        return self._with(self.data.double())

    def float(self) -> PackedSequence:
        """With float32 data."""
        return self._with(self.data.float())

    def long(self) -> PackedSequence:
        """With int64 data."""
        return self._with(self.data.long())

    def int(self) -> PackedSequence:
        """With int32 data."""
        return self._with(self.data.int())

    def byte(self) -> PackedSequence:
        """With uint8 data."""
        return self._with(self.data.byte())

    def pin_memory(self) -> PackedSequence:
        """This: there is only the CPU."""
        return self

    def is_pinned(self) -> bool:
        """False."""
        return False

    @property
    def is_cuda(self) -> bool:
        """False."""
        return False


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """Where each number is in a permutation of them (evaluates); None of None.

    >>> import minitorch_tvm as mt
    >>> mt.nn.utils.rnn.invert_permutation(mt.tensor([2, 0, 1]))
    tensor([1, 2, 0])
    """
    if permutation is None:
        return None
    return tensor(np.argsort(permutation.detach().numpy()), dtype=int64)


def _at(rows: Node, positions: np.ndarray[Any, Any]) -> Node:
    """Rows, at positions that are in range and whose dimensions replace the first."""
    return take(rows, leaf_of(positions, int64), 0)


class Layout:
    """Where the steps of packed sequences are: row of the data, step and sequence of each."""

    def __init__(self, batch_sizes: Tensor) -> None:
        sizes = batch_sizes.detach().numpy()
        self.steps, self.batch = len(sizes), int(sizes[0])
        mask = np.arange(self.batch) < sizes[:, None]
        self.lengths = mask.sum(0)
        self._time, self._sequence = mask.nonzero()
        self.rows = len(self._time)

    def _places(self, backwards: bool) -> np.ndarray[Any, Any]:
        """Of each row in a padded [steps * batch]; ``backwards`` begins with the last step."""
        time = self._time
        if backwards:
            time = self.lengths[self._sequence] - 1 - time
        return time * self.batch + self._sequence

    def positions(self, steps: int, backwards: bool = False) -> np.ndarray[Any, Any]:
        """[steps, batch]: the row of what is there; behind the ends, the number of rows."""
        found = np.full(steps * self.batch, self.rows)
        found[self._places(backwards)] = np.arange(self.rows)
        return found.reshape(steps, self.batch)

    def padded(self, rows: Node, padding: Node, backwards: bool = False) -> Node:
        """[rows, ...] as [steps, batch, ...], with ``padding`` [1, ...] where nothing is."""
        return _at(b.cat([rows, padding], 0), self.positions(self.steps, backwards))

    def packed(self, x: Node, backwards: bool = False) -> Node:
        """The inverse of :meth:`padded`."""
        return _at(self._flat(x), self._places(backwards))

    def last(self, x: Node) -> Node:
        """Of a padded value, the last step of each sequence: [batch, ...]."""
        return _at(self._flat(x), (self.lengths - 1) * self.batch + np.arange(self.batch))

    def _flat(self, x: Node) -> Node:
        return b.reshape(x, (self.steps * self.batch, *x.shape[2:]))


def pack_padded_sequence(
    input: Tensor,
    lengths: Tensor | Sequence[int],
    batch_first: bool = False,
    enforce_sorted: bool = True,
) -> PackedSequence:
    """Pack ``input`` [steps, batch, ...], or [batch, steps, ...], up to the ``lengths``.

    With ``enforce_sorted`` lengths must not increase; without, sequences are sorted.  Lengths in a
    tensor are evaluated: they decide how long the result is.  Raises RuntimeError for lengths that
    are not sorted, below 1 or beyond the input, and for another number of them than of sequences.

    >>> import minitorch_tvm as mt
    >>> x = mt.tensor([[1, 4], [2, 5], [3, 0]])
    >>> mt.nn.utils.rnn.pack_padded_sequence(x, [3, 2])
    PackedSequence(data=tensor([1, 4, 2, 5, 3]), batch_sizes=tensor([2, 2, 1]), \
sorted_indices=None, unsorted_indices=None)
    """
    x = node_of("_pack_padded_sequence", "input", 1, input)
    flag("_pack_padded_sequence", "batch_first", 3, batch_first)
    given = lengths.tolist() if isinstance(lengths, Tensor) else lengths
    long = np.array([int(n) for n in given], np.int64)
    batch, steps = input.shape[:2] if batch_first else input.shape[1::-1]
    order = None
    if not enforce_sorted:
        order = np.argsort(-long, kind="stable")
        long = long[order]
    if not input.numel():
        raise RuntimeError("Cannot pack empty tensors.")
    if len(long) != batch:
        raise RuntimeError(
            f"Expected `len(lengths)` to be equal to batch_size, but got {len(long)} "
            f"(batch_size={batch})"
        )
    if (long[1:] > long[:-1]).any():
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You "
            "can pass `enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to "
            "sidestep this requirement if you do not need ONNX exportability."
        )
    if long[-1] <= 0:
        raise RuntimeError(
            "Length of all samples has to be greater than 0, but found an element in 'lengths' "
            "that is <= 0"
        )
    if long[0] > steps:
        raise RuntimeError(
            f"Expected `lengths` to be at most {steps}, the length of the padded sequences, but "
            f"got {long[0]}"
        )
    mask = np.arange(long[0])[:, None] < long
    time, sequence = mask.nonzero()
    if order is not None:
        sequence = order[sequence]
    positions = sequence * steps + time if batch_first else time * batch + sequence
    data = _at(b.reshape(x, (steps * batch, *x.shape[2:])), positions)
    sizes = tensor(mask.sum(1), dtype=int64)
    return PackedSequence(
        Tensor._wrap(data), sizes, None if order is None else tensor(order, dtype=int64)
    )


def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """(sequences [steps, batch, ...], or [batch, steps, ...], and their lengths): unpack.

    Shorter ones end in ``padding_value``, and all in so much of it that they have
    ``total_length``; ValueError if one is longer.

    >>> import minitorch_tvm as mt
    >>> rnn = mt.nn.utils.rnn
    >>> packed = rnn.pack_sequence([mt.tensor([1, 2]), mt.tensor([3])])
    >>> rnn.pad_packed_sequence(packed, batch_first=True)
    (tensor([[1, 2],
            [3, 0]]), tensor([2, 1]))
    """
    layout = Layout(sequence.batch_sizes)
    steps = layout.steps
    if total_length is not None:
        if total_length < steps:
            raise ValueError(
                "Expected total_length to be at least the length of the longest sequence in input, "
                f"but got total_length={total_length} and max sequence length being {steps}"
            )
        steps = total_length
    order = np.arange(layout.batch)
    if sequence.unsorted_indices is not None:
        order = sequence.unsorted_indices.detach().numpy()
    positions = layout.positions(steps)[:, order]
    if batch_first:
        positions = positions.T
    data = sequence.data.node
    padding = b.full((1, *data.shape[1:]), padding_value, data.dtype)
    padded = _at(b.cat([data, padding], 0), positions)
    return Tensor._wrap(padded), tensor(layout.lengths[order], dtype=int64)


def pad_sequence(
    sequences: Tensor | Iterable[Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Tensors of different lengths as one, [steps, batch, ...] or [batch, steps, ...].

    Tensors that have their values and need no gradient are data: they are copied at once, so that
    what reads them is one program, whatever their lengths.

    >>> import minitorch_tvm as mt
    >>> mt.nn.utils.rnn.pad_sequence([mt.ones(1), mt.ones(3)], batch_first=True)
    tensor([[1., 0., 0.],
            [1., 1., 1.]])
    """
    if not isinstance(sequences, (Tensor, Iterable)):
        raise RuntimeError(
            "pad_sequence: Expected iterable for input sequences, but got arg of type: "
            f"{type(sequences)}"
        )
    if padding_side not in ("left", "right"):
        raise RuntimeError(
            f"Expected padding_side to be one of left or right, but got {padding_side}."
        )
    given = list(sequences)
    if not given:
        raise RuntimeError("received an empty list of sequences")
    for place, s in enumerate(given):
        if not isinstance(s, Tensor):
            kind = kind_of(s)
            raise TypeError(f"expected Tensor as element {place} in argument 0, but got {kind}")
    flag("pad_sequence", "batch_first", 2, batch_first)
    steps = max(len(s) for s in given)
    padding_value = number("pad_sequence", "padding_value", 3, padding_value, "float")
    kind = given[0].dtype
    if not d.fits(padding_value, kind):
        raise RuntimeError(f"value cannot be converted to type {kind.name} without overflow")
    if not kind.is_floating_point:
        padding_value = bool(padding_value) if kind is bool_ else int(padding_value)
    if _are_data(given):
        return tensor(_padded(given, steps, batch_first, padding_value, padding_side == "right"))
    filled = []
    for s in given:
        missing = steps - len(s)
        if missing:
            padding = b.full((missing, *s.shape[1:]), padding_value, s.dtype)
            parts = [s.node, padding] if padding_side == "right" else [padding, s.node]
            s = Tensor._wrap(b.cat(parts, 0))
        filled.append(s)
    return stack(filled, 0 if batch_first else 1)


def _are_data(given: Sequence[Tensor]) -> bool:
    """Whether to copy tensors that fit together, by numpy, instead of recording that."""
    first = given[0].node
    return (
        MODE.trace.capture is None
        and not any(s.node.pending or s.requires_grad for s in given)
        and all(s.dtype is first.dtype and s.shape[1:] == first.shape[1:] for s in given)
    )


def _padded(
    given: Sequence[Tensor], steps: int, batch_first: bool, value: float, right: bool
) -> np.ndarray[Any, Any]:
    first = given[0].node
    shape = len(given), steps, *first.shape[1:]
    out = np.full(shape, value, first.dtype.numpy)
    for row, s in zip(out, given, strict=True):
        start = 0 if right else steps - len(s)
        row[start : start + len(s)] = s.numpy()
    return out if batch_first else out.swapaxes(0, 1)


def unpad_sequence(
    padded_sequences: Tensor, lengths: Tensor, batch_first: bool = False
) -> list[Tensor]:
    """The sequences of a padded tensor, without what is behind their ``lengths`` (evaluates)."""
    whole = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    return [s[: int(n)] for s, n in zip(whole, lengths.tolist(), strict=True)]


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Pack tensors [length, ...], see :func:`pack_padded_sequence`.

    >>> import minitorch_tvm as mt
    >>> packed = mt.nn.utils.rnn.pack_sequence([mt.ones(3, 2), mt.zeros(1, 2)])
    >>> packed.data.shape, packed.batch_sizes
    (torch.Size([4, 2]), tensor([2, 1, 1]))
    """
    lengths = [len(s) for s in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences that were packed."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)
