"""What is imported, and when: a user pays for what they use, and a client needs no more than a client's parts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from shoal import __version__
from tests.cli.conftest import clean_environment

NODE = ("rocksdict", "shoal.node", "shoal.storage", "shoal.api")
NETWORK = ("aiohttp", "shoal.transport", "shoal.api")
REPORT = "\nimport sys, json; print(json.dumps(sorted(sys.modules)))"

CONNECT = """
import asyncio, shoal
async def main():
    async with shoal.connect("http://127.0.0.1:9") as store:
        store.space("s").thread("t")
asyncio.run(main())
"""
OPEN = """
import asyncio, shoal, sys
async def main():
    async with shoal.open(sys.argv[1]) as store:
        await store.space("s").counter("n").add(1)
asyncio.run(main())
"""
BLOCKING = """
import shoal
with shoal.sync.connect("http://127.0.0.1:9") as store:
    store.space("s").thread("t")
"""
POSIX_ONLY = ("fcntl", "resource", "pty", "tty", "termios", "pwd", "grp", "uvloop")


def run(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    ended = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@cache
def loaded(code: str, *arguments: str) -> set[str]:
    """The modules that are there once `code` has run."""
    return set(json.loads(run(code + REPORT, *arguments).splitlines()[-1]))


def within(modules: set[str], packages: tuple[str, ...]) -> list[str]:
    return sorted(name for name in modules if any(f"{name}.".startswith(f"{package}.") for package in packages))


def test_import_shoal_loads_nothing_but_itself() -> None:
    more = loaded("import shoal") - loaded("pass")
    assert within(more, ("shoal",)) == ["shoal"]
    needed_later = (
        "asyncio",
        "msgspec",
        "msgpack",
        "pycrdt",
        "rocksdict",
        "aiohttp",
        "typer",
        "rich",
        "jsonschema_rs",
        "jsonpatch",
    )
    assert not within(more, (*needed_later, "prometheus_client", "uvloop", "pydantic"))


@pytest.mark.parametrize("code", [CONNECT, BLOCKING], ids=["connect", "sync.connect"])
def test_a_client_loads_no_node_and_no_database(code: str) -> None:
    modules = loaded(code)
    assert (
        within(
            modules,
            (
                *NODE,
                "pycrdt",
                "jsonpatch",
                "jsonschema_rs",
                "typer",
                "rich",
                "prometheus_client",
                "numpy",
                "pydantic",
                "uvloop",
            ),
        )
        == []
    )
    assert "aiohttp" in modules


def test_a_served_node_loads_no_client_and_nothing_of_the_command_line_but_typer() -> None:
    modules = loaded("import shoal.cli.serving")
    assert within(modules, ("shoal.client.store", "shoal.opening", "shoal.sync", "shoal.crew", "shoal.public", "click")) == []
    assert within(modules, ("structlog", "rich", "pydantic", "fastcdc", "numpy", "cryptography")) == []


OF_A_THREAD = {"journal", "lease", "step", "thread", "worklist"}


@pytest.mark.parametrize(("used", "needed"), [("", set()), (".counter('n')", {"counter"}), ('.thread("t")', OF_A_THREAD)])
def test_a_client_loads_a_kind_of_handle_once_it_is_used(used: str, needed: set[str]) -> None:
    modules = loaded(CONNECT.replace('.thread("t")', used))
    assert {name.split(".")[2] for name in modules if re.fullmatch(r"shoal\.kinds\.\w+\.handle", name)} == needed
    assert within(modules, ("shoal.client.batch", "shoal.client.reading", "shoal.client.watching")) == []


def test_an_embedded_store_loads_nothing_of_the_network(tmp_path: Path) -> None:
    modules = loaded(OPEN, str(tmp_path / "state"))
    unneeded = (
        "typer",
        "rich",
        "prometheus_client",
        "uvloop",
        "jsonpatch",
        "jsonschema_rs",
        "cryptography",
        "re2",
    )
    assert within(modules, (*NETWORK, *unneeded, "numpy", "pydantic", "shoal.public")) == []
    assert "rocksdict" in modules


ONLY_OPENED = """
import asyncio, shoal, sys
async def main():
    async with shoal.open(sys.argv[1]):
        pass
asyncio.run(main())
"""
SERVED = """
import asyncio, sys
from pathlib import Path
from shoal.config import Config
from shoal.node.environment import system_environment
from shoal.node.node import open_node
async def main():
    config = Config(join=",".join(sys.argv[2:]))
    await (await open_node(Path(sys.argv[1]), config=config, environment=system_environment())).stop()
asyncio.run(main())
"""
OF_DOCUMENTS = (
    "pycrdt",
    "anyio",
    "shoal.kinds.document.state.live",
    "shoal.kinds.document.shared",
    "shoal.kinds.document.serving.room",
)
OF_PEERS = (
    *("shoal.cluster.replication", "shoal.cluster.scrub", "shoal.node.membership", "shoal.node.peers.incoming"),
    *("shoal.node.peers.replicator", "shoal.node.snapshots.exchange", "shoal.node.verification"),
)


def test_opening_a_store_loads_no_documents_and_no_peers(tmp_path: Path) -> None:
    modules = loaded(ONLY_OPENED, str(tmp_path / "state"))
    assert within(modules, (*OF_DOCUMENTS, *OF_PEERS, "importlib.metadata", "email", "shoal.kinds.thread.handle")) == []


def test_opening_it_again_does_not_either(tmp_path: Path) -> None:
    run(OPEN, str(tmp_path / "state"))
    modules = loaded(ONLY_OPENED, str(tmp_path / "state"))
    assert within(modules, (*OF_DOCUMENTS, *OF_PEERS)) == []


def test_a_served_node_has_documents_before_it_is_ready(tmp_path: Path) -> None:
    modules = loaded(SERVED, str(tmp_path / "state"))
    assert set(OF_DOCUMENTS) <= modules
    assert within(modules, OF_PEERS) == []


def test_a_member_has_its_peers_parts_before_it_is_ready(tmp_path: Path) -> None:
    modules = loaded(SERVED, str(tmp_path / "state"), "127.0.0.1:9")
    assert {*OF_DOCUMENTS, *OF_PEERS} <= modules


def test_a_node_loads_what_few_nodes_need_once_it_is_used() -> None:
    modules = loaded("import shoal.cli.serving")
    assert within(modules, ("cryptography", "shoal.tls.current", "shoal.access.access", "shoal.api.openapi")) == []


def test_the_names_of_errors_and_types_load_neither() -> None:
    modules = loaded("import shoal\nshoal.errors.Retryable, shoal.Thread, shoal.Checkpoint, shoal.Config, shoal.sync")
    assert within(modules, (*NODE, *NETWORK)) == []


COMMAND = """
import sys
from shoal.cli.main import main
sys.argv = ["shoal", *sys.argv[1:]]
try:
    main()
except SystemExit:
    pass
print()
"""


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []], ids=" ".join)
def test_listing_the_commands_imports_none(arguments: list[str]) -> None:
    modules = loaded(COMMAND, *arguments)
    assert (
        within(modules, ("asyncio", "ssl", "pycrdt", "msgspec", "aiohttp", "uvloop", "shoal.client", "shoal.protocol", *NODE))
        == []
    )
    assert within(modules, ("shoal.cli",)) == [
        "shoal.cli",
        *(f"shoal.cli.{name}" for name in ("execution", "main")),
    ]


def test_a_command_on_a_node_imports_a_client_and_its_own_part() -> None:
    modules = loaded(COMMAND, "status", "--url", "http://127.0.0.1:9")
    assert (
        within(modules, ("rocksdict", "shoal.node", "shoal.storage", "shoal.demo", "prometheus_client", "jsonschema_rs")) == []
    )
    commands = (f"shoal.cli.commands.{name}" for name in ("verify", "demo", "objects", "threads"))
    assert within(modules, ("shoal.demo", "shoal.cli.serving", *commands)) == []
    kinds = ("shoal.kinds.thread.handle", "shoal.kinds.items.handle")
    assert within(modules, (*kinds, "shoal.cli.commands.objects", "shoal.cli.commands.threads")) == []


COLLECTING = """
import gc
collected = []
gc.callbacks.append(lambda phase, about: collected.append(phase))
from shoal.cli.main import main
collected.clear()
enable, until_enabled = gc.enable, []
gc.enable = lambda: (until_enabled.append(len(collected)), enable())
""" + COMMAND.replace("print()", "print(until_enabled)")


def test_a_command_on_a_directory_collects_no_garbage_at_its_start(tmp_path: Path) -> None:
    run(OPEN, str(tmp_path / "state"))
    assert run(COLLECTING, "status", "--data", str(tmp_path / "state")).splitlines()[-1].startswith("[0")


# ── systems that lack what POSIX has ──────────────────────────────────────────

HIDDEN = f"import sys\nfor name in {POSIX_ONLY!r}:\n    sys.modules[name] = None\n"


@pytest.mark.parametrize("code", [CONNECT, BLOCKING], ids=["connect", "sync.connect"])
def test_a_client_needs_no_module_that_posix_alone_has(code: str) -> None:
    modules = loaded(HIDDEN + code)
    assert "aiohttp" in modules


def test_every_public_name_is_there_without_what_posix_alone_has() -> None:
    run(HIDDEN + "import shoal\nfor name in dir(shoal):\n    getattr(shoal, name)")


def test_where_directories_cannot_be_locked_opening_says_what_to_do_and_makes_nothing(tmp_path: Path) -> None:
    catching = OPEN.replace(
        "asyncio.run(main())",
        "try:\n    asyncio.run(main())\nexcept shoal.errors.Unsupported as error:\n    print(error.written, error)",
    )
    said = run(HIDDEN + catching, str(tmp_path / "state"))
    assert said.startswith("no an embedded store")
    assert "shoal.connect(" in said
    assert not (tmp_path / "state").exists()


def test_commands_start_without_what_posix_alone_has() -> None:
    assert (
        run(HIDDEN + "from shoal.cli.main import main\nsys.argv[1:] = ['--version']\nmain()").strip() == f"shoal {__version__}"
    )


def test_an_unknown_name_of_shoal_is_an_attribute_error() -> None:
    import shoal

    missing: Any = shoal
    with pytest.raises(AttributeError, match="no attribute 'Treads'"):
        _ = missing.Treads
    assert {"Thread", "open", "errors", "sync"} <= set(dir(shoal))
