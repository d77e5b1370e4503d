"""Copies of images with channels innermost: zeros around them, and nothing written twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from linked import Linked

from minitorch_tvm.compiler.assemble import Place
from minitorch_tvm.compiler.loops import (
    Builder,
    const,
    load,
    parallel_stage,
    pointer_buffer,
    ramp,
    seq,
    serial,
    splat,
    store,
)
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


@pytest.mark.parametrize(
    ("dtype", "lanes"), [("float32", 16), ("float32", 8), ("float32", 4), ("float64", 8)]
)
def test_squares_are_turned_from_one_place_to_another(dtype: str, lanes: int) -> None:
    source, to = (pointer_buffer((40, 50), dtype, name) for name in ("source", "to"))

    def body(_: Any) -> Any:
        places = (load(source, 3, 5), 50), (load(to, 7, 2), 50)
        return conv_layout.turn(dtype, lanes, *places)

    stage = parallel_stage("turn", 1, body)
    given = np.random.default_rng(0).standard_normal((40, 50)).astype(dtype)
    found = np.zeros_like(given)
    Linked([stage], lambda m: Place(int(to.same_as(m))))([given, found])
    expected = np.zeros_like(given)
    expected[7 : 7 + lanes, 2 : 2 + lanes] = given[3 : 3 + lanes, 5 : 5 + lanes].T
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("columns", [16, 9])
def test_squares_that_are_computed_are_turned_apart(columns: int) -> None:
    source, to = (pointer_buffer((16, 16), "float32", name) for name in ("source", "to"))

    def fill(block: Any, r: Any) -> Any:
        return serial(columns, lambda k: store(block, load(source, r, k) * 2, r, k))

    def body(_: Any) -> Any:
        return conv_layout.transpose_rows(
            16, "float32", fill, lambda k, v: store(to, v, k, ramp(0, 16)), columns, apart=True
        )

    stages = [parallel_stage("turn", 1, body), parallel_stage("other", 1, lambda _: seq())]
    assert [[h.name for h in stage.helpers] for stage in stages] == [["turn_float32_16"], []]
    given = np.random.default_rng(0).standard_normal((16, 16)).astype("f4")
    found = np.zeros_like(given)
    Linked(stages[:1], lambda m: Place(int(to.same_as(m))))([given, found])
    np.testing.assert_array_equal(found[:columns], 2 * given.T[:columns])
    assert not found[columns:].any()


# What is turned straight to its place lies there as squares: rows of whole ones, or no border.
@pytest.mark.parametrize(
    ("size", "low", "extent", "straight"),
    [
        ((4, 16), (1, 1), (6, 18), True),
        ((4, 32), (0, 2), (4, 36), True),
        ((5, 8), (0, 0), (5, 8), True),
        ((5, 8), (1, 1), (7, 10), False),
        ((3, 20), (1, 1), (5, 22), False),
    ],
)
def test_images_in_memory_are_turned_straight_to_their_copy(
    size: tuple[int, int], low: tuple[int, int], extent: tuple[int, int], straight: bool
) -> None:
    h, w = size
    layout = conv_layout.ChannelsLast(32, size, low, extent, 32, "float32", 16)
    given = pointer_buffer((2, 32, h * w), "float32", "given")

    def line(image: Any, channel: Any, pixel: Any) -> Any:
        return load(given, image, channel, pixel)

    images = (lambda n, c, y, x: line(n, c, y * w + x)), line
    stages, copy = layout.stages("x", 2, images, Builder())
    assert [[h.name for h in stage.helpers] for stage in stages] == [
        ["turn_float32_16"] if straight else []
    ]
    values = np.random.default_rng(0).standard_normal((2, 32, h * w)).astype("f4")
    found = np.full(copy.shape, np.nan, "f4")
    Linked(stages, lambda m: Place(int(copy.same_as(m))))([values, found])
    expected = np.zeros_like(found)
    inside = expected[:, 0, low[0] : low[0] + h, low[1] : low[1] + w]
    inside[...] = values.reshape(2, 32, h, w).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(found, expected)


# Channels that fill no vector are turned with those before them, or with the zeros behind them.
@pytest.mark.parametrize(
    ("channels", "padded"), [(20, 20), (40, 40), (20, 32), (5, 16), (40, 48), (20, 24)]
)
@pytest.mark.parametrize("computed", [False, True])
def test_channels_that_fill_no_vector_are_turned_with_others(
    channels: int, padded: int, computed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_by_one: list[int] = []
    remainder = conv_layout.ChannelsLast._remainder

    def watched(layout: Any, *args: Any) -> Any:
        one_by_one.append(layout.channels - layout._covered)
        return remainder(layout, *args)

    monkeypatch.setattr(conv_layout.ChannelsLast, "_remainder", watched)
    layout = conv_layout.ChannelsLast(channels, (4, 16), (0, 0), (4, 16), padded, "float32", 16)
    given = pointer_buffer((2, channels, 64), "float32", "given")

    def line(image: Any, channel: Any, pixel: Any) -> Any:
        return load(given, image, channel, pixel)

    images = (lambda n, c, y, x: line(n, c, y * 16 + x)), None if computed else line
    stages, copy = layout.stages("x", 2, images, Builder())
    # Zeros that fill no vector are all that is written one by one.
    assert one_by_one == ([0] if padded == 24 else [])
    values = np.random.default_rng(0).standard_normal((2, channels, 64)).astype("f4")
    found = np.full(copy.shape, np.nan, "f4")
    Linked(stages, lambda m: Place(int(copy.same_as(m))))([values, found])
    expected = np.zeros_like(found)
    expected[..., :channels] = values.reshape(2, 1, channels, 4, 16).transpose(0, 1, 3, 4, 2)
    np.testing.assert_array_equal(found, expected)
