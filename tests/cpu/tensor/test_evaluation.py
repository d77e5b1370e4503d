"""When values are computed, what that records, and that results stay what they were."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.core import config
from minitorch_tvm.core.events import EVENTS
from minitorch_tvm.ir import node as node_module
from minitorch_tvm.ir.node import Node


def _live_pending() -> int:
    gc.collect()
    # type(), because isinstance() asks every object alive for its __class__.
    return sum(x.pending for x in gc.get_objects() if type(x) is Node)


def test_no_sync_names_the_line_and_recording_is_allowed() -> None:
    x = mt.ones(2, 2)
    readers: list[Any] = [
        lambda t: t.sum().item(),
        lambda t: t.numpy(),
        lambda t: t.tolist(),
        lambda t: float(t.sum()),
        lambda t: bool(t.sum() > 1),
        repr,
        mt.eval,
    ]
    with mt.no_sync():
        y = (x @ x + 1).relu()
        for read in readers:
            with pytest.raises(RuntimeError, match=r"inside no_sync\(\) at test_evaluation.py:\d+"):
                read(y)
        # A control decision on data is an evaluation too.
        with pytest.raises(RuntimeError, match="no_sync"):
            assert y.sum() > 0
    assert y.tolist() == [[3.0, 3.0], [3.0, 3.0]]
    with mt.no_sync():
        assert y.tolist() == [[3.0, 3.0], [3.0, 3.0]]  # known already: nothing to evaluate


def test_evaluation_happens_once_and_for_all_live_tensors() -> None:
    x = mt.ones(3)
    y, z = x + 1, x * 5
    before = EVENTS.get("evaluations")
    assert y.sum().item() == 6.0
    assert EVENTS.get("evaluations") == before + 1
    assert z.tolist() == [5.0] * 3
    assert y.tolist() == [2.0] * 3
    assert EVENTS.get("evaluations") == before + 1


def test_a_long_running_total_stays_flat() -> None:
    total = mt.zeros(())
    loss = mt.tensor(0.25)
    most = 0
    for number in range(10_000):
        total += loss
        if number % 1000 == 999:
            most = max(most, _live_pending())
    assert total.item() == 2500.0
    assert most <= config.CONFIG.max_pending + 10


def test_the_cap_on_pending_nodes_evaluates() -> None:
    x = mt.ones(2)
    with config.override(max_pending=50):
        before = EVENTS.get("evaluations:pending limit")
        for _ in range(200):
            x = x + 1
        assert EVENTS.get("evaluations:pending limit") >= before + 3
        assert _live_pending() <= 60
    assert x.tolist() == [201.0, 201.0]


def test_a_loop_that_reads_nothing_is_cut_where_it_was_before() -> None:
    weights = [mt.full((3, 3), k / 9) for k in range(1, 6)]

    def run(most: int) -> tuple[list[Any], int, int]:
        lazy.clear_cache()
        programs, cuts = (EVENTS.get(n) for n in ("compiles", "evaluations:pending limit"))
        with config.override(max_pending=most):
            x = mt.ones(2, 3)
            for k in range(120):
                for w in weights:
                    x = (x @ w).tanh() - 0.1 * x
                    x = x / (x.abs().sum() + 1)
                x = x + k / 100
            found = x.tolist()
        ended = EVENTS.get("evaluations:pending limit")
        return found, EVENTS.get("compiles") - programs, ended - cuts

    found, programs, cuts = run(1000)
    assert cuts >= 12
    assert programs <= 4  # the first, those that follow, the last
    whole, _, none = run(100_000)
    assert none == 0
    np.testing.assert_allclose(found, whole, rtol=1e-5)


@pytest.mark.parametrize("most", range(1, 9))
def test_the_cap_is_not_reached_within_an_evaluation(most: int) -> None:
    # What a view shows is recorded when an evaluation asks it.
    x = mt.zeros(6) + 0
    mt.eval(x)
    views = [x[::2], x[1::2]]
    with config.override(max_pending=most):
        x += 1
        later = [v.sum() for v in (mt.ones(3) * 2, mt.ones(2) * 3)]
        assert x.tolist() == [1.0] * 6
    assert [v.tolist() for v in views] == [[1.0] * 3] * 2
    assert [v.item() for v in later] == [6.0, 6.0]


def test_a_step_of_a_large_model_is_one_evaluation() -> None:
    layers = [mt.nn.Linear(2, 2) for _ in range(30)]
    opt = mt.optim.SGD([p for layer in layers for p in layer.parameters()], lr=0.1)
    with config.override(max_pending=150, target="numpy"):
        for _ in range(3):  # the first walks the graph, the others repeat it
            before = EVENTS.get("evaluations:pending limit")
            opt.zero_grad()
            x = mt.ones(1, 2)
            for layer in layers:
                x = layer(x)
            x.sum().backward()
            y = mt.ones(1) * 2.0  # what follows does not pay for the gradients
            opt.step()
            assert EVENTS.get("evaluations:pending limit") == before
            assert y.item() == 2.0


def test_kept_losses_stay_distinct_and_right() -> None:
    w = mt.tensor([1.0, -2.0], requires_grad=True)
    data = np.linspace(-1, 1, 60, dtype="f").reshape(30, 2)
    kept, grads, weights = [], [], []
    for row in data:
        w.grad = None
        loss = ((w * mt.tensor(row)) - 1).pow(2).sum()
        loss.backward()
        assert w.grad is not None
        with mt.no_grad():
            w.sub_(w.grad * 0.1)
        mt.eval(loss)
        kept.append(loss)
        grads.append(w.grad)
        weights.append(w.detach().clone())
    v = np.array([1.0, -2.0])
    for row, loss, g, after in zip(data.astype("d"), kept, grads, weights, strict=True):
        slope = 2 * (v * row - 1) * row
        assert loss.item() == pytest.approx(((v * row - 1) ** 2).sum(), rel=1e-5)
        np.testing.assert_allclose(g.numpy(), slope, rtol=1e-4, atol=1e-6)
        v = v - 0.1 * slope
        np.testing.assert_allclose(after.numpy(), v, rtol=1e-4)
    assert len({t.item() for t in kept}) == len(kept)


def test_arrays_handed_out_are_never_overwritten() -> None:
    x = mt.zeros(4)
    arrays = []
    for _ in range(20):
        x.add_(1)
        arrays.append(x.numpy())
    assert [a.tolist() for a in arrays] == [[float(i)] * 4 for i in range(1, 21)]


def test_printing_records_nothing() -> None:
    x = mt.ones(2, 3, requires_grad=True)
    y = (x * 2).sum(0)
    mt.eval(y)
    before = next(node_module._SEQUENCE)
    text = f"{y} {y!r} {x}"
    assert next(node_module._SEQUENCE) == before + 1
    assert text.startswith("tensor([4., 4., 4.], grad_fn=<SumBackward0>) tensor(")


def test_the_same_structure_is_compiled_once() -> None:
    def step(value: float, data: list[float]) -> list[float]:
        return (mt.tensor(data) * value + 0.5).exp().tolist()  # type: ignore[no-any-return]

    lazy.clear_cache()
    step(1.0, [1.0, 2.0])
    programs = len(lazy.executors())
    hits = EVENTS.get("cache_hits")
    assert step(3.0, [0.0, 1.0]) == pytest.approx(np.exp([0.5, 3.5]).tolist(), rel=1e-6)
    assert EVENTS.get("cache_hits") == hits + 1
    assert len(lazy.executors()) == programs
    step(1.0, [1.0, 2.0, 3.0])
    assert len(lazy.executors()) == programs + 1


def test_a_line_that_compiles_again_and_again_warns_once() -> None:
    def many() -> None:
        for n in range(1, 12):
            mt.ones(n).mul(3).tolist()

    with pytest.warns(UserWarning, match=r"test_evaluation.py:\d+ .*compiled 9 different programs"):
        many()


def test_a_captured_call_that_compiles_again_and_again_warns() -> None:
    captured = mt.compile(lambda x: (x + 1.0).sum())

    def many() -> None:
        for n in range(1, 10):
            assert captured(mt.from_numpy(np.ones(n, np.float32))).item() == 2 * n

    with pytest.warns(UserWarning, match="compiled 9 different programs"):
        many()


def test_eager_mode_gives_the_same_values() -> None:
    def run() -> list[Any]:
        x = mt.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        y = (x @ x).relu().log()
        y[0] = y[1] * 2
        y.sum().backward()
        return [y.tolist(), np.array(x.grad).tolist()]

    lazily = run()
    with config.override(mode="eager"):
        before = EVENTS.get("evaluations:eager")
        eagerly = run()
        assert EVENTS.get("evaluations:eager") > before + 5
    for a, b in zip(lazily, eagerly, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_control_flow_on_tensors_follows_the_data() -> None:
    x = mt.tensor(3.0)
    steps = 0
    while x > 0:
        x = x - 1
        steps += 1
    assert steps == 3
    assert [v.item() for v in mt.arange(3)] == [0, 1, 2]
    assert 2 in mt.arange(3)
    assert 5 not in mt.arange(3)
    assert range(10)[mt.tensor(4)] == 4


def test_a_chain_of_several_kernels() -> None:
    start = np.array([0.5, -1.5, 2.0])
    x = mt.tensor(start, requires_grad=True)
    y, want, slope = x, start.copy(), np.ones(3)
    for i in range(300):
        if i % 2:
            slope *= np.cos(want)
            y, want = y.sin(), np.sin(want)
        else:
            y, want = y + 0.75, want + 0.75
    y.sum().backward()
    assert x.grad is not None
    mt.eval(y, x.grad)
    assert len(lazy.last_executor().program.kernels) > 1
    np.testing.assert_allclose(y.detach().numpy(), want, rtol=1e-12)
    np.testing.assert_allclose(x.grad.numpy(), slope, rtol=1e-9)


@pytest.mark.parametrize(
    "view",
    [
        lambda w: w.T,
        lambda w: w[:, :1].expand(4, 3).T,
        lambda w: w.T[1:].T,
        lambda w: w.T[1:].expand(2, 3, 4),
    ],
)
@pytest.mark.parametrize("leaf", [False, True])
def test_gradients_by_what_a_view_was_before_a_write(view: Any, leaf: bool) -> None:
    """The write is evaluated together with the forward, whose backward still needs the view."""
    values = np.arange(16, dtype=np.float32).reshape(4, 4)
    seen = view(mt.tensor(values)).numpy()
    w = mt.tensor(values, requires_grad=leaf)
    x = mt.ones(*seen.shape, requires_grad=True)
    mt.eval(w, x)
    loss = (view(w) * x).sum()
    with mt.no_grad():
        w.mul_(3)
    mt.eval(loss)  # and w, whose memory is written over if nobody needs it
    loss.backward()
    np.testing.assert_array_equal(x.grad.numpy(), seen)


def test_a_slice_of_what_is_large_is_all_that_is_kept() -> None:
    data = mt.ones(4000, 100)
    w = mt.ones(100, 3, requires_grad=True)
    mt.eval(data, w)
    loss = ((data / 255.0)[:32] @ w).sum()
    mt.eval(loss)
    outputs = lazy.last_executor().program.outputs
    assert max(output.nbytes for output in outputs) <= 32 * 100 * 4
