"""The sources of a `Config`: flags, then the environment, then a TOML file, then the defaults. And the rule for nodes in reach
of others.

Nothing is guessed: a flag or a key of the file that is unknown, or a value of the wrong type
or out of range, is rejected before anything starts. The error names the field, the source of the
value and the allowed values. In a file each setting stands in the table of its group.
Only an unknown variable of the environment is no error, because others write there too:
`unknown_variables` has a warning for each. Sizes are whole bytes or text such as "64MiB"; a duration
is a number in the unit at the end of its field's name.

The rule for a node that other machines can reach: it is closed by default.

This is the one place where the rule stands. `shoal serve` checks it before anything is opened.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import get_type_hints

import msgspec

from shoal.api.http.origins import is_local
from shoal.config import GROUPS, Config, checked, group_of, shown
from shoal.errors import InvalidConfig
from shoal.records import NamedTuple

PREFIX = "SHOAL_"
# Defaults of the commands' options. They may be set in a shell that runs `shoal serve`.
OPTIONS = frozenset(
    {
        "SHOAL_DATA",
        "SHOAL_URL",
        "SHOAL_SPACE",
        "SHOAL_AUTHOR",
        "SHOAL_CONFIG",
        "SHOAL_CONTEXT",
        "SHOAL_WAIT",
        "SHOAL_DURABILITY",
        "SHOAL_INSECURE",
        "SHOAL_TOKEN",
        "SHOAL_TOKEN_FILE",
        "SHOAL_TRACE_NAMES",
    }
)

# Kubernetes and container links put these into the environment of every container that runs beside
# a service whose name begins with "shoal", such as "shoal" or "shoal-http". They are not settings.
_SERVICE_LINK = re.compile(r"SHOAL_(.+_)?(SERVICE_(HOST|PORT(_.+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
# A service named "shoal-listen" injects SHOAL_LISTEN_PORT, which is the name of a setting: only the value tells them apart.
_LINKED_PORT = re.compile(r"(tcp|udp|sctp)://\S+")

_SIZE = re.compile(r"(\d+)\s*([KMGT]iB|B)?")
_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_TYPES: dict[str, type] = {name: kind for name, kind in get_type_hints(Config).items() if not name.startswith("_")}


class Given(NamedTuple):
    """One value as it was written, and its source: "shoal.toml:listener.listen_port", "SHOAL_LISTEN_PORT", "--listen"."""

    field: str
    value: object
    source: str


def load(*, flags: Iterable[Given] = (), environment: Mapping[str, str], file: Path | None = None) -> Config:
    """Return the settings. `file` is the one of `--config`; without it, the one of SHOAL_CONFIG, if that is set.

    Raises:
        InvalidConfig: a value is not legal, or the file cannot be read. Nothing was started.
    """
    if file is None and environment.get("SHOAL_CONFIG"):
        file = Path(environment["SHOAL_CONFIG"])
    layers = ([] if file is None else _from_file(file), _from_environment(environment), list(flags))
    # Later layers replace earlier ones, but every value is checked, even if
    # another one replaces it.
    chosen = {given.field: given._replace(value=_parsed(given)) for layer in layers for given in layer}
    return _in_range(chosen)


def given_listen(listen: str) -> list[Given]:
    """The two fields that `--listen HOST:PORT` sets; `[::1]:7400` for IPv6.

    Raises:
        InvalidConfig: it is not HOST:PORT.
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit():
        raise InvalidConfig(
            f"--listen must be HOST:PORT, for example 127.0.0.1:7400 or [::1]:7400; got {listen!r}. Nothing was started.",
            field="listen_host",
        )
    return [Given("listen_host", host.removeprefix("[").removesuffix("]"), "--listen"), Given("listen_port", port, "--listen")]


def given_tls(directory: Path | None, *, cert: Path | None, key: Path | None, ca: Path | None) -> list[Given]:
    """The fields that `--tls DIR` and the options for single files set; those take precedence."""
    given = []
    for name, file in (("cert", cert), ("key", key), ("ca", ca)):
        if file is not None:
            given.append(Given(f"tls_{name}", str(file), f"--tls-{name}"))
        elif directory is not None:
            given.append(Given(f"tls_{name}", str(directory / f"{name}.pem"), "--tls"))
    return given


def given_setting(assignment: str) -> Given:
    """The field that `--set FIELD=VALUE` sets.

    Raises:
        InvalidConfig: there is no `=` in it, or no such field.
    """
    name, equals, value = assignment.partition("=")
    if not equals:
        raise InvalidConfig(f"--set must be FIELD=VALUE; got {assignment!r}. Nothing was started.", field=name)
    return Given(_known(name.strip(), "--set"), value.strip(), f"--set {name.strip()}")


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """A warning for each variable that looks like a setting and is none; it names the setting that may have been meant."""
    # Without the prefix, which would make any two of them similar.
    names = [name.removeprefix(PREFIX) for name in OPTIONS] + [field.upper() for field in _TYPES]
    return [
        f"the environment variable {PREFIX}{name} is not a setting, and is ignored;{_hint(name, names, prefix=PREFIX)}"
        for name in (each.removeprefix(PREFIX) for each in _settings_in(environment))
        if name.lower() not in _TYPES
    ]


def _settings_in(environment: Mapping[str, str]) -> list[str]:
    """The variables that are meant as settings."""
    ours = [name for name in sorted(environment) if name.startswith(PREFIX) and name not in OPTIONS]
    return [name for name in ours if not _is_service_link(name, environment[name])]


def _is_service_link(name: str, value: str) -> bool:
    return bool(_SERVICE_LINK.fullmatch(name) or (name.endswith("_PORT") and _LINKED_PORT.fullmatch(value)))


def _from_environment(environment: Mapping[str, str]) -> list[Given]:
    named = [(name.removeprefix(PREFIX).lower(), name) for name in _settings_in(environment)]
    return [Given(field, environment[name], name) for field, name in named if field in _TYPES]


def _from_file(file: Path) -> list[Given]:
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfig(f"cannot read the configuration {file}: {error.strerror}. Nothing was started.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"the configuration {file} is not TOML: {error}. Nothing was started.") from error
    return [given for name, value in table.items() for given in _of_table(name, value, str(file))]


def _of_table(name: str, value: object, file: str) -> list[Given]:
    """The settings in a table of the file. Each stands in the table of its group."""
    if not isinstance(value, dict):
        group = group_of(_known(name, f"{file}:{name}"))
        raise InvalidConfig(
            f"{file}:{name}: {name} stands outside of a table. Write it below a line with [{group}]. Nothing was started.",
            field=name,
            source=f"{file}:{name}",
        )
    if name not in GROUPS:
        raise InvalidConfig(
            f"{file}: there is no table [{name}];{_hint(name, GROUPS)} Nothing was started.", source=f"{file}:{name}"
        )
    return [
        Given(_in_group(each, name, f"{file}:{name}.{each}"), held, f"{file}:{name}.{each}") for each, held in value.items()
    ]


def _in_group(name: str, group: str, source: str) -> str:
    if (right := group_of(_known(name, source))) != group:
        raise InvalidConfig(f"{source}: {name} belongs in the table [{right}]. Nothing was started.", field=name, source=source)
    return name


def _known(name: str, source: str) -> str:
    if name in _TYPES:
        return name
    hint = _hint(name, _TYPES)
    raise InvalidConfig(f"{source}: there is no setting {name!r};{hint} Nothing was started.", field=name, source=source)


def _hint(name: str, names: Iterable[str], *, prefix: str = "") -> str:
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.7)
    if near:
        return f" did you mean {prefix}{near[0]}?"
    return " docs/CONFIGURATION.md lists all settings. A bound that is not there is a constant: leave it out."


def _parsed(given: Given) -> object:
    """The value in its field's type. For a number, text is converted, because environments only have text."""
    kind = _TYPES[given.field]
    if kind is str and isinstance(given.value, str):
        return given.value
    if kind is int and "_bytes" in given.field and isinstance(given.value, str):
        return _size(given)
    if kind in (int, float) and isinstance(given.value, str | int | float) and not isinstance(given.value, bool):
        return _number(given, kind)
    raise _wrong(given)


def _size(given: Given) -> int:
    size = size_of(str(given.value))
    if size is None:
        raise _wrong(given)
    return size


def size_of(text: str) -> int | None:
    """The bytes of a whole number, or of a number with a unit such as "64MiB"; None if it is neither."""
    match = _SIZE.fullmatch(text.strip().replace("_", ""))
    return None if match is None else int(match[1]) * _UNITS[match[2] or ""]


def _number(given: Given, kind: type) -> int | float:
    try:
        number = kind(given.value)
    except (ValueError, OverflowError):
        raise _wrong(given) from None
    # int(2.5) is 2, which would silently drop the fraction.
    if not math.isfinite(number) or (isinstance(given.value, float) and number != given.value):
        raise _wrong(given)
    return number  # type: ignore[no-any-return]


def _wrong(given: Given) -> InvalidConfig:
    return InvalidConfig(
        f"{given.source}: {given.field} must be {_allowed(given.field)}; it is {shown(given.field, given.value)}. Nothing was "
        "started.",
        field=given.field,
        source=given.source,
    )


def _allowed(name: str) -> str:
    kind = _TYPES[name]
    if kind is str:
        return "text"
    if "_bytes" in name:
        return 'a size: a whole number of bytes, or text such as "64MiB" (KiB, MiB, GiB, TiB)'
    return "a whole number" if kind is int else "a number"


def _in_range(chosen: Mapping[str, Given]) -> Config:
    config = msgspec.convert({name: given.value for name, given in chosen.items()}, Config)
    try:
        return checked(config)
    except InvalidConfig as error:
        name = error.detail.get("field")
        given = chosen.get(name) if isinstance(name, str) else None
        if given is None:
            raise
        message = f"{given.source}: {error.message} Nothing was started."
        raise InvalidConfig(message, field=given.field, source=given.source) from None


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
