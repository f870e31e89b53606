"""Forks of streams: a stream that begins with what another one had up to an offset, without a copy of it."""

from __future__ import annotations

from dataclasses import replace

from shoal.errors import Conflict, InvalidInput
from shoal.protocol.session import Session
from shoal.workflows.streams import record as chain
from shoal.workflows.streams.decisions import Create, StreamGone, absence, messages
from shoal.workflows.streams.record import Fork, Offset, State, media_type


async def forked(
    session: Session,
    space: str,
    command: Create,
    source: str,
    at: Offset | None,
    sub: int,
    *,
    now_ms: int,
    depth_max: int,
) -> Create:
    """The command to create a fork of `source`, at its end unless an offset is given.

    With `sub`, so many bytes or messages of the append after the offset are copied. What the command does not say is taken
    from the source: its content type, and its lifetime.

    Raises:
        NotFound: there is no such source.
        Conflict: it was deleted, or has another content type.
        InvalidInput: it has no such position, or is the end of too many forks of forks.
        NoQuorum: too few nodes can be reached.
    """
    head = await chain.caught_up(session, space, source)
    state, absent = head.state, absence(head.state, now_ms, head.touched_ms, source)
    if isinstance(absent, StreamGone):
        raise Conflict(absent.message)
    if absent is not None:
        raise absent
    assert state is not None
    if command.content_type is not None and media_type(command.content_type) != media_type(state.content_type):
        raise Conflict(
            f"stream {source!r} is {state.content_type!r}, so a fork of it cannot be {command.content_type[:80]!r}. "
            "Nothing was written."
        )
    place = state.tail if at is None else at
    chain.check(state, place)
    depth = 1 if state.fork is None else state.fork.depth + 1
    if depth > depth_max:
        raise InvalidInput(
            f"stream {source!r} is a fork of forks, {depth_max} deep. Nothing was written. Fork one of its sources.",
            field="Stream-Forked-From",
        )
    prefix = None
    if sub:
        part = await chain.read(session, space, source, state, place, committed=head.committed, bytes_max=1)
        prefix = _first(part.entries, sub, state)
    lasts = command.ttl_s is not None or command.expires_ms is not None
    return replace(
        command,
        content_type=command.content_type or state.content_type,
        ttl_s=command.ttl_s if lasts else state.ttl_s,
        expires_ms=command.expires_ms if lasts else state.expires_ms,
        fork=Fork(source, state.incarnation, place, sub, depth),
        fork_is_named=at is not None,
        prefix=prefix,
    )


def _first(entries: list[bytes], count: int, state: State) -> bytes:
    """The first bytes, or messages, of the first of these appends."""
    entry = entries[0] if entries else b""
    parts = messages(b"[" + entry + b"]") if state.is_json else None
    if count > len(entry if parts is None else parts):
        raise InvalidInput(
            "Stream-Fork-Sub-Offset is beyond the append after Stream-Fork-Offset. Nothing was written.",
            field="Stream-Fork-Sub-Offset",
        )
    return entry[:count] if parts is None else b",".join(parts[:count])
