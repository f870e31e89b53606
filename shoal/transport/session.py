"""A `Session` over one of several nodes, which outlives its connections.

Laws:

- Every write has an idempotency key, made here if the caller gave none, before
  its first attempt. So a write may be sent again after a broken connection, to
  any node, and is applied once.
- Until a node has answered once, an address may be wrong. If a round over all of them
  finds no node, the caller is told why at once, within `reach_timeout_s`, or once
  `wait_s` is over; at once, too, if each node refuses the token for good. From then on a node that is gone may come back.
- A request is tried until it is answered or `request_timeout_s` is over. Then a
  write of which any attempt may have been sent ends with OutcomeUnknown.
  No attempt is begun that has no time for an answer.
- Failures of a broken or stopping node are tried again. If a node cannot serve the request for a
  reason of its own (it is behind, fetches data, only reads, or is no member), each other node is
  asked once. Any other answer is raised. But a refusal does not tell what another node did
  with an attempt that was sent before.
- A token that is refused ends a call, unless it comes from a file or a function: then a newer one is tried once, on a new
  connection. A subscription whose token ends then breaks off as if the connection had, and is begun again with a newer one.
- Each session has its own order of the addresses, drawn once, so that clients
  spread over the nodes; with `in_order` it is the order in which they are given.
- If a node breaks off or stops, the next one is tried at once, each once.
  Then attempts are spread: exponential delays, up to `reconnect_delay_s_max`,
  drawn anew by every client ("full jitter"), so that a crowd does not return at
  once.
- The bookmark outlives the connections: a node is told what
  this client has written and seen before it is asked anything. What no node knows any more, and this client has not
  touched for long, it lets go.

Time, randomness and sleep are arguments; deadlines are the event loop's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, TypeVar

from shoal.config import Config
from shoal.errors import (
    BookmarkLost,
    CatchingUp,
    Disconnected,
    NotAMember,
    OutcomeUnknown,
    Overloaded,
    ReadOnly,
    SessionBehind,
    ShoalError,
    ShuttingDown,
    StoreClosed,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.conformance import check_manner, conforming
from shoal.protocol.requests import (
    Durability,
    Push,
    R,
    Request,
    Subscription,
    Write,
)
from shoal.protocol.session import RANDOM_BYTES, Credential, make_key
from shoal.transport.dialling import shuffled, split_urls, summed_up, unreached
from shoal.transport.keyring import Credentials
from shoal.transport.link import Link

_Answer = TypeVar("_Answer")


class Dial(Protocol):
    """`Link.dial`, or its substitute in a simulation."""

    async def __call__(
        self, url: str, /, *, config: Config, software: str, token: str | None, bookmark: Bookmark, others: bool
    ) -> Link:
        """As `Link.dial`."""
        ...


_ELSEWHERE = (SessionBehind, CatchingUp, NotAMember, ReadOnly)  # Another node may serve the request.
_SHARE_S_MIN = 0.05  # To reach one address.
DELAY_S_FIRST = 0.05  # Before the second attempt, at most; it doubles from there.
_ATTEMPT_S_MIN = 0.05  # For one more attempt: with less its outcome would be unknown, where that of those before is known.


@dataclass(frozen=True, slots=True)
class SessionContext:
    """The clock, the randomness and the network of a client, which are constant in its life."""

    now_ms: Callable[[], int]
    entropy: Callable[[int], bytes]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    dial: Dial = Link.dial
    software: str = "shoal"


class RemoteSession:
    """A session over nodes that connects at the first request. `urls`: "http://n1:7400,http://n2:7400".

    Raises:
        InvalidConfig: `urls` names no node.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        config: Config,
        context: SessionContext,
        token: Credential | None = None,
        bookmark: Bookmark | None = None,
        in_order: bool = False,
        wait_s: float = 0.0,
    ) -> None:
        self.bookmark = Bookmark(lambda: asyncio.get_running_loop().time()) if bookmark is None else bookmark
        self.connections = 0  # See `Session.connections`.
        self._urls = split_urls(urls) if in_order else shuffled(split_urls(urls), context.entropy)
        self._config = config
        self._now_ms = context.now_ms
        self._entropy = context.entropy
        self._sleep = context.sleep
        self._credentials = Credentials(token)
        self._software = context.software
        self._dial_link = context.dial
        self._link: Link | None = None
        self._dialling = asyncio.Lock()
        self._wait_s = wait_s  # How long to wait for a first node.
        self._reached = False  # Whether any node has answered.
        self._missed: tuple[float, ShoalError] | None = None  # When a first contact failed, and why.
        self._refusals: dict[str, ShoalError] = {}  # Why the last attempts to connect failed, by URL.
        self._closed = False

    async def __aenter__(self) -> RemoteSession:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def call(
        self, request: Request[R], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> R:
        """Send `request` to one of the nodes, and return its answer; see `Session.call`.

        Raises:
            OutcomeUnknown: a write was sent and not answered in time; `detail["key"]` is the key to send it again with.
            Unreachable: no address leads to a node, and none did before; nothing was written.
            Disconnected, Unavailable: no node answered in time; nothing was written.
            SessionBehind: no node that can be reached holds the state in the bookmark.
            InvalidInput: a field of the request has another type than its annotation; nothing was sent.
            ShoalError: the node's own answer.
        """
        check_manner(key, durability, stale)
        request = conforming(request)
        if key is None and isinstance(request, Write):
            key = make_key(self._now_ms(), self._entropy(RANDOM_BYTES))

        async def ask(link: Link, timeout_s: float) -> R:
            return await link.call(request, key=key, durability=durability, stale=stale, timeout_s=timeout_s)

        return await self._tried(ask, key=key)

    @asynccontextmanager
    async def subscribe(self, subscription: Subscription, /) -> AsyncIterator[AsyncIterator[Push]]:
        """Pushes from now on; see `Session.subscribe`.

        Raises:
            Disconnected: no node could be reached; or, from the iterator, the connection broke, or a token ended that
                may be renewed. Subscribe again.
            SlowConsumer: from the iterator, if `subscription_bytes_max` overflowed.
        """
        wanted = conforming(subscription)
        async with AsyncExitStack() as stack:

            async def ask(link: Link, timeout_s: float) -> AsyncIterator[Push]:
                pushes = await stack.enter_async_context(link.subscribe(wanted, timeout_s=timeout_s))
                return _RenewedPushes(link, pushes) if self._credentials.is_renewable else pushes

            yield await self._tried(ask, key=None)

    async def close(self) -> None:
        """Close the connection. Calls under way end with an error. Closing twice is allowed."""
        self._closed = True
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    def abandon(self) -> None:
        """Let the connection go without the loop, which has ended."""
        self._closed = True
        link, self._link = self._link, None
        if link is not None:
            link.abandon()

    # ── attempts ──────────────────────────────────────────────────────────────

    async def _tried(self, ask: Callable[[Link, float], Awaitable[_Answer]], *, key: str | None) -> _Answer:
        """The answer of the first node that gives one, within `request_timeout_s`."""
        self._refuse_if_closed()
        loop = asyncio.get_running_loop()
        if not self._reached:
            await self._connect(loop.time() + max(self._config.request_timeout_s, self._wait_s))
        ends_at = loop.time() + self._config.request_timeout_s
        left = renewed = lost = False
        attempt = refused = 0
        while True:
            link: Link | None = None
            try:
                link = self._link if self._link is not None and self._link.open else await self._connect(ends_at)
                return await ask(link, _remaining_s(ends_at))
            except (Disconnected, OutcomeUnknown, ShuttingDown) as failure:
                left = left or isinstance(failure, OutcomeUnknown)
                if not left:
                    self._refuse_if_closed()
                # If the link still holds, it is the node's answer: the node itself does not know.
                answered = isinstance(failure, OutcomeUnknown) and link is not None and link.open
                # Without a key it would be done twice, or its answer would describe only the second attempt.
                once = left and key is None
                if answered or once or not await self._pause(attempt, ends_at):
                    raise _final(failure, key=key, left=left) from None
                if isinstance(failure, ShuttingDown):
                    await self._leave(link)
                attempt += 1
            except Unauthenticated as failure:
                # The link is as old as its token. If there may be a newer one, it is tried once; nothing was written.
                if link is None or renewed or not self._credentials.is_renewable:
                    raise _final(failure, key=key, left=left) from None
                renewed = True
                await link.close()
            except BookmarkLost as failure:
                # A new link names the rest alone. Another call on this one may have let it go before.
                if link is None or lost or (link.open and not self.bookmark.let_go(failure, self._config.forget_after_s)):
                    raise _final(failure, key=key, left=left) from None
                lost = True
                await link.close()
            except ShoalError as failure:
                # A cluster that begins, or a node that is filled, serves soon. Another address is asked first.
                if isinstance(failure, CatchingUp) and failure.detail.get("state") == "refilling":
                    if await self._pause(attempt, ends_at):
                        await self._leave(link)
                        attempt += 1
                        continue
                elif isinstance(failure, _ELSEWHERE) and failure.written == "no":
                    refused += 1
                    if refused < len(self._urls) and not self._closed and loop.time() < ends_at:
                        await self._leave(link)
                        continue
                if failure.written == "unknown" and key is not None:
                    failure.detail.setdefault("key", key)
                raise _final(failure, key=key, left=left) from None

    async def _pause(self, attempt: int, ends_at: float) -> bool:
        """Wait before the next attempt, unless an address was not tried yet. False if there is no time for an answer."""
        delay_s = self._delay_s(attempt - len(self._urls)) if attempt >= len(self._urls) else 0.0
        if self._closed or ends_at - asyncio.get_running_loop().time() <= delay_s + _ATTEMPT_S_MIN:
            return False
        if delay_s:
            await self._sleep(delay_s)
        return True

    def _delay_s(self, attempt: int) -> float:
        bound_s = min(self._config.reconnect_delay_s_max, DELAY_S_FIRST * (1 << min(attempt, 16)))
        return bound_s * int.from_bytes(self._entropy(2), "big") / 0xFFFF

    async def _leave(self, link: Link | None) -> None:
        """Close the link, if there is another address. Requests under way are sent again there, with their keys."""
        if link is not None and link is self._link and len(self._urls) > 1:
            await link.close()

    # ── connecting ────────────────────────────────────────────────────────────

    async def _connect(self, ends_at: float) -> Link:
        """The open link, or a new one; many callers share one attempt."""
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        try:
            async with asyncio.timeout_at(ends_at), self._dialling:
                if self._missed is not None and self._missed[0] > asked_at:
                    raise self._missed[1]
                if self._link is None or not self._link.open:
                    reach_at = None if self._reached else asked_at + max(self._wait_s, self._config.reach_timeout_s)
                    self._link = await self._dial_any(reach_at)
                    self.connections += 1
                return self._link
        except TimeoutError:
            # If time is over during the first round, no address has failed yet.
            refusals = self._refusals or {url: unreached(url, "it did not answer in time") for url in self._urls}
            raise summed_up(refusals, first=not self._reached) from None

    async def _dial_any(self, reach_at: float | None) -> Link:
        """Dial each node in turn until one answers; after a round without an answer, wait and begin again.

        `reach_at` is the end of a first contact; None if it is none.

        Raises:
            ShoalError: waiting cannot help.
        """
        loop = asyncio.get_running_loop()
        if self._link is not None:
            await self._link.close()
            self._next_first()  # The first one broke off.
        attempt = 0
        while True:
            urls = list(self._urls)
            for place, url in enumerate(urls):
                # Each address has a share of a first contact's time, so that a silent one leaves some to the others.
                share_s = None if reach_at is None else max(_SHARE_S_MIN, (reach_at - loop.time()) / (len(urls) - place))
                link = await self._dial(url, share_s)
                if link is not None:
                    self._reached = True
                    self._refusals.clear()
                    return link
            self._check_curable(reach_at)
            refused = [error for error in self._refusals.values() if isinstance(error, Overloaded)]
            after_s = max((float(error.detail.get("retry_after_s") or 0.0) for error in refused), default=0.0)  # type: ignore[arg-type]
            await self._sleep(max(self._delay_s(attempt), after_s))
            attempt += 1

    def _check_curable(self, reach_at: float | None) -> None:
        """Check that another round may find a node.

        Raises:
            ShoalError: it cannot; the answers of the addresses in this round.
        """
        loop = asyncio.get_running_loop()
        refusals = self._refusals.values()
        if any(isinstance(refusal, Unavailable) for refusal in refusals):
            return  # There is a node, and it will take sessions again.
        if reach_at is None:
            over = all(isinstance(refusal, Unsupported | Unauthenticated) for refusal in refusals)
        else:
            # A node that is there and lets nobody in with this token will not either: the first contact waits for none.
            barred = all(isinstance(each, Unauthenticated) and "retry_after_s" not in each.detail for each in refusals)
            over = barred or not self._wait_s or loop.time() >= reach_at
        if over:
            error = summed_up(self._refusals, first=reach_at is not None)
            if reach_at is not None:
                self._missed = loop.time(), error
            raise error

    async def _dial(self, url: str, share_s: float | None) -> Link | None:
        self._refuse_if_closed()
        try:
            async with asyncio.timeout(share_s):
                link = await self._dial_link(
                    url,
                    config=self._config,
                    software=self._software,
                    token=await self._credentials.token(),
                    bookmark=self.bookmark,
                    others=len(self._urls) > 1,
                )
        except (Disconnected, Unavailable, Unsupported, Unauthenticated, TimeoutError) as error:
            refusal = unreached(url, "it did not answer in time") if isinstance(error, TimeoutError) else error
            self._refusals[url] = refusal
            self._next_first()
            return None
        if self._closed:
            await link.close()
        self._refuse_if_closed()
        return link

    def _next_first(self) -> None:
        """Begin the next attempt, now or later, with the next address."""
        self._urls.append(self._urls.pop(0))

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreClosed("this store is closed. Nothing was sent. Connect again, and make new handles.")


class _RenewedPushes(AsyncIterator[Push]):
    """Pushes over a link whose token may be renewed. If the token ends, the link is left, as if the connection had broken."""

    def __init__(self, link: Link, pushes: AsyncIterator[Push]) -> None:
        self._link = link
        self._pushes = pushes

    async def __anext__(self) -> Push:
        try:
            return await anext(self._pushes)
        except Unauthenticated as failure:
            await self._link.close()
            raise Disconnected(f"{failure.message.split('.')[0]}. Nothing was written. Subscribe again.") from failure


def _remaining_s(ends_at: float) -> float:
    remaining_s: float = ends_at - asyncio.get_running_loop().time()
    return max(0.001, remaining_s)


def _final(failure: ShoalError, *, key: str | None, left: bool) -> ShoalError:
    """The error to raise. If any attempt may have been sent, only "unknown" is true."""
    if not left:
        return failure
    if key is None:
        return OutcomeUnknown(
            f"it may be done, in part or not at all ({failure.message.rstrip('.')}). Ask for it again: it does the rest.",
            **failure.detail,
        )
    return OutcomeUnknown(
        f"the write may or may not be applied ({failure.message.rstrip('.')}). "
        f"Send it again with the key {key}: it is applied once.",
        **{**failure.detail, "key": key},
    )
