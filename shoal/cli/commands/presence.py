"""`shoal presence`: the agents and editors that are present in a space or a document.

The command itself is not present. Presence belongs to connections, so a store's directory has none.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated, Any

import typer

from shoal.cli.command import Run, Work, in_store
from shoal.cli.options import PANEL, Follow, LimitOrAll
from shoal.cli.output import emit, line, note, to_text
from shoal.client.store import Store
from shoal.errors import InvalidInput
from shoal.kinds.presence.handle import Presence, PresenceChange, PresentMember
from shoal.names import check_name

_NOBODY = 0  # The command has no Yjs client id of its own.


def register(app: typer.Typer) -> None:
    """Add this command to `app`."""
    app.command(rich_help_panel=PANEL)(presence)


@in_store
def presence(
    run: Run,
    document: Annotated[
        str | None, typer.Option("--document", metavar="NAME", help="In this document, instead of the space itself.")
    ] = None,
    follow: Follow = False,
    limit: LimitOrAll = None,
) -> Work:
    """List the clients that are present in a space or a document, editors included; --follow prints who joins and leaves.

    Example: shoal presence --url http://127.0.0.1:7400 --space crew --document plan
    """
    if run.target.url is None:
        raise InvalidInput("presence is known only to a running node, not to a directory. Nothing was read. Give --url URL.")

    async def work(store: Store) -> None:
        looking = _looking(store, run.space, document)
        if follow:
            await _watch(looking, limit, json=run.json)
            return
        members = (await looking.members())[:limit]
        for member in members:
            run.show(_fields(member), _told(member))
        if not members and not run.json:
            note(f"nobody is here: {_place(run.space, document)}.")

    return work


def _looking(store: Store, space: str, document: str | None) -> Presence:
    check_name("space", space)
    name = "" if document is None else check_name("document", document)
    return Presence(store.connection.session, space, name, client_id=_NOBODY, config=store.connection.config)


async def _watch(looking: Presence, limit: int | None, *, json: bool) -> None:
    shown = 0
    async with aclosing(looking.changes()) as changes:
        async for change in changes:
            emit({"change": change.kind, **_fields(change.member)}) if json else line(_changed(change))
            shown += 1
            if shown == limit:
                return


def _fields(member: PresentMember) -> dict[str, Any]:
    return {"id": member.id, "state": member.state}


def _told(member: PresentMember) -> str:
    return f"{member.id}  {to_text(member.state)}"


def _changed(change: PresenceChange) -> str:
    return f"{change.kind:<7}  {_told(change.member)}"


def _place(space: str, document: str | None) -> str:
    return f"space {space!r}" if document is None else f"document {document!r} of space {space!r}"
