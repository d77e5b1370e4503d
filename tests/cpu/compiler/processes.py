"""Programs that run in processes of their own, with a copy of the package."""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
from pathlib import Path
from py_compile import PycInvalidationMode

import minitorch_tvm


def copy_package(root: Path, program: str) -> Path:
    """``root``, with the package where nobody edits it meanwhile, and ``program.py`` beside it."""
    source = Path(minitorch_tvm.__file__).parent
    shutil.copytree(source, root / "minitorch_tvm", ignore=shutil.ignore_patterns("__pycache__"))
    for path in root.rglob("*.py"):
        os.utime(path, (1e9, 1e9))  # long before any process started
    # Once for all processes; by a source's contents, as that of an edited file may be as old and
    # as long as before.
    mode = PycInvalidationMode.CHECKED_HASH
    assert compileall.compile_dir(root, quiet=1, invalidation_mode=mode)
    (root / "program.py").write_text(program)
    return root


def start(program: Path, *arguments: str, warn: str = "error", **env: str) -> subprocess.Popen[str]:
    """A process that runs ``program`` beside a copy, with ``env`` added to the environment."""
    # Bytecode that processes write is believed though a file was edited.
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
