"""Copies of images with channels innermost: zeros around them, and nothing written twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from linked import Linked

from minitorch_tvm.compiler.assemble import Place
from minitorch_tvm.compiler.loops import Builder, const, load, splat, store
from minitorch_tvm.compiler.schedule.cpu import conv_layout


@pytest.mark.parametrize(
    ("low", "extent"),
    [
        ((1, 1), (10, 8)),
        ((2, 1), (11, 9)),
        ((0, 0), (9, 7)),
        ((0, 2), (8, 8)),
        ((3, 0), (11, 6)),
        ((0, 0), (8, 6)),
    ],
)
def test_a_copy_is_written_once_and_its_borders_alone_are_cleared(
    low: tuple[int, int], extent: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def count(memory: Any, value: Any, *index: Any) -> Any:
        """One more than what is stored is added: 1 for a zero, 2 for the image's ones."""
        if memory.local:
            return store(memory, value, *index)
        one = const(1.0, "float32")
        total = load(memory, *index) + value
        return store(memory, total + (splat(one, 16) if "x16" in str(value.ty) else one), *index)

    monkeypatch.setattr(conv_layout, "store", count)
    layout = conv_layout.ChannelsLast(32, (8, 6), low, extent, 32, "float32", 16)
    ones = (lambda *_: const(1.0, "float32")), None
    stages, copy = layout.stages("x", 2, ones, Builder())
    found = np.zeros((2, *layout.image_shape), "f4")
    assert found.shape == copy.shape
    Linked(stages, lambda _: Place(0))([found])
    expected = np.ones_like(found)
    expected[:, :, low[0] : low[0] + 8, low[1] : low[1] + 6] = 2
    np.testing.assert_array_equal(found, expected)
