"""What one operation of a peer costs a node at its largest legal form, and beyond it: `python -m tests.peer_costs`.

Laws:
- The kinds of changes come from the appliers, so a new one is measured without being named here. Each is made large in every
  field by itself, up to the bounds of an operation: elements of one change, changes of one operation, bytes beside them.
- `hold` is as in `tests.costs`: the longest computing of the loop's thread without a turn for others. A node with a directory
  on disk takes the operation as from a link, so its log, rows and sync are what they are in production.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from time import thread_time
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
import pycrdt

from shoal.cluster import messages, operation
from shoal.cluster.messages import Push, Shipment, Trouble
from shoal.cluster.operation import CHAIN_START, Body
from shoal.cluster.peering import Identity
from shoal.config import Config
from shoal.crdt.applier import NOTHING, Blobs
from shoal.crdt.dot import COUNTER_BITS, Dot, Origin
from shoal.kinds.document.state import yjs
from shoal.kinds.document.state.document import Update
from shoal.kinds.schema import state as schema
from shoal.node import mutation
from shoal.node.environment import system_environment
from shoal.node.handler import Target
from shoal.node.mutation import Mutation
from shoal.node.node import Node, open_node
from shoal.node.transaction import pack_blobs
from shoal.storage.keys import Kind

HOLD_MS = 50.0
PEER = Identity(b"b" * 16, "127.0.0.1:2", "costs")
_BYTES = 12 * 1024 * 1024
_CONFIG = Config(listen_port=0, stop_timeout_s=2.0, advertise="127.0.0.1:1", join="127.0.0.1:1,127.0.0.1:2")


class Made(NamedTuple):
    """One operation, and what is large in it."""

    how: str
    kind: Kind
    changes: list[Any]
    besides: list[Blobs]


class Outlet:
    """Keeps what the node complains of."""

    waiting_bytes = 0
    address = PEER.name

    def __init__(self) -> None:
        self.troubles: list[Trouble] = []

    def offer(self, message: bytes, /) -> bool:
        found = messages.decode(messages.unstamped(message)[1])
        if isinstance(found, Trouble):
            self.troubles.append(found)
        return True


def _value(hint: Any, nth: int, name: str = "") -> Any:
    """A small value of this type; `nth` makes it another one."""
    inner = get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
    origin, parts = get_origin(inner), get_args(inner)
    if origin in (Union, UnionType):
        return _value(parts[0], nth, name)
    if origin is tuple and (len(parts) != 2 or parts[1] is not ...):
        return tuple(_value(part, nth) for part in parts)
    if origin in (tuple, list):
        return () if origin is tuple else []
    if origin is dict:
        return {}
    if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
        hints = get_type_hints(inner)
        return inner(**{field: _value(hints[field], nth, field) for field in inner.__struct_fields__})
    if inner is bytes:
        return msgspec.msgpack.encode(nth) if name in ("value", "element", "") else nth.to_bytes(16, "big")
    if inner is str:
        return f"k{nth:06d}"
    return {int: 1, bool: False, float: 0.5}.get(inner)


def _many(hint: Any, count: int) -> Any:
    """So many elements of a list's type; None: it is none."""
    inner = get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
    if get_origin(inner) in (Union, UnionType):
        return next((found for part in get_args(inner) if (found := _many(part, count)) is not None), None)
    if get_origin(inner) is dict:
        key, value = get_args(inner)
        return {_value(key, nth): _value(value, nth) for nth in range(count)}
    parts = get_args(inner)
    if get_origin(inner) is list or (get_origin(inner) is tuple and len(parts) == 2 and parts[1] is ...):
        return get_origin(inner)(_value(parts[0], nth) for nth in range(count))
    return None


def _large(kind: Kind, of: type[msgspec.Struct]) -> Iterator[Made]:
    hints = get_type_hints(of)
    base = _value(of, 1)
    for field in of.__struct_fields__:
        for count in (64, 1000, 4096, 16_384, 50_000):  # The last is beyond all bounds.
            grown = _many(hints[field], count)
            if grown is not None:
                yield Made(f"{field}: {count:,}", kind, [msgspec.structs.replace(base, **{field: grown})], [NOTHING])
        if hints[field] is bytes and field in ("value", "update", "content"):
            for what, value in (("numbers", [1] * (_BYTES // 2)), ("names", {f"k{n}": n for n in range(_BYTES // 32)})):
                packed = msgspec.msgpack.encode(value)
                yield Made(f"{field}: {what}", kind, [msgspec.structs.replace(base, **{field: packed})], [NOTHING])
    yield Made(
        "4,096 changes", kind, [_value(of, nth) for nth in range(mutation.CHANGES_MAX)], [NOTHING] * mutation.CHANGES_MAX
    )


def _listed(client: int, count: int) -> bytes:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=client)
    doc.get("l", type=pycrdt.Array).extend([1.5] * count)
    return doc.get_update()


def _one_by_one(client: int, count: int) -> bytes:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=client)
    items = doc.get("l", type=pycrdt.Array)
    for nth in range(count):
        items.insert(0, nth)
    return doc.get_update()


def _hard() -> Iterator[Made]:
    """Documents and schemas, whose bytes are beside their changes."""
    updates = [_listed(100 + nth, 200) for nth in range(mutation.CHANGES_MAX)]
    yield Made(
        "4,096 updates",
        Kind.DOCUMENT,
        [Update(sha256(u).digest(), {"l": "array"}) for u in updates],
        [Blobs(u) for u in updates],
    )
    walked = [_one_by_one(100 + nth, 300) for nth in range(1000)]
    yield Made(
        "1,000 updates of 300 items",
        Kind.DOCUMENT,
        [Update(sha256(u).digest(), {"l": "array"}) for u in walked],
        [Blobs(u) for u in walked],
    )
    one = _one_by_one(7, yjs.STRUCTS_MAX - 10)
    yield Made("one update of 4,000 items", Kind.DOCUMENT, [Update(sha256(one).digest(), {"l": "array"})], [Blobs(one)])
    run = b"\x01\x01\x05\x00\x08\x01\x01l" + yjs.pack_varuint(2_000_000) + b"\x7c\x3f\xc0\x00\x00" * 2_000_000 + b"\x00"
    yield Made("one update of 2 million values", Kind.DOCUMENT, [Update(sha256(run).digest(), {"l": "array"})], [Blobs(run)])
    contents = [schema.encode(schema.Content(b'{"maxLength": %d}' % nth)) for nth in range(mutation.CHANGES_MAX)]
    yield Made(
        "4,096 schemas", Kind.SCHEMA, [schema.Put(1, sha256(c).digest()) for c in contents], [Blobs(c) for c in contents]
    )
    large = schema.encode(schema.Content(b'{"a": [' + b"[]," * 3_000_000 + b"1]}"))
    yield Made("one schema of 9 MB", Kind.SCHEMA, [schema.Put(1, sha256(large).digest())], [Blobs(large)])


def all_made() -> Iterator[tuple[str, Made]]:
    """Every operation, with its name."""
    kinds: dict[Any, Any] = mutation._APPLIERS
    for of, applier in kinds.items():
        tag = str(of.__struct_config__.tag)
        for made in _large(applier.kind, of):
            yield tag, made
    for made in _hard():
        yield made.kind.label, made


class _Bench:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._numbers = 0
        self.outlet = Outlet()
        assert node.replicator is not None
        self._replicator = node.replicator
        self._replicator.admit(PEER)
        self._replicator.linked(PEER, self.outlet)

    async def measured(self, made: Made) -> tuple[float, str]:
        """The longest hold in ms, and what came of it."""
        self._numbers += 1
        origin = Origin(self._numbers.to_bytes(8, "big") + b"l" * 8)
        name = f"{{n{self._numbers}}}"
        same = made.how.startswith(("one ", "4,096 updates", "1,000 updates"))
        number = Target(made.kind, "crew", name).partition
        changes = [
            Mutation(made.kind, "crew", name if same or len(made.changes) == 1 else f"{name}{nth}", change)
            for nth, change in enumerate(made.changes)
        ]
        now_ms = system_environment().now_ms()
        packed = operation.encode(Body(now_ms << COUNTER_BITS, now_ms, [], None, mutation.encode(changes)))
        dot = Dot(origin, 1)
        shipment = Shipment(number, *dot, operation.chain(CHAIN_START, number, dot, packed), packed, pack_blobs(made.besides))
        message = messages.encode(Push([shipment]))
        del changes, packed, shipment
        gc.collect()
        gc.freeze()
        watching, longest = True, 0.0

        async def watch() -> None:
            nonlocal longest
            last = thread_time()
            while watching:
                await asyncio.sleep(0)
                now = thread_time()
                longest, last = max(longest, now - last), now

        before = len(self.outlet.troubles)
        watcher = asyncio.create_task(watch())
        await asyncio.sleep(0)
        await self._replicator.received(PEER, message)
        while self._replicator._deliveries.is_ahead(PEER.node):
            await asyncio.sleep(0)
        await asyncio.sleep(0.02)
        watching = False
        await watcher
        troubles = self.outlet.troubles[before:]
        return longest * 1000, troubles[0].message[-90:] if troubles else "applied"


async def measure(names: list[str]) -> list[tuple[float, str, str, str]]:
    """The costliest first: ms, kind of change, what is large, outcome. Each kind has a node of its own."""
    found: list[tuple[float, str, str, str]] = []
    for tag, some in groupby(all_made(), lambda each: each[0]):
        if names and tag not in names:
            continue
        with tempfile.TemporaryDirectory(prefix="shoal-costs-") as directory:
            node = await open_node(Path(directory), config=_CONFIG, environment=system_environment(), is_embedded=False)
            try:
                bench = _Bench(node)
                for _, made in some:
                    costs = [await bench.measured(made)]
                    while costs[-1][0] > HOLD_MS / 2 and len(costs) < 3:
                        costs.append(await bench.measured(made))
                    found.append((min(costs)[0], tag, made.how, costs[0][1]))
            finally:
                await node.stop()
    return sorted(found, reverse=True)


def main(names: list[str]) -> None:
    """Print what the operations of these kinds of changes cost, or of all."""
    for ms, tag, how, outcome in asyncio.run(measure(names)):
        print(f"{ms:7.1f}  {tag} ({how}): {outcome}")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
