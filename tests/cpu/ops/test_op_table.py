"""Every op against its row: shape, dtype, value, reference, gradients, text and errors."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import table_movement
from row import Row
from table import ROWS

import minitorch_tvm as mt
from minitorch_tvm import ops as ops_package
from minitorch_tvm.core import dtype as dt
from minitorch_tvm.ir.graph import Graph, Value, evaluate, verify
from minitorch_tvm.ir.node import BUFFER, Node, apply, leaf
from minitorch_tvm.ir.op import Kind, Op, Spec
from minitorch_tvm.runtime.memory import buffer_of
from minitorch_tvm.tensor import Tensor

each_row = pytest.mark.parametrize("row", ROWS, ids=lambda r: r.cls.__name__)

# float32: a few units in the last place, and rounding of sums of up to 131 terms.
TOLERANCE = {"float32": 4e-6, "float64": 1e-13}


def _node(array: np.ndarray[Any, Any]) -> Node:
    kind = dt.from_numpy(array.dtype)
    return leaf(buffer_of(array, kind), array.shape, kind)


def _close(got: Any, want: Any, what: str, scale: float = 1.0) -> None:
    assert got.dtype == want.dtype, what
    assert got.shape == want.shape, what
    if want.dtype.kind == "f":
        tolerance = TOLERANCE[want.dtype.name] * scale
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance, err_msg=what)
    else:
        np.testing.assert_array_equal(got, want, err_msg=what)


CONTRACT = ("infer", "compute", "reference")


def _concrete(cls: type[Op]) -> list[type[Op]]:
    below = cls.__subclasses__()
    whole = all(getattr(cls, name) is not getattr(Op, name) for name in CONTRACT)
    # What nothing derives from is to be an op: a part of the contract that it lacks is an error.
    found = [cls] if whole or not below else []
    return found + [c for sub in below for c in _concrete(sub)]


def test_every_op_keeps_the_whole_contract() -> None:
    for cls in _concrete(Op):
        lacks = [name for name in CONTRACT if getattr(cls, name) is getattr(Op, name)]
        assert not lacks, f"{cls.__name__} has no {lacks}"


def test_every_op_has_exactly_one_row() -> None:
    for module in pkgutil.iter_modules(ops_package.__path__):
        import_module(f"{ops_package.__name__}.{module.name}")
    classes = {c for c in _concrete(Op) if c.__module__.startswith(ops_package.__name__ + ".")}
    classes = {c for c in classes if c.kind is not Kind.COMPOSITE}  # made of the others
    rows = [r.cls for r in ROWS]
    assert len(rows) == len(set(rows))
    assert {c.__name__ for c in classes} == {c.__name__ for c in rows}
    assert len(classes) >= 47


@each_row
def test_shape_dtype_value_and_reference(row: Row, rng: np.random.Generator) -> None:
    checks = []
    for number, (op, shapes) in enumerate(row.cases):
        for n, dtype in enumerate(row.dtypes):
            if n and len(row.cases) > 2 and (number + n) % 3:
                continue  # all with the first dtype, every third with each other one
            args = row.sample(rng, shapes, dtype)
            want = row.expected(op, args, dtype)
            what = f"{op} on {dtype} {shapes}"
            y = apply(op, *map(_node, args))
            assert y.spec == Spec(want.shape, dt.from_numpy(want.dtype)), what
            with np.errstate(all="ignore"):
                reference = np.asarray(op.reference(np, *args))
            _close(reference, want, f"reference of {what}")
            checks.append((Tensor._wrap(y), want, what))
    mt.eval(*[t for t, _, _ in checks])
    for t, want, what in checks:
        _close(t.numpy(), want, what)


@pytest.mark.parametrize("row", [r for r in ROWS if r.specials], ids=lambda r: r.cls.__name__)
def test_special_values(row: Row) -> None:
    checks = []
    for op, columns in row.specials:
        for dtype in [d for d in row.dtypes if d.startswith("float")]:
            kinds = row.inputs * len(columns) if len(row.inputs) == 1 else row.inputs
            args = [
                np.array(c, bool if k == "b" else dtype)
                for k, c in zip(kinds, columns, strict=True)
            ]
            want = row.expected(op, args, dtype)
            with np.errstate(all="ignore"):
                _close(np.asarray(op.reference(np, *args)), want, f"reference of {op}")
            checks.append((Tensor._wrap(apply(op, *map(_node, args))), want, f"{op} {dtype}"))
    mt.eval(*[t for t, _, _ in checks])
    for t, want, what in checks:
        _close(t.numpy(), want, what)


def _small(row: Row) -> list[tuple[Op, Any]]:
    """Up to three cases, small enough for finite differences."""
    sizes = [(sum(int(np.prod(s)) for s in shapes), op, shapes) for op, shapes in row.cases]
    fit = [(op, shapes) for n, op, shapes in sizes if 1 < n <= 64]
    return fit[:: max(1, len(fit) // 3)][:3]


def _tensors(row: Row, rng: np.random.Generator, shapes: Any) -> list[Tensor]:
    args = [mt.tensor(a) for a in row.sample(rng, shapes, "float64")]
    for i in range(len(args)) if row.inputs == "n" else row.grad:
        args[i].requires_grad_()
    return args


def _operands(row: Row, xs: Sequence[Tensor]) -> list[Node]:
    return [((x + x.mT) / 2 if row.symmetric else x).node for x in xs]


differentiable = pytest.mark.parametrize(
    "row", [r for r in ROWS if r.grad], ids=lambda r: r.cls.__name__
)


@differentiable
def test_gradient(row: Row, rng: np.random.Generator) -> None:
    for op, shapes in _small(row):

        def f(*xs: Tensor, op: Op = op) -> Tensor:
            return Tensor._wrap(apply(op, *_operands(row, xs)))

        assert mt.autograd.gradcheck(f, tuple(_tensors(row, rng, shapes))), f"{op} {shapes}"


@pytest.mark.parametrize(
    "row", [r for r in ROWS if r.grad and not r.flat], ids=lambda r: r.cls.__name__
)
def test_second_gradient(row: Row, rng: np.random.Generator) -> None:
    # One shape of an op that has no attributes: its gradient is made of ops that have rows, too.
    count = 2 if row.cases[0][0].attributes() else 1
    for op, shapes in _small(row)[-count:]:

        def slope(*xs: Tensor, op: Op = op) -> tuple[Tensor, ...]:
            # The square makes the gradient of a linear op depend on its operands.
            y = Tensor._wrap(apply(op, *_operands(row, xs)))
            wanted = [x for x in xs if x.requires_grad]
            return mt.autograd.grad((y * y).sum(), wanted, create_graph=True)

        assert mt.autograd.gradcheck(slope, tuple(_tensors(row, rng, shapes))), f"{op} {shapes}"


# Gradients of a cast, and of eigenvectors, whose signs may change, are tested apart.
ELSEWHERE = ("Cast", "Eigh")


def _takes_floats(row: Row) -> bool:
    return row.inputs == "n" and "float32" in row.dtypes and bool(row.cases[0][1])


@pytest.mark.parametrize(
    "row",
    [r for r in ROWS if not r.grad and _takes_floats(r) and r.cls.__name__ not in ELSEWHERE],
    ids=lambda r: r.cls.__name__,
)
def test_no_history_without_gradient(row: Row, rng: np.random.Generator) -> None:
    op, shapes = row.cases[0]
    xs = [_node(a) for a in row.sample(rng, shapes, "float32")]
    for x in xs:
        x.requires_grad = x.grad_leaf = True
    y = apply(op, *xs)
    if op.differentiable:  # but only where nobody asks for it
        with pytest.raises(RuntimeError, match=f"derivative for {op.name} is not implemented"):
            mt.autograd.grad(Tensor._wrap(y).sum(), Tensor._wrap(xs[0]))
    else:
        assert not y.requires_grad


def test_cast_passes_gradients_between_floats_only() -> None:
    x = mt.tensor([1.5, -2.25], dtype=mt.float64, requires_grad=True)
    y = x.float()
    assert y.dtype is mt.float32
    (y * mt.tensor([3.0, 0.1])).sum().backward()
    assert x.grad is not None
    assert x.grad.dtype is mt.float64
    assert x.grad.tolist() == [3.0, float(np.float32(0.1))]
    assert not x.long().requires_grad
    assert not x.bool().requires_grad


@each_row
def test_text_form(row: Row, rng: np.random.Generator) -> None:
    for op, shapes in row.cases:
        dtype = row.dtypes[0]
        args = row.sample(rng, shapes, dtype)
        specs = [Spec(a.shape, dt.from_numpy(a.dtype)) for a in args]
        spec = op.infer(*specs)

        def build(op: Op = op, specs: list[Spec] = specs, spec: Spec = spec) -> Graph:
            values = [Value(BUFFER, (), *s) for s in specs]
            values.append(Value(op, tuple(range(len(specs))), *spec))
            return Graph(tuple(values), (len(specs),))

        graph = build()
        verify(graph)
        text = str(graph)
        assert text == str(build())
        last = text.splitlines()[-1]
        operands = ", ".join(f"%{i}" for i in range(len(specs)))
        assert last == f"%{len(specs)} = {op}({operands}) : {spec} -> out0"
        # The printed attributes are the whole op: what they say rebuilds it.
        names = {"mt": mt, "inf": np.inf, "nan": np.nan}
        assert eval(f"dict{str(op).removeprefix(op.name) or '()'}", names) == op.attributes()
        with np.errstate(all="ignore"):
            (value,) = evaluate(graph, args, lambda o, xs: o.reference(np, *xs))
        assert np.shape(value) == spec.shape


@pytest.mark.parametrize(
    "bad", [b for r in ROWS for b in r.bad], ids=lambda b: f"{b.op.name}-{'-'.join(b.specs)}"
)
def test_error_text(bad: Any) -> None:
    nodes = [leaf(None, s.shape, s.dtype) for s in bad.parsed()]
    with pytest.raises(bad.error) as caught:
        apply(bad.op, *nodes)
    assert type(caught.value) is bad.error
    assert caught.value.args == (bad.message,)
    (note,) = caught.value.__notes__
    operands = ", ".join(map(str, bad.parsed()))
    assert note.startswith(f"recorded {bad.op} on ({operands}) at test_op_table.py:")
    assert "apply(bad.op, *nodes)" in note


def test_interning_tells_attributes_apart_by_bits() -> None:
    from_table = {id(op) for r in ROWS for op, _ in r.cases}
    again = {id(type(op)(*op.attributes().values())) for r in ROWS for op, _ in r.cases}
    assert not from_table & again
    zeros = [op for r in ROWS for op, _ in r.cases if op.name == "Full"]
    assert len({op.uid for op in zeros}) == len(set(map(str, zeros)))
    assert all(op.kind is not Kind.LEAF for op in zeros)


def test_threefry_oracle_gives_the_published_vectors() -> None:
    full = 0xFFFFFFFF
    known = {
        ((0, 0), (0, 0)): (0x6B200159, 0x99BA4EFE),
        ((full, full), (full, full)): (0x1CB996FC, 0xBB002BE7),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3)): (0xC4923A9C, 0x483DF7A0),
    }
    for (key, counter), words in known.items():
        assert table_movement.threefry(key, counter) == words
