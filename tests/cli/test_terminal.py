"""Tables, colours, ages and sizes: on a terminal, at two widths and without colour, and never in a pipe."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal.cli import output
from shoal.cli.output import ago, size
from tests.cli.test_commands import CREW, lines
from tests.terminal import SIZES, Shown, shoal_in_terminal

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A crew of threads: one forked, one that waits for a human, one that is paused, and one with a name to trip over."""
    directory = tmp_path_factory.mktemp("people") / "state"
    with shoal.sync.open(directory) as store:
        crew = store.space("crew")
        forked, other = crew.thread("forked"), crew.thread("forked")
        first = forked.save({"n": 0}, metadata={"at": "asked"}, label="start")
        other.load()
        forked.save({"n": 1})
        other.save({"n": 2}, on_conflict="fork")
        forked.branch("what-if", at=first.id)
        forked.journal.append({"paid": 5}, key="order-1")
        crew.thread("[bold]tricky").save({"text": "a\x1b[2Jb"})
        crew.thread("ticket").save({"n": 1})
        crew.thread("ticket").request_approval("a refund of 120?", by="agent")
        crew.thread("stopped").pause("too dear", by="ana")
        crew.thread("long/" + "name-" * 20).save({"n": 1})
    return str(directory)


@cache  # These commands change nothing, and several tests look at the same picture.
def shown(*arguments: str, data: str, columns: int = 80, **environment: str) -> Shown:
    found = shoal_in_terminal(*arguments, "--data", data, *CREW, columns=columns, environment=environment)
    assert found.code == 0, found.text
    return found


COMMANDS = [["threads"], ["graph", "forked"], ["log", "forked"], ["audit", "thread", "forked"]]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_terminal_gets_colour_unless_it_asks_for_none(data: str, command: list[str]) -> None:
    assert shown(*command, data=data).is_coloured
    assert not shown(*command, data=data, NO_COLOR="1").is_coloured
    assert "\x1b" not in shown(*command, data=data, TERM="dumb").raw


@pytest.mark.parametrize("columns", SIZES)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_nothing_is_wider_than_the_terminal(data: str, command: list[str], columns: int) -> None:
    assert max(map(len, shown(*command, data=data, columns=columns).lines)) <= columns


def test_threads_show_status_head_age_and_what_is_asked_of_whom(data: str) -> None:
    rows = shown("threads", data=data, columns=200).lines
    assert rows[0].split() == ["thread", "status", "head", "saved", "asks"]
    told = {row.split()[0]: row for row in rows[1:]}
    assert "running" in told["forked"]
    assert " +1 " in told["forked"]
    assert " ago" in told["forked"] or " now" in told["forked"]
    assert told["ticket"].rstrip().endswith("approval: a refund of 120? (asked by agent)")
    assert told["stopped"].rstrip().endswith("pause: too dear (by ana)")


def test_no_name_is_markup_and_none_is_cut(data: str) -> None:
    text = shown("threads", data=data, columns=80).text
    assert "[bold]tricky" in text
    assert "…" not in text
    assert "name-" * 20 in text.replace("\n", "").replace(" ", "") or text.count("name-") >= 15


def test_a_stored_value_cannot_move_the_cursor(data: str) -> None:
    raw = shown("show", "[bold]tricky", data=data).raw
    assert "\x1b[2J" not in raw
    assert "\\u001b[2J" in shown("show", "[bold]tricky", data=data, NO_COLOR="1").text


def test_a_graph_shows_branches_forks_and_labels(data: str) -> None:
    rows = shown("graph", "forked", data=data, columns=200).lines
    assert [row.split()[0] for row in rows] == ["*", "│", "├─╯", "*"]
    assert "(main)" in rows[0]
    assert "(main)" in rows[1]
    assert "(what-if)" in rows[3]
    assert "label start" in rows[3]
    assert '{"at": "asked"}' in rows[3]


def test_a_pipe_gets_whole_ids_and_plain_signs(data: str) -> None:
    rows = lines("graph", "forked", "--data", data, *CREW)
    assert [row[: row.index(next(c for c in row if c.isalnum()))].strip() if "'" not in row else "|-'" for row in rows] == [
        *("*", "| *", "|-'", "*")
    ]
    found = [json.loads(row) for row in lines("graph", "forked", "--json", "--data", data, *CREW)]
    assert [each["id"] in rows[nth] for each, nth in zip(found, (0, 1, 3), strict=True)] == [True] * 3


def test_a_graph_that_is_cut_says_so(data: str) -> None:
    assert (
        "shoal: older checkpoints are left out; --limit 20 shows more." in shown("graph", "forked", "-n", "2", data=data).lines
    )


def test_a_pipe_gets_names_and_with_long_all_of_it(data: str) -> None:
    names = lines("threads", "--data", data, *CREW)
    assert "ticket" in names
    assert next(row for row in lines("threads", "--long", "--data", data, *CREW) if row.startswith("stopped ")) == (
        "stopped  paused  -  -  pause: too dear (by ana)"
    )
    documents = [json.loads(row) for row in lines("threads", "--long", "--json", "--data", data, *CREW)]
    assert [each["thread"] for each in documents] == names
    assert len(next(each for each in documents if each["thread"] == "forked")["heads"]) == 2


def test_status_shows_sizes_and_ages_to_people_only(data: str) -> None:
    assert "KiB" in shoal_in_terminal("status", "--data", data).text
    (bytes_on_disk,) = [row.split()[-1] for row in lines("status", "--data", data) if row.startswith("bytes on disk")]
    assert bytes_on_disk.isdigit()


@pytest.mark.parametrize("command", [["map", "list"], ["items", "search"], ["steps", "forked"]], ids=" ".join)
def test_empty_listings_say_so(data: str, command: list[str]) -> None:
    assert shown(*command, data=data).text.startswith("shoal: ")
    assert lines(*command, "--json", "--data", data, *CREW) == []


@pytest.mark.parametrize(
    ("back", "told"),
    [
        (timedelta(milliseconds=400), "now"),
        (timedelta(seconds=59), "59 s ago"),
        (timedelta(seconds=60), "1 min ago"),
        (timedelta(minutes=59, seconds=59), "59 min ago"),
        (timedelta(hours=1), "1 h ago"),
        (timedelta(days=1), "1 d ago"),
        (timedelta(days=29, hours=23), "29 d ago"),
        (timedelta(days=30), "2026-01-30"),
        (-timedelta(minutes=3), "in 3 min"),
        (-timedelta(days=60), "2026-04-30"),
    ],
)
def test_an_age_is_told_in_its_largest_unit(back: timedelta, told: str) -> None:
    assert ago(NOW - back, now=NOW) == told


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1048575, "1.0 MiB"),
        (5 * 2**30, "5.0 GiB"),
        (2**60, "1048576.0 TiB"),
    ],
)
def test_a_size_is_told_in_its_largest_unit(count: int, told: str) -> None:
    assert size(count) == told


@given(st.integers(1024, 1 << 50))
def test_a_size_is_right_to_a_tenth(count: int) -> None:
    number, unit = size(count).split()
    factor = 1024 ** ["B", "KiB", "MiB", "GiB", "TiB"].index(unit)
    assert abs(float(number) - count / factor) <= 0.051


def test_verify_takes_the_directory_as_other_commands_do(data: str) -> None:
    assert lines("verify", "--data", data)[-1] == "sound"


def test_a_long_listing_is_shown_as_it_comes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setattr(output, "_ROWS_MAX", 2)
    with output.Listing("name", json=False) as rows:
        rows.add({}, "", "one")
        assert capsys.readouterr().out == ""
        rows.add({}, "", "two")
        assert "two" in capsys.readouterr().out
        rows.add({}, "", "three")
    assert "three" in capsys.readouterr().out
