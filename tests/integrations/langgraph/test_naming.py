from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.integrations.langgraph.encoding import branch_of, id_of, label_of, name_of, prefix_of, split_label
from shoal.names import check_name

ids = st.text(st.characters(), max_size=12) | st.text("./%{}\x00\x85\ud800a", max_size=8)
HOSTILE = ["", ".", "..", "%", "%2e", "%%", "a/b", "\x00", "\ud800", "x' OR 1=1 --", "*", "main", "é\x85"]


@given(ids)
@example("")
@example("..")
def test_a_name_is_legal_and_gives_its_id_back(id: str) -> None:
    assert check_name("thread", name_of(id)) == name_of(id)
    assert id_of(name_of(id)) == id


@given(ids, ids)
def test_a_label_is_legal_and_gives_both_parts_back(namespace: str, id: str) -> None:
    label = label_of(namespace, id)
    check_name("label", label)
    assert split_label(label) == (namespace, id)
    assert label.startswith(prefix_of(namespace))


@pytest.mark.answers("injection-through-an-id")
@given(ids, ids, ids)
def test_a_namespaces_prefix_finds_no_other_namespaces_labels(namespace: str, other: str, id: str) -> None:
    assert label_of(other, id).startswith(prefix_of(namespace)) == (other == namespace)


def test_no_two_ids_share_a_name_or_a_branch() -> None:
    assert len({name_of(id) for id in HOSTILE}) == len(HOSTILE)
    branches = [branch_of(id) for id in HOSTILE]
    assert len(set(branches)) == len(HOSTILE)
    assert branch_of("") == "main"
    for branch in branches:
        check_name("branch", branch)


def test_labels_lie_in_the_order_of_the_ids() -> None:
    times = ["1ef4f797-8335-6428-8001-8a1503f9b875", "1ef4f797-8335-6428-8002-8a1503f9b875", "1f", "é"]
    assert sorted(label_of("", id) for id in times) == [label_of("", id) for id in times]


def test_a_label_of_somebody_else_is_none_of_ours() -> None:
    assert split_label("before-deploy") is None
