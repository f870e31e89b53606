"""`shoal.open`: what it makes, what it refuses, and how it ends."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.config import Config, checked
from shoal.errors import HeadMoved, InvalidConfig, InvalidInput, StorageError, StoreClosed, StoreLocked, StoreTooNew


async def test_a_missing_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "a" / "b" / "state") as store:
        await store.space("s").counter("n").add(1)
    assert (tmp_path / "a" / "b" / "state" / "FORMAT").exists()


async def test_a_directory_may_be_named_as_text(tmp_path: Path) -> None:
    async with shoal.open(str(tmp_path / "state")) as store:
        assert (await store.status()).state == "ready"


async def test_a_second_opening_of_one_directory_names_the_holder_and_the_way_out(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state") as store:
        with pytest.raises(StoreLocked) as refused:
            async with shoal.open(tmp_path / "state"):
                pass
        assert f"process {os.getpid()} on" in refused.value.message
        assert f"shoal serve --data {tmp_path / 'state'}" in refused.value.message
        await store.space("s").counter("n").add(1)


async def test_a_closed_store_opens_again_with_what_was_saved(tmp_path: Path) -> None:
    for turn in range(3):
        async with shoal.open(tmp_path / "state") as store:
            assert await store.space("s").counter("n").add(1) == turn + 1


async def test_two_stores_live_in_one_loop(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "one") as one, shoal.open(tmp_path / "two") as two:
        await asyncio.gather(one.space("s").counter("n").add(1), two.space("s").counter("n").add(2))
        assert (await one.status()).node != (await two.status()).node
        assert [await store.space("s").counter("n").value() for store in (one, two)] == [1, 2]


async def test_a_setting_out_of_range_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig) as refused:
        async with shoal.open(tmp_path / "state", config=Config(memtable_bytes=1)):
            pass
    assert refused.value.detail["field"] == "memtable_bytes"
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("memtable_bytes", "8MiB", "memtable_bytes must be a whole number of bytes"),
        ("sessions_max", 2.5, "sessions_max must be a whole number; it is 2.5"),
        ("sessions_max", True, "sessions_max must be a whole number; it is True"),
        ("sessions_max", None, "sessions_max must be a whole number; it is None"),
        ("sessions_max", 2**70, "sessions_max must be at most"),
        ("heartbeat_s", "20", "heartbeat_s must be a number; it is '20'"),
        ("heartbeat_s", float("nan"), "heartbeat_s must be a number; it is nan"),
        ("tls_cert", Path("cert.pem"), "tls_cert must be text"),
        ("log_level", 7, "log_level must be text"),
    ],
)
async def test_a_setting_of_a_wrong_type_is_named(tmp_path: Path, field: str, value: object, said: str) -> None:
    wrong: dict[str, Any] = {field: value}
    with pytest.raises(InvalidConfig, match=said) as refused:
        async with shoal.open(tmp_path / "state", config=Config(**wrong)):
            pass
    assert refused.value.detail["field"] == field
    assert not (tmp_path / "state").exists()


def test_every_setting_is_checked_for_its_type() -> None:
    for field in Config.__struct_fields__:
        wrong: dict[str, Any] = {field: object()}
        with pytest.raises(InvalidConfig, match=f"^{field} must be"):
            checked(Config(**wrong))


async def test_a_configuration_of_another_class_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"must be a shoal\.Config"):
        async with shoal.open(tmp_path / "state", config={"memtable_bytes": 1}):  # type: ignore[arg-type]
            pass


@pytest.mark.parametrize("directory", [None, 5, b"./state"])
async def test_a_directory_that_is_no_path_is_refused(directory: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"the directory of a store must be text or a path.*Nothing was opened"):
        await shoal.open(directory)


async def test_a_near_miss_of_a_durability_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"got 'quorom'\. Did you mean 'quorum'\?"):
        async with shoal.open(tmp_path / "state", durability="quorom"):  # type: ignore[arg-type]
            pass


async def test_an_unknown_durability_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="durability must be memory, local, quorum or all; got 'disk'"):
        async with shoal.open(tmp_path / "state", durability="disk"):  # type: ignore[arg-type]
            pass
    assert not (tmp_path / "state").exists()
    async with shoal.open(tmp_path / "state"):
        pass


async def test_an_unknown_durability_is_refused_by_connect() -> None:
    with pytest.raises(InvalidConfig, match="durability"):
        async with shoal.connect("http://127.0.0.1:1", durability="disk"):  # type: ignore[arg-type]
            pass


async def test_the_address_of_a_node_is_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidConfig, match=r"'http://127.0.0.1:7400' is the address of a node.*shoal\.connect"):
        async with shoal.open("http://127.0.0.1:7400"):
            pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("urls", ["", "ftp://n1:7400", "http://", " , "])
async def test_urls_that_name_no_node_are_refused(urls: str) -> None:
    with pytest.raises(InvalidConfig):
        async with shoal.connect(urls):
            pass


async def test_a_directory_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match=r"Nothing was written|No store was made"):
        async with shoal.open(tmp_path / "file" / "state"):
            pass
    assert (tmp_path / "file").read_text() == "in the way"


async def test_a_newer_format_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state") as store:
        await store.space("s").counter("n").add(1)
    ours = (tmp_path / "state" / "FORMAT").read_text()
    (tmp_path / "state" / "FORMAT").write_text("shoal store, format 99\n")
    with pytest.raises(StoreTooNew, match="has format 99"):
        async with shoal.open(tmp_path / "state"):
            pass
    (tmp_path / "state" / "FORMAT").write_text(ours)
    async with shoal.open(tmp_path / "state") as store:
        assert await store.space("s").counter("n").value() == 1


async def test_a_cancelled_save_leaves_the_handle_and_the_store_usable(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state") as store:
        thread = store.space("s").thread("t")
        first = await thread.save({"n": 0})
        saving = asyncio.create_task(thread.save({"n": 1}))
        await asyncio.sleep(0)  # It has begun, and waits for its fsync.
        saving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saving
        # The handle stands where it last knew that it stood, and the cancelled save was made: it is not built on unseen.
        with pytest.raises(HeadMoved):
            await thread.save({"n": 2})
        found = await thread.load()
        assert (found.state, found.parents) == ({"n": 1}, (first.id,))
        assert (await thread.save({"n": 2})).parents == (found.id,)


async def test_saves_under_way_when_the_store_closes_are_durable_or_refused(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state") as store:
        counter = store.space("s").counter("n")
        adding = [asyncio.create_task(counter.add(1)) for _ in range(50)]
        await asyncio.sleep(0)
        adding += [asyncio.create_task(counter.add(1)) for _ in range(50)]
    outcomes = await asyncio.gather(*adding, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert all(isinstance(error, StoreClosed) and error.written == "no" for error in refused)
    assert len(outcomes) - len(refused) >= 50
    async with shoal.open(tmp_path / "state") as store:
        assert await store.space("s").counter("n").value() == len(outcomes) - len(refused)


async def test_an_exception_in_the_block_closes_the_store(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with shoal.open(tmp_path / "state"):
            _ = 1 / 0
    async with shoal.open(tmp_path / "state"):
        pass


async def test_closing_twice_is_allowed(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state") as store:
        await store.close()
        await store.close()
    async with shoal.open(tmp_path / "state"):
        pass


async def test_a_closed_store_refuses_with_a_typed_error(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state") as store:
        counter = store.space("s").counter("n")
        await counter.add(1)
    for call in (counter.add(1), counter.value(), store.status(), store.space("s").thread("t").load()):
        with pytest.raises(StoreClosed) as raised:
            await call
        assert not raised.value.retryable
    with pytest.raises(StoreClosed):
        await anext(store.space("s").watch())


async def test_an_opening_that_is_cancelled_frees_the_directory(tmp_path: Path) -> None:
    async def opened() -> None:
        async with shoal.open(tmp_path / "state"):
            raise AssertionError("it was cancelled before")

    opening = asyncio.create_task(opened())
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    async with shoal.open(tmp_path / "state"):
        pass


async def test_omitting_async_with_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match=r"no 'space'\. Write `async with shoal\.open\(…\) as store:`"):
        shoal.open(tmp_path / "state").space("crew")
    with pytest.raises(InvalidInput, match=r"`with shoal\.sync\.connect\(…\) as store:`"), shoal.connect("http://n1:1"):
        pass
    assert not (tmp_path / "state").exists()


def test_nothing_is_opened_before_a_store_is_entered(tmp_path: Path) -> None:
    opening: Any = shoal.open(tmp_path / "state")
    with pytest.raises(AttributeError, match="by itself opens nothing"):
        opening.space("crew")
    with pytest.raises(InvalidInput, match=r"needs `async with` or `await`\. Nothing was opened"), opening:
        pass
    assert not (tmp_path / "state").exists()
