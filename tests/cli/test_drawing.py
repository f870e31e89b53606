"""A drawing shows the graph that was drawn, and nothing else: it is read back, sign by sign."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cli.commands.branches import ASCII, BOXES, Signs, drawn, newest_first

Graph = dict[int, list[int]]
Rows = list[tuple[str, int | None]]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Node → parents, all of which have greater numbers."""
    size = draw(st.integers(0, 14))
    return {
        node: draw(st.lists(st.integers(node + 1, size - 1), max_size=4, unique=True)) if node + 1 < size else []
        for node in range(size)
    }


def rows_of(graph: Graph, signs: Signs = BOXES) -> Rows:
    order: list[int] = newest_first(graph, lambda node: -node)
    rows = drawn(order, graph, signs)
    return [(row, node) for row, node in rows]


def read_back(rows: Rows) -> dict[int, set[int]]:
    """Each node's parents, found by following the lines down from it."""
    return {node: ends(rows, nth, row.index("*")) for nth, (row, node) in enumerate(rows) if node is not None}


def ends(rows: Rows, nth: int, column: int) -> set[int]:
    """The nodes at which the lines end that leave this place downwards."""
    if nth + 1 == len(rows):
        return set()
    row, node = rows[nth + 1]
    sign = row[column : column + 1]
    if sign == "*":
        assert node is not None
        return {node}
    if sign == "│":
        return ends(rows, nth + 1, column)
    if sign == "├":  # A hub: what parts from here goes down as well.
        parted = [at for at, turn in enumerate(row) if at > column and turn in "╮┬"]
        return set().union(*(ends(rows, nth + 1, at) for at in [column, *parted]))
    if sign in ("╯", "┴"):  # It joins the hub of its row.
        return ends(rows, nth + 1, row.index("├"))
    assert sign in ("", " ", "─", "╮", "┬"), sign  # No line was here.
    return set()


@given(graphs())
def test_the_drawing_is_read_back_into_the_graph(graph: Graph) -> None:
    assert read_back(rows_of(graph)) == {node: set(parents) for node, parents in graph.items()}


@given(graphs())
def test_both_kinds_of_signs_draw_the_same(graph: Graph) -> None:
    same = str.maketrans({"│": "|", "├": "|", "─": "-", "╮": ".", "┬": ".", "╯": "'", "┴": "'"})
    assert [(row.translate(same), node) for row, node in rows_of(graph)] == rows_of(graph, ASCII)


@given(graphs())
def test_every_node_is_drawn_once_and_before_its_parents(graph: Graph) -> None:
    order = [node for _, node in rows_of(graph) if node is not None]
    assert sorted(order) == sorted(graph)
    assert all(order.index(node) < order.index(parent) for node in graph for parent in graph[node])


@given(graphs())
def test_there_are_at_most_two_rows_between_nodes(graph: Graph) -> None:
    between = "".join("*" if node is not None else "-" for _, node in rows_of(graph))
    assert "---" not in between


@given(graphs(), st.integers(0, 14))
def test_parents_that_are_left_out_are_not_drawn(graph: Graph, left: int) -> None:
    part = {node: parents for node, parents in graph.items() if node < left}
    drawn_part = {node: {parent for parent in parents if parent < left} for node, parents in part.items()}
    assert read_back(rows_of(part)) == drawn_part


def test_of_nodes_that_may_come_next_the_newest_is_first() -> None:
    assert newest_first({"a": ["r"], "b": ["r"], "r": []}, {"a": 1, "b": 2, "r": 9}.__getitem__) == ["b", "a", "r"]


@pytest.mark.parametrize(
    ("graph", "picture"),
    [
        ({}, []),
        ({0: [1], 1: []}, ["*", "*"]),
        ({0: [1, 2], 1: [3], 2: [3], 3: []}, ["*", "├─╮", "* │", "│ *", "├─╯", "*"]),
        ({0: [1, 2, 3], 1: [4], 2: [4], 3: [4], 4: []}, ["*", "├─┬─╮", "* │ │", "│ * │", "│ │ *", "├─┴─╯", "*"]),
        ({0: [3], 1: [2], 2: [], 3: []}, ["*", "│ *", "│ *", "*"]),
        ({0: [2], 1: [3, 4], 2: [4], 3: [4], 4: []}, ["*", "│ *", "│ ├─╮", "* │ │", "│ * │", "├─┴─╯", "*"]),
    ],
    ids=["nothing", "a line", "a merge", "an octopus", "two lines", "a fork"],
)
def test_it_looks_like_a_graph(graph: Graph, picture: list[str]) -> None:
    assert shapes(rows_of(graph)) == picture


def shapes(rows: Iterable[tuple[str, int | None]]) -> list[str]:
    return [row for row, _ in rows]


def test_columns_are_used_again() -> None:
    parents: dict[str, list[str]] = {"0": []}
    for nth in range(1, 9):
        parents |= {f"side {nth}": [str(nth - 1)], str(nth): [str(nth - 1), f"side {nth}"]}
    rows = [row for row, _ in drawn(list(parents)[::-1], parents, ASCII)]
    assert max(map(len, rows)) == len("| *")
