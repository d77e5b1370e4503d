"""Where batches become Tensors: collation, TensorDataset, the loader's fast path, transforms."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest

from minitorch_tvm.capture import compile
from minitorch_tvm.core.events import EVENTS
from minitorch_tvm.lazy import no_sync
from minitorch_tvm.nn.utils.rnn import pad_sequence
from minitorch_tvm.random import Generator, default_generator
from minitorch_tvm.tensor import Tensor, from_numpy
from minitorch_tvm.tensor.creation import tensor
from minitorch_tvm.tensor.functions import cat
from minitorch_tvm.utils.data import (
    DataLoader,
    Dataset,
    Subset,
    SyntheticDigits,
    TensorDataset,
    default_collate,
    default_convert,
    random_split,
)
from minitorch_tvm.utils.data.transforms import Compose, Flatten, Lambda, Normalize, ToTensor

RNG = np.random.default_rng(0)


def check(tensor: Any, expected: Any, dtype: str) -> None:
    assert isinstance(tensor, Tensor)
    array = tensor.numpy()
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, expected)


class Hidden(Dataset):
    """A dataset without its batch reader, so that samples are read one by one."""

    def __init__(self, inner):
        self.inner = inner

    def __getitem__(self, index):
        return self.inner[index]

    def __len__(self):
        return len(self.inner)


@pytest.mark.parametrize(
    ("batch", "dtype"),
    [
        ([0.5, 1.5], "float64"),
        ([1.0, 2], "float64"),
        ([1, 2], "int64"),
        ([1, 2.5], "float32"),
        ([True, False], "bool"),
        ([np.float32(1), np.float32(2)], "float32"),
        ([np.int32(1), np.int32(2)], "int32"),
        ([np.array(3.0), np.array(4.0)], "float64"),
    ],
)
def test_numbers(batch, dtype):
    check(default_collate(batch), batch, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "bool", "uint8"])
def test_arrays_and_tensors_are_stacked(dtype):
    arrays = [(RNG.normal(size=(2, 3)) * 9).astype(dtype) for _ in range(3)]
    check(default_collate(arrays), np.stack(arrays), dtype)
    check(default_collate([from_numpy(array) for array in arrays]), np.stack(arrays), dtype)


def test_structures():
    x, y = default_collate([(0.5, 1), (1.5, 2)])
    check(x, [0.5, 1.5], "float64")
    check(y, [1, 2], "int64")
    assert type(default_collate([(1, 2)])) is list
    assert type(default_collate([[1, 2]])) is list
    named = collections.namedtuple("named", "image label")
    pair = default_collate([named(1.0, "a"), named(2.0, "b")])
    assert type(pair) is named
    check(pair.image, [1.0, 2.0], "float64")
    assert list(pair.label) == ["a", "b"]
    nested = default_collate([{"a": 1, "b": (2.0, b"x")}, {"a": 3, "b": (4.0, b"y")}])
    check(nested["a"], [1, 3], "int64")
    check(nested["b"][0], [2.0, 4.0], "float64")
    assert list(nested["b"][1]) == [b"x", b"y"]
    ordered = default_collate([collections.OrderedDict(k=1)])
    assert type(ordered) is collections.OrderedDict
    counting = collections.defaultdict(int, k=1)  # cannot be rebuilt from a dict alone
    check(default_collate([counting])["k"], [1], "int64")


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ([], IndexError, "the batch is empty"),
        ([[1, 2], [3]], RuntimeError, "each element in list of batch should be of equal size"),
        (
            [np.zeros(2), np.zeros(3)],
            RuntimeError,
            r"stack expects each tensor to be equal size, but got \[2\] at entry 0 and \[3\] at",
        ),
        ([object()], TypeError, "batch must contain tensors, numpy arrays, .*found <class 'object"),
        ([None, None], TypeError, "found <class 'NoneType'>"),
        ([np.array(["a"])], TypeError, "found <U1"),
        ([{"a": 1}, {"b": 1}], KeyError, "a"),
        ([2**70], OverflowError, "too large"),
    ],
)
def test_what_cannot_be_batched(batch, error, message):
    with pytest.raises(error, match=message):
        default_collate(batch)


def test_default_convert():
    out = default_convert({"a": np.arange(3), "b": [1.5, "s", np.float32(2)], "c": None})
    check(out["a"], [0, 1, 2], "int64")
    assert out["b"][:2] == [1.5, "s"]
    check(out["b"][2], 2, "float32")
    assert out["c"] is None
    words = np.array(["a", "b"])
    assert default_convert([words])[0] is words
    samples = list(DataLoader(TensorDataset(np.arange(3.0)), batch_size=None))
    assert [float(sample[0].numpy()) for sample in samples] == [0.0, 1.0, 2.0]


def test_tensor_dataset():
    x, y = RNG.normal(size=(6, 3)).astype(np.float32), np.arange(6)
    data = TensorDataset(from_numpy(x.copy()), y)
    assert len(data) == 6
    first, second = data[2]
    check(first, x[2], "float32")
    assert isinstance(second, np.ndarray)
    second[...] = 99
    assert y[2] == 2
    check(data[-1][0], x[5], "float32")
    check(data[[1, 4]][0], x[[1, 4]], "float32")
    with pytest.raises(IndexError):
        data[6]
    with pytest.raises(AssertionError, match="Size mismatch between tensors"):
        TensorDataset(x, y[:5])
    with pytest.raises(ValueError, match="at least one tensor"):
        TensorDataset()
    with pytest.raises(ValueError, match="tensor 0 has no dimension to index"):
        TensorDataset(np.array(3.0))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_the_fast_path_gives_what_single_samples_give(workers, shuffle, drop_last):
    x, y = RNG.normal(size=(23, 4)).astype(np.float32), RNG.integers(0, 9, 23)
    full = TensorDataset(from_numpy(x.copy()), from_numpy(y.copy()))
    for data in (full, Subset(full, range(3, 20)), random_split(full, [20, 3])[0]):

        def batches(dataset, num_workers):
            generator = Generator()
            generator.manual_seed(4)
            return list(
                DataLoader(
                    dataset,
                    batch_size=5,
                    shuffle=shuffle,
                    drop_last=drop_last,
                    generator=generator,
                    num_workers=num_workers,
                )
            )

        fast, slow = batches(data, workers), batches(Hidden(data), 0)
        assert len(fast) == len(slow) == (len(data) // 5 if drop_last else -(-len(data) // 5))
        for (xf, yf), (xs, ys) in zip(fast, slow, strict=True):
            check(xf, xs.numpy(), "float32")
            check(yf, ys.numpy(), "int64")
        if not shuffle and data is full:
            check(fast[0][0], x[:5], "float32")


def test_batch_sizes_one_and_larger_than_the_data():
    data = TensorDataset(np.arange(3.0))
    assert [batch[0].numpy().tolist() for batch in DataLoader(data)] == [[0.0], [1.0], [2.0]]
    (only,) = DataLoader(data, batch_size=10)
    check(only[0], [0.0, 1.0, 2.0], "float64")


def test_no_rows():
    data = TensorDataset(np.zeros((0, 2)))
    assert list(DataLoader(data)) == []
    with pytest.raises(ValueError, match="the dataset is empty"):
        DataLoader(data, shuffle=True)


def test_the_global_seed_gives_the_shuffle():
    data = TensorDataset(np.arange(40))

    def order():
        default_generator.manual_seed(11)
        loader = DataLoader(data, batch_size=40, shuffle=True)
        return [next(iter(loader))[0].numpy().tolist() for _ in range(2)]

    first, second = order()
    assert first != second
    assert sorted(first) == list(range(40))
    assert order() == [first, second]


def test_batches_are_aligned_and_do_not_write_through():
    x = np.zeros((10, 16), np.float32)
    for shuffle in (False, True):
        for (batch,) in DataLoader(TensorDataset(x), batch_size=3, shuffle=shuffle):
            array = batch.numpy()
            assert array.ctypes.data % 64 == 0
            if array.flags.writeable:
                array[...] = 1
    assert not x.any()


def test_bad_index_from_a_batch_sampler():
    with pytest.raises(IndexError, match="index 9 is out of bounds for dimension 0 with size 4"):
        list(DataLoader(TensorDataset(np.zeros(4)), batch_sampler=[[0, 9]]))
    with pytest.raises(TypeError, match="dataset indices must be integers"):
        list(DataLoader(TensorDataset(np.zeros(4)), batch_sampler=[[0.5]]))


def test_transforms_of_samples_are_the_rows_of_transformed_batches():
    transform = Compose([ToTensor(), Normalize((0.1307,), (0.3081,))])
    data = SyntheticDigits(n=12, transform=transform)
    assert isinstance(data[0][0], Tensor)
    truth = (data.data.astype(np.float64)[:, None] / 255 - 0.1307) / 0.3081
    for dataset in (data, Hidden(data)):
        images, labels = next(iter(DataLoader(dataset, batch_size=12)))
        assert images.numpy().dtype == np.float32
        np.testing.assert_allclose(images.numpy(), truth, rtol=1e-5, atol=1e-6)
        check(labels, data.targets, "int64")
    fast = next(iter(DataLoader(data, batch_size=12)))[0].numpy()
    np.testing.assert_array_equal(fast, np.stack([data[i][0].numpy() for i in range(12)]))
    flat = SyntheticDigits(n=4, transform=Compose([ToTensor(), Flatten()]))
    assert flat[0][0].numpy().shape == (784,)
    assert next(iter(DataLoader(flat, batch_size=4)))[0].numpy().shape == (4, 784)


def test_a_transform_without_batched_works_too():
    data = SyntheticDigits(n=5, transform=Lambda(lambda image: image[::2].astype(np.float32)))
    images, _ = next(iter(DataLoader(data, batch_size=5)))
    check(images, data.data[:, ::2], "float32")


def test_untransformed_images_are_bytes():
    data = SyntheticDigits(n=5)
    images, labels = next(iter(DataLoader(data, batch_size=5)))
    check(images, data.data, "uint8")
    check(labels, data.targets, "int64")


def test_epochs_after_the_first_allocate_nothing():
    data = SyntheticDigits(n=500, transform=ToTensor())
    loader = DataLoader(data, batch_size=100, shuffle=True)

    def epoch():
        before = EVENTS.get("allocations")
        total = sum(float(images.numpy().sum()) for images, _ in loader)
        return EVENTS.get("allocations") - before, total

    epoch()
    allocations, total = epoch()
    assert allocations == 0
    assert total == pytest.approx(data.data.sum(dtype=np.int64) / 255, rel=1e-5)


def test_single_samples_leave_no_pending_work_behind():
    data = TensorDataset(from_numpy(np.arange(6000.0)))
    before = EVENTS.get("evaluations")
    batches = [batch[0].numpy() for batch in DataLoader(Hidden(data), batch_size=1000)]
    np.testing.assert_array_equal(np.concatenate(batches), np.arange(6000.0))
    assert EVENTS.get("evaluations") == before


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_of_a_users_collation_are_computed(workers: int) -> None:
    """Or each batch of sentences would make the step that reads it another program."""
    rng = np.random.default_rng(0)
    sentences = [tensor(rng.integers(2, 9, rng.integers(1, 6))) for _ in range(60)]
    ends = tensor([1])

    def collated(samples: list[Tensor]) -> dict[str, Any]:
        whole = [cat([ends, s, ends]) for s in samples]
        texts: list[Any] = [tuple(whole[:1]), "a text"]
        texts.append(texts)
        return {"tokens": pad_sequence(whole, True), "texts": texts}

    loader: Any = DataLoader(sentences, batch_size=5, collate_fn=collated, num_workers=workers)
    for k, batch in enumerate(loader):
        assert not batch["tokens"].node.pending
        assert not batch["texts"][0][0].node.pending
        expected = [np.concatenate([[1], s.numpy(), [1]]) for s in sentences[5 * k : 5 * k + 5]]
        for row, wanted in zip(batch["tokens"].numpy(), expected, strict=True):
            np.testing.assert_array_equal(row[: len(wanted)], wanted)
            assert not row[len(wanted) :].any()
    with no_sync():
        assert any(batch["tokens"].node.pending for batch in loader) == (workers == 0)


def test_what_is_left_of_a_step_is_no_part_of_the_next_batch() -> None:
    rng = np.random.default_rng(1)
    lines = [tensor(rng.normal(size=rng.integers(1, 6)).astype("f")) for _ in range(40)]

    def collated(samples: list[Tensor]) -> Tensor:
        return pad_sequence([s * 2.0 for s in samples], True)

    loader: Any = DataLoader(lines, batch_size=4, collate_fn=collated)
    before, total = EVENTS.get("evaluations"), tensor(0.0)
    for batch in loader:
        total = total + batch.square().sum()
    assert total.item() == pytest.approx(4 * sum((s.numpy() ** 2).sum() for s in lines), rel=1e-5)
    # Of each batch, and of what was done with it; nothing is left of the first before the first.
    assert EVENTS.get("evaluations") - before == 2 * len(loader)


def test_data_is_padded_at_once() -> None:
    lines = [tensor([1.0]), tensor([2.0, 3.0])]
    assert not pad_sequence(lines).node.pending
    assert not pad_sequence(lines, padding_value=np.nan).node.pending
    for value, kind in ((300, "uint8"), (-1, "uint8"), (np.nan, "int64"), (1e300, "float32")):
        ones = [from_numpy(np.ones(n, kind)) for n in (1, 2)]
        with pytest.raises(RuntimeError, match="cannot be converted to type"):
            pad_sequence(ones, padding_value=value)
    assert pad_sequence([lines[0] + 1.0, lines[1]]).node.pending
    assert pad_sequence([lines[0].clone().requires_grad_(), lines[1]]).requires_grad
    watched = compile(lambda x, y: pad_sequence([x, y]) * 2.0)
    for k in range(4):
        more = [line + float(k) for line in lines]
        np.testing.assert_array_equal(watched(*more).numpy(), (pad_sequence(more) * 2.0).numpy())
