"""The handle of a register."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from shoal import values
from shoal.client.arguments import Deletable, named
from shoal.client.connection import StoreConnection
from shoal.names import check_name
from shoal.protocol import requests
from shoal.protocol.requests import Durability
from shoal.workflows.connection import moment


@dataclass(frozen=True, slots=True)
class RegisterState:
    """The result of a read. Pass `version` back as `expect`."""

    siblings: tuple[Any, ...]  # The values, the latest first; several if they were set concurrently.
    version: str  # It changes with the values; empty if it was never set.

    @property
    def value(self) -> Any:
        """The latest value; None if it was never set."""
        return self.siblings[0] if self.siblings else None


@dataclass(frozen=True, slots=True)
class PastValue:
    """A value that a register was set to."""

    value: Any  # None if it is not kept.
    is_kept: bool  # A value above 4096 bytes is not kept, only its size.
    size: int  # The bytes of the value.
    by: str  # The author; empty if none was named.
    time: datetime  # By the clock of the node that served it.
    id: str  # The place of its operation in the causal order.


def set_request(
    space: str, name: str, value: Any, *, expect: RegisterState | str | None = None, by: str = ""
) -> requests.Assign:
    """The request that sets a register without a read before it, replacing all values on the serving node."""
    expected = expect.version if isinstance(expect, RegisterState) else expect
    return requests.Assign(space, name, values.encode(value, where="value"), None, expected, by)


@named
class Register(Deletable):
    """One value, replaced as a whole. Concurrent values are kept, as siblings, until a write that has seen them.

    The handle remembers the values that its last `get`, `siblings` or `read` returned, and a later `set`
    replaces only those. A `set` without a read before it replaces all values on the node. So does a `set` that
    begins while another one of the same handle is in progress, because the result of that one is not known yet.
    """

    _deletion = requests.DeleteRegister

    def __init__(self, connection: StoreConnection, space: str, name: str) -> None:
        self._connection = connection
        self.space = check_name("space", space)
        self.name = check_name("register", name)
        self._context: bytes | None = None
        self._begun = self._told = self._under_way = 0  # Sets: begun, the last whose context is known, without an answer.

    def __repr__(self) -> str:
        return f"Register({self.space!r}, {self.name!r})"

    async def get(self, default: Any = None, *, stale: bool = False) -> Any:
        """The latest value; of concurrent values, the one with the greatest HLC."""
        found = await self.siblings(stale=stale)
        return found[0] if found else default

    async def siblings(self, *, stale: bool = False) -> list[Any]:
        """All concurrent values, the latest first; empty if it was never set. `stale`: see `Store`."""
        return list((await self.read(stale=stale)).siblings)

    async def read(self, *, stale: bool = False) -> RegisterState:
        """All concurrent values, and the version that a `set` may expect."""
        reply = await self._connection.read(requests.ReadRegister(self.space, self.name), stale=stale)
        self._context = reply.context
        return RegisterState(tuple(values.decode(sibling.value) for sibling in reply.siblings), reply.version)

    async def history(self, *, stale: bool = False) -> list[PastValue]:
        """The last values that the register was set to, the latest first: at most 16, whether or not they were replaced.

        The present value is among them, and so is a value that lost to a concurrent `compare_and_set`.
        """
        reply = await self._connection.read(requests.ReadRegisterHistory(self.space, self.name), stale=stale)
        return [
            PastValue(values.decode(past.value), past.is_kept, past.size, past.by, moment(past.time), past.id)
            for past in reply.values
        ]

    async def set(
        self,
        value: Any,
        *,
        expect: RegisterState | str | None = None,
        by: str = "",
        key: str | None = None,
        durability: Durability | None = None,
    ) -> str:
        """Replace the values that this handle has seen, and return the register's new version.

        `expect` is the result of a `read`, its version, or "" for none; the register must have that version on the serving
        node. Of two such sets on one node, one is rejected. Nodes that cannot reach each other may accept both; their
        values are then siblings. `by`: the author, for the history.

        Raises:
            InvalidValue: `value` cannot be serialised.
            RegisterChanged: it has another version than `expect`.
            TooManySiblings: too many concurrent values; read first.
        """
        request = set_request(self.space, self.name, value, expect=expect, by=by)
        if expect is None and not self._under_way:
            request = replace(request, context=self._context)
        self._begun += 1
        number, self._under_way = self._begun, self._under_way + 1
        try:
            reply = await self._connection.write(request, key=key, durability=durability)
        finally:
            self._under_way -= 1
        # We have now seen our own value; values that arrived meanwhile stay as siblings.
        if reply.siblings == 1 and number > self._told:
            self._context, self._told = reply.context, number
        return reply.version

    async def compare_and_set(
        self, expected: Any, value: Any, *, by: str = "", key: str | None = None, durability: Durability | None = None
    ) -> RegisterState:
        """Set the register if its latest value is `expected`, and return it. None is also a register that was never set.

        All such calls for one register are carried out one at a time, on all nodes: each finds the value of the one before.
        So of several that expect the same value, one succeeds. The durability is at least `quorum`. A `set` beside it does
        not take part: it may appear as another sibling, after this value.

        Raises:
            RegisterChanged: it has another value, which the message names. It was not changed.
            NoQuorum: too few nodes can be reached. Nothing was written.
            OutcomeUnknown: it may be set. Read it, or call again with the same `key`.
            InvalidValue: `expected` or `value` cannot be serialised.
        """
        request = requests.CompareAndSet(
            self.space, self.name, values.encode(expected, where="expected"), values.encode(value, where="value"), by
        )
        self._begun += 1
        number, self._under_way = self._begun, self._under_way + 1
        try:
            reply = await self._connection.write(request, key=key, durability=durability)
        finally:
            self._under_way -= 1
        if number > self._told:
            self._context, self._told = reply.context, number
        return RegisterState((values.decode(request.value),), reply.version)
