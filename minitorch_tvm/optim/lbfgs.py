"""L-BFGS (Liu and Nocedal 1989), with the line search of Nocedal and Wright, chapter 3 (2006).

The steps are decided by numbers, so each evaluation of the function, and each product of two
vectors, is computed when it is needed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

from ..autograd import enable_grad, no_grad
from ..core import errors
from ..core.shape import Shape
from ..tensor import Tensor
from ..tensor.functions import cat
from .optimizer import Optimizer, check_hyperparameter, copied

_LEAST_CURVATURE = 1e-10
_DECREASE, _CURVATURE = 1e-4, 0.9  # of Wolfe's conditions


F = TypeVar("F", bound=Callable[..., Any])


def _of_its_own(function: F) -> F:
    """A function whose programs are its own line's, not the user's.

    Lines that compile many different programs are warned of, and here these are no mistake.
    """
    place = function.__code__, 0

    @functools.wraps(function)
    def wrapped(*args: Any) -> Any:
        with errors.at(place):
            return function(*args)

    return cast(F, wrapped)


@_of_its_own
def _dot(a: Tensor, b: Tensor) -> float:
    return float(a.dot(b).item())


@_of_its_own
def _times(a: Tensor, factor: float) -> Tensor:
    return (a * factor).realize("step")


@_of_its_own
def _plus(a: Tensor, b: Tensor, factor: float) -> Tensor:
    return (a + b * factor).realize("step")


@_of_its_own
def _largest(x: Tensor) -> float:
    return float(x.abs().max().item()) if x.numel() else 0.0


@_of_its_own
def _sum(x: Tensor) -> float:
    return float(x.abs().sum().item())


class _Trial(NamedTuple):
    """The function at a distance along the direction."""

    t: float
    loss: float
    gradient: Tensor
    slope: float


class LBFGS(Optimizer):
    """Quasi-Newton steps from the last ``history_size`` changes of gradient and parameters.

    ``step(closure)`` makes up to ``max_iter`` of them and calls ``closure``, which must drop the
    gradients, compute the loss, call ``backward()`` and return the loss, up to ``max_eval`` times
    (by default a quarter more than ``max_iter``; the last search may need one more).  It ends
    sooner where the largest gradient is at most ``tolerance_grad``, or a step changes parameters or
    loss by less than ``tolerance_change``.  The length of a step is ``lr``, that of the first one
    at most lr / sum(|g|); with ``line_search_fn="strong_wolfe"`` it is where a search begins.  All
    parameters are in one group (ValueError).

    >>> import minitorch_tvm as mt
    >>> w = mt.zeros(2, requires_grad=True)
    >>> opt = mt.optim.LBFGS([w], line_search_fn="strong_wolfe")
    >>> def closure():
    ...     opt.zero_grad()
    ...     loss = ((w - mt.tensor([1.0, 3.0])) ** 2).sum()
    ...     loss.backward()
    ...     return loss
    >>> opt.step(closure).item()
    10.0
    >>> w
    tensor([1., 3.], requires_grad=True)
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        check_hyperparameter("lr", lr, "learning rate")
        if max_eval is None:
            max_eval = max_iter * 5 // 4
        defaults = {
            "lr": lr,
            "max_iter": max_iter,
            "max_eval": max_eval,
            "tolerance_grad": tolerance_grad,
            "tolerance_change": tolerance_change,
            "history_size": history_size,
            "line_search_fn": line_search_fn,
        }
        super().__init__(params, defaults)
        if len(self.param_groups) != 1:
            raise ValueError("LBFGS doesn't support per-parameter options (parameter groups)")

    def step(self, closure: Callable[[], Any]) -> Any:  # type: ignore[override]
        """Minimise what ``closure`` computes; returns its first result."""
        group = self.param_groups[0]
        state = self.state[group["params"][0]]
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)
        with enable_grad():
            first = closure()
        loss, evaluations = float(first), 1
        state["func_evals"] += 1
        with no_grad():
            gradient = self._gradient()
            if _largest(gradient) <= group["tolerance_grad"]:
                return first
            for iteration in range(1, group["max_iter"] + 1):
                state["n_iter"] += 1
                direction = self._direction(state, gradient, group["history_size"])
                before = loss
                state["prev_flat_grad"], state["prev_loss"] = gradient, loss
                t = group["lr"]
                if state["n_iter"] == 1:
                    t = min(1.0, 1.0 / _sum(gradient)) * group["lr"]
                slope = _dot(gradient, direction)
                state["d"], state["t"] = direction, t
                if slope > -group["tolerance_change"]:
                    break
                count, size = 0, _largest(direction)
                if group["line_search_fn"] is not None:
                    start = _Trial(0.0, loss, gradient, slope)
                    most = group["max_eval"] - evaluations
                    found, count = self._searched(closure, direction, size, t, start, most)
                    t, loss, gradient, _ = found
                    state["t"] = t
                    self._move(direction, t)
                else:
                    self._move(direction, t)
                    if iteration < group["max_iter"]:  # its result would be of no use
                        with enable_grad():
                            loss = float(closure())
                        gradient, count = self._gradient(), 1
                evaluations += count
                state["func_evals"] += count
                if (
                    evaluations >= group["max_eval"]
                    or _largest(gradient) <= group["tolerance_grad"]
                    or size * abs(t) <= group["tolerance_change"]
                    or abs(loss - before) < group["tolerance_change"]
                ):
                    break
        return first

    @_of_its_own
    def _gradient(self) -> Tensor:
        """That of all parameters, as one vector."""
        parts = [
            (p.new_zeros(p.numel()) if p.grad is None else p.grad.detach().reshape(-1))
            for p in self.param_groups[0]["params"]
        ]
        return cat(parts).clone().realize("step")

    @_of_its_own
    def _move(self, direction: Tensor, t: float) -> None:
        start = 0
        for p in self.param_groups[0]["params"]:
            stop = start + p.numel()
            p.add_(direction[start:stop].reshape(p.shape), alpha=t)
            start = stop
        p.realize("step")  # with all that is pending

    @_of_its_own
    def _restore(self, values: list[Tensor]) -> None:
        for p, value in zip(self.param_groups[0]["params"], values, strict=True):
            p.copy_(value)
        p.realize("step")

    def _direction(self, state: dict[str, Any], gradient: Tensor, most: int) -> Tensor:
        """Minus the gradient, times the estimate of the inverse of the second derivative.

        That is applied change by change, so that a longer history is no other program.
        """
        if state["n_iter"] == 1:
            state.update(old_dirs=[], old_stps=[], ro=[], H_diag=1.0)
            return _times(gradient, -1.0)
        ys, ss, ro = state["old_dirs"], state["old_stps"], state["ro"]
        y = _plus(gradient, state["prev_flat_grad"], -1.0)
        s = _times(state["d"], state["t"])
        curvature = _dot(y, s)
        if curvature > _LEAST_CURVATURE:
            if len(ys) == most:
                del ys[0], ss[0], ro[0]
            ys.append(y)
            ss.append(s)
            ro.append(1.0 / curvature)
            state["H_diag"] = curvature / _dot(y, y)
        q, shares = _times(gradient, -1.0), []
        for y, s, r in zip(reversed(ys), reversed(ss), reversed(ro), strict=True):
            share = _dot(s, q) * r
            shares.append(share)
            q = _plus(q, y, -share)
        q = _times(q, state["H_diag"])
        for y, s, r in zip(ys, ss, ro, strict=True):
            q = _plus(q, s, shares.pop() - _dot(y, q) * r)
        return q

    def _searched(
        self,
        closure: Callable[[], Any],
        direction: Tensor,
        size: float,
        t: float,
        start: _Trial,
        most: int,
    ) -> tuple[_Trial, int]:
        """A point that satisfies Wolfe's strong conditions, or the best of ``most`` (and one more)
        that were tried, and how many were.

        ``size`` is that of the direction's largest element.  The parameters are what they were.
        """
        group = self.param_groups[0]
        if group["line_search_fn"] != "strong_wolfe":
            raise RuntimeError("only 'strong_wolfe' is supported")
        values = [p.detach().clone() for p in group["params"]]
        values[0].realize("step")

        def trial(t: float) -> _Trial:
            self._move(direction, t)
            with enable_grad():
                loss = float(closure())
            gradient = self._gradient()
            self._restore(values)
            return _Trial(t, loss, gradient, _dot(gradient, direction))

        return _search(trial, t, start, most, size, group["tolerance_change"])

    def _shape(self, p: Tensor, name: str) -> Shape:
        return (sum(q.numel() for q in self.param_groups[0]["params"]),)

    def _packed(self, state: dict[str, Any]) -> dict[str, Any]:
        return {k: [*v] if isinstance(v, list) else v for k, v in state.items()}

    def _unpacked(self, p: Tensor, state: Mapping[str, Any]) -> dict[str, Any]:
        def own(value: Any) -> Any:
            if isinstance(value, list):
                return [own(v) for v in value]
            if not isinstance(value, Tensor):
                return value
            return copied(value, p.dtype) if value.ndim else value.item()

        return {name: own(value) for name, value in state.items() if name != "al"}


def _search(
    trial: Callable[[float], _Trial], t: float, start: _Trial, most: int, size: float, least: float
) -> tuple[_Trial, int]:
    """An interval that has a good point, and the point: algorithms 3.5 and 3.6 of the book.

    ``size`` is that of the direction's largest element, ``least`` a change that is none.
    """

    def too_high(at: _Trial) -> bool:
        return at.loss > start.loss + _DECREASE * at.t * start.slope

    def flat(at: _Trial) -> bool:
        return abs(at.slope) <= -_CURVATURE * start.slope

    last, now, count = start, trial(t), 1
    while count <= most:
        if too_high(now) or (count > 2 and now.loss >= last.loss):
            break
        if flat(now):
            return now, count
        if now.slope >= 0:
            break
        bounds = (now.t + 0.01 * (now.t - last.t), now.t * 10)
        last, now = now, trial(_minimum(last, now, bounds))
        count += 1
    else:
        last = start
    low, high = (last, now) if last.loss <= now.loss else (now, last)
    stuck = False
    while count <= most and abs(high.t - low.t) * size >= least:
        left, right = sorted((low.t, high.t))
        first, second = (low, high) if low.t <= high.t else (high, low)
        t = _minimum(first, second, (left, right))
        margin = 0.1 * (right - left)
        if min(right - t, t - left) < margin:
            if stuck or t >= right or t <= left:
                t = right - margin if abs(t - right) < abs(t - left) else left + margin
                stuck = False
            else:
                stuck = True
        else:
            stuck = False
        now = trial(t)
        count += 1
        if too_high(now) or now.loss >= low.loss:
            high = now
            if high.loss < low.loss:
                low, high = high, low
            continue
        if flat(now):
            return now, count
        if now.slope * (high.t - low.t) >= 0:
            high = low
        low = now
    return low, count


def _minimum(a: _Trial, b: _Trial, bounds: tuple[float, float]) -> float:
    """Of the cubic through two trials, within ``bounds``: equation 3.59 of the book."""
    low, high = bounds
    d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t)
    square = d1 * d1 - a.slope * b.slope
    if not square >= 0:
        return (low + high) / 2
    d2 = math.sqrt(square)
    if a.t > b.t:
        a, b = b, a
    t = b.t - (b.t - a.t) * ((b.slope + d2 - d1) / (b.slope - a.slope + 2 * d2))
    return min(max(t, low), high)
