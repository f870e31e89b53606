"""Hooks: commands, URLs and functions that see the texts of a write before it is stored, and replace parts of them.

Laws:
- What a hook is stands in the configuration of its node, or in the program that embeds it: never in what is replicated.
- A hook that does not answer in its time, in its form and within its bounds refuses the write.
- What a hook was given, or has answered, is in no error and in no log.
- A command does not get the node's own variables, in which its keys and tokens may be.
- At most `AT_ONCE_MAX` calls of one hook are under way; others wait, within their own time.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import tomllib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from shoal.errors import InvalidConfig, RedactionFailed
from shoal.kinds.redaction.state.rules import NAME_BYTES_MAX
from shoal.records import NamedTuple

AT_ONCE_MAX = 8  # Calls of one hook.
THREADS_MAX = 2  # For functions that are not async, of all hooks together.
TIMEOUT_S = 5.0  # Of one call, unless the file says otherwise.
TIMEOUT_S_MAX = 60.0
ANSWER_BYTES_MAX = 64 * 1024  # Beside twice the bytes that it was given.
HOOKS_MAX = 64  # Of one node.
_KILLED_S = 5.0  # For a command that is killed to be gone.
_OWN = "SHOAL_"  # The beginning of the node's own variables: keys and tokens may be in them.
VERSION = 1  # Of the form in which a hook is asked.


class Text(NamedTuple):
    """One text of a write."""

    path: str  # A JSON pointer into the write.
    text: str


class Writing(NamedTuple):
    """A write, as a hook sees it: the texts that it would store. Numbers, dates and bytes are not among them."""

    space: str
    kind: str  # Of the request, such as `save` or `append`.
    texts: Sequence[Text]


class Replacement(Struct, frozen=True, forbid_unknown_fields=True):
    """A text that a hook puts in the place of one that it was given."""

    nth: int  # Among the texts that it was given.
    text: str
    rule: Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX)] = (
        ""  # The rule's name, for the report; empty: the hook's.
    )
    count: Annotated[int, Meta(ge=1, le=1_000_000)] = 1  # How many parts of the text it replaced.


class _Form(Struct, frozen=True, forbid_unknown_fields=True):
    replaced: list[Replacement]


Function = Callable[[Writing], Any]
"""A hook where the store is embedded. It returns the texts that it replaces, by their places among those that it was given, or
a list of `Replacement`; None: nothing. It may be async; if it is not, it runs in a thread.
"""
Ask = Callable[[bytes, int], Awaitable[bytes]]
"""Asks a hook outside: the question in JSON, and the most bytes of an answer."""


class _Failed(Exception):
    """How a hook failed, in words of this module alone: nothing that it was given or has answered is in it."""


class Threads:
    """The threads for functions of hooks. One that hangs keeps its thread; the next ones wait, within their own time."""

    def __init__(self, run_apart: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        self._run_apart = run_apart
        self._room = asyncio.Semaphore(THREADS_MAX)

    async def run(self, function: Callable[[], Any]) -> Any:
        """The result of the function."""
        await self._room.acquire()
        task = asyncio.ensure_future(self._run_apart(function))
        task.add_done_callback(self._left)
        return await asyncio.shield(task)

    def _left(self, task: asyncio.Future[Any]) -> None:
        self._room.release()
        if not task.cancelled():
            task.exception()  # Its caller may have given up.


class Hook:
    """One hook of a node. `ask` or `function` answers; `threads` run a function that is not async."""

    def __init__(
        self,
        name: str,
        *,
        timeout_s: float = TIMEOUT_S,
        ask: Ask | None = None,
        function: Function | None = None,
        threads: Threads | None = None,
    ) -> None:
        self.name = name
        self._timeout_s = timeout_s
        self._ask, self._function, self._threads = ask, function, threads
        self._room = asyncio.Semaphore(AT_ONCE_MAX)

    async def replacements(self, writing: Writing) -> list[Replacement]:
        """The replacements of the hook in a write.

        Raises:
            RedactionFailed: it failed, took too long, or its answer has another form than it must have.
        """
        try:
            async with asyncio.timeout(self._timeout_s), self._room:
                answer = await (self._called(writing) if self._ask is None else self._asked(self._ask, writing))
        except TimeoutError:
            raise self._failed(f"did not answer within {self._timeout_s:g} s") from None
        except RedactionFailed:
            raise
        except _Failed as failure:
            raise self._failed(str(failure)) from None
        except Exception as failure:
            # Without its text and its cause, which may hold what it was given.
            raise self._failed(f"failed ({type(failure).__name__})") from None
        self._check(writing, answer)
        return answer

    async def _asked(self, ask: Ask, writing: Writing) -> list[Replacement]:
        texts = [{"path": each.path, "text": each.text} for each in writing.texts]
        question = msgspec.json.encode({"version": VERSION, "space": writing.space, "kind": writing.kind, "texts": texts})
        answer = await ask(question, 2 * len(question) + ANSWER_BYTES_MAX)
        try:
            return msgspec.json.decode(answer, type=_Form).replaced
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            raise self._failed('answered something else than {"replaced": [{"nth": …, "text": …}]}') from None

    async def _called(self, writing: Writing) -> list[Replacement]:
        assert self._function is not None
        function = self._function
        if inspect.iscoroutinefunction(function) or self._threads is None:
            answer = function(writing)
        else:
            answer = await self._threads.run(lambda: function(writing))
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is None:
            return []
        if isinstance(answer, Mapping):
            answer = [Replacement(nth, text) for nth, text in answer.items()]
        if not isinstance(answer, list) or not all(isinstance(each, Replacement) for each in answer):
            raise self._failed("returned neither texts by their places nor a list of Replacement")
        return answer

    def _check(self, writing: Writing, answer: Sequence[Replacement]) -> None:
        places: set[int] = set()
        size = sum(len(each.text) for each in writing.texts)
        for each in answer:
            if type(each.nth) is not int or type(each.text) is not str or not 0 <= each.nth < len(writing.texts):
                raise self._failed("replaced something that it was not given")
            if each.nth in places:
                raise self._failed("replaced one text twice")
            if not each.text.isascii() and any("\ud800" <= character <= "\udfff" for character in each.text):
                raise self._failed("answered text that is not Unicode")
            places.add(each.nth)
        if sum(len(each.text) for each in answer) > 2 * size + ANSWER_BYTES_MAX:
            raise self._failed("answered more than it may")

    def _failed(self, what: str) -> RedactionFailed:
        return RedactionFailed(
            f"the hook {self.name!r}, which the rules of the space ask before each write, {what}. Nothing was written. Try "
            "again; if it stays so, look at the hook.",
            hook=self.name,
        )


# ── commands and URLs ─────────────────────────────────────────────────────────


class _Declared(Struct, frozen=True, forbid_unknown_fields=True):
    """A hook in the file."""

    command: Annotated[list[str], Meta(min_length=1)] | None = None
    url: str = ""
    timeout_s: Annotated[float, Meta(gt=0, le=TIMEOUT_S_MAX)] = TIMEOUT_S


def of_file(path: str) -> dict[str, Hook]:
    """The hooks in a file of TOML, by name; none if `path` is empty.

    Raises:
        InvalidConfig: it cannot be read, or says something else.
    """
    if not path:
        return {}
    try:
        told = tomllib.loads(Path(path).read_text())
        found = msgspec.convert(told.pop("hooks", {}), dict[str, _Declared])
    except (OSError, UnicodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise _wrong(path, str(error)) from None
    if told or len(found) > HOOKS_MAX:
        raise _wrong(path, f"it has {', '.join(sorted(told))[:200]}" if told else f"it has more than {HOOKS_MAX} hooks")
    return {name: _made(path, name, each) for name, each in found.items()}


def _made(path: str, name: str, declared: _Declared) -> Hook:
    if (declared.command is None) == (not declared.url) or (
        declared.url and not declared.url.startswith(("http://", "https://"))
    ):
        raise _wrong(path, f"hook {name!r} needs a command, or the url of a server, http:// or https://")
    if declared.command is not None:
        return Hook(name, timeout_s=declared.timeout_s, ask=_Command(declared.command))
    return Hook(name, timeout_s=declared.timeout_s, ask=_Server(declared.url))


def of_functions(functions: Mapping[str, Function] | None, threads: Threads) -> dict[str, Hook]:
    """The hooks of the program that embeds a node.

    Raises:
        InvalidConfig: one is none that can be called, or has no name.
    """
    for name, function in (functions or {}).items():
        if not isinstance(name, str) or not 0 < len(name.encode(errors="replace")) <= NAME_BYTES_MAX or not callable(function):
            raise InvalidConfig(f"redact= takes functions by name; got {name!r:.80}. Nothing was opened.", field="redact")
    return {name: Hook(name, function=function, threads=threads) for name, function in (functions or {}).items()}


def _wrong(path: str, why: str) -> InvalidConfig:
    return InvalidConfig(
        f"the file of hooks {path!r} cannot be used: {why}. Nothing was opened. Write [hooks.NAME] with "
        'command = ["…"] or url = "…", and timeout_s.',
        field="redaction_hooks",
    )


class _Command:
    """A command, which is begun for each write: the question on its standard input, the answer on its standard output."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command

    async def __call__(self, question: bytes, bytes_max: int) -> bytes:
        pipe, nowhere = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=pipe, stdout=pipe, stderr=nowhere, start_new_session=True, env=_environment()
            )
        except OSError as error:
            raise _Failed(f"cannot be begun: {error.strerror}") from None
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            told = asyncio.ensure_future(_told(process.stdin, question))
            try:
                answer = await _within(process.stdout.read, bytes_max)
            finally:
                told.cancel()
            if await process.wait():
                raise _Failed(f"ended with the exit code {process.returncode}")
            return answer
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # With what it has begun.
            with suppress(TimeoutError):
                async with asyncio.timeout(_KILLED_S):
                    await process.wait()
            process._transport.close()  # type: ignore[attr-defined]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_OWN)}


async def _told(stdin: asyncio.StreamWriter, question: bytes) -> None:
    """Give a command its question. One that reads no more may answer all the same."""
    with suppress(ConnectionError):
        stdin.write(question)
        await stdin.drain()
        stdin.close()


async def _within(read: Callable[[int], Awaitable[bytes]], bytes_max: int) -> bytes:
    parts, size = [], 0
    while part := await read(64 * 1024):
        size += len(part)
        if size > bytes_max:
            raise _Failed("answered more than it may")
        parts.append(part)
    return b"".join(parts)


class _Server:
    """A server: the question in a POST, the answer in its body. Redirects are not followed."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __call__(self, question: bytes, bytes_max: int) -> bytes:
        import aiohttp  # With the first question: an embedded store loads no network.

        headers = {"Content-Type": "application/json"}
        try:
            async with (
                aiohttp.ClientSession() as http,
                http.post(self._url, data=question, headers=headers, allow_redirects=False) as answer,
            ):
                if answer.status != 200:
                    raise _Failed(f"answered with the status {answer.status}")
                return await _within(answer.content.read, bytes_max)
        except aiohttp.ClientConnectorError as error:
            raise _Failed(f"cannot be reached: {error.os_error.strerror or type(error).__name__}") from None
