"""The Dockerfile and .dockerignore: what goes in, who runs it, and whether it can tell that it is alive."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from shoal.cli import settings
from shoal.config import Config
from tests.cli.conftest import PATIENCE_S, clean_environment, served
from tests.deploy.conftest import ROOT, Image, free_addresses

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def copied(image: Image) -> set[str]:
    """From the build's context."""
    copies = [copy.words() for copy in image.all("COPY") if "--from=build" not in copy.words()]
    return {source for *sources, _ in copies for source in sources}


def healthy(image: Image, url: str) -> bool:
    """What the health check says of a node."""
    python, *arguments = image.health_command
    assert python == "python"
    *options, inside = arguments
    (copied_to,) = [copy.words() for copy in image.all("COPY") if copy.words()[-1] == inside]
    checked = subprocess.run(
        [sys.executable, *options, str(ROOT / copied_to[0])],
        env={**clean_environment(), "SHOAL_URL": url},
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return checked.returncode == 0


def test_copied_files_exist_and_are_all_not_ignored(image: Image) -> None:
    everything, *rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert everything == "*"
    assert {rule.removeprefix("!") for rule in rules if rule.startswith("!")} == copied(image)
    assert [source for source in copied(image) if not (ROOT / source).exists()] == []


def test_files_for_the_build_are_copied(image: Image) -> None:
    assert {"pyproject.toml", "shoal", PROJECT["readme"], *PROJECT["license-files"]} <= copied(image)


def test_its_python_is_one_that_shoal_supports(image: Image) -> None:
    bases = {stage.words()[0] for stage in image.all("FROM")}
    assert bases == {"${PYTHON}"}  # One for both stages: an environment runs only on the Python it was made with.
    (base,) = (each.words()[0].removeprefix("PYTHON=") for each in image.all("ARG"))
    version = base.removeprefix("python:").removesuffix("-slim")
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]


def test_it_runs_as_a_fixed_user_other_than_root_who_owns_the_data(image: Image) -> None:
    user, _, group = image.last("USER").arguments.partition(":")
    assert int(user) > 0
    made = next(run.arguments for run in image.all("RUN") if "useradd" in run.arguments)
    assert f"--uid {user} --gid shoal " in made
    assert f"--gid {group} shoal" in made
    assert f"install --directory --owner=shoal --group=shoal --mode=0700 {image.last('VOLUME').arguments}" in made


def test_it_serves_the_volume_on_the_port_that_it_names(image: Image) -> None:
    assert image.last("ENTRYPOINT").words() == ["shoal"]
    assert image.last("CMD").words() == ["serve", "--data", image.last("VOLUME").arguments]
    config = settings.load(environment=image.settings)
    assert config.listen_host == "0.0.0.0"
    assert str(config.listen_port) == image.last("EXPOSE").arguments
    assert urlsplit(image.settings["SHOAL_URL"]).port == config.listen_port


def test_nothing_else_is_set_by_the_image(image: Image) -> None:
    config = settings.load(environment=image.settings)
    assert {name for name in Config.__struct_fields__ if getattr(config, name) != getattr(Config(), name)} == {"listen_host"}


def test_the_health_check_passes_a_node_and_fails_where_none_is(image: Image, tmp_path: Path) -> None:
    with served(tmp_path / "state") as (_, url):
        assert healthy(image, url)
    assert not healthy(image, f"http://{free_addresses(1)[0]}")


@pytest.mark.parametrize("text", ["FROM a\nUSER 1\nFROM b\nRUN true\n"])
def test_results_of_an_earlier_stage_are_not_the_images(text: str) -> None:
    with pytest.raises(AssertionError):
        Image(text).last("USER")
