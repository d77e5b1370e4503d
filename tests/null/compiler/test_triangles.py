"""Which products of a graph are known to be triangular, and what rows need not be walked over."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import checked, recorded

import minitorch_tvm as mt
from minitorch_tvm.compiler import triangles
from minitorch_tvm.compiler.canonicalize import canonicalize
from minitorch_tvm.compiler.fuse import fuse
from minitorch_tvm.ir.graph import Graph, verify
from minitorch_tvm.nn import functional as F

MASK = """
    %0 = buffer() : float32[2, 5, 5]
    %1 = buffer() : float32[2, 5, 3]
    %2 = Iota(shape=(5, 5), dim=0, dtype=mt.int32)() : int32[5, 5]
    %3 = Iota(shape=(5, 5), dim=1, dtype=mt.int32)() : int32[5, 5]
    %4 = Le()(%3, %2) : bool[5, 5]
    %5 = Full(shape=(), value=-inf, dtype=mt.float32)() : float32[]
    %6 = Where()(%4, %0, %5) : float32[2, 5, 5]
"""
EXP = MASK + "    %7 = Exp()(%6) : float32[2, 5, 5]\n"


def found(text: str) -> list[str]:
    """The products of a graph, as they are after the search."""
    graph = checked(text)
    after = triangles.products(graph, triangles.hidden_in(graph))
    verify(after)
    return [str(v.op) for v in after.values if "Matmul" in v.op.name]


def product(ta: bool, tb: bool, a: str, b: str, shape: str) -> str:
    return f"    %8 = Matmul(ta={ta}, tb={tb})({a}, {b}) : float32{shape} -> out0\n"


@pytest.mark.parametrize(
    ("line", "left", "right"),
    [
        (product(False, False, "%7", "%1", "[2, 5, 3]"), "lower", ""),
        (product(True, False, "%7", "%1", "[2, 5, 3]"), "upper", ""),
        (product(True, False, "%1", "%7", "[2, 3, 5]"), "", "lower"),
        (product(True, True, "%1", "%7", "[2, 3, 5]"), "", "upper"),
        (product(False, True, "%7", "%7", "[2, 5, 5]"), "lower", "upper"),
    ],
)
def test_operands_whose_zeros_are_known(line: str, left: str, right: str) -> None:
    (op,) = found(EXP + line)
    assert op.startswith("TriangularMatmul(")
    assert op.endswith(f"left={left!r}, right={right!r}, result='')")


UNKNOWN = {
    "zeros that were written": EXP.replace("-inf", "0.0").replace("Exp", "Neg"),
    "not zero": EXP.replace("Exp", "Sigmoid").replace("-inf", "0.0"),
    "right of the diagonal": EXP.replace("(%3, %2)", "(%2, %3)"),
    "the other way round": EXP.replace("(%4, %0, %5)", "(%4, %5, %0)"),
    "numbers that are not the index": EXP.replace("dim=1", "dim=0"),
    "strictly": EXP.replace("Le", "Lt"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_stays(name: str) -> None:
    line = product(False, False, "%7", "%1", "[2, 5, 3]")
    (op,) = found(UNKNOWN[name] + line)
    assert op == "Matmul(ta=False, tb=False)"


def test_a_mask_of_another_shape_hides_nothing() -> None:
    """It is repeated along the rows: which columns it hides does not depend on the row."""
    text = """
        %0 = buffer() : float32[5, 5]
        %1 = Iota(shape=(1, 5), dim=0, dtype=mt.int32)() : int32[1, 5]
        %2 = Iota(shape=(1, 5), dim=1, dtype=mt.int32)() : int32[1, 5]
        %3 = Le()(%2, %1) : bool[1, 5]
        %4 = Full(shape=(), value=-inf, dtype=mt.float32)() : float32[]
        %5 = Where()(%3, %0, %4) : float32[5, 5]
        %6 = Exp()(%5) : float32[5, 5]
        %7 = Matmul(ta=False, tb=False)(%6, %0) : float32[5, 5] -> out0
    """
    assert found(text) == ["Matmul(ta=False, tb=False)"]


SCORES = """
    %0 = buffer() : float32[5, 3]
    %1 = buffer() : float32[5, 3]
    %2 = Matmul(ta=False, tb=True)(%0, %1) : float32[5, 5]{output}
    %3 = Iota(shape=(5, 5), dim=0, dtype=mt.int32)() : int32[5, 5]
    %4 = Iota(shape=(5, 5), dim=1, dtype=mt.int32)() : int32[5, 5]
    %5 = Le()(%4, %3) : bool[5, 5]
    %6 = Full(shape=(), value=-inf, dtype=mt.float32)() : float32[]
    %7 = Neg()(%2) : float32[5, 5]
    %8 = Where()(%5, %7, {other}) : float32[5, 5] -> out0
"""


@pytest.mark.parametrize(
    ("output", "other", "result"),
    [("", "%6", "lower"), (" -> out1", "%6", None), ("", "%2", None)],
)
def test_results_that_are_hidden(output: str, other: str, result: str | None) -> None:
    """Whoever reads the rest of a product, as the caller does, gets all of it."""
    (op,) = found(SCORES.format(output=output, other=other))
    wanted = "Matmul(ta=False, tb=True)"
    if result is not None:
        wanted = f"Triangular{wanted[:-1]}, left='', right='', result={result!r})"
    assert op == wanted


def attention_step(n: int = 7) -> Graph:
    q, k, v, g = (mt.from_numpy(np.ones((2, 3, n, 4), "float32")) for _ in range(4))
    for t in (q, k, v):
        t.requires_grad_()

    def run() -> None:
        F.scaled_dot_product_attention(q, k, v, is_causal=True).backward(g)
        mt.eval(q.grad, k.grad, v.grad)

    return canonicalize(max(recorded(run), key=lambda graph: len(graph.values)))


def test_attention_and_its_gradients() -> None:
    graph = attention_step()
    hidden = triangles.hidden_in(graph)
    after = triangles.products(graph, hidden)
    ops = [v.op for v in after.values if isinstance(v.op, triangles.TriangularMatmul)]
    assert sorted((op.left, op.right, op.result) for op in ops) == [
        ("", "", "lower"),  # scores, and the gradient of the weights
        ("", "", "lower"),
        ("lower", "", ""),  # the gradient of queries
        ("upper", "", ""),  # of keys, of values
        ("upper", "", ""),
    ]
    fused = triangles.row_kernels(fuse(after), hidden)
    (rows,) = [k.rows for k in fused.kernels if k.rows is not None]
    assert [value for _, value in rows.hidden] == [0.0, 0.0]
    assert {m for m, _ in rows.hidden} <= {s for k in fused.kernels for s in k.stores}


def hidden_rows(text: str) -> tuple[tuple[int, float], ...]:
    """What the one kernel of a graph that goes through rows need not walk over."""
    graph = checked(text)
    hidden = triangles.hidden_in(graph)
    fused = triangles.row_kernels(fuse(triangles.products(graph, hidden)), hidden)
    (rows,) = [k.rows for k in fused.kernels if k.rows is not None]
    return rows.hidden


@pytest.mark.parametrize(("reduction", "hidden"), [("Sum", ((9, 0.0),)), ("Max", ()), ("Min", ())])
def test_rows_are_left_where_the_rest_changes_nothing(
    reduction: str, hidden: tuple[tuple[int, float], ...]
) -> None:
    """Zeros change no sum, but may be the largest of a row; and somebody may look at them."""
    text = (
        EXP
        + f"    %8 = {reduction}(dims=(2,), keepdim=True)(%7) : float32[2, 5, 1]\n"
        + "    %9 = Div()(%7, %8) : float32[2, 5, 5]{output}\n"
        + "    %10 = Matmul(ta=False, tb=False)(%9, %1) : float32[2, 5, 3] -> out0\n"
    )
    assert hidden_rows(text.format(output="")) == hidden
    assert hidden_rows(text.format(output=" -> out1")) == ()


def test_graphs_without_such_a_mask_are_left_alone() -> None:
    graph = checked("""
        %0 = buffer() : float32[4, 4]
        %1 = Matmul(ta=False, tb=False)(%0, %0) : float32[4, 4] -> out0
    """)
    assert triangles.hidden_in(graph) == {}
    assert triangles.products(graph, {}) is graph
