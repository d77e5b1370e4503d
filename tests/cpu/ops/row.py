"""What the op test table says of one op."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from minitorch_tvm.core import dtype as dt
from minitorch_tvm.ir.op import Op, Spec, intern

Array = np.ndarray[Any, Any]
Shapes = tuple[tuple[int, ...], ...]
FLOATS = ("float32", "float64")
NUMBERS = ("float32", "float64", "int32", "int64", "uint8")
EVERY = (*NUMBERS, "bool")


@dataclass(frozen=True)
class Bad:
    """Operands that the op must refuse, how, and in which words."""

    op: Op
    specs: tuple[str, ...]
    error: type[Exception]
    message: str

    def parsed(self) -> list[Spec]:
        """``"float32 2 3"`` is a 2x3 float32."""
        out = []
        for text in self.specs:
            name, *sizes = text.split()
            out.append(Spec(tuple(map(int, sizes)), dt.by_name(name)))
        return out


@dataclass(frozen=True)
class Row:
    """One op: sample inputs, an independent oracle, and what is refused.

    ``inputs`` names what each operand holds: "n" the dtype under test, "b" bool, "u" uint32,
    "w" int64 below ``below``; a single letter stands for all operands.  The oracle gets float64
    (or int64, or bool) arrays; its result is cast to ``result`` (None: the dtype under test).
    """

    cls: type[Op]
    oracle: Callable[..., Any]
    cases: tuple[tuple[Op, Shapes], ...]
    inputs: str = "n"
    dtypes: tuple[str, ...] = FLOATS
    low: float = -2.0
    high: float = 2.0
    below: int = 4
    result: str | None = None
    grad: tuple[int, ...] = ()  # operands that receive a gradient
    flat: bool = False  # the gradient is zero, and there is no second one
    symmetric: bool = False  # the gradient is that by a matrix which stays so
    specials: tuple[tuple[Op, tuple[list[float], ...]], ...] = ()
    bad: tuple[Bad, ...] = ()

    def sample(self, rng: np.random.Generator, shapes: Shapes, dtype: str) -> list[Array]:
        """Operands of one case."""
        kinds = self.inputs * len(shapes) if len(self.inputs) == 1 else self.inputs
        return [self._one(rng, k, s, dtype) for k, s in zip(kinds, shapes, strict=True)]

    def _one(
        self, rng: np.random.Generator, kind: str, shape: tuple[int, ...], dtype: str
    ) -> Array:
        if kind == "u":
            return rng.integers(0, 1 << 32, shape, np.uint32)
        if kind == "w":
            return rng.integers(0, self.below, shape, np.int64)
        if kind == "b" or dtype == "bool":
            return np.asarray(rng.random(shape) < 0.5)
        if dtype.startswith("float"):
            return np.asarray(rng.uniform(self.low, self.high, shape)).astype(dtype)
        return rng.integers(0 if dtype[0] == "u" else -5, 9, shape).astype(dtype)

    def expected(self, op: Op, args: list[Array], dtype: str) -> Array:
        """The oracle's answer in the dtype that the op must return."""
        wide = [a.astype({"f": "float64", "b": "bool"}.get(a.dtype.kind, "int64")) for a in args]
        with np.errstate(all="ignore"):
            value = np.asarray(self.oracle(op, *wide))
            target = self.result or dtype
            if target == "attribute":
                target = op.dtype.name  # type: ignore[attr-defined]
            return value.astype(target)


def ops(op: Op, *shapes: Shapes) -> tuple[tuple[Op, Shapes], ...]:
    """Several shapes of one op."""
    one = intern(op)
    return tuple((one, s) for s in shapes)


ONE: tuple[Shapes, ...] = (((7,),), ((2, 3),), ((),), ((0, 4),), ((1, 1),), ((13, 17),))
TWO: tuple[Shapes, ...] = (
    ((2, 3), (2, 3)),
    ((2, 3), (3,)),
    ((2, 1), (1, 3)),
    ((), (5,)),
    ((7, 11), (1,)),
    ((0, 3), (3,)),
    ((1,), (1, 1)),
)
