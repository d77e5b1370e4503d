"""autograd.Function: the same program gives the same with both libraries."""

from __future__ import annotations

import gc
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import minitorch_tvm as mt
from minitorch_tvm.core import config

torch = pytest.importorskip("torch")


def _square(lib: Any) -> Any:
    class Square(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return 2 * x * g

    return Square


def _exp(lib: Any) -> Any:
    class Exp(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            y = x.exp()
            ctx.save_for_backward(y, None)
            return y

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            y, nothing = ctx.saved_tensors
            assert nothing is None
            return g * y

    return Exp


def _answering(lib: Any, answer: Callable[[Any], Any]) -> Any:
    class Answering(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, n: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return answer(g)

    return Answering


def _pair(lib: Any, log: list[Any], prepare: Callable[..., Any]) -> Any:
    class Pair(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, w: Any, n: int = 3) -> Any:
            y, z = x * w, x * n
            prepare(ctx, y, z)
            ctx.save_for_backward(x, w)
            ctx.n = n
            return y, z, n, x > 1

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            log.append([g if g is None else g.tolist() for g in grads])
            log.append(ctx.needs_input_grad)
            x, w = ctx.saved_tensors
            g, h = (0 if g is None else g for g in grads[:2])
            return g * w + h * ctx.n, g * x, None

    return Pair


def _values(t: Any) -> Any:
    if t is None or isinstance(t, (int, float, str, bool)):
        return t
    if isinstance(t, (tuple, list)):
        return [_values(x) for x in t]
    return t.tolist(), t.requires_grad, t.dtype.is_floating_point


def _leaves(lib: Any) -> tuple[Any, Any]:
    x = lib.tensor([1.0, 2.0, 3.0], requires_grad=True)
    return x, lib.tensor([0.5, -1.0, 4.0], requires_grad=True)


def first_and_second(lib: Any) -> Any:
    x, w = _leaves(lib)
    y = _square(lib).apply(x * w).sum()
    (g,) = lib.autograd.grad(y, x, create_graph=True)
    return g, lib.autograd.grad(g.sum(), [x, w])


def second_through_a_saved_result(lib: Any) -> Any:
    x, _ = _leaves(lib)
    (g,) = lib.autograd.grad(_exp(lib).apply(x).sum(), x, create_graph=True)
    (h,) = lib.autograd.grad(g.sum(), x, create_graph=True)
    return g, h, lib.autograd.grad(h.sum(), x)


def twice_with_retained_graph(lib: Any) -> Any:
    x, _ = _leaves(lib)
    y = _exp(lib).apply(x)
    z = (y * y).sum()
    z.backward(retain_graph=True)
    first = x.grad.clone()
    z.backward()
    return first, x.grad, _error(lambda: z.backward())


def freed(lib: Any) -> Any:
    x, _ = _leaves(lib)
    kept = []

    class Kept(_square(lib)):  # type: ignore[misc]
        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            kept.append(ctx)
            return g

    y = Kept.apply(x)
    y.sum().backward()
    return _error(lambda: kept[0].saved_tensors)


def several_results(lib: Any) -> Any:
    log: list[Any] = []
    found: list[Any] = [log]
    for use in (lambda r: r[0].sum(), lambda r: r[1].sum(), lambda r: (r[0] * r[1]).sum()):
        x, w = _leaves(lib)
        r = _pair(lib, log, lambda *_: None).apply(x, w)
        use(r).backward()
        found += [r, x.grad, w.grad]
    return found


def without_materialized_gradients(lib: Any) -> Any:
    log: list[Any] = []
    x, w = _leaves(lib)
    pair = _pair(lib, log, lambda ctx, *_: ctx.set_materialize_grads(False))
    pair.apply(x, w, 4)[1].sum().backward()
    return log, x.grad, w.grad


def results_without_gradient(lib: Any) -> Any:
    log: list[Any] = []
    x, w = _leaves(lib)
    r = _pair(lib, log, lambda ctx, y, z: ctx.mark_non_differentiable(z)).apply(x, w)
    r[0].sum().backward()
    return log, r, x.grad, w.grad


def some_arguments(lib: Any) -> Any:
    log: list[Any] = []
    x, w = _leaves(lib)
    pair = _pair(lib, log, lambda *_: None)
    a = pair.apply(x.detach(), w)
    a[0].sum().backward()
    b = pair.apply(x, w, n=2)
    return log, w.grad, lib.autograd.grad(b[0].sum() + b[1].sum(), w)


def without_recording(lib: Any) -> Any:
    x, w = _leaves(lib)
    with lib.no_grad():
        a = _square(lib).apply(x)
    b = _square(lib).apply(x.detach())
    return a, b, a.grad_fn is None, w


def only_what_is_asked_for(lib: Any) -> Any:
    x, w = _leaves(lib)

    def refuse(g: Any) -> Any:
        raise ValueError("nobody asks")

    y, z = (_answering(lib, refuse).apply(x, 1) for _ in range(2))
    return lib.autograd.grad((y * w).sum(), w), _error(lambda: z.sum().backward())


ANSWERS: dict[str, Callable[[Any], Any]] = {
    "too few": lambda g: g,
    "further Nones": lambda g: (g, None, None),
    "too many": lambda g: (g, None, g),
    "for a number": lambda g: (g, g),
    "a number": lambda g: (1.0, None),
    "another shape": lambda g: (g[:2], None),
    "fewer dimensions": lambda g: (g.sum(), None),
    "broadcast": lambda g: (g.expand(5, 3), None),
    "double": lambda g: (g.double(), None),
    "None": lambda g: (None, None),
    "just None": lambda g: None,
    "a list": lambda g: [g, None],
}


def answers(lib: Any) -> Any:
    found = []
    for answer in ANSWERS.values():
        x, _ = _leaves(lib)
        y = _answering(lib, answer).apply(x, 1).sum()
        found.append((_error(lambda y=y: y.backward()), x.grad))
    return found


def nothing_defined(lib: Any) -> Any:
    x, _ = _leaves(lib)

    class Nothing(lib.autograd.Function):
        pass

    class Forward(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

    return [
        _error(lambda: Nothing.apply(x)),
        _error(lambda: Forward.apply(x).sum().backward()),
        _error(lambda: Forward.apply()),
        _error(lambda: Forward.apply(x, x)),
    ]


def saving_a_number(lib: Any) -> Any:
    class Saving(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x, 3)
            return x * 2

    return _error(lambda: Saving.apply(_leaves(lib)[0]))


def separate_context(lib: Any) -> Any:
    class Power(lib.autograd.Function):
        @staticmethod
        def forward(x: Any, n: int = 2) -> Any:
            return x**n, n

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> Any:
            ctx.save_for_backward(inputs[0])
            ctx.n = output[1]

        @staticmethod
        def backward(ctx: Any, g: Any, _: Any) -> Any:
            (x,) = ctx.saved_tensors
            return g * ctx.n * x ** (ctx.n - 1), None

    found = []
    for arguments in ({}, {"n": 3}, {"m": 3}):
        x, _ = _leaves(lib)
        found.append(_error(lambda: Power.apply(x, **arguments)[0].sum().backward()))  # noqa: B023
        found.append(x.grad)
    return found


def _adding(lib: Any, returned: Callable[[Any], Any]) -> Any:
    class Adding(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            x.add_(1)
            ctx.mark_dirty(x)
            return returned(x)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return 10 * g

    return Adding


def written_to(lib: Any) -> Any:
    x, w = _leaves(lib)
    adding = _adding(lib, lambda x: x)
    a = x * w
    b = a * a
    c = adding.apply(a)
    found = [c is a, a, _error(lambda: adding.apply(x.clone()))]
    (b.sum().detach() + (a * a).sum()).backward()
    constant = lib.ones(3)
    adding.apply(constant)
    return found, x.grad, w.grad, constant, _error(lambda: adding.apply(x))


def a_view_is_written_to(lib: Any) -> Any:
    x, w = _leaves(lib)
    a = x * w
    _adding(lib, lambda x: x).apply(a[:2])
    a.sum().backward()
    return a, x.grad


def written_to_but_not_returned(lib: Any) -> Any:
    return _error(lambda: _adding(lib, lambda x: x * 1).apply(_leaves(lib)[0] * 1))


def arguments_returned(lib: Any) -> Any:
    class Reversed(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, w: Any) -> Any:
            return w, x[1:], x

        @staticmethod
        def backward(ctx: Any, g: Any, h: Any, i: Any) -> Any:
            assert h.shape == (2,)
            return -g - i, i

    x, w = _leaves(lib)
    with lib.no_grad():
        a = Reversed.apply(x, w)
        found = [a[0] is w, a[0].requires_grad, a[2].requires_grad]
    a = Reversed.apply(x, w)
    found += [a[0] is w, a]
    (a[0] * 2 + a[2]).sum().backward()
    return found, x.grad, w.grad


def once(lib: Any) -> Any:
    function = lib.autograd.function

    class Once(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, w: Any) -> Any:
            return x * w, w * 2

        @staticmethod
        @function.once_differentiable
        def backward(ctx: Any, g: Any, h: Any) -> Any:
            assert not lib.is_grad_enabled()
            return g * 2, h

    class Single(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        @lib.autograd.function.once_differentiable
        def backward(ctx: Any, g: Any) -> Any:
            return g * 3

    x, w = _leaves(lib)
    y = (Once.apply(x, w)[0] ** 2).sum()
    (g,) = lib.autograd.grad(y, x, create_graph=True)
    z, _ = _leaves(lib)
    (Single.apply(z) ** 2).sum().backward()
    (h,) = lib.autograd.grad(Single.apply(z).sum(), z, create_graph=True)
    return g, _error(lambda: g.sum().backward()), z.grad, h


def a_saved_result_that_is_gone(lib: Any) -> Any:
    class Both(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            a = x * 2
            ctx.save_for_backward(a)
            return a, x * 3

        @staticmethod
        def backward(ctx: Any, g: Any, h: Any) -> Any:
            (a,) = ctx.saved_tensors
            return a * g + a * h

    x, _ = _leaves(lib)
    first, second = Both.apply(x)
    del first
    gc.collect()
    (g,) = lib.autograd.grad(second.sum(), x, create_graph=True)
    return g, *lib.autograd.grad((g * g).sum(), x)


def lists(lib: Any) -> Any:
    class Lists(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return [x * 2, x * 3]

    return Lists.apply(_leaves(lib)[0])


def hooks(lib: Any) -> Any:
    x, _ = _leaves(lib)
    y = _square(lib).apply(x)
    y.retain_grad()
    y.register_hook(lambda g: g * 10)
    x.register_hook(lambda g: g + 1)
    y.sum().backward()
    return y.grad, x.grad


def behind_none(lib: Any) -> Any:
    """Functions are asked also where those that read their results give no gradient."""

    class Losing(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, loss: Any, materialize: Any) -> Any:
            ctx.set_materialize_grads(materialize)
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g, lib.ones(()), None

    nothing = _answering(lib, lambda g: (None, None))
    other = lib.tensor([2.0, 5.0], requires_grad=True)
    found = []
    for materialize in (True, False):
        for between in (lambda y: y, lambda y: (y * 2).tanh()):
            x, _ = _leaves(lib)
            y = Losing.apply(x, (other * other).sum(), materialize)
            nothing.apply(between(y), 1).sum().backward()
            found += [x.grad, other.grad.clone()]
    return tuple(found)


def the_same_twice(lib: Any) -> Any:
    class Product(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            z = x * y
            return z, z

        @staticmethod
        def backward(ctx: Any, g: Any, h: Any) -> Any:
            return g + h, 3 * (g + h)

    x, _ = _leaves(lib)
    a, b = Product.apply(x, x)
    (a + b).sum().backward()
    return x.grad


def a_parameter_as_gradient(lib: Any) -> Any:
    x, w = _leaves(lib)
    y = _answering(lib, lambda g: (w, None)).apply(x, 1)
    y.sum().backward()
    w.data.add_(1)
    return x.grad, w


def intermediate_values(lib: Any) -> Any:
    class Tanh(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            t = x.tanh()
            ctx.slope = 1 - t * t
            return t + 0

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.slope

    x, w = _leaves(lib)
    y = Tanh.apply(x * w)
    before = y.sum().item()
    y.sum().backward()
    return before == y.sum().item(), [round(v, 5) for v in x.grad.tolist()]


def _error(action: Callable[[], Any]) -> Any:
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "fine"


PROGRAMS = [
    p
    for p in list(globals().values())
    if isinstance(p, types.FunctionType)
    and p.__module__ == __name__
    and not p.__name__.startswith(("_", "test"))
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_as_pytorch(program: Callable[[Any], Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted, got = (_values(program(lib)) for lib in (torch, mt))
    assert got == wanted


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_other_times_are_as_the_first(program: Callable[[Any], Any]) -> None:
    """What was recorded before is recognised; computed at once, it is the same, too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, *others = (_values(program(mt)) for _ in range(4))
        with config.override(mode="eager"):
            others.append(_values(program(mt)))
    assert all(other == first for other in others)
