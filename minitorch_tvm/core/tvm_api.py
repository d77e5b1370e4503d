"""The only file that imports TVM.

Everything the compiler and the runtime use of TVM is a name of this module, so an upgrade of TVM
is a change of one file.  The runtime half needs only ``tvm_ffi`` and the small runtime library;
the compiler half (``tvm``, about 260 MB of shared objects) is loaded by the first call of
:func:`tvm`.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from .threads import usable_cores


def _prepare_environment() -> None:
    # TVM would use half of the cores (it assumes hyper-threads), pin the calling thread to one of
    # them, and re-read the core count at every launch.
    os.environ.setdefault("TVM_NUM_THREADS", str(usable_cores()))
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    # Idle workers would spin for 0.12 s after every launch; a step is as fast with far less.
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "1000")


def _import_ffi() -> Any:
    # tvm_ffi imports torch when it is installed, only to register its dtypes.  That costs a second
    # and this package never wants torch, so the name is hidden while tvm_ffi is imported.
    if "tvm_ffi" in sys.modules or "torch" in sys.modules:
        return importlib.import_module("tvm_ffi")
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        return importlib.import_module("tvm_ffi")
    finally:
        del sys.modules["torch"]


_prepare_environment()
ffi = _import_ffi()


def _library_folder() -> Path:
    spec = importlib.util.find_spec("tvm")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("apache-tvm is not installed; pip install apache-tvm==0.27.0.post1")
    return Path(next(iter(spec.submodule_search_locations))) / "lib"


@functools.cache
def _session() -> Any:
    # A parallel kernel calls back into the TVM runtime: its symbols must be global before the
    # first object is linked, or the first launch would jump to address zero.
    ctypes.CDLL(str(_library_folder() / "libtvm_runtime.so"), ctypes.RTLD_GLOBAL)
    orcjit = importlib.import_module("tvm_ffi_orcjit")
    return orcjit.default_session()


def load_object(path: str) -> Any:
    """Link a native object file into the process and return its module."""
    return _session().load_module(path)


@functools.cache
def tvm() -> Any:
    """The compiler: the ``tvm`` package, imported at the first call."""
    return importlib.import_module("tvm")


def global_func(name: str) -> Any:
    """A function of TVM's runtime registry."""
    _session()
    return ffi.get_global_func(name)
