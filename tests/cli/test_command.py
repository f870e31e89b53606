"""What every command of a store has in common."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

import shoal
from shoal.cli.arguments import Run, Work, in_store
from shoal.client.store import Store
from shoal.errors import InvalidInput


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with shoal.sync.open(tmp_path / "state"):
        return tmp_path / "state"


def app_of(begin: object) -> typer.Typer:
    app = typer.Typer()
    app.command()(in_store(begin))  # type: ignore[arg-type]
    return app


def test_a_command_takes_its_own_arguments_and_those_of_all(data: Path) -> None:
    def greet(run: Run, name: str, twice: Annotated[bool, typer.Option("--twice")] = False) -> Work:
        async def work(store: Store) -> None:
            run.show({"space": store.space(run.space).name, "name": name}, f"hello {name}" * (1 + twice))

        return work

    def said(*arguments: str) -> str:
        return CliRunner().invoke(app_of(greet), ["ada", "--data", str(data), *arguments]).stdout

    assert said() == "hello ada\n"
    assert said("--twice") == "hello adahello ada\n"
    assert said("--space", "crew", "--json") == '{"space": "crew", "name": "ada"}\n'


def test_input_is_read_outside_the_loop_before_opening(tmp_path: Path) -> None:
    def refuse(_run: Run) -> Work:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        raise InvalidInput("that is no number. Nothing was written.")

    result = CliRunner().invoke(app_of(refuse), ["--data", str(tmp_path / "there is none")])
    assert isinstance(result.exception, InvalidInput)
