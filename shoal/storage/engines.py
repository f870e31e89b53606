"""Whether the versions of pycrdt and rocksdict that are installed are among those that were tested.

Shoal relies on what neither promises: how pycrdt orders what is concurrent and numbers
its clients, and what RocksDB does with a damaged log. pyproject.toml has the same ranges;
an installer that was told to ignore them leaves this as the only word about it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import metadata

_Version = tuple[int, ...]

TESTED: Mapping[str, tuple[_Version, _Version]] = {
    "pycrdt": ((0, 14, 8), (0, 14, 13)),
    "rocksdict": ((0, 3, 25), (0, 3, 29)),
}


def untested(version_of: Callable[[str], str] = metadata.version) -> list[str]:
    """For each engine that is outside its tested range: which, and what to do. `version_of` is told a distribution's name."""
    told = []
    for name, (first, last) in TESTED.items():
        installed = version_of(name)
        if not first <= _parsed(installed) <= last:
            told.append(
                f"{name} {installed} is installed, with which this version of Shoal was not tested, and what is written may be "
                f"read differently elsewhere. Install one that was: pip install '{name}>={_text(first)},<={_text(last)}'"
            )
    return told


def _parsed(version: str) -> _Version:
    """The numbers that a version begins with; of a pre-release those of its release."""
    begins = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, begins.group().split("."))) if begins else ()


def _text(version: _Version) -> str:
    return ".".join(map(str, version))
