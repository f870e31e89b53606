"""The list of kinds, and what it stands for."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from shoal import kinds
from shoal.kinds import CHANGES, KINDS, LABELS, ObjectKind, declared
from shoal.workflows.spaces import DELETIONS

# On the disks of users: a line may be added here, and none may change.
NUMBERS = {
    "thread": 1,
    "document": 2,
    "counter": 3,
    "register": 4,
    "items": 5,
    "schema": 6,
    "set": 7,
    "budget": 8,
    "map": 9,
    "list": 10,
}


def test_the_numbers_on_disk_never_change() -> None:
    assert {label: int(kind) for label, kind in KINDS.items()} == NUMBERS


def test_type_checkers_know_every_kind() -> None:
    assert get_args(ObjectKind) == tuple(LABELS.values())


def test_every_folder_is_listed() -> None:
    folders = {path.name for path in Path(kinds.__file__).parent.iterdir() if (path / "__init__.py").exists()}
    assert folders == {*KINDS, *kinds._PARTS, *kinds._ROWLESS}


def test_every_kind_declares_its_changes_and_what_is_hidden() -> None:
    for declaration in (declared("APPLIERS", *CHANGES), declared("HIDDEN", "state")):
        assert {kind for kind, _ in declaration} == set(LABELS)


def test_every_kind_can_be_deleted() -> None:
    assert DELETIONS.keys() == set(LABELS.values())


def test_an_import_that_fails_within_a_part_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.py").write_text("import no_such_module")
    monkeypatch.setattr("shoal.kinds.list.__path__", [str(tmp_path)])
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        list(kinds.modules("broken"))
