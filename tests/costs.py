"""What each request costs a node at its largest legal input, measured: `python -m tests.costs` writes docs/COSTS.md.

With tags, as in `python -m tests.costs batch save`, it prints the rows of these requests, and writes nothing.

Laws:
- The requests come from the declarations, so a new one is in the table without being named here. Each is made large in every
  way that the types of its fields allow, on objects that the writes before it made large: each list and map has as many
  elements as its declaration and a page allow, of small and of large ones, and then far more, up to `BYTES` of packed request;
  cursors have the most bytes that any answer's has, and then more. Of each request the page has the costliest form that is
  within its bounds, and the costliest that is refused for its form.
- `hold` is the longest computing of the loop's thread in which it did nothing else; it includes the request's packing and
  checking, as at a door. It is the thread's own time, so that other work on the machine does not count.
- What is above the target is measured three times, and the least counts: the node's own upkeep runs beside the requests.
- `memory` is by how much the process grew beyond what it held before, at its peak.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from time import thread_time
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
import pycrdt

from shoal.config import Config
from shoal.crdt.dot import DOT_BYTES, Origin, VersionVector
from shoal.errors import ShoalError
from shoal.kinds.list.requests import InsertElements
from shoal.names import NAME_BYTES_MAX
from shoal.node.environment import system_environment
from shoal.node.node import open_node
from shoal.protocol import requests
from shoal.protocol.base import CURSOR_BYTES_MAX, FEW_MAX, Shape
from shoal.protocol.frames import decode_request, decode_subscription
from shoal.protocol.requests import Request, Subscription
from shoal.protocol.session import Session
from tests.access.requests_of_each_kind import _value, kinds, made

BYTES = 15 * 1024 * 1024  # Of a request of 16 MiB.
HOLD_MS, MEMORY_MIB = 50.0, 256.0  # The targets.
MALFORMED = frozenset({"too-large", "invalid-input", "invalid-name", "invalid-value"})
"""The errors by which a request is refused for its form."""
PAGE_MAX = Config().page_items_max
_SECONDS = 60.0


class Cost(NamedTuple):
    """One request as it was measured."""

    name: str
    size: int  # Packed.
    hold_ms: float
    memory_mib: float
    outcome: str


@cache
def values() -> dict[str, bytes]:
    """Packed values that are large in one way each."""
    pack = msgspec.msgpack.encode
    return {
        "one text": pack("x" * BYTES),
        "many numbers": pack([1] * (BYTES // 2)),
        "many lists": pack([[]] * (BYTES // 8)),
        "a deep list": b"\x91" * 900 + b"\x01",
        "many names": pack({f"k{nth}": nth for nth in range(BYTES // 32)}),
    }


def large(kind: type[Request[Any]], space: str) -> Iterator[tuple[str, Request[Any]]]:
    """The request as it is, and made large in each field by itself."""
    base = made(kind, space)
    yield "", base
    hints = get_type_hints(kind, include_extras=True)
    for field in kind.__struct_fields__:
        if field == "space":
            continue
        for how, value in _grown(hints[field], getattr(base, field)):
            yield f"{field}: {how}", msgspec.structs.replace(base, **{field: value})


def _grown(hint: Any, value: Any) -> Iterator[tuple[str, Any]]:
    if get_origin(hint) in (Union, UnionType):
        for part in get_args(hint):
            yield from _grown(part, None if isinstance(value, bool | bytes) else value)
        return
    yield from _within(hint, value)
    yield from _beyond(hint, value)


def most_of(hint: Any) -> int | None:
    """The most elements of a list or map, or bytes of a cursor, as its annotation says; None: it says none."""
    marks = getattr(hint, "__metadata__", ())
    if Shape.CURSOR in marks:
        return CURSOR_BYTES_MAX
    return next((mark.max_length for mark in marks if isinstance(mark, msgspec.Meta) and mark.max_length), None)


def _within(hint: Any, value: Any) -> Iterator[tuple[str, Any]]:
    """The largest that its declaration and a page allow."""
    inner = get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
    most, origin, parts = most_of(hint), get_origin(inner), get_args(inner)
    if most is None:
        return
    if inner is bytes:
        dots = range(1, most // DOT_BYTES + 1)
        yield f"{most:,} bytes of a vector", VersionVector({Origin(nth.to_bytes(16, "big")): 1 for nth in dots}).pack()
        yield f"{most:,} bytes", b"\xc6" + (most - 5).to_bytes(4, "big") + bytes(most - 5)
        return
    for count in dict.fromkeys((most, min(most, PAGE_MAX))):
        if origin is dict:
            keys = (f"c{nth}" if parts[0] is str else nth for nth in range(count))
            yield f"{count:,}", dict(zip(keys, _elements(parts[1], None, count), strict=True))
        elif origin is list:
            one = value[0] if value else None
            yield f"{count:,}", _elements(parts[0], one, count)
            large = _elements(parts[0], one, count, size=BYTES // count)
            if large:
                yield f"{count:,}, large", large


def _elements(hint: Any, one: Any, count: int, *, size: int = 0) -> list[Any]:
    """So many elements, each another one; with a `size` they have about so many bytes each, or are none if they cannot."""
    inner = get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
    if get_origin(inner) is Literal:
        return [] if size else [get_args(inner)[nth % len(get_args(inner))] for nth in range(count)]
    if inner is bytes:
        is_value = Shape.VALUE in getattr(hint, "__metadata__", ()) or one is not None
        pack = msgspec.msgpack.encode
        return [
            pack(f"{nth:06d}" + "x" * max(0, size - 20)) if size or is_value else pack(nth).rjust(32, b"h")
            for nth in range(count)
        ]
    if inner is str:
        return [f"{nth:06d}" + "n" * max(0, min(size, NAME_BYTES_MAX) - 6) for nth in range(count)]
    if get_origin(inner) is tuple:  # Labels, or what to match, and a key.
        labels = ["n"] * (FEW_MAX if size else 1)
        return [
            tuple(labels if get_origin(_bare(part)) is list else _elements(part, None, nth + 1)[-1] for part in get_args(inner))
            for nth in range(count)
        ]
    if one is None and isinstance(inner, type) and issubclass(inner, msgspec.Struct):
        one = _value(inner)
    if isinstance(one, msgspec.Struct) and not size:
        return [_another(one, nth) for nth in range(count)]
    return []


def _bare(hint: Any) -> Any:
    return get_args(hint)[0] if hasattr(hint, "__metadata__") else hint


def _another(one: msgspec.Struct, nth: int) -> msgspec.Struct:
    """The same, with another name, number or value; of a write or read within another one the same."""
    if isinstance(one, Request):
        return one
    for field in one.__struct_fields__:
        value = getattr(one, field)
        if field != "space" and isinstance(value, str | bytes | int) and not isinstance(value, bool):
            other: Any = f"k{nth}" if isinstance(value, str) else nth if isinstance(value, int) else msgspec.msgpack.encode(nth)
            return msgspec.structs.replace(one, **{field: other})
    return one


def _beyond(hint: Any, value: Any) -> Iterator[tuple[str, Any]]:
    """Far more than any bound."""
    inner = get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
    origin = get_origin(inner)
    if inner is bytes:
        yield from values().items()
    elif inner is str:
        yield "a long text", "x" * (BYTES // 4)
    elif origin is list:
        for one in value[:1] if value else _elements(get_args(inner)[0], None, 1):
            size = max(1, len(msgspec.msgpack.encode(one)))
            yield "many", [one] * (BYTES // size // 2)
    elif origin is dict and get_args(inner)[0] is int:
        yield "many", dict.fromkeys(range(100000), "n")
    elif origin is dict and get_origin(get_args(inner)[1]) is Literal:
        yield "many", {f"c{nth}": get_args(get_args(inner)[1])[0] for nth in range(100_000)}
    elif origin is dict and get_args(inner)[0] is str:
        packed = msgspec.msgpack.encode(1)
        if bytes in (get_args(inner)[1], *get_args(get_args(inner)[1])):
            yield "many", {f"c{nth}": packed for nth in range(100_000)}
            for how, found in values().items():
                yield f"one, {how}", {"c": found}


def hard() -> Iterator[tuple[str, Request[Any]]]:
    """Requests that are expensive by what their parts make of each other."""

    def patch(*operations: dict[str, Any]) -> bytes:
        return json.dumps(operations).encode()

    text = {"t": "a" * 1000}
    yield "begin document", requests.Begin("s", "hard", json.dumps({**text, "m": {"a": {"x": [1] * 100}}}).encode())
    yield "replace: repeating letters", requests.Replace("s", "hard", json.dumps({"t": "ab" * 500}).encode())
    yield "replace: 10,000 values", requests.Replace("s", "hard", json.dumps({"l": list(range(9_900))}).encode())
    yield "replace: one text of 4 MiB", requests.Replace("s", "hard", json.dumps({"m": {"s": "x" * (4 << 20)}}).encode())
    copies = [{"op": "copy", "from": "/m/s", "path": f"/m/k{nth}"} for nth in range(300)]
    yield "patch: copies of 4 MiB", requests.Patch("s", "hard", patch(*copies))
    doubling = [{"op": "copy", "from": "/l", "path": "/l/-"} for _ in range(30)]
    yield "patch: copies that double", requests.Patch("s", "hard", patch(*doubling))
    yield "replace: 1,700 lists", requests.Replace("s", "lists", json.dumps({"l": [[]] * 1700}).encode())
    yield "replace: 9,900 lists", requests.Replace("s", "lists", json.dumps({"l": [[]] * 9900}).encode())
    more = [{"op": "add", "path": "/l/0", "value": []} for _ in range(500)]
    for _ in range(8):
        yield "patch: 500 lists", requests.Patch("s", "lists", patch(*more))
    yield "read-document-json: 5,700 lists", requests.ReadDocumentJson("s", "lists")
    for update in put_before(5):
        yield "updates: 4,000 values before each other", requests.Updates("s", "before", [update])
    yield "updates: 60,000 values in one item", requests.Updates("s", "packed", [of_nulls(60_000)])
    yield "updates: 15 MiB of values", requests.Updates("s", "packed", [of_nulls(BYTES)])
    yield "read-document-json: 20,000 values before each other", requests.ReadDocumentJson("s", "before")
    far = [{"op": "replace", "path": f"/l/{19_999 - nth}", "value": -1} for nth in range(1000)]
    yield "patch: 1,000 far into 20,000 values", requests.Patch("s", "before", patch(*far))
    yield (
        "replace: 5,000 keys",
        requests.Replace("s", "keys", json.dumps({"m": dict.fromkeys(map(str, range(5000)), 1)}).encode()),
    )
    yield (
        "replace: 9,900 keys",
        requests.Replace("s", "keys", json.dumps({"m": dict.fromkeys(map(str, range(9900)), 2)}).encode()),
    )
    tests = [{"op": "test", "path": "/m/s", "value": "x"}] * 1000
    yield "patch: 1,000 tests", requests.Patch("s", "hard", patch(*tests))
    pack = msgspec.msgpack.encode
    lists = b"\xdd" + (2_000_000).to_bytes(4, "big") + b"\x90" * 2_000_000
    yield "search-items: a filter of many lists", requests.SearchItems("s", "n", [], filter=b"\x81\xa1a" + lists)
    altered: list[Any] = [
        requests.AlterSet("s", f"{{s}}{nth}", [pack(1000 * nth + each) for each in range(1000)]) for nth in range(1024)
    ]
    yield "batch: 1,024 alterations of sets", requests.Batch(altered)
    yield "batch: the most elements", requests.Batch(altered[:16])
    ones = [pack(1)] * 1000
    yield (
        "batch: 16 insertions of 1,000 elements",
        requests.Batch([InsertElements("s", f"{{s}}{nth}", ones) for nth in range(16)]),
    )
    yield "batch: 1,024 saves", requests.Batch([requests.Save("s", f"{{s}}{nth}", {"c": pack(1)}) for nth in range(1024)])
    yield (
        "batch: 1,024 keys of a map",
        requests.Batch([requests.PutEntry("s", "{s}m", f"{nth}", pack(1)) for nth in range(1024)]),
    )
    yield "batch: 1,024 counters", requests.Batch([requests.Add("s", f"{{s}}{nth}", 1) for nth in range(1024)])
    yield "batch: 1,000 adds to a key", requests.Batch([requests.AddEntry("s", "{s}adds", "k", 1) for _ in range(1000)])
    ids = [f"{nth:064x}" for nth in range(512)]
    yield "discard: 512 that are not there", requests.Discard("s", "{s}0", ids)
    yield "announce: 1,000", requests.Announce("s", "", [requests.Present(nth, 1, b"{}") for nth in range(1000)])
    schema = {"properties": {"c": {"items": {"allOf": [{"type": ["number", "string"]}] * 1000}}}}
    yield "put-schema: 1,000 alternatives", requests.PutSchema("s", "hard", 1, json.dumps(schema).encode(), "hard-*")
    yield "save: 1,000 looks at each value", requests.Save("s", "hard-1", {"c": pack([1] * 100_000)})
    yield "save: one look at each value", requests.Save("s", "plain", {"c": pack([1] * 1_000_000)})


async def least(session: Session, name: str, request: Request[Any]) -> Cost:
    """The request as it is measured, or the least of three if that is above the target: the node's upkeep does not count."""
    found = await measured(session, name, request)
    for _ in range(2 * (found.hold_ms > HOLD_MS)):
        await asyncio.sleep(0.1)
        found = min(found, await measured(session, name, request), key=lambda cost: cost.hold_ms)
    return found


async def measured(session: Session, name: str, request: Request[Any]) -> Cost:
    """Send it as a client's frame is taken, and watch the loop meanwhile."""
    packed = msgspec.msgpack.encode(request)
    gc.unfreeze()
    gc.collect()
    gc.freeze()  # What the measurements before left does not count.
    _reset_peak()
    before = _memory_kib("VmRSS")
    watching, longest = True, 0.0

    async def watch() -> None:
        nonlocal longest
        last = thread_time()
        while watching:
            await asyncio.sleep(0)
            now = thread_time()
            longest, last = max(longest, now - last), now

    watcher = asyncio.create_task(watch())
    await asyncio.sleep(0)
    outcome = "answered"
    try:
        async with asyncio.timeout(_SECONDS):
            if isinstance(request, Subscription):
                async with session.subscribe(decode_subscription(packed)):
                    pass
            else:
                msgspec.msgpack.encode(await session.call(decode_request(packed)))
    except ShoalError as error:
        outcome = error.code
    except TimeoutError:
        outcome = "no answer"
    await asyncio.sleep(0)
    watching = False
    await watcher
    peak = _memory_kib("VmHWM")
    return Cost(name, len(packed), longest * 1000, max(0, peak - before) / 1024, outcome)


def put_before(updates: int) -> Iterator[bytes]:
    """Updates of a Yjs client that puts 4,000 values before each other, one by one, into a list."""
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=5)
    items = doc.get("l", type=pycrdt.Array)
    for _ in range(updates):
        before = doc.get_state()
        for number in range(4000):
            items.insert(0, number)
        yield doc.get_update(before)


def of_nulls(many: int) -> bytes:
    """An update that puts so many nulls into a list, as one item: one byte for each."""
    length = b"".join(bytes([many >> shift & 0x7F | 0x80]) for shift in range(0, 28, 7)) + bytes([many >> 28])
    return b"\x01\x01\x07\x00\x08\x01\x01l" + length + b"\x7e" * many + b"\x00"


def _memory_kib(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


async def measure(wanted: Callable[[str], bool]) -> list[Cost]:
    """The costliest form of each request, by time; writes come before reads, so that there is something to read."""
    config = Config(listen_port=0, stop_timeout_s=2.0)
    found: dict[str, Cost] = {}
    with tempfile.TemporaryDirectory(prefix="shoal-costs-") as directory:
        node = await open_node(Path(directory), config=config, environment=system_environment(), is_embedded=False)
        try:
            session = node.session()
            for name, request in hard():
                if wanted(name.split(":")[0]) or name.startswith("begin"):
                    found[name] = await measured(session, name, request)  # Again, it would find it done.
            ordered = sorted(kinds(), key=lambda kind: issubclass(kind, requests.Read))
            for kind in ordered:
                tag = str(kind.__struct_config__.tag)
                if not wanted(tag):
                    continue
                for how, request in large(kind, "s"):
                    cost = await least(session, f"{tag} ({how})" if how else tag, request)
                    place = f"{tag} refused" if cost.outcome in MALFORMED else tag
                    known = found.get(place)
                    if known is None or cost.hold_ms > known.hold_ms:
                        found[place] = cost._replace(memory_mib=max(cost.memory_mib, known.memory_mib if known else 0.0))
        finally:
            await node.stop()
    return sorted(found.values(), key=lambda cost: -cost.hold_ms)


PAGE = Path(__file__).parent.parent / "docs" / "COSTS.md"
_HEAD = f"""# What requests cost at most

For planning limits and for judging what a hostile client can do: how long one request, as large as a node accepts it, keeps
all others waiting, and how much memory it takes. Requests of everyday size cost a small part of that. The names are those of
[REQUESTS.md](REQUESTS.md), and the dearest come first.

`python -m tests.costs` makes each declared request as large as its types allow, in every field by itself, sends it to a node
with objects of that size, and writes this page; it takes some tens of minutes. Each list is tried with as many elements as its
declaration allows, and with far more. A row is the costliest form of one request that is within its bounds, or the costliest
that is refused, with the field that was large in brackets; without brackets, as `read-budget`, the request is small and the
object that it reads is large. Where a colon follows the request's name, as in `batch: 1,024 counters`, its parts are expensive
by what they make of each other. *Bytes* is the size of the request. *Outcome* is `answered`, or the [error](ERRORS.md) with
which it was refused: to refuse costs something, too. *Hold* is the longest computing of the loop's thread without a turn for
others, on two cores; *memory* is by how much the process grew. The targets are {HOLD_MS:.0f} ms and
{MEMORY_MIB:.0f} MiB; what is above, and what limits it, is in [decision 0124](decisions/0124-work-is-charged.md). The bounds
behind the figures are in [PROTOCOL.md](PROTOCOL.md#the-requests) and [CONFIGURATION.md](CONFIGURATION.md). Over HTTP a value
is JSON, which is converted in steps.

"""


def tag_of(name: str) -> str:
    """The tag of the request in a row."""
    return name.split(" ")[0].rstrip(":")


def table(costs: list[Cost]) -> str:
    """The costs as they stand in the page."""
    lines = ["| request, and what is large in it | bytes | hold, ms | memory, MiB | outcome |", "|---|--:|--:|--:|---|"]
    lines += [
        f"| `{cost.name}` | {cost.size:,} | {cost.hold_ms:.0f} | {cost.memory_mib:.0f} | {cost.outcome} |" for cost in costs
    ]
    return "\n".join(lines)


def rows(page: str) -> dict[str, tuple[float, float]]:
    """The figures of a page, in ms and MiB, by the name in the row."""
    found = re.findall(r"^\| `([^`]+)` \| [\d,]+ \| (\d+) \| (\d+) \|", page, re.MULTILINE)
    return {name: (float(hold), float(memory)) for name, hold, memory in found}


def outcomes(page: str) -> dict[str, str]:
    """What came of each request of a page, by the name in the row."""
    return dict(re.findall(r"^\| `([^`]+)` \| [\d,]+ \| \d+ \| \d+ \| ([^|]+) \|", page, re.MULTILINE))


def main(names: list[str]) -> None:
    """Measure the requests of these tags, or all; all take many minutes."""
    costs = asyncio.run(measure(lambda tag: not names or tag in names))
    above = [cost for cost in costs if cost.hold_ms > HOLD_MS or cost.memory_mib > MEMORY_MIB]
    said = f"{len(costs)} rows; {len(above)} above {HOLD_MS:.0f} ms or {MEMORY_MIB:.0f} MiB."
    text = f"{table(costs)}\n\n{said}\n"
    if names:
        print(text)  # noqa: T201
    else:
        PAGE.write_text(_HEAD + text)


if __name__ == "__main__":
    main(sys.argv[1:])
