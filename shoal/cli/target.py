"""Which store a command reads: a directory on this machine, or a node behind a URL.

Exactly one of the two. An option of the command line beats the environment; two
of the same rank are refused, for a command that guesses reads the wrong store.
A directory is opened only if it holds a store: reading must never make one.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

import shoal
from shoal.client.store import Store
from shoal.errors import NotFound
from shoal.storage.layout import holds_store

PANEL = "Which store"

Data = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="DIR", help="A store's directory on this machine. \\[env: SHOAL_DATA]", rich_help_panel=PANEL
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", help="A node, or several separated by commas. \\[env: SHOAL_URL]", rich_help_panel=PANEL
    ),
]
SpaceName = Annotated[
    str, typer.Option("--space", envvar="SHOAL_SPACE", metavar="NAME", help="The space to look into.", rich_help_panel=PANEL)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one document a line, for machines.", rich_help_panel="Output")]


class Target(NamedTuple):
    """Exactly one is not None."""

    data: Path | None
    url: str | None


def chosen(data: Path | None, url: str | None, *, environment: Mapping[str, str]) -> Target:
    """The store to read.

    Raises:
        typer.BadParameter: neither is given, or both are.
    """
    if data is None and url is None:
        data = Path(environment["SHOAL_DATA"]) if environment.get("SHOAL_DATA") else None
        url = environment.get("SHOAL_URL") or None
        where = "SHOAL_DATA and SHOAL_URL"
    else:
        where = "--data and --url"
    if data is not None and url is not None:
        raise typer.BadParameter(f"{where} are both given. Leave one out: a command reads one store.")
    if data is None and url is None:
        raise typer.BadParameter(
            "no store is named. Give --data DIR for a store on this machine, or --url URL for a running node "
            "(or set SHOAL_DATA or SHOAL_URL)."
        )
    return Target(data, url)


def opened(target: Target) -> AbstractAsyncContextManager[Store]:
    """The store, to be entered.

    Raises:
        NotFound: there is no store in the directory; nothing was written.
        StorageError: the directory is something else.
    """
    if target.url is not None:
        return shoal.connect(target.url)
    assert target.data is not None
    if not holds_store(target.data):
        raise NotFound(
            f"there is no store in {target.data}. Nothing was written. `shoal serve --data {target.data}` makes one."
        )
    return shoal.open(target.data)
