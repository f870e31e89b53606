"""A turn of a conversation as one write.

Laws:
- A turn reads the conversation once, when its block begins. Items that the run adds are held back, and written at the
  end of the block as one checkpoint: all or nothing. If the block raises or the process dies, nothing is written.
- The write is rejected (`HeadMoved`) if anybody has changed the conversation since the block began. So of two that
  resume one run, one is refused.
- A turn has a key. Once it is written, a block with the same key is `done`, in every process: it is not run again.

The conversation that a list of items contains: its turns, and the tools that were used in each.

Laws:
- A turn begins with a message of the user. Items before the first one are turn 0.
- A tool is named as its call names it: with its server (`server.tool`) or its namespace, or by its type if it has no name.

Nothing here reads or writes. An item is any JSON; what is no dict is an item of the kind "other".
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

from agents import RunState
from agents.items import TResponseInputItem
from agents.memory import SessionSettings

from shoal.errors import HeadMoved, InvalidInput
from shoal.integrations import contents
from shoal.integrations.base import Bridge, settled
from shoal.integrations.openai.history import Branch, History, channels, now
from shoal.records import NamedTuple

if TYPE_CHECKING:
    from agents import Agent, RunContextWrapper

T = TypeVar("T")


class Turn:
    """A session for one run: `async with session.turn("order-17") as turn: await Runner.run(…, session=turn)`."""

    def __init__(
        self,
        history: History,
        bridge: Bridge,
        session_id: str,
        session_settings: SessionSettings | None,
        *,
        key: str,
        branch: Callable[[], str],
    ) -> None:
        self.session_id = session_id
        self.session_settings = session_settings
        self.key = key
        self._history = history
        self._bridge = bridge
        self._branch = branch
        self._began: Branch | None = None  # As it was when the block began.
        self._done = False
        self._kept = 0  # How many of its items are still there.
        self._added: list[Any] = []
        self._suspended: Any = None

    @property
    def done(self) -> bool:
        """Whether the turn was written before; then there is nothing to run."""
        return self._done

    async def __aenter__(self) -> Turn:
        began, self._done = await self._bridge.awaited(self._begin)
        self._began, self._kept, self._added, self._suspended = began, len(began.items), [], None
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None and not self._done:
            await settled(self._bridge.awaited(self._commit))
        self._began = None

    # ── as a session of the SDK ───────────────────────────────────────────────

    async def get_items(
        self, limit: int | None = None, *, wrapper: RunContextWrapper[Any] | None = None
    ) -> list[TResponseInputItem]:
        """The conversation as it was when the block began, and what was added since. `limit`: see `ShoalSession`."""
        return limited(self._now(), limit, self.session_settings)

    async def add_items(self, items: list[TResponseInputItem], *, wrapper: RunContextWrapper[Any] | None = None) -> None:
        """Hold items back until the end of the block.

        Raises:
            InvalidValue: an item is no JSON; nothing was written.
            InvalidInput: the turn is done, or its block has ended.
        """
        self._check_open()
        self._added += [contents.shown(contents.stored(item, f"items[{nth}]")) for nth, item in enumerate(items)]

    async def pop_item(self, *, wrapper: RunContextWrapper[Any] | None = None) -> TResponseInputItem | None:
        """Remove the last item, and return it; None if there is none."""
        self._check_open()
        shown = self._now()
        if not shown:
            return None
        if self._added:
            self._added.pop()
        else:
            self._kept -= 1
        return cast("TResponseInputItem", shown[-1])

    async def clear_session(self, *, wrapper: RunContextWrapper[Any] | None = None) -> None:
        """Remove all items at the end of the block."""
        self._check_open()
        self._kept, self._added = 0, []

    # ── a run that waits for a person ─────────────────────────────────────────

    def suspend(self, state: RunState[Any], **options: Any) -> None:
        """Store a run that waits (`result.to_state()`) with the items of this turn, in the same write.

        `options` are those of `RunState.to_json`, such as `context_serializer`.

        Raises:
            InvalidInput: the turn is done, or its block has ended.
        """
        self._check_open()
        self._suspended = contents.stored(state.to_json(**options), "the state of the run")

    async def suspended(self, agent: Agent[Any], **options: Any) -> RunState[Any] | None:
        """The run that waits; None if none does. It waits no longer once this turn is written, unless it is suspended again.

        `options` are those of `RunState.from_json`, such as `context_deserializer`.

        Raises:
            agents.UserError: the state was written by a newer version of the SDK, or is not of this agent.
        """
        branch = self._open()
        if branch.run_state is None:
            return None
        return await RunState.from_json(agent, contents.shown(branch.run_state), **options)

    # ── reading and writing ───────────────────────────────────────────────────

    async def _begin(self) -> tuple[Branch, bool]:
        return await self._history.living(self._branch()), await self._history.labelled(self._label)

    async def _commit(self) -> None:
        branch = self._open()
        stored = [contents.stored(item, f"items[{nth}]") for nth, item in enumerate(self._added)]
        times: list[str | None] = [now()] * len(stored)
        try:
            if self._kept < len(branch.items):
                kept = channels(branch.items[: self._kept], branch.times[: self._kept], branch.usage, self._suspended)
                kept["items"] += stored
                kept["times"] += times
                await self._history.rewrite(branch, kept, label=self._label)
            else:
                await self._history.extend(branch, stored, times, run_state=self._suspended, label=self._label)
        except HeadMoved as moved:
            raise HeadMoved(
                f"the conversation {self.session_id!r} was changed by somebody else while the turn {self.key!r} ran. "
                "Nothing of the turn was written. Run it again on the conversation as it is now.",
                **moved.detail,
            ) from moved

    @property
    def _label(self) -> str:
        return f"turn/{self.key}"

    def _now(self) -> list[Any]:
        return [*self._open().items[: self._kept], *self._added]

    def _open(self) -> Branch:
        if self._began is None:
            raise InvalidInput(
                f"the turn {self.key!r} is not open. Nothing was written. Use it inside `async with session.turn(…) as turn:`."
            )
        return self._began

    def _check_open(self) -> None:
        self._open()
        if self._done:
            raise InvalidInput(
                f"the turn {self.key!r} is done: it was written before. Nothing was written. "
                "Look at `turn.done` before the run, or use another key for another turn."
            )


def limited(items: Sequence[Any], limit: int | None, settings: SessionSettings | None) -> list[TResponseInputItem]:
    """The last items, oldest first; all if there is no limit, or it is negative."""
    most = limit if limit is not None else settings.limit if settings is not None else None
    return list(items if most is None or most < 0 else items[max(0, len(items) - most) :])


PREVIEW_CHARACTERS_MAX = 100
_MCP = {"mcp_call", "mcp_approval_request"}
_UNNAMED = {"computer_call", "file_search_call", "web_search_call", "code_interpreter_call", "shell_call", "apply_patch_call"}
_SEARCHES = {"tool_search_call", "tool_search_output"}
_CALLS = _MCP | _UNNAMED | {"tool_call", "function_call", "custom_tool_call", "tool_search_call"}


class UserTurn(TypedDict):
    """A message of the user, from which a branch can be created."""

    turn: int
    content: str
    full_content: Any
    timestamp: str | None
    can_branch: bool


class Part(NamedTuple):
    """An item and the turn that it belongs to."""

    turn: int
    item: Any
    position: int


def parts(items: Sequence[Any]) -> Iterator[Part]:
    """The items with their turns."""
    turn = 0
    for position, item in enumerate(items):
        turn += is_user(item)
        yield Part(turn, item, position)


def is_user(item: Any) -> bool:
    """Whether it is a message of the user."""
    return isinstance(item, dict) and item.get("role") == "user"


def kind_of(item: Any) -> str:
    """`user` or `assistant` for a message, else the item's type."""
    if not isinstance(item, dict):
        return "other"
    if (role := item.get("role")) in ("user", "assistant"):
        return str(role)
    return str(item.get("type") or "other")


def tool_of(item: Any) -> str | None:
    """The name of the tool that an item calls, or that answered; None for other items."""
    if not isinstance(item, dict):
        return None
    kind, name = item.get("type"), item.get("name")
    if kind in _MCP and "server_label" in item:
        return ".".join(str(part) for part in (item["server_label"], name) if part) or None
    if kind in _SEARCHES:
        return "tool_search"
    if kind in _UNNAMED:
        return str(kind)
    if name is None:
        return None
    space = item.get("namespace")
    return f"{space}.{name}" if space and space != name else str(name)


def turns_used(items: Sequence[Any]) -> int:
    """The number of the last turn."""
    return sum(map(is_user, items))


def start_of(items: Sequence[Any], turn: int) -> int | None:
    """The position of the message that begins a turn; None if there is no such turn."""
    return next((part.position for part in parts(items) if part.turn == turn and is_user(part.item)), None)


def user_turns(items: Sequence[Any], times: Sequence[str | None], *, shortened: bool) -> list[UserTurn]:
    """The messages of the user, with the times of `times`, which is as long as `items` or shorter."""
    return [
        UserTurn(
            turn=part.turn,
            content=_preview(part.item.get("content", ""), shortened=shortened),
            full_content=part.item.get("content", ""),
            timestamp=times[part.position] if part.position < len(times) else None,
            can_branch=True,
        )
        for part in parts(items)
        if is_user(part.item)
    ]


def matching(turns: Sequence[UserTurn], text: str) -> list[UserTurn]:
    """The turns whose message holds a text. The case of ASCII letters does not count."""
    wanted = re.compile(re.escape(text), re.IGNORECASE | re.ASCII)
    return [turn for turn in turns if any(wanted.search(each) for each in _texts(turn["full_content"]))]


def by_turns(items: Sequence[Any]) -> dict[int, list[dict[str, str | None]]]:
    """Turn → the kind and the tool of each of its items."""
    found: dict[int, list[dict[str, str | None]]] = {}
    for part in parts(items):
        found.setdefault(part.turn, []).append({"type": kind_of(part.item), "tool_name": tool_of(part.item)})
    return found


def tool_usage(items: Sequence[Any]) -> list[tuple[str | None, int, int]]:
    """(tool, calls, turn), in the order of the turns. A search counts by its output if its call is not among the items."""
    calls: Counter[tuple[int, str | None]] = Counter()
    outputs: Counter[tuple[int, str | None]] = Counter()
    searched: set[int] = set()
    for part in parts(items):
        kind, place = kind_of(part.item), (part.turn, tool_of(part.item))
        if kind in _CALLS:
            calls[place] += 1
        elif kind == "tool_search_output":
            outputs[place] += 1
        if kind == "tool_search_call":
            searched.add(part.turn)
    calls.update({place: count for place, count in outputs.items() if place[0] not in searched})
    return sorted(((name, count, turn) for (turn, name), count in calls.items()), key=lambda used: (used[2], used[0] or ""))


def _preview(content: Any, *, shortened: bool) -> str:
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return text[:PREVIEW_CHARACTERS_MAX] + "..." if shortened and len(text) > PREVIEW_CHARACTERS_MAX else text


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [str(part.get("text", "")) for part in content if isinstance(part, dict)] if isinstance(content, list) else []
