"""What programs ask of PyTorch's backends: none but the CPU is there."""

from . import cudnn, mps

__all__ = ["cudnn", "mps"]
