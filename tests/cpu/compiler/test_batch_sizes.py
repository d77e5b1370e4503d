"""Functions that are told sizes when they run: what was compiled for one batch serves others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm import lazy, nn
from minitorch_tvm.compiler import crowd, native, target
from minitorch_tvm.compiler.assemble import Functions
from minitorch_tvm.compiler.loops import (
    Stage,
    below,
    const,
    free_variables,
    load,
    number,
    parallel_stage,
    pointer_buffer,
    serial,
    store,
    var,
)
from minitorch_tvm.compiler.schedule.cpu import gemm_tiling
from minitorch_tvm.compiler.schedule.cpu.gemm_problem import Problem
from minitorch_tvm.compiler.target import CpuTarget
from minitorch_tvm.core import config


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The stage functions that are compiled, from nothing and without the matrix unit.

    What that unit multiplies is compiled for each size.
    """
    symbols: list[str] = []
    add = native.Build.add

    def watched(self: native.Build, symbol: str, function: object) -> native.Piece:
        if symbol != crowd.DECIDE.name:  # made once, for the entry of any program
            symbols.append(symbol)
        return add(self, symbol, function)

    # Caches of one size, whatever the machine's: they decide about tiles.
    same = functools.partial(replace, target.host(), l1_bytes=48 << 10, l2_bytes=1 << 20)
    monkeypatch.setattr(target, "host", lambda _: same())
    monkeypatch.setattr(native.Build, "add", watched)
    lazy.clear_cache()
    with config.override(matrix_unit=False):
        yield symbols


def _values(shape: tuple[int, ...], seed: int = 0) -> mt.Tensor:
    return mt.tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def _indices(shape: tuple[int, ...], most: int = 19) -> mt.Tensor:
    return mt.tensor(np.random.default_rng(1).integers(0, most, shape))


def _gradients(of: mt.Tensor, loss: mt.Tensor) -> tuple[mt.Tensor, ...]:
    loss.backward()
    return (of.grad,)


def _weight(*shape: int) -> mt.Tensor:
    return _values(shape, 2).requires_grad_()


W, B = _values((96, 48), 3), _values((48,), 4)
CASES: dict[str, Callable[[int], tuple[mt.Tensor, ...]]] = {
    "elementwise": lambda n: ((_values((n, 7)) * 2 + 1).tanh(),),
    "bias and relu": lambda n: ((_values((n, 48)) + B).relu(),),
    "one dimension": lambda n: (_values((n,)) * 3 - 1,),
    "softmax": lambda n: (_values((n, 33)).softmax(1),),
    "short rows": lambda n: (_values((n, 10)).log_softmax(1),),
    "layer norm": lambda n: (F.layer_norm(_values((n, 5, 64)), (64,)),),
    "sum of columns": lambda n: (_values((n, 48)).sum(0),),
    "largest of columns": lambda n: (_values((n, 3, 48)).amax((0, 1)),),
    "columns cut into parts": lambda n: (_values((n, 12, 48)).amax((0, 1)),),
    "sum of rows": lambda n: (_values((n, 48)).sum(1),),
    "sum over batch and pixels": lambda n: (_values((n, 5, 96)).square().sum((0, 2)),),
    "product": lambda n: (_values((n, 96)) @ W,),
    "transposed product": lambda n: (_values((n, 48)) @ W.T + 1,),
    "columns that every thread packs": lambda n: (_values((8 * n, 128)) @ _values((96, 128)).T,),
    "columns that fill no vector": lambda n: (_values((n, 300)) @ _values((300, 65)),),
    # Not 96: lines 384 bytes apart share places of the nearest cache, and long sums are packed.
    "gradient of weights": lambda n: (_values((n, 100)).T @ _values((n, 48)),),
    "batched product": lambda n: (_values((n, 24, 32)) @ _values((n, 32, 24)),),
    "gather": lambda n: (_values((19, 24))[_indices((n, 5))],),
    "gradient of gather": lambda n: _gradients(
        w := _weight(19, 24), (F.embedding(_indices((n, 5)), w) * 2).sum()
    ),
    "max pooling": lambda n: (F.max_pool2d(_values((n, 3, 8, 8)), 2),),
    "convolution": lambda n: (F.conv2d(_values((n, 3, 12, 12)), _values((8, 3, 3, 3)), padding=1),),
    "gradient of kernels": lambda n: _gradients(
        w := _weight(8, 3, 3, 3), (F.conv2d(_values((n, 3, 12, 12)), w, padding=1) ** 2).sum()
    ),
    "convolution in groups": lambda n: (
        F.conv2d(_values((n, 24, 12, 12)), _values((24, 1, 3, 3)), padding=1, groups=24),
    ),
    "gradient of kernels in groups": lambda n: _gradients(
        w := _weight(24, 1, 3, 3),
        (F.conv2d(_values((n, 24, 12, 12)), w, padding=1, groups=24) ** 2).sum(),
    ),
    "transpose": lambda n: (_values((n, 40, 64)).transpose(1, 2).contiguous(),),
}


def _run(case: str, n: int) -> list[np.ndarray]:
    found = CASES[case](n)
    mt.eval(*found)
    return [t.detach().numpy().copy() for t in found]


@pytest.mark.parametrize(
    ("case", "sizes"),
    [*((case, (192, 144)) for case in CASES), *((case, (160, 240)) for case in [*CASES][::2])],
)
def test_another_size_needs_no_other_function(
    case: str, sizes: tuple[int, int], made: list[str]
) -> None:
    first, second = sizes
    _run(case, first)
    assert made
    made.clear()
    shared = _run(case, second)
    assert not made
    lazy.clear_cache()
    for a, b in zip(shared, _run(case, second), strict=True):
        np.testing.assert_array_equal(a, b)


CHANNELS: dict[str, Callable[[int], mt.Tensor]] = {
    "sum of short columns": lambda c: _values((16, c)).sum(0),
    "largest of short columns": lambda c: _values((16, c)).amax(0),
    "one of short columns": lambda c: _values((16, c)).argmax(0),
    "sum over batch and pixels": lambda c: _values((64, c, 96)).square().sum((0, 2)),
    "largest over batch and pixels": lambda c: _values((64, c, 96)).amax((0, 2)),
}


@pytest.mark.parametrize("case", CHANNELS)
@pytest.mark.parametrize("sizes", [(28, 40), (82, 100)])
def test_other_channels_need_no_other_function(
    case: str, sizes: tuple[int, int], made: list[str]
) -> None:
    """As batch norm adds up in layers of many widths."""
    first, second = sizes
    mt.eval(CHANNELS[case](first))
    assert made
    made.clear()
    shared = CHANNELS[case](second).numpy().copy()
    assert not made
    lazy.clear_cache()
    np.testing.assert_array_equal(shared, CHANNELS[case](second).numpy())


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 32), nn.LayerNorm(32), nn.Linear(32, 10)
    )


def _convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10),
    )  # fmt: skip


# A model, what it is given but for the batch, and the share of functions that another size needs:
# losses are a sum along the batch, which is cut into vectors, and divided by its size.
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], float]] = {
    "mlp": (_mlp, (40,), 0.35),
    "convolutional": (_convolutional, (3, 12, 12), 0.35),
}


def _trained(model: str, sizes: tuple[int, ...]) -> list[np.ndarray]:
    make, shape, _ = MODELS[model]
    mt.manual_seed(3)
    net = make()
    optimizer = mt.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for n in sizes:
        for turn in range(2):
            loss = F.cross_entropy(net(_values((n, *shape), turn)), _indices((n,), 10))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return [t.detach().numpy().copy() for t in net.state_dict().values()]


@pytest.mark.parametrize("model", MODELS)
def test_a_model_trains_on_with_a_smaller_batch(model: str, made: list[str]) -> None:
    """As the last batch of an epoch is; its bits do not depend on what was compiled before."""
    _trained(model, (64,))
    first = len(made)
    made.clear()
    shared = _trained(model, (64, 48))
    assert 0 < len(made) <= MODELS[model][2] * first
    lazy.clear_cache()
    _trained(model, (48,))
    for a, b in zip(shared, _trained(model, (64, 48)), strict=True):
        np.testing.assert_array_equal(a, b)


def _told(values: list[int]) -> tuple[list[Stage], Functions, list[str]]:
    """Stages that add up so many elements, and their functions."""
    a, total = (pointer_buffer((1 << 20,), "float32", name) for name in ("a", "total"))
    stages = []
    for value in values:
        count = number(value)

        def body(t: object, count: object = count) -> object:
            return serial(count, lambda i: store(total, load(total, t) + load(a, i), t))

        stages.append(parallel_stage("total", 1, body))
    symbols: list[str] = []
    return stages, Functions(lambda symbol, _: symbols.append(symbol)), symbols


def test_who_clears_the_cache_starts_anew_whoever_holds_programs(made: list[str]) -> None:
    """As tracebacks do, of tests that change how kernels are made."""
    _run("elementwise", 40)
    held = lazy.last_executor()
    lazy.clear_cache()
    made.clear()
    _run("elementwise", 40)
    assert len(made) == 1
    assert lazy.last_executor() is not held


def test_stages_that_differ_in_what_they_are_told_share_a_function() -> None:
    stages, functions, symbols = _told([5, 7, 16383])
    found = [functions.of(stage) for stage in stages]
    assert len({function for function, _, _ in found}) == len(symbols) == 1
    assert [turns for _, _, turns in found] == [[(5,)], [(7,)], [(16383,)]]


def test_functions_know_about_how_large_a_number_may_be() -> None:
    """So that a position which is computed with it is known not to wrap around."""
    stages, functions, symbols = _told([9, (1 << 20) - 1, 1 << 20, (1 << 26) - 1, 1 << 26])
    assert len({functions.of(stage)[0] for stage in stages}) == len(symbols) == 3
    i = var("i")
    assert below(i, (1 << 31) - 1).same_as(i)
    assert below(7, 3) == 7  # known anyway


def test_a_number_of_more_than_32_bits_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="a kernel counts at most 2147483647 elements or rows"):
        number(1 << 31)
    x = mt.ones(1 << 31, dtype=mt.uint8)
    with pytest.raises(RuntimeError, match="not 2147483648"):
        mt.eval(x + 1)


def test_sums_of_more_elements_than_32_bits_count() -> None:
    n = (1 << 31) + 64
    # Named, or pytest would hold the elements, and they would be computed, too.
    total = mt.ones(n, dtype=mt.uint8).sum()
    largest = (mt.ones(1 << 16, (1 << 15) + 1, dtype=mt.uint8) + 1).amax()
    assert total.item() == n
    assert largest.item() == 2


def test_memory_may_have_sizes_that_are_told() -> None:
    a = pointer_buffer((3, 5, 7), "float32", "a")
    assert a.strides == (35, 7, 1)
    told = replace(a, shape=(3, number(5), 7))
    assert told.count == 105
    assert [type(s) is int for s in told.strides] == [False, True, True]
    assert free_variables(store(told, const(0.0, "float32"), 0, 2, 1))[1] == []
    assert [n for _, n in free_variables(store(told, const(0.0, "float32"), 1, 2, 1))[1]] == [5]


def _nothing(*_: object) -> object:
    raise AssertionError("nothing is read while a tiling is chosen")


def _problem(m: int, n: int, k: int) -> Problem:
    plain = (True, False, k, n, _nothing, True, True, False)
    return Problem(1, m, n, k, "float32", _nothing, _nothing, *plain)


def test_a_tile_that_is_compiled_is_taken_if_it_is_hardly_slower() -> None:
    cpu = CpuTarget("x86-64-v4", (), 64, 32, 48 << 10, 1 << 20, workers=2)
    gemm_tiling.forget()
    kept, slower, seen = 0, [], []
    for m in (1000, 200, 96, 100, 60, 48, 31, 7, 1000):
        pb = _problem(m, 1000, 1024)
        best = gemm_tiling.choose(pb, cpu)[1]
        found = gemm_tiling.familiar(pb, cpu, best)
        seen.append((found.mr, found.nv))
        kept += (found.mr, found.nv) != (best.mr, best.nv)
        slower.append(gemm_tiling._time(pb, cpu, found) / gemm_tiling._time(pb, cpu, best))
        assert found.mr <= m
        assert found.m_tail or m % found.mr == 0
    assert kept > 0
    assert 1 < max(slower) <= 1 + gemm_tiling._HARDLY
    assert len(set(seen)) < len(seen)
    assert seen[0] == seen[-1]  # what it had chosen before


def test_a_much_larger_product_has_a_tile_of_its_own() -> None:
    """What estimates do not see is little in a product that is over before it is compiled."""
    cpu = CpuTarget("x86-64-v4", (), 64, 32, 48 << 10, 1 << 20, workers=2)
    layout = (False, False, 4096, 4096, _nothing, True, True, False)
    gemm_tiling.forget()
    for k, own in ((16, True), (24, False), (4096, True)):
        pb = Problem(1, 4096, 4096, k, "float32", _nothing, _nothing, *layout)
        best = gemm_tiling.choose(pb, cpu)[1]
        found = gemm_tiling.familiar(pb, cpu, best)
        assert ((found.mr, found.nv) == (best.mr, best.nv)) == own


def test_products_that_are_remembered_are_so_many() -> None:
    cpu = CpuTarget("x86-64-v4", (), 64, 32, 48 << 10, 1 << 20, workers=2)
    gemm_tiling.forget()
    for n in range(16, 16 + 2 * gemm_tiling._MOST_SHAPES):
        pb = _problem(8, n, 8)
        gemm_tiling.familiar(pb, cpu, gemm_tiling.choose(pb, cpu)[1])
    assert len(gemm_tiling._SHAPES) == gemm_tiling._MOST_SHAPES
