"""Rows of the op table: factors of matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from row import Array, Bad, Row

from minitorch_tvm.ir.op import intern
from minitorch_tvm.ops import factors as fa
from minitorch_tvm.ops import orthogonal as og


@dataclass(frozen=True)
class _Regular(Row):
    """Matrices are larger on the diagonal than beside it, or on the one above (``turned``)."""

    turned: bool = False

    def _one(
        self, rng: np.random.Generator, kind: str, shape: tuple[int, ...], dtype: str
    ) -> Array:
        x = rng.uniform(-1.0, 1.0, shape)
        if len(shape) == 2 or shape[-1] == shape[-2]:
            x = x / max(1, *shape[-2:]) + 1.5 * np.eye(*shape[-2:])
        return np.asarray(np.roll(x, -1, -2) if self.turned else x, dtype)


def _cholesky(op: fa.Cholesky, x: Any) -> Any:
    if op.upper:
        return np.swapaxes(np.linalg.cholesky(np.swapaxes(x, -1, -2)), -1, -2)
    return np.linalg.cholesky(x)


def _triangular(op: fa.TriangularSolve, a: Any, x: Any) -> Any:
    a = np.triu(a) if op.upper else np.tril(a)
    if op.unit:
        eye = np.eye(a.shape[-1])
        a = a * (1 - eye) + eye
    return np.linalg.solve(np.swapaxes(a, -1, -2) if op.transposed else a, x)


def _eliminated(op: fa.LU, x: Any) -> Any:
    """Matrix by matrix and step by step, all rows below at once."""
    *lead, m, n = x.shape
    k = min(m, n)
    lines = []
    for a in x.reshape(int(np.prod(lead)), m, n):
        order, swapped = list(range(m)), []
        both = a.copy()
        for i in range(k):
            pivot = max(range(i, m), key=lambda r: abs(both[r, i]))
            swapped.append(pivot)
            order[i], order[pivot] = order[pivot], order[i]
            both[[i, pivot]] = both[[pivot, i]]
            both[i + 1 :, i] /= both[i, i]
            both[i + 1 :, i + 1 :] -= both[i + 1 :, i, None] * both[i, i + 1 :]
        lines.append(np.concatenate([both.ravel(), swapped, order]))
    return np.reshape(lines, (*lead, m * n + k + m))


def _line(x: Any, *parts: Any) -> Any:
    lead = x.shape[:-2]
    sizes = [int(np.prod(part.shape[len(lead) :])) for part in parts]
    return np.concatenate([p.reshape(*lead, n) for p, n in zip(parts, sizes, strict=True)], -1)


def _qr(op: og.QR, x: Any) -> Any:
    return _line(x, *np.linalg.qr(x, "complete" if op.complete else "reduced"))


@dataclass(frozen=True)
class _Diagonal(Row):
    """Diagonal matrices: what is sought is known, and so are the signs of vectors."""

    def _one(
        self, rng: np.random.Generator, kind: str, shape: tuple[int, ...], dtype: str
    ) -> Array:
        x = np.zeros(shape)
        places = np.arange(shape[-1])
        x[..., places, places] = rng.permuted(np.broadcast_to(places + 1.5, shape[:-1]), axis=-1)
        return np.asarray(x, dtype)


def _eigh(op: og.Eigh, x: Any) -> Any:
    values = np.diagonal(x, axis1=-2, axis2=-1)
    order = np.argsort(values, -1)
    vectors = np.swapaxes(np.eye(x.shape[-1])[order], -1, -2)
    return _line(x, np.sort(values, -1), *([vectors] if op.vectors else []))


def _singular(op: og.Jacobi, x: Any) -> Any:
    values = np.diagonal(x, axis1=-2, axis2=-1)
    rows = np.eye(x.shape[-1])[np.argsort(-values, -1)]
    return _line(x, np.swapaxes(rows, -1, -2), -np.sort(-values, -1), rows)


ROWS = (
    _Regular(
        fa.Cholesky,
        _cholesky,
        tuple(
            (intern(fa.Cholesky(upper)), (shape,))
            for shape in ((1, 1), (2, 3, 3), (17, 17), (2, 33, 33), (70, 70), (0, 2, 2), (0, 0))
            for upper in (False, True)
        ),
        grad=(0,),
        symmetric=True,
        bad=(
            Bad(
                intern(fa.Cholesky(False)),
                ("float32 2 3",),
                RuntimeError,
                "Cholesky does not take float32[2, 3]",
            ),
        ),
    ),
    _Regular(
        fa.TriangularSolve,
        _triangular,
        tuple(
            (intern(fa.TriangularSolve(upper, transposed, unit)), shapes)
            for shapes in (
                ((3, 3), (2, 3, 1)),
                ((2, 1, 4, 4), (3, 4, 2)),
                ((35, 35), (35, 3)),
                ((70, 70), (70, 130)),
                ((2, 5, 5), (2, 5, 0)),
            )
            for upper, transposed, unit in (
                (False, False, True),
                (True, False, False),
                (False, True, False),
                (True, True, True),
            )
        ),
        grad=(0, 1),
        bad=(
            Bad(
                intern(fa.TriangularSolve(True, False, False)),
                ("float32 3 3", "float64 3 2"),
                RuntimeError,
                "TriangularSolve does not take float32[3, 3] and float64[3, 2]",
            ),
        ),
    ),
    _Regular(
        fa.LU,
        _eliminated,
        tuple(
            (intern(fa.LU()), (shape,))
            for shape in (
                *((1, 1), (2, 4, 4), (3, 5), (6, 2), (2, 33, 33), (40, 70), (70, 40), (70, 70)),
                *((0, 3, 3), (3, 0), (0, 3)),
            )
        ),
        grad=(0,),
        turned=True,
        bad=(Bad(intern(fa.LU()), ("int64 2 2",), RuntimeError, "LU does not take int64[2, 2]"),),
    ),
    _Regular(
        og.QR,
        _qr,
        tuple(
            (intern(og.QR(complete)), (shape,))
            for shape in ((1, 1), (2, 4, 4), (3, 5), (6, 2), (40, 70), (70, 40), (0, 3, 3), (3, 0))
            for complete in (False, True)
            if not complete or shape[-2] <= shape[-1] or len(shape) == 2
        ),
        grad=(0,),
        bad=(
            Bad(intern(og.QR(False)), ("int64 2 2",), RuntimeError, "QR does not take int64[2, 2]"),
        ),
    ),
    _Diagonal(
        og.Eigh,
        _eigh,
        tuple(
            (intern(og.Eigh(upper, vectors)), (shape,))
            for shape in ((1, 1), (2, 4, 4), (17, 17), (0, 3, 3))
            for upper, vectors in ((False, False), (True, True), (False, True))
        ),
    ),
    _Diagonal(
        og.Jacobi,
        _singular,
        tuple((og.JACOBI, (shape,)) for shape in ((1, 1), (2, 4, 4), (17, 17), (0, 3, 3))),
    ),
)
