"""`shoal serve`, and `shoal tls` and `shoal token` beside it; `shoal mcp`, which serves MCP clients."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Annotated

import msgspec
import typer

from shoal.cli import execution, node, settings
from shoal.cli.access import certificates, tokens
from shoal.cli.arguments import By
from shoal.cli.execution import Data, SpaceName, Url, chosen, ensured, execute, failure, interruptible, opened
from shoal.config import LOG_LEVELS, Config
from shoal.errors import InvalidConfig
from shoal.names import check_name

PANEL = "Run"


Tls = Annotated[
    Path | None,
    typer.Option(
        "--tls", metavar="DIR", help="Speak TLS with the cert.pem, key.pem and ca.pem in DIR, as `shoal tls init` makes them."
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        envvar="SHOAL_INSECURE",
        help="Let other machines reach it without TLS or tokens: for a private network, in tests.",
    ),
]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Any setting by name; may be repeated.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`, and those that make certificates and tokens for nodes."""
    app.command(rich_help_panel=PANEL)(serve)
    app.command(rich_help_panel=PANEL)(ui)
    app.command(rich_help_panel=PANEL)(mcp)
    app.add_typer(tokens.commands(), name="token", rich_help_panel=PANEL)
    app.add_typer(certificates.commands(), name="tls", rich_help_panel=PANEL)


def serve(
    data: Annotated[
        Path,
        typer.Option("--data", envvar="SHOAL_DATA", metavar="DIR", help="The store's directory; created if it does not exist."),
    ],
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="Where to listen. \\[default: 127.0.0.1:7400]")
    ] = None,
    join: Annotated[
        list[str] | None,
        typer.Option("--join", metavar="HOST:PORT", help="A peer to form a cluster with; may be repeated, or comma-separated."),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option("--advertise", metavar="HOST:PORT", help="Where peers reach this node. \\[default: where it listens]"),
    ] = None,
    cluster_size: Annotated[
        int | None,
        typer.Option(
            "--cluster-size",
            metavar="N",
            help="The number of members, if --join has names that lead to several nodes, as those of services do.",
        ),
    ] = None,
    tls: Tls = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="Speak TLS with this certificate, in PEM form.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="The certificate's private key.")] = None,
    tls_ca: Annotated[
        Path | None, typer.Option("--tls-ca", metavar="FILE", help="The CA that issued the certificates of the peers.")
    ] = None,
    encryption_key: Annotated[
        str | None,
        typer.Option(
            "--encryption-key",
            metavar="SOURCE",
            help="Encrypt the directory. The master key is in file:PATH, env:NAME, command:COMMAND or plugin:MODULE:NAME.",
        ),
    ] = None,
    token_keys: Annotated[
        Path | None,
        typer.Option(
            "--token-keys", metavar="FILE", help="Ask for tokens of these public keys, as `shoal token init` makes them."
        ),
    ] = None,
    insecure: Insecure = False,
    log_level: Annotated[
        str | None,
        typer.Option(
            "--log-level", metavar="LEVEL", help=f"{', '.join(LOG_LEVELS[:-1])} or {LOG_LEVELS[-1]}. \\[default: info]"
        ),
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option("--log-format", metavar="FORM", help="json or text. \\[default: text on a terminal, else json]"),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="A TOML file with settings. \\[env: SHOAL_CONFIG]")
    ] = None,
    assignments: Assignments = None,
) -> None:
    """Run a node on a directory, and serve clients, agents and peers over HTTP and WebSocket.

    Settings come from flags, then SHOAL_<FIELD> in the environment, then the file, then the defaults: docs/CONFIGURATION.md.

    With --join it is one of a cluster: every node holds everything, and continues when others fail. docs/CLUSTER.md.

    A node that other machines can reach needs TLS and tokens, unless --insecure is given: docs/TLS.md, docs/ACCESS.md.

    With --encryption-key everything that is written to the directory is encrypted: docs/ENCRYPTION.md.

    Example: shoal serve --data ./state --set memtable_bytes=128MiB

    Example: shoal serve --data ./state --listen 0.0.0.0:7400 --tls ./tls/n1 --token-keys ./tokens/keys.json

    Example: shoal serve --data ./n1 --listen 127.0.0.1:7401 --join 127.0.0.1:7402 --join 127.0.0.1:7403
    """
    # Imported here, because no other command needs it, and all would start more slowly.
    from shoal.cli import settings

    try:
        flags = _before_the_command()
        flags += [settings.given_setting(assignment) for assignment in assignments or []]
        flags += settings.given_listen(listen) if listen is not None else []
        flags += [settings.Given("join", ",".join(join), "--join")] if join else []
        flags += [settings.Given("advertise", advertise, "--advertise")] if advertise is not None else []
        flags += [settings.Given("cluster_size", str(cluster_size), "--cluster-size")] if cluster_size is not None else []
        flags += settings.given_tls(tls, cert=tls_cert, key=tls_key, ca=tls_ca)
        flags += [settings.Given("encryption_key", encryption_key, "--encryption-key")] if encryption_key is not None else []
        flags += [settings.Given("token_keys", str(token_keys), "--token-keys")] if token_keys is not None else []
        flags += [settings.Given("log_level", log_level, "--log-level")] if log_level is not None else []
        flags += [settings.Given("log_format", log_format, "--log-format")] if log_format is not None else []
        chosen = settings.load(flags=flags, environment=os.environ, file=config)
        settings.check_closed(chosen, insecure=insecure)
    except InvalidConfig as error:
        raise failure(error.message) from None
    node.configure(chosen)
    node.warn(settings.unknown_variables(os.environ))
    node.begin_anew(data, chosen)
    # Imported here, because no other command needs it, and all would start more slowly.
    from shoal.cli.serving import serving

    with node.traced(chosen.advertise or f"{chosen.listen_host}:{chosen.listen_port}", node.tell_traces):
        caught = execute(serving(data, chosen))
    if caught is not signal.SIGTERM:
        raise typer.Exit(128 + caught)


def ui(
    data: Annotated[
        Path,
        typer.Option("--data", envvar="SHOAL_DATA", metavar="DIR", help="The directory of a store that nobody has open."),
    ],
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
) -> None:
    """Show a store's directory in a browser: its agents, what they did, and what they wait for.

    It serves the directory as a node on a free port that only this machine reaches, until Ctrl-C, and opens the page there.
    Nodes that run show the same page at their own addresses. docs/PAGE.md.

    Example: shoal ui --data ./state
    """
    if not data.is_dir():
        raise failure(f"there is no directory {str(data)!r}. Nothing was written. `shoal serve` makes one.")
    try:
        flags = [*_before_the_command(), *settings.given_listen("127.0.0.1:0")]
        # What a node's environment says besides, such as whom to join, is not for a look at its directory.
        key = {name: value for name, value in os.environ.items() if name == "SHOAL_ENCRYPTION_KEY"}
        chosen = settings.load(flags=flags, environment=key, file=None)
    except InvalidConfig as error:
        raise failure(error.message) from None
    # Imported here, because no other command needs them, and all would start more slowly.
    import webbrowser

    from shoal.cli.serving import serving

    def ready(url: str) -> None:
        if not no_browser:
            # In a thread of its own: some browsers let their caller wait.
            Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    node.configure(msgspec.structs.replace(chosen, log_level="warning"))
    caught = execute(serving(data, chosen, ready=ready))
    if caught is not signal.SIGTERM:
        raise typer.Exit(128 + caught)


def _before_the_command() -> list[settings.Given]:
    """The options of `shoal` itself that are settings of a node, too, as in `shoal --encryption-key KEY serve`."""
    options = {"encryption_key": execution.encryption_key.get(), "tls_ca": execution.tls_ca.get()}
    return [
        settings.Given(field, value, f"--{field.replace('_', '-')}")
        for field, value in options.items()
        if value and value != os.environ.get(f"SHOAL_{field.upper()}")
    ]


def mcp(
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    memory: Annotated[
        bool, typer.Option("--memory", help="Offer the tools of the reference memory server, in place of all others.")
    ] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="Offer no tool that writes.")] = False,
    by: By = "",
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="HOST:PORT", help="Where to listen. \\[default: standard input and output]"),
    ] = None,
    tls: Tls = None,
    insecure: Insecure = False,
    assignments: Assignments = None,
) -> None:
    """Serve a space to MCP clients: tools and resources over standard input and output, or with --listen over HTTP.

    A client such as Claude Desktop starts this command, and ends it by closing its input. A directory is created if it does
    not exist, and only one process can open it: for several clients run `shoal serve`, and give --url:
    docs/integrations/mcp.md.

    Over HTTP each client shows its own token to the nodes of --url, if they ask for one.

    Example: shoal mcp --data ./state --space crew

    Example: shoal mcp --url http://127.0.0.1:7400 --memory

    Example: shoal mcp --url http://127.0.0.1:7400 --listen 127.0.0.1:7500
    """
    execution = chosen(data, url, environment=os.environ)
    check_name("space", space)
    if listen is None and (tls or assignments):
        raise typer.BadParameter("--tls and --set belong to --listen. Nothing was started.")
    try:
        # Imported here, because no other command needs it, and it belongs to an extra.
        from shoal.integrations.mcp import serve
    except ModuleNotFoundError as missing:
        raise failure(str(missing)) from None
    if listen is not None:
        # Imported here, for the same reason.
        from shoal.cli.serving_mcp import serving_mcp

        config = _listening(listen, tls, assignments or [])
        node.configure(config)
        node.warn(settings.unknown_variables(os.environ))
        work = serving_mcp(execution, space, config, insecure=insecure, author=by, memory_only=memory, read_only=read_only)
        with node.traced(listen, node.tell_traces):
            execute(interruptible(work))
        return

    async def served() -> None:
        async with opened(execution) if read_only else ensured(execution) as store:
            await serve(store, space, author=by, memory_only=memory, read_only=read_only)

    with node.traced(f"mcp:{os.getpid()}", partial(typer.echo, err=True)):
        execute(interruptible(served()))


def _listening(listen: str, tls: Path | None, assignments: list[str]) -> Config:
    try:
        flags = [settings.given_setting(assignment) for assignment in assignments]
        flags += settings.given_listen(listen)
        flags += settings.given_tls(tls, cert=None, key=None, ca=None)
        return settings.load(flags=flags, environment=os.environ, file=None)
    except InvalidConfig as error:
        raise failure(error.message) from None
