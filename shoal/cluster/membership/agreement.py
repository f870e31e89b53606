"""Whether two nodes agree on who the members are. A disagreement is reported to people; nothing is refused for it."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.cluster.peering import Identity

_LISTED_MAX = 10
_NAME_CHARS_MAX = 100


def disagreement(own: Identity, peer: Identity, others: Iterable[Identity]) -> str:
    """How a peer's address or list of members contradicts this node's, and what to do; empty if they agree.

    `others` are further nodes that this one is linked to. A peer that does not tell its members is not compared.
    """
    for other in (own, *others):
        if other.name == peer.name and other.node != peer.node:  # The lists need not be compared: their names mislead.
            return (
                f"two nodes advertise {_short(peer.name)}: {peer.node.hex()[:8]} and {other.node.hex()[:8]}"
                f"{' (this one)' if other is own else ''}. Give each its own SHOAL_ADVERTISE, and restart it."
            )
    if own.epoch or peer.epoch:
        return ""  # The record decides, not the configured lists.
    here, there = set(own.members), set(peer.members)
    if not here or not there or here == there:
        return ""
    sides = ((own.name, here - there), (peer.name, there - here))
    only = "; ".join(f"only {_short(name)} has {_listed(rest)}" for name, rest in sides if rest)
    return (
        f"{_short(own.name)} (this node) and {_short(peer.name)} have different members: {only}. Nodes that have different "
        "members count different majorities. Give all nodes the same SHOAL_JOIN, and each the SHOAL_ADVERTISE under which "
        "the list has it, and restart them. If a name in SHOAL_JOIN leads to several nodes, set SHOAL_CLUSTER_SIZE to their "
        "number."
    )


def _listed(names: set[str]) -> str:
    shown = [_short(name) for name in sorted(names)[:_LISTED_MAX]]
    return ", ".join(shown) + f" and {len(names) - _LISTED_MAX} more" * (len(names) > _LISTED_MAX)


def _short(name: str) -> str:
    return name[:_NAME_CHARS_MAX] or "a node without an address"
