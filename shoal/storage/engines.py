"""Check that the installed versions of pycrdt and rocksdict are among those that were tested.

Shoal relies on behaviour that neither promises: how pycrdt orders concurrent changes and
numbers its clients, and what RocksDB does with a damaged log. pyproject.toml has the same
ranges; if an installer was told to ignore them, only this check reports it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder

_Version = tuple[int, ...]

TESTED: Mapping[str, tuple[_Version, _Version]] = {
    "pycrdt": ((0, 14, 10), (0, 14, 13)),
    "rocksdict": ((0, 3, 25), (0, 3, 29)),
}


def installed(name: str) -> str:
    """The installed version of a distribution that has a package of its name.

    The name of its folder beside the package says it. `importlib.metadata`, which is asked if no folder or several do, would
    take a tenth of the time in which a store is opened.
    """
    spec = PathFinder.find_spec(name)
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        begins, ends = f"{name}-", ".dist-info"
        named = [each for each in os.listdir(os.path.dirname(place)) if each.startswith(begins) and each.endswith(ends)]
        if len(named) == 1:
            return named[0].removeprefix(begins).removesuffix(ends)
    from importlib import metadata

    return metadata.version(name)


def untested(version_of: Callable[[str], str] = installed) -> list[str]:
    """A warning for each engine outside its tested range, with a command that installs a tested version.

    `version_of` returns the installed version of a distribution.
    """
    told = []
    for name, (first, last) in TESTED.items():
        version = version_of(name)
        if not first <= _parsed(version) <= last:
            told.append(
                f"{name} {version} is installed. This version of Shoal was not tested with it, and other nodes may read "
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
