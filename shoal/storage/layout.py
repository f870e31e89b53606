"""The files of a data directory: whether it may be opened, is a copy, is in use, and holds all that was durable.

A record of what is durable, kept beside the database, so that a lost file is noticed.

RocksDB opens without an error if its write-ahead log was deleted or cut below
the fsynced part, or if the database is an older copy. The witness names the
highest sequence number and the newest log known to be durable; a database that
holds less is rejected.

Laws:
- It never claims more than was fsynced: a power cut cannot make it wrong.
- Two slots are written in turn, each in a block of its own: a torn write
  leaves the other, older slot.

A slot, big-endian: magic₈ generation₈ sequence₈ wal₈ crc32₄.

The files, and the check whether the directory may be opened.

    LOCK        names the process that has it open
    FORMAT      the number of the layout, as text; written last when a store is made
    WITNESS     records what is durable
    KEYS        the keys of an encrypted directory, themselves sealed (`shoal.storage.encrypted.keyring`)
    db/         RocksDB

Laws:
- The check changes nothing. A directory that has a newer format, holds something else or is damaged is left as it was,
  byte for byte.
- A store that is open can be read by its owner alone.

Tell one copy of a data directory from another.

A directory that was copied, restored from a backup or cloned holds the same bytes as
the original, so nothing in it can tell the two apart. The file system can: a file has
an inode number, which no copy keeps, and a generation number, which differs even if
the inode number is used again. A directory that was only renamed keeps both.

This cannot detect a block device or a virtual machine that was set back as a whole. Peers
detect that (`shoal.cluster.peer_state`).

One process per data directory: an advisory lock that dies with its holder.

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
import re
import stat
import struct
import sys
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from shoal.errors import StorageError, StoreCorrupt, StoreLocked, StoreTooNew, Unsupported
from shoal.records import NamedTuple

_MAGIC = b"SHOALWIT"
_SLOT = struct.Struct(">8sQQQ")
_CHECKSUM = struct.Struct(">I")
_SLOT_BYTES = 4096  # A torn write to one block does not damage another.

# Overwriting within the file changes no metadata that matters, so that fdatasync is enough where there is one.
_sync_data = getattr(os, "fdatasync", os.fsync)


class Witnessed(NamedTuple):
    """RocksDB's sequence number, and the number of its newest log file; both only grow."""

    sequence: int = 0
    wal: int = 0


class Witness:
    """The open file. `latest` is its content."""

    __slots__ = ("_descriptor", "_generation", "latest")

    def __init__(self, descriptor: int, generation: int, latest: Witnessed) -> None:
        self._descriptor: int | None = descriptor
        self._generation = generation
        self.latest = latest

    @classmethod
    def open(cls, path: Path) -> Witness:
        """Read the newest slot whose checksum is right.

        Raises:
            StoreCorrupt: the file is missing, or no slot passes its checksum; nothing was written.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise _damaged(path, "is missing") from None
        slots = [_unpack(os.pread(descriptor, _SLOT.size + _CHECKSUM.size, at)) for at in (0, _SLOT_BYTES)]
        newest = max((slot for slot in slots if slot is not None), default=None)
        if newest is None:
            os.close(descriptor)
            raise _damaged(path, "does not pass its checksum")
        return cls(descriptor, *newest)

    def record(self, witnessed: Witnessed) -> None:
        """Make `witnessed` durable. Blocks for one fsync.

        Raises:
            OSError: the record may or may not be on disk.
        """
        assert self._descriptor is not None, "the witness is closed"
        generation = self._generation + 1
        os.pwrite(self._descriptor, _pack(generation, witnessed), generation % 2 * _SLOT_BYTES)
        _sync_data(self._descriptor)
        self._generation, self.latest = generation, witnessed

    def close(self) -> None:
        """Close the file. Closing twice is allowed."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def blank() -> bytes:
    """The whole file of a store in which nothing is durable yet."""
    return _pack(0, Witnessed()).ljust(_SLOT_BYTES, b"\0") + bytes(_SLOT_BYTES)


def _pack(generation: int, witnessed: Witnessed) -> bytes:
    packed = _SLOT.pack(_MAGIC, generation, *witnessed)
    return packed + _CHECKSUM.pack(zlib.crc32(packed))


def _unpack(packed: bytes) -> tuple[int, Witnessed] | None:
    body, checksum = packed[: _SLOT.size], packed[_SLOT.size :]
    if len(packed) != _SLOT.size + _CHECKSUM.size or checksum != _CHECKSUM.pack(zlib.crc32(body)):
        return None
    magic, generation, sequence, wal = _SLOT.unpack(body)
    return (generation, Witnessed(sequence, wal)) if magic == _MAGIC else None


def _damaged(path: Path, how: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"{path} {how}, so Shoal cannot tell whether acknowledged writes are missing. Nothing was written. "
        "Move the directory aside, then restore a backup or rebuild it from the other nodes."
    )


FORMAT_NUMBER = 7
ENCRYPTED_NUMBER = 8  # Format 7 with sealed rows.
OLDEST_NUMBER = 5  # And 6: formats 7 and 8 without large values in files of their own. An opening makes it a new one.
LOCK = "LOCK"
FORMAT = "FORMAT"
WITNESS = "WITNESS"
KEYS = "KEYS"
DATABASE = "db"

_TEMPORARY = ".new"
_PRIVATE_DIRECTORY, _PRIVATE_FILE, _OTHERS = 0o700, 0o600, 0o077
_INHERITED = "system.posix_acl_default"  # Of a directory: the rights on what is made in it, whatever the maker asks for.
_OWNERS_ALONE = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", who, may, 0xFFFFFFFF) for who, may in ((1, 7), (4, 0), (32, 0))
)
# An interrupted creation may leave these.
_BEGUN = {LOCK, WITNESS, WITNESS + _TEMPORARY, FORMAT + _TEMPORARY}
# File systems and desktops put these beside anybody's files, and names that begin with a dot: `lost+found` is in the root of
# every fresh ext4 volume, `.snapshot` in every folder of a NetApp share, `.Trash-1000` and `.DS_Store` where they please.
_OF_SYSTEMS = {
    *("lost+found", "@eaDir", "#snapshot", "#recycle", "$RECYCLE.BIN", "System Volume Information", "Thumbs.db", "desktop.ini"),
    *("aquota.user", "aquota.group", "quota.user", "quota.group"),
}
_FORMAT_TEXT = re.compile(r"shoal store, format (\d+)\n")
_WAL_NAME = re.compile(r"(\d+)\.log")


def holds_store(directory: Path) -> bool:
    """True if a store of this version is in `directory`, False if one can be made there.

    Raises:
        StoreTooNew: a newer version wrote it.
        StoreCorrupt: its FORMAT file cannot be parsed.
        StorageError: it is not a directory, cannot be read, holds something else, or has the format of a development version.

        None of them writes anything.
    """
    try:
        names = {entry.name for entry in os.scandir(directory)}
        text = (directory / FORMAT).read_text(errors="replace") if FORMAT in names else None
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StorageError(f"{directory} cannot be read: {error}. Nothing was written. Choose another directory.") from error
    if text is not None:
        _check_format(directory, text)
    elif foreign := strangers(names - _BEGUN):
        raise StorageError(
            f"{directory} is not empty and is not a store: it holds {foreign[0]!r} and no {FORMAT} file. Nothing was written. "
            "Choose an empty or a new directory."
        )
    return text is not None


def strangers(names: Iterable[str]) -> list[str]:
    """Those of the names in a directory, sorted, that neither a file system nor a desktop puts there by itself."""
    return sorted(name for name in names if not name.startswith(".") and name not in _OF_SYSTEMS)


def is_encrypted(directory: Path) -> bool:
    """Whether the store in `directory`, which `holds_store`, has sealed rows."""
    return (directory / FORMAT).read_text() in (_format_text(ENCRYPTED_NUMBER), _format_text(OLDEST_NUMBER + 1))


def renew(directory: Path) -> None:
    """Let a store of an older format that this version reads be one of the present format. It is locked.

    Raises:
        OSError: the disk failed or is full; the next opening does it.
    """
    present = _format_text(ENCRYPTED_NUMBER if is_encrypted(directory) else FORMAT_NUMBER)
    if (directory / FORMAT).read_text() != present:
        replace_file(directory / FORMAT, present.encode())


def make(directory: Path, *, encrypted: bool = False) -> None:
    """Make an empty store in `directory`, which is locked. FORMAT comes last: before it there is no store.

    Raises:
        OSError: the disk failed or is full; the next attempt starts over.
    """
    replace_file(directory / WITNESS, blank())
    replace_file(directory / FORMAT, _format_text(ENCRYPTED_NUMBER if encrypted else FORMAT_NUMBER).encode())
    sync_directory(directory.parent)


def close_to_others(directory: Path, *, is_fresh: bool) -> None:
    """Take the rights of all users but the owner from a store, before its database is opened.

    RocksDB makes files that everybody may read, so the directories around them are closed. One that belongs to another user,
    as the root of a mounted volume does, stays as it is: within it the database's own directory is closed. A fresh store has
    none yet, so it is made; one that is missing from another store is not. Where the file system has lists of rights, the
    database's directory has one by which its new files are closed from their beginning; elsewhere see `close_files`.

    Raises:
        StorageError: the database would stay open to others.
    """
    database = directory / DATABASE
    if is_fresh:
        database.mkdir(mode=_PRIVATE_DIRECTORY, exist_ok=True)
    is_closed = [_closed(each, _PRIVATE_DIRECTORY) for each in (directory, database) if each.exists()]
    for entry in os.scandir(directory):
        if entry.is_file(follow_symlinks=False):
            _closed(Path(entry.path), _PRIVATE_FILE)
    if database.exists():
        with suppress(AttributeError, OSError):  # Linux has this, on most file systems.
            os.setxattr(database, _INHERITED, _OWNERS_ALONE)
    if not any(is_closed):
        raise StorageError(
            f"{database} can be read by other users of this machine, and its mode cannot be changed, because it belongs to "
            "another user. Nothing was written. Run the node as its owner, or give the directory to this user (chown -R)."
        )


def close_files(files: Path) -> None:
    """Take the rights of all users but the owner from the database's files that are there now, as far as they can be changed:
    the directory around them is closed, too.
    """
    for entry in os.scandir(files):
        with suppress(OSError):  # RocksDB deletes files at any time.
            _closed(Path(entry.path), _PRIVATE_FILE)


def _closed(path: Path, mode: int) -> bool:
    """Whether a file is its owner's alone, now that it was tried."""
    try:
        if stat.S_IMODE(path.stat().st_mode) & _OTHERS:
            path.chmod(mode)
    except PermissionError:
        return False
    return True


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` at `path` so that a crash leaves the old file or the new one, never a part.

    Raises:
        OSError: the disk failed or is full. The old file is unchanged, unless only the last sync failed.
    """
    temporary = path.with_name(path.name + _TEMPORARY)
    with open(temporary, "wb", opener=_private) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_directory(path.parent)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, _PRIVATE_FILE)


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_files(directory: Path, suffix: str) -> None:
    """Make the content of the files with this suffix in `directory` durable, without writing any."""
    for path in sorted(directory.glob(f"*{suffix}")):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def wal_number(name: str) -> int | None:
    """The number of a write-ahead log by its file name, or None for any other file."""
    match = _WAL_NAME.fullmatch(name)
    return int(match[1]) if match else None


def wal_name(number: int) -> str:
    """The file name of write-ahead log `number`, as RocksDB writes it."""
    return f"{number:06}.log"


def newest_wal(database: Path) -> int:
    """The number of the newest write-ahead log; 0 if there is none."""
    if not database.is_dir():
        return 0
    return max((wal_number(name) or 0 for name in os.listdir(database)), default=0)


def _format_text(number: int) -> str:
    return f"shoal store, format {number}\n"


def _check_format(directory: Path, text: str) -> None:
    match = _FORMAT_TEXT.fullmatch(text)
    if match is None:
        raise StoreCorrupt(
            f"{directory / FORMAT} cannot be parsed: it says {text[:40]!r}. Nothing was written. "
            "Move the directory aside, then restore a backup or rebuild it from the other nodes."
        )
    if int(match[1]) > ENCRYPTED_NUMBER:
        raise StoreTooNew(
            f"{directory} has format {match[1]}; this version reads up to {ENCRYPTED_NUMBER}. Nothing was written. "
            "Open it with the newer version of Shoal that wrote it."
        )
    if int(match[1]) < OLDEST_NUMBER:
        raise StorageError(
            f"{directory} has format {match[1]}, which only a development version wrote; this version reads {OLDEST_NUMBER}. "
            "Nothing was written. Read it with the version that wrote it, or choose an empty directory."
        )


_GET_GENERATION = 0x80087601  # FS_IOC_GETVERSION of <linux/fs.h>: ext4, XFS, Btrfs, F2FS.
_LONG_BYTES = 8


def identity_of(file: Path) -> bytes:
    """The identity of a file that is made once with its directory and never replaced.

    Raises:
        OSError: the file cannot be opened.
    """
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return b"%d:%d" % (os.fstat(descriptor).st_ino, _generation(descriptor))
    finally:
        os.close(descriptor)


def _generation(descriptor: int) -> int:
    """0 if the file system or the platform has none. tmpfs has none, but it never uses an inode number again."""
    with suppress(ImportError, OSError):
        import fcntl

        buffer = bytearray(_LONG_BYTES)
        fcntl.ioctl(descriptor, _GET_GENERATION, buffer)
        return int.from_bytes(buffer[:4], "little")
    return 0


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
    is_node = holder is not None and holder.command.endswith(" serve")
    way_out = (
        "Use that node: give --url and its address (http://127.0.0.1:7400 if it was given none) instead of --data, or "
        "`shoal.connect` in a program."
        if is_node
        else f"Let that process end, or run `shoal serve --data {path.parent}` and connect to it from all the others."
    )
    return StoreLocked(f"{path.parent} is open in {who}. Nothing was written. One process can hold a store. {way_out}")


def _close_in_child() -> None:
    # A forked child shares the open file, and would keep the directory locked
    # after its parent died. Closing its copy leaves the parent's lock in place.
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
