"""Tiering of a space: a rule is set, and unset.

Law: an address is recorded only once the serving node has written, read and deleted an object there.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from shoal.errors import BackupUnreachable, InvalidInput
from shoal.kinds.tiering import state
from shoal.kinds.tiering.state import Rule
from shoal.names import RESERVED, check_name
from shoal.protocol.base import Http, Named, Seconds
from shoal.protocol.requests import Durability, PutEntry, ReadTiering, TieringView, TryTiering
from shoal.workflows.connection import Connection, Flow

IDLE_MS_MIN = 60_000


async def set_rule(
    connection: Connection,
    space: str,
    url: str,
    idle_ms: int,
    *,
    files: bool = False,
    dry_run: bool = False,
    durability: Durability | None = None,
) -> TieringView:
    """Have idle threads of a space moved to an address from now on. Returns the rule as the node knows it then.

    With `files`, files go as soon as they are put, and stay there when they are read; if `idle_ms` is 0, nothing else goes.

    With `dry_run` nothing is recorded, and the answer counts what would move.

    Raises:
        InvalidInput: it is no address, the time is out of range, or the operator does not allow the address.
        BackupUnreachable: the serving node cannot write, read and delete there. Nothing was recorded.
        Unsupported: a library is not installed.
    """
    check_name("space", space)
    if space == RESERVED:
        raise InvalidInput(f"{RESERVED!r} is the space of the nodes themselves, and stays where it is. Nothing was written.")
    if not (IDLE_MS_MIN <= idle_ms < state.IDLE_MS_MAX or (files and idle_ms == 0)):
        raise InvalidInput(
            f"idle must be at least {IDLE_MS_MIN // 1000} s, or left out for files alone. Nothing was written.", field="idle"
        )
    tried = await connection.read(TryTiering(space, url, idle_ms if dry_run else 0, files and dry_run))
    if dry_run:
        return tried
    return await _record(connection, Rule(space, url, idle_ms, files=files), durability)


async def unset_rule(connection: Connection, space: str, *, durability: Durability | None = None) -> TieringView:
    """Have nothing moved any more, and all that is in the object store come back. Returns what the node knows then."""
    return await _record(connection, Rule(check_name("space", space), "", 0), durability)


async def _record(connection: Connection, rule: Rule, durability: Durability | None) -> TieringView:
    entry = PutEntry(RESERVED, state.RULES, state.key_of(rule.space), state.packed(rule))
    await connection.write(entry, key=None, durability=durability)
    return await connection.read(ReadTiering(rule.space))


class SetTiering(Flow[TieringView], frozen=True):
    """Have the chunks of a space's idle threads moved to an object store, by all nodes."""

    http: ClassVar = (
        Http(
            "PUT",
            "/tiering",
            "Set where a space's idle threads go",
            errors=(BackupUnreachable,),
            example={"url": "file:///mnt/cold", "idle_s": 2_592_000},
        ),
    )

    space: str
    url: str  # s3://BUCKET/PREFIX, gs://…, az://… or file:///DIR, for each node's own credentials.
    idle_ms: Annotated[Seconds, Named("idle_s")] = 0  # At least a minute; without it files alone go.
    files: bool = False  # Files go as soon as they are put, and stay there when they are read.
    dry_run: bool = False  # Only try the address, and count what would move now.

    async def run(self, connection: Connection, *, key: str | None, durability: Durability) -> TieringView:
        """Try the address, record the rule, and read it as the serving node knows it then."""
        return await set_rule(
            connection, self.space, self.url, self.idle_ms, files=self.files, dry_run=self.dry_run, durability=durability
        )


class UnsetTiering(Flow[TieringView], frozen=True):
    """Have nothing moved any more, and all chunks come back, on all nodes."""

    http: ClassVar = (Http("DELETE", "/tiering", "Bring all of a space back, or with `dry_run` show what would come back"),)

    space: str
    dry_run: bool = False  # Only show what is away.

    async def run(self, connection: Connection, *, key: str | None, durability: Durability) -> TieringView:
        """Record that, and read what is still away."""
        if self.dry_run:
            return await connection.read(ReadTiering(check_name("space", self.space)))
        return await unset_rule(connection, self.space, durability=durability)
