"""An edit whose request reached several nodes that had not heard of each other: one of the edits counts.

Laws:
- Each node made an edit of its own, under a Yjs client id of its own, which it uses for its other edits too. Of the edits
  of one request the one with the least dot counts, on every replica, in any order of arrival.
- Elements and characters that the others inserted are deleted wherever both are known, and so are the shared types
  within them. Values that the others set at a key stay: all edits set the same, and the engine keeps one.
- Their deletions stay. If both edited the same content, they deleted the same.
- Once a compaction is stable that covers all edits of a request, no other one can arrive from a node that held the log
  throughout: if it had not heard of these, it had not heard of the compaction either. A directory that was set back may have
  forgotten them, and take the request again until its key has expired. After both, the request's rows go; what is to be
  deleted is in the merged update.

Rows, beside the document's others:
    P request₁₆       [[position₃₄, client, [[clock, length], …]], …]: the edits of a request, least dot first
    L client₈         request₁₆, …: the requests with several edits, of which this client made one
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator
from hashlib import sha256

import msgspec

from shoal.crdt.dot import DOT_BYTES
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation, StoreCorrupt
from shoal.kinds.document.state import yjs
from shoal.kinds.document.state.yjs import CLIENT_MAX, Struct
from shoal.records import NamedTuple

REQUEST_BYTES = 16
_REQUEST, _REPEATED = b"P", b"L"

Span = tuple[int, int]
"""Clock and length."""


class Attempt(msgspec.Struct, array_like=True, frozen=True):
    """An edit's description of itself, for the request that it was made for."""

    request: bytes  # The hash of its key.
    client: int  # The Yjs client id of the edit.
    spans: list[Span]  # Its insertions into sequences that existed before.


class Repeat(NamedTuple):
    """One of the edits of a request."""

    position: bytes
    client: int
    spans: list[Span]


def attempt(request_key: str, client: int, update: bytes) -> Attempt:
    """Describe an edit. `request_key` must be unique to a request and a document."""
    return Attempt(sha256(request_key.encode()).digest()[:REQUEST_BYTES], client, inserted(update, client))


def inserted(update: bytes, client: int) -> list[Span]:
    """The clocks of `client`'s insertions into sequences that this update does not make, in order, adjoining ones as one.

    What the client made in earlier updates was there before, as what others made.

    Raises:
        InvalidValue: `update` is no Yjs update.
    """
    steps = _inserted(yjs.parse(update), client, yjs.CLOCK_MAX)
    try:
        next(steps)
    except StopIteration as done:
        found: list[Span] = done.value
        return found
    raise AssertionError


def _inserted(parsed: yjs.Parsed, client: int, every: int) -> Generator[None, None, list[Span]]:
    spans: list[Span] = []
    clocks: list[int] = []
    outer: list[bool] = []  # Of each struct: whether its parent was there before.
    for struct in parsed.structs.get(client, []):
        is_outer = _is_outer(struct, client, clocks, outer)
        clocks.append(struct.clock)
        outer.append(is_outer)
        if len(clocks) % every == 0:
            yield
        if not is_outer or struct.keyed or not struct.content:
            continue
        if spans and sum(spans[-1]) == struct.clock:
            spans[-1] = spans[-1][0], spans[-1][1] + struct.length
        else:
            spans.append((struct.clock, struct.length))
    return spans


def _is_outer(struct: Struct, client: int, clocks: list[int], outer: list[bool]) -> bool:
    if struct.root is not None:
        return True
    if any(needed != client or not clocks or clock < clocks[0] for needed, clock in struct.needs):
        return True  # It is beside, or within, an item that was there before.
    if struct.inside or not struct.needs:
        return False
    # Its own siblings are in the same place.
    return outer[bisect_right(clocks, struct.needs[0][1]) - 1]


def checking(found: Attempt, parsed: yjs.Parsed, every: int) -> Generator[None, None, None]:
    """Check an edit's description, from a peer, in steps of so many items.

    Raises:
        BadOperation: it does not describe this update.
    """
    if len(found.request) != REQUEST_BYTES or not 0 <= found.client <= CLIENT_MAX:
        raise BadOperation("it names an impossible request or client", reason="content")
    if parsed.structs.keys() - {found.client} or found.spans != (yield from _inserted(parsed, found.client, every)):
        raise BadOperation("the insertions that it names are not those that it makes", reason="content")


def note(rows: Rows, stamp: Stamp, made: Attempt) -> None:
    """Write the rows of an edit."""
    row = _REQUEST + made.request
    repeats = {repeat.position: repeat for repeat in _unpack(rows.get(row))}
    repeats[stamp.pack_position()] = Repeat(stamp.pack_position(), made.client, made.spans)
    ordered = sorted(repeats.values(), key=_dot)
    rows.put(row, msgspec.msgpack.encode([tuple(repeat) for repeat in ordered]))
    if len(ordered) > 1:
        for client in {repeat.client for repeat in ordered}:
            repeated = _REPEATED + client.to_bytes(8, "big")
            requests = {*_requests(rows.get(repeated) or b""), made.request}
            rows.put(repeated, b"".join(sorted(requests)))


def is_repeated(rows: Rows, made: Attempt) -> bool:
    """Whether other edits of the same request are known."""
    return len(_unpack(rows.get(_REQUEST + made.request))) > 1


def deletes(rows: Rows, *, known: Callable[[bytes], bool]) -> Iterator[tuple[int, int, int]]:
    """Client, clock and length of each insertion to delete: those of edits that do not count, among edits at known positions.

    Raises:
        StoreCorrupt: a row cannot be read.
    """
    for request in sorted({request for _, packed in rows.scan(_REPEATED) for request in _requests(packed)}):
        repeats = [repeat for repeat in _unpack(rows.get(_REQUEST + request)) if known(repeat.position)]
        for repeat in repeats[1:]:
            for clock, length in repeat.spans:
                yield repeat.client, clock, length


def settled(rows: Callable[[], Rows], *, is_settled: Callable[[bytes], bool], requests_max: int) -> Iterator[list[bytes]]:
    """The requests whose edits are all at settled positions, at most so many at a time. `rows` returns the current rows.

    Raises:
        StoreCorrupt: a row cannot be read.
    """
    after: bytes | None = None
    while some := list(rows().scan(_REQUEST, after=after, limit=requests_max)):
        yield [row[1:] for row, packed in some if all(is_settled(repeat.position) for repeat in _unpack(packed))]
        after = some[-1][0]


def row_of(request: bytes) -> bytes:
    """The key of a request's row."""
    return _REQUEST + request


def forget(rows: Rows, requests: Iterable[bytes]) -> None:
    """Remove the rows of requests, of which no other edit can arrive."""
    for request in requests:
        repeats = _unpack(rows.get(_REQUEST + request))
        rows.delete(_REQUEST + request)
        for client in {repeat.client for repeat in repeats}:
            repeated = _REPEATED + client.to_bytes(8, "big")
            if left := {*_requests(rows.get(repeated) or b"")} - {request}:
                rows.put(repeated, b"".join(sorted(left)))
            else:
                rows.delete(repeated)


def _requests(packed: bytes) -> Iterator[bytes]:
    return (packed[at : at + REQUEST_BYTES] for at in range(0, len(packed), REQUEST_BYTES))


def _dot(repeat: Repeat) -> bytes:
    return repeat.position[8 : 8 + DOT_BYTES]


def _unpack(packed: bytes | None) -> list[Repeat]:
    if packed is None:
        return []
    try:
        return [Repeat(*each) for each in msgspec.msgpack.decode(packed, type=list[tuple[bytes, int, list[Span]]])]
    except ValueError as error:
        raise StoreCorrupt(
            f"the edits of a document's request cannot be read ({error}). Nothing was written; run `shoal verify`."
        ) from None
