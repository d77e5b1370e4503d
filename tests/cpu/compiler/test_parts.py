"""A program is compiled in parts that are linked together: nothing is lost, nothing twice."""

from __future__ import annotations

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.compiler import native, target
from minitorch_tvm.compiler.assemble import ENTRY, Place, StageCall, assemble
from minitorch_tvm.compiler.loops import load, parallel_stage, pointer_buffer, store


def _module(stages: int) -> object:
    a, b = (pointer_buffer((64,), "float32", name) for name in "ab")

    def place(buffer: object) -> Place:
        return Place([m.same_as(buffer) for m in (a, b)].index(True))

    def stage(number: int) -> object:
        # Each adds another constant, or equal ones would share a function.
        return parallel_stage("add", 64, lambda t: store(b, load(a, t) + float(number), t))

    module, functions = assemble([StageCall(stage(n), place) for n in range(stages)], 2, 2)
    assert functions == stages
    return module


@pytest.mark.parametrize("stages", [1, 3, 4, 5, 9, 24])
def test_each_function_is_in_one_part(stages: int) -> None:
    module = _module(stages)
    names = [[g.name_hint for g, _ in p.functions_items()] for p in native.parts(module)]
    assert names[0] == [ENTRY]
    flat = [name for part in names for name in part]
    assert sorted(flat) == sorted(g.name_hint for g, _ in module.functions_items())
    assert len(flat) == stages + 1
    assert max(map(len, names)) <= 4
    # The same parts again: they must not depend on where objects happen to lie in memory.
    again = native.parts(_module(stages))
    assert [sorted(p) for p in names] == [
        sorted(g.name_hint for g, _ in p.functions_items()) for p in again
    ]


def test_an_error_in_a_part_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_module = native.compile_module

    def fail(module: object, *arguments: object, **options: object) -> object:
        if len(module.functions_items()) > 1:
            raise RuntimeError("no code for these")
        return compile_module(module, *arguments, **options)

    monkeypatch.setattr(native, "compile_module", fail)
    with pytest.raises(RuntimeError, match="no code for these"):
        native.compile_parts(_module(5), target.host())


def test_a_program_of_many_parts() -> None:
    x = np.random.default_rng(0).standard_normal((7, 33)).astype(np.float32)
    t, want = mt.tensor(x), x.astype(np.float64)
    for n in range(5, 16):  # reductions of different sizes do not share a function
        t = mt.cat([t, t[:, :n].sum(1, keepdim=True).tanh()], 1)
        want = np.concatenate([want, np.tanh(want[:, :n].sum(1, keepdims=True))], 1)
    np.testing.assert_allclose(t.numpy(), want, rtol=2e-5, atol=1e-5)
    assert len(lazy.last_executor().program.code) > 2
