"""torch's side of the comparison: eager, or with torch.compile."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

import torch
from _cases import Case, expression
from _program import model, parts, training_step
from _rows import Array, Row, Weights

torch._logging.set_logs(all=logging.ERROR)
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def trainer(side: str, row: Row, weights: Weights) -> Callable[[Array, Array], Any]:
    """``step(x, y)`` over numpy batches; compiled: the loss and the update, as torch advises."""
    loss_of, optimizer = parts(torch, row, model(torch, row, weights))
    if side == "torch.compile":
        loss_of = torch.compile(loss_of)
        optimizer.step = torch.compile(optimizer.step)
    step = training_step(loss_of, optimizer)
    return lambda x, y: step(torch.from_numpy(x), torch.from_numpy(y)).detach()


def inferrer(side: str, row: Row, weights: Weights) -> Callable[[Array], Array]:
    """``predict(x)`` from numpy to numpy."""
    net = model(torch, row, weights).eval()
    if side == "torch.compile":
        net = torch.compile(net)

    def predict(x: Array) -> Array:
        with torch.inference_mode():
            return net(torch.from_numpy(x)).numpy()  # type: ignore[no-any-return]

    return predict


def kernel(case: Case, arrays: list[Array]) -> tuple[Callable[[], Any], Callable[[], Array]]:
    """A call that computes the case, and one that reads its result."""
    tensors = [torch.from_numpy(a) for a in arrays]
    if case.kind in ("conv-input", "conv-weight"):
        stride, padding, groups = (case.options[k] for k in ("stride", "padding", "groups"))
        wanted = [case.kind == "conv-input", case.kind == "conv-weight", False]
        x, w, g = tensors

        def call() -> Any:
            return torch.ops.aten.convolution_backward(
                *(
                    g,
                    x,
                    w,
                    None,
                    [stride, stride],
                    [padding, padding],
                    [1, 1],
                    False,
                    [0, 0],
                    groups,
                ),
                wanted,
            )[wanted.index(True)]
    elif case.kind == "matmul":
        x, y = (t.T if f == "T" else t for t, f in zip(tensors, case.options["form"], strict=True))
        out = torch.empty(x.shape[0], y.shape[1])

        def call() -> Any:
            return torch.mm(x, y, out=out)
    else:
        compute = expression(case)

        def call() -> Any:
            return compute(torch, *tensors)

        if case.kind == "attention-grad":  # without inference mode, which has no gradients
            return call, lambda: call().numpy()

    return torch.inference_mode()(call), lambda: call().numpy()
