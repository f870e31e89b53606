"""The session of a bearer: the one place through which every request of a client goes, and where it is decided.

Laws:
- A request that is not granted never reaches the session inside, and says that nothing was written.
- A push is delivered only while the token counts.
- A read in a space whose reads are logged is noted before it is answered.
- Secret parts of a state are hidden from a bearer that may not reveal them.
- A list of spaces shows those in which anything is granted.
- What a space holds is told as sums to whoever may read its quota; names of objects only to those who may list them.

Replies as a bearer without the right to reveal sees them: the one place that hides secret parts of states.

Laws:
- Every reply that carries a state, or a hash of one, is in the table here; a test finds those that are not.
- A secret part is `HIDDEN`, whatever it is. The hash of a channel with secret parts is replaced by one that says nothing of its
  content, and that differs from checkpoint to checkpoint, so that readers who compare hashes read the channel.
- The pointers to secret fields, and what they do not cover, stay as they are.

The log of who read what: a journal, so that it is chained, signed, replicated and kept like everything else.

Laws:
- An answer is given only once its note is durable here. If it cannot be noted, nothing is read.
- Requests are noted if they disclose content, as its declaration says, and not what is called a read: the answer of a claim
  or of a step says what is stored, too. What is not of one space, such as a page of a log, is noted whatever the spaces are.
- The object is noted that a request names, and not what somebody looks for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any, cast

from msgspec import structs
from msgspec.structs import replace

from shoal import values
from shoal.access.bearer import Bearer
from shoal.access.grants import FAMILIES, KINDS, discloses, family_of, needs, parts
from shoal.config import Config
from shoal.names import RESERVED
from shoal.protocol.base import declaration_of
from shoal.protocol.requests import (
    AnyRequest,
    Append,
    Checkpoint,
    Checkpoints,
    Delta,
    Durability,
    Explained,
    Growth,
    Labelled,
    Labels,
    ListSpaces,
    MultiRead,
    MultiReply,
    Names,
    Push,
    R,
    Reply,
    Request,
    SetRetention,
    SpaceUsageView,
    Subscription,
)
from shoal.protocol.session import Prompt, Session, Told, Wrapper
from shoal.schemas import secret_fields

Reveals = Callable[[str, str], bool]
"""(space, family) → whether the bearer may see secret parts."""
Reads = Callable[[str, str], bool]
"""(space, family) → whether the bearer may read."""


def shown(request: Request[Any], reply: Any, reveals: Reveals) -> Any:
    """The reply to a request, with secret parts hidden unless the bearer may see them."""
    if type(reply) is MultiReply and isinstance(request, MultiRead):
        return MultiReply([shown(part, each, reveals) for part, each in zip(request.reads, reply.replies, strict=True)])
    hide = HIDING.get(type(reply))
    if hide is None or all(reveals(need.space, need.family) for need in needs(request)):
        return reply
    return hide(reply)


def _checkpoint(found: Checkpoint) -> Checkpoint:
    if not found.secret:
        return found
    return replace(
        found,
        channels={name: secret_fields.hidden_channel(found.secret, name, packed) for name, packed in found.channels.items()},
        hashes={
            name: _blank(found.id, name) if secret_fields.is_secret(found.secret, name) else digest
            for name, digest in found.hashes.items()
        },
    )


def _checkpoints(found: Checkpoints) -> Checkpoints:
    return replace(found, items=[_checkpoint(each) for each in found.items])


def _labels(found: Labels) -> Labels:
    items = [Labelled(each.label, _checkpoint(each.checkpoint), each.notes) for each in found.items]
    return replace(found, items=items)


def _delta(found: Delta) -> Delta:
    secret = found.checkpoint.secret
    appended = {
        name: Growth(more.at, secret_fields.hidden_elements(secret, name, more.at, more.elements))
        for name, more in found.appended.items()
    }
    return Delta(_checkpoint(found.checkpoint), appended)


def _explained(found: Explained) -> Explained:
    return replace(found, checkpoint=_checkpoint(found.checkpoint), earlier=[_checkpoint(each) for each in found.earlier])


def _blank(id: str, channel: str) -> str:
    return sha256(f"{id}/{channel}".encode()).hexdigest()


HIDING: Mapping[type[Reply], Callable[[Any], Reply]] = {
    Checkpoint: _checkpoint,
    Checkpoints: _checkpoints,
    Labels: _labels,
    Delta: _delta,
    Explained: _explained,
}


def _usage(found: SpaceUsageView, reads: Reads) -> SpaceUsageView:
    """The view of a space, without the names of objects that the bearer may not list. Prefixes are of all kinds together."""
    allowed = {kind for kind in KINDS if reads(found.space, kind)}
    largest = [each for each in found.largest if each.kind in allowed]
    return replace(found, largest=largest, prefixes=found.prefixes if len(allowed) == len(KINDS) else [])


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
        # The second field names the object, unless the request is about many: then it may be what somebody looks for.
        field = next(iter(kind.__struct_fields__[1:2]), "")
        return [str(kind.__struct_config__.tag), space, getattr(request, field) if field in FAMILIES else ""]

    async def _bound(self) -> None:
        if not self._is_bounded:
            bound = SetRetention(RESERVED, READS, older_than_ms=self._keep_ms)
            await self._session.call(bound, key=f"keep-{READS}-{self._keep_ms}")
            self._is_bounded = True


class Guarded(Wrapper):
    """A `Session` whose requests a bearer may make."""

    __slots__ = ("_bearer", "_prompt", "_reads")

    def __init__(self, session: Session, bearer: Bearer, reads: ReadLog | None = None) -> None:
        """`reads` logs what is read; None: nobody does."""
        super().__init__(session)
        self._reads = reads
        self._prompt = session if isinstance(session, Prompt) else None
        self._bearer = bearer

    async def call(
        self, request: Request[R], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> R:
        """Answer `request` (`Session.call`).

        Raises:
            Unauthenticated, Forbidden: it may not be made. Nothing was written.
        """
        granted = self._bearer.check(request)
        if type(granted) is ListSpaces:
            return cast("R", await self._spaces(granted))
        if self._reads is not None:
            await self._reads.note(self._bearer, granted)
        reply: R = await self._session.call(granted, key=key, durability=durability, stale=stale)
        if isinstance(reply, SpaceUsageView):
            return cast("R", _usage(reply, self._bearer.reads))
        return cast("R", shown(granted, reply, self._bearer.reveals))

    def begin(
        self,
        request: AnyRequest,
        told: Told,
        /,
        *,
        key: str | None = None,
        durability: Durability = "local",
        stale: bool = False,
    ) -> bool:
        """Begin `request`, and call `told` with its answer, now or later (`Prompt.begin`); False if the session inside is not a
        `Prompt`.

        Raises:
            Unauthenticated, Forbidden: it may not be made. Nothing was written.
        """
        if self._prompt is None:
            return False
        granted = self._bearer.check(request)
        if self._reads is not None and self._reads.covers(granted):
            return False  # It is noted before, which takes a turn of its own: `call` does.
        return self._prompt.begin(granted, told, key=key, durability=durability, stale=stale)

    @asynccontextmanager
    async def subscribe(self, subscription: Subscription, /) -> AsyncIterator[AsyncIterator[Push]]:
        """Deliver pushes until the context is left (`Session.subscribe`); the pushes end with an error when the token does.

        Raises:
            Unauthenticated, Forbidden: it may not be made.
        """
        granted: Any = self._bearer.check(subscription)
        if self._reads is not None:
            await self._reads.note(self._bearer, granted)
        async with self._session.subscribe(granted) as pushes:
            yield self._valid(pushes)

    async def _valid(self, pushes: AsyncIterator[Push]) -> AsyncIterator[Push]:
        async for push in pushes:
            self._bearer.check_valid()
            yield push

    async def _spaces(self, request: ListSpaces) -> Names:
        """A page of the spaces that the bearer may see; it is empty only if there are no more."""
        while True:
            page = await self._session.call(request)
            names = [name for name in page.names if self._bearer.see(name)]
            if names or not page.more:
                return Names(names, page.more)
            request = structs.replace(request, after=page.names[-1])
