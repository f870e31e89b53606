"""A write that meets a damaged disk: an error never says that nothing was written if something was, or may have been."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from shoal import values
from shoal.crdt.dot import VersionVector
from shoal.errors import OutcomeUnknown, StoreCorrupt
from shoal.node.writes.issuing import Issued, Issuer, Located
from shoal.protocol import requests
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from tests.node.conftest import Bench

KEY = "turn-7"
SAVE = requests.Save("crew", "t", {"x": values.encode(1)})
WRITES: dict[str, requests.AnyWrite] = {
    "a save": SAVE,
    "a batch": requests.Batch([SAVE, requests.Append("crew", "t", values.encode("paid"))]),
    "an add": requests.Add("crew", "c", 1),
}

Damage = Callable[[bytes], None]


@pytest.fixture
def damage(monkeypatch: pytest.MonkeyPatch) -> Damage:
    """Let a table be unreadable from now on."""
    sound = MemoryStorage.get

    def damaged(table: bytes) -> None:
        def get(self: MemoryStorage, key: bytes) -> bytes | None:
            if key.startswith(table):
                raise StoreCorrupt("the block does not pass its checksum. Nothing was written. Run `shoal verify`.")
            return sound(self, key)

        monkeypatch.setattr(MemoryStorage, "get", get)

    return damaged


@pytest.mark.answers("seed-70558")
@pytest.mark.answers("unknown-outcomes-are-told", note="what fails after something was written says so")
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
async def test_an_unreadable_write_is_not_denied(
    bench: Bench, write: requests.AnyWrite, damage: Damage, monkeypatch: pytest.MonkeyPatch
) -> None:
    issue = Issuer.issue

    def overtaken(self: Issuer, located: Located, key: str | None) -> Issued:
        """The generations are looked up only if the partition has seen a deletion since the write was decided."""
        issued = msgspec.structs.replace(issue(self, located, key), endings=VersionVector())
        for target in located.targets:
            bench.node._database.generations.forget(target)
        damage(keys.OBJECT)
        return issued

    monkeypatch.setattr(Issuer, "issue", overtaken)
    with pytest.raises(OutcomeUnknown, match="recorded on this node, and the next part failed: the block") as raised:
        await bench.node.session().call(write, key=KEY, durability="quorum")
    assert raised.value.written == "unknown"
    assert "Nothing was written" not in raised.value.message
    monkeypatch.undo()
    await bench.node.session().call(write, key=KEY, durability="quorum")
    assert (await bench.node.session().call(requests.Status())).operations == 1


@pytest.mark.answers("seed-70558")
@pytest.mark.parametrize("table", [keys.LOG, keys.KEY])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
async def test_an_earlier_attempt_is_not_denied_if_its_key_cannot_be_read(
    bench: Bench, write: requests.AnyWrite, table: bytes, damage: Damage
) -> None:
    await bench.node.session().call(write, key=KEY)
    damage(table)
    with pytest.raises(StoreCorrupt, match=f"{KEY}': the block does not pass its checksum") as raised:
        await bench.node.session().call(write, key=KEY)
    assert raised.value.written == "unknown"
