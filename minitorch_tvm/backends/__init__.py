"""What programs ask of PyTorch's backends: none but the CPU is there."""

from . import cuda, cudnn, mps

__all__ = ["cuda", "cudnn", "mps"]
