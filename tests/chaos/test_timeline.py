from __future__ import annotations

from chaos.timeline import Timeline


def test_the_first_write_that_was_sent_and_acknowledged_after_a_strike_counts() -> None:
    timeline = Timeline()
    for sent_s, at_s in ((0.9, 1.0), (1.9, 2.1), (1.5, 3.0), (4.0, 4.5)):
        timeline.acknowledged(at_s, sent_s=sent_s)
    assert timeline.idle_s(2.0) == 2.5
    assert timeline.idle_s(0.5) == 0.5
    assert timeline.idle_s(4.5) is None


def test_an_agent_is_where_it_was_seen_last_before() -> None:
    timeline = Timeline()
    assert (timeline.node, timeline.node_at(9.0)) == ("", "")
    timeline.on("n1", 1.0)
    timeline.on("n2", 3.0)
    assert [timeline.node_at(at_s) for at_s in (0.5, 1.0, 2.9, 3.0)] == ["", "n1", "n1", "n2"]
    assert timeline.node == "n2"
