"""The weight gradient by outer products: how its parts are added up and finished."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from linked import Linked
from test_isa import ISAS, assembly

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.compiler.assemble import Place
from minitorch_tvm.compiler.loops import pointer_buffer, store
from minitorch_tvm.compiler.schedule.cpu import conv_weight_tiles
from minitorch_tvm.compiler.schedule.cpu.conv_spec import Access, Conv
from minitorch_tvm.compiler.target import from_features
from minitorch_tvm.nn import functional as F

rng = np.random.default_rng(7)
PACKAGE = "minitorch_tvm.compiler.schedule.cpu"
conv_weight = importlib.import_module(f"{PACKAGE}.conv_weight")
PLAN = conv_weight_tiles.plan


@pytest.fixture(autouse=True)
def by_outer_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other schedule is taken."""
    for module, name in (
        ("conv_weight_rows", "plan"),
        ("conv_weight_tiles", "plan"),
        ("conv_unfolded", "weight_gradient"),
    ):
        found = importlib.import_module(f"{PACKAGE}.{module}")
        monkeypatch.setattr(found, name, lambda *_: None)


def normal(*shape: int) -> mt.Tensor:
    return mt.tensor(rng.standard_normal(shape).astype(np.float32))


def trained(
    x: mt.Tensor, weight: mt.Tensor, ct: mt.Tensor, padding: int = 0
) -> tuple[mt.Tensor, mt.Tensor]:
    """The weight after a step, and its gradient."""
    weight.requires_grad_()
    mt.eval(x, weight, ct)
    (F.conv2d(x, weight, padding=padding) * ct).sum().backward()
    gradient = weight.grad
    assert gradient is not None
    with mt.no_grad():
        weight.sub_(gradient * 0.5)
    return weight, gradient


@pytest.mark.parametrize(
    ("images", "channels", "outputs", "kernel"),
    [
        (16, 7, 20, (3, 3)),
        (9, 29, 33, (3, 3)),  # channels are no multiple of a tile's, the last of which has fewer
        (8, 33, 16, (5, 5)),
        (1, 3, 5, (17, 17)),  # a window is more than a tile adds up
        (2, 300, 17, (1, 1)),
        (3, 1, 1, (2, 7)),
    ],
)
def test_parts_are_added_up(
    images: int, channels: int, outputs: int, kernel: tuple[int, int]
) -> None:
    height, width = kernel[0] + 5, kernel[1] + 4
    x, weight = normal(images, channels, height, width), normal(outputs, channels, *kernel)
    ct, before = normal(images, outputs, 6, 5), weight.numpy().copy()
    weight, gradient = trained(x, weight, ct)
    mt.eval(weight, gradient)
    windows = np.lib.stride_tricks.sliding_window_view(x.numpy().astype("f8"), kernel, (2, 3))
    want = np.einsum("ncyxij,noyx->ocij", windows, ct.numpy().astype("f8"))
    np.testing.assert_allclose(gradient.numpy(), want, rtol=1e-4, atol=1e-4)
    after = before - 0.5 * gradient.numpy()
    np.testing.assert_allclose(weight.detach().numpy(), after, rtol=1e-6, atol=1e-6)


def test_what_needs_channel_and_tap_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    total, apart = conv_weight._total_of_parts, []

    def watched(*arguments: Any) -> Any:
        apart.append(arguments[-1].write_line is None)
        return total(*arguments)

    monkeypatch.setattr(conv_weight, "_total_of_parts", watched)
    lazy.clear_cache()
    x, weight, ct = normal(8, 4, 8, 8), normal(6, 4, 3, 3).requires_grad_(), normal(8, 6, 6, 6)
    (plain,) = mt.autograd.grad((F.conv2d(x, weight) * ct).sum(), [weight])
    wanted = plain.numpy().copy()
    per_tap = normal(3, 3)
    mt.eval(per_tap)
    (again,) = mt.autograd.grad((F.conv2d(x, weight) * ct).sum(), [weight])
    found = (again + per_tap).numpy()
    assert apart == [False, True]
    np.testing.assert_allclose(found, wanted + per_tap.numpy(), rtol=1e-5, atol=1e-5)


# What is finished does not use the unit: any processor can show the code for one that has it.
_UNIT = replace(from_features("sapphirerapids", {"avx512f": True}, matrix=True), l2_bytes=2 << 20)


@pytest.mark.parametrize("isa", [*ISAS, "unit"])
def test_totals_are_finished_in_vectors(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_weight_tiles, "plan", PLAN)
    cpu = _UNIT if isa == "unit" else ISAS[isa].cpu

    def step() -> list[mt.Tensor]:
        x, weight, ct = normal(16, 32, 9, 9), normal(64, 32, 5, 5), normal(16, 64, 9, 9)
        return list(trained(x, weight, ct, padding=2))

    text = assembly(step, cpu, monkeypatch)
    assert ("tdpbf16ps" in text) == (isa == "unit")
    (total,) = re.findall(r"^conv_dw_sum_\w+:.*?^\.Lfunc_end", text, flags=re.M | re.S)
    single = {"neon": r"\t(?:mov|ins|ld1|st1)\t.*\.s\}?\[\d\]"}.get(
        isa, "gather|vp?extr|vinsertps|vmovss"
    )
    assert not re.search(single, total)  # nothing moves element by element


@pytest.mark.parametrize("lines", [True, False])
@pytest.mark.parametrize(("channels", "kernel"), [(32, (3, 3)), (16, (5, 5)), (20, (3, 2))])
def test_parts_of_the_matrix_unit_are_added_up(
    channels: int, kernel: tuple[int, int], lines: bool
) -> None:
    """That needs no unit: sums lie in tiles of 16 outputs by 16 channels, tap after tap."""
    parts, outputs, taps = 3, 21, kernel[0] * kernel[1]
    spec = Conv(1, channels, 9, 9, outputs, *kernel, (1, 1), (0, 0), (1, 1), "float32")
    shape = conv_weight_tiles._Shape(spec)
    sums = pointer_buffer((parts, *shape.sums), "float32", "sums")
    result = pointer_buffer((outputs, channels, *kernel), "float32", "result")
    flat = pointer_buffer((outputs, channels * taps), "float32", "flat")
    access = Access(
        none := lambda *_: None,
        none,
        lambda o, c, i, j, value: store(result, value, o, c, i, j),
        write_line=(lambda o, q, value: store(flat, value, o, q)) if lines else None,
    )
    stage = conv_weight_tiles._total(shape, parts, sums, access)
    run = Linked([stage], lambda b: Place(0 if sums.same_as(b) else 1))
    tiles = rng.standard_normal(sums.shape).astype(np.float32)
    found = np.zeros(result.shape, np.float32)
    run([tiles, found])
    groups = -(-channels // 16)
    total = tiles.sum(0, dtype="f8")[:, : taps * groups]
    # Blocks of outputs, taps, groups of channels, outputs, channels.
    apart = total.reshape(-1, taps, groups, 16, 16).transpose(0, 3, 2, 4, 1)
    want = apart.reshape(-1, groups * 16, *kernel)[:outputs, :channels]
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
