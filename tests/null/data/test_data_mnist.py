"""idx files and MNIST: fabricated files, damage of every kind, where files are searched."""

from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from minitorch_tvm.core import config
from minitorch_tvm.utils.data import (
    MNIST,
    CorruptedFileError,
    MNISTNotFoundError,
    Subset,
    SyntheticDigits,
    load_mnist_or_synthetic,
    read_idx,
    write_idx,
)
from minitorch_tvm.utils.data.arrays import is_aligned
from minitorch_tvm.utils.data.mnist import Resource

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 28, 28), dtype=np.uint8)
LABELS = (np.arange(12) % 10).astype(np.uint8)


def resource(name: str, array: np.ndarray, folder: Path) -> Resource:
    write_idx(folder / name, array)
    content = (folder / name).read_bytes()
    return Resource(name, hashlib.sha256(content).hexdigest(), len(content))


def small_mnist(
    folder: Path, images: np.ndarray = IMAGES, labels: np.ndarray = LABELS
) -> type[MNIST]:
    """A class like MNIST for two small files, which are written into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    pair = (resource("images", images, folder), resource("labels", labels, folder))

    class Small(MNIST):
        train_files = pair
        test_files = pair
        mirrors = ()

    return Small


@pytest.fixture(autouse=True)
def _no_real_data(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with config.override(data=None):
        yield


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "i4", "f4", "f8"])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3, 4)])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_round_trip(tmp_path, dtype, shape, suffix):
    array = np.random.default_rng(1).integers(0, 100, shape).astype(dtype)
    write_idx(tmp_path / f"x{suffix}", array)
    back = read_idx(tmp_path / f"x{suffix}")
    np.testing.assert_array_equal(back, array)
    assert back.dtype == array.dtype
    assert back.dtype.isnative
    assert is_aligned(back)
    assert back.flags.writeable


def test_idx_bytes_are_the_published_layout(tmp_path):
    (tmp_path / "x").write_bytes(bytes([0, 0, 0x0B, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 1, 255, 254]))
    np.testing.assert_array_equal(read_idx(tmp_path / "x"), [[1, -2]])
    with pytest.raises(TypeError, match="idx files cannot hold int64"):
        write_idx(tmp_path / "y", np.zeros(2, np.int64))


def test_samples_and_attributes(tmp_path):
    data = small_mnist(tmp_path)(tmp_path)
    assert len(data) == 12
    image, label = data[3]
    np.testing.assert_array_equal(image, IMAGES[3])
    assert image.dtype == np.uint8
    assert type(label) is int
    assert label == 3
    image[:] = 0
    np.testing.assert_array_equal(data.data, IMAGES)
    assert data.targets.dtype == np.int64
    assert data.classes[7] == "7 - seven"
    assert data.class_to_idx["0 - zero"] == 0
    changed = small_mnist(tmp_path)(
        tmp_path, transform=lambda x: x.sum(), target_transform=lambda y: -y
    )
    assert changed[5] == (IMAGES[5].sum(), -5)


@pytest.mark.parametrize("layout", ["", "raw", "MNIST/raw"])
@pytest.mark.parametrize("zipped", [False, True])
def test_layouts(tmp_path, layout, zipped):
    folder = tmp_path / layout
    cls = small_mnist(folder)
    if zipped:
        for name in ("images", "labels"):
            (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
            (folder / name).unlink()
    np.testing.assert_array_equal(cls(tmp_path, train=False).data, IMAGES)


def test_search_order_root_then_variable_then_cache(tmp_path):
    cls = small_mnist(tmp_path / "cache" / "minitorch_tvm" / "mnist" / "MNIST" / "raw")
    assert len(cls()) == 12
    write_idx(tmp_path / "images", IMAGES)
    write_idx(tmp_path / "labels", LABELS)
    with config.override(data=str(tmp_path / "nowhere")):
        with pytest.raises(MNISTNotFoundError, match=r"MTVM_DATA: there is no folder .*nowhere"):
            cls()
        assert cls(tmp_path).root == tmp_path
    with config.override(data=str(tmp_path)):
        assert cls().root == tmp_path


def test_missing_files_and_wrong_paths_are_named(tmp_path):
    cls = small_mnist(tmp_path / "data")
    with pytest.raises(MNISTNotFoundError, match=r"root: there is no folder .*typo.*download"):
        cls(tmp_path / "typo")
    (tmp_path / "data" / "labels").unlink()
    with pytest.raises(MNISTNotFoundError, match=r"found neither labels nor labels\.gz in"):
        cls(tmp_path / "data")
    with pytest.raises(MNISTNotFoundError, match="per-user cache: there is no folder"):
        cls()


def _flip(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: b"", "the file is empty"),
        (lambda b: b[:-7], "needs 9424 bytes uncompressed, but there are 9417"),
        (lambda b: b + b"x", "needs 9424 bytes uncompressed, but there are 9425"),
        (lambda b: b[:9], "the header of a 3-d file needs 16 bytes"),
        (lambda b: b[:3], "wrong magic number"),
        (lambda b: b"\0\0\x07\x03" + b[4:], "wrong magic number.*starts with 00 00 07 03"),
        (lambda b: b"<html>not found</html>", "wrong magic number"),
        (lambda b: _flip(b, 5000), "expected sha256 .* found"),
        (lambda b: gzip.compress(b)[:-20], "gzip stream is damaged or cut short"),
        (lambda b: _flip(gzip.compress(b), 4000), "gzip stream is damaged or cut short"),
        (lambda b: gzip.compress(_flip(b, 5000)), "expected sha256 .* found"),
    ],
)
def test_damage_is_reported_with_file_and_advice(tmp_path, damage, message):
    cls = small_mnist(tmp_path)
    path = tmp_path / "images"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CorruptedFileError, match=f"images: .*{message}.*Delete or replace") as info:
        cls(tmp_path)
    assert str(path) in str(info.value)


def test_files_that_do_not_fit_each_other(tmp_path):
    with pytest.raises(CorruptedFileError, match="11 labels do not match 12 images"):
        small_mnist(tmp_path, labels=LABELS[:11])(tmp_path)
    with pytest.raises(CorruptedFileError, match="labels must be below 10, but one is 10"):
        small_mnist(tmp_path, labels=LABELS + 1)(tmp_path)
    with pytest.raises(CorruptedFileError, match=r"expected uint8 images \[n, h, w\]"):
        small_mnist(tmp_path, images=LABELS)(tmp_path)
    with pytest.raises(CorruptedFileError, match=r"expected uint8 labels \[n\]"):
        small_mnist(tmp_path, labels=IMAGES)(tmp_path)


def test_no_images_at_all(tmp_path):
    data = small_mnist(tmp_path, IMAGES[:0], LABELS[:0])(tmp_path)
    assert len(data) == 0
    images, labels = data.batch_reader()(np.empty(0, np.int64))
    assert images.shape == (0, 28, 28)
    assert labels.shape == (0,)


def test_batches_equal_samples(tmp_path):
    data = small_mnist(tmp_path)(tmp_path)
    order = np.array([5, 0, 11, 3])
    images, labels = data.batch_reader()(order)
    np.testing.assert_array_equal(images, np.stack([data[i][0] for i in order]))
    np.testing.assert_array_equal(labels, [data[i][1] for i in order])
    images, labels = Subset(data, range(4, 12)).batch_reader()(np.array([0, 1, 2]))
    np.testing.assert_array_equal(images, IMAGES[4:7])
    assert np.shares_memory(images, data.data)  # in order, and 4 * 784 is a multiple of 64
    np.testing.assert_array_equal(labels, LABELS[4:7])


def test_a_subclass_that_changes_samples_is_not_bypassed(tmp_path):
    class Dark(small_mnist(tmp_path)):
        def __getitem__(self, index):
            image, label = super().__getitem__(index)
            return 255 - image, label

    class Shifted(Subset):
        def __getitem__(self, index):
            return super().__getitem__((index + 1) % len(self))

    dark = Dark(tmp_path)
    assert dark.batch_reader() is None
    assert Subset(dark, [0]).batch_reader() is None
    plain = small_mnist(tmp_path)(tmp_path)
    assert Shifted(plain, [0, 1]).batch_reader() is None
    assert [label for _, label in Shifted(plain, [0, 1]).__getitems__([0, 1])] == [1, 0]


def test_fallback_is_loud_and_only_when_nothing_was_asked_for(tmp_path, capsys, monkeypatch):
    small = SyntheticDigits.__init__

    def few(self, train=True, n=None, seed=0, transform=None, target_transform=None):
        small(self, train, 20, seed, transform, target_transform)

    monkeypatch.setattr(SyntheticDigits, "__init__", few)
    cls = small_mnist(tmp_path / "data")
    train, test = load_mnist_or_synthetic(dataset=cls, download=False)
    assert isinstance(train, SyntheticDigits)
    assert isinstance(test, SyntheticDigits)
    assert train.train
    assert not test.train
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "USING SYNTHETIC DIGITS" in said

    train, _ = load_mnist_or_synthetic(tmp_path / "data", dataset=cls)
    assert isinstance(train, cls)
    assert capsys.readouterr().err == ""
    with pytest.raises(MNISTNotFoundError, match="typo"):
        load_mnist_or_synthetic(tmp_path / "typo", dataset=cls)
    with config.override(data=str(tmp_path)), pytest.raises(MNISTNotFoundError, match="MTVM_DATA"):
        load_mnist_or_synthetic(dataset=cls)


def test_a_damaged_cache_is_not_papered_over(tmp_path):
    cache = tmp_path / "cache" / "minitorch_tvm" / "mnist"
    cls = small_mnist(cache)
    (cache / "images").write_bytes(b"")
    with pytest.raises(CorruptedFileError, match="the file is empty"):
        load_mnist_or_synthetic(dataset=cls)


REAL = Path(
    os.environ.get("MTVM_DATA", "") or Path(__file__).resolve().parents[4] / "shared" / "mnist"
)


@pytest.mark.skipif(not REAL.is_dir(), reason="the real MNIST files are not here")
@pytest.mark.parametrize(("train", "n"), [(True, 60_000), (False, 10_000)])
def test_the_real_files_have_the_published_checksums(train, n):
    data = MNIST(REAL, train=train)
    assert data.data.shape == (n, 28, 28)
    # Counts per digit, as everywhere reported for this data set.
    train_counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    test_counts = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert np.bincount(data.targets).tolist() == (train_counts if train else test_counts)
    assert is_aligned(data.data)
