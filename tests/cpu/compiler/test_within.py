"""Positions within bounds: native code against Python's integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitorch_tvm.compiler import native, target
from minitorch_tvm.compiler.within import within_function
from minitorch_tvm.core.tvm_api import tvm
from minitorch_tvm.ir.program import WITHIN
from minitorch_tvm.runtime.native import link

LEAST, MOST = -(1 << 63), (1 << 63) - 1


@pytest.fixture(scope="module", params=["host", "x86-64-v3", "x86-64-v2"])
def within(request: pytest.FixtureRequest) -> Callable[..., Any]:
    try:
        machine = target.host(request.param)
    except RuntimeError as lacking:
        pytest.skip(str(lacking))
    t = tvm()
    module = t.IRModule({t.ir.GlobalVar(WITHIN): within_function(machine)})
    function = link(native.object_code(native.compile_module(module, machine, level=0)))[WITHIN]
    return lambda x, *numbers: function(x.ctypes.data, len(x), *numbers)


@given(data=st.data())
def test_as_python_says(within: Callable[..., Any], data: st.DataObject) -> None:
    int64 = st.integers(LEAST, MOST)
    low = data.draw(st.sampled_from([0, -5, LEAST, MOST - 3]) | int64.filter(lambda n: n < MOST))
    end = data.draw(st.integers(low + 1, min(low + 9, MOST)) | st.integers(low + 1, MOST))
    spared = data.draw(st.just(low) | st.sampled_from([-100, MOST, LEAST]) | int64)
    inside = st.integers(low, end - 1) | st.just(spared)
    edges = st.sampled_from([max(low - 1, LEAST), end, LEAST, MOST])
    # Around several turns of the loop, of which the last may have few or all but one.
    count = data.draw(st.integers(0, 70))
    x = np.array(data.draw(st.lists(inside, min_size=count, max_size=count)), np.int64)
    for at in data.draw(st.lists(st.integers(0, count - 1), max_size=2)) if count else []:
        x[at] = data.draw(edges | int64)
    want = all(low <= n < end or n == spared for n in x.tolist())
    assert within(x, low, end, spared) == want


@pytest.mark.parametrize("count", [1, 7, 8, 31, 32, 33, 63, 65, 1000])
def test_every_element_counts(within: Callable[..., Any], count: int) -> None:
    x = np.arange(count) % 10
    assert within(x, 0, 10, 0)
    for at in range(count):
        before, x[at] = x[at], -1
        assert not within(x, 0, 10, 0)
        assert within(x, 0, 10, -1)
        x[at] = before
