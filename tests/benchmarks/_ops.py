"""Single operations on tensors of half a megabyte, and with their gradients, against torch eager.

What is measured is what a user waits for: the call, and until its result is in memory.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from _measure import (
    ALONE,
    Answer,
    Side,
    closing,
    digests_agree,
    figure,
    ratio,
    table,
    take_turns,
)

SIZE = (256, 512)
MATRICES = ((4096, 3), (64, 32), (1, 64), (1, 128), (1, 256), (1, 512))
"""How many, of so many rows and columns."""
TURN = 0.01  # seconds of repeated calls per turn
ROUNDING = 1e-3  # of the norm

Operation = Callable[..., Any]
"""Of a library and tensors."""


@dataclass(frozen=True)
class Case:
    """An operation, the names of its operands (see :func:`arrays`), and whether its gradients are
    measured, too."""

    call: Operation
    operands: tuple[str, ...] = ("x",)
    gradients: bool = True


def arrays() -> dict[str, np.ndarray[Any, Any]]:
    """Operands by name."""
    rng = np.random.default_rng(0)
    rows, columns = SIZE
    normal = {name: rng.normal(size=SIZE).astype(np.float32) for name in ("x", "y")}
    return normal | {
        "u": rng.uniform(0.01, 0.99, SIZE).astype(np.float32),
        "large": rng.uniform(1.01, 3.0, SIZE).astype(np.float32),
        "wide": rng.normal(size=SIZE),
        "whole": rng.integers(0, 1000, SIZE),
        "image": rng.normal(size=(8, 16, 32, 32)).astype(np.float32),
        "rows": rng.integers(0, rows, 1000),
        "added": rng.normal(size=(1000, columns)).astype(np.float32),
        "few": np.argsort(rng.random(SIZE), 1)[:, :40].copy(),  # each at most once in a row
        "some": rng.normal(size=(rows, 40)).astype(np.float32),
        "labels": rng.integers(0, columns, rows),
    }


def _of(count: int, n: int) -> str:
    return f"{count} of {n} x {n}"


def _definite(count: int, n: int) -> np.ndarray[Any, Any]:
    """Symmetric matrices without small eigenvalues."""
    x = np.random.default_rng(0).normal(size=(count, n, n))
    return (x @ x.swapaxes(1, 2) / n + np.eye(n)).astype(np.float32)


def _named(names: str, operand: str = "x", gradients: bool = True) -> Iterator[tuple[str, Case]]:
    for name in names.split():
        yield name, Case(lambda lib, x, name=name: getattr(lib, name)(x), (operand,), gradients)


def _functional(names: str) -> Iterator[tuple[str, Case]]:
    for name in names.split():
        yield name, Case(lambda lib, x, name=name: getattr(lib.nn.functional, name)(x))


def _along(names: str, gradients: bool = True, whole: bool = True) -> Iterator[tuple[str, Case]]:
    """Along each dimension, and of all elements if ``whole``."""

    def case(name: str, **options: int) -> Case:
        return Case(lambda _, x: _first(getattr(x, name)(**options)), gradients=gradients)

    for name in names.split():
        for dim in (0, 1):
            yield f"{name}, {dim}", case(name, dim=dim)
        if whole:
            yield f"{name} of all", case(name)


def _first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def families() -> dict[str, dict[str, Case]]:
    """All cases, by what they do."""
    two = ("x", "y")
    return {
        "elementary functions": dict(
            [
                *_named("exp exp2 expm1 sin cos tan atan sinh cosh tanh sigmoid erf"),
                *_named("log log2 log10 log1p sqrt rsqrt asin acos", "u"),
                ("x ** 1.5", Case(lambda lib, x: x**1.5, ("u",))),
                ("x ** -0.5", Case(lambda lib, x: x**-0.5, ("u",))),
                ("2 ** x", Case(lambda lib, x: 2**x)),
                ("x ** y", Case(lambda lib, x, y: x**y, ("u", "y"))),
                ("exp of float64", Case(lambda lib, x: x.exp(), ("wide",))),
                ("tanh of float64", Case(lambda lib, x: x.tanh(), ("wide",))),
                *_functional("gelu silu mish softplus elu selu logsigmoid hardswish leaky_relu"),
            ]
        ),
        "arithmetic": dict(
            [
                *_named("abs neg sign floor round trunc frac square", gradients=False),
                ("x + y", Case(lambda lib, x, y: x + y, two)),
                ("x * 2", Case(lambda lib, x: x * 2)),
                ("x / y", Case(lambda lib, x, y: x / y, ("x", "large"))),
                ("x // 0.5", Case(lambda lib, x: x // 0.5, gradients=False)),
                ("x % 3", Case(lambda lib, x: x % 3)),
                ("x.clamp(0, 1)", Case(lambda lib, x: x.clamp(0, 1))),
                ("maximum", Case(lambda lib, x, y: lib.maximum(x, y), two)),
                ("lerp", Case(lambda lib, x, y: lib.lerp(x, y, 0.3), two)),
                ("where", Case(lambda lib, x, y: lib.where(x > 0, x, y), two)),
                ("x + x of int64", Case(lambda lib, x: x + x, ("whole",), False)),
                ("x % 7 of int64", Case(lambda lib, x: x % 7, ("whole",), False)),
                ("x // 7 of int64", Case(lambda lib, x: x // 7, ("whole",), False)),
                ("float of int64", Case(lambda lib, x: x.float(), ("whole",), False)),
            ]
        ),
        "reductions": dict(
            [
                *_along("sum mean amax prod var norm"),
                *_along("logsumexp", whole=False),
                *_along("argmax", gradients=False),
                ("x @ y[0]", Case(lambda lib, x, y: x @ y[0], two)),
                ("dot", Case(lambda lib, x, y: lib.dot(x.reshape(-1), y.reshape(-1)), two)),
                ("sum of int64", Case(lambda lib, x: x.sum(), ("whole",), False)),
                ("any", Case(lambda lib, x: (x > 0).any(), gradients=False)),
            ]
        ),
        "along a dimension": dict(
            [
                *_along("cumsum cumprod softmax log_softmax sort median", whole=False),
                ("topk 5", Case(lambda lib, x: lib.topk(x, 5, dim=1)[0])),
                ("topk 50", Case(lambda lib, x: lib.topk(x, 50, dim=1)[0])),
                ("unique", Case(lambda lib, x: lib.unique((x * 3).round()), gradients=False)),
            ]
        ),
        "copies": {
            "cat, 0": Case(lambda lib, x, y: lib.cat([x, y], 0), two),
            "cat, 1": Case(lambda lib, x, y: lib.cat([x, y], 1), two),
            "stack, last": Case(lambda lib, x, y: lib.stack([x, y], -1), two),
            "repeat": Case(lambda lib, x: x.repeat(2, 2)),
            "repeat_interleave": Case(lambda lib, x: lib.repeat_interleave(x, 2, dim=1)),
            "flip, 0": Case(lambda lib, x: x.flip([0])),
            "flip, 1": Case(lambda lib, x: x.flip([1])),
            "roll": Case(lambda lib, x: lib.roll(x, 3, 1)),
            "tril": Case(lambda lib, x: lib.tril(x)),
            "x.T": Case(lambda lib, x: x.t().contiguous()),
            "to channels last": Case(_channels_last, ("image",)),
            "pad": Case(_padded("constant"), ("image",)),
            "pad, reflected": Case(_padded("reflect"), ("image",)),
            "pixel_shuffle": Case(_pixel_shuffle, ("image",)),
            "one_hot": Case(_one_hot, ("rows",), False),
        },
        "positions": {
            "x[i]": Case(lambda lib, x, i: x[i], ("x", "rows")),
            "x[:, i]": Case(lambda lib, x, i: x[:, i], ("x", "labels")),
            "gather": Case(lambda lib, x, i: x.gather(1, i), ("x", "few")),
            "index_add": Case(_index_add, ("x", "rows", "added")),
            "scatter": Case(lambda lib, x, i, s: x.scatter(1, i, s), ("x", "few", "some")),
            "scatter_add": Case(_scatter_add, ("x", "few", "some")),
            "masked_fill": Case(lambda lib, x: x.masked_fill(x > 0, -1.0)),
            "x[x > 0]": Case(lambda lib, x: x[x > 0]),
            "nonzero": Case(lambda lib, x: (x > 0).nonzero(), gradients=False),
            "bincount": Case(lambda lib, i: lib.bincount(i), ("rows",), False),
        },
        "products, distances, losses": {
            "x @ y.T": Case(lambda lib, x, y: x @ y.t(), two),
            "x @ y.T of float64": Case(lambda lib, x: x @ x.t(), ("wide",)),
            "bmm": Case(_bmm, two),
            "outer": Case(lambda lib, x, y: lib.outer(x[0], y[0]), two),
            "cdist": Case(lambda lib, x, y: lib.cdist(x, y), two),
            "cosine_similarity": Case(_cosine, two),
            "cross_entropy": Case(_cross_entropy, ("x", "labels")),
            "mse_loss": Case(lambda lib, x, y: _f(lib).mse_loss(x, y), two),
            "smooth_l1_loss": Case(_smooth, two),
            "bce with logits": Case(_bce, ("x", "u")),
        },
        "norms, pooling, images": {
            "layer_norm": Case(lambda lib, x: _f(lib).layer_norm(x, tuple(x.shape[1:]))),
            "group_norm": Case(_group_norm, ("image",)),
            "batch_norm": Case(_batch_norm, ("image",)),
            "max_pool2d": Case(lambda lib, x: _f(lib).max_pool2d(x, 2), ("image",)),
            "max_pool2d, 3": Case(lambda lib, x: _f(lib).max_pool2d(x, 3, 1, 1), ("image",)),
            "avg_pool2d": Case(lambda lib, x: _f(lib).avg_pool2d(x, 2), ("image",)),
            "adaptive_avg_pool2d": Case(_adaptive, ("image",)),
            "interpolate, nearest": Case(_resized("nearest"), ("image",)),
            "interpolate, bilinear": Case(_resized("bilinear"), ("image",)),
            "sum of images": Case(lambda lib, x: x.sum((0, 2, 3)), ("image",)),
            "softmax of channels": Case(lambda lib, x: x.softmax(1), ("image",)),
        },
    }


def decompositions() -> dict[str, dict[str, Case]]:
    """Factors of matrices, put together again where they are not said, by what they are."""
    calls: dict[str, Operation] = {
        "cholesky": lambda lib, x: lib.linalg.cholesky(x),
        "solve": lambda lib, x: lib.linalg.solve(x, x[..., :8].detach()),
        "inv": lambda lib, x: lib.linalg.inv(x),
        "solve_triangular": lambda lib, x: lib.linalg.solve_triangular(x, x, upper=False),
        "qr": _qr,
        "eigh": _eigh,
        "eigvalsh": lambda lib, x: lib.linalg.eigvalsh(x),
        "svd": _svd,
    }
    return {
        name: {f"{name}, {_of(*size)}": Case(call, (_of(*size),)) for size in MATRICES}
        for name, call in calls.items()
    }


def _qr(lib: Any, x: Any) -> Any:
    q, r = lib.linalg.qr(x)
    return q @ r


def _eigh(lib: Any, x: Any) -> Any:
    w, v = lib.linalg.eigh(x)
    return (v * w.unsqueeze(-2)) @ v.mT


def _svd(lib: Any, x: Any) -> Any:
    u, s, v = lib.linalg.svd(x)
    return (u * s.unsqueeze(-2)) @ v


def _f(lib: Any) -> Any:
    return lib.nn.functional


def _channels_last(lib: Any, x: Any) -> Any:
    return x.permute(0, 2, 3, 1).contiguous()


def _padded(mode: str) -> Operation:
    return lambda lib, x: _f(lib).pad(x, (1, 1, 1, 1), mode=mode)


def _pixel_shuffle(lib: Any, x: Any) -> Any:
    return _f(lib).pixel_shuffle(x, 2)


def _one_hot(lib: Any, i: Any) -> Any:
    return _f(lib).one_hot(i, 256)


def _index_add(lib: Any, x: Any, i: Any, source: Any) -> Any:
    return x.index_add(0, i, source)


def _scatter_add(lib: Any, x: Any, i: Any, source: Any) -> Any:
    return x.scatter_add(1, i, source)


def _bmm(lib: Any, x: Any, y: Any) -> Any:
    rows, columns = (t.view(8, -1, t.shape[1]) for t in (x, y))
    return lib.bmm(rows, columns.transpose(1, 2))


def _cosine(lib: Any, x: Any, y: Any) -> Any:
    return _f(lib).cosine_similarity(x, y, dim=1)


def _cross_entropy(lib: Any, x: Any, labels: Any) -> Any:
    return _f(lib).cross_entropy(x, labels)


def _smooth(lib: Any, x: Any, y: Any) -> Any:
    return _f(lib).smooth_l1_loss(x, y)


def _bce(lib: Any, x: Any, y: Any) -> Any:
    return _f(lib).binary_cross_entropy_with_logits(x, y)


def _group_norm(lib: Any, x: Any) -> Any:
    return _f(lib).group_norm(x, 4)


def _batch_norm(lib: Any, x: Any) -> Any:
    return _f(lib).batch_norm(x, None, None, training=True)


def _adaptive(lib: Any, x: Any) -> Any:
    return _f(lib).adaptive_avg_pool2d(x, 7)


def _resized(mode: str) -> Operation:
    return lambda lib, x: _f(lib).interpolate(x, scale_factor=2, mode=mode)


CASES = {
    name: case
    for family in (*families().values(), *decompositions().values())
    for name, case in family.items()
}


def prepared(lib: Any, name: str, gradients: bool) -> Callable[[], list[Any]]:
    """A call of a case, which returns results that are in memory, or the operands' gradients."""
    case, known = CASES[name], arrays()
    known |= {_of(*n): _definite(*n) for n in MATRICES if _of(*n) in case.operands}
    tensors = [lib.tensor(known[operand]) for operand in case.operands]
    compute = getattr(lib, "eval", lambda *_: None)  # torch has computed

    def result() -> list[Any]:
        with lib.no_grad():
            y = case.call(lib, *tensors)
            compute(y)
        return [y]

    if not gradients:
        return result
    flowing = [t for t in tensors if t.is_floating_point()]
    for t in flowing:
        t.requires_grad_()
    shape = tuple(result()[0].shape)
    weights = lib.tensor(np.random.default_rng(1).normal(size=shape))
    weights = weights.to(flowing[0].dtype)

    def slopes() -> list[Any]:
        for t in flowing:
            t.grad = None
        (case.call(lib, *tensors) * weights).sum().backward()
        found = [t.grad for t in flowing if t.grad is not None]
        compute(*found)
        return found

    return slopes


def _measured(sides: dict[str, Side], name: str, gradients: bool, turns: int) -> Answer:
    request = {"case": name, "gradients": gradients}
    repeat, digests = {}, {}
    for side, process in sides.items():
        for count in (1, 3):
            answer = process.ask(**request, repeat=count)
            if "unavailable" in answer:
                return {"missing": f"{side}: {answer['unavailable']}"}
            digests[side] = answer.get("digest", digests.get(side))
        repeat[side] = min(1000, max(1, round(TURN / answer["seconds"])))
    if not digests_agree(digests["ours"], digests["torch"], ROUNDING):
        return {"missing": "void: the result differs from torch's"}
    answers = take_turns(sides, turns, lambda side: {**request, "repeat": repeat[side]})
    return {side: [a["seconds"] for a in of] for side, of in answers.items()}


def ops(rows: list[str], turns: int, results: Answer) -> None:
    """All cases, or those of ``rows``, which are names of families."""
    _compared(families(), rows, turns, results)


def matrices(rows: list[str], turns: int, results: Answer) -> None:
    """Decompositions, or those of ``rows``."""
    _compared(decompositions(), rows, turns, results)


def _compared(
    chosen: dict[str, dict[str, Case]], rows: list[str], turns: int, results: Answer
) -> None:
    sides = {name: Side("ops", name, **ALONE) for name in ("torch", "ours")}

    def lines() -> Iterator[list[str]]:
        for family, cases in chosen.items():
            if rows and family not in rows:
                continue
            for name, case in cases.items():
                found = results[name] = {"family": family}
                found["alone"] = _measured(sides, name, False, turns)
                if case.gradients:
                    found["gradients"] = _measured(sides, name, True, turns)
                yield cells(name, found)

    print("\n## Single operations, us (medians)")
    with closing(sides):
        for name, side in sides.items():
            if side.unavailable:
                raise SystemExit(f"{name}: {side.unavailable}")
        table(HEAD, lines())


HEAD = [
    *("operation", "torch", "ours", "torch / ours"),
    *("with gradients, torch", "ours", "torch / ours"),
]


def cells(name: str, found: Answer) -> list[str]:
    """A line of the table."""
    out = [name]
    for part in ("alone", "gradients"):
        times = found.get(part, {"missing": ""})
        if "missing" in times:
            out += [times["missing"], "", ""]
            continue
        out += [figure(1e6 * statistics.median(times[side])) for side in ("torch", "ours")]
        out.append(f"{ratio(times['torch'], times['ours']):.2f}")
    return out


SUMMARY = [
    *("operations", "cases", "torch / ours", "from, to", "slower by 1.5 times and more"),
    *("with gradients", "from, to", "slower by 1.5 times and more"),
]


def summary(results: Answer) -> Iterator[list[str]]:
    """A line for each family: geometric means of ratios, their range, and what is slowest."""
    by_family: dict[str, list[tuple[str, Answer]]] = {}
    for name, found in results.items():
        by_family.setdefault(found["family"], []).append((name, found))
    for family, of in by_family.items():
        line = [family, str(len(of))]
        for part in ("alone", "gradients"):
            ratios = {
                name: ratio(times["torch"], times["ours"])
                for name, times in ((name, found.get(part, {})) for name, found in of)
                if "torch" in times
            }
            line += _spread(ratios)
        yield line


def _spread(ratios: dict[str, float]) -> Iterable[str]:
    if not ratios:
        return "", "", ""
    mean = math.exp(statistics.mean(map(math.log, ratios.values())))
    slow = [f"{name} {r:.2f}" for name, r in sorted(ratios.items(), key=lambda i: i[1]) if r < 0.67]
    return (
        f"{mean:.2f}",
        f"{min(ratios.values()):.2f} to {max(ratios.values()):.2f}",
        ", ".join(slow),
    )
