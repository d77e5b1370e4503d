"""Every rewriting rule, and what holds for all of them."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import checked, recorded, results

import minitorch_tvm as mt
from minitorch_tvm.compiler import canonicalize as pass_module
from minitorch_tvm.compiler.canonicalize import canonicalize
from minitorch_tvm.nn import functional as F

X = "%0 = buffer() : float32[2, 3]\n"


def ops(text: str) -> list[str]:
    """Names of the ops of the canonical form, leaves left out; values must not change."""
    graph = checked(text)
    small = canonicalize(graph)
    checked(str(small))
    for a, b in zip(results(graph), results(small), strict=True):
        np.testing.assert_array_equal(a, b)
    return [v.op.name for v in small.values if not v.is_leaf]


def section(title: str) -> str:
    """The indented block behind ``title`` in the docstring of the pass."""
    assert pass_module.__doc__ is not None
    block = pass_module.__doc__.split(f"{title}::")[1].lstrip("\n")
    lines = []
    for line in block.splitlines():
        if line and not line.startswith("    "):
            break
        lines.append(line.strip())
    return "\n".join(filter(None, lines))


def test_the_docstring_is_what_happens() -> None:
    before, after = section("Before"), section("After")
    assert str(checked(before)) == before
    assert str(canonicalize(checked(before))) == after


RULES = {
    "two negations": ("%1 = Neg(%0) : float32[2, 3]\n%2 = Neg(%1) : float32[2, 3]\n"
                      "%3 = Exp(%2) : float32[2, 3] -> out0", ["Exp"]),
    "clone and detach": ("%1 = Clone(%0) : float32[2, 3]\n%2 = Detach(%1) : float32[2, 3]\n"
                         "%3 = Exp(%2) : float32[2, 3] -> out0", ["Exp"]),
    "cast to itself": ("%1 = Cast(dtype=mt.float32)(%0) : float32[2, 3]\n"
                       "%2 = Exp(%1) : float32[2, 3] -> out0", ["Exp"]),
    "reshape twice": ("%1 = Reshape(shape=(6,))(%0) : float32[6]\n"
                      "%2 = Reshape(shape=(3, 2))(%1) : float32[3, 2] -> out0", ["Reshape"]),
    "reshape and back": ("%1 = Reshape(shape=(6,))(%0) : float32[6]\n"
                         "%2 = Reshape(shape=(2, 3))(%1) : float32[2, 3]\n"
                         "%3 = Exp(%2) : float32[2, 3] -> out0", ["Exp"]),
    "permute twice": ("%1 = Permute(dims=(1, 0))(%0) : float32[3, 2]\n"
                      "%2 = Permute(dims=(1, 0))(%1) : float32[2, 3]\n"
                      "%3 = Exp(%2) : float32[2, 3] -> out0", ["Exp"]),
    "expand twice": ("%1 = Expand(shape=(1, 2, 3))(%0) : float32[1, 2, 3]\n"
                     "%2 = Expand(shape=(4, 2, 3))(%1) : float32[4, 2, 3] -> out0", ["Expand"]),
    "whole slice": ("%1 = Slice(starts=(0, 0), stops=(2, 3), steps=(1, 1))(%0) : float32[2, 3]\n"
                    "%2 = Exp(%1) : float32[2, 3] -> out0", ["Exp"]),
    "insert nothing": ("%1 = Full(shape=(0, 3), value=0.0, dtype=mt.float32)() : float32[0, 3]\n"
                       "%2 = Insert(starts=(0, 0), steps=(1, 1))(%0, %1) : float32[2, 3]\n"
                       "%3 = Exp(%2) : float32[2, 3] -> out0", ["Exp"]),
    "insert all": ("%1 = Neg(%0) : float32[2, 3]\n"
                   "%2 = Insert(starts=(0, 0), steps=(1, 1))(%0, %1) : float32[2, 3]\n"
                   "%3 = Exp(%2) : float32[2, 3] -> out0", ["Neg", "Exp"]),
    "times one": ("%1 = Full(shape=(), value=1.0, dtype=mt.float32)() : float32[]\n"
                  "%2 = Mul(%1, %0) : float32[2, 3]\n%3 = Exp(%2) : float32[2, 3] -> out0",
                  ["Exp"]),
    "minus zero": ("%1 = Full(shape=(), value=0.0, dtype=mt.float32)() : float32[]\n"
                   "%2 = Sub(%0, %1) : float32[2, 3]\n%3 = Exp(%2) : float32[2, 3] -> out0",
                   ["Exp"]),
    "plus zero stays": ("%1 = Full(shape=(), value=0.0, dtype=mt.float32)() : float32[]\n"
                        "%2 = Add(%0, %1) : float32[2, 3] -> out0", ["Full", "Add"]),
    "minus negative zero stays": (
        "%1 = Full(shape=(), value=-0.0, dtype=mt.float32)() : float32[]\n"
        "%2 = Sub(%0, %1) : float32[2, 3] -> out0", ["Full", "Sub"]),
    "divided by eight": ("%1 = Full(shape=(), value=8.0, dtype=mt.float32)() : float32[]\n"
                         "%2 = Div(%0, %1) : float32[2, 3] -> out0", ["Full", "Mul"]),
    "divided by three stays": ("%1 = Full(shape=(), value=3.0, dtype=mt.float32)() : float32[]\n"
                               "%2 = Div(%0, %1) : float32[2, 3] -> out0", ["Full", "Div"]),
    "constants": ("%1 = Full(shape=(2, 3), value=2.0, dtype=mt.float32)() : float32[2, 3]\n"
                  "%2 = Full(shape=(), value=3.0, dtype=mt.float32)() : float32[]\n"
                  "%3 = Mul(%1, %2) : float32[2, 3]\n%4 = Reshape(shape=(6,))(%3) : float32[6]\n"
                  "%5 = Neg(%4) : float32[6] -> out0", ["Full"]),
    "sum of a constant": ("%1 = Full(shape=(2, 3), value=2.0, dtype=mt.float32)() : float32[2, 3]\n"
                          "%2 = Sum(dims=(1,), keepdim=False)(%1) : float32[2] -> out0", ["Full"]),
    "sum of one": ("%1 = Reshape(shape=(2, 1, 3))(%0) : float32[2, 1, 3]\n"
                   "%2 = Sum(dims=(1,), keepdim=False)(%1) : float32[2, 3]\n"
                   "%3 = Exp(%2) : float32[2, 3] -> out0", ["Exp"]),
    "equal values": ("%1 = Exp(%0) : float32[2, 3]\n%2 = Exp(%0) : float32[2, 3]\n"
                     "%3 = Add(%1, %2) : float32[2, 3] -> out0", ["Exp", "Add"]),
    "dead values": ("%1 = Exp(%0) : float32[2, 3]\n%2 = Neg(%0) : float32[2, 3] -> out0", ["Neg"]),
    "transposed operands": ("%1 = Permute(dims=(1, 0))(%0) : float32[3, 2]\n"
                            "%2 = Matmul(ta=False, tb=False)(%1, %0) : float32[3, 3] -> out0",
                            ["Matmul"]),
    "a row times a column": (
        "%1 = Reshape(shape=(1, 6))(%0) : float32[1, 6]\n"
        "%2 = Reshape(shape=(6, 1))(%0) : float32[6, 1]\n"
        "%3 = Matmul(ta=False, tb=False)(%1, %2) : float32[1, 1]\n"
        "%4 = Exp(%3) : float32[1, 1] -> out0",
        ["Reshape", "Mul", "Sum", "Reshape", "Exp"]),
    "transposed product": (
        "%1 = Exp(%0) : float32[2, 3]\n"
        "%2 = Matmul(ta=True, tb=False)(%0, %1) : float32[3, 3]\n"
        "%3 = Permute(dims=(1, 0))(%2) : float32[3, 3]\n%4 = Neg(%3) : float32[3, 3] -> out0",
        ["Exp", "Matmul", "Neg"]),
    "transposed products of a batch": (
        "%1 = Reshape(shape=(2, 1, 3))(%0) : float32[2, 1, 3]\n%2 = Exp(%0) : float32[2, 3]\n"
        "%3 = Matmul(ta=False, tb=True)(%1, %2) : float32[2, 1, 2]\n"
        "%4 = Permute(dims=(0, 2, 1))(%3) : float32[2, 2, 1]\n"
        "%5 = Neg(%4) : float32[2, 2, 1] -> out0", ["Reshape", "Exp", "Matmul", "Neg"]),
    "a product that is also read as it is stays": (
        "%1 = Exp(%0) : float32[2, 3]\n"
        "%2 = Matmul(ta=True, tb=False)(%0, %1) : float32[3, 3]\n"
        "%3 = Permute(dims=(1, 0))(%2) : float32[3, 3]\n%4 = Add(%2, %3) : float32[3, 3] -> out0",
        ["Exp", "Matmul", "Permute", "Add"]),
    "a product that is a result stays": (
        "%1 = Exp(%0) : float32[2, 3]\n"
        "%2 = Matmul(ta=True, tb=False)(%0, %1) : float32[3, 3] -> out1\n"
        "%3 = Permute(dims=(1, 0))(%2) : float32[3, 3] -> out0",
        ["Exp", "Matmul", "Permute"]),
    "elementwise between reshapes": (
        "%1 = Reshape(shape=(6,))(%0) : float32[6]\n"
        "%2 = Full(shape=(), value=2.0, dtype=mt.float32)() : float32[]\n"
        "%3 = Mul(%1, %2) : float32[6]\n%4 = Exp(%3) : float32[6]\n"
        "%5 = Add(%3, %4) : float32[6]\n"
        "%6 = Reshape(shape=(2, 3))(%5) : float32[2, 3]\n"
        "%7 = Sum(dims=(1,), keepdim=False)(%6) : float32[2] -> out0",
        ["Full", "Mul", "Exp", "Add", "Sum"]),
    "elementwise reshaped to another shape": (
        "%1 = Reshape(shape=(6,))(%0) : float32[6]\n%2 = Exp(%1) : float32[6]\n"
        "%3 = Reshape(shape=(3, 2))(%2) : float32[3, 2]\n"
        "%4 = Sum(dims=(1,), keepdim=False)(%3) : float32[3] -> out0",
        ["Exp", "Reshape", "Sum"]),
    "a result between reshapes stays": (
        "%1 = Reshape(shape=(6,))(%0) : float32[6]\n%2 = Exp(%1) : float32[6] -> out0\n"
        "%3 = Reshape(shape=(2, 3))(%2) : float32[2, 3]\n"
        "%4 = Sum(dims=(1,), keepdim=False)(%3) : float32[2] -> out1",
        ["Reshape", "Exp", "Reshape", "Sum"]),
    "read between reshapes stays": (
        "%1 = Reshape(shape=(6,))(%0) : float32[6]\n%2 = Exp(%1) : float32[6]\n"
        "%3 = Reshape(shape=(2, 3))(%2) : float32[2, 3]\n"
        "%4 = Sum(dims=(1,), keepdim=False)(%3) : float32[2] -> out0\n"
        "%5 = Max(dims=(0,), keepdim=False)(%2) : float32[] -> out1",
        ["Reshape", "Exp", "Reshape", "Sum", "Max"]),
    "from two shapes stays": (
        "%1 = Reshape(shape=(6,))(%0) : float32[6]\n"
        "%2 = Permute(dims=(1, 0))(%0) : float32[3, 2]\n"
        "%3 = Reshape(shape=(6,))(%2) : float32[6]\n%4 = Add(%1, %3) : float32[6]\n"
        "%5 = Reshape(shape=(2, 3))(%4) : float32[2, 3]\n"
        "%6 = Sum(dims=(1,), keepdim=False)(%5) : float32[2] -> out0",
        ["Reshape", "Permute", "Reshape", "Add", "Reshape", "Sum"]),
    "a line spread over what is reshaped stays": (
        "%1 = Reshape(shape=(3, 2))(%0) : float32[3, 2]\n"
        "%2 = Sum(dims=(0,), keepdim=False)(%1) : float32[2]\n"
        "%3 = Mul(%1, %2) : float32[3, 2]\n"
        "%4 = Reshape(shape=(2, 3))(%3) : float32[2, 3]\n"
        "%5 = Sum(dims=(1,), keepdim=False)(%4) : float32[2] -> out0",
        ["Reshape", "Sum", "Mul", "Reshape", "Sum"]),
    "a leaf as result": ("%1 = Clone(%0) : float32[2, 3] -> out0", ["Clone"]),
    "one value, two results": ("%1 = Exp(%0) : float32[2, 3] -> out0\n"
                               "%2 = Exp(%0) : float32[2, 3] -> out1", ["Exp", "Clone"]),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_rule(name: str) -> None:
    text, want = RULES[name]
    assert ops(X + text) == want


HEADS = "%0 = buffer() : float32[2, 12]\n"
PIECES = {  # start, stop and step of a slice of 12, the shape it gets, whether it is divided before
    "at a multiple": (4, 8, 1, (2, 2, 2), True),
    "all from a multiple on": (6, 12, 1, (2, 2, 3), True),
    "at no multiple": (3, 7, 1, (2, 2, 2), False),
    "with gaps": (0, 8, 2, (2, 2, 2), False),
    "with gaps, undivided": (0, 8, 2, (1, 2, 4), True),
    "of no divisor": (5, 10, 1, (2, 1, 5), False),
    "with other dimensions": (0, 4, 1, (8,), False),
}


@pytest.mark.parametrize("name", PIECES)
def test_reshaped_slices(name: str) -> None:
    start, stop, step, shape, divided = PIECES[name]
    piece = len(range(start, stop, step))
    text = (
        f"{HEADS}%1 = Slice(starts=(0, {start}), stops=(2, {stop}), steps=(1, {step}))(%0) : "
        f"float32[2, {piece}]\n"
        f"%2 = Reshape(shape={shape})(%1) : float32{list(shape)}\n"
        f"%3 = Exp(%2) : float32{list(shape)} -> out0"
    )
    order = ["Reshape", "Slice"] if divided else ["Slice", "Reshape"]
    assert ops(text) == [*order, "Exp"]


MERGED = {  # starts and stops of a slice of [4, 3, 5], its new shape, whether it is merged before
    "first steps": ((0, 0, 0), (2, 3, 5), (6, 5), True),
    "later steps": ((1, 0, 0), (4, 3, 5), (9, 5), True),
    "and some columns": ((1, 0, 2), (4, 3, 4), (9, 2), True),
    "all in one": ((1, 0, 0), (3, 3, 5), (30,), True),
    "some rows of each": ((0, 1, 0), (4, 3, 5), (8, 5), False),
    "columns in one": ((0, 0, 1), (4, 3, 5), (4, 12), False),
}


@pytest.mark.parametrize("name", MERGED)
def test_slices_whose_dimensions_become_one(name: str) -> None:
    starts, stops, shape, merged = MERGED[name]
    size = [b - a for a, b in zip(starts, stops, strict=True)]
    text = (
        f"%0 = buffer() : float32[4, 3, 5]\n"
        f"%1 = Slice(starts={starts}, stops={stops}, steps=(1, 1, 1))(%0) : float32{size}\n"
        f"%2 = Reshape(shape={shape})(%1) : float32{list(shape)}\n"
        f"%3 = Exp(%2) : float32{list(shape)} -> out0"
    )
    order = ["Reshape", "Slice"] if merged else ["Slice", "Reshape"]
    assert ops(text) == [*order, "Exp"]


PARTS = {  # of [6], into which three elements are inserted from 2 on: start, stop, what is left
    "inside": (3, 5, ["Slice"]),
    "all of it": (2, 5, []),
    "before": (0, 2, ["Full"]),
    "behind": (5, 6, ["Full"]),
    "both": (1, 4, ["Full", "Insert", "Slice"]),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_what_is_inserted(name: str) -> None:
    start, stop, left = PARTS[name]
    n = stop - start
    text = (
        "%0 = buffer() : float32[3]\n"
        "%1 = Full(shape=(6,), value=0.5, dtype=mt.float32)() : float32[6]\n"
        "%2 = Insert(starts=(2,), steps=(1,))(%1, %0) : float32[6]\n"
        f"%3 = Slice(starts=({start},), stops=({stop},), steps=(1,))(%2) : float32[{n}]\n"
        f"%4 = Exp(%3) : float32[{n}] -> out0"
    )
    if left == ["Full"]:
        assert ops(text) == ["Full"]  # of a constant
    else:
        assert ops(text) == [*left, "Exp"]


def test_parts_of_a_sum_of_what_is_inserted() -> None:
    """As gradients of two parts of a result are."""
    text = (
        "%0 = buffer() : float32[3]\n"
        "%1 = buffer() : float32[2]\n"
        "%2 = Full(shape=(6,), value=0.0, dtype=mt.float32)() : float32[6]\n"
        "%3 = Insert(starts=(0,), steps=(1,))(%2, %0) : float32[6]\n"
        "%4 = Insert(starts=(4,), steps=(1,))(%2, %1) : float32[6]\n"
        "%5 = Add(%3, %4) : float32[6]\n"
        "%6 = Slice(starts=(0,), stops=(3,), steps=(1,))(%5) : float32[3] -> out0"
    )
    assert ops(text) == ["Full", "Add"]


@pytest.mark.parametrize("shape", ["1, 2", "3, 1", "2"])
def test_parts_of_a_sum_that_broadcasts(shape: str) -> None:
    """A part of the sum is at another place of what is broadcast, or of none."""
    ones = ", ".join(["1"] * len(shape.split(",")))
    zeros = ones.replace("1", "0")
    text = (
        "%0 = buffer() : float32[1, 2]\n"
        f"%1 = buffer() : float32[{ones}]\n"
        "%2 = Full(shape=(3, 2), value=0.0, dtype=mt.float32)() : float32[3, 2]\n"
        f"%3 = Full(shape=({shape},), value=0.0, dtype=mt.float32)() : float32[{shape}]\n"
        "%4 = Insert(starts=(0, 0), steps=(1, 1))(%2, %0) : float32[3, 2]\n"
        f"%5 = Insert(starts=({zeros},), steps=({ones},))(%3, %1) : float32[{shape}]\n"
        "%6 = Add(%4, %5) : float32[3, 2]\n"
        "%7 = Slice(starts=(1, 0), stops=(3, 2), steps=(1, 1))(%6) : float32[2, 2] -> out0"
    )
    assert ops(text)[-2:] == ["Add", "Slice"]


def test_a_slice_of_what_is_computed_stays_small() -> None:
    """Reshaping all of it would need memory for all of it."""
    text = (
        f"{HEADS}%1 = Exp(%0) : float32[2, 12]\n"
        "%2 = Slice(starts=(0, 4), stops=(2, 8), steps=(1, 1))(%1) : float32[2, 4]\n"
        "%3 = Reshape(shape=(2, 2, 2))(%2) : float32[2, 2, 2]\n"
        "%4 = Sum(dims=(2,), keepdim=False)(%3) : float32[2, 2] -> out0"
    )
    assert ops(text) == ["Exp", "Slice", "Reshape", "Sum"]


@pytest.mark.parametrize(("start", "divided"), [(4, True), (8, True), (3, False)])
def test_inserted_heads(start: int, divided: bool) -> None:
    text = (
        "%0 = buffer() : float32[2, 2, 3]\n"
        "%1 = Permute(dims=(1, 0, 2))(%0) : float32[2, 2, 3]\n"
        "%2 = Permute(dims=(0, 2, 1))(%1) : float32[2, 3, 2]\n"
        "%3 = Reshape(shape=(2, 6))(%2) : float32[2, 6]\n"
        "%4 = Full(shape=(2, 14), value=0.5, dtype=mt.float32)() : float32[2, 14]\n"
        f"%5 = Insert(starts=(0, {start}), steps=(1, 1))(%4, %3) : float32[2, 14]\n"
        "%6 = Exp(%5) : float32[2, 14] -> out0"
    )
    order = ["Full", "Insert", "Reshape"] if divided else ["Reshape", "Full", "Insert"]
    assert ops(text) == ["Permute", *order, "Exp"]


def test_nothing_folds_across_dtypes() -> None:
    text = (
        "%0 = Full(shape=(), value=16777217, dtype=mt.int64)() : int64[]\n"
        "%1 = Cast(dtype=mt.float32)(%0) : float32[]\n"
        "%2 = Cast(dtype=mt.int64)(%1) : int64[] -> out0"
    )
    graph = canonicalize(checked(text))
    assert results(graph)[0] == 16777216


def model_graphs() -> list[pass_module.Graph]:
    def step() -> None:
        w = mt.rand(5, 4)
        w.requires_grad_()
        x, y = mt.rand(3, 5), mt.tensor([0, 3, 1])
        loss = F.cross_entropy((x @ w).relu(), y)
        loss.backward()
        with mt.no_grad():
            w.sub_(w.grad * 0.5)
        mt.eval(w, loss)

    return recorded(step)


def test_idempotent_and_faithful_on_a_training_step() -> None:
    graphs = model_graphs()
    assert graphs
    for graph in graphs:
        assert str(checked(str(graph))) == str(graph)
        once = canonicalize(graph)
        assert str(canonicalize(once)) == str(once)
        assert len(set(once.outputs)) == len(once.outputs)
        assert not any(once.values[o].is_leaf for o in once.outputs)
        assert len(once.leaves()) == len(graph.leaves())
        for a, b in zip(results(graph), results(once), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
