"""An attacker who may write one value, seen from an agent that reads it: replies whose values are hostile.

`read_hostile` calls what reads, while the values in each reply are exchanged for what an attacker would store there.
The reader may return a value or raise an error: it runs no code.
"""

from __future__ import annotations

import base64
import dataclasses
import pickle
import random
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec

from shoal import values
from shoal.client.store import Store
from shoal.errors import ShoalError
from shoal.protocol.requests import Durability, R, Request, Write
from shoal.protocol.session import Wrapper
from tests.support.audited import RUNS_CODE, audited

CANARY = "tests.support.canary"


class _Pickled:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return __import__, (CANARY,)


_PICKLE = base64.b64encode(pickle.dumps(_Pickled())).decode()
PLAIN: list[Any] = [
    None,
    True,
    -1,
    2**63,
    float("nan"),
    "",
    "x" * 100_000,
    b"\x80\x04\x95",
    pickle.dumps(_Pickled()),
    _PICKLE,
    [],
    {},
    {"": None},
    [[[[[[[[]]]]]]]],
    "[" * 5000,
    "[" * 100_000,
    '{"a":' * 100_000,
    "{",
    "NaN",
    "1" * 10_000,
    f"!!python/object/apply:importlib.import_module ['{CANARY}']",
    f"__import__('{CANARY}')",
    {"py/object": CANARY, "py/reduce": [CANARY]},
    {"lc": 2, "type": "constructor", "id": ["tests", "support", "canary", "Canary"], "args": [], "kwargs": {}},
    {"__pickled__": _PICKLE, "__type__": "builtins:object"},
    {"__pickled__": _PICKLE, "__type__": f"{CANARY}:Canary"},
    {"__class__": CANARY, "__module__": CANARY, "__init__": {}},
    {"$ref": "file:///etc/passwd"},
    {"type": CANARY, "kind": CANARY, "role": {"nested": 1}},
]


def lied(found: Any, drawn: random.Random) -> Any:
    """A reply or a part of one, with something hostile in the place of some of its values."""
    if isinstance(found, bytes):
        try:
            value = values.decode(found)
        except ShoalError:
            return drawn.choice([b"", b"\xc1", b"\xdd\xff\xff\xff\xff", found[:-1]]) if drawn.random() < 0.1 else found
        return values.encode(_changed(value, drawn)) if drawn.random() < 0.7 else found
    if isinstance(found, msgspec.Struct):
        return msgspec.structs.replace(found, **{name: lied(getattr(found, name), drawn) for name in found.__struct_fields__})
    if isinstance(found, list):
        return [lied(each, drawn) for each in found]
    if isinstance(found, dict):
        return {name: lied(each, drawn) for name, each in found.items()}
    return found


def _changed(value: Any, drawn: random.Random) -> Any:
    """A value with one of its parts exchanged."""
    if isinstance(value, dict) and value and drawn.random() < 0.85:
        name = drawn.choice(list(value))
        return {**value, name: _changed(value[name], drawn)}
    if isinstance(value, list) and value and drawn.random() < 0.85:
        at = drawn.randrange(len(value))
        return [*value[:at], _changed(value[at], drawn), *value[at + 1 :]]
    return drawn.choice(PLAIN)


class Lying(Wrapper):
    """A session in which another agent has overwritten what is read."""

    drawn: random.Random | None = None  # None while it tells the truth.

    async def call(
        self, request: Request[R], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> R:
        """See `Session.call`."""
        reply = await self._session.call(request, key=key, durability=durability, stale=stale)
        if self.drawn is None or isinstance(request, Write):
            return reply
        found: R = lied(reply, self.drawn)
        return found


def lying(store: Store) -> Lying:
    """The store's session, exchanged for one that can lie. Call it before handles are made of the store."""
    session = Lying(store.connection.session)
    object.__setattr__(store.connection, "session", session)
    assert dataclasses.is_dataclass(store.connection)
    return session


async def read_hostile(session: Lying, reading: Callable[[], Awaitable[Any]], *, rounds: int = 200) -> None:
    """Read again and again, each time with other hostile values."""
    read = 0
    for seed in range(-3, rounds):
        # Frameworks import parts of themselves late, and not only where all goes well: the first rounds are not judged.
        session.drawn = random.Random(seed) if seed != -3 else None
        with audited(RUNS_CODE, everywhere=True) as seen, suppress(Exception):
            await reading()
            read += 1
        session.drawn = None
        assert read, "without an attacker it cannot be read either"
        assert seed < 0 or seen == [], f"seed {seed}"
        assert CANARY not in sys.modules, f"seed {seed}"
