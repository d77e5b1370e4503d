"""numpy's side: single kernels, and the MLP of the course."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from _cases import Case
from _rows import Array, Row, Weights


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _norm(x: Any, w: Any, b: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(x.var(-1, keepdims=True) + np.float32(1e-5)) * w + b


_CHAINS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "relu-fma": lambda a, b, c: np.maximum(a * b + c, 0),
    "tanh-gate": lambda a, b: np.tanh(a) * b + a,
    "exp": np.exp,
}


def trainer(side: str, row: Row, weights: Weights) -> Callable[[Array, Array], Any]:
    """A step of SGD of an mlp, as one writes it by hand: arrays and their gradients in place."""
    if row.model != "mlp" or row.momentum or row.weight_decay:
        raise NotImplementedError("numpy has no such model")
    matrices = [weights[f"{2 * i}.weight"].T.copy() for i in range(len(row.sizes) - 1)]
    biases = [weights[f"{2 * i}.bias"].copy() for i in range(len(row.sizes) - 1)]
    rate = np.float32(row.lr)

    def step(x: Array, y: Array) -> Any:
        if row.levels:
            x = np.multiply(x, np.float32(1 / row.levels), dtype=np.float32)
        inputs = [x]
        for w, b in zip(matrices, biases, strict=True):
            z = inputs[-1] @ w
            z += b
            inputs.append(z if w is matrices[-1] else np.maximum(z, 0, out=z))
        z = inputs.pop()
        z -= z.max(-1, keepdims=True)
        every = np.arange(len(y))
        picked = z[every, y]
        np.exp(z, out=z)
        total = z.sum(-1, keepdims=True)
        loss = (np.log(total[:, 0]) - picked).mean()
        z /= total
        z[every, y] -= 1
        z /= np.float32(len(y))
        for w, b, a in zip(matrices[::-1], biases[::-1], inputs[::-1], strict=True):
            behind = z @ w.T if a is not x else None
            w -= rate * (a.T @ z)
            b -= rate * z.sum(0)
            if behind is not None:
                behind *= a > 0
                z = behind
        return loss

    return step


def kernel(case: Case, arrays: list[Array]) -> tuple[Callable[[], Any], Callable[[], Array]]:
    """A call that computes the case, and one that reads its result."""
    o = case.options
    if case.kind == "matmul":
        x, y = (a.T if f == "T" else a for a, f in zip(arrays, o["form"], strict=True))
        out = np.empty((x.shape[0], y.shape[1]), np.float32)
        return lambda: np.matmul(x, y, out=out), lambda: np.matmul(x, y, out=out)
    functions: dict[str, Callable[..., Any]] = {
        "softmax": _softmax,
        "norm": _norm,
        "sum": lambda x: np.sum(x, o["axis"]),
        "max": lambda x: np.max(x, o["axis"]),
        "transpose": lambda x: np.ascontiguousarray(x.transpose(o["axes"])),
        "gather": lambda index, table: np.take(table, index, axis=0),
    }
    function = _CHAINS.get(o["chain"]) if case.kind == "chain" else functions.get(case.kind)
    if function is None:
        raise NotImplementedError("numpy has no such function")
    return lambda: function(*arrays), lambda: np.asarray(function(*arrays))
