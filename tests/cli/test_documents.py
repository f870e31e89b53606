"""`shoal doc edit|watch|conflicts|compact`: what one command writes, the others show."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

import shoal as library
from tests.cli.conftest import PATIENCE_S, Running, clean_environment
from tests.cli.test_commands import documents, lines, shoal
from tests.support.forked import Forked

MINE = ["--space", "papers"]


def file(tmp_path: Path, content: object) -> str:
    path = tmp_path / "content.json"
    path.write_text(json.dumps(content))
    return str(path)


def test_a_document_is_edited_until_it_is_what_a_file_says(target: list[str], tmp_path: Path) -> None:
    wanted = {"plan": {"t1": {"done": False}}, "notes": "größe"}
    assert documents("doc", "edit", "d", file(tmp_path, wanted), *target, *MINE) == [wanted]
    wanted["plan"] = {"t1": {"done": True}}
    assert json.loads("\n".join(lines("doc", "edit", "d", file(tmp_path, wanted), *target, *MINE))) == wanted
    assert documents("doc", "get", "d", *target, *MINE) == [wanted]


def test_a_patch_changes_what_it_names(target: list[str], tmp_path: Path) -> None:
    documents("doc", "edit", "p", file(tmp_path, {"m": {"a": 1}}), *target, *MINE)
    patch = file(tmp_path, [{"op": "add", "path": "/m/b", "value": 2}])
    assert documents("doc", "edit", "p", patch, "--patch", "--by", "ada", *target, *MINE) == [{"m": {"a": 1, "b": 2}}]
    failing = file(tmp_path, [{"op": "test", "path": "/m/b", "value": 3}])
    assert shoal("doc", "edit", "p", failing, "--patch", *target, *MINE).exit_code == 1


def test_a_document_is_compacted_and_stays_what_it_is(target: list[str], tmp_path: Path) -> None:
    for number in range(3):
        documents("doc", "edit", "c", file(tmp_path, {"m": {"n": number}}), *target, *MINE)
    (none,) = documents("doc", "compact", "c", "--older-than", "1d", *target, *MINE)
    assert none == {"updates": 0, "bytes": 0, "more": False}
    (done,) = documents("doc", "compact", "c", *target, *MINE)
    assert done["updates"] == 3
    assert lines("doc", "compact", "c", *target, *MINE) == ["0"]
    assert documents("doc", "get", "c", *target, *MINE) == [{"m": {"n": 2}}]
    assert shoal("doc", "compact", "absent", *target, *MINE).exit_code == 1


@pytest.mark.parametrize("content", ["{", "[]", '{"m": 1}'])
def test_bytes_that_are_no_document_are_refused(target: list[str], tmp_path: Path, content: str) -> None:
    (tmp_path / "bad.json").write_text(content)
    assert shoal("doc", "edit", "bad", str(tmp_path / "bad.json"), *target, *MINE).exit_code == 1
    assert shoal("doc", "edit", "bad", str(tmp_path / "absent.json"), *target, *MINE).exit_code == 1
    assert "bad" not in lines("doc", "list", *target, *MINE)


def test_changes_and_conflicts_are_shown_with_their_authors(node: Running) -> None:
    words = ["doc", "watch", "w", "--url", node.url, *MINE, "--json", "-n", "1"]
    with Forked(["-m", "shoal", *words], clean_environment()) as watching:
        asyncio.run(_clash(node.url, watching))
        out, _ = watching.communicate(timeout=PATIENCE_S)
    change = json.loads(out)
    assert (change["path"][0], change["kind"], change["author"]) == ("ticks", "add", "ada")
    (lost,) = documents("doc", "conflicts", "w", "--url", node.url, *MINE)
    assert (lost["path"], sorted([lost["lost_by"], lost["stands_by"]])) == (["m", "k"], ["ada", "bob"])
    (line,) = lines("doc", "conflicts", "w", "--url", node.url, *MINE)
    assert line.endswith(f'm, k  "{lost["lost"]}"  {lost["lost_by"]}  "{lost["stands"]}"  {lost["stands_by"]}')


async def _clash(url: str, watching: subprocess.Popen[str]) -> None:
    async with library.connect(url) as store:
        space = store.space("papers")
        async with await space.document("w", author="ada") as one, await space.document("w", author="bob") as other:
            one.map("m")["k"], other.map("m")["k"] = "one", "other"
            await asyncio.gather(one.flush(), other.flush())
            async with asyncio.timeout(PATIENCE_S):
                for number in range(1000):  # Until the watcher, which begins some time, has seen one.
                    one.map("ticks")[str(number)] = number
                    await one.flush()
                    if await asyncio.to_thread(_over, watching):
                        return


def _over(watching: subprocess.Popen[str]) -> bool:
    try:
        watching.wait(0.2)
    except subprocess.TimeoutExpired:
        return False
    return True


def test_a_document_is_deleted_once_it_was_confirmed(target: list[str], tmp_path: Path) -> None:
    documents("doc", "edit", "gone", file(tmp_path, {"m": {"k": 1}}), *target, *MINE)
    assert shoal("doc", "delete", "gone", *target, *MINE).exit_code != 0
    assert documents("doc", "delete", "gone", "--dry-run", *target, *MINE) == [{"existed": True}]
    assert lines("doc", "delete", "gone", "--yes", *target, *MINE) == ["true"]
    assert documents("doc", "delete", "gone", "--yes", *target, *MINE) == [{"existed": False}]
    assert "gone" not in lines("doc", "list", *target, *MINE)
