"""Where a durable run is: which thread its steps belong to, and which keys they have.

Laws:
- A run that is repeated gives each step the key that it had before, also where tools ran side by side: the steps of a run,
  and those within a step, are counted apart, by what they do, and calls of tools by their ids.
- A key is never longer than a step's key may be; a longer one is replaced by its hash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from typing import Any

from shoal.errors import InvalidInput
from shoal.integrations.escaping import escaped, unsafe
from shoal.kinds.thread.handle.thread import Thread
from shoal.names import KEY_BYTES_MAX, check_key

_UNSAFE = unsafe()
_HASHED = "…"
"""Before the hash that stands for a key that would be too long."""


class Place:
    """The steps of one run, or those within one step."""

    def __init__(self, thread: Thread, prefix: str, *, arguments: Any = None) -> None:
        self.thread = thread
        self.prefix = prefix
        self.arguments = arguments  # Of the first request to a model: what the run was asked.
        self.failed = ""  # The key of a request to a model that has failed; empty if the last one has not.
        self._used: Counter[str] = Counter()

    def key(self, what: str) -> str:
        """The key of the next step that does this."""
        return _bounded(f"{self.prefix}/{self._numbered(what)}")

    def within(self, what: str, *, arguments: Any = None) -> Place:
        """The place of a run that begins here."""
        return Place(self.thread, self.key(what), arguments=arguments)

    def _numbered(self, what: str) -> str:
        what = escaped(what, _UNSAFE)
        number = self._used[what]
        self._used[what] += 1
        return f"{what}.{number}" if number else what


_here: ContextVar[Place | None] = ContextVar("shoal_pydantic_place", default=None)


def here() -> Place | None:
    """The place of this code; None outside of `durable`."""
    return _here.get()


@contextmanager
def at(place: Place) -> Iterator[None]:
    """Run the block at a place."""
    token = _here.set(place)
    try:
        yield
    finally:
        _here.reset(token)


@contextmanager
def durable(thread: Thread, key: str) -> Iterator[None]:
    """`with durable(thread, key="order-17"):` runs of agents that have `ShoalDurability` are durable in the block.

    Their requests to models and calls of tools are steps of the thread. If the program dies, run the block again, with the
    same thread and key, in whatever process and on whatever node: what is done is not done again. `key` names the work, and
    is at most 255 bytes of text; the block must run the same agents, in the same order, with the same prompts.

    Raises:
        InvalidInput: `thread` is not a thread of an asynchronous store. Nothing was written.
        InvalidName: `key` is empty, too long, or holds control characters. Nothing was written.
    """
    if not isinstance(thread, Thread):
        raise InvalidInput(
            f"durable needs a thread, as from store.space(…).thread(…); got {type(thread).__name__}. Nothing was written."
        )
    with at(Place(thread, check_key("key of a durable run", key))):
        yield


def _bounded(key: str) -> str:
    packed = key.encode()
    return key if len(packed) <= KEY_BYTES_MAX else _HASHED + sha256(packed).hexdigest()
