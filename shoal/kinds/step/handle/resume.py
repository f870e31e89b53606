"""Resume a thread after a crash, and read or set its status.

Resuming after a crash with the newest state, the open steps, and the reason for this choice; and edits by a person.

Laws:
- `resume` returns at least the state that a majority of the owners had acknowledged. If they cannot be
  asked, it returns the node's state, and `reason` says so.
- `reason` names the chosen head and what was not chosen: other heads, steps that will not be
  called again, steps whose outcome is unknown.
- Hooks are awaited in the order in which they were added. If one raises, `resume` raises its error.

A thread's status: running, paused, waiting for approval, done or failed.

Law: a status is a word, not a lock. Saves of a paused thread succeed; only its steps wait, and
callers of `ready()`. The journal records every change of the status, with its author and reason.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from shoal.client.arguments import named
from shoal.client.connection import StoreConnection, lasting, reread
from shoal.errors import InvalidInput, NotFound
from shoal.kinds.journal.flows import Event, shown_event
from shoal.kinds.step.flows import StepRecord, catch_up, drift, record_of
from shoal.kinds.thread.flows.checkpoints import Checkpoint, some
from shoal.kinds.thread.flows.merging import edit
from shoal.kinds.thread.handle.checkout import Checkout
from shoal.protocol import requests
from shoal.protocol.conformance import check_word
from shoal.protocol.requests import Durability, ThreadStatus
from shoal.workflows.connection import moment

STEPS_LISTED_MAX = 1000
EVENTS_LISTED_MAX = 1000


@dataclass(frozen=True, slots=True)
class Reason:
    """Why `resume` chose this state, and what may be missing."""

    branch: str
    head: str | None  # The chosen checkpoint; None if there is none.
    other_heads: tuple[str, ...]  # Other heads of the branch, from concurrent saves.
    skipped: tuple[str, ...]  # The keys of steps that are done: they return the stored result.
    unresolved: tuple[str, ...]  # The keys of steps that were begun and have not ended.
    more_steps: bool  # Whether there are more than `STEPS_LISTED_MAX`.
    more_events: bool  # Whether there are more than `EVENTS_LISTED_MAX`.
    quorum: bool  # Whether a majority of the owners was asked, so that nothing that they acknowledged is missing.
    staleness: str  # If `quorum` is false: what may be missing, and why.
    differences: tuple[str, ...]  # Differences between the handle's setting and the one of the checkpoint's author.

    @property
    def text(self) -> str:
        """The reason as a sentence."""
        parts = [f"at {self.head} of branch {self.branch!r}" if self.head else f"branch {self.branch!r} has no checkpoint yet"]
        if self.other_heads:
            parts.append(f"{len(self.other_heads)} other heads are left aside: {some(self.other_heads)}")
        if self.skipped:
            parts.append(f"{len(self.skipped)} steps are done and will not be called again: {some(self.skipped)}")
        if self.unresolved:
            parts.append(f"{len(self.unresolved)} steps are unresolved, and may have happened: {some(self.unresolved)}")
        if self.differences:
            parts.append(f"it was saved with another setting: {some(self.differences)}")
        parts.append(self.staleness or "nothing that a quorum has acknowledged is missing")
        return "; ".join(parts) + "."


@dataclass(frozen=True, slots=True)
class Resumption:
    """The state from which an agent continues."""

    checkpoint: Checkpoint | None  # None if there is none yet.
    open: tuple[StepRecord, ...]
    events: tuple[Event, ...]  # The events since about the time of the checkpoint; none after it is missing.
    reason: Reason

    @property
    def state(self) -> dict[str, Any]:
        """The checkpoint's state; empty if there is no checkpoint yet."""
        return {} if self.checkpoint is None else self.checkpoint.state

    @property
    def at(self) -> Any:
        """The program counter: `at` in the checkpoint's metadata; None if it has none."""
        return None if self.checkpoint is None else self.checkpoint.metadata.get("at")

    @property
    def stack(self) -> list[Any]:
        """The execution stack: `stack` in the checkpoint's metadata; empty if it has none."""
        return [] if self.checkpoint is None else list(self.checkpoint.metadata.get("stack", ()))


Hook = Callable[[Resumption], Awaitable[None]]


@named
class ThreadResume:
    """The part of a thread's handle for continuing after a crash."""

    def __init__(self, checkout: Checkout) -> None:
        self._checkout = checkout
        self._hooks: list[Hook] = []

    def on_rehydrate(self, hook: Hook) -> Hook:
        """Await `hook(resumption)` in every `resume` of this handle, to reopen connections and
        tools. It can be used as a decorator.
        """
        self._hooks.append(hook)
        return hook

    async def resume(
        self, *, branch: str = "main", on_drift: Literal["warn", "refuse"] = "warn", loaded: Checkpoint | None = None
    ) -> Resumption:
        """Return the newest state, the open steps and the journal since, with the reason, and move the handle there.

        A node with peers first fetches what a majority of them holds; if it cannot,
        `reason.quorum` is false and `reason.staleness` says why. If this handle has a
        configuration or dependencies, `reason.differences` lists how they differ
        from those last recorded. `loaded`: a checkpoint that was loaded before; if it is still the newest one, its state is not
        loaded again.

        Raises:
            InvalidInput: `on_drift` is another word.
            DriftRefused: there are differences, and `on_drift` is "refuse". No hook was called.
            SessionBehind, BookmarkLost: the node lacks operations that this store has written or seen.
        """
        check_word(on_drift, ("warn", "refuse"), "on_drift")
        staleness = await catch_up(self._checkout.connection, self._checkout.space, self._checkout.thread)
        try:
            checkpoint: Checkpoint | None = await self._newest(branch, loaded)
        except NotFound:
            checkpoint = None
        setting, refuse = self._checkout.provenance.setting, on_drift == "refuse"
        differences = () if checkpoint is None else await drift(self._checkout, branch, setting, refuse=refuse)
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
            quorum=not staleness,
            staleness=staleness,
            differences=differences,
        )
        found = Resumption(checkpoint, still, events, reason)
        for hook in self._hooks:
            await hook(found)
        return found

    async def _newest(self, branch: str, loaded: Checkpoint | None) -> Checkpoint:
        if loaded is not None and self._checkout.declared is None:
            head = await self._checkout.load(branch=branch, channels=())
            if head.id == loaded.id and loaded._channels is not None and loaded._channels.keys() == head.hashes.keys():
                return replace(loaded, branch=head.branch, heads=head.heads)
        return await self._checkout.load(branch=branch)

    async def _listed(self, *, only_open: bool) -> tuple[tuple[StepRecord, ...], bool]:
        request = requests.ListSteps(self._checkout.space, self._checkout.thread, only_open, limit=STEPS_LISTED_MAX)
        page = await self._checkout.connection.read(request)
        return tuple(map(record_of, page.items)), page.more

    async def _since(self, wall_ms: int) -> tuple[tuple[Event, ...], bool]:
        request = requests.ReadJournal(self._checkout.space, self._checkout.thread, limit=EVENTS_LISTED_MAX, since_ms=wall_ms)
        page = await self._checkout.connection.read(request)
        return tuple(map(shown_event, page.events)), page.more

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
            InvalidInput: it is not a patch, or it names a place that does not exist.
            Conflict: a `test` of the patch failed.
            HeadMoved: another client saved meanwhile. Edit the current state again.
        """
        return await edit(self._checkout, patch, by=by, branch=branch, key=key, durability=durability)


HELD: tuple[ThreadStatus, ...] = ("paused", "waiting")


class Standing(Struct, frozen=True):
    """A thread's status, with its author, reason and time."""

    status: ThreadStatus
    reason: str
    by: str
    time: datetime | None  # None if it was never set; the thread is then running.


@named
class ThreadControl:
    """The part of a thread's handle for its status."""

    def __init__(self, connection: StoreConnection, space: str, thread: str) -> None:
        self._connection = connection
        self._space, self._thread = space, thread

    async def status(self, *, stale: bool = False) -> Standing:
        """The status of the thread: "running" if it was never set. `stale`: see `Store`."""
        reply = await self._connection.read(requests.ReadStanding(self._space, self._thread), stale=stale)
        return standing_of(reply)

    async def pause(self, reason: str = "", *, by: str = "", durability: Durability | None = None) -> Standing:
        """Pause the thread: steps wait from now on."""
        return await self._set_status("paused", reason, by, durability)

    async def request_approval(self, reason: str = "", *, by: str = "", durability: Durability | None = None) -> Standing:
        """Wait for a human: steps wait until `approve`."""
        return await self._set_status("waiting", reason, by, durability)

    async def approve(
        self, *, by: str = "", reason: str = "", expect: Standing | None = None, durability: Durability | None = None
    ) -> Standing:
        """Set the status to running, so that steps continue. `expect`: only if it is this one, which `status()` returned.

        Raises:
            StatusChanged: it was set since. Of two at once at two nodes both are written, and the later counts.
        """
        return await self._set_status("running", reason, by, durability, expect)

    async def finish(self, *, by: str = "", reason: str = "", durability: Durability | None = None) -> Standing:
        """Set the status to done."""
        return await self._set_status("done", reason, by, durability)

    async def fail(
        self,
        error: BaseException | str,
        *,
        by: str = "",
        expect: Standing | None = None,
        durability: Durability | None = None,
    ) -> Standing:
        """Set the status to failed, with the error as the reason. `expect`, and what it raises, as `approve`."""
        reason = error if isinstance(error, str) else f"{type(error).__qualname__}: {error}"
        return await self._set_status("failed", reason[:1000], by, durability, expect)

    async def _set_status(
        self,
        status: ThreadStatus,
        reason: str,
        by: str,
        durability: Durability | None,
        expect: Standing | None = None,
    ) -> Standing:
        expect_ms = None if expect is None else 0 if expect.time is None else round(expect.time.timestamp() * 1000)
        request = requests.MoveThread(self._space, self._thread, status, reason, by, expect_ms)
        return standing_of(await self._connection.write(request, key=None, durability=durability))

    async def ready(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Return when the thread is neither paused nor waiting.

        Raises:
            TimeoutError: it still was after `timeout` seconds.
        """
        await self._until(lambda standing: standing.status not in HELD, timeout)

    async def wait_for(
        self,
        status: ThreadStatus | Iterable[ThreadStatus],
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Standing:
        """Return when the status is the given one, or one of those given.

        Raises:
            InvalidInput: there is no such status.
            TimeoutError: it was none of them within `timeout` seconds.
        """
        wanted: tuple[str, ...] = (status,) if isinstance(status, str) else tuple(status)
        if not wanted or not set(wanted) <= set(get_args(ThreadStatus)):
            raise InvalidInput(f"a status must be one of {', '.join(get_args(ThreadStatus))}; got {', '.join(wanted)!r}.")
        return await self._until(lambda standing: standing.status in wanted, timeout)

    async def _until(self, holds: Callable[[Standing], bool], timeout: float | None) -> Standing:  # noqa: ASYNC109
        current = "unknown"

        async def read() -> AsyncGenerator[Standing, None]:
            nonlocal current
            standing = await self.status()
            current = standing.status
            if holds(standing):
                yield standing
            else:
                lasting()

        async with aclosing(reread(self._connection, self._space, self._thread, "status", read, timeout=timeout)) as found:
            async for standing in found:
                return standing
        raise TimeoutError(f"thread {self._thread!r} is {current} after {timeout:g} s. Nothing was written. Wait again.")


def standing_of(reply: requests.Standing) -> Standing:
    """A status as handles show it."""
    return Standing(reply.status, reply.reason, reply.by, moment(reply.wall_ms) if reply.wall_ms else None)
