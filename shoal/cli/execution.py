"""Run a command's coroutine, and turn its end into an exit code; usage errors get hints for the mistakes that newcomers make.
And the store that it is about.

    0    success
    1    the operation failed, or was not agreed to; the error's text is on standard error
    2    the command line is wrong (typer reports this itself)
    3    `shoal doctor` could not look at everything, and found nothing
    130  Ctrl-C
    141  the reader of the output ended
    143  SIGTERM (and 129 SIGHUP), for commands that clean up first

Only a bug shows a traceback.

The store of a command: a directory on this machine, or a node behind a URL.

It must be exactly one of the two. An option takes precedence over the environment, and that over the context in use
(`shoal context`); two of the same rank are rejected, because a guess might read the wrong store. A
directory is opened only if it holds a store, so that reading never creates one.
"""

from __future__ import annotations

import difflib
import gc
import os
import re
import signal
import sys
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from contextvars import ContextVar
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

import shoal
from shoal.errors import NotFound, ShoalError
from shoal.raising import needed
from shoal.records import NamedTuple

T = TypeVar("T")


class Commands(TyperGroup):
    """The root of all commands. An error before a command's work begins ends as an error of the work does.

    Each command that prints JSON takes `-o` too.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for command in self.commands.values():
            _add_output(command)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as click does; adds a hint to a usage error."""
        with hinted():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run as click does; a `ShoalError` that is raised before the command's work begins ends as its work would."""
        try:
            with hinted(), needed():
                return super().invoke(ctx)
        except ShoalError as error:
            raise failure(error.message) from None


def _add_output(command: Any) -> None:
    """Let a command, or each of a group, take `-o` if it takes `--json`, which is then short for `-o json`."""
    for inner in getattr(command, "commands", {}).values():
        _add_output(inner)
    for json in [each for each in command.params if each.name == "json" and each.default is False]:
        from shoal.cli import output  # Here: what lists the commands imports little.

        vars(json).update(default=output.is_for_machines, show_default=False)
        command.params.append(output.option())


is_process = False
"""Whether this process was started for one command, and is nobody else's."""

FAILED = 1
_ENDING = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
_STARTED_S = 1.0  # By then a command has imported what it needs. Most have ended.
_BROKEN_PIPE = 128 + 13  # SIGPIPE's number; Windows has no such signal.


def execute(work: Coroutine[None, None, T]) -> T:
    """Run `work` to its end on an event loop of its own, and flush what it printed.

    Raises:
        typer.Exit: with the code for an error, or for a reader of the output that ended.
    """
    try:
        from uvloop import run
    except ImportError:  # Windows has none.
        from asyncio import run  # type: ignore[assignment]

    # Characters that the terminal's encoding lacks are escaped, not fatal.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        result = run(_collecting(work))
        sys.stdout.flush()
    except ShoalError as error:
        raise failure(error.message) from None
    except BrokenPipeError:
        # The interpreter flushes once more at its end, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(_BROKEN_PIPE) from None
    return result


async def _collecting(work: Coroutine[None, None, T]) -> T:
    """Do the work; once it has lasted for a while, garbage is collected, which `shoal.cli.main` leaves until then."""
    from asyncio import get_running_loop

    from shoal.cli.output import note
    from shoal.protocol.session import noting

    collects = get_running_loop().call_later(_STARTED_S, gc.enable)
    try:
        with noting() as replaced:
            return await work
    finally:
        collects.cancel()
        for each in replaced:
            note(f"redacted before it was stored: {each.count} × {each.rule} at {each.path or '/'}")


def agreed(question: str, *, yes: bool) -> None:
    """Ask on a terminal, unless `yes`.

    Raises:
        typer.Abort: the answer is no.
        typer.Exit: there is nobody to ask.
    """
    if yes:
        return
    try:
        typer.confirm(question, abort=True, err=True)
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        typer.echo(err=True)
        raise failure("not agreed to. Nothing was written. --dry-run shows what would go; --yes agrees.") from None


def failure(message: str, *, code: int = FAILED) -> typer.Exit:
    """Print `message` on standard error, and return the exception to raise."""
    typer.echo(f"shoal: {message}", err=True)
    return typer.Exit(code)


async def interruptible(work: Coroutine[None, None, T]) -> T:
    """Await `work`; SIGTERM and SIGHUP cancel it as Ctrl-C does, so that it cleans up.

    Raises:
        typer.Exit: 128 plus the signal's number, after `work` has ended because of one of them.
    """
    import asyncio  # Imported here, because `shoal --help` does not need it, and it takes a fifth of that command's time.

    task = asyncio.ensure_future(work)
    caught: list[signal.Signals] = []

    def cancel(number: signal.Signals) -> None:
        caught.append(number)
        task.cancel()

    loop = asyncio.get_running_loop()
    with suppress(NotImplementedError):  # On Windows only Ctrl-C ends a command.
        for number in _ENDING:
            loop.add_signal_handler(number, cancel, number)
    try:
        return await task
    except asyncio.CancelledError:
        if caught:
            raise typer.Exit(128 + caught[0]) from None
        raise
    finally:
        with suppress(NotImplementedError):
            for number in _ENDING:
                loop.remove_signal_handler(number)


# click's. Older versions of typer use that package, and later ones have it within.
_UsageError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")

_NEAR_MAX = 3
_OTHER_WORDS = {
    **dict.fromkeys(("list", "ls", "get"), "`shoal threads` lists threads, and `shoal doc list` documents."),
    **dict.fromkeys(("start", "run", "server", "up"), "`shoal serve --data ./state` runs a node."),
    **dict.fromkeys(("init", "create", "new", "make"), "`shoal serve --data DIR` makes a store, and so does `shoal.open`."),
    **dict.fromkeys(("history", "checkpoints", "ps"), "`shoal log THREAD` lists a thread's checkpoints."),
    **dict.fromkeys(("tree", "dag", "branches"), "`shoal graph THREAD` draws a thread's branches."),
    **dict.fromkeys(("cat", "load", "state"), "`shoal show THREAD` prints a thread's state."),
    "help": "`shoal --help` lists the commands, and `shoal COMMAND --help` explains one.",
    "version": "`shoal --version` prints it.",
}


@contextmanager
def hinted() -> Iterator[None]:
    """Add to a usage error in this context what may have been meant."""
    try:
        yield
    except _UsageError as error:
        if hint := _hint(error):
            error.message = f"{error.message} {hint}".lstrip()
        raise


def near(name: str, names: Iterable[str]) -> str:
    """A sentence, after a space, with those of `names` that are similar to this one; empty if none is."""
    there = list(names)
    found = [each for each in there if each.startswith(name)] or difflib.get_close_matches(name, there, n=_NEAR_MAX)
    return f" Did you mean {', '.join(map(repr, found[:_NEAR_MAX]))}?" if found else ""


def _hint(error: Any) -> str:
    command = "" if error.ctx is None else error.ctx.command_path
    if early := _meant_for_all(error):
        return early
    if type(error).__name__ == "NoSuchOption" and error.ctx is not None and hasattr(error.ctx.command, "commands"):
        group = f"{command} COMMAND"
        return f"Options come after the command: {group} {error.option_name} …"
    if unknown := re.match(r"No such command '([^']*)'", error.message):
        return _OTHER_WORDS.get(unknown[1].lower(), "")
    if extra := re.search(r"unexpected extra arguments?(?:\(s\))? \((.*)\)", error.message, re.DOTALL):
        return _about_extra(extra[1])
    if command == "shoal serve" and error.ctx is not None and "data" in str(getattr(error, "param", "")):
        return "For example: shoal serve --data ./state"
    return ""


def _meant_for_all(error: Any) -> str:
    """Where an option goes that is `shoal`'s own, and was given to a command; empty if the error is another one."""
    if error.ctx is None or error.ctx.parent is None:
        return ""
    root = error.ctx.find_root()
    own = {name for option in root.command.params for name in option.opts}
    words = [getattr(error, "option_name", ""), *re.findall(r"--[\w-]+", error.message)]
    meant = next((word for word in words if word in own and word != "--help"), "")
    command = error.ctx.command_path.removeprefix(f"{root.command_path} ")
    return f"It stands before the command: {root.command_path} {meant} … {command} …" if meant else ""


def _about_extra(words: str) -> str:
    if re.search(r"[{}\[\]\"]", words):
        return "Put JSON in single quotes, so that the shell leaves it as it is: '{\"step\": 1}'."
    if "://" in words:
        return f"A node is named by --url: --url {words.split()[0]}"
    if "/" in words or words.startswith("."):
        return f"A store's directory is named by --data: --data {words.split()[0]}"
    return "A name that has spaces is put in quotes."


if TYPE_CHECKING:
    from shoal.client.store import Store
    from shoal.config import Config
    from shoal.protocol.requests import Durability

PANEL = "Which store"
_LOOKED_AT_MAX = 1000  # Entries of a directory in which stores are searched.
_SHOWN_MAX = 3

wait_s: ContextVar[float] = ContextVar("wait_s", default=0.0)
"""For a node that is starting, use `shoal --wait`."""

tls_ca: ContextVar[str | None] = ContextVar("tls_ca", default=None)
"""The CA of the nodes' certificates; None: those that the system trusts. See `shoal --tls-ca`."""

encryption_key: ContextVar[str] = ContextVar("encryption_key", default="")
"""Where the master key of an encrypted directory is; empty: it is not encrypted. See `shoal --encryption-key`."""

token_file: ContextVar[Path | None] = ContextVar("token_file", default=None)
"""The file with the token for nodes; None: what the environment names. See `shoal --token-file`."""

durability: ContextVar[Durability] = ContextVar("durability", default="local")
"""How durable the writes of a command are. See `shoal --durability`."""

context: ContextVar[str] = ContextVar("context", default="")
"""The named server to use; empty: the one in use, if no store is named. See `shoal --context`."""

Data = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="DIR", help="A store's directory on this machine. \\[env: SHOAL_DATA]", rich_help_panel=PANEL
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", help="A node, or several separated by commas. \\[env: SHOAL_URL]", rich_help_panel=PANEL
    ),
]
SpaceName = Annotated[
    str, typer.Option("--space", envvar="SHOAL_SPACE", metavar="NAME", help="The space.", rich_help_panel=PANEL)
]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON, one document per line, for machines.", rich_help_panel="Output")
]


class Context(NamedTuple):
    """A named server, as `shoal context` keeps it."""

    url: str
    token_file: str | None  # Its path.
    tls_ca: str | None


class Target(NamedTuple):
    """A directory or a URL; exactly one is not None."""

    data: Path | None
    url: str | None


def chosen(data: Path | None, url: str | None, *, environment: Mapping[str, str]) -> Target:
    """The store to read. If a context says which, its token and CA are used where no option or variable names others.

    Raises:
        typer.BadParameter: neither is given, or both are.
        NotFound: there is no such context.
        InvalidInput: the file of contexts is wrong.
    """
    if context.get() and (data is not None or url is not None):
        raise typer.BadParameter("--context names a server, and so does --data or --url. Remove one.")
    if context.get():
        return _of_context(environment)
    if data is None and url is None:
        data = Path(environment["SHOAL_DATA"]) if environment.get("SHOAL_DATA") else None
        url = environment.get("SHOAL_URL") or None
        where = "SHOAL_DATA and SHOAL_URL"
    else:
        where = "--data and --url"
    if data is not None and url is not None:
        raise typer.BadParameter(f"{where} are both given. Remove one: a command reads only one store.")
    return _of_context(environment) if data is None and url is None else Target(data, url)


def _of_context(environment: Mapping[str, str]) -> Target:
    from shoal.cli.commands import contexts

    found = contexts.find(context.get(), environment)
    if found is None:
        raise typer.BadParameter(
            "no store was given. Give --data DIR for a store on this machine, or --url URL for a running node "
            "(or set SHOAL_DATA or SHOAL_URL, or choose one: shoal context use NAME)."
        )
    if token_file.get() is None and found.token_file is not None:
        token_file.set(Path(found.token_file))
    if tls_ca.get() is None:
        tls_ca.set(found.tls_ca)
    return Target(None, found.url)


def opened(target: Target, *, config: Config | None = None) -> AbstractAsyncContextManager[Store]:
    """The store, as a context. `config` is that of the node, if the store is a directory.

    Raises:
        NotFound: there is no store in the directory; nothing was written.
        StorageError: the directory is not one of a store of this version.
    """
    if target.url is not None:
        return shoal.connect(
            target.url, wait=wait_s.get(), tls_ca=tls_ca.get(), token=token_file.get(), durability=durability.get()
        )
    assert target.data is not None
    check_store(target.data)
    return shoal.open(target.data, config=config, encryption=encryption_key.get(), durability=durability.get())


def ensured(target: Target) -> AbstractAsyncContextManager[Store]:
    """As `opened`, but a directory that is missing or empty becomes a store, for commands that run one.

    Raises:
        NotFound: the directory holds something else; nothing was written.
        StorageError: as `opened`.
    """
    from shoal.storage.layout import strangers

    if (
        target.data is not None
        and not target.data.is_file()
        and not (target.data.is_dir() and strangers(os.listdir(target.data)))
    ):
        return shoal.open(target.data, encryption=encryption_key.get(), durability=durability.get())
    return opened(target)


def check_store(directory: Path) -> None:
    """Check that a directory holds a store, without opening it.

    Raises:
        NotFound: there is no store in the directory; nothing was written.
        StorageError: there is one, but not of this version, or it cannot be read.
    """
    from shoal.storage.layout import FORMAT, holds_store, strangers

    try:
        names = {entry.name for entry in os.scandir(directory)}
    except FileNotFoundError:
        names = set()
    except NotADirectoryError:
        raise NotFound(
            f"{directory} is a file, not the directory of a store. Nothing was written.{_nearby(directory)}"
        ) from None
    except OSError as error:
        raise NotFound(f"{directory} cannot be read: {error.strerror}. Nothing was written.") from None
    if FORMAT in names:
        holds_store(directory)
    elif strangers(names):
        raise NotFound(f"{directory} is not a store: there is no {FORMAT} file in it. Nothing was written.{_nearby(directory)}")
    else:
        where = _nearby(directory) or f" `shoal serve --data {directory}` makes one."
        raise NotFound(f"there is no store in {directory}. Nothing was written.{where}")


def _nearby(directory: Path) -> str:
    """A sentence, after a space, that lists stores in this directory or beside it; empty if there are none."""
    from shoal.storage.layout import FORMAT

    found: list[str] = []
    for place in (directory, directory.parent):
        with suppress(OSError), os.scandir(place) as entries:
            for each in islice(entries, _LOOKED_AT_MAX):
                with suppress(OSError):
                    found += [each.path] if Path(each.path, FORMAT).is_file() else []
    return f" There is a store in {', '.join(sorted(found)[:_SHOWN_MAX])}." if found else ""
