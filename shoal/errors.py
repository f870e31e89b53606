"""Every error that Shoal raises on purpose, as one tree.

Each error says three things: what happened (its text), whether anything was
written (`written`), and what the caller can do (the text's last sentence).
`retryable` is true for `Retryable` and the classes below it, and false for all
others: the same call, unchanged, may succeed later or on another node. The
client's own retries follow it. `code` names the class on the wire, so that a
client raises what the node raised; `status` is its HTTP status.
docs/ERRORS.md is made from this module.

    ShoalError
    ├── InvalidInput            the request itself is wrong; sending it again cannot help
    │   ├── InvalidName         a name is empty, too long, or contains control characters
    │   ├── InvalidValue        a value cannot be serialised, or the given bytes are malformed
    │   ├── InvalidConfig       a setting is unknown, of the wrong type, or out of range
    │   ├── TooLarge            a body, frame or value exceeds its bound
    │   ├── SpansPartitions     a batch names objects of more than one partition
    │   ├── InvalidSchema       a schema is malformed or exceeds its bounds, or its migrations have a gap
    │   ├── SchemaViolation     a state breaks a schema or an invariant
    │   └── Unsupported         the request type is unknown, or the feature needs a newer version
    ├── NotFound                the thread, checkpoint, branch, document, … does not exist
    │   ├── Pruned              the checkpoint was pruned, and its history ends there
    │   ├── JournalTrimmed      events that the reader had not received were trimmed
    │   └── HistoryCompacted    this past state of a document was compacted
    ├── Conflict                the request is valid, but the state has moved on
    │   ├── HeadMoved           a branch is not where the caller last saw it
    │   ├── BranchTaken         a branch of this name exists at another checkpoint
    │   ├── MergeConflict       heads changed one channel in conflicting ways
    │   ├── ItemChanged         `expect` is not the version of the item
    │   ├── RegisterChanged     `expect` is not the version of the register
    │   ├── DocumentChanged     `expect` is not the version of the document
    │   ├── KeyReused           an idempotency key was used again with another payload
    │   ├── KeyExpired          a key is older than the window in which keys are remembered
    │   ├── TooManySiblings     a register would hold more concurrent values than allowed
    │   ├── BudgetExhausted     the amount to be spent exceeds what is left of the budget
    │   ├── ConsumerReset       a consumer's cursor was reset after its reader started
    │   ├── OwnerSuperseded     another writer has claimed the thread since
    │   ├── Taken               somebody else has already taken the message
    │   ├── UndoConflict        the change to be undone was itself changed since
    │   ├── RootConflict        a document's root exists with another type
    │   ├── GenerationEnded     the document was deleted after this client opened it
    │   ├── DeletedMeanwhile    a write is recorded, but its object was deleted meanwhile
    │   ├── StepUnresolved      an effect may have happened: its intent was written, its result was not
    │   │   └── ResultNotKept   an effect has happened, but its result could not be stored
    │   ├── StepFailed          a step failed as often as it may be attempted
    │   ├── StepAbandoned       somebody decided that a step is not to be done
    │   ├── StepSettled         a step already has a result, or has no attempt to settle
    │   ├── ThreadHeld          the thread is paused, or waits for a human
    │   ├── SchemaTaken         this version of a replicated schema exists with other content
    │   ├── SchemaMismatch      a checkpoint was saved under another schema than the handle's
    │   ├── SchemaTooNew        a checkpoint's schema is newer than the reader's, and not readable by it
    │   ├── MigrationFailed     no migration starts at a checkpoint's version, or one failed
    │   ├── DriftRefused        an agent's configuration differs from the checkpoint's
    │   └── BookmarkLost        no node holds the state that the client has seen
    ├── Retryable               the same call may succeed later, or on another node
    │   ├── NotReady            the request depends on an update that this replica lacks
    │   ├── Unavailable         the node cannot serve the request now; try again later, or at another node
    │   │   ├── Overloaded      a bound was reached; `retry_after_s` says when to try again
    │   │   ├── ShuttingDown    the node is stopping
    │   │   ├── ReadOnly        storage failed; the node serves reads and rejects writes
    │   │   ├── RightsElsewhere other nodes hold the rights to what is left of a budget
    │   │   ├── SlowConsumer    a watcher fell behind its byte budget and was cut off
    │   │   ├── SessionBehind   the node has not caught up with what the client has seen
    │   │   ├── CatchingUp      the node is still fetching data that it needs for this request
    │   │   └── NoQuorum        too few owners can be reached for the requested durability
    │   ├── Disconnected        no node could be reached; nothing was sent
    │   └── OutcomeUnknown      no reply came, or too few copies were made in time
    ├── Unreachable             none of the client's addresses has led to a node yet; nothing was sent
    ├── PeerRefused             two nodes cannot work together
    ├── BadOperation            a peer sent an operation that cannot be applied; it is quarantined
    └── StorageError            the data directory cannot be used
        ├── StoreLocked         another process has the directory open
        ├── StoreCorrupt        a checksum, a witness or the log does not match
        ├── StoreTooNew         a newer version has written the directory
        └── StorageFull         the disk is full, or a write or its fsync failed
"""

from __future__ import annotations

from typing import ClassVar, Literal

Written = Literal["no", "yes", "unknown"]


class ShoalError(Exception):
    """Catch it to catch everything that Shoal raises on purpose. The class itself means a bug in a node; see its log."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    written: Written = "no"

    def __init__(self, message: str, /, **detail: str | int | float | list[str] | None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail


class InvalidInput(ShoalError):
    code = "invalid-input"
    status = 400


class InvalidName(InvalidInput):
    code = "invalid-name"


class InvalidValue(InvalidInput):
    code = "invalid-value"


class InvalidConfig(InvalidInput):
    code = "invalid-config"


class TooLarge(InvalidInput):
    code = "too-large"
    status = 413


class SpansPartitions(InvalidInput):
    code = "spans-partitions"


class InvalidSchema(InvalidInput):
    code = "invalid-schema"


class SchemaViolation(InvalidInput):
    """`detail["path"]` is a JSON pointer into the state; `detail["schema"]` and `["version"]` name the schema."""

    code = "schema-violation"
    status = 422


class Unsupported(InvalidInput):
    code = "unsupported"
    status = 422


class NotFound(ShoalError):
    code = "not-found"
    status = 404


class Pruned(NotFound):
    code = "pruned"
    status = 410


class JournalTrimmed(NotFound):
    """`detail["trimmed_ms"]` is the time of the last event that was trimmed."""

    code = "journal-trimmed"
    status = 410


class HistoryCompacted(NotFound):
    code = "history-compacted"
    status = 410


class Conflict(ShoalError):
    code = "conflict"
    status = 409


class HeadMoved(Conflict):
    """`detail["heads"]` lists the branch's heads as this replica holds them."""

    code = "head-moved"
    status = 412


class BranchTaken(Conflict):
    """`detail["heads"]` lists the heads of the existing branch."""

    code = "branch-taken"


class MergeConflict(Conflict):
    """`detail["channels"]` names the conflicting channels."""

    code = "merge-conflict"


class ItemChanged(Conflict):
    """`detail["version"]` is the item's version on the replica that was asked; "" if the item does not exist there."""

    code = "item-changed"
    status = 412


class RegisterChanged(Conflict):
    """`detail["version"]` is the register's version on the replica that was asked; "" if it has no value."""

    code = "register-changed"
    status = 412


class DocumentChanged(Conflict):
    """`detail["version"]` is the document's version on the replica that was asked; "" if the document does not exist there."""

    code = "document-changed"
    status = 412


class KeyReused(Conflict):
    code = "key-reused"
    status = 422


class KeyExpired(Conflict):
    """An earlier attempt under the key may be applied."""

    code = "key-expired"
    status = 410
    written: Written = "unknown"


class TooManySiblings(Conflict):
    code = "too-many-siblings"


class BudgetExhausted(Conflict):
    """`detail["remaining"]` is what is left of the budget, as far as this replica knows."""

    code = "budget-exhausted"


class ConsumerReset(Conflict):
    """`detail["generation"]` is the current generation."""

    code = "consumer-reset"


class OwnerSuperseded(Conflict):
    code = "owner-superseded"
    status = 412
    is_stale_write_owner_error = True  # LangGraph's runtimes recognise the error by this attribute.


class Taken(Conflict):
    """`detail["by"]` lists the takers."""

    code = "taken"


class UndoConflict(Conflict):
    """`detail["channel"]` and `detail["path"]` name the place."""

    code = "undo-conflict"


class RootConflict(Conflict):
    code = "root-conflict"


class GenerationEnded(Conflict):
    """`detail["generation"]` is the current generation."""

    code = "generation-ended"
    status = 410


class DeletedMeanwhile(Conflict):
    """Raised under `quorum` and `all`. `detail["objects"]` lists the deleted objects."""

    code = "deleted-meanwhile"
    written: Written = "yes"


class StepUnresolved(Conflict):
    """`detail` has `key`, `name`, `holder` (which wrote the intent) and `since_ms`."""

    code = "step-unresolved"


class ResultNotKept(StepUnresolved):
    """`detail` has `key`, `name`, `holder`, `since_ms`, and the `result` as shortened text."""

    code = "result-not-kept"


class StepFailed(Conflict):
    """`detail` has `key`, `name`, `attempts`, and the last error's `type` and `error`."""

    code = "step-failed"


class StepAbandoned(Conflict):
    """`detail` has `key`, `name` and `by`."""

    code = "step-abandoned"


class StepSettled(Conflict):
    """`detail` has `key` and `state`."""

    code = "step-settled"


class ThreadHeld(Conflict):
    """`detail` has `status`, `reason` and `by`. `thread.ready()` waits until the thread may continue."""

    code = "thread-held"
    status = 423


class SchemaTaken(Conflict):
    code = "schema-taken"


class SchemaMismatch(Conflict):
    code = "schema-mismatch"


class SchemaTooNew(Conflict):
    """`detail["readable_from"]` is the oldest version of the schema that can read the checkpoint."""

    code = "schema-too-new"


class MigrationFailed(Conflict):
    """The checkpoint is unchanged, and a handle without a schema can read it. `detail["version"]` is the failing step."""

    code = "migration-failed"
    status = 422


class DriftRefused(Conflict):
    """`detail["differences"]` lists the differences."""

    code = "drift-refused"


class BookmarkLost(Conflict):
    """Read with `stale=True` to continue from what is there."""

    code = "bookmark-lost"


class Retryable(ShoalError):
    """The same call may succeed later, or on another node. Nothing is wrong with it.

    If `written` is "unknown", repeat the call with the same idempotency key, so that it is applied once.
    """

    code = "retryable"
    status = 503
    retryable = True


class NotReady(Retryable):
    code = "not-ready"
    status = 409


class Unavailable(Retryable):
    code = "unavailable"
    status = 503


class Overloaded(Unavailable):
    """`detail["retry_after_s"]` says how long to wait."""

    code = "overloaded"
    status = 429


class ShuttingDown(Unavailable):
    code = "shutting-down"


class ReadOnly(Unavailable):
    code = "read-only"


class RightsElsewhere(Unavailable):
    """`detail` has `budget`, `amount`, `rights` (of the node that was asked), `pool` (rights that no node has drawn), `holders`
    (the other nodes, as "n2:7400: 20"), `unreachable` (owners) and `retry_after_s`.
    """

    code = "rights-elsewhere"


class SlowConsumer(Unavailable):
    code = "slow-consumer"


class SessionBehind(Unavailable):
    """Read with `stale=True` to continue from what is there."""

    code = "session-behind"


class CatchingUp(Unavailable):
    code = "catching-up"


class NoQuorum(Unavailable):
    """`detail["reachable"]` of the `detail["needed"]` owners can be reached, this node included."""

    code = "no-quorum"


class Disconnected(Retryable):
    code = "disconnected"
    status = 503


class OutcomeUnknown(Retryable):
    """Send the same request with the same idempotency key again: it is applied once."""

    code = "outcome-unknown"
    status = 504
    written: Written = "unknown"


class Unreachable(ShoalError):
    """The message gives the reason for each address. `connect(…, wait=30)` waits for a node that is still starting."""

    code = "unreachable"
    status = 503


class PeerRefused(ShoalError):
    """`detail["reason"]`: "cluster", "key", "protocol", "engine", "self", "clone" or "twice"."""

    code = "peer-refused"
    status = 403


class BadOperation(ShoalError):
    """`detail["reason"]`: "chain", "dot-taken", "content" or "claim"."""

    code = "bad-operation"
    status = 422


class StorageError(ShoalError):
    code = "storage"


class StoreLocked(StorageError):
    code = "store-locked"


class StoreCorrupt(StorageError):
    """`lost` names the missing or damaged rows of the object that was read, as far as they are known. `written` is "unknown"
    if the damage hides whether an earlier attempt under the request's idempotency key was applied.
    """

    code = "store-corrupt"

    def __init__(
        self, message: str, /, *, lost: tuple[bytes, ...] = (), **detail: str | int | float | list[str] | None
    ) -> None:
        super().__init__(message, **detail)
        self.lost = lost


class StoreTooNew(StorageError):
    code = "store-too-new"


class StorageFull(StorageError):
    """Writes that were waiting for this fsync may or may not be on disk."""

    code = "storage-full"
    status = 507
    written: Written = "unknown"


def _tree(root: type[ShoalError]) -> dict[str, type[ShoalError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


BY_CODE: dict[str, type[ShoalError]] = _tree(ShoalError)


def from_wire(
    code: str,
    message: str,
    detail: dict[str, str | int | float | list[str] | None],
    written: str,
    *,
    retryable: bool = False,
) -> ShoalError:
    """Rebuild the error that a node sent. An unknown code, of a newer version, becomes a Retryable or a ShoalError."""
    error = BY_CODE.get(code, Retryable if retryable else ShoalError)(message, **detail)
    if written in ("no", "yes", "unknown"):
        error.written = written  # type: ignore[assignment]
    return error
