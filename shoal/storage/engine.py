"""RocksDB, as this process may use it. `library` is the module `rocksdict`.

Laws:
- RocksDB keeps its threads as long as the process lives, also once every store is closed. A forked child has RocksDB's
  memory but not these threads, and would wait for them for ever. So it never asks that copy of the library anything: for a
  store of its own it loads another copy, which shares nothing with the first.
- A forked child ends without the destructors of libraries, which would wait for the same threads.
- A process that has opened no store before it forks is not concerned.
"""

from __future__ import annotations

import ctypes
import os
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import rocksdict

from shoal.errors import WrongProcess

library = rocksdict
"""The copy of the library that this process uses."""
_EXTENSION = "rocksdict.rocksdict"

_used = False  # Whether this copy of the library has begun threads.
_stale = False  # Whether they stayed in the process from which this one was forked.


def prepare() -> None:
    """Call before a database is opened: from then on `library` serves this process.

    Raises:
        WrongProcess: the process was forked from one that had a store open, and a second copy of the library cannot be loaded.
    """
    global _used
    if _stale:
        _load_again()
    _used = True


def _load_again() -> None:
    global _stale
    try:
        fresh = _copy_of(Path(str(sys.modules[_EXTENSION].__file__)))
    except (OSError, ImportError, AttributeError) as error:
        raise WrongProcess(
            "this process was forked from one that had opened a store, and RocksDB's threads stayed there. Loading RocksDB "
            f"again failed: {error}. Nothing was opened. Start the process with the method spawn or forkserver, open the first "
            "store after the fork, or connect to a node."
        ) from error
    globals()["library"] = fresh
    _stale = False


def _copy_of(file: Path) -> Any:
    """The library, loaded from a copy of its file: the system shares what is loaded from one file."""
    descriptor = os.memfd_create(file.name)
    try:
        with open(descriptor, "wb", closefd=False) as copy:
            copy.write(file.read_bytes())
        # The path has the process in it: Python keeps what it loaded by its path, also in a child of this one.
        loader = ExtensionFileLoader(_EXTENSION, f"/proc/{os.getpid()}/fd/{descriptor}")
        spec = spec_from_loader(_EXTENSION, loader)
        assert spec is not None
        module = module_from_spec(spec)
        loader.exec_module(module)
        return module
    finally:
        os.close(descriptor)


def _forked() -> None:
    global _used, _stale
    if not _used:
        return
    _used, _stale = False, True
    system = ctypes.CDLL(None)
    if hasattr(system, "on_exit"):  # GNU's. A handler is given the exit status; the last one registered comes first.
        system.on_exit(ctypes.cast(system._exit, ctypes.c_void_p), None)
        system.__cxa_atexit(ctypes.cast(system.fflush, ctypes.c_void_p), None, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
