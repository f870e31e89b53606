"""`ShoalSession`: a session of the OpenAI Agents SDK on Shoal, with branches and the tokens used.

Every method works on any loop and thread: in `async with` the store is on that loop, in `with` on a thread of its own.
A write is finished even if its caller is cancelled; then the cancellation is raised.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from agents.items import TResponseInputItem
from agents.memory import SessionSettings
from agents.memory.session import _CompactionSnapshot

from shoal import opening
from shoal.client.store import Store
from shoal.config import Config
from shoal.errors import HeadMoved
from shoal.integrations.base import Bridge, Opening, checked_store, settled
from shoal.integrations.contents import text_of
from shoal.integrations.openai import turn as conversation
from shoal.integrations.openai.history import MAIN, Branch, History, channels, now
from shoal.integrations.openai.turn import Turn, UserTurn, limited
from shoal.protocol.requests import NO_HEAD, Durability
from shoal.protocol.session import Credential

if TYPE_CHECKING:
    from agents import RunContextWrapper
    from agents.result import RunResultBase

_COUNTS = ("requests", "input_tokens", "output_tokens", "total_tokens")
_DETAILS = ("input_tokens_details", "output_tokens_details")


_BRANCH = "the id of a branch"


class ShoalSession:
    """One conversation, in a thread of one space. Its failures are `ShoalError`s, and of branches the SDK's `ValueError`s."""

    def __init__(
        self, store: Store, session_id: str, *, space: str = "openai", session_settings: SessionSettings | None = None
    ) -> None:
        """A session on a store that is open on the running loop, and that the caller closes.

        Raises:
            InvalidInput: `store` is not an open store. With a path, use `ShoalSession.open`.
            InvalidName: `session_id`, with what a name cannot hold escaped, is longer than 1,024 bytes.
        """
        connection = checked_store(store, "ShoalSession").connection
        self.session_id = text_of(session_id, "the id of a session")
        self.session_settings: SessionSettings | None = session_settings or SessionSettings()
        self._bridge = Bridge()
        self._history = History(store.space(space), connection, self.session_id)
        self._branch = MAIN

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        session_id: str,
        *,
        space: str = "openai",
        session_settings: SessionSettings | None = None,
        config: Config | None = None,
        durability: Durability = "local",
    ) -> Opening[ShoalSession]:
        """A session on an embedded store: `async with` or `with`. See `shoal.open`, also for what it raises."""
        return Opening(
            lambda: opening.open(directory, config=config, durability=durability),
            lambda store: cls(store, session_id, space=space, session_settings=session_settings),
        )

    @classmethod
    def connect(
        cls,
        urls: str | Sequence[str],
        session_id: str,
        *,
        token: Credential | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        space: str = "openai",
        session_settings: SessionSettings | None = None,
        config: Config | None = None,
        durability: Durability = "local",
        wait: float = 0.0,
    ) -> Opening[ShoalSession]:
        """A session on a node, or on any of several: `async with` or `with`. See `shoal.connect`."""
        return Opening(
            lambda: opening.connect(urls, token=token, tls_ca=tls_ca, config=config, durability=durability, wait=wait),
            lambda store: cls(store, session_id, space=space, session_settings=session_settings),
        )

    def turn(self, key: str) -> Turn:
        """`async with session.turn("order-17") as turn:` one turn as one write, that is done once for its key."""
        return Turn(self._history, self._bridge, self.session_id, self.session_settings, key=key, branch=lambda: self._branch)

    # ── the SDK's session ─────────────────────────────────────────────────────

    async def get_items(
        self,
        limit: int | None = None,
        branch_id: str | None = None,
        *,
        wrapper: RunContextWrapper[Any] | None = None,
    ) -> list[TResponseInputItem]:
        """The last `limit` items, oldest first. Without a limit `session_settings.limit` counts; a negative one is none."""
        return limited((await self._read(branch_id)).items, limit, self.session_settings)

    async def add_items(self, items: list[TResponseInputItem], *, wrapper: RunContextWrapper[Any] | None = None) -> None:
        """Append items, all or none. What two writers add at once is all there, in the order in which it was written.

        Raises:
            InvalidValue: an item is no JSON; nothing was written.
            SchemaTooNew: a newer version of Shoal wrote the conversation; nothing was written.
        """
        current, added = self._branch, list(items)
        if added:
            self._found(current, await settled(self._bridge.awaited(lambda: self._history.add(added, current))))

    async def pop_item(self, *, wrapper: RunContextWrapper[Any] | None = None) -> TResponseInputItem | None:
        """Remove the last item, and return it; None if there is none. Two callers never get the same item."""
        branch = await settled(self._changed(_popped))
        return cast("TResponseInputItem", branch.items[-1]) if branch.items else None

    async def clear_session(self, *, wrapper: RunContextWrapper[Any] | None = None) -> None:
        """Remove all items, and all branches but `main`."""
        await settled(self._bridge.awaited(self._history.clear))
        self._branch = MAIN

    async def _get_compaction_snapshot(
        self, limit: int, *, prune_prefix: Callable[[TResponseInputItem], bool] | None = None
    ) -> _CompactionSnapshot | None:
        """The SDK's hook for compaction: the last items, and a function that replaces those from one on, if nothing changed."""
        branch = await self._read(None)
        first = max(0, len(branch.items) - limit)

        async def replace_suffix(start: int, output: list[TResponseInputItem]) -> bool:
            if first + start >= len(branch.items):
                return False
            kept = list(branch.items[: first + start])
            pruned = _pruned(kept, prune_prefix)
            times = [*branch.times[pruned : first + start], *[now()] * len(output)]
            state = channels([*kept[pruned:], *output], times, branch.usage, branch.run_state)
            try:
                await settled(self._bridge.awaited(lambda: self._history.rewrite(branch, state)))
            except HeadMoved:
                return False
            return True

        return _CompactionSnapshot(list(branch.items[first:]), first == 0, replace_suffix)

    # ── branches ──────────────────────────────────────────────────────────────

    @property
    def current_branch(self) -> str:
        """The branch that this session reads and writes."""
        return self._branch

    async def create_branch_from_turn(self, turn_number: int, branch_name: str | None = None) -> str:
        """Begin a branch with the items before a turn, switch to it, and return its name.

        Raises:
            ValueError: there is no such turn, or the name is blank or in use.
        """
        name = None if branch_name is None else text_of(branch_name, _BRANCH)
        if name is not None and not name.strip():
            raise ValueError("Branch name cannot be empty. Nothing was written.")
        source = await self._read(None)
        start = conversation.start_of(source.items, turn_number)
        if start is None:
            raise ValueError(
                f"Turn {turn_number} does not contain a user message in branch '{source.id}'. Nothing was written."
            )
        usage = {turn: used for turn, used in source.usage.items() if int(turn) < turn_number}
        state = channels(source.items[:start], source.times[:start], usage)
        self._branch = made = await settled(self._bridge.awaited(lambda: self._begun(turn_number, name, state)))
        return made

    async def create_branch_from_content(self, search_term: str, branch_name: str | None = None) -> str:
        """Begin a branch before the first turn whose message holds a text; otherwise as `create_branch_from_turn`.

        Raises:
            ValueError: no turn does.
        """
        found = await self.find_turns_by_content(search_term)
        if not found:
            raise ValueError(f"No user turns found containing '{search_term}'. Nothing was written.")
        return await self.create_branch_from_turn(found[0]["turn"], branch_name)

    async def switch_to_branch(self, branch_id: str) -> None:
        """Work on another branch from now on.

        Raises:
            ValueError: there is none of this name.
        """
        self._branch = (await self._existing(branch_id)).id

    async def delete_branch(self, branch_id: str, force: bool = False) -> None:
        """Delete a branch, whose name is free then. With `force` also the current one: then `main` is current.

        Raises:
            ValueError: there is none of this name, it is `main`, or it is the current one.
        """
        branch = "" if branch_id is None else text_of(branch_id, _BRANCH)
        if not branch.strip():
            raise ValueError("Branch ID cannot be empty. Nothing was written.")
        if branch == MAIN:
            raise ValueError("Cannot delete the 'main' branch. Nothing was written.")
        if branch == self._branch and not force:
            raise ValueError(f"Cannot delete current branch '{branch}'. Nothing was written. Use force=True, or switch first.")
        await self._existing(branch)
        await settled(self._bridge.awaited(lambda: self._history.delete(branch)))
        if branch == self._branch:
            self._branch = MAIN

    async def list_branches(self) -> list[dict[str, Any]]:
        """The branches that have items: `branch_id, message_count, user_turns, is_current, created_at`, the oldest first."""
        current = (await self._read(None)).id
        return [
            {
                "branch_id": branch.id,
                "message_count": len(branch.items),
                "user_turns": conversation.turns_used(branch.items),
                "is_current": branch.id == current,
                "created_at": branch.created,
            }
            for branch in await self._bridge.awaited(self._history.branches)
            if branch.items
        ]

    # ── what was said and used ────────────────────────────────────────────────

    async def get_conversation_turns(self, branch_id: str | None = None) -> list[UserTurn]:
        """The messages of the user: `turn, content` (shortened), `full_content, timestamp, can_branch`."""
        branch = await self._read(branch_id)
        return conversation.user_turns(branch.items, branch.times, shortened=True)

    async def find_turns_by_content(self, search_term: str, branch_id: str | None = None) -> list[UserTurn]:
        """The messages of the user that hold a text, in any case of ASCII letters."""
        branch = await self._read(branch_id)
        return conversation.matching(conversation.user_turns(branch.items, branch.times, shortened=False), search_term)

    async def get_conversation_by_turns(self, branch_id: str | None = None) -> dict[int, list[dict[str, str | None]]]:
        """Turn → `type` and `tool_name` of each of its items."""
        return conversation.by_turns((await self._read(branch_id)).items)

    async def get_tool_usage(self, branch_id: str | None = None) -> list[tuple[str | None, int, int]]:
        """(tool, calls, turn), in the order of the turns."""
        return conversation.tool_usage((await self._read(branch_id)).items)

    async def store_run_usage(self, result: RunResultBase) -> None:
        """Store the tokens that a run used with the last turn of the current branch; nothing if that has no items."""
        spent = _usage(result.context_wrapper.usage)
        if spent is None:
            return

        def used(branch: Branch) -> dict[str, Any] | None:
            turn = str(conversation.turns_used(branch.items))
            return (branch.channels | {"usage": {**branch.usage, turn: spent}}) if branch.items else None

        await settled(self._changed(used))

    async def get_session_usage(self, branch_id: str | None = None) -> dict[str, int] | None:
        """The tokens used on a branch, or on all: `requests, …, total_turns`; None if nothing was stored."""
        read = [await self._read(branch_id)] if branch_id else await self._bridge.awaited(self._history.branches)
        turns = [used for branch in read for used in branch.usage.values()]
        if not turns:
            return None
        return {name: sum(used[name] for used in turns) for name in _COUNTS} | {"total_turns": len(turns)}

    async def get_turn_usage(
        self, user_turn_number: int | None = None, branch_id: str | None = None
    ) -> list[dict[str, Any]] | dict[str, Any]:
        """The tokens used in one turn ({} if nothing was stored), or in each."""
        usage = (await self._read(branch_id)).usage
        if user_turn_number is not None:
            return dict(usage.get(str(user_turn_number), {}))
        return [{"user_turn_number": int(turn), **usage[turn]} for turn in sorted(usage, key=int)]

    # ── reading and writing ───────────────────────────────────────────────────

    async def _read(self, branch_id: str | None) -> Branch:
        """A branch, or the current one, which is `main` if it was deleted meanwhile."""
        if branch_id is not None:
            named = text_of(branch_id, _BRANCH)
            return await self._bridge.awaited(lambda: self._history.read(named))
        current = self._branch
        branch = await self._bridge.awaited(lambda: self._history.living(current))
        self._found(current, branch.id)
        return branch

    async def _changed(self, fn: Callable[[Branch], dict[str, Any] | None]) -> Branch:
        current = self._branch
        branch = await self._bridge.awaited(lambda: self._history.change(current, fn))
        self._found(current, branch.id)
        return branch

    def _found(self, current: str, found: str) -> None:
        """Follow a branch that somebody deleted to `main`, unless another one was chosen meanwhile."""
        if self._branch == current:
            self._branch = found

    async def _existing(self, branch_id: str) -> Branch:
        named = text_of(branch_id, _BRANCH)
        branch = await self._bridge.awaited(lambda: self._history.read(named))
        if branch.head == NO_HEAD or branch.deleted:
            raise ValueError(f"Branch '{named}' does not exist. Nothing was written.")
        return branch

    async def _begun(self, turn: int, name: str | None, state: dict[str, Any]) -> str:
        """Begin a branch under a name that no branch has."""
        made = f"branch_from_turn_{turn}_{int(time.time())}"
        number = 1
        while True:
            chosen = name if name is not None else made if number == 1 else f"{made}_{number}"
            try:
                await self._history.rewrite(Branch(chosen, NO_HEAD), state)
            except HeadMoved:
                if name is not None:
                    raise ValueError(
                        f"Branch ID '{name}' has already been used. Nothing was written. Choose another, or delete that branch."
                    ) from None
                number += 1
            else:
                return chosen


def _popped(branch: Branch) -> dict[str, Any] | None:
    """The channels without the last item; without the tokens of its turn, if that is empty now."""
    if not branch.items:
        return None
    left = branch.items[:-1]
    turns = {str(part.turn) for part in conversation.parts(left)}
    usage = {turn: used for turn, used in branch.usage.items() if turn in turns}
    return channels(left, branch.times[: len(left)], usage, branch.run_state)


def _pruned(prefix: Sequence[Any], prune: Callable[[TResponseInputItem], bool] | None) -> int:
    """How many of the first items `prune` lets go."""
    if prune is None:
        return 0
    return next((nth for nth, item in enumerate(prefix) if not prune(item)), len(prefix))


def _usage(usage: Any) -> dict[str, Any] | None:
    if usage is None:
        return None
    counts: dict[str, Any] = {name: getattr(usage, name, 0) or 0 for name in _COUNTS}
    for name in _DETAILS:
        details = getattr(usage, name, None)
        counts[name] = dict(vars(details)) if hasattr(details, "__dict__") else None
    return counts
