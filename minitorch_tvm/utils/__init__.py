"""Helpers around training: ``utils.data`` holds datasets, samplers and the DataLoader."""

from minitorch_tvm.utils import data

__all__ = ["data"]
