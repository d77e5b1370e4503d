"""NVIDIA's GPUs: there are none."""


def is_built() -> bool:
    """False."""
    return False
