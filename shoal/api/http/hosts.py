"""The host names under which this node answers: the defence against DNS rebinding, and against a way back to plain HTTP.

The owner of another site can let its name resolve to 127.0.0.1. The browser then takes this node
for the site's own server and sends no Origin of another site. But it sends the Host header with
the site's name.

Laws:

- A node that listens only on this machine answers only requests for an IP address, for
  `localhost`, for its own names in the configuration, and for `allowed_hosts`.
- A node that other machines can reach answers for any name, unless `allowed_hosts` is set,
  because it does not know the names that its network gives it.
- Over TLS such a node tells browsers to use its name with TLS alone for `hsts_s` (RFC 6797). A node that listens only on this
  machine does not: its name is that of all other programs here.
"""

from __future__ import annotations

from ipaddress import ip_address

from aiohttp import web

from shoal.api.http.problems import WrongHost
from shoal.config import Config

_HOST_CHARS_SHOWN = 100


class Hosts:
    """The host names that a node's configuration allows."""

    def __init__(self, config: Config) -> None:
        listed = {part.strip().lower() for part in config.allowed_hosts.split(",") if part.strip()}
        self._checked = "*" not in listed and (bool(listed) or is_local(config.listen_host))
        self._hsts = "" if is_local(config.listen_host) or not config.hsts_s else f"max-age={int(config.hsts_s)}"
        self._names = {*listed, config.listen_host.lower(), _name(config.advertise), "localhost"}

    def check(self, host: str | None) -> None:
        """Check the Host header of a request; None if it has none. All browsers send it.

        Raises:
            WrongHost: it is a name that is not this node's.
        """
        if not self._checked or host is None:
            return
        name = _name(host)
        if name in self._names or name.endswith(".localhost") or _is_address(name):
            return
        raise WrongHost(
            f"this node is not {name[:_HOST_CHARS_SHOWN]!r}. Nothing was written. Use its address instead. If a proxy or a "
            "name of your own leads here, add the name to the node's setting allowed_hosts."
        )

    async def tell(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add to an answer over TLS that browsers shall come back with TLS."""
        if self._hsts and request.transport is not None and request.transport.get_extra_info("sslcontext") is not None:
            response.headers["Strict-Transport-Security"] = self._hsts


def _name(host: str) -> str:
    """The name in "name", "name:port" or "[address]:port"."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def is_local(host: str) -> bool:
    """Whether only this machine can reach a node that listens on this host."""
    return host.lower() == "localhost" or (_is_address(host) and ip_address(host).is_loopback)
