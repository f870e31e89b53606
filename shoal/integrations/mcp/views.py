"""The view that the requests of a client reach: a connection to the store, a space, and the subscriptions there.

Laws:
- Over standard input there is one client, whose requests have ids that do not repeat. Over HTTP ids say nothing.
- Over HTTP each client reaches the nodes with the token that it gave, and with no other: what it may do is decided by the
  nodes, as for any other client. This server has no right of its own.
- No client waits for the connection of another.
- A token that a node refuses is forgotten at once, and at most `clients_max` are known; the one that was not used for the
  longest time makes place for another, unless it is in use.

Tools as they are declared: a function, the Struct of its arguments, and what it does to what is stored.

Laws:
- A tool is declared once. Its name, its description, the JSON schema of its arguments and its annotations follow from that.
- Arguments are checked before anything is sent: a wrong one is an `InvalidInput`, and nothing was written.
- Every tool that writes takes an `idempotency_key`, unless its effect is the same however often it is called.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any, Protocol, TypeVar

import msgspec
from mcp.server import ServerRequestContext
from mcp.server.subscriptions import ListenHandler
from mcp.types import Tool as Description
from mcp.types import ToolAnnotations
from msgspec import Meta, Struct

from shoal.client.connection import StoreConnection
from shoal.client.store import Space, Store
from shoal.errors import InvalidInput, Overloaded, ShoalError, Unauthenticated
from shoal.integrations.mcp.resources import Subscriptions
from shoal.names import check_name
from shoal.protocol import requests
from shoal.protocol.session import RANDOM_BYTES, make_key
from shoal.records import NamedTuple

MCP_REQUESTS_MAX = 4096  # On standard input: requests whose keys are remembered, for those that are sent again.

_BEARER = "bearer "


class View:
    """One client's."""

    def __init__(self, store: Store, space: str) -> None:
        self.connection = store.connection
        self.space = store.space(check_name("space", space))
        self.subscriptions = Subscriptions(self.connection, self.space, ended=lambda: self.listening.close())
        self.listening = ListenHandler(self.subscriptions)


class Views(Protocol):
    """The views of a server's clients."""

    keeps_subscriptions: bool
    """Whether a client stays connected, so that it can subscribe by one request and be told later."""

    def of(self, context: ServerRequestContext, /) -> AbstractAsyncContextManager[View]:
        """The view of a request's client, for as long as the request takes."""
        ...

    def key_of(self, request_id: int | str, view: View, /, *, now_ms: int) -> str:
        """The idempotency key of a write that was given none."""
        ...


class OneView:
    """That of the one client at standard input."""

    keeps_subscriptions = True

    def __init__(self, store: Store, space: str) -> None:
        self.view = View(store, space)
        self._keys: OrderedDict[int | str, str] = OrderedDict()

    @asynccontextmanager
    async def of(self, _: ServerRequestContext, /) -> AsyncIterator[View]:
        """The view of a request's client, for as long as the request takes (`Views.of`)."""
        yield self.view

    def key_of(self, request_id: int | str, view: View, /, *, now_ms: int) -> str:
        """A key that belongs to the request's id: a request that is sent twice counts once."""
        key = self._keys.get(request_id)
        if key is None:
            key = self._keys[request_id] = make_key(now_ms, view.connection.entropy(RANDOM_BYTES))
            if len(self._keys) > MCP_REQUESTS_MAX:
                self._keys.popitem(last=False)
        return key


class ViewsByToken:
    """Those of clients over HTTP. `connect` opens a store with a token, or with none if the nodes ask for none."""

    keeps_subscriptions = False

    def __init__(
        self, connect: Callable[[str | None], AbstractAsyncContextManager[Store]], space: str, *, asks: bool, clients_max: int
    ) -> None:
        self.asks = asks
        self._connect = connect
        self._space = check_name("space", space)
        self._clients_max = clients_max
        self._clients: OrderedDict[bytes, _Client] = OrderedDict()  # By the token's hash, those used last at the end.

    @asynccontextmanager
    async def of(self, context: ServerRequestContext, /) -> AsyncIterator[View]:
        """The view of a request's client, for as long as the request takes (`Views.of`).

        Raises:
            Unauthenticated: the nodes ask for a token, and the request has none.
            Overloaded: too many tokens are in use.
        """
        async with self.by(_token(context.request) if self.asks else "") as view:
            yield view

    def key_of(self, _: int | str, view: View, /, *, now_ms: int) -> str:
        """A new key: clients number their requests as they like."""
        return make_key(now_ms, view.connection.entropy(RANDOM_BYTES))

    async def admits(self, token: str) -> bool:
        """Whether the nodes take a token. If none answers, they are asked again by the request itself."""
        known = self._clients.get(_name(token))
        if known is not None and known.view is not None:
            return True
        try:
            async with self.by(token) as view:
                await view.connection.read(requests.ListObjects(self._space, "thread", "", None, 1))
        except Unauthenticated:
            return False
        except ShoalError:
            return True
        return True

    @asynccontextmanager
    async def by(self, token: str) -> AsyncIterator[View]:
        """The view of a token, while it is used. Raises as `of`."""
        name, idle = _name(token), None
        client = self._clients.get(name)
        if client is None:
            idle = self._make_place()
            client = self._clients[name] = _Client()
        self._clients.move_to_end(name)
        client.users += 1
        try:
            if idle is not None:
                await idle.close()
            yield await client.opened(self._connect, token, self._space)
        except Unauthenticated:
            if self._clients.get(name) is client:
                del self._clients[name]
            raise
        finally:
            client.users -= 1
            if not client.users:
                if client.view is None and self._clients.get(name) is client:
                    del self._clients[name]
                if self._clients.get(name) is not client:
                    await client.close()

    async def close(self) -> None:
        """Close all that is not in use; the rest closes when its requests end."""
        clients = list(self._clients.values())
        self._clients.clear()
        for client in clients:
            if not client.users:
                await client.close()

    def _make_place(self) -> _Client | None:
        """Forget the client that was not used for the longest time, if there are as many as may be."""
        if len(self._clients) < self._clients_max:
            return None
        idle = next((name for name, client in self._clients.items() if not client.users), None)
        if idle is None:
            raise Overloaded(
                f"requests with {len(self._clients)} tokens are under way, and this server takes no more at once. Nothing was "
                "written. Try again later.",
                retry_after_s=1.0,
            )
        return self._clients.pop(idle)


class _Client:
    """A client: all who send requests with one token."""

    def __init__(self) -> None:
        self.users = 0  # Requests under way.
        self.view: View | None = None
        self._opening = asyncio.Lock()
        self._held = AsyncExitStack()

    async def opened(self, connect: Callable[[str | None], AbstractAsyncContextManager[Store]], token: str, space: str) -> View:
        """Its view, which the first of its requests opens while no other client waits for that."""
        async with self._opening:
            if self.view is None:
                self.view = View(await self._held.enter_async_context(connect(token or None)), space)
            return self.view

    async def close(self) -> None:
        """End its subscriptions and its connection."""
        if self.view is not None:
            await self.view.subscriptions.close()
        await self._held.aclose()


def _name(token: str) -> bytes:
    return sha256(token.encode()).digest()


def _token(request: Any) -> str:
    header = request.headers.get("authorization", "") if request is not None else ""
    if not header.lower().startswith(_BEARER):
        raise Unauthenticated("it asks for a token, and none was given. Nothing was written. Send it as a bearer token.")
    return str(header[len(_BEARER) :].strip())


LIMIT_MAX = 1000
"""The most that one call lists; the node's pages have the same bound."""

Limit = Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="The most to return.")]

A = TypeVar("A", bound="Arguments")
Answer = Mapping[str, Any]


class Arguments(Struct, forbid_unknown_fields=True, kw_only=True):
    """The arguments of a tool that reads."""


class Writing(Arguments, forbid_unknown_fields=True, kw_only=True):
    """The arguments of a tool that writes."""

    idempotency_key: Annotated[
        str, Meta(description="Calls with the same key and arguments count once, also after a crash. Make one for each intent.")
    ] = ""


class Call(NamedTuple):
    """Where one call works, for whom, and under which key."""

    connection: StoreConnection
    space: Space
    author: str
    key: str | None  # None in a call that only reads.


@dataclass(frozen=True, slots=True)
class Tool:
    """A declared tool."""

    name: str
    said: str
    arguments: type[Arguments]
    run: Callable[[Call, Any], Awaitable[Answer]]
    writes: bool
    destructive: bool
    idempotent: bool

    def description(self) -> Description:
        """The tool as a client sees it."""
        return Description(
            name=self.name,
            description=self.said,
            input_schema=schema_of(self.arguments),
            annotations=ToolAnnotations(
                title=self.name.replace("_", " ").capitalize(),
                read_only_hint=not self.writes,
                destructive_hint=self.destructive,
                idempotent_hint=self.idempotent,
                open_world_hint=False,
            ),
        )

    def checked(self, given: Mapping[str, Any]) -> Arguments:
        """The arguments of a call.

        Raises:
            InvalidInput: they are not what the tool declares.
        """
        try:
            return msgspec.convert(dict(given), self.arguments)
        except msgspec.ValidationError as wrong:
            raise InvalidInput(
                f"the arguments of {self.name} are wrong: {wrong}. Nothing was written. Its input schema says what it takes."
            ) from None


def reads(run: Callable[[Call, A], Awaitable[Answer]]) -> Tool:
    """The tool of a function that only reads."""
    return _declared(run, writes=False, destructive=False, idempotent=True)


def writes(*, destructive: bool = False, idempotent: bool = False) -> Callable[[Callable[[Call, A], Awaitable[Answer]]], Tool]:
    """The tool of a function that writes. `destructive`: it can remove or replace what is there. `idempotent`: a repeated
    call changes nothing more, even without a key.
    """
    return lambda run: _declared(run, writes=True, destructive=destructive, idempotent=idempotent)


def _declared(run: Callable[[Call, A], Awaitable[Answer]], *, writes: bool, destructive: bool, idempotent: bool) -> Tool:
    said = inspect.getdoc(run)
    assert said is not None
    _, given = inspect.signature(run, eval_str=True).parameters.values()
    name: str = run.__name__
    return Tool(name, " ".join(said.split()), given.annotation, run, writes, destructive, idempotent)


def schema_of(arguments: type[Arguments]) -> dict[str, Any]:
    """The JSON schema of a Struct, with an object at its root, as MCP asks for."""
    (_,), parts = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    schema: dict[str, Any] = dict(parts.pop(arguments.__name__))
    return {**schema, "$defs": parts} if parts else schema
