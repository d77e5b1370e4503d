"""Graphs with room compute what the original does, whatever is in the rest of their inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from graphs import recorded

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm import sites, varying
from minitorch_tvm.ir.graph import Graph, evaluate, verify
from minitorch_tvm.ir.node import BUFFER, apply
from minitorch_tvm.ir.op import intern
from minitorch_tvm.ops.recurrent import GATES, Recurrence
from minitorch_tvm.sites import History
from minitorch_tvm.tensor import Tensor

SIZES = (
    *((7, 11), (19, 23), (27, 31), (13, 12), (9, 17), (18, 29), (24, 19), (16, 20), (22, 15)),
    *((10, 16), (19, 12), (25, 27), (11, 22), (20, 22)),
)
"""Of two dimensions, most of them between others."""
C = 6  # of what does not vary; positions in the tests are below
_POSITIONS = 5


_LEAVES: list[mt.Tensor] = []
"""Of the case that is being recorded."""


def x(*shape: int) -> mt.Tensor:
    _LEAVES.append(mt.from_numpy(np.zeros(shape, np.float32)).requires_grad_())
    return _LEAVES[-1]


def i(*shape: int) -> mt.Tensor:
    return mt.from_numpy(np.zeros(shape, np.int64))


def trained(*results: mt.Tensor) -> list[mt.Tensor]:
    """The results, the sum of their squares, and its gradients."""
    total = sum((r * r).sum() for r in results if r.requires_grad)
    total.backward()
    return [*results, total, *(leaf.grad for leaf in _LEAVES if leaf.grad is not None)]


def weights(n: int, m: int) -> tuple[mt.Tensor, ...]:
    return x(n, C), x(C, C), x(C)


def _dense(n: int, m: int) -> Any:
    a, w, b = weights(n, m)
    y = F.relu(F.linear(a, w, b))
    y.square().mean().backward()
    return y, a.grad, w.grad, b.grad


def _ends(last: Any) -> tuple[mt.Tensor, ...]:
    """The final states of a recurrent layer."""
    return last if isinstance(last, tuple) else (last,)


def _layer(kind: Any, **options: Any) -> Callable[[int, int], Any]:
    """A recurrent layer of any number of steps, and its gradients."""

    def case(n: int, m: int) -> Any:
        layer = kind(C, 4, **options)
        _LEAVES.extend(layer.parameters())
        count = layer.num_layers * (1 + layer.bidirectional)
        first = [x(count, 3, 4) for _ in range(1 + (kind is mt.nn.LSTM))]
        y, last = layer(x(n, 3, C), tuple(first) if len(first) > 1 else first[0])
        return trained(y, *_ends(last))

    return case


def _read_first(kind: Any, **options: Any) -> Callable[[int, int], Any]:
    """The same, of which the result is evaluated before gradients are."""

    def case(n: int, m: int) -> Any:
        layer = kind(C, 4, **options)
        _LEAVES.extend(layer.parameters())
        y, last = layer(x(n, 3, C))
        total = (y * y).sum() + sum((r * r).sum() for r in _ends(last))
        mt.eval(total)
        total.backward()
        return [leaf.grad for leaf in _LEAVES]

    return case


def _tagged(n: int, m: int) -> Any:
    """A label for every word: what the layer has as words of texts are texts of words here."""
    layer = mt.nn.LSTM(C, 4, batch_first=True)
    _LEAVES.extend(layer.parameters())
    scores = layer(x(3, n, C))[0] @ x(4, 5)
    loss = F.cross_entropy(scores.reshape(-1, 5), i(3, n).reshape(-1))
    loss.backward()
    return [loss, *(leaf.grad for leaf in _LEAVES)]


def _kept(cell: str, reverse: bool) -> Callable[[int, int], Any]:
    """All that a recurrence keeps for its gradients."""

    def case(n: int, m: int) -> Any:
        op, width = intern(Recurrence(cell, reverse, True)), 4 * GATES[cell]
        last = {"lstm": [x(3, 4)], "gru": [x(width)]}.get(cell, [])
        given = (x(n, 3, width), x(width, 4), x(3, 4), *last)
        return (Tensor._wrap(apply(op, *(t.detach().node for t in given))),)

    return case


def _batches(n: int, m: int) -> Any:
    """Batches of any size of sequences of any length, of which the last states are used, too."""
    layer = mt.nn.LSTM(C, 4, batch_first=True, bidirectional=True)
    _LEAVES.extend(layer.parameters())
    y, (h, c) = layer(x(n, m, C))
    return trained(y.mean(1), h, c)


def _packed(kind: Any, **options: Any) -> Callable[[int, int], Any]:
    """Sequences of different lengths, the longest of n steps."""

    def case(n: int, m: int) -> Any:
        rnn = mt.nn.utils.rnn
        layer = kind(C, 4, batch_first=True, **options)
        _LEAVES.extend(layer.parameters())
        lengths = [max(1, n - k * m // 4) for k in range(5)]
        y, last = layer(rnn.pack_padded_sequence(x(5, n, C), lengths, batch_first=True))
        return trained(rnn.pad_packed_sequence(y, batch_first=True)[0], *_ends(last))

    return case


def _read(kind: Any, **options: Any) -> Callable[[int, int], Any]:
    """The same without gradients."""

    def case(n: int, m: int) -> Any:
        layer = kind(C, 4, **options)
        with mt.no_grad():
            y, last = layer(x(n, 3, C))
        return y, *_ends(last)

    return case


def _attention(n: int, m: int) -> Any:
    q, k, v = x(2, 3, n, 4), x(2, 3, m, 4), x(2, 3, m, 4)
    y = F.scaled_dot_product_attention(q, k, v)
    y.sum().backward()
    return y, q.grad, k.grad, v.grad


def _causal(n: int, m: int) -> Any:
    q = x(2, n, C)
    s = (q @ q.transpose(1, 2)).masked_fill(mt.ones(n, n, dtype=mt.bool).triu(1), float("-inf"))
    y = s.softmax(-1) @ q
    y.sum().backward()
    return y, q.grad


def _rows(n: int, m: int) -> Any:
    a = x(3, n, C)
    y = F.layer_norm(a, (C,), x(C), x(C)).reshape(-1, C)
    z = F.linear(y, x(4, C)).reshape(3, n, 4)
    z.square().mean().backward()
    return z, a.grad


def _batch_norm(n: int, m: int) -> Any:
    a, mean, var = x(n, C), mt.zeros(C), mt.ones(C)
    y = F.batch_norm(a, mean, var, x(C), x(C), training=True)
    y.square().sum().backward()
    return y, a.grad, mean, var


def _graph(n: int, m: int) -> Any:
    nodes, src, dst = x(n, C), i(m), i(m)
    h = mt.zeros_like(nodes).index_add(0, dst, nodes[src] * 0.5)
    pooled = mt.zeros(4, C).index_add(0, i(n) * 0 + 1, h)
    pooled.square().mean().backward()
    return h, pooled, nodes.grad


def _images(n: int, m: int) -> Any:
    a, w = x(n, 3, 8, 8), x(4, 3, 3, 3)
    y = F.max_pool2d(F.relu(F.conv2d(a, w, x(4), padding=1)), 2)
    z = F.avg_pool2d(y, 2).flatten(1)
    F.cross_entropy(z, i(n)).backward()
    return z, a.grad, w.grad


def _nothing(n: int, m: int) -> Any:
    y = x(n, C)
    return trained(y[:0].sum() + (y * y).sum(), mt.cat([y[:0], y, y[2:2]]))


def _texts(n: int, m: int) -> Any:
    """Scores and labels of all tokens, in a row; of a fixed number of texts, and of any."""
    found: list[Any] = []
    for texts in (4, m):
        tokens, table, head = i(texts, n), x(8, C), x(8, C)
        scores = F.linear(F.embedding(tokens, table), head)
        labels = i(texts, n)
        F.cross_entropy(scores.flatten(0, 1), labels.flatten()).backward(retain_graph=True)
        F.cross_entropy(scores[:, :-1].reshape(-1, 8), labels[:, 1:].reshape(-1)).backward()
        found += [table.grad, head.grad]
    return found


def _labels_in_one_line(n: int, m: int) -> Any:
    tokens, table, head = i(m, n), x(8, C), x(8, C)
    scores = F.linear(F.embedding(tokens, table), head)
    F.cross_entropy(scores.flatten(0, 1), i(m * n), ignore_index=3).backward(retain_graph=True)
    weighted = F.cross_entropy(scores.flatten(0, 1), i(m * n), reduction="none") * x(m * n)
    return trained(weighted.view(m, n).sum(1), table.grad, head.grad)


def _images_of_any_size(n: int, m: int) -> Any:
    a, w, more = x(2, 3, n, 4 * m), x(C, 3, 3, 3), x(8, C, 3, 3)
    y = F.relu(F.batch_norm(F.conv2d(a, w, padding=1), None, None, x(C), x(C), training=True))
    y = F.conv2d(F.max_pool2d(y, 3, 1, 1), more, x(8), stride=2, padding=1)
    y = F.relu(F.group_norm(y, 2, x(8), x(8)))
    F.cross_entropy(F.linear(y.mean((2, 3)), x(4, 8)), i(2)).backward()
    return y, a.grad, w.grad, more.grad


def _sorted(n: int, m: int) -> Any:
    return trained(
        x(n).sort().values,
        x(n, m).sort(0, descending=True).values,
        x(n).topk(3).values,
        x(n, C).median(0).values,
        x(n, C).sort(0, stable=True).values[:4],
        x(n).topk(5, largest=False).values,
    )


def _put(n: int, m: int) -> Any:
    base, values = x(n, C), x(m, C)
    y = base.index_copy(0, i(m), values)
    y.sum().backward()
    return y, base.grad, values.grad


def _losses(n: int, m: int) -> Any:
    a, b = x(n, C), x(n, C)
    labels = i(n)
    found = [
        F.cross_entropy(a, labels),
        F.cross_entropy(a, labels, ignore_index=2, label_smoothing=0.1),
        F.mse_loss(a, b),
        F.smooth_l1_loss(a, b),
        F.binary_cross_entropy_with_logits(a, b.sigmoid()),
        F.nll_loss(a.log_softmax(1), labels, reduction="sum"),
        F.kl_div(a.log_softmax(1), b.softmax(1), reduction="batchmean"),
    ]
    sum(found[1:], found[0]).backward()
    return *found, a.grad, b.grad


CASES: dict[str, Callable[[int, int], Any]] = {
    "elementwise": lambda n, m: trained((x(n, m).tanh() * x(m) + x(n, 1)).exp(), x(n).abs()),
    "sums": lambda n, m: trained(
        x(n, m).sum(0), x(n, m).sum(1), x(n, C).sum(), x(3, n, C).sum((0, 2)), x(C, n).mean()
    ),
    "means": lambda n, m: trained(
        x(n, m).mean(0), x(n, m).var(1), x(n, C).std(0), x(n, m).var(), x(m, n).mean((0, 1))
    ),
    "extremes": lambda n, m: trained(
        x(n, m).amax(0), x(n, m).amin(1), x(n, C).max(), x(n, C).min(0).values, x(n, m).amax(1)
    ),
    "positions": lambda n, m: (
        x(n, m).argmax(0),
        x(n, m).argmin(1),
        x(n, C).argmax(),
        x(C, n).argmax(1),
        i(n).argmin(),
    ),
    "logic": lambda n, m: (
        (x(n, m) > 0).any(0),
        (x(n, m) > -9).all(),
        (i(n) < 3).sum(),
        (x(n) == x(n)).all(),
    ),
    "softmax": lambda n, m: trained(x(n, m).softmax(0), x(n, m).log_softmax(1), x(n).softmax(0)),
    "logsumexp": lambda n, m: trained(x(n, m).logsumexp(0), F.normalize(x(n, C), dim=0)),
    "products": lambda n, m: trained(
        x(n, C) @ x(C, m), x(n, m) @ x(m, C), x(C, n) @ x(n, C), x(m, n).t() @ x(m, 4), x(n) @ x(n)
    ),
    "batches": lambda n, m: trained(
        x(n, 3, C) @ x(C, 4),
        x(n, 3, C) @ x(n, C, 2),
        x(3, n, m) @ x(3, m, C),
        x(2, 3, n, C) @ x(C, n),
    ),
    "dense": _dense,
    "attention": _attention,
    "causal": _causal,
    "rows": _rows,
    "batch_norm": _batch_norm,
    "graph": _graph,
    "images": _images,
    "put": _put,
    "nothing beside": _nothing,
    "texts": _texts,
    "sorted": _sorted,
    "places in rows": lambda n, m: trained(x(m, n, C).flatten(0, 1)[i(n)], x(m, n).topk(3).values),
    "places of two dimensions": lambda n, m: trained(
        x(n, m, C)[i(4), i(4)],
        x(n, m).gather(1, i(n, 2)),
        x(3, n, m).take_along_dim(i(3, 2, 1), 1),
        x(n, m).index_put((i(3), i(3)), x(3), accumulate=True),
        x(n, m).scatter(0, i(1, 4), 3.0),
    ),
    "sorted integers": lambda n, m: (
        i(n).sort().values,
        i(n, C).argsort(0, descending=True),
        i(m, n).topk(2).indices,
    ),
    "losses": _losses,
    "slices": lambda n, m: trained(
        x(n, m)[1:],
        x(n, m)[:, :-1],
        x(n, C)[-1],
        x(C, n)[:, -1],
        x(n)[2:5],
        x(n, C)[:, 1:3],
        x(n, m)[:-2, 3:],
        x(2, n, C)[:, 0],
        x(n, C)[-3:],
    ),
    "steps": lambda n, m: trained(
        x(n, C)[::2], x(m, n)[1:4, ::3], x(40, C)[:n], x(n, C)[1::2], x(n, C)[1:-1, ::2]
    ),
    "diagonals": lambda n, m: trained(
        (x(n, 3) @ x(3, n)).diagonal(), x(n, n).tril().sum(1), mt.eye(n) * x(n), x(n, m).triu(1)
    ),
    "flat": lambda n, m: (
        x(C, n).argmax(),
        x(n, m).argmin(),
        x(3, n, m).argmax(),
        x(4, n).flatten().flip(0)[: 2 * n],
        mt.cat([x(3, n).flatten(), x(m)]),
        x(4, n).flatten().cumsum(0),
    ),
    "joined": lambda n, m: trained(
        mt.cat([x(n, C), x(m, C)]),
        mt.cat([x(1, C), x(n, C)]),
        mt.cat([x(n, C), x(2, C)]),
        mt.cat([x(n, 2), x(n, 3)], 1),
        mt.cat([x(C, m), x(C, 3), x(C, n)], 1),
        mt.stack([x(n), x(n)]),
    ),
    "flipped": lambda n, m: trained(x(n, m).flip(0), x(n, C).flip(0, 1), x(C, n).roll(2, 1)),
    "padded": lambda n, m: trained(F.pad(x(n, C), (1, 2)), F.pad(x(n, C), (0, 0, 2, 0))),
    "reshaped": lambda n, m: trained(
        x(n, 4, 3).reshape(n, 12).sum(0),
        x(3, n, 4).reshape(3 * n, 4).sum(0),
        x(3, n, 4).permute(1, 0, 2).reshape(n, 12).softmax(0),
        x(n, m).reshape(-1).sum(),
        x(2, n, 3, m).permute(0, 2, 1, 3).flatten(0, 1).amax((1, 2)),
    ),
    "expanded": lambda n, m: trained(
        x(1, C).expand(n, C) * x(n, C),
        x(C).expand(n, m, C).sum(1),
        mt.ones(n, C) * x(C),
        mt.arange(n)[:, None] * x(1, C),
        mt.linspace(0, 1, m) * x(C, 1),
        mt.full((n,), 2.0) * x(n),
    ),
    "running": lambda n, m: trained(
        x(n, C).cumsum(0), x(C, n).cumprod(1), x(n, C).cumsum(1), x(n).flip(0).cumsum(0)
    ),
    "taken": lambda n, m: trained(
        x(n, C)[i(m)],
        x(C, n)[:, i(4)],
        x(n, C).gather(1, i(n, 1)),
        F.embedding(i(n, m), x(C, 4)),
        x(n, C).index_select(0, i(3)),
        x(n, C).take_along_dim(i(n, 2), 1),
    ),
    "written": lambda n, m: trained(
        x(n, C).index_add(0, i(m), x(m, C)),
        x(n, C).scatter(1, i(n, 1), 2.0),
        x(n, C).scatter_add(1, i(n, 2), x(n, 2)),
        mt.zeros(n).index_put((i(m),), x(m), accumulate=True),
    ),
    "chosen": lambda n, m: trained(
        mt.where(x(n, m) > 0, x(n, m), 0.0),
        x(n, C).masked_fill(i(n, C) > 2, 1.0),
        x(n, C).topk(2, 1).values,
        x(n, C).sort(1).values,
        F.one_hot(i(n), C) * x(n, 1),
    ),
    "largest of some": lambda n, m: trained(
        x(40).topk(n).values, x(40, 3).topk(n, 0).values.sum(1)
    ),
    "random": lambda n, m: trained(
        mt.rand(n, C) * x(C),
        mt.rand(3, n) + x(3, 1),
        F.dropout(x(n, m, C)),
        mt.randn(2, n, m) * x(m),
    ),
    "lines": lambda n, m: trained(
        F.relu(F.conv1d(x(2, C, n), x(4, C, 5), x(4), padding=2)).amax(2),
        F.conv1d(F.conv1d(x(3, C, m), x(C, 2, 3), groups=3), x(4, C, 3), dilation=2).mean(2),
    ),
    "images of any size": _images_of_any_size,
    "windows": lambda n, m: trained(
        F.max_pool2d(x(2, 3, n, 4 * m), 3, 2, 1),
        F.max_pool2d(x(2, 3, n + 7, 4 * m), 3, 2, dilation=2, ceil_mode=True),
    ),
    "means of windows": lambda n, m: trained(
        F.avg_pool2d(x(1, 2, m, n), 3, 1, 1, count_include_pad=False),
        F.avg_pool2d(x(1, 2, m, 9), 2, 3),
        F.avg_pool1d(x(3, C, n), 2),
    ),
    "windows over the end": lambda n, m: trained(
        F.avg_pool2d(x(1, 2, 2 * m + 1, 9), 2, ceil_mode=True)
    ),
    "even images": lambda n, m: trained(
        F.max_pool2d(F.relu(x(2, 3, 2 * n, 2 * m)), 2),
        F.max_pool2d(F.conv2d(x(1, 2, 4 * m, 8), x(3, 2, 3, 3), padding=1), 2).amax((2, 3)),
    ),
    "even images of any others": lambda n, m: trained(
        F.max_pool2d(F.interpolate(x(1, 2, n, 4 * m), scale_factor=2), 2),
    ),
    "larger images": lambda n, m: trained(
        F.conv_transpose2d(x(2, C, n, m), x(C, 3, 2, 2), x(3), stride=2),
        F.conv_transpose2d(x(1, C, n, 5), x(C, 3, 4, 4), stride=2, padding=1).relu().mean((2, 3)),
        F.conv_transpose1d(x(2, C, m), x(C, 3, 3)),
    ),
    "rows of a few": lambda n, m: trained(
        x(3 * n, C).view(-1, 3, C).sum(1) * x(n, C),
        F.linear(x(5 * m, C), x(4, C)).view(m, 5, 4).amax(1),
        x(4 * n).view(-1, 2, 2).softmax(1).square(),
    ),
    "a few of many": lambda n, m: trained(
        x(3 * n, C).view(3, -1, C).sum(1),
        F.linear(x(2 * m, C), x(4, C)).view(2, m, 4).logsumexp(1) + x(2 * m, C).sum(),
    ),
    "rows of any number": lambda n, m: trained(
        x(n * m, C).view(n, m, C).sum(1) * x(n, C), x(n * m).view(n, m).amax(0)
    ),
    "random rows of a few": lambda n, m: trained(
        (mt.rand(5 * n, C) * x(C)).view(n, 5, C).sum(1) + x(n, C), F.dropout(x(3 * m)).view(m, 3)
    ),
    "labels in one line": _labels_in_one_line,
    "distances": lambda n, m: trained(
        mt.cdist(x(n, 3), x(m, 3)), x(n, 3).norm(dim=1), x(n, C).norm()
    ),
    "einsum": lambda n, m: trained(
        mt.einsum("nc,mc->nm", x(n, C), x(m, C)), mt.einsum("bnc,bnd->bcd", x(3, n, C), x(3, n, 4))
    ),
    "integers": lambda n, m: (i(n, m).sum(0), i(n).amax(), i(n, C).float().mean(0), i(n) // 2 % 3),
    "lstm": _layer(mt.nn.LSTM),
    "lstm of two directions": _layer(mt.nn.LSTM, bidirectional=True),
    "two lstm": _layer(mt.nn.LSTM, num_layers=2),
    "gru": _layer(mt.nn.GRU),
    "gru of two directions": _layer(mt.nn.GRU, bidirectional=True),
    "rnn": _layer(mt.nn.RNN, bidirectional=True),
    "rnn with relu": _layer(mt.nn.RNN, nonlinearity="relu", bidirectional=True),
    "batches for an lstm": _batches,
    "packed for an lstm": _packed(mt.nn.LSTM, bidirectional=True),
    "packed for two gru": _packed(mt.nn.GRU, num_layers=2),
    "read first, lstm": _read_first(mt.nn.LSTM, bidirectional=True),
    "read first, gru": _read_first(mt.nn.GRU, bidirectional=True),
    "read first, rnn": _read_first(mt.nn.RNN, bidirectional=True),
    "tagged": _tagged,
    "rows of an lstm": _kept("lstm", False),
    "rows of an lstm, backward": _kept("lstm", True),
    "rows of a gru": _kept("gru", False),
    "rows of a gru, backward": _kept("gru", True),
    "rows of a layer without gates": _kept("tanh", True),
    "lstm, read": _read(mt.nn.LSTM, bidirectional=True),
    "gru, read": _read(mt.nn.GRU, bidirectional=True),
}

REFUSED: dict[str, Callable[[int, int], Any]] = {
    "counted before it is known what": lambda n, m: (mt.arange(4 * n).reshape(4, n) * x(n),),
    "a product of no rows": lambda n, m: (F.linear(x(0, n, 4), x(5, 4)),),
    "no rows as others": lambda n, m: (x(0, n, 4).reshape(0, 4 * n),),
    "no columns as two rows": lambda n, m: (x(4 * n, 4)[:, 4:].reshape(2, 0),),
    "no columns as others": lambda n, m: (x(n, 4)[:, 4:].t().reshape(n, 0),),
    "sorted as one line": lambda n, m: (x(n, m).flatten().sort().values,),
    "hidden sizes of a layer": lambda n, m: (mt.nn.RNN(C, n)(x(5, 3, C))[0],),
}


def graphs_of(case: Callable[[int, int], Any], n: int, m: int) -> list[Graph]:
    mt.manual_seed(0)
    _LEAVES.clear()
    return recorded(lambda: mt.eval(*[r for r in case(n, m) if isinstance(r, mt.Tensor)]))


def leaves_of(graph: Graph, rng: np.random.Generator, positions: int = _POSITIONS) -> list[Any]:
    found: list[Any] = []
    for v in (graph.values[k] for k in graph.leaves()):
        if v.dtype.is_floating_point:
            value = rng.standard_normal(v.shape)
        else:
            value = rng.integers(0, 2 if v.dtype is mt.bool else positions, v.shape)
        found.append(np.asarray(value).astype(v.dtype.numpy))
    return found


def values_of(graph: Graph, leaves: Sequence[Any]) -> list[Any]:
    with np.errstate(all="ignore"):
        return evaluate(graph, leaves, lambda op, xs: op.reference(np, *xs))


def spoiled(value: Any, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    """``value`` in the corner of something larger that is full of what must not matter."""
    room = np.empty(shape, value.dtype)
    if value.dtype.kind == "f":
        room[...] = rng.choice([np.nan, np.inf, -np.inf, 1e30], shape)
    else:
        room[...] = rng.choice([0, 1] if value.dtype == bool else [-(10**6), 10**6, 3], shape)
    room[tuple(map(slice, value.shape))] = value
    return room


def check(
    graph: Graph, roomy: varying.Roomy, rng: np.random.Generator, positions: int = _POSITIONS
) -> None:
    verify(roomy.padded.graph)
    leaves = leaves_of(graph, rng, positions)
    given = iter(leaves)
    shapes = iter(roomy.padded.inputs(graph))
    numbers = iter(roomy.padded.numbers(graph))
    theirs = []
    for k in roomy.padded.graph.leaves():
        v = roomy.padded.graph.values[k]
        number = None if v.op is BUFFER else next(numbers)
        value = next(given) if number is None else np.asarray(number, v.dtype.numpy)
        if v.op is BUFFER:
            value = value.reshape(next(shapes))
        theirs.append(spoiled(value, v.shape, rng))
    found = values_of(roomy.padded.graph, theirs)
    results = roomy.padded.results(graph)
    for want, got, shape in zip(values_of(graph, leaves), found, results, strict=True):
        assert got.dtype == want.dtype
        got = got[tuple(map(slice, shape))].reshape(want.shape)
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def histories(
    case: Callable[[int, int], Any], more: Sequence[tuple[int, int]] = ()
) -> Iterator[tuple[Graph, History]]:
    """Each graph of each size, and what has been before of its structure."""
    graphs = [graph for n, m in (*SIZES, *more) for graph in graphs_of(case, n, m)]
    sites.forget()
    for graph in graphs:
        yield graph, sites.note(graph, (histories.__code__, 0))
    sites.forget()


@pytest.mark.parametrize("name", CASES)
def test_what_has_room_is_computed_as_without(name: str, rng: np.random.Generator) -> None:
    checked = 0
    for graph, history in histories(CASES[name]):
        if history.recurs:
            roomy = varying.with_room(graph, history)
            assert roomy is not None
            check(graph, roomy, rng)
            checked += 1
            assert len(history.roomy) <= 8
    assert checked >= 3


_FEW = ((1, 1), (2, 2), (1, 12), (9, 1), (1, 30), (2, 1), (1, 1), (20, 1))


def test_a_size_of_one_is_run_with_room_that_others_got(rng: np.random.Generator) -> None:
    checked = 0
    for name in (
        "elementwise",
        "sums",
        "softmax",
        "dense",
        "graph",
        "losses",
        "joined",
        "expanded",
    ):
        for number, (graph, history) in enumerate(histories(CASES[name], _FEW)):
            if history.recurs and number >= len(SIZES):
                roomy = varying.with_room(graph, history)
                if roomy is not None:
                    check(graph, roomy, rng, positions=1)
                    checked += 1
    assert checked >= 10


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_rule_is_refused(name: str) -> None:
    found = [varying.with_room(g, h) for g, h in histories(REFUSED[name]) if h.recurs]
    assert len(found) >= 3
    assert not any(found)


def test_refusals_are_counted_in_a_row() -> None:
    found = []
    for graph, history in histories(CASES["elementwise"]):
        if history.recurs:
            history.refused = 3
            found.append(varying.with_room(graph, history))
            assert history.refused == 0
    assert len(found) > len({id(roomy) for roomy in found})  # some are made, others serve
