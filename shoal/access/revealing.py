"""Replies as a bearer without the right to reveal sees them: the one place that hides secret parts of states.

Laws:
- Every reply that carries a state, or a hash of one, is in the table here; a test finds those that are not.
- A secret part is `HIDDEN`, whatever it is. The hash of a channel with secret parts is replaced by one that says nothing of its
  content, and that differs from checkpoint to checkpoint, so that readers who compare hashes read the channel.
- The pointers to secret fields, and what they do not cover, stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from shoal.access.needs import needs
from shoal.protocol.requests import (
    Checkpoint,
    Checkpoints,
    Delta,
    Explained,
    Growth,
    Labelled,
    Labels,
    MultiRead,
    MultiReply,
    Reply,
    Request,
)
from shoal.schemas import secret_fields

Reveals = Callable[[str, str], bool]
"""(space, family) → whether the bearer may see secret parts."""


def shown(request: Request[Any], reply: Any, reveals: Reveals) -> Any:
    """The reply to a request, with secret parts hidden unless the bearer may see them."""
    if type(reply) is MultiReply and isinstance(request, MultiRead):
        return MultiReply([shown(part, each, reveals) for part, each in zip(request.reads, reply.replies, strict=True)])
    hide = HIDING.get(type(reply))
    if hide is None or all(reveals(need.space, need.family) for need in needs(request)):
        return reply
    return hide(reply)


def _checkpoint(found: Checkpoint) -> Checkpoint:
    if not found.secret:
        return found
    return replace(
        found,
        channels={name: secret_fields.hidden_channel(found.secret, name, packed) for name, packed in found.channels.items()},
        hashes={
            name: _blank(found.id, name) if secret_fields.is_secret(found.secret, name) else digest
            for name, digest in found.hashes.items()
        },
    )


def _checkpoints(found: Checkpoints) -> Checkpoints:
    return replace(found, items=[_checkpoint(each) for each in found.items])


def _labels(found: Labels) -> Labels:
    items = [Labelled(each.label, _checkpoint(each.checkpoint), each.notes) for each in found.items]
    return replace(found, items=items)


def _delta(found: Delta) -> Delta:
    secret = found.checkpoint.secret
    appended = {
        name: Growth(more.at, secret_fields.hidden_elements(secret, name, more.at, more.elements))
        for name, more in found.appended.items()
    }
    return Delta(_checkpoint(found.checkpoint), appended)


def _explained(found: Explained) -> Explained:
    return replace(found, checkpoint=_checkpoint(found.checkpoint), earlier=[_checkpoint(each) for each in found.earlier])


def _blank(id: str, channel: str) -> str:
    return sha256(f"{id}/{channel}".encode()).hexdigest()


HIDING: Mapping[type[Reply], Callable[[Any], Reply]] = {
    Checkpoint: _checkpoint,
    Checkpoints: _checkpoints,
    Labels: _labels,
    Delta: _delta,
    Explained: _explained,
}
