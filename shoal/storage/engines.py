"""Check that the installed versions of pycrdt and rocksdict are among those that were tested.

Shoal relies on behaviour that neither promises: how pycrdt orders concurrent changes and
numbers its clients, and what RocksDB does with a damaged log. pyproject.toml has the same
ranges; if an installer was told to ignore them, only this check reports it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import metadata

_Version = tuple[int, ...]

TESTED: Mapping[str, tuple[_Version, _Version]] = {
    "pycrdt": ((0, 14, 10), (0, 14, 13)),
    "rocksdict": ((0, 3, 25), (0, 3, 29)),
}


def untested(version_of: Callable[[str], str] = metadata.version) -> list[str]:
    """A warning for each engine outside its tested range, with a command that installs a tested version.

    `version_of` returns the installed version of a distribution.
    """
    told = []
    for name, (first, last) in TESTED.items():
        installed = version_of(name)
        if not first <= _parsed(installed) <= last:
            told.append(
                f"{name} {installed} is installed. This version of Shoal was not tested with it, and other nodes may read "
                "differently what this one writes. Install a tested version: "
                f"pip install '{name}>={_text(first)},<={_text(last)}'"
            )
    return told


def _parsed(version: str) -> _Version:
    """The numbers that a version begins with; for a pre-release, those of its release."""
    begins = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, begins.group().split("."))) if begins else ()


def _text(version: _Version) -> str:
    return ".".join(map(str, version))
