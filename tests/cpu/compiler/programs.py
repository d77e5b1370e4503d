"""Random programs over the Tensor API: how to draw one, how to run it, how to compare results.

A program is plain data (arrays and steps that name earlier values by number), so that hypothesis
can shrink it and the same program can run under different settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import minitorch_tvm as mt
from minitorch_tvm.nn import functional as F
from minitorch_tvm.tensor import Tensor

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
SIZES = (1, 2, 3, 5, 8, 17, 33)
_LARGEST = 6000  # elements of one value


@dataclass(frozen=True)
class Step:
    """values.append(STEPS[name](*[values[i] for i in args], *attributes))"""

    name: str
    args: tuple[int, ...]
    attributes: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Program:
    """Shapes of the inputs, the steps, which values are results, and what is trained."""

    inputs: tuple[Shape, ...]
    seed: int
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    grads: tuple[int, ...]  # inputs that get a gradient of the sum of all results
    updates: tuple[int, ...]  # those of them that are updated in place, twice
    special: bool = False  # inputs contain NaN and infinities

    def arrays(self, dtype: str) -> list[Array]:
        """The inputs, the same numbers in every dtype up to rounding."""
        rng = np.random.default_rng(self.seed)
        out = []
        for shape in self.inputs:
            x = np.asarray(rng.standard_normal(shape).astype("float32")).astype(dtype)
            if self.special and x.size:
                flat = x.reshape(-1)
                for value in (np.nan, np.inf, -np.inf, -0.0):
                    flat[rng.integers(x.size)] = value
            out.append(x)
        return out


UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": lambda x: x.clamp(-3.0, 3.0).exp(),
    "log": lambda x: (x.abs() + 0.5).log(),
    "sqrt": lambda x: (x.abs() + 0.25).sqrt(),
    "tanh": lambda x: x.tanh(),
    "sigmoid": lambda x: x.sigmoid(),
    "relu": lambda x: x.relu(),
    "neg": lambda x: -x,
    "abs": lambda x: x.abs(),
    "sin": lambda x: x.sin(),
    "half": lambda x: x * 0.5,
    "shift": lambda x: x + 1.25,
    "fourth": lambda x: x / 4,
    "reciprocal": lambda x: 1.0 / (x * x + 1.0),
    "mask": lambda x: (x > 0.1) * x,
    "keep": lambda x: mt.where(x < 0.3, x, -x * 0.5),
    "power": lambda x: (x.abs() + 0.5) ** 1.5,
    "integer": lambda x: x.clamp(-9.0, 9.0).where(x == x, 0.0).int().to(x.dtype),
    "detach": lambda x: x.detach() * x,
    "double": lambda x: (x.double() * 0.75).to(x.dtype),
}
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b * 0.5,
    "div": lambda a, b: a / (b.abs() + 0.5),
    "maximum": lambda a, b: a.maximum(b),
    "minimum": lambda a, b: a.minimum(b),
    "where": lambda a, b: mt.where(a < b, a, b * 0.5),
    "compare": lambda a, b: ((a <= b) & (a != b)).to(a.dtype),
}
REDUCE: dict[str, Callable[[Tensor, Any, bool], Tensor]] = {
    "sum": lambda x, d, k: x.sum(d, keepdim=k) * 0.25,
    "mean": lambda x, d, k: x.mean(d, keepdim=k),
    "amax": lambda x, d, k: x.amax(d, keepdim=k),
    "amin": lambda x, d, k: x.amin(d, keepdim=k),
    "var": lambda x, d, k: x.var(d, correction=0, keepdim=k),
}


def _labels(rows: int, classes: int) -> Tensor:
    return mt.tensor(np.arange(rows) % classes)


STEPS: dict[str, Callable[..., Tensor]] = {
    **UNARY,
    **BINARY,
    **REDUCE,
    "argmax": lambda x, d, k: x.argmax(d, keepdim=k).to(x.dtype) * 0.1,
    # A value of a row, broadcast back over the row it comes from (or, "other", over another's).
    "rowwise": lambda x, y, b, r, d: BINARY[b](x, REDUCE[r](y, d, True)),
    "label": lambda x: F.cross_entropy(x, _labels(*x.shape), reduction="none"),
    "softmax": lambda x, d: x.softmax(d),
    "log_softmax": lambda x, d: x.log_softmax(d),
    "reshape": lambda x, s: x.reshape(s),
    "permute": lambda x, d: x.permute(d),
    "expand": lambda x, s: x.expand(s),
    "slice": lambda x, key: x[key],
    "unsqueeze": lambda x, d: x.unsqueeze(d),
    "squeeze": lambda x: x.squeeze(),
    "cat": lambda a, b, d: mt.cat([a, b, a], d),
    "stack": lambda a, b: mt.stack([a, b], 0),
    "insert": lambda x, y, key: _written(x, y, key),
    "matmul": lambda a, b: a @ b * 0.25,
    "matmul_t": lambda a, b: a @ b.transpose(-1, -2) * 0.25,
    "t_matmul": lambda a, b: a.transpose(-1, -2) @ b * 0.25,
    "conv": lambda x, w, s, p: F.conv2d(x, w, stride=s, padding=p) * 0.25,
    "max_pool": lambda x, k, s, p: F.max_pool2d(x, k, s, p),
    "avg_pool": lambda x, k, s, p: F.avg_pool2d(x, k, s, p),
}


def _written(x: Tensor, y: Tensor, key: Any) -> Tensor:
    out = x * 1.0
    out[key] = y
    return out


def _broadcastable(a: Shape, b: Shape) -> Shape | None:
    try:
        return tuple(np.broadcast_shapes(a, b))
    except ValueError:
        return None


class _Draft:
    """A program under construction: tracks shapes."""

    def __init__(self, draw: Callable[[Any], Any], kinds: tuple[str, ...]) -> None:
        self.draw = draw
        self.kinds = kinds
        self.inputs: list[Shape] = []
        self.shapes: list[Shape] = []
        self.steps: list[Step] = []

    def pick(self, options: Any) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def number(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def new_input(self, shape: Shape) -> int:
        assert not self.steps
        self.inputs.append(shape)
        self.shapes.append(shape)
        return len(self.shapes) - 1

    def any_value(self) -> int:
        # Recent values more often: chains are where fusion happens.
        n = len(self.shapes)
        return n - 1 - min(self.number(0, n - 1), self.number(0, n - 1))

    def add(self, name: str, args: tuple[int, ...], shape: Shape, *attributes: Any) -> bool:
        if int(np.prod(shape, dtype=np.int64)) > _LARGEST or len(shape) > 5:
            return False
        self.steps.append(Step(name, args, attributes))
        self.shapes.append(shape)
        return True

    def step(self) -> None:
        kind = self.pick(self.kinds)
        getattr(self, f"_{kind}")(self.any_value())

    def _unary(self, v: int) -> None:
        self.add(self.pick(UNARY), (v,), self.shapes[v])

    def _binary(self, v: int) -> None:
        fits = [
            i for i, s in enumerate(self.shapes) if _broadcastable(self.shapes[v], s) is not None
        ]
        w = fits[self.number(0, len(fits) - 1)]
        shape = _broadcastable(self.shapes[v], self.shapes[w])
        assert shape is not None
        self.add(self.pick(BINARY), (v, w), shape)

    def _dims(self, v: int) -> tuple[int, ...]:
        rank = len(self.shapes[v])
        return tuple(d for d in range(rank) if self.number(0, 1)) or (rank - 1,)

    def _reduce(self, v: int) -> None:
        shape = self.shapes[v]
        if not shape or 0 in shape:
            return
        dims = self._dims(v)
        keep = bool(self.number(0, 1))
        out = tuple(1 if d in dims else n for d, n in enumerate(shape) if keep or d not in dims)
        if self.number(0, 5) == 0:
            d = dims[0]
            out = tuple(1 if i == d else n for i, n in enumerate(shape) if keep or i != d)
            self.add("argmax", (v,), out, d, keep)
            return
        self.add(self.pick(REDUCE), (v,), out, dims, keep)

    def _rowwise(self, v: int) -> None:
        shape = self.shapes[v]
        if not shape or 0 in shape:
            return
        if len(shape) == 2 and self.number(0, 7) == 0:
            self.add("label", (v,), shape[:1])
            return
        first = self.pick((len(shape) - 1, len(shape) - 1, 0, 1))
        dims = tuple(range(first, len(shape))) or self._dims(v)
        w = self.pick([i for i, s in enumerate(self.shapes) if s == shape])
        self.add("rowwise", (v, w), shape, self.pick(BINARY), self.pick(REDUCE), dims)

    def _softmax(self, v: int) -> None:
        shape = self.shapes[v]
        if shape and 0 not in shape:
            name = self.pick(("softmax", "log_softmax"))
            self.add(name, (v,), shape, self.number(0, len(shape) - 1))

    def _move(self, v: int) -> None:
        shape = self.shapes[v]
        rank = len(shape)
        what = self.pick(("reshape", "permute", "expand", "slice", "unsqueeze", "squeeze"))
        if what == "reshape":
            count = int(np.prod(shape, dtype=np.int64))
            factors = [f for f in (1, 2, 3, 5, 8, 17) if count and count % f == 0]
            f = self.pick(factors or (1,))
            options = [(count,), (f, count // f), (count // f, f), (1, count // f, 1, f)]
            new = self.pick(options)
            self.add("reshape", (v,), new, new)
        elif what == "permute" and rank > 1:
            dims = tuple(self.draw(st.permutations(range(rank))))
            self.add("permute", (v,), tuple(shape[d] for d in dims), dims)
        elif what == "expand":
            new = tuple(self.pick((2, 3, 7)) if n == 1 else n for n in shape)
            if self.number(0, 1):
                new = (self.pick((1, 2)), *new)
            self.add("expand", (v,), new, new)
        elif what == "slice" and rank:
            key, new = [], []
            for n in shape:
                start = self.number(0, max(0, n - 1))
                stop = self.number(start, n)
                step = self.pick((1, 1, 2, 3))
                if self.number(0, 1):
                    start, stop, step = 0, n, 1
                key.append(slice(start, stop, step))
                new.append(len(range(start, stop, step)))
            self.add("slice", (v,), tuple(new), tuple(key))
        elif what == "unsqueeze":
            d = self.number(0, rank)
            self.add("unsqueeze", (v,), (*shape[:d], 1, *shape[d:]), d)
        elif what == "squeeze":
            self.add("squeeze", (v,), tuple(n for n in shape if n != 1))

    def _join(self, v: int) -> None:
        shape = self.shapes[v]
        same = [i for i, s in enumerate(self.shapes) if s == shape]
        w = self.pick(same)
        if not shape or self.number(0, 2) == 0:
            self.add("stack", (v, w), (2, *shape))
            return
        d = self.number(0, len(shape) - 1)
        self.add("cat", (v, w), (*shape[:d], 3 * shape[d], *shape[d + 1 :]), d)

    def _insert(self, v: int) -> None:
        shape = self.shapes[v]
        if not shape or 0 in shape:
            return
        key = []
        for n in shape:
            start = self.number(0, n - 1)
            key.append(slice(start, self.number(start, n), self.pick((1, 1, 2))))
        region = tuple(len(range(k.start, k.stop, k.step)) for k in key)
        fits = [i for i, s in enumerate(self.shapes) if _fits_into(s, region)]
        if fits:
            self.add("insert", (v, self.pick(fits)), shape, tuple(key))

    def _matmul(self, v: int) -> None:
        shape = self.shapes[v]
        if len(shape) < 2 or len(shape) > 3:
            return
        name = self.pick(("matmul", "matmul_t", "t_matmul"))
        for w in range(len(self.shapes) - 1, -1, -1):
            other = self.shapes[w]
            if len(other) not in (2, 3):
                continue
            batch = _broadcastable(shape[:-2], other[:-2])
            m, k = shape[-2:] if name != "t_matmul" else shape[:-3:-1]
            k2, n = other[-2:] if name != "matmul_t" else other[:-3:-1]
            if batch is not None and k == k2 and self.add(name, (v, w), (*batch, m, n)):
                return

    def _conv(self, v: int) -> None:
        shape = self.shapes[v]
        if len(shape) != 4 or 0 in shape:
            return
        if self.number(0, 1):
            k, s = self.pick((1, 2, 3)), self.pick((1, 2))
            p = self.number(0, k // 2)
            out = tuple((n + 2 * p - k) // s + 1 for n in shape[2:])
            if min(out) > 0:
                self.add(self.pick(("max_pool", "avg_pool")), (v,), (*shape[:2], *out), k, s, p)
            return
        for w, weight in enumerate(self.shapes):
            if len(weight) == 4 and weight[1] == shape[1] and 0 not in weight and w != v:
                s, p = self.pick((1, 2)), self.pick((0, 1))
                out = tuple(
                    (n + 2 * p - k) // s + 1 for n, k in zip(shape[2:], weight[2:], strict=True)
                )
                if min(out) > 0:
                    self.add("conv", (v, w), (shape[0], weight[0], *out), s, p)
                    return


def _fits_into(shape: Shape, region: Shape) -> bool:
    return len(shape) <= len(region) and _broadcastable(shape, region) == region


ALL_KINDS = (
    "unary", "unary", "unary", "binary", "binary", "reduce", "reduce", "softmax", "move", "move",
    "join", "insert", "matmul", "conv", "rowwise", "rowwise",
)  # fmt: skip
ROWS = (
    "rowwise", "rowwise", "rowwise", "rowwise", "unary", "unary", "binary", "reduce", "softmax",
    "move",
)  # fmt: skip
POINTWISE = ("unary", "unary", "binary", "binary", "move", "join", "insert")


@st.composite
def programs(draw: Any, kinds: tuple[str, ...] = ALL_KINDS, special: bool = False) -> Program:
    """Programs of up to 14 steps on up to 4 inputs."""
    d = _Draft(draw, kinds)
    family = d.number(0, 3)
    n, m, k = d.pick(SIZES), d.pick(SIZES), d.pick(SIZES)
    if family == 0:  # matrices
        shapes: list[Shape] = [(n, m), (m, k), (k,), (n, 1)]
    elif family == 1:  # batches
        b = d.pick((1, 2, 3))
        shapes = [(b, n, m), (m, m), (b, 1, m), (m,)]
    elif family == 2 and "conv" in kinds:  # images
        c, size = d.pick((1, 2, 3)), d.pick((4, 5, 7))
        shapes = [(d.pick((1, 2)), c, size, size), (d.pick((1, 4)), c, 3, 3), (c, 1, 1), ()]
    elif "rowwise" in kinds:  # rows: shorter than a vector, of a few vectors, with a rest or not
        length = d.pick((3, 7, 8, 16, 17, 31, 40, 64, 70, 130))
        shapes = [(m, length), (length,), (m, 1), (2, m, length)]
    else:
        shapes = [(n, m), (1, m), (), (n, m)]
    for shape in shapes[: d.number(2, 4)]:
        d.new_input(shape)
    for _ in range(d.number(2, 14)):
        d.step()
    values = range(len(d.inputs), len(d.shapes))
    results = {len(d.shapes) - 1, *(v for v in values if d.number(0, 4) == 0)}
    grads = tuple(i for i in range(len(d.inputs)) if not special and d.number(0, 1))
    updates = tuple(i for i in grads if d.number(0, 1))
    return Program(
        tuple(d.inputs),
        d.number(0, 1000),
        tuple(d.steps),
        tuple(sorted(results)),
        grads,
        updates,
        special,
    )


def run(program: Program, dtype: str) -> list[Array]:
    """Record and evaluate under the current settings: results, gradients, updated inputs."""
    leaves = [mt.tensor(a) for a in program.arrays(dtype)]
    for g in program.grads:
        leaves[g].requires_grad_()
    out: list[Tensor] = []
    for _ in range(2 if program.updates else 1):
        for g in program.grads:
            leaves[g].grad = None
        values = list(leaves)
        for step in program.steps:
            values.append(STEPS[step.name](*[values[i] for i in step.args], *step.attributes))
        out = [values[r] for r in program.results]
        total = sum(((v * v).mean() for v in out if v.numel()), mt.zeros((), dtype=leaves[0].dtype))
        if total.requires_grad:
            total.backward()
        with mt.no_grad():
            for u in program.updates:
                if leaves[u].grad is not None:
                    leaves[u].sub_(leaves[u].grad * 0.1)
        mt.eval(*out, *leaves)
    grads = [leaves[g].grad for g in program.grads]
    return [
        t.detach().numpy().copy()
        for t in (*out, *(g for g in grads if g is not None), *(leaves[u] for u in program.updates))
    ]
