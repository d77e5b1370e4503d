"""Datasets, samplers and the DataLoader, with PyTorch's names and semantics."""

from minitorch_tvm.utils.data import transforms
from minitorch_tvm.utils.data.collate import default_collate
from minitorch_tvm.utils.data.convert import default_convert
from minitorch_tvm.utils.data.dataloader import DataLoader
from minitorch_tvm.utils.data.dataset import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from minitorch_tvm.utils.data.digits import SyntheticDigits
from minitorch_tvm.utils.data.download import DownloadError
from minitorch_tvm.utils.data.idx import CorruptedFileError, read_idx, write_idx
from minitorch_tvm.utils.data.mnist import MNIST, MNISTNotFoundError, load_mnist_or_synthetic
from minitorch_tvm.utils.data.sampler import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from minitorch_tvm.utils.data.worker import WorkerInfo, get_worker_info

__all__ = [
    "MNIST",
    "BatchSampler",
    "ChainDataset",
    "ConcatDataset",
    "CorruptedFileError",
    "DataLoader",
    "Dataset",
    "DownloadError",
    "IterableDataset",
    "MNISTNotFoundError",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "StackDataset",
    "Subset",
    "SubsetRandomSampler",
    "SyntheticDigits",
    "TensorDataset",
    "WeightedRandomSampler",
    "WorkerInfo",
    "default_collate",
    "default_convert",
    "get_worker_info",
    "load_mnist_or_synthetic",
    "random_split",
    "read_idx",
    "transforms",
    "write_idx",
]
