"""What programs ask of PyTorch's backends: none but the CPU is there."""

from . import cuda, cudnn, mkldnn, mps

__all__ = ["cuda", "cudnn", "mkldnn", "mps"]
