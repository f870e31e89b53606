"""Manifests and packs: what they say together, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.backup.format import (
    BASES,
    PARTITIONS,
    SEGMENTS,
    WHOLE_EVERY,
    Base,
    Catalogue,
    Entry,
    Manifest,
    Pack,
    Packing,
    Reached,
    encode,
    gap,
    incomplete,
    is_whole,
    manifest_name,
    moment_of,
    names_of,
    read_index,
    read_manifest,
    read_part,
    whole_before,
)
from shoal.cluster import operation
from shoal.crdt.dot import HORIZON, Dot, Origin, VersionVector
from shoal.errors import BackupDamaged

A, B = Origin(b"a" * 16), Origin(b"b" * 16)
CLUSTER = b"c" * 16


def manifest(number: int, previous: bytes = b"", **said: object) -> Manifest:
    made = Manifest(1, CLUSTER, number, previous, b"n" * 16, 1000 + number, 1000 + number, is_whole(number))
    return msgspec.structs.replace(made, **said)


def entry(origin: Origin, sequence: int, hlc: int) -> Entry:
    return Entry(origin, sequence, hlc, b"h" * 32, b"content")


def pack_of(*parts: tuple[int, list[Entry]]) -> tuple[Pack, bytes]:
    packing = Packing(SEGMENTS)
    for partition, entries in parts:
        packing.add_operations(partition, entries)
    return packing.finish(made_ms=7)


def test_a_pack_says_what_it_holds() -> None:
    pack, content = pack_of((1, [entry(A, 3, 10), entry(B, 1, 11), entry(A, 4, 12)]), (5, [entry(A, 1, 9)]))
    assert (pack.first_hlc, pack.last_hlc, pack.operations, pack.size) == (9, 12, 4, len(content))
    parts = read_index(content[pack.index :], pack)
    assert [(part.partition, part.spans) for part in parts] == [(1, [(A, 3, 4), (B, 1, 1)]), (5, [(A, 1, 1)])]


def test_an_altered_index_or_part_is_refused() -> None:
    pack, content = pack_of((1, [entry(A, 1, 10)]))
    [part] = read_index(content[pack.index :], pack)
    with pytest.raises(BackupDamaged, match="does not match its hash"):
        read_index(content[pack.index :] + b"\0", pack)
    with pytest.raises(BackupDamaged, match="does not match its hash"):
        read_part(content[part.start : part.start + part.size - 1] + b"\0", part, pack)


def test_names_of_manifests_are_in_the_order_of_their_numbers() -> None:
    names = [manifest_name(number) for number in (1, 9, 10, 99, 12345)]
    assert names == sorted(names)
    assert list(names_of([*names, "manifests/x", "manifests/1"])) == [1, 9, 10, 99, 12345]


def test_the_first_of_so_many_manifests_is_whole() -> None:
    wholes = [number for number in range(1, 3 * WHOLE_EVERY) if is_whole(number)]
    assert wholes == [1, WHOLE_EVERY + 1, 2 * WHOLE_EVERY + 1]
    assert [whole_before(number) for number in (1, WHOLE_EVERY, WHOLE_EVERY + 1)] == [1, 1, WHOLE_EVERY + 1]


def test_a_manifest_of_another_number_or_format_is_refused() -> None:
    with pytest.raises(BackupDamaged, match="says that it is manifest 2"):
        read_manifest(encode(manifest(2)), 3)
    with pytest.raises(BackupDamaged, match="format 2"):
        read_manifest(encode(manifest(2, format=2)), 2)
    with pytest.raises(BackupDamaged, match="cannot be decoded"):
        read_manifest(b"\xc1", 2)


def taken(*manifests: Manifest) -> Catalogue:
    catalogue = Catalogue()
    for each in manifests:
        catalogue.take(msgspec.structs.replace(each, previous=catalogue.digest), encode(each))
    return catalogue


def test_a_manifest_must_follow_from_the_one_before_it() -> None:
    catalogue = taken(manifest(1))
    with pytest.raises(BackupDamaged, match="does not follow"):
        catalogue.take(manifest(2, b"another"), b"")
    with pytest.raises(BackupDamaged, match="does not follow"):
        catalogue.take(manifest(3, catalogue.digest), b"")
    with pytest.raises(BackupDamaged, match="of another cluster"):
        catalogue.take(manifest(2, catalogue.digest, cluster=b"d" * 16), b"")
    with pytest.raises(BackupDamaged, match="cannot be the first"):
        Catalogue().take(manifest(2), b"")


def test_a_whole_manifest_says_what_those_before_it_said() -> None:
    one, _ = pack_of((1, [entry(A, 1, 10)]))
    two, _ = pack_of((1, [entry(A, 2, 11)]))
    catalogue = taken(
        manifest(1, segments=[one], reached=[Reached(1, [(A, 1, 10)], 5)]),
        manifest(2, segments=[two], reached=[Reached(1, [(A, 2, 11)], 9), Reached(4, [(B, 1, 3)], 2)]),
    )
    whole = catalogue.whole(manifest(3, gone=[(one.name, 1)]))
    again = Catalogue()
    again.take(msgspec.structs.replace(whole, number=WHOLE_EVERY + 1), b"")
    assert list(again.segments) == [two.name]
    assert again.reached == catalogue.reached
    assert again.vector(1) == VersionVector.of(Dot(A, 2))


def base(hlc: int, lacks_from: int | None = None, name: str = "bases/x") -> Base:
    return Base(1, hlc, VersionVector.of(Dot(A, hlc)).pack(), [(name, 0)], 10, hlc if lacks_from is None else lacks_from)


def test_a_restore_begins_with_the_last_base_that_is_as_old() -> None:
    catalogue = taken(manifest(1, bases=[base(10, 0), base(20), base(30)]))
    assert [moment_of(catalogue, hlc).bases[1].hlc for hlc in (10, 19, 20, 99)] == [10, 10, 20, 30]
    assert moment_of(catalogue, 5).bases == {}
    assert moment_of(catalogue, 99, [2]).bases == {}


def test_a_moment_is_whole_unless_a_base_says_that_it_lacks_something() -> None:
    catalogue = taken(manifest(1, bases=[base(10, 0), base(30, 20)]))
    lacking = [hlc for hlc in range(5, 40) if incomplete(catalogue, hlc) is not None]
    assert lacking == [*range(5, 10), *range(20, 30)]
    assert incomplete(catalogue, 25, [2]) is None


def test_a_pack_takes_the_place_of_those_that_it_replaces() -> None:
    packs = [pack_of((1, [entry(A, nth, 10 + nth)]))[0] for nth in range(1, 5)]
    merged, _ = pack_of((1, [entry(A, 2, 12), entry(A, 3, 13)]))
    catalogue = taken(manifest(1, segments=packs))
    gone = [(packs[1].name, 7), (packs[2].name, 7)]
    catalogue.take(manifest(2, catalogue.digest, segments=[merged], gone=gone), b"")
    assert list(catalogue.segments) == [packs[0].name, merged.name, packs[3].name]
    assert catalogue.left == dict(gone)
    again = Catalogue()
    whole = catalogue.whole(manifest(3, made_ms=8, since=5))
    again.take(msgspec.structs.replace(whole, number=WHOLE_EVERY + 1), b"")
    assert (list(again.segments), again.left, again.since) == (list(catalogue.segments), dict(gone), 5)


def test_a_base_goes_with_its_pack() -> None:
    catalogue = taken(manifest(1, bases=[base(10), base(20, name="bases/y")], packs=[_named("bases/x"), _named("bases/y")]))
    catalogue.take(manifest(2, catalogue.digest, gone=[("bases/x", 1)]), b"")
    assert [each.hlc for each in catalogue.bases[1]] == [20]


def _named(name: str) -> Pack:
    pack, _ = Packing(BASES).finish(made_ms=1)
    return msgspec.structs.replace(pack, name=name)


def test_a_gap_begins_with_the_origins_last_operation() -> None:
    reached = Reached(1, [(A, 3, 30), (B, 2, 20)], 0)
    assert gap(reached, {A: 3, B: 2}) is None
    assert gap(reached, {A: 4}) == 30
    assert gap(reached, {A: 4, B: 3}) == 20
    assert gap(None, {A: 1}) == 0
    assert gap(None, {}) is None


def test_the_gap_of_a_new_opening_follows_the_last_one() -> None:
    first, second = Origin(b"1" * 8 + b"d" * 8), Origin(b"2" * 8 + b"d" * 8)
    reached = Reached(1, [(first, 3, 30), (B, 2, 20), (HORIZON, 5, 0)], 0)
    assert gap(reached, {second: 1}) == 30
    assert gap(reached, {A: 1}) == 20  # Of a directory that is not known.


@pytest.mark.parametrize(
    "said",
    [
        {"segments": [Pack(SEGMENTS + "0", 2**63, 0, b"", 7, 1, 2, 1)]},
        {"segments": [Pack(SEGMENTS + "0", -1, -2, b"", 7, 1, 2, 1)]},
        {"bases": [Base(1, 2**64 - 1, b"", [(BASES + "0", 0)], 1)]},
        {"bases": [Base(-1, 7, b"", [(BASES + "0", 0)], 1)]},
        {"bases": [Base(1, 7, b"", [(BASES + "0", -1)], 1)]},
        {"reached": [Reached(1024, [(A, 1, 1)], 0)]},
        {"made_ms": 2**60},
        {"segments": [Pack("../" + SEGMENTS + "0", 9, 0, b"", 7, 1, 2, 1)]},
        {"bases": [Base(1, 7, b"", [(BASES + "../0", 0)], 1)]},
    ],
)
def test_a_number_that_cannot_be_is_damage(said: dict[str, Any]) -> None:
    with pytest.raises(BackupDamaged, match="cannot be decoded"):
        read_manifest(encode(manifest(1, **said)), 1)


def test_a_backup_has_the_partitions_of_a_store() -> None:
    assert PARTITIONS == operation.PARTITIONS
