"""Bugs in what standard Yjs clients meet, and in how a document begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from shoal.crdt.applier import Blobs
from shoal.crdt.rows import Rows, Stamp
from shoal.kinds.document.handle.content import Beginnings
from shoal.kinds.document.serving.documents import Documents
from shoal.kinds.document.state import document, live, markup, untold
from shoal.kinds.document.state.content import Walk
from shoal.node.handler import Place
from shoal.protocol.requests import Edit
from shoal.values.work import Allowance
from tests.mutants.mutant import Mutant


def of_several_updates_the_last_is_lost(patch: pytest.MonkeyPatch) -> None:
    sound = live.merged

    def merged(updates: Sequence[bytes]) -> bytes:
        return sound(updates[:-1] if len(updates) > 1 else updates)

    patch.setattr(live, "merged", merged)


def an_inferred_kind_is_not_kept(patch: pytest.MonkeyPatch) -> None:
    sound = document.apply

    def apply(rows: Rows, stamp: Stamp, update: document.Update, payload: bytes) -> None:
        sound(rows, stamp, msgspec.structs.replace(update, inferred={}), payload)

    patch.setattr(document, "apply", apply)


def a_beginning_that_lost_stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(document, "withdrawn", lambda rows, **_: live.EMPTY)


def a_beginning_that_came_late_is_not_shown(patch: pytest.MonkeyPatch) -> None:
    sound = Documents.follow_update

    def follow(self: Documents, place: Place, stamp: Stamp, change: document.Update, attached: Blobs) -> None:
        if not change.genesis:
            sound(self, place, stamp, change, attached)

    patch.setattr(Documents, "follow_update", follow)


def a_mirror_is_not_told_which_beginning_lost(patch: pytest.MonkeyPatch) -> None:
    def told(self: Documents, place: Place, change: document.Update, update: bytes) -> Edit:
        return Edit(update, change.kinds, change.authors)

    patch.setattr(Documents, "told_update", told)


def a_mirror_merges_a_beginning_that_its_node_lacks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Beginnings, "is_lacked_by", lambda self, state: False)


def a_deleted_item_needs_its_kind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(live, "brings", lambda parsed, root, *, keyed: True)


def xml_is_written_anew(patch: pytest.MonkeyPatch) -> None:
    sound = markup.fill

    def fill(parent: Any, wanted: list[Any], allowance: Allowance, walk: Walk) -> None:
        del parent.children[:]
        sound(parent, wanted, allowance, walk)

    patch.setattr(markup, "fill", fill)


def the_order_of_keys_counts_where_json_tells_nothing(patch: pytest.MonkeyPatch) -> None:
    """The engine writes the keys of a plain map in an order of its own."""

    def plain(self: untold._Reader) -> Any:
        start = self._position
        self._any()
        return self._data[start : self._position]

    patch.setattr(untold._Reader, "plain", plain)


def bytes_of_others_are_taken_for_a_list(patch: pytest.MonkeyPatch) -> None:
    """The engine's JSON shows both alike."""
    sound = live.LiveDocument.merge

    def merge(self: live.LiveDocument, update: bytes) -> bool:
        for value in (b"", b"\x01\x02", b"\x03", b"\x04"):  # Those that the part puts.
            listed = bytes([_ANY_LIST, len(value)]) + b"".join(bytes([_ANY_INTEGER, each]) for each in value)
            update = update.replace(bytes([_ANY_BYTES, len(value)]) + value, listed)
        return sound(self, update)

    patch.setattr(live.LiveDocument, "merge", merge)


_ANY_BYTES, _ANY_LIST, _ANY_INTEGER = 116, 117, 125  # As Yjs encodes plain values.

MUTANTS = (
    Mutant(
        bytes_of_others_are_taken_for_a_list,
        "a node takes bytes in another node's edit for a list of numbers, which JSON shows alike",
        ("4",),
        profile="odd",
    ),
    Mutant(
        the_order_of_keys_counts_where_json_tells_nothing,
        "nodes hash what JSON does not tell of a document in the order in which the engine writes it",
        ("4",),
        profile="odd",
    ),
    Mutant(xml_is_written_anew, "a patch of XML writes anew what it does not name, so that two patches double it", ("10",)),
    Mutant(of_several_updates_the_last_is_lost, "of updates that become one operation, one is not in it", ("3",)),
    Mutant(an_inferred_kind_is_not_kept, "a node forgets what it took a root for", ("3",)),
    Mutant(a_beginning_that_lost_stays, "of two beginnings of a document both are shown", ("10",)),
    Mutant(
        a_beginning_that_came_late_is_not_shown, "a node goes on showing its own beginning, though another counts", ("3", "4")
    ),
    Mutant(a_mirror_is_not_told_which_beginning_lost, "a mirror goes on showing the beginning that lost", ("10",)),
    Mutant(
        a_mirror_merges_a_beginning_that_its_node_lacks,
        "a mirror merges initial content that its last node lost with that of the next node",
        ("10",),
        composites=frozenset({"begun_apart"}),
    ),
    Mutant(
        a_deleted_item_needs_its_kind,
        "a node refuses the deleted items of initial content that it never had, because a root has another kind there",
        ("9",),
        profile="composed",
        composites=frozenset({"begun_apart"}),
    ),
)
