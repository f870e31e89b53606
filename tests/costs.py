"""What each request costs a node at its largest legal input, measured: `python -m tests.costs [TAG …]` prints a table.

Laws:
- The requests come from the declarations, so a new one is in the table without being named here. Each is made large in every
  way that the types of its fields allow, up to `BYTES` of packed request, on objects that the writes before it made large.
- `hold` is the longest time in which the loop did nothing else; it includes the request's packing and checking, as at a door.
- `memory` is by how much the process grew beyond what it held before, at its peak.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from shoal.config import Config
from shoal.errors import ShoalError
from shoal.node.environment import system_environment
from shoal.node.node import open_node
from shoal.protocol import requests
from shoal.protocol.frames import decode_request
from shoal.protocol.requests import Request, Subscription
from shoal.protocol.session import Session
from tests.access.requests_of_each_kind import kinds, made

BYTES = 15 * 1024 * 1024  # Of a request of 16 MiB.
HOLD_MS, MEMORY_MIB = 50.0, 256.0  # The targets.
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
    inner = get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
    origin = get_origin(inner)
    if inner is bytes:
        yield from values().items()
    elif inner is str:
        yield "a long text", "x" * (BYTES // 4)
    elif origin is list:
        one = value[0] if value else _one(get_args(inner)[0])
        if one is not None:
            size = max(1, len(msgspec.msgpack.encode(one)))
            yield "many", [one] * (BYTES // size // 2)
    elif origin is dict and get_args(inner)[0] is str:
        packed = msgspec.msgpack.encode(1)
        if bytes in (get_args(inner)[1], *get_args(get_args(inner)[1])):
            yield "many", {f"c{nth}": packed for nth in range(100_000)}
            for how, found in values().items():
                yield f"one, {how}", {"c": found}


def _one(kind: Any) -> Any:
    inner = get_args(kind)[0] if hasattr(kind, "__metadata__") else kind
    return {str: "n", int: 1, bytes: msgspec.msgpack.encode(1)}.get(inner)


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
    tests = [{"op": "test", "path": "/m/s", "value": "x"}] * 1000
    yield "patch: 1,000 tests", requests.Patch("s", "hard", patch(*tests))


async def measured(session: Session, name: str, request: Request[Any]) -> Cost:
    """Send it as a client's frame is taken, and watch the loop meanwhile."""
    packed = msgspec.msgpack.encode(request)
    gc.collect()
    _reset_peak()
    before = _memory_kib("VmRSS")
    watching, longest = True, 0.0

    async def watch() -> None:
        nonlocal longest
        last = perf_counter()
        while watching:
            await asyncio.sleep(0)
            now = perf_counter()
            longest, last = max(longest, now - last), now

    watcher = asyncio.create_task(watch())
    await asyncio.sleep(0)
    outcome = "answered"
    try:
        async with asyncio.timeout(_SECONDS):
            reply = await session.call(decode_request(packed))
            msgspec.msgpack.encode(reply)
    except ShoalError as error:
        outcome = error.code
    except TimeoutError:
        outcome = "no answer"
    await asyncio.sleep(0)
    watching = False
    await watcher
    peak = _memory_kib("VmHWM")
    return Cost(name, len(packed), longest * 1000, max(0, peak - before) / 1024, outcome)


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
        node = await open_node(Path(directory), config=config, environment=system_environment(), is_embedded=True)
        try:
            session = node.session()
            for name, request in hard():
                found[name] = await measured(session, name, request)
            ordered = sorted(kinds(), key=lambda kind: issubclass(kind, requests.Read))
            for kind in ordered:
                tag = str(kind.__struct_config__.tag)
                if issubclass(kind, Subscription) or not wanted(tag):
                    continue
                for how, request in large(kind, "s"):
                    cost = await measured(session, f"{tag} ({how})" if how else tag, request)
                    known = found.get(tag)
                    if known is None or cost.hold_ms > known.hold_ms:
                        found[tag] = cost._replace(memory_mib=max(cost.memory_mib, known.memory_mib if known else 0.0))
        finally:
            await node.stop()
    return sorted(found.values(), key=lambda cost: -cost.hold_ms)


def table(costs: list[Cost]) -> str:
    """The costs as they stand in the page."""
    lines = [
        "| request, and what is large in it | bytes | longest hold of the loop, ms | memory, MiB | outcome |",
        "|---|--:|--:|--:|---|",
    ]
    lines += [
        f"| {cost.name} | {cost.size:,} | {cost.hold_ms:.0f} | {cost.memory_mib:.0f} | {cost.outcome} |" for cost in costs
    ]
    return "\n".join(lines)


def main(names: list[str]) -> None:
    """Measure the requests of these tags, or all; all take many minutes."""
    costs = asyncio.run(measure(lambda tag: not names or tag in names))
    text = table(costs)
    above = [cost for cost in costs if cost.hold_ms > HOLD_MS or cost.memory_mib > MEMORY_MIB]
    said = f"{len(costs)} requests; {len(above)} above {HOLD_MS:.0f} ms or {MEMORY_MIB:.0f} MiB."
    print(f"{text}\n\n{said}")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
