"""Functions of two 2x3 leaves, differentiated with torch and with this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

nan, inf = float("nan"), float("inf")

POINTS = {
    "plain": ([[1.5, -2.0, 0.0], [3.0, -1.0, -1.0]], [[1.5, 2.0, -0.0], [3.0, 0.5, -3.0]]),
    "nonfinite": ([[nan, -2.0, 2.0], [inf, -1.0, 1.0]], [[1.5, nan, 1.0], [nan, 0.0, -inf]]),
    "ties": ([[1.0, 1.0, 1.0], [0.0, 0.0, 2.0]], [[1.0, 0.0, 1.0], [0.0, 1.0, 2.0]]),
}


def seti(m: Any, x: Any, y: Any) -> Any:
    """Assignment to rows and columns."""
    z = x * 1
    z[0] = y[1]
    z[:, 1] = 5.0
    return z * z


def setv(m: Any, x: Any, y: Any) -> Any:
    """In-place operations on a view, and on a view of it."""
    z = x * 1
    v = z[1]
    v.mul_(y[0])
    v[0:2].add_(1)
    return z * z + v


FUNCTIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "max": lambda m, x, y: x.max(),
    "amax": lambda m, x, y: x.amax(1),
    "maxd": lambda m, x, y: x.max(1).values,
    "mind": lambda m, x, y: x.min(0).values,
    "maximum": lambda m, x, y: m.maximum(x, y),
    "minimum": lambda m, x, y: m.minimum(x, y),
    "clamp": lambda m, x, y: x.clamp(-1, 1),
    "clampT": lambda m, x, y: x.clamp(y, y + 1),
    "clampinv": lambda m, x, y: x.clamp(1, -1),
    "clampinvT": lambda m, x, y: x.clamp(y + 1, y),
    "abs": lambda m, x, y: x.abs(),
    "relu": lambda m, x, y: x.relu(),
    "pow2": lambda m, x, y: x**2,
    "pow0": lambda m, x, y: x**0,
    "pow1": lambda m, x, y: x**1,
    "pow3": lambda m, x, y: x**3,
    "powh": lambda m, x, y: x**0.5,
    "pow-1": lambda m, x, y: x ** (-1),
    "pow2.5": lambda m, x, y: x**2.5,
    "powt": lambda m, x, y: x**y,
    "rpow": lambda m, x, y: 2**x,
    "rpow0": lambda m, x, y: 0**x,
    "div": lambda m, x, y: x / y,
    "sqrt": lambda m, x, y: x.sqrt(),
    "log": lambda m, x, y: x.log(),
    "where": lambda m, x, y: m.where(x > 0, x, y),
    "std": lambda m, x, y: x.std(1),
    "var": lambda m, x, y: x.var(),
    "var1": lambda m, x, y: x[0, 0].var(),
    "softmax": lambda m, x, y: x.softmax(1),
    "lsm": lambda m, x, y: x.log_softmax(0),
    "mf": lambda m, x, y: x.masked_fill(x > 0, 3.0),
    "sigmoid": lambda m, x, y: (x * 300).sigmoid(),
    "tanh": lambda m, x, y: (x * 300).tanh(),
    "mean": lambda m, x, y: x.mean((0, 1)),
    "maxT": lambda m, x, y: x.max(y),
    "cat": lambda m, x, y: m.cat([x, y, x]),
    "stack": lambda m, x, y: m.stack([x, x]),
    "mm": lambda m, x, y: x @ y.T,
    "slice": lambda m, x, y: x[:, ::2] * y[:, 1:],
    "exp": lambda m, x, y: x[:, None].expand(2, 4, 3) * 2,
    "sub": lambda m, x, y: y - x,
    "addscalar": lambda m, x, y: x + x[0, 0],
    "inpl": lambda m, x, y: (x * 2).mul_(y).add_(x),
    "setitem": lambda m, x, y: seti(m, x, y),
    "setview": lambda m, x, y: setv(m, x, y),
    "double": lambda m, x, y: (x.double() * y).sum(),
    "norm": lambda m, x, y: (x * x).sum().sqrt(),
    "z": lambda m, x, y: (x * 0).sqrt(),
}

# Where PyTorch differs from itself (max() against amax()) or from the limit, ours is kept: amax
# gives a NaN's gradient to the NaN; bounds that are tensors get no gradient from a NaN.
DIFFERENT = {("nonfinite", name) for name in ("amax", "clampT", "clampinvT", "var1")}
