"""The only file that imports TVM.

Everything the compiler and the runtime use of TVM is a name of this module, so an upgrade of TVM
is a change of one file.  The runtime half needs only ``tvm_ffi`` and the small runtime library;
the compiler half (``tvm``, about 260 MB of shared objects) is loaded by the first call of
:func:`tvm`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from .interrupts import interrupts_wait
from .threads import usable_cores


def _prepare_environment() -> None:
    # TVM would use half of the cores (it assumes hyper-threads), pin the calling thread to one of
    # them, and re-read the core count at every launch.
    os.environ.setdefault("TVM_NUM_THREADS", str(usable_cores()))
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    # Idle workers would spin for 0.12 s after every launch; a step is as fast with far less.
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "1000")


def _import_without_torch(name: str) -> Any:
    """Import a module that would import torch when it is installed, without doing so.

    tvm_ffi wants torch only to register its dtypes, and a part of TVM that is not used here to
    name some of its own.  It costs seconds and hundreds of megabytes, and this package never wants
    torch; a torch that is loaded already stays visible, and one imported later works.
    """
    if name in sys.modules or "torch" in sys.modules:
        return importlib.import_module(name)
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        return importlib.import_module(name)
    finally:
        del sys.modules["torch"]


_prepare_environment()
ffi = _import_without_torch("tvm_ffi")


def _library_folder() -> Path:
    spec = importlib.util.find_spec("tvm")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("apache-tvm is not installed; pip install apache-tvm==0.27.0.post1")
    return Path(next(iter(spec.submodule_search_locations))) / "lib"


@functools.cache
def _load_runtime() -> None:
    # A parallel kernel calls back into the TVM runtime: its symbols must be global before the
    # first object is linked, or the first launch would jump to address zero.
    ctypes.CDLL(str(_library_folder() / "libtvm_runtime.so"), ctypes.RTLD_GLOBAL)


@functools.cache
def _session() -> Any:
    _load_runtime()
    with _names_read_once():
        orcjit = importlib.import_module("tvm_ffi_orcjit")
    return orcjit.default_session()


def prepare_linking() -> None:
    """What the first link needs, done while there is time."""
    _session()


def load_objects(code: Sequence[bytes]) -> Any:
    """Link the contents of native object files into the process, as one module.

    ``load_module`` of a session would run the user's C++ compiler first, twice, to ask where its
    library is: 5 ms, for objects that need none.
    """
    session = _session()
    load = importlib.import_module("tvm_ffi_orcjit._ffi_api").SessionLoadModule
    return load(session, list(code), "", None, None)


@functools.cache
def identity() -> str:
    """Text that changes with every change of the installed compiler.  Does not load it."""
    lines = []
    for name in ("apache-tvm", "apache-tvm-ffi"):
        installed = importlib.metadata.distribution(name)
        # The installer's record lists every file of the package with its hash.  The version is in
        # their names; asked for, it takes as long as the rest.
        lines += [name, installed.read_text("RECORD") or installed.version]
    for library in sorted(_library_folder().iterdir()):
        status = library.stat()
        lines.append(f"{library.name} {status.st_size} {status.st_mtime_ns}")
    return "\n".join(lines)


class _Deferred(ModuleType):
    """A module that is executed when somebody asks for a name it does not have yet.

    Once it is, only names that it lacks for good come here, and are missing as in any module.
    """

    def __getattr__(self, name: str) -> Any:
        with _EXECUTING:  # other threads wait; this one sees what there is so far
            if self.__name__ in _DEFERRED:
                _DEFERRED.remove(self.__name__)
                spec = vars(self)["__spec__"]
                if spec.submodule_search_locations is not None:
                    self.__path__ = list(spec.submodule_search_locations)
                spec.loader.exec_module(self)
        return ModuleType.__getattribute__(self, name)


_EXECUTING = threading.RLock()
_DEFERRED: set[str] = set()
"""Names of modules that have not been executed."""


def _defer(name: str, path: Path) -> None:
    """Let the module ``name`` be imported without executing it; ``path``: without ``.py``.

    Submodules of a package are found through ``__path__``, one of the names it does not have yet.
    """
    package = path.is_dir()
    spec = importlib.util.spec_from_file_location(
        name,
        path / "__init__.py" if package else path.with_suffix(".py"),
        submodule_search_locations=[str(path)] if package else None,
    )
    assert spec is not None, path
    module = importlib.util.module_from_spec(spec)
    if package:
        del module.__path__
    _DEFERRED.add(name)
    module.__class__ = _Deferred
    sys.modules[name] = module


_PARTS: dict[str, list[str]] = {}
"""Names of TVM's functions by what stands in front of their last dot; those of all parts below."""
_NAMES: list[str] = []
"""All of them in TVM's order."""


def _names_of(part: str) -> list[str]:
    """Names of the functions of a part of TVM: ``part.name``.

    There are 2000 functions, and each name is a call.  New ones come at the end.
    """
    name = ffi.get_global_func("ffi.FunctionListGlobalNamesFunctor")()
    count, known = name(-1), len(_NAMES)
    if known and (count < known or name(known - 1) != _NAMES[-1]):
        _NAMES.clear()  # one was removed
        _PARTS.clear()
    for i in range(len(_NAMES), count):
        _NAMES.append(str(name(i)))
        _PARTS.setdefault(_NAMES[-1].rpartition(".")[0], []).append(_NAMES[-1])
    return _PARTS.get(part, [])


@contextlib.contextmanager
def _names_read_once() -> Iterator[None]:
    """Let parts of TVM find the functions that are theirs without looking through all names.

    A dozen parts do, the linker among them: a sixth of what is left of TVM's import once its
    library is loaded.
    """

    def init_ffi_api(namespace: str, target_module_name: str | None = None) -> None:
        module = sys.modules[target_module_name or namespace]
        for name in _names_of(namespace.removeprefix("tvm.")):
            function = ffi.get_global_func(name)
            function.__name__ = name.rpartition(".")[2]
            setattr(module, function.__name__, function)

    original = ffi.init_ffi_api
    ffi.init_ffi_api = init_ffi_api
    try:
        yield
    finally:
        ffi.init_ffi_api = original


_BOARDS = tuple(f"target.tag_registry.{kind}_cpu" for kind in ("arm", "aws", "riscv"))
"""Names of processors for cross compilers, each a target that is made: a sixth of what is left of
the import once the library is loaded."""

_UNUSED = (
    *("relax", "s_tir", "topi", "te", "sym", "runtime.disco", "ir.instrument", "support.nvcc"),
    *_BOARDS,
)
"""Parts of TVM that this package has no use for, and more than half of the time to import it.

``runtime.disco`` has no runtime here and finds that out by an error of TVM's, the first of which in
a process costs more than the rest of the import.
"""

_BACKENDS = "TVM_DEVICE_BACKEND_AUTOLOAD"
"""TVM's switch for loading its backends, all of them for other devices than the CPU."""


@functools.cache
def load_ahead() -> None:
    """Begin to load the libraries of compiler, runtime and linker, the half of importing TVM that
    needs no interpreter.

    Whoever imports TVM then waits for what is left of it; errors are for them to report.
    """
    if "tvm" in sys.modules:
        return
    folder = _library_folder()
    # As in _load_runtime, and before what would load it for itself alone.
    libraries = {
        folder / "libtvm_runtime.so": os.RTLD_GLOBAL,
        folder / "libtvm_compiler.so": os.RTLD_LOCAL,
    }
    linker = importlib.util.find_spec("tvm_ffi_orcjit")
    if linker is not None and linker.origin is not None:
        path = Path(linker.origin).parent / "lib" / "libtvm_ffi_orcjit.so"
        libraries[path] = os.RTLD_LOCAL
    # Called like this the interpreter goes on meanwhile; ctypes.CDLL(path) would stop it.
    load = ctypes.CDLL(None).dlopen

    def run() -> None:
        for path, scope in libraries.items():
            load(os.fsencode(path), os.RTLD_NOW | scope)

    threading.Thread(target=run, name="load TVM", daemon=True).start()


@functools.cache
def tvm() -> Any:
    """The compiler: the ``tvm`` package, imported at the first call.

    Its graph level, its scheduling language and its operators are executed only when somebody
    uses them; TVM's own default pipeline is such a use.  ``tvm.backend.load`` loads backends for
    other devices; targets of boards have their names once ``tvm.target.list_tags()`` was called.
    """
    if "tvm" in sys.modules:
        return importlib.import_module("tvm")
    # Half imported, it could not be imported again in this process.
    with interrupts_wait():
        return _import_tvm()


def _import_tvm() -> Any:
    for part in _UNUSED:
        _defer(f"tvm.{part}", _library_folder().parent.joinpath(*part.split(".")))
    chosen = os.environ.get(_BACKENDS)
    os.environ.setdefault(_BACKENDS, "0")
    report = sys.excepthook
    try:
        with _names_read_once():
            module = _import_without_torch("tvm")
    finally:
        sys.excepthook = report  # TVM's own would also end the child processes of whoever fails
        if chosen is None:
            del os.environ[_BACKENDS]
    for part in _UNUSED:
        parent, _, name = f"tvm.{part}".rpartition(".")
        setattr(sys.modules[parent], name, sys.modules[f"tvm.{part}"])

    def block_pipeline(**options: Any) -> Any:
        _ = module.s_tir.Schedule  # executed now: it registers the real one
        return module.tirx.get_tir_pipeline("s_tir", **options)

    tags = module.target.list_tags

    def list_tags() -> Any:
        for part in _BOARDS:
            _ = sys.modules[f"tvm.{part}"].register_tag  # executed now: it registers its own
        return tags()

    module.target.list_tags = list_tags
    # What executing them would have announced to the rest of TVM.
    module.script.register_dialect("relax", "tvm.relax.script")
    if "s_tir" not in module.tirx.compilation_pipeline.PIPELINE_MAP:
        module.tirx.register_tir_pipeline("s_tir", block_pipeline)
    return module


def global_func(name: str) -> Any:
    """A function of TVM's runtime registry."""
    _load_runtime()
    return ffi.get_global_func(name)
