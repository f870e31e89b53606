"""How a save becomes a checkpoint, and the branches that it goes on: their heads, and the requests that move them.

Branches: their heads, and the requests that move them.

Laws:
- A move names a checkpoint of its thread and replaces every head that its replica
  knows; a concurrent save on another node stays beside it, as a head.
- A rollback and its event in the journal are one operation.
- Making a new branch at a checkpoint changes nothing if the branch is already there.
- A deletion takes away the heads that its replica knows, and tells the journal which; no checkpoint goes with it.

Whether a thread shows a checkpoint, and the error if it does not.

Laws:
- A save's parent is the checkpoint that its caller last loaded or saved, or none; a
  request that names no parent builds on the branch's winner. If this replica knows
  that the branch has moved on, the save is rejected with the heads, unless it asks
  for a fork.
- Fields that are secret stay so (`shoal.schemas.secret_fields`).
- `expect_head` passes if it is the branch's only head on this replica.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from hashlib import sha256

from shoal import values
from shoal.config import Config
from shoal.crdt.applier import Blobs
from shoal.crdt.rows import Rows
from shoal.errors import BranchTaken, HeadMoved, InvalidInput, NotFound, Pruned, TooLarge
from shoal.kinds.file import state as files
from shoal.kinds.file.serving import files as references
from shoal.kinds.journal.serving.journals import tell
from shoal.kinds.label import state as labels
from shoal.kinds.schema.handler import Rules, SchemaUse, State, stored_state
from shoal.kinds.thread.serving import shapes
from shoal.kinds.thread.serving.ownership import check_owner
from shoal.kinds.thread.serving.shapes import ShapeCache, Shapes, Spot
from shoal.kinds.thread.state import channel, dag, pruning
from shoal.names import NAME_BYTES_MAX, check_key, check_name, check_names
from shoal.node.handler import Checks, Readers, View, WriteContext, Writers
from shoal.node.naming import check_annotations, check_schema, check_size, check_text, checkpoint_named, hexed
from shoal.protocol import requests
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import NO_HEAD, BranchDeleted, CommonAncestor, DeleteBranch, Heads, Move, Moved, Save, Saved
from shoal.schemas import secret_fields
from shoal.schemas.secret_fields import Stated

BRANCHES_MAX = 4096  # Branches of one thread.


def head_ids(rows: Rows) -> set[bytes]:
    """The ids of the heads of all branches of a thread."""
    return {head.id for heads in dag.branches(rows).values() for head in heads}


def check_room(rows: Rows, thread: str, *, branches_max: int) -> None:
    """Check that a thread may have one more branch. Nodes that make branches at the same time may pass the bound together.

    Raises:
        TooLarge: it has `BRANCHES_MAX`.
    """
    if sum(1 for _ in rows.scan(dag.BRANCH, limit=branches_max)) >= branches_max:
        raise TooLarge(
            f"thread {thread!r} has {branches_max} branches, which is the maximum. Nothing was written. Use one of them, or "
            "another thread."
        )


def check_shown(rows: Rows, thread: str, id: bytes) -> None:
    """Check that a checkpoint was not pruned. It may still be absent.

    Raises:
        Pruned: the checkpoint was pruned.
    """
    if dag.is_pruned(rows, id):
        raise Pruned(f"checkpoint {id.hex()} of thread {thread!r} was pruned. Nothing was written. List others with history().")


def absent(rows: Rows, thread: str, id: bytes, *, wanted: str = "") -> NotFound:
    """The error for a checkpoint that does not exist; `wanted` says what for."""
    if pruning.ever_pruned(rows):
        return Pruned(
            f"thread {thread!r} has no checkpoint {id.hex()}{wanted}: it was pruned or never existed. Nothing was written. "
            "List others with history()."
        )
    return NotFound(f"thread {thread!r} has no checkpoint {id.hex()}{wanted}. Nothing was written. List them with history().")


MAIN = "main"


class Branches:
    """The handler of branches."""

    def __init__(self) -> None:
        self.checks: Checks = {Move: self._check, DeleteBranch: self._check_deletion}
        self.writers: Writers = {Move: self._move, DeleteBranch: self._delete}
        self.readers: Readers = {Heads: self._heads, CommonAncestor: self._common_ancestor}

    def _check(self, request: Move) -> None:
        check_name("thread", request.thread)
        check_name("branch", request.branch)
        check_text(request.reason, "a reason")
        check_text(request.by, "an author")
        check_name("label", request.to)  # Which an id is, too.

    def _check_deletion(self, request: DeleteBranch) -> None:
        check_name("thread", request.thread)
        if check_name("branch", request.branch) == MAIN:
            raise InvalidInput(
                f"branch {MAIN!r} of thread {request.thread!r} cannot be deleted: loads and saves use it by default. "
                "Nothing was written. Delete the thread, or move the branch with rollback()."
            )

    def _move(self, context: WriteContext, request: Move) -> Moved:
        """Put a branch at a checkpoint: a new branch, or a rollback. One that is imported may get several heads: `new` puts the
        first of them, in the place of those that are there.

        Raises:
            NotFound: the thread has no such checkpoint, or no such branch.
            BranchTaken: the branch should be new, but exists at another checkpoint.
            TooLarge: the thread has too many branches.
        """
        rows, to = context.rows, checkpoint_named(context.rows, request.thread, request.to)
        heads = dag.heads(rows, request.branch)
        check_shown(rows, request.thread, to)
        if dag.packed_record(rows, to) is None:
            raise absent(rows, request.thread, to)
        before, target = hexed(heads), to.hex()
        if request.new and heads and before != [target] and context.imported is None:
            raise BranchTaken(
                f"thread {request.thread!r} has a branch {request.branch!r} already, at {', '.join(before)}. "
                "Nothing was written. Use another name, or rollback() to move this one.",
                heads=before,
            )
        if not request.new and not heads and context.imported is None:
            raise NotFound(
                f"thread {request.thread!r} has no branch {request.branch!r}. Nothing was written. "
                f"Make it with branch({request.branch!r}, at=…)."
            )
        if not heads:
            check_room(rows, request.thread, branches_max=BRANCHES_MAX)
        if context.imported is not None:
            if target not in before or (request.new and len(before) > 1):
                self._put(context, request, to, heads if request.new else [])
            return Moved(request.branch, target, before, hexed(dag.heads(rows, request.branch)))
        if before == [target]:
            return Moved(request.branch, target, before, before)
        self._put(context, request, to, heads)
        if not request.new:
            fields = {"branch": request.branch, "from": before, "to": target, "by": request.by, "reason": request.reason}
            tell(context, "rollback", fields)
        return Moved(request.branch, target, before, hexed(dag.heads(rows, request.branch)))

    def _put(self, context: WriteContext, request: Move, to: bytes, heads: list[dag.Head]) -> None:
        key = context.implied_key
        nonce = context.stamp.pack_position() if key is None else key.encode()
        token = dag.token_of(request.branch, to, nonce)
        change = dag.Move(token, request.branch, to, [head.token for head in heads])
        context.apply(change)

    def _delete(self, context: WriteContext, request: DeleteBranch) -> BranchDeleted:
        """Delete a branch, as far as it is known here."""
        heads = dag.heads(context.rows, request.branch)
        if not heads:
            return BranchDeleted(request.branch, [])
        context.apply(dag.Drop(request.branch, [head.token for head in heads]))
        tell(context, "delete-branch", {"branch": request.branch, "from": hexed(heads)})
        return BranchDeleted(request.branch, hexed(heads))

    def _heads(self, view: View, request: Heads) -> requests.Branches:
        if request.names:
            named = {name: dag.heads(view.rows, name) for name in sorted(set(request.names)) if name > request.after}
            return requests.Branches({name: hexed(heads) for name, heads in named.items() if heads})
        found = dag.branches(view.rows, after=request.after, limit=request.limit + 1 if request.limit else None)
        shown = list(found.items())[: request.limit or None]
        return requests.Branches({name: hexed(heads) for name, heads in shown}, more=len(found) > len(shown))

    def _common_ancestor(self, view: View, request: CommonAncestor) -> requests.Ancestor:
        """The nearest common ancestor of some checkpoints.

        Raises:
            NotFound: an id is not a checkpoint of this thread.
            TooLarge: their common ancestor is too far back.
        """
        ids = pruning.in_order(view.rows, [checkpoint_named(view.rows, request.thread, id) for id in request.checkpoints])
        found = pruning.common_ancestor(view.rows, ids)
        return requests.Ancestor(None if found is None else found.hex(), [id.hex() for id in ids])


class Saves:
    """The handler of `Save`."""

    def __init__(self, config: Config, cache: ShapeCache, rules: Rules) -> None:
        self._config = config
        self._cache = cache
        self._rules = rules
        self.checks: Checks = {Save: self._check}
        self.writers: Writers = {Save: self._save}
        self.readers: Readers = {}

    def _check(self, request: Save) -> None:
        check_name("thread", request.thread)
        check_name("branch", request.branch)
        if request.label:
            check_key("label", request.label, NAME_BYTES_MAX)  # Frameworks label each checkpoint with an id of its own.
        elif request.headless:
            raise InvalidInput("a checkpoint that becomes no head needs a label. Nothing was written. Give it one.")
        check_names("channel", request.channels)
        values.check(request.metadata)
        size = sum(map(len, request.channels.values())) + len(request.metadata)
        check_size(self._config, size + sum(map(len, request.appended.values())), "a checkpoint")
        check_annotations(request)
        check_schema(request)
        if request.appended or request.removed:  # Else there is nothing that a channel could be named by twice.
            _check_delta(request)

    def _save(self, context: WriteContext, request: Save) -> Saved:
        """Save a checkpoint; the reply has its id and the branch's heads.

        Raises:
            HeadMoved: `expect_head` is not the branch's only head, or the parent is not a head.
            NotFound: a parent is not a checkpoint of this thread.
            InvalidInput: it appends to a channel that is not a list, removes a channel that does not exist, or holds what
                stands for a hidden value.
            TooLarge: the state would have too many channels or bytes, or the thread too many branches.
            OwnerSuperseded: another writer has claimed the thread.
            SchemaViolation: the new state breaks a schema of the space.
        """
        rows, stamp = context.rows, context.stamp
        if request.owner:
            check_owner(rows, request)
        had_label = labels.entries(rows, request.label) if request.label else []
        before_heads = dag.heads(rows, request.branch)
        # Of what is imported the branches are put where they were once all checkpoints are there.
        headless = (request.headless or context.imported is not None) and context.is_known_to_peers(
            dag.Drop(request.branch, [])
        )
        if not before_heads and not headless:
            check_room(rows, request.thread, branches_max=BRANCHES_MAX)
        parent = self._parent(context, request, before_heads)
        merged = self._merged(context, request, parent) if request.merged else []
        secret = self._secret(rows, request, merged if parent is None else [parent, *merged])
        before = None if parent is None else Spot(request.space, request.thread, parent)
        cached = None if before is None else self._cache.get(before)
        base = parent if parent is None or cached is not None or dag.packed_record(rows, parent) is not None else None
        drafted = shapes.draft(rows, request, base, cached)
        self._check_whole(drafted.shapes)
        record = dag.Record(
            parents=[*([] if parent is None else [parent]), *merged],
            branch=request.branch,
            schema=request.schema,
            schema_version=request.schema_version,
            metadata=request.metadata,
            nonce=_nonce(context),
            channels=drafted.recipes,
            author=request.author,
            label=request.label,
            setting=request.setting,
            seen=_elsewhere(request.seen, context.target.partition) if request.seen else b"",
            readable_from=request.readable_from,
            secret=secret,
        )
        if files.has_files(rows):
            record = dag.with_files(record, _files(rows, request, parent, drafted.recipes))
        id = dag.identify(record)
        if context.imported is not None and context.imported.id not in ("", id.hex()):
            raise _altered(context.imported.id, request)
        if context.imported is not None and _lacks(rows, record.parents):
            context.apply(pruning.Prune([]))  # It was pruned where it was exported, because parents come first.
        if context.imported is not None and dag.packed_record(rows, id) is not None and not dag.is_pruned(rows, id):
            return _there_already(context, request, id, record)
        packed_record = dag.encode_record(record)
        parents = record.parents
        over = [head.token for head in before_heads if head.id in parents]
        change = dag.Save(id, sha256(packed_record).digest(), over)
        heads = context.apply(change, Blobs(packed_record, drafted.chunks, decoded=record))
        if headless:
            heads = context.apply(dag.Drop(request.branch, [id]))
        if self._rules.any(request.space):
            self._enforce(rows, request, dag.Checkpoint(id, stamp.dot, stamp.hlc, stamp.wall_ms, record))
        saved = Spot(request.space, request.thread, id)
        context.transaction.when_written(
            lambda: self._cache.put(saved, drafted.shapes, has_secrets=bool(secret), replacing=before)
        )
        reply = Saved(
            id=id.hex(),
            parents=[parent.hex() for parent in parents],
            branch=request.branch,
            heads=hexed(heads),
            wall_ms=stamp.wall_ms,
            partition=context.target.partition,
            secret=secret,
        )
        if had_label:
            _release(context, request.label, had_label, id)
        return reply

    def _enforce(self, rows: Rows, request: Save, made: dag.Checkpoint) -> None:
        def state() -> State:
            stored = stored_state(rows, made)
            return State(stored.hashes, lambda name: request.channels.get(name) or stored.packed(name))

        self._rules.enforce(SchemaUse(request.space, request.thread, request.schema, request.schema_version), state)

    def _check_whole(self, state: Shapes) -> None:
        if len(state) > self._config.channels_max:
            raise TooLarge(
                f"a checkpoint holds at most {self._config.channels_max} channels; this one has {len(state)}. "
                "Nothing was written."
            )
        # An append is small, but the whole state must still fit an answer.
        check_size(self._config, sum([shape.size for shape in state.values()]), "a state")

    def _parent(self, context: WriteContext, request: Save, heads: list[dag.Head]) -> bytes | None:
        rows = context.rows
        if request.expect_head is not None:
            expected = [] if request.expect_head == NO_HEAD else [checkpoint_named(rows, request.thread, request.expect_head)]
            if list(dict.fromkeys(head.id for head in heads)) != expected:
                raise _moved(request, heads, f"its head to be {request.expect_head}" if expected else "it not to exist")
            return expected[0] if expected else None
        if request.parent is None:
            return heads[0].id if heads else None
        parent = None if request.parent == NO_HEAD else checkpoint_named(rows, request.thread, request.parent)
        if parent is not None and context.imported is None:
            self._check_there(rows, request, parent)
        if heads and heads[0].id != parent and not request.fork and not any(head.id == parent for head in heads):
            raise _unseen(request, heads) if parent is None else _moved(request, heads, f"to build on {request.parent}")
        return parent

    def _merged(self, context: WriteContext, request: Save, parent: bytes | None) -> list[bytes]:
        rows = context.rows
        named = [checkpoint_named(rows, request.thread, each) for each in request.merged]
        merged = [id for id in dict.fromkeys(named) if id != parent]
        if merged and parent is None:
            raise InvalidInput(
                "a checkpoint that merges others needs a parent. Nothing was written. Name one of them as the parent."
            )
        for id in () if context.imported is not None else merged:
            self._check_there(rows, request, id)
        return merged

    def _secret(self, rows: Rows, request: Save, parents: list[bytes]) -> list[str]:
        """The secret fields of the new checkpoint; see `shoal.schemas.secret_fields`."""
        built_on = []
        for id in parents:
            if not self._cache.is_open(Spot(request.space, request.thread, id)):
                found = dag.checkpoint(rows, id)
                if found is not None and found.record.secret:
                    built_on.append(Stated(found.record.schema, found.record.schema_version, found.record.secret))
        own = Stated(request.schema, request.schema_version, request.secret)
        secret = secret_fields.kept(own, built_on, is_whole=not request.delta)
        if secret:
            secret_fields.check_shown(secret, request.channels, request.appended)
        return secret

    def _check_there(self, rows: Rows, request: Save, id: bytes) -> None:
        if self._cache.get(Spot(request.space, request.thread, id)) is not None:
            return  # Pruned checkpoints are dropped from the cache.
        check_shown(rows, request.thread, id)
        if dag.packed_record(rows, id) is None:
            raise absent(rows, request.thread, id, wanted=" to save on")


def _lacks(rows: Rows, parents: list[bytes]) -> bool:
    """Whether one of these is missing, and nothing tells yet that it may be."""
    return not pruning.ever_pruned(rows) and any(dag.packed_record(rows, id) is None for id in parents)


def _nonce(context: WriteContext) -> bytes:
    """The part of a checkpoint's id that a retry elsewhere has, too."""
    if context.imported is not None and context.imported.nonce:
        return context.imported.nonce
    return context.key.encode() if context.key is not None else context.stamp.pack_position()


def _altered(id: str, request: Save) -> InvalidInput:
    return InvalidInput(
        f"checkpoint {id[:80]} of thread {request.thread!r} does not match its id: what was exported was altered since, or is "
        "incomplete. Nothing was written. Export it again."
    )


def _there_already(context: WriteContext, request: Save, id: bytes, record: dag.Record) -> Saved:
    """The reply to an import of a checkpoint that is there."""
    found, heads = dag.checkpoint(context.rows, id), dag.heads(context.rows, request.branch)
    wall_ms = context.stamp.wall_ms if found is None else found.wall_ms
    parents = [parent.hex() for parent in record.parents]
    return Saved(id.hex(), parents, request.branch, hexed(heads), wall_ms, context.target.partition, record.secret)


def _elsewhere(seen: bytes, partition: int) -> bytes:
    """The parts of a bookmark about other partitions; for the thread's own, the checkpoint's position says the same."""
    elsewhere = Bookmark()
    for number, vector in Bookmark.unpack(seen):
        if number != partition:
            elsewhere.note(number, vector)
    return elsewhere.pack() if len(elsewhere) else b""


def _files(rows: Rows, request: Save, parent: bytes | None, names: Iterable[str]) -> dict[str, bytes]:
    """The references to files of each channel: what a save takes over of its parent, it refers to as that does."""
    found = dag.packed_record(rows, parent) if parent is not None and request.delta else None
    before = {} if found is None else dag.decode_record(found).files
    return references.channels_with_files(before, request, names)


def _moved(request: Save, heads: list[dag.Head], wanted: str) -> HeadMoved:
    found = f"its heads are {', '.join(hexed(heads))}" if heads else "it does not exist"
    return HeadMoved(
        f"branch {request.branch!r} of thread {request.thread!r}: the save expected {wanted}; {found}. "
        "Nothing was written. Load the branch again and save on its head, or ask for a fork.",
        heads=hexed(heads),
    )


def _unseen(request: Save, heads: list[dag.Head]) -> HeadMoved:
    return HeadMoved(
        f"branch {request.branch!r} of thread {request.thread!r} exists (its heads are {', '.join(hexed(heads))}), but this "
        "save builds on no checkpoint. Nothing was written. Load the branch first and save on its head, or pass "
        "overwrite=True.",
        heads=hexed(heads),
    )


def _check_delta(request: Save) -> None:
    if not request.delta:
        raise InvalidInput(
            "a save of a whole state cannot append or remove. Nothing was written. Send a change (delta) instead."
        )
    check_names("channel", request.appended)
    check_names("channel", request.removed)
    for name, packed in request.appended.items():
        values.check(packed)
        if not channel.is_array(packed):
            raise InvalidInput(f"the elements to append to channel {name!r} must be a list. Nothing was written.")
    named = [*request.channels, *request.appended, *request.removed]
    if len(set(named)) < len(named):
        name, times = Counter(named).most_common(1)[0]
        raise InvalidInput(
            f"channel {name!r} is named {times} times: a change either sets, appends to or removes a channel. "
            "Nothing was written."
        )


def _release(context: WriteContext, label: str, had: list[labels.LabelEntry], id: bytes) -> None:
    """Move the label to the new checkpoint: those that had it lose it, so that they do not accumulate."""
    ids = [entry.id for entry in had if entry.id != id]
    if ids:
        context.apply(labels.Release(label, ids))
