"""A pass over RocksDB's files after which no file holds the bytes of a row that was deleted before the pass began.

A deletion is a row of its own, a *tombstone*. The deleted bytes stay in older files until compactions have brought the two
together, which may never happen in a store that is rarely written. A pass makes RocksDB do so for the whole store:

1. The memtable becomes a file, and its log goes (`RocksStorage.begin_erasing`). All files of the first level are compacted.
2. Every file that is older than the pass is compacted into the next level, down to the deepest (`ttl`): a tombstone that
   arrives there meets what it deleted, and both are dropped.
3. A tombstone may have arrived there by a mere move of its file. If some are left, all older files are written again. So they
   are if a blob file (`shoal.storage.engine`) holds deleted bytes beside others: writing the tables again moves the others.

Laws:
- Only options are changed, so RocksDB compacts by itself. A manual compaction is not used: if a row of its range is in
  memory, it begins a new log at any time, and a crash could then keep a later write without an earlier one.
- A pass waits only for files that are older than itself, so it ends even if the store is written meanwhile.
- The manifest holds the first and last key of each file, so each change of the files replaces it (`options`).
- Beside a pass, what blob files hold moves only while at least a quarter of their bytes is deleted. So a byte that is deleted
  makes three others move at most, and a file that lies is not written again and again.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from rocksdict import Rdict

from shoal.storage.engine import COMPACTS_AT, LEVEL_ZERO_FILES, TTL_S

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
