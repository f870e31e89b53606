"""Steps before an agent resumes after a crash: let the node catch up, and compare the agent's setting with the recorded one.

Law: if the node cannot prove that it holds all that a majority of the owners acknowledged, the result says why.
"""

from __future__ import annotations

from shoal import values
from shoal.errors import Forbidden
from shoal.kinds.thread.flows.checkpoints import ThreadCheckpoints
from shoal.kinds.thread.flows.provenance import SAID_AGAIN_EVERY
from shoal.kinds.thread.flows.settings import differences_of, drift_refused
from shoal.protocol import requests
from shoal.workflows.connection import Connection
from shoal.workflows.moments import moment


async def catch_up(connection: Connection, space: str, thread: str) -> str:
    """Let the node fetch all that a majority of the owners holds. Return what may be missing, in words; empty if nothing is."""
    caught = await connection.read(requests.CatchUp(space, thread))
    if caught.quorum:
        return ""
    try:
        members = (await connection.read(requests.Cluster())).members
    except Forbidden:
        members = []  # The reason is told without their names.
    away = [_away(member) for member in members if member.state == "unreachable"]
    without = f", without {', '.join(away)}" if away else ""
    why = caught.reason.rstrip(".")
    return f"this is the state of this node alone{without}: writes that others acknowledged may be missing ({why})"


async def drift(
    checkpoints: ThreadCheckpoints, branch: str, setting: bytes, *, refuse: bool, stale: bool = False
) -> tuple[str, ...]:
    """The differences between a packed setting and the one that was last recorded on a branch, in words.

    Raises:
        DriftRefused: there are differences, and `refuse` is set.
    """
    if not setting:
        return ()
    async for found in checkpoints.pages(branch=branch, limit=SAID_AGAIN_EVERY, stale=stale):
        if found.setting:
            differences = tuple(differences_of(values.decode(found.setting), values.decode(setting)))
            if differences and refuse:
                raise drift_refused(checkpoints.thread, differences)
            return differences
    return ()


def _away(member: requests.Member) -> str:
    since = f"linked last at {moment(member.linked_ms).isoformat()}" if member.linked_ms else "never linked"
    return f"{member.name} ({since})"
