"""Programs that run in processes of their own, with a copy of the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import minitorch_tvm


def copy_package(root: Path, program: str) -> Path:
    """``root``, with the package where nobody edits it meanwhile, and ``program.py`` beside it."""
    source = Path(minitorch_tvm.__file__).parent
    shutil.copytree(source, root / "minitorch_tvm", ignore=shutil.ignore_patterns("__pycache__"))
    for path in root.rglob("*.py"):
        os.utime(path, (1e9, 1e9))  # long before any process started
    (root / "program.py").write_text(program)
    return root


def start(program: Path, *arguments: str, warn: str = "error", **env: str) -> subprocess.Popen[str]:
    """A process that runs ``program`` beside a copy, with ``env`` added to the environment."""
    # Stale bytecode of an edited file would be believed.
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **env}
    return subprocess.Popen(
        [sys.executable, "-W", warn, str(program), *arguments],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it wrote to standard output and error; AssertionError if it failed."""
    try:
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()  # nothing, unless it takes too long
    assert process.returncode == 0, err
    return out, err
