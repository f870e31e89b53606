"""The example that moves a tree: what it is judged by can fail."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

PROGRAM = Path(__file__).parent.parent / "examples" / "migration.py"


@pytest.fixture(scope="module")
def migration() -> ModuleType:
    spec = importlib.util.spec_from_file_location("migration", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_a_tree_is_moved_and_begun_again_nothing_is(migration: ModuleType, tmp_path: Path) -> None:
    files = migration.plant(tmp_path / "source", Random(1))
    await migration.move(tmp_path)
    assert await migration.judged(tmp_path, files) == []
    await migration.move(tmp_path)
    assert await migration.judged(tmp_path, files) == []


async def test_a_file_that_is_left_or_moved_twice_is_found_out(migration: ModuleType, tmp_path: Path) -> None:
    files = migration.plant(tmp_path / "source", Random(1))
    await migration.move(tmp_path)
    moved = next(iter(files))
    source, target = tmp_path / "source" / moved, tmp_path / "target" / moved
    source.write_bytes(files[moved])
    assert await migration.judged(tmp_path, files) == ["1 files were left behind"]
    migration.bring(source, target, tmp_path / "arrivals")
    assert await migration.judged(tmp_path, files) == ["1 files were moved twice"]
