"""The store of a command: a directory on this machine, or a node behind a URL.

It must be exactly one of the two. An option takes precedence over the environment, and that over the context in use
(`shoal context`); two of the same rank are rejected, because a guess might read the wrong store. A
directory is opened only if it holds a store, so that reading never creates one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import ContextVar
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import shoal
from shoal.errors import NotFound
from shoal.records import NamedTuple

if TYPE_CHECKING:
    from shoal.client.store import Store
    from shoal.config import Config
    from shoal.protocol.requests import Durability

PANEL = "Which store"
_LOOKED_AT_MAX = 1000  # Entries of a directory in which stores are searched.
_SHOWN_MAX = 3

wait_s: ContextVar[float] = ContextVar("wait_s", default=0.0)
"""For a node that is starting, use `shoal --wait`."""

tls_ca: ContextVar[str | None] = ContextVar("tls_ca", default=None)
"""The CA of the nodes' certificates; None: those that the system trusts. See `shoal --tls-ca`."""

encryption_key: ContextVar[str] = ContextVar("encryption_key", default="")
"""Where the master key of an encrypted directory is; empty: it is not encrypted. See `shoal --encryption-key`."""

token_file: ContextVar[Path | None] = ContextVar("token_file", default=None)
"""The file with the token for nodes; None: what the environment names. See `shoal --token-file`."""

durability: ContextVar[Durability] = ContextVar("durability", default="local")
"""How durable the writes of a command are. See `shoal --durability`."""

context: ContextVar[str] = ContextVar("context", default="")
"""The named server to use; empty: the one in use, if no store is named. See `shoal --context`."""

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
    str, typer.Option("--space", envvar="SHOAL_SPACE", metavar="NAME", help="The space.", rich_help_panel=PANEL)
]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON, one document per line, for machines.", rich_help_panel="Output")
]


class Context(NamedTuple):
    """A named server, as `shoal context` keeps it."""

    url: str
    token_file: str | None  # Its path.
    tls_ca: str | None


class Target(NamedTuple):
    """A directory or a URL; exactly one is not None."""

    data: Path | None
    url: str | None


def chosen(data: Path | None, url: str | None, *, environment: Mapping[str, str]) -> Target:
    """The store to read. If a context says which, its token and CA are used where no option or variable names others.

    Raises:
        typer.BadParameter: neither is given, or both are.
        NotFound: there is no such context.
        InvalidInput: the file of contexts is wrong.
    """
    if context.get() and (data is not None or url is not None):
        raise typer.BadParameter("--context names a server, and so does --data or --url. Remove one.")
    if context.get():
        return _of_context(environment)
    if data is None and url is None:
        data = Path(environment["SHOAL_DATA"]) if environment.get("SHOAL_DATA") else None
        url = environment.get("SHOAL_URL") or None
        where = "SHOAL_DATA and SHOAL_URL"
    else:
        where = "--data and --url"
    if data is not None and url is not None:
        raise typer.BadParameter(f"{where} are both given. Remove one: a command reads only one store.")
    return _of_context(environment) if data is None and url is None else Target(data, url)


def _of_context(environment: Mapping[str, str]) -> Target:
    from shoal.cli.commands import contexts

    found = contexts.find(context.get(), environment)
    if found is None:
        raise typer.BadParameter(
            "no store was given. Give --data DIR for a store on this machine, or --url URL for a running node "
            "(or set SHOAL_DATA or SHOAL_URL, or choose one: shoal context use NAME)."
        )
    if token_file.get() is None and found.token_file is not None:
        token_file.set(Path(found.token_file))
    if tls_ca.get() is None:
        tls_ca.set(found.tls_ca)
    return Target(None, found.url)


def opened(target: Target, *, config: Config | None = None) -> AbstractAsyncContextManager[Store]:
    """The store, as a context. `config` is that of the node, if the store is a directory.

    Raises:
        NotFound: there is no store in the directory; nothing was written.
        StorageError: the directory is not one of a store of this version.
    """
    if target.url is not None:
        return shoal.connect(
            target.url, wait=wait_s.get(), tls_ca=tls_ca.get(), token=token_file.get(), durability=durability.get()
        )
    assert target.data is not None
    check_store(target.data)
    return shoal.open(target.data, config=config, encryption=encryption_key.get(), durability=durability.get())


def ensured(target: Target) -> AbstractAsyncContextManager[Store]:
    """As `opened`, but a directory that is missing or empty becomes a store, for commands that run one.

    Raises:
        NotFound: the directory holds something else; nothing was written.
        StorageError: as `opened`.
    """
    from shoal.storage.layout import strangers

    if (
        target.data is not None
        and not target.data.is_file()
        and not (target.data.is_dir() and strangers(os.listdir(target.data)))
    ):
        return shoal.open(target.data, encryption=encryption_key.get(), durability=durability.get())
    return opened(target)


def check_store(directory: Path) -> None:
    """Check that a directory holds a store, without opening it.

    Raises:
        NotFound: there is no store in the directory; nothing was written.
        StorageError: there is one, but not of this version, or it cannot be read.
    """
    from shoal.storage.layout import FORMAT, holds_store, strangers

    try:
        names = {entry.name for entry in os.scandir(directory)}
    except FileNotFoundError:
        names = set()
    except NotADirectoryError:
        raise NotFound(
            f"{directory} is a file, not the directory of a store. Nothing was written.{_nearby(directory)}"
        ) from None
    except OSError as error:
        raise NotFound(f"{directory} cannot be read: {error.strerror}. Nothing was written.") from None
    if FORMAT in names:
        holds_store(directory)
    elif strangers(names):
        raise NotFound(f"{directory} is not a store: there is no {FORMAT} file in it. Nothing was written.{_nearby(directory)}")
    else:
        where = _nearby(directory) or f" `shoal serve --data {directory}` makes one."
        raise NotFound(f"there is no store in {directory}. Nothing was written.{where}")


def _nearby(directory: Path) -> str:
    """A sentence, after a space, that lists stores in this directory or beside it; empty if there are none."""
    from shoal.storage.layout import FORMAT

    found: list[str] = []
    for place in (directory, directory.parent):
        with suppress(OSError), os.scandir(place) as entries:
            for each in islice(entries, _LOOKED_AT_MAX):
                with suppress(OSError):
                    found += [each.path] if Path(each.path, FORMAT).is_file() else []
    return f" There is a store in {', '.join(sorted(found)[:_SHOWN_MAX])}." if found else ""
