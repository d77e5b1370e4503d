"""Functions of positions, movement and order, run with torch and with this package.

``m`` is either module, ``x`` a 3x4 leaf, ``y`` a leaf of 4 elements, ``i`` int64 positions
[[2, 0], [0, 1]], ``k`` a mask of x's shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

X = [[1.5, -2.0, 0.0, 3.0], [0.5, -1.0, 2.5, 4.0], [3.5, -3.0, 5.0, 0.25]]
Y = [2.0, -1.5, 0.5, 3.0]
I = [[2, 0], [0, 1]]
K = [[True, False, True, True], [False, False, True, False], [True, True, False, False]]

Function = Callable[[Any, Any, Any, Any, Any], Any]


def _put(where: Callable[[Any, Any, Any], Any], value: Callable[[Any], Any]) -> Function:
    def f(m: Any, x: Any, y: Any, i: Any, k: Any) -> Any:
        z = x * 1
        z[where(m, i, k)] = value(y)
        return z

    return f


def _add_at(m: Any, x: Any, y: Any, i: Any, k: Any) -> Any:
    z = x * 1
    z[m.tensor([0, 2]), 1] += y[:2]
    z.T[[3, 0]] *= 2.0
    z[:, i[0]][0] = 7.0  # a copy
    return z


def _views(m: Any, x: Any, y: Any, i: Any, k: Any) -> Any:
    z = x * 1
    z.diagonal(1).mul_(y[:3])
    z.movedim(0, 1)[1] += 1
    z.select(1, 3).fill_(2.0)
    z.narrow(0, 1, 2).unflatten(1, (2, 2)).diagonal(0, 1, 2)[1] = y[:2]
    return z + sum(row.sum() for row in z.unbind(1)[:2])


FUNCTIONS: dict[str, Function] = {
    "rows": lambda m, x, y, i, k: x[i],
    "pairs": lambda m, x, y, i, k: x[i, m.tensor([-1, 0])],
    "list": lambda m, x, y, i, k: x[:, [3, 0, 3]],
    "apart": lambda m, x, y, i, k: x[:, None][i[0], :, [1, -2]],
    "mask": lambda m, x, y, i, k: x[k] * 2,
    "row mask": lambda m, x, y, i, k: x[k[:, 0]],
    "mixed": lambda m, x, y, i, k: x.expand(2, 3, 4)[..., k[:, 0], [1, 2]],
    "number": lambda m, x, y, i, k: x.expand(2, 3, 4)[1, :, i],
    "set": _put(lambda m, i, k: (i[0], [1, 2]), lambda y: y[2:]),
    "set rows": _put(lambda m, i, k: [2, 0], lambda y: y),
    "set columns": _put(lambda m, i, k: (slice(None), i[0]), lambda y: y[1:3]),
    "set mask": _put(lambda m, i, k: k, lambda y: 2.5),
    "set mask, values": _put(lambda m, i, k: k, lambda y: y[[0, 1, 2, 3, 0, 1]]),
    "set row mask": _put(lambda m, i, k: k[:, 0], lambda y: y),
    "set column mask": _put(lambda m, i, k: (slice(None), k[0]), lambda y: y[:1]),
    "set none": _put(lambda m, i, k: k & ~k, lambda y: y[:0]),
    "add at": _add_at,
    "views": _views,
    "index_put": lambda m, x, y, i, k: x.index_put((i[0], i[1]), y[:2], True),
    "accumulate": lambda m, x, y, i, k: x.index_put((m.tensor([1, 1, 1]),), y, accumulate=True),
    "gather": lambda m, x, y, i, k: x.gather(1, i),
    "gather0": lambda m, x, y, i, k: m.gather(x, 0, i.int()),
    "take_along": lambda m, x, y, i, k: m.take_along_dim(x, i[:1], 1),
    "take_along all": lambda m, x, y, i, k: m.take_along_dim(x, i),
    "scatter": lambda m, x, y, i, k: x.scatter(1, i, y.reshape(2, 2)),
    "scatter part": lambda m, x, y, i, k: y.scatter(0, m.tensor([3, 1]), x[0, :2]),
    "scatter number": lambda m, x, y, i, k: m.scatter(x, 0, i, 9.0),
    "scatter_": lambda m, x, y, i, k: (x * 1).scatter_(0, i, y.reshape(2, 2) * 2),
    "scatter_add": lambda m, x, y, i, k: m.scatter_add(x, 0, i * 0, y.reshape(2, 2)),
    "index_add": lambda m, x, y, i, k: x.index_add(0, i[:, 0], y.expand(2, 4), alpha=2),
    "index_copy": lambda m, x, y, i, k: x.index_copy(0, i[:, 0], y.expand(2, 4)),
    "index_copy_": lambda m, x, y, i, k: (x * 1).index_copy_(-1, i[0], x[:, 1:3] * 2),
    "masked_select": lambda m, x, y, i, k: x.masked_select(k[0]),
    "masked_fill_": lambda m, x, y, i, k: (x * 1).masked_fill_(k, 2.0),
    "take": lambda m, x, y, i, k: x.T.take(i - 12),
    "flip": lambda m, x, y, i, k: x.flip(0, 1)[0] * y + x.fliplr().flipud()[1],
    "roll": lambda m, x, y, i, k: x.roll((1, -1), (0, 1)) * y + x.roll(5) + x.roll(0, 0),
    "repeat": lambda m, x, y, i, k: x.repeat(2, 1, 2) * y.tile(2),
    "repeat0": lambda m, x, y, i, k: x.repeat(1, 1) + x.repeat(0, 1).sum(),
    "interleave": lambda m, x, y, i, k: x.repeat_interleave(2, 1)[:, 1:5] * y,
    "interleave, each": lambda m, x, y, i, k: x.repeat_interleave(m.tensor([2, 0, 1]), 0),
    "diag": lambda m, x, y, i, k: y.diag(-1)[1:4, :4] * x + x.diag(1).sum(),
    "diagonal": lambda m, x, y, i, k: m.diagonal(x.expand(2, 3, 4), -1, 1, 2) * y[:2],
    "diag0": lambda m, x, y, i, k: y[:0].diag(2).sum() + x.diagonal(9).sum() + x,
    "mesh": lambda m, x, y, i, k: m.meshgrid(y, x[0], x[1, :2], indexing="xy")[1] * y[0],
    "stacks": lambda m, x, y, i, k: m.hstack([m.vstack([y, x]), x.new_tensor([[1.0]] * 4)]),
    "narrow": lambda m, x, y, i, k: x.narrow(1, -3, 2) * x.select(1, -1)[:, None],
    "swap": lambda m, x, y, i, k: x.swapaxes(0, 1) * m.movedim(x, (0, 1), (1, 0)),
    "iterated": lambda m, x, y, i, k: sum(row * row for row in x),
    "cumsum": lambda m, x, y, i, k: x.cumsum(1) * y,
    "cumsum0": lambda m, x, y, i, k: m.cumsum(x.T, 1) * y[:, None],
    "cumprod": lambda m, x, y, i, k: x.cumprod(1) * y,
    "cumprod0": lambda m, x, y, i, k: m.cumprod(m.stack([x, x]), 0),
    "sort": lambda m, x, y, i, k: x.sort(1)[0] * y,
    "sort0": lambda m, x, y, i, k: m.sort(x, 0, descending=True).values * y,
    "topk": lambda m, x, y, i, k: x.topk(2).values * y[:2],
    "topk1": lambda m, x, y, i, k: x.topk(1, 0, largest=False).values * y,
    "kth": lambda m, x, y, i, k: x.kthvalue(2, 1).values,
    "median": lambda m, x, y, i, k: x.median() * x.median(1, keepdim=True).values,
}

TWICE = "pairs, apart, set, set mask, accumulate, gather, scatter, flip, cumsum, cumprod0, sort"
"""Of which second derivatives are compared, too: a program of all takes long to compile."""

FOR_BOTH: dict[str, Function] = {
    "argsort": lambda m, x, y, i, k: [x.argsort(0), x.T.argsort(-1, True), y.sort().indices],
    "indices": lambda m, x, y, i, k: [x.topk(3).indices, x.kthvalue(1, 0).indices],
    "nonzero": lambda m, x, y, i, k: [k.nonzero(), *m.nonzero(x, as_tuple=True)],
    "nonzero of a number": lambda m, x, y, i, k: [y[0].nonzero(), (y[0] * 0).nonzero()],
    "unique": lambda m, x, y, i, k: list(m.unique(i, return_inverse=True, return_counts=True)),
    "bincount": lambda m, x, y, i, k: [
        m.bincount(i.reshape(-1)),
        i.reshape(-1).bincount(y, 6),
        i[0, :0].bincount(),
    ],
    "integers": lambda m, x, y, i, k: [i.cumsum(0), k.cumsum(1), i.int().cumprod(1), k.sort(1)[0]],
    "numbers": lambda m, x, y, i, k: [y[0].cumsum(0), y[0].sort()[0], y[0].argsort(), y[0].flip(0)],
    "none": lambda m, x, y, i, k: [
        x[:0].cumsum(0),
        x[:0].sort(0)[0],
        x[:0].flip(0),
        x[:, :0].sum(),
    ],
    "bools": lambda m, x, y, i, k: [k.flip(0), k.gather(1, i), k[i], k.repeat(1, 2), k.roll(1, 1)],
    "bool scalars": lambda m, x, y, i, k: [x[True], x[False], y[y[0] > 0], x[None, i[0]]],
    "interleave alone": lambda m, x, y, i, k: [m.repeat_interleave(i[0])],
    "nans": lambda m, x, y, i, k: [(x / x).sort(1)[0], (x / x).argsort(1, True), (0 / x).sort()[0]],
    "nan median": lambda m, x, y, i, k: [
        (x / x).median(1)[0],
        (x / x).median(),
        (x / x)[1].median(),
    ],
    "signs": lambda m, x, y, i, k: [1 / (x * -0.0).cumprod(1), 1 / (x * -0.0).cumsum(1)],
}

CALLS = """
x[i, i, i]
x[5, [0]]
x[[0, 1], [0, 1, 2]]
x[[3]]
x[:, [-5]]
x[0, [4]]
x[[0], [9]]
x[y]
x[k[0]]
x[:, k]
x.__setitem__(k, y)
x.__setitem__([0, 1], y[:3])
x.__setitem__([0, 1], i)
x.__setitem__([0, 5], 1.0)
x.__setitem__([0], 'a')
x.index_put_((i,), i)
x.index_put_(i, y)
x.index_put((i, y), y)
x.index_put((i,), y[:3])
x.gather(1, i[0])
x.gather(1, T.tensor([[4, 0], [0, 1]]))
x.gather(1, T.tensor([[1, 0], [-1, 1]]))
x.gather(0, x)
x.gather(0, T.zeros(1, 5, dtype=T.int64))
x.gather(2, i)
T.gather(x, 0, 1)
x.take_along_dim(i[0], 1)
x.take_along_dim(x, 1)
x.scatter(1, i, i)
x.scatter(1, i, y)
x.scatter(1, i, T.ones(1, 2))
x.scatter(1, T.tensor([[4, 0], [0, 1]]), 1.0)
x.scatter(1, x, 1.0)
x.scatter(0, T.zeros(1, 5, dtype=T.int64), 1.0)
x.scatter_add(1, i, 1.0)
x.scatter_add(1, i, T.ones(2, 2, dtype=T.float64))
x.index_add(0, i, x)
x.index_add(0, i[0], x)
x.index_add(0, y[:2], x[:2])
x.index_add(0, i[0], x[:2, :2])
x.index_add(0, i[0], x[:2].long())
x.index_copy(0, i, x)
x.index_copy(0, i[0], T.ones(()))
x.index_copy(0, i[0], x[0])
x.index_copy(0, i[0], x[:2, :3])
x.index_copy(0, i[0], x)
x.index_copy(0, i[0], x[:2].long())
x.index_copy(0, i[0].int(), x[:2])
x.index_copy(0, T.tensor([0, 3]), x[:2])
x.index_copy(0, T.tensor([0, -1]), x[:2])
x.index_copy(2, i[0], x[:2])
x.masked_select(y)
x.take(T.tensor([[12]]))
x.take(i.int())
x.flip(2)
x.flip(0, 0)
T.flip(x, 0)
x.roll((1, 2), 0)
x.roll(1, 2)
x.repeat(2)
x.repeat(-1, 1)
x.repeat_interleave(-1)
x.repeat_interleave(i, 0)
x.repeat_interleave(i[0], 0)
x.repeat_interleave(y[:3], 0)
x.unbind(2)
y[0].unbind()
x.movedim((0, 1), 0)
x.movedim((0, 0), (0, 1))
x.diagonal(0, 1, 1)
y.diagonal()
y[0].diag()
T.meshgrid(y, i[0], indexing='ij')
T.meshgrid(y, indexing='a')
x.narrow(0, 2, 2)
x.narrow(0, 4, 1)
x.narrow(0, 0, -1)
y[0].narrow(0, 0, 1)
x.select(0, 3)
y[0].select(0, 0)
T.hstack([])
T.vstack([])
x.unflatten(1, (3, 2))
x.unflatten(1, ())
x.cumsum(2)
x.sort(2)
x.topk(5)
k.topk(1)
x.kthvalue(5)
k.median()
x[:0].median(0)
x.multinomial(1)
i.multinomial(1)
y.multinomial(1)
(y * 0).multinomial(1)
(y * y / 0).multinomial(3, True)
T.ones(4).multinomial(5)
T.ones(4).multinomial(0)
y[0].multinomial(1)
T.bincount(y)
T.bincount(i)
T.bincount(-i[0])
T.bincount(i[0], y)
T.bincount(i[0], minlength=-1)
"""
