"""The image's requirements: exact, each with hashes, without addresses, and those that the project asks for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.conftest import ROOT, Image

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
LOCKS = {
    "requirements.txt": [
        Requirement(line)
        for lines in (
            PROJECT["project"]["dependencies"],
            *(EXTRAS[name] for name in ("security", "schemas", "backup", "files", "redaction", "otlp")),
        )
        for line in lines
    ],
    "build-requirements.txt": [
        *(Requirement(line) for line in PROJECT["build-system"]["requires"]),
        *(Requirement(line) for line in EXTRAS["release"] if "cyclonedx" in line),
    ],
}


def pinned(path: Path) -> dict[str, str]:
    """Name → version of what a file pins.

    Raises:
        ValueError: something is not pinned, or has no hash.
    """
    found: dict[str, str] = {}
    for entry in path.read_text().replace("\\\n", " ").splitlines():
        stated, *hashes = entry.split("--hash=sha256:")
        requirement = Requirement(stated)
        [specifier] = requirement.specifier
        if specifier.operator != "==" or not hashes or not all(re.fullmatch(r"[0-9a-f]{64}\s*", each) for each in hashes):
            raise ValueError(f"{requirement.name} is not pinned to files with hashes")
        found[canonicalize_name(requirement.name)] = specifier.version
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_all_that_is_asked_for_is_pinned_with_hashes(name: str) -> None:
    versions = pinned(ROOT / "deploy" / name)
    wrong = [
        str(wanted)
        for wanted in LOCKS[name]
        if versions.get(canonicalize_name(wanted.name)) is None
        or not wanted.specifier.contains(versions[canonicalize_name(wanted.name)])
    ]
    assert wrong == [], "run `make lock`"


def test_the_image_has_the_versions_that_are_tested() -> None:
    tested = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    tested = {canonicalize_name(name): version for name, version in tested.items()}
    versions = pinned(ROOT / "deploy" / "requirements.txt")
    other = {name: version for name, version in versions.items() if tested.get(name) != version}
    assert {name for name in other if name != "colorama"} == set(), "run `make lock`; colorama is for Windows alone"


@pytest.mark.parametrize("name", LOCKS)
def test_no_address_is_named(name: str) -> None:
    assert "://" not in (ROOT / "deploy" / name).read_text()


def test_the_image_installs_only_what_has_a_hash(image: Image) -> None:
    commands = [command for run in image.all("RUN") for command in run.arguments.split("&&") if " install " in command]
    installs = [command for command in commands if "pip" in command.split()[0]]
    assert len(installs) == 3
    assert all("--require-hashes" in command or "--no-index" in command for command in installs)


@pytest.mark.parametrize("line", ["aiohttp==3.14.5", "aiohttp>=3 --hash=sha256:" + "0" * 64, "aiohttp==3.1 --hash=sha256:0"])
def test_a_pin_without_a_version_or_a_hash_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "requirements.txt").write_text(line + "\n")
    with pytest.raises(ValueError, match="is not pinned"):
        pinned(tmp_path / "requirements.txt")
