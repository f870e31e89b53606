"""Going on after a crash: what there is, what is open, and on what grounds. And a human's edit of what there is.

Laws:
- What is resumed is what a majority of the owners had acknowledged. Where they cannot be
  asked it is what the node has, and `reason` says so.
- `reason` names what was chosen and what was not: other heads, steps that will not be
  called again, steps of which nobody knows how they ended.
- Hooks are awaited in the order in which they were given, with what was found; one
  that raises ends the resumption.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from shoal import values
from shoal.client.arguments import named
from shoal.client.connection import Connection
from shoal.client.thread.mutations import KEY, MutationLog
from shoal.client.thread.provenance import SAID_AGAIN_EVERY, Author
from shoal.errors import Conflict, DriftRefused, InvalidInput, NotFound
from shoal.names import check_names
from shoal.protocol import requests
from shoal.protocol.requests import Durability
from shoal.workflows.checkpoint import Checkpoint, encode_metadata
from shoal.workflows.events import Event
from shoal.workflows.moments import moment
from shoal.workflows.steps import StepRecord, record_of

STEPS_LISTED_MAX = 1000
EVENTS_LISTED_MAX = 1000
_NAMED_MAX = 10  # In a text.


@dataclass(frozen=True, slots=True)
class Reason:
    """Why `resume` chose this state, and what may be missing."""

    branch: str
    head: str | None  # The checkpoint that was chosen; None: there is none.
    other_heads: tuple[str, ...]  # Of the same branch: others saved beside it.
    skipped: tuple[str, ...]  # Keys of steps that are done: they return what is stored.
    unresolved: tuple[str, ...]  # Keys of steps that have an intent and no end.
    more_steps: bool  # There are more than `STEPS_LISTED_MAX`.
    more_events: bool  # There are more than `EVENTS_LISTED_MAX`.
    quorum: bool  # A majority of the owners said what it holds, and this shows no less.
    staleness: str  # What may be missing, and why; empty if nothing is.
    differences: tuple[str, ...]  # Between what the handle runs with and what the checkpoint's author ran with.

    @property
    def text(self) -> str:
        parts = [f"at {self.head} of branch {self.branch!r}" if self.head else f"branch {self.branch!r} has no checkpoint yet"]
        if self.other_heads:
            parts.append(f"{len(self.other_heads)} other heads are left aside: {_some(self.other_heads)}")
        if self.skipped:
            parts.append(f"{len(self.skipped)} steps are done and will not be called again: {_some(self.skipped)}")
        if self.unresolved:
            parts.append(f"{len(self.unresolved)} steps are unresolved, and may have happened: {_some(self.unresolved)}")
        if self.differences:
            parts.append(f"it was saved with another setting: {_some(self.differences)}")
        parts.append(self.staleness or "nothing that a quorum has acknowledged is missing")
        return "; ".join(parts) + "."


@dataclass(frozen=True, slots=True)
class Resumption:
    """The state from which an agent continues."""

    checkpoint: Checkpoint | None  # None: there is none yet.
    open: tuple[StepRecord, ...]
    events: tuple[Event, ...]  # Of the journal, since about the time of the checkpoint; none that came after it is missing.
    reason: Reason

    @property
    def state(self) -> dict[str, Any]:
        """Empty if there is no checkpoint yet."""
        return {} if self.checkpoint is None else self.checkpoint.state

    @property
    def at(self) -> Any:
        """The program counter: what the checkpoint's metadata holds under `at`."""
        return None if self.checkpoint is None else self.checkpoint.metadata.get("at")

    @property
    def stack(self) -> list[Any]:
        """The execution stack: what the checkpoint's metadata holds under `stack`."""
        return [] if self.checkpoint is None else list(self.checkpoint.metadata.get("stack", ()))


Hook = Callable[[Resumption], Awaitable[None]]


@named
class ThreadResume:
    """What a `Thread` offers to who goes on with it."""

    space: str
    name: str
    _connection: Connection
    _author: Author
    _hooks: list[Hook]

    def history(self, *, branch: str = "main", limit: int | None = None) -> AsyncIterator[Checkpoint]:
        """See `Thread.history`."""
        raise NotImplementedError

    async def load(self, checkpoint: str | None = None, *, branch: str | None = None) -> Checkpoint:
        """See `Thread.load`."""
        raise NotImplementedError

    if TYPE_CHECKING:

        async def _claimed(self, request: requests.Save, *, carry: bool = False) -> requests.Save: ...

    def on_rehydrate(self, hook: Hook) -> Hook:
        """Await `hook(resumption)` in every `resume` of this handle, to reopen connections and
        tools. A decorator, too.
        """
        self._hooks.append(hook)
        return hook

    async def resume(self, *, branch: str = "main", on_drift: Literal["warn", "refuse"] = "warn") -> Resumption:
        """Return the newest state, the open steps and the journal since, with the reason, and move the handle there.

        A node that has peers first takes in what a majority of them holds; where that
        cannot be had, `reason.quorum` is false and `reason.staleness` says why. Where this
        handle has a configuration or dependencies, `reason.differences` says what differs
        from those that were last recorded.

        Raises:
            DriftRefused: something does, and `on_drift` is "refuse". No hook was called.
            SessionBehind, BookmarkLost: the node lacks what this store has written or seen.
        """
        caught = await self._connection.read(requests.CatchUp(self.space, self.name))
        staleness = "" if caught.quorum else await self._staleness(caught)
        try:
            checkpoint: Checkpoint | None = await self.load(branch=branch)
        except NotFound:
            checkpoint = None
        differences = () if checkpoint is None else await self._drift(branch)
        if differences and on_drift == "refuse":
            raise drift_refused(self.name, differences)
        steps, more_steps = await self._listed(only_open=False)
        still, more_open = await self._listed(only_open=True)
        events, more_events = await self._since(0 if checkpoint is None else checkpoint.wall_ms)
        reason = Reason(
            branch=branch,
            head=None if checkpoint is None else checkpoint.id,
            other_heads=() if checkpoint is None else tuple(head for head in checkpoint.heads if head != checkpoint.id),
            skipped=tuple(record.key for record in steps if record.state == "done"),
            unresolved=tuple(record.key for record in still),
            more_steps=more_steps or more_open,
            more_events=more_events,
            quorum=caught.quorum,
            staleness=staleness,
            differences=differences,
        )
        found = Resumption(checkpoint, still, events, reason)
        for hook in self._hooks:
            await hook(found)
        return found

    async def _drift(self, branch: str) -> tuple[str, ...]:
        if not self._author.setting:
            return ()
        async for checkpoint in self.history(branch=branch, limit=SAID_AGAIN_EVERY):
            if checkpoint.setting:
                return tuple(differences_of(checkpoint.setting, values.decode(self._author.setting)))
        return ()

    async def _staleness(self, caught: requests.CaughtUp) -> str:
        view = await self._connection.read(requests.Cluster())
        away = [_away(member) for member in view.members if member.state == "unreachable"]
        without = f", without {', '.join(away)}" if away else ""
        why = caught.reason.rstrip(".")
        return f"this is what the node itself has{without}: what others acknowledged may be missing ({why})"

    async def _listed(self, *, only_open: bool) -> tuple[tuple[StepRecord, ...], bool]:
        request = requests.ListSteps(self.space, self.name, only_open, limit=STEPS_LISTED_MAX)
        page = await self._connection.read(request)
        return tuple(map(record_of, page.items)), page.more

    async def _since(self, wall_ms: int) -> tuple[tuple[Event, ...], bool]:
        request = requests.ReadJournal(self.space, self.name, limit=EVENTS_LISTED_MAX, since_ms=wall_ms)
        page = await self._connection.read(request)
        events = (Event(e.id, e.key, moment(e.wall_ms), e.late, e.cursor, e.event) for e in page.events)
        return tuple(events), page.more

    async def edit(
        self,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        by: str = "",
        branch: str = "main",
        key: str | None = None,
        durability: Durability | None = None,
    ) -> Checkpoint:
        """Change the newest state by hand, and save it as a checkpoint with the author `by`.

        `patch` maps channels to their new values, or is a JSON Patch (RFC 6902) of the whole state.

        Raises:
            NotFound: the branch has no checkpoint.
            InvalidInput: the patch is none, or what it names is not there.
            Conflict: a `test` of the patch failed.
            HeadMoved: somebody saved meanwhile. Edit again what there is.
        """
        before = await self.load(branch=branch)
        if key is not None and (done := await MutationLog(self._connection, self.space, self.name).keyed(before.id, key)):
            return await self.load(done.id, branch=branch)
        state = before.state
        after = {**state, **patch} if isinstance(patch, Mapping) else _patched(before.state, patch)
        check_names("channel", after)
        changed = {
            name: values.encode(value, where=f"state[{name!r}]")
            for name, value in after.items()
            if name not in state or values.encode(value) != values.encode(state[name])
        }
        request = requests.Save(
            self.space,
            self.name,
            changed,
            encode_metadata(None if key is None else {KEY: key}),
            branch,
            before.id,
            delta=True,
            removed=[name for name in state if name not in after],
            author=by,
            schema=before.schema,
            schema_version=before.schema_version,
            readable_from=before.readable_from,
            secret=list(before.secret),
        )
        await self._connection.write(await self._claimed(request), key=key, durability=durability)
        return await self.load(branch=branch)


def drift_refused(thread: str, differences: tuple[str, ...]) -> DriftRefused:
    return DriftRefused(
        f"thread {thread!r} was saved with another setting: {_some(differences)}. Nothing was written. "
        'Run with what was recorded, or resume with on_drift="warn".',
        differences=list(differences),
    )


def differences_of(recorded: Mapping[str, Any], running: Mapping[str, Any]) -> Iterator[str]:
    """What one of them leaves out is not compared: who says nothing of its dependencies does not care."""
    if "configuration" in recorded and "configuration" in running and recorded["configuration"] != running["configuration"]:
        yield f"configuration {running['configuration'][:12]} instead of {recorded['configuration'][:12]}"
    if "dependencies" in recorded and "dependencies" in running:
        before, now = recorded["dependencies"], running["dependencies"]
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                yield f"{name} {now.get(name, 'absent')} instead of {before.get(name, 'absent')}"


def _away(member: requests.Member) -> str:
    since = f"linked last at {moment(member.linked_ms).isoformat()}" if member.linked_ms else "never linked"
    return f"{member.name} ({since})"


def _patched(state: dict[str, Any], patch: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    # Here, because hardly anybody edits a state by a patch as it is resumed, and it is a tenth of the import's time.
    import jsonpatch
    import jsonpointer

    try:
        after = jsonpatch.apply_patch(state, [dict(operation) for operation in patch], in_place=True)
    except jsonpatch.JsonPatchTestFailed as failed:
        raise Conflict(f"a test of the patch failed: {failed}. Nothing was written. Look at what there is now.") from None
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError, ValueError, KeyError) as wrong:
        raise InvalidInput(f"the JSON Patch cannot be applied: {wrong}. Nothing was written.") from None
    if not isinstance(after, dict):
        raise InvalidInput("the JSON Patch leaves no map of channels. Nothing was written.")
    return after


def _some(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:_NAMED_MAX])
    return shown if len(names) <= _NAMED_MAX else f"{shown} and {len(names) - _NAMED_MAX} more"
