"""Open a WebSocket to a node; if that fails, say why in plain words.

Laws:
- A token goes to another machine over TLS alone, unless `plain_tokens` says that something else encrypts.
- An error says whether the token was sent.

The WebSockets that are dialled: to nodes by clients, and to peers by nodes.

Law: whoever dialled a socket cuts it in the end, however it ended. In some ends, such as a `close` that is cancelled,
aiohttp keeps the connection until the garbage collector finds it, and warns then. A forked child does neither: the connection
is its parent's.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from socket import SHUT_RDWR
from typing import Any, Protocol

import aiohttp
from yarl import URL

from shoal.config import Config
from shoal.errors import (
    Disconnected,
    InvalidConfig,
    Overloaded,
    ShoalError,
    Unauthenticated,
    Unavailable,
    Unreachable,
    Unsupported,
)
from shoal.forks import disown_in_children, never_destroy, silence
from shoal.tls import contexts


class DialledSocket(aiohttp.ClientWebSocketResponse):
    """A WebSocket that shows two things which aiohttp hides: the bytes that wait in its connection, and how to cut it."""

    def __init__(
        self, reader: Any, writer: Any, protocol: Any, response: aiohttp.ClientResponse, *rest: Any, **settings: Any
    ) -> None:
        super().__init__(reader, writer, protocol, response, *rest, **settings)
        self._held = response
        self.connection: asyncio.Transport = writer.transport
        disown_in_children(self)

    def disown(self) -> None:
        """Called in the child, in the thread that forked (`Inherited.disown`)."""
        never_destroy(self)
        socket = self.connection.get_extra_info("socket")
        if socket is not None and socket.fileno() >= 0:
            silence(socket.fileno())

    @property
    def waiting_bytes(self) -> int:
        """Bytes in the connection's write buffer."""
        return 0 if self.connection.is_closing() else self.connection.get_write_buffer_size()

    def leave(self) -> None:
        """End the connection although its loop has ended, which could do no more for it; the collector frees it."""
        socket = self.connection.get_extra_info("socket")
        if socket is not None:
            with suppress(OSError):
                socket.shutdown(SHUT_RDWR)
        self._held.close()

    def cut(self) -> None:
        """Cut the connection without a close frame, and give it back to aiohttp at once. Cutting twice is allowed."""
        self.connection.abort()
        self._held.close()


SESSION_PATH = "/v1/session"

_EXAMPLE = "http://n1:7400,http://n2:7400"
_WHY_MAX = 200  # Characters of a node's reason that are shown.
_SHUFFLE_BYTES = 16  # Enough that no two addresses draw the same.


class Connect(Protocol):
    """`open_socket`, or its substitute in a simulation."""

    async def __call__(
        self, url: str, /, *, config: Config, token: str | None, heartbeat_s: float
    ) -> tuple[aiohttp.ClientSession, DialledSocket]:
        """As `open_socket`."""
        ...


def split_urls(urls: str | Sequence[str]) -> list[str]:
    """The base URLs in "http://n1:7400,http://n2:7400", or in a sequence of such texts, each once.

    Raises:
        InvalidConfig: there is none, or one is not an http(s) URL of a host and a port.
    """
    if not isinstance(urls, str) and not (isinstance(urls, Sequence) and all(isinstance(url, str) for url in urls)):
        raise InvalidConfig(
            f"the URLs of nodes must be text or a list of texts, as in {_EXAMPLE!r}; got {type(urls).__name__}. "
            "Nothing was sent."
        )
    parts = urls.split(",") if isinstance(urls, str) else [part for url in urls for part in url.split(",")]
    found = [_checked(part.strip()) for part in parts if part.strip()]
    if not found:
        raise InvalidConfig(f"no URL of a node was given. Nothing was sent. Give one or more, as in {_EXAMPLE}.")
    return list(dict.fromkeys(found))


def _checked(url: str) -> str:
    try:
        parsed = URL(url)
        known = parsed.scheme in ("http", "https") and bool(parsed.host) and not any(letter.isspace() for letter in url)
    except ValueError:
        known = False
    if not known:
        bare = "://" not in url and " " not in url and url.strip("/")
        hint = f"Write http://{url.rstrip('/')[:200]}." if bare else "It must look like http://host:7400."
        raise InvalidConfig(f"{url[:200]!r} is no URL of a node. Nothing was sent. {hint}")
    if parsed.path not in ("", "/") or parsed.query_string or parsed.fragment or parsed.user is not None:
        raise InvalidConfig(
            f"{str(parsed.with_user(None))[:200]!r} has more than a host and a port. Nothing was sent. Write {parsed.origin()}."
        )
    return url.rstrip("/")


def shuffled(urls: Sequence[str], entropy: Callable[[int], bytes]) -> list[str]:
    """`urls` in an order that `entropy` decides; every order is equally likely."""
    return sorted(urls, key=lambda _: entropy(_SHUFFLE_BYTES)) if len(urls) > 1 else list(urls)


async def open_socket(
    url: str, *, config: Config, token: str | None, heartbeat_s: float
) -> tuple[aiohttp.ClientSession, DialledSocket]:
    """The WebSocket, and the HTTP session that owns it; the caller cuts the one and closes the other.

    Raises:
        InvalidConfig: the token would go over a plain connection to another machine. Nothing was sent.
        Overloaded, Unavailable, Unsupported, Disconnected: the node's answer, by its HTTP status.
        aiohttp.ClientError, OSError: there was no answer.
    """
    if token is not None:
        _check_private(url, config)
    http = aiohttp.ClientSession(
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={} if token is None else {"Authorization": f"Bearer {token}"},
        ws_response_class=DialledSocket,
    )
    try:
        socket = await http.ws_connect(
            url + SESSION_PATH,
            heartbeat=heartbeat_s,
            # A node that is left has no longer than this to answer the close.
            timeout=aiohttp.ClientWSTimeout(ws_close=config.failover_timeout_s),
            ssl=contexts.dialling_nodes(config) if url.startswith("https:") else True,
            compress=0,
            # A document's whole state is the largest reply.
            max_msg_size=config.document_bytes_max + config.request_bytes_max,
        )
    except aiohttp.WSServerHandshakeError as refusal:
        await http.close()
        raise _refusal(url, refusal, sent=_NOTHING if token is None else _TOKEN) from None
    except BaseException:
        await http.close()
        raise
    assert isinstance(socket, DialledSocket)
    return http, socket


_NOTHING, _TOKEN = "Nothing was sent", "The token was sent, and nothing else"
_MAYBE = "The token may have been sent, and nothing else"


def _check_private(url: str, config: Config) -> None:
    """Check that nobody on the way to a node reads the token.

    Raises:
        InvalidConfig: they could.
    """
    parsed = URL(url)
    host = parsed.host or ""
    if parsed.scheme == "https" or _is_here(host) or {host, "*"} & {each.strip() for each in config.plain_tokens.split(",")}:
        return
    raise InvalidConfig(
        f"the token would go to {url} over plain HTTP, and whoever is on the way could read and use it. Nothing was sent. "
        "Write https:// (docs/TLS.md). Where something else encrypts, as a service mesh does, or on a private network for "
        f"tests, name the host in plain_tokens (SHOAL_PLAIN_TOKENS={host}).",
        field="token",
    )


def _is_here(host: str) -> bool:
    """Whether this names the machine itself."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


_HOW_CLIENT = "name the cluster's: `tls_ca=`, SHOAL_TLS_CA or `shoal --tls-ca ca.pem …`"


def why(reason: Exception, *, how: str = _HOW_CLIENT) -> str:
    """Why a node cannot be reached, in words for an operator. `how` says how to trust a CA."""
    match reason:
        case aiohttp.ClientConnectorCertificateError():
            return _untrusted(reason.certificate_error, how)
        case aiohttp.ClientSSLError():
            return "it does not speak TLS there; if it is a plain port, write http://"
        case aiohttp.ClientConnectorError():
            # The event loop's own text repeats the address; the system's says what happened. For an unknown
            # name the number is below 0.
            number = reason.os_error.errno or 0
            return (os.strerror(number) if number > 0 else reason.os_error.strerror or str(reason.os_error)).lower()
        case aiohttp.ServerDisconnectedError():
            return "it closed the connection without an answer; if the port wants TLS, write https://"
        case aiohttp.WSMessageTypeError():
            return "the server there is not a Shoal node"
        case aiohttp.ClientResponseError():
            return "the server there does not speak HTTP; if the port wants TLS, write https://"
        case TimeoutError():
            return "it did not answer in time"
        case OSError() if reason.errno:
            return os.strerror(reason.errno).lower()
    return str(reason) or "it did not answer"


_OF_NAME = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_OF_TIME = {9: "is not valid yet; check this machine's clock", 10: "has expired; renew it"}
_OF_ISSUER = (2, 18, 19, 20, 21)  # It, or one above it, is of no CA that is trusted.


def _untrusted(error: Exception, how: str) -> str:
    """The fault of a certificate, and how to mend it."""
    told = getattr(error, "verify_message", "") or str(error)
    match getattr(error, "verify_code", 0):
        case code if code in _OF_NAME:
            return f"its certificate is for other names ({told.rstrip('.').lower()}); use a name or address that is in it"
        case code if code in _OF_TIME:
            return f"its certificate {_OF_TIME[code]}"
        case code if code in _OF_ISSUER:
            return f"its certificate is of a CA that is not trusted here ({told}); {how}"
    return f"its certificate is not trusted ({told})"


def untrusted(url: str, error: aiohttp.ClientConnectorCertificateError) -> Unsupported:
    """The error for an address at which a server shows a certificate that is not accepted. Waiting does not help."""
    reason = why(error)
    return Unsupported(f"the node at {url} is not trusted: {reason}. Nothing was sent.", reason=reason)


def sent_before(reason: Exception, token: str | None) -> str:
    """The data that was sent before an attempt to connect failed for this reason, for people."""
    return _NOTHING if token is None or isinstance(reason, aiohttp.ClientConnectorError) else _MAYBE


def unreached(url: str, reason: str, sent: str = _NOTHING) -> Disconnected:
    """The error for an address at which no node answered."""
    return Disconnected(
        f"the node at {url} cannot be reached: {reason}. {sent}. "
        "Check the address, and that a node serves there (`shoal serve`).",
        reason=reason,
    )


def summed_up(refusals: Mapping[str, ShoalError], *, first: bool) -> ShoalError:
    """One error for the refusals of all addresses in a round. `first`: none of them has ever led to a node."""
    hint = "Check the addresses, and that nodes serve there (`shoal serve`)."
    wait = " `wait=30` (`shoal --wait 30 …`) waits up to 30 seconds for a node that is still starting."
    if len(refusals) == 1:
        (one,) = refusals.values()
        return Unreachable(one.message + wait, **one.detail) if first and type(one) is Disconnected else one
    if all(isinstance(refusal, Unauthenticated) for refusal in refusals.values()):
        return next(iter(refusals.values()))
    told = "; ".join(f"{url}: {_reason(url, refusal)}" for url, refusal in refusals.items())
    sent = next((said for said in (_TOKEN, _MAYBE) if any(said in each.message for each in refusals.values())), _NOTHING)
    busy = [refusal for refusal in refusals.values() if isinstance(refusal, Unavailable)]
    if busy:
        kind = type(busy[0]) if len({type(refusal) for refusal in busy}) == 1 else Unavailable
        return kind(f"no node takes this session ({told}). {sent}. Try again later.", **busy[0].detail)
    if first:
        return Unreachable(f"none of the {len(refusals)} nodes can be reached ({told}). {sent}. {hint}{wait}")
    return Disconnected(f"none of the {len(refusals)} nodes can be reached ({told}). {sent}. {hint}")


def _reason(url: str, refusal: ShoalError) -> str:
    reason = refusal.detail.get("reason")
    return reason if isinstance(reason, str) else refusal.message.partition(". ")[0].removeprefix(f"the node at {url} ")


def _refusal(
    url: str, refusal: aiohttp.WSServerHandshakeError, *, sent: str
) -> Disconnected | Unavailable | Unsupported | Unauthenticated:
    """The error for a node's answer; `sent` says what it was sent."""
    if refusal.status == Overloaded.status:
        after_s = _retry_after_s(refusal)
        return Overloaded(
            f"the node at {url} has no room for another session, or has refused too many tokens of this address. "
            f"{sent}. Try again in {after_s:g} s, or elsewhere.",
            retry_after_s=after_s,
        )
    if refusal.status == Unavailable.status:
        return Unavailable(f"the node at {url} does not take sessions now. {sent}. Try again later, or elsewhere.")
    if refusal.status == Unauthenticated.status and 'realm="shoal"' in _challenge(refusal):
        return _unauthenticated(url, refusal, sent)
    if refusal.status < 500:
        return Unsupported(
            f"there is no Shoal node at {url}: another server answered (status {refusal.status}). "
            f"{sent}. {_STRANGER if sent == _TOKEN else ''}Check the address.",
            reason=f"another server answers there (status {refusal.status})",
        )
    return Disconnected(
        f"the node at {url} refused the session with status {refusal.status}. {sent}. Try again later.",
        reason=f"it refused the session with status {refusal.status}",
    )


_STRANGER = "If you do not know that server, revoke the token (`shoal token revoke`). "


def _unauthenticated(url: str, refusal: aiohttp.WSServerHandshakeError, sent: str) -> Unauthenticated:
    told = re.search(r'error_description="([^"]*)"', _challenge(refusal))
    why = told[1][:_WHY_MAX] if told is not None else "it asks for a token, and none was given"
    return Unauthenticated(
        f"the node at {url} does not let this client in: {why}. {sent}. Give a token that is valid: `token=`, "
        "SHOAL_TOKEN_FILE or `shoal --token-file FILE`.",
        reason=why,
        **({"retry_after_s": _retry_after_s(refusal)} if "Retry-After" in (refusal.headers or ()) else {}),
    )


def _challenge(refusal: aiohttp.WSServerHandshakeError) -> str:
    return refusal.headers.get("WWW-Authenticate", "") if refusal.headers else ""


def _retry_after_s(refusal: aiohttp.WSServerHandshakeError) -> float:
    said = refusal.headers.get("Retry-After", "") if refusal.headers else ""
    return float(said) if said.isascii() and said.isdigit() else 1.0
