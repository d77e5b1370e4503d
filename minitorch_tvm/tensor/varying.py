"""What is a little different each time: where a slice begins, how long a growing list is.

Such numbers are part of a program, which is compiled for each.  That pays for the few that a model
has.  Where there are more, the operation is done on memory at once, without a program.
"""

from __future__ import annotations

from collections.abc import Hashable

_FEW = 4
_MOST_KINDS = 4096
_FORMS: dict[Hashable, set[Hashable]] = {}


def varies(kind: Hashable, form: Hashable) -> bool:
    """True once operations of this kind have had several forms, this one included.

    >>> [varies("docs", n) for n in (1, 2, 1, 3, 4, 5)]
    [False, False, False, False, True, True]
    """
    forms = _FORMS.get(kind)
    if forms is None:
        if len(_FORMS) >= _MOST_KINDS:
            _FORMS.clear()
        forms = _FORMS.setdefault(kind, set())
    if len(forms) < _FEW:
        forms.add(form)
    return len(forms) >= _FEW
