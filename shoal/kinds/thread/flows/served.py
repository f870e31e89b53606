"""The states of a thread as HTTP serves them: compared, merged, edited, undone, and told change by change.

Each is a flow of several requests, which handles make one by one (`merging`, `mutations`, `audit`). Values come and go packed.

Law: whoever decides channels of a merge has seen all heads of the branch.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct, field

from shoal import values
from shoal.errors import (
    HeadMoved,
    InvalidInput,
    MergeConflict,
    NotFound,
    Pruned,
    SchemaViolation,
    UndoConflict,
)
from shoal.kinds.thread.flows import audit, merging, mutations
from shoal.kinds.thread.flows.audit import AuditKind
from shoal.kinds.thread.flows.checkpoints import Checkpoint, Provenance, ThreadCheckpoints
from shoal.kinds.thread.flows.merging import ABSENT, UNRESOLVED
from shoal.protocol.base import ChannelNames, Channels, Http, Merged, Named, Positive, Shape, Time, Value
from shoal.protocol.requests import Durability, Saved
from shoal.schemas.secret_fields import hidden
from shoal.values.work import Allowance
from shoal.workflows.connection import Connection, Flow
from shoal.workflows.spaces import check_exists

_READS = (NotFound, Pruned)
_SAVES = (*_READS, HeadMoved, SchemaViolation)
_Count = Annotated[int, Meta(ge=1, le=100)]
_Op = Literal["add", "remove", "replace"]


def _checkpoints(connection: Connection, flow: Any, author: str = "") -> ThreadCheckpoints:
    return ThreadCheckpoints(connection, flow.space, flow.thread, Provenance(connection, author))


def _saved(made: Checkpoint) -> Saved:
    return Saved(made.id, list(made.parents), made.branch, list(made.heads), made.wall_ms)


def _unpacked(packed: bytes) -> Any:
    """
    Raises:
        TooLarge: it has more values than are unpacked at once.
    """
    Allowance().charge_packed(packed)
    return values.decode(packed)


class Undo(Flow[Saved], frozen=True):
    """Save a checkpoint that takes back the last checkpoints, or a given one."""

    http: ClassVar = (
        Http(
            "POST",
            "/threads/{thread}/undo",
            "Undo the changes of the last checkpoints, in a new one",
            errors=(*_SAVES, UndoConflict),
            example={"count": 1, "author": "ada"},
        ),
    )
    unpacks: ClassVar = True

    space: str
    thread: str
    branch: str = "main"
    count: _Count = 1  # Undo so many of the last changes.
    checkpoint: str | None = None  # Undo this checkpoint's changes instead.
    author: str = ""

    async def run(self, connection: Connection, *, key: str | None, durability: Durability) -> Saved:
        """Undo them; with the key of an earlier call, the answer is its checkpoint."""
        found, which = _checkpoints(connection, self, self.author), self.checkpoint
        return _saved(
            await mutations.undo(found, self.count, branch=self.branch, checkpoint=which, key=key, durability=durability)
        )


class Redo(Flow[Saved], frozen=True):
    """Save a checkpoint that takes back the last undos."""

    http: ClassVar = (
        Http(
            "POST",
            "/threads/{thread}/redo",
            "Redo the last undos",
            errors=(*_SAVES, UndoConflict),
            example={"count": 1, "author": "ada"},
        ),
    )
    unpacks: ClassVar = True

    space: str
    thread: str
    branch: str = "main"
    count: _Count = 1
    author: str = ""

    async def run(self, connection: Connection, *, key: str | None, durability: Durability) -> Saved:
        """Redo them; with the key of an earlier call, the answer is its checkpoint."""
        found = _checkpoints(connection, self, self.author)
        return _saved(await mutations.redo(found, self.count, branch=self.branch, key=key, durability=durability))


class Edit(Flow[Saved], frozen=True):
    """Save a checkpoint with the newest state, changed by a person."""

    http: ClassVar = (
        Http(
            "POST",
            "/threads/{thread}/edit",
            "Change the newest state by hand",
            errors=_SAVES,
            example={"patch": {"draft": "one"}, "by": "ada"},
        ),
    )
    unpacks: ClassVar = True

    space: str
    thread: str
    patch: Value  # Channels and their new values, or a JSON Patch (RFC 6902) of the whole state.
    by: str = ""
    branch: str = "main"

    async def run(self, connection: Connection, *, key: str | None, durability: Durability) -> Saved:
        """Change it; with the key of an earlier call, the answer is its checkpoint.

        Raises:
            InvalidInput: `patch` is neither a map of channels nor a JSON Patch; nothing was written.
        """
        patch = _unpacked(self.patch)
        if not isinstance(patch, dict) and not (isinstance(patch, list) and all(isinstance(step, dict) for step in patch)):
            raise InvalidInput("`patch` must be a map of channels or a JSON Patch. Nothing was written.", field="patch")
        found = _checkpoints(connection, self)
        return _saved(await merging.edit(found, patch, by=self.by, branch=self.branch, key=key, durability=durability))


class DifferenceView(Struct, array_like=True, frozen=True):
    """One difference within a channel."""

    op: _Op
    path: str  # A JSON pointer (RFC 6901) within the channel; empty for the channel itself.
    before: Value | None  # Null if it was added.
    after: Value | None  # Null if it was removed.


class DiffView(Struct, array_like=True, frozen=True):
    """The differences between two checkpoints; both ids are as the node resolved them."""

    before: str
    after: str
    channels: dict[str, list[DifferenceView]]  # Only channels that differ.


class ReadDiff(Flow[DiffView], frozen=True):
    """Compare two checkpoints. Only channels whose hashes differ are read."""

    http: ClassVar = (
        Http("GET", "/threads/{thread}/diff", "The differences between two checkpoints, per channel and path", errors=_READS),
    )
    unpacks: ClassVar = True

    space: str
    thread: str
    before: Annotated[str, Named("from")]  # An id, the name of a branch, or a label.
    after: Annotated[str, Named("to")] = "main"  # The same of the other one.
    reveal: bool = False  # Show secret values too.

    async def run(self, connection: Connection, *, key: str | None, durability: Durability) -> DiffView:
        """Read both, and compare them."""
        found = await merging.difference(_checkpoints(connection, self), self.before, self.after, reveal=self.reveal)
        shown = {
            name: [
                DifferenceView(change.op, change.path, *_sides(change.op, change.before, change.after)) for change in changes
            ]
            for name, changes in found.channels.items()
        }
        return DiffView(found.before, found.after, shown)


def _sides(op: _Op, before: Any, after: Any) -> tuple[bytes | None, bytes | None]:
    return None if op == "add" else values.encode(before), None if op == "remove" else values.encode(after)


class MutationView(Struct, array_like=True, frozen=True):
    """One change of one place in the state."""

    id: str
    checkpoint: str
    channel: str
    op: _Op
    path: str  # A JSON pointer (RFC 6901) within the channel; empty for the channel itself.
    author: str
    time: Time
    before: Value | None  # Null if it was added.
    after: Value | None  # Null if it was removed.


class MutationsView(Struct, array_like=True, frozen=True):
    """A page of the mutation log, oldest first."""

    mutations: list[MutationView]
    more: bool  # Ask again with after=mutations[-1].id.


class ReadMutations(Flow[MutationsView], frozen=True):
    """Read the mutation log of a branch, a page at a time; it is computed from the states of its checkpoints."""

    http: ClassVar = (
        Http("GET", "/threads/{thread}/mutations", "The changes of the state with their authors, oldest first", errors=_READS),
    )
    unpacks: ClassVar = True

    space: str
    thread: str
    branch: str = "main"
    after: str | None = None  # The id of a mutation or a checkpoint; the log begins after it.
    limit: Positive = 100
    reveal: bool = False  # Show secret values too.

    async def run(self, connection: Connection, *, key: str | None, durability: Durability) -> MutationsView:
        """Compute a page."""
        found, limit = _checkpoints(connection, self), min(self.limit, connection.config.page_items_max)
        head = await found.newest(self.branch)
        log = mutations.mutations(found, head, after=self.after, limit=limit + 1, reveal=self.reveal)
        shown = [
            MutationView(
                *(one.id, one.checkpoint, one.channel, one.op, one.path, one.author),
                round(one.time.timestamp() * 1000),
                *_sides(one.op, one.before, one.after),
            )
            async for one in log
        ]
        return MutationsView(shown[:limit], len(shown) > limit)


class AuditEntryView(Struct, array_like=True, frozen=True):
    """One checkpoint, event or step of a thread."""

    time: Time
    kind: AuditKind
    text: str
    by: str
    known: str  # The newest checkpoint before it; empty if there was none.
    id: str  # Of the checkpoint or the event; a step's key.
    data: Value  # A checkpoint's metadata, the event, or a step's arguments, result or error.


class AuditView(Struct, array_like=True, frozen=True):
    """A thread's audit."""

    entries: list[AuditEntryView]  # Oldest first; of checkpoints, events and steps at most 10,000 each.


class ReadAudit(Flow[AuditView], frozen=True):
    """Merge a thread's checkpoints, events and steps into one time line."""

    http: ClassVar = (
        Http(
            "GET",
            "/threads/{thread}/audit",
            "Checkpoints, events and steps in one time line, with the newest checkpoint at each",
            errors=(NotFound,),
        ),
    )
    unpacks: ClassVar = True

    space: str
    thread: str

    async def run(self, connection: Connection, *, key: str | None, durability: Durability) -> AuditView:
        """Read all of them.

        Raises:
            NotFound: there is no such thread.
        """
        await check_exists(connection, self.space, self.thread)
        return AuditView(
            [
                AuditEntryView(
                    round(each.time.timestamp() * 1000),
                    *(each.kind, each.text, each.by, each.known, each.id),
                    values.encode(each.data),
                )
                for each in await audit.audit(_checkpoints(connection, self))
            ]
        )


class MergeConflictView(Struct, array_like=True, frozen=True):
    """A channel that the heads changed in conflicting ways."""

    base: Value | None  # The value in the common ancestor.
    added: bool  # Whether the ancestor had no such channel; `base` is null then.
    sides: list[Value]  # The heads' different values. A head that removed the channel is not among them.
    removed: bool  # Whether a head removed it.


class MergeView(Struct, array_like=True, frozen=True):
    """The result that a merge of these heads would have."""

    heads: list[str]  # The checkpoints that are merged, oldest first.
    base: str | None  # Their nearest common ancestor.
    state: dict[str, Value]  # The channels without a conflict, merged.
    conflicts: dict[str, MergeConflictView]  # The channels in conflict: decide them in `resolve` or `remove`.
    secret: list[str]


class PreviewMerge(Flow[MergeView], frozen=True):
    """Show the result and the conflicts of a merge. Nothing is written."""

    http: ClassVar = (
        Http("GET", "/threads/{thread}/merge", "The result that a merge would have, and its conflicts", errors=_READS),
    )
    unpacks: ClassVar = True

    space: str
    thread: str
    branch: str = "main"
    heads: Merged | None = None  # Ids with commas between them, beside the winning head; if left out, all heads.
    reveal: bool = False  # Show secret values too.

    async def run(self, connection: Connection, *, key: str | None, durability: Durability) -> MergeView:
        """Merge them, and write nothing."""
        sides = await merging.sides(_checkpoints(connection, self), self.heads or None, branch=self.branch)
        found: dict[str, MergeConflictView] = {}

        def shown(channel: str, value: Any) -> bytes:
            return values.encode(value if self.reveal else hidden(sides.hides, channel, "", value))

        def left(channel: str, base: Any, made: Any) -> Any:
            found[channel] = MergeConflictView(
                None if base is ABSENT else shown(channel, base),
                base is ABSENT,
                [shown(channel, side) for side in made if side is not ABSENT],
                any(side is ABSENT for side in made),
            )
            return ABSENT

        state = await merging.merged(sides.base, sides.states, left)
        packed = {name: shown(name, value) for name, value in state.items()}
        return MergeView(list(sides.ordered), sides.base_id, packed, found, sides.secret)


class Merge(Flow[Saved], frozen=True):
    """Merge heads of a branch into one checkpoint."""

    http: ClassVar = (
        Http(
            "POST",
            "/threads/{thread}/merge",
            "Merge heads of a branch into one checkpoint",
            errors=(*_SAVES, MergeConflict),
            example={"author": "ada"},
        ),
    )
    unpacks: ClassVar = True

    space: str
    thread: str
    branch: str = "main"
    heads: Merged | None = None  # As the GET answered; if left out, all heads. Required with `resolve` or `remove`.
    resolve: Channels[Value] = field(default_factory=dict)  # The values of channels in conflict.
    remove: ChannelNames = field(default_factory=list)  # Channels in conflict that are removed.
    metadata: Annotated[bytes, Shape.VALUES] = b""
    author: str = ""

    async def run(self, connection: Connection, *, key: str | None, durability: Durability) -> Saved:
        """Merge them; if that was done before, the answer is the checkpoint.

        Raises:
            InvalidInput: a channel is both resolved and removed, or decisions are given without `heads`.
            HeadMoved: the branch has heads that the caller has not seen; nothing was written.
            MergeConflict: channels are in conflict and not decided; nothing was written.
        """
        resolved = {name: _unpacked(value) for name, value in self.resolve.items()}
        if both := sorted(resolved.keys() & set(self.remove)):
            raise InvalidInput(
                f"channels {', '.join(both)} are in both `resolve` and `remove`. Nothing was written.", field="remove"
            )
        resolved |= dict.fromkeys(self.remove, ABSENT)
        found = _checkpoints(connection, self, self.author)
        if resolved:
            await self._check_seen(found)
        joined = await merging.merge(
            found,
            self.heads,
            lambda channel, _base, _sides: resolved.get(channel, UNRESOLVED),
            branch=self.branch,
            metadata=_unpacked(self.metadata) if self.metadata else None,
            key=key,
            durability=durability,
        )
        return _saved(joined)

    async def _check_seen(self, checkpoints: ThreadCheckpoints) -> None:
        """Check that a caller who decides channels has seen all heads of the branch.

        Raises:
            InvalidInput: it names no heads.
            HeadMoved: a head is not among them.
        """
        if self.heads is None:
            raise InvalidInput(
                "`resolve` and `remove` need `heads`, the heads that you have seen. Nothing was written.", field="heads"
            )
        there = (await checkpoints.heads()).get(self.branch, [])
        unseen = [id for id in there if id not in self.heads]
        for id in unseen:
            if set(self.heads) <= set((await checkpoints.read(id, [])).parents):
                return  # It is the merge of these heads: the answer to an earlier call was lost.
        if unseen:
            raise HeadMoved(
                f"branch {self.branch!r} of thread {checkpoints.thread!r} is at {', '.join(unseen)} too, and the given heads "
                "do not say so. Nothing was written. Read the merge again and send your decisions with its heads.",
                heads=there,
            )
