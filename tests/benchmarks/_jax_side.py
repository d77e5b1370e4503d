"""JAX's side of the comparison: one jitted step that takes its state over (donation)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _cases import Case
from _rows import DEPTH, GATES, HEADS, LAYERS, STAGES, WIDTH, Array, Row, Weights
from jax import lax

State = dict[str, Any]


def _linear(p: State, name: str, x: Any) -> Any:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def _conv(p: State, name: str, x: Any, stride: int = 1) -> Any:
    """Channels last, which XLA runs faster on CPUs; weights stay in PyTorch's layout."""
    w = p[f"{name}.weight"]
    pad = w.shape[2] // 2
    y = lax.conv_general_dilated(
        *(x, w, (stride, stride), [(pad, pad)] * 2), dimension_numbers=("NHWC", "OIHW", "NHWC")
    )
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def _pool(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def _mlp(p: State, stats: State, x: Any) -> tuple[Any, State]:
    last = len(p) - 2
    for i in range(0, last + 1, 2):
        x = _linear(p, str(i), x)
        x = jax.nn.relu(x) if i < last else x
    return x, stats


def _lenet(p: State, stats: State, x: Any) -> tuple[Any, State]:
    x = jnp.transpose(x, (0, 2, 3, 1))
    for name in "03":
        x = _pool(jax.nn.relu(_conv(p, name, x)))
    x = jnp.transpose(x, (0, 3, 1, 2)).reshape(x.shape[0], -1)
    return _linear(p, "9", jax.nn.relu(_linear(p, "7", x))), stats


def _resnet(p: State, stats: State, x: Any) -> tuple[Any, State]:
    new: State = {}

    def norm(name: str, x: Any) -> Any:
        mean, var = jnp.mean(x, (0, 1, 2)), jnp.var(x, (0, 1, 2))
        count = x.size / x.shape[-1]
        old_mean, old_var = stats[name]
        new[name] = (0.9 * old_mean + 0.1 * mean, 0.9 * old_var + 0.1 * var * count / (count - 1))
        return (x - mean) * lax.rsqrt(var + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]

    x = jax.nn.relu(norm("norm", _conv(p, "stem", jnp.transpose(x, (0, 2, 3, 1)))))
    for i, (_, _, stride) in enumerate(STAGES):
        at = f"blocks.{i}."
        y = jax.nn.relu(norm(at + "norm1", _conv(p, at + "conv1", x, stride)))
        y = norm(at + "norm2", _conv(p, at + "conv2", y))
        if stride != 1:
            x = norm(at + "norm3", _conv(p, at + "conv3", x, stride))
        x = jax.nn.relu(x + y)
    return _linear(p, "head", jnp.mean(x, (1, 2))), new


def _norm(x: Any, w: Any, b: Any) -> Any:
    mean, var = jnp.mean(x, -1, keepdims=True), jnp.var(x, -1, keepdims=True)
    return (x - mean) * lax.rsqrt(var + 1e-5) * w + b


def _gpt(p: State, stats: State, x: Any) -> tuple[Any, State]:
    def norm(name: str, x: Any) -> Any:
        return _norm(x, p[f"{name}.weight"], p[f"{name}.bias"])

    x = p["token.weight"][x] + p["position"]
    n, t, c = x.shape
    for i in range(LAYERS):
        at = f"blocks.{i}."
        qkv = _linear(p, at + "qkv", norm(at + "norm1", x)).reshape(n, t, 3, HEADS, c // HEADS)
        q, k, v = (qkv[:, :, j] for j in range(3))
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(n, t, WIDTH)
        x = x + _linear(p, at + "out", mixed)
        up = _linear(p, at + "up", norm(at + "norm2", x))
        x = x + _linear(p, at + "down", jax.nn.gelu(up, approximate=False))
    return norm("norm", x).reshape(n * t, c) @ p["head.weight"].T, stats


def _sequence(kind: str, weights: tuple[Any, Any, Any, Any], x: Any) -> Any:
    """States [t, n, h]: one product of all inputs [t, n, c], then a loop over the steps."""
    w_ih, b_ih, w_hh, b_hh = weights
    zeros = jnp.zeros((x.shape[1], w_hh.shape[1]))

    def rnn(h: Any, sums: Any) -> Any:
        h = jnp.tanh(sums + h @ w_hh.T)
        return h, h

    def lstm(state: Any, sums: Any) -> Any:
        h, c = state
        i, f, g, o = jnp.split(sums + h @ w_hh.T, 4, axis=1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    def gru(h: Any, sums: Any) -> Any:
        (xr, xz, xn), (hr, hz, hn) = jnp.split(sums, 3, 1), jnp.split(h @ w_hh.T + b_hh, 3, 1)
        z = jax.nn.sigmoid(xz + hz)
        n = jnp.tanh(xn + jax.nn.sigmoid(xr + hr) * hn)
        h = (1 - z) * n + z * h
        return h, h

    step = {"RNN": rnn, "LSTM": lstm, "GRU": gru}[kind]
    sums = x @ w_ih.T + (b_ih if kind == "GRU" else b_ih + b_hh)
    return lax.scan(step, (zeros, zeros) if kind == "LSTM" else zeros, sums)[1]


def _weights(p: State, name: str, layer: int) -> tuple[Any, Any, Any, Any]:
    names = (f"{what}_{part}" for part in ("ih", "hh") for what in ("weight", "bias"))
    w_ih, b_ih, w_hh, b_hh = (p[f"{name}.{n}_l{layer}"] for n in names)
    return w_ih, b_ih, w_hh, b_hh


def _lstm(p: State, stats: State, x: Any) -> tuple[Any, State]:
    x = jnp.transpose(p["token.weight"][x], (1, 0, 2))
    for i in range(DEPTH):
        x = _sequence("LSTM", _weights(p, "lstm", i), x)
    y = _linear(p, "head", jnp.transpose(x, (1, 0, 2)))
    return y.reshape(-1, y.shape[-1]), stats


def _alone(kind: str) -> Callable[..., tuple[Any, State]]:
    def forward(p: State, stats: State, x: Any) -> tuple[Any, State]:
        states = _sequence(kind, _weights(p, "layer", 0), x)
        return _linear(p, "head", jnp.mean(states, 0)), stats

    return forward


_MODELS = {"mlp": _mlp, "lenet": _lenet, "resnet": _resnet, "gpt": _gpt, "lstm": _lstm}
_MODELS |= {kind: _alone(kind) for kind in GATES}


def _update(row: Row, p: State, g: State, opt: State) -> tuple[State, State]:
    """PyTorch's SGD, Adam and AdamW, for the options that the rows use."""
    if row.optimizer == "SGD":
        g = {k: g[k] + row.weight_decay * p[k] for k in p} if row.weight_decay else g
        if row.momentum:
            opt = {k: row.momentum * opt[k] + g[k] for k in p}
            g = opt
        return {k: p[k] - row.lr * g[k] for k in p}, opt
    step = opt["step"] + 1
    m = {k: 0.9 * opt["m"][k] + 0.1 * g[k] for k in p}
    v = {k: 0.999 * opt["v"][k] + 0.001 * g[k] * g[k] for k in p}
    size, root = row.lr / (1 - 0.9**step), jnp.sqrt(1 - 0.999**step)
    keep = 1 - row.lr * row.weight_decay
    new = {k: keep * p[k] - size * m[k] / (jnp.sqrt(v[k]) / root + 1e-8) for k in p}
    return new, {"step": step, "m": m, "v": v}


def _initial(row: Row, weights: Weights) -> tuple[State, State, State]:
    """Parameters, optimizer state and BatchNorm's running statistics."""

    def zeros() -> State:
        return {k: jnp.zeros(v.shape) for k, v in weights.items()}

    p = {k: jnp.array(v) for k, v in weights.items()}
    stats: State = {}
    if row.model == "resnet":
        widths = {k[:-7]: v.shape for k, v in weights.items() if "norm" in k and k[-6:] == "weight"}
        stats = {k: (jnp.zeros(n), jnp.ones(n)) for k, n in widths.items()}
    if row.optimizer == "SGD":
        return p, zeros() if row.momentum else {}, stats
    return p, {"step": jnp.zeros(()), "m": zeros(), "v": zeros()}, stats


def trainer(side: str, row: Row, weights: Weights) -> Callable[[Array, Array], Any]:
    """``step(x, y)`` over numpy batches."""
    del side  # there is one way
    if row.model not in _MODELS:
        raise NotImplementedError("not written for JAX")
    forward = _MODELS[row.model]

    def loss_of(p: State, stats: State, x: Any, y: Any) -> tuple[Any, State]:
        logits, stats = forward(p, stats, x)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1)
        return -jnp.mean(chosen), stats

    def step(state: tuple[State, State, State], x: Any, y: Any) -> tuple[Any, Any]:
        p, opt, stats = state
        (loss, stats), g = jax.value_and_grad(loss_of, has_aux=True)(p, stats, x, y)
        p, opt = _update(row, p, g, opt)
        return (p, opt, stats), loss

    compiled = jax.jit(step, donate_argnums=0)
    state = _initial(row, weights)

    def run(x: Array, y: Array) -> Any:
        nonlocal state
        state, loss = compiled(state, x, y)
        return loss

    return run


def inferrer(side: str, row: Row, weights: Weights) -> Callable[[Array], Array]:
    """``predict(x)`` from numpy to numpy."""
    del side
    p, _, stats = _initial(row, weights)
    compiled = jax.jit(lambda p, x: _MODELS[row.model](p, stats, x)[0])
    return lambda x: np.asarray(compiled(p, x))


_CHAINS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "relu-fma": lambda a, b, c: jax.nn.relu(a * b + c),
    "tanh-gate": lambda a, b: jnp.tanh(a) * b + a,
    "exp": jnp.exp,
    "gelu": lambda a: jax.nn.gelu(a, approximate=False),
}


def _attend(q: Any, k: Any, v: Any) -> Any:
    scores = q @ jnp.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    return jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1) @ v


def _function(case: Case) -> Callable[..., Any]:
    o = case.options
    if case.kind == "matmul":
        turned = ["T" in form for form in o["form"]]
        return lambda x, y: (x.T if turned[0] else x) @ (y.T if turned[1] else y)
    if case.kind.startswith("conv"):
        step, pad = (o["stride"],) * 2, [(o["padding"],) * 2] * 2

        def conv(x: Any, w: Any) -> Any:  # in PyTorch's layout, as everybody is given it
            return lax.conv_general_dilated(x, w, step, pad, feature_group_count=o["groups"])

        back = {
            "conv-input": lambda x, w, g: jax.vjp(lambda x: conv(x, w), x)[1](g)[0],
            "conv-weight": lambda x, w, g: jax.vjp(lambda w: conv(x, w), w)[1](g)[0],
        }
        return back.get(case.kind, conv)
    made: dict[str, Callable[..., Any]] = {
        "attention": _attend,
        "attention-grad": lambda q, k, v, g: jnp.stack(jax.vjp(_attend, q, k, v)[1](g)),
        "softmax": lambda x: jax.nn.softmax(x, -1),
        "norm": _norm,
        "sum": lambda x: jnp.sum(x, o["axis"]),
        "max": lambda x: jnp.max(x, o["axis"]),
        "transpose": lambda x: jnp.transpose(x, o["axes"]),
        "gather": lambda index, table: table[index],
        "chain": lambda *x: _CHAINS[o["chain"]](*x),
    }
    return made[case.kind]


def kernel(case: Case, arrays: list[Array]) -> tuple[Callable[[], Any], Callable[[], Array]]:
    """A call that computes the case, and one that reads its result."""
    compiled, given = jax.jit(_function(case)), [jnp.array(a) for a in arrays]

    def call() -> Any:
        return compiled(*given).block_until_ready()

    return call, lambda: np.asarray(call())
