"""Random histories of several Yjs clients, made by Yjs itself, and what Yjs shows of them.

They edit at any UTF-16 position, also between the two units of a character: see histories.mjs.
"""

from __future__ import annotations

import json
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from shoal.errors import NotReady
from shoal.kinds.document.state import yjs
from shoal.kinds.document.state.document import RootKind
from shoal.kinds.document.state.live import LiveDocument
from tests.clients.js.conftest import NODE

_PROGRAM = Path(__file__).with_suffix(".mjs")
Id = tuple[int, int]
A, B = 100, 7  # Yjs client ids.
ROOTS: dict[str, RootKind] = {"t": "text", "m": "map", "a": "array", "x": "xml"}


class History(NamedTuple):
    """What several clients did."""

    seed: int
    updates: list[bytes]  # In an order in which they happened.
    merged: list[bytes]  # The same in the same order, some merged into one by Yjs.
    whole: list[bytes]  # What one client has at the end, as one update: perhaps split or joined only there.
    shown: dict[str, Any]  # By a Yjs document that received the updates in this order.


def generated(seed: int, count: int) -> Iterator[History]:
    """The histories of so many seeds, made by one process."""
    for line in _run(["generate", str(seed), str(count)]):
        told = json.loads(line)
        yield History(told["seed"], _bytes(told["updates"]), _bytes(told["merged"]), _bytes(told["whole"]), told["shown"])


def shown_by_yjs(updates: Iterable[bytes]) -> list[dict[str, Any]]:
    """What Yjs shows of each update."""
    given = "".join(b64encode(update).decode() + "\n" for update in updates)
    return [json.loads(line) for line in _run(["show"], given)]


def shown_by(content: dict[str, Any]) -> dict[str, Any]:
    """The content of a document here, in the form that Yjs is asked for."""
    return {
        "t": content.get("t", ""),
        "m": [[key, text] for key, text in sorted(content.get("m", {}).items())],
        "a": content.get("a", []),
        "x": [
            text if isinstance(text, str) else "".join(run["insert"] for run in text["text"]) for text in content.get("x", [])
        ],
    }


def document(**built: Any) -> LiveDocument:
    return LiveDocument(bytes_max=1 << 20, roots_max=8, roots=ROOTS, **built)


def delivered(updates: Sequence[bytes], take: Callable[[bytes], object]) -> None:
    """Give updates to `take`, those that are not ready again after the others."""
    while updates:
        early = []
        for update in updates:
            try:
                take(update)
            except NotReady:
                early.append(update)
        assert len(early) < len(updates)
        updates = early


def typed(text: str, clock: int, *, client: int = B, origin: Id | None = None, right: Id | None = None) -> bytes:
    """An update with one string in the text `t`."""
    packed = b"\x01\x01" + yjs.pack_varuint(client) + yjs.pack_varuint(clock)
    packed += bytes([4 | (0x80 if origin else 0) | (0x40 if right else 0)])
    for of, at in filter(None, (origin, right)):
        packed += yjs.pack_varuint(of) + yjs.pack_varuint(at)
    if origin is None and right is None:
        packed += b"\x01\x01t"
    return packed + yjs.pack_varuint(len(text.encode())) + text.encode() + b"\x00"


def deleted(client: int, clock: int, length: int) -> bytes:
    """An update that only deletes."""
    return b"\x00" + yjs.pack_delete_set([(client, clock, length)])


def shuffled(updates: Sequence[bytes], random: Random) -> list[bytes]:
    return random.sample(updates, len(updates))


def _run(arguments: Sequence[str], given: str = "") -> list[str]:
    assert NODE is not None
    ran = subprocess.run([NODE, str(_PROGRAM), *arguments], input=given, capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()


def _bytes(packed: Sequence[str]) -> list[bytes]:
    return [b64decode(each) for each in packed]
