"""NVIDIA's library of layers: absent.  Its switches may be set, and change nothing."""

enabled = True
benchmark = False
deterministic = False
allow_tf32 = True


def is_available() -> bool:
    """False."""
    return False


def version() -> None:
    """None: there is no such library."""
