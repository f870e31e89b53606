"""`shoal serve`, as a process: it says where it is, stops when told, and refuses what it cannot do."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import platform
import signal
import ssl
import subprocess
import sys
import threading
import time
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from urllib.request import Request, urlopen

import msgspec
import pytest
from aiohttp import connector
from typer.testing import CliRunner

import shoal
from shoal.cli import execution, node, serving
from shoal.cli.main import app
from shoal.cli.node import begin_anew
from shoal.config import Config
from tests.cli.conftest import PATIENCE_S, Running, clean_environment, running, served
from tests.deploy.conftest import free_addresses
from tests.support import forked

NO_STORE = {"SHOAL_DATA": None, "SHOAL_CONFIG": None}


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    """For what must end by itself."""
    return forked.run(["-m", "shoal", "serve", *arguments], clean_environment(), timeout=PATIENCE_S)


@pytest.mark.parametrize(
    ("number", "code", "anew"), [(signal.SIGTERM, 0, True), (signal.SIGINT, 130, False), (signal.SIGHUP, 129, False)]
)
def test_a_signal_stops_it_cleanly(tmp_path: Path, number: signal.Signals, code: int, anew: bool) -> None:
    with served(tmp_path / "state", anew=anew) as (process, url):
        assert url.startswith("http://127.0.0.1:")
        process.send_signal(number)
        out, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (code, "")
    events = [json.loads(line) for line in errors.splitlines()]
    assert [event["event"] for event in events] == ["ready", "stopping", "stopped"]
    assert events[0]["url"] == url


@pytest.mark.parametrize("anew", [True, False])
def test_the_holder_of_a_directory_is_named_as_a_node(tmp_path: Path, anew: bool) -> None:
    with served(tmp_path / "state", anew=anew):
        told = CliRunner().invoke(app, ["status", "--data", str(tmp_path / "state")])
    assert (told.exit_code, " serve), since " in told.stderr, "give --url and its address" in told.stderr) == (1, True, True)


def test_a_terminal_that_is_closed_does_not_end_what_nohup_began(tmp_path: Path) -> None:
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # As a new process inherits it.
    try:
        with served(tmp_path / "state", anew=True) as (process, url):
            process.send_signal(signal.SIGHUP)
            with urlopen(f"{url}/healthz") as answer:
                assert answer.status == 200
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
    finally:
        signal.signal(signal.SIGHUP, ignored)


async def test_neither_python_nor_cycles_hold_up_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()
    stopped.set_result(signal.SIGTERM)
    intervals, thresholds = list[float](), list[tuple[int, ...]]()
    monkeypatch.setattr(serving, "_signalled", lambda: stopped)
    monkeypatch.setattr(sys, "setswitchinterval", intervals.append)
    monkeypatch.setattr(gc, "set_threshold", lambda *each: thresholds.append(each))
    monkeypatch.setattr(gc, "freeze", lambda: None)
    await serving.serving(tmp_path / "state", Config(listen_port=0))
    assert intervals
    assert max(intervals) <= 0.001  # Of which a sync waits for two.
    assert min(first for first, *_ in thresholds) >= 5000


def test_an_author_in_the_environment_does_not_stop_it(tmp_path: Path) -> None:
    with served(tmp_path / "state", config={"SHOAL_AUTHOR": "ana"}) as (_, url):
        assert url.startswith("http://127.0.0.1:")


def test_unknown_variables_are_warnings_in_the_log(tmp_path: Path) -> None:
    injected = {"SHOAL_LISTEN_HOSTS": "::", "SHOAL_HTTP_PORT": "tcp://10.96.0.7:7400", "SHOAL_HTTP_SERVICE_HOST": "10.96.0.7"}
    with served(tmp_path / "state", config=injected) as (process, _):
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
    events = [json.loads(line) for line in errors.splitlines()]
    [warning] = [event for event in events if event["level"] == "warning"]
    assert warning["event"] == "environment"
    assert "SHOAL_LISTEN_HOSTS is not a setting, and is ignored; did you mean SHOAL_LISTEN_HOST?" in warning["reason"]


def test_the_log_level_leaves_out_what_is_less_grave(tmp_path: Path) -> None:
    with served(tmp_path / "state", "--log-level", "warning") as (process, _):
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "")


async def test_acknowledged_writes_survive_kill_and_restart(tmp_path: Path) -> None:
    with served(tmp_path / "state") as (process, url):
        async with shoal.connect(url) as store:
            await store.space("crew").counter("n").add(7)
        process.kill()
        process.wait(PATIENCE_S)
    with served(tmp_path / "state") as (process, url):
        async with shoal.connect(url) as store:
            assert await store.space("crew").counter("n").value() == 7
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert json.loads(errors.splitlines()[0])["event"] == "resumed"


def test_a_directory_in_use_names_its_holder(node: Running) -> None:
    second = serve("--data", str(node.data), "--listen", "127.0.0.1:0")
    assert (second.returncode, second.stdout) == (1, "")
    assert str(node.pid) in second.stderr
    assert "Traceback" not in second.stderr


def test_a_port_in_use_is_refused(node: Running, tmp_path: Path) -> None:
    second = serve("--data", str(tmp_path / "two"), "--listen", node.url.removeprefix("http://"))
    assert second.returncode == 1
    assert "cannot listen on 127.0.0.1:" in second.stderr
    assert "Nothing was written." in second.stderr
    assert not (tmp_path / "two").exists()
    assert "Traceback" not in second.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--listen", "7400"], "--listen must be HOST:PORT"),
        (["--set", "heartbeat_s=-1"], "--set heartbeat_s: heartbeat_s must be greater than 0"),
        (["--config", "/nowhere.toml"], "cannot read the configuration /nowhere.toml"),
    ],
)
def test_a_bad_setting_is_refused_before_anything_is_made(tmp_path: Path, arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["serve", "--data", str(tmp_path / "state"), *arguments], env=NO_STORE)
    assert (result.exit_code, result.stdout) == (1, "")
    assert said in result.stderr
    assert not (tmp_path / "state").exists()


def test_a_key_before_the_command_encrypts_the_directory(tmp_path: Path) -> None:
    command = [
        "-m",
        "shoal",
        "--encryption-key",
        "env:NO_SUCH_KEY",
        "serve",
        "--data",
        str(tmp_path / "state"),
        "--listen",
        "127.0.0.1:0",
    ]
    ended = forked.run(command, clean_environment(), timeout=PATIENCE_S)
    assert ended.returncode == 1
    assert "NO_SUCH_KEY" in ended.stderr
    assert not (tmp_path / "state").exists()


def test_without_a_directory_it_is_a_usage_error() -> None:
    assert CliRunner().invoke(app, ["serve"], env=NO_STORE).exit_code == 2


async def test_settings_of_the_environment_reach_the_node(tmp_path: Path) -> None:
    with served(tmp_path / "state", config={"SHOAL_BATCH_WRITES_MAX": "1"}) as (_, url):
        async with shoal.connect(url) as store:
            batch = store.space("crew").batch()
            batch.counter("n").add(1)
            batch.counter("n").add(1)
            with pytest.raises(shoal.errors.TooLarge):
                await batch.commit()


def test_a_directory_is_shown_in_a_browser(tmp_path: Path) -> None:
    with served(tmp_path / "state") as (process, _):  # It makes the directory.
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}.new && mv {opened}.new {opened}\n')
    browser.chmod(0o700)
    wrong = {"SHOAL_JOIN": "127.0.0.1:1", "SHOAL_LISTEN_HOST": "0.0.0.0"}
    with running("ui", "--data", str(tmp_path / "state"), config={**wrong, "BROWSER": str(browser)}) as (process, url):
        assert url.startswith("http://127.0.0.1:")
        with urlopen(Request(url, headers={"Accept": "text/html"}), timeout=PATIENCE_S) as page:
            assert b"ui/app.js" in page.read()
        deadline = time.monotonic() + PATIENCE_S
        while not opened.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert opened.read_text() == url
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (130, "")


def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["ui", "--data", str(tmp_path / "none"), "--no-browser"])
    assert result.exit_code == 1
    assert "there is no directory" in result.stderr
    assert not (tmp_path / "none").exists()


def test_a_node_keeps_its_number_its_name_and_nothing_that_reads_a_command_line(tmp_path: Path) -> None:
    secret = "canary-key-of-the-cluster-4711-9x"
    with served(tmp_path / "state", config={"SHOAL_CLUSTER_KEY": secret}, anew=True) as (process, _):
        own = Path("/proc") / str(process.pid)
        if (own / "comm").exists():
            assert (own / "comm").read_text() == "shoal\n"
            assert "pydantic" not in (own / "maps").read_text()
            assert secret not in (own / "cmdline").read_text()
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (130, "")
    assert [json.loads(line)["event"] for line in errors.splitlines()] == ["ready", "stopping", "stopped"]


def test_a_failure_of_a_node_ends_as_a_commands(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no directory")
    command = [sys.executable, "-m", "shoal", "serve", "--data", str(tmp_path / "state"), "--listen", "127.0.0.1:0"]
    ended = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("shoal: ")
    assert "Traceback" not in ended.stderr


def test_the_configuration_of_a_node_begun_anew_is_whole() -> None:
    config = Config(cluster_key="canary-key-of-the-cluster-4711-9x", listen_port=0, log_format="text")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(("d", config)), type=tuple[str, Config]) == ("d", config)


@pytest.mark.parametrize("closed", ["<&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_is_taken_by_no_file_and_no_socket(closed: str, tmp_path: Path) -> None:
    [address] = free_addresses(1)
    command = [sys.executable, "-m", "shoal", "serve", "--data", str(tmp_path / "state"), "--listen", address]
    with subprocess.Popen(["sh", "-c", f'exec "$@" {closed}', "sh", *command], env=clean_environment()) as process:
        try:
            _await_answers(process, f"http://{address}/healthz")
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


def _await_answers(process: subprocess.Popen[bytes], url: str) -> None:
    until = time.monotonic() + 3 * PATIENCE_S  # Two interpreters start, and import all.
    while time.monotonic() < until and process.poll() is None:
        with suppress(OSError), urlopen(url) as answer:
            answer.read()
            return
        time.sleep(0.05)
    raise AssertionError(f"{url} does not answer; the process has ended with {process.poll()}")


def test_a_path_that_is_not_utf8_ends_as_other_errors_do(tmp_path: Path) -> None:
    name = os.fsdecode(bytes(tmp_path) + b"/\xff")
    with running("serve", "--data", name, "--listen", "127.0.0.1:0", anew=True) as (process, _):
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, "Traceback" in errors) == (1, False)
    assert errors.startswith("shoal: ")


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What would be executed, if it could be; it cannot."""
    found = list[list[str]]()

    def execute(_: str, arguments: list[str]) -> None:
        found.append(arguments)
        raise OSError

    monkeypatch.setattr(execution, "is_process", True)
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # That of the tests may have others.
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec("shoal.__main__", None))
    monkeypatch.delitem(sys.modules, "shoal.cli.serving")
    monkeypatch.setattr(os, "execv", execute)
    return found


def test_an_interpreter_begins_anew_as_it_was_told(executed: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "warnoptions", ["error::ImportWarning"])
    begin_anew(Path("state"), Config())
    [arguments] = executed
    assert "-Werror::ImportWarning" in arguments[: arguments.index("-m")]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(int(arguments[arguments.index("shoal.cli.node") + 1]))


@pytest.mark.parametrize("looking", ["gettrace", "getprofile"])
def test_a_process_that_somebody_looks_into_goes_on(
    executed: list[list[str]], looking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, looking, lambda: print)
    begin_anew(Path("state"), Config())
    assert executed == []


@pytest.mark.parametrize("spec", [ModuleSpec("__main__", None), None], ids=["an archive", "a program"])
def test_a_process_that_finds_modules_elsewhere_goes_on(
    executed: list[list[str]], spec: ModuleSpec | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = sys.modules["__main__"]
    monkeypatch.setattr(begun, "__spec__", spec)
    monkeypatch.setattr(begun, "__file__", "/elsewhere/shoal", raising=False)
    begin_anew(Path("state"), Config())
    assert executed == []


def test_the_installed_script_begins_anew(executed: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(Path(sys.executable).parent / "shoal"), raising=False)
    begin_anew(Path("state"), Config())
    assert len(executed) == 1


def test_a_process_with_another_thread_goes_on(executed: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    begin_anew(Path("state"), Config())
    assert executed == []


@pytest.mark.parametrize(
    ("module", "raises", "code", "said"),
    [
        ("uvloop", "KeyboardInterrupt", 130, ""),
        ("jwt", "ModuleNotFoundError(name='jwt')", 1, "shoal: tokens need the package jwt, which is not installed here."),
    ],
)
def test_an_import_that_fails_ends_as_a_command_does(module: str, raises: str, code: int, said: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text(f"raise {raises}")
    environment = {**clean_environment(), "PYTHONPATH": str(tmp_path)}
    shoal = [sys.executable, "-m", "shoal"]
    subprocess.run([*shoal, "token", "init", str(tmp_path / "keys")], env=clean_environment(), check=True, capture_output=True)
    command = [*shoal, "serve", "--data", str(tmp_path / "state"), "--listen", "127.0.0.1:0"]
    command += ["--token-keys", str(tmp_path / "keys" / "keys.json")]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr[: len(said)]) == (code, "", said)
    assert "Traceback" not in ended.stderr


def test_a_node_holds_no_context_that_trusts_without_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take 0.8 MB, and would be an accident if it were used."""
    monkeypatch.setattr(connector, "_SSL_CONTEXT_UNVERIFIED", connector._SSL_CONTEXT_UNVERIFIED)  # It fails if there is none.
    node._let_go()
    held = connector._SSL_CONTEXT_UNVERIFIED
    assert (held.verify_mode, held.get_ca_certs()) == (ssl.CERT_REQUIRED, [])


_HEAPS = """
import ctypes, sys, threading
from shoal.cli import node
getattr(node, sys.argv[1])()
libc = ctypes.CDLL(None)
held = threading.Barrier(5)
def take():
    libc.malloc(4096)
    held.wait()
threads = [threading.Thread(target=take) for _ in range(4)]
[thread.start() for thread in threads]
held.wait()
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


@pytest.mark.skipif(
    sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="only GNU's C library has several heaps"
)
@pytest.mark.parametrize(
    ("does", "limit", "shared"), [("_share_heap", "", True), ("_let_go", "", False), ("_share_heap", "4", False)]
)
def test_all_threads_of_a_node_share_one_heap(does: str, limit: str, shared: bool) -> None:
    """Each has one of its own otherwise, with free memory that no other uses; whoever has set a number has it."""
    environment = clean_environment() | ({"MALLOC_ARENA_MAX": limit} if limit else {})
    command = [sys.executable, "-c", _HEAPS, does]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout
    assert (told.count("<heap nr=") == 1) is shared


async def test_a_store_whose_leases_were_used_is_shown_without_an_alarm(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state") as store, store.space("crew").lease("deploy", ttl=30):
        pass
    with running("ui", "--no-browser", "--data", str(tmp_path / "state"), config={}) as (_, url):
        async with shoal.connect(url) as store:
            assert (await store.status()).register == ""
            async with store.space("crew").lease("deploy", ttl=30) as lease:  # In this place it votes, too.
                assert lease.fence > 1
