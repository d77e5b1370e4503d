"""Helpers around training: ``utils.data`` holds datasets, samplers and the DataLoader,
``utils.checkpoint`` what stands for recomputation."""

from minitorch_tvm.utils import checkpoint, data

__all__ = ["checkpoint", "data"]
