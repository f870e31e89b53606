"""The vendored files of the page are those of their manifest, and have licences. The page is small. No browser is needed."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "shoal" / "page"
VENDOR = PAGE / "vendor"
FILES: dict[str, Any] = json.loads((VENDOR / "manifest.json").read_text())["files"]
WANTED: dict[str, str] = json.loads((ROOT / "clients" / "page" / "package.json").read_text())["dependencies"]
# Of all that the wheel carries for the page.
BYTES_MAX = 600_000


def test_the_manifest_names_each_vendored_file() -> None:
    beside = {"manifest.json", "licences.txt"}
    assert {path.name for path in VENDOR.iterdir()} - beside == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_vendored_file_has_its_hash_and_size(name: str) -> None:
    content = (VENDOR / name).read_bytes()
    assert (len(content), hashlib.sha256(content).hexdigest()) == (FILES[name]["bytes"], FILES[name]["sha256"])


def test_each_package_that_is_wanted_is_bundled_in_its_exact_version() -> None:
    bundled = {package["name"]: package["version"] for file in FILES.values() for package in file["packages"]}
    assert {name: bundled.get(name) for name in WANTED} == WANTED


def test_no_package_is_bundled_in_two_versions() -> None:
    seen = {(package["name"], package["version"]) for file in FILES.values() for package in file["packages"]}
    assert len(seen) == len({name for name, _ in seen})


def test_each_package_has_a_permissive_licence_and_its_text() -> None:
    text = (VENDOR / "licences.txt").read_text()
    sections = dict(re.findall(r"^=== (.+) ===\n((?:(?!^=== ).*\n?)+)", text, re.MULTILINE))
    for file in FILES.values():
        for package in file["packages"]:
            assert package["licence"] in {"MIT", "Apache-2.0", "ISC", "BSD-3-Clause"}
            assert len(sections["{name} {version} ({licence})".format(**package)]) > 800


def test_a_vendored_script_loads_nothing_and_evaluates_no_text() -> None:
    for name in FILES:
        content = (VENDOR / name).read_text()
        assert not re.search(
            r"""\b(?:import\s*\(|new\s+Function\b|eval\s*\()|\bfrom\s*["'](?!\.)|@import|sourceMappingURL""", content
        ), name


def test_the_page_takes_at_most_600_kb_of_the_wheel() -> None:
    # A wheel is a ZIP file, which compresses each file alone.
    files = [path for path in PAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(len(gzip.compress(path.read_bytes(), 6)) for path in files) <= BYTES_MAX
