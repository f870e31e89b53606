"""The commands that write small shared values: `counter add`, `register set`, `set add`, `budget spend`, `map set`, …"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

from shoal.cli.arguments import json_of
from shoal.cli.commands.items import Key
from shoal.cli.execution import execute
from shoal.cli.ids import holder_origin
from shoal.cli.options import Expect
from shoal.cli.options import Key as RequestKey
from shoal.cli.output import emit, line
from shoal.cli.target import Data, Json, SpaceName, Url, chosen, opened
from shoal.client.store import Space

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
Value = Annotated[str, typer.Argument(metavar="JSON", help="The value, as JSON. - is standard input.", show_default=False)]
Elements = Annotated[
    list[str], typer.Argument(metavar="JSON…", help="The elements, each as JSON. - is standard input.", show_default=False)
]
Amount = Annotated[int, typer.Argument(metavar="AMOUNT", min=1, show_default=False)]


def counter_writes(group: typer.Typer) -> None:
    # A number below 0 is no option.
    @group.command(context_settings={"ignore_unknown_options": True})
    def add(
        name: Name,
        amount: Annotated[int, typer.Argument(metavar="AMOUNT", show_default=False)] = 1,
        key: RequestKey = None,
        data: Data = None,
        url: Url = None,
        space: SpaceName = "default",
        json: Json = False,
    ) -> None:
        """Add to a counter, and print its value.

        Example: shoal counter add tokens 512 --data ./state
        """

        async def added(space: Space) -> Any:
            return {"value": await space.counter(name).add(amount, key=key)}

        _run(added, data, url, space, json=json)


def register_writes(group: typer.Typer) -> None:
    @group.command(name="set")
    def assign(
        name: Name,
        value: Value,
        expect: Expect = None,
        data: Data = None,
        url: Url = None,
        space: SpaceName = "default",
        json: Json = False,
    ) -> None:
        """Set a register, and print its version.

        Example: shoal register set goal '{"reach": "Mars"}' --data ./state
        """
        wanted = json_of(value, "the value")

        async def assigned(space: Space) -> Any:
            return {"version": await space.register(name).set(wanted, expect=expect)}

        _run(assigned, data, url, space, json=json)


def set_writes(group: typer.Typer) -> None:
    @group.command()
    def add(
        name: Name,
        elements: Elements,
        data: Data = None,
        url: Url = None,
        space: SpaceName = "default",
        json: Json = False,
    ) -> None:
        """Add elements to a set, and print how many were no members.

        Example: shoal set add urls '"https://example.org"' --data ./state
        """
        wanted = [json_of(element, "an element") for element in elements]

        async def added(space: Space) -> Any:
            return {"added": await space.set(name).add(*wanted)}

        _run(added, data, url, space, json=json)

    @group.command()
    def remove(
        name: Name,
        elements: Elements,
        data: Data = None,
        url: Url = None,
        space: SpaceName = "default",
        json: Json = False,
    ) -> None:
        """Remove elements from a set, and print how many were members.

        Example: shoal set remove urls '"https://example.org"' --data ./state
        """
        wanted = [json_of(element, "an element") for element in elements]

        async def removed(space: Space) -> Any:
            return {"removed": await space.set(name).remove(*wanted)}

        _run(removed, data, url, space, json=json)

    @group.command()
    def clear(name: Name, data: Data = None, url: Url = None, space: SpaceName = "default", json: Json = False) -> None:
        """Remove all elements of a set, and print how many they were.

        Example: shoal set clear urls --data ./state
        """

        async def cleared(space: Space) -> Any:
            return {"removed": await space.set(name).clear()}

        _run(cleared, data, url, space, json=json)


def map_writes(group: typer.Typer) -> None:
    @group.command(name="set")
    def put(
        name: Name,
        key: Key,
        value: Value,
        expect: Expect = None,
        data: Data = None,
        url: Url = None,
        space: SpaceName = "default",
        json: Json = False,
    ) -> None:
        """Set a key of a map, and print its version.

        Example: shoal map set plan goal '{"reach": "Mars"}' --data ./state
        """
        wanted = json_of(value, "the value")

        async def assigned(space: Space) -> Any:
            return {"version": await space.map(name).set(key, wanted, expect=expect)}

        _run(assigned, data, url, space, json=json)

    @group.command()
    def remove(
        name: Name, key: Key, data: Data = None, url: Url = None, space: SpaceName = "default", json: Json = False
    ) -> None:
        """Remove a key of a map, and print whether it was there.

        Example: shoal map remove plan goal --data ./state
        """

        async def removed(space: Space) -> Any:
            return {"removed": await space.map(name).remove(key)}

        _run(removed, data, url, space, json=json)


def budget_writes(group: typer.Typer) -> None:
    @group.command()
    def grant(
        name: Name,
        amount: Amount,
        key: RequestKey = None,
        data: Data = None,
        url: Url = None,
        space: SpaceName = "default",
        json: Json = False,
    ) -> None:
        """Add to what may be spent, and print what is left.

        Example: shoal budget grant tokens 100000 --data ./state
        """

        async def granted(space: Space) -> Any:
            return {"remaining": await space.budget(name).grant(amount, key=key)}

        _run(granted, data, url, space, json=json)

    @group.command()
    def spend(
        name: Name,
        amount: Amount,
        key: RequestKey = None,
        data: Data = None,
        url: Url = None,
        space: SpaceName = "default",
        json: Json = False,
    ) -> None:
        """Spend, if there is as much, and print what is left.

        Example: shoal budget spend tokens 512 --url http://127.0.0.1:7400
        """

        async def spent(space: Space) -> Any:
            return {"remaining": await space.budget(name).spend(amount, key=key)}

        _run(spent, data, url, space, json=json)

    @group.command()
    def draw(
        name: Name,
        amount: Amount,
        reclaim: Annotated[
            str,
            typer.Option("--reclaim", metavar="ORIGIN", help="A holder that is gone for good: its rights come here."),
        ] = "",
        data: Data = None,
        url: Url = None,
        space: SpaceName = "default",
        json: Json = False,
    ) -> None:
        """See that the node may spend so much alone, and print what it may.

        Example: shoal budget draw tokens 5000 --url http://127.0.0.1:7400
        """

        async def drawn(space: Space) -> Any:
            origin = await holder_origin(space, name, reclaim) if reclaim else ""
            return {"rights": await space.budget(name).draw(amount, reclaim=origin)}

        _run(drawn, data, url, space, json=json)

    @group.command()
    def release(
        name: Name,
        amount: Amount,
        data: Data = None,
        url: Url = None,
        space: SpaceName = "default",
        json: Json = False,
    ) -> None:
        """Give up to AMOUNT of the node's rights back, so that other nodes can draw them, and print what is left.

        Example: shoal budget release tokens 5000 --url http://127.0.0.1:7400
        """

        async def released(space: Space) -> Any:
            return {"rights": await space.budget(name).release(amount)}

        _run(released, data, url, space, json=json)


def _run(written: Callable[[Space], Awaitable[dict[str, Any]]], data: Data, url: Url, space: SpaceName, *, json: bool) -> None:
    """Carry out a write, and show what it gave: as JSON, or its first field alone."""
    target = chosen(data, url, environment=os.environ)

    async def run() -> None:
        async with opened(target) as store:
            given = await written(store.space(space))
            emit(given) if json else line(str(next(iter(given.values()))))

    execute(run())
