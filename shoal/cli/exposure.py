"""The rule for a node that other machines can reach: it is closed by default.

This is the one place where the rule stands. `shoal serve` checks it before anything is opened.
"""

from __future__ import annotations

from shoal.api.http.hosts import is_local
from shoal.config import Config
from shoal.errors import InvalidConfig


def check_closed(config: Config, *, insecure: bool) -> None:
    """Check that only this machine can reach the node, or that it uses TLS, unless that is waived.

    Raises:
        InvalidConfig: other machines could reach it without TLS; the message has the two commands that set it up.
    """
    if insecure or config.tls_cert or is_local(config.listen_host):
        return
    host = f"[{config.listen_host}]" if ":" in config.listen_host else config.listen_host
    raise InvalidConfig(
        f"on {host} other machines could reach this node without TLS, and read and change everything. Nothing was started. "
        "Two commands set TLS up:\n\n"
        "  shoal tls init ./tls --node NAME,ADDRESS\n"
        f"  shoal serve --listen {host}:{config.listen_port} --tls ./tls/NAME …\n\n"
        "NAME and ADDRESS are those by which clients reach the node. On a private network for tests, --insecure "
        "(SHOAL_INSECURE=1) starts it without.",
        field="listen_host",
    )
