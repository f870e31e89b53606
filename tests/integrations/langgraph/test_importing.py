"""What LangGraph's own savers hold is imported: history, pending writes, namespaces, and older formats."""

from __future__ import annotations

import os
import pickle
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.types import Command

import shoal
from shoal import Store
from shoal.errors import InvalidInput, InvalidValue, OutcomeUnknown, Unavailable
from shoal.integrations.langgraph import ShoalSaver, ShoalStore, importing
from shoal.integrations.langgraph.encoding import StrictSerializer
from shoal.integrations.langgraph.importing import import_graphs
from tests.integrations.langgraph.graph import START_STATE, build

sqlite = pytest.importorskip("langgraph.checkpoint.sqlite", reason="needs the extra langgraph-sqlite")
CONFIG: Any = {"configurable": {"thread_id": "support/7"}}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with shoal.open(tmp_path / "state") as store:
        yield store


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "graphs.db"


def url_of(file: Path) -> str:
    return f"sqlite:///{file}"


def filled(saver: Any, *threads: str) -> None:
    saver.setup()
    for thread in threads:
        build(saver).invoke(START_STATE, {"configurable": {"thread_id": thread}})


def of_sqlite(file: Path, *threads: str) -> None:
    with closing(sqlite3.connect(file, check_same_thread=False)) as connection:
        filled(sqlite.SqliteSaver(connection), *threads)


def altered(file: Path, text: str, *given: Any) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(text, given)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A server of PostgreSQL of its own, without a network."""
    pytest.importorskip("langgraph.checkpoint.postgres", reason="needs the extra langgraph-postgres")
    if shutil.which("initdb") is None or shutil.which("pg_ctl") is None:
        pytest.skip("there is no PostgreSQL on this machine")
    user: Any = "nobody" if os.geteuid() == 0 else None  # It refuses to run as root.
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o777)
        data = f"{place}/data"
        run: Any = {"check": True, "user": user, "cwd": place, "stdout": subprocess.DEVNULL}
        subprocess.run(["initdb", "-D", data, "-U", "shoal", "--auth=trust", "--no-sync"], **run)
        start = ["pg_ctl", "-D", data, "-o", f"-k {place} -h ''", "-l", f"{place}/log", "-w"]
        subprocess.run([*start, "start"], **run)
        try:
            yield f"postgresql://shoal@/postgres?host={place}"
        finally:
            subprocess.run(["pg_ctl", "-D", data, "-m", "immediate", "stop"], **run)


async def equal(store: Store, source: Any, threads: int) -> int:
    """Compare both savers by `list` and `get_tuple`, and return how many checkpoints there are."""
    saver = ShoalSaver(store)
    count = 0
    for read in source.list(None):
        there = await saver.aget_tuple(read.config)
        assert there is not None
        count += 1
        assert (there.checkpoint, there.metadata) == (read.checkpoint, read.metadata)
        assert (there.parent_config, there.pending_writes) == (read.parent_config, read.pending_writes)
    assert len([found async for found in saver.alist(None)]) == count
    assert len({name async for name in store.space("langgraph").threads()}) == threads
    return count


async def test_graphs_of_sqlite_come_with_all_that_they_have(store: Store, file: Path) -> None:
    of_sqlite(file, "support/7", "b")
    report = await import_graphs(store, url_of(file))
    assert (report.whole, report.threads) == (True, 2)
    with closing(sqlite3.connect(file, check_same_thread=False)) as connection:
        assert await equal(store, sqlite.SqliteSaver(connection), 2) == report.checkpoints == report.written


async def test_a_graph_goes_on_where_it_was(store: Store, file: Path) -> None:
    of_sqlite(file, "support/7")
    with closing(sqlite3.connect(file, check_same_thread=False)) as connection:
        graph = build(sqlite.SqliteSaver(connection))
        graph.invoke(Command(resume="yes"), CONFIG)  # Now a subgraph waits, in a namespace of its own.
    assert (await import_graphs(store, url_of(file))).whole
    graph = build(ShoalSaver(store))
    state = await graph.aget_state(CONFIG, subgraphs=True)
    assert [task.name for task in state.tasks[0].state.tasks]
    assert "__interrupt__" not in await graph.ainvoke(Command(resume="signed"), CONFIG)


async def test_an_import_again_writes_only_news(store: Store, file: Path) -> None:
    of_sqlite(file, "a")
    first = await import_graphs(store, url_of(file))
    of_sqlite(file, "b")
    second = await import_graphs(store, url_of(file))
    assert (second.whole, second.checkpoints, second.written) == (True, 2 * first.checkpoints, first.checkpoints)


async def test_an_import_that_was_cut_goes_on(store: Store, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_sqlite(file, "a")
    calls = 0
    put = ShoalSaver.aput

    async def failing(self: Any, *given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 2 == 0:
            raise ConnectionError("cut")
        return await put(self, *given)

    monkeypatch.setattr(ShoalSaver, "aput", failing)
    for _ in range(50):
        try:
            report = await import_graphs(store, url_of(file))
        except ConnectionError:
            continue
        break
    assert report.whole
    assert calls > report.checkpoints
    with closing(sqlite3.connect(file, check_same_thread=False)) as connection:
        await equal(store, sqlite.SqliteSaver(connection), 1)


async def test_the_source_is_only_read(store: Store, file: Path) -> None:
    of_sqlite(file, "a")
    altered(file, "PRAGMA journal_mode=DELETE")
    before = file.read_bytes()
    file.chmod(0o444)
    assert (await import_graphs(store, url_of(file))).whole
    assert file.read_bytes() == before


async def test_tables_of_older_versions_are_read(store: Store, file: Path) -> None:
    of_sqlite(file, "a")
    altered(file, "ALTER TABLE writes DROP COLUMN task_path")
    assert (await import_graphs(store, url_of(file))).whole


async def test_pickle_is_never_decoded_unasked(store: Store, file: Path) -> None:
    of_sqlite(file, "a")
    altered(file, "UPDATE writes SET type = 'pickle', value = ? WHERE channel = 'notes'", pickle.dumps(["from pickle"]))
    with pytest.raises(InvalidValue, match="'pickle'"):
        await import_graphs(store, url_of(file))
    report = await import_graphs(store, url_of(file), trusted=True)
    assert report.whole, report


async def test_a_value_that_is_damaged_is_named(store: Store, file: Path) -> None:
    of_sqlite(file, "a")
    altered(file, "UPDATE checkpoints SET checkpoint = X'c1c1' WHERE parent_checkpoint_id IS NULL AND checkpoint_ns = ''")
    with pytest.raises(InvalidValue, match="of the root of thread 'a'"):
        await import_graphs(store, url_of(file))


@pytest.mark.parametrize("url", ["mysql://x", "sqlite:///nowhere.db", "sqlite://", "", "postgresql://nobody@127.0.0.1:1/x"])
async def test_no_source_is_told(store: Store, url: str) -> None:
    if url.startswith("postgresql"):
        pytest.importorskip("psycopg", reason="needs the extra langgraph-postgres")
    with pytest.raises(InvalidInput, match="Nothing was written"):
        await import_graphs(store, url)


async def test_another_database_is_told(store: Store, file: Path) -> None:
    file.write_bytes(b"no database" * 100)
    with pytest.raises(InvalidInput, match="cannot be read as a database of SQLite: file is not a database"):
        await import_graphs(store, url_of(file))
    file.unlink()
    altered(file, "CREATE TABLE other (x)")
    with pytest.raises(InvalidInput, match="no tables"):
        await import_graphs(store, url_of(file))


async def test_graphs_of_postgres_come_with_all_that_they_have(store: Store, postgres: str) -> None:
    savers = pytest.importorskip("langgraph.checkpoint.postgres", reason="needs the extra langgraph-postgres")
    stores = pytest.importorskip("langgraph.store.postgres", reason="needs the extra langgraph-postgres")
    with savers.PostgresSaver.from_conn_string(postgres) as saver, stores.PostgresStore.from_conn_string(postgres) as items:
        filled(saver, "support/7", "b")
        items.setup()
        items.put(("memory", "ana"), "likes", {"tea": True})
        # As an earlier version wrote it: what was sent to tasks is a write of the parent, and no channel.
        parent: Any = {"configurable": {"thread_id": "old", "checkpoint_ns": ""}}
        first = {**empty_checkpoint(), "v": 3}
        config = saver.put(parent, first, {"source": "loop", "step": 0}, {})
        saver.put_writes(config, [("__pregel_tasks", "sent")], "task-1")
        second = {**empty_checkpoint(), "v": 3, "channel_versions": {"n": "1.0"}, "channel_values": {"n": [1, 2]}}
        saver.put(config, second, {"source": "loop", "step": 1}, {"n": "1.0"})
        report = await import_graphs(store, postgres)
        assert (report.whole, report.threads, report.items) == (True, 3, 1)
        assert await equal(store, saver, 3) == report.written
        found = await ShoalSaver(store).aget_tuple({"configurable": {"thread_id": "old", "checkpoint_ns": ""}})
        assert found is not None
        assert found.checkpoint["channel_values"]["__pregel_tasks"] == ["sent"]
    item = await ShoalStore(store).aget(("memory", "ana"), "likes")
    assert item is not None
    assert item.value == {"tea": True}


@pytest.fixture
def graphs(postgres: str) -> Iterator[tuple[str, Any]]:
    """A schema of its own of that server with two graphs, as a URL and LangGraph's saver."""
    savers = pytest.importorskip("langgraph.checkpoint.postgres", reason="needs the extra langgraph-postgres")
    import psycopg

    schema = f"s{os.urandom(4).hex()}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    url = f"{postgres}&options=-csearch_path%3D{schema}"
    with savers.PostgresSaver.from_conn_string(url) as saver:
        filled(saver, "a", "b")
        yield url, saver


async def test_tables_in_a_schema_of_their_own_are_read(store: Store, graphs: tuple[str, Any]) -> None:
    url, saver = graphs
    report = await import_graphs(store, url)
    assert (report.whole, report.threads) == (True, 2)
    assert await equal(store, saver, 2) == report.written


async def test_a_source_refuses_writes_and_keeps_no_setting(graphs: tuple[str, Any]) -> None:
    """A pooler hands the session to others afterwards."""
    with importing.opened(graphs[0], StrictSerializer(None)) as source:
        with pytest.raises(Unavailable, match="read-only"):
            source.query("DELETE FROM checkpoints")
        assert source.saver.conn.execute("SHOW default_transaction_read_only").fetchone() == {
            "default_transaction_read_only": "off"
        }


async def test_a_write_beside_an_import_is_no_difference(
    store: Store, graphs: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, saver = graphs
    get_tuple = type(saver).get_tuple

    def overtaken(self: Any, config: Any) -> Any:
        found = get_tuple(self, config)
        if self is not saver:
            saver.put_writes(config, [("notes", ["late"])], "late-task")
        return found

    monkeypatch.setattr(type(saver), "get_tuple", overtaken)
    report = await import_graphs(store, url)
    assert (report.whole, report.differs) == (True, [])


async def test_a_source_that_goes_away_says_how_much_is_there(
    store: Store, graphs: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, saver = graphs
    put, calls = ShoalSaver.aput, 0

    async def put_and_cut(self: Any, *given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            saver.conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                "AND backend_type = 'client backend'"
            )
        return await put(self, *given)

    monkeypatch.setattr(ShoalSaver, "aput", put_and_cut)
    with pytest.raises(OutcomeUnknown, match=r"2 checkpoints are imported, .* cannot be read") as cut:
        await import_graphs(store, url)
    assert "Nothing was written" not in cut.value.message
    report = await import_graphs(store, url)
    assert (report.whole, report.written) == (True, report.checkpoints - 2)
    assert await equal(store, saver, 2) == report.checkpoints


async def test_a_user_without_rights_is_told(store: Store, graphs: tuple[str, Any], postgres: str) -> None:
    url, saver = graphs
    role = f"r{os.urandom(4).hex()}"
    schema = url.rpartition("%3D")[2]
    saver.conn.execute(f"CREATE ROLE {role} LOGIN")
    saver.conn.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
    seen = url.replace("//shoal@", f"//{role}@")
    with pytest.raises(InvalidInput, match=r"no tables .* that its user may see"):
        await import_graphs(store, seen)
    saver.conn.execute(f"GRANT SELECT (thread_id) ON {schema}.checkpoints TO {role}")
    with pytest.raises(Unavailable, match=r"permission denied.* Nothing was written.*SELECT"):
        await import_graphs(store, seen)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ana:s3cret@@host/x",
        "postgresql://ana:half@s3cret@127.0.0.1:1/x",
        "postgresql://ana:s3cret@[::1/x",
        "postgresql://ana:s3cret@host:port/x",
        "postgres+asyncpg://ana:s3cret@host/x",
        "ana:s3cret@host",
    ],
)
async def test_no_error_repeats_a_password(store: Store, url: str) -> None:
    pytest.importorskip("psycopg", reason="needs the extra langgraph-postgres")
    with pytest.raises(InvalidInput, match="Nothing was written") as refused:
        await import_graphs(store, url)
    assert "s3cret" not in refused.value.message


async def test_a_value_that_is_refused_says_how_much_is_there(store: Store, file: Path) -> None:
    of_sqlite(file, "a")
    altered(file, "UPDATE writes SET type = 'pickle', value = ? WHERE channel = 'notes'", pickle.dumps(["from pickle"]))
    with pytest.raises(InvalidValue, match=r"\d checkpoints before it are imported, and this one is not.*--trust"):
        await import_graphs(store, url_of(file))


async def test_a_file_that_is_damaged_within_says_how_much_is_there(store: Store, file: Path) -> None:
    of_sqlite(file, "a", "b")
    altered(file, "PRAGMA journal_mode=DELETE")
    altered(file, "VACUUM")
    size = file.stat().st_size
    with file.open("r+b") as damaged:
        damaged.seek(size // 2)
        damaged.write(b"\xff" * (size - size // 2))
    with pytest.raises((OutcomeUnknown, Unavailable)):
        await import_graphs(store, url_of(file))
