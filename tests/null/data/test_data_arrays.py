"""Aligned memory and reading rows: against plain numpy indexing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitorch_tvm.utils.data.arrays import (
    aligned,
    aligned_empty,
    index_array,
    is_aligned,
    pooled_empty,
    take_rows,
)


@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (7, 5), (64, 2, 3)])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64", "int64", "bool"])
@pytest.mark.parametrize("make", [aligned_empty, pooled_empty])
def test_empty_memory_is_aligned_and_writable(shape, dtype, make):
    array = make(shape, dtype)
    assert array.shape == shape
    assert array.dtype == dtype
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.nbytes == 0 or array.ctypes.data % 64 == 0


def test_aligned_keeps_good_memory_and_copies_the_rest():
    good = aligned_empty((8, 16), np.float32)
    good[...] = np.arange(128).reshape(8, 16)
    assert aligned(good) is good
    for bad in (good[:, 1:], good.T, good.reshape(-1)[1:9]):
        copy = aligned(bad)
        assert is_aligned(copy)
        np.testing.assert_array_equal(copy, bad)
        assert not np.shares_memory(copy, bad)


@given(
    rows=st.integers(1, 20),
    columns=st.sampled_from([1, 3, 16]),
    dtype=st.sampled_from(["uint8", "float32", "int64"]),
    layout=st.sampled_from(["c", "transposed", "offset"]),
    data=st.data(),
)
def test_take_rows_equals_numpy_indexing(rows, columns, dtype, layout, data):
    values = np.arange(rows * columns).astype(dtype)
    if layout == "c":
        source = values.reshape(rows, columns)
    elif layout == "transposed":
        source = values.reshape(columns, rows).T
    else:
        source = np.concatenate([values[:1], values])[1:].reshape(rows, columns)
    indices = data.draw(st.lists(st.integers(-rows, rows - 1), max_size=12))
    taken = take_rows(source, np.array(indices, dtype=np.int64))
    np.testing.assert_array_equal(taken, source[np.array(indices, dtype=np.int64)])
    assert taken.dtype == source.dtype
    assert is_aligned(taken)


def test_neighbours_on_a_boundary_are_a_read_only_view():
    source = aligned_empty((10, 16), np.float32)  # rows of 64 bytes: each starts on a boundary
    source[...] = 1
    view = take_rows(source, np.arange(3, 7))
    assert np.shares_memory(view, source)
    assert not view.flags.writeable
    assert source.flags.writeable
    narrow = aligned_empty((10, 3), np.float32)
    narrow[...] = 1
    assert np.shares_memory(take_rows(narrow, np.arange(0, 4)), narrow)
    assert not np.shares_memory(take_rows(narrow, np.arange(1, 5)), narrow)
    for scattered in ([3, 5, 4, 6], [3, 3, 4, 6], [6, 5, 4, 3], [3, 4, 6, 6]):
        copy = take_rows(source, np.array(scattered))
        assert not np.shares_memory(copy, source)


@pytest.mark.parametrize("bad", [5, -6])
def test_take_rows_rejects_indices_out_of_range(bad):
    with pytest.raises(IndexError, match=f"index {bad} is out of bounds for dimension 0 with size"):
        take_rows(np.zeros((5, 2)), np.array([0, bad, 1]))


def test_index_array_refuses_to_truncate():
    assert index_array([]).dtype == np.int64
    assert index_array(range(3)).tolist() == [0, 1, 2]
    with pytest.raises(TypeError, match="must be integers"):
        index_array([0.5])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="must be integers"):
        index_array([True])


def test_pooled_memory_is_reused_only_after_its_last_view_is_gone():
    shape = (1, 123_456)  # a size that nobody else has in the pool
    first = pooled_empty(shape, np.uint8)
    address = first.ctypes.data
    view = first[0, 5:9]
    del first
    second = pooled_empty(shape, np.uint8)
    assert second.ctypes.data != address
    del view
    third = pooled_empty(shape, np.uint8)
    assert third.ctypes.data == address
