"""``axis`` and ``keepdims`` for ``dim`` and ``keepdim``: where torch takes them, and only there."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt

torch = pytest.importorskip("torch")

BOTH = {"axis": 1, "keepdims": True}
REDUCTIONS = [
    "sum",
    "mean",
    "prod",
    "max",
    "min",
    "amax",
    "amin",
    "argmax",
    "argmin",
    "std",
    "var",
    "std_mean",
    "var_mean",
    "median",
    "any",
    "all",
    "nanmedian",
    "logsumexp",
    "nansum",
    "nanmean",
    "aminmax",
    "mode",
]
SCANS = [
    "cumsum",
    "cumprod",
    "cummax",
    "cummin",
    "logcumsumexp",
    "softmax",
    "log_softmax",
    "count_nonzero",
    "sort",
    "argsort",
    "squeeze",
    "unsqueeze",
    "unbind",
    "diff",
    "trapezoid",
    "trapz",
    "cumulative_trapezoid",
]
OTHERS = {  # arguments behind the tensor
    "quantile": (0.5,),
    "nanquantile": (0.5,),
    "kthvalue": (1,),
    "topk": (2,),
    "chunk": (2,),
    "tensor_split": (2,),
    "repeat_interleave": (2,),
}
NAMED = {  # given by their names
    "gather": {"index": "i"},
    "scatter": {"index": "i", "src": "x"},
    "scatter_add": {"index": "i", "src": "x"},
    "scatter_reduce": {"index": "i", "src": "x", "reduce": "sum"},
    "index_select": {"index": "row"},
    "index_add": {"index": "row", "source": "x"},
    "index_copy": {"index": "row", "source": "x"},
    "index_reduce": {"index": "row", "source": "x", "reduce": "prod"},
    "index_fill": {"index": "row", "value": 2.0},
    "take_along_dim": {"indices": "i"},
    "narrow": {"start": 1, "length": 2},
    "select": {"index": 1},
    "renorm": {"p": 2, "maxnorm": 1.0},
    "cross": {"other": "x"},
    "select_scatter": {"src": "row of x", "index": 1},
    "slice_scatter": {"src": "x"},
}
IN_PLACE = {
    "cumsum_": {},
    "cumprod_": {},
    "squeeze_": {},
    "unsqueeze_": {},
    "renorm_": NAMED["renorm"],
    "scatter_": NAMED["scatter"],
    "scatter_add_": NAMED["scatter_add"],
    "index_add_": NAMED["index_add"],
    "index_copy_": NAMED["index_copy"],
    "index_fill_": NAMED["index_fill"],
}


def data(lib: Any) -> dict[str, Any]:
    x = lib.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0], [0.5, 0.0, 2.0]])
    i = lib.tensor([[0, 1, 0], [1, 2, 0], [2, 0, 1]])
    return {"x": x, "i": i, "row": lib.tensor([2, 0, 1]), "row of x": x[0] * 2}


def same(call: Any) -> None:
    """What a call, given the library and its data, answers."""
    answers = []
    for lib in (mt, torch):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = call(lib, data(lib))
        except TypeError:
            answers.append(TypeError)
            continue
        several = result if isinstance(result, (tuple, list)) else (result,)
        answers.append([np.asarray(t.tolist()) for t in several])
    ours, theirs = answers
    if TypeError in (ours, theirs):
        assert ours is theirs
        return
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("kwargs", [BOTH, {"axis": 0}, {"dim": 1, "keepdims": True}], ids=str)
def test_reductions(name: str, kwargs: dict[str, Any]) -> None:
    same(lambda lib, d: getattr(lib, name)(d["x"], **kwargs))
    if name not in ("std_mean", "var_mean"):
        same(lambda lib, d: getattr(d["x"], name)(**kwargs))


@pytest.mark.parametrize("name", SCANS + list(OTHERS))
def test_along_a_dimension(name: str) -> None:
    args = OTHERS.get(name, ())
    for kwargs in ({"axis": 0}, {"axis": 1}, {"axis": 0, "dim": 0}):
        same(lambda lib, d, k=kwargs: getattr(lib, name)(d["x"], *args, **k))
        if "trap" not in name:
            same(lambda lib, d, k=kwargs: getattr(d["x"], name)(*args, **k))


def filled(kwargs: dict[str, Any], d: dict[str, Any]) -> dict[str, Any]:
    return {k: d[v] if isinstance(v, str) and v in d else v for k, v in kwargs.items()}


@pytest.mark.parametrize("name", NAMED)
def test_positions(name: str) -> None:
    kwargs = NAMED[name]
    same(lambda lib, d: getattr(lib, name)(d["x"], axis=0, **filled(kwargs, d)))
    same(lambda lib, d: getattr(d["x"], name)(axis=0, **filled(kwargs, d)))


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name: str) -> None:
    same(lambda lib, d: getattr(d["x"].clone(), name)(axis=0, **filled(IN_PLACE[name], d)))


@pytest.mark.parametrize("name", ["cat", "concat", "concatenate", "stack"])
def test_joining(name: str) -> None:
    same(lambda lib, d: getattr(lib, name)([d["x"], d["x"]], axis=1))
    same(lambda lib, d: getattr(lib, name)([d["x"], d["x"]], 1, axis=1))


def test_of_linear_algebra_and_functional() -> None:
    same(lambda lib, d: lib.linalg.vector_norm(d["x"], **BOTH))
    same(lambda lib, d: lib.linalg.norm(d["x"], **BOTH))
    same(lambda lib, d: lib.linalg.matrix_norm(d["x"], axis=(0, 1), keepdims=True))
    same(lambda lib, d: lib.linalg.cross(d["x"], d["x"] + 1, axis=0))
    same(lambda lib, d: lib.nn.functional.cosine_similarity(d["x"], d["x"] + 1, axis=0))
    for name in ("softmax", "log_softmax", "normalize"):
        same(lambda lib, d, n=name: getattr(lib.nn.functional, n)(d["x"], axis=0))


@pytest.mark.parametrize("kwargs", [{"axis": 1, "dim": 1}, {"dim": 1, "keepdim": True, **BOTH}])
@pytest.mark.parametrize("name", ["sum", "var", "argmax", "any", "median", "logsumexp"])
def test_both_names(name: str, kwargs: dict[str, Any]) -> None:
    same(lambda lib, d: getattr(lib, name)(d["x"], **kwargs))
    same(lambda lib, d: getattr(d["x"], name)(**kwargs))


def test_where_there_are_none() -> None:
    for kwargs in ({"axis": 1}, {"keepdims": True}):
        for name in ("norm", "unique", "flip", "roll", "split", "msort"):
            same(lambda lib, d, n=name, k=kwargs: getattr(d["x"], n)(**k))
    same(lambda lib, d: d["x"].cumsum(axis=1, keepdims=True))
    same(lambda lib, d: d["x"].sum(1, True, keepdims=True))
    same(lambda lib, d: d["x"].argmax(axis=1.5))


def test_positions_of_arguments_are_told_as_before(assert_refused: Any) -> None:
    words = "softmax(): argument 'dim' (position 2) must be int, not float"
    assert_refused(lambda: mt.softmax(mt.ones(2), 1.5), TypeError, words)
    words = "cumsum(): argument 'dim' (position 2) must be int, not float"
    assert_refused(lambda: mt.cumsum(mt.ones(2), 1.5), TypeError, words)
