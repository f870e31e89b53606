"""`shoal completion` and `shoal context`: what a user sets up once, a script for the shell, and names of servers, so that a
command need not be told the URL, the token and the CA each time.

Laws:
- The file of contexts has mode 0600, and holds the paths of tokens, never a token.
- It is replaced as a whole: a command that is killed leaves the old one or the new one.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import typer
from typer._completion_classes import completion_init
from typer._completion_shared import get_completion_script

from shoal.cli import execution
from shoal.cli.arguments import DryRun, Yes
from shoal.cli.execution import Json, agreed
from shoal.cli.output import emit, is_terminal, line, note, table
from shoal.errors import InvalidInput, NotFound
from shoal.records import NamedTuple

CONTEXTS_MAX = 1000
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")

group = typer.Typer(no_args_is_help=True, help="Name servers, and choose the one that commands use.")


class Contexts(NamedTuple):
    """All contexts of a user, and which one is in use; empty: none."""

    current: str
    named: Mapping[str, execution.Context]


Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name.", show_default=False)]


@group.command()
def add(
    name: Name,
    url: Annotated[str, typer.Argument(metavar="URL", help="A node, or several separated by commas.", show_default=False)],
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="The token to show to its nodes.", show_default=False)
    ] = None,
    tls_ca: Annotated[
        Path | None, typer.Option("--tls-ca", metavar="FILE", help="The CA of its certificates.", show_default=False)
    ] = None,
) -> None:
    """Name a server, or change what is kept under its name. The first one that is added is in use at once.

    Example: shoal context add crew https://n1:7400,https://n2:7400 --token-file ./crew.token --tls-ca ./ca.pem
    """
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"a context's name has 1 to 64 letters, digits, `.`, `_` and `-`; got {name[:80]!r}. Nothing was written."
        )
    for each in url.split(","):
        if urlsplit(each).scheme not in ("http", "https") or not urlsplit(each).hostname:
            raise InvalidInput(f"a context needs URLs such as http://127.0.0.1:7400; got {each[:80]!r}. Nothing was written.")
        if urlsplit(each).username is not None:
            raise InvalidInput("a context keeps no password in its URL. Nothing was written. Give --token-file.")
    found = read()
    named = {**found.named, name: execution.Context(url, _absolute(token_file), _absolute(tls_ca))}
    if len(named) > CONTEXTS_MAX:
        raise InvalidInput(f"there are {CONTEXTS_MAX} contexts, which is the most. Nothing was written. Remove one.")
    _write(Contexts(found.current or name, named))
    line(f"{name}  {url}" + "  (in use)" * (not found.current))


@group.command()
def use(name: Name) -> None:
    """Use a server in all commands that name no store, until another one is chosen.

    Example: shoal context use crew
    """
    found = read()
    _write(Contexts(_known(found, name), found.named))
    line(f"{name}  {found.named[name].url}")


@group.command("list")
def list_all(json: Json = False) -> None:
    """List the named servers; a star marks the one in use.

    Example: shoal context list
    """
    found = read()
    if json:
        for name, each in found.named.items():
            emit({"name": name, **_packed(each), "in_use": name == found.current})
        return
    rows = [("", "name", "url", "token file", "ca")]
    rows += [
        ("*" * (name == found.current), name, each.url, each.token_file or "", each.tls_ca or "")
        for name, each in found.named.items()
    ]
    table(rows) if found.named else line("there are none: shoal context add NAME URL")


@group.command()
def remove(name: Name, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Forget a server. Its token's file stays.

    Example: shoal context remove crew --yes
    """
    found = read()
    _known(found, name)
    if dry_run:
        line(f"would remove {name} ({found.named[name].url})")
        return
    agreed(f"Forget context {name} ({found.named[name].url})?", yes=yes)
    rest = {each: context for each, context in found.named.items() if each != name}
    _write(Contexts("" if name == found.current else found.current, rest))
    line(f"removed {name}")


def directory(environment: Mapping[str, str], platform: str = "") -> Path:
    """The user's directory for configuration, by the rules of the system."""
    platform = platform or sys.platform
    home = Path(environment.get("HOME") or Path.home())
    if platform == "win32":
        return Path(environment.get("APPDATA") or home / "AppData" / "Roaming") / "shoal"
    if platform == "darwin":
        return home / "Library" / "Application Support" / "shoal"
    # A relative path is to be ignored (XDG base directories).
    named = Path(environment.get("XDG_CONFIG_HOME", ""))
    return (named if named.is_absolute() else home / ".config") / "shoal"


def read(environment: Mapping[str, str] = os.environ) -> Contexts:
    """The user's contexts; none if there is no file.

    Raises:
        InvalidInput: the file is not of contexts.
    """
    path = directory(environment) / "contexts.json"
    try:
        found: Any = json.loads(path.read_text())
        named = {
            name: execution.Context(each["url"], each.get("token_file"), each.get("tls_ca"))
            for name, each in found["contexts"].items()
        }
        return Contexts(found["current"], named)
    except FileNotFoundError:
        return Contexts("", {})
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}. Nothing was written.") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise InvalidInput(f"{path} does not hold contexts. Nothing was written. Mend it, or remove it.") from None


def find(name: str, environment: Mapping[str, str]) -> execution.Context | None:
    """The named context, or the one in use if no name is given; None if there is none.

    Raises:
        NotFound: there is none of this name.
        InvalidInput: the file is not of contexts.
    """
    found = read(environment)
    return found.named[_known(found, name)] if name else found.named.get(found.current)


def _known(found: Contexts, name: str) -> str:
    if name not in found.named:
        there = ", ".join(sorted(found.named)[:10]) or "none yet; `shoal context add` adds one"
        raise NotFound(f"there is no context {name!r}. Nothing was written. There are: {there}.")
    return name


def _write(contexts: Contexts) -> None:
    path = directory(os.environ) / "contexts.json"
    document = {"current": contexts.current, "contexts": {name: _packed(each) for name, each in contexts.named.items()}}
    beside = path.with_suffix(".new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside.unlink(missing_ok=True)
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(document, file, indent=2)
        beside.replace(path)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}. The contexts are as before.") from None


def _packed(context: execution.Context) -> dict[str, str | None]:
    return {"url": context.url, "token_file": context.token_file, "tls_ca": context.tls_ca}


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.expanduser().absolute())


PANEL = "Run"
_VARIABLE = "_SHOAL_COMPLETE"  # The variable with which the script asks `shoal` for completions.
_INSTALLED = {
    "bash": "mkdir -p ~/.local/share/bash-completion/completions && "
    "shoal completion bash > ~/.local/share/bash-completion/completions/shoal",
    "zsh": "mkdir -p ~/.zfunc && shoal completion zsh > ~/.zfunc/_shoal   # with this in ~/.zshrc: "
    "fpath+=~/.zfunc; autoload -Uz compinit; compinit",
    "fish": "mkdir -p ~/.config/fish/completions && shoal completion fish > ~/.config/fish/completions/shoal.fish",
}


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.command(rich_help_panel=PANEL)(completion)
    app.add_typer(group, name="context", rich_help_panel=PANEL)


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="bash|zsh|fish", show_default=False)],
) -> None:
    """Print the script with which a shell completes commands and options; on a terminal, also how to install it.

    Example: shoal completion bash > ~/.local/share/bash-completion/completions/shoal
    """
    line(get_completion_script(prog_name="shoal", complete_var=_VARIABLE, shell=shell))
    if is_terminal():
        note(f"to install it: {_INSTALLED[shell]}")


def answer_shell() -> None:
    """Prepare to answer a shell that asks for completions, if one runs this process."""
    if _VARIABLE in os.environ:
        completion_init()
