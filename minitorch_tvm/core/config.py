"""Every environment variable the package reads, in one table.

``CONFIG`` is read once at import; tests and tools change it with :func:`override`.
docs/environment.md is generated from :data:`VARIABLES`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping
from typing import Any

from .record import record


@record(sealed=True)
class Variable:
    """One environment variable: its name, the values it takes and what it does."""

    name: str
    default: str
    meaning: str
    choices: tuple[str, ...] = ()

    @property
    def field(self) -> str:
        """The setting's name in :class:`Config`."""
        return self.name.removeprefix("MTVM_").lower()

    @property
    def values(self) -> tuple[object, ...]:
        """What the choices are in :class:`Config`."""
        if set(self.choices) <= set(_FLAGS):
            return tuple(_FLAGS[choice] for choice in self.choices)
        return tuple(int(c) if c.isdecimal() else c for c in self.choices)


_FLAGS: dict[str, bool | None] = {"auto": None, "0": False, "1": True}
_TOPICS = ("compile", "sync")

VARIABLES = (
    Variable(
        "MTVM_SCHEDULE",
        "ours",
        "`ours` uses the schedules of compiler/schedule, `default` compiles every kernel exactly "
        "as TVM lowers an unscheduled tensor expression.",
        ("ours", "default"),
    ),
    Variable(
        "MTVM_TARGET",
        "cpu",
        "`cpu` compiles with TVM, `numpy` runs every op through its numpy reference.",
        ("cpu", "numpy"),
    ),
    Variable(
        "MTVM_ISA",
        "host",
        "`host` uses every instruction of the processor that the schedules know; a level of x86-64 "
        "restricts them: `x86-64-v4` (AVX-512), `x86-64-v3` (AVX2), `x86-64-v2` (SSE4.2), all "
        "without the matrix unit.",
        ("host", "x86-64-v2", "x86-64-v3", "x86-64-v4"),
    ),
    Variable(
        "MTVM_MODE",
        "lazy",
        "`lazy` evaluates at step(), item() and the like, `eager` evaluates after every op.",
        ("lazy", "eager"),
    ),
    Variable(
        "MTVM_GROWING",
        "1",
        "`1` runs programs of a line by their numpy references, at first, once they grow by an "
        "element each time, as those of a sequence do that is read again with another token; `0` "
        "compiles every one.",
        ("0", "1"),
    ),
    Variable(
        "MTVM_VARYING",
        "1",
        "`1` runs programs of a line whose sizes are between those of earlier ones, or grow by an "
        "element each time, by one that has room for several sizes; `0` compiles every one.",
        ("0", "1"),
    ),
    Variable(
        "MTVM_CHANGING",
        "1",
        "`1` runs programs of a line that has ever other structures, as where layers are left out "
        "at random, op by op at first; `0` compiles every one.",
        ("0", "1"),
    ),
    Variable("MTVM_FUSE", "1", "`0` compiles one kernel per op.", ("0", "1")),
    Variable(
        "MTVM_PLAN", "1", "`0` gives every intermediate its own range of the arena.", ("0", "1")
    ),
    Variable(
        "MTVM_MATRIX_UNIT",
        "auto",
        "`1` computes float32 products and convolutions on a processor's matrix unit (Intel AMX), "
        "if it has one, where that is estimated to be faster; `0` by multiply-adds of vectors. "
        "`auto` is `0` in a virtual machine, where the unit was found to be slowed down at times, "
        "to a fourth, and `1` elsewhere.",
        ("auto", "0", "1"),
    ),
    Variable(
        "MTVM_CHECK",
        "0",
        "`1` verifies the graph and the plan after every stage of the compiler.",
        ("0", "1"),
    ),
    Variable(
        "MTVM_POISON",
        "0",
        "`1` fills arena ranges with NaN when their last reader has run.",
        ("0", "1"),
    ),
    Variable(
        "MTVM_VALIDATE",
        "0",
        "`1` compares every kernel's outputs with the numpy reference and stops at the first "
        "difference.",
        ("0", "1"),
    ),
    Variable(
        "MTVM_PROFILE",
        "0",
        "`1` measures how long every kernel takes; `mt.debug.profile()` tells.",
        ("0", "1"),
    ),
    Variable(
        "MTVM_DEBUG",
        "0",
        "`1` one line per compile, `2` also a table of kernels, `3` the IR after every stage, "
        "`4` the TVM IR, `5` the assembly.",
        ("0", "1", "2", "3", "4", "5"),
    ),
    Variable(
        "MTVM_LOG", "", f"Comma separated topics logged to standard error: {', '.join(_TOPICS)}."
    ),
    Variable(
        "MTVM_NUM_THREADS",
        "",
        "Worker threads of a kernel, at most 1024; default: the usable cores.",
    ),
    Variable("MTVM_MAX_PENDING", "5000", "Pending nodes after which recording evaluates."),
    Variable("MTVM_CACHE_SIZE", "128", "Compiled executors kept in memory (least recently used)."),
    Variable(
        "MTVM_CACHE_DIR",
        "~/.cache/minitorch_tvm/programs",
        "Folder that keeps compiled programs for later processes (the default follows "
        "`XDG_CACHE_HOME`); empty or `0`: none. It must belong to the user and be writable by "
        "nobody else.",
    ),
    Variable("MTVM_DATA", "", "Folder that holds the MNIST idx files."),
)


@record(sealed=True)
class Config:
    """Parsed settings of the process."""

    schedule: str = "ours"
    target: str = "cpu"
    isa: str = "host"
    mode: str = "lazy"
    growing: bool = True
    varying: bool = True
    changing: bool = True
    fuse: bool = True
    plan: bool = True
    matrix_unit: bool | None = None  # by the machine
    anomaly: bool = False  # as autograd.set_detect_anomaly says, as is the next
    check_nan: bool = True
    check: bool = False
    poison: bool = False
    validate: bool = False
    profile: bool = False
    debug: int = 0
    log: frozenset[str] = frozenset()
    num_threads: int | None = None
    max_pending: int = 5000
    cache_size: int = 128
    cache_dir: str | None = None
    data: str | None = None

    def __post_init__(self) -> None:
        for variable in VARIABLES:
            value = getattr(self, variable.field)
            if variable.choices and value not in variable.values:
                wanted = ", ".join(map(repr, variable.values))
                raise ValueError(f"setting {variable.field}={value!r}: expected one of {wanted}")

    @functools.cached_property
    def most_pending(self) -> int:
        """How many values may be pending before they are evaluated."""
        return -1 if self.mode == "eager" else self.max_pending

    @functools.cached_property
    def program_key(self) -> tuple[object, ...]:
        """The settings that change what is compiled."""
        return (
            self.schedule,
            self.target,
            self.isa,
            self.fuse,
            self.plan,
            self.matrix_unit,
            self.poison,
            self.validate,
            self.profile,
        )


_MOST_THREADS = 1024  # many more a system may refuse to start, which would end the process


def _from_env(env: Mapping[str, str]) -> Config:
    raw = {}
    for v in VARIABLES:
        value = env.get(v.name, "").strip() or v.default
        if v.choices and value not in v.choices:
            raise ValueError(
                f"environment variable {v.name}={value!r}: expected one of {', '.join(v.choices)}"
            )
        raw[v.name] = value

    def integer(name: str, least: int, most: int | None = None) -> int:
        try:
            number = int(raw[name])
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            wanted = f">= {least}" if most is None else f"from {least} to {most}"
            raise ValueError(
                f"environment variable {name}={raw[name]!r}: expected an integer {wanted}"
            )
        return number

    def topics() -> frozenset[str]:
        found = frozenset(filter(None, (s.strip() for s in raw["MTVM_LOG"].split(","))))
        for topic in sorted(found - {*_TOPICS}):
            raise ValueError(
                f"environment variable MTVM_LOG: no topic {topic!r}, expected {', '.join(_TOPICS)}"
            )
        return found

    named = raw["MTVM_NUM_THREADS"]
    threads = integer("MTVM_NUM_THREADS", 1, _MOST_THREADS) if named else None
    chosen: dict[str, Any] = {
        v.field: v.values[v.choices.index(raw[v.name])] for v in VARIABLES if v.choices
    }
    return Config(
        **chosen,
        log=topics(),
        num_threads=threads,
        max_pending=integer("MTVM_MAX_PENDING", 1),
        cache_size=integer("MTVM_CACHE_SIZE", 1),
        cache_dir=_cache_dir(env),
        data=raw["MTVM_DATA"] or None,
    )


def _cache_dir(env: Mapping[str, str]) -> str | None:
    named = env.get("MTVM_CACHE_DIR")
    if named is not None:
        return None if named.strip() in ("", "0") else os.path.expanduser(named.strip())
    # The base directory specification ignores relative paths.
    base = env.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "minitorch_tvm", "programs") if os.path.isabs(base) else None


CONFIG: Config = _from_env(os.environ)


@contextlib.contextmanager
def override(**changes: object) -> Iterator[Config]:
    """Change settings for a block: ``with override(fuse=False): ...``.

    Settings are process-wide, so overrides must not overlap between threads.
    """
    global CONFIG
    before = CONFIG
    CONFIG = dataclasses.replace(before, **changes)  # type: ignore[arg-type]
    try:
        yield CONFIG
    finally:
        CONFIG = before


def change(**changes: object) -> None:
    """Change settings until they are changed again, or a block of :func:`override` ends."""
    global CONFIG
    CONFIG = dataclasses.replace(CONFIG, **changes)  # type: ignore[arg-type]


def describe() -> str:
    """The table of docs/environment.md."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for v in VARIABLES:
        rows.append(f"| `{v.name}` | `{v.default or 'unset'}` | {v.meaning} |")
    return "\n".join(rows)
