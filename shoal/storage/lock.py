"""One process per data directory: an advisory lock that dies with its holder.

Laws:
- The kernel holds the lock (`flock`). The file only names the holder: a stale text in
  it locks nobody out, and `kill -9` frees the directory at once.
- The lock belongs to one opening. A second opening is rejected, also in the same
  process, and no child inherits the lock, neither across `exec` nor across `fork`.
- On a system without `flock`, as Windows, nothing is opened: two processes could
  write a directory that is not locked.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from shoal.errors import StorageError, StoreLocked, Unsupported

try:
    import fcntl
except ImportError:  # Windows: a client never locks anything.
    fcntl = None  # type: ignore[assignment]

_held: set[int] = set()


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that has a directory open, as it describes itself. `since_ms`: milliseconds since 1970."""

    pid: int
    host: str
    command: str
    since_ms: int

    @classmethod
    def this_process(cls, since_ms: int) -> Holder:
        """This process, without the arguments of its command."""
        # Only the program and its subcommand: later arguments may hold a token.
        words = [Path(sys.argv[0]).name, *[word for word in sys.argv[1:2] if not word.startswith("-")]]
        return cls(pid=os.getpid(), host=platform.node(), command=" ".join(words)[:200], since_ms=since_ms)

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_ms / 1000, UTC).isoformat(timespec="seconds")
        return f"process {self.pid} on {self.host} ({self.command}), since {since}"


class StoreLock:
    """A lock that is held until `release`."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        _held.add(descriptor)

    @staticmethod
    def check_platform() -> None:
        """Check, before anything is opened, that this system can lock a directory.

        Raises:
            Unsupported: it has no `flock`. Nothing was opened.
        """
        if fcntl is None:
            raise Unsupported(
                "an embedded store and a node need a POSIX system (Linux, macOS), because they lock their directory with "
                'flock. Nothing was opened. Connect to a node that runs on one: shoal.connect("http://HOST:7400").'
            )

    @classmethod
    def acquire(cls, path: Path, *, holder: Holder) -> StoreLock:
        """Lock the file at `path` for this opening; make the file if it is missing.

        Raises:
            StoreLocked: another opening has it; the text names its holder.
            StorageError: the file cannot be opened or locked. In both cases nothing was stored.
            Unsupported: as `check_platform` says.
        """
        cls.check_platform()
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(f"{path} cannot be opened: {error}. Nothing was written. Check its owner and mode.") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _sign(descriptor, json.dumps(asdict(holder)).encode() + b"\n")
        except BlockingIOError:
            os.close(descriptor)
            raise _locked(path) from None
        except OSError as error:
            os.close(descriptor)
            raise StorageError(f"{path} cannot be locked: {error}. Nothing was stored. Check the file system.") from error
        return cls(descriptor)

    def release(self) -> None:
        """Free the directory. Releasing twice is allowed."""
        if self._descriptor is not None:
            _held.discard(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None


def _sign(descriptor: int, text: bytes) -> None:
    """Write who holds the lock. On a full disk the file names nobody, or the holder before: the lock holds all the same."""
    try:
        os.pwrite(descriptor, text, 0)
        os.ftruncate(descriptor, len(text))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def read_holder(path: Path) -> Holder | None:
    """The last process that wrote the file, whether or not it still holds the lock; None if the file does not say."""
    try:
        return Holder(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _locked(path: Path) -> StoreLocked:
    holder = read_holder(path)
    who = str(holder) if holder else "another process"
    return StoreLocked(
        f"{path.parent} is open in {who}. Nothing was written. One process can hold a store: run "
        f"`shoal serve --data {path.parent}` and connect to it from all the others."
    )


def _close_in_child() -> None:
    # A forked child shares the open file, and would keep the directory locked
    # after its parent died. Closing its copy leaves the parent's lock in place.
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
