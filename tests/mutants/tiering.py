"""Bugs in what goes to a bucket and comes back."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from shoal.errors import BackupUnreachable, StoreCorrupt
from shoal.kinds.file.serving import files as serving
from shoal.node.collection import garbage
from shoal.node.tiering import mover
from shoal.node.tiering.chunks import GOING, Chunks, Record, _Fetching, name_of
from shoal.node.tiering.mover import Mover
from shoal.node.tiering.packs import KEY_BYTES, Pack, Packing
from shoal.node.turns import in_turns
from shoal.storage import cold
from tests.mutants.mutant import Mutant

PROFILE = "tiered"


def a_put_that_failed_is_taken_for_made(patch: pytest.MonkeyPatch) -> None:
    """And nothing is read back before the chunks go."""

    async def put(self: Mover, pack: Pack, url: str, name: str) -> None:
        with suppress(BackupUnreachable):
            await self._chunks.store(url).put_new(name, pack.content)

    patch.setattr(Mover, "_put_there", put)


def a_pack_goes_before_what_came_back_is_durable(patch: pytest.MonkeyPatch) -> None:
    async def delete(self: Mover, of: bytes, pack: bytes) -> None:
        record = self._chunks.record(of, pack)
        if record is not None and record.state == GOING and pack not in self._putting:
            await self._chunks.store(record.url).delete([name_of(record.node, pack)])
            self._commit.write({cold.record_key(of, pack): None})

    patch.setattr(Mover, "_delete", delete)


async def _looked(self: Mover, of: bytes, packs: Iterable[tuple[bytes, Record]], *, returns: bool, is_kept: bool) -> str:
    """As `Mover._look`, wrong: packs that lost a row go as they are; or, `is_kept`, those stay of which nothing is left."""
    found = await in_turns(self._chunks.stubs(of, {record.generation for _, record in packs}), self._environment.pause)
    for pack, record in packs:
        key, count = found.get(pack, (b"", 0))
        if count and (returns or (is_kept and count != record.count)):
            await self._tried("", self._chunks.thaw(of, pack, key))
        elif not is_kept and count != record.count and record.state != GOING and pack not in self._putting:
            await self._note(of, pack, msgspec.structs.replace(record, state=GOING))
    return ""


def a_pack_goes_with_the_first_of_its_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Mover, "_look", lambda self, of, packs, *, returns: _looked(self, of, packs, returns=returns, is_kept=False))


def a_pack_stays_though_all_its_rows_went(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Mover, "_look", lambda self, of, packs, *, returns: _looked(self, of, packs, returns=returns, is_kept=True))


def what_was_erased_during_a_fetch_comes_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Chunks, "_leads_to", lambda self, key, pack: True)


def a_stub_takes_the_place_of_what_was_erased(patch: pytest.MonkeyPatch) -> None:
    """What was erased while its pack was put is not looked at again."""
    sound = Mover._let_go

    def let_go(self: Mover, target: Any, of: bytes, pack: Pack, record: Record, rows: dict[bytes, bytes]) -> int:
        there = {key: value for key in rows if (value := self._raw.get(key)) is not None}
        return sound(self, target, of, pack, record, there)

    patch.setattr(Mover, "_let_go", let_go)


def stubs_go_to_peers(patch: pytest.MonkeyPatch) -> None:
    async def filled(self: Chunks, rows: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        return rows

    patch.setattr(Chunks, "filled", filled)


def a_lost_pack_is_not_asked_of_peers(patch: pytest.MonkeyPatch) -> None:
    async def repair(self: _Fetching, error: StoreCorrupt, /) -> None:
        if not (error.lost and await self._chunks.bring_back(self._target, error.lost)):
            raise error

    patch.setattr(_Fetching, "repair", repair)


def a_rule_that_is_unset_leaves_all_where_it_is(patch: pytest.MonkeyPatch) -> None:
    sound = Mover.tidy
    patch.setattr(Mover, "tidy", lambda self, returning=(): sound(self))


def a_pack_is_put_before_it_is_noted(patch: pytest.MonkeyPatch) -> None:
    async def note(self: Mover, of: bytes, pack: bytes, record: Record) -> None:
        if record.state == GOING:
            await sound(self, of, pack, record)

    sound: Callable[..., Any] = Mover._note
    patch.setattr(Mover, "_note", note)


def packs_are_looked_at_after_writes_alone(patch: pytest.MonkeyPatch) -> None:
    """Sweeps are no writes of peers or clients."""
    sound = Mover._tidy

    async def tidy(self: Mover, spaces: frozenset[str]) -> dict[str, str]:
        self._whole_at = float("inf")
        return await sound(self, spaces)

    patch.setattr(Mover, "_tidy", tidy)


def what_came_back_is_never_forgotten(patch: pytest.MonkeyPatch) -> None:
    async def forget(self: Mover, spaces: frozenset[str]) -> None:
        pass

    patch.setattr(Mover, "_forget", forget)


def objects_with_stubs_are_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cold, "objects", lambda storage, number, start=b"", stop=None: set())


def one_key_opens_all_packs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mover, "Packing", lambda _key: Packing(b"k" * KEY_BYTES))


def files_that_stay_go_without_being_read_back(patch: pytest.MonkeyPatch) -> None:
    a_put_that_failed_is_taken_for_made(patch)


def a_file_that_stays_is_not_fetched(patch: pytest.MonkeyPatch) -> None:
    async def passed(_self: Chunks, _of: bytes, _key: bytes, _stub: cold.Stub) -> bool:
        return False

    patch.setattr(Chunks, "_passed", passed)


def a_file_goes_from_the_bucket_with_its_name(patch: pytest.MonkeyPatch) -> None:
    """Nobody asks which checkpoints refer to it."""

    def referred(_rows: object, _hashes: object) -> Generator[None, None, dict[bytes, bytes]]:
        yield
        return {}

    patch.setattr(serving, "referred", referred)
    patch.setattr(garbage, "referred", referred)


def _mutant(plant: Callable[[pytest.MonkeyPatch], None], breaks: str, *invariants: str) -> Mutant:
    return Mutant(plant, breaks, invariants, profile=PROFILE)


MUTANTS = (
    _mutant(a_put_that_failed_is_taken_for_made, "chunks go to a bucket that did not take them", "3"),
    _mutant(a_pack_goes_before_what_came_back_is_durable, "a pack is deleted before its chunks are durable here", "3"),
    _mutant(a_pack_goes_with_the_first_of_its_rows, "a pack is deleted once one of its rows went", "3"),
    _mutant(a_pack_stays_though_all_its_rows_went, "the bucket keeps what was erased", "15"),
    _mutant(what_was_erased_during_a_fetch_comes_back, "a fetch brings back what was erased meanwhile", "4", "15"),
    _mutant(a_stub_takes_the_place_of_what_was_erased, "what is erased while it is put comes back as a stub", "3", "4", "15"),
    _mutant(stubs_go_to_peers, "a peer is sent stubs, which lead it nowhere", "3", "4", "9"),
    _mutant(a_lost_pack_is_not_asked_of_peers, "what the bucket lost is not asked of peers", "3", "9", "10"),
    _mutant(a_rule_that_is_unset_leaves_all_where_it_is, "tiering is switched off, and nothing comes back", "15"),
    _mutant(a_pack_is_put_before_it_is_noted, "a pack of which its node knows nothing stays in the bucket", "15"),
    _mutant(packs_are_looked_at_after_writes_alone, "a sweep leaves its packs in the bucket", "15"),
    _mutant(what_came_back_is_never_forgotten, "what says that a thread came back outlives it", "15"),
    _mutant(objects_with_stubs_are_compared, "stubs are compared with chunks of peers", "4", "20"),
    _mutant(one_key_opens_all_packs, "a key that is still there opens what was erased", "15"),
    Mutant(
        files_that_stay_go_without_being_read_back,
        "files go to a bucket that did not take them",
        ("3", "9"),
        profile="shelved",
    ),
    Mutant(
        a_file_that_stays_is_not_fetched,
        "a read of a file that stays in the bucket leads nowhere",
        ("3", "9"),
        profile="shelved",
    ),
    Mutant(
        a_file_goes_from_the_bucket_with_its_name,
        "a file that stays in the bucket is collected although a checkpoint refers to it",
        ("3",),
        profile="shelved",
    ),
)
