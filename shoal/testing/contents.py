"""The contents of a store as plain values, and the differences between two of them.

Law: only data that a reader sees is compared: heads' states, events, values. Ids, times
and the number of checkpoints may differ between runs that are equivalent.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from shoal.client.store import Space, Store
from shoal.protocol import requests
from shoal.protocol.session import Session
from shoal.testing.crash_report import Problem
from shoal.testing.lives import told

_SHOWN_MAX = 100

Contents = dict[str, Any]
"""Description ("counter crew/tokens", "thread crew/planner, branch main") → content."""


async def contents_of(store: Store, session: Session) -> Contents:
    """Read a store; `session` is one of the same node.

    A branch is its heads' states, a journal its events, a register its siblings.
    """
    found: Contents = {}
    async for name in store.spaces():
        space = store.space(name)
        await _threads(space, found)
        async for counter in space.counters():
            found[f"counter {name}/{counter}"] = await space.counter(counter).value()
        async for register in space.registers():
            found[f"register {name}/{register}"] = _one(await space.register(register).siblings())
        async for item in space.items.scan():
            found[f"item {name}/{'.'.join(item.namespace)}/{item.key}"] = _one([item.value, *item.siblings])
        async for document in space.documents():
            shown = await session.call(requests.ReadDocumentJson(name, document))
            found[f"document {name}/{document}"] = json.loads(shown.json)
    return found


async def _threads(space: Space, found: Contents) -> None:
    async for name in space.threads():
        thread = space.thread(name)
        for branch, heads in sorted((await thread.heads()).items()):
            states = [(await thread.load(head)).state for head in heads]
            found[f"thread {space.name}/{name}, branch {branch}"] = _one(states)
        events = [event.event async for event in thread.journal.read()]
        if events:
            found[f"journal of {space.name}/{name}"] = events


def _one(values: list[Any]) -> Any:
    """The value; if there are concurrent ones, a list of them in an order that does not depend on clocks."""
    return values[0] if len(values) == 1 else {"concurrent": sorted(values, key=told)}


def compare_contents(crashed: Contents, calm: Contents) -> Iterator[Problem]:
    """The differences between the run with a crash and the `calm` one."""
    for name in sorted(crashed.keys() | calm.keys()):
        if name.startswith("journal "):
            yield from compare_counts(
                Counter(map(told, crashed.get(name, []))), Counter(map(told, calm.get(name, []))), f" in the {name}"
            )
        elif name not in crashed:
            yield Problem("lost", f"{name} is not there; without a crash it is {_short(calm[name])}")
        elif name not in calm:
            yield Problem("differs", f"{name} is {_short(crashed[name])}; without a crash there is none")
        else:
            yield from _compare(name, crashed[name], calm[name])


def compare_counts(crashed: Counter[str], calm: Counter[str], where: str = "") -> Iterator[Problem]:
    """Effects or events that happened more or less often than in the `calm` run."""
    for what in sorted(crashed.keys() | calm.keys()):
        times, usual = crashed[what], calm[what]
        if usual == 0:
            yield Problem("differs", f"{_cut(what)}{where}: {times} times instead of never")
        elif times != usual:
            yield Problem("twice" if times > usual else "lost", f"{_cut(what)}{where}: {times} times instead of {usual}")


def _compare(name: str, crashed: Any, calm: Any) -> Iterator[Problem]:
    if told(crashed) == told(calm):
        return
    if isinstance(crashed, dict) and isinstance(calm, dict) and crashed.keys() == calm.keys():
        for key in sorted(calm, key=told):
            yield from _compare(f"{name}, {key}", crashed[key], calm[key])
    else:
        yield Problem("differs", f"{name} is {_short(crashed)} instead of {_short(calm)}")


def _short(value: Any) -> str:
    return _cut(told(value))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
