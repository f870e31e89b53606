"""Open RocksDB on the files of a directory, and say in plain words why that failed.

Laws:
- A database that holds less than the witness says it must is refused, and stays as it was: it is recovered read-only first.
- On a full disk it is opened for reading, without a write.
"""

from __future__ import annotations

from pathlib import Path

from rocksdict import AccessType, Options, Rdict

from shoal.config import Config
from shoal.errors import StorageError, StorageFull, StoreCorrupt
from shoal.panics import is_panic
from shoal.storage import engine, layout
from shoal.storage.options import options_for
from shoal.storage.witness import Witnessed

START_OVER = "Move the directory aside, and restore a backup or rebuild it from the other nodes."
_COLUMN_FAMILY = "default"  # RocksDB's name of the only one.


def open_database(directory: Path, *, witness: Witnessed, config: Config, encrypted: bool) -> Rdict:
    """Open RocksDB, unless it holds less than `witness` says it must."""
    engine.prepare()
    files = directory / layout.DATABASE
    fresh = witness == Witnessed()
    if not fresh and layout.newest_wal(files) < witness.wal:
        raise StoreCorrupt(
            f"{files} lacks its write-ahead log: {layout.wal_name(witness.wal)} or a newer one was there when the last "
            f"write was acknowledged. Acknowledged writes are missing. Nothing was written. {START_OVER}"
        )
    try:
        if not fresh:
            _check_sequence(files, witness=witness, config=config)
        return _rdict(files, options_for(config, create=fresh, encrypted=encrypted))
    except StoreCorrupt:
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        raise _unopenable(files, error) from error


def open_for_reading(files: Path, config: Config, encrypted: bool, full: StorageFull) -> Rdict:
    """Open RocksDB without a write, because of `full`, which is raised if that fails, too."""
    try:
        layout.sync_files(files, ".log")
        return _rdict(files, options_for(config, create=False, encrypted=encrypted), access_type=_reading())
    except BaseException as error:
        if not is_failure(error):
            raise
        raise full from error


def _check_sequence(files: Path, *, witness: Witnessed, config: Config) -> None:
    """Recover the log read-only, so that a store that fails the check stays as it was."""
    probe = _rdict(files, options_for(config, create=False), access_type=_reading())
    sequence = probe.latest_sequence_number()
    probe.close()
    if sequence < witness.sequence:
        raise StoreCorrupt(
            f"{witness.sequence - sequence} row writes are missing from {files}: it ends at {sequence}, and {witness.sequence} "
            f"was durable. The directory is an older copy, or a part of it was lost. Nothing was written. {START_OVER}"
        )


def _reading() -> AccessType:
    return engine.library.AccessType.read_only(False)


def _rdict(files: Path, options: Options, *, access_type: AccessType | None = None) -> Rdict:
    # The column family is named, because this binding opens an unnamed one with the options in the newest OPTIONS file: those
    # that the opening before had last, without filters and cache, which such a file does not hold.
    access = access_type or engine.library.AccessType.read_write()
    return engine.library.Rdict(str(files), options, {_COLUMN_FAMILY: options}, access)


def _unopenable(files: Path, error: BaseException) -> StorageError:
    text = text_of(error)
    if "No space left" in text:
        return StorageFull(
            f"{files} cannot be opened for writing: {text}. No acknowledged write is lost. Free some space, then open it again."
        )
    if any(cause in text for cause in ("Permission denied", "Read-only file system", "Too many open files", "lock hold by")):
        return StorageError(f"{files} cannot be opened: {text}. Nothing was written. Mend that, then open the store again.")
    return StoreCorrupt(f"{files} is damaged: {text}. Nothing was written. {START_OVER}")


def is_failure(error: BaseException) -> bool:
    """Whether an error is a failure of RocksDB, as its panics are, and no interrupt or the end of a generator."""
    return isinstance(error, Exception) or is_panic(error)


def text_of(error: BaseException) -> str:
    """The text of an error, or its class if it has none."""
    return str(error).strip() or type(error).__name__
