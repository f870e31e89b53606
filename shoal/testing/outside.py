"""The outside world: the effects of an agent's tools, counted.

Laws:
- An effect has happened when its tool has returned, even if the agent has
  died meanwhile. A tool that raises has done nothing.
- A tool with a key acts like a service with idempotency keys: of all calls with one
  key one happens, and all get its result.
- Tools that only read are not counted, and are not points.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Set
from typing import Any

from shoal.errors import InvalidInput
from shoal.testing.lives import Errands, Life

Tool = Callable[..., Awaitable[Any]]


class Outside:
    """The outside world of one run. `effects` counts calls by their text; `confused` are keys used with other arguments."""

    def __init__(
        self, tools: Mapping[str, Tool], *, reads: Collection[str] = (), keys: Mapping[str, str] | None = None
    ) -> None:
        """The arguments are those of `crash_everywhere`.

        Raises:
            InvalidInput: a tool is not a coroutine function, or a name in `reads` or `keys` is not that of a tool.
        """
        self.effects: Counter[str] = Counter()
        self.confused: list[str] = []
        self.errands = Errands()
        self._tools = dict(tools)
        self._reads = frozenset(reads)
        self._keys = dict(keys or {})
        self._keyed: dict[tuple[str, str], tuple[str, asyncio.Task[Any]]] = {}
        self._check()

    def _check(self) -> None:
        for name, tool in self._tools.items():
            if not (inspect.iscoroutinefunction(tool) or inspect.iscoroutinefunction(getattr(tool, "__call__", None))):  # noqa: B004
                raise InvalidInput(f"the tool {name!r} must be an async function. Nothing was run. Wrap it in one.")
        _known("reads", self._reads, self._tools)
        _known("keys", self._keys.keys(), self._tools)
        for name, argument in self._keys.items():
            if argument not in inspect.signature(self._tools[name]).parameters:
                raise InvalidInput(f"the tool {name!r} has no argument {argument!r}, which keys= names. Nothing was run.")

    def tools_for(self, life: Life) -> dict[str, Tool]:
        """The tools for one life of the agent."""
        return {name: self._tool_for(life, name) for name in self._tools}

    def _tool_for(self, life: Life, name: str) -> Tool:
        tool = self._tools[name]

        @functools.wraps(tool)
        async def read(*args: Any, **options: Any) -> Any:
            await life.go_on()
            return await self.errands.run(_awaited(tool(*args, **options)))

        @functools.wraps(tool)
        async def change(*args: Any, **options: Any) -> Any:
            call = told_call(name, args, options)
            await life.reach(f"before {call} happened")
            result = await self.errands.run(self._happen(name, call, args, options))
            await life.reach(f"after {call} happened, before its result was used")
            return result

        return read if name in self._reads else change

    async def _happen(self, name: str, call: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        key = self._key(name, args, options)
        if key is None:
            return await self._do(name, call, args, options)
        first = self._keyed.get((name, key))
        if first is None:
            task = asyncio.create_task(self._do(name, call, args, options))
            first = self._keyed[name, key] = (call, task)
        if first[0] != call:
            self.confused.append(f"{call} came with the key of {first[0]}")
        try:
            return await asyncio.shield(first[1])
        except Exception:
            self._keyed.pop((name, key), None)  # Nothing was done, so the key is free again.
            raise

    def _key(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> str | None:
        if name not in self._keys:
            return None
        given = inspect.signature(self._tools[name]).bind(*args, **options).arguments.get(self._keys[name])
        return None if given is None else told(given)

    async def _do(self, name: str, call: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        result = await self._tools[name](*args, **options)
        self.effects[call] += 1
        return result


def told_call(name: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> str:
    """The text of a call, equal for calls with equal arguments."""
    return f"{name}({', '.join([*map(told, args), *(f'{key}={told(options[key])}' for key in sorted(options))])})"


def told(value: Any) -> str:
    """A text that is equal for equal values; it does not depend on the order of dicts and sets."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(sorted(f"{told(key)}: {told(entry)}" for key, entry in value.items())) + "}"
    if isinstance(value, Set):
        return "{" + ", ".join(sorted(map(told, value))) + "}"
    if isinstance(value, list | tuple):
        return ("[%s]" if isinstance(value, list) else "(%s)") % ", ".join(map(told, value))
    return repr(value)


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


def _known(option: str, names: Set[str], tools: Mapping[str, Tool]) -> None:
    if unknown := sorted(names - tools.keys()):
        raise InvalidInput(f"{option}= names {', '.join(unknown)}, which tools= does not have. Nothing was run.")
