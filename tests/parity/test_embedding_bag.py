"""Bags of embedded rows against torch: values, gradients, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm import lazy

torch = pytest.importorskip("torch")
TF = torch.nn.functional

TABLE = np.random.default_rng(0).standard_normal((6, 3))
LINE, ROWS = [4, 0, 0, 5, 1, 3, 3], [[4, 0, 1], [5, 5, 2]]
# positions, where bags start, options
CASES: list[tuple[Any, list[int] | None, dict[str, Any]]] = [
    (LINE, [0, 2, 2, 6], {}),
    (LINE, [0, 3], {"padding_idx": 0}),
    (LINE, [0, 1, 3], {"padding_idx": -6}),
    (LINE, [0, 3, 7], {"include_last_offset": True}),
    (LINE, [0, 7], {}),
    (ROWS, None, {}),
    (ROWS, None, {"padding_idx": 5}),
    ([], [0, 0], {}),
]


def _side(m: Any, f: Any, case: Any, mode: str, dtype: str, weighted: bool) -> list[Any]:
    positions, starts, options = case
    table = m.tensor(TABLE, dtype=getattr(m, dtype)).requires_grad_()
    index = m.tensor(positions, dtype=m.int64)
    offsets = None if starts is None else m.tensor(starts, dtype=m.int64)
    weights = None
    if weighted:
        scale = np.linspace(0.5, 2, index.numel()).reshape(tuple(index.shape))
        weights = m.tensor(scale, dtype=table.dtype).requires_grad_()
    y = f.embedding_bag(index, table, offsets, mode=mode, per_sample_weights=weights, **options)
    (y * m.arange(1.0, 1 + y.numel()).reshape(y.shape)).sum().backward()
    grads = [t.grad for t in (table, weights) if t is not None]
    return [t.detach().numpy() for t in (y, *grads) if t is not None]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean", "max", "weighted"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bags_are_torchs(case: Any, mode: str, dtype: str) -> None:
    weighted = mode == "weighted"
    if mode == "max" and case[0] is ROWS and not case[2]:
        case = ([[4, 0, 1], [5, 2, 2]], *case[1:])
    how = (case, "sum" if weighted else mode, dtype, weighted)
    want, got = _side(torch, TF, *how), _side(mt, F, *how)
    assert len(got) == len(want)
    for x, y in zip(got, want, strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        np.testing.assert_allclose(x, y, rtol=1e-6 if dtype == "float32" else 1e-14, atol=1e-30)


def test_offsets_still_to_be_computed() -> None:
    found = []
    for m, f in ((torch, TF), (mt, F)):
        index, sizes = m.tensor(LINE), m.tensor([0, 2, 0, 4])
        found.append(f.embedding_bag(index, m.tensor(TABLE), sizes.cumsum(0)).tolist())
    np.testing.assert_allclose(*found, rtol=1e-14)
    table = mt.tensor(TABLE)
    for bad, words in (
        ([1, 1], "has to be 0"),
        ([0, 9], "can not be greater"),
        ([0, 3, -2], "decrease"),
    ):
        with pytest.raises(RuntimeError, match=words):
            F.embedding_bag(mt.tensor(LINE), table, mt.tensor(bad).cumsum(0)).tolist()


def test_no_bags() -> None:
    table = mt.tensor(TABLE, requires_grad=True)
    y = F.embedding_bag(mt.tensor(LINE), table, mt.tensor([], dtype=mt.int64))
    y.sum().backward()  # here torch's process ends
    assert (y.tolist(), y.shape) == ([], (0, 3))
    assert table.grad is not None
    assert not table.grad.any()


def test_under_compile() -> None:
    table = mt.tensor(TABLE)
    f = mt.compile(lambda index, offsets: F.embedding_bag(index, table, offsets))
    for _ in range(3):
        got = f(mt.tensor(LINE), mt.tensor([0, 2, 6]))
        want = F.embedding_bag(mt.tensor(LINE), table, mt.tensor([0, 2, 6]))
        assert got.tolist() == want.tolist()
    with pytest.raises(RuntimeError, match="has to be 0"):
        f(mt.tensor(LINE), mt.tensor([1, 2, 6])).tolist()


WRONG: list[tuple[str, Any, Any, dict[str, Any]]] = [
    ("rows with offsets", ROWS, [0], {}),
    ("no offsets", LINE, None, {}),
    ("offsets of two dimensions", LINE, [[0]], {}),
    ("three dimensions", [ROWS], None, {}),
    ("a number", 3, None, {}),
    ("floats", [1.0], [0], {}),
    ("mode", LINE, [0], {"mode": "x"}),
    ("weights of another shape", LINE, [0], {"per_sample_weights": [1.0], "mode": "sum"}),
    ("no such padding", LINE, [0], {"padding_idx": 6}),
    ("first offset", LINE, [1], {}),
    ("last offset", LINE, [0, 8], {}),
    ("too large", [6], [0], {}),
    ("negative", [-1], [0], {}),
]


@pytest.mark.parametrize(
    ("positions", "starts", "options"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG]
)
def test_what_is_refused(positions: Any, starts: Any, options: dict[str, Any]) -> None:
    texts = []
    for m, f in ((torch, TF), (mt, F)):
        named = {k: m.tensor(v) if k == "per_sample_weights" else v for k, v in options.items()}
        index, table = m.tensor(positions), m.tensor(TABLE).float()
        offsets = None if starts is None else m.tensor(starts)
        with pytest.raises((ValueError, RuntimeError, NotImplementedError)) as caught:
            f.embedding_bag(index, table, offsets, **named)
        text = str(caught.value).split("\n")[0].replace("Index 0 of", "Index of")
        texts.append((type(caught.value), text.split(" found offsets of type")[0]))
    assert texts[0] == texts[1]


def test_weighted_means_are_refused_with_what_to_do_instead() -> None:
    with pytest.raises(NotImplementedError, match=r"Embed the rows, weight them, and take their"):
        F.embedding_bag(mt.tensor(ROWS), mt.tensor(TABLE), per_sample_weights=mt.ones(2, 3))


def test_options_that_are_not_there() -> None:
    for options in ({"max_norm": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}):
        with pytest.raises(ValueError, match="is not supported"):
            F.embedding_bag(mt.tensor(ROWS), mt.tensor(TABLE), **options)
        with pytest.raises(ValueError, match="is not supported"):
            mt.nn.EmbeddingBag(3, 2, **options)
    with pytest.raises(RuntimeError, match=r"offsets must not decrease, but .* by one 2 less"):
        F.embedding_bag(mt.tensor(LINE), mt.tensor(TABLE), mt.tensor([0, 3, 1]))
    weights = mt.ones(2, 3, dtype=mt.float64)
    with pytest.raises(RuntimeError, match="same type as tensor for argument #1 'per_sample_we"):
        F.embedding_bag(mt.tensor(ROWS), mt.ones(6, 1), mode="sum", per_sample_weights=weights)
    with pytest.raises(RuntimeError, match="argument #1 'weight' to have one of the following"):
        F.embedding_bag(mt.tensor(ROWS), mt.ones(6, 1).long())
    with pytest.raises(ValueError, match="weight has to be a 2D Tensor, but got Tensor of dim"):
        F.embedding_bag(mt.tensor(ROWS), mt.ones(6))


def test_the_layer() -> None:
    for m in (torch, mt):
        layer = m.nn.EmbeddingBag(5, 2, padding_idx=-1, mode="sum")
        assert repr(layer) == "EmbeddingBag(5, 2, mode='sum', padding_idx=4)"
        assert layer.weight[4].tolist() == [0.0, 0.0]
        assert list(layer.state_dict()) == ["weight"]
        known = m.nn.EmbeddingBag.from_pretrained(m.eye(3), mode="max")
        assert known(m.tensor([[0, 2]])).tolist() == [[1.0, 0.0, 1.0]]
        assert not known.weight.requires_grad
        with pytest.raises(AssertionError, match="padding_idx must be within num_embeddings"):
            m.nn.EmbeddingBag(5, 2, padding_idx=5)
        with pytest.raises(AssertionError, match="Shape of weight does not match"):
            m.nn.EmbeddingBag(5, 2, _weight=m.ones(2, 2))
        with pytest.raises(AssertionError, match="expected to be 2-dimensional"):
            m.nn.EmbeddingBag.from_pretrained(m.ones(3))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_where_bags_start_is_found_out_at_once(mode: str) -> None:
    table, index = mt.from_numpy(TABLE.astype(np.float32)), mt.tensor(LINE)
    sizes, results = [], []
    for computed in (False, True):
        starts = mt.tensor([0, 2, 2, 6]) + 0 if computed else mt.tensor([0, 2, 2, 6])
        y = F.embedding_bag(index, table, starts, mode=mode)
        mt.eval(y)
        sizes.append(len(lazy.last_executor().program.graph.values))
        results.append(y.numpy())
    np.testing.assert_array_equal(*results)
    assert sizes[0] <= sizes[1] - 30  # else it is looked for, which takes some forty operations
