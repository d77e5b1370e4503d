"""NVIDIA's GPUs: there are none.  Switches may be set, and change nothing."""


class _Products:
    """What may be set of matrix products."""

    allow_tf32 = False
    allow_fp16_reduced_precision_reduction = True
    allow_bf16_reduced_precision_reduction = True


matmul = _Products()


def is_built() -> bool:
    """False."""
    return False
