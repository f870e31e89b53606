"""The keys of an encrypted directory over time: rotation, erasure, and crashes in the midst of both."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar

import pytest
from msgspec.structs import replace

from shoal.client.connection import StoreConnection
from shoal.client.store import Store
from shoal.config import Config
from shoal.errors import KeyExpired, MasterKeyWrong, StoreCorrupt
from shoal.node.collection.sealing import KeyKeeper
from shoal.node.node import Node
from shoal.protocol import requests
from shoal.storage import keys
from shoal.storage.encrypted.keyring import Keyring, KeysInMemory, LocalKeys
from shoal.storage.encrypted.storage import EncryptedStorage
from shoal.storage.interface import MemoryStorage
from simulation.bounds import altered
from simulation.world.environment import SimulatedEnvironment

T = TypeVar("T")
MASTER, OTHER = b"m" * 32, b"o" * 32
CONFIG = Config(
    encryption_erase_s=60.0,
    encryption_rotate_s=1e6,
    log_keep_s=3600.0,
    sync_interval_s=0.001,  # Garbage is looked at so often.
)
DAY_MS = 24 * 3600 * 1000


@pytest.fixture(autouse=True)
def bounds() -> Iterator[None]:
    with altered(encryption_look_s=1e6):
        yield


class Moment(NamedTuple):
    """What a crash would leave on the disk."""

    keys: bytes
    rows: MemoryStorage


class Watched(KeysInMemory):
    """A home that remembers what a crash would leave before and after each change of the keys, and before each of the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.below = MemoryStorage()
        self.moments: list[Moment] = []

    def replace(self, content: bytes, /) -> None:
        self.note()
        super().replace(content)
        self.note()

    def note(self) -> None:
        if self.content is not None:
            self.moments += [Moment(self.content, self.below.left_by_crash(keep)) for keep in (0, None)]


class NotedStorage(MemoryStorage):
    """Tells its home before each write and sync."""

    home: Watched | None = None

    def write(self, rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]] = (), /) -> int:
        if self.home is not None:
            self.home.note()
        return super().write(rows, ranges)

    def sync(self) -> int:
        if self.home is not None:
            self.home.note()
        return super().sync()


def unlocked(below: MemoryStorage, home: KeysInMemory, simulated: SimulatedEnvironment) -> EncryptedStorage:
    entropy = simulated.environment.entropy
    keyring = Keyring(home, LocalKeys([MASTER], entropy), entropy=entropy, now_ms=lambda: simulated.now_ms, keys_max=100)
    return EncryptedStorage(below, keyring, entropy=entropy, order_rows_max=1000)


class Sealed:
    """A node over encrypted memory."""

    def __init__(self, below: MemoryStorage, home: KeysInMemory, *, seed: int = 1, config: Config = CONFIG) -> None:
        self.below, self.home = below, home
        self.simulated = SimulatedEnvironment(seed)
        self.storage = unlocked(below, home, self.simulated)
        environment = dataclasses.replace(self.simulated.environment, run_blocking=self._run_blocking)
        entropy = environment.entropy
        self.node = Node(self.storage, config=config, environment=environment)
        connection = StoreConnection(self.node.session(), config, "local", entropy)
        self.store = Store(connection, close=self.node.stop)

    async def _run_blocking(self, function: Callable[[], T], /) -> T:
        """A sync takes longer than anything else that blocks: what does not wait for it is early."""
        for _ in range(50 if getattr(function, "func", None) == self.storage._sync else 1):
            await asyncio.sleep(0)
        return function()

    @property
    def keeper(self) -> KeyKeeper:
        assert self.node.keys is not None
        return self.node.keys

    async def pass_by(self, ms: int) -> None:
        """Let time go by, and look; garbage is swept meanwhile."""
        self.simulated.now_ms += ms
        for _ in range(3):
            await self.keeper.look()
            async with asyncio.timeout(30):
                while (await self.store.status()).garbage:
                    await asyncio.sleep(0.01)

    async def erased(self, space: str) -> None:
        """Delete a space, and let its keys go."""
        await self.store.space(space).delete()
        await self.pass_by(0)
        await self.pass_by(61_000)

    def numbers(self) -> set[int]:
        """The data keys under which rows are."""
        return {int.from_bytes(row[1:5], "big") for _, row in self.below.scan(b"", None)}


@asynccontextmanager
async def sealed(
    below: MemoryStorage | None = None, home: KeysInMemory | None = None, **settings: object
) -> AsyncIterator[Sealed]:
    made = Sealed(below or MemoryStorage(), home or KeysInMemory(), config=replace(CONFIG, **settings))
    try:
        yield made
    finally:
        await made.node.stop()


async def fill(store: Store, space: str) -> None:
    here = store.space(space)
    await here.thread("t").save({"text": f"text of {space}" * 500}, key="first")
    await here.set("s").add("member")
    await here.register("r").set(space, key="second")


async def is_whole(store: Store, space: str) -> None:
    here = store.space(space)
    assert (await here.thread("t").load()).state == {"text": f"text of {space}" * 500}
    assert await here.register("r").get() == space
    assert await here.set("s").contains("member")


def opens(moment: Moment) -> dict[bytes, bytes]:
    """All rows that a crash would leave, opened.

    Raises:
        StoreCorrupt: one does not open.
    """
    return dict(unlocked(moment.rows, KeysInMemory(moment.keys), SimulatedEnvironment(9)).scan(b"", None))


@pytest.mark.answers("erased-spaces-lose-their-keys")
async def test_a_deleted_space_loses_its_keys_and_others_keep_theirs() -> None:
    async with sealed() as made:
        await fill(made.store, "crew")
        await fill(made.store, "desk")
        crew = made.storage.keyring.find(b"crew")
        assert crew is not None
        number = {crew.current.number}
        rows = [row for row in made.below.scan(b"", None) if made.storage.cipher.is_under(*row, number)]
        assert {place[:1] for place, _ in rows} >= {keys.OBJECT, keys.LOG, keys.CATALOG}
        await made.erased("crew")
        assert made.storage.keyring.find(b"crew") is None
        status = await made.store.status()
        assert status.keys_wait_for == []
        assert status.data_keys == 2  # Of the other space, and of the store itself.
        for place, row in rows:  # As a backup of the files has them.
            with pytest.raises(StoreCorrupt, match="does not have"):
                made.storage.cipher.open(place, row)
        await is_whole(made.store, "desk")


async def test_a_space_keeps_its_keys_while_somebody_may_need_what_they_seal() -> None:
    async with sealed() as made:
        await fill(made.store, "crew")
        await made.store.space("crew").delete()
        await made.pass_by(0)
        await made.pass_by(30_000)
        assert made.storage.keyring.find(b"crew") is not None
        assert (await made.store.status()).keys_wait_for == ["crew"]


async def test_a_space_that_is_filled_again_keeps_its_keys() -> None:
    async with sealed() as made:
        await fill(made.store, "crew")
        await made.store.space("crew").delete()
        await made.pass_by(0)
        await made.store.space("crew").register("r").set("again")
        await made.pass_by(61_000)
        assert await made.store.space("crew").register("r").get() == "again"
        assert made.storage.keyring.find(b"crew") is not None


async def test_an_erased_space_can_be_used_again_under_new_keys() -> None:
    async with sealed() as made:
        await fill(made.store, "crew")
        before = made.storage.keyring.find(b"crew")
        await made.erased("crew")
        here = made.store.space("crew")
        assert await here.register("r").get() is None
        await here.register("r").set("new")
        after = made.storage.keyring.find(b"crew")
        assert before is not None
        assert after is not None
        assert after.naming != before.naming
        assert after.current.number > before.current.number


async def test_a_key_of_a_request_whose_answer_was_erased_is_not_applied_again() -> None:
    async with sealed() as made:
        await fill(made.store, "crew")
        await made.erased("crew")
        with pytest.raises(KeyExpired, match="erased"):
            await made.store.space("crew").register("r").set("crew", key="second")
        assert await made.store.space("crew").register("r").get() is None


@pytest.mark.answers("erased-spaces-lose-their-keys")
async def test_an_old_data_key_is_replaced_and_its_rows_are_sealed_anew() -> None:
    async with sealed(encryption_rotate_s=24 * 3600.0) as made:
        await fill(made.store, "crew")
        before = made.numbers()
        plain = dict(made.storage.scan(b"", None))
        await made.pass_by(2 * DAY_MS)
        assert before.isdisjoint(made.numbers())
        assert not any(
            number in before for each in made.storage.keyring.scopes.values() for number in [k.number for k in each.keys]
        )
        unchanged = {key: value for key, value in made.storage.scan(b"", None) if key[:1] != keys.META}
        assert unchanged == {key: value for key, value in plain.items() if key in unchanged}
        assert {key for key in plain if key[:1] == keys.OBJECT} <= unchanged.keys()
        await is_whole(made.store, "crew")


async def test_a_key_that_an_open_snapshot_may_need_is_kept() -> None:
    async with sealed(encryption_rotate_s=24 * 3600.0) as made:
        await fill(made.store, "crew")
        snapshot = made.storage.snapshot()
        before = made.numbers()
        await made.pass_by(2 * DAY_MS)
        assert dict(snapshot.scan(keys.OBJECT, keys.OBJECT + b"\xff"))
        snapshot.close()
        await made.pass_by(0)
        left = {key.number for each in made.storage.keyring.scopes.values() for key in each.keys}
        assert before.isdisjoint(left)


async def test_a_damaged_row_keeps_its_key() -> None:
    async with sealed(encryption_rotate_s=24 * 3600.0) as made:
        await fill(made.store, "crew")
        place, row = next((place, row) for place, row in made.below.scan(keys.OBJECT, keys.OBJECT + b"\xff") if len(row) > 60)
        made.below.alter(place, row[:-1] + bytes([row[-1] ^ 1]))
        await made.pass_by(2 * DAY_MS)
        number = int.from_bytes(row[1:5], "big")
        assert made.storage.keyring.secret(number) is not None
        made.below.alter(place, row)
        await made.pass_by(0)
        assert made.storage.keyring.secret(number) is None


@pytest.mark.answers("erased-spaces-lose-their-keys")
@pytest.mark.parametrize("change", ["rotation", "erasure"])
async def test_a_crash_at_any_point_leaves_rows_that_open(change: str) -> None:
    home, below = Watched(), NotedStorage()
    home.below = below
    async with sealed(below, home, encryption_rotate_s=24 * 3600.0) as made:
        await fill(made.store, "crew")
        await fill(made.store, "desk")
        below.home = home
        home.moments.clear()
        if change == "erasure":
            await made.erased("crew")
            assert made.storage.keyring.find(b"crew") is None
        else:
            await made.pass_by(2 * DAY_MS)
            assert made.keeper.destroyed > 0
        below.home = None
        moments = home.moments
    assert len(moments) > 10
    for moment in moments:
        assert b"desk" in b"".join(opens(moment))
    middle = moments[len(moments) // 2]
    async with sealed(middle.rows, KeysInMemory(middle.keys), encryption_rotate_s=24 * 3600.0) as again:
        again.simulated.now_ms += 3 * DAY_MS
        await is_whole(again.store, "desk")
        await again.pass_by(0)
        await again.pass_by(61_000)
        await is_whole(again.store, "desk")


@pytest.mark.answers("erased-spaces-lose-their-keys")
async def test_writes_beside_an_erasure_are_never_lost() -> None:
    async with sealed(encryption_erase_s=0.001) as made:
        register = made.store.space("crew").register("r")
        for turns in range(0, 200, 2):
            await register.set(turns)
            await register.delete()
            await made.pass_by(0)
            made.simulated.now_ms += 1000
            looking = asyncio.create_task(made.keeper.look())
            for _ in range(turns):
                await asyncio.sleep(0)
            await register.set(turns)
            await looking
            made.simulated.now_ms += 1000
            await made.keeper.look()
            assert await register.get() == turns
            assert dict(made.storage.scan(b"", None))
        assert made.keeper.destroyed > 10


async def test_keys_that_cannot_go_yet_are_looked_at_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    async with sealed() as made:
        await fill(made.store, "crew")
        await made.store.space("crew").delete()
        await made.pass_by(0)
        pauses: list[float] = []

        async def sleep(pause_s: float) -> None:
            pauses.append(pause_s)
            if len(pauses) == 8:
                raise asyncio.CancelledError

        with monkeypatch.context() as patch, pytest.raises(asyncio.CancelledError):
            patch.setattr(asyncio, "sleep", sleep)
            await made.keeper._run()
        assert pauses == [24.0, 48.0, 96.0, 192.0, 384.0, 600.0, 600.0, 600.0]
        await made.pass_by(0)
        await made.pass_by(61_000)
        assert made.storage.keyring.find(b"crew") is None


async def test_the_master_key_is_replaced_while_the_node_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Sealed(MemoryStorage(), KeysInMemory())
    entropy = made.simulated.environment.entropy
    keeper = made.keeper
    try:
        await fill(made.store, "crew")
        before = made.home.content
        monkeypatch.setattr(keeper, "_reread", lambda: LocalKeys([OTHER], entropy))
        assert await keeper.reload()
        assert not await keeper.reload()
        assert (await made.store.status()).master_key == LocalKeys([OTHER], entropy).name
        await is_whole(made.store, "crew")
        for content, right, wrong in ((made.home.content, OTHER, MASTER), (before, MASTER, OTHER)):
            for key in (right, wrong):
                master = LocalKeys([key], entropy)
                home = KeysInMemory(content)
                if key is right:
                    assert Keyring(home, master, entropy=entropy, now_ms=lambda: 0, keys_max=9).find(b"crew")
                else:
                    with pytest.raises(MasterKeyWrong):
                        Keyring(home, master, entropy=entropy, now_ms=lambda: 0, keys_max=9)
    finally:
        await made.node.stop()


async def test_a_master_key_that_cannot_be_fetched_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with sealed() as made:
        await fill(made.store, "crew")
        before = made.home.content

        def gone() -> LocalKeys:
            raise MasterKeyWrong("it is away. Nothing was written.")

        monkeypatch.setattr(made.keeper, "_reread", gone)
        with pytest.raises(MasterKeyWrong):
            await made.keeper.reload()
        assert made.home.content == before
        await is_whole(made.store, "crew")


async def test_a_plain_directory_has_no_keys() -> None:
    simulated = SimulatedEnvironment(1)
    node = Node(MemoryStorage(), config=CONFIG, environment=simulated.environment)
    try:
        status = await node.session().call(requests.Status())
        assert (status.master_key, status.data_keys, status.keys_wait_for) == ("", 0, [])
    finally:
        await node.stop()
