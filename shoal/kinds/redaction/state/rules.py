"""The rules of redaction of a space, as they are recorded.

Laws:
- A record is whole, for one space. Of records that were set concurrently all hold: what one of them replaces is replaced,
  and files are taken only if all of them take files.
- A record that cannot be read, or that says what this version does not know, is a trouble: then nothing is written in its
  space, because what it would replace is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

from shoal import values
from shoal.errors import ShoalError
from shoal.records import NamedTuple

RULES = "redaction"
"""The map of the space `RESERVED` with the records."""
PATTERNS_MAX = 32  # Of one record.
PATTERN_BYTES_MAX = 1024  # Of one.
REPLACE_BYTES_MAX = 256
TRIED_BYTES_MAX = 128 * 1024  # Of rules that are tried before they are set: they are read in one step.
NAME_BYTES_MAX = 64
HOOKS_MAX = 4
CREDENTIALS, CARDS = "credentials", "cards"
"""The names under which what the built-in rules replace is reported."""


class Pattern(NamedTuple):
    """A regular expression, and the text that stands in the place of each of its matches."""

    name: str
    regex: str  # In RE2's syntax.
    replace: str
    numbers: bool = False  # Whether numbers are looked at too, as their decimal digits.


class Rules(NamedTuple):
    """The rules of one space."""

    space: str
    credentials: bool = False  # Keys and tokens of known services, private keys, passwords in URLs.
    cards: bool = False  # Numbers of payment cards, by their first digits and check digit; also as numbers.
    patterns: tuple[Pattern, ...] = ()
    hooks: tuple[str, ...] = ()  # Names of hooks of the nodes, in the order in which they are asked.
    files: bool = False  # Whether files are taken, which nothing looks into.
    wall_ms: int = 0  # When they were set, by the clock of the node that did it.
    rivals: int = 0  # How many others were set concurrently, and hold as well.
    trouble: str = ""  # What is wrong with a record: then nothing is written.

    @property
    def is_empty(self) -> bool:
        """Whether they replace nothing."""
        return not (self.credentials or self.cards or self.patterns or self.hooks)


# Each is written for what it must not miss: a text that only looks like a key is replaced, too. Texts in JSON have their line
# ends as `\n`, so a private key is whatever stands between its lines; one without an end goes on to the end of the text.
CREDENTIAL_PATTERNS: Sequence[str] = (
    r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b",
    r"(?i)aws_?secret_?access_?key[\"'\\\s:=]{1,8}[A-Za-z0-9/+=]{40}",
    r"gh[pousr]_[A-Za-z0-9]{30,255}",
    r"github_pat_[A-Za-z0-9_]{22,255}",
    r"glpat-[A-Za-z0-9_-]{20,255}",
    r"\bsk-[A-Za-z0-9_-]{20,255}",
    r"AIza[A-Za-z0-9_-]{35}",
    r"xox[abeoprs]-[A-Za-z0-9-]{10,255}",
    r"https://hooks\.slack\.com/services/[A-Za-z0-9/_-]{20,128}",
    r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,255}",
    r"\bnpm_[A-Za-z0-9]{36}",
    r"pypi-[A-Za-z0-9_-]{50,500}",
    r"\bhf_[A-Za-z0-9]{30,64}",
    r"SG\.[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,64}",
    r"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",
    r"(?s)-----BEGIN [A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?-----|\z)",
    r"(?i)authorization[\"'\\]{0,4}\s{0,4}[:=]\s{0,4}[\"'\\]{0,4}(?:bearer|basic|token)\s{1,4}[A-Za-z0-9._~+/=-]{8,}",
    r"\b[a-zA-Z][a-zA-Z0-9+.-]{1,20}://[^\s/:@\"'\\]{0,128}:[^\s/@\"'\\]{1,256}@",
)


def key_of(space: str) -> str:
    """The key of a space's record in the map: a name may be longer than a key."""
    return sha256(space.encode()).hexdigest()


def packed(rules: Rules) -> bytes:
    """A record."""
    record: dict[str, Any] = {"space": rules.space}
    record |= {name: True for name in ("credentials", "cards", "files") if getattr(rules, name)}
    if rules.patterns:
        record["patterns"] = [
            {"name": each.name, "regex": each.regex, "replace": each.replace} | ({"numbers": True} if each.numbers else {})
            for each in rules.patterns
        ]
    return values.encode(record | ({"hooks": list(rules.hooks)} if rules.hooks else {}))


def read(space: str, records: Sequence[tuple[bytes, int]]) -> Rules:
    """The rules of a space, from its concurrent records and their times."""
    return _together(space, [_parsed(space, record, wall_ms) for record, wall_ms in records])


def _parsed(space: str, record: bytes, wall_ms: int) -> Rules:
    try:
        told = values.decode(record)
    except ShoalError:
        told = None
    if not isinstance(told, dict) or told.pop("space", None) != space:
        return Rules(space, wall_ms=wall_ms, trouble="a record cannot be read")
    flags = {name: told.pop(name, False) for name in ("credentials", "cards", "files")}
    patterns, hooks = _patterns(told.pop("patterns", [])), told.pop("hooks", [])
    wrong = [*map(str, told), *(name for name, flag in flags.items() if not isinstance(flag, bool))]
    wrong += ["patterns"] if patterns is None else []
    wrong += [] if isinstance(hooks, list) and all(isinstance(each, str) for each in hooks) else ["hooks"]
    if wrong or patterns is None:
        return Rules(space, wall_ms=wall_ms, trouble=f"a record has no meaning here for {', '.join(sorted(wrong))[:200]}")
    return Rules(space, patterns=tuple(patterns), hooks=tuple(hooks), wall_ms=wall_ms, **flags)


def _patterns(told: Any) -> list[Pattern] | None:
    if not isinstance(told, list):
        return None
    found = []
    for each in told:
        if not isinstance(each, dict) or each.keys() - {"name", "regex", "replace", "numbers"}:
            return None
        name, regex, replace, numbers = each.get("name"), each.get("regex"), each.get("replace"), each.get("numbers", False)
        if not isinstance(name, str) or not isinstance(regex, str) or not isinstance(replace, str):
            return None
        if not isinstance(numbers, bool):
            return None
        found.append(Pattern(name, regex, replace, numbers))
    return found


def _together(space: str, found: Sequence[Rules]) -> Rules:
    """The rules that replace what any of these replaces."""
    if not found:
        return Rules(space)
    wall_ms = max(each.wall_ms for each in found)
    if trouble := next((each.trouble for each in found if each.trouble), ""):
        return Rules(space, wall_ms=wall_ms, trouble=trouble)
    return Rules(
        space,
        any(each.credentials for each in found),
        any(each.cards for each in found),
        tuple(dict.fromkeys(pattern for each in found for pattern in each.patterns)),
        tuple(dict.fromkeys(hook for each in found for hook in each.hooks)),
        all(each.files for each in found),
        wall_ms,
        len(found) - 1,
    )


# ── numbers of cards ──────────────────────────────────────────────────────────

CARD_CANDIDATE = r"\d(?:[ -]?\d){12,}"
_LENGTHS = range(13, 20)


def cards_in(candidate: bytes) -> Iterable[tuple[int, int]]:
    """The parts of a run of digits, with single spaces or hyphens between them, that are numbers of cards.

    A part begins and ends where the run or a group of digits does, so that a long number holds none by chance.
    """
    starts = [0, *(at + 1 for at, octet in enumerate(candidate) if octet in b" -")]
    ends = [*(at - 1 for at in starts[1:]), len(candidate)]
    done = 0
    for first, start in enumerate(starts):
        if start < done:
            continue
        for end in reversed(ends[first : first + 19]):
            digits = candidate[start:end].translate(None, b" -")
            if len(digits) in _LENGTHS and _is_card(digits):
                yield start, end
                done = end
                break


def _is_card(digits: bytes) -> bool:
    first, four = digits[0] - 48, int(digits[:4])
    is_issued = (
        first == 4
        or 5100 <= four <= 5599
        or 2221 <= four <= 2720
        or four // 100 in (34, 37, 36, 38, 39, 30, 65)
        or four == 6011
        or 6440 <= four <= 6499
        or 3528 <= four <= 3589
        or four // 100 == 62
    )
    return is_issued and _has_check_digit(digits)


def _has_check_digit(digits: bytes) -> bool:
    total = 0
    for place, octet in enumerate(reversed(digits)):
        digit = octet - 48
        total += digit if place % 2 == 0 else digit * 2 - 9 * (digit > 4)
    return total % 10 == 0
