"""The versions of protocols and formats that this program has, and whether it can work with those of a node.

Laws:
- A node that does not say what it has is not judged: silence is no consent.
- Of two nodes, the older one's newest version must be one that the newer one still speaks, and their documents' engines must
  share their major and minor version.
- A directory that a newer version can have written is not given to an older one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from shoal.cluster.handshake import PEER_PROTOCOL, PEER_PROTOCOL_OLDEST
from shoal.protocol.frames import PROTOCOL, PROTOCOL_OLDEST
from shoal.storage.layout import ENCRYPTED_NUMBER, FORMAT_NUMBER

_ENGINE = 1000  # Times the engine's major version, plus its minor one.
_SPOKEN = {"peers": "the protocol among nodes", "sessions": "the protocol of clients"}


@cache
def speaks() -> dict[str, int]:
    """The newest and the oldest version of `peers`, `sessions` and `storage` (`…_oldest`), and the documents' `engine`."""
    # Imported here, because a store that is only opened need not load what reads the environment's packages.
    from importlib.metadata import version

    major, minor = version("pycrdt").split(".")[:2]
    return {
        "peers": PEER_PROTOCOL,
        "peers_oldest": PEER_PROTOCOL_OLDEST,
        "sessions": PROTOCOL,
        "sessions_oldest": PROTOCOL_OLDEST,
        "storage": ENCRYPTED_NUMBER,
        "storage_oldest": FORMAT_NUMBER,
        "engine": int(major) * _ENGINE + int(minor),
    }


def hindrances(own: Mapping[str, int], theirs: Mapping[str, int]) -> list[str]:
    """Why a node with the versions `own` cannot join, or take the place of, one with `theirs`; empty: it can."""
    if not theirs:
        return ["it does not say which protocols it has: it is older than this check, so compare the releases by hand"]
    found = [
        f"{what}: this version has {own[name + '_oldest']} to {own[name]}, it has {theirs[name + '_oldest']} to {theirs[name]}"
        for name, what in _SPOKEN.items()
        if min(own[name], theirs[name]) < max(own[f"{name}_oldest"], theirs[f"{name}_oldest"])
    ]
    if theirs["storage"] > own["storage"]:
        found.append(f"its directory may have format {theirs['storage']}; this version reads up to {own['storage']}")
    if theirs["storage"] < own["storage_oldest"]:
        found.append(f"its directory has format {theirs['storage']}; this version reads {own['storage_oldest']} and newer ones")
    if theirs["engine"] != own["engine"]:
        found.append(f"the engine of documents, pycrdt: this version has {_named(own)}, it has {_named(theirs)}")
    return found


def _named(versions: Mapping[str, int]) -> str:
    return f"{versions['engine'] // _ENGINE}.{versions['engine'] % _ENGINE}"
