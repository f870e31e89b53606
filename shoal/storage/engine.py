"""RocksDB as this process uses it: versions, options and opening; and a pass that removes deleted bytes from its files.

RocksDB, as this process may use it. `library` is the module `rocksdict`.

Laws:
- RocksDB keeps its threads as long as the process lives, also once every store is closed. A forked child has RocksDB's
  memory but not these threads, and would wait for them for ever. So it never asks that copy of the library anything: for a
  store of its own it loads another copy, which shares nothing with the first.
- A forked child ends without the destructors of libraries, which would wait for the same threads.
- A process that has opened no store before it forks is not concerned.

Check that the installed versions of pycrdt and rocksdict are among those that were tested.

Shoal relies on behaviour that neither promises: how pycrdt orders concurrent changes and
numbers its clients, and what RocksDB does with a damaged log. pyproject.toml has the same
ranges; if an installer was told to ignore them, only this check reports it.

The options of RocksDB, and the reasons for them.

Laws:
- RocksDB never decides by itself when a log ends: its own bounds lie beyond ours (`rocks`).
- Each of its caches and buffers has a bound with a name in `shoal.config`.
- Every block is checked when it is read. Of all damage, only the torn end of a log is accepted.

Open RocksDB on the files of a directory, and say in plain words why that failed.

Laws:
- A database that holds less than the witness says it must is refused, and stays as it was: it is recovered read-only first.
- On a full disk it is opened for reading, without a write.

A pass over RocksDB's files after which no file holds the bytes of a row that was deleted before the pass began.

A deletion is a row of its own, a *tombstone*. The deleted bytes stay in older files until compactions have brought the two
together, which may never happen in a store that is rarely written. A pass makes RocksDB do so for the whole store:

1. The memtable becomes a file, and its log goes (`RocksStorage.begin_erasing`). All files of the first level are compacted.
2. Every file that is older than the pass is compacted into the next level, down to the deepest (`ttl`): a tombstone that
   arrives there meets what it deleted, and both are dropped.
3. A tombstone may have arrived there by a mere move of its file. If some are left, all older files are written again. So they
   are if a blob file holds deleted bytes beside others: writing the tables again moves the others.

Laws:
- Only options are changed, so RocksDB compacts by itself. A manual compaction is not used: if a row of its range is in
  memory, it begins a new log at any time, and a crash could then keep a later write without an earlier one.
- A pass waits only for files that are older than itself, so it ends even if the store is written meanwhile.
- The manifest holds the first and last key of each file, so each change of the files replaces it (`options`).
- Beside a pass, what blob files hold moves only while at least a quarter of their bytes is deleted. So a byte that is deleted
  makes three others move at most, and a file that lies is not written again and again.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Mapping
from enum import Enum, auto
from importlib.machinery import ExtensionFileLoader, PathFinder
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any, Final

import rocksdict
from rocksdict import AccessType, BlockBasedOptions, Options, Rdict

from shoal.config import Config, KiB, MiB
from shoal.errors import StorageError, StorageFull, StoreCorrupt, WrongProcess
from shoal.raising import is_panic
from shoal.storage import layout
from shoal.storage.layout import Witnessed

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


_Version = tuple[int, ...]

TESTED: Mapping[str, tuple[_Version, _Version]] = {
    "pycrdt": ((0, 14, 10), (0, 14, 13)),
    "rocksdict": ((0, 3, 25), (0, 3, 29)),
}


def installed(name: str) -> str:
    """The installed version of a distribution that has a package of its name.

    The name of its folder beside the package says it. `importlib.metadata`, which is asked if no folder or several do, would
    take a tenth of the time in which a store is opened.
    """
    spec = PathFinder.find_spec(name)
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        begins, ends = f"{name}-", ".dist-info"
        named = [each for each in os.listdir(os.path.dirname(place)) if each.startswith(begins) and each.endswith(ends)]
        if len(named) == 1:
            return named[0].removeprefix(begins).removesuffix(ends)
    from importlib import metadata

    return metadata.version(name)


def untested(version_of: Callable[[str], str] = installed) -> list[str]:
    """A warning for each engine outside its tested range, with a command that installs a tested version.

    `version_of` returns the installed version of a distribution.
    """
    told = []
    for name, (first, last) in TESTED.items():
        version = version_of(name)
        if not first <= _parsed(version) <= last:
            told.append(
                f"{name} {version} is installed. This version of Shoal was not tested with it, and other nodes may read "
                "differently what this one writes. Install a tested version: "
                f"pip install '{name}>={_text(first)},<={_text(last)}'"
            )
    return told


def _parsed(version: str) -> _Version:
    """The numbers that a version begins with; for a pre-release, those of its release."""
    begins = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, begins.group().split("."))) if begins else ()


def _text(version: _Version) -> str:
    return ".".join(map(str, version))


_WRITE_BUFFER_FACTOR = 4  # RocksDB begins a new log at so many times `memtable_bytes`; ours are begun before that.
COMPACTS_AT = "level0_file_num_compaction_trigger"
# So many files make a compaction due; while space is given back, one does. Every thread's rows are spread over all keys, so any
# compaction writes all of the next level again.
LEVEL_ZERO_FILES = 8
TTL_S = 30 * 24 * 3600  # RocksDB's default: files older than this move to the next level.

# Agents save the same bytes in many threads and blocks: prompts, tool schemas, the same bytes in a tail and in its chunk.
# A dictionary for each table finds that, and blocks stay small for reads of single rows.
_DICTIONARY_BYTES = 64 * KiB
_ZSTD_LEVEL = 1
_ZSTD_WINDOW_BITS = -14  # RocksDB's default.

# Chunks of files stand in files of their own, the *blob files*, which compactions do not write again. A blob file goes once all
# of its rows went; what is left in others moves only while `MOVES_BLOBS` says so (`Blobs`).
BLOB_BYTES_MIN = 256 * KiB
_BLOB_FILE_BYTES = 64 * MiB


def options_for(config: Config, *, create: bool, encrypted: bool = False) -> Options:
    """The options for an opening; with `create`, a missing database is made. Encrypted rows do not compress."""
    options = library.Options(raw_mode=True)
    options.create_if_missing(create)
    options.set_paranoid_checks(True)
    options.set_wal_recovery_mode(library.DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_write_buffer_size(_WRITE_BUFFER_FACTOR * config.memtable_bytes)
    # Room for flushes that lag behind: a stalled write would stop the event loop.
    options.set_max_write_buffer_number(8)
    options.set_level_zero_file_num_compaction_trigger(LEVEL_ZERO_FILES)
    options.set_level_zero_slowdown_writes_trigger(64)
    options.set_level_zero_stop_writes_trigger(128)
    # A save asks for several keys that are not there yet: the memtable says so without a search. The ratio is one of the write
    # buffer, of which a quarter is used: some 40 bits for each row of 250 bytes. An opening has to touch all of them.
    options.set_memtable_whole_key_filtering(True)
    options.set_memtable_prefix_bloom_ratio(0.005)
    options.set_max_background_jobs(2)
    options.set_max_open_files(config.tables_open_max)
    # At an opening RocksDB looks into 16 tables at most; by default it begins 16 threads for that, which takes longer.
    options.set_max_file_opening_threads(1)
    if encrypted:
        options.set_compression_type(library.DBCompressionType.none())
    else:
        options.set_compression_type(library.DBCompressionType.zstd())
        options.set_compression_options(_ZSTD_WINDOW_BITS, _ZSTD_LEVEL, 0, _DICTIONARY_BYTES)
        options.set_blob_compression_type(library.DBCompressionType.zstd())
    options.set_enable_blob_files(True)
    options.set_min_blob_size(BLOB_BYTES_MIN)
    options.set_blob_file_size(_BLOB_FILE_BYTES)
    options.set_enable_blob_gc(True)
    options.set_blob_gc_age_cutoff(0)
    options.set_block_based_table_factory(_tables(config))
    # It holds the first and last key of each file, also of those that are gone, so each change of the files begins a new one.
    options.set_max_manifest_file_size(1)
    # RocksDB's own diary, LOG and LOG.old.*: a few small files. It holds no keys and no values.
    options.set_max_log_file_size(128 * KiB)
    options.set_keep_log_file_num(3)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options


def _tables(config: Config) -> BlockBasedOptions:
    tables = library.BlockBasedOptions()
    tables.set_block_cache(library.Cache(config.block_cache_bytes))
    tables.set_block_size(16 * KiB)
    tables.set_bloom_filter(10, False)
    # Otherwise indexes and filters of every open file live outside the cache's bound. They are in pieces, because the cache is
    # split into up to 64 shards: the filter of a table of 64 MiB is larger than a shard, and would be read again for every row.
    tables.set_cache_index_and_filter_blocks(True)
    tables.set_index_type(library.BlockBasedIndexType.two_level_index_search())
    tables.set_partition_filters(True)
    tables.set_pin_l0_filter_and_index_blocks_in_cache(True)
    return tables


START_OVER = "Move the directory aside, and restore a backup or rebuild it from the other nodes."
_COLUMN_FAMILY = "default"  # RocksDB's name of the only one.


def open_database(directory: Path, *, witness: Witnessed, config: Config, encrypted: bool) -> Rdict:
    """Open RocksDB, unless it holds less than `witness` says it must."""
    prepare()
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
    return library.AccessType.read_only(False)


def _rdict(files: Path, options: Options, *, access_type: AccessType | None = None) -> Rdict:
    # The column family is named, because this binding opens an unnamed one with the options in the newest OPTIONS file: those
    # that the opening before had last, without filters and cache, which such a file does not hold.
    access = access_type or library.AccessType.read_write()
    return library.Rdict(str(files), options, {_COLUMN_FAMILY: options}, access)


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


_SINKS_AFTER, _REWRITTEN_AFTER = "ttl", "periodic_compaction_seconds"
_BLOBS_MOVE, _BLOBS_MOVE_AT = "blob_garbage_collection_age_cutoff", "blob_garbage_collection_force_threshold"
_GARBAGE_SHARE = 0.25  # Of the bytes of blob files, at which what is left of them moves.
_BUSY: Final = ("num-immutable-mem-table", "mem-table-flush-pending", "compaction-pending", "num-running-compactions")
_CLOCK_S: Final = 2  # RocksDB keeps times in whole seconds: a file made when the pass began is older than the age less this.
_LOOKS_MAX: Final = 100  # In one stage. A store that is written without a pause may be busy at every look.


class _Stage(Enum):
    FIRST_LEVEL = auto()
    SINK = auto()
    REWRITE = auto()
    OVER = auto()


class ErasingPass:
    """One pass over the files of an open database."""

    def __init__(self, database: Rdict) -> None:
        self._db = database
        self._stage = _Stage.FIRST_LEVEL
        self._looks = 0
        self._asked = False  # RocksDB, to do what the stage is about.
        self._began_s = 0.0  # When the last stage began, since the pass did.

    def advance(self, age_s: float) -> bool:
        """Go on with the pass, which began `age_s` seconds ago; True when it is over. Call it about once a second."""
        self._looks += 1
        if self._is_busy() and self._looks < _LOOKS_MAX:
            return False
        if self._asked:
            self._move_on()
            if self._stage is _Stage.REWRITE:
                self._began_s = age_s
        if self._stage is not _Stage.OVER and not self._asked:
            self._ask(int(age_s - self._began_s) - _CLOCK_S)
        return self._stage is _Stage.OVER

    def end(self) -> None:
        """Set the usual options again, and remove the manifests of before."""
        usual = {COMPACTS_AT: LEVEL_ZERO_FILES, _SINKS_AFTER: TTL_S, _REWRITTEN_AFTER: 0, _BLOBS_MOVE: 0}
        # RocksDB removes old manifests after its own work, or when the last reader of the files of before goes.
        reader = self._db.iter()
        self._db.set_options({name: str(value) for name, value in usual.items()})
        del reader

    def _is_busy(self) -> bool:
        return any(self._db.property_value(f"rocksdb.{name}") != "0" for name in _BUSY)

    def _ask(self, older_than_s: int) -> None:
        """Ask RocksDB to do what the stage is about with files older than this. It finds out at once what there is to do."""
        if self._stage is _Stage.FIRST_LEVEL:
            self._set({COMPACTS_AT: "1"})
        elif older_than_s > 0:
            self._set({_SINKS_AFTER if self._stage is _Stage.SINK else _REWRITTEN_AFTER: str(older_than_s)})

    def _set(self, options: dict[str, str]) -> None:
        self._db.set_options(options)
        self._asked = True

    def _move_on(self) -> None:
        files = self._db.live_files()
        deepest = max((file["level"] for file in files), default=0)
        if self._stage is _Stage.FIRST_LEVEL:
            self._set({COMPACTS_AT: str(LEVEL_ZERO_FILES)})
            self._stage = _Stage.SINK
        elif self._stage is _Stage.SINK and garbage_bytes(self._db):
            self._db.set_options({_BLOBS_MOVE: "1.0"})
            self._stage = _Stage.REWRITE
        elif self._stage is _Stage.SINK and any(file["num_deletions"] for file in files if file["level"] == deepest):
            self._stage = _Stage.REWRITE
        else:
            self._stage = _Stage.OVER
            self.end()
        self._asked, self._looks = False, 0


class BlobFiles:
    """Has RocksDB move what is left in blob files, while much of their bytes is deleted."""

    def __init__(self, database: Rdict) -> None:
        self._db = database
        self._moves = False

    def look(self) -> None:
        """Begin to move, or stop. A look is cheap: two numbers that RocksDB has."""
        garbage = garbage_bytes(self._db)
        moves = bool(garbage) and garbage >= _GARBAGE_SHARE * _number(self._db, "live-blob-file-size")
        if moves != self._moves:
            self._moves = moves
            # What moves is a compaction of the tables that refer to the oldest blob files; and each other one, meanwhile.
            self._db.set_options({_BLOBS_MOVE: "1.0" if moves else "0", _BLOBS_MOVE_AT: str(_GARBAGE_SHARE if moves else 1.0)})

    def forget(self) -> None:
        """The usual options were set again."""
        self._moves = False


def garbage_bytes(database: Rdict) -> int:
    """The bytes of deleted rows that blob files hold, as far as compactions have found them."""
    return _number(database, "live-blob-file-garbage-size")


def _number(database: Rdict, name: str) -> int:
    return int(database.property_value(f"rocksdb.{name}") or 0)
