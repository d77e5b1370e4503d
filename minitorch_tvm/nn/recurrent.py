"""RNN, LSTM and GRU over sequences, and their single steps."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Sequence
from typing import Any

from ..core.dtype import DType
from ..ir.node import Node
from ..ops import build as b
from ..ops import derived as d
from ..ops import moves as mo
from ..ops import network as net
from ..ops import recurrent as rc
from ..tensor import Tensor
from . import functional as F
from . import init
from .module import Module
from .parameter import Parameter, new_parameter
from .utils.rnn import Layout, PackedSequence

_MODES = {"RNN_TANH": "tanh", "RNN_RELU": "relu", "LSTM": "lstm", "GRU": "gru"}


class RNNBase(Module):
    """What :class:`RNN`, :class:`LSTM` and :class:`GRU` share: parameters, checks, layers."""

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        _check_options(input_size, hidden_size, num_layers, bias, batch_first, dropout)
        if proj_size < 0:
            raise ValueError(
                "proj_size should be a positive integer or zero to disable projections"
            )
        if proj_size >= hidden_size:
            raise ValueError("proj_size has to be smaller than hidden_size")
        self.mode = mode
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        rows = rc.GATES[_MODES[mode]] * hidden_size
        for layer in range(num_layers):
            inputs = input_size if layer == 0 else self._state_size * self._directions
            for suffix in self._suffixes(layer):
                shapes: dict[str, tuple[int, ...]] = {
                    "weight_ih": (rows, inputs),
                    "weight_hh": (rows, self._state_size),
                }
                if bias:
                    shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
                if proj_size:
                    shapes["weight_hr"] = (proj_size, hidden_size)
                for name, shape in shapes.items():
                    setattr(self, name + suffix, new_parameter(shape, device, dtype))
        self.reset_parameters()

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def _state_size(self) -> int:
        return self.proj_size or self.hidden_size

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"][: self._directions]

    def _weights(self, suffix: str) -> list[Parameter]:
        return [getattr(self, name) for name in self._names(suffix)]

    def _names(self, suffix: str) -> list[str]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")[: 4 if self.bias else 2]
        if self.proj_size:
            names += ("weight_hr",)
        return [name + suffix for name in names]

    @property
    def _all_weights(self) -> list[list[str]]:
        """Names of the parameters of every layer and direction; PyTorch's programs ask for it."""
        layers = range(self.num_layers)
        return [self._names(s) for layer in layers for s in self._suffixes(layer)]

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters of every layer and direction."""
        layers = range(self.num_layers)
        return [self._weights(s) for layer in layers for s in self._suffixes(layer)]

    def reset_parameters(self) -> None:
        """Draw all parameters from U(-1 / sqrt(hidden_size), 1 / sqrt(hidden_size))."""
        _draw(self, self.hidden_size)

    def flatten_parameters(self) -> None:
        """Nothing: parameters need no special place in memory here."""

    def _check_input(self, input: Any) -> None:
        name = self._get_name()
        if not isinstance(input, Tensor):
            raise TypeError(
                f"{name} expects a Tensor or a PackedSequence, but got {type(input).__name__}"
            )
        if input.ndim not in (2, 3):
            found = f"{input.ndim}D tensor" if name == "RNN" else f"{input.ndim}D"
            raise ValueError(f"{name}: Expected input to be 2D or 3D, got {found} instead")
        self._check_features(input)

    def _check_features(self, input: Tensor) -> None:
        kind = self._weights("_l0")[0].dtype
        if input.dtype is not kind:
            raise ValueError(
                f"RNN input dtype ({input.dtype}) does not match weight dtype ({kind}). Convert "
                f"input: input.to({kind}), or convert model: model.to({input.dtype})"
            )
        if input.shape[-1] != self.input_size:
            raise RuntimeError(
                "input.size(-1) must be equal to input_size. Expected "
                f"{self.input_size}, got {input.shape[-1]}"
            )

    def _check_states(self, states: Sequence[Tensor], batch: int, batched: bool) -> None:
        for number, state in enumerate(states):
            size = self.hidden_size if number else self._state_size
            wanted = (self.num_layers * self._directions, batch, size)
            place = f"[{number}]" if len(states) > 1 else ""
            shape = tuple(state.shape) if batched else (state.shape[0], 1, *state.shape[1:])
            if shape != wanted:
                what = f"Expected hidden{place} size" if place else "Expected hidden size"
                raise RuntimeError(f"{what} {wanted}, got {list(shape)}")

    def _run(self, input: Tensor, states: Sequence[Tensor] | None) -> tuple[Tensor, list[Tensor]]:
        """(output, final states), from a checked input and states of its rank."""
        self._check_input(input)
        batched = input.ndim == 3
        x = input.node
        if not batched:
            x = b.reshape(x, (x.shape[0], 1, x.shape[1]))
        elif self.batch_first:
            x = b.permute(x, (1, 0, 2))
        steps, n = x.shape[:2]
        if not steps:
            raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
        count = self.num_layers * self._directions
        if states is None:
            given = self._zeros(n, x.dtype)
        else:
            self._check_states(states, n, batched)
            given = [b.reshape(s.node, (count, n, s.shape[-1])) for s in states]
        x, finals = self._layers(x, given, None)
        if not batched:
            x = b.reshape(x, (steps, x.shape[2]))
            finals = [b.reshape(f, (count, f.shape[2])) for f in finals]
        elif self.batch_first:
            x = b.permute(x, (1, 0, 2))
        return Tensor._wrap(x), [Tensor._wrap(f) for f in finals]

    def _zeros(self, batch: int, dtype: DType) -> list[Node]:
        sizes = (self._state_size, self.hidden_size)[: 2 if self.mode == "LSTM" else 1]
        count = self.num_layers * self._directions
        return [b.full((count, batch, size), 0.0, dtype) for size in sizes]

    def _layers(self, x: Node, given: list[Node], layout: Layout | None) -> tuple[Node, list[Node]]:
        """(states of the last layer, final ones of all) for sequences [t, n, ...], or packed."""
        cell, last = _MODES[self.mode], list[list[Node]]()
        for layer in range(self.num_layers):
            if layer and self.dropout and self.training:
                x = F.dropout(Tensor._wrap(x), self.dropout).node
            outputs = []
            for way, suffix in enumerate(self._suffixes(layer)):
                own = [rc.row(s, layer * self._directions + way) for s in given]
                weights = [p.node for p in self._weights(suffix)]
                projection = weights.pop() if self.proj_size else None
                y, after = _sequence(cell, way == 1, x, weights, projection, own, layout)
                outputs.append(y)
                last.append(after)
            x = outputs[0] if len(outputs) == 1 else b.cat(outputs, len(x.shape) - 1)
        return x, [mo.stack([after[i] for after in last]) for i in range(len(given))]

    def _run_packed(
        self, input: PackedSequence, states: Sequence[Tensor] | None
    ) -> tuple[PackedSequence, list[Tensor]]:
        """As :meth:`_run`, for sequences of different lengths."""
        data, sizes, order, back = input
        if data.ndim != 2:
            raise RuntimeError(f"input must have 2 dimensions, got {data.ndim}")
        self._check_features(data)
        layout = Layout(sizes)
        if states is None:
            given = self._zeros(layout.batch, data.dtype)
        else:
            self._check_states(states, layout.batch, True)
            given = [(s if order is None else s.index_select(1, order)).node for s in states]
        x, finals = self._layers(data.node, given, layout)
        after = [Tensor._wrap(f) for f in finals]
        if back is not None:
            after = [f.index_select(1, back) for f in after]
        return PackedSequence(Tensor._wrap(x), sizes, order, back), after

    def _single(self, input: Any, hx: Tensor | None) -> tuple[Any, Tensor]:
        """What the layers of one state do."""
        if isinstance(input, PackedSequence):
            packed, (final,) = self._run_packed(input, None if hx is None else [hx])
            return packed, final
        self._check_input(input)
        if hx is not None and hx.ndim != input.ndim:
            batch = "batched 3-D" if input.ndim == 3 else "unbatched 2-D"
            raise RuntimeError(
                f"For {batch} input, hx should also be {input.ndim}-D but got {hx.ndim}-D tensor"
            )
        y, (final,) = self._run(input, None if hx is None else [hx])
        return y, final

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        for name, usual in (
            ("proj_size", 0),
            ("num_layers", 1),
            ("bias", True),
            ("batch_first", False),
            ("dropout", 0.0),
            ("bidirectional", False),
        ):
            value = getattr(self, name)
            if value != usual:
                text += f", {name}={value}"
        return text


def _check_options(
    input_size: Any, hidden_size: Any, num_layers: int, bias: Any, batch_first: Any, dropout: Any
) -> None:
    for name, value in (("bias", bias), ("batch_first", batch_first)):
        if not isinstance(value, bool):
            raise TypeError(f"{name} should be of type bool, got: {type(value).__name__}")
    if (
        not isinstance(dropout, numbers.Number)
        or isinstance(dropout, bool)
        or not 0 <= dropout <= 1  # type: ignore[operator]
    ):
        raise ValueError(
            "dropout should be a number in range [0, 1] representing the probability of an element "
            "being zeroed"
        )
    if dropout > 0 and num_layers == 1:  # type: ignore[operator]
        warnings.warn(
            "dropout option adds dropout after all but last recurrent layer, so non-zero dropout "
            f"expects num_layers greater than 1, but got dropout={dropout} and "
            f"num_layers={num_layers}",
            stacklevel=4,
        )
    sizes = {"input_size": input_size, "hidden_size": hidden_size}
    for name, value in sizes.items():
        if not isinstance(value, int):
            raise TypeError(f"{name} should be of type int, got: {type(value).__name__}")
    for name, value in sizes.items():
        if value <= 0:
            raise ValueError(f"{name} must be greater than zero")
    if num_layers <= 0:
        raise ValueError("num_layers must be greater than zero")


def _draw(module: Module, hidden_size: int) -> None:
    bound = 1.0 / math.sqrt(hidden_size) if hidden_size > 0 else 0.0
    for p in module.parameters():
        init.uniform_(p, -bound, bound)


def _sequence(
    cell: str,
    reverse: bool,
    x: Node,
    weights: Sequence[Node],
    projection: Node | None,
    state: list[Node],
    layout: Layout | None,
) -> tuple[Node, list[Node]]:
    """(states [t, n, h], those after the last step) of one layer in one direction.

    With a ``layout`` x and the states are packed; those after the last step are each sequence's.
    """
    w, own, *biases = weights
    if cell == "gru":  # whose biases of the states are multiplied by a gate
        sums = net.linear(x, w, biases[0] if biases else None)
        state = [*state, biases[1] if biases else b.full((own.shape[0],), 0.0, own.dtype)]
    else:
        sums = net.linear(x, w, d.add(*biases) if biases else None)
    if layout is None:
        return _states(cell, reverse, sums, own, state, projection)
    gate = (1, own.shape[0] // rc.GATES[cell])
    padding = b.cat([b.full(gate, value, x.dtype) for value in rc.IDLE[cell]], 1)
    # Backwards is forwards from each sequence's end, so that padding always comes last.
    padded = layout.padded(sums, padding, reverse)
    y, after = _states(cell, False, padded, own, state, projection)
    return layout.packed(y, reverse), [layout.last(y), *after[1:]]


def _states(
    cell: str, reverse: bool, sums: Node, own: Node, state: list[Node], projection: Node | None
) -> tuple[Node, list[Node]]:
    if projection is None:
        return rc.recurrence(cell, reverse, sums, own, *state)
    h, c = state
    return rc.projected(reverse, sums, own, h, c, projection)


class RNN(RNNBase):
    """h' = tanh(x W_ih.T + b_ih + h W_hh.T + b_hh) over a sequence (Elman 1990).

    ``nonlinearity`` is "tanh" or "relu".  Inputs are [length, batch, input_size] (with
    ``batch_first`` [batch, length, input_size]), or [length, input_size].  See :class:`LSTM`.

    >>> import minitorch_tvm as mt
    >>> y, h = mt.nn.RNN(3, 4)(mt.zeros(5, 2, 3))
    >>> y.shape, h.shape
    (torch.Size([5, 2, 4]), torch.Size([1, 2, 4]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(
                f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'."
            )
        super().__init__(
            f"RNN_{nonlinearity.upper()}",
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            0,
            device,
            dtype,
        )
        self.nonlinearity = nonlinearity

    def forward(self, input: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        """(output, h_n): all states of the last layer, and the last states of all layers."""
        return self._single(input, hx)


class GRU(RNNBase):
    """Gated recurrent units over a sequence (Cho et al. 2014).

    r and z are logistic functions of x W.T + b + h U.T + c, the candidate is
    n = tanh(x W.T + b + r (h U.T + c)), the new state (1 - z) n + z h; rows of the weights are in
    the order r, z, n.  Options and shapes are those of :class:`LSTM`, with one state.

    >>> import minitorch_tvm as mt
    >>> y, h = mt.nn.GRU(3, 4, bidirectional=True)(mt.zeros(5, 2, 3))
    >>> y.shape, h.shape
    (torch.Size([5, 2, 8]), torch.Size([2, 2, 4]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            "GRU",
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            0,
            device,
            dtype,
        )

    def forward(self, input: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        """(output, h_n): all states of the last layer, and the last states of all layers."""
        return self._single(input, hx)


class LSTM(RNNBase):
    """Long short-term memory over a sequence (Hochreiter, Schmidhuber 1997).

    With i, f, o logistic functions and g the tanh of x W_ih.T + b_ih + h W_hh.T + b_hh (rows in the
    order i, f, g, o): c' = f c + i g and h' = o tanh(c').  ``num_layers`` layers read each other's
    states, with ``dropout`` between them in training; ``bidirectional`` layers also read from the
    end, and join both.  Inputs are [length, batch, input_size] (with ``batch_first`` [batch,
    length, input_size]), or [length, input_size], or an ``nn.utils.rnn.PackedSequence``, for which
    the output is one, too, and the last states are those at each sequence's end.  With
    ``proj_size`` h' is W_hr (o tanh(c')), of that size (Sak, Senior, Beaufays 2014); each step of
    such a layer is recorded.

    >>> import minitorch_tvm as mt
    >>> y, (h, c) = mt.nn.LSTM(3, 4, num_layers=2)(mt.zeros(5, 2, 3))
    >>> y.shape, h.shape, c.shape
    (torch.Size([5, 2, 4]), torch.Size([2, 2, 4]), torch.Size([2, 2, 4]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            "LSTM",
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            proj_size,
            device,
            dtype,
        )

    def forward(
        self, input: Any, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Any, tuple[Tensor, Tensor]]:
        """(output, (h_n, c_n)): all states of the last layer, and the last ones of all layers.

        ``hx`` is (h_0, c_0), zeros by default.
        """
        if isinstance(input, PackedSequence):
            packed, (h, c) = self._run_packed(input, hx)
            return packed, (h, c)
        self._check_input(input)
        if hx is not None and (hx[0].ndim != input.ndim or hx[1].ndim != input.ndim):
            batch = "batched 3-D" if input.ndim == 3 else "unbatched 2-D"
            raise RuntimeError(
                f"For {batch} input, hx and cx should also be {input.ndim}-D but got "
                f"({hx[0].ndim}-D, {hx[1].ndim}-D) tensors"
            )
        y, (h, c) = self._run(input, hx)
        return y, (h, c)


class RNNCellBase(Module):
    """What the single steps share: parameters and checks."""

    weight_ih: Parameter
    weight_hh: Parameter
    bias_ih: Parameter | None
    bias_hh: Parameter | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool,
        num_chunks: int,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        rows = num_chunks * hidden_size
        self.weight_ih = new_parameter((rows, input_size), device, dtype)
        self.weight_hh = new_parameter((rows, hidden_size), device, dtype)
        for name in ("bias_ih", "bias_hh"):
            there = new_parameter((rows,), device, dtype) if bias else None
            self.register_parameter(name, there)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters from U(-1 / sqrt(hidden_size), 1 / sqrt(hidden_size))."""
        _draw(self, self.hidden_size)

    def _given(
        self, input: Tensor, states: Sequence[Tensor] | None, count: int
    ) -> tuple[Node, list[Node]]:
        """Input [n, input_size] and ``count`` states [n, hidden_size]."""
        name = self._get_name()
        if input.ndim not in (1, 2):
            raise ValueError(f"{name}: Expected input to be 1D or 2D, got {input.ndim}D instead")
        x = input.node
        if input.ndim == 1:
            x = b.reshape(x, (1, *x.shape))
        if x.shape[1] != self.input_size:
            raise RuntimeError(
                f"input has inconsistent input_size: got {x.shape[1]} expected {self.input_size}"
            )
        if states is None:
            zeros = b.expand(b.full_like(x, 0.0), (x.shape[0], self.hidden_size))
            return x, [zeros] * count
        nodes = []
        for i, state in enumerate(states):
            h = state.node
            if state.ndim not in (1, 2):
                what = f"hx[{i}]" if count > 1 else "hidden"
                raise ValueError(
                    f"{name}: Expected {what} to be 1D or 2D, got {state.ndim}D instead"
                )
            if state.ndim == 1:
                h = b.reshape(h, (1, *h.shape))
            if h.shape[0] != x.shape[0]:
                raise RuntimeError(
                    f"Input batch size {x.shape[0]} doesn't match hidden{i} batch size {h.shape[0]}"
                )
            if h.shape[1] != self.hidden_size:
                raise RuntimeError(
                    f"hidden{i} has inconsistent hidden_size: got {h.shape[1]}, expected "
                    f"{self.hidden_size}"
                )
            nodes.append(h)
        return x, nodes

    def _products(self, x: Node, h: Node) -> tuple[Node, Node]:
        biases = [None if p is None else p.node for p in (self.bias_ih, self.bias_hh)]
        return (
            net.linear(x, self.weight_ih.node, biases[0]),
            net.linear(h, self.weight_hh.node, biases[1]),
        )

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        if not self.bias:
            text += f", bias={self.bias}"
        return text


def _like(y: Node, input: Tensor) -> Tensor:
    return Tensor._wrap(y if input.ndim == 2 else b.reshape(y, y.shape[1:]))


class RNNCell(RNNCellBase):
    """One step of :class:`RNN`: input [n, input_size] and state [n, hidden_size] (or without n).

    >>> import minitorch_tvm as mt
    >>> mt.nn.RNNCell(3, 4)(mt.zeros(2, 3)).shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """The new state; ``hx`` is zeros by default."""
        x, (h,) = self._given(input, None if hx is None else [hx], 1)
        if self.nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(f"Unknown nonlinearity: {self.nonlinearity}")
        return _like(rc.plain_cell(b.add(*self._products(x, h)), self.nonlinearity), input)

    def extra_repr(self) -> str:
        text = super().extra_repr()
        if self.nonlinearity != "tanh":
            text += f", nonlinearity={self.nonlinearity}"
        return text


class LSTMCell(RNNCellBase):
    """One step of :class:`LSTM`.

    >>> import minitorch_tvm as mt
    >>> h, c = mt.nn.LSTMCell(3, 4)(mt.zeros(2, 3))
    >>> h.shape, c.shape
    (torch.Size([2, 4]), torch.Size([2, 4]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """The new (h, c); ``hx`` is (h, c), zeros by default."""
        x, (h, c) = self._given(input, hx, 2)
        new, cell = rc.lstm_step(b.add(*self._products(x, h)), c)
        return _like(new, input), _like(cell, input)


class GRUCell(RNNCellBase):
    """One step of :class:`GRU`.

    >>> import minitorch_tvm as mt
    >>> mt.nn.GRUCell(3, 4)(mt.zeros(2, 3)).shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """The new state; ``hx`` is zeros by default."""
        x, (h,) = self._given(input, None if hx is None else [hx], 1)
        return _like(rc.gru_step(*self._products(x, h), h), input)
