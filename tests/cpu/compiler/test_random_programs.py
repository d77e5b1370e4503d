"""Random programs agree between fused, unfused, default and reference execution."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from programs import POINTWISE, ROWS, Array, Program, programs, run

from minitorch_tvm import lazy
from minitorch_tvm.compiler import api
from minitorch_tvm.core import config
from minitorch_tvm.ops.reduction import Reduction

sys.path.insert(0, str(Path(__file__).parents[2] / "null" / "compiler"))
from fused import check_fused

# Poison fills memory that nobody has written; kernels and their plan are those without it.
few = settings(max_examples=10, suppress_health_check=list(HealthCheck))


def reference(program: Program, dtype: str) -> list[Array]:
    with config.override(target="numpy"):
        return run(program, dtype)


def agree(got: list[Array], want: list[Array], tolerance: float, what: str) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=what)


@pytest.fixture(autouse=True)
def merged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every fusion is checked; the list gets the number of reductions of kernels over rows."""
    fuse = api.fuse
    seen: list[int] = []

    def checked(graph: Any, enabled: bool, row_bytes: int) -> Any:
        found = fuse(graph, enabled, row_bytes)
        check_fused(found, whole=enabled)
        for kernel in found.kernels:
            if kernel.rows is not None:
                ops = [graph.values[m].op for m in kernel.members]
                seen.append(sum(isinstance(op, Reduction) for op in ops))
        return found

    monkeypatch.setattr(api, "fuse", checked)
    lazy.clear_cache()
    return seen


@few
@given(programs())
def test_float64_under_every_setting(program: Program) -> None:
    want = reference(program, "float64")
    for changes in ({"fuse": False}, {"schedule": "default"}, {"poison": True}):
        with config.override(**changes):
            agree(run(program, "float64"), want, 1e-9, str(changes))
    lazy.clear_cache()


@few
@given(programs())
def test_float32(program: Program) -> None:
    want, exact = reference(program, "float32"), reference(program, "float64")
    # Rounding may flip a comparison; such programs say nothing.
    assume(all(np.allclose(a, b, 1e-3, 1e-3) for a, b in zip(want, exact, strict=True)))
    agree(run(program, "float32"), exact_as(want, exact), 2e-3, "float32")
    lazy.clear_cache()


def test_rows(merged: list[int]) -> None:
    """Reductions along rows, and what is computed with them."""

    @few
    @given(programs(ROWS))
    def same_as_reference(program: Program) -> None:
        want = reference(program, "float64")
        for changes in ({"fuse": False}, {"poison": True}):
            with config.override(**changes):
                agree(run(program, "float64"), want, 1e-9, str(changes))
        exact = reference(program, "float32")
        if all(np.allclose(a, b, 1e-3, 1e-3) for a, b in zip(exact, want, strict=True)):
            agree(run(program, "float32"), exact_as(exact, want), 2e-3, "float32")
        lazy.clear_cache()

    same_as_reference()
    assert max(merged, default=0) >= 2, "no kernel of several walks was tried"


@few
@given(programs((*ROWS, *POINTWISE), special=True))
def test_nan_and_infinities_in_rows(program: Program) -> None:
    with np.errstate(all="ignore"):
        want = reference(program, "float64")
    agree(run(program, "float64"), want, 1e-9, "rows")
    lazy.clear_cache()


def exact_as(like: list[Array], exact: list[Array]) -> list[Array]:
    return [b.astype(a.dtype) for a, b in zip(like, exact, strict=True)]


@few
@given(programs(POINTWISE, special=True))
def test_nan_and_infinities(program: Program) -> None:
    with np.errstate(all="ignore"):
        want = reference(program, "float64")
    for changes in ({"fuse": False}, {"poison": True}):
        with config.override(**changes):
            agree(run(program, "float64"), want, 1e-9, str(changes))
    lazy.clear_cache()
