"""The rules of a space, compiled: what they replace in one text.

Laws:
- A text is looked through in time linear in its length, whatever the pattern is: RE2 never backtracks.
- What a pattern takes is bounded: its own size, its compiled size, its matches in one write, and the time of one write.
- Rules run until none of them finds anything more, so that no replacement makes what another rule replaces.
- One pass says which patterns a text concerns, and only these run. What is replaced is what all of them, one by one in their
  order, would replace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from shoal.errors import InvalidInput, RedactionFailed, RedactionRefused
from shoal.kinds.redaction.state import packed, rules
from shoal.kinds.redaction.state.rules import CARDS, CREDENTIALS, Pattern, Rules
from shoal.names import check_name
from shoal.protocol.requests import Replaced
from shoal.raising import needed
from shoal.records import NamedTuple

COMPILED_BYTES_MAX = 1024 * 1024  # Of one pattern.
SET_BYTES_MAX = 16 * COMPILED_BYTES_MAX  # Of all patterns together, where they tell which of them a text concerns.
MATCHES_MAX = 16_384  # In one write.
PASSES_MAX = 4  # Over one text, until no rule finds anything.
REPORT_MAX = 256  # Places that a report tells one by one; the rest is told as one.
REDACTION_S_MAX = 10.0  # Of the patterns' work for one write. What takes longer is refused.

_REST = "…"
"""The place of what a report tells as one."""


class _Compiled(NamedTuple):
    name: str
    regex: Any
    replace: bytes
    numbers: bool
    is_cards: bool = False


class Engine:
    """The patterns of one space's rules.

    Raises:
        InvalidInput: a pattern is too large, or none that RE2 knows.
        Unsupported: RE2 is not installed.
    """

    def __init__(self, told: Rules) -> None:
        found = [
            _compiled(Pattern(CREDENTIALS, regex, f"[{CREDENTIALS}]"))
            for regex in (rules.CREDENTIAL_PATTERNS if told.credentials else ())
        ]
        if told.cards:
            found.append(_compiled(Pattern(CARDS, rules.CARD_CANDIDATE, "[card]", numbers=True))._replace(is_cards=True))
        self._least = 1 if told.patterns else 12  # Nothing shorter is found by the built-in ones.
        self._all = found + [_compiled(pattern) for pattern in told.patterns]
        self.numbers = any(each.numbers for each in self._all)
        for each in self._all:
            if self.matches(each.replace):
                raise InvalidInput(
                    f"what stands in the place of matches of {each.name!r} is itself found by a rule. Nothing was written. "
                    "Choose another replacement.",
                    field=each.name,
                )

    @cached_property
    def _together(self) -> Any:
        """All patterns as one, to see quickly that a text holds nothing; None if they cannot be joined."""
        if any(rb"\Q" in each.regex.pattern for each in self._all):
            return None  # A quotation that nothing ends would quote the patterns after it, too.
        whole = "|".join(f"(?:{each.regex.pattern.decode()})" for each in self._all)
        try:
            return _compile(whole, bytes_max=8 * COMPILED_BYTES_MAX)
        except InvalidInput:
            return None

    @cached_property
    def _apart(self) -> Any:
        """All patterns in one automaton that tells which of them a text holds; None if they are too many for one."""
        found = _set([each.regex.pattern for each in self._all])
        # A first look: this compiles what it needs, here and not beside the loop.
        return found if found is not None and found.Match(b"") is None else None

    def concerned(self, text: bytes, /) -> Sequence[int]:
        """The places, in order, of the patterns that a text may hold a match of. It does hold one of some."""
        told = None if self._apart is None else self._apart.Match(text)
        # It tells nothing, too, when its memory is used up. It never tells a part.
        return sorted(told) if told else range(len(self._all))

    def hits(self, text: bytes, /) -> bool:
        """Whether a text may hold a match."""
        if len(text) < self._least or not self._all:
            return False
        together = self._together
        if together is not None:
            return together.search(text) is not None
        return any(each.regex.search(text) is not None for each in self._all)

    def matches(self, text: bytes, /) -> bool:
        """Whether a text holds a match."""
        return self.hits(text) and any(_spans(self._all[nth], text, _unbounded) for nth in self.concerned(text))

    def counted(self, text: bytes, /) -> Counter[str]:
        """How often each rule finds something in a text."""
        found: Counter[str] = Counter()
        if self.hits(text):
            for nth in self.concerned(text):
                found[self._all[nth].name] += len(_spans(self._all[nth], text, _unbounded))
        return +found

    def rewriter(self, now: Callable[[], float]) -> Rewriter:
        """The rewriter for one write that begins now. `now` gives seconds."""
        return Rewriter(self, self._all, now)


class Rewriter:
    """Replaces in the texts of one write, and notes what it replaced."""

    def __init__(self, engine: Engine, patterns: Sequence[_Compiled], now: Callable[[], float]) -> None:
        self._engine = engine
        self._patterns = patterns
        self._now = now
        self._until = now() + REDACTION_S_MAX
        self._left = MATCHES_MAX
        self.numbers = engine.numbers
        self.found: Counter[tuple[str, str]] = Counter()
        """How often, by place and rule."""

    def hits(self, text: bytes, /) -> bool:
        """Whether a text may hold a match."""
        if len(text) > 1024:
            self._check_time()
        return self._engine.hits(text)

    def matches(self, text: bytes, /) -> bool:
        """Whether a text holds a match."""
        return self._engine.matches(text)

    def replaced(self, text: bytes, path: Callable[[], str], /) -> bytes | None:
        """The text with its replacements; None if it stays as it is.

        Raises:
            RedactionRefused: it has too many matches, or the rules do not come to an end with it.
            RedactionFailed: it takes too long.
        """
        return self._settled(text, path)

    def replaced_number(self, digits: bytes, path: Callable[[], str], /) -> bytes | None:
        """The text that stands in the place of a number; None if it stays as it is. Raises as `replaced`."""
        return self._settled(digits, path, of_numbers=True)

    def _settled(self, text: bytes, path: Callable[[], str], *, of_numbers: bool = False) -> bytes | None:
        if not self._engine.hits(text):
            return None
        made = text
        for _ in range(PASSES_MAX):
            before = made
            made, is_settled = self._once(before, path, of_numbers=of_numbers)
            if is_settled or made == before:
                break
        else:
            if self._engine.matches(made):
                raise RedactionRefused(
                    f"the rules of the space find something more at {path() or '/'} each time that they replace. Nothing was "
                    "written. Give them other replacements.",
                    path=path(),
                )
        return None if made == text else made

    def _once(self, text: bytes, path: Callable[[], str], *, of_numbers: bool) -> tuple[bytes, bool]:
        """The text after each pattern had one turn, in their order; and whether nothing more can be found in it."""
        done = -1
        while (nth := next((nth for nth in self._engine.concerned(text) if nth > done), -1)) >= 0:
            pattern, done = self._patterns[nth], nth
            if pattern.numbers or not of_numbers:
                made = self._each(pattern, text, path)
                if made is not text and not self._engine.hits(made):
                    return made, True
                text = made
        return text, False

    def _each(self, pattern: _Compiled, text: bytes, path: Callable[[], str]) -> bytes:
        self._check_time()
        spans = _spans(pattern, text, self._take)
        if not spans:
            return text
        parts, done = list[bytes](), 0
        for start, end in spans:
            parts += (text[done:start], pattern.replace)
            done = end
        self.note(path(), pattern.name, len(spans))
        return b"".join((*parts, text[done:]))

    def note(self, path: str, rule: str, count: int) -> None:
        """Note what was replaced."""
        self.found[path if len(self.found) < REPORT_MAX or (path, rule) in self.found else _REST, rule] += count

    @property
    def report(self) -> list[Replaced]:
        """The replacements, in the order in which they were made."""
        return [Replaced(path, rule, count) for (path, rule), count in self.found.items()]

    def _take(self) -> None:
        self._left -= 1
        self._check_time()
        if self._left < 0:
            raise RedactionRefused(
                f"one write may have at most {MATCHES_MAX} places that the rules of its space replace; this one has more. "
                "Nothing was written. Write it in parts."
            )

    def _check_time(self) -> None:
        if self._now() > self._until:
            raise RedactionFailed(
                f"looking for what the rules of the space replace took more than {REDACTION_S_MAX:g} s. Nothing was written. "
                "Write less at once, or simplify the rules."
            )


def _unbounded() -> None:
    """A count that nobody keeps."""


def _spans(pattern: _Compiled, text: bytes, take: Callable[[], None]) -> list[tuple[int, int]]:
    """The places of what a pattern finds; `take` is called for each, and may raise."""
    found: list[tuple[int, int]] = []
    for match in pattern.regex.finditer(text):
        start, end = match.span()
        if pattern.is_cards:
            parts = [(start + first, start + last) for first, last in rules.cards_in(text[start:end])]
        else:
            parts = [(start, end)] if end > start else []
        for part in parts:
            take()
            found.append(part)
    return found


def _compiled(pattern: Pattern) -> _Compiled:
    size = len(pattern.regex.encode())
    if size > rules.PATTERN_BYTES_MAX:
        raise InvalidInput(
            f"pattern {pattern.name!r} has {size} bytes; at most {rules.PATTERN_BYTES_MAX} are allowed. Nothing was written.",
            field=pattern.name,
        )
    regex = _compile(pattern.regex, bytes_max=COMPILED_BYTES_MAX, name=pattern.name)
    if regex.search(b"") is not None:
        raise InvalidInput(
            f"pattern {pattern.name!r} matches the empty text, so it would match everywhere. Nothing was written. Write it so "
            "that it needs a character at least.",
            field=pattern.name,
        )
    return _Compiled(pattern.name, regex, pattern.replace.encode(), pattern.numbers)


def _compile(regex: str, *, bytes_max: int, name: str = "") -> Any:
    with needed():
        import re2
    options = re2.Options()
    for option, value in {"never_capture": True, "log_errors": False, "max_mem": bytes_max}.items():
        setattr(options, option, value)
    try:
        return re2.compile(regex.encode(), options)
    except re2.error as error:
        told = error.args[0] if error.args else ""
        told = told.decode(errors="replace") if isinstance(told, bytes) else str(told)
        raise InvalidInput(
            f"pattern {name!r} is none that RE2 takes: {told[:200]}. Nothing was written. Its syntax has no look-around and no "
            "back references (https://github.com/google/re2/wiki/Syntax).",
            field=name,
        ) from None


def _set(regexes: Sequence[bytes]) -> Any:
    with needed():
        import re2
    options = re2.Options()
    for option, value in {"never_capture": True, "log_errors": False, "max_mem": SET_BYTES_MAX}.items():
        setattr(options, option, value)
    made = re2.Set.SearchSet(options)
    try:
        for regex in regexes:
            made.Add(regex)
        made.Compile()
    except re2.error:
        return None
    return made


def check(told: Rules) -> Engine:
    """Check that rules can be kept, and compile them. It takes up to a second.

    Raises:
        InvalidInput: a part of them is out of range, or cannot be compiled.
        Unsupported: RE2 is not installed.
    """
    for what, given, most in (("patterns", told.patterns, rules.PATTERNS_MAX), ("hooks", told.hooks, rules.HOOKS_MAX)):
        if len(given) > most:
            raise InvalidInput(f"a space has at most {most} {what}; got {len(given)}. Nothing was written.", field=what)
    for name in (*(each.name for each in told.patterns), *told.hooks):
        check_name("rule", name)
        if len(name.encode()) > rules.NAME_BYTES_MAX:
            raise InvalidInput(
                f"the name of a rule has at most {rules.NAME_BYTES_MAX} bytes; got {name[:80]!r}. Nothing was written."
            )
    for each in told.patterns:
        if len(each.replace.encode()) > rules.REPLACE_BYTES_MAX:
            raise InvalidInput(
                f"what stands in the place of matches of {each.name!r} has at most {rules.REPLACE_BYTES_MAX} bytes. Nothing "
                "was written.",
                field=each.name,
            )
    return Engine(told)


def redacted(value: bytes, rewriter: Rewriter, path: str, *, foreign: bool = False) -> bytes:
    """A packed value with its replacements.

    Raises:
        InvalidValue: it is none.
        RedactionRefused, RedactionFailed: as `Rewriter` and `shoal.kinds.redaction.state.packed` say.
    """
    if not packed.hits(value, rewriter):
        return value
    return packed.rewritten(value, rewriter, path, foreign=foreign)
