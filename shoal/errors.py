"""Every error that Shoal raises on purpose, as one tree.

Each error says three things: what happened (its text), whether anything was written (`written`), and what the
caller can do (the text's last sentence). `retryable` is true for `Retryable` and the classes below it, and false
for all others: the same call, unchanged, may succeed later or on another node. The client's own retries follow it.
`code` names the class on the wire, so that a client raises the error that the node raised; `status` is its HTTP
status. docs/ERRORS.md is made from this module.

    ShoalError
    ├── InvalidInput: InvalidName, InvalidValue, InvalidConfig, TooLarge, SpansPartitions, InvalidSchema, SchemaViolation,
    │       Unsupported, WrongProcess, WrongLoop, StoreClosed, RedactionRefused
    ├── NotFound: Pruned, JournalTrimmed, HistoryCompacted, MomentMissing
    ├── Conflict: HeadMoved, BranchTaken, MergeConflict, ItemChanged, RegisterChanged, DocumentChanged, KeyReused, KeyExpired,
    │       TooManySiblings, BudgetExhausted, ConsumerReset, OwnerSuperseded, LeaseHeld, LeaseLost, Taken, UndoConflict,
    │       RootConflict, GenerationEnded, DeletedMeanwhile, StepFailed, StepAbandoned, StepSettled, ThreadHeld, SchemaTaken,
    │       SchemaMismatch, SchemaTooNew, MigrationFailed, DriftRefused, BookmarkLost, ChangeUnderWay, CrewConflict,
    │       EditsRefused, FileIncomplete, BackupConflict, StatusChanged
    │   └── StepUnresolved: ResultNotKept
    ├── Retryable: NotReady, Disconnected, OutcomeUnknown
    │   └── Unavailable: Overloaded, ShuttingDown, RightsElsewhere, SlowConsumer, SessionBehind, CatchingUp, NotAMember,
    │       NoQuorum, BackupUnreachable, Cold, RedactionFailed
    │       └── ReadOnly: ClockWrong
    ├── Unauthenticated, Forbidden, Unreachable, PeerRefused, BadOperation, EngineFailed
    └── StorageError: StoreLocked, StoreCorrupt, StoreTooNew, StorageFull, MasterKeyWrong, BackupDamaged
"""

from __future__ import annotations

from typing import ClassVar, Literal

Written = Literal["no", "yes", "unknown"]
Detail = str | int | float | list[str] | None


class ShoalError(Exception):
    """Catch it to catch everything that Shoal raises on purpose. The class itself means a bug in a node; see its log."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    written: Written = "no"

    def __init__(self, message: str, /, **detail: Detail) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail


class InvalidInput(ShoalError):
    """The request itself is wrong; sending it again cannot help."""

    code = "invalid-input"
    status = 400


class InvalidName(InvalidInput):
    """A name is empty, too long, or contains control characters."""

    code = "invalid-name"


class InvalidValue(InvalidInput):
    """A value cannot be serialised, or the given bytes are malformed."""

    code = "invalid-value"


class InvalidConfig(InvalidInput):
    """A setting is unknown, of the wrong type, or out of range."""

    code = "invalid-config"


class TooLarge(InvalidInput):
    """A body, frame or value exceeds its bound."""

    code = "too-large"
    status = 413


class SpansPartitions(InvalidInput):
    """A batch names objects of more than one partition."""

    code = "spans-partitions"


class InvalidSchema(InvalidInput):
    """A schema is malformed or exceeds its bounds, or its migrations have a gap."""

    code = "invalid-schema"


class SchemaViolation(InvalidInput):
    """A state breaks a schema or an invariant. `detail` has `path` (a JSON pointer into it), `schema` and `version`."""

    code = "schema-violation"
    status = 422


class RedactionRefused(InvalidInput):
    """A write holds what a rule of its space replaces, at a place where nothing can be replaced: in a name, in bytes that are
    no text, in a file, in what a document would become. `detail` has `path`, a JSON pointer into the write.
    """

    code = "redaction-refused"
    status = 422


class Unsupported(InvalidInput):
    """The request type is unknown, or the feature needs a newer version."""

    code = "unsupported"
    status = 422


class WrongProcess(InvalidInput):
    """A store that was opened before a `fork` was used in the child. Open or connect one there: docs/PROCESSES.md."""

    code = "wrong-process"


class WrongLoop(InvalidInput):
    """A store was used on another event loop than the one that it was opened on. Open one on each loop, or use `shoal.sync`."""

    code = "wrong-loop"


class StoreClosed(InvalidInput):
    """A handle was used after its store was closed. Nothing was written; open the store again, and make a new handle."""

    code = "store-closed"


class NotFound(ShoalError):
    """The thread, checkpoint, branch, document or other object does not exist."""

    code = "not-found"
    status = 404


class Pruned(NotFound):
    """The checkpoint was pruned, and its history ends there."""

    code = "pruned"
    status = 410


class JournalTrimmed(NotFound):
    """Events that the reader had not received were trimmed. `detail["trimmed_ms"]` is the time of the last trimmed event."""

    code = "journal-trimmed"
    status = 410


class HistoryCompacted(NotFound):
    """This past state of a document was compacted."""

    code = "history-compacted"
    status = 410


class MomentMissing(NotFound):
    """A backup does not have the moment that was asked for.

    It is before the first that it has whole, `detail["earliest_ms"]`; or has not come yet: everything until
    `detail["latest_ms"]` is there.
    """

    code = "moment-missing"


class Conflict(ShoalError):
    """The request is valid, but the state has moved on."""

    code = "conflict"
    status = 409


class FileIncomplete(Conflict):
    """Chunks of a file that is being put are not in its thread, or not any more. Send those that are missing, and it again."""

    code = "file-incomplete"


class HeadMoved(Conflict):
    """A branch is not where the caller last saw it. `detail["heads"]` lists its heads as this replica holds them."""

    code = "head-moved"
    status = 412


class BranchTaken(Conflict):
    """A branch of this name exists at another checkpoint. `detail["heads"]` lists its heads."""

    code = "branch-taken"


class MergeConflict(Conflict):
    """Heads changed one channel in conflicting ways. `detail["channels"]` names the conflicting channels."""

    code = "merge-conflict"


class ItemChanged(Conflict):
    """`expect` is not the item's version. `detail["version"]` is the one on the replica that was asked; "" if it has none."""

    code = "item-changed"
    status = 412


class StatusChanged(Conflict):
    """`expect` is not the status of the thread, which was set meanwhile: `detail` has its `status`, `by` and `wall_ms`."""

    code = "status-changed"
    status = 412


class RegisterChanged(Conflict):
    """A register has another version than `expect`, or another value than `compare_and_set` expects.

    `detail["version"]` is its version on the replica that was asked; "" for no value. After `compare_and_set`,
    `detail["value"]` shows its value, for people.
    """

    code = "register-changed"
    status = 412


class DocumentChanged(Conflict):
    """`expect` is not the document's version. `detail["version"]` is the one on the replica that was asked; "" for none."""

    code = "document-changed"
    status = 412


class ChangeUnderWay(Conflict):
    """Another change of the cluster's members is under way. `detail["change"]` names it."""

    code = "change-under-way"
    status = 409


class KeyReused(Conflict):
    """An idempotency key was used again with another payload."""

    code = "key-reused"
    status = 422


class KeyExpired(Conflict):
    """A key is older than the window in which keys are remembered. An earlier attempt under the key may be applied."""

    code = "key-expired"
    status = 410
    written: Written = "unknown"


class TooManySiblings(Conflict):
    """A register would hold more concurrent values than allowed."""

    code = "too-many-siblings"


class BudgetExhausted(Conflict):
    """The amount to be spent exceeds the rest of the budget. `detail["remaining"]` is that rest, as this replica knows it."""

    code = "budget-exhausted"


class ConsumerReset(Conflict):
    """A consumer's cursor was reset after its reader started. `detail["generation"]` is the current generation."""

    code = "consumer-reset"


class OwnerSuperseded(Conflict):
    """Another writer has claimed the thread since."""

    code = "owner-superseded"
    status = 412
    is_stale_write_owner_error = True  # LangGraph's runtimes recognise the error by this attribute.


class LeaseHeld(Conflict):
    """Somebody else holds the lease. `detail` has `holder`, `fence`, and `until_ms`: when it ends if it is not renewed."""

    code = "lease-held"
    status = 423


class LeaseLost(Conflict):
    """The lease of this write has ended, or another holder has it. `detail` has `fence`, and `holder` if somebody has it."""

    code = "lease-lost"
    status = 412
    is_stale_write_owner_error = True  # As above.


class CrewConflict(Conflict):
    """Programs or machines of one crew contradict each other: an agent is declared twice, or two machines have one name."""

    code = "crew-conflict"


class Taken(Conflict):
    """Somebody else has already taken the message. `detail["by"]` lists the takers."""

    code = "taken"


class UndoConflict(Conflict):
    """The change to be undone was itself changed since. `detail["channel"]` and `detail["path"]` name the place."""

    code = "undo-conflict"


class RootConflict(Conflict):
    """A document's root exists with another type."""

    code = "root-conflict"


class GenerationEnded(Conflict):
    """The document was deleted after this client opened it. `detail["generation"]` is the current generation."""

    code = "generation-ended"
    status = 410


class EditsRefused(Conflict):
    """A node lacks nothing that a mirror's edits of a document build on, and refuses them again and again.

    `detail["refusals"]` says how often. The edits since the last flush are not written, and stay readable in the mirror.
    """

    code = "edits-refused"


class BackupConflict(Conflict):
    """The place for a backup holds that of another cluster. `detail["cluster"]` is its identity. Nothing was written there."""

    code = "backup-conflict"


class DeletedMeanwhile(Conflict):
    """A write under `quorum` or `all` is recorded, but its object was deleted meanwhile: see `detail["objects"]`."""

    code = "deleted-meanwhile"
    written: Written = "yes"


class StepUnresolved(Conflict):
    """An effect may have happened: it has an intent and no result. `detail` has `key`, `name`, `holder` and `since_ms`."""

    code = "step-unresolved"


class ResultNotKept(StepUnresolved):
    """An effect has happened, but its result could not be stored. `detail` also has the `result`, as shortened text."""

    code = "result-not-kept"


class StepFailed(Conflict):
    """A step has used up its attempts. `detail` has `key`, `name`, `attempts`, and the last error's `type` and `error`."""

    code = "step-failed"


class StepAbandoned(Conflict):
    """Somebody decided that a step is not to be done. `detail` has `key`, `name` and `by`."""

    code = "step-abandoned"


class StepSettled(Conflict):
    """A step already has a result, or has no attempt to settle. `detail` has `key` and `state`."""

    code = "step-settled"


class ThreadHeld(Conflict):
    """The thread is paused or waits for a human; `thread.ready()` waits too. `detail` has `status`, `reason` and `by`."""

    code = "thread-held"
    status = 423


class SchemaTaken(Conflict):
    """This version of a replicated schema exists with other content."""

    code = "schema-taken"


class SchemaMismatch(Conflict):
    """A checkpoint was saved under another schema than the handle's."""

    code = "schema-mismatch"


class SchemaTooNew(Conflict):
    """A checkpoint's schema is newer than the reader can read. `detail["readable_from"]` is the oldest version that can."""

    code = "schema-too-new"


class MigrationFailed(Conflict):
    """No migration starts at a checkpoint's version, or one failed.

    The checkpoint is unchanged, and a handle without a schema can read it. `detail["version"]` is the failing step.
    """

    code = "migration-failed"
    status = 422


class DriftRefused(Conflict):
    """An agent's configuration differs from the checkpoint's. `detail["differences"]` lists the differences."""

    code = "drift-refused"


class BookmarkLost(Conflict):
    """No node holds the state that the client has seen. Read with `stale=True` to continue from what is there.

    `detail` has the `partition`.
    """

    code = "bookmark-lost"


class Retryable(ShoalError):
    """The same call may succeed later, or on another node. Nothing is wrong with it.

    If `written` is "unknown", repeat the call with the same idempotency key, so that it is applied once.
    """

    code = "retryable"
    status = 503
    retryable = True


class NotReady(Retryable):
    """The request depends on an update that this replica lacks."""

    code = "not-ready"
    status = 409


class Unavailable(Retryable):
    """The node cannot serve the request now; try again later, or at another node."""

    code = "unavailable"


class RedactionFailed(Unavailable):
    """The node cannot tell what is to be replaced in a write: a hook of its space is not configured there, failed or took too
    long, or the space's rules cannot be read.
    """

    code = "redaction-failed"


class Overloaded(Unavailable):
    """A bound was reached. `detail["retry_after_s"]` says how long to wait."""

    code = "overloaded"
    status = 429


class ShuttingDown(Unavailable):
    """The node is stopping."""

    code = "shutting-down"


class ReadOnly(Unavailable):
    """The node serves reads and rejects writes: its storage failed, or it is a class below this one."""

    code = "read-only"


class ClockWrong(ReadOnly):
    """A majority of the members have clocks that differ from the node's by more than `clock_skew_max_ms`. Set its clock."""

    code = "clock-wrong"


class RightsElsewhere(Unavailable):
    """Other nodes hold the rights to the rest of a budget.

    `detail` has `budget`, `amount`, `rights` (of the node that was asked), `pool` (rights that no node has drawn), `holders`
    (the other nodes, as "n2:7400: 20"), `unreachable` (owners), `left` (rights of directories that are no member's, as
    "origin: 70": after a restore, or once a disk was lost) and `retry_after_s`.
    """

    code = "rights-elsewhere"


class SlowConsumer(Unavailable):
    """A watcher fell behind its byte budget and was cut off."""

    code = "slow-consumer"


class SessionBehind(Unavailable):
    """The node has not caught up with what the client has seen. Read with `stale=True` to continue from what is there."""

    code = "session-behind"


class CatchingUp(Unavailable):
    """The node is still fetching data that it needs for this request, or does not know yet what its cluster holds."""

    code = "catching-up"


class NotAMember(Unavailable):
    """The node is no member of its cluster, and serves nothing, or it joins or leaves it, and writes nothing. Ask another."""

    code = "not-a-member"


class NoQuorum(Unavailable):
    """Too few owners can be reached for this durability. `detail` has `reachable` and `needed`, this node included."""

    code = "no-quorum"


class BackupUnreachable(Unavailable):
    """The bucket of a backup cannot be read or written: the network, its address, credentials, rights or space."""

    code = "backup-unreachable"


class Cold(Unavailable):
    """Chunks of a thread are in an object store (tiering), which could not be read in time. Nothing was written."""

    code = "cold"


class Disconnected(Retryable):
    """No node could be reached; nothing was sent."""

    code = "disconnected"


class OutcomeUnknown(Retryable):
    """No reply came, or too few copies were made in time. Send it again with the same idempotency key: it is applied once."""

    code = "outcome-unknown"
    status = 504
    written: Written = "unknown"


class Unauthenticated(ShoalError):
    """The node asks for a token, and none was given, or one that it does not accept. `detail["reason"]` says what is wrong.

    `detail["retry_after_s"]` is there if that passes by itself: a key that the node will hear of, a time that is to come.
    """

    code = "unauthenticated"
    status = 401


class Forbidden(ShoalError):
    """The token does not grant this. `detail` has `space`, `family` and `action`: the right that is missing."""

    code = "forbidden"
    status = 403


class Unreachable(ShoalError):
    """None of the client's addresses has led to a node yet; nothing was sent.

    The message gives the reason for each address. `connect(…, wait=30)` waits for a node that is still starting.
    """

    code = "unreachable"
    status = 503


class PeerRefused(ShoalError):
    """Two nodes cannot be peers.

    `detail["reason"]`: "cluster", "key", "protocol", "engine", "self", "clone", "twice", "member", "removed",
    "outside", "founding", "asked" or "certificate".
    """

    code = "peer-refused"
    status = 403


class BadOperation(ShoalError):
    """A peer's operation cannot be applied; it is quarantined.

    `detail["reason"]`: "chain", "dot-taken", "content", "claim", "retired".
    """

    code = "bad-operation"
    status = 422


class EngineFailed(ShoalError):
    """The engine of documents or of storage panicked. What it was working on is discarded, and built again when it is used."""

    code = "engine-failed"


class StorageError(ShoalError):
    """The data directory cannot be used."""

    code = "storage"


class StoreLocked(StorageError):
    """Another process has the directory open."""

    code = "store-locked"


class StoreCorrupt(StorageError):
    """A checksum, a witness or the log does not match. `lost`: missing or damaged rows of the object read, if known.

    `written` is "unknown" if the damage hides whether an earlier attempt under the idempotency key was applied.
    """

    code = "store-corrupt"

    def __init__(self, message: str, /, *, lost: tuple[bytes, ...] = (), **detail: Detail) -> None:
        super().__init__(message, **detail)
        self.lost = lost


class StoreTooNew(StorageError):
    """A newer version has written the directory."""

    code = "store-too-new"


class MasterKeyWrong(StorageError):
    """An encrypted directory was opened without its master key or with a wrong one, or a plain one with a key; or the key
    cannot be fetched. Nothing was changed.
    """

    code = "master-key-wrong"


class StorageFull(StorageError):
    """The disk is full, or a write or its fsync failed. Writes that waited for this fsync may or may not be on disk."""

    code = "storage-full"
    status = 507
    written: Written = "unknown"


class BackupDamaged(StorageError):
    """A backup holds no manifest, or an object in it is missing, altered or of another place. Nothing was changed."""

    code = "backup-damaged"


def _tree(root: type[ShoalError]) -> dict[str, type[ShoalError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


BY_CODE: dict[str, type[ShoalError]] = _tree(ShoalError)


def from_wire(code: str, message: str, detail: dict[str, Detail], written: str, *, retryable: bool = False) -> ShoalError:
    """Rebuild the error that a node sent. An unknown code, of a newer version, becomes a Retryable or a ShoalError."""
    error = BY_CODE.get(code, Retryable if retryable else ShoalError)(message, **detail)
    if written in ("no", "yes", "unknown"):
        error.written = written  # type: ignore[assignment]
    return error
