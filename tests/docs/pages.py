"""Code blocks of the Markdown pages."""

from __future__ import annotations

import doctest
import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text and the line on which the text starts."""

    language: str
    text: str
    line: int


def blocks(page: Path, language: str) -> list[Block]:
    """The blocks of ``page`` in one language, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(m[1], m[2], text.count("\n", 0, m.start(2)) + 1)
        for m in _FENCE.finditer(text)
        if m[1] == language
    ]


def name_of(page: Path) -> str:
    """Path of a page inside the repository."""
    return page.relative_to(ROOT).as_posix()


def run(page: Path) -> dict[str, Any]:
    """Run a page's ``python`` blocks as one program; returns its names.

    A block with ``>>>`` prompts is compared with what it prints, any other is just executed.
    Raises AssertionError with doctest's report when something else is printed.
    """
    module = types.ModuleType("page_" + re.sub(r"\W", "_", name_of(page)))
    sys.modules[module.__name__] = module  # dataclasses look their module up
    names = vars(module)
    try:
        for block in blocks(page, "python"):
            if ">>> " in block.text:
                _compare(page, block, names)
            else:
                source = "\n" * (block.line - 1) + block.text
                exec(compile(source, str(page), "exec", dont_inherit=True), names)
    finally:
        del sys.modules[module.__name__]
    return names


def _compare(page: Path, block: Block, names: dict[str, Any]) -> None:
    test = doctest.DocTestParser().get_doctest(
        block.text, names, name_of(page), str(page), block.line - 1
    )
    test.globs = names  # the parser made a copy; blocks share their names
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    result = runner.run(test, out=report.append, clear_globs=False)
    assert result.failed == 0, "".join(report)
