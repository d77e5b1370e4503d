"""Which kernels common graphs become, and what every fused graph must satisfy."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fused import check_fused
from graphs import checked, recorded

import minitorch_tvm as mt
from minitorch_tvm import nn
from minitorch_tvm.compiler import plan
from minitorch_tvm.compiler.canonicalize import canonicalize
from minitorch_tvm.compiler.fuse import fuse
from minitorch_tvm.ir.graph import Graph
from minitorch_tvm.ir.kernel import FusedGraph
from minitorch_tvm.nn import functional as F


@pytest.fixture(autouse=True)
def _nothing_left() -> None:
    """What earlier tests have left, and not computed, would be part of the graphs here."""
    gc.collect()


LINE = mt.from_numpy(np.ones(10, "float32"))
LABELS = mt.from_numpy(np.zeros(6, "int64"))


def fused(graph: Graph) -> FusedGraph:
    found = fuse(canonicalize(graph))
    check_fused(found)
    check_fused(fuse(canonicalize(graph), enabled=False), whole=False)
    return found


def names(found: FusedGraph) -> list[str]:
    return [k.name(found.graph) for k in found.kernels]


def step(
    model: nn.Module, batch: tuple[int, ...], optimizer: str = "SGD", **options: float
) -> Graph:
    """The graph of the second training step (all state exists)."""
    x = mt.from_numpy(np.zeros(batch, "float32"))
    y = mt.from_numpy(np.zeros(batch[0], "int64"))
    opt = getattr(mt.optim, optimizer)(model.parameters(), **options)

    def run() -> None:
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()

    recorded(run)
    return max(recorded(run), key=lambda g: len(g.values))


def logreg() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 10))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 256), nn.Sigmoid(), nn.Linear(256, 100), nn.Sigmoid(), nn.Linear(100, 10)
    )


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 49, 10),
    )  # fmt: skip


def test_kernels_of_the_mlp_training_step() -> None:
    found = fused(step(mlp(), (1000, 784), lr=0.1))
    assert names(found) == [
        "matmul_add_sigmoid",
        "matmul_add_sigmoid",
        "matmul_add",
        "sum_div",  # weights of the rows; the loss itself is read by nobody
        "max_exp_sum_sum_etc",  # softmax and the cotangent of the logits
        "matmul_mul",  # cotangent of the second hidden layer
        "matmul_sub",  # weight 3: its gradient and update
        "sum_sub",  # bias 3
        "matmul_mul",
        "matmul_sub",
        "sum_sub",
        "matmul_sub",
        "sum_sub",
    ]
    assert len(found.in_place) == 6  # every parameter is overwritten by its update


def test_the_update_of_a_weight_that_was_transposed() -> None:
    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(mt.ones(10, 784))

        def forward(self, x: mt.Tensor) -> mt.Tensor:
            return x @ self.weight.T

    assert "matmul_sub" in names(fused(step(Transposed(), (100, 784), lr=0.1)))


@pytest.mark.parametrize(
    ("build", "want"),
    [
        (lambda x: x.softmax(1), ["max_exp_sum_div"]),
        (lambda x: x.log_softmax(1), ["max_sum_log_sub"]),
        (lambda x: F.layer_norm(x, (10,), LINE, LINE), ["sum_mul_etc"]),
        (lambda x: F.cross_entropy(x, LABELS), ["rows", "mean"]),
        (lambda x: x - x.amax(1, keepdim=True), ["max_sub"]),
        (lambda x: x / x.sum(1)[:, None], ["sum_div"]),
        (lambda x: x.var(1), ["sum_sum_div"]),
        (lambda x: x - x.sum(0), ["sum", "sub"]),  # columns
        (lambda x: (x / x.sum(1, keepdim=True)).sum(0), ["sum", "sum"]),
        (lambda x: x @ (x / x.sum(1, keepdim=True)).T, ["sum_div", "matmul"]),
        (lambda x: x.softmax(1).softmax(0), ["softmax", "max", "exp", "sum", "div"]),
        (lambda x: x.exp().sigmoid() * 2 + x, ["exp_sigmoid_full_mul_etc"]),
        (lambda x: (x * 2 + 1).sum(0), ["sum"]),
        (lambda x: (x @ x.t()).relu() + 1, ["matmul_relu_add"]),
        (lambda x: mt.cat([x.flip(0), x[1:].flip(1)]), ["cat"]),  # of what is backwards in memory
        (lambda x: mt.cat([x.exp().flip(0), x]), ["exp", "cat"]),
        (lambda x: x.reshape(-1).exp().reshape(4, -1), ["exp", "reshape"]),
    ],
)
def test_kernels_of_small_graphs(build: Callable[[mt.Tensor], mt.Tensor], want: list[str]) -> None:
    x = mt.from_numpy(np.ones((6, 10), "float32"))
    (graph,) = recorded(lambda: build(x).realize())
    assert len(names(fused(graph))) == len(want), names(fused(graph))


@pytest.mark.parametrize(
    ("outputs", "stored"),
    [((3,), {2}), ((3, 4), {2, 4}), ((2, 4), {2, 4}), ((4, 5), {2, 5}), ((3, 5, 4), {2, 4, 5})],
)
def test_a_reshaped_result_is_stored_once(outputs: tuple[int, ...], stored: set[int]) -> None:
    """Of several names of one memory one is a result; the others have memory of their own."""
    graph = checked(
        "%0 = buffer() : float32[6]\n%1 = Exp(%0) : float32[6]\n%2 = Exp(%1) : float32[6]\n"
        "%3 = Reshape(shape=(2, 3))(%2) : float32[2, 3]\n"
        "%4 = Reshape(shape=(3, 2))(%2) : float32[3, 2]\n"
        "%5 = Neg(%4) : float32[3, 2]"
    )
    found = fuse(replace(graph, outputs=outputs))
    check_fused(found)
    assert {s for k in found.kernels for s in k.stores} == stored
    unread = fuse(replace(graph, outputs=outputs, unread=(0,)))
    assert unread.root(outputs[0]) == outputs[0]


def _long(length: int, derivative: bool) -> FusedGraph:
    def build() -> None:
        x = mt.ones(4).realize().requires_grad_()
        y = x
        for i in range(length):
            y = y.tanh() if derivative and i % 2 else y + 1
        if derivative:
            y.sum().backward()
            assert x.grad is not None
            x.grad.realize()
        else:
            y.realize()

    return fused(recorded(build)[-1])


@pytest.mark.parametrize("derivative", [False, True])
def test_long_chains_are_kernels_of_bounded_size(derivative: bool) -> None:
    counts = []
    for length in (400, 800, 1600):
        found = _long(length, derivative)
        assert max(len(k.members) + len(k.inlined) for k in found.kernels) <= 256
        computed = sum(len(k.members) + len(k.inlined) for k in found.kernels)
        assert computed <= 1.1 * len(found.graph.values)  # nothing is computed twice
        counts.append(len(found.kernels))
    first, second = counts[1] - counts[0], counts[2] - counts[1]
    assert first >= 400 // 256
    assert abs(second - 2 * first) <= 2  # twice the length, twice the kernels


def test_adam_updates_each_parameter_in_one_kernel() -> None:
    found = fused(step(logreg(), (100, 784), "Adam", lr=0.1))
    writers = [k for k in found.kernels if any(s in found.graph.outputs for s in k.stores)]
    assert sorted(len(k.stores) for k in writers)[-2:] == [4, 4]  # parameter, gradient, moments
    assert len(found.in_place) >= 6


@pytest.mark.parametrize(
    ("model", "batch"),
    [(logreg, (1000, 784)), (mlp, (1000, 784)), (cnn, (100, 1, 28, 28))],
)
def test_arena_of_the_three_models(model: Callable[[], nn.Module], batch: tuple[int, ...]) -> None:
    found = fused(step(model(), batch, lr=0.1))
    wanted = plan.lifetimes(found)
    memory = plan.plan(wanted, len(found.kernels))
    plan.verify(memory)
    assert memory.lower_bound <= memory.arena_bytes <= 1.1 * memory.lower_bound
    assert memory.arena_bytes <= memory.naive_bytes


def test_a_leaf_read_by_later_kernels_is_not_overwritten_before_them() -> None:
    text = """
        %0 = buffer() : float32[4, 4]
        %1 = Neg(%0) : float32[4, 4] -> out0
        %2 = Matmul(ta=False, tb=False)(%0, %0) : float32[4, 4] -> out1
        out0 overwrites %0
    """
    found = fused(checked(text))
    assert found.in_place == {0: 0}
    assert names(found) == ["matmul", "neg"]  # the reader first


def test_a_product_cannot_overwrite_its_operand() -> None:
    text = """
        %0 = buffer() : float32[4, 4]
        %1 = Matmul(ta=False, tb=False)(%0, %0) : float32[4, 4] -> out0
        out0 overwrites %0
    """
    assert fused(checked(text)).in_place == {}


def test_mutual_updates_overwrite_one_at_most() -> None:
    text = """
        %0 = buffer() : float32[4, 4]
        %1 = buffer() : float32[4, 4]
        %2 = Permute(dims=(1, 0))(%1) : float32[4, 4]
        %3 = Add(%0, %2) : float32[4, 4] -> out0
        %4 = Permute(dims=(1, 0))(%0) : float32[4, 4]
        %5 = Sub(%1, %4) : float32[4, 4] -> out1
        out0 overwrites %0
        out1 overwrites %1
    """
    assert len(fused(checked(text)).in_place) <= 1


def test_rows_do_not_mix() -> None:
    """A square is the case in which a shape does not tell rows from columns."""
    text = """
        %0 = buffer() : float32[8, 8]
        %1 = Sum(dims=(1,), keepdim=False)(%0) : float32[8]
        %2 = Exp(%1) : float32[8]
        %3 = Sub(%0, %2) : float32[8, 8]
        %4 = Sum(dims=(1,), keepdim=False)(%3) : float32[8] -> out0
        %5 = Reshape(shape=(8, 1))(%2) : float32[8, 1]
        %6 = Sub(%0, %5) : float32[8, 8]
        %7 = Sum(dims=(1,), keepdim=False)(%6) : float32[8] -> out1
    """
    found = fused(checked(text))
    assert [k.members for k in found.kernels] == [(1, 2, 7), (4,)]


def test_a_kernel_between_two_parts_of_a_row_keeps_them_apart() -> None:
    text = """
        %0 = buffer() : float32[8, 4]
        %1 = Sum(dims=(1,), keepdim=True)(%0) : float32[8, 1]
        %2 = Permute(dims=(1, 0))(%1) : float32[1, 8]
        %3 = Matmul(ta=False, tb=False)(%2, %0) : float32[1, 4]
        %4 = Sub(%0, %1) : float32[8, 4]
        %5 = Mul(%4, %3) : float32[8, 4]
        %6 = Sum(dims=(1,), keepdim=True)(%5) : float32[8, 1] -> out0
    """
    found = fused(checked(text))  # (the permutation became a reshape or a flag of the product)
    assert [names(found)[i].split("_")[0] for i in range(3)] == ["sum", "matmul", "sum"]


def test_few_long_rows_are_shared_out_in_parts() -> None:
    for shape, kernels in (((4, 100_000), 2), ((64, 1000), 1), ((2000, 70_000), 2)):
        text = f"""
            %0 = buffer() : float32[{shape[0]}, {shape[1]}]
            %1 = Sum(dims=(1,), keepdim=True)(%0) : float32[{shape[0]}, 1]
            %2 = Sub(%0, %1) : float32[{shape[0]}, {shape[1]}] -> out0
        """
        found = fused(checked(text)).kernels
        assert len(found) == kernels
        assert (found[0].rows is not None) == (kernels == 1)


def test_what_lies_between_layers_joins_the_first() -> None:
    """Behind a linear layer on [n, t, features] it would be a kernel of its own."""
    x = mt.from_numpy(np.ones((2, 3, 4), "float32"))
    w, v = (mt.from_numpy(np.ones(s, "float32")) for s in ((8, 4), (4, 8)))
    (graph,) = recorded(lambda: mt.eval(F.linear(F.gelu(F.linear(x, w)), v).sum()))
    found = fused(graph)
    anchors = [found.graph.values[k.anchor].op.name for k in found.kernels if k.anchor is not None]
    assert anchors == ["Matmul", "Matmul", "Sum"]
    assert len(found.kernels) == 3


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_an_activation_keeps_one_value_for_its_gradient(approximate: str) -> None:
    """Its slope: neither what it was applied to nor the elementary function of that."""
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(approximate), nn.Linear(16, 4))
    found = fused(step(model, (6, 8), lr=0.1))
    hidden = [k for k in found.kernels if found.graph.values[k.members[-1]].shape == (6, 16)]
    forward, backward = hidden
    assert len(forward.stores) == 2
    whole = [r for r in backward.reads if found.graph.values[r].shape == (6, 16)]
    assert len(whole) == 1
    assert set(whole) < set(forward.stores)


def test_values_that_others_read_are_kept_beside_what_is_made_of_them() -> None:
    x = mt.from_numpy(np.ones((6, 16), "float32"))
    w, v = (mt.from_numpy(np.ones((16, 16), "float32")) for _ in range(2))

    def several() -> list[mt.Tensor]:
        y = x @ w
        a, b = y.exp(), y.sin()
        return [(a @ v) * (a + b), b.sum(0)]

    (graph,) = recorded(lambda: mt.eval(*several()))
    found = fused(graph)
    first = found.kernels[0]
    assert [found.graph.values[m].op.name for m in first.stores] == ["Exp", "Sin"]


def test_heads_are_read_out_of_one_product() -> None:
    x, w = (mt.from_numpy(np.ones(s, "float32")) for s in ((2, 3, 4), (12, 4)))

    def scores() -> mt.Tensor:  # what it names is gone when they are evaluated
        pieces = F.linear(x, w).split(4, dim=2)
        q, k, _ = (p.reshape(2, 3, 2, 2).transpose(1, 2) for p in pieces)
        return q @ k.transpose(2, 3)

    (graph,) = recorded(lambda: mt.eval(scores()))
    assert len(fused(graph).kernels) == 2


def test_the_gradient_of_softmax_needs_its_result_only() -> None:
    x, ct = mt.rand(6, 5).requires_grad_(), mt.rand(6, 5)
    mt.eval(x, ct)
    graphs = recorded(lambda: mt.eval(*mt.autograd.grad(F.softmax(x, dim=1), [x], [ct])))
    ops = [v.op.name for v in canonicalize(graphs[-1]).values]
    assert ops.count("Div") == ops.count("Exp") == 1


def test_where_a_pool_found_its_maximum_is_kept_in_bytes() -> None:
    x = mt.rand(1, 2, 5, 7).requires_grad_()
    mt.eval(x)
    graphs = recorded(lambda: F.max_pool2d(x, 3, stride=2).sum().backward())
    graphs += recorded(lambda: mt.eval(x.grad))
    found = [fused(g) for g in graphs if any(v.op.name == "MaxPoolIndex" for v in g.values)]
    assert found
    for f in found:
        stored = [f.graph.values[s] for k in f.kernels for s in k.stores]
        assert "uint8" in [v.dtype.name for v in stored]
        assert "int64" not in [v.dtype.name for v in stored]


@pytest.mark.parametrize(
    ("size", "options", "kept"),
    [
        ((4, 8), {"kernel_size": 2}, False),
        ((2, 30), {"kernel_size": 2}, False),
        ((4, 6), {"kernel_size": 2}, True),  # short
        ((5, 8), {"kernel_size": 2}, True),  # a row, or a column, in no window
        ((4, 9), {"kernel_size": 2}, True),
        ((4, 8), {"kernel_size": (1, 2)}, True),
        ((4, 8), {"kernel_size": 2, "stride": 1}, True),
        ((4, 8), {"kernel_size": 2, "dilation": (1, 2)}, True),
        ((4, 8), {"kernel_size": 2, "padding": 1}, True),
        ((3, 8), {"kernel_size": 2, "ceil_mode": True}, True),
    ],
)
def test_maxima_of_two_by_two_are_found_again(
    size: tuple[int, int], options: dict[str, Any], kept: bool
) -> None:
    x = mt.rand(1, 2, *size).requires_grad_()
    mt.eval(x)

    def step() -> None:
        F.max_pool2d(x, **options).sum().backward()
        mt.eval(x.grad)

    names = {v.op.name for g in recorded(step) for v in g.values}
    assert ("MaxPoolIndex" in names) == kept
    assert ("MaxPoolGrad" in names) != kept
