"""`shoal tls`: make the certificates of a cluster, and show how long they last."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.execution import FAILED, Json, failure
from shoal.cli.output import emit, note, table
from shoal.errors import ShoalError

if TYPE_CHECKING:
    from shoal.tls.authority import Held

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The directory of the CA.", show_default=False)]
Days = Annotated[int, typer.Option("--days", min=1, max=825, metavar="N", help="How long the certificates are valid.")]


def commands() -> typer.Typer:
    """The group of these commands."""
    group = typer.Typer(no_args_is_help=True, help="Make the certificates of a cluster, and show how long they last.")
    for command in (init, node, show):
        group.command()(command)
    return group


def init(
    directory: Directory,
    nodes: Annotated[
        list[str] | None,
        typer.Option(
            "--node",
            metavar="NAME[,NAME…]",
            help="Issue a certificate to a node, for these DNS names and IP addresses; may be repeated.",
        ),
    ] = None,
    days: Days = 365,
) -> None:
    """Make a certificate authority (CA) for a cluster, and a certificate for each node.

    DIR/ca.pem is for clients, DIR/NAME for the node; DIR/authority holds the CA's private key: keep it off the nodes.

    Example: shoal tls init ./tls --node n1,10.0.0.5 --node n2,10.0.0.6
    """
    from shoal.tls import authority

    now = datetime.now(UTC)
    asked = [_split(each) for each in nodes or []]
    try:
        for name, *others in asked:
            authority.check_node(name, others)
        made = [authority.found(directory, now=now)]
        made += [authority.issue(directory, name, others, now=now, days=days) for name, *others in asked]
    except ShoalError as error:
        raise failure(error.message) from None
    _print(made)
    note(f"keep {directory / 'authority'} off the nodes: whoever has it can make certificates.")
    for each in made[1:]:
        note(f"start the node with: shoal serve --tls {each.file.parent} …")


def node(
    directory: Directory,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME[,NAME…]", help="A node's DNS names and IP addresses.", show_default=False)
    ],
    days: Days = 365,
    renew: Annotated[
        bool, typer.Option("--renew", help="Replace the node's certificate and key; its names stay unless others are given.")
    ] = False,
) -> None:
    """Issue certificates to more nodes, or renew those of existing ones.

    Example: shoal tls node ./tls n4,10.0.0.8

    Example: shoal tls node ./tls n1 --renew
    """
    from shoal.tls import authority

    now = datetime.now(UTC)
    try:
        asked = [_split(each) for each in names]
        for name, *others in asked:
            authority.check_node(name, others)
        made = [authority.issue(directory, name, others, now=now, days=days, renew=renew) for name, *others in asked]
    except ShoalError as error:
        raise failure(error.message) from None
    _print(made)


def show(directory: Directory, json: Json = False) -> None:
    """List the certificates of a CA: for which names, and until when. The exit code is 1 if one of them cannot be used.

    Example: shoal tls show ./tls
    """
    from shoal.tls import authority

    try:
        listed = authority.held(directory, now=datetime.now(UTC))
    except ShoalError as error:
        raise failure(error.message) from None
    if json:
        for each in listed:
            certificate = each.certificate
            emit(
                {
                    "name": each.name,
                    "file": str(each.file),
                    "names": list(certificate.names),
                    "starts": certificate.starts,
                    "ends": certificate.ends,
                    "trouble": each.trouble,
                }
            )
    else:
        _print(listed)
    if any(each.trouble for each in listed):
        raise typer.Exit(FAILED)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()] or [text]


def _print(listed: list[Held]) -> None:
    from shoal.tls.authority import day

    rows = [
        [each.name, day(each.certificate.ends), ", ".join(each.certificate.names) or "-", str(each.file), each.trouble or "ok"]
        for each in listed
    ]
    table([["name", "until", "names", "file", "state"], *rows])
