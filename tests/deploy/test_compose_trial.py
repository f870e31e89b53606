"""The trial of `make compose`, in what needs no engine: which commands it runs, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chaos import engine
from chaos.engine import CommandFailed, Engine, Skipped
from chaos.ledger import Deed
from tests import compose
from tests.compose import Broken, Ledger, Trial, said_by

PAGE = """# A page
`docker not this one`
## With compose
```sh
docker compose up    # with a remark
echo "KEY=$(x)" >> .env
```
After `docker compose kill n2`, and not `compose`: `docker compose start n2`.
Again: `docker compose up`.
## Next
`docker nor this`
"""


def test_the_commands_are_those_of_blocks_sentences_and_the_files_head() -> None:
    assert said_by(PAGE, "# A file:\n#   docker compose exec n1 x\nservices:\n") == [
        "docker compose up",
        'echo "KEY=$(x)" >> .env',
        "docker compose kill n2",
        "docker compose start n2",
        "docker compose exec n1 x",
    ]


def test_a_page_without_the_section_is_noticed() -> None:
    with pytest.raises(Broken, match="no section"):
        said_by("# A page\n", "")


def test_a_command_counts_as_tried_once_and_must_be_there(tmp_path: Path) -> None:
    trial = Trial(Engine(tmp_path, host=1, first=1), tmp_path, print)
    before = len(trial.untried)
    assert trial.written("docker compose stop") == "docker compose stop"
    assert len(trial.untried) == before - 1
    with pytest.raises(Broken, match="begins with: docker compose stop"):
        trial.written("docker compose stop")


def test_an_error_that_the_trial_explains_is_not_strange() -> None:
    ledger = Ledger()
    ledger.deeds += [Deed("put", "t", "k", 0, "no", code) for code in ("", "no-quorum", "catching-up", "invalid-value")]
    assert ledger.strange() == {"invalid-value": 1}


@pytest.mark.parametrize(
    ("error", "code", "last"),
    [
        (Skipped("not root on Linux"), 0, "compose: skipped: not root on Linux"),
        (CommandFailed("docker ended with 1"), 1, "compose: FAILED: docker ended with 1"),
        (Broken("a write is lost"), 1, "compose: FAILED: a write is lost"),
    ],
)
def test_the_last_line_says_how_it_ended(
    error: Exception, code: int, last: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def running(workdir: Path, *, say: Callable[[str], None]) -> None:
        assert str(workdir) == "/elsewhere"
        raise error

    monkeypatch.setattr(engine, "running", running)
    assert compose.main(["/elsewhere"]) == code
    assert capsys.readouterr().out.splitlines()[-1] == last
