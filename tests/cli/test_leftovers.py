"""`shoal cluster leftovers`: it lists what only a directory holds, and changes nothing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import shoal
from tests.cli.conftest import PATIENCE_S, clean_environment, served
from tests.support import forked


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(["-m", "shoal.cli", *arguments], clean_environment(), timeout=2 * PATIENCE_S)


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
