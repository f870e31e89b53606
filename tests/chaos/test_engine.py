"""The engine's pure parts: where none can be, what its commands look like, what is laid before it. `make compose` runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos import engine
from chaos.engine import Engine, Machine, Skipped, entering, mirror_in, outliving_nobody

ABLE = Machine(system="Linux", uid=0, has_namespaces=True, file_systems="nodev\tproc\nnodev\toverlay\n", has_tun=True)


def test_a_machine_that_has_everything_lacks_nothing() -> None:
    assert ABLE.lacks == ""


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        (ABLE._replace(system="Darwin"), "not root on Linux"),
        (ABLE._replace(uid=1000), "not root on Linux"),
        (ABLE._replace(has_namespaces=False), "no namespaces of one's own here"),
        (ABLE._replace(file_systems="nodev\toverlayfs\n"), "the kernel has no overlay file system"),
        (ABLE._replace(has_tun=False), "no /dev/net/tun"),
    ],
)
def test_each_thing_that_is_missing_is_a_reason(machine: Machine, reason: str) -> None:
    assert machine.lacks == reason


async def test_where_no_engine_can_be_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "seen", lambda: ABLE._replace(uid=1000))
    with pytest.raises(Skipped, match=r"^not root on Linux$"):
        async with engine.running(tmp_path / "work", say=print):
            pass
    assert not (tmp_path / "work").exists()


async def test_a_working_directory_in_use_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "seen", lambda: ABLE)
    with engine._alone(tmp_path), pytest.raises(Skipped, match=f"another trial uses {tmp_path}"):
        async with engine.running(tmp_path, say=print):
            pass


async def test_a_step_that_fails_is_a_reason_with_its_log(tmp_path: Path) -> None:
    log = tmp_path / "step.log"
    with pytest.raises(Skipped, match=f"^no engine \\({log}\\)$"):
        await engine._step(["sh", "-c", "echo refused; exit 3"], log, "no engine")
    assert log.read_text() == "refused\n"


@pytest.mark.parametrize(
    ("sources", "mirror"),
    [
        ("Types: deb\nURIs: http://mirror.example/debian\nSuites: trixie\n", "http://mirror.example/debian"),
        ("# deb http://no.example/x\ndeb http://mirror.example/debian trixie main\n", "http://mirror.example/debian"),
        ("deb [signed-by=/k.gpg arch=amd64] https://mirror.example/d trixie main\n", "https://mirror.example/d"),
        ("", ""),
    ],
)
def test_the_mirror_is_that_of_apt(sources: str, mirror: str) -> None:
    assert mirror_in(sources) == mirror


def test_a_command_enters_and_dies_with_its_starter() -> None:
    entered = entering(7, ("mount", "net"), ["ip", "addr"])
    assert entered == ["nsenter", "--target=7", "--mount", "--net", "--", "ip", "addr"]
    assert outliving_nobody(entered) == ["setpriv", "--pdeathsig", "KILL", *entered]


def test_laid_files_replace_earlier_ones(tmp_path: Path) -> None:
    checkout, laid = tmp_path / "checkout", tmp_path / "shoal"
    for part in engine.PARTS:
        (checkout / part).parent.mkdir(parents=True, exist_ok=True)
        (checkout / part).mkdir() if part in ("deploy", "shoal", "clients/js/src") else (checkout / part).write_text(part)
    (checkout / "shoal" / "__pycache__").mkdir()
    laid.mkdir()
    (laid / "client.token").write_text("old")
    assert Engine(tmp_path, host=1, first=1).lay(checkout, "shoal") == laid
    assert sorted(path.name for path in laid.iterdir()) == sorted(part.split("/")[0] for part in engine.PARTS)
    assert not list((laid / "shoal").iterdir())


def test_the_image_is_built_of_what_is_laid() -> None:
    root = Path(__file__).parents[2]
    assert [part for part in engine.PARTS if not (root / part).exists()] == []
    lines = (root / ".dockerignore").read_text().splitlines()
    assert {line[1:].split("/")[0] for line in lines if line.startswith("!")} <= {part.split("/")[0] for part in engine.PARTS}
