"""`shoal cluster leftovers`: it lists what only a directory holds, and changes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import shoal
from shoal.config import Config
from shoal.crdt.rows import successor
from shoal.storage import keys
from shoal.storage.opening import open_storage
from tests.cli.conftest import PATIENCE_S, clean_environment, served
from tests.support import forked


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(["-m", "shoal", *arguments], clean_environment(), timeout=2 * PATIENCE_S)


def truncate(directory: Path) -> None:
    """Let all operations leave the log, as they do after `log_keep_s`."""
    storage = open_storage(directory, config=Config(), now_ms=lambda: 0, entropy=os.urandom)
    for key, _ in list(storage.scan(keys.LOG, successor(keys.LOG))):
        partition, dot = keys.split_log(key)
        tip = storage.get(keys.vector(partition, dot.origin))
        assert tip is not None
        storage.write({key: None, keys.base(partition, dot.origin): tip})
    storage.sync()
    storage.close()


@pytest.mark.answers("forgotten-node-returns")
async def test_objects_of_which_only_the_directory_holds_some_writes_are_listed_with_their_number(tmp_path: Path) -> None:
    removed, member = tmp_path / "removed", tmp_path / "member"
    async with shoal.open(removed) as store:
        await store.space("crew").counter("c").add(1)
        await store.space("crew").register("goal").set("Mars")
    shutil.copytree(removed, member)
    async with shoal.open(removed) as store:
        for _ in range(3):
            await store.space("crew").counter("c").add(1)
        await store.space("crew").thread("t").save({"step": 1})
    with served(member) as (_, url):
        listed = run("cluster", "leftovers", str(removed), "--url", url)
        assert listed.stdout.splitlines() == ["counter c of space crew: 3 operations", "thread t of space crew: 1 operation"]
        as_json = run("cluster", "leftovers", str(removed), "--url", url, "--json")
        assert as_json.stdout.splitlines()[1] == '{"kind": "thread", "space": "crew", "name": "t", "operations": 1}'
        assert run("cluster", "leftovers", str(removed), "--url", url).stdout == listed.stdout


async def test_a_directory_of_which_the_cluster_holds_everything_lists_nothing(tmp_path: Path) -> None:
    removed, member = tmp_path / "removed", tmp_path / "member"
    async with shoal.open(removed) as store:
        await store.space("crew").counter("c").add(1)
    shutil.copytree(removed, member)
    with served(member) as (_, url):
        ended = run("cluster", "leftovers", str(removed), "--url", url)
        assert (ended.returncode, ended.stdout) == (0, "")
        assert "the cluster holds everything" in ended.stderr


def test_a_directory_without_a_store_is_refused(tmp_path: Path) -> None:
    ended = run("cluster", "leftovers", str(tmp_path / "nowhere"), "--url", "http://127.0.0.1:9")
    assert ended.returncode == 1
    assert "Nothing was written" in ended.stderr


@pytest.mark.answers("node-took-writes-while-it-was-no-member")
async def test_they_are_issued_again_and_nothing_of_the_cluster_changes(tmp_path: Path) -> None:
    alone, member = tmp_path / "alone", tmp_path / "member"
    async with shoal.open(member) as store:
        crew = store.space("crew")
        await crew.thread("t").save({"is": "the cluster's"})
        await crew.counter("c").add(10)
        await crew.register("goal").set("Mars")
        await crew.items.put(("memory",), "b", "theirs")
    async with shoal.open(alone) as store:
        crew = store.space("crew")
        for n in range(3):
            await crew.thread("t").save({"is": f"alone {n}"}, overwrite=True)
            await crew.thread("t").journal.append({"n": n})
        await crew.counter("c").add(4)
        await crew.counter("c").add(1)
        await crew.set("seen").add("a", "b")
        await crew.register("goal").set("Venus")
        await crew.register("pace").set("slow")
        await crew.items.put(("memory",), "a", "mine")
        await crew.items.put(("memory",), "b", "mine")
        async with await crew.document("plan") as document:
            document.text("t").insert(0, "a plan")
    with served(member) as (_, url):
        for _ in range(2):  # It may be repeated.
            ended = run("cluster", "leftovers", str(alone), "--url", url, "--issue")
            assert ended.returncode == 0, ended.stderr
        assert "register goal of space crew: the cluster has another value" in ended.stdout
        assert "document plan of space crew: a document is not issued again" in ended.stdout
        assert "keep " in ended.stderr
        async with shoal.connect(url) as store:
            crew = store.space("crew")
            assert (await crew.thread("t").load()).state == {"is": "the cluster's"}
            assert [event.event async for event in crew.thread("t").journal.read()] == [{"n": 0}, {"n": 1}, {"n": 2}]
            [branch] = [each.name for each in await crew.thread("t").branches() if each.name != "main"]
            states = [each.state async for each in crew.thread("t").history(branch=branch, states=True)]
            assert states == [{"is": "alone 2"}, {"is": "alone 1"}, {"is": "alone 0"}]
            assert await crew.counter("c").value() == 15
            assert set(await crew.set("seen").members()) == {"a", "b"}
            assert (await crew.register("goal").get(), await crew.register("pace").get()) == ("Mars", "slow")
            items = [await crew.items.get(("memory",), key) for key in "ab"]
            assert [item and item.value for item in items] == ["mine", "theirs"]


@pytest.mark.answers("node-took-writes-while-it-was-no-member")
async def test_of_a_store_that_ran_alone_what_has_left_the_log_is_listed_too(tmp_path: Path) -> None:
    alone, member = tmp_path / "alone", tmp_path / "member"
    async with shoal.open(alone) as store:
        await store.space("crew").register("goal").set("Mars")
    truncate(alone)
    async with shoal.open(member) as store:
        await store.space("crew").counter("c").add(1)
    with served(member) as (_, url):
        assert "register goal of space crew" in run("cluster", "leftovers", str(alone), "--url", url).stdout
