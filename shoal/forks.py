"""The things that a process that was forked inherits from its parent, and must not touch.

Laws:
- An object that is open in the parent stays the parent's. In the child `disown` of each such object is called before
  anything else runs: from then on it neither writes, nor flushes, nor closes anything that the two share.
- An object that is given to `never_destroy` is not destroyed in the child, not even at its end: destroying it could wait for
  a thread that only the parent has, or take a connection away from the parent.
- Objects are known here only as long as they exist.
"""

from __future__ import annotations

import ctypes
import os
from typing import Protocol
from weakref import WeakSet


class Inherited(Protocol):
    """Something open that a child of `fork` inherits."""

    def disown(self) -> None:
        """Called in the child, in the thread that forked. It must not raise, block, or use what is shared."""
        ...


_open: WeakSet[Inherited] = WeakSet()


def disown_in_children(thing: Inherited) -> None:
    """Disown `thing` in every child from now on."""
    _open.add(thing)


def never_destroy(thing: object) -> None:
    """Never destroy `thing`, nor what it refers to."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def silence(descriptor: int) -> None:
    """Put nothing in the place of a descriptor that is shared: what this process does with it reaches nobody any more."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


def _disown_all() -> None:
    for thing in list(_open):
        thing.disown()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
