"""The beginning of a document: content that several clients may give it, and that does not double when they meet.

Laws:
- A genesis is an update under a Yjs client id that follows from its content and generation. So two
  nodes that begin a document with equal content make the same update, byte for byte, and it counts once.
- Of different ones the genesis with the least hash counts, on every replica. The content of the others is deleted
  wherever they are known (`shoal.kinds.document.state.document.withdrawn`), and stays in the rows, where it can be seen.
- A lesser hash makes a greater client id, so that if two set one key, the engine keeps the one that counts.

An edit on top of a genesis that does not count is merged as far as the content on which it builds remains.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pycrdt

from shoal import values
from shoal.errors import BadOperation
from shoal.kinds.document.shared.doc import Doc
from shoal.kinds.document.state.document import RootKind
from shoal.kinds.document.state.editing import Editor, Transactions
from shoal.kinds.document.state.live import EMPTY
from shoal.kinds.document.state.yjs import CLIENT_MAX, Parsed, pack_delete_set, pack_state, parse_state, split
from shoal.records import NamedTuple


class Genesis(NamedTuple):
    """A beginning as an update, ready to issue."""

    digest: bytes
    client_id: int
    update: bytes
    roots: dict[str, RootKind]


def begin(content: Any, generation: int) -> Genesis:
    """The genesis of this content, for a generation of a document.

    Raises:
        InvalidValue, InvalidName, TooLarge: a document cannot hold the content.
    """
    # Keys in one order, so that equal content is made by equal edits.
    text = json.dumps(values.to_json(content), sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(generation.to_bytes(4, "big") + text.encode()).digest()
    doc = Doc(client_id=client_of(digest))
    with Transactions(doc) as turn:
        roots = Editor(turn=turn).replace(doc, {}, values.from_json(json.loads(text)))
    return Genesis(digest, client_of(digest), doc.get_update() if doc.get_state() != b"\x00" else EMPTY, roots)


def client_of(digest: bytes) -> int:
    """The Yjs client id of a genesis with this hash."""
    return CLIENT_MAX - (int.from_bytes(digest[:8], "big") >> 11)


def check(digest: bytes, parsed: Parsed) -> None:
    """Check a genesis from a client or a peer.

    Raises:
        BadOperation: it holds another client's edits, or deletes.
    """
    if len(digest) != hashlib.sha256().digest_size or parsed.structs.keys() - {client_of(digest)} or parsed.deletes:
        raise BadOperation("a genesis does not use the client id that follows from its hash", reason="content")


def cut_out(doc: pycrdt.Doc[Any], digest: bytes) -> tuple[bytes, bytes]:
    """A genesis as a document holds it: the update that brought it, and an update of its later deletions.

    Of deleted content the engine may keep no more than the clocks.
    """
    client = client_of(digest)
    others = {**parse_state(doc.get_state()), client: 0}
    update, deletes = split(doc.get_update(pack_state(others)))
    return update, b"\x00" + pack_delete_set([each for each in deletes if each[0] == client])
