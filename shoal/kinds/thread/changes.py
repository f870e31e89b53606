"""Changes of a thread's checkpoints: their records and chunks.

Prunes of a thread's checkpoints.
"""

from __future__ import annotations

from hashlib import sha256

from shoal.crdt.applier import ERASED, Applier, Appliers, Blobs, Effects, Erased, Sweep, What, WrittenRows, bare, is_gone
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation, StoreCorrupt
from shoal.kinds import Kind
from shoal.kinds.label import asks
from shoal.kinds.thread.state import dag, pruning
from shoal.names import check_name


def _apply(rows: Rows, stamp: Stamp, change: dag.Save, attached: Blobs) -> list[dag.Head]:
    if attached.erased and is_gone(attached):
        dag.apply_erased(rows, change)
        return []
    return dag.apply(rows, stamp, change, record=attached.content, chunks=attached.chunks, decoded=attached.decoded)


def _check(rows: Rows, _stamp: Stamp, change: dag.Save, attached: Blobs) -> Blobs:
    if attached.erased and is_gone(attached):
        return attached
    record = dag.decode_record(attached.content)
    if dag.identify(record) != change.id:
        raise BadOperation("its checkpoint does not match its id", reason="content")
    named = {digest for recipe in record.channels.values() for digests in (recipe.added, recipe.nodes) for digest in digests}
    if named != attached.chunks.keys():
        for digest in sorted(attached.chunks.keys() - named):
            raise BadOperation(f"chunk {digest.hex()} came with it, and its checkpoint names no such chunk", reason="content")
        for digest in sorted(named - attached.chunks.keys()):
            if not attached.erased and dag.chunk_size(rows, digest) is None:
                raise BadOperation(f"chunk {digest.hex()} of its checkpoint is missing", reason="content")
    if sha256(attached.content).digest() != change.record:
        raise BadOperation("the record of its checkpoint is described differently from the original save", reason="content")
    return Blobs(attached.content, attached.chunks, attached.erased, record)


def _record_of(rows: Rows, stamp: Stamp, change: dag.Save) -> Blobs:
    found, packed = dag.checkpoint(rows, change.id), dag.packed_record(rows, change.id)
    if found is None or packed is None:
        if pruning.ever_pruned(rows):
            return ERASED
        raise StoreCorrupt(f"checkpoint {change.id.hex()} is in the log but not in its thread. Run `shoal verify`.")
    record = found.record
    if found.dot != stamp.dot and (twin := dag.twin(rows, change.id, stamp.dot)) is not None:
        packed, record = twin, dag.decode_record(twin)
    if sha256(packed).digest() != change.record:
        raise StoreCorrupt(f"checkpoint {change.id.hex()} is damaged. Run `shoal verify`.")
    chunks: dict[bytes, bytes] = {}
    erased = False
    for recipe in record.channels.values():
        for digest in recipe.added + recipe.nodes:
            piece = dag.chunk(rows, digest)
            if piece is None and dag.is_pruned(rows, change.id):
                erased = True
                continue
            if piece is None:
                raise StoreCorrupt(f"chunk {digest.hex()} of checkpoint {change.id.hex()} is missing. Run `shoal verify`.")
            chunks[digest] = piece
    return Blobs(packed, chunks, erased)


def _swept_again(rows: WrittenRows, _stamp: Stamp, change: dag.Save) -> bytes | None:
    """A save marks its own checkpoint as pruned if that was swept before it came: it is swept again."""
    return b"" if rows.wrote(dag.PRUNED + change.id) and dag.is_pruned(rows, change.id) else None


def _check_move(_stamp: Stamp, change: dag.Move) -> None:
    check_name("branch", change.branch)
    if any(len(id) != dag.ID_BYTES for id in (change.token, change.to, *change.over)):
        raise BadOperation("its move does not name a checkpoint", reason="content")


def _check_drop(_stamp: Stamp, change: dag.Drop) -> None:
    check_name("branch", change.branch)
    if any(len(token) != dag.ID_BYTES for token in change.over):
        raise BadOperation("its deletion of a branch does not name heads", reason="content")


def _check_prune(stamp: Stamp, change: pruning.Prune) -> None:
    if any(len(id) != dag.ID_BYTES for id in (*change.ids, *change.moves)):
        raise BadOperation("its prune does not name checkpoints", reason="content")
    if not 0 <= change.moves_hlc < stamp.hlc:
        raise BadOperation("its prune forgets moves that are not in its past", reason="content")


def _erases(change: pruning.Prune, erased: Erased) -> None:
    erased.checkpoints.update(change.ids)


def _asks(rows: Rows, _save: dag.Save, beside: Blobs) -> bool | None:
    record = beside.decoded
    if record is None:
        if is_gone(beside):
            return None
        record = dag.decode_record(beside.content)
    return asks.is_touched(rows, record.label) if record.label else None


APPLIERS: Appliers = {
    dag.Save: Applier(
        Kind.THREAD,
        _apply,
        _check,
        _record_of,
        id_of=lambda _name, _stamp, save: save.id.hex(),
        effects=Effects(
            record=lambda beside: dag.decode_record(beside.content),
            sweeps=Sweep(What.CHECKPOINTS, names=None, found=_swept_again),
            erased_by=lambda _rows, _stamp, save, erased: save.id in erased.checkpoints,
            asks=_asks,
        ),
    ),
    dag.Move: bare(Kind.THREAD, dag.apply_move, _check_move, lambda _name, _stamp, move: move.to.hex()),
    dag.Drop: bare(Kind.THREAD, dag.apply_drop, _check_drop, since=lambda _: 7),
    pruning.Prune: bare(
        Kind.THREAD,
        pruning.apply,
        _check_prune,
        effects=Effects(hides=lambda prune: prune.ids, sweeps=Sweep(What.CHECKPOINTS), erases=_erases),
    ),
}


def read_whole(rows: Rows) -> None:
    """Decode all rows, for `shoal verify` without a log."""
    dag.branches(rows)
