"""The table of a program's stage functions: an object file that LLVM is not needed for.

It holds nothing but addresses, which the linker fills in.  LLVM took 8 ms for it, every program has
its own, and a program whose functions are all known has nothing else to compile.

The format is that of the System V Application Binary Interface ("ELF"), 64 bits.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Sequence

_WORD = 8
_PROGRAM_BITS, _SYMBOLS, _STRINGS, _ADDRESSES = 1, 2, 3, 4  # types of sections
_WRITE, _ALLOCATE, _INFORMS = 1, 2, 0x40  # their flags
_GLOBAL, _OBJECT = 1 << 4, 1  # of symbols
_MACHINES = {"x86_64": (62, 1), "aarch64": (183, 257)}
"""By the system's name: the format's number, and that of an address of 64 bits to be filled in."""
_TABLE_SECTION, _SYMBOL_SECTION, _STRING_SECTION = 1, 3, 4
_HEADER, _SECTION_HEADER = 64, 64  # bytes


def table_object(name: str, symbols: Sequence[str]) -> bytes:
    """An object file in which ``name`` is an array of the addresses of ``symbols``."""
    machine, address = _MACHINES[os.uname().machine]
    names = _Names()
    entries = [
        struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0),
        struct.pack(
            "<IBBHQQ",
            *(names.add(name), _GLOBAL | _OBJECT, 0, _TABLE_SECTION, 0, _WORD * len(symbols)),
        ),
    ]
    numbers: dict[str, int] = {}
    for symbol in symbols:
        if symbol not in numbers:
            numbers[symbol] = len(entries)
            entries.append(struct.pack("<IBBHQQ", names.add(symbol), _GLOBAL, 0, 0, 0, 0))
    relocations = [
        struct.pack("<QQq", _WORD * i, numbers[symbol] << 32 | address, 0)
        for i, symbol in enumerate(symbols)
    ]
    labels = _Names()
    # Name, type, flags, contents, section that belongs to it, another number, bytes of an entry.
    sections = [
        (".data.rel.ro", _PROGRAM_BITS, _WRITE | _ALLOCATE, bytes(_WORD * len(symbols)), 0, 0, 0),
        (
            *(".rela.data.rel.ro", _ADDRESSES, _INFORMS, b"".join(relocations)),
            *(_SYMBOL_SECTION, _TABLE_SECTION, 24),
        ),
        (".symtab", _SYMBOLS, 0, b"".join(entries), _STRING_SECTION, 1, 24),
        (".strtab", _STRINGS, 0, names.text, 0, 0, 0),
        (".shstrtab", _STRINGS, 0, b"", 0, 0, 0),
    ]
    places = [labels.add(label) for label, *_ in sections]
    sections[-1] = (".shstrtab", _STRINGS, 0, labels.text, 0, 0, 0)
    contents = [content + bytes(-len(content) % _WORD) for _, _, _, content, *_ in sections]
    starts = list(itertools.accumulate(map(len, contents), initial=_HEADER))
    headers = [bytes(_SECTION_HEADER)]
    for place, start, (_, kind, flags, content, link, info, size) in zip(
        places, starts, sections, strict=False
    ):
        fields = place, kind, flags, 0, start, len(content), link, info, _WORD, size
        headers.append(struct.pack("<IIQQQQIIQQ", *fields))
    identity = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)  # of 64 bits, the lowest byte first
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        *(identity, 1, machine, 1, 0, 0, starts[-1], 0, _HEADER, 0, 0, _SECTION_HEADER),
        *(len(headers), len(headers) - 1),
    )
    return b"".join([header, *contents, *headers])


class _Names:
    """Strings one after the other, each with a zero behind it."""

    def __init__(self) -> None:
        self.text = b"\0"

    def add(self, name: str) -> int:
        """Where it begins."""
        start = len(self.text)
        self.text += name.encode() + b"\0"
        return start
