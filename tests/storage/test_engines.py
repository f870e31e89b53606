"""The versions of the engines: the ranges stand in two places, and agree; what is outside them is told."""

from __future__ import annotations

import logging
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from threading import Thread

import pycrdt
import pytest

import shoal
from shoal.node import node
from shoal.storage.engine import TESTED, installed, untested

PROJECT = Path(__file__).parent.parent.parent / "pyproject.toml"


def test_the_ranges_are_those_that_are_installed() -> None:
    needed = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    for name, (first, last) in TESTED.items():
        assert f"{name}>={'.'.join(map(str, first))},<={'.'.join(map(str, last))}" in needed


def test_here_all_are_tested() -> None:
    assert untested() == []


@pytest.mark.parametrize("name", TESTED)
def test_the_version_is_the_one_that_pip_shows(name: str) -> None:
    assert installed(name) == metadata.version(name)


def test_beside_two_folders_the_metadata_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("0.14.10", "0.14.11"):
        (tmp_path / f"pycrdt-{version}.dist-info").mkdir()
    (tmp_path / "pycrdt").mkdir()
    (tmp_path / "pycrdt" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(metadata, "version", lambda name: f"the one of {name}")
    assert installed("pycrdt") == "the one of pycrdt"


@pytest.mark.parametrize("version", ["0.14.9", "0.14.14", "0.15.0", "1.0", "0.14.14rc1", "unknown"])
def test_a_version_outside_its_range_is_told(version: str) -> None:
    [told] = untested(lambda name: version if name == "pycrdt" else "0.3.29")
    assert f"pycrdt {version} is installed" in told
    assert "pip install 'pycrdt>=0.14.10,<=0.14.13'" in told


@pytest.mark.parametrize("version", ["0.14.10", "0.14.13", "0.14.13+local"])
def test_a_version_within_its_range_is_not(version: str) -> None:
    assert untested(lambda name: version if name == "pycrdt" else "0.3.29") == []


def test_observers_are_freed_on_any_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    # Python collects garbage on whichever thread allocates. Before 0.14.10 the engine kept what was freed on another than its
    # own, with its callback, for as long as the process lived.
    def observed() -> list[object]:
        text = pycrdt.Doc[pycrdt.Text]().get("text", type=pycrdt.Text)
        return [text.doc._doc.observe(print), text.integrated.observe_deep(print), pycrdt.UndoManager(scopes=[text])]

    told: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda failure: told.append(str(failure.exc_value)))
    elsewhere = Thread(target=observed().clear)
    elsewhere.start()
    elsewhere.join()
    assert told == []


async def test_a_store_that_is_opened_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(node, "untested", lambda: ["pycrdt 9 is installed"])
    async with shoal.open(tmp_path / "state"):
        pass
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == ["pycrdt 9 is installed"]
