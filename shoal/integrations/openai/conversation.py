"""The conversation that a list of items contains: its turns, and the tools that were used in each.

Laws:
- A turn begins with a message of the user. Items before the first one are turn 0.
- A tool is named as its call names it: with its server (`server.tool`) or its namespace, or by its type if it has no name.

Nothing here reads or writes. An item is any JSON; what is no dict is an item of the kind "other".
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, TypedDict

from shoal.records import NamedTuple

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
