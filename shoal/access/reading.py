"""The log of who read what: a journal, so that it is chained, signed, replicated and kept like everything else.

Law: an answer is given only once its note is durable here. If it cannot be noted, nothing is read.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from shoal import values
from shoal.access.bearer import Bearer
from shoal.access.needs import action_of, needs, parts
from shoal.config import Config
from shoal.names import RESERVED
from shoal.protocol.requests import Append, Request, SetRetention
from shoal.protocol.session import Session

READS = "reads"
"""The thread of the space `RESERVED` whose journal is the log."""


class ReadLog:
    """The log of one node. `session` is the node's own."""

    def __init__(self, session: Session, *, config: Config) -> None:
        self._session = session
        self._patterns = [each.strip() for each in config.audit_reads.split(",") if each.strip()]
        self._keep_ms = int(config.audit_keep_s * 1000)
        self._is_bounded = False

    async def note(self, bearer: Bearer, request: Request[Any]) -> None:
        """Note what is about to be read, if it is in a space whose reads are logged.

        Raises:
            ShoalError: it could not be noted. Nothing may be read.
        """
        reads = [read for part in parts(request) if (read := self._read(part)) is not None]
        if reads:
            event = {"by": bearer.token.author, "token": bearer.token.id, "reads": reads}
            await self._session.call(Append(RESERVED, READS, values.encode(event, where="read")))
            await self._bound()

    def _read(self, request: Request[Any]) -> list[str] | None:
        """The request's tag, space and object, if it reads where reads are logged."""
        kind = type(request)
        if action_of(kind) != "read":
            return None
        spaces = {need.space for need in needs(request)}
        space = next((space for space in spaces if any(fnmatchcase(space, each) for each in self._patterns)), None)
        if space is None:
            return None
        name = getattr(request, kind.__struct_fields__[1]) if len(kind.__struct_fields__) > 1 else ""
        return [str(kind.__struct_config__.tag), space, name if isinstance(name, str) else ""]

    async def _bound(self) -> None:
        if not self._is_bounded:
            bound = SetRetention(RESERVED, READS, older_than_ms=self._keep_ms)
            await self._session.call(bound, key=f"keep-{READS}-{self._keep_ms}")
            self._is_bounded = True
