"""The MNIST database of handwritten digits."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np

from minitorch_tvm.core import config
from minitorch_tvm.utils.data.arrays import AnyArray
from minitorch_tvm.utils.data.digits import SyntheticDigits
from minitorch_tvm.utils.data.download import DownloadError, download_gzip
from minitorch_tvm.utils.data.idx import corrupted, read_idx
from minitorch_tvm.utils.data.images import ImageDataset, Transform

from ...core.record import record


@record
class Resource:
    """One idx file: its name without ``.gz``, and digest and length of its uncompressed bytes."""

    name: str
    sha256: str
    size: int


class MNISTNotFoundError(FileNotFoundError):
    """The idx files are in none of the folders that were searched."""


class MNIST(ImageDataset):
    """60,000 training or 10,000 test images of handwritten digits, 28 x 28.

    The files are looked for in ``root``; or if that is None, in the folder that ``MTVM_DATA``
    names; or if that is unset, in the per-user cache (``$XDG_CACHE_HOME/minitorch_tvm/mnist``,
    ``~/.cache`` by default). Inside a folder they may lie in ``MNIST/raw`` (torchvision's layout),
    in ``raw`` or directly, gzipped or not. Every file's uncompressed bytes are checked by sha256.

    Args:
        root: folder to search, instead of ``MTVM_DATA`` and the cache.
        train: training or test images.
        transform: applied to an image, uint8 ``[28, 28]`` numpy. None leaves it as it is.
        target_transform: applied to a label, an int.
        download: fetch what is missing into the folder (``MNIST/raw`` below it).
        named: what messages call ``root``; a program that passes a user's option on names it here.

    Attributes:
        data: uint8 numpy array ``[n, 28, 28]``. targets: int64 numpy array ``[n]``.
        classes: ``["0 - zero", ..., "9 - nine"]``.

    Raises:
        MNISTNotFoundError: a file is missing, or there is no such folder; names what was searched.
        CorruptedFileError: a file is damaged; names it, and what was expected.
        DownloadError: a file is missing and no mirror delivered it.

    Another data set in the same format (Fashion-MNIST, say) is a subclass with its own
    ``train_files``, ``test_files``, ``mirrors``, ``folder`` and ``classes``.
    """

    train_files: ClassVar[tuple[Resource, Resource]] = (
        Resource(
            "train-images-idx3-ubyte",
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            47_040_016,
        ),
        Resource(
            "train-labels-idx1-ubyte",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            60_008,
        ),
    )
    test_files: ClassVar[tuple[Resource, Resource]] = (
        Resource(
            "t10k-images-idx3-ubyte",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            7_840_016,
        ),
        Resource(
            "t10k-labels-idx1-ubyte",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            10_008,
        ),
    )
    mirrors: ClassVar[tuple[str, ...]] = (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    )
    folder: ClassVar[str] = "MNIST"
    classes = SyntheticDigits.classes

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        train: bool = True,
        transform: Transform | None = None,
        target_transform: Transform | None = None,
        download: bool = False,
        *,
        named: str = "root",
    ) -> None:
        self.root, source = _search_root(root, named)
        self.train = train
        wanted = self.train_files if train else self.test_files
        if not download and not self.root.is_dir():
            raise MNISTNotFoundError(f"{source}: there is no folder {self.root}. {_advice(named)}")
        paths = [self._locate(resource, source, named, download) for resource in wanted]
        images, labels = (
            read_idx(path, sha256=resource.sha256)
            for path, resource in zip(paths, wanted, strict=True)
        )
        _check(images, labels, paths[0], paths[1], len(self.classes))
        super().__init__(images, labels.astype(np.int64), transform, target_transform)

    @property
    def raw_folder(self) -> str:
        """Where downloaded files are put."""
        return str(self.root / self.folder / "raw")

    def _locate(self, resource: Resource, source: str, named: str, download: bool) -> Path:
        raw = Path(self.raw_folder)
        folders = (raw, self.root / "raw", self.root)
        for folder in folders:
            for name in (resource.name, f"{resource.name}.gz"):
                if (folder / name).is_file():
                    return folder / name
        if not download:
            raise MNISTNotFoundError(
                f"{source}: found neither {resource.name} nor {resource.name}.gz in "
                f"{', '.join(map(str, folders))}. {_advice(named)}"
            )
        download_gzip(
            f"{resource.name}.gz",
            raw / resource.name,
            mirrors=self.mirrors,
            sha256=resource.sha256,
            size=resource.size,
        )
        return raw / resource.name


def _advice(named: str) -> str:
    text = f"Pass the folder that holds the files as {named}, or name it in MTVM_DATA"
    return f"{text}, or pass download=True." if named == "root" else f"{text}."


def load_mnist_or_synthetic(
    root: str | os.PathLike[str] | None = None,
    *,
    transform: Transform | None = None,
    target_transform: Transform | None = None,
    download: bool = True,
    dataset: type[MNIST] = MNIST,
    named: str = "root",
) -> tuple[ImageDataset, ImageDataset]:
    """Training and test set: real MNIST if it can be had, else :class:`SyntheticDigits`.

    A folder that was asked for (``root``, or ``MTVM_DATA``) must hold good files. Only when none
    was asked for, and neither the per-user cache nor any mirror has them, a line on standard error
    says so and the synthetic digits are returned. Damaged files always raise.

    Args:
        root: folder of the idx files.
        transform: for the images. target_transform: for the labels.
        download: try the mirrors if the cache has no files.
        dataset: the class to load, for data sets in the same format.
        named: what messages call ``root``.

    Returns:
        ``(train, test)``; ``isinstance(train, SyntheticDigits)`` tells which.

    Raises:
        MNISTNotFoundError: the folder asked for is missing, or a file in it.
        CorruptedFileError: a file is damaged.
    """
    asked = root is not None or config.CONFIG.data is not None
    both = (transform, target_transform)
    try:
        fetch = download and not asked
        return (
            dataset(root, True, *both, download=fetch, named=named),
            dataset(root, False, *both, download=fetch, named=named),
        )
    except (MNISTNotFoundError, DownloadError) as error:
        if asked:
            raise
        reason = "no download" if isinstance(error, DownloadError) else "no files"
        print(
            f"*** MNIST NOT FOUND ({reason}): USING SYNTHETIC DIGITS INSTEAD. Accuracies are not "
            "MNIST's. Pass the folder of the idx files, or set MTVM_DATA, for the real data. ***",
            file=sys.stderr,
            flush=True,
        )
    return SyntheticDigits(True, None, 0, *both), SyntheticDigits(False, None, 0, *both)


def _search_root(root: str | os.PathLike[str] | None, named: str) -> tuple[Path, str]:
    """The folder to search, and who named it (for error messages)."""
    if root is not None:
        return Path(root).expanduser(), named
    if config.CONFIG.data is not None:
        return Path(config.CONFIG.data).expanduser(), "environment variable MTVM_DATA"
    # The specification of XDG base directories: a relative path is to be ignored.
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    cache = base if base.is_absolute() else Path("~/.cache").expanduser()
    return cache / "minitorch_tvm" / "mnist", "per-user cache"


def _check(
    images: AnyArray, labels: AnyArray, image_path: Path, label_path: Path, classes: int
) -> None:
    if images.ndim != 3 or images.dtype != np.uint8:
        raise corrupted(
            image_path, f"expected uint8 images [n, h, w], found {images.dtype} {images.shape}"
        )
    if labels.ndim != 1 or labels.dtype != np.uint8:
        raise corrupted(
            label_path, f"expected uint8 labels [n], found {labels.dtype} {labels.shape}"
        )
    if len(images) != len(labels):
        raise corrupted(
            label_path, f"{len(labels)} labels do not match {len(images)} images in {image_path}"
        )
    if len(labels) and int(labels.max()) >= classes:
        raise corrupted(
            label_path, f"labels must be below {classes}, but one is {int(labels.max())}"
        )
