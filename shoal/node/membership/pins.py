"""Which keys of certificates speak for which members.

Laws:
- A key speaks for each address under which a peer was admitted with it. That is on disk, in each node.
- A key that speaks for other addresses alone is refused at an address for which another key speaks, and at this node's own.
- A key all of whose addresses were removed from the members is refused under every address, until one of these is added again.
- A key that was never seen is taken: certificates are renewed, and only the CA makes them.
- Without TLS there are no keys. Then a peer proves that it has the cluster's key, and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import msgpack

from shoal.cluster.membership.epochs import MEMBERS_MAX
from shoal.cluster.peering import Identity
from shoal.crdt.rows import successor
from shoal.errors import PeerRefused
from shoal.storage import keys
from shoal.storage.commit import GroupCommit
from shoal.storage.interface import Storage

_PINNED = keys.meta("pinned/")  # Followed by the key's fingerprint₃₂; the value is msgpack of the addresses.
_PINS_MAX = 4096  # Keys. A peer with one more is admitted, and its key is not remembered.
_ADVICE = (
    "Nothing was written. If this node is to have that address, issue a certificate with a new key to it: `shoal tls node`."
)


class Pins:
    """The keys that peers have shown to this node."""

    def __init__(self, storage: Storage, commit: GroupCommit) -> None:
        self._commit = commit
        rows = storage.scan(_PINNED, successor(_PINNED))
        self._addresses = {key[len(_PINNED) :]: msgpack.decode(packed, type=list[str]) for key, packed in rows}

    def check(self, peer: Identity, gone: Collection[str], *, own: str) -> None:
        """Check that the key of a peer may speak for its address. Members at `gone` were removed; `own` is this node.

        Raises:
            PeerRefused: it may not.
        """
        spoken = self._addresses.get(peer.key)
        if not peer.key or spoken is None:
            return
        named = " and ".join(spoken)
        if set(spoken).issubset(gone):
            raise PeerRefused(
                f"the peer at {peer.name} shows the key of {named}, which was removed from the members. {_ADVICE}",
                reason="certificate",
            )
        if peer.name not in spoken and (peer.name == own or any(peer.name in each for each in self._addresses.values())):
            raise PeerRefused(
                f"the peer that claims to be {peer.name} shows the key of {named}. {_ADVICE}", reason="certificate"
            )

    def admitted(self, peer: Identity) -> None:
        """Remember the key of a peer that is admitted.

        Raises:
            ReadOnly, StorageFull: storage failed before, or now.
        """
        spoken = self._addresses.get(peer.key, [])
        if not peer.key or peer.name in spoken or len(spoken) >= MEMBERS_MAX or len(self._addresses) >= _PINS_MAX:
            return
        self._commit.write({_PINNED + peer.key: msgpack.encode([*spoken, peer.name])})
        self._addresses[peer.key] = [*spoken, peer.name]
