"""Budgets: amounts that are granted, and spent by whoever has the rights to it. An origin and a node are 32 hex digits."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from shoal.errors import BudgetExhausted, RightsElsewhere
from shoal.protocol.fields import AtLeast, Named, Positive, Shape
from shoal.protocol.requests.base import ObjectRead, ObjectWrite, Reply
from shoal.protocol.requests.declared import Cli, Http, operation

__all__ = [
    "BudgetConflict",
    "BudgetState",
    "DrawRights",
    "Grant",
    "Granted",
    "Holder",
    "ReadBudget",
    "ReleaseRights",
    "Rights",
    "Spend",
    "Spent",
    "TransferRights",
]


@operation(
    batch=True,
    http=Http(
        "POST",
        "/budgets/{budget}/grants",
        "Add to what may be spent",
        ops=("grant",),
        example={"amount": 100, "key": "call-17"},
    ),
    cli=[
        Cli(
            "budget grant",
            "Add to what may be spent, and print what is left.",
            "shoal budget grant tokens 100000 --data ./state",
            shows="remaining",
            arguments=("amount",),
            options=("key",),
        )
    ],
)
class Grant(ObjectWrite["Granted"], array_like=True, frozen=True, tag="grant"):
    """Add to what may be spent. `key`: of all grants with one key, one counts."""

    budget: str
    amount: Positive
    key: str | None = None


class Granted(Reply, array_like=True, frozen=True, tag="granted"):
    remaining: int
    granted: bool  # False: its key was there already.


@operation(
    batch=True,
    durable=True,  # A crash that took it back would let it be spent twice.
    http=Http(
        "POST",
        "/budgets/{budget}/spends",
        "Spend, if there is as much",
        ops=("spend",),
        errors=(BudgetExhausted, RightsElsewhere),
        example={"amount": 100, "key": "call-17"},
    ),
    cli=[
        Cli(
            "budget spend",
            "Spend, if there is as much, and print what is left.",
            "shoal budget spend tokens 512 --url http://127.0.0.1:7400",
            shows="remaining",
            arguments=("amount",),
            options=("key",),
        )
    ],
)
class Spend(ObjectWrite["Spent"], array_like=True, frozen=True, tag="spend"):
    """Spend what the serving node has rights to, or can get. `key`: as of a grant."""

    budget: str
    amount: Positive
    key: str | None = None


class Spent(Reply, array_like=True, frozen=True, tag="spent"):
    remaining: int  # As this node knows it.
    rights: int  # What of that this node may spend.
    spent: bool  # False: its key was there already.


@operation(
    http=Http(
        "POST",
        "/budgets/{budget}/draws",
        "See that the node may spend so much alone",
        errors=(BudgetExhausted, RightsElsewhere),
        example={"amount": 100},
    ),
    cli=[
        Cli(
            "budget draw",
            "See that the node may spend so much alone, and print what it may.",
            "shoal budget draw tokens 5000 --url http://127.0.0.1:7400",
            shows="rights",
            arguments=("amount",),
            options=("reclaimed",),
        )
    ],
)
class DrawRights(ObjectWrite["Rights"], array_like=True, frozen=True, tag="draw-rights"):
    """Take rights to the serving node, so that it may spend them alone.

    They come from earlier openings of its directory, and from what nobody has drawn: what is lacking,
    or one of so many `shares` of it if that is more. Every owner has to be heard before they count.
    """

    budget: str
    amount: Annotated[int, AtLeast(0)]  # Rights that the node is to have.
    shares: Annotated[int, Shape.INTERNAL] = 0
    reclaimed: Annotated[str, Named("reclaim")] = ""  # An origin that is gone for good: its rights come too.


@operation(
    http=Http(
        "POST",
        "/budgets/{budget}/releases",
        "Put rights of the node back",
        errors=(BudgetExhausted,),
        example={"amount": 50},
    ),
    cli=[
        Cli(
            "budget release",
            "Give up to AMOUNT of the node's rights back, so that other nodes can draw them, and print what is left.",
            "shoal budget release tokens 5000 --url http://127.0.0.1:7400",
            shows="rights",
            arguments=("amount",),
        )
    ],
)
class ReleaseRights(ObjectWrite["Rights"], array_like=True, frozen=True, tag="release-rights"):
    """Put rights of the serving node back, so that others can draw them.

    With `unsure` it is those that it drew and could not make sure of, else up to `amount` of the others.
    """

    budget: str
    amount: Positive
    unsure: Annotated[bool, Shape.INTERNAL] = False


class TransferRights(ObjectWrite["Rights"], array_like=True, frozen=True, tag="transfer-rights"):
    """Give rights of the serving node to another, which asked for them. The reply says how many."""

    budget: str
    amount: int  # So many, or all if it has fewer.
    to: str  # An origin,
    node: str  # and whose that is.


class Rights(Reply, array_like=True, frozen=True, tag="rights"):
    moved: int
    rights: int  # That the serving node may spend now.


@operation(
    multi_read=True, http=Http("GET", "/budgets/{budget}", "A budget: what is left, and who may spend it", ops=("budget",))
)
class ReadBudget(ObjectRead["BudgetState"], array_like=True, frozen=True, tag="read-budget"):
    """Read a budget. If nothing was granted, it is 0."""

    budget: str


class Holder(Struct, array_like=True, frozen=True):
    """Who has rights: one opening of a node."""

    origin: str
    node: str
    rights: int


class BudgetConflict(Struct, array_like=True, frozen=True):
    """A grant or a spend that does not count because another amount has its key."""

    what: str  # "grant" or "spend".
    key: str
    amount: int


class BudgetState(Reply, array_like=True, frozen=True, tag="budget-state"):
    granted: int
    spent: int
    remaining: int
    pool: int  # What nobody has drawn.
    rights: int  # What the serving node may spend.
    holders: list[Holder]  # Those whose rights are not 0.
    conflicts: list[BudgetConflict]  # Those that do not count, because another amount has their key.
