"""`shoal token`: make the tokens with which clients and people are let in, list them, and revoke them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.access.bearer import TOKEN_BYTES_MAX, TOKEN_GRANTS_MAX
from shoal.cli.arguments import age_of, file_text
from shoal.cli.execution import FAILED, Data, Json, Target, Url, chosen, execute, failure, opened
from shoal.cli.output import emit, line, moment, note, pairs, table
from shoal.config import Config
from shoal.errors import InvalidInput, ShoalError

if TYPE_CHECKING:
    from shoal.access.keys import Issued

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The directory of the keys.", show_default=False)]
_DEFAULTS = Config()


def commands() -> typer.Typer:
    """The group of these commands."""
    group = typer.Typer(no_args_is_help=True, help="Make the tokens that let clients in, list and revoke them.")
    for command in (init, create, inspect, revoke, rotate):
        group.command()(command)
    group.command("list")(list_tokens)
    return group


def init(directory: Directory) -> None:
    """Make the keys of a cluster's tokens.

    DIR/keys.json is for the nodes. DIR/signing holds the private key: keep it off the nodes.

    Example: shoal token init ./tokens
    """
    from shoal.access import keys

    try:
        keys.found(directory)
    except ShoalError as error:
        raise failure(error.message) from None
    line(str(directory / keys.KEYS))
    note(f"keep {directory / 'signing'} off the nodes: whoever has it can make tokens.")
    note(f"start the nodes with: shoal serve --token-keys {directory / keys.KEYS} …")


def create(
    directory: Directory,
    author: Annotated[
        str, typer.Argument(metavar="AUTHOR", help="The name that its holder's writes carry.", show_default=False)
    ],
    allow: Annotated[
        list[str],
        typer.Option(
            "--allow",
            metavar="GRANT",
            help="SPACE:ACTIONS or SPACE:FAMILIES:ACTIONS, as in 'crew-*:thread,items:read,append'; may be repeated.",
        ),
    ],
    lasts: Annotated[str, typer.Option("--lasts", metavar="AGE", help="How long it is valid, as in 12h or 90d.")] = "30d",
    cluster: Annotated[
        str, typer.Option("--cluster", metavar="NAME", help="The cluster that it is for: the nodes' setting `cluster`.")
    ] = _DEFAULTS.cluster,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write it to a new file that you alone can read. \\[default: print it]"),
    ] = None,
) -> None:
    """Make a token. It is shown once, and kept nowhere.

    Actions are read, append, write (which includes append), admin (which includes these); impersonate: to name other
    authors; and reveal: to see secret fields of what it may read. Families are kinds of objects, such as thread, document
    or items; leave them out for all. docs/ACCESS.md.

    Example: shoal token create ./tokens planner --allow 'crew-*:read,write' --out planner.token

    Example: shoal token create ./tokens ops --allow '*:admin' --lasts 12h --out ops.token
    """
    from shoal.access import grants, keys
    from shoal.names import check_name

    try:
        wanted = [grants.parsed(each) for each in allow]
        grants.check_count(wanted, TOKEN_GRANTS_MAX)
        if out is not None and out.exists():
            raise InvalidInput(f"{out} exists. Nothing was written. Choose another file, or remove it.")
        token, text = keys.issue(
            directory,
            check_name("author", author),
            wanted,
            cluster=cluster,
            now_s=time.time(),
            lasts_s=age_of(lasts).total_seconds(),
            entropy=os.urandom,
            bytes_max=TOKEN_BYTES_MAX,
        )
    except ShoalError as error:
        raise failure(error.message) from None
    for grant in token.grants:
        if ":" in grant.space and grant.families == ["*"]:
            note(f"{grant.space!r} is taken as a space's name, because the word behind its colon is no family.")
    if out is None:
        line(text)
    else:
        _write(out, text)
    note(f"token {token.id} of {token.author} is valid until {_until(token.ends_s)}.")


def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file with a token; - is standard input.", show_default=False)],
    keys: Annotated[
        Path | None, typer.Option("--keys", metavar="FILE", help="The nodes' public keys: check that they accept it.")
    ] = None,
    cluster: Annotated[
        str, typer.Option("--cluster", metavar="NAME", help="The cluster that it is for: the nodes' setting `cluster`.")
    ] = _DEFAULTS.cluster,
    json: Json = False,
) -> None:
    """Show what a token says. With --keys the exit code is 1 if nodes with these keys would not accept it.

    Example: shoal token inspect planner.token --keys ./tokens/keys.json
    """
    from shoal.access import gate
    from shoal.access import keys as files

    try:
        text = file_text(file).strip()
        token = gate.unverified(text, grants_max=TOKEN_GRANTS_MAX)
        state = "not verified"
        if keys is not None:
            known = files.load(str(keys), cluster=cluster)
            state = _verdict(text, known)
    except ShoalError as error:
        raise failure(error.message) from None
    told = {**token.told(), "state": state}
    if json:
        emit(told)
    else:
        told |= {name: _until(told[name]) for name in ("begins", "ends")}
        pairs({name: ", ".join(part) if isinstance(part, list) else part for name, part in told.items()})
    if keys is not None and state != "valid":
        raise typer.Exit(FAILED)


def list_tokens(directory: Directory, data: Data = None, url: Url = None, json: Json = False) -> None:
    """List the tokens that were made with these keys. With --url or --data also which of them are revoked.

    Example: shoal token list ./tokens --url https://127.0.0.1:7400
    """
    from shoal.access import keys

    asked = data is not None or url is not None
    try:
        found = keys.issued(directory)
        revoked = execute(_revoked(chosen(data, url, environment=os.environ))) if asked else set()
    except ShoalError as error:
        raise failure(error.message) from None
    now_s = time.time()
    states = [(each, "revoked" if each.id in revoked else "expired" if now_s >= each.ends else "valid") for each in found]
    if json:
        for each, state in states:
            emit({**_shown(each), "state": state})
        return
    rows = [[each.id, each.author, _until(each.ends), ", ".join(_grants(each)), state] for each, state in states]
    table([["id", "author", "until", "grants", "state"], *rows])


def revoke(
    directory: Directory,
    ids: Annotated[
        list[str], typer.Argument(metavar="ID…", help="The ids of tokens, as `list` shows them.", show_default=False)
    ],
    data: Data = None,
    url: Url = None,
) -> None:
    """Revoke tokens: the node that is asked refuses them at once, and tells the others. It takes a token with `admin`.

    Example: shoal token revoke ./tokens 1f0c… --url https://127.0.0.1:7400
    """
    from shoal.access import keys

    try:
        known = {each.id: each for each in keys.issued(directory)}
        unknown = [id for id in ids if id not in known]
        if unknown:
            raise InvalidInput(
                f"{directory} has no token {unknown[0][:80]!r}. Nothing was written. `shoal token list {directory}` shows "
                "their ids."
            )
        execute(_revoke(chosen(data, url, environment=os.environ), {id: known[id].ends for id in ids}))
    except ShoalError as error:
        raise failure(error.message) from None
    for id in ids:
        line(id)


def rotate(
    directory: Directory,
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="Drop all former keys: all tokens of theirs end. For a key that was stolen.")
    ] = False,
) -> None:
    """Sign with a new key from now on. Former public keys stay in DIR/keys.json while tokens of theirs are valid.

    Copy DIR/keys.json to all nodes before you make tokens: they load it when it changes.

    Example: shoal token rotate ./tokens
    """
    from shoal.access import keys

    try:
        made, dropped = keys.rotate(directory, now_s=time.time(), withdraw=withdraw)
    except ShoalError as error:
        raise failure(error.message) from None
    line(made)
    for each in dropped:
        note(f"the key {each} was dropped.")
    note(f"copy {directory / keys.KEYS} to all nodes before you make tokens.")


async def _revoke(target: Target, ends: dict[str, int]) -> None:
    from shoal.access.grants import REVOKED
    from shoal.names import RESERVED

    async with opened(target) as store:
        for id, ends_s in ends.items():
            await store.space(RESERVED).map(REVOKED).set(id, ends_s)


async def _revoked(target: Target) -> set[str]:
    from shoal.access.grants import REVOKED
    from shoal.names import RESERVED

    async with opened(target) as store:
        return {entry.key async for entry in store.space(RESERVED).map(REVOKED).entries()}


def _verdict(text: str, known: Any) -> str:
    from shoal.access import gate

    try:
        gate.verified(
            text,
            {known.issuer: known},
            now_s=time.time(),
            bytes_max=TOKEN_BYTES_MAX,
            grants_max=TOKEN_GRANTS_MAX,
        )
    except ShoalError as error:
        return error.message.partition(". ")[0]
    return "valid"


def _write(file: Path, text: str) -> None:
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise failure(f"{file} cannot be written: {error.strerror}. The token is lost: revoke it, and make another.") from None
    with os.fdopen(descriptor, "w") as opened_file:
        opened_file.write(text + "\n")


def _grants(each: Issued) -> Sequence[str]:
    from shoal.access.grants import shown

    return [shown(grant) for grant in each.grants]


def _shown(each: Issued) -> dict[str, Any]:
    return {
        "id": each.id,
        "author": each.author,
        "cluster": each.cluster,
        "key": each.key,
        "begins": each.begins,
        "ends": each.ends,
        "grants": _grants(each),
    }


def _until(seconds: float) -> str:
    return moment(int(seconds * 1000))
