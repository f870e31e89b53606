"""Changes of a thread's queues. They have no blobs, so a forgotten entry leaves no row behind."""

from __future__ import annotations

from collections.abc import Iterator

from shoal import values
from shoal.crdt.applier import Appliers, bare
from shoal.crdt.deletion import users_key
from shoal.crdt.dot import END_MS, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation, ShoalError
from shoal.kinds import Kind
from shoal.kinds.worklist import state as queue
from shoal.names import check_key, check_name

_STATES = (queue.RUNNING, queue.WAITING, queue.DEAD)
_NTH_END = 1 << 62  # Far beyond the number of tries of any entry.


def _parts(change: queue.Enqueue, most: int) -> Iterator[queue.Enqueue]:
    for first in range(0, len(change.items), most):
        some = change.items[first : first + most]
        yield queue.SomeOf(change.queue, change.by, some, change.plan, first)


def _check_enqueue(_stamp: Stamp, change: queue.Enqueue) -> None:
    _check(change.queue, values_of=[item.value for item in change.items])
    for item in change.items:
        _check_key(item.key)
    plan = change.plan
    if plan is not None and not (0 <= plan.priority <= queue.PRIORITY_MAX and 0 <= plan.not_before_ms < END_MS):
        raise BadOperation("it puts entries with a plan that no node makes", reason="content")


def _check_dequeue(_stamp: Stamp, change: queue.Dequeue) -> None:
    _check(change.queue, values_of=[change.result], ids=[change.id])
    _check_key(change.key)


def _check_attempt(stamp: Stamp, change: queue.Attempt) -> None:
    _check(change.queue, ids=[change.id])
    if not (0 < change.nth < _NTH_END and 0 <= change.not_before_ms < END_MS and change.state in _STATES):
        raise BadOperation("it notes a try that no node makes", reason="content")
    if not stamp.context.accepts(VersionVector(change.replaces)):
        raise BadOperation("it replaces tries that its origin had not applied", reason="content")


def _check_purge(stamp: Stamp, change: queue.Purge) -> None:
    _check(change.queue, ids=change.ids)
    # Only then does every replica hold all that it covers before it.
    if not stamp.context.accepts(VersionVector(change.context)):
        raise BadOperation("it forgets entries that its origin had not applied", reason="content")


def _check(name: str, *, values_of: list[bytes] | None = None, ids: list[bytes] | None = None) -> None:
    try:
        if name != queue.INBOX:
            check_name("worklist", name)
        for packed in values_of or ():
            values.check(packed)
    except ShoalError as error:
        raise BadOperation(error.message, reason="content") from None
    if any(len(id) != queue.ID_BYTES for id in ids or ()):
        raise BadOperation("it names an entry by an invalid id", reason="content")


def _check_key(key: str | None) -> None:
    if users_key(key) is not None:
        check_key("queue key", key)


def _first_of(_name: str, stamp: Stamp, change: queue.Enqueue) -> str:
    """The id of the first entry that is put."""
    if not change.items:
        return ""
    key = change.items[0].key
    return (queue.identify_position(stamp.pack_position(), 0) if key is None else queue.identify(key)).hex()


def _entry_of(_name: str, _stamp: Stamp, change: queue.Dequeue | queue.Attempt) -> str:
    return change.id.hex()


APPLIERS: Appliers = {
    queue.Enqueue: bare(
        Kind.THREAD, queue.apply_enqueue, _check_enqueue, _first_of, since=lambda enqueue: 0 if enqueue.plan is None else 7
    )._replace(parts=_parts),
    queue.Dequeue: bare(
        Kind.THREAD, queue.apply_dequeue, _check_dequeue, _entry_of, since=lambda dequeue: 7 if dequeue.fence else 0
    ),
    queue.Attempt: bare(Kind.THREAD, queue.apply_attempt, _check_attempt, _entry_of, since=lambda _: 7),
    queue.Purge: bare(Kind.THREAD, queue.apply_purge, _check_purge),
}


def read_whole(rows: Rows) -> None:
    """Decode all rows, for `shoal verify` without a log."""
    for name in ["", *(name for name, _ in queue.worklists(rows))]:
        for _, id in queue.pending(rows, name):
            queue.entry(rows, name, id)
