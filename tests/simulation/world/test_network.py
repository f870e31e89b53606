"""Who reaches whom, and in what weather."""

from __future__ import annotations

from random import Random

from simulation.plan import Weather
from simulation.world.network import CLIENT, Network

ENDS = "n1", "n2"


class Told:
    """A line that remembers what it was told."""

    def __init__(self, source: str, target: str) -> None:
        self.ends = (source, target)
        self.told: list[str] = []

    def silenced(self, paused: str | None, /) -> None:
        self.told.append(f"silent for {paused}")

    def flow(self) -> None:
        self.told.append("flow")


def network() -> Network:
    return Network(lambda: 0.0)


def test_a_cut_of_one_direction_leaves_the_other_open() -> None:
    net = network()
    with net.cut(["n1"], ["n2"], both=False):
        assert net.passage("n1", "n2") == "lost"
        assert net.passage("n2", "n1") == "open"
        assert not net.both_open("n1", "n2")


def test_a_cut_of_both_directions_is_over_when_it_is_over() -> None:
    net = network()
    with net.cut(["n1"], ["n2", "n3"], both=True):
        assert {net.passage("n1", "n2"), net.passage("n2", "n1"), net.passage("n3", "n1")} == {"lost"}
        assert net.both_open("n2", "n3")
    assert net.both_open("n1", "n2")


def test_a_bridge_reaches_both_sides() -> None:
    net = network()
    with net.cut(["n1"], ["n3"], both=True):
        assert net.both_open("n1", "n2")
        assert net.both_open("n2", "n3")
        assert not net.both_open("n1", "n3")


def test_the_end_of_one_cut_does_not_mend_another() -> None:
    net = network()
    with net.cut(["n1"], ["n2"], both=True):
        with net.cut(["n1"], ["n2"], both=False):
            pass
        assert net.passage("n1", "n2") == "lost"


def test_a_node_in_both_groups_still_hears_itself() -> None:
    net = network()
    with net.cut(["n1", "n2"], ["n1", "n2"], both=True):
        assert net.passage("n1", "n1") == "open"


def test_messages_to_a_paused_machine_are_held() -> None:
    net = network()
    with net.paused("n2"):
        assert net.passage("n1", "n2") == net.passage("n2", CLIENT) == "held"
        assert net.passage("n1", "n3") == "open"
    assert net.passage("n1", "n2") == "open"


def test_only_the_lines_between_the_two_are_told_of_a_cut() -> None:
    net = network()
    between, back, elsewhere = Told("n1", "n2"), Told("n2", "n1"), Told("n1", "n3")
    for line in (between, back, elsewhere):
        net.add(line)
    with net.cut(["n1"], ["n2"], both=False):
        pass
    assert between.told == back.told == ["silent for None", "flow"]
    assert elsewhere.told == []


def test_all_lines_of_a_machine_are_told_of_its_pause() -> None:
    net = network()
    to, of, elsewhere = Told("n1", "n2"), Told("n2", CLIENT), Told("n1", "n3")
    for line in (to, of, elsewhere):
        net.add(line)
    with net.paused("n2"):
        pass
    assert to.told == of.told == ["silent for n2", "flow"]
    assert elsewhere.told == []


def test_a_line_that_was_removed_is_told_nothing() -> None:
    net = network()
    line = Told("n1", "n2")
    number = net.add(line)
    net.remove(number)
    net.remove(number)
    with net.paused("n2"):
        pass
    assert line.told == []


def test_fine_weather_loses_repeats_and_reorders_nothing() -> None:
    net, random = network(), Random(1)
    assert not any(
        net.is_lost(random, ENDS, 1) or net.is_duplicated(random, ENDS) or net.is_overtaken(random, ENDS) for _ in range(100)
    )


def test_weather_does_what_it_says_as_long_as_it_lasts() -> None:
    net, random = network(), Random(1)
    with net.weather(Weather(at=0, loss=1, duplicate=1, reorder=1, delay_s=10)):
        assert net.is_lost(random, ENDS, 1)
        assert net.is_duplicated(random, ENDS)
        assert net.is_overtaken(random, ENDS)
        assert max(net.delay_s(random, ENDS) for _ in range(20)) > 1
    assert not net.is_lost(random, ENDS, 1)
    assert net.delay_s(random, ENDS) < 1


def test_weather_between_some_machines_does_not_touch_the_others_nor_the_way_back() -> None:
    net, random = network(), Random(1)
    with net.weather(Weather(at=0, loss=1, sources=["n1"], targets=["n2"])):
        assert net.is_lost(random, ENDS, 1)
        assert not net.is_lost(random, ("n2", "n1"), 1)
        assert not net.is_lost(random, ("n1", "n3"), 1)


def test_where_large_messages_are_lost_small_ones_pass() -> None:
    net, random = network(), Random(1)
    with net.weather(Weather(at=0, loss=1, over_bytes=100)):
        assert net.is_lost(random, ENDS, 101)
        assert not net.is_lost(random, ENDS, 100)
