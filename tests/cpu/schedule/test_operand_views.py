"""Products whose operands are views: of wider matrices, of heads, of every other line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.compiler.schedule.cpu import gemm
from minitorch_tvm.compiler.schedule.cpu.gemm_problem import Problem

rng = np.random.default_rng(11)

_View = Callable[[Any], Any]
# Of a wide matrix, [a, b] with room for all: a view of 48 x 40, and elements between its lines if
# it can be read in place.
VIEWS: dict[str, tuple[tuple[int, ...], _View, int | None]] = {
    "columns": ((48, 200), lambda x: x[:, 33:73], 200),
    "rows": ((99, 40), lambda x: x[13:61], 40),
    "every other row": ((99, 41), lambda x: x[1:97:2, 1:], 82),
    "every other column": ((48, 80), lambda x: x[:, ::2], None),
    "a head": ((48, 3, 40), lambda x: x[:, 1], 120),
    "one row again and again": ((1, 40), lambda x: _expanded(x), None),
}


def _expanded(x: Any) -> Any:
    return x.expand(48, 40) if isinstance(x, mt.Tensor) else np.broadcast_to(x, (48, 40))


@pytest.fixture
def problems(monkeypatch: pytest.MonkeyPatch) -> list[Problem]:
    """Products as they are scheduled."""
    found: list[Problem] = []
    make = gemm._problem

    def noted(*arguments: Any) -> Problem:
        found.append(make(*arguments))
        return found[-1]

    monkeypatch.setattr(gemm, "_problem", noted)
    lazy.clear_cache()
    return found


# Each view both ways with each width, and as either operand with each width.
@pytest.mark.parametrize(
    ("name", "turned", "left", "other"),
    [
        (name, turned, (turned + number + i) % 2 == 1, other)
        for number, name in enumerate(VIEWS)
        for turned in (False, True)
        for i, other in enumerate((5, 52, 400))
    ],
)
def test_views(name: str, turned: bool, left: bool, other: int, problems: list[Problem]) -> None:
    """As either operand, as it stands and transposed, of narrow and of wide products."""
    shape, view, pitch = VIEWS[name]
    x = rng.standard_normal(shape).astype(np.float32)
    own = view(x.astype(np.float64))
    own = own.T if turned else own
    inner = own.shape[1] if left else own.shape[0]
    y = rng.standard_normal((inner, other) if left else (other, inner)).astype(np.float32)
    base = mt.tensor(x)  # a view of what nobody else holds would be copied
    v = view(base)
    v = v.T if turned else v
    out = v @ mt.tensor(y) if left else mt.tensor(y) @ v
    del v  # what somebody holds is computed
    out = out.numpy()
    want = own @ y if left else y.astype(np.float64) @ own
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=2e-5)
    (problem,) = {id(p): p for p in problems}.values()
    assert (problem.row_pitch if left else problem.col_pitch) == pitch


@pytest.mark.parametrize(("n", "t", "heads", "width"), [(3, 20, 4, 24), (2, 70, 3, 40)])
def test_heads_are_read_where_they_are(
    n: int, t: int, heads: int, width: int, problems: list[Problem]
) -> None:
    """Queries, keys and values side by side: attention copies none of them."""
    x = rng.standard_normal((n * t, 3 * heads * width)).astype(np.float32)

    def split(x: Any) -> list[Any]:
        parts = x.reshape(n, t, 3, heads, width)
        order = (0, 2, 1, 3)
        if isinstance(x, mt.Tensor):
            return [parts[:, :, i].permute(*order) for i in range(3)]
        return [parts[:, :, i].transpose(order) for i in range(3)]

    q, k, v = split(mt.tensor(x))
    mixed = (q @ k.transpose(-1, -2)) @ v
    del q, k, v
    mixed = mixed.numpy()
    q64, k64, v64 = split(x.astype(np.float64))
    want = (q64 @ k64.transpose(0, 1, 3, 2)) @ v64
    np.testing.assert_allclose(mixed, want, rtol=1e-4, atol=2e-3)
    pitch = 3 * heads * width
    assert [(p.row_pitch, p.col_pitch) for p in problems] == [(pitch, pitch), (t, pitch)]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("special", [np.inf, np.nan, 1e-42])
def test_what_a_matrix_unit_cannot_multiply(special: float, turned: bool) -> None:
    """Blocks computed by plain arithmetic find the elements of a view, too."""
    x = rng.standard_normal((320, 520)).astype(np.float32)
    x[7, 111], x[200, 30] = special, np.nan  # inside and outside the view
    own, base = x[:, 100:300], mt.tensor(x)
    size = own.shape[0 if turned else 1]
    y = rng.standard_normal((size, 290)).astype(np.float32)
    view = base[:, 100:300]
    out = (view.T if turned else view) @ mt.tensor(y)
    del view
    with np.errstate(invalid="ignore"):
        want = (own.T if turned else own).astype(np.float64) @ y
    np.testing.assert_allclose(out.numpy(), want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("batch", [(2, 3), (4,), (2, 1, 3), (3, 2, 2)])
def test_batches_behind_each_other(batch: tuple[int, ...]) -> None:
    """TVM's simplifier failed for remainders of the batch beside those of the tile."""
    rng = np.random.default_rng(5)
    x, g = (rng.standard_normal((*batch, 48, n)).astype(np.float32) for n in (48, 20))
    a, b = mt.tensor(x), mt.tensor(g)
    found = (a @ b + a.transpose(-1, -2) @ b).numpy()
    wide = x.astype("f8")
    want = wide @ g.astype("f8") + np.swapaxes(wide, -1, -2) @ g.astype("f8")
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)
