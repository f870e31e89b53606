"""The rule for a node that other machines can reach: it is closed by default.

This is the one place where the rule stands. `shoal serve` checks it before anything is opened.
"""

from __future__ import annotations

from shoal.api.http.origins import is_local
from shoal.config import Config
from shoal.errors import InvalidConfig


def check_closed(config: Config, *, insecure: bool) -> None:
    """Check that only this machine can reach the node, or that it uses TLS and asks for tokens, unless that is waived.

    Raises:
        InvalidConfig: other machines could reach it; the message has the commands that set up what is missing.
    """
    _check_peers(config)
    missing = [what for what, given in (("TLS", config.tls_cert), ("tokens", _asks(config))) if not given]
    if insecure or not missing or is_local(config.listen_host):
        return
    host = f"[{config.listen_host}]" if ":" in config.listen_host else config.listen_host
    commands = []
    if not config.tls_cert:
        commands.append("shoal tls init ./tls --node NAME,ADDRESS")
    if not _asks(config):
        commands.append("shoal token init ./tokens")
    tls = "--tls ./tls/NAME" if not config.tls_cert else "--tls …"
    listed = "\n".join(f"  {command}" for command in commands)
    count = {1: "This command sets it up", 2: "Two commands set them up"}[len(commands)]
    named = "NAME and ADDRESS are those by which clients reach the node. " if not config.tls_cert else ""
    raise InvalidConfig(
        f"on {host} other machines could reach this node without {' and '.join(missing)}, and read and change everything. "
        f"Nothing was started. {count}:\n\n"
        f"{listed}\n\nThen start it with them:\n\n"
        f"  shoal serve --listen {host}:{config.listen_port} {tls} --token-keys ./tokens/keys.json …\n\n"
        f"{named}`shoal token create ./tokens NAME --allow '*:write,read'` makes a client's token. On a private network for "
        "tests, --insecure (SHOAL_INSECURE=1) starts it without.",
        field="listen_host",
    )


def check_closed_to_mcp(config: Config, *, asks: bool, insecure: bool) -> None:
    """The same for a server of MCP over HTTP, before nodes that ask for tokens or do not.

    Raises:
        InvalidConfig: other machines could reach it without TLS or tokens.
    """
    if insecure or is_local(config.listen_host) or (config.tls_cert and asks):
        return
    missing = " and ".join(what for what, given in (("TLS", config.tls_cert), ("tokens", asks)) if not given)
    raise InvalidConfig(
        f"on {config.listen_host} other machines could reach this server without {missing}, and read and change everything. "
        "Nothing was started. Give --tls DIR (`shoal tls init` makes one) and --url of nodes that ask for tokens "
        "(docs/ACCESS.md), or listen on 127.0.0.1. On a private network for tests, --insecure starts it without.",
        field="listen_host",
    )


def _asks(config: Config) -> bool:
    """Whether the node asks for tokens."""
    return bool(config.token_keys or config.oidc_issuers)


def _check_peers(config: Config) -> None:
    """Check that a node which asks clients for tokens does not take anybody for a peer.

    Raises:
        InvalidConfig: it would.
    """
    if _asks(config) and config.join and not (config.cluster_key or config.cluster_key_file or config.tls_cert):
        raise InvalidConfig(
            "with tokens clients prove who they are, but peers would not: without a cluster_key and without TLS, anybody "
            "could join as one and read everything. Nothing was started. Set SHOAL_CLUSTER_KEY, or use --tls.",
            field="cluster_key",
        )
