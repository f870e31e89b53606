"""Deletions of counters, registers, sets, lists, maps, budgets and schemas.

A deletion ends the object's generation (`shoal.crdt.deletion`): what is written afterwards begins a new one. A write that was
made without knowledge of the deletion belongs to the generation that ended, and is deleted with it, even if it arrives later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from shoal.kinds.thread.requests import Deleted
from shoal.protocol.base import ObjectWrite
from shoal.protocol.declared import Action, Cli, Http, always, operation

__all__ = ["DeleteBudget", "DeleteCounter", "DeleteList", "DeleteMap", "DeleteRegister", "DeleteSchema", "DeleteSet"]

_Deletion = TypeVar("_Deletion", bound=type[ObjectWrite[Deleted]])


def _deletion(kind: str, name: str, action: Action | None = None) -> Callable[[_Deletion], _Deletion]:
    """Declare the deletion of an object of this kind. `name` is one for the example."""
    command = Cli(
        f"{kind} delete",
        f"shoal {kind} delete {name} --yes --data ./state",
        shows="existed",
        destroys=f"Delete {kind} {{{kind}}}",
    )
    http = Http("DELETE", f"/{kind}s/{{{kind}}}", f"Delete a {kind}")
    return operation(frees=True, removes=always, action=action, http=http, cli=command)


@_deletion("counter", "tokens")
class DeleteCounter(ObjectWrite[Deleted], array_like=True, frozen=True, tag="delete-counter"):
    """Delete a counter: it is 0, and the keys of its adds are forgotten."""

    counter: str


@_deletion("register", "goal")
class DeleteRegister(ObjectWrite[Deleted], array_like=True, frozen=True, tag="delete-register"):
    """Delete a register: it has no value."""

    register: str


@_deletion("set", "urls")
class DeleteSet(ObjectWrite[Deleted], array_like=True, frozen=True, tag="delete-set"):
    """Delete a set with all its members."""

    set: str


@_deletion("list", "plan")
class DeleteList(ObjectWrite[Deleted], array_like=True, frozen=True, tag="delete-list"):
    """Delete a list with all its elements."""

    list: str


@_deletion("map", "settings")
class DeleteMap(ObjectWrite[Deleted], array_like=True, frozen=True, tag="delete-map"):
    """Delete a map with all its entries."""

    map: str


@_deletion("budget", "dollars")
class DeleteBudget(ObjectWrite[Deleted], array_like=True, frozen=True, tag="delete-budget"):
    """Delete a budget: nothing is granted, and the rights of all nodes end.

    What others spend without knowing of the deletion is spent of the budget that was deleted, not of one that is granted later.
    """

    budget: str


@_deletion("schema", "plan", action="admin")
class DeleteSchema(ObjectWrite[Deleted], array_like=True, frozen=True, tag="delete-schema"):
    """Delete a schema with all its versions: it binds no thread any more.

    A save that names it is rejected until it is put again, with any content.
    """

    schema: str
