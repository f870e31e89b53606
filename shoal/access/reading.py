"""The log of who read what: a journal, so that it is chained, signed, replicated and kept like everything else.

Laws:
- An answer is given only once its note is durable here. If it cannot be noted, nothing is read.
- Requests are noted if they disclose content, as its declaration says, and not what is called a read: the answer of a claim
  or of a step says what is stored, too. What is not of one space, such as a page of a log, is noted whatever the spaces are.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from shoal import values
from shoal.access.bearer import Bearer
from shoal.access.needs import discloses, family_of, needs, parts
from shoal.config import Config
from shoal.names import RESERVED
from shoal.protocol.declared import declaration_of
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

    def covers(self, request: Request[Any]) -> bool:
        """Whether `note` would note something."""
        return any(self._read(part) is not None for part in parts(request))

    def _read(self, request: Request[Any]) -> list[str] | None:
        """The request's tag, space and object, if it discloses content where reads are logged."""
        kind = type(request)
        if not discloses(kind):
            return None
        everywhere = declaration_of(kind).discloses and family_of(kind) == "cluster"
        spaces = {"*"} if everywhere else {need.space for need in needs(request)}
        space = next((each for each in spaces if everywhere or any(fnmatchcase(each, one) for one in self._patterns)), None)
        if space is None:
            return None
        name = getattr(request, kind.__struct_fields__[1]) if len(kind.__struct_fields__) > 1 else ""
        return [str(kind.__struct_config__.tag), space, name if isinstance(name, str) else ""]

    async def _bound(self) -> None:
        if not self._is_bounded:
            bound = SetRetention(RESERVED, READS, older_than_ms=self._keep_ms)
            await self._session.call(bound, key=f"keep-{READS}-{self._keep_ms}")
            self._is_bounded = True
