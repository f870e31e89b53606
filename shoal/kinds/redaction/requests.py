"""Redaction of a space: its rules as a node keeps them, and what they replaced in a write, or would replace in a text."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct, field

from shoal.protocol.base import Elements, Http, Natural, Read, Reply, Shape, operation

__all__ = ["ReadRedaction", "RedactionPattern", "RedactionRules", "RedactionTried", "Replaced", "TryRedaction"]


class Replaced(Struct, array_like=True, frozen=True):
    """The replacements at one place of a write by one rule. What stood there is not kept."""

    path: str  # A JSON pointer into the write; "…" for all places beyond those that are told one by one.
    rule: str  # The name of the pattern or the hook; `credentials` and `cards` are built in.
    count: int


@operation(family="thread", http=Http("GET", "/redaction", "A space's rules of redaction, and what a node did by them"))
class ReadRedaction(Read["RedactionRules"], array_like=True, frozen=True, tag="read-redaction"):
    """Read a space's rules of redaction as the serving node knows them, and what it has replaced by them."""

    space: str


class RedactionPattern(Struct, array_like=True, frozen=True):
    """A regular expression in RE2's syntax, and the text that stands in the place of its matches."""

    name: str  # Under which its replacements are told.
    regex: str  # In RE2's syntax.
    replace: str  # Stands in the place of each match.
    numbers: bool = False  # Whether numbers are looked at too, as their decimal digits.


class RedactionRules(Reply, array_like=True, frozen=True, tag="redaction-rules"):
    """The rules of a space, and what one node has done by the rules of all spaces since it started."""

    space: str
    credentials: bool = False  # Whether keys and tokens of known services are replaced.
    cards: bool = False  # Whether numbers of payment cards are replaced.
    patterns: list[RedactionPattern] = field(default_factory=list)  # Regular expressions, in the order in which they run.
    hooks: list[str] = field(default_factory=list)  # Hooks of the nodes, which are asked in this order.
    files: bool = False  # Whether files are taken, which nothing looks into.
    wall_ms: Annotated[int, Shape.MOMENT] = 0  # When they were set.
    rivals: int = 0  # How many others were set concurrently, and hold as well.
    trouble: str = ""  # Why nothing can be written in the space at this node, for people; else empty.
    replaced: Natural = 0  # Places in writes at this node.
    refused: Natural = 0  # Writes at this node.
    is_empty: bool = False  # Whether nothing is in it: check its name. What was set holds once something is written there.


@operation(family="thread")
class TryRedaction(Read["RedactionTried"], array_like=True, frozen=True, tag="try-redaction"):
    """Say what rules would replace in texts. Nothing is written, and no hook is asked.

    Raises InvalidInput if the rules cannot be kept.
    """

    space: str
    texts: Elements[str]  # Each is looked at by itself.
    rules: bytes | None = None  # A packed record. None: the rules of the space.


class RedactionTried(Reply, array_like=True, frozen=True, tag="redaction-tried"):
    """Texts as they would be stored."""

    texts: list[str]  # In the order in which they were given.
    replaced: list[Replaced] = field(default_factory=list)  # The path of each is the place of the text.
