"""The options that all commands on a store take, and how these commands run.

Law: a command understands what was typed before it opens the store, and outside of the event loop: Ctrl-C ends it while it
asks, or reads standard input.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from shoal.cli.execution import execute
from shoal.cli.output import emit, line
from shoal.cli.target import Data, Json, SpaceName, Target, Url, chosen, opened
from shoal.records import NamedTuple

if TYPE_CHECKING:
    from shoal.client.store import Store

P = ParamSpec("P")

Work = Callable[["Store"], Awaitable[None]]
"""The work of a command on the opened store."""


class Run(NamedTuple):
    """One run of a command: which store and which space it looks into, and whether it prints JSON."""

    target: Target
    space: str
    json: bool

    def show(self, fields: Any, text: str) -> None:
        """Print an answer: as JSON for machines, or as text."""
        emit(fields) if self.json else line(text)


TAKEN = {"data": (Data, None), "url": (Url, None), "space": (SpaceName, "default"), "json": (Json, False)}
"""The options of all commands of a store."""


def in_store(begin: Callable[Concatenate[Run, P], Work]) -> Callable[..., None]:
    """A command of a store. `begin` reads its own arguments, and returns what to do with the opened store. The options that
    say which store and space, and `--json`, are added to its signature.
    """
    own = list(signature(begin, eval_str=True).parameters.values())[1:]
    command = command_of(begin, {each.name: (each.annotation, each.default) for each in own})
    command.__name__, command.__doc__, command.__module__ = begin.__name__, begin.__doc__, begin.__module__
    return command


def command_of(
    begin: Callable[..., Work], own: Mapping[str, tuple[Any, Any]], *, is_in_space: bool = True
) -> Callable[..., None]:
    """The same, of arguments and options by name, each with its annotation and its default."""
    taken = {**own, **{name: each for name, each in TAKEN.items() if is_in_space or name != "space"}}

    def command(*, data: Any, url: Any, json: bool, space: str = "", **given: Any) -> None:
        run = Run(chosen(data, url, environment=os.environ), space, json)
        execute(_worked(run.target, begin(run, **given)))

    command.__annotations__ = {name: annotation for name, (annotation, _) in taken.items()}
    command.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation, default=default)
            for name, (annotation, default) in taken.items()
        ]
    )
    return command


async def _worked(target: Target, work: Work) -> None:
    async with opened(target) as store:
        await work(store)
