"""Hooks: functions, commands and servers that see what is written, and all the ways in which they can go wrong."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import shoal
from shoal import values
from shoal.config import Config
from shoal.errors import InvalidConfig, InvalidInput, RedactionFailed, RedactionRefused, SchemaViolation, ShoalError
from shoal.kinds.redaction.serving import hooks
from shoal.kinds.redaction.serving.hooks import Hook, Replacement, Text, Threads, Writing, of_file
from shoal.node.node import Node
from shoal.protocol import requests
from shoal.protocol.requests import Replaced
from shoal.storage.interface import MemoryStorage
from simulation.world.environment import SimulatedEnvironment
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench
from tests.node.redaction.test_writes import rows

NAME = "Ada Lovelace"


def given(**functions: Callable[[Writing], Any]) -> Bench:
    bench = Bench(MemoryStorage(), simulated := SimulatedEnvironment(1), Config())
    bench.node._database.redactor._hooks = {
        name: Hook(name, function=function, threads=Threads(simulated.environment.run_apart))
        for name, function in functions.items()
    }
    return bench


def renamed(writing: Writing) -> dict[int, str]:
    return {nth: each.text.replace(NAME, "[name]") for nth, each in enumerate(writing.texts)}


async def renamed_later(writing: Writing) -> list[Replacement]:
    await asyncio.sleep(0)
    return [
        Replacement(nth, each.text.replace(NAME, "[name]"), "names", each.text.count(NAME))
        for nth, each in enumerate(writing.texts)
        if NAME in each.text
    ]


async def closed(bench: Bench) -> None:
    await bench.node.stop()


@pytest.mark.parametrize("function", [renamed, renamed_later])
async def test_a_hook_replaces_what_it_sees(function: Any) -> None:
    bench = given(names=function)
    await bench.space.redaction.set(hooks=["names"], credentials=True)
    with shoal.redactions() as found:
        await bench.space.thread("t").save({"m": [f"{NAME} came", 1, {"who": (NAME,)}], "n": NAME.encode()})
    assert (await bench.space.thread("t").load()).state == {
        "m": ["[name] came", 1, {"who": ("[name]",)}],
        "n": b"[name]",
    }
    assert {each.path for each in found} == {"/channels/m/0", "/channels/m/2/who/0", "/channels/n"}
    assert not any(NAME.encode() in row for row in rows(bench.storage))
    await closed(bench)


async def test_a_hook_is_given_places_and_the_kind() -> None:
    seen: list[Writing] = []
    bench = given(look=seen.append)
    await bench.space.redaction.set(hooks=["look"])
    await bench.node.session().call(requests.Append("crew", "t", values.encode({"a": ["x", 7], "b": b"\xff"})))
    assert seen == [Writing("crew", "append", [Text("thread", "t"), Text("/event/*", "a")])] or [
        (each.path, each.text) for each in seen[0].texts
    ] == [("/thread", "t"), ("/event/*", "a"), ("/event/a/0", "x"), ("/event/*", "b")]
    assert (seen[0].space, seen[0].kind) == ("crew", "append")
    await closed(bench)


async def test_a_hook_that_would_replace_a_name_refuses() -> None:
    bench = given(names=renamed)
    await bench.space.redaction.set(hooks=["names"])
    with pytest.raises(RedactionRefused):
        await bench.space.register(NAME).set(1)
    await closed(bench)


async def test_the_text_of_a_hook_is_looked_through() -> None:
    bench = given(bad=lambda writing: {len(writing.texts) - 1: "sk-" + "a1B2" * 8})
    await bench.space.redaction.set(hooks=["bad"], credentials=True)
    await bench.space.register("r").set("x")
    assert await bench.space.register("r").get() == "[credentials]"
    await closed(bench)


async def never(_: Writing) -> None:
    await asyncio.sleep(3600)


def died(writing: Writing) -> None:
    raise RuntimeError(f"cannot look at {writing.texts[-1].text}")


LAST: dict[str, Any] = {
    "hangs": never,
    "dies": died,
    "answers text": lambda _: "text",
    "answers a number": lambda _: {0: 7},
    "answers None for a text": lambda _: {0: None},
    "answers bytes": lambda _: {0: b"x"},
    "answers no place": lambda _: {"a": "x"},
    "answers a place that is not there": lambda writing: {len(writing.texts): "x"},
    "answers a negative place": lambda _: {-1: "x"},
    "answers a place twice": lambda _: [Replacement(0, "x"), Replacement(0, "y")],
    "answers other objects": lambda _: [1],
    "answers half a character": lambda _: {0: "\ud800"},
    "answers more than it may": lambda _: {0: "x" * 200_000},
}


@pytest.mark.answers("pasted-secret-is-stored-for-ever")
@pytest.mark.parametrize("function", LAST.values(), ids=LAST.keys())
@pytest.mark.virtual_time
async def test_a_hook_that_misbehaves_refuses_the_write(function: Any) -> None:
    bench = given(hook=function)
    await bench.space.redaction.set(hooks=["hook"])
    before = list(rows(bench.storage))
    with pytest.raises(RedactionFailed) as caught:
        await bench.node.session().call(requests.Assign("crew", "r", values.encode(NAME)))
    assert NAME not in repr((caught.value.message, caught.value.detail, caught.value.__cause__))
    assert caught.value.retryable
    assert list(rows(bench.storage)) == before
    await closed(bench)


@pytest.mark.virtual_time
async def test_calls_of_one_hook_are_bounded() -> None:
    running = most = 0

    async def slow(_: Writing) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.1)
        running -= 1

    hook = Hook("slow", function=slow)
    await asyncio.gather(*(hook.replacements(Writing("crew", "assign", [])) for _ in range(50)))
    assert most == hooks.AT_ONCE_MAX


@pytest.mark.real_time("threads hang")
async def test_functions_that_hang_leave_threads_to_others() -> None:
    from concurrent.futures import ThreadPoolExecutor
    from threading import Event

    over = Event()
    with ThreadPoolExecutor(4) as pool:

        def apart(function: Callable[[], Any]) -> Awaitable[Any]:
            return asyncio.get_running_loop().run_in_executor(pool, function)

        hook = Hook("hangs", function=lambda _: over.wait(), threads=Threads(apart), timeout_s=0.05)
        for _ in range(6):
            with pytest.raises(RedactionFailed, match="did not answer"):
                await hook.replacements(Writing("crew", "assign", []))
        assert await apart(lambda: 7) == 7
        over.set()


async def test_a_schema_sees_what_a_hook_makes() -> None:
    bench = given(hook=lambda writing: {nth: "too long" for nth, each in enumerate(writing.texts) if each.text == "ab"})
    schema = {"type": "object", "properties": {"key": {"type": "string", "maxLength": 5}}}
    await bench.space.schemas.put("plan", 1, schema, threads="t")
    await bench.space.redaction.set(hooks=["hook"])
    with pytest.raises(SchemaViolation):
        await bench.space.thread("t").save({"key": "ab"})
    await closed(bench)


async def test_a_node_without_the_hook_refuses() -> None:
    bench = given(names=renamed)
    with pytest.raises(InvalidInput, match="no hook 'other'"):
        await bench.space.redaction.set(hooks=["names", "other"])
    await bench.space.redaction.set(hooks=["names"])
    bench.node._database.redactor._hooks = {}
    bench.node._database.redactor._known.clear()
    with pytest.raises(RedactionFailed, match="no hook 'names'"):
        await bench.space.register("r").set(1)
    await closed(bench)


@pytest.mark.virtual_time
async def test_a_retry_with_another_answer_is_the_same_write() -> None:
    answers = iter(["first", "second"])
    bench = given(hook=lambda writing: {len(writing.texts) - 1: next(answers)})
    await bench.space.redaction.set(hooks=["hook"])
    session = bench.node.session()
    ask = requests.Append("crew", "t", values.encode(NAME))
    assert await session.call(ask, key="k") == await session.call(ask, key="k")
    await closed(bench)


@pytest.mark.virtual_time
async def test_setting_waits_for_all_owners() -> None:
    async with Fleet("abc") as fleet:
        await fleet["a"].store().space("crew").redaction.set(credentials=True)
        for name in "abc":
            view = await fleet[name].node.session().call(requests.ReadRedaction("crew"), stale=True)
            assert view.credentials


# ── commands and servers ──────────────────────────────────────────────────────

COMMAND = """
import json, sys
asked = json.load(sys.stdin)
assert asked["version"] == 1
found = [{"nth": n, "text": t["text"].replace("Ada Lovelace", "[name]"), "rule": "names"}
         for n, t in enumerate(asked["texts"]) if "Ada Lovelace" in t["text"]]
json.dump({"replaced": found}, sys.stdout)
"""

BAD = {
    "fails": "import sys; sys.exit(3)",
    "answers nothing": "pass",
    "answers garbage": "print('{')",
    "answers another form": 'print(\'{"replaced": [{"nth": 0, "text": 7}]}\')',
    "answers more": 'print(\'{"replaced": [], "more": 1}\')',
    "answers without end": "import sys\nwhile True: sys.stdout.write('x' * 65536)",
    "hangs": "import time; time.sleep(600)",
    "hangs with a child": "import os, time; os.fork(); time.sleep(600)",
    "dies": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "fails after its answer": "print('{\"replaced\": []}', flush=True); raise SystemExit(1)",
}


def file_of(tmp_path: Path, program: str, timeout_s: float = 20.0) -> str:
    script, path = tmp_path / "hook.py", tmp_path / "hooks.toml"
    script.write_text(textwrap.dedent(program))
    path.write_text(f"[hooks.names]\ncommand = {json.dumps([sys.executable, '-I', str(script)])}\ntimeout_s = {timeout_s}\n")
    return str(path)


@pytest.mark.real_time("processes")
async def test_a_command_replaces(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state", config=Config(redaction_hooks=file_of(tmp_path, COMMAND))) as store:
        space = store.space("crew")
        await space.redaction.set(hooks=["names"])
        with shoal.redactions() as found:
            await space.register("r").set([NAME, "x" * 300_000])
        assert (await space.register("r").get())[0] == "[name]"
        assert found == [Replaced("/value/0", "names", 1)]


@pytest.mark.parametrize("program", BAD.values(), ids=BAD.keys())
@pytest.mark.real_time("processes")
async def test_a_command_that_misbehaves_refuses_the_write(tmp_path: Path, program: str) -> None:
    hook = of_file(file_of(tmp_path, program, 0.3 if "sleep" in program else 20.0))["names"]
    with pytest.raises(RedactionFailed) as caught:
        await hook.replacements(Writing("crew", "assign", [Text("/value", NAME)] * 50_000))
    assert NAME not in caught.value.message
    if "exit" in program.lower():
        assert re.search(r"ended with the exit code [13]\. Nothing was written", caught.value.message)


@pytest.mark.real_time("processes")
async def test_a_command_that_cannot_be_begun_is_told(tmp_path: Path) -> None:
    hook = Hook("names", ask=hooks._Command([str(tmp_path / "none")]))
    with pytest.raises(RedactionFailed, match=r"cannot be begun: No such file or directory\. Nothing was written"):
        await hook.replacements(Writing("crew", "assign", [Text("/value", NAME)]))


@pytest.mark.real_time("sockets")
async def test_a_server_replaces_or_refuses() -> None:
    answers: list[Any] = []

    async def answered(request: web.Request) -> web.StreamResponse:
        asked = json.loads(await request.text())
        answer = answers.pop(0)
        return await answer(request) if callable(answer) else web.json_response(answer, status=200 if asked else 500)

    async def failing(_: web.Request) -> web.StreamResponse:
        return web.Response(status=500, text=NAME)

    async def elsewhere(_: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("/other")

    async def hanging(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65536)

    app = web.Application()
    app.router.add_post("/redact", answered)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    hook = Hook("names", ask=hooks._Server(f"http://127.0.0.1:{port}/redact"), timeout_s=0.5)
    writing = Writing("crew", "assign", [Text("/value", NAME)])
    answers.append({"replaced": [{"nth": 0, "text": "[name]"}]})
    assert [each.text for each in await hook.replacements(writing)] == ["[name]"]
    form = "answered something else than"
    wrong: list[tuple[Any, str]] = [
        *((failing, "answered with the status 500"), (elsewhere, "answered with the status 302")),
        *((hanging, "did not answer within 0.5 s"), (endless, "answered more than it may")),
        *(({"replaced": {}}, form), ([], form), ({"replaced": [{"nth": 5, "text": "x"}]}, "it was not given")),
    ]
    for bad, said in wrong:
        answers.append(bad)
        with pytest.raises(RedactionFailed, match=said) as caught:
            await hook.replacements(writing)
        assert NAME not in caught.value.message
    await runner.cleanup()
    with pytest.raises(RedactionFailed, match="cannot be reached: "):
        await hook.replacements(writing)


@pytest.mark.parametrize(
    "text",
    [
        "[hooks.a]",
        '[hooks.a]\ncommand = "sh"',
        "[hooks.a]\ncommand = []",
        '[hooks.a]\nurl = "ftp://x"',
        '[hooks.a]\nurl = "http://x"\ncommand = ["a"]',
        '[hooks.a]\nurl = "http://x"\ntimeout_s = 0',
        '[hooks.a]\nurl = "http://x"\ntimeout_s = 600',
        '[hooks.a]\nurl = "http://x"\nspace = "crew"',
        "[other]",
        "[[",
        "hooks = 7",
    ],
)
async def test_a_file_of_hooks_that_is_wrong_stops_the_start(tmp_path: Path, text: str) -> None:
    path = tmp_path / "hooks.toml"
    path.write_text(text)
    with pytest.raises(InvalidConfig, match=r"hooks\.toml"):
        of_file(str(path))
    with pytest.raises(InvalidConfig):
        Node(MemoryStorage(), config=Config(redaction_hooks=str(path)), environment=SimulatedEnvironment(1).environment)


def test_a_file_of_hooks_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="No such file"):
        of_file(str(tmp_path / "none.toml"))
    assert of_file("") == {}


@pytest.mark.parametrize("redact", [{"": renamed}, {"a": "b"}, {"x" * 65: renamed}])
@pytest.mark.real_time("a store on disk")
async def test_a_hook_that_is_no_function_is_told(tmp_path: Path, redact: Any) -> None:
    with pytest.raises(ShoalError, match="redact="):
        await shoal.open(tmp_path / "state", redact=redact)


async def test_a_space_whose_hook_fails_is_named_until_a_write_passes_or_the_rules_go() -> None:
    answers: dict[str, Any] = {"with": died}
    bench = given(hook=lambda writing: answers["with"](writing))
    failing = bench.node.service.redactor
    await bench.space.redaction.set(hooks=["hook"])
    with pytest.raises(RedactionFailed):
        await bench.space.register("r").set(NAME)
    assert list(failing.failing) == ["crew"]
    assert "'hook'" in failing.failing["crew"]
    assert NAME not in failing.failing["crew"]
    answers["with"] = lambda _: None
    await bench.space.register("r").set("text")
    assert failing.failing == {}
    answers["with"] = died
    with pytest.raises(RedactionFailed):
        await bench.space.register("r").set("text")
    await bench.space.redaction.unset()
    assert failing.failing == {}
    await bench.space.redaction.set(credentials=True)
    await bench.space.register("r").set("text")
    assert failing.failing == {}
    await closed(bench)
