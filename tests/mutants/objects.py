"""Bugs in the data types."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from shoal.crdt.applier import NOTHING, Blobs
from shoal.crdt.rows import Rows, Stamp
from shoal.kinds.counter import state as counter
from shoal.kinds.document.handle.document import Document
from shoal.kinds.document.handle.mirror import MirrorContext
from shoal.kinds.document.serving.documents import Documents
from shoal.kinds.document.state import editing
from shoal.kinds.journal.state import journal
from shoal.kinds.journal.state.events import EVENT
from shoal.kinds.journal.state.journal import Cursor
from shoal.kinds.register import state as register
from shoal.kinds.register.state import Assign, AssignBy
from shoal.kinds.thread.serving.saves import Saves
from shoal.kinds.thread.state import dag
from shoal.kinds.thread.state.dag import Head
from shoal.node import mutation
from shoal.node.handler import Made, WriteContext
from shoal.node.mutation import Change
from shoal.node.transaction import Transaction
from shoal.protocol import requests
from shoal.protocol.session import Session
from shoal.storage import keys
from tests.mutants.mutant import Mutant, patch_applier


def a_counter_keeps_the_claim_that_lost(patch: pytest.MonkeyPatch) -> None:
    sound = counter._claim

    def claim(rows: Rows, key: bytes, claim: bytes, amount: int) -> None:
        winner = rows.get(counter._key_row(key))
        sound(rows, key, claim, amount)
        if winner is not None and claim < winner[: counter._CLAIM_BYTES]:
            counter._count(rows, counter.unpack(winner[counter._CLAIM_BYTES :]))

    patch.setattr(counter, "_claim", claim)


def a_register_keeps_the_last_that_came(patch: pytest.MonkeyPatch) -> None:
    sound = register.apply

    def apply(rows: Rows, stamp: Stamp, assign: Assign | AssignBy) -> None:
        rows.delete(register.SIBLINGS)
        sound(rows, stamp, assign)

    # Under its name, too: `apply_by` calls it.
    patch.setattr(register, "apply", apply)
    patch_applier(patch, Assign, apply)


def a_batch_is_applied_under_one_stamp_where_it_is_issued(patch: pytest.MonkeyPatch) -> None:
    sound = mutation.apply

    def apply(context: WriteContext, change: Change, attached: Blobs = NOTHING) -> Any:
        stamp = context.stamp
        context.made.append(Made(stamp, change, attached))
        return sound(context.rows, stamp.at(0), change, attached)

    patch.setattr(WriteContext, "apply", apply)


def a_journal_skips_what_is_late(patch: pytest.MonkeyPatch) -> None:
    def start(cursor: Cursor, floor_hlc: int | None) -> bytes | None:
        return EVENT + cursor.greatest if cursor.greatest else None

    patch.setattr(journal, "_start", start)


def a_journal_cursor_adopts_what_was_cut(patch: pytest.MonkeyPatch) -> None:
    sound = journal.read

    def read(rows: Rows, cursor: Cursor, *args: Any, **options: Any) -> journal.Page:
        page = sound(rows, cursor, *args, **options)
        adopted = Cursor(cursor.vector.join(page.target), page.cursor.greatest)
        return page._replace(cursor=adopted, more=False)

    patch.setattr(journal, "read", read)


def a_save_drops_the_other_heads(patch: pytest.MonkeyPatch) -> None:
    def move_heads(rows: Rows, branch: str, head: Head, *, over: Iterable[bytes], first: bool) -> list[Head]:
        return dag._put_heads(rows, branch, [head])

    patch.setattr(dag, "_move_heads", move_heads)


def a_save_takes_the_winner_for_its_parent(patch: pytest.MonkeyPatch) -> None:
    def parent(self: Saves, rows: Rows, request: requests.Save, heads: list[Head]) -> bytes | None:
        return heads[0].id if heads else None

    patch.setattr(Saves, "_parent", parent)


def a_snapshot_stands_though_an_update_came_late(patch: pytest.MonkeyPatch) -> None:
    sound = Transaction.delete

    def delete(self: Transaction, key: bytes) -> None:
        if not key.startswith(keys.SNAPSHOT):
            sound(self, key)

    patch.setattr(Transaction, "delete", delete)


def a_live_document_misses_what_peers_bring(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Documents, "_merged", lambda self, opened, update: True)


def two_mirrors_share_a_client_id(patch: pytest.MonkeyPatch) -> None:
    sound = Document.__init__

    def init(self: Document, session: Session, space: str, name: str, context: MirrorContext) -> None:
        sound(self, session, space, name, replace(context, client_id=7))

    patch.setattr(Document, "__init__", init)


def patches_share_a_client_id(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(editing, "client_of", lambda origin, generation, author: 7)


MUTANTS = (
    Mutant(
        a_counter_keeps_the_claim_that_lost, "a counter keeps the amount of a claim that a lesser dot took over", ("4", "5")
    ),
    Mutant(a_register_keeps_the_last_that_came, "a register keeps what came last, and no sibling", ("3", "3a", "4")),
    Mutant(a_batch_is_applied_under_one_stamp_where_it_is_issued, "a batch makes other rows where it is issued", ("4",)),
    Mutant(a_journal_skips_what_is_late, "a journal's reader is not given what sorts before what it got", ("7", "10")),
    Mutant(a_journal_cursor_adopts_what_was_cut, "a journal's cursor covers what its page had no room for", ("7", "10")),
    Mutant(a_save_drops_the_other_heads, "a save drops the heads beside its own", ("3", "4", "7")),
    Mutant(a_save_takes_the_winner_for_its_parent, "a save builds on the winner, not on what its handle had seen", ("6", "7")),
    Mutant(a_snapshot_stands_though_an_update_came_late, "a document's snapshot is not voided by an update below it", ("4",)),
    Mutant(a_live_document_misses_what_peers_bring, "a document in memory misses what peers bring", ("3", "3a", "4", "7")),
    Mutant(two_mirrors_share_a_client_id, "two mirrors of a document share a client id", ("3", "3a", "4", "7")),
    Mutant(patches_share_a_client_id, "all patches of a document are made under one client id", ("3", "4", "10")),
)
