"""How evaluations end whose programs are planned and not compiled."""


class PlannedError(Exception):
    """Raised when the plan is there, before the code is needed."""
