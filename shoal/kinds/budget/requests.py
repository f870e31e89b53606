"""Budgets: amounts that are granted, and spent by the nodes that have rights to them. Origins and nodes are 32 hex digits."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from shoal.errors import BudgetExhausted, RightsElsewhere
from shoal.protocol.base import (
    AtLeast,
    Cli,
    Deleted,
    Http,
    Named,
    ObjectRead,
    ObjectWrite,
    Positive,
    Reply,
    Shape,
    deletion,
    operation,
)

__all__ = [
    "BudgetConflict",
    "BudgetCourse",
    "BudgetPoint",
    "BudgetState",
    "DeleteBudget",
    "DrawRights",
    "Grant",
    "Granted",
    "Holder",
    "InheritRights",
    "ReadBudget",
    "ReadBudgetCourse",
    "ReleaseRights",
    "Rights",
    "Spend",
    "Spent",
    "TransferRights",
]


@operation(
    discloses=True,
    batch=True,
    http=Http(
        "POST",
        "/budgets/{budget}/grants",
        "Add to the amount that may be spent",
        ops=("grant",),
        example={"amount": 100, "key": "call-17"},
    ),
    cli=Cli(
        "budget grant",
        "shoal budget grant tokens 100000 --data ./state",
        shows="remaining",
        help="Add to the amount that may be spent, and print the amount left.",
    ),
)
class Grant(ObjectWrite["Granted"], array_like=True, frozen=True, tag="grant"):
    """Add to the amount that may be spent. Of all grants with one `key`, one counts."""

    budget: str
    amount: Positive
    key: str | None = None


class Granted(Reply, array_like=True, frozen=True, tag="granted"):
    """The amount that is left after a grant."""

    remaining: int
    granted: bool  # False if its key was used before.


@operation(
    discloses=True,
    action="append",
    batch=True,
    durable=True,  # If a crash undid it, the amount could be spent twice.
    http=Http(
        "POST",
        "/budgets/{budget}/spends",
        "Spend an amount, if enough is left",
        ops=("spend",),
        errors=(BudgetExhausted, RightsElsewhere),
        example={"amount": 100, "key": "call-17"},
    ),
    cli=Cli(
        "budget spend",
        "shoal budget spend tokens 512 --url http://127.0.0.1:7400",
        shows="remaining",
        help="Spend an amount, if enough is left, and print the amount left.",
    ),
)
class Spend(ObjectWrite["Spent"], array_like=True, frozen=True, tag="spend"):
    """Spend an amount that the serving node has rights to, or can get. Of all spends with one `key`, one counts."""

    budget: str
    amount: Positive
    key: str | None = None


class Spent(Reply, array_like=True, frozen=True, tag="spent"):
    """The amount that is left after a spend."""

    remaining: int  # As this node knows it.
    rights: int  # The part of it that this node may spend.
    spent: bool  # False if its key was used before.


@operation(
    discloses=True,
    http=Http(
        "POST",
        "/budgets/{budget}/draws",
        "Draw rights, so that the node may spend an amount alone",
        errors=(BudgetExhausted, RightsElsewhere),
        example={"amount": 100},
    ),
    cli=Cli(
        "budget draw",
        "shoal budget draw tokens 5000 --url http://127.0.0.1:7400",
        shows="rights",
        help="Draw rights, so that the node may spend an amount alone, and print the rights that it has.",
    ),
)
class DrawRights(ObjectWrite["Rights"], array_like=True, frozen=True, tag="draw-rights"):
    """Draw rights for the serving node, so that it may spend them alone.

    They come from earlier openings of its directory, and from the undrawn amount: the rights that are lacking,
    or the undrawn amount divided by `shares` if that is more. All owners must confirm before they count.
    """

    budget: str
    amount: Annotated[int, AtLeast(0)]  # The rights that the node shall have.
    shares: Annotated[int, Shape.INTERNAL] = 0
    reclaimed: Annotated[str, Named("reclaim")] = ""  # An origin that is gone for good, whose rights the node gets too.


@operation(
    discloses=True,
    http=Http(
        "POST",
        "/budgets/{budget}/releases",
        "Give rights of the node back",
        errors=(BudgetExhausted,),
        example={"amount": 50},
    ),
    cli=Cli(
        "budget release",
        "shoal budget release tokens 5000 --url http://127.0.0.1:7400",
        shows="rights",
        help="Give up to AMOUNT of the node's rights back, so that other nodes can draw them, and print what is left.",
    ),
)
class ReleaseRights(ObjectWrite["Rights"], array_like=True, frozen=True, tag="release-rights"):
    """Give rights of the serving node back, so that others can draw them.

    With `unsure`, these are the rights that it drew without all confirmations; else up to `amount` of the others.
    """

    budget: str
    amount: Positive
    unsure: Annotated[bool, Shape.INTERNAL] = False


@operation(discloses=True)
class TransferRights(ObjectWrite["Rights"], array_like=True, frozen=True, tag="transfer-rights"):
    """Give rights of the serving node to another node that asked for them. The reply says how many."""

    budget: str
    amount: int  # How many; all if it has fewer.
    to: str  # The origin that gets them.
    node: str  # The node of that origin.


@operation(discloses=True)
class InheritRights(ObjectWrite["Rights"], array_like=True, frozen=True, tag="inherit-rights"):
    """Gather the rights of removed directories in one account, if the node is their heir. The reply says how many."""

    budget: str


class Rights(Reply, array_like=True, frozen=True, tag="rights"):
    """The rights of the serving node."""

    moved: int
    rights: int  # The amount that the serving node may spend now.


@operation(
    multi_read=True,
    http=Http("GET", "/budgets/{budget}", "A budget: the amount left, and the rights to it", ops=("budget",)),
    cli=Cli("budget get", "shoal budget get tokens --data ./state"),
)
class ReadBudget(ObjectRead["BudgetState"], array_like=True, frozen=True, tag="read-budget"):
    """Read a budget. If nothing was granted, it is 0."""

    budget: str


class Holder(Struct, array_like=True, frozen=True):
    """An opening of a node that has rights."""

    origin: str
    node: str
    rights: int


class BudgetConflict(Struct, array_like=True, frozen=True):
    """A grant or a spend that does not count because another amount has its key."""

    what: str  # "grant" or "spend".
    key: str
    amount: int


class BudgetState(Reply, array_like=True, frozen=True, tag="budget-state"):
    """A budget, as the serving node knows it."""

    granted: int
    spent: int
    remaining: int
    pool: int  # The amount that no node has drawn.
    rights: int  # The amount that the serving node may spend.
    holders: list[Holder]  # The openings whose rights are not 0.
    conflicts: list[BudgetConflict]  # Grants and spends that do not count, because another amount has their key.


@operation(
    http=Http("GET", "/budgets/{budget}/course", "What was granted and spent over time, as this node saw it"),
    cli=Cli(
        "budget course",
        "shoal budget course tokens --url http://127.0.0.1:7400",
        rows="points",
        columns=("at_ms", "granted", "spent"),
    ),
)
class ReadBudgetCourse(ObjectRead["BudgetCourse"], array_like=True, frozen=True, tag="read-budget-course"):
    """Read what was granted and spent of a budget over time, as the serving node saw it since the budget came to it."""

    budget: str


class BudgetPoint(Struct, array_like=True, frozen=True):
    """All that was granted and spent by a time."""

    at_ms: int  # By the clock of the serving node.
    granted: int
    spent: int


class BudgetCourse(Reply, array_like=True, frozen=True, tag="budget-course"):
    """The course of a budget: each minute in which it changed; of a long one, less of what is long ago."""

    points: list[BudgetPoint]  # The oldest first; the last one is of now.


@deletion("budget", "dollars")
class DeleteBudget(ObjectWrite[Deleted], array_like=True, frozen=True, tag="delete-budget"):
    """Delete a budget: nothing is granted, and the rights of all nodes end.

    What others spend without knowing of the deletion is spent of the budget that was deleted, not of one that is granted later.
    """

    budget: str
