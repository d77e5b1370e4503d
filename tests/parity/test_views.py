"""Chains of views behave as torch's: shapes, strides, what aliases what, and what is refused."""

from __future__ import annotations

from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import minitorch_tvm as mt

torch = pytest.importorskip("torch")


def _split(draw: st.DrawFn, total: int) -> list[int]:
    """Random sizes with this product, some of them one."""
    sizes = []
    for _ in range(draw(st.integers(0, 3))):
        n = draw(st.sampled_from([n for n in (1, 2, 3, 4) if total % n == 0]))
        sizes.append(n)
        total //= n
    return [*sizes, total]


def _index(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    items: list[Any] = []
    for n in shape[: draw(st.integers(0, len(shape)))]:
        if draw(st.booleans()):
            items.append(None)
        if n and draw(st.booleans()):
            items.append(draw(st.integers(-n, n - 1)))
        else:
            bound = st.none() | st.integers(-n, n)
            items.append(slice(draw(bound), draw(bound), draw(st.none() | st.integers(1, 3))))
    if draw(st.booleans()):
        items.append(None)
    return tuple(items)


def _dim(draw: st.DrawFn, rank: int) -> int:
    return draw(st.integers(-max(rank, 1), max(rank, 1) - 1))


METHODS = (
    *("reshape", "view", "reshape", "view", "flatten", "permute", "transpose", "expand", "t"),
    *("__getitem__", "__getitem__", "squeeze", "unsqueeze", "detach", "contiguous"),
    *("transpose_", "t_", "squeeze_", "unsqueeze_", "add_"),
)


def _step(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[str, tuple[Any, ...]]:
    """A method that looks at a tensor differently, and its arguments."""
    rank, total = len(shape), int(np.prod(shape))
    name = draw(st.sampled_from(METHODS))
    if name in ("reshape", "view"):
        return name, tuple(_split(draw, total))
    if name == "flatten":
        ends = sorted(draw(st.integers(0, max(rank, 1) - 1)) for _ in range(2))
        return name, tuple(ends)
    if name == "permute":
        return name, tuple(draw(st.permutations(range(rank))))
    if name.startswith("transpose"):
        return name, (_dim(draw, rank), _dim(draw, rank))
    if name == "expand":
        new = draw(st.lists(st.sampled_from([1, 2]), max_size=1))
        return name, (*new, *(draw(st.sampled_from([1, 3])) if n == 1 else n for n in shape))
    if name == "__getitem__":
        return name, (_index(draw, shape),)
    if name.startswith("squeeze"):
        return name, draw(st.sampled_from([(), (_dim(draw, rank),)]))
    if name.startswith("unsqueeze"):
        return name, (draw(st.integers(-rank - 1, rank)),)
    if name == "add_":
        return name, (draw(st.integers(1, 9)),)
    return name, ()


def _try(call: Any) -> Any:
    try:
        return call()
    except (RuntimeError, TypeError) as error:
        return str(error).split("\n")[0]


SHAPES = [(2, 3, 4), (4, 6), (12,), (1, 3, 2), (2, 1, 3), (3, 1), (), (0, 3), (2, 0, 2)]


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(st.data())
def test_random_chains_of_views(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(SHAPES))
    start = np.arange(np.prod(shape), dtype="f").reshape(shape)
    theirs, ours = [torch.tensor(start)], [mt.tensor(start)]
    for _ in range(data.draw(st.integers(1, 8))):
        i = data.draw(st.integers(max(0, len(theirs) - 2), len(theirs) - 1))
        name, given = _step(data.draw, tuple(theirs[i].shape))
        want = _try(lambda i=i, name=name, given=given: getattr(theirs[i], name)(*given))
        got = _try(lambda i=i, name=name, given=given: getattr(ours[i], name)(*given))
        if isinstance(want, str) or isinstance(got, str):
            assert got == want
            continue
        hypothesis.note(f"{i}: {name}{given} -> {tuple(want.shape)} {want.stride()}")
        assert tuple(got.shape) == tuple(want.shape)
        assert got.stride() == want.stride()
        assert got.is_contiguous() == want.is_contiguous()
        theirs.append(want)
        ours.append(got)
    number = data.draw(st.integers(0, len(theirs) - 1))
    refused = [_try(lambda t=side[number]: t.add_(100).numel()) for side in (theirs, ours)]
    assert refused[0] == refused[1]
    mt.eval(*ours)
    for want, got in zip(theirs, ours, strict=True):
        np.testing.assert_array_equal(got.numpy(), want.numpy())


def test_stride_of_a_dimension() -> None:
    for package in (torch, mt):
        x = package.ones(2, 3, 4).permute(2, 0, 1)
        assert (x.stride(), x.stride(1), x.stride(-1)) == ((1, 12, 4), 12, 4)
        with pytest.raises(IndexError, match="Dimension out of range"):
            x.stride(3)
        assert package.ones(()).stride() == ()


def _outcome(m: Any, method: str, *given: Any, **named: Any) -> Any:
    """What a method answers for a matrix: shape and strides, or its error."""
    x = m.arange(6.0).reshape(2, 3)
    try:
        result = getattr(x, method)(*given, **named)
    except (RuntimeError, TypeError, IndexError) as error:
        return type(error).__name__, str(error).split("\n")[0]
    assert result is x
    return tuple(x.shape), x.stride(), x.tolist()


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("unsqueeze_", (1,)),
        ("unsqueeze_", (5,)),
        ("unsqueeze_", ("a",)),
        ("squeeze_", ((0, 1),)),
        ("squeeze_", (4,)),
        ("transpose_", (0, -1)),
        ("transpose_", (0, 3)),
        ("transpose_", (0, "a")),
        ("swapaxes_", (0, 1)),
        ("swapdims_", (1, 1)),
        ("t_", ()),
    ],
)
def test_views_in_place(method: str, given: tuple[Any, ...]) -> None:
    assert _outcome(mt, method, *given) == _outcome(torch, method, *given)


def test_views_in_place_refuse_what_torch_refuses() -> None:
    for package in (torch, mt):
        with pytest.raises(RuntimeError, match=r"t_\(\) expects a tensor with <= 2 dim.* is 3D"):
            package.ones(1, 1, 1).t_()
        w = package.ones(2, 3, requires_grad=True)
        with pytest.raises(RuntimeError, match=r"^a leaf Variable that requires grad"):
            w.t_()
        with pytest.raises(RuntimeError, match=r"^a view of a leaf Variable that requires grad"):
            w[0].unsqueeze_(0)
        w.detach().t_()
        assert tuple(w.shape) == (2, 3)
    with mt.no_grad(), pytest.raises(NotImplementedError, match=r"^t_\(\) of a leaf that requires"):
        w.t_()


def test_views_in_place_keep_gradients() -> None:
    found = []
    for package in (torch, mt):
        x = package.ones(2, 3, requires_grad=True)
        y = x * 2
        row, shared = y[0], y.detach()
        y.t_()
        y[1].mul_(4.0)
        row.add_(1.0)
        (y.unsqueeze_(0) * package.arange(6.0).reshape(1, 3, 2)).sum().backward()
        found.append([x.grad.tolist(), y.tolist(), row.tolist(), shared.tolist(), y.is_leaf])
    assert found[0] == found[1]


def test_views_in_place_of_what_is_given_anew() -> None:
    found = []
    for package in (torch, mt):
        x = package.arange(6.0).reshape(2, 3)
        shared, row = x.detach(), x[0]
        x.t_()
        x.data = package.zeros(2, 2)
        shared.unsqueeze_(0).add_(1.0)
        x.unsqueeze_(-1).add_(5.0)
        row.data = package.ones(3)
        row.add_(1.0)
        found.append([x.tolist(), shared.tolist(), row.tolist()])
    assert found[0] == found[1]


def test_a_function_that_views_in_place_runs_every_time() -> None:
    @mt.compile
    def f(x: Any) -> Any:
        y = x + 1
        y.unsqueeze_(0)
        return y.t_()

    with pytest.warns(RuntimeWarning, match="at every call: it changes a shape in place"):
        assert f(mt.tensor([1.0, 0.0])).tolist() == [[2.0], [1.0]]
    assert f(mt.tensor([1.0, 5.0])).tolist() == [[2.0], [6.0]]
